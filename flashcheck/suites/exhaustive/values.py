"""Every pair of what a value is stored as: a narrow weight and its code, a scale and a code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from flashcheck.compare import quantization as quantized
from flashcheck.compare import splitting as split
from flashcheck.compare.attribution import Explanation
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import QuantizationOutputs
from flashcheck.compare.sensitivity import fusing_matters
from flashcheck.compare.settings import Setting
from flashcheck.compare.ulp import bits, same_bits
from flashcheck.config import QuantizationSpec, SplitFormats
from flashcheck.formats import ECC_FORMATS, FP16, NARROW_FORMATS, quantized_format
from flashcheck.inputs.domains import Enumeration, Pairs, Slice
from flashcheck.measures import ValueMetrics
from flashcheck.reference import quantization as quantization_reference
from flashcheck.reference import splitting as splitting_reference
from flashcheck.reference.arithmetic import PAPER, Arithmetic
from flashcheck.report.models import Contract
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive.checks import (
    EAGER,
    PROBE,
    Fed,
    add_causes,
    function_of,
    largest_ulp,
    same_again,
    unexplained,
)
from flashcheck.suites.exhaustive.tally import Tally, explained

_SETTINGS = {
    False: [s for s in split.RECONSTRUCT if not s.arithmetic.fused_multiply_add],
    True: split.RECONSTRUCT,
}


@dataclass(frozen=True)
class Reconstruct:
    """``reconstruct`` of every finite narrow weight with every code."""

    pair: SplitFormats
    operations: OperationBounds

    methods = ("reconstruct",)
    outputs = 1
    on_a_gpu = EAGER

    @property
    def case(self) -> str:
        return f"reconstruct/{self.pair.case}"

    @property
    def function(self) -> str:
        return self.case

    @cached_property
    def domain(self) -> Pairs:
        return Pairs(NARROW_FORMATS[self.pair.narrow], ECC_FORMATS[self.pair.ecc])

    @property
    def settings(self) -> Sequence[Setting]:
        return split.RECONSTRUCT

    def check(
        self,
        slices: Sequence[Slice],
        enumeration: Enumeration,
        calls: SubjectCalls,
        *,
        digested: bool,
    ) -> Tally:
        fed = Fed.of(self.domain, enumeration, slices, calls.compare_on, digested)
        narrow, rho = fed.inputs
        values, contracts = calls.reconstruct(narrow, rho)
        again = same_again([values], lambda: [calls.reconstruct(narrow[:PROBE], rho[:PROBE])[0]])

        def reference(arithmetic: Arithmetic) -> torch.Tensor:
            if narrow.device.type == "cpu":
                return splitting_reference.decompress(narrow, rho, arithmetic)
            return splitting_reference.reconstruct_chunk(narrow, rho, arithmetic)

        theirs = reference(PAPER)
        explanation = split.explain_reconstructed(
            split.ReconstructionCase(
                narrow, rho, values, theirs, self.operations, fed.strata, fed.index
            )
        )
        tally = _compared(fed, values, theirs, explanation)
        # Where fusing cannot matter, a fused setting leaves what it leaves unfused.
        differing = _mismatches(values, theirs)
        left: dict[Arithmetic, int] = {PAPER: differing}
        for setting in _SETTINGS[bool(fusing_matters(narrow).any())]:
            left[setting.arithmetic] = _mismatches(values, reference(setting.arithmetic))
        tally.left = [
            left.get(s.arithmetic, left[replace(s.arithmetic, fused_multiply_add=False)])
            for s in self.settings
        ]
        return tally + Tally(contracts=[*contracts, again])

    def metrics(self, tally: Tally) -> ValueMetrics:
        return _metrics(tally)


@dataclass(frozen=True)
class Dequantize:
    """``dequantize`` of every code with every finite scale."""

    spec: QuantizationSpec
    operations: OperationBounds
    group_size: int

    methods = ("dequantize",)
    outputs = 1
    on_a_gpu = EAGER

    @property
    def case(self) -> str:
        return f"dequantize/{self.spec.name}"

    @property
    def function(self) -> str:
        return function_of("dequantize", self.spec)

    @cached_property
    def domain(self) -> Pairs:
        return Pairs(FP16, quantized_format(self.spec.signed), together=True)

    @property
    def settings(self) -> Sequence[Setting]:
        return quantized.DEQUANTIZE

    def check(
        self,
        slices: Sequence[Slice],
        enumeration: Enumeration,
        calls: SubjectCalls,
        *,
        digested: bool,
    ) -> Tally:
        row = self.domain.row
        # Rows are fed whole, though the last of a limited slice may be compared in part.
        whole = [Slice(s.exponent, s.start, s.start + -(-len(s) // row) * row) for s in slices]
        fed = Fed.of(self.domain, enumeration, whole, calls.compare_on, digested)
        taken = torch.cat(
            [
                torch.arange(len(full), device=calls.compare_on) < len(part)
                for full, part in zip(whole, slices, strict=True)
            ]
        )
        where = taken.nonzero().squeeze(1)
        scales, codes = (some.reshape(-1, row) for some in fed.inputs)
        groups = -(-row // self.group_size)
        # A row fills its last group up with zeros, which are not compared.
        padded = torch.nn.functional.pad(codes, (0, groups * self.group_size - row))
        repeated = scales[:, :1].expand(-1, groups)

        def run(rows: int) -> tuple[torch.Tensor, list[Contract]]:
            values, contracts = calls.dequantize(
                padded[:rows].reshape(-1),
                repeated[:rows].reshape(-1),
                self.spec,
                self.group_size,
            )
            return values.reshape(rows, -1)[:, :row].reshape(-1), contracts

        values, contracts = run(len(codes))
        again = same_again([values], lambda: [run(max(1, min(len(codes), PROBE // row)))[0]])
        fed, values = fed.at(where), values[where]
        scales, codes = fed.inputs

        def reference(arithmetic: Arithmetic) -> torch.Tensor:
            made = quantization_reference.dequantize_groups(
                codes[:, None], scales, arithmetic=arithmetic, **self.spec.options()
            )
            return made.reshape(-1)

        theirs = reference(PAPER)
        case = quantized.QuantizationCase(
            x=torch.empty(0),
            subject=QuantizationOutputs(codes, scales, values),
            reference=QuantizationOutputs(codes, scales, theirs),
            reference_of_subject=theirs,
            options=self.spec.options(),
            group_size=1,
            operations=self.operations,
            strata=fed.strata,
            order=fed.index,
        )
        tally = _compared(fed, values, theirs, quantized.explain_values(case))
        tally.left = [_mismatches(values, reference(s.arithmetic)) for s in self.settings]
        return tally + Tally(contracts=[*contracts, again])

    def metrics(self, tally: Tally) -> ValueMetrics:
        return _metrics(tally)


def _compared(
    fed: Fed, subject: torch.Tensor, theirs: torch.Tensor, explanation: Explanation
) -> Tally:
    differ = ~same_bits(subject, theirs)
    finite_subject, finite_reference = subject.isfinite(), theirs.isfinite()
    floats, codes = fed.inputs
    tally = explained(explanation)
    tally.largest = {"values": largest_ulp(subject, theirs, differ)}
    tally.buckets = fed.tallied(
        [bits(floats), codes, bits(theirs)],
        value_mismatches=differ,
        nonfinite_subject=~finite_subject,
        nonfinite_reference=~finite_reference,
        nonfinite_disagree=finite_subject != finite_reference,
    )
    add_causes(tally.buckets, explanation)
    return tally


def _mismatches(subject: torch.Tensor, theirs: torch.Tensor) -> int:
    return int((~same_bits(subject, theirs)).sum())


def _metrics(tally: Tally) -> ValueMetrics:
    n = sum(bucket.n for bucket in tally.buckets.values())

    def count(name: str) -> int:
        return sum(bucket.counts.get(name, 0) for bucket in tally.buckets.values())

    return ValueMetrics(
        value_agree_frac=(n - count("value_mismatches")) / n if n else None,
        value_mismatches=count("value_mismatches"),
        value_max_ulp=tally.largest.get("values"),
        nonfinite_subject=count("nonfinite_subject"),
        nonfinite_reference=count("nonfinite_reference"),
        nonfinite_disagree=count("nonfinite_disagree"),
        unexplained=unexplained(tally),
    )
