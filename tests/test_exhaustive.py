"""An enumeration's report against a second count of what its subject was fed and gave.

The second count is made here, one input after the other, in the exact arithmetic of the oracle;
the subject itself notes what it was fed, and what it gave.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashcheck import catalog, parts
from flashcheck.config import ExhaustiveConfig
from flashcheck.errors import CheckerError
from flashcheck.execution.serial import Serial
from flashcheck.formats import BF16, FP16, FP32, INT8, INT16, quantized_format
from flashcheck.inputs import domains
from flashcheck.inputs.domains import Float32, Pairs
from flashcheck.reference import quantization, splitting
from flashcheck.reference.arithmetic import PAPER, Arithmetic, Rounding
from flashcheck.report.models import CaseResult, Report, Selection, Status
from flashcheck.selftest import (  # noqa: F401 - importing them registers their specimens
    faults_calls,
    faults_quantization,
    faults_splitting,
    variants,
)
from flashcheck.selftest.eager import Eager
from flashcheck.selftest.registry import SPECIMENS, Specimen
from flashcheck.selftest.variants import ApproximateDivision, AsOnGpu, FusedReconstruction, Literal
from flashcheck.selftest.verdicts import verdicts
from flashcheck.suites.exhaustive import codes as codes_module
from flashcheck.suites.exhaustive import round_trip, trust
from flashcheck.suites.exhaustive import suite as suites
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite, Extent, tally_of
from tests import oracle
from tests.oracle import Number

FORMATS = {"bf16": BF16, "fp16": FP16, "int8": INT8, "int16": INT16}
SPECS = {
    "momentum": {"signed": True, "sqrt": False, "softsign": True},
    "variance": {"signed": False, "sqrt": True, "softsign": False},
}


def part(
    case: str, *, exponents: tuple[int, int] | None = None, limit: int | None = None, **more: Any
) -> Selection:
    """One spec of the suite, in part."""
    given: dict[str, Any] = {"spec": [case], "limit": limit, **more}
    if exponents:
        given["exponents"] = {"start": exponents[0], "stop": exponents[1]}
    return Selection.model_validate(given)


def suite_of(selection: Selection) -> ExhaustiveSuite:
    (config,) = catalog.find(["exhaustive"])
    assert isinstance(config, ExhaustiveConfig)
    return ExhaustiveSuite(config, selection)


def run(subject: Any, selection: Selection) -> Report:
    suite = suite_of(selection)
    executor = Serial(suite, subject, [], "test", seed=1)
    return parts.run(executor, suite, lambda _: None, command=[])


def case_of(report: Report, name: str) -> CaseResult:
    (case,) = (case for case in report.cases if case.case == name)
    return case


# ---- Subjects ------------------------------------------------------------------------------


class Switched:
    """The reference under a setting of its arithmetic; it notes what it is fed and gives."""

    name = "switched"
    version = "1"
    backend = "native"

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.noted: dict[str, list[tuple[torch.Tensor, ...]]] = {}

    def note(self, method: str, *tensors: torch.Tensor) -> None:
        self.noted.setdefault(method, []).append(tuple(t.clone().reshape(-1) for t in tensors))

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        rho = splitting.encode(x, narrow, ecc_dtype, self.arithmetic)
        self.note(f"compute_ecc {ecc_dtype}", x, narrow, rho)
        return rho

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> Any:
        values = splitting.decompress(narrow, ecc, self.arithmetic)
        self.note(f"reconstruct {ecc.dtype}", narrow, ecc, values)
        return values

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        codes, scales = quantization.quantize(x, arithmetic=self.arithmetic, **options)
        self.note(f"quantize {codes.dtype}", x, codes)
        return codes.reshape(x.shape), scales

    def dequantize(self, codes: torch.Tensor, scales: torch.Tensor, **options: Any) -> Any:
        values = quantization.dequantize(codes, scales, arithmetic=self.arithmetic, **options)
        repeated = scales.repeat_interleave(options["group_size"])
        self.note(f"dequantize {codes.dtype}", codes, repeated, values)
        return values.reshape(codes.shape)


GPU = Arithmetic(rounding=Rounding.HALF_AWAY, fused_multiply_add=True, reciprocal_division=True)
HALF_UP = Arithmetic(rounding=Rounding.HALF_UP)


def f32(x: torch.Tensor) -> list[int]:
    return [bits & 0xFFFFFFFF for bits in x.view(torch.int32).tolist()]


def narrow_bits(x: torch.Tensor) -> list[int]:
    return [bits & 0xFFFF for bits in x.view(torch.int16).tolist()]


def field(pattern: int) -> int:
    return pattern >> 23 & 0xFF


def real(pattern: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", pattern))[0]
    return value


def ordinal(pattern: int) -> int:
    return pattern if pattern < 1 << 31 else (1 << 31) - pattern


# ---- Every setting, smallest first, by hand ------------------------------------------------


def arithmetics(*, rounding: bool, fused: bool, reciprocal: bool) -> list[tuple[str, Arithmetic]]:
    """Causes and their settings, fewest switches first, as the README lists the switches."""
    found = []
    for tie in (
        (PAPER.rounding, Rounding.HALF_AWAY, Rounding.HALF_UP) if rounding else (PAPER.rounding,)
    ):
        for fma in (False, True) if fused else (False,):
            for times in (False, True) if reciprocal else (False,):
                names = [
                    *(["rounding_tie"] if tie is not PAPER.rounding else []),
                    *(["fused_multiply_add"] if fma else []),
                    *(["reciprocal_division"] if times else []),
                ]
                setting = Arithmetic(
                    rounding=tie, fused_multiply_add=fma, reciprocal_division=times
                )
                if names:
                    found.append(("+".join(names), setting))
    order = ["rounding_tie", "fused_multiply_add", "reciprocal_division"]
    return sorted(
        found, key=lambda s: (s[0].count("+"), [order.index(name) for name in s[0].split("+")])
    )


def keyed(arithmetic: Arithmetic) -> tuple[Any, ...]:
    return (
        arithmetic.rounding.value,
        arithmetic.fused_multiply_add,
        arithmetic.reciprocal_division,
    )


def table(case: CaseResult) -> dict[tuple[Any, ...], int]:
    """The settings of a report and what each leaves."""
    assert case.enumeration
    made = {}
    for setting in case.enumeration.settings:
        words = setting.arithmetic
        assert words["absmax_floor"] == 0
        assert words["nan_absmax"] == "propagate"
        key = (words["rounding"], words["fused_multiply_add"], words["reciprocal_division"])
        made[key] = setting.mismatches
    assert len(made) == len(case.enumeration.settings)
    return made


def smallest(
    settings: Iterable[tuple[str, Arithmetic]], gives: Callable[[Arithmetic], bool]
) -> str:
    """The first cause under which the oracle gives what the subject gave."""
    return next((cause for cause, setting in settings if gives(setting)), "unexplained")


class Second:
    """A second count of a case."""

    def __init__(self) -> None:
        self.n: Counter[int] = Counter()
        self.counts: dict[str, Counter[int]] = {}
        self.causes: dict[str, dict[int, Counter[str]]] = {}
        self.left: Counter[tuple[Any, ...]] = Counter()
        self.undefined: dict[str, Counter[str]] = {}
        self.outside: Counter[int] = Counter()
        self.far: list[tuple[int, int, str, int]] = []

    def count(self, name: str, exponent: int, flag: bool) -> None:
        self.counts.setdefault(name, Counter())[exponent] += flag

    def cause(self, output: str, exponent: int, cause: str) -> None:
        by_exponent = self.causes.setdefault(output, {})
        by_exponent.setdefault(exponent, Counter())[cause] += 1

    def hold(self, case: CaseResult) -> None:
        """Everything that a report says of buckets, settings and what is undefined."""
        record = case.enumeration
        assert record
        exponents = self.n.keys() | self.outside.keys()
        assert {bucket.exponent for bucket in record.buckets} == exponents
        for bucket in record.buckets:
            e = bucket.exponent
            assert bucket.n == self.n[e], e
            assert bucket.undefined == self.outside[e], e
            assert bucket.digest is None
            if bucket.n:
                assert bucket.counts == {name: c[e] for name, c in self.counts.items()}, e
            causes = {output: dict(c[e]) for output, c in self.causes.items() if e in c}
            assert bucket.causes == causes, e
        assert table(case) == {key: self.left[key] for key in table(case)}
        assert self.left.keys() <= table(case).keys()
        assert {u.what: u.model_dump(exclude={"what"}) for u in record.undefined} == {
            what: dict(counts) for what, counts in self.undefined.items()
        }
        assert record.covered == self.n.total() + self.outside.total()
        assert case.numel == self.n.total()
        assert case.mismatches
        by_output = {
            output: dict(sum(by.values(), Counter())) for output, by in self.causes.items()
        }
        assert case.mismatches.by_output == by_output
        total = sum(sum(causes.values()) for causes in by_output.values())
        assert case.mismatches.total == total
        for (output, worst), (distance, index, name, bits) in zip(
            ((o.output, o) for o in case.mismatches.worst),
            sorted(self.far, key=lambda f: (-f[0], f[1], f[2]))[:5],
            strict=True,
        ):
            assert (worst.distance, worst.index, output) == (distance, index, name)
            assert int(worst.input_bits.split(", ")[0], 16) == bits


def metric(case: CaseResult, name: str) -> Any:
    assert case.metrics
    return getattr(case.metrics, name)


# ---- The round trip ------------------------------------------------------------------------


def fed_once(calls: Sequence[tuple[torch.Tensor, ...]]) -> list[tuple[torch.Tensor, ...]]:
    """The calls of batches, which each are followed by one with their first inputs again."""
    assert len(calls) % 2 == 0
    firsts, seconds = calls[::2], calls[1::2]
    for first, second in zip(firsts, seconds, strict=True):
        assert torch.equal(
            first[0][: second[0].numel()].view(torch.uint8), second[0].view(torch.uint8)
        )
    return list(firsts)


def second_round_trip(subject: Switched, pair: str) -> Second:
    narrow_fmt, ecc_fmt = (FORMATS[name] for name in pair.split("+"))
    every = arithmetics(rounding=True, fused=True, reciprocal=True)
    encoding = arithmetics(rounding=True, fused=True, reciprocal=False)
    dtype = f"torch.{ecc_fmt.name}"
    noted = fed_once(subject.noted[f"compute_ecc {dtype}"])
    # Reconstruct is a case of its own as well: the round trip's calls come first.
    values = [batch[2] for batch in subject.noted[f"reconstruct {dtype}"][: 2 * len(noted) : 2]]
    found = Second()
    for (x, narrow, rho), given in zip(noted, values, strict=True):
        rows = zip(f32(x), narrow_bits(narrow), rho.tolist(), f32(given), strict=True)
        for pattern, weight, code, value in rows:
            one_round_trip(
                found, pattern, weight, code, value, (narrow_fmt, ecc_fmt), every, encoding
            )
    return found


def one_round_trip(
    found: Second,
    pattern: int,
    weight: int,
    code: int,
    value: int,
    formats: tuple[Any, Any],
    every: list[tuple[str, Arithmetic]],
    encoding: list[tuple[str, Arithmetic]],
) -> None:
    theta, exponent = oracle.decode(pattern, FP32), field(pattern)
    mine = oracle.decode(value, FP32)
    narrow = oracle.convert(theta, formats[0])
    if theta.finite:
        assert oracle.encode(narrow, formats[0]) == weight

    def made(setting: Arithmetic) -> tuple[int, Number]:
        rho = oracle.correction_code(theta, narrow, *formats, setting)
        return rho, oracle.decompress(narrow, rho, *formats, setting)

    rho, theirs = made(PAPER)
    same_value = theirs == mine or (theirs.kind is mine.kind is oracle.Kind.NAN)
    if not narrow.finite:
        what = {
            oracle.Kind.NAN: "theta is NaN",
            oracle.Kind.INFINITE: "theta is infinite",
            oracle.Kind.FINITE: "theta' is infinite",
        }[theta.kind]
        found.outside[exponent] += 1
        counts = found.undefined.setdefault(what, Counter())
        counts.update(
            n=1,
            zero_code=code == 0,
            gives_nan=mine.kind is oracle.Kind.NAN,
            gives_infinity=mine.kind is oracle.Kind.INFINITE,
            gives_finite=mine.finite,
            as_reference=code == rho and same_value,
        )
        return
    found.n[exponent] += 1
    found.count("rho_mismatches", exponent, code != rho)
    found.count("recon_mismatches", exponent, not same_value)
    found.count("subject_exact", exponent, value == pattern)
    found.count("reference_exact", exponent, theirs == theta)
    found.count("nonfinite_subject", exponent, not mine.finite)
    found.count("nonfinite_reference", exponent, not theirs.finite)
    found.count("nonfinite_disagree", exponent, mine.finite != theirs.finite)
    index = exponent << 24 | pattern >> 31 << 23 | pattern & 0x7FFFFF
    if code != rho:
        why = smallest(encoding, lambda setting: made(setting)[0] == code)
        found.cause("rho", exponent, why)
        found.far.append((abs(code - rho), index, "rho", pattern))
    if not same_value:
        why = smallest(every, lambda setting: made(setting)[1] == mine)
        found.cause("reconstructed", exponent, why)
        apart = abs(ordinal(value) - ordinal(oracle.encode(theirs, FP32)))
        found.far.append((apart, index, "reconstructed", pattern))
    for _, setting in every:
        other = made(setting)
        found.left[keyed(setting)] += (other[0] != code) + (other[1] != mine)


@pytest.mark.parametrize(
    ("pair", "arithmetic", "exponents", "limit"),
    [
        ("bf16+int16", GPU, (0, 6), 4000),
        ("bf16+int16", HALF_UP, (126, 128), 500),
        ("bf16+int8", GPU, (2, 5), 300),
        ("bf16+int16", GPU, (253, 256), 400),
        ("fp16+int16", GPU, (101, 114), 500),
        ("fp16+int8", HALF_UP, (140, 144), 300),
        ("fp16+int8", PAPER, None, 300),
    ],
)
def test_a_round_trip_is_as_the_oracle_counts_it(
    pair: str, arithmetic: Arithmetic, exponents: tuple[int, int] | None, limit: int
) -> None:
    subject = Switched(arithmetic)
    case = case_of(
        run(subject, part(pair, exponents=exponents, limit=limit)), f"compute_ecc/{pair}"
    )
    second = second_round_trip(subject, pair)
    second.hold(case)
    n = second.n.total()
    assert n + second.outside.total() == limit
    rho, recon = (second.counts[name].total() for name in ("rho_mismatches", "recon_mismatches"))
    exact, theirs = (second.counts[name].total() for name in ("subject_exact", "reference_exact"))
    assert metric(case, "rho_mismatches") == rho
    assert metric(case, "recon_mismatches") == recon
    assert metric(case, "rho_agree_frac") == (n - rho) / n
    assert metric(case, "recon_agree_frac") == (n - recon) / n
    assert metric(case, "subject_exact") == exact
    assert metric(case, "reference_exact") == theirs
    assert metric(case, "subject_exact_frac") == exact / n
    assert metric(case, "reference_exact_frac") == theirs / n
    assert metric(case, "unexplained") == 0
    assert case.status is Status.PASS, case.reason
    assert case.mismatches
    assert case.mismatches.outputs == 2 * n
    assert case.enumeration
    far = [f for f in second.far if f[2] == "reconstructed"]
    assert case.enumeration.largest == {"reconstructed": max([f[0] for f in far], default=0)}
    assert case.enumeration.size == 1 << 32
    # What is tested does occur.
    if arithmetic is GPU and exponents == (0, 6):
        assert rho > 0
        assert recon > rho
        found = {cause for by in second.causes["reconstructed"].values() for cause in by.elements()}
        assert found >= {"rounding_tie", "fused_multiply_add"}


# ---- Pairs ---------------------------------------------------------------------------------


def second_values(
    subject: Switched, method: str, settings: list[tuple[str, Arithmetic]], made: Any, row: int = 1
) -> Second:
    """Of values made of what is stored; ``made`` gives the oracle's of an input's bits."""
    found = Second()
    for one, other, values in fed_once(subject.noted[method]):
        floats, codes = (one, other) if one.is_floating_point() else (other, one)
        rows = zip(narrow_bits(floats), codes.tolist(), f32(values), strict=True)
        wide = f32(floats.float())
        for place, (weight, code, value) in enumerate(rows):
            if row > 1 and place % 256 >= row:
                continue  # what fills a group up
            exponent = field(wide[place])
            mine, theirs = oracle.decode(value, FP32), made(weight, code, PAPER)
            found.n[exponent] += 1
            found.count("value_mismatches", exponent, mine != theirs)
            found.count("nonfinite_subject", exponent, not mine.finite)
            found.count("nonfinite_reference", exponent, not theirs.finite)
            found.count("nonfinite_disagree", exponent, mine.finite != theirs.finite)
            output = "values" if row > 1 else "reconstructed"
            if mine != theirs:

                def gives(
                    setting: Arithmetic,
                    weight: int = weight,
                    code: int = code,
                    mine: Number = mine,
                ) -> bool:
                    answer: Number = made(weight, code, setting)
                    return answer == mine

                found.cause(output, exponent, smallest(settings, gives))
            for _, setting in settings:
                found.left[keyed(setting)] += made(weight, code, setting) != mine
    return found


def hold_values(case: CaseResult, second: Second) -> None:
    # The worst are compared of round trips, whose index is known by hand.
    assert case.mismatches
    plain = case.mismatches.model_copy(update={"worst": []})
    second.hold(case.model_copy(update={"mismatches": plain}))
    n, differ = second.n.total(), second.counts["value_mismatches"].total()
    assert metric(case, "value_mismatches") == differ
    assert metric(case, "value_agree_frac") == (n - differ) / n
    for name in ("nonfinite_subject", "nonfinite_reference", "nonfinite_disagree"):
        assert metric(case, name) == second.counts[name].total()
    assert metric(case, "unexplained") == 0
    assert case.mismatches.outputs == n


@pytest.mark.parametrize(
    ("pair", "arithmetic", "exponents", "limit"),
    [
        ("bf16+int16", GPU, (0, 5), 1500),
        ("bf16+int8", GPU, (126, 129), 700),
        ("fp16+int16", replace(PAPER, reciprocal_division=True), (103, 143), 700),
        ("fp16+int8", GPU, None, 400),
    ],
)
def test_reconstructed_pairs_are_as_the_oracle_counts_them(
    pair: str, arithmetic: Arithmetic, exponents: tuple[int, int] | None, limit: int
) -> None:
    subject = Switched(arithmetic)
    formats = [FORMATS[name] for name in pair.split("+")]
    selection = part(pair, exponents=exponents, limit=limit)
    suite = suite_of(selection)
    # Only this case, so that all calls are its own.
    only = {name: c for name, c in suite.checks.items() if name == f"reconstruct/{pair}"}
    suite.__dict__["checks"] = only
    executor = Serial(suite, subject, [], "test", seed=1)
    (case,) = parts.run(executor, suite, lambda _: None, command=[]).cases

    def made(weight: int, code: int, setting: Arithmetic) -> Number:
        return oracle.decompress(oracle.decode(weight, formats[0]), code, *formats, setting)

    settings = arithmetics(rounding=False, fused=True, reciprocal=True)
    second = second_values(subject, f"reconstruct torch.{formats[1].name}", settings, made)
    assert second.n.total() == limit
    hold_values(case, second)
    if pair == "bf16+int16":
        assert metric(case, "value_mismatches") > 0


@pytest.mark.parametrize(
    ("spec", "arithmetic", "exponents", "rows"),
    [
        ("momentum", GPU, (103, 106), 6),
        ("momentum", GPU, (127, 128), 4),
        ("variance", GPU, (120, 121), 5),
        ("variance", PAPER, (142, 143), 3),
    ],
)
def test_dequantized_codes_are_as_the_oracle_counts_them(
    spec: str, arithmetic: Arithmetic, exponents: tuple[int, int], rows: int
) -> None:
    subject = Switched(arithmetic)
    row = 255 if spec == "momentum" else 256
    # Of one exponent, so that every row is whole.
    exponents = (exponents[0], exponents[0] + 1)
    scales = {103: 2, 127: 2048, 120: 2048, 142: 2048}[exponents[0]]
    rows = min(rows, scales)
    case = case_of(
        run(subject, part(spec, exponents=exponents, limit=rows * row)), f"dequantize/{spec}"
    )

    def made(scale: int, code: int, setting: Arithmetic) -> Number:
        options = SPECS[spec]
        return oracle.dequantize(code, oracle.decode(scale, FP16), switches=setting, **options)

    settings = arithmetics(rounding=False, fused=False, reciprocal=True)
    method = f"dequantize torch.{quantized_format(SPECS[spec]['signed']).name}"
    second = second_values(subject, method, settings, made, row)
    assert second.n.total() == rows * row
    hold_values(case, second)
    if arithmetic is GPU:
        assert metric(case, "value_mismatches") > 0


@pytest.mark.parametrize("spec", list(SPECS))
@pytest.mark.parametrize("limit", [1, 300, 1000])
def test_a_row_in_part_is_compared_in_part(spec: str, limit: int) -> None:
    report = run(Switched(GPU), part(spec, exponents=(110, 130), limit=limit))
    case = case_of(report, f"dequantize/{spec}")
    assert case.numel == limit
    assert case.enumeration
    assert sum(bucket.n for bucket in case.enumeration.buckets) == limit
    assert case.status is Status.PASS, case.reason


# ---- Codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "arithmetic", "exponents", "limit"),
    [
        ("momentum", Arithmetic(rounding=Rounding.HALF_AWAY), (118, 128), 900),
        ("variance", HALF_UP, (125, 128), 900),
        ("variance", replace(GPU, reciprocal_division=False), None, 300),
    ],
)
def test_codes_are_as_the_oracle_counts_them(
    spec: str, arithmetic: Arithmetic, exponents: tuple[int, int] | None, limit: int
) -> None:
    class OneOff(Switched):
        """Codes of the largest values are one less, so that something is unexplained."""

        def quantize(self, x: torch.Tensor, **options: Any) -> Any:
            codes, scales = super().quantize(x, **options)
            codes[(codes == codes.max()) & (x < 1)] -= 1
            self.noted[f"quantize {codes.dtype}"][-1][1].copy_(codes)
            return codes, scales

    subject = OneOff(arithmetic)
    case = case_of(run(subject, part(spec, exponents=exponents, limit=limit)), f"quantize/{spec}")
    options = SPECS[spec]
    settings = arithmetics(rounding=True, fused=True, reciprocal=False)
    method = f"quantize torch.{quantized_format(options['signed']).name}"
    second = Second()
    thresholds: dict[str, dict[int, list[int]]] = {"subject": {}, "reference": {}}
    fed = 0
    groups = 0
    for x, codes in fed_once(subject.noted[method]):
        groups += x.numel() // 32
        for place, (pattern, code) in enumerate(zip(f32(x), codes.tolist(), strict=True)):
            if place % 32 == 0:
                negative = options["signed"] and place // 32 % 2
                assert pattern == (0xBF800000 if negative else 0x3F800000)
                continue
            if fed == limit:
                assert pattern == 0x3F800000  # what fills the last group up
                continue
            fed += 1
            group = [oracle.ONE, oracle.decode(pattern, FP32)]
            exponent = field(pattern)

            def made(setting: Arithmetic, group: list[Number] = group) -> int:
                return oracle.quantize_group(group, switches=setting, **options).codes[1]

            theirs = made(PAPER)
            second.n[exponent] += 1
            second.count("code_mismatches", exponent, code != theirs)
            second.count("code_beyond_1", exponent, abs(code - theirs) > 1)
            for side, given in (("subject", code), ("reference", theirs)):
                thresholds[side].setdefault(given, []).append(ordinal(pattern))
            others = {keyed(setting): (cause, made(setting)) for cause, setting in settings}
            for key, (_, other) in others.items():
                second.left[key] += other != code
            if code != theirs:
                fits = (cause for cause, other in others.values() if other == code)
                second.cause("codes", exponent, next(fits, "unexplained"))
    assert fed == limit
    assert case.mismatches
    plain = case.mismatches.model_copy(update={"worst": []})
    second.hold(case.model_copy(update={"mismatches": plain}))
    differ = second.counts["code_mismatches"].total()
    assert metric(case, "code_mismatches") == differ
    assert metric(case, "code_agree_frac") == (limit - differ) / limit
    assert metric(case, "code_beyond_1") == second.counts["code_beyond_1"].total() == 0
    assert metric(case, "scale_mismatches") == 0
    assert metric(case, "unexplained") == case.mismatches.by_cause.get("unexplained", 0)
    assert case.enumeration
    assert case.enumeration.totals == {"groups": groups, "scale_mismatches": 0}
    assert case.mismatches.outputs == limit + groups
    seen = {}
    for row in case.enumeration.thresholds:
        for side in thresholds:
            ends = getattr(row, side)
            if ends:
                low, high = int(ends.low_bits, 16), int(ends.high_bits, 16)
                assert (real(low), real(high)) == (ends.low, ends.high)
                seen[side, row.code] = (ordinal(low), ordinal(high))
    assert seen == {
        (side, code): (min(places), max(places))
        for side, by_code in thresholds.items()
        for code, places in by_code.items()
    }
    begin = {side: {c: min(p) for c, p in t.items()} for side, t in thresholds.items()}
    every = begin["subject"].keys() | begin["reference"].keys()
    moved = sum(begin["subject"].get(c) != begin["reference"].get(c) for c in every)
    assert metric(case, "thresholds_moved") == moved
    if exponents:
        assert differ > 0
        assert moved > 0
        assert case.status is Status.FAIL
        assert "unexplained" in (case.reason or "")


def test_thresholds_of_runs_are_those_of_single_values() -> None:
    # Values that follow each other are looked at by the ends of their runs only.
    for signs, signed in ((2, True), (1, False)):
        domain = Float32("some", signs=signs)
        parts_ = [domain.values(e, torch.arange(1 << 12)) for e in (126, 127)]
        x = torch.cat([some for (some,) in parts_])
        if signed:
            half = [domain.values(e, torch.arange(1 << 23, (1 << 23) + 4096)) for e in (0, 126)]
            x = torch.cat([x, *(some for (some,) in half)])
        codes = torch.randint(0, 3, (x.numel(),), generator=torch.Generator().manual_seed(3))
        codes[100:3000] = 7
        codes[4090:4100] = 9
        # One run of a code that no other value has, among negative values where there are any.
        codes[-900:-50] = 8
        found = codes_module._ranges(x, codes)
        wanted: dict[int, list[int]] = {}
        for pattern, code in zip(f32(x), codes.tolist(), strict=True):
            wanted.setdefault(code, []).append(ordinal(pattern))
        assert found == {code: (min(some), max(some)) for code, some in wanted.items()}


class Ties:
    """Shares whose root is a tie between two codes of a variance, and their neighbours."""

    words = "ties"
    row = 1

    def __init__(self) -> None:
        ties = ((torch.arange(255, dtype=torch.float64) + 0.5) / 255) ** 2
        steps = torch.arange(-2, 3, dtype=torch.int32)
        patterns = (ties.float().view(torch.int32)[:, None] + steps).reshape(-1).sort().values
        self.patterns = {
            e: patterns[patterns >> 23 == e] for e in sorted({*(patterns >> 23).tolist()})
        }
        self.buckets = domains._numbered({e: len(some) for e, some in self.patterns.items()})

    def values(self, exponent: int, positions: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.patterns[exponent][positions].view(torch.float32),)


@pytest.mark.parametrize("arithmetic", [PAPER, HALF_UP])
def test_what_a_setting_would_change_is_counted_where_nothing_differs(
    arithmetic: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ties = Ties()
    monkeypatch.setattr(codes_module, "ZERO_TO_ONE", ties)
    case = case_of(run(Switched(arithmetic), part("variance")), "quantize/variance")
    left: Counter[tuple[Any, ...]] = Counter()
    settings = arithmetics(rounding=True, fused=True, reciprocal=False)
    for patterns in ties.patterns.values():
        for pattern in patterns.tolist():
            group = [oracle.ONE, oracle.decode(pattern, FP32)]

            def made(setting: Arithmetic, group: list[Number] = group) -> int:
                options = SPECS["variance"]
                return oracle.quantize_group(group, switches=setting, **options).codes[1]

            mine = made(arithmetic)
            left.update({keyed(setting): made(setting) != mine for _, setting in settings})
    assert table(case) == left
    assert max(left.values()) > 0
    assert case.status is Status.PASS


def test_an_absmax_that_forgets_the_sign_is_caught() -> None:
    class Signed(Switched):
        def quantize(self, x: torch.Tensor, **options: Any) -> Any:
            largest = x.reshape(-1, options["group_size"]).amax(dim=1)
            return super().quantize(x, **options)[0], largest.half()

    case = case_of(run(Signed(PAPER), part("momentum", limit=1500)), "quantize/momentum")
    assert case.enumeration
    totals = case.enumeration.totals
    assert 0 < totals["scale_mismatches"] < totals["groups"]
    assert case.status is Status.FAIL


def test_a_wrong_scale_is_counted_in_the_exponent_of_its_first_value() -> None:
    class WrongScales(Switched):
        def quantize(self, x: torch.Tensor, **options: Any) -> Any:
            codes, scales = super().quantize(x, **options)
            # Of every group that starts with a value under a half.
            first = x.reshape(-1, options["group_size"])[:, 1]
            scales[first.abs() < 0.5] = 2.0
            return codes, scales

    subject = WrongScales(PAPER)
    case = case_of(
        run(subject, part("momentum", exponents=(124, 128), limit=1500)), "quantize/momentum"
    )
    ((x, _),) = fed_once(subject.noted["quantize torch.int8"])
    firsts = x.reshape(-1, 32)[:, 1]
    wanted = Counter(field(pattern) for pattern in f32(firsts[firsts.abs() < 0.5]))
    assert len(wanted) > 1
    assert case.enumeration
    found = {b.exponent: b.causes["scales"] for b in case.enumeration.buckets if b.causes}
    assert found == {e: {"unexplained": number} for e, number in wanted.items()}
    assert metric(case, "scale_mismatches") == wanted.total() == metric(case, "unexplained")
    assert case.enumeration.totals["scale_mismatches"] == wanted.total()
    assert all(setting.mismatches >= wanted.total() for setting in case.enumeration.settings)
    assert case.mismatches
    assert {o.output for o in case.mismatches.worst} == {"scales"}
    domain = codes_module.MINUS_ONE_TO_ONE
    for offender in case.mismatches.worst:
        bucket = max(
            (b for b in domain.buckets if b.first <= offender.index), key=lambda b: b.first
        )
        (value,) = domain.values(bucket.exponent, torch.tensor([offender.index - bucket.first]))
        assert bool((firsts == value).any())
    assert case.status is Status.FAIL


# ---- In a sentence -------------------------------------------------------------------------

SENTENCES = [
    (PAPER, "bit-equal under the paper's arithmetic"),
    (Arithmetic(rounding=Rounding.HALF_AWAY), "bit-equal under half away"),
    (HALF_UP, "bit-equal under half up"),
    (
        Arithmetic(rounding=Rounding.HALF_AWAY, fused_multiply_add=True),
        "bit-equal under half away + fused multiply-add",
    ),
    (
        replace(PAPER, reciprocal_division=True),
        "bit-equal under multiplication by the reciprocal",
    ),
    (GPU, "bit-equal under half away + fused multiply-add + multiplication by the reciprocal"),
]


@pytest.mark.parametrize(("arithmetic", "sentence"), SENTENCES, ids=[s for _, s in SENTENCES])
def test_a_switched_reference_is_named_by_its_switches(
    arithmetic: Arithmetic, sentence: str
) -> None:
    # Small exponents, where each of the switches shows in some of so many.
    report = run(Switched(arithmetic), part("bf16+int16", exponents=(0, 128), limit=150_000))
    case = case_of(report, "compute_ecc/bf16+int16")
    assert case.mismatches
    assert case.mismatches.sentence == sentence
    assert case.mismatches.best_arithmetic.mismatches == 0
    assert case.enumeration
    assert not case.enumeration.whole
    zero = [s.words for s in case.enumeration.settings if s.mismatches == 0]
    if arithmetic != PAPER:
        assert sentence.removeprefix("bit-equal under ") in zero


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Domains of a few mantissas, and of a few floats of 16 bits."""
    monkeypatch.setattr(domains, "_MANTISSAS", 4)
    for module, name in (
        (round_trip, "EVERY_FLOAT32"),
        (codes_module, "MINUS_ONE_TO_ONE"),
        (codes_module, "ZERO_TO_ONE"),
    ):
        whole = getattr(module, name)
        monkeypatch.setattr(module, name, replace(whole))
    patterns = {0: torch.tensor([0, 1]), 127: torch.tensor([0x3C00])}
    few = property(lambda _: {e: some.to(torch.int16) for e, some in patterns.items()})
    monkeypatch.setattr(Pairs, "_patterns", few)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("subject", [Literal, AsOnGpu, FusedReconstruction, ApproximateDivision])
