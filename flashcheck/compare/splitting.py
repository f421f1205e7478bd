"""Why correction codes and reconstructed values differ from the literal paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from flashcheck.compare import bounds
from flashcheck.compare.attribution import (
    OUTSIDE_DOMAIN,
    PROPAGATED,
    ULP_BOUND,
    Causes,
    Explanation,
    Margin,
    Mismatches,
    Path,
    explain_output,
    farthest_margin,
    part_of,
)
from flashcheck.compare.metrics import SplittingOutputs
from flashcheck.compare.sensitivity import fusing_matters
from flashcheck.compare.settings import LITERAL, Setting, Switch, settings
from flashcheck.compare.ulp import same_bits
from flashcheck.formats import ecc_format
from flashcheck.reference import splitting as reference
from flashcheck.reference.arithmetic import PAPER, Arithmetic, Rounding

_RHO = settings([Switch.ROUNDING_TIE, Switch.FUSED_MULTIPLY_ADD])
RECONSTRUCT = settings([Switch.FUSED_MULTIPLY_ADD, Switch.RECIPROCAL_DIVISION])
ROUND_TRIP = settings([Switch.ROUNDING_TIE, Switch.FUSED_MULTIPLY_ADD, Switch.RECIPROCAL_DIVISION])

_RHO_STAGES = {
    OUTSIDE_DOMAIN: "normalised",
    Switch.FUSED_MULTIPLY_ADD.value: "before rounding",
    Switch.ROUNDING_TIE.value: "code",
}
_VALUE_STAGES = {
    Switch.ROUNDING_TIE.value: "code",
    PROPAGATED: "code",
    Switch.RECIPROCAL_DIVISION.value: "correction",
    Switch.FUSED_MULTIPLY_ADD.value: "sum",
    ULP_BOUND: "sum",
}


@dataclass(frozen=True)
class SplittingCase:
    """Some float32 values split and put together again by both sides, all tensors flat.

    They may be on any device, all on one.

    Attributes:
        offset: the index of the first value in the whole input.
        operations: what the subject's operations are allowed, from the suite's YAML.
        strata: of each value, int64, the stratum that its mismatches are counted in, if any.
        tried: what the reference gives under each setting, where that is known of all values.
        order: of each value, int64, its place, where they do not stand in order.
    """

    x: torch.Tensor
    narrow: torch.Tensor
    subject: SplittingOutputs
    reference: SplittingOutputs
    operations: bounds.OperationBounds
    offset: int = 0
    strata: torch.Tensor | None = None
    tried: Tried | None = None
    order: torch.Tensor | None = None

    @property
    def ecc_dtype(self) -> torch.dtype:
        return self.subject.rho.dtype

    def rho(self, setting: Setting, index: torch.Tensor) -> torch.Tensor:
        """The reference's codes under a setting."""
        if self.tried:
            return self.tried.rho(setting)[index]
        return reference.correction_codes(
            self.x[index], self.narrow[index], self.ecc_dtype, setting.arithmetic
        )

    def values(self, setting: Setting, index: torch.Tensor) -> torch.Tensor:
        """The values that those codes give back under it."""
        if self.tried:
            return self.tried.values(setting)[index]
        rho = self.rho(setting, index)
        return reference.reconstruct_chunk(self.narrow[index], rho, setting.arithmetic)


class Tried:
    """What the reference makes of some values under each setting, each computed once."""

    def __init__(self, x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype) -> None:
        self._x = x
        self._narrow = narrow
        self._ecc_dtype = ecc_dtype
        self._rho: dict[Arithmetic, torch.Tensor] = {}
        self._values: dict[Arithmetic, torch.Tensor] = {}

    def rho(self, setting: Setting) -> torch.Tensor:
        """The correction codes."""
        # Division by N comes after the codes, and nearest-even adds nothing that could be fused.
        encoding = replace(setting.arithmetic, reciprocal_division=False)
        if encoding.rounding is Rounding.NEAREST_EVEN:
            encoding = PAPER
        if encoding not in self._rho:
            self._rho[encoding] = reference.correction_codes(
                self._x, self._narrow, self._ecc_dtype, encoding
            )
        return self._rho[encoding]

    def values(self, setting: Setting) -> torch.Tensor:
        """The values given back."""
        arithmetic = setting.arithmetic
        if arithmetic not in self._values:
            self._values[arithmetic] = self._reconstructed(setting)
        return self._values[arithmetic]

    def _reconstructed(self, setting: Setting) -> torch.Tensor:
        rho, arithmetic = self.rho(setting), setting.arithmetic
        if not arithmetic.fused_multiply_add:
            return reference.reconstruct_chunk(self._narrow, rho, arithmetic)
        where = self._fusing
        if 2 * where.numel() > rho.numel():
            return reference.reconstruct_chunk(self._narrow, rho, arithmetic)
        unfused = replace(arithmetic, fused_multiply_add=False)
        values = reference.reconstruct_chunk(self._narrow, rho, unfused)
        # Emulating a fused operation is slow, and for most weights it is the same.
        values[where] = reference.reconstruct_chunk(self._narrow[where], rho[where], arithmetic)
        return values

    @cached_property
    def _fusing(self) -> torch.Tensor:
        return fusing_matters(self._narrow).nonzero().squeeze(1)

    def mismatches(self, subject: SplittingOutputs, settings: Sequence[Setting]) -> list[int]:
        """Of each setting, how many of the subject's codes and values differ."""
        counts = [
            (self.rho(setting) != subject.rho).sum()
            + (~same_bits(self.values(setting), subject.values)).sum()
            for setting in settings
        ]
        numbers: list[int] = torch.stack(counts).tolist() if counts else []
        return numbers


