"""What must hold of a subject's calls beside their results, seen for each of its methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcheck import runner, selection
from flashcheck.config import load
from flashcheck.report.models import CaseResult, Selection, Status
from flashcheck.selftest.eager import Eager
from tests.conftest import Cli

EDGE = """\
suite: small
kind: edge
description: one tensor, and no element at all
seed: 7
group_size: 32
battery:
  - {name: plain, generator: normal, size: 97}
specs:
  - {name: momentum, signed: true, sqrt: false, softsign: true}
formats:
  - {narrow: bf16, ecc: int8}
gates: []
"""

QUANTIZATION = ("quantize", "dequantize")
METHODS = (*QUANTIZATION, "compute_ecc", "reconstruct")


def case_of(method: str) -> str:
    return "plain/momentum" if method in QUANTIZATION else "plain/bf16+int8"


@pytest.fixture
def judged(tmp_path: Path) -> Callable[[Any], dict[str, CaseResult]]:
    """Run the small suite on a subject."""
    path = tmp_path / "small.yaml"
    path.write_text(EDGE)
    suite = selection.make_suite(load(path), Selection(battery=[], spec=[]))

    def run(subject: Any) -> dict[str, CaseResult]:
        plan = runner.Plan(subject=subject)
        return {case.case: case for case in runner.run_cases(plan, suite, lambda _: None)}

    return run


Judged = Callable[[Any], dict[str, CaseResult]]


class Around(Eager):
    """A correct subject with one method wrapped: given its result and its positional inputs."""

    def __init__(self, method: str, after: Callable[..., Any]) -> None:
        right = getattr(self, method)

        def wrapped(*args: Any, **options: Any) -> Any:
            return after(right(*args, **options), *args)

        setattr(self, method, wrapped)


def contracts(case: CaseResult) -> dict[str, bool]:
    return {contract.name: contract.ok for contract in case.contracts}


def test_a_correct_subject_keeps_every_contract(judged: Judged) -> None:
    cases = judged(Eager())
    assert set(cases) == {"plain/momentum", "plain/bf16+int8"}
    for case in cases.values():
        assert case.status is Status.PASS
        assert contracts(case) == {
            "inputs_unchanged": True,
            "same_bits_twice": True,
            "empty_input": True,
        }


IN_PLACE = [
    ("quantize", 0),
    ("dequantize", 0),
    ("dequantize", 1),
    ("compute_ecc", 0),
    ("compute_ecc", 1),
    ("reconstruct", 0),
    ("reconstruct", 1),
]


@pytest.mark.parametrize(("method", "which"), IN_PLACE)
def test_an_input_changed_in_place_is_seen(judged: Judged, method: str, which: int) -> None:
    def change(result: Any, *args: torch.Tensor) -> Any:
        if args[which].numel():
            flat = args[which].reshape(-1)
            flat[flat.numel() // 2] = 3
        return result

    case = judged(Around(method, change))[case_of(method)]
    assert case.status is Status.FAIL
    assert contracts(case)["inputs_unchanged"] is False
    assert "inputs_unchanged" in (case.reason or "")


def first_float_bit(x: torch.Tensor) -> None:
    x.reshape(-1).view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])[:1] ^= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_result_that_changes_from_call_to_call_is_seen(judged: Judged, method: str) -> None:
    calls = itertools.count()

    def change(result: Any, *_: torch.Tensor) -> Any:
        # Right the first time.
        if next(calls) % 2:
            first_float_bit(result[0] if isinstance(result, tuple) else result)
        return result

    case = judged(Around(method, change))[case_of(method)]
    assert case.status is Status.FAIL
    assert contracts(case)["same_bits_twice"] is False
    assert "differ in a second run" in (case.reason or "")


def test_a_nan_of_another_payload_is_not_the_same_bits(judged: Judged) -> None:
    calls = itertools.count()

    def change(result: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        result.view(torch.int32)[:1] = 0x7FC00000 + next(calls)
        return result

    case = judged(Around("dequantize", change))["plain/momentum"]
    assert contracts(case)["same_bits_twice"] is False


WRONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda x: x.to(torch.int32) if x.dtype != torch.int32 else x.float(),
    "shape": lambda x: torch.cat([x.reshape(-1), x.reshape(-1)[:1]]),
    "dimensions": lambda x: x[None],
    "device": lambda x: x.to("meta"),
    "list": lambda x: x.tolist(),
    "nothing": lambda x: None,
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_return_is_an_error_that_says_what_was_expected_and_what_came(
    judged: Judged, method: str, wrong: str
) -> None:
    def change(result: Any, *_: torch.Tensor) -> Any:
        if isinstance(result, tuple):
            return WRONG[wrong](result[0]), result[1]
        return WRONG[wrong](result)

    cases = judged(Around(method, change))
    case = cases[case_of(method)]
    assert case.status is Status.ERROR
    reason = case.reason or ""
    assert reason.startswith(f"{method} returned ")
    assert "expected" in reason
    assert "\n" not in reason
    if wrong in ("dtype", "shape", "dimensions", "device"):
        assert reason.count(" of shape ") == 2
    if wrong == "device":
        assert "on meta; expected" in reason
    # The other kind of case still runs.
    (other,) = (c for name, c in cases.items() if name != case_of(method))
    assert other.status is Status.PASS


@pytest.mark.parametrize("wrong", [v for v in WRONG if v not in ("list", "nothing")])
def test_wrong_scales_are_an_error(judged: Judged, wrong: str) -> None:
    def change(result: tuple[torch.Tensor, torch.Tensor], *_: torch.Tensor) -> Any:
        return result[0], WRONG[wrong](result[1])

    case = judged(Around("quantize", change))["plain/momentum"]
    assert case.status is Status.ERROR
    assert "as scales" in (case.reason or "") or "returned scales as" in (case.reason or "")


@pytest.mark.parametrize("returned", [(), (1,), (1, 2, 3), [1, 2], None, 5])
def test_quantize_has_to_return_a_pair(judged: Judged, returned: Any) -> None:
    case = judged(Around("quantize", lambda *_: returned))["plain/momentum"]
    assert case.status is Status.ERROR
    assert "expected a pair (codes, scales)" in (case.reason or "")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_raises_on_no_element_breaks_a_contract(judged: Judged, method: str) -> None:
    def change(result: Any, x: torch.Tensor, *_: torch.Tensor) -> Any:
        if not x.numel():
            raise IndexError("max(): expected a dimension of non-zero size")
        return result

    case = judged(Around(method, change))[case_of(method)]
    assert case.status is Status.FAIL
    assert contracts(case)["empty_input"] is False
    assert f"{method} raised IndexError: max()" in (case.reason or "")
    assert contracts(case)["same_bits_twice"]


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_shape_of_no_element_breaks_it_too(judged: Judged, method: str) -> None:
    def change(result: Any, x: torch.Tensor, *_: torch.Tensor) -> Any:
        if x.numel():
            return result
        if isinstance(result, tuple):
            return torch.zeros(1, dtype=result[0].dtype), result[1]
        return torch.zeros(1, dtype=result.dtype)

    case = judged(Around(method, change))[case_of(method)]
    assert contracts(case)["empty_input"] is False


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_raises_is_an_error_of_that_case_alone(judged: Judged, method: str) -> None:
    def change(*_: Any) -> Any:
        raise RuntimeError("no kernel image\nis available")

    cases = judged(Around(method, change))
    assert cases[case_of(method)].status is Status.ERROR
    reason = cases[case_of(method)].reason
    assert reason == f"{method} raised RuntimeError: no kernel image is available"
    assert [c.status for n, c in cases.items() if n != case_of(method)] == [Status.PASS]


class Reuses(Eager):
    """Writes each result into the memory of the one before, as a kernel with a workspace does."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def keep(self, what: str, result: torch.Tensor) -> torch.Tensor:
        buffer = self.buffers.setdefault(
            (what, result.dtype), torch.empty(1 << 12, dtype=result.dtype)
        )
        view = buffer[: result.numel()].view(result.shape)
        view.copy_(result)
        return view

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        codes, scales = super().quantize(x, **options)
        return self.keep("codes", codes), self.keep("scales", scales)

    def dequantize(self, codes: torch.Tensor, scales: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.keep("values", super().dequantize(codes, scales, **options))

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: Any) -> torch.Tensor:
        return self.keep("rho", super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype))

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> torch.Tensor:
        return self.keep("values", super().reconstruct(narrow, ecc))


