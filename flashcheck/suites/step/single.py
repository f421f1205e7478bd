"""One step of both sides from one state, compared, and explained."""

from __future__ import annotations

import torch

from flashcheck.compare.attribution import Explanation
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import count, fraction, histogram
from flashcheck.compare.optimizers import StepCase, best_setting, explain
from flashcheck.compare.ulp import differing, distance
from flashcheck.measures import StepMetrics
from flashcheck.optimizers import SPECS, Hyperparameters, State
from flashcheck.reference import optimizers as reference
from flashcheck.suites import explaining
from flashcheck.suites.base import InputDigest, Measured
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.step.states import Start


def measure(
    measured: Measured,
    start: Start,
    hyper: Hyperparameters,
    operations: OperationBounds,
    calls: SubjectCalls,
) -> Measured:
    """Step both sides, compare what they store, and explain what differs.

    Raises:
        SubjectError: the subject raised, or broke its protocol.
    """
    stored, contracts = calls.step(start.state, start.grad, hyper)
    case = StepCase(start.state, start.grad, hyper, stored, operations)
    explanation = explain(case)
    measured.contracts = contracts
    fill(measured, case, explanation)
    measured.mismatches = explaining.record(
        explanation,
        best_setting(case, explanation),
        outputs=outputs(stored),
        distances=distances(case),
    )
    return measured


def fill(measured: Measured, case: StepCase, explanation: Explanation) -> None:
    """Note what was fed, and the metrics."""
    measured.numel = case.before["param"].numel()
    inputs = [case.before[name] for name in sorted(case.before)]
    measured.input_sha256 = InputDigest(*inputs, case.grad).hexdigest()
    measured.metrics = metrics(
        case.subject, case.theirs, unexplained=explaining.unexplained(explanation)
    )


def distances(case: StepCase) -> dict[str, dict[str, int]]:
    """Of each stored tensor, how far apart what differs is."""
    return {name: histogram(mine, case.theirs[name]) for name, mine in case.subject.items()}


def outputs(stored: State) -> int:
    """How many elements are compared."""
    return sum(tensor.numel() for tensor in stored.values())


def metrics(subject: State, theirs: State, *, unexplained: int) -> StepMetrics:
    """The figures of two stored states, or of as much of them as is compared."""
    off = {name: count(differing(mine, theirs[name])) for name, mine in subject.items()}
    scales = [number for name, number in off.items() if name.endswith("_scales")]
    coded = [name for name in SPECS if f"{name}_scales" in subject]
    nothing = torch.empty(0)
    mine, other = subject.get("param", nothing), theirs.get("param", nothing)
    finite = mine.isfinite(), other.isfinite()
    whole = "param" in subject and ("ecc" in subject or mine.dtype == torch.float32)
    return StepMetrics(
        param_agree=fraction(~differing(mine, other)),
        param_mismatches=off.get("param", 0),
        param_max_ulp=largest_ulp(mine, other),
        ecc_mismatches=off.get("ecc"),
        weight_max_ulp=largest_ulp(reference.read_param(subject), reference.read_param(theirs))
        if whole
        else None,
        momentum_mismatches=off.get("momentum"),
        variance_mismatches=off.get("variance"),
        codes_beyond_1=sum(
            count((subject[name].int() - theirs[name].int()).abs() > 1) for name in coded
        ),
        scale_mismatches=sum(scales) if scales else None,
        nonfinite_subject=count(~finite[0]),
        nonfinite_reference=count(~finite[1]),
        nonfinite_disagree=count(finite[0] != finite[1]),
        unexplained=unexplained,
    )


def largest_ulp(mine: torch.Tensor, other: torch.Tensor) -> int | None:
    """The largest distance in ULP of their dtype, where both are finite."""
    both = mine.isfinite() & other.isfinite()
    ulps = distance(mine[both], other[both])
    return int(ulps.max()) if ulps.numel() else None
