"""Calls of a subject: inputs go to its device; outputs are checked and come back to the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashcheck.compare.metrics import QuantizationOutputs
from flashcheck.config import QuantizationSpec
from flashcheck.errors import SubjectError
from flashcheck.formats import quantized_format, torch_dtype
from flashcheck.report.models import Contract
from flashcheck.subjects.base import Autotuned, Subject, call, device_of
from flashcheck.suites.base import same_in_every_configuration


@dataclass(frozen=True)
class SubjectCalls:
    """The subject of a run, called as the suites need it.

    Attributes:
        every_configuration: also run each launch configuration and compare its bits.
    """

    subject: Subject
    every_configuration: bool = False

    def quantization_round_trip(
        self, x: torch.Tensor, spec: QuantizationSpec, group_size: int
    ) -> QuantizationOutputs:
        """Quantize and dequantize; outputs flat on the CPU.

        Raises:
            SubjectError: the subject raised, or returned what the protocol does not allow.
        """
        options = {**spec.options(), "group_size": group_size}
        device = device_of(self.subject)
        result = call(self.subject, "quantize", x.to(device), **options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise SubjectError(
                f"quantize returned {type(result).__name__}; expected a pair (codes, scales)"
            )
        codes, scales = result
        code_dtype = torch_dtype(quantized_format(spec.signed))
        groups = -(-x.numel() // group_size)
        _check("quantize", "codes", codes, code_dtype, x.shape, device)
        _check("quantize", "scales", scales, torch.float16, torch.Size([groups]), device)
        values = call(self.subject, "dequantize", codes, scales, **options)
        _check("dequantize", "values", values, torch.float32, codes.shape, device)
        return QuantizationOutputs(
            codes=codes.reshape(-1).cpu(),
            scales=scales.reshape(-1).cpu(),
            values=values.reshape(-1).cpu(),
        )

    def compute_ecc(
        self, x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype
    ) -> torch.Tensor:
        """Correction codes, on the CPU; raises as above."""
        device = device_of(self.subject)
        codes = call(
            self.subject, "compute_ecc", x.to(device), narrow.to(device), ecc_dtype=ecc_dtype
        )
        _check("compute_ecc", "codes", codes, ecc_dtype, x.shape, device)
        on_cpu: torch.Tensor = codes.cpu()
        return on_cpu

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        """Reconstructed float32, on the CPU; raises as above."""
        device = device_of(self.subject)
        values = call(self.subject, "reconstruct", narrow.to(device), ecc.to(device))
        _check("reconstruct", "values", values, torch.float32, narrow.shape, device)
        on_cpu: torch.Tensor = values.cpu()
        return on_cpu

    def contracts_of_quantization(
        self,
        x: torch.Tensor,
        spec: QuantizationSpec,
        group_size: int,
        outputs: QuantizationOutputs,
    ) -> list[Contract]:
        """What must hold of the calls beside their results."""
        if not self.every_configuration or not isinstance(self.subject, Autotuned):
            return []
        subject = self.subject

        def run(index: int) -> tuple[torch.Tensor, ...]:
            subject.pin(index)
            again = self.quantization_round_trip(x, spec, group_size)
            return again.codes, again.scales, again.values

        try:
            return [
                same_in_every_configuration(
                    (outputs.codes, outputs.scales, outputs.values),
                    run,
                    min(len(configs) for configs in subject.configurations().values()),
                    ("codes", "scales", "values"),
                )
            ]
        finally:
            subject.pin(0)


def _check(
    method: str,
    what: str,
    value: object,
    dtype: torch.dtype,
    shape: torch.Size,
    device: str,
) -> None:
    if not isinstance(value, torch.Tensor):
        raise SubjectError(f"{method} returned {type(value).__name__} as {what}; expected a tensor")
    wanted = f"{dtype} of shape {tuple(shape)} on {device}"
    got = f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
    if (
        value.dtype != dtype
        or value.shape != shape
        or value.device.type != torch.device(device).type
    ):
        raise SubjectError(f"{method} returned {what} as {got}; expected {wanted}")
