"""Faulty splitters, each a few lines on top of a correct one."""

from __future__ import annotations

import torch

from flashcheck.selftest.eager import Eager
from flashcheck.selftest.registry import fault


@fault("32768 for 32767")
class N32768(Eager):
    def largest_rho(self, ecc_dtype: torch.dtype) -> int:
        return 32768 if ecc_dtype == torch.int16 else 127


@fault("128 for 127 in splitting")
class N128(Eager):
    def largest_rho(self, ecc_dtype: torch.dtype) -> int:
        return 32767 if ecc_dtype == torch.int16 else 128


@fault("int8 and int16 maxima swapped")
class Swapped(Eager):
    def largest_rho(self, ecc_dtype: torch.dtype) -> int:
        return 127 if ecc_dtype == torch.int16 else 32767


@fault("ULP taken of theta instead of theta'")
class UlpOfTheta(Eager):
    def log2_half_ulp(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        # Cut, not rounded, to the narrow format: theta's own exponent.
        if narrow.dtype == torch.bfloat16:
            narrow = (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
        return super().log2_half_ulp(x, narrow)


@fault("exponent off by one at powers of two")
class PowersOfTwo(Eager):
    def log2_half_ulp(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        ulp = super().log2_half_ulp(x, narrow)
        mantissa = 0x7F if narrow.dtype == torch.bfloat16 else 0x3FF
        power = (narrow.view(torch.int16) & mantissa) == 0
        return ulp - power.int()


@fault("ULP of a subnormal from exponent field 0")
class SubnormalUlp(Eager):
    def log2_half_ulp(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        ulp = super().log2_half_ulp(x, narrow)
        subnormal = narrow.float().abs() < torch.finfo(narrow.dtype).smallest_normal
        return (ulp - subnormal.int()).clamp(min=-134)


@fault("subnormals flushed to zero in reconstruction")
class Flushed(Eager):
    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        correction = scaled * power
        flushed = torch.where(correction.abs() < 2.0**-126, 0.0, correction)
        return narrow.float() + flushed


@fault("clamp missing")
class NoClamp(Eager):
    def clamp_error(self, error: torch.Tensor) -> torch.Tensor:
        return error


@fault("narrow weight rounded toward zero")
class NarrowTowardZero(Eager):
    def error(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        if narrow.dtype != torch.bfloat16:
            return super().error(x, narrow)
        return x - (x.contiguous().view(torch.int32) & -65536).view(torch.float32)


@fault("truncation for rounding in splitting")
class Truncated(Eager):
    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        self.truncate = True
        codes = super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)
        self.truncate = False
        return codes

    truncate = False

    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        return (m * n).trunc() if self.truncate else super().round(m, n)


@fault("sign of the correction lost")
class CorrectionSign(Eager):
    def error(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        return super().error(x, narrow).abs()


@fault("correction subtracted")
class Subtracted(Eager):
    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        return narrow.float() - scaled * power


@fault("correction left out in reconstruction")
class NotCorrected(Eager):
    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        return narrow.float()


@fault("power of two not split, so that it overflows")
class Overflow(Eager):
    def scale_error(self, error: torch.Tensor, ulp: torch.Tensor) -> torch.Tensor:
        return error * torch.exp2((-ulp).clamp(max=128).float())


@fault("result rounded one ULP up in one exponent")
class OneExponent(Eager):
    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        values = super().combine(narrow, scaled, power)
        bits = values.view(torch.int32)
        return (bits + ((bits >> 23) & 0xFF == 125).int()).view(torch.float32)


@fault("one ULP off where the result is subnormal")
class SubnormalResult(Eager):
    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        values = super().combine(narrow, scaled, power)
        bits = values.view(torch.int32)
        off = (values.abs() < 2.0**-125) & (scaled != 0) & (values != 0)
        return (bits + off.int()).view(torch.float32)


@fault("sign of an infinite narrow weight lost")
class InfinitySign(Eager):
    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        values = super().combine(narrow, scaled, power)
        return torch.where(values.isinf(), -values, values)
