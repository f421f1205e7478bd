"""Why correction codes and reconstructed values differ from the literal paper."""

from __future__ import annotations

from dataclasses import dataclass

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
)
from flashcheck.compare.metrics import SplittingOutputs
from flashcheck.compare.settings import LITERAL, Setting, Switch, settings
from flashcheck.compare.ulp import same_bits
from flashcheck.formats import ecc_format
from flashcheck.reference import splitting as reference
from flashcheck.reference.arithmetic import CHUNK

_RHO = settings([Switch.ROUNDING_TIE, Switch.FUSED_MULTIPLY_ADD])
_RECONSTRUCT = settings([Switch.FUSED_MULTIPLY_ADD, Switch.RECIPROCAL_DIVISION])
_ROUND_TRIP = settings([Switch.ROUNDING_TIE, Switch.FUSED_MULTIPLY_ADD, Switch.RECIPROCAL_DIVISION])

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

    Attributes:
        offset: the index of the first value in the whole input.
        operations: what the subject's operations are allowed, from the suite's YAML.
    """

    x: torch.Tensor
    narrow: torch.Tensor
    subject: SplittingOutputs
    reference: SplittingOutputs
    operations: bounds.OperationBounds
    offset: int = 0

    @property
    def ecc_dtype(self) -> torch.dtype:
        return self.subject.rho.dtype

    @property
    def n(self) -> int:
        return ecc_format(self.ecc_dtype).max_code

    def rho(self, setting: Setting, index: torch.Tensor) -> torch.Tensor:
        """The reference's codes under a setting."""
        return reference.correction_codes(
            self.x[index], self.narrow[index], self.ecc_dtype, setting.arithmetic
        )


def explain(case: SplittingCase) -> Explanation:
    """Give every correction code and reconstructed value that differs its cause."""
    return _explain_rho(case) + _explain_values(case)


def mismatches_under(
    x: torch.Tensor, narrow: torch.Tensor, subject: SplittingOutputs, setting: Setting
) -> int:
    """How many of the subject's codes and values differ from the reference's under a setting."""
    rho = reference.encode(x, narrow, subject.rho.dtype, setting.arithmetic)
    values = reference.decompress(narrow, rho, setting.arithmetic)
    return int((rho != subject.rho).sum() + (~same_bits(values, subject.values)).sum())


def _explain_rho(case: SplittingCase) -> Explanation:
    subject, theirs = case.subject.rho, case.reference.rho
    index = (subject != theirs).nonzero().squeeze(1)

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        _label_outside(case, causes, labels, index)
        return []

    return explain_output(
        Mismatches("rho", index, subject, theirs, lambda i: case.x[i], case.offset),
        Path(_RHO, _RHO_STAGES, lambda _: "code"),
        case.rho,
        prove,
        part=CHUNK,
    )


def _explain_values(case: SplittingCase) -> Explanation:
    subject, theirs = case.subject.values, case.reference.values
    index = (~same_bits(subject, theirs)).nonzero().squeeze(1)

    def made(setting: Setting, where: torch.Tensor) -> torch.Tensor:
        return reference.reconstruct_chunk(
            case.narrow[where], case.rho(setting, where), setting.arithmetic
        )

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        _label_propagated(case, causes, labels, index)
        margins = []
        for part in torch.split((labels == 0).nonzero().squeeze(1), CHUNK):
            where = index[part]
            narrow, rho = case.narrow[where], case.subject.rho[where]
            decision = bounds.reconstructed(
                narrow, rho, reference.log2_half_ulp(narrow), case.n, case.operations
            )
            off = (subject[where].double() - decision.exact).abs()
            allowed = decision.allows_value(subject[where])
            own = rho == case.reference.rho[where]
            labels[part[allowed & own]] = causes.index(ULP_BOUND)
            labels[part[allowed & ~own]] = causes.index(f"{PROPAGATED}+{ULP_BOUND}")
            far = off / bounds.ulp(decision.exact)
            margins += farthest_margin("reconstructed", far[allowed], decision.bound_ulp()[allowed])
        return margins

    return explain_output(
        Mismatches("reconstructed", index, subject, theirs, lambda i: case.x[i], case.offset),
        Path(_ROUND_TRIP, _VALUE_STAGES, lambda _: "sum"),
        made,
        prove,
        part=CHUNK,
    )


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
    for setting in [LITERAL, *_RECONSTRUCT]:
        for part in torch.split((labels == 0).nonzero().squeeze(1), CHUNK):
            where = index[part]
            rho = case.subject.rho[where]
            values = reference.reconstruct_chunk(case.narrow[where], rho, setting.arithmetic)
            follows = same_bits(values, case.subject.values[where])
            follows &= rho != case.reference.rho[where]
            name = "+".join([PROPAGATED, *(switch.value for switch in setting.switches)])
            labels[part[follows]] = causes.index(name)
