"""Faulty quantizers, each a few lines on top of a correct one."""

from __future__ import annotations

import torch

from flashcheck.selftest.eager import Eager
from flashcheck.selftest.registry import fault


def _group_size(description: str, size: int) -> None:
    @fault(description)
    class _Regrouped(Eager):
        def absmax(self, v: torch.Tensor) -> torch.Tensor:
            # Scales of groups of another size, read at the places of groups of 32.
            flat = v.reshape(-1)
            maxima = self.group(flat, size).abs().amax(dim=1)
            first = torch.arange(v.shape[0]) * v.shape[1]
            return maxima[first // size]


_group_size("group size 31", 31)
_group_size("group size 33", 33)
_group_size("group size 64", 64)


@fault("last partial group mis-scaled")
class LastGroup(Eager):
    def absmax(self, v: torch.Tensor) -> torch.Tensor:
        absmax = super().absmax(v)
        # As if what lies behind the end were read: a padded zero became a value.
        padded = (v[-1:] == 0).any(dim=1)
        absmax[-1:] = torch.where(padded, absmax[-1:] * 1.5, absmax[-1:])
        return absmax


@fault("signed maximum for the absolute one")
class SignedMax(Eager):
    def absmax(self, v: torch.Tensor) -> torch.Tensor:
        return v.amax(dim=1).clamp(min=0)


@fault("truncation for rounding")
class Truncation(Eager):
    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        return (m * n).trunc()


@fault("rounding toward even of the wrong half: ties to odd")
class TiesToOdd(Eager):
    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        scaled = m * n
        even = scaled.round()
        tie = (scaled - scaled.floor()) == 0.5
        return torch.where(tie, scaled.floor() + scaled.ceil() - even, even)


@fault("codes off by one in one value of 256")
class OffByOne(Eager):
    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        return super().clamp_code(torch.where(code == 77, code - 1, code), signed)


@fault("128 for 127")
class N128(Eager):
    def largest_code(self, signed: bool) -> int:
        return 128 if signed else 255


@fault("256 for 255")
class N256(Eager):
    def largest_code(self, signed: bool) -> int:
        return 127 if signed else 256


@fault("-128 reachable")
class Minus128(Eager):
    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        lowest = torch.where(code == -127, -128.0, code) if signed else code
        return lowest.nan_to_num(nan=0.0).clamp(-128, 255)


@fault("uint8 wraps at 256")
class Wrap(Eager):
    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        if signed:
            return super().clamp_code(code, signed)
        return torch.where(code == 255, code + 1, code).nan_to_num(nan=0.0) % 256


@fault("scale kept in bf16")
class Bf16Scale(Eager):
    def store_scale(self, absmax: torch.Tensor) -> torch.Tensor:
        return absmax.bfloat16().half()


@fault("scale one ULP off in one group")
class ScaleUlp(Eager):
    def store_scale(self, absmax: torch.Tensor) -> torch.Tensor:
        scales = super().store_scale(absmax)
        scales.view(torch.int16)[len(scales) // 2 : len(scales) // 2 + 1] += 1
        return scales


@fault("scale rounded up")
class ScaleUp(Eager):
    def store_scale(self, absmax: torch.Tensor) -> torch.Tensor:
        scales = super().store_scale(absmax)
        short = (scales.float() < absmax) & absmax.isfinite()
        scales.view(torch.int16)[short] += 1
        return scales


@fault("softsign factor missing")
class SoftsignHalf(Eager):
    def compand(self, m: torch.Tensor) -> torch.Tensor:
        return m / (1 + m.abs())


@fault("softsign factor doubled")
class SoftsignDouble(Eager):
    def compand(self, m: torch.Tensor) -> torch.Tensor:
        return 4 * m / (1 + m.abs())


@fault("softsign left out")
class NoSoftsign(Eager):
    def compand(self, m: torch.Tensor) -> torch.Tensor:
        return m


@fault("inverse softsign without its two")
class InverseSoftsign(Eager):
    def expand(self, m: torch.Tensor) -> torch.Tensor:
        return m / (1 - m.abs())


@fault("square root missing")
class NoRoot(Eager):
    def root(self, v: torch.Tensor) -> torch.Tensor:
        return v


@fault("inverse not squared")
class NotSquared(Eager):
    def square(self, v: torch.Tensor) -> torch.Tensor:
        return v


@fault("sign lost for negatives")
class SignLost(Eager):
    def normalise(self, v: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
        return super().normalise(v.abs(), absmax)


@fault("subnormals flushed to zero before the absmax")
class FlushedInput(Eager):
    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        flat = super().flatten(x)
        return torch.where(flat.abs() < 2.0**-126, 0.0, flat)


@fault("division within 2 ULP taken for one within 2^-10")
class CoarseDivision(Eager):
    def divide(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a / b) * (1 + 2.0**-10)


@fault("stored float16 scale divides instead of the absmax")
class StoredScaleDivides(Eager):
    def normalise(self, v: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
        return super().normalise(v, absmax.half().float())


@fault("absmax floor of 1e-6")
class HighFloor(Eager):
    def normalise(self, v: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
        return super().normalise(v, absmax.clamp(min=1e-6))


@fault("input rounded to bf16 first")
class RoundedInput(Eager):
    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        return super().flatten(x).bfloat16().float()


@fault("stride ignored on a non-contiguous input")
class StrideIgnored(Eager):
    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        memory = x.as_strided((x.numel(),), (1,), x.storage_offset())
        return super().flatten(memory)


@fault("last block not processed")
class LastBlock(Eager):
    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        done = super().clamp_code(code, signed)
        done[len(done) // 128 * 128 :] = 0
        return done


@fault("first block repeated")
class FirstBlock(Eager):
    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        done = super().clamp_code(code, signed)
        second = done[32:64]
        second.copy_(done[: len(second)].clone())
        return done


@fault("output not written in one element of 10^6")
class NotWritten(Eager):
    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        done = super().clamp_code(code, signed)
        done.reshape(-1)[999_999:1_000_000] = 3
        return done


@fault("float64 cut to float32 instead of rounded")
class CutInput(Eager):
    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        flat = super().flatten(x)
        past = flat.double().abs() > x.reshape(-1).double().abs()
        return (flat.view(torch.int32) - past.int()).view(torch.float32)
