"""Tallies add up, in any order and grouping, and survive a report."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flashcheck import parts
from flashcheck.config import ExhaustiveConfig, parse
from flashcheck.execution.serial import Serial
from flashcheck.report.models import Contract, Margin, Offender, Report, Selection
from flashcheck.selftest.eager import Eager
from flashcheck.selftest.variants import AsOnGpu
from flashcheck.suites.exhaustive import suite as suites
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite, Extent, tally_of
from flashcheck.suites.exhaustive.tally import BucketTally, Tally, total
from tests.test_journal import EVERY

MODULUS = 1 << 32

# ---- Made-up tallies -----------------------------------------------------------------------

NUMBERS = st.integers(0, 1 << 40)
NAMES = st.sampled_from(["rho_mismatches", "subject_exact", "unexplained"])
OUTPUTS = st.sampled_from(["rho", "reconstructed", "codes"])
CAUSES = st.sampled_from(["rounding_tie", "ulp_bound", "unexplained"])
COUNTS = st.dictionaries(NAMES, NUMBERS, max_size=3)


def offender(output: str, index: int) -> Offender:
    """The one mismatch of an output of an input: in no part it is another."""
    unexplained = index % 3 == 0
    return Offender(
        output=output,
        index=index,
        input=str(index),
        input_bits=f"0x{index:08x}",
        subject="1",
        subject_bits="0x1",
        reference="2",
        reference_bits="0x2",
        distance=index * 7 % 4,
        stage="code",
        cause="propagated+unexplained" if unexplained else "rounding_tie",
    )


BUCKETS = st.builds(
    BucketTally,
    n=NUMBERS,
    undefined=NUMBERS,
    counts=COUNTS,
    causes=st.dictionaries(OUTPUTS, st.dictionaries(CAUSES, NUMBERS, min_size=1), max_size=2),
    digest=st.none() | st.integers(0, MODULUS - 1),
)
CONTRACTS = st.builds(
    Contract,
    name=st.sampled_from(["same_bits_twice", "inputs_unchanged"]),
    ok=st.booleans(),
    detail=st.sampled_from(["as they were", "12 differ", "3 differ"]),
)
MARGINS = st.builds(
    Margin,
    output=OUTPUTS,
    largest_ulp=st.sampled_from([0.25, 0.5, 1.5]),
    bound_ulp=st.sampled_from([1.5, 2.5]),
)
ORDINALS = st.integers(-(1 << 30), 1 << 30)
ENDS = st.tuples(ORDINALS, ORDINALS).map(lambda ends: (min(ends), max(ends)))
TALLIES = st.builds(
    Tally,
    buckets=st.dictionaries(st.integers(0, 4), BUCKETS, max_size=3),
    left=st.just([]) | st.lists(NUMBERS, min_size=3, max_size=3),
    totals=COUNTS,
    largest=COUNTS,
    worst=st.lists(st.builds(offender, OUTPUTS, st.integers(0, 30)), max_size=4),
    margin=st.lists(MARGINS, max_size=2),
    contracts=st.lists(CONTRACTS, max_size=3),
    undefined=st.dictionaries(st.sampled_from(["NaN", "infinite"]), COUNTS, max_size=2),
    ranges=st.dictionaries(
        st.sampled_from(["subject", "reference"]),
        st.dictionaries(st.integers(-3, 3), ENDS, max_size=3),
        max_size=2,
    ),
    # Of eighths the sum is exact.
    seconds=st.integers(0, 80).map(lambda eighths: eighths / 8),
)


@settings(max_examples=100, deadline=None)
@given(TALLIES, TALLIES, TALLIES)
def test_grouping_does_not_matter(a: Tally, b: Tally, c: Tally) -> None:
    assert (a + b) + c == a + (b + c)


@settings(max_examples=100, deadline=None)
@given(TALLIES, TALLIES)
def test_order_does_not_matter(a: Tally, b: Tally) -> None:
    assert a + b == b + a


@settings(deadline=None)
@given(TALLIES)
def test_nothing_adds_nothing(a: Tally) -> None:
    # A sum has its contracts and its worst in order; with that, it stays what it is.
    summed = Tally() + a
    assert a + Tally() == summed
    assert Tally() + summed == summed == summed + Tally()
    for name in ("buckets", "left", "totals", "largest", "undefined", "ranges", "seconds"):
        assert getattr(summed, name) == getattr(a, name), name
    assert Tally() + Tally() == Tally()


@settings(deadline=None)
@given(TALLIES, TALLIES)
def test_adding_changes_neither(a: Tally, b: Tally) -> None:
    before = copy.deepcopy((a, b))
    both = a + b
    both += a
    assert (a, b) == before
    assert total([a, b, a]) == both


@settings(max_examples=100, deadline=None)
@given(st.lists(TALLIES, max_size=4))
def test_each_figure_is_the_sum_or_the_extreme(some: list[Tally]) -> None:
    both = total(some)
    for exponent, bucket in both.buckets.items():
        mine = [t.buckets[exponent] for t in some if exponent in t.buckets]
        assert bucket.n == sum(b.n for b in mine)
        assert bucket.undefined == sum(b.undefined for b in mine)
        names = {name for b in mine for name in b.counts}
        assert bucket.counts == {name: sum(b.counts.get(name, 0) for b in mine) for name in names}
        pairs = {(o, c) for b in mine for o, causes in b.causes.items() for c in causes}
        assert {(o, c) for o, causes in bucket.causes.items() for c in causes} == pairs
        for output, cause in pairs:
            numbers = [b.causes.get(output, {}).get(cause, 0) for b in mine]
            assert bucket.causes[output][cause] == sum(numbers)
        digests = [b.digest for b in mine if b.digest is not None]
        assert bucket.digest == (sum(digests) % MODULUS if digests else None)
    assert both.buckets.keys() == {exponent for t in some for exponent in t.buckets}
    lists = [t.left for t in some if t.left]
    assert both.left == [sum(numbers) for numbers in zip(*lists, strict=True)]
    for field, function in (("totals", sum), ("largest", max)):
        found: dict[str, list[int]] = {}
        for t in some:
            for name, number in getattr(t, field).items():
                found.setdefault(name, []).append(number)
        assert getattr(both, field) == {name: function(found[name]) for name in found}
    for what, counts in both.undefined.items():
        for name, number in counts.items():
            assert number == sum(t.undefined.get(what, {}).get(name, 0) for t in some)
    for side, codes in both.ranges.items():
        for code, (low, high) in codes.items():
            ends = [t.ranges[side][code] for t in some if code in t.ranges.get(side, {})]
            assert low == min(end[0] for end in ends)
            assert high == max(end[1] for end in ends)
    assert both.seconds == sum(t.seconds for t in some)


@settings(max_examples=100, deadline=None)
@given(st.lists(TALLIES, min_size=1, max_size=4))
def test_what_is_kept_is_the_worst(some: list[Tally]) -> None:
    both = total(some)
    offenders = [o for t in some for o in t.worst]
    ranked = sorted(
        offenders,
        key=lambda o: (not o.cause.endswith("unexplained"), -o.distance, o.index, o.output),
    )
    assert both.worst == ranked[:5]
    for output in {m.output for t in some for m in t.margin}:
        there = [m.largest_ulp for t in some for m in t.margin if m.output == output]
        (kept,) = (m for m in both.margin if m.output == output)
        assert kept.largest_ulp == max(there)
    contracts = [c for t in some for c in t.contracts]
    assert [c.name for c in both.contracts] == sorted({c.name for c in contracts})
    for contract in both.contracts:
        assert contract in contracts
        assert contract.ok is all(c.ok for c in contracts if c.name == contract.name)


@settings(deadline=None)
@given(TALLIES)
def test_as_json_it_is_the_same(a: Tally) -> None:
    assert Tally.model_validate_json(a.model_dump_json()) == a
    summed = a + a
    assert Tally.model_validate_json(summed.model_dump_json()) == summed


def test_a_digest_is_kept_modulo_two_to_the_32() -> None:
    high = BucketTally(digest=MODULUS - 1)
    assert (high + BucketTally(digest=5)).digest == 4
    assert (high + BucketTally()).digest == MODULUS - 1
    assert (BucketTally() + BucketTally()).digest is None
    assert (BucketTally(digest=0) + BucketTally()).digest == 0


def test_tallies_of_other_settings_are_not_added() -> None:
    with pytest.raises(ValueError, match="argument 2 is"):
        Tally(left=[1, 2]) + Tally(left=[1, 2, 3])


def test_causes_are_summed_over_buckets() -> None:
    tally = Tally(
        buckets={
            3: BucketTally(causes={"rho": {"rounding_tie": 2}}),
            4: BucketTally(causes={"rho": {"rounding_tie": 3, "unexplained": 1}}),
            5: BucketTally(causes={"reconstructed": {"ulp_bound": 4}}),
        }
    )
    assert tally.by_output() == {
        "rho": {"rounding_tie": 5, "unexplained": 1},
        "reconstructed": {"ulp_bound": 4},
    }


# ---- Of a report ---------------------------------------------------------------------------


class Wrong(AsOnGpu):
    """As on a GPU, with scales, codes and values that nothing explains."""

    def clamp_code(self, code: Any, signed: bool) -> Any:
        # A code that the reference gives to no input.
        return super().clamp_code(code, signed) - (code == -127).float()

    def store_scale(self, absmax: Any) -> Any:
        scales = super().store_scale(absmax)
        scales[3:5] *= 1.5
        return scales

    def combine(self, narrow: Any, scaled: Any, power: Any) -> Any:
        values = super().combine(narrow, scaled, power)
        values[5:7] *= 1.25
        return values


@pytest.fixture(params=["some of it", "with nothing to compare", "one exponent"])
def selection(request: pytest.FixtureRequest) -> Selection:
    return Selection.model_validate(
        {
            "some of it": {"limit": 3000},
            "with nothing to compare": {"exponents": {"start": 255, "stop": 256}, "limit": 700},
            "one exponent": {"exponents": {"start": 127, "stop": 128}, "limit": 2000},
        }[request.param]
    )


@pytest.mark.parametrize("subject", [Eager, AsOnGpu, Wrong])
def test_the_tally_of_a_case_is_the_one_it_was_made_of(
    subject: type[Eager], selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = Extent(part=1 << 9, chunk=1 << 10)
    monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))
    config = parse(yaml.safe_load(EVERY))
    assert isinstance(config, ExhaustiveConfig)
    suite = ExhaustiveSuite(config, selection)
    executor = Serial(suite, subject(), [], "test", seed=1)
    found: dict[str, Tally] = {}
    check = executor.check

    class Watched:
        describe = executor.describe

        def run(self, chunks: Any) -> Any:
            for chunk in chunks:
                outcome = check(chunk)
                assert isinstance(outcome, Tally), outcome
                found[chunk.case] = found.get(chunk.case, Tally()) + outcome
                yield chunk, outcome

        def close(self) -> None:
            pass

    made = parts.run(Watched(), suite, lambda _: None, command=[])
    report = Report.model_validate_json(made.model_dump_json())
    assert [case.case for case in report.cases] == list(suite.checks)
    compared = 0
    for case in report.cases:
        tally = tally_of(case)
        seconds = {"seconds": case.duration_s}
        wanted = found.get(case.case, Tally()).model_copy(update=seconds)
        assert tally == wanted, case.case
        if case.enumeration and case.numel:
            compared += 1
            # And it makes the case again.
            again = suite.finish(case.case, made_methods(subject), tally)
            assert again.enumeration == case.enumeration
            assert again.metrics == case.metrics
            assert again.mismatches == case.mismatches
            assert again.contracts == case.contracts
    assert compared == (0 if selection.exponents and selection.exponents.start == 255 else 4)
    if subject is Wrong and compared:
        momentum = next(c for c in report.cases if c.case == "quantize/momentum")
        assert momentum.enumeration
        (extra,) = (t for t in momentum.enumeration.thresholds if t.reference is None)
        assert extra.code == -128
        assert extra.subject


def made_methods(subject: type[Eager]) -> list[str]:
    names = ("quantize", "dequantize", "compute_ecc", "reconstruct")
    return [name for name in names if callable(getattr(subject, name, None))]


def test_of_a_case_that_was_not_compared_there_is_no_more_than_its_time() -> None:
    config = parse(yaml.safe_load(EVERY))
    assert isinstance(config, ExhaustiveConfig)
    suite = ExhaustiveSuite(config, Selection(limit=100))

    class Nothing:
        name = "nothing"
        version = "1"
        backend = "native"
        quantize = Eager.quantize

    executor = Serial(suite, Nothing(), [], "test", seed=1)  # type: ignore[arg-type]
    report = parts.run(executor, suite, lambda _: None, command=[])
    for case in report.cases:
        assert case.enumeration is None
        assert tally_of(case) == Tally(seconds=case.duration_s)
