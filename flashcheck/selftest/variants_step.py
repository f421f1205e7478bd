"""Right optimizer steps that differ from the literal reading in legitimate arithmetic only."""

from __future__ import annotations

from typing import Any

import torch

from flashcheck.reference.arithmetic import fma
from flashcheck.selftest.eager_step import EagerStep
from flashcheck.selftest.registry import correct_step


@correct_step("a step in the paper's arithmetic")
class Literal(EagerStep):
    """Bit-equal to the reference."""


@correct_step("a step with hyperparameters in float32")
class Float32Scalars(EagerStep):
    """As a kernel gets them that is passed its hyperparameters."""

    def rest(self, beta: float) -> torch.Tensor:
        return 1 - self.constant(beta)

    def bias(self, beta: float, step: int) -> torch.Tensor:
        return 1 - self.constant(float(self.constant(beta)) ** step)


@correct_step("a step with the update multiplied out, as torch.optim has it")
class Distributed(EagerStep):
    """Decay first, by a factor, then the learning rate times the direction."""

    def moved(
        self, theta: torch.Tensor, direction: torch.Tensor, *, decoupled: bool, **hyper: Any
    ) -> torch.Tensor:
        if decoupled and hyper["weight_decay"]:
            share = self.share(hyper["lr"], hyper["weight_decay"], hyper["initial_lr"])
            theta = theta * self.constant(1 - share)
        return theta - direction * self.constant(hyper["lr"])


@correct_step("a step with sums of products fused")
class FusedSums(EagerStep):
    """One rounding where the compiler contracts."""

    def madd(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return fma(a, b.expand_as(a), c)
