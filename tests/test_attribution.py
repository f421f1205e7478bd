"""Every mismatch has its cause, the smallest one, and a fault has none.

The oracle is brute force: the whole reference under each arithmetic there is, element by element.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from flashcheck.compare import quantization as quantizing
from flashcheck.compare import splitting
from flashcheck.compare.attribution import Best, Explanation, Offender, best, candidates, worst_of
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import QuantizationOutputs, SplittingOutputs
from flashcheck.compare.quantization import QuantizationCase
from flashcheck.compare.splitting import SplittingCase
from flashcheck.config import SpecOptions
from flashcheck.reference import quantization as reference
from flashcheck.reference import splitting as split_reference
from flashcheck.reference.arithmetic import PAPER, Arithmetic, NanAbsmax, Rounding
from flashcheck.suites.explaining import record, unexplained
from tests.conftest import CHECKOUT, TIMEOUT_S

GPU = OperationBounds(division_ulp=2.0, square_root_ulp=1.0)
MOMENTUM: SpecOptions = {"signed": True, "sqrt": False, "softsign": True}
LINEAR: SpecOptions = {"signed": True, "sqrt": False, "softsign": False}
VARIANCE: SpecOptions = {"signed": False, "sqrt": True, "softsign": False}
SPECS = {"momentum": MOMENTUM, "linear": LINEAR, "variance": VARIANCE}
PAIRS = list(itertools.product((torch.bfloat16, torch.float16), (torch.int8, torch.int16)))


def set_switches(arithmetic: Arithmetic) -> set[str]:
    """The names of the causes that an arithmetic sets."""
    return {
        name
        for name, is_set in {
            "rounding_tie": arithmetic.rounding is not Rounding.NEAREST_EVEN,
            "fused_multiply_add": arithmetic.fused_multiply_add,
            "reciprocal_division": arithmetic.reciprocal_division,
            "absmax_floor": arithmetic.absmax_floor != 0,
            "nan_absmax": arithmetic.nan_absmax is NanAbsmax.IGNORE,
        }.items()
        if is_set
    }


# Every one there is, fewest switches first.
ARITHMETICS = sorted(
    (
        Arithmetic(rounding, fused, reciprocal, floor, nan)
        for rounding in Rounding
        for fused in (False, True)
        for reciprocal in (False, True)
        for floor in (0.0, 1e-12)
        for nan in NanAbsmax
    ),
    key=lambda a: len(set_switches(a)),
)


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bit for bit, any NaN equal to any other; not the code under test."""
    if not a.is_floating_point():
        return a == b
    width = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return (a.view(width) == b.view(width)) | (a.isnan() & b.isnan())


# --- Quantization -----------------------------------------------------------------------------


@cache
def groups_of_every_kind() -> torch.Tensor:
    """Groups in which each switch, and each pair of switches, shows."""
    generator = torch.Generator().manual_seed(2602)
    normal = torch.randn(600, 32, generator=generator)
    # Exact ties of a linear code, of both signs, odd and even.
    ties = torch.arange(-15.5, 16.5, 1.0).repeat(4, 1)
    ties[:, 0] = 127.0
    tiny = normal[:40] * 1e-13
    # On the floor itself a tie is decided after the division by it.
    tiny_ties = (torch.arange(-15.5, 16.5, 1.0) * (1e-12 / 127)).repeat(4, 1)
    with_nan = normal[40:60].clone()
    with_nan[:, 3] = float("nan")
    ties_with_nan = ties.clone()
    ties_with_nan[:, 5] = float("nan")
    tiny_with_nan = torch.cat([tiny[:8], tiny_ties])
    tiny_with_nan[:, 7] = float("nan")
    zeros = torch.zeros(2, 32)
    parts = [normal, ties, tiny, tiny_ties, with_nan, ties_with_nan, tiny_with_nan, zeros]
    return torch.cat(parts)


def quantize_under(
    x: torch.Tensor, arithmetic: Arithmetic, options: SpecOptions
) -> QuantizationOutputs:
    codes, scales = reference.quantize(x, arithmetic=arithmetic, **options)
    values = reference.dequantize(codes, scales, arithmetic=arithmetic, **options)
    return QuantizationOutputs(codes, scales, values)


def quantization_case(
    x: torch.Tensor,
    subject: QuantizationOutputs,
    options: SpecOptions,
    operations: OperationBounds = GPU,
) -> QuantizationCase:
    return QuantizationCase(
        x=x,
        subject=subject,
        reference=quantize_under(x, PAPER, options),
        reference_of_subject=reference.dequantize(subject.codes, subject.scales, **options),
        options=options,
        group_size=32,
        operations=operations,
    )


def input_of(name: str) -> torch.Tensor:
    x = groups_of_every_kind().reshape(-1)
    return x.abs() if name == "variance" else x


