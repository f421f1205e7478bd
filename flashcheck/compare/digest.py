"""A digest of what a function gives over many inputs, which does not depend on their order.

Every input and its outputs are mixed into 32 bits; the digest is the sum of all, modulo 2^32. Parts
add up, whoever computed them, on whatever device.
"""

from __future__ import annotations

import torch

MULTIPLIERS = (-1640531527, -2048144789, -1028477387)
"""Odd, as int32: 2^32 over the golden ratio, and the two of MurmurHash3's last step."""

SHIFTS = (15, 13, 16)
MODULUS = 1 << 32


def mix(*parts: torch.Tensor) -> torch.Tensor:
    """Of up to three integer tensors of one shape, an input's bits first: 32 bits each, int32."""
    mixed = torch.zeros_like(parts[0], dtype=torch.int32)
    for part, multiplier, shift in zip(parts, MULTIPLIERS, SHIFTS, strict=False):
        mixed ^= part.to(torch.int32)
        mixed *= multiplier
        mixed ^= mixed >> shift
    return mixed
