"""Optimizer steps of ``flashoptim`` through its public optimizers: state put in, ``step()``, state
read back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flashcheck.optimizers import State

THROUGH = "the public optimizers: load_state_dict() and step()"
_CLASSES = {
    "adam": "FlashAdam",
    "adamw": "FlashAdamW",
    "sgd": "FlashSGD",
    "sgdw": "FlashSGDW",
    "lion": "FlashLion",
}
_BITS = {torch.int8: 24, torch.int16: 32}
_ADAM = {"exp_avg": "momentum", "exp_avg_sq": "variance"}
_KEYS = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "sgd": {"momentum_buffer": "momentum"},
    "sgdw": {"momentum_buffer": "momentum"},
    "lion": {"exp_avg": "momentum"},
}


def step(package: Any, state: State, grad: torch.Tensor, hyper: dict[str, Any]) -> State:
    """One step of a new optimizer that is given the state.

    Args:
        package: ``flashoptim``.
        hyper: the keyword arguments of the protocol's ``step``.
    """
    name, number = hyper["optimizer"], hyper["step"]
    param = torch.nn.Parameter(state["param"])
    with warnings.catch_warnings():
        # It warns of narrow parameters without a master weight, which are asked for here.
        warnings.filterwarnings("ignore", message="master_weight_bits=None")
        optimizer = getattr(package, _CLASSES[name])([param], **_arguments(state, hyper))
    keys = {key: moment for key, moment in _KEYS[name].items() if moment in state}
    given = _given(state, keys)
    if name in ("adam", "adamw"):
        given["step"] = torch.tensor(number - 1, dtype=torch.int64)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {0: given} if given else {}, "param_groups": groups})
    if hyper["initial_lr"] is not None:
        # As a scheduler leaves it, which has changed lr since.
        optimizer.param_groups[0]["initial_lr"] = hyper["initial_lr"]
    param.grad = grad
    optimizer.step()
    return _stored(state, param, optimizer.state[param], keys)


@contextmanager
def without_a_gpu() -> Iterator[None]:
    """Answers yes where the optimizers ask whether there is a GPU: the interpreter stands in."""
    asked = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_available = asked


def _arguments(state: State, hyper: dict[str, Any]) -> dict[str, Any]:
    """The constructor's."""
    named = ("lr", "weight_decay", "eps", "momentum", "dampening", "nesterov")
    made: dict[str, Any] = {key: hyper[key] for key in named if key in hyper}
    if "beta1" in hyper:
        made["betas"] = (hyper["beta1"], hyper["beta2"])
    if hyper["initial_lr"] is not None:
        made["decouple_lr"] = True
    made["quantize"] = any(key.endswith("_scales") for key in state)
    made["master_weight_bits"] = _BITS[state["ecc"].dtype] if "ecc" in state else None
    return made


def _given(state: State, keys: dict[str, str]) -> dict[str, torch.Tensor]:
    """The state as a saved one has it: of the parameter's dtype, or of its bits."""
    dtype = state["param"].dtype
    made = {}
    for key, moment in keys.items():
        if f"{moment}_scales" not in state:
            made[key] = state[moment]
            continue
        scales = state[f"{moment}_scales"]
        made[f"{key}::quantized"] = state[moment]
        made[f"{key}::scales"] = scales.view(dtype) if dtype == torch.bfloat16 else scales
    if "ecc" in state:
        codes = state["ecc"]
        made["error_bits"] = codes.view(dtype) if codes.dtype == torch.int16 else codes.to(dtype)
    return made


def _stored(
    state: State, param: torch.Tensor, after: dict[str, Any], keys: dict[str, str]
) -> State:
    made = {"param": param.detach()}
    if "ecc" in state:
        made["ecc"] = after["error_bits"]
    for key, moment in keys.items():
        if f"{moment}_scales" in state:
            made[moment], made[f"{moment}_scales"] = after[key].quantized, after[key].scales
        else:
            made[moment] = after[key].data
    return made
