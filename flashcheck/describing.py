"""All of a report that is no result: subject, machine, and what the compiler makes of kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone

import torch

from flashcheck import __version__, environment
from flashcheck.audit.prediction import Prediction as Predicted
from flashcheck.audit.prediction import contradictions, predict_all
from flashcheck.audit.targets import of_capability
from flashcheck.compare.settings import STEP_ONLY, Switch, settings
from flashcheck.config import KnownDeviation, digest
from flashcheck.reference.arithmetic import PAPER
from flashcheck.report.models import (
    SCHEMA_VERSION,
    CaseResult,
    Description,
    KernelPrediction,
    Prediction,
    ReferenceRecord,
    Report,
    SubjectRecord,
    summarize,
)
from flashcheck.selection import Suite
from flashcheck.subjects.base import (
    METHODS,
    Backend,
    Shim,
    Subject,
    auditable,
    autotuned,
    missing_methods,
)
from flashcheck.suites.explaining import arithmetic_record


def describe(
    subject: Subject, shims: Sequence[Shim], origin: str, *, predicted: bool = True
) -> Description:
    """Say of a subject what a report says of it.

    Args:
        origin: ``built-in``, ``plugin``, or a file and class.
        predicted: whether to compile its kernels for what their instructions predict.
    """
    missing = missing_methods(subject, *METHODS)
    return Description(
        environment=environment.collect(subject, shims),
        subject=SubjectRecord(
            name=subject.name,
            version=subject.version,
            source_sha256=getattr(subject, "source_sha256", None),
            origin=origin,
            steps_through=getattr(subject, "steps_through", None),
            configurations=tuned.pinned() if (tuned := autotuned(subject)) else {},
        ),
        methods=[method for method in METHODS if method not in missing],
        prediction=_predict(subject) if predicted else None,
    )


def _predict(subject: Subject) -> Prediction | None:
    """What the compiler makes of the subject's kernels on this GPU."""
    compiled = auditable(subject)
    if subject.backend != Backend.CUDA.value or compiled is None:
        return None
    target = of_capability(torch.cuda.get_device_capability())
    fp_fusion = environment.fp_fusion()
    predictions = predict_all(compiled.kernels(), target, fp_fusion=fp_fusion)
    return Prediction(
        target=target.name,
        fp_fusion=fp_fusion,
        kernels=[
            KernelPrediction(**asdict(prediction), words=prediction.words())
            for prediction in predictions
        ],
        contradictions=[],
    )


def held(prediction: Prediction | None, cases: Sequence[CaseResult]) -> Prediction | None:
    """A prediction with the causes that contradict it."""
    if prediction is None:
        return None
    kernels = [Predicted(**kernel.model_dump(exclude={"words"})) for kernel in prediction.kernels]
    found = [
        contradiction
        for case in cases
        if case.mismatches and not _fits(case, kernels)
        for contradiction in contradictions(case.case, case.mismatches.by_output, kernels)
    ]
    return prediction.model_copy(update={"contradictions": found})


def _fits(case: CaseResult, kernels: Sequence[Predicted]) -> bool:
    """Whether an arithmetic that the kernels can do gives all of the subject's bits.

    Two switches may give one and the same wrong bit, which is then put down to the first of them:
    that the kernels cannot do that one contradicts nothing where they can do the other.
    """
    assert case.mismatches
    best = case.mismatches.best_arithmetic
    if best.mismatches:
        return False
    equal = {best.words, *best.equally_good}
    every = settings([switch for switch in Switch if switch not in STEP_ONLY])
    causes = [setting.cause for setting in every if setting.words() in equal]
    outputs = [output for output in case.mismatches.by_output if output in _VALUES]
    return any(
        not contradictions(case.case, {output: {cause: 1} for output in outputs}, kernels)
        for cause in causes
    )


_VALUES = ("values", "reconstructed")
"""The outputs that these switches have to do with; a code is divided by nothing."""


@dataclass
class Clock:
    """When a run started."""

    at: datetime = field(default_factory=lambda: datetime.now(timezone.utc).replace(microsecond=0))
    ticks: float = field(default_factory=time.perf_counter)

    def seconds(self) -> float:
        return round(time.perf_counter() - self.ticks, 4)


def report_of(
    suite: Suite,
    description: Description,
    cases: Sequence[CaseResult],
    clock: Clock,
    *,
    command: list[str],
) -> Report:
    """The report of a suite whose cases are measured and judged."""
    prediction = held(description.prediction, cases)
    summary = summarize(list(cases), contradicted=bool(prediction and prediction.contradictions))
    config = suite.config
    return Report(
        schema_version=SCHEMA_VERSION,
        flashcheck_version=__version__,
        suite=config.suite,
        kind=config.kind,
        status=summary.status,
        started_at=clock.at,
        duration_s=clock.seconds(),
        command=command,
        selection=suite.selection,
        environment=description.environment,
        subject=description.subject,
        reference=ReferenceRecord(name="paper", arithmetic=arithmetic_record(PAPER)),
        config=config.model_dump(mode="json"),
        config_sha256=digest(config),
        cases=list(cases),
        prediction=prediction,
        summary=summary,
    )


def known_here(suite: Suite, subject: SubjectRecord, backend: str) -> list[KnownDeviation]:
    """What is known of this subject here; a user's file may call itself what it likes."""
    return [
        deviation
        for deviation in suite.config.known_deviations
        if deviation.subject == subject.name
        and deviation.backend in (None, backend)
        and subject.origin in ("built-in", "plugin")
    ]