def test_a_subject_that_reuses_its_output_buffers_is_not_flagged(judged: Judged) -> None:
    for case in judged(Reuses()).values():
        assert case.status is Status.PASS, case.reason


class UnsteadyReuses(Reuses):
    """The same, and wrong every second time: its buffer must not hide that."""

    calls = itertools.count()

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        codes, scales = super().quantize(x, **options)
        if next(self.calls) % 2:
            first_float_bit(codes)
        return codes, scales


def test_a_reused_buffer_does_not_hide_a_change_from_run_to_run(judged: Judged) -> None:
    case = judged(UnsteadyReuses())["plain/momentum"]
    assert contracts(case)["same_bits_twice"] is False


@pytest.mark.parametrize("code", [0, 1, "bye"])
def test_a_subject_that_exits_the_process_never_passes(
    cli: Cli, use_subject: Callable[[object], None], tmp_path: Path, code: object
) -> None:
    class Exits(Eager):
        def quantize(self, *_: Any, **__: Any) -> Any:
            raise SystemExit(code)

    path = tmp_path / "small.yaml"
    path.write_text(EDGE)
    use_subject(Exits())
    ran = cli("run", path, "--json")
    assert ran.code == 4
    (broken,) = (c for c in ran.json()["cases"] if c["case"] == "plain/momentum")
    assert broken["status"] == "error"
    assert "SystemExit" in broken["reason"]
