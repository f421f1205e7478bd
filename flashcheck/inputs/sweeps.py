"""Stratified random float32: some values of each exponent, built from bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from flashcheck.config import Sweep
from flashcheck.formats import FP32

CHUNK = 1 << 20
"""Values handed on at a time; a single stratum may be larger."""


@dataclass(frozen=True)
class Strata:
    """Values of some exponent fields: row i of ``values``, float32, is of ``exponents[i]``."""

    exponents: list[int]
    values: torch.Tensor


def draw(sweep: Sweep, *, seed: int, drawn_after: Sequence[Sweep]) -> Iterator[Strata]:
    """Draw a sweep's strata in order, a few at a time.

    The sweeps in ``drawn_after`` are drawn first from the same generator and thrown away.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    for earlier in drawn_after:
        for exponent in earlier.exponents.fields():
            _stratum(earlier, exponent, generator)
    fields = sweep.exponents.fields()
    rows = max(1, CHUNK // sweep.samples)
    for start in range(0, len(fields), rows):
        part = fields[start : start + rows]
        yield Strata(part, torch.stack([_stratum(sweep, field, generator) for field in part]))


def _stratum(sweep: Sweep, exponent: int, generator: torch.Generator) -> torch.Tensor:
    def draw_integers(high: int) -> torch.Tensor:
        return torch.randint(0, high, (sweep.samples,), dtype=torch.int32, generator=generator)

    bits = draw_integers(1 << FP32.mantissa_bits) | (exponent << FP32.mantissa_bits)
    if sweep.signs == "both":
        bits |= draw_integers(2) << (FP32.bits - 1)
    return bits.view(torch.float32)
