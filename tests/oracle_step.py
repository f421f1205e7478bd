"""A second oracle of one optimizer step (arXiv 2602.23349), in exact rational arithmetic.

The step is done one element at a time, by the paper's formulas, with the operations of
``tests.oracle``: each exact on fractions, and rounded once to float32. Nothing is taken from
``flashcheck.reference``, nor from what ``flashcheck.optimizers`` makes of hyperparameters.

Where neither the formulas nor the switches' descriptions say what is meant, it is read as follows:

- Of two products that are added, a fused multiply-add leaves the left one unrounded: that of
  ``b1 m`` in ``b1 m + (1 - b1) g``, that of the weight in ``theta (1 - lr lambda) - lr u``.
- With a learning rate that the decay is decoupled from, ``theta - lr (u + lambda theta)`` is
  ``theta - (lr u + lambda' theta)``, where ``lambda' = lambda lr / lr_0``.
- ``sign`` tells the positive from the negative numbers; of all else, a NaN too, it is 0.
- No decay and no momentum (of SGD) are no operation, not a product with 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

import torch

from flashcheck.formats import BF16, FP16, FP32, INT8, INT16, CodeFormat, FloatFormat, torch_dtype
from tests import oracle
from tests.oracle import Number, Switches, add, divide, multiply, negate, subtract

GROUP = 32

ALGORITHMS = {
    "momentum": {"signed": True, "sqrt": False, "softsign": True},
    "variance": {"signed": False, "sqrt": True, "softsign": False},
}
"""Algorithm 2 stores a momentum, Algorithm 3 a variance."""

Tensors = Mapping[str, torch.Tensor]


class Hyper(Protocol):
    """What of ``flashcheck.optimizers.Hyperparameters`` is read, the optimizer by its word."""

    @property
    def optimizer(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def initial_lr(self) -> float | None: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def dampening(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...


class StepSwitches(Switches, Protocol):
    """The switches of a step as well."""

    @property
    def float32_scalars(self) -> bool: ...
    @property
    def distributed_update(self) -> bool: ...
    @property
    def correction_rounding(self) -> str | None: ...


# ---- Constants -----------------------------------------------------------------------------


class Constants(NamedTuple):
    """What the formulas multiply and divide by, float32; ``decay`` is lambda or lambda'."""

    lr: Number
    eps: Number
    decay: Number
    kept: Number
    momentum: Number
    undamped: Number
    beta1: Number
    rest1: Number
    bias1: Number
    beta2: Number
    rest2: Number
    bias2: Number


def constants(hyper: Hyper, *, float32_scalars: bool) -> Constants:
    """Each rounded once from the real number; or, with ``float32_scalars``, of betas that are
    rounded first, and ``beta^t`` and ``lr * decay`` rounded before they are taken from 1."""

    def now(exact: Fraction | float) -> Fraction:
        return float32(exact).exact if float32_scalars else Fraction(exact)

    lr, decay = Fraction(hyper.lr), Fraction(hyper.weight_decay)
    lost = decay * lr
    if hyper.initial_lr is not None:
        decay = lost = lost / Fraction(hyper.initial_lr)
    beta1, beta2 = now(hyper.beta1), now(hyper.beta2)
    return Constants(
        lr=float32(lr),
        eps=float32(hyper.eps),
        decay=float32(decay),
        kept=float32(1 - now(lost)),
        momentum=float32(hyper.momentum),
        undamped=float32(1 - Fraction(hyper.dampening)),
        beta1=float32(beta1),
        rest1=float32(1 - beta1),
        bias1=float32(1 - now(beta1**hyper.step)),
        beta2=float32(beta2),
        rest2=float32(1 - beta2),
        bias2=float32(1 - now(beta2**hyper.step)),
    )


def float32(exact: Fraction | float) -> Number:
    return oracle.round_exact(Fraction(exact), FP32)


# ---- The formulas, of one element ----------------------------------------------------------


class Element(NamedTuple):
    """A weight with its moments, float32."""

    theta: Number
    m: Number | None
    v: Number | None


