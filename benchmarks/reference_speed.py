"""How many million elements a second the reference takes, on this machine's processors.

Splitting is fed float32 of random bits, so of all exponents alike, infinities and NaN among them:
subnormal results, which many processors are slow at, have their share. *Both* is one compress and
one decompress of each element. Times are medians; machines are noisy all the same.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import TypedDict

# As the command has it, and before torch is loaded: threads that wait leave their core to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from flashcheck.environment import cpu_name
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS, torch_dtype
from flashcheck.reference import quantization, splitting

RUNS = 7
ELEMENTS = 1 << 24
SEED = 0


class Spec(TypedDict):
    signed: bool
    sqrt: bool
    softsign: bool


SPECS = {
    "momentum": Spec(signed=True, sqrt=False, softsign=True),
    "variance": Spec(signed=False, sqrt=True, softsign=False),
}


def main() -> None:
    print(
        f"{os.cpu_count()} processors, {cpu_name()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads"
    )
    generator = torch.Generator().manual_seed(SEED)
    bits = torch.randint(-(2**31), 2**31, (ELEMENTS,), dtype=torch.int32, generator=generator)
    print(f"\n{'million elements a second':26}{'compress':>12}{'decompress':>12}{'both':>12}")
    for narrow in NARROW_FORMATS.values():
        for ecc in ECC_FORMATS.values():
            speeds = split(bits.view(torch.float32), torch_dtype(narrow), torch_dtype(ecc))
            print(row(f"{narrow.name} + {ecc.name}", speeds))
    print(f"\n{'million elements a second':26}{'quantize':>12}{'dequantize':>12}{'both':>12}")
    values = torch.randn(ELEMENTS, generator=generator)
    for name, spec in SPECS.items():
        print(row(name, quantize(values.abs() if spec["sqrt"] else values, spec)))


def split(
    x: torch.Tensor, narrow_dtype: torch.dtype, ecc_dtype: torch.dtype
) -> tuple[float, float, float]:
    """Millions a second that are compressed, decompressed, and both."""
    return speeds(
        lambda: splitting.compress(x, narrow_dtype, ecc_dtype),
        splitting.decompress,
    )


def quantize(x: torch.Tensor, spec: Spec) -> tuple[float, float, float]:
    """Millions a second that are quantized, dequantized, and both."""
    return speeds(
        lambda: quantization.quantize(x, **spec),
        lambda codes, scales: quantization.dequantize(codes, scales, **spec),
    )


def speeds(
    there: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    back: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[float, float, float]:
    """Of a way there, of the way back, and of a round trip, over medians of the seconds."""
    back(*there())  # The first call starts the threads.
    outward, homeward = [], []
    for _ in range(RUNS):
        start = time.perf_counter()
        pair = there()
        middle = time.perf_counter()
        back(*pair)
        outward.append(middle - start)
        homeward.append(time.perf_counter() - middle)
    first, second = statistics.median(outward), statistics.median(homeward)
    return (
        ELEMENTS / first / 1e6,
        ELEMENTS / second / 1e6,
        ELEMENTS / (first + second) / 1e6,
    )


def row(name: str, speeds: tuple[float, float, float]) -> str:
    return f"{name:26}" + "".join(f"{speed:12.1f}" for speed in speeds)


if __name__ == "__main__":
    main()
