"""The suite ``edge``: what it feeds, and what it says of a right subject and of the authors'."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from flashcheck import runner, selection
from flashcheck.config import EdgeConfig, load
from flashcheck.report.models import CaseResult, Report, Selection, Status
from flashcheck.runner import Plan
from flashcheck.selftest.eager import Eager
from tests.conftest import CHECKOUT

CONFIG = load(CHECKOUT / "configs" / "edge.yaml")
assert isinstance(CONFIG, EdgeConfig)


@dataclass(frozen=True)
class Fed:
    """A tensor as a subject was given it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    contiguous: bool
    values: torch.Tensor
    signed: bool | None

    @property
    def groups(self) -> torch.Tensor:
        """Of 32, in row-major order, the last filled up with zeros; float32."""
        flat = self.values.reshape(-1).float()
        return torch.nn.functional.pad(flat, (0, -flat.numel() % 32)).reshape(-1, 32)


@dataclass
class Recorder(Eager):
    """The literal paper, which keeps what it is given."""

    quantized: list[Fed] = field(default_factory=list)
    split: list[Fed] = field(default_factory=list)
    narrow: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        self.quantized.append(fed(x, options["signed"]))
        return super().quantize(x, **options)

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: Any) -> torch.Tensor:
        self.split.append(fed(x, None))
        self.narrow.append((x.clone(), narrow.clone()))
        return super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)


def fed(x: torch.Tensor, signed: bool | None) -> Fed:
    return Fed(x.dtype, tuple(x.shape), tuple(x.stride()), x.is_contiguous(), x.clone(), signed)


def run(subject: Any) -> Report:
    suite = selection.make_suite(CONFIG, Selection(battery=[], spec=[]))
    return runner.run(Plan(subject=subject), suite, lambda _: None)


@pytest.fixture(scope="module")
def literal() -> tuple[Recorder, Report]:
    """One run of the whole suite on the literal paper."""
    recorder = Recorder()
    return recorder, run(recorder)


@pytest.fixture(scope="module")
def quantized(literal: tuple[Recorder, Report]) -> list[Fed]:
    return literal[0].quantized


@pytest.fixture(scope="module")
def split(literal: tuple[Recorder, Report]) -> list[Fed]:
    return literal[0].split


# --- The literal paper ------------------------------------------------------------------------


def test_the_literal_paper_passes_every_case_without_a_mismatch(
    literal: tuple[Recorder, Report],
) -> None:
    report = literal[1]
    assert report.status == "pass"
    assert [case.case for case in report.cases] == CONFIG.case_names()
    for case in report.cases:
        assert case.status is Status.PASS, (case.case, case.reason)
        assert case.mismatches
        assert case.mismatches.total == 0, case.case
        assert case.mismatches.sentence == "bit-equal under the paper's arithmetic"
        assert all(gate.ok for gate in case.gates)
        assert {contract.name for contract in case.contracts} == {
            "inputs_unchanged",
            "same_bits_twice",
            "empty_input",
        }
        assert all(contract.ok for contract in case.contracts)
        assert case.numel > 0


def test_unexplained_is_a_gate_of_every_case(literal: tuple[Recorder, Report]) -> None:
    for case in literal[1].cases:
        gates = {gate.metric: (gate.op, gate.limit) for gate in case.gates}
        assert gates["unexplained"] == ("==", 0), case.case


# --- What is fed, by looking at it ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float32])
@pytest.mark.parametrize("signed", [True, False])
def test_each_dtype_is_quantized(quantized: list[Fed], dtype: torch.dtype, signed: bool) -> None:
    found = [x for x in quantized if x.dtype == dtype and x.signed is signed]
    assert any(x.values.numel() > 1000 and len(set(x.values.tolist())) > 100 for x in found)


