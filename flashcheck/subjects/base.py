"""The protocol of a subject, and how one is called.

A subject is any object with the attributes of :class:`Subject` and any of these methods; a suite
asks only for those it needs::

    quantize(x, *, signed, sqrt, softsign, group_size) -> (codes, scales)
    dequantize(codes, scales, *, signed, sqrt, softsign, group_size) -> float32
    compute_ecc(x, narrow, *, ecc_dtype) -> codes
    reconstruct(narrow, ecc) -> float32

Tensors come on the subject's device and its results stay there. ``codes`` have the input's shape,
int8 if signed, else uint8; ``scales`` are float16, one a group; ``ecc_dtype`` is torch.int8 or
torch.int16. The arithmetic is that of Algorithms 1 to 3 of arXiv 2602.23349.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from flashcheck.errors import SubjectError

METHODS = ("quantize", "dequantize", "compute_ecc", "reconstruct")
"""What a subject may offer; it needs one of them at least."""


class Backend(str, Enum):
    """Where a subject runs."""

    CUDA = "cuda"
    INTERPRETER = "interpreter"
    NATIVE = "native"


@dataclass(frozen=True)
class Shim:
    """A repair of the Triton interpreter: what it puts right, and what its self-check compared."""

    name: str
    repairs: str
    checked: str


@dataclass(frozen=True)
class Kernel:
    """A Triton kernel as it is launched, for a compiler to look at.

    Attributes:
        name: what it computes, as ``quantize/momentum``.
        function: the ``triton.jit`` function.
        signature: Triton types of its arguments that are no constants.
        constants: its constants.
        divisions: how many divisions by a variable its source makes of each element.
        constant_divisions: how many by a constant that has no exact reciprocal.
    """

    name: str
    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisions: int
    constant_divisions: int


@runtime_checkable
class Auditable(Protocol):
    """A subject whose Triton kernels can be compiled for any target."""

    def kernels(self) -> Sequence[Kernel]:
        """Every kernel, in each specialisation that a suite launches."""


@runtime_checkable
class Subject(Protocol):
    """What every subject has; see the module's text for the methods."""

    name: str
    version: str
    backend: str


@runtime_checkable
class Autotuned(Protocol):
    """A subject whose kernels can be launched in several configurations."""

    def configurations(self) -> dict[str, list[str]]:
        """Of each autotuned kernel, its configurations in words."""

    def pin(self, index: int) -> None:
        """Launch every kernel in its configuration of this index from now on."""

    def pinned(self) -> dict[str, str]:
        """The configuration each kernel is launched in now."""


def device_of(subject: Subject) -> str:
    """The torch device a subject wants its inputs on."""
    default = "cuda" if subject.backend == Backend.CUDA.value else "cpu"
    return str(getattr(subject, "device", default))


def missing_methods(subject: object, *methods: str) -> list[str]:
    """Those of ``methods`` that the subject lacks."""
    return [name for name in methods if not callable(getattr(subject, name, None))]


def call(subject: Subject, method: str, *args: Any, **options: Any) -> Any:
    """Call a subject's method; whatever it raises becomes a :class:`SubjectError`."""
    try:
        return getattr(subject, method)(*args, **options)
    except (Exception, SystemExit) as error:  # one that calls exit() must not end the run
        text = " ".join(str(error).split()) or "no message"
        raise SubjectError(f"{method} raised {type(error).__name__}: {text}") from error
