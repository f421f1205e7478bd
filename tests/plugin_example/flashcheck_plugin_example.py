"""A quantizer that knows nothing of flashcheck: momentum in plain torch, rounded half away."""

from __future__ import annotations

import torch


class Plain:
    """Algorithm 2 alone; it can neither take roots nor split weights."""

    name = "plugin_example"
    version = "3.1.4"
    backend = "native"

    def quantize(
        self, x: torch.Tensor, *, signed: bool, sqrt: bool, softsign: bool, group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if sqrt or not signed or not softsign:
            raise NotImplementedError("momentum only")
        flat = x.reshape(-1).float()
        groups = torch.nn.functional.pad(flat, (0, -flat.numel() % group_size))
        groups = groups.reshape(-1, group_size)
        absmax = groups.abs().amax(dim=1)
        m = groups / torch.where(absmax == 0, 1.0, absmax)[:, None]
        m = 2 * m / (1 + m.abs())
        codes = torch.copysign(((m * 127).abs() + 0.5).floor(), m).to(torch.int8)
        return codes.reshape(-1)[: flat.numel()].reshape(x.shape), absmax.half()

    def dequantize(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        *,
        signed: bool,
        sqrt: bool,
        softsign: bool,
        group_size: int,
    ) -> torch.Tensor:
        flat = codes.reshape(-1).float()
        m = flat / torch.full_like(flat, 127.0)
        m = m / (2 - m.abs())
        by_element = scales.float().repeat_interleave(group_size)[: flat.numel()]
        return (m * by_element).reshape(codes.shape)
