"""Faulty subjects are caught, correct ones are not flagged, and the exit code says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcheck import selection
from flashcheck.config import SplittingConfig, load
from flashcheck.report.models import Selection
from flashcheck.selection import Suite
from flashcheck.selftest import (  # noqa: F401 - importing them registers their specimens
    faults_calls,
    faults_quantization,
    faults_splitting,
    faults_step,
    registry,
    variants,
    variants_step,
)
from flashcheck.selftest.eager import Eager
from flashcheck.selftest.registry import SPECIMENS, Specimen
from flashcheck.selftest.verdicts import Verdict, verdicts
from tests.conftest import CHECKOUT, Cli

FAULTS = [specimen for specimen in SPECIMENS if specimen.faulty and not specimen.steps]
VARIANTS = [specimen for specimen in SPECIMENS if not specimen.faulty and not specimen.steps]
STEP_FAULTS = [specimen for specimen in SPECIMENS if specimen.faulty and specimen.steps]
STEP_VARIANTS = [specimen for specimen in SPECIMENS if not specimen.faulty and specimen.steps]

# Every kind that is asked for, and the specimen that is of it.
KINDS = {
    "last partial group mis-scaled": ["last partial group mis-scaled"],
    "group size 31, 33, 64": ["group size 31", "group size 33", "group size 64"],
    "signed max instead of absolute max": ["signed maximum for the absolute one"],
    "truncation instead of rounding": ["truncation for rounding"],
    "rounding toward even of the wrong half": [
        "rounding toward even of the wrong half: ties to odd"
    ],
    "codes off by one in one value of 256": ["codes off by one in one value of 256"],
    "N 128 for 127": ["128 for 127"],
    "256 for 255": ["256 for 255"],
    "32768 for 32767": ["32768 for 32767"],
    "-128 reachable": ["-128 reachable"],
    "uint8 wrap at 256": ["uint8 wraps at 256"],
    "scale kept in bf16": ["scale kept in bf16"],
    "scale one ULP off in one group": ["scale one ULP off in one group"],
    "softsign factor missing or doubled": ["softsign factor missing", "softsign factor doubled"],
    "sqrt missing": ["square root missing"],
    "inverse not squared": ["inverse not squared"],
    "ULP taken of theta instead of theta'": ["ULP taken of theta instead of theta'"],
    "exponent off by one at powers of two": ["exponent off by one at powers of two"],
    "subnormals flushed": [
        "subnormals flushed to zero before the absmax",
        "subnormals flushed to zero in reconstruction",
    ],
    "sign lost for negatives": ["sign lost for negatives"],
    "clamp missing": ["clamp missing"],
    "narrow rounded toward zero": ["narrow weight rounded toward zero"],
    "int8 and int16 maxima swapped": ["int8 and int16 maxima swapped"],
    "last block not processed": ["last block not processed"],
    "first block repeated": ["first block repeated"],
    "stride ignored on a non-contiguous input": ["stride ignored on a non-contiguous input"],
    "output not written in one element of 10^6": ["output not written in one element of 10^6"],
    "result that changes from run to run": ["result that changes from run to run"],
    "input changed in place": ["input changed in place"],
    "wrong dtype, shape or device of the output": [
        "wrong dtype of the codes",
        "wrong shape: one scale too many",
        "wrong device of the output",
    ],
    "NaN where the reference is finite, and the other way": [
        "NaN where the reference is finite",
        "finite where the reference is infinite",
    ],
    "an exception": ["an exception"],
    "all zeros": ["all zeros"],
    "the input handed back": ["the input handed back"],
}

CORRECT = {
    "each rounding": ["the literal paper", "rounding half away from zero", "rounding half up"],
    "with and without fusion": [
        "fused multiply-add in reconstruction",
        "fused multiply-add in rounding half up",
    ],
    "approximate division within 2 ULP": ["division within 2 ULP"],
    "scales computed by approximate sqrt": ["square root within 1 ULP"],
    "other block sizes": ["blocks of 96 elements"],
}


def _suite(path: Path, battery: tuple[str, ...], spec: tuple[str, ...] = ()) -> Suite:
    return selection.make_suite(load(path), Selection(battery=list(battery), spec=list(spec)))


@pytest.fixture(scope="module")
def suites() -> list[Suite]:
    """The parts of the suites that together catch every fault, soonest first."""
    edge = CHECKOUT / "configs" / "edge.yaml"
    quick = (
        "size_31",
        "size_33",
        "strided",
        "subnormals",
        "every_exponent",
        "scale_overflow",
        "float64_scale",
    )
    # Its gates as they are, its values a few of each exponent.
    int16 = load(CHECKOUT / "configs" / "int16.yaml")
    assert isinstance(int16, SplittingConfig)
    fewer = int16.sweep.model_copy(update={"samples": 4096})
    short = int16.model_copy(update={"sweep": fewer, "drawn_after": []})
    return [
        _suite(edge, quick),
        selection.make_suite(short, Selection(battery=[], spec=[])),
        _suite(edge, ("size_2_20_1",), ("momentum",)),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_that_is_asked_for_is_there(kind: str) -> None:
    assert set(KINDS[kind]) <= {specimen.description for specimen in FAULTS}


@pytest.mark.parametrize("kind", CORRECT)
def test_every_kind_of_correct_variant_is_there(kind: str) -> None:
    assert set(CORRECT[kind]) <= {specimen.description for specimen in VARIANTS}


def test_there_are_enough_of_both_and_each_is_described_once() -> None:
    assert len(FAULTS) >= 40
    assert len(VARIANTS) >= 8
    descriptions = [specimen.description for specimen in SPECIMENS]
    assert len(set(descriptions)) == len(descriptions)
    # A fault is a few lines on top of a correct subject.
    assert all(isinstance(specimen.make(), Eager) for specimen in SPECIMENS)


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda s: s.description)
def test_a_fault_is_caught(specimen: Specimen, suites: list[Suite]) -> None:
    (verdict,) = verdicts([specimen], suites)
    assert verdict.right
    assert verdict.caught_by
    where, why = verdict.caught_by
    assert where.split()[0] in ("edge", "int16")
    assert why


@pytest.mark.parametrize("specimen", VARIANTS, ids=lambda s: s.description)
def test_a_correct_variant_is_not_flagged(specimen: Specimen, suites: list[Suite]) -> None:
    (verdict,) = verdicts([specimen], suites)
    assert verdict.caught_by is None, verdict.caught_by
    assert verdict.right
    assert verdict.cases == 6 * 8 + 2 + 1 + 1


# --- Optimizer steps --------------------------------------------------------------------------

STEP_KINDS = {
    "bias correction off by one step": [
        "bias correction one step behind",
        "bias correction one step ahead",
    ],
    "epsilon inside the root": ["epsilon inside the root"],
    "decay after the update": ["decay after the update"],
    "states of the wrong parameter": ["states of the wrong parameter: one group on"],
    "momentum stored before the update": ["momentum stored before the update"],
    "correction code not refreshed": ["correction codes not refreshed"],
    "sign of Lion's update at zero": ["sign of Lion's update at zero"],
    "nesterov without its factor": ["nesterov without its factor"],
}


@pytest.fixture(scope="module")
def steps() -> list[Suite]:
    return selection.select([load(CHECKOUT / "configs" / "step.yaml")], battery=[], spec=[])


def test_every_kind_of_faulty_step_that_is_asked_for_is_there() -> None:
    there = {specimen.description for specimen in STEP_FAULTS}
    assert {name for names in STEP_KINDS.values() for name in names} <= there
    assert len(STEP_FAULTS) >= 15


@pytest.mark.parametrize("specimen", STEP_FAULTS, ids=lambda s: s.description)
def test_a_faulty_step_is_caught(specimen: Specimen, steps: list[Suite]) -> None:
    (verdict,) = verdicts([specimen], [], steps)
    assert verdict.right
    assert verdict.caught_by
    assert verdict.caught_by[0].startswith("step ")


@pytest.mark.parametrize("specimen", STEP_VARIANTS, ids=lambda s: s.description)
def test_a_correct_step_is_not_flagged(specimen: Specimen, steps: list[Suite]) -> None:
    (verdict,) = verdicts([specimen], [], steps)
    assert verdict.caught_by is None, verdict.caught_by
    assert verdict.cases == len(steps[0].config.case_names()) > 70


def test_of_correct_steps_only_the_literal_one_has_the_references_bits(steps: list[Suite]) -> None:
    from flashcheck.runner import Plan, run_cases

    equal = []
    for specimen in STEP_VARIANTS:
        cases = list(run_cases(Plan(subject=specimen.make()), steps[0], lambda _: None))
        differ = sum(case.mismatches.total for case in cases if case.mismatches)
        if not differ:
            equal.append(specimen.description)
    assert equal == ["a step in the paper's arithmetic"]


# --- Variants differ --------------------------------------------------------------------------


@pytest.mark.parametrize("specimen", VARIANTS[1:], ids=lambda s: s.description)
def test_a_variant_is_one_some_bit_differs(specimen: Specimen) -> None:
    # Otherwise it would prove nothing of what may differ. Blocks alone must change nothing.
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(1 << 16, generator=generator)
    x[:32] = torch.arange(-15.5, 16.5, 1.0)
    x[0] = 127.0
    # Exactly half of the least code: 1/254 and its neighbours, where adding a half rounds.
    x[32:64] = 1.0
    least = torch.tensor(0.5 / 127).view(torch.int32) + torch.arange(-8, 8, dtype=torch.int32)
    x[40:56] = -least.view(torch.float32)

    def outputs(subject: Eager) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for signed, sqrt, softsign in (
            (True, False, True),
            (True, False, False),
            (False, True, False),
        ):
            options: dict[str, Any] = {
                **{"signed": signed, "sqrt": sqrt, "softsign": softsign},
                "group_size": 32,
            }
            fed = x.abs() if sqrt else x
            codes, scales = subject.quantize(fed, **options)
            made += [codes, scales, subject.dequantize(codes, scales, **options)]
        for narrow_dtype in (torch.bfloat16, torch.float16):
            narrow = x.to(narrow_dtype)
            for dtype in (torch.int8, torch.int16):
                rho = subject.compute_ecc(x, narrow, ecc_dtype=dtype)
                made += [rho, subject.reconstruct(narrow, rho)]
        made.append(subject.root(x.abs()))
        # A product is exact but where it is subnormal, so that fusing shows only there.
        small = x * 1e-38
        narrow = small.bfloat16()
        rho = subject.compute_ecc(small, narrow, ecc_dtype=torch.int8)
        return [*made, subject.reconstruct(narrow, rho)]

    equal = all(
        torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
        for mine, theirs in zip(outputs(specimen.make()), outputs(Eager()), strict=True)
    )
    assert equal is (specimen.description == "blocks of 96 elements")


# --- Verdicts and the command -----------------------------------------------------------------


def specimen(description: str, faulty: bool, make: Callable[[], Eager] = Eager) -> Specimen:
    return Specimen(description, faulty, make)


class Wrong(Eager):
    """Loses the signs of momentum."""

    def normalise(self, v: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
        return super().normalise(v.abs(), absmax)


@pytest.mark.parametrize(
    ("faulty", "caught", "cases", "right"),
    [
        (True, True, 3, True),
        (True, False, 3, False),
        (False, True, 3, False),
        (False, False, 3, True),
        # Nothing compared is never right.
        (False, False, 0, False),
        (True, False, 0, False),
    ],
)
def test_a_verdict_is_right_of_a_caught_fault_and_of_a_passed_variant(
    faulty: bool, caught: bool, cases: int, right: bool
) -> None:
    why = ("edge one/momentum", "int_agree is 0.5") if caught else None
    assert Verdict(specimen("x", faulty), why, cases).right is right


@pytest.fixture
def small_selftest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The command on given specimens and one short suite."""
    from flashcheck.cli import selftest

    def use(*specimens: Specimen) -> None:
        for suites in ("_SUITES", "_STEPS"):
            monkeypatch.setattr(selftest, suites, [str(CHECKOUT / "configs" / "edge.yaml")])
        monkeypatch.setattr(registry, "SPECIMENS", list(specimens))
        whole = selection.select

        def part(configs: object, *, battery: object, spec: object) -> list[Suite]:
            return whole(configs, battery=["size_33"], spec=["momentum"])  # type: ignore[arg-type]

        monkeypatch.setattr(selection, "select", part)

    return use