def test_of_a_whole_domain_it_says_proved(subject: type[Eager]) -> None:
    report = run(subject(), Selection(spec=["bf16+int8", "momentum", "variance"]))
    assert [case.case.split("/")[0] for case in report.cases] == [
        "compute_ecc",
        "reconstruct",
        "dequantize",
        "dequantize",
        "quantize",
        "quantize",
    ]
    for case in report.cases:
        assert case.status is Status.PASS, case.reason
        record = case.enumeration
        assert record
        assert record.whole
        assert record.covered == record.size == sum(b.n + b.undefined for b in record.buckets)
        assert case.mismatches
        start = f"proved over all {case.numel:,} {record.domain}: "
        assert case.mismatches.sentence.startswith(start), case.mismatches.sentence
        rest = case.mismatches.sentence.removeprefix(start)
        assert rest.startswith("bit-equal under") or rest.endswith("; each has a cause")
    trip = report.cases[0]
    # 256 exponents of 4 mantissas and both signs; those of field 255 are undefined.
    assert trip.enumeration
    assert trip.enumeration.size == 2048
    assert trip.numel == 2040
    assert trip.mismatches
    assert trip.mismatches.sentence.startswith("proved over all 2,040 float32 patterns: ")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "selection",
    [
        {"limit": 700},
        {"limit": 3},
        {"exponents": {"start": 0, "stop": 100}},
        {"exponents": {"start": 0, "stop": 256, "step": 127}, "limit": 100},
        {"shard": {"index": 1, "count": 2}},
        {"shard": {"index": 2, "count": 2}},
        {"shard": {"index": 3, "count": 40}},
    ],
    ids=str,
)
def test_of_a_part_it_never_says_proved(
    selection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = Extent(part=256, chunk=256)
    monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))
    given = {"spec": ["bf16+int8", "momentum"], **selection}
    report = run(Literal(), Selection.model_validate(given))
    compared = 0
    for case in report.cases:
        record = case.enumeration
        assert record
        assert record.whole is (record.covered == record.size)
        if case.mismatches:
            compared += 1
            assert record.whole is case.mismatches.sentence.startswith("proved")
        # A shard may have a small domain to itself; no other part of it is the whole.
        if "shard" not in selection or case.case == "compute_ecc/bf16+int8":
            assert not record.whole
            assert "proved" not in (case.mismatches.sentence if case.mismatches else "")
    assert compared > 0


