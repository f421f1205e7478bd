"""A kernel that compares on a GPU: on the interpreter it counts what the reference counts, and
where it does not, a run stops.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashcheck import catalog, kernels
from flashcheck.compare.digest import mix
from flashcheck.compare.metrics import SplittingOutputs
from flashcheck.config import ExhaustiveConfig
from flashcheck.errors import CheckerError
from flashcheck.inputs.domains import EVERY_FLOAT32, Enumeration, Slice
from flashcheck.report.models import Margin, Offender, Selection, Status
from flashcheck.selftest.eager import Eager
from flashcheck.selftest.variants import AsOnGpu, FusedRounding
from flashcheck.suites.base import judge
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive import fused, trust
from flashcheck.suites.exhaustive.checks import PROBE
from flashcheck.suites.exhaustive.fused import TILE, Row, Rows
from flashcheck.suites.exhaustive.round_trip import Listed, RoundTrip, index_of
from flashcheck.suites.exhaustive.suite import Chunk, ExhaustiveSuite
from flashcheck.suites.exhaustive.tally import BucketTally, Tally
from tests.conftest import CHECKOUT

WHOLE = Enumeration(EVERY_FLOAT32)
PAIRS = ["bf16+int8", "bf16+int16", "fp16+int8", "fp16+int16"]
NEGATIVE = 128
"""The place of the first tile of the other sign: there are 128 of each, by upper mantissa bits."""

# First, last and middle tiles of exponents at the ends of the formats, of both signs.
EDGES = {
    "bf16": [
        (0, 0),
        (0, NEGATIVE + 1),
        (1, NEGATIVE),
        (24, 127),
        (127, 0),
        (127, NEGATIVE + 127),
        (141, 77),
        (253, NEGATIVE + 127),
        (254, 126),
    ],
    "fp16": [
        (0, 3),
        (101, 127),
        (102, NEGATIVE),
        (112, 127),
        (113, 0),
        (127, NEGATIVE + 127),
        (141, 126),
        (142, 126),
        (142, NEGATIVE),
    ],
}


@pytest.fixture(scope="module")
def suite() -> ExhaustiveSuite:
    (config,) = catalog.find(["exhaustive"])
    assert isinstance(config, ExhaustiveConfig)
    return ExhaustiveSuite(config, Selection())


@pytest.fixture(scope="module")
def in_tree() -> Any:
    from flashcheck.subjects import registry

    return registry.load("triton", "interpreter")[0]


@pytest.fixture(scope="module")
def authors(interpreted: Any) -> Any:
    return interpreted[0]


@pytest.fixture(autouse=True)
def quickly(interpreted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger blocks, which the interpreter works through sooner, and lists that are not huge."""
    assert interpreted
    monkeypatch.setattr(fused, "_BLOCK", 1 << 14)
    monkeypatch.setattr(fused, "_CAPACITY", 1 << 17)
    monkeypatch.setattr(fused, "_LISTS", 4)


def of(suite: ExhaustiveSuite, pair: str) -> RoundTrip:
    check = suite.checks[f"compute_ecc/{pair}"]
    assert isinstance(check, RoundTrip)
    return check


def tiles(pair: str) -> list[Row]:
    return [Row(exponent, place, 1) for exponent, place in EDGES[pair[:4]]]


def calls_of(subject: Any) -> SubjectCalls:
    return SubjectCalls(subject, compare_on="cpu")


def eager(check: RoundTrip, rows: list[Row], subject: Any) -> Tally:
    """The same by the eager reference alone, a tile at a time."""
    found = Tally()
    for row in rows:
        found += check.check([row.part()], WHOLE, calls_of(subject), digested=True)
    return found


def hold(check: RoundTrip, rows: list[Row], subject: Any) -> Tally:
    there = Rows(check, rows).tally(calls_of(subject))
    here = eager(check, rows, subject)
    for name in Tally.model_fields:
        assert getattr(there, name) == getattr(here, name), name
    return there


