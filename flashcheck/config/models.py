"""What a YAML file in ``configs/`` may say, as models."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, TypedDict

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from flashcheck.errors import did_you_mean
from flashcheck.measures import (
    CodeMetrics,
    Measures,
    QuantizationMetrics,
    SplittingMetrics,
    StepMetrics,
    TrajectoryMetrics,
    ValueMetrics,
)
from flashcheck.optimizers import Hyperparameters, Optimizer

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+.-]*$")]
Size = Annotated[int, Field(ge=1, le=1 << 32)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
_FLOAT32_MAX = 3.4028234663852886e38
Float32 = Annotated[float, Field(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX, allow_inf_nan=False)]
Float32Bits = Annotated[str, Field(pattern=r"^0x[0-9a-f]{8}$")]

_MATRIX = 2


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        """Refuse an unknown key with the near one, which ``extra="forbid"`` does not name."""
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                hint = did_you_mean(str(key), cls.model_fields)
                raise PydanticCustomError(
                    "unknown_key", "unknown key; {hint}", {"key": key, "hint": hint}
                )
        return data


class Exponents(_Model):
    """Float32 exponent fields ``start, start + step, …`` below ``stop``."""

    start: Annotated[int, Field(ge=0, le=255)]
    stop: Annotated[int, Field(ge=1, le=256)]
    step: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _not_empty(self) -> Exponents:
        if self.start >= self.stop:
            raise ValueError(f"no exponents: start {self.start} is not below stop {self.stop}")
        return self

    def fields(self) -> list[int]:
        return list(range(self.start, self.stop, self.step))


class _Tensor(_Model):
    """What every tensor of a battery may say of its form."""

    name: Name
    size: Size = Field(description="elements the generator draws")
    dtype: Literal["fp32", "fp16", "bf16", "fp64"] = "fp32"
    shape: Annotated[list[Annotated[int, Field(ge=1)]] | None, Field(max_length=4)] = Field(
        default=None, description="one dimension if not given; [] is a scalar"
    )
    layout: Literal["contiguous", "transposed", "every_second"] = "contiguous"

    @model_validator(mode="after")
    def _shape_fits(self) -> _Tensor:
        if self.shape is not None and math.prod(self.shape) != self.size:
            raise ValueError(f"shape {self.shape} has not the {self.size} elements of size")
        dimensions = 1 if self.shape is None else len(self.shape)
        if self.layout == "transposed" and dimensions != _MATRIX:
            raise ValueError("layout transposed needs a shape of two dimensions")
        if self.layout == "every_second" and dimensions != 1:
            raise ValueError("layout every_second needs one dimension")
        return self


class Normal(_Tensor):
    """Standard normal values times ``scale``."""

    generator: Literal["normal"]
    scale: Float32 = 1.0


class HeavyTail(_Tensor):
    """Normal values, each times ``exp(sigma * normal)``."""

    generator: Literal["normal_times_lognormal"]
    sigma: Annotated[Float32, Field(ge=0)]


class SquaredNormal(_Tensor):
    """``(scale * normal)^2``, as a second moment is."""

    generator: Literal["squared_normal"]
    scale: Float32 = 1.0


class Constant(_Tensor):
    """One value."""

    generator: Literal["constant"]
    value: Float32


class ZeroInflatedNormal(_Tensor):
    """Zero with probability ``zero_probability``, else standard normal."""

    generator: Literal["zero_inflated_normal"]
    zero_probability: Annotated[Finite, Field(ge=0, le=1)]


class Special(_Tensor):
    """Normal values times ``scale``, and the given ones in turn, one in each ``every`` elements.

    A string such as ``0x7fc00000`` is the bits of a float32: the only way to give one that is not
    finite, for which JSON, and so the report, has no number.
    """

    generator: Literal["special"]
    values: Annotated[list[Float32 | Float32Bits], Field(min_length=1)]
    every: Size = 32
    scale: Float32 = 1.0


class RandomBits(_Tensor):
    """Float32 of random mantissas and signs, their exponent fields in turn from a range."""

    generator: Literal["random_bits"]
    exponents: Exponents


BatteryTensor = Annotated[
    Normal | HeavyTail | SquaredNormal | Constant | ZeroInflatedNormal | Special | RandomBits,
    Field(discriminator="generator"),
]


class SpecOptions(TypedDict):
    """The keyword arguments of ``quantize`` and ``dequantize`` that a spec sets."""

    signed: bool
    sqrt: bool
    softsign: bool


class QuantizationSpec(_Model):
    """What is quantized how; the paper's momentum and variance are two settings of it."""

    name: Name
    signed: bool
    sqrt: bool
    softsign: bool
    absolute: bool = Field(default=False, description="feed |x|: a variance is not negative")

    def options(self) -> SpecOptions:
        return {"signed": self.signed, "sqrt": self.sqrt, "softsign": self.softsign}


