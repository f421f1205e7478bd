"""The suite of optimizer steps: what it draws, counts, explains, and refuses."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import torch
from rich.console import Console

from flashcheck import runner, selection
from flashcheck.config import StepConfig, load
from flashcheck.errors import ConfigError, UsageError
from flashcheck.measures import StepMetrics, TrajectoryMetrics
from flashcheck.optimizers import Hyperparameters, Optimizer, State, check_state
from flashcheck.reference import optimizers as reference
from flashcheck.reference.arithmetic import Arithmetic, NanAbsmax, Rounding
from flashcheck.report import store, terminal
from flashcheck.report.models import CaseResult, Selection, Status
from flashcheck.selftest.eager_step import EagerStep
from flashcheck.subjects import registry
from flashcheck.suites.step.suite import StepSuite
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli
from tests.fakes import changed

STEP = """\
suite: few
kind: step
description: a few steps
seed: 3
weight_scale: 0.5
optimizers:
  - {name: adamw, optimizer: adamw, lr: 1.0e-2, weight_decay: 0.1}
  - {name: sgd, optimizer: sgd, lr: 0.05, momentum: 0.9}
gradients:
  - {name: normal, generator: normal, size: 96, scale: 1.0e-2}
  - {name: odd, generator: normal, size: 41}
matrix:
  - optimizers: [adamw, sgd]
    weights: [bf16+int8]
    states: [quantized]
    gradients: [normal, odd]
    steps: [1, 10]
trajectories:
  - {optimizer: adamw, weights: bf16+int8, states: quantized, gradient: odd, steps: 12}
consistency:
  - {narrow: bf16, ecc: int8}
gates: []
"""

MATRIX = STEP[STEP.index("matrix:") : STEP.index("trajectories:")]
TRAJECTORIES = STEP[STEP.index("trajectories:") : STEP.index("consistency:")]
CONSISTENCY = STEP[STEP.index("consistency:") : STEP.index("gates:")]

SINGLE = [
    f"{optimizer}/bf16+int8/quantized/{gradient}/{step}"
    for optimizer in ("adamw", "sgd")
    for gradient in ("normal", "odd")
    for step in ("t1", "t10")
]
LONG = "trajectory/adamw/bf16+int8/quantized/odd"
COPIES = [
    "consistency/quantize/momentum",
    "consistency/quantize/variance",
    "consistency/dequantize/momentum",
    "consistency/dequantize/variance",
    "consistency/compute_ecc/bf16+int8",
    "consistency/reconstruct/bf16+int8",
]


def without(*sections: str) -> str:
    """The small suite less some of its sections."""
    text = STEP
    for section in sections:
        text = changed(text, section, "")
    return text


ONE_STEP = without(TRAJECTORIES, CONSISTENCY)


class Judged:
    """Runs a suite's text, or a part of it, on a subject."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self, text: str = STEP) -> StepConfig:
        path = self.folder / "few.yaml"
        path.write_text(text)
        config = load(path)
        assert isinstance(config, StepConfig)
        return config

    def suite(
        self, text: str = STEP, *, battery: Sequence[str] = (), spec: Sequence[str] = ()
    ) -> StepSuite:
        (suite,) = selection.select([self.config(text)], battery=battery, spec=spec)
        assert isinstance(suite, StepSuite)
        return suite

    def __call__(
        self,
        subject: Any,
        text: str = STEP,
        *,
        battery: Sequence[str] = (),
        spec: Sequence[str] = (),
    ) -> dict[str, CaseResult]:
        return cases(subject, self.suite(text, battery=battery, spec=spec))


def cases(subject: Any, suite: StepSuite) -> dict[str, CaseResult]:
    plan = runner.Plan(subject=subject)
    return {case.case: case for case in runner.run_cases(plan, suite, lambda _: None)}


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    return Judged(tmp_path)


# ---- Subjects ------------------------------------------------------------------------------


class Noting(EagerStep):
    """A right step that notes what it is given and gives; ``alter`` may change the result."""

    def __init__(self, alter: Callable[[State, dict[str, Any]], None] = lambda *_: None) -> None:
        self.alter = alter
        self.calls: list[tuple[State, torch.Tensor, dict[str, Any], State]] = []

    def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
        given = {name: tensor.clone() for name, tensor in state.items()}
        stored = super().step(state, grad, **hyper)
        self.alter(stored, hyper)
        kept = {name: tensor.clone() for name, tensor in stored.items()}
        self.calls.append((given, grad.clone(), hyper, kept))
        return stored


def hyper_of(options: dict[str, Any]) -> Hyperparameters:
    return Hyperparameters(**{**options, "optimizer": Optimizer(options["optimizer"])})


class Under(EagerStep):
    """The reference under a setting of its arithmetic."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
        return reference.step(state, grad, hyper_of(hyper), self.arithmetic)


def off_by_one_ulp(x: torch.Tensor) -> torch.Tensor:
    """Float32, each a neighbour of what it was; the same in every call."""
    up = torch.arange(x.numel()).reshape(x.shape) % 3 == 0
    toward = torch.where(up, torch.inf, -torch.inf)
    return torch.where(x == 0, x, torch.nextafter(x, toward))


class DividesInexactly(EagerStep):
    def divide(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return off_by_one_ulp(a / b)


class RootsInexactly(EagerStep):
    def root(self, v: torch.Tensor) -> torch.Tensor:
        exact = v.double().sqrt()
        made = off_by_one_ulp(exact.float())
        # A neighbour may be farther than an ULP from the root itself.
        ulp = torch.nextafter(made, made + 1) - made
        return torch.where((made - exact).abs() > ulp, exact.float(), made)


# ---- The configuration ---------------------------------------------------------------------


FAULTS = {
    "unknown optimizer in the matrix": (
        "  - optimizers: [adamw, sgd]",
        "  - optimizers: [adamw, sdg]",
        "unknown optimizer 'sdg'; did you mean 'sgd'?",
    ),
    "unknown gradient in the matrix": (
        "    gradients: [normal, odd]",
        "    gradients: [normal, od]",
        "unknown gradient 'od'; did you mean 'odd'?",
    ),
    "unknown optimizer in a trajectory": (
        "{optimizer: adamw, weights",
        "{optimizer: adam, weights",
        "unknown optimizer 'adam'; did you mean 'adamw'?",
    ),
    "unknown gradient in a trajectory": (
        "gradient: odd, steps",
        "gradient: even, steps",
        "unknown gradient 'even'; known: normal, odd",
    ),
    "a case twice": (
        "    steps: [1, 10]",
        "    steps: [1, 1]",
        "case 'adamw/bf16+int8/quantized/normal/t1' is there twice; drop one",
    ),
    "nothing to do": (
        MATRIX + TRAJECTORIES + CONSISTENCY,
        "",
        "nothing to do; give a matrix, trajectories or consistency",
    ),
    "a rounding that no step has": (
        "{narrow: bf16, ecc: int8}",
        "{narrow: bf16, ecc: int8, rounding: toward_zero}",
        "a step rounds weights to the nearest narrow one; drop rounding",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), FAULTS.values(), ids=FAULTS)
def test_a_suite_that_does_not_fit_itself_is_refused_in_one_clear_line(
    judged: Judged, old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        judged.config(changed(STEP, old, new))
    text = str(caught.value)
    assert text.count("\n") == 0
    assert text.startswith(f"{judged.folder / 'few.yaml'}:")
    assert text.endswith(message)


ADAMW = "{name: adamw, optimizer: adamw, lr: 1.0e-2, weight_decay: 0.1}"
SGD = "{name: sgd, optimizer: sgd, lr: 0.05, momentum: 0.9}"
NORMAL = "{name: normal, generator: normal, size: 96, scale: 1.0e-2}"
PLACED = {
    "optimizer": (
        SGD,
        "{name: sgd, optimizer: sgdm}",
        8,
        "optimizers[1].optimizer",
        "unknown value 'sgdm'; did you mean 'sgd'?",
    ),
    "an optimizer's name twice": (
        SGD,
        SGD + "\n  - {name: adamw, optimizer: lion}",
        9,
        "optimizers[2]",
        "'adamw' is there twice; rename one",
    ),
    "a gradient's name twice": (
        NORMAL,
        NORMAL + "\n  - {name: normal, generator: normal, size: 7}",
        11,
        "gradients[1]",
        "'normal' is there twice; rename one",
    ),
    "momentum of adamw": (
        ADAMW,
        "{name: adamw, optimizer: adamw, momentum: 0.9}",
        7,
        "optimizers[0]",
        "adamw has no momentum; drop it",
    ),
    "eps of lion": (
        ADAMW,
        "{name: adamw, optimizer: lion, eps: 1.0e-8}",
        7,
        "optimizers[0]",
        "lion has no eps; drop it",
    ),
    "beta1 of sgd": (
        SGD,
        "{name: sgd, optimizer: sgd, beta1: 0.9}",
        8,
        "optimizers[1]",
        "sgd has no beta1; drop it",
    ),
    "nesterov without momentum": (
        SGD,
        "{name: sgd, optimizer: sgd, momentum: 0.0, nesterov: true}",
        8,
        "optimizers[1]",
        "nesterov needs a momentum, and no dampening",
    ),
    "nesterov with dampening": (
        SGD,
        "{name: sgd, optimizer: sgd, dampening: 0.1, nesterov: true}",
        8,
        "optimizers[1]",
        "nesterov needs a momentum, and no dampening",
    ),
    "initial_lr with coupled decay": (
        SGD,
        "{name: sgd, optimizer: sgd, initial_lr: 0.1}",
        8,
        "optimizers[1]",
        "sgd has no decoupled decay; drop initial_lr",
    ),
    "a key that is none": (
        SGD,
        "{name: sgd, optimizer: sgd, momentun: 0.9}",
        8,
        "optimizers[1].momentun",
        "unknown key; did you mean 'momentum'?",
    ),
    "beta1 of 1": (
        ADAMW,
        "{name: adamw, optimizer: adamw, beta1: 1.0}",
        7,
        "optimizers[0].beta1",
        "is 1.0, but input should be less than 1",
    ),
    "weights": (
        "weights: [bf16+int8]",
        "weights: [bf16+int4]",
        14,
        "matrix[0].weights[0]",
        "unknown value 'bf16+int4'; did you mean 'bf16+int8'?",
    ),
    "states": (
        "states: [quantized]",
        "states: [quantised]",
        15,
        "matrix[0].states[0]",
        "unknown value 'quantised'; did you mean 'quantized'?",
    ),
    "step 0": (
        "steps: [1, 10]",
        "steps: [0, 10]",
        17,
        "matrix[0].steps[0]",
        "is 0, but input should be greater than or equal to 1",
    ),
    "a gate on no metric": (
        "gates: []",
        "gates:\n  - {metric: eror_ratio, op: '<=', limit: 1, reason: none}",
        23,
        "gates[0].metric",
        "unknown metric 'eror_ratio'; did you mean 'error_ratio'?",
    ),
}


@pytest.mark.parametrize(("old", "new", "line", "key", "message"), PLACED.values(), ids=PLACED)
def test_a_fault_is_told_with_file_line_and_key(
    judged: Judged, old: str, new: str, line: int, key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        judged.config(changed(STEP, old, new))
    assert str(caught.value) == f"{judged.folder / 'few.yaml'}:{line}: {key}: {message}"


KNOWN = """
known_deviations:
  - subject: {subject}
    case: {case}
    breaks: [unexplained]
    reason: it is known
