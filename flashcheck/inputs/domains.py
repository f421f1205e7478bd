"""Domains small enough to enumerate: what each function may be fed, in buckets, in a fixed order.

A bucket is all inputs of one float32 exponent field: of the float32 itself, of the narrow weight,
or of the float16 scale, as float32 holds it. An input has a position in its bucket, and so an index
in its domain; from both follow its bits, on any device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from flashcheck.formats import FP32, CodeFormat, FloatFormat, torch_dtype

_FIELDS = 1 << FP32.exponent_bits
_MANTISSAS = 1 << FP32.mantissa_bits


@dataclass(frozen=True)
class Bucket:
    """The inputs of one float32 exponent field: how many, and the index of the first."""

    exponent: int
    size: int
    first: int


class Domain(Protocol):
    """All inputs of a function."""

    @property
    def words(self) -> str:
        """What it holds, as a sentence goes on after a number."""

    @property
    def buckets(self) -> Sequence[Bucket]:
        """Those that are not empty, by exponent."""

    @property
    def row(self) -> int:
        """How many inputs that follow each other belong together."""

    def values(self, exponent: int, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The inputs at some positions, int64, of a bucket, on the positions' device."""


@dataclass(frozen=True)
class Float32:
    """Float32 patterns up to an exponent field, of which only the power of two may be in.

    Position ``p`` of a bucket of ``n`` mantissas is mantissa ``p % n``, negative from ``n`` on.

    Attributes:
        words: see :class:`Domain`.
        last: the largest exponent field.
        whole: whether the last bucket has all mantissas, or only the first.
        signs: 2, or 1 for the positive half.
    """

    words: str
    last: int = _FIELDS - 1
    whole: bool = True
    signs: int = 2
    row: int = 1

    @cached_property
    def buckets(self) -> Sequence[Bucket]:
        sizes = {field: self.signs * self._mantissas(field) for field in range(self.last + 1)}
        return _numbered(sizes)

    def values(self, exponent: int, positions: torch.Tensor) -> tuple[torch.Tensor]:
        mantissas = self._mantissas(exponent)
        # A power of two: on a GPU a 64-bit division would cost more than all the rest.
        sign = positions >> (mantissas.bit_length() - 1)
        mantissa = positions & (mantissas - 1)
        bits = mantissa.to(torch.int32) | (exponent << FP32.mantissa_bits)
        return ((bits | sign.to(torch.int32) << (FP32.bits - 1)).view(torch.float32),)

    def _mantissas(self, exponent: int) -> int:
        return _MANTISSAS if exponent < self.last or self.whole else 1


EVERY_FLOAT32 = Float32("float32 patterns")
MINUS_ONE_TO_ONE = Float32("float32 from -1 to 1", last=FP32.bias, whole=False)
ZERO_TO_ONE = Float32("float32 from 0 to 1", last=FP32.bias, whole=False, signs=1)


