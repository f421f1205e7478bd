"""What a YAML file in ``configs/`` may say, as models, and the loading of one.

Importing this needs no torch: ``flashcheck list`` reads the suites without it.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from flashcheck.errors import ReportError, did_you_mean
from flashcheck.measures import CONTRACTS, Measures, QuantizationMetrics, SplittingMetrics
from flashcheck.yamlfile import YamlFile, read

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
    """What one subject is expected to break in one case: gates by metric, contracts, or ``error``.

    It may be known of one backend only.
    """

    subject: str
    case: str
    backend: Literal["cuda", "interpreter", "native"] | None = None
    breaks: Annotated[list[str], Field(min_length=1)]
    reason: Annotated[str, Field(min_length=1)]


class Tolerance(_Model):
    """How far an operation of a subject may be from the exact result."""

    ulp: Annotated[Finite, Field(ge=0.5, le=64, description="0.5 is a correct rounding")]
    reason: Annotated[str, Field(min_length=1)]


_CORRECTLY_ROUNDED = Tolerance(ulp=0.5, reason="IEEE-754 rounds it correctly")


class Tolerances(_Model):
    """Of the operations that a GPU may approximate; every bound is derived from these."""

    division: Tolerance = _CORRECTLY_ROUNDED
    square_root: Tolerance = _CORRECTLY_ROUNDED


class _Suite(_Model):
    suite: Name
    description: str
    in_all: bool = Field(default=True, description="whether 'run all' runs it")
    seed: Seed
    gates: list[Gate]
    tolerances: Tolerances = Tolerances()
    known_deviations: list[KnownDeviation] = []


class QuantizationConfig(_Suite):
    """A battery of tensors, each quantized under each spec."""

    kind: Literal["quantization"]
    group_size: Size = 32
    battery: Annotated[list[BatteryTensor], Field(min_length=1)]
    specs: Annotated[list[QuantizationSpec], Field(min_length=1)]

    def case_names(self) -> list[str]:
        return [f"{tensor.name}/{spec.name}" for tensor in self.battery for spec in self.specs]


class SplittingConfig(_Suite):
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


class EdgeConfig(_Suite):
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


SuiteConfig = QuantizationConfig | SplittingConfig | EdgeConfig

METRICS: dict[str, list[type[Measures]]] = {
    "quantization": [QuantizationMetrics],
    "splitting": [SplittingMetrics],
    "edge": [QuantizationMetrics, SplittingMetrics],
}

UNEXPLAINED_GATE = Gate(
    metric="unexplained",
    op="==",
    limit=0,
    reason="a mismatch without a cause is a fault until one is found",
)
"""Every suite has it, unless its file sets another on the same metric."""

_ADAPTER: TypeAdapter[SuiteConfig] = TypeAdapter(
    Annotated[SuiteConfig, Field(discriminator="kind")]
)


def load(path: Path) -> SuiteConfig:
    """Read and check one suite.

    Raises:
        ConfigError: with file, line, key and the mend.
    """
    source = read(path)
    try:
        config = _ADAPTER.validate_python(source.data)
    except ValidationError as error:
        details = error.errors()
        first = details[0]
        message = _explain(first)
        if len(details) > 1:
            message += f" (and {len(details) - 1} more)"
        raise source.error(message, [*first["loc"], *_key_within(first)]) from None
    if all(gate.metric != UNEXPLAINED_GATE.metric for gate in config.gates):
        config = config.model_copy(update={"gates": [*config.gates, UNEXPLAINED_GATE]})
    _check_names(config, source)
    _check_gates(config, source)
    return config


def tensor_names(config: SuiteConfig) -> list[str]:
    """What ``--battery`` may name of a suite."""
    return [] if isinstance(config, SplittingConfig) else [t.name for t in config.battery]


def spec_names(config: SuiteConfig) -> list[str]:
    """What ``--spec`` may name of a suite: specs, and pairs of formats."""
    names = [] if isinstance(config, SplittingConfig) else [spec.name for spec in config.specs]
    pairs = [] if isinstance(config, QuantizationConfig) else config.formats
    return [*names, *(pair.case for pair in pairs)]


def parse(resolved: dict[str, object]) -> SuiteConfig:
    """A configuration as a report keeps it.

    Raises:
        ReportError: it is none.
    """
    try:
        return _ADAPTER.validate_python(resolved)
    except ValidationError as error:
        raise ReportError(f"the report's config: {_explain(error.errors()[0])}") from None


def digest(config: SuiteConfig) -> str:
    """sha256 of the resolved configuration, defaults included."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _check_names(config: SuiteConfig, source: YamlFile) -> None:
    lists: dict[str, list[str]] = {}
    if not isinstance(config, SplittingConfig):
        lists["battery"] = [tensor.name for tensor in config.battery]
        lists["specs"] = [spec.name for spec in config.specs]
    if not isinstance(config, QuantizationConfig):
        lists["formats"] = [pair.case for pair in config.formats]
    for key, names in lists.items():
        for i, name in enumerate(names):
            if name in names[:i]:
                raise source.error(f"'{name}' is there twice; rename one", [key, i])


def _check_gates(config: SuiteConfig, source: YamlFile) -> None:
    metrics = [name for model in METRICS[config.kind] for name in model.names()]
    for i, gate in enumerate(config.gates):
        if gate.metric not in metrics:
            hint = did_you_mean(gate.metric, set(metrics))
            raise source.error(f"unknown metric '{gate.metric}'; {hint}", ["gates", i, "metric"])
    breakable = {gate.metric for gate in config.gates} | {*CONTRACTS, "error"}
    for i, known in enumerate(config.known_deviations):
        at: list[str | int] = ["known_deviations", i]
        if known.case not in config.case_names():
            hint = did_you_mean(known.case, config.case_names())
            raise source.error(f"no case '{known.case}'; {hint}", [*at, "case"])
        for j, name in enumerate(known.breaks):
            if name not in breakable:
                hint = did_you_mean(name, breakable)
                raise source.error(f"no gate or contract '{name}'; {hint}", [*at, "breaks", j])


def _key_within(detail: ErrorDetails) -> list[str]:
    """The key that an error of a whole mapping is about."""
    ctx = detail.get("ctx", {})
    if detail["type"] == "unknown_key":
        return [str(ctx["key"])]
    if detail["type"] == "union_tag_invalid":
        return [str(ctx["discriminator"]).strip("'")]
    return []


def _explain(detail: ErrorDetails) -> str:
    """One line for one of pydantic's errors: what is wrong and the mend."""
    kind, ctx, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "unknown_key":
        return str(detail["msg"])
    if kind == "missing":
        return "this key is missing; add it"
    if kind in {"union_tag_invalid", "literal_error"}:
        expected = str(ctx.get("expected_tags") or ctx.get("expected"))
        names = [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")]
        given = value.get(str(ctx["discriminator"]).strip("'")) if "tag" in ctx else value
        what = str(ctx["discriminator"]).strip("'") if "tag" in ctx else "value"
        return f"unknown {what} '{given}'; {did_you_mean(str(given), names)}"
    if kind == "union_tag_not_found":
        return f"the key {ctx['discriminator']} is missing; add it"
    if kind == "too_short":
        return "is empty; give at least one entry"
    if kind == "value_error":
        return str(ctx["error"])
    message = str(detail["msg"])
    message = message[0].lower() + message[1:]
    return f"is {value!r}, but {message}"
