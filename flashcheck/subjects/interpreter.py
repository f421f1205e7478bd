"""Repairs of Triton's interpreter, so that kernels written for a GPU run right on a CPU.

Each puts one thing right that the interpreter gets wrong or cannot do, in memory only, and is
checked when it is put in place. What is wrong for every kernel is a function of :data:`_REPAIRS`;
what a subject needs for its own kernels (a number of multiprocessors, larger blocks) it asks for
by the functions at the end, and checks against its kernels as they were.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

from flashcheck.errors import UnavailableError
from flashcheck.subjects.base import Shim

BLOCK = 1 << 16
"""Elements a program instance works on: each costs Python time, whatever its size."""

_SMALLEST, _LARGEST = 1 << 12, 1 << 17


@functools.cache
def activate() -> list[Shim]:
    """Put the repairs in place, once, and check each.

    Raises:
        UnavailableError: a repaired operation still disagrees with torch.
    """
    _keep_memory()
    _spare_unused_checks()
    return [repair() for repair in _REPAIRS]


def _keep_memory() -> None:
    """Have the C library keep what is freed, rather than give it back and ask for it anew.

    Each operation of a kernel allocates; by default a block is large enough to come from the system
    each time, and page by page: without that a kernel takes about a quarter less time.
    """
    trim_threshold, mmap_threshold = -1, -3
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another library than glibc
        return
    for parameter in (trim_threshold, mmap_threshold):
        mallopt(parameter, 1 << 30)


def _spare_unused_checks() -> None:
    """Have no integer overflow computed that nothing is told of.

    For each sum, difference and product of integers the interpreter works out in int64 whether it
    overflows, and asserts that it does not; but assertions are off unless it debugs, as on a GPU.
    That takes a quarter of the time of a kernel.
    """
    options = interpreter_builder.options
    if not options.debug:
        interpreter_builder.options = replace(options, sanitize_overflow=False)


@contextmanager
def quiet() -> Iterator[None]:
    """NumPy's warnings off: a GPU overflows and makes NaN without a word."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _repair_bfloat16() -> Shim:
    """The interpreter widens bf16 subnormals to other values and narrows by truncation."""
    original = InterpreterBuilder.cast_impl

    def cast_impl(self: InterpreterBuilder, src: TensorHandle, dst_type: Any) -> TensorHandle:
        pair = (src.dtype.scalar, dst_type.scalar)
        if pair == (tl.bfloat16, tl.float32):
            return TensorHandle(_widen(src.data), tl.float32)
        if pair == (tl.float32, tl.bfloat16):
            return TensorHandle(_narrow(src.data), tl.bfloat16)
        return original(self, src, dst_type)

    InterpreterBuilder.cast_impl = cast_impl

    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    wide = every.view(torch.bfloat16).to(torch.float32)
    handle = TensorHandle(every.numpy(), tl.bfloat16)
    widened = torch.from_numpy(interpreter_builder.cast_impl(handle, tl.float32).data)
    _expect("bf16 to float32", widened, wide)
    high = wide.view(torch.int32)
    for low in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        exact = (high | low).view(torch.float32)
        handle = TensorHandle(exact.numpy(), tl.float32)
        narrowed = torch.from_numpy(interpreter_builder.cast_impl(handle, tl.bfloat16).data)
        _expect("float32 to bf16", narrowed.view(torch.bfloat16), exact.to(torch.bfloat16))
    return Shim(
        name="bfloat16_conversion",
        repairs="widens bf16 subnormals exactly, narrows to nearest even",
        checked="all 65,536 bf16 widened, and narrowed with 6 remainders each, against torch",
    )


def _widen(data: np.ndarray) -> np.ndarray:
    return (data.astype(np.uint32) << 16).view(np.float32)


def _narrow(data: np.ndarray) -> np.ndarray:
    bits = data.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(data), quiet_nan, rounded).astype(np.uint16)


