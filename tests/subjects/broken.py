"""A subject with one fault, as a user would write it: the last code is never reached.

``flashcheck run quant ecc --subject tests/subjects/broken.py:Broken`` exits with 1.
"""

from __future__ import annotations

from typing import Any

import torch

from flashcheck.reference import quantization, splitting


class Broken:
    """The reference, its codes cut one short at both ends."""

    version = "1.0"

    def quantize(self, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales = quantization.quantize(x, **options)
        low, high = (-126, 126) if options["signed"] else (0, 254)
        return codes.clamp(low, high).reshape(x.shape), scales

    def dequantize(self, codes: torch.Tensor, scales: torch.Tensor, **options: Any) -> torch.Tensor:
        return quantization.dequantize(codes, scales, **options).reshape(codes.shape)

    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        limit = torch.iinfo(ecc_dtype).max - 1
        return splitting.encode(x, narrow, ecc_dtype).clamp(-limit, limit)

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        return splitting.decompress(narrow, ecc)
