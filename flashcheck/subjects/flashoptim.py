"""The FlashOptim authors' package, called through its public wrappers, unmodified on disk."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from flashcheck.config import SpecOptions
from flashcheck.errors import UnavailableError
from flashcheck.optimizers import State
from flashcheck.subjects import flashoptim_steps
from flashcheck.subjects.base import Backend, Kernel, Shim

_AUTOTUNED = ("_triton_quantize_kernel", "_triton_dequantize_kernel")
_COUNT = "_get_sm_count"
_PROBED = 2085
_SPLITTING = ("_compute_ecc_bits_kernel", "_reconstruct_fp32_kernel")
_STEPS = ("_triton_adam_kernel", "_triton_momentum_kernel")
_FIXED_BLOCK = (*_SPLITTING, *_STEPS)


@dataclass(frozen=True)
class _Shipped:
    """The package's kernels and their configurations, before anything here changed them."""

    kernels: dict[str, Any]
    configurations: dict[str, list[Any]]


@functools.cache
def _as_shipped() -> _Shipped:
    module = importlib.import_module("flashoptim.optimizers")
    kernels = {name: getattr(module, name) for name in (*_AUTOTUNED, *_FIXED_BLOCK)}
    return _Shipped(kernels, {name: list(kernels[name].configs) for name in _AUTOTUNED})


