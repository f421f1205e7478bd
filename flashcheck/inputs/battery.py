"""The tensors of a quantization battery, one generator drawing them all in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from flashcheck.config import (
    BatteryTensor,
    Constant,
    HeavyTail,
    Normal,
    SquaredNormal,
    ZeroInflatedNormal,
)


def draw(
    battery: Sequence[BatteryTensor], *, seed: int, selected: Collection[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Draw the selected tensors, float32 on the CPU, in the battery's order.

    Those before a selected one are drawn and thrown away, so that a tensor has the same bits
    whatever is selected.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    remaining = set(selected)
    for tensor in battery:
        if not remaining:
            return
        values = _draw_one(tensor, generator)
        if tensor.name in remaining:
            remaining.remove(tensor.name)
            yield tensor.name, values


def _draw_one(tensor: BatteryTensor, generator: torch.Generator) -> torch.Tensor:
    def normal() -> torch.Tensor:
        return torch.randn(tensor.size, generator=generator)

    match tensor:
        case Normal():
            return normal() * tensor.scale
        case HeavyTail():
            values = normal()
            return values * torch.exp(normal() * tensor.sigma)
        case SquaredNormal():
            return (normal() * tensor.scale).square()
        case Constant():
            return torch.full((tensor.size,), tensor.value)
        case ZeroInflatedNormal():
            zero = torch.rand(tensor.size, generator=generator) < tensor.zero_probability
            return torch.where(zero, 0.0, normal())