@pytest.mark.usefixtures("small")
def test_all_exponents_by_name_are_the_whole() -> None:
    given = {"spec": ["bf16+int8"], "exponents": {"start": 0, "stop": 256}, "limit": 1 << 33}
    for case in run(Literal(), Selection.model_validate(given)).cases:
        assert case.mismatches
        assert case.mismatches.sentence.startswith("proved over all ")


@pytest.mark.usefixtures("small")
def test_where_something_is_unexplained_nothing_is_proved() -> None:
    class Off(Literal):
        def combine(self, narrow: Any, scaled: Any, power: Any) -> Any:
            values = super().combine(narrow, scaled, power)
            values[:1] += 1.5
            return values

        def clamp_code(self, code: Any, signed: bool) -> Any:
            done = super().clamp_code(code, signed)
            done[1, 5] += 40
            return done

    report = run(Off(), Selection(spec=["bf16+int8", "momentum"]))
    seen = 0
    for case in report.cases:
        assert case.enumeration
        assert case.enumeration.whole
        assert case.mismatches
        if case.case.startswith("dequantize"):
            assert case.mismatches.sentence.startswith("proved")
            continue
        seen += 1
        assert "proved" not in case.mismatches.sentence
        assert "unexplained" in case.mismatches.sentence
        assert case.status is Status.FAIL
    assert seen == 3


