"""Every value that a group with an absolute maximum of 1 may hold, quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flashcheck.compare import quantization as causes
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.metrics import QuantizationOutputs
from flashcheck.compare.sensitivity import near_tie
from flashcheck.compare.settings import Setting, Switch, settings
from flashcheck.compare.ulp import bits, ordinal, same_bits
from flashcheck.config import QuantizationSpec
from flashcheck.formats import quantized_format
from flashcheck.inputs.domains import MINUS_ONE_TO_ONE, ZERO_TO_ONE, Enumeration, Float32, Slice
from flashcheck.measures import CodeMetrics
from flashcheck.reference import quantization as reference
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive.checks import (
    EAGER,
    PROBE,
    Fed,
    add_causes,
    function_of,
    same_again,
    unexplained,
)
from flashcheck.suites.exhaustive.tally import Tally, counted, explained

_SETTINGS = settings([Switch.ROUNDING_TIE, Switch.FUSED_MULTIPLY_ADD])
"""A floor under the absmax and a NaN in it do not come into play where it is 1."""


@dataclass(frozen=True)
class Quantize:
    """``quantize`` of every value, in groups led by the 1 or -1 that is their absmax."""

    spec: QuantizationSpec
    operations: OperationBounds
    group_size: int

    methods = ("quantize",)
    outputs = 1
    on_a_gpu = EAGER

    @property
    def case(self) -> str:
        return f"quantize/{self.spec.name}"

    @property
    def function(self) -> str:
        return function_of("quantize", self.spec)

    @property
    def domain(self) -> Float32:
        return MINUS_ONE_TO_ONE if self.spec.signed else ZERO_TO_ONE

    @property
    def settings(self) -> Sequence[Setting]:
        return _SETTINGS

    def check(
        self,
        slices: Sequence[Slice],
        enumeration: Enumeration,
        calls: SubjectCalls,
        *,
        digested: bool,
    ) -> Tally:
        fed = Fed.of(self.domain, enumeration, slices, calls.compare_on, digested)
        (x,) = fed.inputs
        groups = self._groups(x)
        outputs, contracts = calls.quantize(groups.reshape(-1), self.spec, self.group_size)
        few = max(1, PROBE // self.group_size)
        again = same_again(
            outputs,
            lambda: calls.quantize(groups[:few].reshape(-1), self.spec, self.group_size)[0],
        )
        codes, scales = outputs
        stages = reference.quantize_stages(groups, **self.spec.options())
        compared = torch.zeros_like(groups, dtype=torch.bool)
        compared[:, 1:] = self._rows(torch.ones_like(x, dtype=torch.bool), fill=False)
        nothing = torch.empty(0, device=x.device)
        case = causes.QuantizationCase(
            x=groups.reshape(-1),
            subject=QuantizationOutputs(codes, scales, nothing),
            reference=QuantizationOutputs(stages.codes.reshape(-1), stages.scales, nothing),
            reference_of_subject=nothing,
            options=self.spec.options(),
            group_size=self.group_size,
            operations=self.operations,
            compared=compared.reshape(-1),
            strata=self._led_by_first(self._rows(fed.strata, fill=0)).reshape(-1),
            order=self._led_by_first(self._rows(fed.index, fill=0)).reshape(-1),
        )
        explanation = causes.explain_codes(case) + causes.explain_scales(case)

        tally = explained(explanation)
        mine, theirs = (self._elements(c, x) for c in (codes, stages.codes))
        apart = (mine.to(torch.int16) - theirs.to(torch.int16)).abs()
        tally.buckets = fed.tallied(
            [bits(x), theirs], code_mismatches=apart != 0, code_beyond_1=apart > 1
        )
        add_causes(tally.buckets, explanation)
        differ = ~same_bits(scales, stages.scales)
        tally.totals = {**counted(scale_mismatches=differ), "groups": scales.numel()}
        self._try_settings(tally, x, mine, theirs, self._elements(stages.companded, x))
        tally.ranges = {"subject": _ranges(x, mine), "reference": _ranges(x, theirs)}
        tally.contracts = [*contracts, again]
        return tally

    @property
    def _values_a_group(self) -> int:
        return self.group_size - 1

    def _rows(self, values: torch.Tensor, *, fill: float) -> torch.Tensor:
        """The values that groups share with their 1, a row a group, the last one filled up."""
        missing = -values.numel() % self._values_a_group
        return torch.nn.functional.pad(values, (0, missing), value=fill).reshape(
            -1, self._values_a_group
        )

    def _groups(self, x: torch.Tensor) -> torch.Tensor:
        """Rows led by their maximum: of signed values that of every second one is -1."""
        groups = torch.nn.functional.pad(self._rows(x, fill=1.0), (1, 0), value=1.0)
        if self.spec.signed:
            groups[1::2, 0] = -1.0
        return groups

    def _led_by_first(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of groups with the first value's number also in the place of the 1."""
        return torch.cat([rows[:, :1], rows], dim=1)

    def _elements(self, output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Of an output of whole groups, that of each value."""
        return output.reshape(-1, self.group_size)[:, 1:].reshape(-1)[: x.numel()]

    def _try_settings(
        self,
        tally: Tally,
        x: torch.Tensor,
        mine: torch.Tensor,
        theirs: torch.Tensor,
        companded: torch.Tensor,
    ) -> None:
        """Count what differs under each setting, where one may matter or something differs."""
        n = quantized_format(self.spec.signed).max_code
        where = ((mine != theirs) | near_tie(companded * n, n)).nonzero().squeeze(1)
        pairs = torch.stack([torch.ones_like(x[where]), x[where]], dim=1)
        for setting in self.settings:
            stages = reference.quantize_stages(
                pairs, arithmetic=setting.arithmetic, **self.spec.options()
            )
            codes = int((stages.codes[:, 1] != mine[where]).sum())
            tally.left.append(codes + tally.totals["scale_mismatches"])

    def metrics(self, tally: Tally) -> CodeMetrics:
        n = sum(bucket.n for bucket in tally.buckets.values())

        def count(name: str) -> int:
            return sum(bucket.counts.get(name, 0) for bucket in tally.buckets.values())

        return CodeMetrics(
            code_agree_frac=(n - count("code_mismatches")) / n if n else None,
            code_mismatches=count("code_mismatches"),
            code_beyond_1=count("code_beyond_1"),
            scale_mismatches=tally.totals.get("scale_mismatches", 0),
            thresholds_moved=_moved(tally),
            unexplained=unexplained(tally),
        )


def _ranges(x: torch.Tensor, codes: torch.Tensor) -> dict[int, tuple[int, int]]:
    """Of each code the least and the largest value that gets it, in the order of float32.

    Values that follow each other mostly get one code: only the ends of such runs are looked at.
    """
    if not x.numel():
        return {}
    follows = bits(x)[1:] - bits(x)[:-1] == 1
    changes = ((codes[1:] != codes[:-1]) | ~follows).nonzero().squeeze(1)
    edge = torch.zeros(1, dtype=torch.int64, device=x.device)
    firsts, lasts = torch.cat([edge, changes + 1]), torch.cat([changes, edge + x.numel() - 1])
    # In a run of negative values the order of bits goes down.
    order = ordinal(x[torch.stack([firsts, lasts])]).sort(dim=0).values
    found, inverse = torch.unique(codes[firsts], return_inverse=True)
    low = torch.full(found.shape, torch.iinfo(torch.int64).max, device=x.device)
    high = torch.full(found.shape, torch.iinfo(torch.int64).min, device=x.device)
    low = low.scatter_reduce(0, inverse, order[0], "amin")
    high = high.scatter_reduce(0, inverse, order[1], "amax")
    return dict(zip(found.tolist(), zip(low.tolist(), high.tolist(), strict=True), strict=True))


def _moved(tally: Tally) -> int:
    """How many codes begin at another value, or are given by one side only."""
    subject, theirs = (tally.ranges.get(side, {}) for side in ("subject", "reference"))
    return sum(
        code not in subject or code not in theirs or subject[code][0] != theirs[code][0]
        for code in subject.keys() | theirs.keys()
    )