class Wrong(AsOnGpu):
    """As on a GPU, and here and there wrong, by the input alone."""

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        rho = super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)
        return rho + (x.view(torch.int32) % 1009 == 5).to(ecc_dtype)

    def combine(self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor) -> Any:
        values = super().combine(narrow, scaled, power)
        bits = values.view(torch.int32)
        # Also of a zero the sign, an infinity, and NaN.
        values = (bits + (bits % 601 == 3).int() * 2).view(torch.float32)
        values[bits % 4001 == 7] = float("nan")
        values[bits % 4003 == 9] = float("-inf")
        return values


class Hopeless(Eager):
    """Wrong everywhere."""

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        return super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype) ^ 1

    def combine(self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor) -> Any:
        bits = super().combine(narrow, scaled, power).view(torch.int32)
        return (bits ^ 0x00200000).view(torch.float32)


# ---- It counts what the reference counts ---------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS)
def test_of_its_own_kernels_nothing_differs(
    suite: ExhaustiveSuite, in_tree: Any, pair: str
) -> None:
    check, rows = of(suite, pair), tiles(pair)
    tally = hold(check, rows, in_tree)
    assert tally.by_output() == {}
    assert {exponent: bucket.n for exponent, bucket in tally.buckets.items()} == {
        exponent: TILE * sum(row.exponent == exponent for row in rows)
        for exponent in {row.exponent for row in rows}
    }
    assert all(bucket.digest is not None for bucket in tally.buckets.values())
    assert sum(bucket.counts["reference_exact"] for bucket in tally.buckets.values()) > 0
    assert [contract.ok for contract in tally.contracts] == [True, True]


@pytest.mark.parametrize("pair", PAIRS)
def test_of_the_authors_kernels_the_same_differ(
    suite: ExhaustiveSuite, authors: Any, pair: str
) -> None:
    tally = hold(of(suite, pair), tiles(pair), authors)
    if pair == "bf16+int16":
        assert tally.by_output()["rho"]["rounding_tie"] > 100
        assert len(tally.worst) == 5
        assert max(tally.left) > 0


@pytest.mark.parametrize("subject", [Wrong, Hopeless, AsOnGpu, FusedRounding])
@pytest.mark.parametrize("pair", PAIRS)
def test_of_wrong_ones_the_same_differ(
    suite: ExhaustiveSuite, subject: type[Eager], pair: str
) -> None:
    rows = tiles(pair)[1:6:2]
    tally = hold(of(suite, pair), rows, subject())
    mismatches = sum(b.counts["recon_mismatches"] for b in tally.buckets.values())
    if subject is Hopeless:
        assert mismatches == len(rows) * TILE
    if subject is Wrong:
        assert tally.by_output()["rho"]["unexplained"] > 0
        assert tally.by_output()["reconstructed"]["unexplained"] > 0
        lost = sum(b.counts["nonfinite_disagree"] for b in tally.buckets.values())
        # Of int8 codes all values have few of their last bits set.
        assert lost > 0 or pair.endswith("int8")