def test_nothing_compared_is_no_pass() -> None:
    report = run(Literal(), part("bf16+int8", exponents=(255, 256), limit=1000))
    assert report.status == "nothing_compared"
    assert report.summary.passed == 0
    trip, pairs = report.cases
    assert (trip.status, pairs.status) == (Status.UNSUPPORTED, Status.UNSUPPORTED)
    assert trip.numel == pairs.numel == 0
    # What it does there is told nevertheless.
    assert trip.enumeration
    assert sum(some.n for some in trip.enumeration.undefined) == 1000
    assert [bucket.undefined for bucket in trip.enumeration.buckets] == [1000]
    assert trip.metrics is None
    assert trip.mismatches is None


# ---- Batches -------------------------------------------------------------------------------


class Worse(AsOnGpu):
    """As on a GPU, and wrong here and there, by the input alone."""

    def clamp_code(self, code: Any, signed: bool) -> Any:
        return super().clamp_code(torch.where(code == 77, code - 1, code), signed)

    def combine(self, narrow: Any, scaled: Any, power: Any) -> Any:
        values = super().combine(narrow, scaled, power)
        bits = values.view(torch.int32)
        return (bits + 3 * (bits % 7 == 2).int()).view(torch.float32)


def without_time(case: CaseResult) -> dict[str, Any]:
    fields = case.model_dump(exclude={"duration_s"})
    for bucket in fields["enumeration"]["buckets"]:
        # Where nothing of a bucket is compared, its counts are 0 or left out.
        bucket["counts"] = {name: count for name, count in bucket["counts"].items() if count}
    return fields


