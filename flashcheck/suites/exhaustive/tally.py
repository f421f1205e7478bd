"""What checking some inputs of a case gave. Tallies of parts add up to the tally of the whole.

Adding is exact, and neither order nor grouping matters: so it does not matter either which
process, machine or run checked which chunk. The chunks themselves are a backend's: of values that
are quantized they decide how many groups there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field

from flashcheck.compare.attribution import UNEXPLAINED, WORST, Explanation, summed
from flashcheck.compare.digest import MODULUS
from flashcheck.report.models import Contract, Margin, Offender
from flashcheck.suites import explaining

K = TypeVar("K")
V = TypeVar("V")
Counts = dict[str, int]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BucketTally(_Model):
    """Of the inputs of one float32 exponent field."""

    n: int = 0
    undefined: int = 0
    counts: Counts = {}
    causes: dict[str, Counts] = {}
    digest: int | None = None

    def __add__(self, other: BucketTally) -> BucketTally:
        # Of two that are valid the sum is: a sweep adds hundreds for each of its parts.
        return BucketTally.model_construct(
            n=self.n + other.n,
            undefined=self.undefined + other.undefined,
            counts=_added(self.counts, other.counts) if other.counts else self.counts,
            causes=summed(self.causes, other.causes) if other.causes else self.causes,
            digest=_digests(self.digest, other.digest),
        )


Buckets = dict[int, BucketTally]
"""By float32 exponent field."""


class Tally(_Model):
    """Of some inputs of a case.

    Attributes:
        left: mismatches under each setting of the case's function, in their order.
        largest: of each output, the largest distance in ULP where neither side is a NaN.
        ranges: of each side, the least and the largest input of each code, float32 in their order
            as integers.
        seconds: spent on it.
    """

    buckets: Buckets = {}
    left: list[int] = []
    totals: Counts = {}
    largest: Counts = {}
    worst: list[Offender] = []
    margin: list[Margin] = []
    contracts: list[Contract] = []
    undefined: dict[str, Counts] = {}
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    seconds: float = Field(default=0.0)

    def __add__(self, other: Tally) -> Tally:
        return Tally.model_construct(
            buckets=_merged(self.buckets, other.buckets, lambda a, b: a + b),
            left=_summed(self.left, other.left),
            totals=_added(self.totals, other.totals),
            largest=_merged(self.largest, other.largest, max),
            worst=_worst([*self.worst, *other.worst]),
            margin=_margins([*self.margin, *other.margin]),
            contracts=_contracts([*self.contracts, *other.contracts]),
            undefined=summed(self.undefined, other.undefined),
            ranges=_merged(self.ranges, other.ranges, lambda a, b: _merged(a, b, _hull)),
            seconds=self.seconds + other.seconds,
        )

    def by_output(self) -> dict[str, Counts]:
        """The causes of all buckets."""
        sums: dict[str, Counts] = {}
        for bucket in self.buckets.values():
            sums = summed(sums, bucket.causes)
        return sums


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of some tallies."""
    result = Tally()
    for tally in tallies:
        result += tally
    return result


def explained(explanation: Explanation) -> Tally:
    """What is said of mismatches, but for their counts, which belong to buckets."""
    worst = [explaining.offender_record(offender) for offender in explanation.worst]
    margin = [
        Margin(output=m.output, largest_ulp=m.largest_ulp, bound_ulp=m.bound_ulp)
        for m in explanation.margins
    ]
    return Tally(worst=_worst(worst), margin=_margins(margin))


def counted(**where: torch.Tensor) -> Counts:
    """How many elements of boolean tensors are true, with one transfer from their device."""
    if not where:
        return {}
    sums = torch.stack([tensor.sum() for tensor in where.values()]).tolist()
    return dict(zip(where, sums, strict=True))


def _added(one: Counts, other: Counts) -> Counts:
    return _merged(one, other, lambda a, b: a + b)


def _merged(one: Mapping[K, V], other: Mapping[K, V], both: Callable[[V, V], V]) -> dict[K, V]:
    """Two mappings as one; ``both`` makes a value of two."""
    made = dict(one)
    for key, value in other.items():
        made[key] = both(made[key], value) if key in made else value
    return made


def _summed(one: list[int], other: list[int]) -> list[int]:
    if not one or not other:
        return list(one or other)
    return [a + b for a, b in zip(one, other, strict=True)]


def _digests(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return (one + other) % MODULUS


def _hull(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])


def _worst(offenders: list[Offender]) -> list[Offender]:
    """The unexplained first, then the farthest apart, then the first of the domain."""
    ranked = sorted(
        offenders, key=lambda o: (UNEXPLAINED not in o.cause, -o.distance, o.index, o.output)
    )
    return ranked[:WORST]


def _margins(margins: list[Margin]) -> list[Margin]:
    """Of each output the one of the farthest."""
    kept: dict[str, Margin] = {}
    for margin in sorted(margins, key=lambda m: (m.largest_ulp, m.bound_ulp)):
        kept[margin.output] = margin
    return [kept[output] for output in sorted(kept)]


def _contracts(contracts: list[Contract]) -> list[Contract]:
    """One a name: a broken one if any is, and of those the first by its words."""
    kept: dict[str, Contract] = {}
    for contract in sorted(contracts, key=lambda c: (c.ok, c.detail)):
        kept.setdefault(contract.name, contract)
    return [kept[name] for name in sorted(kept)]