def test_in_the_size_that_it_is_launched_in_it_counts_the_same(
    suite: ExhaustiveSuite, authors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_BLOCK", 1024)
    monkeypatch.setattr(fused, "_LISTS", 32)
    hold(of(suite, "bf16+int16"), [Row(127, 3, 1)], authors)


def test_a_row_of_several_tiles_is_one(suite: ExhaustiveSuite, authors: Any) -> None:
    check = of(suite, "bf16+int16")
    row = Row(130, NEGATIVE - 1, 3)  # across the sign
    there = Rows(check, [row]).tally(calls_of(authors))
    here = eager(check, [Row(130, NEGATIVE - 1 + k, 1) for k in range(3)], authors)
    assert there == here
    assert check.check([row.part()], WHOLE, calls_of(authors), digested=True) == there


@pytest.mark.parametrize("capacity", [TILE, 2 * TILE - 1])
def test_where_the_lists_overflow_it_goes_in_halves(
    suite: ExhaustiveSuite, monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    # One list, which a tile that is wrong everywhere fills up.
    monkeypatch.setattr(fused, "_LISTS", 1)
    monkeypatch.setattr(fused, "_CAPACITY", capacity)
    runs = []
    made = fused.Run.__init__

    def counting(self: Any, check: Any, rows: Any, calls: Any) -> None:
        runs.append(len(rows))
        made(self, check, rows, calls)

    monkeypatch.setattr(fused.Run, "__init__", counting)
    hold(of(suite, "fp16+int8"), tiles("fp16")[4:7], Hopeless())
    assert runs == [3, 1, 2, 1, 1]


def test_many_tiles_are_fed_in_several_launches(
    suite: ExhaustiveSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_TILES_AT_ONCE", 2)
    hold(of(suite, "bf16+int16"), tiles("bf16")[:5], Wrong())


def test_other_parts_are_judged_with_them(suite: ExhaustiveSuite) -> None:
    check, rows, subject = of(suite, "fp16+int16"), tiles("fp16")[3:5], Wrong()
    # Finite, infinite and undefined ones: exponents 142, 143 and 255.
    others = [Slice(142, 127 * TILE, 128 * TILE), Slice(143, 0, 500), Slice(255, 0, 900)]
    there = Rows(check, rows).tally(
        calls_of(subject),
        lambda: [check.compare([some], WHOLE, calls_of(subject), digested=True) for some in others],
    )
    here = eager(check, rows, subject)
    for some in others:
        here += check.check([some], WHOLE, calls_of(subject), digested=True)
    assert there == here
    assert there.undefined.keys() == {"theta is NaN", "theta is infinite", "theta' is infinite"}


def test_the_order_of_a_list_does_not_matter(suite: ExhaustiveSuite) -> None:
    # On a GPU it is another one each time.
    check = of(suite, "bf16+int16")
    _, listed = check.compare([Slice(127, 0, TILE)], WHOLE, calls_of(Wrong()), digested=False)
    assert len(listed.x) > 100
    in_order = check.resolve(listed)
    for seed in range(3):
        mixed = torch.randperm(len(listed.x), generator=torch.Generator().manual_seed(seed))
        outputs = SplittingOutputs(listed.subject.rho[mixed], listed.subject.values[mixed])
        assert check.resolve(Listed(listed.x[mixed], outputs)) == in_order


def test_an_index_of_a_float32_is_that_of_its_domain() -> None:
    for exponent in (0, 1, 127, 254, 255):
        part = Slice(exponent, (1 << 23) - 300, (1 << 23) + 300)
        positions = WHOLE.positions(part)
        (x,) = EVERY_FLOAT32.values(exponent, positions)
        assert bool((index_of(x) == WHOLE.index(part, positions)).all())


def test_tiles_are_the_parts_of_the_domain(suite: ExhaustiveSuite, authors: Any) -> None:
    rows = [Row(0, 0, 1), Row(3, 127, 2), Row(254, 255, 1)]
    run = fused.Run(of(suite, "bf16+int8"), rows[:1], calls_of(authors))
    for row in rows:
        part = row.part()
        (x,) = EVERY_FLOAT32.values(row.exponent, WHOLE.positions(part))
        there, narrow = run.inputs(row.upper())
        assert bool((there.view(torch.int32) == x.view(torch.int32)).all())
        if row.exponent < 254:
            nearest = x.bfloat16()
            assert bool((narrow.view(torch.int16) == nearest.view(torch.int16)).all())


# ---- What it may check ---------------------------------------------------------------------


def on_a_gpu(**more: Any) -> Any:
    return SimpleNamespace(
        subject=SimpleNamespace(backend="cuda"), every_configuration=False, **more
    )


def gone(upper: int, narrow: str) -> bool:
    """Whether the largest float32 of a tile has no finite narrow weight: by its size."""
    pattern = (upper & 0x7FFF) << 16 | 0xFFFF
    (largest,) = struct.unpack("<f", struct.pack("<I", pattern))
    # From halfway between the greatest number and the one after it.
    limit = 65520.0 if narrow == "fp16" else (2 - 2.0**-8) * 2.0**127
    return not largest < limit


@pytest.mark.parametrize("pair", ["bf16+int8", "fp16+int16"])
def test_it_gets_the_tiles_that_are_defined_of_whole_exponents(
    suite: ExhaustiveSuite, pair: str
) -> None:
    check = of(suite, pair)
    slices = [Slice(exponent, 0, 1 << 24) for exponent in range(256)]
    rows, others = fused.parted(check, WHOLE, slices, on_a_gpu())
    assert rows
    kept = {(r.exponent, r.first + k) for r in rows.rows for k in range(r.tiles)}
    assert len(kept) == sum(row.tiles for row in rows.rows)
    left: set[tuple[int, int]] = set()
    for part in others:
        assert part.start % TILE == part.stop % TILE == 0
        places = range(part.start // TILE, part.stop // TILE)
        assert not left & {(part.exponent, place) for place in places}
        left |= {(part.exponent, place) for place in places}
    assert not kept & left
    for exponent in range(256):
        for place in range(256):
            sign, mantissa = divmod(place, 128)
            upper = sign << 15 | exponent << 7 | mantissa
            missing = gone(upper, pair[:4])
            assert ((exponent, place) in left) is missing
            assert ((exponent, place) in kept) is not missing
    # They name the float32 that they say.
    for row in rows.rows[::37]:
        uppers = [u & 0xFFFF for u in row.upper().tolist()]
        assert [(u >> 7 & 0xFF) for u in uppers] == [row.exponent] * row.tiles
        assert [(u >> 15) << 7 | u & 0x7F for u in uppers] == [
            *range(row.first, row.first + row.tiles)
        ]


def test_it_gets_nothing_else(suite: ExhaustiveSuite) -> None:
    check = of(suite, "bf16+int8")
    whole = [Slice(127, 0, 1 << 24)]
    part = [Slice(127, 0, 1 << 23)]
    limited = Enumeration(EVERY_FLOAT32, limit=(1 << 32) - 1)
    native = on_a_gpu()
    native.subject.backend = "native"
    tuned = on_a_gpu()
    tuned.every_configuration = True
    pairs = suite.checks["reconstruct/bf16+int8"]
    assert fused.parted(check, WHOLE, whole, on_a_gpu())[0] is not None
    for arguments in (
        (check, WHOLE, part, on_a_gpu()),
        (check, WHOLE, [Slice(255, 0, 1 << 24)], on_a_gpu()),
        (check, limited, [Slice(127, 0, limited.taken[127])], on_a_gpu()),
        (check, WHOLE, whole, native),
        (check, WHOLE, whole, tuned),
        (pairs, Enumeration(pairs.domain), [Slice(127, 0, 255 * 256)], on_a_gpu()),
    ):
        rows, others = fused.parted(*arguments)  # type: ignore[arg-type]
        assert rows is None
        assert sum(map(len, others)) == len(arguments[2][0])  # type: ignore[index]


def test_a_draw_is_one_tile_of_the_rows(suite: ExhaustiveSuite) -> None:
    rows = Rows(of(suite, "bf16+int8"), [Row(3, 5, 4), Row(9, 250, 6)])
    drawn = [rows.draw(seed=seed).rows for seed in range(40)]
    allowed = {(3, place) for place in range(5, 9)} | {(9, place) for place in range(250, 256)}
    for some in drawn:
        (row,) = some
        assert row.tiles == 1
        assert (row.exponent, row.first) in allowed
    assert {row.exponent for (row,) in drawn} == {3, 9}
    assert rows.draw(seed=7).rows == drawn[7]


# ---- Where it would be wrong, a run stops --------------------------------------------------

SUBSTITUTIONS = {
    "rounded up, not to even": (
        "rounded = product + 12582912.0",
        "rounded = tl.floor(product + 0.5) + 12582912.0",
    ),
    "the integer off by one": ("- 0x4B400000", "- 0x4B3FFFFF"),
    "no clamp from below": ("tl.maximum(error, -1.0)", "tl.maximum(error, -0.5)"),
    "the quotient by the reciprocal": (
        "return tl.fma(remainder, RECIPROCAL, approximate)",
        "return approximate",
    ),
    "values that differ not counted": (
        "value_differs = value != given",
        "value_differs = (value != given) & (bits != bits)",
    ),
    "codes that differ not counted": (
        "rho_differs = rho != integer",
        "rho_differs = (rho != integer) & (rho > integer + 1)",
    ),
    "a narrow weight cut, not rounded": ("bits + 0x7FFF + ((bits >> 16) & 1)", "bits + 0"),
    "ties of a narrow weight away": ("bits + 0x7FFF + ((bits >> 16) & 1)", "bits + 0x8000"),
    "a digest without values": ("h = (h ^ value)", "h = (h ^ (value & 0))"),
    "a digest without codes": ("h = (h ^ code)", "h = (h ^ (code & 0))"),
    "another shift of the digest": ("h = h ^ (h >> 13)", "h = h ^ (h >> 12)"),
    "exact ones of the other side": ("given == bits", "value == bits"),
    "no infinity seen": ("(given & 0x7F800000) == 0x7F800000", "(given & 0x7F800000) == 0"),
    "ties never matter": (
        "return differ | _floors_differ(product + 0.5, up, code)",
        "return differ & (product != product)",
    ),
    "fusing never matters": ("if fusing:", "if fusing & (tile < 0) & (tile > 0):"),
    "a list that forgets every other one": (
        "listed = rho_differs | value_differs | moves",
        "listed = (rho_differs | value_differs | moves) & (bits % 2 == 0)",
    ),
}


@pytest.fixture
def substituted(tmp_path: Path) -> Iterator[Callable[[str, str], Any]]:
    """The kernel with one of its words changed, as a module of its own."""
    names = []

    def make(old: str, new: str) -> Any:
        text = (CHECKOUT / "flashcheck" / "kernels" / "checker.py").read_text()
        assert text.count(old) == 1, (old, text.count(old))
        path = tmp_path / "substituted_checker.py"
        path.write_text(text.replace(old, new))
        spec = importlib.util.spec_from_file_location("substituted_checker", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["substituted_checker"] = module
        names.append("substituted_checker")
        spec.loader.exec_module(module)
        return module

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("what", ["nothing", *SUBSTITUTIONS])
def test_a_wrong_kernel_is_caught(
    suite: ExhaustiveSuite,
    substituted: Callable[[str, str], Any],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    from flashcheck.kernels import checker

    module = substituted(*SUBSTITUTIONS.get(what, (checker.__doc__.splitlines()[0],) * 2))
    monkeypatch.setattr(kernels, "checker", module)
    check = of(suite, "bf16+int16")
    # Subnormal, where fusing matters, and of a subject of which some values differ.
    row, calls = Row(3, NEGATIVE + 64, 1), calls_of(Wrong())

    def compare() -> int:
        there = Rows(check, [row]).tally(calls)
        return trust.hold(check, WHOLE, row.part(), there, calls).totals[trust.SAMPLED]

    if what == "nothing":
        assert compare() == TILE
        return
    with pytest.raises(CheckerError, match="please report it"):
        compare()


def test_the_kernel_and_the_eager_reference_have_to_count_alike(
    suite: ExhaustiveSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = of(suite, "bf16+int8")
    right = RoundTrip.resolve
    row = Row(127, 9, 1)
    for output, words in (("rho", "rho that differ"), ("reconstructed", "reconstructed that")):

        def one_less(self: RoundTrip, listed: Listed, output: str = output) -> Tally:
            tally = right(self, listed)
            tally.buckets[127].causes[output]["unexplained"] -= 1
            return tally

        monkeypatch.setattr(RoundTrip, "resolve", one_less)
        with pytest.raises(CheckerError, match=rf"bf16\+int8: of exponent 127 .* {words}"):
            Rows(check, [row]).tally(calls_of(Wrong()))
    monkeypatch.setattr(RoundTrip, "resolve", lambda *_: Tally())
    with pytest.raises(CheckerError, match="the eager reference 0;"):
        Rows(check, [row]).tally(calls_of(Wrong()))


def tampered(tally: Tally) -> dict[str, Any]:
    """Of each field one that is a little other."""
    (exponent,) = tally.buckets
    bucket = tally.buckets[exponent]
    offender: Offender = tally.worst[0]
    return {
        "buckets": {exponent: bucket.model_copy(update={"n": bucket.n - 1})},
        "left": [*tally.left[:-1], tally.left[-1] + 1],
        "totals": {"groups": 1},
        "largest": {"reconstructed": tally.largest["reconstructed"] + 1},
        "worst": [offender.model_copy(update={"index": offender.index + 1}), *tally.worst[1:]],
        "margin": [Margin(output="reconstructed", largest_ulp=1.0, bound_ulp=2.0)],
        "undefined": {"theta is NaN": {"n": 1}},
        "ranges": {"subject": {1: (0, 1)}},
    }


def test_a_comparison_is_held_in_every_field(suite: ExhaustiveSuite) -> None:
    check, part, calls = of(suite, "bf16+int16"), Slice(126, 70, 4000), calls_of(Wrong())
    right = check.check([part], WHOLE, calls, digested=True)
    assert trust.hold(check, WHOLE, part, right, calls) == Tally(totals={trust.SAMPLED: 3930})
    changes = tampered(right)
    assert changes.keys() == Tally.model_fields.keys() - {"contracts", "seconds"}
    for name, value in changes.items():
        wrong = right.model_copy(update={name: value})
        words = rf"compute_ecc/bf16\+int16: of inputs 70 to 4,000 of exponent 126 .*: {name} "
        with pytest.raises(CheckerError, match=words):
            trust.hold(check, WHOLE, part, wrong, calls)
    bucket = right.buckets[126]
    inner = {
        "undefined": 1,
        "digest": (bucket.digest or 0) ^ 1,
        "counts": {**bucket.counts, "subject_exact": bucket.counts["subject_exact"] + 1},
        "causes": {**bucket.causes, "rho": {"rounding_tie": 1}},
    }
    assert inner.keys() == BucketTally.model_fields.keys() - {"n"}
    for name, value in inner.items():
        changed = {126: bucket.model_copy(update={name: value})}
        with pytest.raises(CheckerError, match=": buckets "):
            trust.hold(check, WHOLE, part, right.model_copy(update={"buckets": changed}), calls)


class Unsteady(Eager):
    """Every call's first value is another one."""

    calls = 0

    def combine(self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor) -> Any:
        values = super().combine(narrow, scaled, power)
        type(self).calls += 1
        values[0] += type(self).calls
        return values


class UnsteadyLater(Unsteady):
    """Not in the inputs that a batch is probed with."""

    def combine(self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor) -> Any:
        values = Eager.combine(self, narrow, scaled, power)
        type(self).calls += 1
        values[PROBE:] += type(self).calls
        return values


class InPlace(Eager):
    """Leaves its input changed, so that a second run of it is another one."""

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        rho = super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)
        x.neg_()
        return rho


@pytest.mark.parametrize("subject", [Unsteady, UnsteadyLater, InPlace])
def test_a_subject_that_breaks_a_contract_fails_and_the_comparison_is_not_blamed(
    suite: ExhaustiveSuite, monkeypatch: pytest.MonkeyPatch, subject: type[Eager]
) -> None:
    check, rows = of(suite, "bf16+int8"), [Row(127, 3, 2)]
    monkeypatch.setattr(fused, "parted", lambda *_: (Rows(check, rows), []))
    # The sample is of both tiles, so that it is more than what is given twice.
    monkeypatch.setattr(Rows, "draw", lambda self, seed: self)
    monkeypatch.setattr(subject, "device", "cpu:0", raising=False)
    chunk = Chunk(0, check.case, (rows[0].part(),), sampled=True)
    found = suite.check(chunk, SubjectCalls(subject()), seed=3)
    assert found.totals == {trust.SAMPLED: 0}
    broken = {contract.name for contract in found.contracts if not contract.ok}
    assert broken == {"same_bits_twice", *(["inputs_unchanged"] if subject is InPlace else [])}
    measured = suite.finish(check.case, ["compute_ecc", "reconstruct"], found)
    assert judge(measured, gates=[], known=[], duration_s=1.0).status is Status.FAIL


def test_outputs_in_the_same_memory_are_noticed(suite: ExhaustiveSuite) -> None:
    class Static(Eager):
        """Writes where it wrote before."""

        memory = torch.empty(2 * TILE)

        def combine(self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor) -> Any:
            return self.memory[: narrow.numel()].copy_(super().combine(narrow, scaled, power))

    check, rows = of(suite, "bf16+int8"), [Row(127, 3, 1)]
    assert fused.Run(check, rows, calls_of(Static())).reuses_outputs
    assert not fused.Run(check, rows, calls_of(Eager())).reuses_outputs


def test_a_digest_of_a_whole_exponent_that_is_not_the_cpus_stops_a_run(
    suite: ExhaustiveSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, methods = "compute_ecc/bf16+int8", ["compute_ecc", "reconstruct"]
    digest = trust.of_the_cpu()[name][254]
    counts = dict.fromkeys(["rho_mismatches", "recon_mismatches", "subject_exact"], 0)
    # Of exponent 254 some have an infinite narrow weight.
    bucket = BucketTally(n=(1 << 24) - 65536, undefined=65536, counts=counts, digest=digest)
    left = [0] * len(suite.checks[name].settings)
    found = Tally(buckets={254: bucket}, left=left, totals={trust.SAMPLED: 65536})
    measured = suite.finish(name, methods, found)
    assert measured.enumeration
    assert measured.enumeration.checker.digests == "equal to the CPU's in 1 of 1 buckets"
    assert measured.enumeration.checker.sample == "65,536 inputs compared alike on the CPU"
    assert judge(measured, gates=[], known=[], duration_s=1.0).status is Status.PASS
    # Short of one input, nothing can be said of it.
    short = bucket.model_copy(update={"n": bucket.n - 1, "digest": digest ^ 1})
    partly = suite.finish(name, methods, found.model_copy(update={"buckets": {254: short}}))
    assert partly.enumeration
    assert (partly.enumeration.checker.digests or "").startswith("of none of 1 buckets")
    wrong = bucket.model_copy(update={"digest": digest ^ 1})
    with pytest.raises(CheckerError, match=r"bf16\+int8: over exponent 254"):
        suite.finish(name, methods, found.model_copy(update={"buckets": {254: wrong}}))
    committed = {**trust.of_the_cpu(), name: {254: digest ^ 1}}
    monkeypatch.setattr(trust, "of_the_cpu", lambda: committed)
    with pytest.raises(CheckerError, match=r"bf16\+int8: over exponent 254"):
        suite.finish(name, methods, found)


class Elsewhere(Wrong):
    """On a device that is the CPU under another name."""

    device = "cpu:0"


def test_a_chunk_of_a_suite_is_checked_by_both(
    suite: ExhaustiveSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, with few tiles of an exponent given to the kernel.
    name = "compute_ecc/fp16+int8"
    check = of(suite, "fp16+int8")
    rows = [Row(142, 3, 2)]
    others = [Slice(142, 127 * TILE, 128 * TILE), Slice(143, 0, 1000)]
    monkeypatch.setattr(fused, "parted", lambda *_: (Rows(check, rows), others))
    chunk = Chunk(5, name, (rows[0].part(), *others), sampled=True)
    found = suite.check(chunk, SubjectCalls(Elsewhere()), seed=3)
    wanted = eager(check, rows, Wrong())
    wanted += check.check(others, WHOLE, calls_of(Wrong()), digested=True)
    sampled = {"totals": {trust.SAMPLED: TILE}, "seconds": found.seconds}
    assert found == wanted.model_copy(update=sampled)
    assert found.seconds > 0
    # Unsampled, nothing is compared twice.
    monkeypatch.setattr(trust, "hold", lambda *_: pytest.fail("compared"))
    again = suite.check(replace(chunk, sampled=False), SubjectCalls(Elsewhere()), seed=3)
    assert again.totals == {}
    assert again.buckets == found.buckets


# ---- Digests -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("digests", CHECKOUT / "tools" / "digests.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def threads() -> Iterator[None]:
    """The tool takes one thread for itself."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


FEW = [
    ("reconstruct/bf16+int8", 0),
    ("reconstruct/bf16+int8", 127),
    ("reconstruct/bf16+int8", 254),
    ("reconstruct/fp16+int8", 0),
    ("reconstruct/fp16+int8", 103),
    ("reconstruct/fp16+int8", 142),
    ("reconstruct/fp16+int16", 103),
    ("dequantize/signed+softsign", 0),
    ("dequantize/signed+softsign", 103),
    ("dequantize/signed+softsign", 142),
    ("dequantize/sqrt", 104),
    ("dequantize/sqrt", 127),
    ("quantize/signed+softsign", 127),
    ("quantize/sqrt", 127),
]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("function", "exponent"), FEW)
def test_a_digest_is_that_of_the_file(tool: Any, function: str, exponent: int) -> None:
    assert tool.of_bucket(function, exponent) == trust.of_the_cpu()[function][exponent]


def test_every_bucket_has_a_digest(tool: Any) -> None:
    committed = trust.of_the_cpu()
    checks = tool.checks()
    assert committed.keys() == checks.keys()
    assert len(checks) == 12
    for function, check in checks.items():
        assert committed[function].keys() == {b.exponent for b in check.domain.buckets}, function
        values = committed[function].values()
        assert all(0 <= value < 1 << 32 for value in values)
        if function.startswith("compute_ecc"):
            # All of exponent 255 is undefined, and so are fp16's from 143 on.
            last = 254 if "bf16" in function else 142
            assert {e for e, value in committed[function].items() if value == 0} == {
                *range(last + 1, 256)
            }


def test_the_file_has_them_in_order_as_eight_digits() -> None:
    text = (CHECKOUT / "flashcheck" / "reference" / "digests.json").read_text()
    stored = json.loads(text)
    assert text == json.dumps(stored, indent=1) + "\n"
    for buckets in stored.values():
        assert list(map(int, buckets)) == sorted(map(int, buckets))
        assert all(len(value) == 10 and value.startswith("0x") for value in buckets.values())


def plainly_mixed(*parts: int) -> int:
    """The digest of one input, in Python's own integers."""
    h = 0
    steps = zip(parts, (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35), (15, 13, 16), strict=False)
    for part, multiplier, shift in steps:
        h = (h ^ part) * multiplier & 0xFFFFFFFF
        signed = h - (1 << 32) if h >> 31 else h
        h = (h ^ signed >> shift) & 0xFFFFFFFF
    return h


def test_the_digest_of_an_input_is_that_of_plain_integers() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-(1 << 31), 1 << 31, (500,), generator=generator).int()
    code = torch.randint(-32767, 32768, (500,), generator=generator).short()
    value = torch.randint(-(1 << 31), 1 << 31, (500,), generator=generator).int()
    for parts in ((x,), (x, code), (x, code, value)):
        plain = [
            plainly_mixed(*(number & 0xFFFFFFFF for number in numbers))
            for numbers in zip(*(part.tolist() for part in parts), strict=True)
        ]
        assert [number & 0xFFFFFFFF for number in mix(*parts).tolist()] == plain
    # Every one of them matters, to the last bit.
    right = mix(x, code, value)
    for changed in ((x ^ 1, code, value), (x, code ^ 1, value), (x, code, value ^ 1)):
        assert bool((mix(*changed) != right).all())
