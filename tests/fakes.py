"""Small suites, and subjects whose right answer is the reference itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashcheck.reference import quantization, splitting

QUANT = """\
suite: small
kind: quantization
description: two tensors of a few groups
seed: 7
group_size: 32
battery:
  - name: plain
    generator: normal
    size: 200
  - name: skewed
    generator: normal_times_lognormal
    size: 97
    sigma: 2.0
specs:
  - {name: momentum, signed: true, sqrt: false, softsign: true}
  - {name: variance, signed: false, sqrt: true, softsign: false, absolute: true}
gates:
  - metric: int_agree
    op: ">="
    limit: 0.9999
    reason: a kernel that computes the paper gives its codes
  - metric: nonfinite_disagree
    op: "=="
    limit: 0
    reason: overflow is a property of the format
"""

SPLIT = """\
suite: sweep
kind: splitting
description: a few exponents
seed: 11
sweep:
  exponents:
    start: 1
    stop: 255
    step: 60
  samples: 64
  signs: both
formats:
  - {narrow: bf16, ecc: int8}
  - {narrow: fp16, ecc: int16}
gates:
  - metric: rho_agree_frac
    op: ">="
    limit: 0.9999
    reason: a kernel that computes the paper gives its codes
"""


def changed(text: str, old: str, new: str) -> str:
    """``text`` with its only ``old`` replaced, so that a test cannot silently edit nothing."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


class ReferenceSubject:
    """A subject that is right by construction: the control of every test with a wrong one."""

    name = "fake"
    version = "1.0"
    backend = "native"

    def quantize(
        self, x: torch.Tensor, *, signed: bool, sqrt: bool, softsign: bool, group_size: int
    ) -> Any:
        codes, scales = quantization.quantize(
            x, signed=signed, sqrt=sqrt, softsign=softsign, group_size=group_size
        )
        return codes.reshape(x.shape), scales

    def dequantize(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        *,
        signed: bool,
        sqrt: bool,
        softsign: bool,
        group_size: int,
    ) -> Any:
        values = quantization.dequantize(
            codes, scales, signed=signed, sqrt=sqrt, softsign=softsign, group_size=group_size
        )
        return values.reshape(codes.shape)

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        return splitting.compress(x, narrow.dtype, ecc_dtype)[1]

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> Any:
        return splitting.decompress(narrow, ecc)


class Altered(ReferenceSubject):
    """The reference, with one method's result put through a function of (result, its input)."""

    def __init__(self, method: str, alter: Callable[[Any, torch.Tensor], Any]) -> None:
        right = getattr(self, method)

        def altered(x: torch.Tensor, *args: Any, **options: Any) -> Any:
            return alter(right(x, *args, **options), x)

        setattr(self, method, altered)


def code_off_by_one(*, signed_only: bool = False) -> Altered:
    """A kernel that gets the first code of every tensor wrong by one."""

    def alter(result: tuple[torch.Tensor, torch.Tensor], _: torch.Tensor) -> Any:
        codes, scales = result
        if codes.dtype == torch.int8 or not signed_only:
            flat = codes.reshape(-1)
            flat[0] += 1 if flat[0] < 1 else -1
        return codes, scales

    return Altered("quantize", alter)


def raises_on(size: int, error: BaseException) -> Altered:
    """A kernel that raises for tensors of one size."""

    def alter(result: Any, x: torch.Tensor) -> Any:
        if x.numel() == size:
            raise error
        return result

    return Altered("quantize", alter)


class OnlyQuantizes:
    """A subject that can quantize, and not split."""

    name = "fake"
    version = "1.0"
    backend = "native"
    quantize = ReferenceSubject.quantize
    dequantize = ReferenceSubject.dequantize


class DoesNothing:
    """A subject with no method at all."""

    name = "fake"
    version = "1.0"
    backend = "native"
