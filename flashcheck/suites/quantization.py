"""Suites of kind ``quantization``: a battery of tensors, each under each spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flashcheck.compare import quantization as causes
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import (
    QuantizationOutputs,
    histogram,
    magnitude_errors,
    quantization_metrics,
)
from flashcheck.config import EdgeConfig, QuantizationConfig, QuantizationSpec
from flashcheck.errors import SubjectError
from flashcheck.inputs import battery
from flashcheck.measures import QuantizationMetrics
from flashcheck.reference import quantization as reference
from flashcheck.report.models import Selection
from flashcheck.subjects.base import Subject, missing_methods
from flashcheck.suites import explaining
from flashcheck.suites.base import InputDigest, Measured, Progress, failed, unsupported
from flashcheck.suites.calls import SubjectCalls

METHODS = ("quantize", "dequantize")


@dataclass(frozen=True)
class QuantizationSuite:
    """One configured suite of this kind."""

    config: QuantizationConfig
    selection: Selection

    def elements(self) -> int:
        """How many elements a run feeds."""
        tensors = [t for t in self.config.battery if self.selection.takes_tensor(t.name)]
        return sum(tensor.size for tensor in tensors) * len(self._specs())

    def run(self, subject: Subject, calls: SubjectCalls, progress: Progress) -> Iterator[Measured]:
        """Measure the selected cases, in the battery's order."""
        names = [t.name for t in self.config.battery if self.selection.takes_tensor(t.name)]
        for drawn in battery.draw(self.config.battery, seed=self.config.seed, selected=names):
            for spec in self._specs():
                measured = measure(drawn, spec, self.config, subject, calls)
                progress(drawn.values.numel())
                yield measured

    def _specs(self) -> list[QuantizationSpec]:
        return [spec for spec in self.config.specs if self.selection.takes_spec(spec.name)]


def measure(
    drawn: battery.Drawn,
    spec: QuantizationSpec,
    config: QuantizationConfig | EdgeConfig,
    subject: Subject,
    calls: SubjectCalls,
) -> Measured:
    """Run one tensor under one spec on both sides, compare, and explain what differs."""
    measured = Measured(case=f"{drawn.tensor.name}/{spec.name}")
    missing = missing_methods(subject, *METHODS)
    if missing:
        return unsupported(measured, missing)
    values = drawn.values.abs() if spec.absolute else drawn.values
    measured.input_sha256 = InputDigest(values).hexdigest()
    try:
        x = drawn.laid_out(calls.to_device(values))
        outputs, measured.contracts = calls.quantize_and_back(x, spec, config.group_size)
    except SubjectError as error:
        return failed(measured, error)
    memory = causes.Memory.of(drawn.laid_out(values))
    _compare(measured, values, spec, config, outputs, memory)
    return measured


def _compare(
    measured: Measured,
    x: torch.Tensor,
    spec: QuantizationSpec,
    config: QuantizationConfig | EdgeConfig,
    subject: QuantizationOutputs,
    memory: causes.Memory | None,
) -> None:
    size, options = config.group_size, spec.options()
    codes, scales = reference.quantize(x, group_size=size, **options)
    case = causes.QuantizationCase(
        x=x.to(torch.float32),
        subject=subject,
        reference=QuantizationOutputs(
            codes, scales, reference.dequantize(codes, scales, group_size=size, **options)
        ),
        reference_of_subject=reference.dequantize(
            subject.codes, subject.scales, group_size=size, **options
        ),
        options=options,
        group_size=size,
        operations=OperationBounds.of(config.tolerances),
        memory=memory,
    )
    explanation = causes.explain(case)
    metrics = quantization_metrics(
        case.x,
        subject=case.subject,
        reference=case.reference,
        reference_of_subject=case.reference_of_subject,
        group_size=size,
        unexplained=explaining.unexplained(explanation),
    )
    measured.numel = x.numel()
    measured.metrics = metrics
    measured.mismatches = explaining.record(
        explanation,
        causes.best_setting(case, explanation),
        outputs=2 * x.numel() + scales.numel(),
        distances={
            "codes": histogram(subject.codes, codes),
            "scales": histogram(subject.scales, scales),
            "values": histogram(subject.values, case.reference_of_subject),
        },
    )
    measured.errors = explaining.error_records(
        magnitude_errors(case.x, subject=subject.values, reference=case.reference.values)
    )
    measured.notes = _notes(metrics)


def _notes(metrics: QuantizationMetrics) -> list[str]:
    """What the format itself loses in this tensor, whoever computes it."""
    notes = []
    if metrics.scale_overflow_groups:
        both = min(metrics.nonfinite_subject, metrics.nonfinite_reference)
        notes.append(
            f"{metrics.scale_overflow_groups:,} of {metrics.groups:,} groups have an absmax past "
            f"float16: {both:,} elements come back non-finite on both sides, and the NMSE is over "
            "the rest"
        )
    if metrics.scale_underflow_groups:
        notes.append(
            f"{metrics.scale_underflow_groups:,} of {metrics.groups:,} groups have an absmax that "
            "float16 rounds to 0: they come back as zeros"
        )
    return notes