"""


@pytest.mark.parametrize("case", ["sgd/*", "sgd/bf16+int8/quantized/*/t10", "*/odd/t1", SINGLE[0]])
def test_a_known_deviation_may_be_of_a_pattern_of_cases(judged: Judged, case: str) -> None:
    config = judged.config(STEP + KNOWN.format(subject="fake", case=f'"{case}"'))
    (known,) = config.known_deviations
    held = [name for name in config.case_names() if known.holds_of(name)]
    assert held == {
        "sgd/*": SINGLE[4:],
        "sgd/bf16+int8/quantized/*/t10": [SINGLE[5], SINGLE[7]],
        "*/odd/t1": [SINGLE[2], SINGLE[6]],
        SINGLE[0]: [SINGLE[0]],
    }.get(case)


def test_a_known_deviation_that_is_of_no_case_is_refused(judged: Judged) -> None:
    with pytest.raises(ConfigError, match=r"known_deviations\[0\].case: no case 'sgdw/\*'"):
        judged.config(STEP + KNOWN.format(subject="fake", case="sgdw/*"))


def test_a_known_deviation_is_of_the_cases_of_its_pattern_only(judged: Judged) -> None:
    def wrong(stored: State, _: dict[str, Any]) -> None:
        stored["momentum"][0] += 1 if stored["momentum"][0] < 100 else -1

    text = ONE_STEP + KNOWN.format(subject="selftest", case="sgd/*")
    for name, case in judged(Noting(wrong), text).items():
        assert case.status is (Status.KNOWN if name.startswith("sgd/") else Status.FAIL), name
    for name, case in judged(EagerStep(), text).items():
        expected = Status.UNEXPECTED_PASS if name.startswith("sgd/") else Status.PASS
        assert case.status is expected, name


def test_tolerances_of_a_step_are_of_three_operations(judged: Judged) -> None:
    config = judged.config()
    for each in ("division", "square_root", "power"):
        assert getattr(config.tolerances, each).ulp == 0.5
    text = STEP + "tolerances:\n  power: {ulp: 8.0, reason: powf}\n"
    assert judged.config(text).tolerances.power.ulp == 8.0


# ---- Cases ---------------------------------------------------------------------------------


def test_every_combination_is_a_case_and_trajectories_and_copies_follow(judged: Judged) -> None:
    ran = judged(EagerStep())
    assert list(ran) == judged.config().case_names() == [*SINGLE, LONG, *COPIES]
    for name, case in ran.items():
        assert case.status is Status.PASS, (name, case.reason)
        size = 96 if "normal" in name or "consistency" in name else 41
        assert case.numel == (12 * 41 if name == LONG else size), name


def test_progress_and_the_elements_of_a_suite_are_what_is_fed(judged: Judged) -> None:
    suite = judged.suite()
    told: list[int] = []

    def progress(elements: int) -> None:
        told.append(elements)

    list(runner.run_cases(runner.Plan(subject=EagerStep()), suite, progress))
    assert suite.elements() == sum(told) == 4 * 96 + 4 * 41 + 12 * 41 + 6 * 96


def test_a_tensor_is_of_the_form_that_a_case_is_named_after(judged: Judged) -> None:
    text = changed(ONE_STEP, "weights: [bf16+int8]", "weights: [fp32, bf16, fp16+int16]")
    text = changed(text, "states: [quantized]", "states: [plain, quantized]")
    narrow = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    subject = Noting()
    ran = judged(subject, text, battery=["odd"], spec=["adamw"])
    assert len(ran) == 3 * 2 * 2
    # Each case makes its call twice.
    for name, (state, grad, hyper, _) in zip(ran, subject.calls[::2], strict=True):
        _, weights, states, _, step = name.split("/")
        dtype = narrow[weights.split("+")[0]]
        assert f"t{hyper['step']}" == step
        assert state["param"].dtype == grad.dtype == dtype
        assert ("ecc" in state) == ("+" in weights)
        assert "ecc" not in state or state["ecc"].dtype == torch.int16
        if states == "plain":
            assert state["momentum"].dtype == state["variance"].dtype == dtype
            assert "momentum_scales" not in state
        else:
            assert (state["momentum"].dtype, state["variance"].dtype) == (torch.int8, torch.uint8)
            assert tuple(state["momentum_scales"].shape) == (2,)
        assert all(t.numel() == 41 for n, t in state.items() if not n.endswith("_scales"))


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        ({"spec": ["sgd"]}, SINGLE[4:]),
        ({"battery": ["odd"]}, [SINGLE[2], SINGLE[3], SINGLE[6], SINGLE[7], LONG]),
        ({"spec": ["adamw"], "battery": ["odd"]}, [SINGLE[2], SINGLE[3], LONG]),
        ({"spec": ["adamw", "sgd"], "battery": ["normal"]}, [*SINGLE[:2], *SINGLE[4:6]]),
    ],
)
def test_a_selection_takes_its_part_of_the_very_same_cases(
    judged: Judged, selected: dict[str, list[str]], expected: list[str]
) -> None:
    whole, part = judged(EagerStep()), cases(EagerStep(), judged.suite(STEP, **selected))
    assert list(part) == expected
    for name, case in part.items():
        assert case.input_sha256 == whole[name].input_sha256
    assert len({case.input_sha256 for case in part.values()}) == len(part)


def test_a_case_draws_the_same_wherever_in_the_file_it_stands(judged: Judged) -> None:
    other = changed(ONE_STEP, "optimizers: [adamw, sgd]", "optimizers: [sgd, adamw]")
    first, then = judged(EagerStep(), ONE_STEP), judged(EagerStep(), other)
    assert {n: c.input_sha256 for n, c in first.items()} == {
        n: c.input_sha256 for n, c in then.items()
    }
    seeded = judged(EagerStep(), changed(ONE_STEP, "seed: 3", "seed: 4"))
    assert all(seeded[name].input_sha256 != first[name].input_sha256 for name in first)


@pytest.mark.parametrize(
    ("option", "name", "hint"),
    [("spec", "adam", "did you mean 'adamw'?"), ("battery", "even", "known: normal, odd")],
)
def test_an_unknown_selection_is_refused_with_a_hint(
    judged: Judged, option: str, name: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        judged.suite(STEP, **{option: [name]})
    assert str(caught.value) == f"--{option} {name}: unknown here; {hint}"


def test_the_first_step_starts_from_moments_of_zero_and_a_later_one_does_not(
    judged: Judged,
) -> None:
    subject = Noting()
    ran = judged(subject, ONE_STEP)
    for name, (state, _, hyper, _) in zip(ran, subject.calls[::2], strict=True):
        assert name.endswith(f"/t{hyper['step']}")
        moments = [n for n in state if n.startswith(("momentum", "variance"))]
        assert len(moments) == (4 if name.startswith("adamw") else 2)
        for each in moments:
            assert bool((state[each] != 0).any()) is (hyper["step"] > 1), (name, each)
        assert bool((state["param"] != 0).any())
        assert bool((state["ecc"] != 0).any())


def test_each_case_draws_weights_of_its_own(judged: Judged) -> None:
    subject = Noting()
    judged(subject, without(CONSISTENCY))
    first = [*subject.calls[: 2 * len(SINGLE) : 2], subject.calls[2 * len(SINGLE)]]
    assert len({tuple(state["param"][:20].tolist()) for state, *_ in first}) == len(SINGLE) + 1
    weights = torch.cat([reference.read_param(state) for state, *_ in first])
    # The file's weight_scale, within what 600 numbers may be off by.
    assert 0.45 < float(weights.std()) < 0.55


def test_a_trajectory_starts_from_zero_and_feeds_on_its_own_state(judged: Judged) -> None:
    subject = Noting()
    judged(subject, without(MATRIX, CONSISTENCY))
    assert [hyper["step"] for *_, hyper, _ in subject.calls] == list(range(1, 13))
    for moment in ("momentum", "variance", "momentum_scales", "variance_scales"):
        assert not bool(subject.calls[0][0][moment].any())
    for (*_, stored), (given, *_) in itertools.pairwise(subject.calls):
        assert all(torch.equal(stored[name], given[name]) for name in given)
    gradients = {tuple(grad.tolist()) for _, grad, *_ in subject.calls}
    assert len(gradients) == 12


# ---- Metrics, counted again ----------------------------------------------------------------


def bits(x: torch.Tensor) -> list[int]:
    """A number's place among its dtype's numbers, both zeros apart."""
    width = {2: torch.int16, 4: torch.int32}[x.element_size()]
    raw: list[int] = x.view(width).tolist()
    return raw


def place(raw: int, width: int) -> int:
    return raw if raw >= 0 else -(1 << width - 1) - raw


def farthest(mine: torch.Tensor, other: torch.Tensor) -> int:
    """In ULP, of those that are finite on both sides."""
    width = mine.element_size() * 8
    return max(
        abs(place(a, width) - place(b, width))
        for a, b, x, y in zip(bits(mine), bits(other), mine.tolist(), other.tolist(), strict=True)
        if math.isfinite(x) and math.isfinite(y)
    )


def move(codes: torch.Tensor, places: list[int], by: int) -> None:
    """Codes so many further, or back where there is no room."""
    room = codes[places].int() < 100
    codes[places] = (codes[places].int() + torch.where(room, by, -by)).to(codes.dtype)


def wrong_in_places(stored: State, hyper: dict[str, Any]) -> None:
    """Some of everything."""
    raw = stored["param"].view(torch.int16)
    raw[3] += 1
    raw[7] -= 5
    stored["param"][11] = torch.inf
    move(stored["ecc"], [1, 2, 30], 1)
    move(stored["momentum"], [4, 5], 2)
    move(stored["momentum"], [6], 1)
    stored["momentum_scales"].view(torch.int16)[1] += 2
    if "variance" in stored:
        move(stored["variance"], [8, 9], 1)
        move(stored["variance"], [10], 16)
        stored["variance_scales"].view(torch.int16)[0] ^= 1


@pytest.mark.parametrize("name", [SINGLE[0], SINGLE[3], SINGLE[5]])
def test_the_figures_are_those_of_a_second_count(judged: Judged, name: str) -> None:
    subject = Noting(wrong_in_places)
    ran = judged(subject, ONE_STEP)
    case = ran[name]
    state, grad, hyper, stored = subject.calls[2 * list(ran).index(name)]
    theirs = reference.step(state, grad, hyper_of(hyper))

    def differ(tensor: str) -> int:
        mine, other = stored[tensor], theirs[tensor]
        if mine.is_floating_point():
            return sum(a != b for a, b in zip(bits(mine), bits(other), strict=True))
        return sum(a != b for a, b in zip(mine.tolist(), other.tolist(), strict=True))

    metrics = case.metrics
    assert isinstance(metrics, StepMetrics)
    n = grad.numel()
    assert metrics.param_mismatches == differ("param") == 3
    assert metrics.param_agree == (n - 3) / n
    assert metrics.param_max_ulp == farthest(stored["param"], theirs["param"]) == 5
    assert metrics.ecc_mismatches == differ("ecc") == 3
    weights = [reference.read_param(each) for each in (stored, theirs)]
    assert metrics.weight_max_ulp == farthest(*weights)
    # Five ULP of bfloat16 are 5 * 2^16 of float32, but for the correction.
    assert 5 * 2**16 - 2**9 <= metrics.weight_max_ulp <= 5 * 2**16 + 2**9
    assert metrics.momentum_mismatches == differ("momentum") == 3
    moments = [m for m in ("momentum", "variance") if m in stored]
    beyond = sum(
        abs(a - b) > 1
        for m in moments
        for a, b in zip(stored[m].tolist(), theirs[m].tolist(), strict=True)
    )
    assert metrics.codes_beyond_1 == beyond == (3 if "variance" in stored else 2)
    assert metrics.scale_mismatches == sum(differ(f"{m}_scales") for m in moments)
    assert (metrics.nonfinite_subject, metrics.nonfinite_reference) == (1, 0)
    assert metrics.nonfinite_disagree == 1
    if "variance" in stored:
        assert metrics.variance_mismatches == differ("variance") == 3
        assert metrics.scale_mismatches == 2
    else:
        assert metrics.variance_mismatches is None
        assert metrics.scale_mismatches == 1
    assert case.mismatches
    assert case.mismatches.outputs == sum(tensor.numel() for tensor in stored.values())
    assert {output: sum(c.values()) for output, c in case.mismatches.by_output.items()} == {
        each: differ(each) for each in stored
    }
    # No arithmetic gives any of it, but an infinite weight has no correction that is right.
    assert metrics.unexplained == case.mismatches.by_cause["unexplained"]
    assert metrics.unexplained >= case.mismatches.total - 1
    assert case.status is Status.FAIL
    assert "unexplained is" in (case.reason or "")


def test_what_a_case_has_not_is_null(judged: Judged) -> None:
    text = changed(ONE_STEP, "momentum: 0.9}", "momentum: 0.0}")
    text = changed(text, "weights: [bf16+int8]", "weights: [bf16, fp32]")
    for name, case in judged(EagerStep(), text, spec=["sgd"]).items():
        assert isinstance(case.metrics, StepMetrics)
        figures = case.metrics.model_dump()
        missing = {key for key, value in figures.items() if value is None}
        wanted = {"ecc_mismatches", "momentum_mismatches", "variance_mismatches"}
        wanted |= {"scale_mismatches"} | ({"weight_max_ulp"} if "bf16" in name else set())
        assert missing == wanted, name


def test_the_gates_of_single_steps_and_of_trajectories_are_each_of_their_own(
    judged: Judged,
) -> None:
    gates = """gates:
  - {metric: codes_beyond_1, op: "==", limit: 0, reason: r}
  - {metric: error_ratio, op: "<=", limit: 1.05, reason: r}
