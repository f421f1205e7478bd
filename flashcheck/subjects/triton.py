"""The in-tree Triton kernels as a subject: the control of what the authors' kernels are."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import triton

from flashcheck import __version__, kernels
from flashcheck.formats import (
    ECC_FORMATS,
    FP32,
    NARROW_FORMATS,
    ecc_format,
    narrow_format,
    quantized_format,
    torch_dtype,
)
from flashcheck.kernels.optimizers import adam_kernel
from flashcheck.kernels.quantization import dequantize_kernel, quantize_kernel
from flashcheck.kernels.splitting import compute_ecc_kernel, reconstruct_kernel
from flashcheck.optimizers import (
    GROUP_SIZE,
    SPECS,
    Constants,
    Hyperparameters,
    Optimizer,
    State,
    check_state,
)
from flashcheck.subjects.base import Backend, Kernel, Shim

_LAUNCH = {"enable_fp_fusion": False}


class InTree:
    """Correctly rounded and unfused, so bit-equal to the reference in every suite."""

    name = "triton"
    version = __version__
    steps_through = "one fused kernel of Adam"

    def __init__(self, backend: Backend) -> None:
        self.backend = backend.value
        self.shims: list[Shim] = []
        self._block_for: Callable[[int], int] = lambda _: 1024
        self._quiet: Any = nullcontext
        if backend is Backend.INTERPRETER:
            from flashcheck.subjects import interpreter

            self._block_for = interpreter.block_for
            self._quiet = interpreter.quiet

    @property
    def source_sha256(self) -> str:
        """Of the kernels' files, in the order of their names."""
        digest = hashlib.sha256()
        for path in sorted(Path(str(kernels.__file__)).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def kernels(self) -> list[Kernel]:
        """The kernels of single functions; not on the interpreter, which compiles none."""
        return [*_quantization_kernels(), *_splitting_kernels()]

    def quantize(
        self, x: torch.Tensor, *, signed: bool, sqrt: bool, softsign: bool, group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fmt = quantized_format(signed)
        n, groups = x.numel(), -(-x.numel() // group_size)
        codes = torch.empty(x.shape, dtype=torch_dtype(fmt), device=x.device)
        scales = torch.empty(groups, dtype=torch.float16, device=x.device)
        padded = triton.next_power_of_2(group_size)
        rows = max(1, self._block_for(n) // padded)
        if n:
            with self._quiet():
                quantize_kernel[(triton.cdiv(groups, rows),)](
                    x.contiguous(),
                    codes,
                    scales,
                    n,
                    groups,
                    LARGEST=float(fmt.max_code),
                    SMALLEST=float(fmt.min_code),
                    SQRT=sqrt,
                    SOFTSIGN=softsign,
                    GROUP_SIZE=group_size,
                    PADDED_GROUP=padded,
                    GROUPS=rows,
                    **_LAUNCH,
                )
        return codes, scales

    def dequantize(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        *,
        signed: bool,
        sqrt: bool,
        softsign: bool,
        group_size: int,
    ) -> torch.Tensor:
        values = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
        if codes.numel():
            grid, block = self._blocks(codes)
            with self._quiet():
                dequantize_kernel[grid](
                    codes.contiguous(),
                    scales.contiguous(),
                    values,
                    codes.numel(),
                    LARGEST=float(quantized_format(signed).max_code),
                    SQRT=sqrt,
                    SOFTSIGN=softsign,
                    GROUP_SIZE=group_size,
                    BLOCK=block,
                    **_LAUNCH,
                )
        return values

    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        codes = torch.empty(x.shape, dtype=ecc_dtype, device=x.device)
        if x.numel():
            grid, block = self._blocks(x)
            with self._quiet():
                compute_ecc_kernel[grid](
                    x.contiguous(),
                    narrow.contiguous().view(torch.int16),
                    codes,
                    x.numel(),
                    BLOCK=block,
                    **_split_constants(narrow.dtype, ecc_dtype),
                    **_LAUNCH,
                )
        return codes

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        values = torch.empty(narrow.shape, dtype=torch.float32, device=narrow.device)
        if narrow.numel():
            grid, block = self._blocks(narrow)
            with self._quiet():
                reconstruct_kernel[grid](
                    narrow.contiguous().view(torch.int16),
                    ecc.contiguous(),
                    values,
                    narrow.numel(),
                    BLOCK=block,
                    **_split_constants(narrow.dtype, ecc.dtype),
                    **_LAUNCH,
                )
        return values

    def step(self, state: State, grad: torch.Tensor, *, optimizer: str, **hyper: Any) -> State:
        """Adam and AdamW, in place.

        Raises:
            NotImplementedError: another optimizer.
            ValueError: the state does not fit the parameter.
        """
        given = Hyperparameters(Optimizer(optimizer), **hyper)
        if not given.optimizer.adaptive:
            raise NotImplementedError(f"the in-tree kernels have no {optimizer}, only Adam's step")
        check_state(state, grad, given)
        n = grad.numel()
        constants = vars(Constants.of(given))
        names = ("lr", "decay", "eps", "beta1", "rest1", "bias1", "beta2", "rest2", "bias2")
        groups = -(-n // GROUP_SIZE)
        rows = max(1, self._block_for(n) // GROUP_SIZE)
        param = _as_stored(state["param"])
        quantized = "momentum_scales" in state
        if n:
            with self._quiet():
                adam_kernel[(triton.cdiv(groups, rows),)](
                    param,
                    state.get("ecc", param),
                    *(
                        _as_stored(state[moment]) if part == "" else state.get(moment + part, param)
                        for moment in SPECS
                        for part in ("", "_scales")
                    ),
                    _as_stored(grad.contiguous()),
                    n,
                    groups,
                    *(constants[name] for name in names),
                    QUANTIZED=quantized,
                    GROUPS=rows,
                    **_step_constants(given, state["param"].dtype, state.get("ecc")),
                    **_LAUNCH,
                )
        return state

    def _blocks(self, x: torch.Tensor) -> tuple[tuple[int], int]:
        """The grid that covers a tensor's elements, and its blocks."""
        block = self._block_for(x.numel())
        return (triton.cdiv(x.numel(), block),), block


def _split_constants(narrow: torch.dtype, ecc: torch.dtype) -> dict[str, Any]:
    fmt = narrow_format(narrow)
    return {
        "LARGEST": float(ecc_format(ecc).max_code),
        "MANTISSA": fmt.mantissa_bits,
        "EXPONENT_MASK": fmt.exponent_mask,
        "BIAS": fmt.bias,
    }


def _as_stored(x: torch.Tensor) -> torch.Tensor:
    """The bits of narrow floats; anything else as it is."""
    return x.view(torch.int16) if x.dtype in (torch.bfloat16, torch.float16) else x


def _step_constants(
    hyper: Hyperparameters, dtype: torch.dtype, ecc: torch.Tensor | None
) -> dict[str, Any]:
    wide = dtype == torch.float32
    fmt = FP32 if wide else narrow_format(dtype)
    decays = bool(hyper.weight_decay)
    decoupled = decays and hyper.optimizer.decoupled
    return {
        "CORRECTED": ecc is not None,
        "COUPLED": decays and not decoupled,
        "DECOUPLED": decoupled,
        "FULLY": decoupled and hyper.initial_lr is not None,
        "LARGEST_ECC": 1.0 if ecc is None else float(ecc_format(ecc.dtype).max_code),
        "MANTISSA": fmt.mantissa_bits,
        "EXPONENT_MASK": fmt.exponent_mask,
        "BIAS": fmt.bias,
        "GROUP_SIZE": GROUP_SIZE,
    }


def _quantization_kernels() -> list[Kernel]:
    made = []
    for name, signed in (("momentum", True), ("variance", False)):
        fmt = quantized_format(signed)
        codes = "*i8" if signed else "*u8"
        shared = {
            "LARGEST": float(fmt.max_code),
            "SQRT": not signed,
            "SOFTSIGN": signed,
            "GROUP_SIZE": 32,
        }
        rows = {"SMALLEST": float(fmt.min_code), "PADDED_GROUP": 32, "GROUPS": 32}
        made += [
            Kernel(
                name=f"quantize/{name}",
                function=quantize_kernel,
                signature={
                    "x_ptr": "*fp32",
                    "codes_ptr": codes,
                    "scales_ptr": "*fp16",
                    "n_elements": "i32",
                    "n_groups": "i32",
                },
                constants={**shared, **rows},
                divisions=2 if signed else 1,
                constant_divisions=0,
                fuses=False,
            ),
            Kernel(
                name=f"dequantize/{name}",
                function=dequantize_kernel,
                signature={
                    "codes_ptr": codes,
                    "scales_ptr": "*fp16",
                    "values_ptr": "*fp32",
                    "n_elements": "i32",
                },
                constants={**shared, "BLOCK": 1024},
                divisions=1 if signed else 0,
                constant_divisions=1,
                fuses=False,
            ),
        ]
    return made


def _splitting_kernels() -> list[Kernel]:
    made = []
    for narrow, ecc in itertools.product(NARROW_FORMATS.values(), ECC_FORMATS.values()):
        pair = f"{narrow.name}+{ecc.name}"
        constants = {**_split_constants(torch_dtype(narrow), torch_dtype(ecc)), "BLOCK": 1024}
        pointers = {"narrow_ptr": "*i16", "codes_ptr": f"*i{ecc.bits}", "n_elements": "i32"}
        made += [
            Kernel(
                name=f"compute_ecc/{pair}",
                function=compute_ecc_kernel,
                signature={"x_ptr": "*fp32", **pointers},
                constants=constants,
                divisions=0,
                constant_divisions=0,
                fuses=False,
            ),
            Kernel(
                name=f"reconstruct/{pair}",
                function=reconstruct_kernel,
                signature={"values_ptr": "*fp32", **pointers},
                constants=constants,
                divisions=0,
                constant_divisions=1,
                fuses=False,
            ),
        ]
    return made