def explained(case: QuantizationCase) -> tuple[Explanation, Best]:
    explanation = quantizing.explain(case)
    return explanation, quantizing.best_setting(case, explanation)


def copied(outputs: QuantizationOutputs) -> QuantizationOutputs:
    return QuantizationOutputs(
        outputs.codes.clone(), outputs.scales.clone(), outputs.values.clone()
    )


@cache
def quantized_by_all(name: str) -> dict[Arithmetic, QuantizationOutputs]:
    return {a: quantize_under(input_of(name), a, SPECS[name]) for a in ARITHMETICS}


def smallest_causes(
    subject: torch.Tensor, literal: torch.Tensor, made: dict[Arithmetic, torch.Tensor]
) -> Counter[int]:
    """How many mismatches need how many switches, by trying all; the key 0 is 'none does'."""
    needed = torch.zeros(subject.numel(), dtype=torch.int64)
    for arithmetic in sorted(made, key=lambda a: -len(set_switches(a))):
        needed[same(subject, made[arithmetic])] = len(set_switches(arithmetic))
    return Counter(needed[~same(subject, literal)].tolist())


def switches_in_causes(causes: dict[str, int]) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for cause, number in causes.items():
        sizes[0 if cause == "unexplained" else len(cause.split("+"))] += number
    return sizes


def check_sums(explanation: Explanation) -> None:
    by_output = explanation.by_output
    assert explanation.total() == sum(explanation.by_cause().values())
    assert explanation.total() == sum(sum(causes.values()) for causes in by_output.values())
    for margin in explanation.margins:
        assert 0 <= margin.largest_ulp <= margin.bound_ulp


def sentence(explanation: Explanation, found: Best) -> str:
    return record(explanation, found, outputs=10**6, distances={}).sentence


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda a: "+".join(set_switches(a)) or "0")
def test_a_quantizer_of_another_arithmetic_is_explained_by_the_smallest_set(
    arithmetic: Arithmetic, name: str
) -> None:
    options, x = SPECS[name], input_of(name)
    made = quantized_by_all(name)
    subject = made[arithmetic]
    case = quantization_case(x, subject, options)
    explanation, found = explained(case)

    literal = made[PAPER]
    assert explanation.total() == sum(
        int((~same(mine, theirs)).sum())
        for mine, theirs in (
            (subject.codes, literal.codes),
            (subject.scales, literal.scales),
            (subject.values, case.reference_of_subject),
        )
    )
    for output, mine, theirs in (
        ("codes", subject.codes, literal.codes),
        ("scales", subject.scales, literal.scales),
    ):
        oracle = smallest_causes(mine, theirs, {a: getattr(o, output) for a, o in made.items()})
        assert switches_in_causes(explanation.by_output.get(output, {})) == oracle, output
        assert 0 not in oracle
    values = explanation.by_output.get("values", {})
    assert set(values) <= {"reciprocal_division"}
    assert bool(values) == arithmetic.reciprocal_division
    # No cause names a switch that the subject does not set.
    named = {part for cause in explanation.by_cause() for part in cause.split("+")}
    assert named <= set_switches(arithmetic)
    assert unexplained(explanation) == 0
    check_sums(explanation)

    # The best setting: of those that leave nothing, one of the fewest switches.
    zero = [
        other
        for other, outputs in made.items()
        if same(outputs.codes, subject.codes).all()
        and same(outputs.scales, subject.scales).all()
        and same(
            reference.dequantize(subject.codes, subject.scales, arithmetic=other, **options),
            subject.values,
        ).all()
    ]
    fewest = min(len(set_switches(a)) for a in zero)
    assert found.left == 0
    assert found.setting.arithmetic in zero
    assert len(found.setting.switches) == fewest
    assert {s.value for s in found.setting.switches} == set_switches(found.setting.arithmetic)
    words = found.setting.words()
    assert sentence(explanation, found).startswith(f"bit-equal under {words}")


def test_the_input_shows_every_switch_and_every_combination() -> None:
    # Otherwise the test above would compare equal things. Fusing only takes back what adding a half
    # rounds wrongly, so no code needs it to be explained.
    seen: set[str] = set()
    for outputs in quantized_by_all("linear").values():
        case = quantization_case(input_of("linear"), outputs, LINEAR)
        seen |= set(quantizing.explain(case).by_cause())
    assert seen == {
        "rounding_tie",
        "absmax_floor",
        "nan_absmax",
        "reciprocal_division",
        "rounding_tie+absmax_floor",
        "rounding_tie+nan_absmax",
        "absmax_floor+nan_absmax",
        "rounding_tie+absmax_floor+nan_absmax",
    }