"""
    for name, case in judged(EagerStep(), changed(STEP, "gates: []\n", gates)).items():
        held = {gate.metric for gate in case.gates}
        assert held == ({"error_ratio"} if name == LONG else {"codes_beyond_1", "unexplained"})


# ---- Attribution ---------------------------------------------------------------------------


SETTINGS = """\
suite: few
kind: step
description: what settings show
seed: 3
weight_scale: 0.5
optimizers:
  - {name: adamw, optimizer: adamw, lr: 1.0e-2, weight_decay: 0.1}
  - {name: lion, optimizer: lion, lr: 3.0e-2, weight_decay: 0.1}
gradients:
  - {name: normal, generator: normal, size: 1000, scale: 1.0e-2}
  - {name: minute, generator: normal, size: 200, scale: 1.0e-13}
  - {name: nan, generator: special, size: 200, every: 200, values: ["0x7fc00000"]}
matrix:
  - optimizers: [adamw, lion]
    weights: [bf16+int16]
    states: [quantized]
    gradients: [normal, minute, nan]
    steps: [10]
gates: []
"""
AWAY, UP = Rounding.HALF_AWAY, Rounding.HALF_UP
# A setting, its words, and a case that it shows in with the switches of its causes.
SHOWN: list[tuple[Arithmetic, str, str, set[str]]] = [
    (Arithmetic(rounding=AWAY), "half away", "lion/normal", {"rounding_tie"}),
    (Arithmetic(rounding=UP), "half up", "lion/minute", {"rounding_tie"}),
    (
        Arithmetic(fused_multiply_add=True),
        "fused multiply-add",
        "lion/normal",
        {"fused_multiply_add"},
    ),
    (
        Arithmetic(reciprocal_division=True),
        "multiplication by the reciprocal",
        "adamw/normal",
        {"reciprocal_division"},
    ),
    (
        Arithmetic(absmax_floor=1e-12),
        "an absmax floor of 1e-12",
        "adamw/minute",
        {"absmax_floor"},
    ),
    (
        Arithmetic(nan_absmax=NanAbsmax.IGNORE),
        "NaN dropped from the absmax",
        "adamw/nan",
        {"nan_absmax"},
    ),
    (
        Arithmetic(float32_scalars=True),
        "scalars in float32",
        "adamw/normal",
        {"float32_scalars"},
    ),
    (
        Arithmetic(distributed_update=True),
        "a distributed update",
        "adamw/minute",
        {"distributed_update"},
    ),
    (
        Arithmetic(rounding=UP, fused_multiply_add=True),
        "half up + fused multiply-add",
        "lion/minute",
        {"rounding_tie", "fused_multiply_add"},
    ),
    (
        Arithmetic(float32_scalars=True, distributed_update=True),
        "scalars in float32 + a distributed update",
        "adamw/normal",
        {"float32_scalars", "distributed_update"},
    ),
    (
        Arithmetic(absmax_floor=1e-12, distributed_update=True),
        "an absmax floor of 1e-12 + a distributed update",
        "adamw/minute",
        {"absmax_floor", "distributed_update"},
    ),
]


@pytest.mark.parametrize(
    ("arithmetic", "words", "shown", "switches"), SHOWN, ids=[each[1] for each in SHOWN]
)
def test_the_reference_under_a_setting_is_bit_equal_under_that_setting(
    judged: Judged, arithmetic: Arithmetic, words: str, shown: str, switches: set[str]
) -> None:
    for name, case in judged(Under(arithmetic), SETTINGS).items():
        found = case.mismatches
        assert found
        assert case.status is Status.PASS, (name, case.reason)
        assert found.best_arithmetic.mismatches == 0
        assert "unexplained" not in found.by_cause
        optimizer, _, _, gradient, _ = name.split("/")
        if f"{optimizer}/{gradient}" == shown:
            assert found.sentence == f"bit-equal under {words}"
            assert found.total > 0
            assert found.best_arithmetic.arithmetic.get("distributed_update", False) is (
                arithmetic.distributed_update
            )
            seen = {part for cause in found.by_cause for part in cause.split("+")}
            assert switches <= seen
            # No bound is asked for where a setting gives the bits.
            assert not seen & {"ulp_bound", "rounding_boundary", "propagated"}


TIES = """\
suite: few
kind: step
description: a third of a group's largest has a code in the middle of two
seed: 3
weight_scale: 0.5
optimizers:
  - {name: lion, optimizer: lion, lr: 3.0e-2, weight_decay: 0.1}
