"""What every kind of suite shares: the selection, a case as measured, and its judgement."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from flashcheck.config import Gate, KnownDeviation
from flashcheck.errors import SubjectError
from flashcheck.measures import Metrics
from flashcheck.report.enumeration import Enumeration
from flashcheck.report.models import (
    CaseResult,
    Contract,
    ErrorAt,
    GateResult,
    Mismatches,
    Point,
    Status,
    Stratum,
)


class Progress(Protocol):
    """Told how many elements a step was for."""

    def __call__(self, elements: int) -> None: ...


@dataclass
class Measured:
    """A case as it was measured, before it is judged.

    Attributes:
        problem: why it could not be measured, with the status that follows from it.
        error: what the subject did, where that is why.
        seconds: how long it took, where its parts were not measured one after the other.
    """

    case: str
    numel: int = 0
    metrics: Metrics | None = None
    mismatches: Mismatches | None = None
    strata: list[Stratum] = field(default_factory=list)
    errors: list[ErrorAt] = field(default_factory=list)
    contracts: list[Contract] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    input_sha256: str | None = None
    problem: tuple[Status, str] | None = None
    error: SubjectError | None = None
    enumeration: Enumeration | None = None
    trajectory: list[Point] = field(default_factory=list)
    seconds: float | None = None


def judge(
    measured: Measured,
    *,
    gates: Sequence[Gate],
    known: Sequence[KnownDeviation],
    duration_s: float,
) -> CaseResult:
    """Hold a measured case against the gates and against what is known of the subject.

    Args:
        gates: of the whole suite; those on a metric that this case has not are left out.
        known: the known deviations of this subject on this backend.
    """
    results = _hold(gates, measured.metrics)
    here = [deviation for deviation in known if deviation.holds_of(measured.case)]
    status, reason = _status(measured, results, here)
    return CaseResult(
        case=measured.case,
        status=status,
        reason=reason,
        notes=measured.notes,
        numel=measured.numel,
        duration_s=round(duration_s if measured.seconds is None else measured.seconds, 4),
        input_sha256=measured.input_sha256,
        metrics=measured.metrics,
        mismatches=measured.mismatches,
        gates=results,
        contracts=measured.contracts,
        strata=measured.strata,
        errors=measured.errors,
        enumeration=measured.enumeration,
        trajectory=measured.trajectory,
        failed_chunk=measured.error.chunk if measured.error else None,
    )


def _hold(gates: Sequence[Gate], metrics: Metrics | None) -> list[GateResult]:
    results = []
    for gate in gates:
        if metrics is None or gate.metric not in metrics.names():
            continue
        value = metrics.value(gate.metric)
        results.append(
            GateResult(
                metric=gate.metric, op=gate.op, limit=gate.limit, value=value, ok=gate.holds(value)
            )
        )
    return results


def _status(
    measured: Measured, gates: Sequence[GateResult], known: Sequence[KnownDeviation]
) -> tuple[Status, str | None]:
    expected = {name for deviation in known for name in deviation.breaks}
    reasons = "; ".join(deviation.reason for deviation in known)
    if measured.problem:
        status, text = measured.problem
        if status is Status.ERROR and "error" in expected:
            return Status.KNOWN, f"{text} (known: {reasons})"
        return status, text
    broken = {gate.metric: _words(gate) for gate in gates if not gate.ok}
    broken |= {c.name: f"{c.name}: {c.detail}" for c in measured.contracts if not c.ok}
    if broken.keys() - expected:
        return Status.FAIL, "; ".join(broken.values())
    kept = sorted(expected - broken.keys())
    if kept:
        return (
            Status.UNEXPECTED_PASS,
            f"known to break {', '.join(kept)}, but did not; take it out of known_deviations",
        )
    return (Status.KNOWN, reasons) if broken else (Status.PASS, None)


def _words(gate: GateResult) -> str:
    value = "has no value" if gate.value is None else f"is {gate.value:.9g}"
    return f"{gate.metric} {value}, must be {gate.op} {gate.limit:.9g}"


class InputDigest:
    """sha256 of the bytes of CPU tensors in row-major order, one after the other."""

    def __init__(self, *parts: torch.Tensor) -> None:
        self._digest = hashlib.sha256()
        for part in parts:
            self.add(part)

    def add(self, part: torch.Tensor) -> None:
        self._digest.update(part.reshape(-1).contiguous().view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def failed(measured: Measured, error: SubjectError) -> Measured:
    """A case in which the subject raised or broke its protocol, or says that it has no such."""
    if isinstance(error.__cause__, NotImplementedError):
        measured.problem = (Status.UNSUPPORTED, " ".join(str(error.__cause__).split()))
        return measured
    measured.problem = (Status.ERROR, str(error))
    measured.error = error
    return measured


def unsupported(measured: Measured, missing: Sequence[str]) -> Measured:
    """A case whose methods the subject lacks."""
    measured.problem = (Status.UNSUPPORTED, f"the subject has no {' and no '.join(missing)}")
    return measured
