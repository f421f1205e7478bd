"""The FlashOptim authors' package, called through its public wrappers, unmodified on disk."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import triton

from flashcheck.config import SpecOptions
from flashcheck.errors import UnavailableError
from flashcheck.subjects.base import Backend, Shim

_AUTOTUNED = ("_triton_quantize_kernel", "_triton_dequantize_kernel")
_COUNT = "_get_sm_count"
_PROBED = 2085
_FIXED_BLOCK = ("_compute_ecc_bits_kernel", "_reconstruct_fp32_kernel")


class FlashOptim:
    """``flashoptim`` on a GPU, or on the interpreter with its repairs.

    Autotuned kernels are pinned to one configuration: on a GPU the first of the authors' list, on
    the interpreter one with a larger block. The other configurations stay reachable by
    :meth:`pin`.

    Raises:
        UnavailableError: the package is not installed.
    """

    name = "flashoptim"

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
        self._kernels = {name: getattr(self._optimizers, name) for name in _AUTOTUNED}
        self._configurations = {
            name: list(kernel.configs) for name, kernel in self._kernels.items()
        }
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
        interpreter.larger_blocks(self._optimizers, _FIXED_BLOCK)
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
                repairs=f"launches kernels in blocks of {interpreter.BLOCK:,} elements, for speed",
                checked=checked,
            ),
            Shim(
                name="single_configuration",
                repairs="spares the autotuner, which asks for a GPU driver to time kernels with",
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