gradients:
  - {name: thirds, generator: special, size: 20000, every: 16, scale: 1.0e-2, values: [3.0, -1.0]}
matrix:
  - optimizers: [lion]
    weights: [bf16+int16]
    states: [quantized]
    gradients: [thirds]
    steps: [1]
gates: []
"""


@pytest.mark.parametrize(
    ("arithmetic", "words"),
    [
        (Arithmetic(rounding=UP), "half up"),
        (Arithmetic(rounding=AWAY), "half away"),
        (
            Arithmetic(rounding=UP, correction_rounding=AWAY),
            "half up, corrections half away",
        ),
    ],
)
def test_corrections_may_be_rounded_in_a_way_of_their_own(
    judged: Judged, arithmetic: Arithmetic, words: str
) -> None:
    (case,) = judged(Under(arithmetic), TIES).values()
    assert case.mismatches
    assert case.mismatches.by_cause == {"rounding_tie": case.mismatches.total}
    assert case.mismatches.by_output.keys() >= {"ecc"}
    assert case.mismatches.sentence == f"bit-equal under {words}"


def default_file() -> str:
    return (CHECKOUT / "configs" / "step.yaml").read_text()


BOUNDS = {"ulp_bound", "rounding_boundary", "propagated"}
WEIGHTS = """\
suite: few
kind: step
description: what bounds explain
seed: 3
weight_scale: 0.5
optimizers:
  - {name: adamw, optimizer: adamw, lr: 1.0e-2, weight_decay: 0.1}
gradients:
  - {name: normal, generator: normal, size: 2000, scale: 1.0e-2}
matrix:
  - optimizers: [adamw]
    weights: [bf16, bf16+int8, bf16+int16, fp16+int16, fp32]
    states: [quantized, plain]
    gradients: [normal]
    steps: [1, 10]
gates: []
"""


def tolerances() -> str:
    """Those of the default file."""
    text = default_file()
    return text[text.index("\ntolerances:") : text.index("\nknown_deviations:")]


@pytest.mark.parametrize("subject", [DividesInexactly, RootsInexactly])
def test_operations_off_by_an_ulp_are_within_the_bounds_of_the_default_file(
    judged: Judged, subject: type[EagerStep]
) -> None:
    seen: set[str] = set()
    total = 0
    for name, case in judged(subject(), WEIGHTS + tolerances()).items():
        assert case.mismatches
        assert case.status is Status.PASS, (name, case.reason)
        assert "unexplained" not in case.mismatches.by_cause
        seen |= case.mismatches.by_cause.keys()
        total += case.mismatches.total
        for margin in case.mismatches.margin:
            assert 0 < margin.largest_ulp <= margin.bound_ulp, name
    assert seen >= BOUNDS
    assert total > 500


class FarOff(EagerStep):
    """Divisions, or roots, off by sixteen ULP."""

    def __init__(self, operation: str) -> None:
        right = getattr(self, operation)

        def off(*args: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = right(*args)
            for _ in range(16):
                made = off_by_one_ulp(made)
            return made

        setattr(self, operation, off)


# Late, where bias corrections are 1 and leave no room, and with a weight that is all update.
TIGHT = changed(
    changed(WEIGHTS, "lr: 1.0e-2, weight_decay: 0.1", "lr: 100.0"), "[1, 10]", "[1_000_000]"
)
TOLERANCES = """\
tolerances:
  division: {{ulp: {division}, reason: said so}}
  square_root: {{ulp: {square_root}, reason: said so}}