class FlashOptim:
    """``flashoptim`` on a GPU, or on the interpreter with its repairs.

    Autotuned kernels are pinned to one configuration: on a GPU the first of the authors' list, on
    the interpreter one with a larger block. The other configurations stay reachable by
    :meth:`pin`.

    Raises:
        UnavailableError: the package is not installed.
    """

    name = "flashoptim"
    steps_through = flashoptim_steps.THROUGH

    def __init__(self, backend: Backend) -> None:
        if importlib.util.find_spec("flashoptim") is None:
            raise UnavailableError(
                "the package flashoptim is missing; install it: pip install flashoptim==0.1.4"
            )
        self._package = importlib.import_module("flashoptim")
        self._optimizers = importlib.import_module("flashoptim.optimizers")
        self.version = importlib.metadata.version("flashoptim")
        self.backend = backend.value
        self.shims: list[Shim] = []
        shipped = _as_shipped()
        self._kernels = {name: shipped.kernels[name] for name in _AUTOTUNED}
        self._configurations = {name: list(shipped.configurations[name]) for name in _AUTOTUNED}
        for name in _FIXED_BLOCK:
            setattr(self._optimizers, name, shipped.kernels[name])
        self._quiet: Any = nullcontext
        if backend is Backend.INTERPRETER:
            self._run_interpreted()
        self.pin(0)

    def _run_interpreted(self) -> None:
        """Ask the interpreter for what the kernels need, and check that no bit depends on it."""
        from flashcheck.subjects import interpreter

        self._quiet = interpreter.quiet
        interpreter.one_multiprocessor(self._optimizers, _COUNT)
        self.pin(0)
        as_shipped = self._probe()
        interpreter.larger_blocks(self._optimizers, _SPLITTING, "BLOCK_SIZE")
        interpreter.larger_blocks(self._optimizers, _STEPS, "BLOCK_SIZE_N")
        large = triton.Config({"BLOCK_SIZE_N": interpreter.BLOCK})
        for configurations in self._configurations.values():
            configurations.insert(0, large)
        self.pin(0)
        for first, now in zip(as_shipped, self._probe(), strict=True):
            if not torch.equal(first.view(torch.uint8), now.view(torch.uint8)):
                raise UnavailableError("the kernels' results depend on their block size")
        checked = f"equal bits to the kernels' own blocks and configuration, {_PROBED:,} values"
        self.shims = [
            Shim(
                name="multiprocessor_count",
                repairs="answers 1 where the kernels' grid asks CUDA for its multiprocessors",
                checked=checked,
            ),
            Shim(
                name="block_size",
                repairs="launches kernels in larger blocks, for speed",
                checked=checked,
            ),
            Shim(
                name="single_configuration",
                repairs="spares the autotuner, which asks for a GPU driver to time kernels with",
                checked=checked,
            ),
            Shim(
                name="gpu_available",
                repairs="answers yes where an optimizer asks whether there is a GPU to step on",
                checked=checked,
            ),
        ]

    def _probe(self) -> list[torch.Tensor]:
        """Every kernel's results on a few values that fill no whole block or group."""
        x = torch.arange(1, _PROBED + 1).to(torch.float32).reciprocal()
        outputs = []
        for signed in (True, False):
            spec: SpecOptions = {"signed": signed, "sqrt": not signed, "softsign": signed}
            codes, scales = self.quantize(x, group_size=32, **spec)
            outputs += [codes, scales, self.dequantize(codes, scales, group_size=32, **spec)]
        for ecc_dtype in (torch.int8, torch.int16):
            narrow = x.to(torch.bfloat16)
            ecc = self.compute_ecc(x, narrow, ecc_dtype=ecc_dtype)
            outputs += [ecc, self.reconstruct(narrow, ecc)]
        n, groups = x.numel(), -(-x.numel() // 32)
        for optimizer in ("adamw", "lion"):
            state = {
                "param": x.to(torch.bfloat16),
                "ecc": torch.arange(n).to(torch.int8),
                "momentum": torch.arange(n).to(torch.int8),
                "momentum_scales": torch.ones(groups, dtype=torch.float16),
            }
            options: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99}
            if optimizer == "adamw":
                state["variance"] = torch.arange(n).to(torch.uint8)
                state["variance_scales"] = torch.ones(groups, dtype=torch.float16)
                options["eps"] = 1e-8
            options |= {"step": 3, "lr": 1e-2, "weight_decay": 0.1, "initial_lr": None}
            stored = self.step(state, x.to(torch.bfloat16), optimizer=optimizer, **options)
            outputs += list(stored.values())
        return outputs

    @property
    def source_sha256(self) -> str:
        """Of the package's Python files, in the order of their names."""
        digest = hashlib.sha256()
        for path in sorted(Path(str(self._package.__file__)).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def configurations(self) -> dict[str, list[str]]:
        return {name: [str(c) for c in configs] for name, configs in self._configurations.items()}

    def pin(self, index: int) -> None:
        for name, kernel in self._kernels.items():
            kernel.configs = [self._configurations[name][index]]

    def pinned(self) -> dict[str, str]:
        return {name: str(kernel.configs[0]) for name, kernel in self._kernels.items()}

    def standalone(self) -> str:
        """Python that makes ``subject`` and ``device`` without flashcheck."""
        if self.backend == Backend.INTERPRETER.value:
            return _INTERPRETED + _WRAPPERS + 'device = "cpu"\n'
        return (
            "import flashoptim\nimport flashoptim.optimizers as kernels\n"
            + _WRAPPERS
            + ('device = "cuda"\n')
        )

    def kernels(self) -> list[Kernel]:
        """The kernels that the suites launch; not on the interpreter, which compiles none."""
        return [*self._quantization_kernels(), *self._splitting_kernels()]

    def _quantization_kernels(self) -> list[Kernel]:
        made = []
        for name, signed in (("momentum", True), ("variance", False)):
            code, largest = ("i8", 127.0) if signed else ("u8", 255.0)
            shared = {"GROUP_SIZE": 32, "SQRT": not signed, "SOFTSIGN": signed, "BLOCK_SIZE_N": 256}
            made += [
                Kernel(
                    name=f"quantize/{name}",
                    function=self._kernels[_AUTOTUNED[0]].fn,
                    signature={
                        "in_ptr": "*fp32",
                        "q_out_ptr": f"*{code}",
                        "scales_out_ptr": "*fp16",
                        "N": "i32",
                    },
                    constants={
                        "OUT_MAX": largest,
                        "OUT_DTYPE": tl.int8 if signed else tl.uint8,
                        **shared,
                    },
                    divisions=2 if signed else 1,
                    constant_divisions=0,
                ),
                Kernel(
                    name=f"dequantize/{name}",
                    function=self._kernels[_AUTOTUNED[1]].fn,
                    signature={
                        "q_in_ptr": f"*{code}",
                        "scales_in_ptr": "*fp16",
                        "x_out_ptr": "*fp32",
                        "N": "i32",
                    },
                    constants={"IN_MAX": largest, **shared},
                    divisions=1 if signed else 0,
                    constant_divisions=1,
                ),
            ]
        return made

    def _splitting_kernels(self) -> list[Kernel]:
        made = []
        for narrow, mantissa in (("bf16", 7), ("fp16", 10)):
            for ecc, largest, code in (("int8", 127, "i8"), ("int16", 32767, "i16")):
                shared = {
                    "BLOCK_SIZE": 1024,
                    "NUM_MANTISSA_BITS": mantissa,
                    "SIGNED_MAX_VAL": largest,
                }
                made += [
                    Kernel(
                        name=f"compute_ecc/{narrow}+{ecc}",
                        function=getattr(self._optimizers, _FIXED_BLOCK[0]),
                        signature={
                            "fp32_ptr": "*fp32",
                            "narrow_ptr": f"*{narrow}",
                            "ecc_out_ptr": f"*{code}",
                            "n_elements": "i32",
                        },
                        constants={"SIGNED_ERROR_T": getattr(tl, ecc), **shared},
                        divisions=0,
                        constant_divisions=0,
                    ),
                    Kernel(
                        name=f"reconstruct/{narrow}+{ecc}",
                        function=getattr(self._optimizers, _FIXED_BLOCK[1]),
                        signature={
                            "x_ptr": f"*{narrow}",
                            "ecc_ptr": f"*{code}",
                            "out_ptr": "*fp32",
                            "n_elements": "i32",
                        },
                        constants=shared,
                        divisions=0,
                        constant_divisions=1,
                    ),
                ]
        return made

    def quantize(
        self, x: torch.Tensor, *, signed: bool, sqrt: bool, softsign: bool, group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._quiet():
            codes, scales = self._optimizers.quantize(
                x, signed=signed, sqrt=sqrt, softsign=softsign, group_size=group_size
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
        with self._quiet():
            values: torch.Tensor = self._optimizers.dequantize(
                codes, scales, signed=signed, sqrt=sqrt, softsign=softsign, group_size=group_size
            )
        return values

    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        width = narrow.element_size() + ecc_dtype.itemsize
        with self._quiet():
            codes: torch.Tensor = self._package.compute_ecc_bits(x, narrow, master_bytewidth=width)
        return codes

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        with self._quiet():
            values: torch.Tensor = self._package.reconstruct_fp32_param(narrow, ecc)
        return values

    def step(self, state: State, grad: torch.Tensor, **hyper: Any) -> State:
        interpreted = self.backend == Backend.INTERPRETER.value
        with self._quiet(), flashoptim_steps.without_a_gpu() if interpreted else nullcontext():
            return flashoptim_steps.step(self._package, state, grad, hyper)


_INTERPRETED = """
import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
import triton.language as tl
import triton.language.extra.libdevice as libdevice
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

np.seterr(all="ignore")  # a GPU overflows and makes NaN without a word

# The interpreter converts bf16 wrongly, and has no copysign.
_cast = InterpreterBuilder.cast_impl


def _exact_cast(self, src, dst_type):
    pair = (src.dtype.scalar, dst_type.scalar)
    if pair == (tl.bfloat16, tl.float32):
        return TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
    return _cast(self, src, dst_type)


def _copysign(x, sign):
    data = np.copysign(x.handle.data, sign.handle.data)
    return tl.tensor(TensorHandle(data, tl.float32), x.type)


InterpreterBuilder.cast_impl = _exact_cast
libdevice.copysign = _copysign

import flashoptim
import flashoptim.optimizers as kernels

# The grid asks CUDA for its multiprocessors, and the autotuner for a GPU to time kernels on.
kernels._get_sm_count = lambda *_: 1
for tuned in (kernels._triton_quantize_kernel, kernels._triton_dequantize_kernel):
    tuned.configs = tuned.configs[:1]

"""

_WRAPPERS = """

class subject:
    quantize = staticmethod(kernels.quantize)
    dequantize = staticmethod(kernels.dequantize)

    @staticmethod
    def compute_ecc(x, narrow, *, ecc_dtype):
        width = narrow.element_size() + ecc_dtype.itemsize
        return flashoptim.compute_ecc_bits(x, narrow, master_bytewidth=width)

    @staticmethod
    def reconstruct(narrow, ecc):
        return flashoptim.reconstruct_fp32_param(narrow, ecc)


"""
