"""What an optimizer step is given and gives: the optimizers, their hyperparameters, their state.

A state is a dictionary of tensors, each flat:

=================== ================================================================
``param``           bfloat16, float16 or float32
``ecc``             int8 or int16, the correction codes; only with a master weight
``momentum``        int8 codes, or values of the parameter's dtype
``momentum_scales`` float16, one a group of 32; only where the momentum is quantized
``variance``        uint8 codes, or values of the parameter's dtype
``variance_scales`` float16, likewise
=================== ================================================================

SGD without momentum has no momentum; only Adam has a variance.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]


class _Spec(TypedDict):
    signed: bool
    sqrt: bool
    softsign: bool


GROUP_SIZE = 32
"""Elements of a state that share a scale, as in the paper."""

SPECS: dict[str, _Spec] = {
    "momentum": {"signed": True, "sqrt": False, "softsign": True},
    "variance": {"signed": False, "sqrt": True, "softsign": False},
}
"""How each moment is quantized."""


class Optimizer(str, Enum):
    """An optimizer; the W is for weight decay that is decoupled from the gradient."""

    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"
    SGDW = "sgdw"
    LION = "lion"

    @property
    def adaptive(self) -> bool:
        """Whether it keeps a variance."""
        return self in (Optimizer.ADAM, Optimizer.ADAMW)

    @property
    def decoupled(self) -> bool:
        """Whether weight decay acts on the weight itself."""
        return self in (Optimizer.ADAMW, Optimizer.SGDW, Optimizer.LION)


@dataclass(frozen=True)
class Hyperparameters:
    """Of one step; which of them an optimizer takes, :meth:`options` says.

    Attributes:
        step: the number of this step, from 1.
        initial_lr: where given, the decay is decoupled from the learning rate as well: a weight
            loses the share ``weight_decay * lr / initial_lr`` of itself, not
            ``weight_decay * lr``.
        momentum: of SGD; 0 keeps no momentum.
    """

    optimizer: Optimizer
    step: int = 1
    lr: float = 1e-3
    weight_decay: float = 0.0
    initial_lr: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False

    def options(self) -> dict[str, Any]:
        """The keyword arguments of a subject's ``step``: those that this optimizer has."""
        names = ["step", "lr", "weight_decay", "initial_lr"]
        if self.optimizer.adaptive:
            names += ["beta1", "beta2", "eps"]
        elif self.optimizer is Optimizer.LION:
            names += ["beta1", "beta2"]
        else:
            names += ["momentum", "dampening", "nesterov"]
        return {"optimizer": self.optimizer.value, **{n: getattr(self, n) for n in names}}

    def moments(self) -> list[str]:
        """The moments that it keeps."""
        if self.optimizer.adaptive:
            return ["momentum", "variance"]
        plain = self.optimizer in (Optimizer.SGD, Optimizer.SGDW) and not self.momentum
        return [] if plain else ["momentum"]


@dataclass(frozen=True)
class Constants:
    """The constants of a step's formulas, each a number that float32 has.

    Attributes:
        decay: ``lambda``; decoupled from the learning rate as well, ``lambda lr / lr_0``.
        kept: the share of a weight that decoupled decay leaves.
        undamped: ``1 - dampening``.
        rest1: ``1 - beta1``; ``bias1``: ``1 - beta1^t``.
    """

    lr: float
    eps: float
    decay: float
    kept: float
    momentum: float
    undamped: float
    beta1: float
    rest1: float
    bias1: float
    beta2: float
    rest2: float
    bias2: float

    @classmethod
    @functools.cache
    def of(cls, hyper: Hyperparameters, *, float32_first: bool = False) -> Constants:
        """Each rounded once from the real number.

        Args:
            float32_first: the betas are rounded first, and what is taken from 1 (``beta^t``, the
                share that decoupled decay takes) is rounded before that.
        """
        rounded = nearest_float32 if float32_first else Fraction
        decay, lr = Fraction(hyper.weight_decay), Fraction(hyper.lr)
        share = decay * lr / Fraction(hyper.initial_lr) if hyper.initial_lr else decay * lr
        made = {
            "lr": lr,
            "eps": Fraction(hyper.eps),
            "decay": share if hyper.initial_lr else decay,
            "kept": 1 - rounded(share),
            "momentum": Fraction(hyper.momentum),
            "undamped": 1 - Fraction(hyper.dampening),
        }
        for i, beta in (("1", hyper.beta1), ("2", hyper.beta2)):
            base = rounded(Fraction(beta))
            decimal = _DIGITS.power(Decimal(float(base)), hyper.step)
            # Below that 1 - beta^t rounds to 1, and a fraction would have millions of digits.
            power = Fraction(decimal) if decimal.adjusted() > _NEGLIGIBLE else Fraction(0)
            made |= {f"beta{i}": base, f"rest{i}": 1 - base, f"bias{i}": 1 - rounded(power)}
        return cls(**{name: float(nearest_float32(exact)) for name, exact in made.items()})


_DIGITS = Context(prec=60, Emin=-(10**9), Emax=10**9)
"""Enough that a power rounds to float32 as the real one does; the same on every machine."""


_NEGLIGIBLE = -100
"""In powers of ten: far below half an ULP of 1, and below every float32."""


def nearest_float32(exact: Fraction) -> Fraction:
    """A real number rounded to float32 once, ties to even.

    Raises:
        OverflowError: it is beyond float32.
    """
    double = float(exact)
    if Fraction(double) != exact:
        # Rounded to odd first, so that the second rounding is that of the exact number.
        low = double if Fraction(double) < exact else math.nextafter(double, -math.inf)
        odd = struct.unpack("<q", struct.pack("<d", low))[0] & 1
        double = low if odd else math.nextafter(low, math.inf)
    (single,) = struct.unpack("<f", struct.pack("<f", double))
    return Fraction(single)


def check_state(state: State, grad: torch.Tensor, hyper: Hyperparameters) -> None:
    """Hold a state and a gradient against the parameter and the optimizer.

    Raises:
        ValueError: a tensor is missing, is none of the optimizer's, or is of another dtype or shape
            than the parameter asks for: it is named, with both.
    """
    if "param" not in state:
        raise ValueError("the state's param is missing")
    dtype, n = _dtype(state["param"]), state["param"].numel()
    wanted = {"param": (("bfloat16", "float16", "float32"), n), "grad": ((dtype,), n)}
    if "ecc" in state and dtype == "float32":
        raise ValueError("the state's ecc is none of a float32 param's")
    if "ecc" in state:
        wanted["ecc"] = (("int8", "int16"), n)
    for moment in hyper.moments():
        quantized = f"{moment}_scales" in state
        codes = "int8" if SPECS[moment]["signed"] else "uint8"
        wanted[moment] = ((codes if quantized else dtype,), n)
        if quantized:
            wanted[f"{moment}_scales"] = (("float16",), -(-n // GROUP_SIZE))
    given = {**state, "grad": grad}
    for name in sorted(wanted.keys() ^ given.keys()):
        fault = "is missing" if name in wanted else f"is none of {hyper.optimizer.value}'s"
        raise ValueError(f"the state's {name} {fault}")
    for name, (dtypes, size) in wanted.items():
        tensor = given[name]
        if _dtype(tensor) not in dtypes or tuple(tensor.shape) != (size,):
            raise ValueError(
                f"{name} is {_dtype(tensor)} of shape {tuple(tensor.shape)}, but a {dtype} param "
                f"of shape {tuple(state['param'].shape)} needs {' or '.join(dtypes)} of shape "
                f"({size},)"
            )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
