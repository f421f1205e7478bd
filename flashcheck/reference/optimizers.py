"""One step of an optimizer whose state is compressed, composed of the reference's own parts.

The paper keeps each optimizer's formulas, and computes them in float32 between reading a state and
storing it::

    theta = C^-1(theta', rho);  m = Q_m^-1(m_q, m_s);  v = Q_v^-1(v_q, v_s)
    Adam:  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
           u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    SGD:   m = mu m + (1 - tau) g;  u = m, with Nesterov's momentum g + mu m
    Lion:  u = sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
    theta = theta - lr (u + lambda theta);  store C(theta), Q_m(m), Q_v(v)

Coupled decay (Adam, SGD) adds ``lambda theta`` to ``g`` instead. The literal reading rounds each
constant of these formulas once, from the real number, and each operation once, from left to right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flashcheck.optimizers import (
    SPECS,
    Constants,
    Hyperparameters,
    Optimizer,
    State,
    check_state,
)
from flashcheck.reference.arithmetic import PAPER, Arithmetic, fma, square_root
from flashcheck.reference.quantization import dequantize, quantize
from flashcheck.reference.splitting import decompress, encode


@dataclass(frozen=True)
class Advanced:
    """The float32 numbers of a step before they are stored, flat; moments that it has not, none."""

    param: torch.Tensor
    momentum: torch.Tensor | None
    variance: torch.Tensor | None


class _Scalars:
    """The constants of a step as float32 tensors of no dimension, by their names."""

    def __init__(self, constants: Constants) -> None:
        self._tensors = {
            name: torch.tensor(value, dtype=torch.float32)
            for name, value in vars(constants).items()
        }

    def __getattr__(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def step(
    state: State, grad: torch.Tensor, hyper: Hyperparameters, arithmetic: Arithmetic = PAPER
) -> State:
    """Read a state, advance it, and store it.

    Args:
        state: flat tensors on the CPU, as :mod:`flashcheck.optimizers` has them; not changed.
        grad: flat, of the parameter's dtype.

    Returns:
        A new state of the same tensors.

    Non-finite gradients spread as IEEE-754 and the parts' own rules have it: an infinity makes its
    weight and its groups' scales non-finite.

    Raises:
        ValueError: the state does not fit the parameter, with the tensor and both shapes.
    """
    check_state(state, grad, hyper)
    return store(advance(state, grad, hyper, arithmetic), state, arithmetic)


def advance(
    state: State, grad: torch.Tensor, hyper: Hyperparameters, arithmetic: Arithmetic = PAPER
) -> Advanced:
    """The step in float32, up to what is stored."""
    scalars = _Scalars(Constants.of(hyper, float32_first=arithmetic.float32_scalars))
    theta = read_param(state, arithmetic)
    g = grad.to(torch.float32)
    if hyper.weight_decay and not hyper.optimizer.decoupled:
        g = _sum(theta, scalars.decay, g, arithmetic)
    m, v = (read_moment(state, name, arithmetic) for name in ("momentum", "variance"))
    if hyper.optimizer.adaptive:
        assert m is not None
        assert v is not None
        m = _mean(m, scalars.beta1, g, scalars.rest1, arithmetic)
        v = _mean(v, scalars.beta2, g * g, scalars.rest2, arithmetic)
        return Advanced(_adam(theta, m, v, hyper, scalars, arithmetic), m, v)
    if hyper.optimizer is Optimizer.LION:
        assert m is not None
        direction = _mean(m, scalars.beta1, g, scalars.rest1, arithmetic).sign()
        m = _mean(m, scalars.beta2, g, scalars.rest2, arithmetic)
    elif m is None:
        direction = g
    else:
        m = _mean(m, scalars.momentum, g, scalars.undamped, arithmetic)
        direction = _sum(m, scalars.momentum, g, arithmetic) if hyper.nesterov else m
    return Advanced(_moved(theta, direction, hyper, scalars, arithmetic), m, None)


def read_param(state: State, arithmetic: Arithmetic = PAPER) -> torch.Tensor:
    """The weights that a state stands for, float32."""
    if "ecc" in state:
        return decompress(state["param"], state["ecc"], arithmetic)
    return state["param"].to(torch.float32)


def read_moment(state: State, name: str, arithmetic: Arithmetic = PAPER) -> torch.Tensor | None:
    """A moment that a state stands for, float32; none that it has not."""
    if name not in state:
        return None
    if f"{name}_scales" in state:
        return dequantize(
            state[name], state[f"{name}_scales"], arithmetic=arithmetic, **SPECS[name]
        )
    return state[name].to(torch.float32)


def store(advanced: Advanced, like: State, arithmetic: Arithmetic = PAPER) -> State:
    """Advanced numbers in the form of a state."""
    param = advanced.param.to(like["param"].dtype)
    stored = {"param": param}
    if "ecc" in like:
        rounding = arithmetic.correction_rounding or arithmetic.rounding
        corrections = replace(arithmetic, rounding=rounding)
        stored["ecc"] = encode(advanced.param, param, like["ecc"].dtype, corrections)
    for name in SPECS:
        values = getattr(advanced, name)
        if values is None:
            continue
        if f"{name}_scales" in like:
            codes, scales = quantize(values, arithmetic=arithmetic, **SPECS[name])
            stored |= {name: codes, f"{name}_scales": scales}
        else:
            stored[name] = values.to(like[name].dtype)
    return stored


def _adam(
    theta: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    hyper: Hyperparameters,
    scalars: _Scalars,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    corrected = m / scalars.bias1.expand_as(m)
    denominator = square_root(v / scalars.bias2.expand_as(v)) + scalars.eps
    if not arithmetic.distributed_update:
        return _moved(theta, corrected / denominator, hyper, scalars, arithmetic)
    update = (corrected * scalars.lr) / denominator
    if not hyper.weight_decay or not hyper.optimizer.decoupled:
        return theta - update
    return _sum(theta, scalars.kept, -update, arithmetic)


def _moved(
    theta: torch.Tensor,
    direction: torch.Tensor,
    hyper: Hyperparameters,
    scalars: _Scalars,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    """``theta`` moved against a direction, and decayed."""
    if not hyper.weight_decay or not hyper.optimizer.decoupled:
        return _sum(direction, -scalars.lr, theta, arithmetic)
    if arithmetic.distributed_update:
        return _sum(theta, scalars.kept, -(direction * scalars.lr), arithmetic)
    if hyper.initial_lr is None:
        return _sum(
            _sum(theta, scalars.decay, direction, arithmetic), -scalars.lr, theta, arithmetic
        )
    lost = theta * scalars.decay
    return theta - _sum(direction, scalars.lr, lost, arithmetic)


def _sum(
    a: torch.Tensor, scalar: torch.Tensor, b: torch.Tensor, arithmetic: Arithmetic
) -> torch.Tensor:
    """``a * scalar + b``, rounded once or twice."""
    if arithmetic.fused_multiply_add:
        return fma(a, scalar.expand_as(a), b)
    return a * scalar + b


def _mean(
    old: torch.Tensor,
    weight: torch.Tensor,
    new: torch.Tensor,
    rest: torch.Tensor,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    """``weight * old + rest * new``."""
    return _sum(old, weight, new * rest, arithmetic)
