"""Calls of a subject: inputs go to its device; outputs are checked and come back to the CPU.

Each call is made twice, and what must hold of it beside its results becomes contracts: that the
same bits come twice, that the inputs are unchanged, and, where asked for, that every launch
configuration gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashcheck.compare.metrics import QuantizationOutputs, SplittingOutputs
from flashcheck.config import QuantizationSpec
from flashcheck.errors import SubjectError
from flashcheck.formats import quantized_format, torch_dtype
from flashcheck.measures import EVERY_CONFIGURATION, INPUTS_UNCHANGED, SAME_BITS_TWICE
from flashcheck.report.models import Contract
from flashcheck.subjects.base import Autotuned, Subject, autotuned, call, device_of

_INTEGER_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Outputs = tuple[torch.Tensor, ...]
Run = Callable[[list[str]], Outputs]
"""Makes a case's calls; adds the methods that changed an input to its argument."""


@dataclass(frozen=True)
class SubjectCalls:
    """The subject of a run, called as the suites need it.

    Attributes:
        every_configuration: also run each launch configuration and compare its bits.
    """

    subject: Subject
    every_configuration: bool = False

    def quantize_and_back(
        self, x: torch.Tensor, spec: QuantizationSpec, group_size: int
    ) -> tuple[QuantizationOutputs, list[Contract]]:
        """A round trip of ``x``, on the subject's device; outputs flat on the CPU.

        Raises:
            SubjectError: the subject raised, or returned what the protocol does not allow.
        """

        def run(changed: list[str]) -> Outputs:
            return self._quantize_and_back(x, spec, group_size, changed)

        names = ("codes", "scales", "values")
        outputs, contracts = self._watched(run, names)
        differing = [
            f"{_differing(a, b):,} of {a.numel():,} {name}"
            for name, a, b in zip(names, outputs, run([]), strict=True)
            if not _same(a, b)
        ]
        return QuantizationOutputs(*outputs), [*contracts, same_twice(", ".join(differing))]

    def split_and_back(
        self, x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype
    ) -> tuple[SplittingOutputs, list[Contract]]:
        """Correction codes and the values they give back, likewise; the caller runs it twice."""

        def run(changed: list[str]) -> Outputs:
            return self._split_and_back(x, narrow, ecc_dtype, changed)

        outputs, contracts = self._watched(run, ("rho", "reconstructed"))
        return SplittingOutputs(*outputs), contracts

    def to_device(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of ``x`` that the subject may be given."""
        return x.to(device_of(self.subject), copy=True)

    def _quantize_and_back(
        self, x: torch.Tensor, spec: QuantizationSpec, group_size: int, changed: list[str]
    ) -> Outputs:
        options = {**spec.options(), "group_size": group_size}
        result = self._call(changed, "quantize", x, **options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise SubjectError(
                f"quantize returned {type(result).__name__}; expected a pair (codes, scales)"
            )
        codes, scales = result
        code_dtype = torch_dtype(quantized_format(spec.signed))
        groups = -(-x.numel() // group_size)
        device = device_of(self.subject)
        _check("quantize", "codes", codes, code_dtype, x.shape, device)
        _check("quantize", "scales", scales, torch.float16, torch.Size([groups]), device)
        values = self._call(changed, "dequantize", codes, scales, **options)
        _check("dequantize", "values", values, torch.float32, x.shape, device)
        return tuple(_kept(output) for output in (codes, scales, values))

    def _split_and_back(
        self, x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype, changed: list[str]
    ) -> Outputs:
        device = device_of(self.subject)
        rho = self._call(changed, "compute_ecc", x, narrow, ecc_dtype=ecc_dtype)
        _check("compute_ecc", "codes", rho, ecc_dtype, x.shape, device)
        values = self._call(changed, "reconstruct", narrow, rho)
        _check("reconstruct", "values", values, torch.float32, x.shape, device)
        return tuple(_kept(output) for output in (rho, values))

    def _call(self, changed: list[str], method: str, *tensors: torch.Tensor, **options: Any) -> Any:
        """Call a method; note whether it changed a tensor it was given, and put it right."""
        before = [tensor.clone() for tensor in tensors]
        result = call(self.subject, method, *tensors, **options)
        for tensor, kept in zip(tensors, before, strict=True):
            if not _same(tensor, kept):
                changed.append(method)
                tensor.copy_(kept)
        return result

    def _watched(self, run: Run, names: Sequence[str]) -> tuple[Outputs, list[Contract]]:
        """Run once, and say of its inputs, and where asked for of every configuration."""
        changed: list[str] = []
        outputs = run(changed)
        detail = f"changed in place by {', '.join(changed)}" if changed else "as they were"
        contracts = [Contract(name=INPUTS_UNCHANGED, ok=not changed, detail=detail)]
        tuned = autotuned(self.subject)
        if self.every_configuration and tuned:
            contracts.append(_every_configuration(tuned, outputs, run, names))
        return outputs, contracts


def same_twice(differing: str | None) -> Contract:
    """Whether a second run gave the bits of the first, or what differed."""
    return Contract(
        name=SAME_BITS_TWICE,
        ok=not differing,
        detail=f"{differing} differ in a second run" if differing else "equal in a second run",
    )


def merged(contracts: Sequence[Contract]) -> list[Contract]:
    """One contract a name: a broken one if any is."""
    kept: dict[str, Contract] = {}
    for contract in contracts:
        if contract.name not in kept or kept[contract.name].ok:
            kept[contract.name] = contract
    return list(kept.values())


def _every_configuration(
    subject: Autotuned, pinned: Outputs, run: Run, names: Sequence[str]
) -> Contract:
    """Whether every launch configuration gives the bits of the pinned one."""
    configurations = min(len(configs) for configs in subject.configurations().values())
    differing = []
    try:
        for index in range(configurations):
            subject.pin(index)
            differing += [
                f"{name} in configuration {index}"
                for name, first, other in zip(names, pinned, run([]), strict=True)
                if not _same(first, other)
            ]
    finally:
        subject.pin(0)
    return Contract(
        name=EVERY_CONFIGURATION,
        ok=not differing,
        detail=f"differ: {', '.join(differing)}" if differing else f"equal in all {configurations}",
    )


def _kept(output: torch.Tensor) -> torch.Tensor:
    """A flat copy on the CPU: a subject may write its next results where these are."""
    return output.reshape(-1).to("cpu", copy=True)


def _raw(x: torch.Tensor) -> torch.Tensor:
    """The bits as integers, NaN payloads included."""
    return x.reshape(-1).contiguous().view(_INTEGER_OF_WIDTH[x.element_size()])


def _differing(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((_raw(a) != _raw(b)).sum())


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_raw(a), _raw(b))


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
    wanted = (dtype, tuple(shape), torch.device(device).type)
    got = (value.dtype, tuple(value.shape), value.device.type)
    if got != wanted:
        expected, came = ("{} of shape {} on {}".format(*form) for form in (wanted, got))
        raise SubjectError(f"{method} returned {what} as {came}; expected {expected}")