"""


@pytest.mark.parametrize(
    ("operation", "enough", "too_few"),
    [("divide", (17.0, 0.5), (0.5, 17.0)), ("root", (0.5, 17.0), (1.0, 1.0))],
)
def test_operations_that_are_off_by_more_than_the_file_allows_are_unexplained(
    judged: Judged, operation: str, enough: tuple[float, float], too_few: tuple[float, float]
) -> None:
    name = "adamw/fp32/plain/normal/t1000000"
    causes = {}
    for given in (enough, too_few):
        text = TIGHT + TOLERANCES.format(division=given[0], square_root=given[1])
        case = judged(FarOff(operation), text)[name]
        assert case.mismatches
        assert case.mismatches.total > 1500
        causes[given] = case.mismatches.by_cause
        assert (case.status is Status.PASS) is (given == enough)
    assert "unexplained" not in causes[enough]
    assert causes[enough]["ulp_bound"] > 1500
    assert causes[too_few]["unexplained"] > 100
    # Correctly rounded is what a file has that says nothing.
    case = judged(FarOff(operation), TIGHT)[name]
    assert isinstance(case.metrics, StepMetrics)
    assert case.metrics.unexplained > 100


class LargeEps(EagerStep):
    """Inside the root: nothing that a bound could cover."""

    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return self.root(v + self.constant(eps))


class DecaysTwice(EagerStep):
    def moved(
        self, theta: torch.Tensor, direction: torch.Tensor, *, decoupled: bool, **hyper: Any
    ) -> torch.Tensor:
        twice = {**hyper, "weight_decay": 2 * hyper["weight_decay"]}
        return super().moved(theta, direction, decoupled=decoupled, **twice)


class SlowMomentum(EagerStep):
    """A beta that is off by a thousandth."""

    def adam(self, g: torch.Tensor, old: Any, **hyper: Any) -> Any:
        return super().adam(g, old, **{**hyper, "beta1": hyper["beta1"] + 1e-3})


class RoundsCorrectionsDown(EagerStep):
    def corrections(self, state: State, theta: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        right = super().corrections(state, theta, param)
        return torch.where(right > right.min(), right - 1, right)


@pytest.mark.parametrize("subject", [LargeEps, DecaysTwice, SlowMomentum, RoundsCorrectionsDown])
def test_a_wrong_step_is_unexplained_whatever_the_tolerances(
    judged: Judged, subject: type[EagerStep]
) -> None:
    ran = judged(subject(), WEIGHTS + tolerances())
    corrected = [case for name, case in ran.items() if "bf16+int8" in name and "t10" in name]
    for case in corrected:
        assert case.status is Status.FAIL
        assert case.mismatches
        assert case.mismatches.by_cause["unexplained"] > 20
        assert case.mismatches.sentence.endswith(" unexplained")
        worst = case.mismatches.worst[0]
        assert worst.cause == "unexplained"
        # Parameter, gradient and both moments are what it was computed from.
        assert len(worst.input.split(", ")) == len(worst.input_bits.split(", ")) == 4


def test_an_infinite_gradient_has_codes_outside_the_papers_domain_and_nothing_unexplained(
    judged: Judged,
) -> None:
    class AnyCode(EagerStep):
        """Of what is not finite it stores 1, where the reference stores something else."""

        def quantize(self, x: torch.Tensor, **options: Any) -> Any:
            codes, scales = super().quantize(x, **options)
            return torch.where(x.isfinite(), codes, 1), scales

        def corrections(self, *args: Any) -> torch.Tensor:
            _, theta, param = args
            right = super().corrections(*args)
            return torch.where((theta + param).isfinite(), right, 1)

    text = SETTINGS.replace("0x7fc00000", "0x7f800000")
    (case,) = judged(AnyCode(), text, spec=["adamw"], battery=["nan"]).values()
    assert case.mismatches
    assert case.mismatches.by_cause == {"outside_domain": 3}
    assert case.status is Status.PASS


# ---- Trajectories --------------------------------------------------------------------------


OPTIMIZERS = {
    "adamw": "optimizer: adamw, lr: 1.0e-2, weight_decay: 0.1",
    "adamw-fully-decoupled": "optimizer: adamw, lr: 1.0e-2, initial_lr: 0.02, weight_decay: 0.01",
    "adamw-betas": "optimizer: adamw, lr: 1.0e-2, beta1: 0.8, beta2: 0.95, eps: 1.0e-3",
    "adam": "optimizer: adam, lr: 1.0e-2, weight_decay: 0.1",
    "sgd": "optimizer: sgd, lr: 0.5, momentum: 0.9, weight_decay: 0.01",
    "sgd-plain": "optimizer: sgd, lr: 0.5, momentum: 0.0, weight_decay: 0.01",
    "sgd-nesterov": "optimizer: sgd, lr: 0.5, momentum: 0.9, nesterov: true",
    "sgd-dampened": "optimizer: sgd, lr: 0.5, momentum: 0.9, dampening: 0.25",
    "sgdw": "optimizer: sgdw, lr: 0.5, momentum: 0.9, weight_decay: 0.01",
    "sgdw-fully-decoupled": "optimizer: sgdw, lr: 0.5, initial_lr: 0.8, weight_decay: 0.01",
    "sgdw-nesterov": "optimizer: sgdw, lr: 0.5, weight_decay: 0.1, nesterov: true, momentum: 0.8",
    "lion": "optimizer: lion, lr: 1.0e-2, beta2: 0.99, weight_decay: 0.1",
}


def trajectory_text(
    optimizer: str, *, weights: str = "bf16+int8", states: str = "quantized", steps: int = 23
) -> str:
    return f"""\
suite: few
kind: step
description: one trajectory
seed: 3
weight_scale: 0.5
optimizers:
  - {{name: it, {optimizer}}}
gradients:
  - {{name: normal, generator: normal, size: 75, scale: 1.0e-2}}
trajectories:
  - {{optimizer: it, weights: {weights}, states: {states}, gradient: normal, steps: {steps}}}
gates:
  - {{metric: error_ratio, op: "<=", limit: 1.05, reason: what formats lose}}
