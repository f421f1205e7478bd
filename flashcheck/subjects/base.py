"""The protocol of a subject, and how one is called.

A subject is any object with any of these methods; a suite asks only for those it needs::

    quantize(x, *, signed, sqrt, softsign, group_size) -> (codes, scales)
    dequantize(codes, scales, *, signed, sqrt, softsign, group_size) -> float32
    compute_ecc(x, narrow, *, ecc_dtype) -> codes
    reconstruct(narrow, ecc) -> float32
    step(state, grad, *, optimizer, step, lr, weight_decay, initial_lr, **others) -> state

Tensors come on the subject's device and its results stay there. ``codes`` have the input's shape,
int8 if signed, else uint8; ``scales`` are float16, one a group; ``ecc_dtype`` is torch.int8 or
torch.int16. The arithmetic is that of Algorithms 1 to 3 of arXiv 2602.23349.

``step`` reads a compressed state, advances it by one step of an optimizer, and stores it: ``state``
is a dictionary of flat tensors (``param``, ``ecc``, ``momentum``, ``momentum_scales``,
``variance``, ``variance_scales``; :mod:`flashcheck.optimizers` says which are there and of which
dtypes), and the result has the same keys. It may work in place; ``grad`` must stay as it is.
``optimizer`` is ``adam``, ``adamw``, ``sgd``, ``sgdw`` or ``lion``; the others are its
hyperparameters: ``beta1``, ``beta2`` and ``eps`` of Adam, the first two of Lion, ``momentum``,
``dampening`` and ``nesterov`` of SGD. What it does not have it refuses with
``NotImplementedError("why")``, and the case is ``unsupported``.

It may say of itself ``name``, ``version``, ``backend`` (``cuda``, ``interpreter`` or ``native``)
and ``device``, the torch device that it wants its tensors on. A class or factory that takes an
argument ``backend`` is told the one that Triton kernels run on here; a file that imports Triton
runs on that one unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

from flashcheck.errors import SubjectError

METHODS = ("quantize", "dequantize", "compute_ecc", "reconstruct", "step")
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
        fuses: whether it is launched with fusion left to Triton's default; else it is off.
    """

    name: str
    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisions: int
    constant_divisions: int
    fuses: bool = True


class Auditable(Protocol):
    """A subject whose Triton kernels can be compiled for any target."""

    def kernels(self) -> Sequence[Kernel]:
        """Every kernel, in each specialisation that a suite launches."""


class Subject(Protocol):
    """What every subject has; see the module's text for the methods."""

    name: str
    version: str
    backend: str


class Autotuned(Protocol):
    """A subject whose kernels can be launched in several configurations."""

    def configurations(self) -> dict[str, list[str]]:
        """Of each autotuned kernel, its configurations in words."""

    def pin(self, index: int) -> None:
        """Launch every kernel in its configuration of this index from now on."""

    def pinned(self) -> dict[str, str]:
        """The configuration each kernel is launched in now."""


def autotuned(subject: Subject) -> Autotuned | None:
    """The subject as one whose kernels have configurations; none if it is not.

    Asked by its attributes: a user's object stands behind a wrapper, which isinstance of a protocol
    does not see through.
    """
    missing = missing_methods(subject, "configurations", "pin", "pinned")
    return None if missing else cast("Autotuned", subject)


def auditable(subject: Subject) -> Auditable | None:
    """The subject as one whose kernels can be compiled; none if it is not."""
    return None if missing_methods(subject, "kernels") else cast("Auditable", subject)


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
