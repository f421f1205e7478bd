"""Triton kernels of one operation each; import this only once the interpreter is chosen."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def widen(narrow, wide, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(narrow + at, mask=at < n, other=0)
    tl.store(wide + at, x.to(tl.float32), mask=at < n)


@triton.jit
def narrow(wide, narrow, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(wide + at, mask=at < n, other=0)
    tl.store(narrow + at, x.to(tl.bfloat16), mask=at < n)


@triton.jit
def copysign(magnitude, sign, out, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(magnitude + at, mask=at < n, other=0)
    y = tl.load(sign + at, mask=at < n, other=0)
    tl.store(out + at, libdevice.copysign(x, y), mask=at < n)


@triton.jit
def power(base, exponent, out, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(base + at, mask=at < n, other=0)
    y = tl.load(exponent + at, mask=at < n, other=0)
    tl.store(out + at, libdevice.pow(x, y), mask=at < n)
