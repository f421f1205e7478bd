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
from flashcheck.optimizers import Hyperparameters, State
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
        compare_on: the torch device that inputs come from and outputs go to.
    """

    subject: Subject
    every_configuration: bool = False
    compare_on: str = "cpu"

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
            f"{differing_elements(a, b):,} of {a.numel():,} {name}"
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

    def quantize(
        self, x: torch.Tensor, spec: QuantizationSpec, group_size: int
    ) -> tuple[Outputs, list[Contract]]:
        """Codes and scales alone, flat."""

        def run(changed: list[str]) -> Outputs:
            return self._kept(self._quantize(x.to(self.device), spec, group_size, changed))

        return self._watched(run, ("codes", "scales"))

    def dequantize(
        self, codes: torch.Tensor, scales: torch.Tensor, spec: QuantizationSpec, group_size: int
    ) -> tuple[torch.Tensor, list[Contract]]:
        """Values of given codes and scales alone, flat."""

        def run(changed: list[str]) -> Outputs:
            given = codes.to(self.device), scales.to(self.device)
            return self._kept([self._dequantize(*given, spec, group_size, changed)])

        (values,), contracts = self._watched(run, ("values",))
        return values, contracts

    def reconstruct(
        self, narrow: torch.Tensor, rho: torch.Tensor
    ) -> tuple[torch.Tensor, list[Contract]]:
        """Values of given narrow weights and correction codes alone, flat."""

        def run(changed: list[str]) -> Outputs:
            given = narrow.to(self.device), rho.to(self.device)
            return self._kept([self._reconstruct(*given, changed)])

        (values,), contracts = self._watched(run, ("reconstructed",))
        return values, contracts

    def step(
        self, state: State, grad: torch.Tensor, hyper: Hyperparameters
    ) -> tuple[State, list[Contract]]:
        """One optimizer step, made twice; the stored state on the CPU."""
        changed: list[str] = []
        stored = self.step_once(state, grad, hyper, changed)
        again = self.step_once(state, grad, hyper, [])
        differing = [
            f"{differing_elements(stored[name], again[name]):,} of {stored[name].numel():,} {name}"
            for name in stored
            if not _same(stored[name], again[name])
        ]
        detail = f"changed in place by {', '.join(changed)}" if changed else "as they were"
        inputs = Contract(name=INPUTS_UNCHANGED, ok=not changed, detail=detail)
        return stored, [inputs, same_twice(", ".join(differing))]

    def step_once(
        self, state: State, grad: torch.Tensor, hyper: Hyperparameters, changed: list[str]
    ) -> State:
        """The same without looking twice; a gradient that is changed in place is noted.

        Raises:
            SubjectError: the subject raised, or its state is not of the form that it was given.
        """
        given = {name: self.to_device(tensor) for name, tensor in state.items()}
        gradient = self.to_device(grad)
        stored = call(self.subject, "step", given, gradient, **hyper.options())
        if not _same(gradient, grad.to(self.device)):
            changed.append("step")
        if not isinstance(stored, dict) or stored.keys() != state.keys():
            what = sorted(stored) if isinstance(stored, dict) else type(stored).__name__
            raise SubjectError(f"step returned {what}; expected a dict of {sorted(state)}")
        for name, tensor in state.items():
            check_output("step", name, stored[name], tensor.dtype, tensor.shape, self.device)
        return {name: stored[name].to(self.compare_on, copy=True) for name in state}

    def to_device(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of ``x`` that the subject may be given."""
        return x.to(self.device, copy=True)

    @property
    def device(self) -> str:
        """The torch device that the subject's tensors are on."""
        return device_of(self.subject)

    def _quantize_and_back(
        self, x: torch.Tensor, spec: QuantizationSpec, group_size: int, changed: list[str]
    ) -> Outputs:
        codes, scales = self._quantize(x, spec, group_size, changed)
        values = self._dequantize(codes, scales, spec, group_size, changed)
        return self._kept([codes, scales, values])

    def _split_and_back(
        self, x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype, changed: list[str]
    ) -> Outputs:
        rho = self._call(changed, "compute_ecc", x, narrow, ecc_dtype=ecc_dtype)
        check_output("compute_ecc", "codes", rho, ecc_dtype, x.shape, self.device)
        return self._kept([rho, self._reconstruct(narrow, rho, changed)])

    def _quantize(
        self, x: torch.Tensor, spec: QuantizationSpec, group_size: int, changed: list[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = self._call(changed, "quantize", x, **spec.options(), group_size=group_size)
        if not isinstance(result, tuple) or len(result) != 2:
            raise SubjectError(
                f"quantize returned {type(result).__name__}; expected a pair (codes, scales)"
            )
        codes, scales = result
        code_dtype = torch_dtype(quantized_format(spec.signed))
        groups = -(-x.numel() // group_size)
        check_output("quantize", "codes", codes, code_dtype, x.shape, self.device)
        check_output("quantize", "scales", scales, torch.float16, torch.Size([groups]), self.device)
        return codes, scales

    def _dequantize(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        spec: QuantizationSpec,
        group_size: int,
        changed: list[str],
    ) -> torch.Tensor:
        options = {**spec.options(), "group_size": group_size}
        values: torch.Tensor = self._call(changed, "dequantize", codes, scales, **options)
        check_output("dequantize", "values", values, torch.float32, codes.shape, self.device)
        return values

    def _reconstruct(
        self, narrow: torch.Tensor, rho: torch.Tensor, changed: list[str]
    ) -> torch.Tensor:
        values: torch.Tensor = self._call(changed, "reconstruct", narrow, rho)
        check_output("reconstruct", "values", values, torch.float32, narrow.shape, self.device)
        return values

    def _kept(self, outputs: Sequence[torch.Tensor]) -> Outputs:
        """Flat copies: a subject may write its next results where these are."""
        return tuple(output.reshape(-1).to(self.compare_on, copy=True) for output in outputs)

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


def _raw(x: torch.Tensor) -> torch.Tensor:
    """The bits as integers, NaN payloads included."""
    return x.reshape(-1).contiguous().view(_INTEGER_OF_WIDTH[x.element_size()])


def differing_elements(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements differ in their bits, NaN payloads included."""
    return int((_raw(a) != _raw(b)).sum())


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_raw(a), _raw(b))


def check_output(
    method: str,
    what: str,
    value: object,
    dtype: torch.dtype,
    shape: torch.Size,
    device: str,
) -> None:
    """Hold what a subject returned against the protocol.

    Raises:
        SubjectError: it is no tensor, or of another dtype, shape or device.
    """
    if not isinstance(value, torch.Tensor):
        raise SubjectError(f"{method} returned {type(value).__name__} as {what}; expected a tensor")
    wanted = (dtype, tuple(shape), torch.device(device).type)
    got = (value.dtype, tuple(value.shape), value.device.type)
    if got != wanted:
        expected, came = ("{} of shape {} on {}".format(*form) for form in (wanted, got))
        raise SubjectError(f"{method} returned {what} as {came}; expected {expected}")