@dataclass(frozen=True)
class Formulas:
    hyper: Hyper
    switches: StepSwitches
    constants: Constants

    @property
    def decoupled(self) -> bool:
        return self.hyper.optimizer in ("adamw", "sgdw", "lion")

    @property
    def decays(self) -> bool:
        """``theta`` itself."""
        return self.decoupled and self.hyper.weight_decay != 0

    def of(self, before: Element, g: Number) -> Element:
        theta, m, v = before
        if self.hyper.weight_decay != 0 and not self.decoupled:
            g = self.product_plus(self.constants.decay, theta, g)
        if self.hyper.optimizer in ("adam", "adamw"):
            assert m is not None
            assert v is not None
            return self.adam(theta, m, v, g)
        if self.hyper.optimizer == "lion":
            assert m is not None
            return self.lion(theta, m, g)
        return self.sgd(theta, m, g)

    def adam(self, theta: Number, m: Number, v: Number, g: Number) -> Element:
        """``m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2``, and ``theta`` moves against
        ``(m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)``."""
        c = self.constants
        m = self.products(c.beta1, m, c.rest1, g)
        v = self.products(c.beta2, v, c.rest2, multiply(g, g))
        divisor = add(oracle.square_root(divide(v, c.bias2)), c.eps)
        return Element(self.moved(theta, divide(m, c.bias1), divisor), m, v)

    def sgd(self, theta: Number, m: Number | None, g: Number) -> Element:
        """``m = mu m + (1 - tau) g``, and ``theta`` moves against ``m`` or ``g + mu m``."""
        if m is None:
            return Element(self.moved(theta, g), None, None)
        c = self.constants
        m = self.products(c.momentum, m, c.undamped, g)
        u = self.product_plus(c.momentum, m, g) if self.hyper.nesterov else m
        return Element(self.moved(theta, u), m, None)

    def lion(self, theta: Number, m: Number, g: Number) -> Element:
        """``theta`` moves against ``sign(b1 m + (1 - b1) g)``; ``m = b2 m + (1 - b2) g``."""
        c = self.constants
        u = sign(self.products(c.beta1, m, c.rest1, g))
        return Element(self.moved(theta, u), self.products(c.beta2, m, c.rest2, g), None)

    def moved(self, theta: Number, u: Number, divisor: Number | None = None) -> Number:
        """``theta - lr (u / d + lambda theta)``, or as ``distributed_update`` has it
        ``theta (1 - lr lambda) - (lr u) / d``; SGD and Lion divide by nothing."""
        c, distributed = self.constants, self.switches.distributed_update
        if distributed and (self.decays or divisor is not None):
            by = multiply(c.lr, u)
            by = negate(by if divisor is None else divide(by, divisor))
            return self.product_plus(c.kept, theta, by) if self.decays else add(theta, by)
        u = u if divisor is None else divide(u, divisor)
        if self.decays and self.hyper.initial_lr is not None:
            return subtract(theta, self.products(c.lr, u, c.decay, theta))
        if self.decays:
            u = self.product_plus(c.decay, theta, u)
        return self.product_plus(negate(c.lr), u, theta)

    def products(self, a: Number, x: Number, b: Number, y: Number) -> Number:
        """``a x + b y``."""
        return self.product_plus(a, x, multiply(b, y))

    def product_plus(self, a: Number, x: Number, y: Number) -> Number:
        """``a x + y``."""
        if self.switches.fused_multiply_add:
            return oracle.fused_multiply_add(a, x, y)
        return add(multiply(a, x), y)


def sign(x: Number) -> Number:
    if x.kind is oracle.Kind.NAN or (x.finite and x.magnitude == 0):
        return oracle.finite(0)
    return oracle.ONE.signed(x.negative)


# ---- A whole state -------------------------------------------------------------------------


def step(
    state: Tensors, grad: torch.Tensor, hyper: Hyper, switches: StepSwitches
) -> dict[str, list[int]]:
    """The state after a step: the codes, and the bit patterns of all else."""
    return store(advance(state, grad, hyper, switches), state, switches)


