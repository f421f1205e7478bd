"""The states that steps start from, and their gradients, drawn from the suite's seed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from flashcheck.config import BatteryTensor, StepConfig
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS, quantized_format, torch_dtype
from flashcheck.inputs import battery
from flashcheck.optimizers import GROUP_SIZE, SPECS, Hyperparameters, State
from flashcheck.reference.quantization import quantize
from flashcheck.reference.splitting import compress


@dataclass(frozen=True)
class Start:
    """A state before a step, and the gradient of it; flat tensors on the CPU."""

    state: State
    grad: torch.Tensor


def draw(
    config: StepConfig, name: str, weights: str, states: str, gradient: str, hyper: Hyperparameters
) -> Start:
    """The start of a case.

    Before the first step moments are zero; before a later one they are drawn at random, of the
    size of the gradient's finite values.

    Args:
        name: of the case: each draws its own numbers, whichever others are selected.
    """
    tensor = gradient_of(config, gradient)
    grad = drawn_gradient(config, tensor, weights, step=0)
    generator = torch.Generator().manual_seed(config.seed + zlib.crc32(name.encode()))
    size = tensor.size

    def normal() -> torch.Tensor:
        return torch.randn(size, generator=generator)

    state = stored_param(normal() * config.weight_scale, weights)
    finite = grad.float()[grad.isfinite()]
    spread = float(finite.double().square().mean().sqrt()) if finite.numel() else 0.0
    for moment in hyper.moments():
        values = torch.zeros(size)
        if hyper.step > 1:
            values = normal() * (spread or 1e-3)
            values = values.square() if moment == "variance" else values * 0.5
        state |= stored_moment(moment, values, states, state["param"].dtype)
    return Start(state, grad)


def gradient_of(config: StepConfig, name: str) -> BatteryTensor:
    """A gradient by its name."""
    return next(tensor for tensor in config.gradients if tensor.name == name)


def drawn_gradient(
    config: StepConfig, tensor: BatteryTensor, weights: str, *, step: int
) -> torch.Tensor:
    """A gradient of the parameter's dtype; another one for each step of a trajectory."""
    (drawn,) = battery.draw([tensor], seed=config.seed + step, selected=[tensor.name])
    return drawn.values.float().to(dtype_of(weights))


def dtype_of(weights: str) -> torch.dtype:
    """The dtype of the parameter."""
    narrow = weights.split("+", maxsplit=1)[0]
    return torch.float32 if narrow == "fp32" else torch_dtype(NARROW_FORMATS[narrow])


def stored_param(theta: torch.Tensor, weights: str) -> State:
    """Float32 weights in the form that is asked for."""
    _, plus, ecc = weights.partition("+")
    if plus:
        param, rho = compress(theta, dtype_of(weights), torch_dtype(ECC_FORMATS[ecc]))
        return {"param": param, "ecc": rho}
    return {"param": theta.to(dtype_of(weights))}


def stored_moment(moment: str, values: torch.Tensor, states: str, dtype: torch.dtype) -> State:
    """Float32 values of a moment in the form that is asked for."""
    if states == "plain":
        return {moment: values.to(dtype)}
    codes, scales = quantize(values, group_size=GROUP_SIZE, **SPECS[moment])
    assert codes.dtype == torch_dtype(quantized_format(SPECS[moment]["signed"]))
    return {moment: codes, f"{moment}_scales": scales}
