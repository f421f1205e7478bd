"""Subjects that compute right and behave wrong, or do not compute at all."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from flashcheck.selftest.eager import Eager
from flashcheck.selftest.registry import fault

Pair = tuple[torch.Tensor, torch.Tensor]


@fault("result that changes from run to run")
class Unsteady(Eager):
    def __init__(self) -> None:
        self._calls = itertools.count()

    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        codes, scales = super().quantize(x, **options)
        # Right the first time, so that only a second look sees it.
        if next(self._calls) % 2:
            codes.reshape(-1)[:1] ^= 1
        return codes, scales


@fault("input changed in place")
class InPlace(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        result = super().quantize(x, **options)
        x.mul_(0.5)
        return result


@fault("narrow weight changed in place")
class NarrowInPlace(Eager):
    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        values = super().reconstruct(narrow, ecc)
        narrow.zero_()
        return values


@fault("wrong dtype of the codes")
class WrongDtype(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        codes, scales = super().quantize(x, **options)
        return codes.short(), scales


@fault("scales in float32")
class WrongScaleDtype(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        codes, scales = super().quantize(x, **options)
        return codes, scales.float()


@fault("wrong shape: one scale too many")
class WrongShape(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        codes, scales = super().quantize(x, **options)
        return codes, torch.cat([scales, scales[-1:]])


@fault("wrong device of the output")
class WrongDevice(Eager):
    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        return super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype).to("meta")


@fault("NaN where the reference is finite")
class NanOut(Eager):
    def dequantize(self, codes: torch.Tensor, scales: torch.Tensor, **options: Any) -> torch.Tensor:
        values = super().dequantize(codes, scales, **options)
        values.reshape(-1)[-1:] = float("nan")
        return values


@fault("finite where the reference is infinite")
class FiniteOut(Eager):
    def dequantize(self, codes: torch.Tensor, scales: torch.Tensor, **options: Any) -> torch.Tensor:
        return super().dequantize(codes, scales.clamp(max=65504.0), **options)


@fault("an exception")
class Raises(Eager):
    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel image is available for execution on the device")


@fault("all zeros")
class Zeros(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        codes, scales = super().quantize(x, **options)
        return torch.zeros_like(codes), scales


@fault("the input handed back")
class HandsBack(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        return x


@fault("the narrow weight handed back as float32")
class HandsBackNarrow(Eager):
    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        return narrow.float()


@fault("nothing returned")
class ReturnsNothing(Eager):
    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        return None


@fault("an empty input raises")
class EmptyRaises(Eager):
    def quantize(self, x: torch.Tensor, **options: Any) -> Pair:
        if not x.numel():
            raise ValueError("max(): no elements")
        return super().quantize(x, **options)