@dataclass(frozen=True)
class Pairs:
    """Every finite float of 16 bits with every code in range.

    Position ``p`` is code ``low + p % codes`` with the bucket's pattern ``p // codes``, patterns in
    the order of their bits.

    Attributes:
        together: whether all codes of a float belong together, as a scale's codes do.
    """

    floats: FloatFormat
    codes: CodeFormat
    together: bool = False

    @property
    def words(self) -> str:
        what = "scale" if self.together else "weight"
        return f"pairs of a finite {self.floats.name} {what} and an {self.codes.name} code"

    @property
    def row(self) -> int:
        return self._codes if self.together else 1

    @property
    def _codes(self) -> int:
        return self.codes.max_code - self.codes.min_code + 1

    @cached_property
    def buckets(self) -> Sequence[Bucket]:
        return _numbered(
            {field: len(patterns) * self._codes for field, patterns in self._patterns.items()}
        )

    def values(self, exponent: int, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = (positions % self._codes + self.codes.min_code).to(torch_dtype(self.codes))
        patterns = self._patterns[exponent].to(positions.device)
        return patterns[positions // self._codes].view(torch_dtype(self.floats)), codes

    @cached_property
    def _patterns(self) -> dict[int, torch.Tensor]:
        """Of each float32 exponent field the patterns, int16, that widen to it."""
        every = torch.arange(1 << self.floats.bits).to(torch.int16)
        wide = every.view(torch_dtype(self.floats)).to(torch.float32)
        fields = (wide.view(torch.int32) >> FP32.mantissa_bits) & FP32.exponent_mask
        finite = wide.isfinite()
        found = {field: every[finite & (fields == field)] for field in range(_FIELDS)}
        return {field: patterns for field, patterns in found.items() if len(patterns)}


def _numbered(sizes: dict[int, int]) -> list[Bucket]:
    buckets, first = [], 0
    for exponent, size in sorted(sizes.items()):
        buckets.append(Bucket(exponent, size, first))
        first += size
    return buckets


@dataclass(frozen=True)
class Slice:
    """Inputs of one bucket: from the ``start``-th that is taken of it to before the ``stop``-th."""

    exponent: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Enumeration:
    """A domain, or the part of it that is asked for, in slices.

    Args:
        exponents: take these buckets only; none for all.
        limit: take about as large a share of each bucket, this many inputs together; none for all.
            They are spread over the bucket by a step that is prime to its size, so that every
            bit of the mantissa is met.
    """

    def __init__(
        self, domain: Domain, *, exponents: Sequence[int] | None = None, limit: int | None = None
    ) -> None:
        chosen = [b for b in domain.buckets if exponents is None or b.exponent in set(exponents)]
        self.size = sum(bucket.size for bucket in domain.buckets)
        self.row = domain.row
        self._buckets = {bucket.exponent: bucket for bucket in chosen}
        self.taken = _quotas(chosen, limit)
        self.total = sum(self.taken.values())
        self.whole = self.total == self.size
        self._spread = limit is not None and self.total < sum(bucket.size for bucket in chosen)

    def slices(self, longest: int) -> Iterator[Slice]:
        """All of it in order, none longer than ``longest``, each at the start of a row."""
        longest = max(self.row, longest // self.row * self.row)
        for exponent, taken in self.taken.items():
            for start in range(0, taken, longest):
                yield Slice(exponent, start, min(start + longest, taken))

    def is_whole(self, exponent: int) -> bool:
        """Whether all of a bucket is taken, in its own order."""
        return not self._spread and self.taken[exponent] == self._buckets[exponent].size

    def positions(self, part: Slice, device: torch.device | str = "cpu") -> torch.Tensor:
        """The positions of a slice in its bucket, int64."""
        k = torch.arange(part.start, part.stop, device=device)
        if not self._spread:
            return k
        rows = self._buckets[part.exponent].size // self.row
        # Each bucket goes on where the one before it stopped, so that they do not all meet the same
        # mantissas.
        row = k // self.row + part.exponent * (self.taken[part.exponent] // self.row)
        return row * _step(rows) % rows * self.row + k % self.row

    def index(self, part: Slice, positions: torch.Tensor) -> torch.Tensor:
        """Of positions in a slice's bucket, the indices in the whole domain."""
        return positions + self._buckets[part.exponent].first


def _quotas(buckets: Sequence[Bucket], limit: int | None) -> dict[int, int]:
    total = sum(bucket.size for bucket in buckets)
    if limit is None or limit >= total:
        return {bucket.exponent: bucket.size for bucket in buckets}
    quotas, before = {}, 0
    for bucket in buckets:
        after = before + bucket.size
        quota = limit * after // total - limit * before // total
        if quota:
            quotas[bucket.exponent] = quota
        before = after
    return quotas


def _step(size: int) -> int:
    """A number prime to ``size``, near its golden section: its multiples spread evenly."""
    step = max(1, round(size * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, size) != 1:
        step += 1
    return step
