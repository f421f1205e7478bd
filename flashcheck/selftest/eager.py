"""A correct subject in small steps, each of which a fault or a variant may replace.

It is no second reference: it is written to be broken. That it is correct as it stands is itself a
test: as the variant 'the literal paper' it must differ in no bit.
"""

from __future__ import annotations

import torch

from flashcheck.formats import ecc_format, narrow_format, quantized_format, torch_dtype


class Eager:
    """Algorithms 1 to 3 on the CPU, eagerly, one method a step."""

    name = "selftest"
    version = "1"
    backend = "native"

    # Quantization, of groups of shape (groups, group_size).

    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1).to(torch.float32)

    def root(self, v: torch.Tensor) -> torch.Tensor:
        # torch.sqrt of float32 is not correctly rounded on every CPU.
        return v.double().sqrt().float()

    def absmax(self, v: torch.Tensor) -> torch.Tensor:
        return v.abs().amax(dim=1)

    def divide(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a / b

    def normalise(self, v: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
        return self.divide(v, torch.where(absmax == 0, 1.0, absmax)[:, None].expand_as(v))

    def compand(self, m: torch.Tensor) -> torch.Tensor:
        return self.divide(2 * m, 1 + m.abs())

    def largest_code(self, signed: bool) -> int:
        return quantized_format(signed).max_code

    def round(self, m: torch.Tensor, n: int) -> torch.Tensor:
        """``m * n`` to an integer."""
        return (m * n).round()

    def clamp_code(self, code: torch.Tensor, signed: bool) -> torch.Tensor:
        fmt = quantized_format(signed)
        return code.nan_to_num(nan=0.0).clamp(fmt.min_code, fmt.max_code)

    def store_scale(self, absmax: torch.Tensor) -> torch.Tensor:
        return absmax.half()

    def quantize(
        self, x: torch.Tensor, *, signed: bool, sqrt: bool, softsign: bool, group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        flat = self.flatten(x)
        groups = self.group(flat, group_size)
        values = self.root(groups) if sqrt else groups
        absmax = self.absmax(values)
        companded = self.normalise(values, absmax)
        if softsign:
            companded = self.compand(companded)
        rounded = self.round(companded, self.largest_code(signed))
        codes = self.clamp_code(rounded, signed).to(torch_dtype(quantized_format(signed)))
        return codes.reshape(-1)[: flat.numel()].reshape(x.shape), self.store_scale(absmax)

    def group(self, flat: torch.Tensor, group_size: int) -> torch.Tensor:
        missing = -flat.numel() % group_size
        return torch.nn.functional.pad(flat, (0, missing)).reshape(-1, group_size)

    def expand(self, m: torch.Tensor) -> torch.Tensor:
        return self.divide(m, 2 - m.abs())

    def divide_by(self, codes: torch.Tensor, n: int) -> torch.Tensor:
        return self.divide(codes, torch.full_like(codes, n))

    def square(self, v: torch.Tensor) -> torch.Tensor:
        return v * v

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
        flat = codes.reshape(-1)
        groups = self.group(flat, group_size).float()
        values = self.divide_by(groups, self.largest_code(signed))
        if softsign:
            values = self.expand(values)
        values = values * scales.float()[:, None]
        if sqrt:
            values = self.square(values)
        return values.reshape(-1)[: flat.numel()].reshape(codes.shape)

    # Splitting.

    def log2_half_ulp(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        """Of the narrow weight; ``x`` is there for those who take the wrong one."""
        fmt = narrow_format(narrow.dtype)
        field = (narrow.view(torch.int16).int() >> fmt.mantissa_bits) & fmt.exponent_mask
        return field.clamp(min=1) - (fmt.bias + fmt.mantissa_bits + 1)

    def error(self, x: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        return x - narrow.float()

    def scale_error(self, error: torch.Tensor, ulp: torch.Tensor) -> torch.Tensor:
        half = torch.div(-ulp, 2, rounding_mode="floor")
        return error * self.power_of_two(half) * self.power_of_two(-ulp - half)

    def clamp_error(self, error: torch.Tensor) -> torch.Tensor:
        return error.clamp(-1, 1)

    def largest_rho(self, ecc_dtype: torch.dtype) -> int:
        return ecc_format(ecc_dtype).max_code

    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        n = self.largest_rho(ecc_dtype)
        ulp = self.log2_half_ulp(x.contiguous(), narrow.contiguous())
        normalised = self.clamp_error(self.scale_error(self.error(x, narrow), ulp))
        rounded = self.round(normalised, n).nan_to_num(nan=0.0)
        limits = torch.iinfo(ecc_dtype)
        return rounded.clamp(limits.min, limits.max).to(ecc_dtype)

    def combine(
        self, narrow: torch.Tensor, scaled: torch.Tensor, power: torch.Tensor
    ) -> torch.Tensor:
        return narrow.float() + scaled * power

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        fraction = self.divide_by(ecc.float(), self.largest_rho(ecc.dtype))
        contiguous = narrow.contiguous()
        ulp = self.log2_half_ulp(contiguous.float(), contiguous)
        half = torch.div(ulp, 2, rounding_mode="floor")
        return self.combine(
            narrow, fraction * self.power_of_two(half), self.power_of_two(ulp - half)
        )

    def power_of_two(self, exponent: torch.Tensor) -> torch.Tensor:
        return ((exponent + 127) << 23).view(torch.float32)