def _repair_copysign() -> Shim:
    """``libdevice.copysign`` is a stub that returns None."""
    libdevice.copysign = _elementwise(np.copysign)
    x = torch.tensor([0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf"), 2.0**-149, -(2.0**-149)])
    magnitudes, signs = x.repeat_interleave(x.numel()), x.repeat(x.numel())
    result = _call_repaired(libdevice.copysign, magnitudes, signs)
    _expect("libdevice.copysign", result, torch.copysign(magnitudes, signs))
    return Shim(
        name="libdevice_copysign",
        repairs="gives a result instead of None",
        checked="64 pairs of zeros, infinities, subnormals and others, against torch",
    )


def _repair_pow() -> Shim:
    """``libdevice.pow`` is a stub that returns None; computed in float64, rounded once."""

    def power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            wide = np.power(base.astype(np.float64), exponent.astype(np.float64))
            return wide.astype(np.float32)

    libdevice.pow = _elementwise(power)
    bases = torch.tensor([0.0, 0.5, 0.9, 0.95, 0.999, 0.9999, 1.0, 2.0])
    exponents = torch.tensor([0.0, 1.0, 2.0, 3.0, 10.0, 100.0, 1e3, 1e4])
    base, exponent = bases.repeat_interleave(8), exponents.repeat(8)
    result = _call_repaired(libdevice.pow, base, exponent)
    _expect("libdevice.pow", result, torch.pow(base.double(), exponent.double()).float())
    return Shim(
        name="libdevice_pow",
        repairs="gives a result instead of None: the float64 power, rounded to float32",
        checked="64 pairs of decay rates and steps, against torch in float64",
    )


@triton.jit
def _complement_kernel(x, out):  # type: ignore[no-untyped-def]
    tl.store(out, 1.0 - x)


def _repair_float_arguments() -> Shim:
    """A launch passes a Python float as float32; the interpreter computes with it in float64."""
    original = interpreter._implicit_cvt

    def convert(arg: Any) -> Any:
        if type(arg) is float:
            return tl.tensor(TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)
        return original(arg)

    interpreter._implicit_cvt = convert

    numbers = torch.tensor([0.9, 0.999, 0.1, 1 / 3, 1e-8, 0.5], dtype=torch.float64)
    out = torch.empty(numbers.numel())
    for i, number in enumerate(numbers.tolist()):
        _complement_kernel[(1,)](number, out[i:])
    _expect("1.0 - x of a float argument", out, 1.0 - numbers.float())
    return Shim(
        name="float_arguments",
        repairs="passes Python floats as float32, not float64",
        checked="1 - x of 6 numbers in a kernel, against torch in float32",
    )


_REPAIRS: list[Callable[[], Shim]] = [
    _repair_bfloat16,
    _repair_copysign,
    _repair_pow,
    _repair_float_arguments,
]


def _elementwise(function: Callable[..., np.ndarray]) -> Callable[..., tl.tensor]:
    """A libdevice function of float32 tensors and numbers, by a NumPy one."""

    def interpreted(*args: Any) -> tl.tensor:
        data = [
            arg.handle.data
            if isinstance(arg, tl.tensor)
            else np.float32(getattr(arg, "value", arg))
            for arg in args
        ]
        result = np.asarray(function(*data), dtype=np.float32)
        shape = next((arg.type for arg in args if isinstance(arg, tl.tensor)), tl.float32)
        kind = shape.with_element_ty(tl.float32) if shape.is_block() else tl.float32
        return tl.tensor(TensorHandle(result, tl.float32), kind)

    return interpreted


def _call_repaired(function: Callable[..., Any], *args: torch.Tensor) -> torch.Tensor:
    kind = tl.block_type(tl.float32, [args[0].numel()])
    tensors = [tl.tensor(TensorHandle(arg.numpy(), tl.float32), kind) for arg in args]
    return torch.from_numpy(function(*tensors).handle.data)


def _expect(what: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    integers = torch.int32 if wanted.dtype == torch.float32 else torch.int16
    same = (got.view(integers) == wanted.view(integers)) | (got.isnan() & wanted.isnan())
    if not same.all():
        raise UnavailableError(
            f"the interpreter of Triton {triton.__version__} still gets {what} wrong for "
            f"{int((~same).sum())} of {same.numel()} values; use a Triton that flashcheck is "
            "tested with (constraints.txt)"
        )


def one_multiprocessor(module: Any, function: str) -> None:
    """Stand in for a function of ``module`` that asks CUDA for its number of multiprocessors."""
    setattr(module, function, lambda *_: 1)


def block_for(elements: int) -> int:
    """The block of a kernel that may have any: no larger than its tensors need, else the fastest.

    Above 2^17 elements an operation is no faster: its operands no longer fit the cache.
    """
    needed = 1 << max(elements - 1, 0).bit_length()
    return min(max(needed, _SMALLEST), _LARGEST)


def larger_blocks(module: Any, kernels: Sequence[str], argument: str) -> None:
    """Launch kernels with blocks of :func:`block_for` elements instead of their own.

    Args:
        argument: of the kernels, that says how many elements a block has.
    """
    for name in kernels:
        setattr(module, name, _WithBlock(getattr(module, name), argument))


class _WithBlock:
    """A kernel whose block is set by us, for the largest tensor that it is given."""

    def __init__(self, kernel: Any, argument: str) -> None:
        self._kernel = kernel
        self._argument = argument

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launch = self._kernel[grid]

        def launch_with_block(*args: Any, **options: Any) -> Any:
            elements = max(arg.numel() for arg in args if isinstance(arg, torch.Tensor))
            return launch(*args, **{**options, self._argument: block_for(elements)})

        return launch_with_block