def test_the_best_setting_is_the_best_of_all_not_only_of_what_a_mismatch_needed() -> None:
    # Half up and half away agree on 0.5 and 2.5, where they part from nearest even; on -0.5 and
    # -2.5 half up is nearest even, and half away is not.
    x = torch.zeros(32)
    x[:5] = torch.tensor([127.0, 2.5, -2.5, 0.5, -0.5])
    subject = quantize_under(x, Arithmetic(rounding=Rounding.HALF_UP), LINEAR)
    assert subject.codes[:5].tolist() == [127, 3, -2, 1, 0]
    explanation, found = explained(quantization_case(x, subject, LINEAR))
    assert explanation.by_output == {"codes": {"rounding_tie": 2}}
    assert (found.setting.words(), found.left) == ("half up", 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_mixture_of_arithmetics_is_explained_part_by_part(seed: int) -> None:
    x = input_of("linear")
    made = quantized_by_all("linear")
    generator = torch.Generator().manual_seed(seed)
    chosen = [
        ARITHMETICS[i] for i in torch.randperm(len(ARITHMETICS), generator=generator)[:4].tolist()
    ]
    groups = x.numel() // 32
    which = torch.randint(0, 4, (groups,), generator=generator)
    subject = copied(made[PAPER])
    for i, arithmetic in enumerate(chosen):
        rows = which == i
        elements = rows.repeat_interleave(32)
        subject.codes[elements] = made[arithmetic].codes[elements]
        subject.scales[rows] = made[arithmetic].scales[rows]
    values = reference.dequantize(subject.codes, subject.scales, **LINEAR)
    subject = replace(subject, values=values)
    explanation, found = explained(quantization_case(x, subject, LINEAR))
    assert unexplained(explanation) == 0
    allowed = {frozenset(set_switches(a)) for a in chosen}
    for cause in explanation.by_cause():
        assert any(set(cause.split("+")) <= switches for switches in allowed), cause
    oracle = smallest_causes(
        subject.codes, made[PAPER].codes, {a: o.codes for a, o in made.items()}
    )
    assert switches_in_causes(explanation.by_output.get("codes", {})) == oracle
    check_sums(explanation)
    assert 0 < found.left <= explanation.total()
    words = sentence(explanation, found)
    assert words == (
        f"{found.left:,} of 1,000,000 outputs differ under {found.setting.words()}; "
        "each has a cause"
    ) or (found.equals and words.endswith("each has a cause"))


# --- Faults in quantization -------------------------------------------------------------------


def plain(seed: int = 0, groups: int = 64, *, absolute: bool = False) -> torch.Tensor:
    x = torch.randn(groups * 32, generator=torch.Generator().manual_seed(seed))
    return x.abs() if absolute else x


def before_rounding(x: torch.Tensor, options: SpecOptions) -> torch.Tensor:
    """The decision value in float64, written from the paper."""
    m = x.double().reshape(-1, 32)
    if options["sqrt"]:
        m = m.sqrt()
    m = m / m.abs().amax(dim=1, keepdim=True)
    if options["softsign"]:
        m = 2 * m / (1 + m.abs())
    return (m * (127 if options["signed"] else 255)).reshape(-1)


def away_from_boundaries(x: torch.Tensor, options: SpecOptions) -> list[int]:
    """Indices whose decision value is at least a tenth of a code from any boundary."""
    value = before_rounding(x, options)
    off = ((value - value.floor()) - 0.5).abs()
    inside = (value.abs() > 2) & (value.abs() < 120)
    return ((off > 0.1) & inside).nonzero().squeeze(1).tolist()


Change = Callable[[QuantizationOutputs, int], None]


def up(tensor: torch.Tensor, at: int, ulps: int) -> None:
    """Move one float by some ULP away from zero."""
    tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)[at] += ulps


def code_up(o: QuantizationOutputs, i: int) -> None:
    o.codes[i] += 1


def code_down(o: QuantizationOutputs, i: int) -> None:
    o.codes[i] -= 1


def code_sign(o: QuantizationOutputs, i: int) -> None:
    o.codes[i] = -o.codes[i]


def code_zero(o: QuantizationOutputs, i: int) -> None:
    o.codes[i] = 0


CODE_FAULTS = [code_up, code_down, code_sign, code_zero]


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda a: "+".join(set_switches(a)) or "0")
@pytest.mark.parametrize("fault", CODE_FAULTS, ids=lambda f: f.__name__)
def test_one_wrong_code_is_unexplained_whatever_else_the_subject_does(
    fault: Change, arithmetic: Arithmetic
) -> None:
    x = plain(1)
    subject = copied(quantize_under(x, arithmetic, MOMENTUM))
    index = away_from_boundaries(x, MOMENTUM)[17]
    fault(subject, index)
    values = reference.dequantize(subject.codes, subject.scales, arithmetic=arithmetic, **MOMENTUM)
    case = quantization_case(x, replace(subject, values=values), MOMENTUM)
    explanation, found = explained(case)
    assert explanation.by_output["codes"]["unexplained"] == 1
    assert unexplained(explanation) == 1
    check_sums(explanation)
    first = explanation.worst[0]
    assert (first.output, first.index, first.cause) == ("codes", index, "unexplained")
    assert first.stage == "code"
    assert first.input == (x[index],)
    assert (first.subject, first.reference) == (subject.codes[index], case.reference.codes[index])
    assert found.left >= 1
    assert sentence(explanation, found).endswith("; 1 unexplained")


