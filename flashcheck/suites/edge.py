"""Suites of kind ``edge``: tensors of unusual form or content, quantized and split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flashcheck.compare.bounds import OperationBounds
from flashcheck.config import EdgeConfig, QuantizationSpec, SplitFormats
from flashcheck.errors import SubjectError
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS, torch_dtype
from flashcheck.inputs import battery
from flashcheck.measures import EMPTY_INPUT
from flashcheck.report.models import Contract, Selection
from flashcheck.subjects.base import Subject
from flashcheck.suites import quantization, splitting
from flashcheck.suites.base import Measured, Progress
from flashcheck.suites.calls import SubjectCalls


@dataclass(frozen=True)
class EdgeSuite:
    """One configured suite of this kind."""

    config: EdgeConfig
    selection: Selection

    def elements(self) -> int:
        """How many elements a run feeds."""
        ways = len(self._specs()) + len(self._pairs())
        tensors = [t for t in self.config.battery if self.selection.takes_tensor(t.name)]
        return ways * sum(tensor.size for tensor in tensors)

    def run(self, subject: Subject, calls: SubjectCalls, progress: Progress) -> Iterator[Measured]:
        """Measure each tensor under each spec, and split it if it is float32.

        Each case also makes the same calls with no element at all: an empty case would compare
        nothing, which is never a pass.
        """
        names = [t.name for t in self.config.battery if self.selection.takes_tensor(t.name)]
        for drawn in battery.draw(self.config.battery, seed=self.config.seed, selected=names):
            size = drawn.values.numel()
            for spec in self._specs():
                measured = quantization.measure(drawn, spec, self.config, subject, calls)
                if measured.metrics:
                    measured.contracts.append(self._empty_quantization(drawn, spec, calls))
                progress(size)
                yield measured
            for pair in self._pairs():
                if drawn.values.dtype == torch.float32:
                    measured = self._split(drawn, pair, subject, calls)
                    if measured.metrics:
                        measured.contracts.append(self._empty_splitting(pair, calls))
                    yield measured
                progress(size)

    def _split(
        self, drawn: battery.Drawn, pair: SplitFormats, subject: Subject, calls: SubjectCalls
    ) -> Measured:
        def chunks() -> Iterator[splitting.Chunk]:
            yield splitting.Chunk(drawn.values.reshape(1, -1), None, drawn.laid_out)

        return splitting.measure(
            f"{drawn.tensor.name}/{pair.case}",
            pair,
            chunks,
            OperationBounds.of(self.config.tolerances),
            subject,
            calls,
        )

    def _empty_quantization(
        self, drawn: battery.Drawn, spec: QuantizationSpec, calls: SubjectCalls
    ) -> Contract:
        nothing = calls.to_device(drawn.values[:0])
        return _empty(lambda: calls.quantize_and_back(nothing, spec, self.config.group_size))

    def _empty_splitting(self, pair: SplitFormats, calls: SubjectCalls) -> Contract:
        nothing = calls.to_device(torch.empty(0))
        narrow = nothing.to(torch_dtype(NARROW_FORMATS[pair.narrow]))
        ecc_dtype = torch_dtype(ECC_FORMATS[pair.ecc])
        return _empty(lambda: calls.split_and_back(nothing, narrow, ecc_dtype))

    def _specs(self) -> list[QuantizationSpec]:
        return [spec for spec in self.config.specs if self.selection.takes_spec(spec.name)]

    def _pairs(self) -> list[SplitFormats]:
        return [pair for pair in self.config.formats if self.selection.takes_spec(pair.case)]


def _empty(run: Callable[[], object]) -> Contract:
    """Whether calls with no element at all give what they promise."""
    try:
        run()
    except SubjectError as error:
        return Contract(name=EMPTY_INPUT, ok=False, detail=str(error))
    return Contract(name=EMPTY_INPUT, ok=True, detail="no elements give no elements")
