"""The loading of a suite's YAML file, with one clear line for each fault."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from flashcheck.config.models import (
    METRICS,
    UNEXPLAINED_GATE,
    EdgeConfig,
    QuantizationConfig,
    SplittingConfig,
    StepConfig,
    SuiteConfig,
)
from flashcheck.errors import ReportError, did_you_mean
from flashcheck.measures import CONTRACTS
from flashcheck.yamlfile import YamlFile, read

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
    if isinstance(config, StepConfig):
        _check_steps(config, source)
    _check_gates(config, source)
    return config


def tensor_names(config: SuiteConfig) -> list[str]:
    """What ``--battery`` may name of a suite: tensors, of an optimizer step its gradients."""
    if isinstance(config, StepConfig):
        return [tensor.name for tensor in config.gradients]
    if isinstance(config, QuantizationConfig | EdgeConfig):
        return [tensor.name for tensor in config.battery]
    return []


def spec_names(config: SuiteConfig) -> list[str]:
    """What ``--spec`` may name of a suite: specs, pairs of formats, and optimizers."""
    if isinstance(config, StepConfig):
        return [optimizer.name for optimizer in config.optimizers]
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
    for key, names in _lists(config).items():
        for i, name in enumerate(names):
            if name in names[:i]:
                raise source.error(f"'{name}' is there twice; rename one", [key, i])


def _check_steps(config: StepConfig, source: YamlFile) -> None:
    """What is to be stepped is named, and no case is there twice."""
    known = _lists(config)

    cases: set[str] = set()

    def check(key: str, name: str, at: list[str | int]) -> None:
        if name not in known[key]:
            hint = did_you_mean(name, known[key])
            raise source.error(f"unknown {key.removesuffix('s')} '{name}'; {hint}", at)

    def once(case: str, at: list[str | int]) -> None:
        if case in cases:
            raise source.error(f"case '{case}' is there twice; drop one", at)
        cases.add(case)

    for i, matrix in enumerate(config.matrix):
        for key, names in (("optimizers", matrix.optimizers), ("gradients", matrix.gradients)):
            for j, name in enumerate(names):
                check(key, name, ["matrix", i, key, j])
    for i, trajectory in enumerate(config.trajectories):
        check("optimizers", trajectory.optimizer, ["trajectories", i, "optimizer"])
        check("gradients", trajectory.gradient, ["trajectories", i, "gradient"])
    for i, matrix in enumerate(config.matrix):
        for combination in matrix.combinations():
            once(combination.case, ["matrix", i])
    for i, trajectory in enumerate(config.trajectories):
        once(trajectory.case, ["trajectories", i])


def _lists(config: SuiteConfig) -> dict[str, list[str]]:
    """By key, the names of what a suite lists."""
    if isinstance(config, StepConfig):
        return {
            "optimizers": [optimizer.name for optimizer in config.optimizers],
            "gradients": [tensor.name for tensor in config.gradients],
        }
    lists: dict[str, list[str]] = {}
    if isinstance(config, QuantizationConfig | EdgeConfig):
        lists["battery"] = [tensor.name for tensor in config.battery]
    if not isinstance(config, SplittingConfig):
        lists["specs"] = [spec.name for spec in config.specs]
    if not isinstance(config, QuantizationConfig):
        lists["formats"] = [pair.case for pair in config.formats]
    return lists


def _check_gates(config: SuiteConfig, source: YamlFile) -> None:
    metrics = [name for model in METRICS[config.kind] for name in model.names()]
    for i, gate in enumerate(config.gates):
        if gate.metric not in metrics:
            hint = did_you_mean(gate.metric, set(metrics))
            raise source.error(f"unknown metric '{gate.metric}'; {hint}", ["gates", i, "metric"])
    breakable = {gate.metric for gate in config.gates} | {*CONTRACTS, "error"}
    for i, known in enumerate(config.known_deviations):
        at: list[str | int] = ["known_deviations", i]
        if not any(known.holds_of(name) for name in config.case_names()):
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