class Sweep(_Model):
    """Random float32 of each exponent field: the mantissas drawn first, then the signs."""

    exponents: Exponents
    samples: Size = Field(description="values of each exponent")
    signs: Literal["both", "positive"] = "both"


class SplitFormats(_Model):
    """A narrow weight and its correction code."""

    narrow: Literal["bf16", "fp16"]
    ecc: Literal["int8", "int16"]
    rounding: Literal["nearest", "toward_zero"] = Field(
        default="nearest",
        description="of the narrow weight; toward zero its error passes half an ULP",
    )

    @property
    def case(self) -> str:
        pair = f"{self.narrow}+{self.ecc}"
        return pair if self.rounding == "nearest" else f"{pair}-{self.rounding}"


class Gate(_Model):
    """A limit on a metric; a figure that does not exist breaks it."""

    metric: str
    op: Literal[">=", "<=", "=="]
    limit: Finite
    reason: Annotated[str, Field(min_length=1)]

    def holds(self, value: float | None) -> bool:
        if value is None:
            return False
        if self.op == ">=":
            return value >= self.limit
        if self.op == "<=":
            return value <= self.limit
        return value == self.limit


class KnownDeviation(_Model):
    """What one subject is expected to break in each of some cases: gates by metric, contracts, or
    ``error``.

    It may be known of one backend only.
    """

    subject: str
    case: str = Field(description="its name, or a pattern of names, as sgd-plain/fp32/*")
    backend: Literal["cuda", "interpreter", "native"] | None = None
    breaks: Annotated[list[str], Field(min_length=1)]
    reason: Annotated[str, Field(min_length=1)]

    def holds_of(self, case: str) -> bool:
        """Whether a case is one of those."""
        return fnmatch.fnmatchcase(case, self.case)


class Tolerance(_Model):
    """How far an operation of a subject may be from the exact result."""

    ulp: Annotated[Finite, Field(ge=0.5, le=64, description="0.5 is a correct rounding")]
    reason: Annotated[str, Field(min_length=1)]


_CORRECTLY_ROUNDED = Tolerance(ulp=0.5, reason="IEEE-754 rounds it correctly")


class Tolerances(_Model):
    """Of the operations that a GPU may approximate; every bound is derived from these."""

    division: Tolerance = _CORRECTLY_ROUNDED
    square_root: Tolerance = _CORRECTLY_ROUNDED


class StepTolerances(Tolerances):
    """Of an optimizer step, which takes powers as well."""

    power: Tolerance = _CORRECTLY_ROUNDED


class _Suite(_Model):
    suite: Name
    description: str
    in_all: bool = Field(default=True, description="whether 'run all' runs it")
    gates: list[Gate]
    tolerances: Tolerances = Tolerances()
    known_deviations: list[KnownDeviation] = []


class _Drawn(_Suite):
    """A suite whose inputs are drawn at random."""

    seed: Seed


class QuantizationConfig(_Drawn):
    """A battery of tensors, each quantized under each spec."""

    kind: Literal["quantization"]
    group_size: Size = 32
    battery: Annotated[list[BatteryTensor], Field(min_length=1)]
    specs: Annotated[list[QuantizationSpec], Field(min_length=1)]

    def case_names(self) -> list[str]:
        return [f"{tensor.name}/{spec.name}" for tensor in self.battery for spec in self.specs]


