"""A subject: the quantization of Algorithms 2 and 3 of arXiv 2602.23349, in torch."""

import torch


class Template:
    """Put your own implementation in the place of each body; leave out what you do not have."""

    name = "template"
    version = "0.1"

    def quantize(
        self, x: torch.Tensor, *, signed: bool, sqrt: bool, softsign: bool, group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of the shape of ``x``, int8 or uint8, and a float16 scale for each group."""
        padding = (0, -x.numel() % group_size)
        groups = torch.nn.functional.pad(x.float().flatten(), padding).view(-1, group_size)
        values = groups.sqrt() if sqrt else groups
        absmax = values.abs().amax(dim=1, keepdim=True)
        share = values / torch.where(absmax == 0, 1.0, absmax)
        if softsign:
            share = 2 * share / (1 + share.abs())
        least, most = (-127, 127) if signed else (0, 255)
        codes = (share * most).round().clamp(least, most).nan_to_num()
        codes = codes.flatten()[: x.numel()].view(x.shape)
        return codes.to(torch.int8 if signed else torch.uint8), absmax.flatten().half()

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
        """Float32 of the shape of ``codes``."""
        share = codes.float() / (127 if signed else 255)
        if softsign:
            share = share / (2 - share.abs())
        each = scales.float().repeat_interleave(group_size)[: codes.numel()]
        values = share * each.view(codes.shape)
        return values * values if sqrt else values
