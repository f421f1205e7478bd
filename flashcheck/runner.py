"""Runs a suite on a subject and judges it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone

import torch

from flashcheck import __version__, environment
from flashcheck.audit.prediction import contradictions, predict_all
from flashcheck.audit.targets import of_capability
from flashcheck.config import (
    EdgeConfig,
    QuantizationConfig,
    SplittingConfig,
    SuiteConfig,
    digest,
    spec_names,
    tensor_names,
)
from flashcheck.errors import NothingComparedError, UsageError, did_you_mean
from flashcheck.reference.arithmetic import PAPER
from flashcheck.report.models import (
    SCHEMA_VERSION,
    CaseResult,
    KernelPrediction,
    Prediction,
    ReferenceRecord,
    Report,
    Selection,
    SubjectRecord,
    summarize,
)
from flashcheck.subjects.base import Backend, Shim, Subject, auditable, autotuned
from flashcheck.suites.base import Progress, judge
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.edge import EdgeSuite
from flashcheck.suites.explaining import arithmetic_record
from flashcheck.suites.quantization import QuantizationSuite
from flashcheck.suites.splitting import SplittingSuite

Suite = QuantizationSuite | SplittingSuite | EdgeSuite


@dataclass(frozen=True)
class Plan:
    """What one invocation runs: some suites on one subject."""

    subject: Subject
    shims: list[Shim] = field(default_factory=list)
    origin: str = "built-in"
    every_configuration: bool = False
    show_traceback: bool = False
    command: list[str] = field(default_factory=list)


def make_suite(config: SuiteConfig, selection: Selection) -> Suite:
    """The suite a configuration defines, as far as it is selected."""
    match config:
        case QuantizationConfig():
            return QuantizationSuite(config, selection)
        case SplittingConfig():
            return SplittingSuite(config, selection)
        case EdgeConfig():
            return EdgeSuite(config, selection)


def select(
    configs: Sequence[SuiteConfig], *, battery: Sequence[str], spec: Sequence[str]
) -> list[Suite]:
    """The selected part of each suite; a suite that has no part in the selection is left out.

    Raises:
        UsageError: no suite here has a tensor or spec of that name.
        NothingComparedError: no suite is left.
    """
    _check_known("--battery", battery, [name for c in configs for name in tensor_names(c)])
    _check_known("--spec", spec, [name for c in configs for name in spec_names(c)])
    suites = []
    for config in configs:
        mine = Selection(
            battery=[name for name in battery if name in tensor_names(config)],
            spec=[name for name in spec if name in spec_names(config)],
        )
        if bool(battery) == bool(mine.battery) and bool(spec) == bool(mine.spec):
            suites.append(make_suite(config, mine))
    if not suites:
        raise NothingComparedError("the selection leaves nothing to compare; widen it")
    return suites


def _check_known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: unknown here; {did_you_mean(name, set(known))}")


def run(plan: Plan, suite: Suite, progress: Progress) -> Report:
    """Run one suite; a case in which the subject fails is an error, and the rest still runs."""
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    cases = list(run_cases(plan, suite, progress))
    prediction = _prediction(plan.subject, cases)
    summary = summarize(cases, contradicted=bool(prediction and prediction.contradictions))
    config, subject = suite.config, plan.subject
    return Report(
        schema_version=SCHEMA_VERSION,
        flashcheck_version=__version__,
        suite=config.suite,
        kind=config.kind,
        status=summary.status,
        started_at=started.replace(microsecond=0),
        duration_s=round(time.perf_counter() - clock, 4),
        command=plan.command,
        selection=suite.selection,
        environment=environment.collect(subject, plan.shims),
        subject=SubjectRecord(
            name=subject.name,
            version=subject.version,
            source_sha256=getattr(subject, "source_sha256", None),
            origin=plan.origin,
            configurations=tuned.pinned() if (tuned := autotuned(subject)) else {},
        ),
        reference=ReferenceRecord(name="paper", arithmetic=arithmetic_record(PAPER)),
        config=config.model_dump(mode="json"),
        config_sha256=digest(config),
        cases=cases,
        prediction=prediction,
        summary=summary,
    )


def run_cases(plan: Plan, suite: Suite, progress: Progress) -> Iterator[CaseResult]:
    """Measure and judge a suite's cases, one by one."""
    subject = plan.subject
    known = [
        deviation
        for deviation in suite.config.known_deviations
        if deviation.subject == subject.name
        and deviation.backend in (None, subject.backend)
        # A user's file may call itself what it likes.
        and plan.origin in ("built-in", "plugin")
    ]
    calls = SubjectCalls(plan.subject, every_configuration=plan.every_configuration)
    clock = time.perf_counter()
    for measured in suite.run(plan.subject, calls, progress):
        now = time.perf_counter()
        if measured.error and plan.show_traceback:
            traceback.print_exception(measured.error)
        yield judge(measured, gates=suite.config.gates, known=known, duration_s=now - clock)
        clock = now


def _prediction(subject: Subject, cases: Sequence[CaseResult]) -> Prediction | None:
    """What the compiler makes of the subject's kernels on this GPU, held against the causes."""
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
        contradictions=[
            contradiction
            for case in cases
            if case.mismatches
            for contradiction in contradictions(case.case, case.mismatches.by_output, predictions)
        ],
    )
