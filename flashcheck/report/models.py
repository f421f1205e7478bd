"""The report of one suite run, schema version 1.

Strict JSON: no NaN and no infinity; a figure that does not exist is null. Names are added to,
never renamed. A renderer reads these models and computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flashcheck.config import Exponents
from flashcheck.errors import ExitCode
from flashcheck.measures import Metrics, SplittingCounts
from flashcheck.report.enumeration import Enumeration

SCHEMA_VERSION: Literal[1] = 1

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Status(str, Enum):
    """The outcome of a case."""

    PASS = "pass"
    FAIL = "fail"
    KNOWN = "known"
    UNEXPECTED_PASS = "unexpected_pass"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shim(_Model):
    """A repair of the Triton interpreter, and what its self-check compared."""

    name: str
    repairs: str
    checked: str


class Environment(_Model):
    """Where the subject ran."""

    python: str
    platform: str
    cpu: str
    torch: str
    triton: str | None
    numpy: str
    backend: str
    device: str = Field(description="name of the GPU, or cpu")
    compute_capability: str | None
    driver: str | None
    fp_fusion: bool | None = Field(
        description="whether Triton may fuse; null where it compiles nothing"
    )
    shims: list[Shim]


class SubjectRecord(_Model):
    """The implementation under test."""

    name: str
    version: str
    source_sha256: Sha256 | None
    origin: str = Field(default="built-in", description="built-in, plugin, or a file and class")
    steps_through: str | None = Field(
        default=None, description="of optimizer steps, what was called to take them"
    )
    configurations: dict[str, str] = Field(
        default={}, description="the launch configuration each autotuned kernel was pinned to"
    )


class ReferenceRecord(_Model):
    """The reference, and the arithmetic it was run with."""

    name: str
    arithmetic: dict[str, str | bool | float]


class GateResult(_Model):
    """A gate held against a figure."""

    metric: str
    op: Literal[">=", "<=", "=="]
    limit: float
    value: float | None
    ok: bool


class Contract(_Model):
    """What must hold of a subject's calls beside their results."""

    name: str
    ok: bool
    detail: str


class Stratum(SplittingCounts):
    """The counts of one float32 exponent field."""

    exponent: Annotated[int, Field(ge=0, le=255)]


class Offender(_Model):
    """One mismatch: its values as hexadecimal bits and as decimals (nan and inf as words)."""

    output: str = Field(description="codes, scales, values, rho or reconstructed")
    index: int = Field(
        description="flat in that output, of scales the group; of an enumeration in its domain"
    )
    input: str = Field(description="of several inputs, all of them")
    input_bits: str
    subject: str
    subject_bits: str
    reference: str
    reference_bits: str
    distance: int = Field(description="codes apart, or ULP; 2^32 where one is NaN")
    stage: str = Field(description="the first stage that diverges")
    cause: str


class Margin(_Model):
    """Of outputs explained by a bound: the largest distance seen and the bound there, in ULP."""

    output: str
    largest_ulp: NonNegative
    bound_ulp: NonNegative


class BestArithmetic(_Model):
    """The one setting of the reference's switches that leaves fewest mismatches."""

    arithmetic: dict[str, str | bool | float]
    words: str
    mismatches: int
    equally_good: list[str] = Field(description="other settings of as many switches, in words")


class Mismatches(_Model):
    """Why outputs differ from the literal paper."""

    total: int
    outputs: int = Field(description="how many outputs were compared")
    by_cause: dict[str, int]
    by_output: dict[str, dict[str, int]]
    best_arithmetic: BestArithmetic
    margin: list[Margin]
    worst: list[Offender]
    distances: dict[str, dict[str, int]] = Field(
        default={},
        description="of each output that was compared one by one, mismatches by distance, codes or "
        "ULP: 4 counts 4 to 7; 0 zeros of different sign; nan where one side is NaN",
    )
    sentence: str


class ErrorAt(_Model):
    """How far values of one float32 exponent field are given back from themselves: the mean of
    ``|y-x|/|x|`` where both sides' ``y`` is finite, and ``x`` too and not 0."""

    exponent: Annotated[int, Field(ge=0, le=255)]
    n: Annotated[int, Field(ge=1)]
    subject: NonNegative
    reference: NonNegative


class Point(_Model):
    """Subject and reference after some steps of a trajectory."""

    step: int
    param_differ: int = Field(description="stored parameters that differ")
    param_max_ulp: int | None = Field(description="in ULP of their dtype, where both are finite")
    codes_differ: int = Field(description="codes of moments and corrections that differ")
    error_subject: float | None = Field(
        description="distance from torch.optim in float64, relative to the way that it has gone"
    )
    error_reference: float | None
    error_naive: float | None