def advance(
    state: Tensors, grad: torch.Tensor, hyper: Hyper, switches: StepSwitches
) -> list[Element]:
    """The state after a step in float32, before it is stored."""
    made = constants(hyper, float32_scalars=switches.float32_scalars)
    formulas = Formulas(hyper, switches, made)
    before = zip(
        read_weights(state, switches),
        read_moment(state, "momentum", switches),
        read_moment(state, "variance", switches),
        strict=True,
    )
    return [formulas.of(Element(*parts), g) for parts, g in zip(before, numbers(grad), strict=True)]


def read_weights(state: Tensors, switches: Switches) -> Iterator[Number]:
    if "ecc" not in state:
        yield from numbers(state["param"])
        return
    narrow, ecc = float_format(state["param"]), code_format(state["ecc"])
    for weight, rho in zip(numbers(state["param"]), state["ecc"].tolist(), strict=True):
        yield oracle.decompress(weight, rho, narrow, ecc, switches)


def read_moment(state: Tensors, name: str, switches: Switches) -> Iterator[Number | None]:
    """None for each element of a state that has no such moment."""
    if name not in state:
        yield from [None] * len(state["param"])
    elif f"{name}_scales" in state:
        scales = numbers(state[f"{name}_scales"])
        for i, code in enumerate(state[name].tolist()):
            scale = scales[i // GROUP]
            yield oracle.dequantize(code, scale, switches=switches, **ALGORITHMS[name])
    else:
        yield from numbers(state[name])


def store(
    elements: Sequence[Element], like: Tensors, switches: StepSwitches
) -> dict[str, list[int]]:
    """``C(theta)``, ``Q_m(m)`` and ``Q_v(v)``, or each rounded, as a given state has them."""
    stored = _store_weights([x.theta for x in elements], like, switches)
    for name, values in (
        ("momentum", [x.m for x in elements if x.m is not None]),
        ("variance", [x.v for x in elements if x.v is not None]),
    ):
        if name in like:
            stored |= _store_moment(name, values, like, switches)
    return stored


def _store_weights(
    weights: Sequence[Number], like: Tensors, switches: StepSwitches
) -> dict[str, list[int]]:
    narrow = float_format(like["param"])
    if "ecc" not in like:
        return {"param": patterns([oracle.convert(x, narrow) for x in weights], narrow)}
    ecc, how = code_format(like["ecc"]), _of_corrections(switches)
    split = [oracle.compress(x, narrow, ecc, how) for x in weights]
    return {
        "param": patterns([weight for weight, _ in split], narrow),
        "ecc": [code for _, code in split],
    }


def _store_moment(
    name: str, values: Sequence[Number], like: Tensors, switches: Switches
) -> dict[str, list[int]]:
    if f"{name}_scales" not in like:
        fmt = float_format(like[name])
        return {name: patterns([oracle.convert(x, fmt) for x in values], fmt)}
    groups = [
        oracle.quantize_group(values[start : start + GROUP], switches=switches, **ALGORITHMS[name])
        for start in range(0, len(values), GROUP)
    ]
    return {
        name: [code for group in groups for code in group.codes],
        f"{name}_scales": patterns([group.scale for group in groups], FP16),
    }


class _Corrections(NamedTuple):
    """The switches as correction codes have them."""

    rounding: str
    fused_multiply_add: bool
    reciprocal_division: bool
    absmax_floor: float
    nan_absmax: str


def _of_corrections(switches: StepSwitches) -> Switches:
    own = switches.correction_rounding
    return _Corrections(
        switches.rounding if own is None else own,
        switches.fused_multiply_add,
        switches.reciprocal_division,
        switches.absmax_floor,
        switches.nan_absmax,
    )


# ---- Tensors, and what they hold -----------------------------------------------------------


def numbers(tensor: torch.Tensor) -> list[Number]:
    fmt = float_format(tensor)
    return [oracle.decode(bits, fmt) for bits in oracle.bits_of(tensor, fmt)]


def patterns(values: Sequence[Number], fmt: FloatFormat) -> list[int]:
    return [oracle.encode(x, fmt) for x in values]


def float_format(tensor: torch.Tensor) -> FloatFormat:
    return next(fmt for fmt in (BF16, FP16, FP32) if torch_dtype(fmt) == tensor.dtype)


def code_format(tensor: torch.Tensor) -> CodeFormat:
    return next(fmt for fmt in (INT8, INT16) if torch_dtype(fmt) == tensor.dtype)
