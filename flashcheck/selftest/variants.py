"""Correct subjects: everything a kernel may legitimately do otherwise than the literal paper."""

from __future__ import annotations

import torch

from flashcheck.reference.arithmetic import fma
from flashcheck.selftest.eager import Eager
from flashcheck.selftest.registry import variant


def _inexact(exact: torch.Tensor, ulps: int) -> torch.Tensor:
    """A float32 less than ``ulps`` ULP from an exact float64, chosen by its bits: always the same.

    It is one of the two neighbours of the exact number, moved by up to ``ulps - 1``.
    """
    nearest = exact.float()
    bits = nearest.view(torch.int32)
    mixed = (bits.long() * 0x9E3779B1 >> 7) & 0xFFFF
    away = (nearest.double() - exact) * exact.sign()
    other = torch.where(away > 0, -1, 1) * (away != 0) * (mixed & 1)
    step = (mixed >> 1) % (2 * ulps - 1) - (ulps - 1)
    # Exact results stay: hardware that approximates still gives x / x = 1 and 0 / x = 0.
    keep = (away == 0) | ~nearest.isfinite() | (nearest.abs() < 2.0**-120)
    return torch.where(keep, nearest, (bits + (other + step).int()).view(torch.float32))


@variant("the literal paper")
class Literal(Eager):
    """Every operation correctly rounded, nothing fused."""


@variant("rounding half away from zero")
class HalfAway(Eager):
    """``copysign(floor(|x| + 1/2), x)``."""

    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        return torch.copysign(((m * n).abs() + 0.5).floor(), m)


@variant("rounding half up")
class HalfUp(Eager):
    """``floor(x + 1/2)``."""

    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        return (m * n + 0.5).floor()


@variant("fused multiply-add in reconstruction")
class FusedReconstruction(Eager):
    """The correction is added without being rounded first."""

    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        return fma(scaled, power, narrow.float())


@variant("fused multiply-add in rounding half up")
class FusedRounding(Eager):
    """The scaled code is not rounded before the half is added."""

    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        return fma(m, torch.full_like(m, n), torch.full_like(m, 0.5)).floor()


@variant("division by a constant as multiplication by its reciprocal")
class Reciprocal(Eager):
    """127, 255 and 32767 have no exact reciprocal."""

    def divide_by(self, codes: torch.Tensor, n: int) -> torch.Tensor:
        return codes * (1 / torch.full_like(codes, n))


@variant("division within 2 ULP")
class ApproximateDivision(Eager):
    """As a GPU's fast division is specified."""

    def divide(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _inexact(a.double() / b.double(), 2)


@variant("square root within 1 ULP")
class ApproximateRoot(Eager):
    """As a GPU's fast square root is specified; scales and codes follow from it."""

    def root(self, v: torch.Tensor) -> torch.Tensor:
        return _inexact(v.double().sqrt(), 1)


@variant("blocks of 96 elements")
class SmallBlocks(Eager):
    """Work cut into blocks, as kernels do: of whole groups, so that no value depends on it."""

    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        flat = m.reshape(-1)
        return torch.cat([(part * n).round() for part in flat.split(96)]).reshape(m.shape)  # type: ignore[no-untyped-call]


@variant("everything a GPU does at once")
class AsOnGpu(HalfAway):
    """Half away, fused, reciprocal, approximate division and root together."""

    def divide(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _inexact(a.double() / b.double(), 2)

    def divide_by(self, codes: torch.Tensor, n: int) -> torch.Tensor:
        return codes * (1 / torch.full_like(codes, n))

    def root(self, v: torch.Tensor) -> torch.Tensor:
        return _inexact(v.double().sqrt(), 1)

    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        return fma(scaled, power, narrow.float())