class CaseResult(_Model):
    """One input under one specification."""

    case: str
    status: Status
    reason: str | None = Field(default=None, description="why it is not a plain pass")
    notes: list[str] = Field(default=[], description="facts of the format that show in this case")
    numel: Annotated[int, Field(ge=0, description="elements compared")]
    duration_s: NonNegative
    input_sha256: Sha256 | None = Field(
        default=None, description="of the little-endian bytes of what was fed"
    )
    metrics: Metrics | None = None
    mismatches: Mismatches | None = None
    gates: list[GateResult] = []
    contracts: list[Contract] = []
    strata: list[Stratum] = []
    errors: list[ErrorAt] = Field(default=[], description="of a round trip, by magnitude")
    enumeration: Enumeration | None = None
    trajectory: list[Point] = Field(
        default=[], description="of steps one after the other, how far the sides have parted"
    )
    failed_chunk: int | None = Field(
        default=None, description="of an enumeration, the first chunk in which the subject failed"
    )


class KernelPrediction(_Model):
    """The arithmetic that a kernel's instructions predict."""

    kernel: str
    fused: bool
    reciprocal: bool
    division: str
    square_root: str
    words: str


class Prediction(_Model):
    """What the compiler made of the subject's kernels for the GPU that they ran on."""

    target: str
    fp_fusion: bool
    kernels: list[KernelPrediction]
    contradictions: list[str] = Field(description="causes found that the kernels cannot have")


class Description(_Model):
    """What runs, and where: all of a report that is no result.

    Attributes:
        methods: of the subject, those a suite may ask for.
        prediction: of its kernels; nothing is held against it yet.
    """

    environment: Environment
    subject: SubjectRecord
    methods: list[str]
    prediction: Prediction | None


class Summary(_Model):
    """The cases by outcome, and the suite's."""

    status: Literal["pass", "fail", "error", "nothing_compared"]
    cases: int
    passed: int
    failed: int
    known: int
    unexpected_pass: int
    unsupported: int
    errors: int
    elements: int


class Shard(_Model):
    """One part of a run that is split: ``index`` of ``count``, from 1."""

    index: Annotated[int, Field(ge=1)]
    count: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _within(self) -> Shard:
        if self.index > self.count:
            raise ValueError(f"shard {self.index} of {self.count}: there are only {self.count}")
        return self


class Selection(_Model):
    """Which part of the suite was asked for; empty lists, and nulls, mean all."""

    battery: list[str] = []
    spec: list[str] = []
    exponents: Exponents | None = Field(
        default=None, description="of an enumeration, float32 exponent fields"
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="of an enumeration, the inputs that are taken of each case"
    )
    shard: Shard | None = None

    def takes_tensor(self, name: str) -> bool:
        return not self.battery or name in self.battery

    def takes_spec(self, name: str) -> bool:
        return not self.spec or name in self.spec


class Report(_Model):
    """One run of one suite."""

    schema_version: Literal[1]
    flashcheck_version: str
    suite: str
    kind: Literal["quantization", "splitting", "edge", "exhaustive", "step"]
    status: Literal["pass", "fail", "error", "nothing_compared"]
    started_at: datetime
    duration_s: NonNegative
    command: list[str]
    selection: Selection
    environment: Environment
    subject: SubjectRecord
    reference: ReferenceRecord
    config: dict[str, Any]
    config_sha256: Sha256
    cases: list[CaseResult]
    prediction: Prediction | None = Field(
        default=None, description="of the subject's Triton kernels; null where none was compiled"
    )
    summary: Summary


def summarize(cases: list[CaseResult], *, contradicted: bool = False) -> Summary:
    """Count the outcomes and judge them: nothing compared is never a pass.

    Args:
        contradicted: whether the compiler's word contradicts an attribution, which is an error.
    """

    def number(status: Status) -> int:
        return sum(case.status is status for case in cases)

    elements = sum(case.numel for case in cases)
    status: Literal["pass", "fail", "error", "nothing_compared"]
    if number(Status.ERROR) or contradicted:
        status = "error"
    elif number(Status.FAIL) or number(Status.UNEXPECTED_PASS):
        status = "fail"
    elif elements == 0:
        status = "nothing_compared"
    else:
        status = "pass"
    return Summary(
        status=status,
        cases=len(cases),
        passed=number(Status.PASS),
        failed=number(Status.FAIL),
        known=number(Status.KNOWN),
        unexpected_pass=number(Status.UNEXPECTED_PASS),
        unsupported=number(Status.UNSUPPORTED),
        errors=number(Status.ERROR),
        elements=elements,
    )


EXIT_CODES = {
    "pass": ExitCode.OK,
    "fail": ExitCode.GATE_FAILED,
    "nothing_compared": ExitCode.UNAVAILABLE,
    "error": ExitCode.ERROR,
}


_GRAVEST_FIRST = (ExitCode.ERROR, ExitCode.GATE_FAILED, ExitCode.UNAVAILABLE, ExitCode.OK)


def exit_code(reports: list[Report]) -> ExitCode:
    """Of suites run together, the gravest: an error, a failed gate, then nothing compared."""
    return gravest([EXIT_CODES[report.status] for report in reports] or [ExitCode.UNAVAILABLE])


def gravest(codes: Sequence[ExitCode]) -> ExitCode:
    """Of several exit codes the one that the process ends with."""
    return next(code for code in _GRAVEST_FIRST if code in codes)
