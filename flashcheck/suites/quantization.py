"""Suites of kind ``quantization``: a battery of tensors, each under each spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flashcheck.compare.metrics import QuantizationOutputs, quantization_metrics
from flashcheck.config import QuantizationConfig, QuantizationSpec
from flashcheck.errors import SubjectError
from flashcheck.inputs import battery
from flashcheck.measures import QuantizationMetrics
from flashcheck.reference import quantization as reference
from flashcheck.report.models import Selection, Status
from flashcheck.subjects.base import Subject, supports
from flashcheck.suites.base import InputDigest, Measured, Progress
from flashcheck.suites.calls import SubjectCalls


@dataclass(frozen=True)
class QuantizationSuite:
    """One configured suite of this kind."""

    config: QuantizationConfig
    selection: Selection

    def elements(self) -> int:
        """How many elements a run feeds."""
        wanted = self._wanted()
        sizes = sum(tensor.size for tensor in self.config.battery if tensor.name in wanted)
        return sizes * len(self._specs())

    def run(self, subject: Subject, calls: SubjectCalls, progress: Progress) -> Iterator[Measured]:
        """Measure the selected cases, in the battery's order."""
        missing = supports(subject, "quantize", "dequantize")
        drawn = battery.draw(self.config.battery, seed=self.config.seed, selected=self._wanted())
        for name, tensor in drawn:
            for spec in self._specs():
                measured = Measured(case=f"{name}/{spec.name}")
                if missing:
                    reason = f"the subject has no {' and no '.join(missing)}"
                    measured.problem = (Status.UNSUPPORTED, reason)
                else:
                    x = tensor.abs() if spec.absolute else tensor
                    try:
                        self._measure(measured, x, spec, calls)
                    except SubjectError as error:
                        measured.problem = (Status.ERROR, str(error))
                progress(tensor.numel())
                yield measured

    def _wanted(self) -> list[str]:
        return self.selection.battery or [tensor.name for tensor in self.config.battery]

    def _specs(self) -> list[QuantizationSpec]:
        names = self.selection.spec
        return [spec for spec in self.config.specs if not names or spec.name in names]

    def _measure(
        self, measured: Measured, x: torch.Tensor, spec: QuantizationSpec, calls: SubjectCalls
    ) -> None:
        measured.input_sha256 = InputDigest(x).hexdigest()
        subject = calls.quantization_round_trip(x, spec, self.config.group_size)
        options = spec.options()
        size = self.config.group_size
        codes, scales = reference.quantize(x, group_size=size, **options)
        values = reference.dequantize(codes, scales, group_size=size, **options)
        of_subject = reference.dequantize(subject.codes, subject.scales, group_size=size, **options)
        measured.metrics = quantization_metrics(
            x,
            subject=subject,
            reference=QuantizationOutputs(codes, scales, values),
            reference_of_subject=of_subject,
            group_size=size,
        )
        measured.numel = x.numel()
        measured.notes = _notes(measured.metrics)
        measured.contracts = calls.contracts_of_quantization(x, spec, size, subject)


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
