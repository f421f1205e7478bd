"""The GPUs that kernels can be compiled for here, by name."""

from __future__ import annotations

from dataclasses import dataclass

from flashcheck.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Target:
    """A GPU architecture as Triton names it."""

    name: str
    backend: str
    arch: int | str
    warp_size: int


def _nvidia(capability: int) -> Target:
    return Target(f"sm_{capability}", "cuda", capability, 32)


def _amd(arch: str, warp_size: int) -> Target:
    return Target(arch, "hip", arch, warp_size)


TARGETS = {
    target.name: target
    for target in (
        *(_nvidia(capability) for capability in (75, 80, 86, 89, 90, 100, 120)),
        *(_amd(arch, 64) for arch in ("gfx90a", "gfx942", "gfx950")),
        *(_amd(arch, 32) for arch in ("gfx1100", "gfx1201")),
    )
}

DEFAULT = ("sm_80", "sm_90", "sm_100", "gfx942")


def find(name: str) -> Target:
    """A target by its name.

    Raises:
        UsageError: it is unknown.
    """
    if name not in TARGETS:
        hint = did_you_mean(name, TARGETS)
        raise UsageError(f"--target {name}: unknown; {hint} (known: {', '.join(TARGETS)})")
    return TARGETS[name]


def of_capability(capability: tuple[int, int]) -> Target:
    """The NVIDIA target of a compute capability, such as (9, 0)."""
    return _nvidia(10 * capability[0] + capability[1])
