"""The tensors of a quantization battery, one generator drawing them all in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from flashcheck.config import (
    BatteryTensor,
    Constant,
    Exponents,
    HeavyTail,
    Normal,
    RandomBits,
    Special,
    SquaredNormal,
    ZeroInflatedNormal,
)
from flashcheck.formats import FP32

_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
}


@dataclass(frozen=True)
class Drawn:
    """A drawn tensor.

    Attributes:
        values: in the tensor's dtype, flat and contiguous, on the CPU.
    """

    tensor: BatteryTensor
    values: torch.Tensor

    def laid_out(self, values: torch.Tensor) -> torch.Tensor:
        """``values``, flat on any device, in the shape and memory layout that is asked for.

        Made where it is used: a copy to another device does not keep every layout.
        """
        shape = [values.numel()] if self.tensor.shape is None else self.tensor.shape
        match self.tensor.layout:
            case "contiguous":
                return values.reshape(shape).clone()
            case "transposed":
                return values.reshape(shape).t().contiguous().t()
            case "every_second":
                spaced = values.new_zeros(2 * values.numel())
                spaced[::2] = values
                return spaced[::2]


def draw(
    battery: Sequence[BatteryTensor], *, seed: int, selected: Collection[str]
) -> Iterator[Drawn]:
    """Draw the selected tensors in the battery's order.

    Those before a selected one are drawn and thrown away, so that a tensor has the same bits
    whatever is selected.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    remaining = set(selected)
    for tensor in battery:
        if not remaining:
            return
        values = _draw_one(tensor, generator).to(_DTYPES[tensor.dtype])
        if values.dtype == torch.float64 and not isinstance(tensor, Special):
            # Digits that float32 has not, so that its rounding is seen.
            values *= 1 + 2.0**-24 * torch.rand(tensor.size, generator=generator).double()
        if tensor.name in remaining:
            remaining.remove(tensor.name)
            yield Drawn(tensor, values)


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
        case Special():
            values = normal().to(_DTYPES[tensor.dtype]) * tensor.scale
            places = torch.arange(0, tensor.size, tensor.every)
            given = torch.tensor([_number(v) for v in tensor.values], dtype=values.dtype)
            # Not always at a group's start, where a fault of indexing might spare it.
            at = (places + torch.arange(len(places)) % tensor.every).clamp(max=tensor.size - 1)
            values[at] = given[torch.arange(len(places)) % len(given)]
            return values
        case RandomBits():
            return _random_bits(tensor.size, tensor.exponents, generator)


def _random_bits(size: int, exponents: Exponents, generator: torch.Generator) -> torch.Tensor:
    def draw_integers(high: int) -> torch.Tensor:
        return torch.randint(0, high, (size,), dtype=torch.int32, generator=generator)

    fields = torch.tensor(exponents.fields(), dtype=torch.int32)
    field = fields[torch.arange(size) % len(fields)]
    bits = draw_integers(1 << FP32.mantissa_bits) | (field << FP32.mantissa_bits)
    return (bits | draw_integers(2) << (FP32.bits - 1)).view(torch.float32)


def _number(value: float | str) -> float:
    """A float32 given by its bits or as a number."""
    if isinstance(value, str):
        bits = torch.tensor(int(value, 16), dtype=torch.int64).to(torch.int32)
        return float(bits.view(torch.float32))
    return value
