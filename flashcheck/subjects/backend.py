"""The choice of a backend, made before any kernel's module is imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Literal

from flashcheck.errors import UnavailableError
from flashcheck.subjects.base import Backend, Shim

Requested = Literal["auto", "cuda", "interpreter"]


def choose(requested: Requested) -> Backend:
    """The backend to run Triton kernels on here.

    Raises:
        UnavailableError: ``cuda`` is asked for and torch sees no GPU.
    """
    import torch

    if requested == "interpreter":
        return Backend.INTERPRETER
    if torch.cuda.is_available():
        return Backend.CUDA
    if requested == "cuda":
        raise UnavailableError(
            f"--backend cuda: torch {torch.__version__} sees no GPU here; run 'flashcheck doctor' "
            "to see why, or use --backend interpreter"
        )
    return Backend.INTERPRETER


def prepare(backend: Backend) -> list[Shim]:
    """Make Triton ready for a backend; call before importing a module with kernels.

    Returns:
        The interpreter's shims, none on a GPU.

    Raises:
        UnavailableError: Triton is missing, was imported for the other backend, or the
            interpreter's self-check failed.
    """
    if importlib.util.find_spec("triton") is None:
        raise UnavailableError(
            "the package triton is missing; it has wheels for Linux only: pip install triton"
        )
    interpret = backend is Backend.INTERPRETER
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
    import triton

    if triton.knobs.runtime.interpret != interpret:
        raise UnavailableError(
            f"Triton was imported before the backend {backend.value} was chosen, with "
            f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET', '')!r}; unset it"
        )
    if not interpret:
        return []
    from flashcheck.subjects import interpreter

    return interpreter.activate()