@pytest.mark.parametrize("subject", [AsOnGpu, Worse])
@pytest.mark.parametrize(
    "selection",
    [
        {"limit": 2000},
        {"exponents": {"start": 100, "stop": 144}, "limit": 1500},
        {"exponents": {"start": 254, "stop": 256}, "limit": 1500},
    ],
    ids=str,
)
def test_how_inputs_are_batched_does_not_matter(
    subject: type[Eager], selection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"spec": ["bf16+int16", "fp16+int8", "momentum", "variance"], **selection}
    chosen = Selection.model_validate(given)
    whole = run(subject(), chosen)
    assert whole.summary.elements > 0
    # Groups share a maximum of 1 with 31 values each: parts of 62 leave none half full, unless an
    # exponent ends in one.
    for extent in (Extent(part=62 * 5, chunk=62 * 5), Extent(part=97, chunk=500)):
        monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))
        parted = run(subject(), chosen)
        for one, other in zip(whole.cases, parted.cases, strict=True):
            if one.case.startswith("quantize"):
                one, other = without_groups(one), without_groups(other)  # noqa: PLW2901
            assert without_time(other) == without_time(one), one.case


def without_groups(case: CaseResult) -> CaseResult:
    """How many groups there are does depend on the batches, since the last is filled up."""
    if case.enumeration is None or case.mismatches is None:
        return case
    record = case.enumeration.model_copy(
        update={"totals": {k: v for k, v in case.enumeration.totals.items() if k != "groups"}}
    )
    mismatches = case.mismatches.model_copy(
        update={"outputs": 0, "sentence": case.mismatches.sentence.split(" of ")[0]}
    )
    return case.model_copy(update={"enumeration": record, "mismatches": mismatches})


