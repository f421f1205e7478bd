"""What every kind of suite shares: the selection, a case as measured, and its judgement."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from flashcheck.config import Gate, KnownDeviation
from flashcheck.measures import QuantizationMetrics, SplittingMetrics
from flashcheck.report.models import CaseResult, Contract, GateResult, Status, Stratum


class Progress(Protocol):
    """Told how many elements a step was for."""

    def __call__(self, elements: int) -> None: ...


@dataclass
class Measured:
    """A case as it was measured, before it is judged.

    Attributes:
        problem: why it could not be measured, with the status that follows from it.
    """

    case: str
    numel: int = 0
    metrics: QuantizationMetrics | SplittingMetrics | None = None
    strata: list[Stratum] = field(default_factory=list)
    contracts: list[Contract] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    input_sha256: str | None = None
    problem: tuple[Status, str] | None = None


def judge(
    measured: Measured,
    *,
    gates: Sequence[Gate],
    known: Sequence[KnownDeviation],
    duration_s: float,
) -> CaseResult:
    """Hold a measured case against the gates and against what is known of the subject.

    Args:
        known: the known deviations of this subject.
    """
    results = [_hold(gate, measured) for gate in gates] if measured.metrics else []
    status, reason = _status(measured, results, known)
    return CaseResult(
        case=measured.case,
        status=status,
        reason=reason,
        notes=measured.notes,
        numel=measured.numel,
        duration_s=round(duration_s, 4),
        input_sha256=measured.input_sha256,
        metrics=measured.metrics,
        gates=results,
        contracts=measured.contracts,
        strata=measured.strata,
    )


def _hold(gate: Gate, measured: Measured) -> GateResult:
    assert measured.metrics is not None
    value = measured.metrics.value(gate.metric)
    return GateResult(
        metric=gate.metric, op=gate.op, limit=gate.limit, value=value, ok=gate.holds(value)
    )


def _status(
    measured: Measured, gates: list[GateResult], known: Sequence[KnownDeviation]
) -> tuple[Status, str | None]:
    if measured.problem:
        return measured.problem
    broken = {gate.metric for gate in gates if not gate.ok}
    contracts = [f"{c.name}: {c.detail}" for c in measured.contracts if not c.ok]
    here = [deviation for deviation in known if deviation.case == measured.case]
    expected = {metric for deviation in here for metric in deviation.metrics}
    if contracts or broken - expected:
        return Status.FAIL, "; ".join(contracts + [_words(gate) for gate in gates if not gate.ok])
    kept = sorted(expected - broken)
    if kept:
        return (
            Status.UNEXPECTED_PASS,
            f"known to break {', '.join(kept)}, but did not; take it out of known_deviations",
        )
    if broken:
        return Status.KNOWN, "; ".join(deviation.reason for deviation in here)
    return Status.PASS, None


def _words(gate: GateResult) -> str:
    value = "has no value" if gate.value is None else f"is {gate.value:.9g}"
    return f"{gate.metric} {value}, must be {gate.op} {gate.limit:.9g}"


class InputDigest:
    """sha256 of the bytes of CPU tensors, one after the other."""

    def __init__(self, *parts: torch.Tensor) -> None:
        self._digest = hashlib.sha256()
        for part in parts:
            self.add(part)

    def add(self, part: torch.Tensor) -> None:
        self._digest.update(part.contiguous().view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


Outputs = tuple[torch.Tensor, ...]


def same_in_every_configuration(
    pinned: Outputs, run: Callable[[int], Outputs], count: int, names: Sequence[str]
) -> Contract:
    """Whether every launch configuration of a subject gives the bits of the pinned one.

    Args:
        run: the same call under the configuration of an index.
        count: how many configurations there are.
        names: what each output is called.
    """
    differing = []
    for index in range(count):
        for name, first, other in zip(names, pinned, run(index), strict=True):
            same = torch.equal(first.view(torch.uint8), other.view(torch.uint8))
            if not same:
                differing.append(f"{name} in configuration {index}")
    return Contract(
        name="same_in_every_configuration",
        ok=not differing,
        detail="; ".join(differing) if differing else f"{count} configurations, equal bits",
    )
