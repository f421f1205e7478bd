"""Why codes, scales and dequantized values differ from the literal paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashcheck.compare import bounds
from flashcheck.compare.attribution import (
    OUTSIDE_DOMAIN,
    ROUNDING_BOUNDARY,
    STRIDES_IGNORED,
    ULP_BOUND,
    Best,
    Causes,
    Explanation,
    Margin,
    Mismatches,
    Path,
    best,
    candidates,
    explain_output,
    farthest_margin,
    part_of,
)
from flashcheck.compare.metrics import QuantizationOutputs
from flashcheck.compare.settings import LITERAL, Setting, Switch, settings
from flashcheck.compare.ulp import same_bits
from flashcheck.config import SpecOptions
from flashcheck.formats import quantized_format
from flashcheck.reference import quantization as reference
from flashcheck.reference.arithmetic import NanAbsmax

QUANTIZE = settings(
    [Switch.ROUNDING_TIE, Switch.ABSMAX_FLOOR, Switch.NAN_ABSMAX, Switch.FUSED_MULTIPLY_ADD]
)
DEQUANTIZE = settings([Switch.RECIPROCAL_DIVISION])
_DIVISORS = settings([Switch.ABSMAX_FLOOR, Switch.NAN_ABSMAX])

_CODE_STAGES = {
    STRIDES_IGNORED: "absmax",
    OUTSIDE_DOMAIN: "normalised",
    Switch.NAN_ABSMAX.value: "absmax",
    Switch.ABSMAX_FLOOR.value: "absmax",
    ROUNDING_BOUNDARY: "before rounding",
    Switch.FUSED_MULTIPLY_ADD.value: "before rounding",
    Switch.ROUNDING_TIE.value: "code",
}
_SCALE_STAGES = {**_CODE_STAGES, ROUNDING_BOUNDARY: "scale"}


@dataclass(frozen=True)
class Memory:
    """An input's storage, as a kernel sees it that ignores strides.

    Attributes:
        values: float32, as many as the input has elements, in the order of memory.
        position: of each element of the output in row-major order, its place in memory.
    """

    values: torch.Tensor
    position: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor) -> Memory | None:
        """Of a CPU tensor; none if its row-major order is that of its storage."""
        if x.is_contiguous():
            return None
        n = x.numel()
        values = x.as_strided((n,), (1,), x.storage_offset()).to(torch.float32)
        # An output made like a dense input has its strides; one made like a sparse view has not.
        like = torch.empty_like(x)
        order = torch.arange(n).as_strided(x.shape, like.stride()).reshape(-1)
        return cls(values, order)


@dataclass(frozen=True)
class QuantizationCase:
    """One tensor quantized by both sides.

    Attributes:
        x: float32, flat.
        reference_of_subject: the reference's values of the subject's codes and scales.
        operations: what the subject's operations are allowed, from the suite's YAML.
        memory: what lies in the input's storage, where that is not its row-major order.
        compared: which elements' codes count, boolean; all where there is none.
        strata: of each element, int64, the stratum that its mismatches are counted in, if any; a
            group's scale is counted in that of its first element.
        order: of each element, int64, its place, where they do not stand in order.
    """

    x: torch.Tensor
    subject: QuantizationOutputs
    reference: QuantizationOutputs
    reference_of_subject: torch.Tensor
    options: SpecOptions
    group_size: int
    operations: bounds.OperationBounds
    memory: Memory | None = None
    compared: torch.Tensor | None = None
    strata: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def n(self) -> int:
        return quantized_format(self.options["signed"]).max_code


def explain(case: QuantizationCase) -> Explanation:
    """Give every code, scale and dequantized value that differs its cause."""
    parts = [explain_codes(case), explain_scales(case), explain_values(case)]
    return sum(parts, Explanation())


def best_setting(case: QuantizationCase, explanation: Explanation) -> Best:
    """The setting that leaves fewest codes, scales and values different."""

    def mismatches(setting: Setting) -> int:
        codes, scales = reference.quantize(
            case.x, group_size=case.group_size, arithmetic=setting.arithmetic, **case.options
        )
        values = reference.dequantize(
            case.subject.codes,
            case.subject.scales,
            group_size=case.group_size,
            arithmetic=setting.arithmetic,
            **case.options,
        )
        return int(
            (codes != case.subject.codes).sum()
            + (~same_bits(scales, case.subject.scales)).sum()
            + (~same_bits(values, case.subject.values)).sum()
        )

    tried = {setting: mismatches(setting) for setting in candidates(explanation)}
    return best(explanation.total(), tried)


def explain_codes(case: QuantizationCase) -> Explanation:
    """Give every code that differs its cause."""
    subject, theirs = case.subject.codes, case.reference.codes
    groups = reference.as_groups(case.x, case.group_size)
    scales_differ = ~same_bits(case.subject.scales, case.reference.scales)

    def made(setting: Setting, index: torch.Tensor) -> torch.Tensor:
        rows, inverse = torch.unique(index // case.group_size, return_inverse=True)
        stages = reference.quantize_stages(
            groups[rows], arithmetic=setting.arithmetic, **case.options
        )
        return stages.codes[inverse, index % case.group_size]

    differ = subject != theirs
    if case.compared is not None:
        differ &= case.compared
    index = differ.nonzero().squeeze(1)
    return explain_output(
        Mismatches(
            "codes",
            index,
            subject,
            theirs,
            lambda i: case.x[i],
            strata=case.strata,
            order=case.order,
        ),
        Path(
            QUANTIZE,
            _CODE_STAGES,
            lambda i: "absmax" if bool(scales_differ[i // case.group_size]) else "code",
        ),
        made,
        lambda causes, labels: _bound_codes(case, causes, labels, index),
        part=max(1, part_of(case.x) // case.group_size),
    )


def _bound_codes(
    case: QuantizationCase, causes: Causes, labels: torch.Tensor, index: torch.Tensor
) -> list[Margin]:
    """Label the codes that a rounding boundary explains, under the literal or another absmax."""
    labels[(labels == 0) & ~case.x[index].isfinite()] = causes.index(OUTSIDE_DOMAIN)
    _label_strides(case, causes, labels, index, scales=False)
    margins = []
    for prefix, divisor in _divisors(case):
        for part in torch.split((labels == 0).nonzero().squeeze(1), part_of(labels)):
            where = index[part]
            decision = bounds.code_decision(
                case.x[where],
                divisor[where // case.group_size],
                case.n,
                sqrt=case.options["sqrt"],
                softsign=case.options["softsign"],
                operations=case.operations,
            )
            code = case.subject.codes[where]
            allowed = decision.allows(code)
            labels[part[allowed]] = causes.index("+".join([*prefix, ROUNDING_BOUNDARY]))
            # The boundary it crossed is the one between its code and the exact number.
            beyond = code.double() + torch.sign(decision.exact - code.double())
            far = decision.boundary_distance(code, beyond)
            margins += farthest_margin("codes", far[allowed], decision.bound_ulp()[allowed])
    return margins


def _divisors(case: QuantizationCase) -> list[tuple[list[str], torch.Tensor]]:
    """Of each way to take an absmax: its switches, and the exact divisor of each group."""
    magnitudes = reference.as_groups(case.x, case.group_size).abs().double()
    made = []
    for setting in [LITERAL, *_DIVISORS]:
        values = magnitudes
        if setting.arithmetic.nan_absmax is NanAbsmax.IGNORE:
            values = torch.where(values.isnan(), 0.0, values)
        divisor = values.amax(dim=1)
        if case.options["sqrt"]:
            divisor = divisor.sqrt()
        floored = divisor.clamp(min=setting.arithmetic.absmax_floor)
        made.append(([switch.value for switch in setting.switches], floored))
    return made


def explain_scales(case: QuantizationCase) -> Explanation:
    """Give every scale that differs its cause."""
    subject, theirs = case.subject.scales, case.reference.scales
    groups = reference.as_groups(case.x, case.group_size)

    def made(setting: Setting, rows: torch.Tensor) -> torch.Tensor:
        stages = reference.quantize_stages(
            groups[rows], arithmetic=setting.arithmetic, **case.options
        )
        return stages.scales

    index = (~same_bits(subject, theirs)).nonzero().squeeze(1)
    return explain_output(
        Mismatches(
            "scales",
            index,
            subject,
            theirs,
            lambda row: groups[row][groups[row].abs().argmax()],
            strata=None if case.strata is None else case.strata[:: case.group_size],
            order=None if case.order is None else case.order[:: case.group_size],
        ),
        Path(QUANTIZE, _SCALE_STAGES, lambda _: "scale"),
        made,
        lambda causes, labels: _bound_scales(case, causes, labels, index),
        part=max(1, part_of(case.x) // case.group_size),
    )


def _bound_scales(
    case: QuantizationCase, causes: Causes, labels: torch.Tensor, index: torch.Tensor
) -> list[Margin]:
    """Label the scales that a boundary of float16 explains: of roots only, maxima are exact."""
    _label_strides(case, causes, labels, index, scales=True)
    if not case.options["sqrt"]:
        return []
    margins = []
    for prefix, divisor in _divisors(case):
        open_ = (labels == 0).nonzero().squeeze(1)
        rows = index[open_]
        decision = bounds.scale_decision(divisor[rows], case.operations)
        mine, theirs = case.subject.scales[rows], case.reference.scales[rows]
        allowed = bounds.rounds_to_half(decision, mine)
        labels[open_[allowed]] = causes.index("+".join([*prefix, ROUNDING_BOUNDARY]))
        far = bounds.half_boundary_distance(decision, mine, theirs)
        margins += farthest_margin("scales", far[allowed], decision.bound_ulp()[allowed])
    return margins


def _label_strides(
    case: QuantizationCase,
    causes: Causes,
    labels: torch.Tensor,
    index: torch.Tensor,
    *,
    scales: bool,
) -> None:
    """Label codes, or scales, that the input's storage gives, read in the order of memory."""
    if case.memory is None:
        return
    subject = case.subject.scales if scales else case.subject.codes
    for setting in [LITERAL, *QUANTIZE]:
        codes, made = reference.quantize(
            case.memory.values,
            group_size=case.group_size,
            arithmetic=setting.arithmetic,
            **case.options,
        )
        same = same_bits(made, subject) if scales else codes[case.memory.position] == subject
        _label_with(causes, labels, same[index], setting)