# ---- Faults and variants -------------------------------------------------------------------

FAULTS = [specimen for specimen in SPECIMENS if specimen.faulty and not specimen.steps]
VARIANTS = [specimen for specimen in SPECIMENS if not specimen.faulty and not specimen.steps]

ALIKE_HERE = {
    # Every group is led by a 1, which is its absolute maximum: of a wrong maximum, or a wrong way
    # to store or to use it, nothing shows.
    "group size 31",
    "group size 33",
    "group size 64",
    "last partial group mis-scaled",
    "scale kept in bf16",
    "scale rounded up",
    "stored float16 scale divides instead of the absmax",
    "absmax floor of 1e-6",
    "subnormals flushed to zero before the absmax",
    # Inputs are float32, in order, and never none at all.
    "stride ignored on a non-contiguous input",
    "float64 cut to float32 instead of rounded",
    "an empty input raises",
    # Nearest narrow weights are within half an ULP, scales are finite, and of an infinite narrow
    # weight the paper says nothing.
    "clamp missing",
    "finite where the reference is infinite",
    "sign of an infinite narrow weight lost",
    # The millionth element is not there in so small a part.
    "output not written in one element of 10^6",
}


@pytest.fixture(scope="module")
def few() -> list[ExhaustiveSuite]:
    """Some of all exponents, and more of those near 1."""
    near = {"exponents": {"start": 120, "stop": 128}, "limit": 4096, "spec": ["momentum"]}
    one = {"exponents": {"start": 127, "stop": 128}, "limit": 1024, "spec": ["variance"]}
    selections = [Selection(limit=3000), *(Selection.model_validate(some) for some in (near, one))]
    return [suite_of(selection) for selection in selections]