"""


def exactly(theta: torch.Tensor, gradients: Sequence[torch.Tensor], h: Any) -> torch.Tensor:
    """The steps in float64, by the formulas."""
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for t, grad in enumerate(gradients, 1):
        g = grad.double()
        decoupled = h["optimizer"] in ("adamw", "sgdw", "lion")
        lost = torch.zeros_like(theta)
        if decoupled:
            by = h["lr"] if h["initial_lr"] is None else h["lr"] / h["initial_lr"]
            lost = h["weight_decay"] * by * theta
        else:
            g = g + h["weight_decay"] * theta
        if h["optimizer"] in ("adam", "adamw"):
            m = h["beta1"] * m + (1 - h["beta1"]) * g
            v = h["beta2"] * v + (1 - h["beta2"]) * g**2
            unbiased = m / (1 - h["beta1"] ** t)
            u = unbiased / ((v / (1 - h["beta2"] ** t)) ** 0.5 + h["eps"])
        elif h["optimizer"] == "lion":
            u = torch.sign(h["beta1"] * m + (1 - h["beta1"]) * g)
            m = h["beta2"] * m + (1 - h["beta2"]) * g
        else:
            m = h["momentum"] * m + (1 - h["dampening"]) * g
            u = g + h["momentum"] * m if h["nesterov"] else m
            u = u if h["momentum"] else g
        theta = theta - h["lr"] * u - lost
    return theta


@pytest.mark.parametrize(
    ("weights", "states"), [("bf16+int8", "quantized"), ("bf16+int8", "plain"), ("fp32", "plain")]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_errors_are_distances_from_the_steps_in_float64(
    judged: Judged, name: str, weights: str, states: str
) -> None:
    def drifts(stored: State, hyper: dict[str, Any]) -> None:
        stored["param"][hyper["step"] % 75] *= 1.5

    subject = Noting(drifts)
    text = trajectory_text(OPTIMIZERS[name], weights=weights, states=states)
    (case,) = judged(subject, text).values()
    start = subject.calls[0][0]
    gradients = [grad for _, grad, *_ in subject.calls]
    theta = reference.read_param(start).double()
    narrow = {"param": theta.bfloat16()}
    for moment in ("momentum", "variance"):
        if moment in start:
            narrow[moment] = torch.zeros(75, dtype=torch.bfloat16)
    theirs = start
    assert [point.step for point in case.trajectory] == [1, 2, 5, 10, 20, 23]
    points = {point.step: point for point in case.trajectory}
    first = None
    for t, (_, grad, hyper, stored) in enumerate(subject.calls, 1):
        theirs = reference.step(theirs, grad, hyper_of(hyper))
        narrow = reference.step(narrow, grad.bfloat16(), hyper_of(hyper))
        same = all(torch.equal(stored[each], theirs[each]) for each in stored)
        first = t if first is None and not same else first
        if t not in points:
            continue
        exact = exactly(theta, gradients[:t], hyper)
        way = float((exact - theta).norm())
        for which, state in (("subject", stored), ("reference", theirs), ("naive", narrow)):
            off = float((reference.read_param(state).double() - exact).norm()) / way
            assert getattr(points[t], f"error_{which}") == pytest.approx(off, rel=1e-7), (t, which)
        assert points[t].param_differ == sum(
            a != b for a, b in zip(bits(stored["param"]), bits(theirs["param"]), strict=True)
        )
        assert points[t].param_max_ulp == farthest(stored["param"], theirs["param"])
        assert points[t].codes_differ == sum(
            int((stored[each] != theirs[each]).sum())
            for each in ("ecc", "momentum", "variance")
            if each in stored and stored[each].dtype in (torch.int8, torch.uint8)
        )
    metrics, last = case.metrics, points[23]
    assert isinstance(metrics, TrajectoryMetrics)
    assert first == 1
    assert (metrics.steps, metrics.first_difference) == (23, first)
    shown = {key: value for key, value in metrics.model_dump().items() if key in last.model_dump()}
    assert shown == last.model_dump(exclude={"step"})
    assert last.error_subject is not None
    assert last.error_reference
    assert metrics.error_ratio == pytest.approx(last.error_subject / last.error_reference)
    # What compression costs is less than what bfloat16 alone does, and the drift more.
    assert last.error_naive is not None
    assert last.error_reference < last.error_naive
    assert case.status is Status.FAIL
    assert case.reason
    assert "error_ratio is " in case.reason


@pytest.mark.parametrize("tensor", ["ecc", "momentum", "variance_scales", "param"])
def test_the_first_difference_is_of_whatever_is_stored(judged: Judged, tensor: str) -> None:
    def wrong(stored: State, hyper: dict[str, Any]) -> None:
        if hyper["step"] == 7:
            width = {1: torch.int8, 2: torch.int16}[stored[tensor].element_size()]
            stored[tensor].view(width)[:1] ^= 1

    (case,) = judged(Noting(wrong), trajectory_text(OPTIMIZERS["adamw"])).values()
    assert isinstance(case.metrics, TrajectoryMetrics)
    assert case.metrics.first_difference == 7
    before = [point for point in case.trajectory if point.step < 7]
    assert [point.step for point in before] == [1, 2, 5]
    for point in before:
        assert (point.param_differ, point.codes_differ, point.param_max_ulp) == (0, 0, 0)


def test_a_right_step_never_differs_and_its_ratio_is_one(judged: Judged) -> None:
    (case,) = judged(EagerStep(), trajectory_text(OPTIMIZERS["adamw"])).values()
    assert isinstance(case.metrics, TrajectoryMetrics)
    assert case.status is Status.PASS
    assert case.metrics.first_difference is None
    assert case.metrics.error_ratio == 1.0
    assert (case.metrics.param_differ, case.metrics.codes_differ) == (0, 0)


def test_a_step_that_loses_its_corrections_breaks_the_gate(judged: Judged) -> None:
    def loses(stored: State, _: dict[str, Any]) -> None:
        stored["ecc"].zero_()

    # A tenth of an ULP a step: without its correction a weight stands still.
    text = trajectory_text("optimizer: adamw, lr: 1.0e-4", steps=40)
    (case,) = judged(Noting(loses), text).values()
    assert isinstance(case.metrics, TrajectoryMetrics)
    ratio = case.metrics.error_ratio
    assert ratio is not None
    assert ratio > 2
    assert case.status is Status.FAIL
    assert case.reason == f"error_ratio is {ratio:.9g}, must be <= 1.05"


def test_a_trajectory_that_is_not_finite_has_no_error_and_breaks_the_gate(judged: Judged) -> None:
    def explodes(stored: State, hyper: dict[str, Any]) -> None:
        if hyper["step"] == 3:
            stored["param"][0] = torch.nan

    (case,) = judged(Noting(explodes), trajectory_text(OPTIMIZERS["sgd"])).values()
    assert isinstance(case.metrics, TrajectoryMetrics)
    assert case.metrics.error_subject is None
    assert case.metrics.error_ratio is None
    assert case.trajectory[1].error_subject is not None
    assert case.status is Status.FAIL
    assert case.reason == "error_ratio has no value, must be <= 1.05"


def test_a_trajectory_that_goes_nowhere_has_errors_of_zero(judged: Judged) -> None:
    text = trajectory_text("optimizer: sgd, lr: 0.0", weights="fp32", states="plain", steps=3)
    (case,) = judged(EagerStep(), text).values()
    assert isinstance(case.metrics, TrajectoryMetrics)
    assert (case.metrics.error_subject, case.metrics.error_ratio) == (0.0, 1.0)
    # All in bfloat16 it is somewhere else from the start.
    assert case.metrics.error_naive is None


# ---- Consistency ---------------------------------------------------------------------------


class Copies(EagerStep):
    """The functions are right; the step's copies of them may be others."""

    def __init__(self, copy: str) -> None:
        self.copy = copy

    def read_param(self, state: State) -> torch.Tensor:
        right = super().read_param(state)
        return right * 1.001 if "ecc" in state and self.copy == "reconstruct" else right

    def read_moment(self, state: State, name: str) -> torch.Tensor:
        right = super().read_moment(state, name)
        return right * 1.02 if self.copy == f"dequantize/{name}" else right

    def corrections(self, state: State, theta: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        right = super().corrections(state, theta, param)
        return torch.where(right == 5, 3, right) if self.copy == "compute_ecc" else right

    def store_moment(self, state: State, name: str, values: torch.Tensor) -> State:
        stored = super().store_moment(state, name, values)
        if self.copy == f"quantize/{name}":
            stored[name] = torch.where(stored[name] > 50, stored[name] - 2, stored[name])
        return stored


CONSISTENT = changed(without(MATRIX, TRAJECTORIES), "size: 96", "size: 3000")
# The case of a copy, and those whose probes have it on their way out.
SEEN_IN = {
    "quantize/momentum": {COPIES[0], COPIES[5]},
    "quantize/variance": {COPIES[1], COPIES[3]},
    "dequantize/momentum": {COPIES[2]},
    "dequantize/variance": {COPIES[3]},
    "compute_ecc": {COPIES[4]},
    "reconstruct": {COPIES[5]},
}


@pytest.mark.parametrize("copy", SEEN_IN)
def test_a_copy_that_is_not_its_function_is_seen_in_its_case(judged: Judged, copy: str) -> None:
    ran = judged(Copies(copy), CONSISTENT)
    assert list(ran) == COPIES
    seen = {name for name, case in ran.items() if case.status is not Status.PASS}
    assert seen == SEEN_IN[copy]
    for name, case in ran.items():
        found = case.mismatches
        assert found
        if name not in seen:
            assert found.total == 0
            assert found.sentence == "the step's copy gives the bits of the function"
            continue
        assert case.status is Status.FAIL
        unexplained = found.by_cause["unexplained"]
        assert unexplained > 0
        assert found.sentence == (
            f"{found.total:,} of {found.outputs:,} outputs of the step's copy are not the "
            f"function's; {unexplained:,} unexplained"
        )


class Functions(EagerStep):
    """The step is right; one of the functions beside it is not."""

    def __init__(self, method: str, alter: Callable[[Any], Any]) -> None:
        self.inside = EagerStep()
        right = getattr(self, method)

        def altered(*args: Any, **options: Any) -> Any:
            return alter(right(*args, **options))

        setattr(self, method, altered)

    def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
        return self.inside.step(state, grad, **hyper)


@pytest.mark.parametrize(
    ("method", "alter", "seen"),
    [
        ("quantize", lambda r: (r[0] // 2, r[1]), {*COPIES[:2], COPIES[3], COPIES[5]}),
        ("dequantize", lambda r: r * 1.02, {COPIES[2], COPIES[3]}),
        ("compute_ecc", lambda r: r // 2, {COPIES[4]}),
        ("reconstruct", lambda r: r * 1.02, {COPIES[5]}),
    ],
)
def test_a_function_that_is_not_its_copy_is_seen_as_well(
    judged: Judged, method: str, alter: Callable[[Any], Any], seen: set[str]
) -> None:
    ran = judged(Functions(method, alter), CONSISTENT)
    assert {name for name, case in ran.items() if case.status is not Status.PASS} == seen


def test_only_what_a_case_looks_at_is_compared(judged: Judged) -> None:
    ran = judged(EagerStep(), CONSISTENT)
    outputs = {name: case.mismatches.outputs for name, case in ran.items() if case.mismatches}
    groups = -(-3000 // 32)
    assert outputs == {
        COPIES[0]: 3000 + groups,
        COPIES[1]: 3000 + groups,
        COPIES[2]: 3000,
        COPIES[3]: 3000 + groups,
        COPIES[4]: 6000,
        COPIES[5]: 3000 + groups,
    }


def test_a_subject_of_steps_alone_has_no_functions_to_be_consistent_with(judged: Judged) -> None:
    class StepsOnly:
        name, version, backend = "steps", "1", "native"
        step = staticmethod(EagerStep().step)

    ran = judged(StepsOnly())
    for name, case in ran.items():
        assert case.status is (Status.UNSUPPORTED if name in COPIES else Status.PASS)
    assert ran[COPIES[0]].reason == (
        "the subject has no quantize and no dequantize and no compute_ecc and no reconstruct"
    )


# ---- What is refused and what is wrong in form ---------------------------------------------


def test_what_a_subject_does_not_have_is_unsupported_with_its_reason(judged: Judged) -> None:
    class NoSgd(EagerStep):
        def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
            if hyper["optimizer"] == "sgd":
                raise NotImplementedError("no SGD\n  here")
            return super().step(state, grad, **hyper)

    ran = judged(NoSgd(), without(CONSISTENCY))
    for name, case in ran.items():
        if name.startswith("sgd"):
            assert (case.status, case.reason) == (Status.UNSUPPORTED, "no SGD here")
            assert case.metrics is None
        else:
            assert case.status is Status.PASS


def test_a_subject_without_a_step_is_unsupported(judged: Judged) -> None:
    from flashcheck.selftest.eager import Eager

    for case in judged(Eager()).values():
        assert (case.status, case.reason) == (Status.UNSUPPORTED, "the subject has no step")


Alter = Callable[[State], Any]
KEYS = "['ecc', 'momentum', 'momentum_scales', 'param', 'variance', 'variance_scales']"
FORMS: dict[str, tuple[Alter, str]] = {
    "a key missing": (
        lambda s: {k: v for k, v in s.items() if k != "ecc"},
        f"step returned {KEYS.replace(chr(39) + 'ecc' + chr(39) + ', ', '')}; "
        f"expected a dict of {KEYS}",
    ),
    "a key too many": (
        lambda s: {**s, "velocity": s["param"]},
        f"step returned {KEYS[:-1]}, 'velocity']; expected a dict of {KEYS}",
    ),
    "no dict": (lambda s: [*s.values()], f"step returned list; expected a dict of {KEYS}"),
    "nothing": (lambda _: None, f"step returned NoneType; expected a dict of {KEYS}"),
    "dtype": (
        lambda s: {**s, "momentum": s["momentum"].float()},
        "step returned momentum as torch.float32 of shape (96,) on cpu; "
        "expected torch.int8 of shape (96,) on cpu",
    ),
    "shape": (
        lambda s: {**s, "variance_scales": s["variance_scales"][:2]},
        "step returned variance_scales as torch.float16 of shape (2,) on cpu; "
        "expected torch.float16 of shape (3,) on cpu",
    ),
    "dimensions": (
        lambda s: {**s, "param": s["param"][None]},
        "step returned param as torch.bfloat16 of shape (1, 96) on cpu; "
        "expected torch.bfloat16 of shape (96,) on cpu",
    ),
    "no tensor": (
        lambda s: {**s, "ecc": s["ecc"].tolist()},
        "step returned list as ecc; expected a tensor",
    ),
}


class Returns(EagerStep):
    def __init__(self, alter: Alter) -> None:
        self.alter = alter

    def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> Any:
        return self.alter(super().step(state, grad, **hyper))


@pytest.mark.parametrize(("alter", "message"), FORMS.values(), ids=FORMS)
def test_a_state_of_the_wrong_form_is_an_error_that_names_it(
    judged: Judged, alter: Alter, message: str
) -> None:
    case = judged(Returns(alter), ONE_STEP, spec=["adamw"], battery=["normal"])[SINGLE[0]]
    assert (case.status, case.reason) == (Status.ERROR, message)


def test_an_exception_is_an_error_of_its_case_alone(judged: Judged) -> None:
    class Raises(EagerStep):
        def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
            if hyper["optimizer"] == "sgd" and hyper["step"] == 10:
                raise ZeroDivisionError("by\nzero")
            return super().step(state, grad, **hyper)

    for name, case in judged(Raises()).items():
        if name in (SINGLE[5], SINGLE[7]):
            assert case.status is Status.ERROR
            assert case.reason == "step raised ZeroDivisionError: by zero"
        else:
            assert case.status is Status.PASS


def test_an_exception_late_in_a_trajectory_is_an_error(judged: Judged) -> None:
    def raises(_: State, hyper: dict[str, Any]) -> None:
        if hyper["step"] == 9:
            raise RuntimeError("late")

    (case,) = judged(Noting(raises), without(MATRIX, CONSISTENCY)).values()
    assert (case.status, case.reason) == (Status.ERROR, "step raised RuntimeError: late")


def contracts(case: CaseResult) -> dict[str, bool]:
    return {contract.name: contract.ok for contract in case.contracts}


def test_a_gradient_changed_in_place_is_seen_and_a_state_may_be(judged: Judged) -> None:
    class InPlace(EagerStep):
        def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
            stored = super().step(state, grad, **hyper)
            for name, tensor in stored.items():
                state[name].copy_(tensor)
            if hyper["optimizer"] == "sgd":
                grad[0] += 1
            return state

    for name, case in judged(InPlace(), ONE_STEP).items():
        broken = name.startswith("sgd")
        assert contracts(case) == {"inputs_unchanged": not broken, "same_bits_twice": True}
        assert case.status is (Status.FAIL if broken else Status.PASS)
        if broken:
            assert case.reason == "inputs_unchanged: changed in place by step"


def test_a_step_that_changes_from_call_to_call_is_seen(judged: Judged) -> None:
    calls = itertools.count()

    def unsteady(stored: State, _: dict[str, Any]) -> None:
        # Right the first time.
        if next(calls) % 2:
            stored["momentum_scales"].view(torch.int16)[0] ^= 1

    for case in judged(Noting(unsteady), ONE_STEP).values():
        assert case.status is Status.FAIL
        assert contracts(case) == {"inputs_unchanged": True, "same_bits_twice": False}
        assert "1 of " in (case.reason or "")
        assert "momentum_scales differ in a second run" in (case.reason or "")


def right_state(**changed_: torch.Tensor | None) -> tuple[State, torch.Tensor]:
    """Of Adam, with some tensors exchanged or taken out."""
    state: dict[str, torch.Tensor | None] = {
        "param": torch.zeros(40, dtype=torch.bfloat16),
        "ecc": torch.zeros(40, dtype=torch.int8),
        "momentum": torch.zeros(40, dtype=torch.int8),
        "momentum_scales": torch.zeros(2, dtype=torch.float16),
        "variance": torch.zeros(40, dtype=torch.uint8),
        "variance_scales": torch.zeros(2, dtype=torch.float16),
        "grad": torch.zeros(40, dtype=torch.bfloat16),
        **changed_,
    }
    kept = {name: tensor for name, tensor in state.items() if tensor is not None}
    return kept, kept.pop("grad")


INCONSISTENT: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "no param": ({"param": None}, "the state's param is missing"),
    "no variance": (
        {"variance": None, "variance_scales": None},
        "the state's variance is missing",
    ),
    "something else": (
        {"velocity": torch.zeros(40)},
        "the state's velocity is none of adamw's",
    ),
    "codes too short": (
        {"ecc": torch.zeros(39, dtype=torch.int8)},
        "ecc is int8 of shape (39,), but a bfloat16 param of shape (40,) needs int8 or int16 of "
        "shape (40,)",
    ),
    "too few scales": (
        {"momentum_scales": torch.zeros(1, dtype=torch.float16)},
        "momentum_scales is float16 of shape (1,), but a bfloat16 param of shape (40,) needs "
        "float16 of shape (2,)",
    ),
    "momentum of no sign": (
        {"momentum": torch.zeros(40, dtype=torch.uint8)},
        "momentum is uint8 of shape (40,), but a bfloat16 param of shape (40,) needs int8 of "
        "shape (40,)",
    ),
    "plain variance of another dtype": (
        {"variance": torch.zeros(40), "variance_scales": None},
        "variance is float32 of shape (40,), but a bfloat16 param of shape (40,) needs bfloat16 "
        "of shape (40,)",
    ),
    "gradient of another dtype": (
        {"grad": torch.zeros(40)},
        "grad is float32 of shape (40,), but a bfloat16 param of shape (40,) needs bfloat16 of "
        "shape (40,)",
    ),
    "gradient of two dimensions": (
        {"grad": torch.zeros(8, 5, dtype=torch.bfloat16)},
        "grad is bfloat16 of shape (8, 5), but a bfloat16 param of shape (40,) needs bfloat16 of "
        "shape (40,)",
    ),
}


@pytest.mark.parametrize(("given", "message"), INCONSISTENT.values(), ids=INCONSISTENT)
def test_a_state_that_does_not_fit_its_parameter_is_named_with_both_shapes(
    given: dict[str, torch.Tensor | None], message: str
) -> None:
    state, grad = right_state(**given)
    hyper = Hyperparameters(Optimizer.ADAMW)
    for check in (check_state, reference.step):
        with pytest.raises(ValueError, match=r".") as caught:
            check(state, grad, hyper)
        assert str(caught.value) == message
    check_state(*right_state(), hyper)


# ---- flashoptim and the in-tree kernel -------------------------------------------------------


@pytest.fixture(scope="module")
def built_in() -> StepConfig:
    config = load(CHECKOUT / "configs" / "step.yaml")
    assert isinstance(config, StepConfig)
    return config


def single(config: StepConfig, *optimizers: str, **selected: list[str]) -> StepSuite:
    """The single steps of some optimizers."""
    fewer = config.model_copy(update={"trajectories": []})
    return StepSuite(fewer, Selection(spec=list(optimizers), **selected))


@pytest.mark.parametrize("gradient", ["odd_size", "zero", "tiny", "one_infinity"])
def test_flashoptim_passes_with_nothing_unexplained(
    interpreted: Any, built_in: StepConfig, gradient: str
) -> None:
    subject, _ = interpreted
    suite = single(built_in, "adamw", "sgd-nesterov", "sgdw", "lion", battery=[gradient])
    ran = cases(subject, suite)
    assert len(ran) >= 2
    for name, case in ran.items():
        assert case.status is Status.PASS, (name, case.reason)
        assert isinstance(case.metrics, StepMetrics)
        assert case.metrics.unexplained == 0
        assert contracts(case) == {"inputs_unchanged": True, "same_bits_twice": True}


def test_flashoptim_differs_in_legitimate_arithmetic_that_is_named(
    interpreted: Any, built_in: StepConfig
) -> None:
    subject, _ = interpreted
    case = cases(subject, single(built_in, "adamw", battery=["normal"]))[
        "adamw/fp32/plain/normal/t10"
    ]
    assert case.mismatches
    assert case.mismatches.total > 1000
    assert case.mismatches.sentence == ("bit-equal under scalars in float32 + a distributed update")


def test_flashoptim_changes_the_gradient_of_plain_sgd_which_is_known(
    interpreted: Any, built_in: StepConfig
) -> None:
    subject, _ = interpreted
    ran = cases(subject, single(built_in, "sgd-plain"))
    changed_ = {name for name, case in ran.items() if not contracts(case)["inputs_unchanged"]}
    assert changed_ == {"sgd-plain/fp32/plain/odd_size/t10"}
    (known,) = built_in.known_deviations
    for name, case in ran.items():
        if name in changed_:
            assert (case.status, case.reason) == (Status.KNOWN, known.reason)
        else:
            assert case.status is Status.PASS


def test_flashoptim_refuses_no_case_of_the_default_file_and_its_copies_agree(
    interpreted: Any, built_in: StepConfig
) -> None:
    subject, _ = interpreted
    fewer = built_in.model_copy(update={"trajectories": [], "matrix": []})
    for name, case in cases(subject, StepSuite(fewer, Selection())).items():
        assert case.status is Status.PASS, (name, case.reason)


def test_the_in_tree_kernel_is_bit_equal_in_every_step_of_adam(built_in: StepConfig) -> None:
    subject, _ = registry.load("triton", "interpreter")
    suite = single(built_in, *(o.name for o in built_in.optimizers if o.name.startswith("adam")))
    ran = cases(subject, suite)
    tried = {part for name in ran for part in name.split("/")}
    assert tried >= {
        *("bf16", "bf16+int8", "bf16+int16", "fp16", "fp16+int8", "fp16+int16", "fp32"),
        *("quantized", "plain"),
        *(tensor.name for tensor in built_in.gradients),
        *("adamw", "adamw-strong-decay", "adamw-no-decay", "adamw-fully-decoupled", "adam"),
        *("t1", "t10", "t1000000"),
    }
    for name, case in ran.items():
        assert case.status is Status.PASS, (name, case.reason)
        assert case.mismatches
        assert case.mismatches.total == 0, name


def test_the_in_tree_kernel_refuses_every_other_optimizer(built_in: StepConfig) -> None:
    subject, _ = registry.load("triton", "interpreter")
    others = [o for o in built_in.optimizers if not o.name.startswith("adam")]
    ran = cases(subject, single(built_in, *(o.name for o in others)))
    names = {o.name: o.optimizer for o in others}
    assert {name.split("/")[0] for name in ran} == set(names)
    for name, case in ran.items():
        assert case.status is Status.UNSUPPORTED
        optimizer = names[name.split("/")[0]]
        assert case.reason == f"the in-tree kernels have no {optimizer}, only Adam's step"


COMPILED = """
import json
from flashcheck.audit.instructions import compile_kernel
from flashcheck.audit.targets import find
from flashcheck.kernels.optimizers import adam_kernel
from flashcheck.subjects.base import Kernel

SCALARS = ("lr", "decay", "eps", "beta1", "rest1", "bias1", "beta2", "rest2", "bias2")
SHARED = {"EXPONENT_MASK": 255, "BIAS": 127, "GROUP_SIZE": 32, "GROUPS": 32}


def kernel(name, stored, ecc, momentum, variance, **constants):
    pointers = {
        "param_ptr": stored, "ecc_ptr": ecc,
        "momentum_ptr": momentum, "momentum_scales_ptr": "*fp16",
        "variance_ptr": variance, "variance_scales_ptr": "*fp16", "grad_ptr": stored,
    }
    counts = {"n_elements": "i32", "n_groups": "i32"}
    signature = {**pointers, **counts, **dict.fromkeys(SCALARS, "fp32")}
    return Kernel(name, adam_kernel, signature, {**SHARED, **constants}, 1, 1)


KERNELS = [
    kernel("compressed", "*i16", "*i8", "*i8", "*u8", CORRECTED=True, QUANTIZED=True,
           COUPLED=False, DECOUPLED=True, FULLY=False, LARGEST_ECC=127.0, MANTISSA=7),
    kernel("coupled", "*fp32", "*fp32", "*fp32", "*fp32", CORRECTED=False, QUANTIZED=False,
           COUPLED=True, DECOUPLED=False, FULLY=False, LARGEST_ECC=1.0, MANTISSA=23),
    kernel("fully decoupled", "*i16", "*i16", "*i8", "*u8", CORRECTED=True, QUANTIZED=True,
           COUPLED=False, DECOUPLED=True, FULLY=True, LARGEST_ECC=32767.0, MANTISSA=7),
]
print(json.dumps({
    (f"{each.name}, fused" if fusion else each.name):
        compile_kernel(each, find("sm_90"), fp_fusion=fusion).opcodes
    for each in KERNELS for fusion in (False, True)
}))
"""


def test_the_in_tree_step_compiles_to_correctly_rounded_unfused_operations() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TRITON_INTERPRET": "0"},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = json.loads(done.stdout)
    assert len(compiled) == 6
    for name, kinds in compiled.items():
        # Of PTX, whose opcodes are in small letters: it says which rounding is asked for.
        ptx = {op for found in kinds.values() for op in found if op.islower()}
        assert ("fma.rn.f32" in ptx) is name.endswith("fused"), name
        assert "div.rn.f32" in ptx
        assert "sqrt.rn.f32" in ptx
        for kind in ("division, approximate", "square root, approximate", "reciprocal", "exp2"):
            assert not [op for op in kinds.get(kind, {}) if op.islower()], (name, kind)
        assert not [op for op in ptx if ".ftz" in op]


# ---- The command line ------------------------------------------------------------------------


def shown_at_80_columns(cli: Cli, path: Path) -> str:
    """What ``show`` prints, as a terminal of 80 columns has it."""
    ran = cli("show", path)
    assert ran.code == 0
    assert "Traceback" not in ran.out + ran.err
    out = io.StringIO()
    console = Console(file=out, width=80, markup=False, highlight=False, emoji=False)
    console.print(terminal.render(store.read(path)))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    # No figure is cut.
    assert "…" not in text
    return text


def test_the_command_line_runs_a_part_and_shows_it(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "lion.json"
    ran = cli("run", "step", "--spec", "lion", "--battery", "zero", "--json", "--out", out)
    assert (ran.code, "Traceback" in ran.err) == (0, False), ran.err[-1500:]
    report = ran.json()
    jsonschema.validate(report, cli("schema").json())
    assert report == json.loads(out.read_text())
    assert (report["kind"], report["status"]) == ("step", "pass")
    assert [case["case"] for case in report["cases"]] == [
        "lion/bf16+int8/quantized/zero/t10",
    ]
    assert report["subject"]["steps_through"]
    assert report["selection"]["spec"] == ["lion"]

    text = shown_at_80_columns(cli, out)
    lines = [line.rstrip() for line in text.splitlines()]
    place = lines.index("  quantized/zero/t10")
    assert lines[place - 1].startswith("lion/bf16+int8/ ")
    for word in ("lion/bf16+int8/", "quantized/zero/t10", "pass", "params", report["suite"]):
        assert word in text


def test_the_command_line_shows_steps_trajectories_and_what_is_wrong_with_them(
    cli: Cli, use_subject: Callable[[object], None], tmp_path: Path
) -> None:
    def wrong(stored: State, hyper: dict[str, Any]) -> None:
        if hyper["optimizer"] == "adamw" and hyper["step"] > 9:
            stored["ecc"].zero_()
            stored["param"][0] = torch.nan
        if hyper["optimizer"] == "sgd" and hyper["step"] == 10:
            raise NotImplementedError("no")

    path = tmp_path / "few.yaml"
    path.write_text(STEP)
    use_subject(Noting(wrong))
    ran = cli("run", path, "--json", "--out", tmp_path / "few.json")
    assert ran.code == 1
    report = ran.json()
    jsonschema.validate(report, cli("schema").json())
    assert [case["status"] for case in report["cases"][:9]] == [
        *("pass", "fail", "pass", "fail", "pass", "unsupported", "pass", "unsupported", "pass"),
    ]
    long = next(case for case in report["cases"] if case["case"] == LONG)
    assert [point["step"] for point in long["trajectory"]] == [1, 2, 5, 10, 12]
    assert long["metrics"]["first_difference"] == 10
    text = shown_at_80_columns(cli, tmp_path / "few.json")
    for word in ("trajectory", "error,", "all bf16", "unsupported", "unexplained", "t10"):
        assert word in text


def test_an_unknown_optimizer_on_the_command_line_is_one_clear_line(
    cli: Cli, use_subject: Callable[[object], None], tmp_path: Path
) -> None:
    path = tmp_path / "few.yaml"
    path.write_text(STEP)
    use_subject(EagerStep())
    ran = cli("run", path, "--spec", "adam")
    assert ran.code == 2
    assert ran.err.strip() == "flashcheck: --spec adam: unknown here; did you mean 'adamw'?"