def test_only_float32_is_split(split: list[Fed]) -> None:
    assert {x.dtype for x in split} == {torch.float32}


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (31,), (32,), (33,), ((1 << 20) + 1,), (96, 43)], ids=str
)
def test_each_size_and_shape_is_quantized_and_split(
    quantized: list[Fed], split: list[Fed], shape: tuple[int, ...]
) -> None:
    for calls in (quantized, split):
        assert any(x.shape == shape for x in calls)
    for signed in (True, False):
        assert any(x.shape == shape and x.signed is signed for x in quantized)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((96, 43), (43, 1)), ((96, 43), (1, 96)), ((4097,), (2,))],
    ids=["matrix", "transposed", "strided"],
)
def test_each_layout_is_quantized_and_split(
    quantized: list[Fed], split: list[Fed], shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    for calls in (quantized, split):
        found = [x for x in calls if x.shape == shape and x.stride == stride]
        assert found
        assert all(x.contiguous is (stride == (43, 1)) for x in found)
        # Random, so that no permutation of the elements looks the same.
        assert all(len(set(x.values.reshape(-1).tolist())) > 0.4 * x.values.numel() for x in found)


def whole_groups(calls: list[Fed]) -> Iterator[torch.Tensor]:
    for x in calls:
        if x.dtype == torch.float32 and x.values.numel():
            yield from x.groups if x.values.numel() < 100_000 else x.groups[:10]


@pytest.fixture(scope="module")
def momentum_groups(quantized: list[Fed]) -> torch.Tensor:
    """Every group of 32 that momentum was fed, but for most of the one long tensor."""
    return torch.stack(list(whole_groups([x for x in quantized if x.signed])))


@pytest.fixture(scope="module")
def variance_groups(quantized: list[Fed]) -> torch.Tensor:
    return torch.stack(list(whole_groups([x for x in quantized if x.signed is False])))


def zero_bits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    bits = x.view(torch.int32)
    return bits == 0, bits == -(1 << 31)


def test_groups_of_zeros_and_of_both_zeros_are_fed(
    momentum_groups: torch.Tensor, variance_groups: torch.Tensor
) -> None:
    positive, negative = zero_bits(momentum_groups)
    assert positive.all(dim=1).any()
    both = (positive | negative).all(dim=1) & positive.any(dim=1) & negative.any(dim=1)
    assert both.any()
    assert (variance_groups == 0).all(dim=1).any()


def test_groups_of_subnormals_are_fed(
    momentum_groups: torch.Tensor, variance_groups: torch.Tensor
) -> None:
    for groups in (momentum_groups, variance_groups):
        subnormal = (groups != 0) & (groups.abs() < 2.0**-126)
        assert subnormal.all(dim=1).any()
    assert (momentum_groups[(momentum_groups.abs() < 2.0**-126).all(dim=1)] < 0).any()


def test_groups_of_equal_values_are_fed(
    momentum_groups: torch.Tensor, variance_groups: torch.Tensor
) -> None:
    for groups in (momentum_groups, variance_groups):
        equal = (groups == groups[:, :1]).all(dim=1) & (groups[:, 0] != 0)
        assert equal.any()


def test_a_huge_value_in_a_group_of_tiny_ones_is_fed(
    momentum_groups: torch.Tensor, variance_groups: torch.Tensor
) -> None:
    for groups in (momentum_groups, variance_groups):
        ranked = groups.abs().sort(dim=1).values
        huge = (ranked[:, -1] > 1e8 * ranked[:, -2]) & (ranked[:, 0] > 0) & ranked[:, -1].isfinite()
        assert huge.any()


def neighbours(value: float) -> list[float]:
    """A float32 with the one below and the one above it."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return [struct.unpack("<f", struct.pack("<I", bits + step))[0] for step in (-1, 0, 1)]


LIMITS = [65504.0, 65519.0, *neighbours(65520.0), *neighbours(2.0**-24), *neighbours(2.0**-25)]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda v: v.hex())
def test_the_limits_of_float16_are_the_absmax_of_a_group(
    momentum_groups: torch.Tensor, limit: float
) -> None:
    absmax = momentum_groups.abs().amax(dim=1)
    assert (absmax == torch.tensor(limit)).any()
    # The others of such a group are smaller, and not all zero.
    group = momentum_groups[absmax == torch.tensor(limit)][0]
    assert ((group != 0) & (group.abs() < limit)).sum() > 20


@pytest.mark.parametrize("limit", [*neighbours(2.0**-48), *neighbours(2.0**-50)], ids=float.hex)
def test_the_limits_of_a_root_are_the_largest_of_a_group(
    variance_groups: torch.Tensor, limit: float
) -> None:
    assert (variance_groups.amax(dim=1) == torch.tensor(limit)).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_element_of_a_group_is_not_finite(momentum_groups: torch.Tensor, value: float) -> None:
    wanted = momentum_groups.isnan() if value != value else momentum_groups == torch.tensor(value)
    one = (wanted.sum(dim=1) == 1) & ((~momentum_groups.isfinite()).sum(dim=1) == 1)
    assert one.any()
    # In places of every kind, not only at a group's start.
    places = {int(group.nonzero()[0]) for group in wanted[one]}
    assert len(places) > 10


def test_the_same_tensors_are_split(split: list[Fed]) -> None:
    groups = torch.stack(list(whole_groups(split)))
    assert groups.isnan().any()
    assert groups.isinf().any()
    assert ((groups != 0) & (groups.abs() < 2.0**-126)).all(dim=1).any()
    # Float32 of every exponent, finite ones.
    fields = (groups.view(torch.int32) >> 23) & 0xFF
    assert set(fields.reshape(-1).tolist()) >= set(range(255))


def test_narrow_weights_toward_zero_leave_errors_past_half_an_ulp(
    literal: tuple[Recorder, Report],
) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        past = 0
        for x, narrow in literal[0].narrow:
            if narrow.dtype == dtype:
                nearest = x.to(dtype)
                differ = (nearest.view(torch.int16) != narrow.view(torch.int16)) & ~x.isnan()
                past += int(differ.sum())
                assert (narrow.abs().float() <= x.abs())[differ].all()
        assert past > 1000


# --- The authors' kernels ---------------------------------------------------------------------

FLOOR = {"subnormals", "every_exponent", "root_underflow"}
STRIDES = {"transposed", "strided"}


@pytest.fixture(scope="module")
def authors(interpreted: Any) -> dict[str, CaseResult]:
    """One run of the whole suite on the authors' kernels, interpreted."""
    subject, shims = interpreted
    suite = selection.make_suite(CONFIG, Selection(battery=[], spec=[]))
    report = runner.run(Plan(subject=subject, shims=list(shims)), suite, lambda _: None)
    assert report.status == "pass"
    return {case.case: case for case in report.cases}


def test_what_the_authors_kernels_do_wrong_is_known_and_no_more(
    authors: dict[str, CaseResult],
) -> None:
    known = {name for name, case in authors.items() if case.status is Status.KNOWN}
    listed = {deviation.case for deviation in CONFIG.known_deviations}
    assert known == listed
    assert known == {
        *(f"{tensor}/{spec}" for tensor in FLOOR for spec in ("momentum", "variance")),
        *(f"{tensor}/{spec}" for tensor in STRIDES for spec in ("momentum", "variance")),
        "one_nan/momentum",
        "one_nan/variance",
    } - {"root_underflow/variance"}
    rest = {case.status for name, case in authors.items() if name not in known}
    assert rest == {Status.PASS}


def test_nothing_is_unexplained_and_strides_explain_only_views(
    authors: dict[str, CaseResult],
) -> None:
    for name, case in authors.items():
        assert case.mismatches
        causes = case.mismatches.by_cause
        assert "unexplained" not in causes, name
        assert any("strides_ignored" in cause for cause in causes) is (
            name.split("/")[0] in STRIDES and name.split("/")[1] in ("momentum", "variance")
        ), (name, causes)
        assert case.mismatches.total == sum(causes.values())
        by_output = case.mismatches.by_output
        assert case.mismatches.total == sum(sum(c.values()) for c in by_output.values())


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("subnormals/momentum", "absmax_floor"),
        ("root_underflow/momentum", "absmax_floor"),
        ("one_nan/momentum", "nan_absmax"),
        ("one_nan/variance", "nan_absmax"),
    ],
)
def test_the_known_deviations_have_the_cause_that_their_reason_names(
    authors: dict[str, CaseResult], case: str, cause: str
) -> None:
    mismatches = authors[case].mismatches
    assert mismatches
    assert any(cause in found.split("+") for found in mismatches.by_cause)
    assert authors[case].reason


def test_the_interpreter_is_bit_equal_under_a_named_arithmetic_elsewhere(
    authors: dict[str, CaseResult],
) -> None:
    for name in ("size_2_20_1/momentum", "matrix/bf16+int8", "every_exponent/bf16+int16"):
        mismatches = authors[name].mismatches
        assert mismatches
        assert mismatches.sentence.startswith("bit-equal under "), mismatches.sentence