def _label_values_of_strides(
    case: QuantizationCase, causes: Causes, labels: torch.Tensor, index: torch.Tensor
) -> None:
    """Label values whose scale is that of the group of their place in memory."""
    if case.memory is None:
        return
    codes, subject = case.subject.codes[index], case.subject.values[index]
    scales = case.subject.scales[case.memory.position[index] // case.group_size]
    for setting in [LITERAL, *DEQUANTIZE]:
        values = reference.dequantize_groups(
            codes[:, None], scales, arithmetic=setting.arithmetic, **case.options
        )
        _label_with(causes, labels, same_bits(values.squeeze(1), subject), setting)
    decision = _value_decision(case, codes, scales)
    near = (labels == 0) & decision.allows_value(subject)
    labels[near] = causes.index(f"{STRIDES_IGNORED}+{ULP_BOUND}")


def _label_with(causes: Causes, labels: torch.Tensor, same: torch.Tensor, setting: Setting) -> None:
    name = "+".join([STRIDES_IGNORED, *(switch.value for switch in setting.switches)])
    labels[(labels == 0) & same] = causes.index(name)


def _value_decision(
    case: QuantizationCase, codes: torch.Tensor, scales: torch.Tensor
) -> bounds.Decision:
    """The exact values of codes and their scales, with their bound."""
    return bounds.dequantized(
        codes,
        scales,
        case.n,
        sqrt=case.options["sqrt"],
        softsign=case.options["softsign"],
        operations=case.operations,
    )


def _value_stages(options: SpecOptions) -> dict[str, str]:
    """A bound proves the last inexact stage: the expansion's division, or else the product."""
    return {
        STRIDES_IGNORED: "scaled",
        Switch.RECIPROCAL_DIVISION.value: "normalised",
        ULP_BOUND: "companded" if options["softsign"] else "scaled",
    }


def explain_values(case: QuantizationCase) -> Explanation:
    """Give every dequantized value that differs its cause."""
    subject, theirs = case.subject.values, case.reference_of_subject
    codes, scales = case.subject.codes, case.subject.scales

    def made(setting: Setting, where: torch.Tensor) -> torch.Tensor:
        values = reference.dequantize_groups(
            codes[where][:, None],
            scales[where // case.group_size],
            arithmetic=setting.arithmetic,
            **case.options,
        )
        return values.squeeze(1)

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        _label_values_of_strides(case, causes, labels, index)
        margins = []
        for part in torch.split((labels == 0).nonzero().squeeze(1), part_of(labels)):
            where = index[part]
            decision = _value_decision(case, codes[where], scales[where // case.group_size])
            off = (subject[where].double() - decision.exact).abs()
            allowed = decision.allows_value(subject[where])
            labels[part[allowed]] = causes.index(ULP_BOUND)
            far = off / bounds.ulp(decision.exact)
            margins += farthest_margin("values", far[allowed], decision.bound_ulp()[allowed])
        return margins

    index = (~same_bits(subject, theirs)).nonzero().squeeze(1)
    return explain_output(
        Mismatches(
            "values",
            index,
            subject,
            theirs,
            lambda i: (codes[i], scales[i // case.group_size]),
            strata=case.strata,
            order=case.order,
        ),
        Path(DEQUANTIZE, _value_stages(case.options), lambda _: "value"),
        made,
        prove,
        part=part_of(subject),
    )