def test_what_is_said_to_be_alike_are_faults() -> None:
    assert {specimen.description for specimen in FAULTS} >= ALIKE_HERE


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda s: s.description)
def test_every_fault_of_a_domain_is_caught(specimen: Specimen, few: list[ExhaustiveSuite]) -> None:
    (verdict,) = verdicts([specimen], few)
    caught = verdict.caught_by is not None
    assert caught is (specimen.description not in ALIKE_HERE), verdict.caught_by


@pytest.mark.parametrize("specimen", VARIANTS, ids=lambda s: s.description)
def test_no_correct_variant_is_flagged(specimen: Specimen, few: list[ExhaustiveSuite]) -> None:
    (verdict,) = verdicts([specimen], few)
    assert verdict.caught_by is None, verdict.caught_by
    assert verdict.cases == 12 + 2 + 2


# ---- Away from the CPU ---------------------------------------------------------------------


class Elsewhere(Literal):
    """On a device that is the CPU under another name, so that comparisons are held against it."""

    device = "cpu:0"


def test_elsewhere_a_sample_is_compared_on_the_cpu_and_digests_are_held() -> None:
    given = {"spec": ["fp16+int8", "variance"], "exponents": {"start": 103, "stop": 105}}
    report = run(Elsewhere(), Selection.model_validate({**given, "limit": 20_000}))
    here = run(Literal(), Selection.model_validate({**given, "limit": 20_000}))
    for case, same in zip(report.cases, here.cases, strict=True):
        assert case.enumeration
        assert same.enumeration
        assert same.enumeration.checker.words == "the eager reference on the CPU"
        assert same.enumeration.checker.digests is same.enumeration.checker.sample is None
        assert case.metrics == same.metrics
        assert case.mismatches == same.mismatches
        assert all(b.digest is not None for b in case.enumeration.buckets)
        checker = case.enumeration.checker
        sampled = case.enumeration.totals[trust.SAMPLED]
        assert 0 < sampled <= 1 << 12
        assert checker.sample == f"{sampled:,} inputs compared alike on the CPU"
    pairs = case_of(report, "reconstruct/fp16+int8").enumeration
    assert pairs
    # 2 weights of exponent 103 and 4 of 104, with 255 codes each: all of them.
    assert [bucket.n for bucket in pairs.buckets] == [510, 1020]
    assert pairs.checker.digests == "equal to the CPU's in 2 of 2 buckets"
    codes = case_of(report, "quantize/variance").enumeration
    assert codes
    assert codes.checker.digests == (
        "of none of 2 buckets: none is whole, or the CPU's are not known"
    )
    # And the tally is read back with both.
    assert tally_of(case_of(report, "quantize/variance")).totals[trust.SAMPLED] > 0