@pytest.mark.parametrize("name", ["momentum", "variance"])
@pytest.mark.parametrize("step", [1, -1])
def test_every_code_off_by_one_away_from_a_boundary_is_unexplained(name: str, step: int) -> None:
    options = SPECS[name]
    x = plain(2, groups=512, absolute=name == "variance")
    subject = copied(quantize_under(x, PAPER, options))
    at = torch.tensor(away_from_boundaries(x, options))
    assert len(at) > 5000
    subject.codes[at] += step
    values = reference.dequantize(subject.codes, subject.scales, **options)
    explanation, _ = explained(quantization_case(x, replace(subject, values=values), options))
    assert explanation.by_output == {"codes": {"unexplained": len(at)}}


@pytest.mark.parametrize("name", ["momentum", "variance"])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_scale_one_ulp_off_is_unexplained(name: str, step: int) -> None:
    options = SPECS[name]
    x = plain(3, absolute=name == "variance")
    subject = copied(quantize_under(x, PAPER, options))
    up(subject.scales, 5, step)
    values = reference.dequantize(subject.codes, subject.scales, **options)
    case = quantization_case(x, replace(subject, values=values), options)
    explanation, _ = explained(case)
    assert explanation.by_output == {"scales": {"unexplained": 1}}
    (offender,) = explanation.worst
    assert (offender.index, offender.stage, offender.distance) == (5, "scale", 1)
    group = x[160:192]
    assert offender.input == (group[group.abs().argmax()],)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.5, -0.0, 65504.0])
@pytest.mark.parametrize("name", ["momentum", "variance"])
@pytest.mark.parametrize("largest", [0.0, 1.0])
def test_a_wrong_scale_is_unexplained_in_a_group_of_zeros_too(
    scale: float, name: str, largest: float
) -> None:
    options = SPECS[name]
    x = torch.zeros(64)
    x[0] = largest
    subject = copied(quantize_under(x, PAPER, options))
    subject.scales[0] = scale
    values = reference.dequantize(subject.codes, subject.scales, **options)
    explanation, _ = explained(quantization_case(x, replace(subject, values=values), options))
    assert explanation.by_output == {"scales": {"unexplained": 1}}


def test_a_nan_scale_where_infinity_belongs_is_unexplained() -> None:
    # A variance whose root is 65536, to which the infinite float16 is assigned in rounding.
    x = torch.zeros(32)
    x[0] = 65536.0**2
    subject = copied(quantize_under(x, PAPER, VARIANCE))
    assert subject.scales.isinf().all()
    subject.scales[0] = float("nan")
    values = reference.dequantize(subject.codes, subject.scales, **VARIANCE)
    explanation, _ = explained(quantization_case(x, replace(subject, values=values), VARIANCE))
    assert explanation.by_output["scales"] == {"unexplained": 1}