def explain(case: SplittingCase) -> Explanation:
    """Give every correction code and reconstructed value that differs its cause."""
    return _explain_rho(case) + _explain_values(case)


def mismatches_under(
    x: torch.Tensor, narrow: torch.Tensor, subject: SplittingOutputs, settings: Sequence[Setting]
) -> list[int]:
    """Of each setting, how many codes and values of the subject the reference does not give."""
    totals = [0] * len(settings)
    for start in range(0, x.numel(), part_of(x)):
        some = slice(start, start + part_of(x))
        outputs = SplittingOutputs(subject.rho[some], subject.values[some])
        tried = Tried(x[some], narrow[some], subject.rho.dtype)
        counts = tried.mismatches(outputs, settings)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    return totals


def _explain_rho(case: SplittingCase) -> Explanation:
    subject, theirs = case.subject.rho, case.reference.rho
    index = (subject != theirs).nonzero().squeeze(1)

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        _label_outside(case, causes, labels, index)
        return []

    return explain_output(
        Mismatches(
            "rho", index, subject, theirs, lambda i: case.x[i], case.offset, case.strata, case.order
        ),
        Path(_RHO, _RHO_STAGES, lambda _: "code"),
        case.rho,
        prove,
        part=part_of(subject),
    )


def _explain_values(case: SplittingCase) -> Explanation:
    subject, theirs = case.subject.values, case.reference.values
    index = (~same_bits(subject, theirs)).nonzero().squeeze(1)

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        _label_propagated(case, causes, labels, index)
        margins = []
        for part in torch.split((labels == 0).nonzero().squeeze(1), part_of(subject)):
            where = index[part]
            narrow, rho = case.narrow[where], case.subject.rho[where]
            allowed, margin = _within_bound(narrow, rho, subject[where], case.operations)
            own = rho == case.reference.rho[where]
            labels[part[allowed & own]] = causes.index(ULP_BOUND)
            labels[part[allowed & ~own]] = causes.index(f"{PROPAGATED}+{ULP_BOUND}")
            margins += margin
        return margins

    return explain_output(
        Mismatches(
            "reconstructed",
            index,
            subject,
            theirs,
            lambda i: case.x[i],
            case.offset,
            case.strata,
            case.order,
        ),
        Path(ROUND_TRIP, _VALUE_STAGES, lambda _: "sum"),
        case.values,
        prove,
        part=part_of(subject),
    )


@dataclass(frozen=True)
class ReconstructionCase:
    """Narrow weights and codes put together by both sides, all tensors flat and on one device."""

    narrow: torch.Tensor
    rho: torch.Tensor
    subject: torch.Tensor
    reference: torch.Tensor
    operations: bounds.OperationBounds
    strata: torch.Tensor | None = None
    order: torch.Tensor | None = None


def explain_reconstructed(case: ReconstructionCase) -> Explanation:
    """Give every reconstructed value that differs its cause; the codes are the same."""
    subject = case.subject
    index = (~same_bits(subject, case.reference)).nonzero().squeeze(1)

    def made(setting: Setting, where: torch.Tensor) -> torch.Tensor:
        return reference.reconstruct_chunk(case.narrow[where], case.rho[where], setting.arithmetic)

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        margins = []
        for part in torch.split((labels == 0).nonzero().squeeze(1), part_of(labels)):
            where = index[part]
            allowed, margin = _within_bound(
                case.narrow[where], case.rho[where], subject[where], case.operations
            )
            labels[part[allowed]] = causes.index(ULP_BOUND)
            margins += margin
        return margins

    return explain_output(
        Mismatches(
            "reconstructed",
            index,
            subject,
            case.reference,
            lambda i: (case.narrow[i], case.rho[i]),
            strata=case.strata,
            order=case.order,
        ),
        Path(RECONSTRUCT, _VALUE_STAGES, lambda _: "sum"),
        made,
        prove,
        part=part_of(subject),
    )


def _within_bound(
    narrow: torch.Tensor,
    rho: torch.Tensor,
    values: torch.Tensor,
    operations: bounds.OperationBounds,
) -> tuple[torch.Tensor, list[Margin]]:
    """Which values are within the bound of what their narrow weights and codes stand for."""
    n = ecc_format(rho.dtype).max_code
    decision = bounds.reconstructed(narrow, rho, reference.log2_half_ulp(narrow), n, operations)
    far = (values.double() - decision.exact).abs() / bounds.ulp(decision.exact)
    allowed = decision.allows_value(values)
    return allowed, farthest_margin("reconstructed", far[allowed], decision.bound_ulp()[allowed])


def _label_outside(
    case: SplittingCase, causes: Causes, labels: torch.Tensor, index: torch.Tensor
) -> None:
    """The paper defines a code where the weight and its narrow form are finite.

    Of values nothing is excused: an infinite or NaN narrow weight stays so, whatever its code.
    """
    defined = case.x[index].isfinite() & case.narrow[index].isfinite()
    labels[(labels == 0) & ~defined] = causes.index(OUTSIDE_DOMAIN)


def _label_propagated(
    case: SplittingCase, causes: Causes, labels: torch.Tensor, index: torch.Tensor
) -> None:
    """A value that is right for its own code, where the code differs and has its own cause."""
    for setting in [LITERAL, *RECONSTRUCT]:
        for part in torch.split((labels == 0).nonzero().squeeze(1), part_of(labels)):
            where = index[part]
            rho = case.subject.rho[where]
            values = reference.reconstruct_chunk(case.narrow[where], rho, setting.arithmetic)
            follows = same_bits(values, case.subject.values[where])
            follows &= rho != case.reference.rho[where]
            name = "+".join([PROPAGATED, *(switch.value for switch in setting.switches)])
            labels[part[follows]] = causes.index(name)
