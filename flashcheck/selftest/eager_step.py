"""A right optimizer step in small parts, which faulty and correct ones override."""

from __future__ import annotations

from typing import Any

import torch

from flashcheck.selftest.eager import Eager

State = dict[str, torch.Tensor]
Moments = dict[str, torch.Tensor]

_SPECS = {
    "momentum": {"signed": True, "sqrt": False, "softsign": True},
    "variance": {"signed": False, "sqrt": True, "softsign": False},
}


class EagerStep(Eager):
    """The paper's steps on the CPU, eagerly, in float32, with the parts of :class:`Eager`."""

    # Constants, as float32 of no dimension.

    def constant(self, x: float) -> torch.Tensor:
        return torch.tensor(x, dtype=torch.float64).float()

    def rest(self, beta: float) -> torch.Tensor:
        return self.constant(1 - beta)

    def bias(self, beta: float, step: int) -> torch.Tensor:
        return self.constant(1 - beta**step)

    # Reading and storing.

    def read_param(self, state: State) -> torch.Tensor:
        if "ecc" in state:
            return self.reconstruct(state["param"], state["ecc"])
        return state["param"].float()

    def read_moment(self, state: State, name: str) -> torch.Tensor:
        if f"{name}_scales" not in state:
            return state[name].float()
        scales = state[f"{name}_scales"]
        return self.dequantize(state[name], scales, group_size=32, **_SPECS[name])

    def narrow(self, theta: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return theta.to(dtype)

    def store_param(self, state: State, theta: torch.Tensor) -> State:
        param = self.narrow(theta, state["param"].dtype)
        if "ecc" not in state:
            return {"param": param}
        return {"param": param, "ecc": self.corrections(state, theta, param)}

    def corrections(self, state: State, theta: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        return self.compute_ecc(theta, param, ecc_dtype=state["ecc"].dtype)

    def store_moment(self, state: State, name: str, values: torch.Tensor) -> State:
        if f"{name}_scales" not in state:
            return {name: values.to(state[name].dtype)}
        codes, scales = self.quantize(values, group_size=32, **_SPECS[name])
        return {name: codes, f"{name}_scales": scales}

    # The step.

    def madd(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """``a * b + c``."""
        return a * b + c

    def mean(
        self, old: torch.Tensor, beta: torch.Tensor, new: torch.Tensor, rest: torch.Tensor
    ) -> torch.Tensor:
        return self.madd(old, beta, new * rest)

    def coupled(self, g: torch.Tensor, theta: torch.Tensor, decay: float) -> torch.Tensor:
        return self.madd(theta, self.constant(decay), g)

    def square_gradient(self, g: torch.Tensor) -> torch.Tensor:
        return g * g

    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return self.root(v) + self.constant(eps)

    def share(self, lr: float, weight_decay: float, initial_lr: float | None) -> float:
        """Of a weight that decoupled decay takes."""
        return weight_decay * lr / (initial_lr or 1.0)

    def sign(self, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    def look_ahead(self, g: torch.Tensor, m: torch.Tensor, momentum: float) -> torch.Tensor:
        return self.madd(m, self.constant(momentum), g)

    def moved(
        self, theta: torch.Tensor, direction: torch.Tensor, *, decoupled: bool, **hyper: Any
    ) -> torch.Tensor:
        """``theta - lr (direction + lambda theta)``."""
        lr, decay = hyper["lr"], hyper["weight_decay"]
        if decoupled and decay and hyper["initial_lr"] is not None:
            lost = theta * self.constant(self.share(lr, decay, hyper["initial_lr"]))
            return theta - self.madd(direction, self.constant(lr), lost)
        if decoupled and decay:
            direction = self.madd(theta, self.constant(decay), direction)
        return self.madd(direction, -self.constant(lr), theta)

    def step(self, state: State, grad: torch.Tensor, *, optimizer: str, **hyper: Any) -> State:
        theta, g = self.read_param(state), grad.float()
        decoupled = optimizer in ("adamw", "sgdw", "lion")
        if hyper["weight_decay"] and not decoupled:
            g = self.coupled(g, theta, hyper["weight_decay"])
        old = {name: self.read_moment(state, name) for name in _SPECS if name in state}
        direction, moments = self.direction(optimizer, g, old, hyper)
        theta = self.moved(theta, direction, decoupled=decoupled, **hyper)
        stored = self.store_param(state, theta)
        for name, values in moments.items():
            stored |= self.store_moment(state, name, values)
        return stored

    def direction(
        self, optimizer: str, g: torch.Tensor, old: Moments, hyper: dict[str, Any]
    ) -> tuple[torch.Tensor, Moments]:
        """What the weight moves against, and the new moments."""
        if optimizer in ("adam", "adamw"):
            return self.adam(g, old, **hyper)
        if optimizer == "lion":
            return self.lion(g, old["momentum"], **hyper)
        return self.sgd(g, old, **hyper)

    def adam(self, g: torch.Tensor, old: Moments, **hyper: Any) -> tuple[torch.Tensor, Moments]:
        step, beta1, beta2 = hyper["step"], hyper["beta1"], hyper["beta2"]
        m = self.mean(old["momentum"], self.constant(beta1), g, self.rest(beta1))
        v = self.mean(
            old["variance"], self.constant(beta2), self.square_gradient(g), self.rest(beta2)
        )
        corrected = self.divide(m, self.bias(beta1, step).expand_as(m))
        below = self.denominator(self.divide(v, self.bias(beta2, step).expand_as(v)), hyper["eps"])
        return self.divide(corrected, below), {"momentum": m, "variance": v}

    def lion(
        self, g: torch.Tensor, old: torch.Tensor, **hyper: Any
    ) -> tuple[torch.Tensor, Moments]:
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        direction = self.sign(self.mean(old, self.constant(beta1), g, self.rest(beta1)))
        m = self.mean(old, self.constant(beta2), g, self.rest(beta2))
        return direction, {"momentum": m}

    def sgd(self, g: torch.Tensor, old: Moments, **hyper: Any) -> tuple[torch.Tensor, Moments]:
        if not old:
            return g, {}
        momentum = hyper["momentum"]
        undamped = self.constant(1 - hyper["dampening"])
        m = self.mean(old["momentum"], self.constant(momentum), g, undamped)
        direction = self.look_ahead(g, m, momentum) if hyper["nesterov"] else m
        return direction, {"momentum": m}
