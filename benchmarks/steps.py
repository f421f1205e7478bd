"""How fast an optimizer steps on a GPU, and how much of a copy's bandwidth that is.

One parameter of 2^26 elements, one step of AdamW: the authors' optimizer, flashcheck's own kernel,
and ``torch.optim``'s fused one. Bytes are those that have to be moved: each tensor of the state is
read and written once, the gradient read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu import copy_bandwidth, on_the_gpu

from flashcheck import environment
from flashcheck.optimizers import GROUP_SIZE, Hyperparameters, Optimizer, State
from flashcheck.subjects import registry

SIZE = 1 << 26
ADAMW = Hyperparameters(Optimizer.ADAMW, step=10, weight_decay=0.01)
_SCALES = 2 / GROUP_SIZE


@dataclass(frozen=True)
class Stepped:
    """A step to time, and the bytes that it moves of each element."""

    what: str
    step: Callable[[], object]
    bytes_each: float


def compressed(device: str, size: int) -> tuple[State, torch.Tensor]:
    """A state of bfloat16 parameters with corrections and quantized moments, and a gradient."""
    groups = size // GROUP_SIZE
    state = {
        "param": torch.ones(size, dtype=torch.bfloat16, device=device),
        "ecc": torch.zeros(size, dtype=torch.int8, device=device),
        "momentum": torch.ones(size, dtype=torch.int8, device=device),
        "momentum_scales": torch.ones(groups, dtype=torch.float16, device=device),
        "variance": torch.ones(size, dtype=torch.uint8, device=device),
        "variance_scales": torch.ones(groups, dtype=torch.float16, device=device),
    }
    return state, torch.ones(size, dtype=torch.bfloat16, device=device)


def authors(device: str, size: int) -> Stepped:
    """The authors' public optimizer, which keeps its state from step to step."""
    import flashoptim

    param = torch.nn.Parameter(torch.ones(size, dtype=torch.bfloat16, device=device))
    param.grad = torch.ones_like(param)
    made = flashoptim.FlashAdamW([param], lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
    return Stepped("flashoptim, bf16+int8, quantized", made.step, 2 + 2 * (2 + 1 + 2 + 2 * _SCALES))


def in_tree(backend: str, device: str, size: int) -> Stepped:
    """flashcheck's own kernel, on the bare state."""
    subject: Any = registry.load("triton", backend)[0]  # type: ignore[arg-type]
    state, grad = compressed(device, size)
    options = ADAMW.options()
    each = 2 + 2 * (2 + 1 + 2 + 2 * _SCALES)
    return Stepped(
        "flashcheck's kernel, the same", lambda: subject.step(state, grad, **options), each
    )


def plain(device: str, size: int, dtype: torch.dtype) -> Stepped:
    """``torch.optim``'s fused AdamW, all of it in one dtype."""
    param = torch.nn.Parameter(torch.ones(size, dtype=dtype, device=device))
    param.grad = torch.ones_like(param)
    made = torch.optim.AdamW(
        [param], lr=ADAMW.lr, weight_decay=ADAMW.weight_decay, fused=device == "cuda"
    )
    name = str(dtype).removeprefix("torch.")
    return Stepped(f"torch.optim, fused, {name}", made.step, 7 * dtype.itemsize)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark is of a GPU, and torch sees none")
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, {environment.cpu_name()}, torch {torch.__version__}")
    print(f"a copy moves {copy / 1e12:.2f} TB/s; one step of AdamW, {SIZE:,} elements")
    print()
    print("| AdamW | ms | G elements/s | TB/s | of a copy's bandwidth |")
    print("| --- | ---: | ---: | ---: | ---: |")
    made: list[Callable[[], Stepped]] = [
        lambda: authors("cuda", SIZE),
        lambda: in_tree("cuda", "cuda", SIZE),
        lambda: plain("cuda", SIZE, torch.bfloat16),
        lambda: plain("cuda", SIZE, torch.float32),
    ]
    for make in made:
        stepped = make()
        seconds = on_the_gpu(stepped.step)
        rate = SIZE / seconds
        moved = rate * stepped.bytes_each
        print(
            f"| {stepped.what} | {seconds * 1e3:.3f} | {rate / 1e9:.1f} | {moved / 1e12:.2f} "
            f"| {100 * moved / copy:.0f}% |",
            flush=True,
        )


if __name__ == "__main__":
    main()
