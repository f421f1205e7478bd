"""Optimizer steps with one fault each."""

from __future__ import annotations

from typing import Any

import torch

from flashcheck.selftest.eager_step import EagerStep, Moments, State
from flashcheck.selftest.registry import faulty_step


@faulty_step("bias correction one step behind")
class BiasBehind(EagerStep):
    def bias(self, beta: float, step: int) -> torch.Tensor:
        return super().bias(beta, max(1, step - 1))


@faulty_step("bias correction one step ahead")
class BiasAhead(EagerStep):
    def bias(self, beta: float, step: int) -> torch.Tensor:
        return super().bias(beta, step + 1)


@faulty_step("no bias correction")
class NoBias(EagerStep):
    def bias(self, beta: float, step: int) -> torch.Tensor:
        return torch.ones(())


@faulty_step("every step taken for the first")
class AlwaysFirst(EagerStep):
    def step(self, state: State, grad: torch.Tensor, *, optimizer: str, **hyper: Any) -> State:
        return super().step(state, grad, optimizer=optimizer, **{**hyper, "step": 1})


@faulty_step("epsilon inside the root")
class EpsInside(EagerStep):
    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return self.root(v + self.constant(eps))


@faulty_step("no epsilon")
class NoEps(EagerStep):
    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return self.root(v)


@faulty_step("decay after the update")
class DecayAfter(EagerStep):
    def moved(
        self, theta: torch.Tensor, direction: torch.Tensor, *, decoupled: bool, **hyper: Any
    ) -> torch.Tensor:
        moved = super().moved(theta, direction, decoupled=False, **hyper)
        share = self.share(hyper["lr"], hyper["weight_decay"], hyper["initial_lr"])
        return moved * self.constant(1 - share if decoupled else 1.0)


@faulty_step("decoupled decay that the learning rate does not scale")
class DecayUnscaled(EagerStep):
    def moved(
        self, theta: torch.Tensor, direction: torch.Tensor, *, decoupled: bool, **hyper: Any
    ) -> torch.Tensor:
        given = {**hyper, "initial_lr": hyper["lr"]}
        return super().moved(theta, direction, decoupled=decoupled, **given)


@faulty_step("full decoupling from the learning rate ignored")
class NotFullyDecoupled(EagerStep):
    def moved(
        self, theta: torch.Tensor, direction: torch.Tensor, *, decoupled: bool, **hyper: Any
    ) -> torch.Tensor:
        return super().moved(theta, direction, decoupled=decoupled, **{**hyper, "initial_lr": None})


@faulty_step("coupled decay of the wrong sign")
class CoupledSign(EagerStep):
    def coupled(self, g: torch.Tensor, theta: torch.Tensor, decay: float) -> torch.Tensor:
        return super().coupled(g, theta, -decay)


@faulty_step("coupled decay forgotten")
class NotCoupled(EagerStep):
    def coupled(self, g: torch.Tensor, theta: torch.Tensor, decay: float) -> torch.Tensor:
        return g


@faulty_step("states of the wrong parameter: one group on")
class WrongState(EagerStep):
    def read_moment(self, state: State, name: str) -> torch.Tensor:
        return super().read_moment(state, name).roll(32)


@faulty_step("momentum stored before the update")
class StoresOldMomentum(EagerStep):
    def direction(
        self, optimizer: str, g: torch.Tensor, old: Moments, hyper: dict[str, Any]
    ) -> tuple[torch.Tensor, Moments]:
        direction, moments = super().direction(optimizer, g, old, hyper)
        return direction, moments | {k: v for k, v in old.items() if k == "momentum"}


@faulty_step("the weight moved by the momentum before the update")
class MovesByOld(EagerStep):
    def sgd(self, g: torch.Tensor, old: Moments, **hyper: Any) -> tuple[torch.Tensor, Moments]:
        direction, moments = super().sgd(g, old, **hyper)
        return old.get("momentum", direction), moments