def test_a_digest_that_is_not_the_cpus_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = trust.of_the_cpu()
    wrong = {**committed["reconstruct/fp16+int8"]}
    wrong[104] ^= 1
    changed = {**committed, "reconstruct/fp16+int8": wrong}
    monkeypatch.setattr(trust, "of_the_cpu", lambda: changed)
    given: dict[str, Any] = {"spec": ["fp16+int8"], "limit": 3000}
    right = {**given, "exponents": {"start": 103, "stop": 104}}
    report = run(Elsewhere(), Selection.model_validate(right))
    assert case_of(report, "reconstruct/fp16+int8").status is Status.PASS
    with pytest.raises(CheckerError, match=r"reconstruct/fp16\+int8: over exponent 104"):
        run(
            Elsewhere(),
            Selection.model_validate({**given, "exponents": {"start": 103, "stop": 105}}),
        )
    # Of a bucket in part nothing can be held.
    partly = {"spec": ["fp16+int8"], "limit": 1000, "exponents": {"start": 103, "stop": 105}}
    record = case_of(run(Elsewhere(), Selection.model_validate(partly)), "reconstruct/fp16+int8")
    assert record.enumeration
    assert (record.enumeration.checker.digests or "").startswith("of none of 2 buckets")


@pytest.mark.parametrize("limit", [1, 255, 256, 4096, 9000])
@pytest.mark.parametrize("case", ["dequantize/momentum", "compute_ecc/bf16+int8"])
def test_a_sample_is_some_whole_rows_of_the_slices(case: str, limit: int) -> None:
    suite = suite_of(
        Selection.model_validate({"exponents": {"start": 120, "stop": 123}, "limit": limit})
    )
    enumeration = suite._enumerations[case]
    slices = list(enumeration.slices(1 << 20))
    drawn = [trust.draw(enumeration, slices, seed=seed) for seed in range(30)]
    for some in drawn:
        assert 0 < len(some) <= 1 << 12
        assert some.start % enumeration.row == 0
        assert any(
            whole.exponent == some.exponent
            and whole.start <= some.start
            and some.stop <= whole.stop
            for whole in slices
        )
    if limit == 9000:
        assert len(set(drawn)) > 1
    assert drawn[3] == trust.draw(enumeration, slices, seed=3)