class SplittingConfig(_Drawn):
    """A sweep over float32 exponents, split into each pair of formats."""

    kind: Literal["splitting"]
    sweep: Sweep
    drawn_after: list[Sweep] = Field(
        default=[],
        description="sweeps drawn first from the same generator and thrown away",
    )
    formats: Annotated[list[SplitFormats], Field(min_length=1)]

    def case_names(self) -> list[str]:
        return [pair.case for pair in self.formats]


class EdgeConfig(_Drawn):
    """Tensors of unusual form or content, each under each spec, and split if it is float32."""

    kind: Literal["edge"]
    group_size: Size = 32
    battery: Annotated[list[BatteryTensor], Field(min_length=1)]
    specs: Annotated[list[QuantizationSpec], Field(min_length=1)]
    formats: list[SplitFormats] = []

    def case_names(self) -> list[str]:
        names = []
        for tensor in self.battery:
            names += [f"{tensor.name}/{spec.name}" for spec in self.specs]
            if tensor.dtype == "fp32":
                names += [f"{tensor.name}/{pair.case}" for pair in self.formats]
        return names


class ExhaustiveConfig(_Suite):
    """Every input of every function: each pair of formats split and put together, each spec."""

    kind: Literal["exhaustive"]
    group_size: Annotated[int, Field(ge=2, le=1 << 16)] = 32
    formats: list[SplitFormats] = []
    specs: list[QuantizationSpec] = []

    @model_validator(mode="after")
    def _something_to_do(self) -> ExhaustiveConfig:
        if not self.formats and not self.specs:
            raise ValueError("nothing to enumerate; give formats or specs")
        if any(pair.rounding != "nearest" for pair in self.formats):
            raise ValueError(
                "every weight is enumerated with its nearest narrow one; drop rounding"
            )
        return self

    def case_names(self) -> list[str]:
        return [
            *(
                f"{what}/{pair.case}"
                for what in ("compute_ecc", "reconstruct")
                for pair in self.formats
            ),
            *(f"{what}/{spec.name}" for what in ("dequantize", "quantize") for spec in self.specs),
        ]


class StepOptimizer(_Model):
    """An optimizer with its hyperparameters; see :class:`flashcheck.optimizers.Hyperparameters`."""

    name: Name
    optimizer: Literal["adam", "adamw", "sgd", "sgdw", "lion"]
    lr: Annotated[Finite, Field(ge=0)] = 1e-3
    weight_decay: Annotated[Finite, Field(ge=0)] = 0.0
    initial_lr: Annotated[Finite | None, Field(gt=0)] = Field(
        default=None, description="given, the decay is decoupled from the learning rate as well"
    )
    beta1: Annotated[Finite, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Finite, Field(ge=0, lt=1)] = 0.999
    eps: Annotated[Finite, Field(ge=0)] = 1e-8
    momentum: Annotated[Finite, Field(ge=0)] = 0.9
    dampening: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _fits(self) -> StepOptimizer:
        at = Hyperparameters(optimizer=Optimizer(self.optimizer))
        for name in self.model_fields_set - {"name", *at.options()}:
            raise ValueError(f"{self.optimizer} has no {name}; drop it")
        if self.initial_lr is not None and not at.optimizer.decoupled:
            raise ValueError(f"{self.optimizer} has no decoupled decay; drop initial_lr")
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs a momentum, and no dampening")
        return self

    def at(self, step: int) -> Hyperparameters:
        """The hyperparameters of one step."""
        given = self.model_dump(exclude={"name", "optimizer"})
        return Hyperparameters(optimizer=Optimizer(self.optimizer), step=step, **given)


Weights = Literal["bf16", "fp16", "fp32", "bf16+int8", "bf16+int16", "fp16+int8", "fp16+int16"]
States = Literal["quantized", "plain"]
StepNumber = Annotated[int, Field(ge=1, le=1 << 30)]