@faulty_step("correction codes not refreshed")
class StaleCorrections(EagerStep):
    def corrections(self, state: State, theta: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        return state["ecc"]


@faulty_step("correction codes not read")
class CorrectionsUnread(EagerStep):
    def read_param(self, state: State) -> torch.Tensor:
        return state["param"].float()


@faulty_step("correction codes of the weight before the update")
class OldCorrections(EagerStep):
    def corrections(self, state: State, theta: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        return super().corrections(state, self.read_param(state), param)


@faulty_step("parameter rounded toward zero")
class NarrowCut(EagerStep):
    def narrow(self, theta: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if dtype != torch.bfloat16:
            return super().narrow(theta, dtype)
        cut = theta.view(torch.int32) & -65536
        return cut.view(torch.float32).to(dtype)


@faulty_step("sign of Lion's update at zero")
class SignOfZero(EagerStep):
    def sign(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x >= 0, 1.0, -1.0)


@faulty_step("Lion's two betas exchanged")
class LionBetas(EagerStep):
    def lion(
        self, g: torch.Tensor, old: torch.Tensor, **hyper: Any
    ) -> tuple[torch.Tensor, Moments]:
        exchanged = {**hyper, "beta1": hyper["beta2"], "beta2": hyper["beta1"]}
        return super().lion(g, old, **exchanged)


@faulty_step("Lion's momentum updated before it is used")
class LionOrder(EagerStep):
    def lion(
        self, g: torch.Tensor, old: torch.Tensor, **hyper: Any
    ) -> tuple[torch.Tensor, Moments]:
        _, moments = super().lion(g, old, **hyper)
        direction, _ = super().lion(g, moments["momentum"], **hyper)
        return direction, moments


@faulty_step("nesterov without its factor")
class NesterovFactor(EagerStep):
    def look_ahead(self, g: torch.Tensor, m: torch.Tensor, momentum: float) -> torch.Tensor:
        return g + m


@faulty_step("nesterov ignored")
class NoNesterov(EagerStep):
    def look_ahead(self, g: torch.Tensor, m: torch.Tensor, momentum: float) -> torch.Tensor:
        return m


@faulty_step("dampening ignored")
class NotDampened(EagerStep):
    def sgd(self, g: torch.Tensor, old: Moments, **hyper: Any) -> tuple[torch.Tensor, Moments]:
        return super().sgd(g, old, **{**hyper, "dampening": 0.0})


@faulty_step("variance of the gradient's magnitude, not its square")
class NoSquare(EagerStep):
    def square_gradient(self, g: torch.Tensor) -> torch.Tensor:
        return g.abs()


@faulty_step("1 - beta taken for beta")
class BetaForRest(EagerStep):
    def rest(self, beta: float) -> torch.Tensor:
        return self.constant(beta)


@faulty_step("the gradient read in float16")
class HalfGradient(EagerStep):
    def step(self, state: State, grad: torch.Tensor, *, optimizer: str, **hyper: Any) -> State:
        narrow = grad.half().to(grad.dtype)
        return super().step(state, narrow, optimizer=optimizer, **hyper)


@faulty_step("the last, partial group not stepped")
class TailForgotten(EagerStep):
    def step(self, state: State, grad: torch.Tensor, *, optimizer: str, **hyper: Any) -> State:
        stored = super().step(state, grad, optimizer=optimizer, **hyper)
        whole = grad.numel() // 32 * 32
        for name, tensor in stored.items():
            if not name.endswith("_scales"):
                tensor[whole:] = state[name][whole:]
        return stored


@faulty_step("the gradient changed in place")
class GradientInPlace(EagerStep):
    def step(self, state: State, grad: torch.Tensor, *, optimizer: str, **hyper: Any) -> State:
        stored = super().step(state, grad, optimizer=optimizer, **hyper)
        grad.mul_(0.5)
        return stored


@faulty_step("moments handed back in float32")
class WrongForm(EagerStep):
    def store_moment(self, state: State, name: str, values: torch.Tensor) -> State:
        return super().store_moment(state, name, values) | {name: values}


@faulty_step("a state without its scales")
class WithoutScales(EagerStep):
    def store_moment(self, state: State, name: str, values: torch.Tensor) -> State:
        stored = super().store_moment(state, name, values)
        stored.pop(f"{name}_scales", None)
        return stored