def test_the_command_exits_0_where_every_verdict_is_right(
    cli: Cli, small_selftest: Callable[..., None]
) -> None:
    small_selftest(specimen("a wrong one", True, Wrong), specimen("a right one", False))
    ran = cli("selftest")
    assert ran.code == 0
    assert "1 of 1 faulty subjects caught, 1 of 1 correct ones passed" in ran.err
    assert "a wrong one" in ran.out
    assert "edge size_33/momentum" in ran.out
    assert "WRONG" not in ran.out


def test_the_command_exits_1_where_a_fault_is_not_caught(
    cli: Cli, small_selftest: Callable[..., None]
) -> None:
    small_selftest(specimen("a fault that is none", True), specimen("a right one", False))
    ran = cli("selftest")
    assert ran.code == 1
    assert "0 of 1 faulty subjects caught, 1 of 1 correct ones passed" in ran.err
    assert "WRONG, faulty" in ran.out
    assert "nothing, in 1 cases" in ran.out


def test_the_command_exits_1_where_a_correct_one_is_flagged(
    cli: Cli, small_selftest: Callable[..., None]
) -> None:
    small_selftest(specimen("a wrong one", True, Wrong), specimen("flagged", False, Wrong))
    ran = cli("selftest")
    assert ran.code == 1
    assert "1 of 1 faulty subjects caught, 0 of 1 correct ones passed" in ran.err
    assert "WRONG, correct" in ran.out


def test_the_command_runs_the_suites_that_ship(cli: Cli) -> None:
    from flashcheck.cli import selftest

    assert {"edge", "quant", "ecc", "int16"} <= set(selftest._SUITES)
    assert selftest._STEPS == ["step"]
    assert cli("selftest", "--help").code == 0