class StepMatrix(_Model):
    """Steps to be checked: every combination of what is listed.

    Attributes:
        weights: the parameter's dtype, and that of its correction codes where it has them: int8
            makes a master weight of 24 bits, int16 one of 32.
        states: whether moments are quantized, or kept in the parameter's dtype.
        gradients: by their names; the size of a case is that of its gradient.
        steps: the number of the step; the first one is from a state of zeros.
    """

    optimizers: Annotated[list[str], Field(min_length=1)]
    weights: Annotated[list[Weights], Field(min_length=1)]
    states: Annotated[list[States], Field(min_length=1)]
    gradients: Annotated[list[str], Field(min_length=1)]
    steps: Annotated[list[StepNumber], Field(min_length=1)]

    def combinations(self) -> Iterator[StepCombination]:
        for values in itertools.product(
            self.optimizers, self.weights, self.states, self.gradients, self.steps
        ):
            yield StepCombination(*values)


class StepCombination(NamedTuple):
    """One case of a matrix."""

    optimizer: str
    weights: Weights
    states: States
    gradient: str
    step: int

    @property
    def case(self) -> str:
        parts = [self.optimizer, self.weights, self.states, self.gradient, f"t{self.step}"]
        return "/".join(parts)


class Trajectory(_Model):
    """Steps one after the other, each side from its own state, with gradients drawn anew."""

    optimizer: str
    weights: Weights
    states: States
    gradient: str
    steps: Annotated[int, Field(ge=1, le=100_000)]

    @property
    def case(self) -> str:
        return f"trajectory/{self.optimizer}/{self.weights}/{self.states}/{self.gradient}"


CONSISTENCY = (
    "quantize/momentum",
    "quantize/variance",
    "dequantize/momentum",
    "dequantize/variance",
    "compute_ecc",
    "reconstruct",
)
"""Functions whose inline copies a step has; the last two of each pair of formats."""


class StepConfig(_Drawn):
    """Steps of optimizers: single ones, long runs of them, and their inline copies of functions."""

    kind: Literal["step"]
    tolerances: StepTolerances = StepTolerances()
    optimizers: Annotated[list[StepOptimizer], Field(min_length=1)]
    gradients: Annotated[list[BatteryTensor], Field(min_length=1)]
    weight_scale: Annotated[Float32, Field(gt=0)] = Field(
        default=1.0, description="standard deviation of the weights that a case starts from"
    )
    matrix: list[StepMatrix] = []
    trajectories: list[Trajectory] = []
    consistency: list[SplitFormats] = Field(
        default=[], description="pairs of formats whose inline copies are compared"
    )

    def combinations(self) -> list[StepCombination]:
        return [each for matrix in self.matrix for each in matrix.combinations()]

    def consistency_cases(self) -> list[str]:
        if not self.consistency:
            return []
        return [
            *(f"consistency/{name}" for name in CONSISTENCY if "/" in name),
            *(
                f"consistency/{name}/{pair.case}"
                for name in CONSISTENCY
                if "/" not in name
                for pair in self.consistency
            ),
        ]

    def case_names(self) -> list[str]:
        return [
            *(each.case for each in self.combinations()),
            *(each.case for each in self.trajectories),
            *self.consistency_cases(),
        ]

    @model_validator(mode="after")
    def _something_to_do(self) -> StepConfig:
        if not self.matrix and not self.trajectories and not self.consistency:
            raise ValueError("nothing to do; give a matrix, trajectories or consistency")
        if any(pair.rounding != "nearest" for pair in self.consistency):
            raise ValueError("a step rounds weights to the nearest narrow one; drop rounding")
        return self


SuiteConfig = QuantizationConfig | SplittingConfig | EdgeConfig | ExhaustiveConfig | StepConfig

METRICS: dict[str, list[type[Measures]]] = {
    "quantization": [QuantizationMetrics],
    "splitting": [SplittingMetrics],
    "edge": [QuantizationMetrics, SplittingMetrics],
    "exhaustive": [SplittingMetrics, ValueMetrics, CodeMetrics],
    "step": [StepMetrics, TrajectoryMetrics],
}

UNEXPLAINED_GATE = Gate(
    metric="unexplained",
    op="==",
    limit=0,
    reason="a mismatch without a cause is a fault until one is found",
)
"""Every suite has it, unless its file sets another on the same metric."""