@pytest.mark.parametrize("name", ["momentum", "variance"])
@pytest.mark.parametrize("ulps", [-20, 20, 1000])
def test_a_value_20_ulp_off_is_unexplained(name: str, ulps: int) -> None:
    options = SPECS[name]
    x = plain(4, absolute=name == "variance")
    subject = copied(quantize_under(x, PAPER, options))
    index = int((subject.codes.long().abs() == 50).nonzero()[0])
    up(subject.values, index, ulps)
    explanation, _ = explained(quantization_case(x, subject, options))
    assert explanation.by_output == {"values": {"unexplained": 1}}
    (offender,) = explanation.worst
    assert (offender.index, offender.distance, offender.stage) == (index, abs(ulps), "value")
    assert offender.input == (subject.codes[index], subject.scales[index // 32])


@pytest.mark.parametrize("name", ["momentum", "variance"])
def test_a_value_one_ulp_off_is_within_the_bound_of_a_gpu_and_not_of_ieee_754(name: str) -> None:
    options = SPECS[name]
    x = plain(5, absolute=name == "variance")
    subject = copied(quantize_under(x, PAPER, options))
    nonzero = subject.codes != 0
    subject.values.view(torch.int32)[nonzero] += 1
    explanation, _ = explained(quantization_case(x, subject, options))
    # A few become what multiplying by the reciprocal gives, which is the better cause.
    causes = explanation.by_output["values"]
    assert set(causes) <= {"ulp_bound", "reciprocal_division"}
    assert causes["ulp_bound"] > 0.9 * int(nonzero.sum())
    check_sums(explanation)
    (margin,) = explanation.margins
    assert margin.output == "values"
    assert 0.5 <= margin.largest_ulp <= 5
    # IEEE-754 operations lie nearer: of ten ULP none is theirs, and of a GPU's.
    subject.values.view(torch.int32)[nonzero] += 5
    ieee = OperationBounds(division_ulp=0.5, square_root_ulp=0.5)
    strict, _ = explained(quantization_case(x, subject, options, ieee))
    loose, _ = explained(quantization_case(x, subject, options))
    assert unexplained(strict) > unexplained(loose)


@pytest.mark.parametrize("name", ["momentum", "variance"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_value_of_finite_codes_is_unexplained(name: str, value: float) -> None:
    options = SPECS[name]
    x = plain(6, absolute=name == "variance")
    subject = copied(quantize_under(x, PAPER, options))
    subject.values[7] = value
    explanation, _ = explained(quantization_case(x, subject, options))
    assert explanation.by_output == {"values": {"unexplained": 1}}
    if value != value:
        assert explanation.worst[0].distance == 2**32


@pytest.mark.parametrize("wrong", [float("nan"), 65504.0, 3e38, -float("inf")])
def test_nothing_is_proven_where_the_exact_value_is_not_finite(wrong: float) -> None:
    x = torch.full((32,), 1e6)
    x[1] = 0.0
    subject = copied(quantize_under(x, PAPER, MOMENTUM))
    assert subject.scales.isinf().all()
    assert subject.values.isinf().sum() == 31
    assert subject.values[1].isnan()
    subject.values[0] = wrong
    subject.values[1] = 0.0
    explanation, _ = explained(quantization_case(x, subject, MOMENTUM))
    assert explanation.by_output == {"values": {"unexplained": 2}}


@pytest.mark.parametrize("name", ["momentum", "variance"])
@pytest.mark.parametrize("wrong", [-0.0, 2.0**-149, -(2.0**-149)])
def test_a_zero_code_gives_zero_and_no_bound_allows_another(name: str, wrong: float) -> None:
    # Each operation on an exact zero is exact, so that no tolerance of one adds anything.
    options = SPECS[name]
    x = torch.zeros(32)
    x[0] = 1.0
    subject = copied(quantize_under(x, PAPER, options))
    assert same(subject.values[1:], torch.zeros(31)).all()
    subject.values[3] = wrong
    explanation, _ = explained(quantization_case(x, subject, options))
    assert explanation.by_output == {"values": {"unexplained": 1}}


def test_codes_of_a_non_finite_input_are_outside_the_domain_and_those_beside_it_are_not() -> None:
    x = plain(7, groups=2)
    x[3], x[35] = float("nan"), float("inf")
    subject = copied(quantize_under(x, PAPER, MOMENTUM))
    subject.codes[torch.tensor([3, 35])] = 99
    subject.codes[torch.tensor([4, 36])] = 99
    values = reference.dequantize(subject.codes, subject.scales, **MOMENTUM)
    explanation, _ = explained(quantization_case(x, replace(subject, values=values), MOMENTUM))
    assert explanation.by_output["codes"] == {"outside_domain": 2, "unexplained": 2}
    assert [o.cause for o in explanation.worst][:2] == ["unexplained", "unexplained"]
    assert {o.index for o in explanation.worst if o.cause == "outside_domain"} == {3, 35}


# --- A boundary explains what is near it, and no more ------------------------------------------


def test_a_code_beyond_a_boundary_within_reach_is_a_rounding_boundary() -> None:
    # Search the float32 next to a boundary of each code from 3 to 119, on both sides.
    codes = torch.arange(3, 120, dtype=torch.float64)
    target = (codes + 0.5) / 127
    near = (target / (2 - target)).float()
    x = torch.zeros(len(codes), 32)
    x[:, 0] = 1.0
    x[:, 1] = near
    flat = x.reshape(-1)
    at = torch.arange(len(codes)) * 32 + 1
    value = before_rounding(flat, MOMENTUM)[at]
    subject = copied(quantize_under(flat, PAPER, MOMENTUM))
    other = torch.where(subject.codes[at] > value, -1, 1).to(torch.int8)
    subject.codes[at] += other
    values = reference.dequantize(subject.codes, subject.scales, **MOMENTUM)
    subject = replace(subject, values=values)
    explanation, _ = explained(quantization_case(flat, subject, MOMENTUM))
    assert set(explanation.by_output["codes"]) <= {"rounding_boundary", "rounding_tie"}
    assert explanation.by_output["codes"]["rounding_boundary"] > 50
    check_sums(explanation)
    assert explanation.margins[0].bound_ulp < 16
    assert {o.stage for o in explanation.worst if o.cause == "rounding_boundary"} <= {
        "before rounding"
    }
    # On the wrong side of the exact number the same step has no excuse.
    wrong = copied(quantize_under(flat, PAPER, MOMENTUM))
    wrong.codes[at] -= other
    values = reference.dequantize(wrong.codes, wrong.scales, **MOMENTUM)
    explanation, _ = explained(quantization_case(flat, replace(wrong, values=values), MOMENTUM))
    assert explanation.by_output["codes"] == {"unexplained": len(codes)}


# --- Splitting --------------------------------------------------------------------------------


@cache
def weights(narrow: torch.dtype) -> torch.Tensor:
    """Float32 of every exponent that the narrow format holds, and exact ties."""
    generator = torch.Generator().manual_seed(11)
    exponents = range(1, 254) if narrow == torch.bfloat16 else range(90, 142)
    per = 16384 // len(exponents)
    field = torch.tensor(list(exponents), dtype=torch.int32).repeat_interleave(per)
    bits = torch.randint(0, 1 << 23, field.shape, dtype=torch.int32, generator=generator)
    sign = torch.randint(0, 2, field.shape, dtype=torch.int32, generator=generator) << 31
    drawn = (bits | (field << 23) | sign).view(torch.float32)
    # A correction of half its range, the one tie of an 8-bit code, of both signs.
    mantissa = 7 if narrow == torch.bfloat16 else 10
    steps = torch.arange(1, 1 << mantissa, dtype=torch.float32) * 2.0**-mantissa
    quarter = 2.0 ** -(mantissa + 2)
    ties = torch.cat([1 + steps + quarter, 1 + steps - quarter])
    return torch.cat([drawn, ties, -ties])


def split_under(
    x: torch.Tensor, pair: tuple[torch.dtype, torch.dtype], arithmetic: Arithmetic
) -> SplittingOutputs:
    narrow = x.to(pair[0])
    rho = split_reference.encode(x, narrow, pair[1], arithmetic)
    return SplittingOutputs(rho, split_reference.decompress(narrow, rho, arithmetic))


def splitting_case(
    x: torch.Tensor,
    subject: SplittingOutputs,
    pair: tuple[torch.dtype, torch.dtype],
    operations: OperationBounds = GPU,
    offset: int = 0,
) -> SplittingCase:
    return SplittingCase(x, x.to(pair[0]), subject, split_under(x, pair, PAPER), operations, offset)


def split_explained(case: SplittingCase) -> tuple[Explanation, Best]:
    explanation = splitting.explain(case)
    left = {
        s: splitting.mismatches_under(case.x, case.narrow, case.subject, [s])[0]
        for s in candidates(explanation)
    }
    return explanation, best(explanation.total(), left)


SPLIT_ARITHMETICS = [a for a in ARITHMETICS if not set_switches(a) & {"absmax_floor", "nan_absmax"}]


def pair_id(pair: object) -> str:
    return "+".join(str(dtype).removeprefix("torch.") for dtype in pair)  # type: ignore[attr-defined]


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
@pytest.mark.parametrize(
    "arithmetic", SPLIT_ARITHMETICS, ids=lambda a: "+".join(set_switches(a)) or "0"
)
def test_a_splitter_of_another_arithmetic_is_explained_by_the_smallest_set(
    arithmetic: Arithmetic, pair: tuple[torch.dtype, torch.dtype]
) -> None:
    x = weights(pair[0])
    made = {a: split_under(x, pair, a) for a in SPLIT_ARITHMETICS}
    subject = made[arithmetic]
    explanation, found = split_explained(splitting_case(x, subject, pair))
    for output, name in (("rho", "rho"), ("reconstructed", "values")):
        oracle = smallest_causes(
            getattr(subject, name),
            getattr(made[PAPER], name),
            {a: getattr(o, name) for a, o in made.items()},
        )
        assert switches_in_causes(explanation.by_output.get(output, {})) == oracle, output
    named = {part for cause in explanation.by_cause() for part in cause.split("+")}
    assert named <= set_switches(arithmetic)
    check_sums(explanation)
    zero = [
        other
        for other, outputs in made.items()
        if same(outputs.rho, subject.rho).all() and same(outputs.values, subject.values).all()
    ]
    assert found.left == 0
    assert found.setting.arithmetic in zero
    assert len(found.setting.switches) == min(len(set_switches(a)) for a in zero)
    assert sentence(explanation, found).startswith(f"bit-equal under {found.setting.words()}")


def test_the_splitters_part_where_they_should() -> None:
    # What the test above would otherwise compare with itself.
    pair = (torch.bfloat16, torch.int16)
    outputs = [split_under(weights(pair[0]), pair, a) for a in SPLIT_ARITHMETICS]
    distinct = {o.rho.numpy().tobytes() + o.values.numpy().tobytes() for o in outputs}
    assert len(distinct) >= 6
    everything = Arithmetic(Rounding.HALF_AWAY, True, True)
    said = {}
    for pair in PAIRS:
        x = weights(pair[0])
        case = splitting_case(x, split_under(x, pair, everything), pair)
        said[pair] = sentence(*split_explained(case))
    # A switch that shows in no element is not named: a reciprocal here of float16 only.
    assert said == {
        PAIRS[0]: "bit-equal under fused multiply-add",
        PAIRS[1]: "bit-equal under half away + fused multiply-add",
        PAIRS[2]: "bit-equal under multiplication by the reciprocal",
        PAIRS[3]: "bit-equal under half away + multiplication by the reciprocal",
    }


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
@pytest.mark.parametrize("step", [-1, 1])
def test_a_correction_code_off_by_one_is_unexplained_and_its_value_follows_from_it(
    pair: tuple[torch.dtype, torch.dtype], step: int
) -> None:
    x = torch.tensor([1.2345678, -3.1415927, 0.0001234, 777.77])
    narrow = x.to(pair[0])
    literal = split_under(x, pair, PAPER)
    rho = literal.rho.clone()
    rho[2] += step
    subject = SplittingOutputs(rho, split_reference.decompress(narrow, rho))
    case = splitting_case(x, subject, pair, offset=1000)
    explanation, _ = split_explained(case)
    assert explanation.by_output["rho"] == {"unexplained": 1}
    values = explanation.by_output.get("reconstructed", {})
    # A step of a 16-bit code may be too small for a float32 to show.
    assert values in ({"propagated": 1}, {})
    assert (explanation.worst[0].output, explanation.worst[0].index) == ("rho", 1002)


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
@pytest.mark.parametrize("bit", range(32))
def test_one_flipped_bit_of_a_reconstructed_value_is_unexplained(
    pair: tuple[torch.dtype, torch.dtype], bit: int
) -> None:
    # Normal in the narrow format, so that the correction's own error is far below half an ULP.
    x = weights(pair[0])
    x = x[(x.abs() > 0.01) & (x.abs() < 1000)][:2000]
    literal = split_under(x, pair, PAPER)
    narrow = x.to(pair[0])
    n = torch.iinfo(pair[1]).max
    # Exactly, in float64: take one whose sum is far from the middle of two float32.
    ulp = split_reference.log2_half_ulp(narrow)
    exact = narrow.double() + literal.rho.double() / n * torch.pow(2.0, ulp.double())
    spacing = torch.nextafter(literal.values.abs(), torch.tensor(torch.inf)) - literal.values.abs()
    off = (literal.values.double() - exact).abs() / spacing
    index = int(((off < 0.1) & (literal.rho.abs() > n // 3)).nonzero()[0])
    values = literal.values.clone()
    mask = torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
    values.view(torch.int32)[index] ^= mask
    case = splitting_case(x, SplittingOutputs(literal.rho, values), pair)
    explanation, _ = split_explained(case)
    assert explanation.by_output == {"reconstructed": {"unexplained": 1}}
    assert explanation.worst[0].index == index
    assert explanation.worst[0].stage == "sum"


@pytest.mark.parametrize("wrong", [-0.0, 2.0**-149, 2.0**-26, float("nan"), float("inf")])
def test_zero_is_rebuilt_exactly_and_no_bound_allows_another(wrong: float) -> None:
    pair = (torch.bfloat16, torch.int8)
    x = torch.tensor([0.0, 1.0])
    literal = split_under(x, pair, PAPER)
    assert same(literal.values, x).all()
    values = literal.values.clone()
    values[0] = wrong
    explanation, _ = split_explained(splitting_case(x, SplittingOutputs(literal.rho, values), pair))
    assert explanation.by_output == {"reconstructed": {"unexplained": 1}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_only_the_code_of_a_weight_that_is_or_becomes_non_finite_is_outside_the_domain(
    value: float,
) -> None:
    pair = (torch.bfloat16, torch.int8)
    x = torch.tensor([value, 1.0])
    assert not x[0].bfloat16().isfinite()
    literal = split_under(x, pair, PAPER)
    rho, values = literal.rho.clone(), literal.values.clone()
    rho[0], values[0] = 5, 42.0
    rho[1], values[1] = 77, 42.0
    explanation, _ = split_explained(splitting_case(x, SplittingOutputs(rho, values), pair))
    assert explanation.by_output == {
        "rho": {"outside_domain": 1, "unexplained": 1},
        # An infinite or NaN narrow weight stays so, whatever its code.
        "reconstructed": {"unexplained": 2},
    }


# --- The worst, and sums ----------------------------------------------------------------------


def offender(cause: str, distance: int, index: int) -> Offender:
    zero = torch.zeros(())
    return Offender("codes", index, zero, zero, zero, distance, "code", cause)


def test_the_worst_are_the_unexplained_first_then_the_farthest_then_the_first() -> None:
    given = [
        offender("rounding_tie", 50, 1),
        offender("unexplained", 1, 9),
        offender("unexplained", 3, 8),
        offender("absmax_floor", 90, 2),
        offender("unexplained", 3, 7),
        offender("rounding_tie", 50, 0),
    ]
    assert [(o.cause, o.distance, o.index) for o in worst_of(given)] == [
        ("unexplained", 3, 7),
        ("unexplained", 3, 8),
        ("unexplained", 1, 9),
        ("absmax_floor", 90, 2),
        ("rounding_tie", 50, 0),
    ]


def test_the_worst_show_where_what_and_how_far_as_bits_and_decimals() -> None:
    x = plain(8)
    subject = copied(quantize_under(x, Arithmetic(absmax_floor=1.0), MOMENTUM))
    subject = copied(quantize_under(x, PAPER, MOMENTUM))
    good = away_from_boundaries(x, MOMENTUM)
    chosen = [good[3], good[30], good[60], good[90], good[120], good[150]]
    for far, index in enumerate(chosen, start=1):
        subject.codes[index] += far
    up(subject.scales, 0, 40)
    values = reference.dequantize(subject.codes, subject.scales, **MOMENTUM)
    case = quantization_case(x, replace(subject, values=values), MOMENTUM)
    explanation, found = explained(case)
    worst = record(explanation, found, outputs=1, distances={}).worst
    assert [(o.output, o.index, o.distance) for o in worst] == [
        ("scales", 0, 40),
        *(("codes", chosen[far - 1], far) for far in (6, 5, 4, 3)),
    ]
    for one in worst[1:]:
        value = x[one.index]
        assert one.input_bits == f"0x{int(value.view(torch.int32)) & 0xFFFFFFFF:08x}"
        assert torch.tensor(float(one.input)) == value
        for side, text, bits in (
            (subject.codes, one.subject, one.subject_bits),
            (case.reference.codes, one.reference, one.reference_bits),
        ):
            assert int(text) == side[one.index]
            assert bits == f"0x{int(side[one.index]) & 0xFF:02x}"
    assert worst[0].reference_bits == f"0x{int(case.reference.scales[0].view(torch.int16)):04x}"
    # The codes of a group whose scale differs part at the absmax.
    assert {o.stage for o in worst} <= {"scale", "code", "absmax"}


@pytest.mark.parametrize("cut", [1, 1000, 16384])
def test_explanations_of_parts_add_up_to_that_of_the_whole(cut: int) -> None:
    pair = (torch.bfloat16, torch.int16)
    x = weights(pair[0])
    subject = split_under(x, pair, Arithmetic(Rounding.HALF_UP, True, True))
    rho, values = subject.rho.clone(), subject.values.clone()
    values[::1117] *= 2

    def part(where: slice) -> Explanation:
        mine = SplittingOutputs(rho[where], values[where])
        return splitting.explain(splitting_case(x[where], mine, pair, offset=where.start))

    whole = part(slice(0, len(x)))
    summed = part(slice(0, cut)) + part(slice(cut, len(x)))
    assert summed.by_output == whole.by_output
    assert summed.total() == whole.total()
    assert summed.by_cause() == whole.by_cause()
    assert set(summed.seen) == set(whole.seen)
    assert summed.margins == whole.margins
    # Of those as far apart any may be shown.
    assert [(o.distance, o.cause) for o in summed.worst] == [
        (o.distance, o.cause) for o in whole.worst
    ]
    assert all(o.index % 1117 == 0 for o in summed.worst)
    check_sums(summed)
    assert list(whole.by_cause().values()) == sorted(whole.by_cause().values(), reverse=True)


def test_nothing_different_is_nothing_to_explain() -> None:
    x = plain(9)
    explanation, found = explained(
        quantization_case(x, quantize_under(x, PAPER, MOMENTUM), MOMENTUM)
    )
    assert (explanation.total(), explanation.by_cause(), explanation.worst) == (0, {}, [])
    assert sentence(explanation, found) == "bit-equal under the paper's arithmetic"


# --- Memory -----------------------------------------------------------------------------------

_MEMORY = """
import resource, torch
torch.set_num_threads(1)
from tests.test_attribution import *
from dataclasses import replace

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

x = plain(1, groups=1 << 15)
subject = copied(quantize_under(x, PAPER, MOMENTUM))
subject.codes.add_(torch.where(subject.codes > 0, -5, 5).to(torch.int8))
subject = replace(subject, values=subject.values.mul_(1.5))
case = quantization_case(x, subject, MOMENTUM)
explained(quantization_case(x[:32], QuantizationOutputs(
    subject.codes[:32], subject.scales[:1], subject.values[:32]), MOMENTUM))
before = peak()
explanation, _ = explained(case)
assert explanation.by_output["codes"] == {"unexplained": 1 << 20}, explanation.by_output
print(peak() - before)
"""


def test_memory_stays_bounded_where_every_element_of_a_million_differs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY],
        cwd=CHECKOUT,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    # Gathering the group of each element at once would take 2^20 x 32 float32: 128 MiB for each
    # of the temporaries of a quantization, of which there are several.
    assert float(done.stdout) < 192
