"""Which suites a run is of, and which part of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashcheck.config import (
    EdgeConfig,
    ExhaustiveConfig,
    Exponents,
    QuantizationConfig,
    SplittingConfig,
    StepConfig,
    SuiteConfig,
    spec_names,
    tensor_names,
)
from flashcheck.errors import NothingComparedError, UsageError, did_you_mean
from flashcheck.report.models import Selection, Shard
from flashcheck.suites.edge import EdgeSuite
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite
from flashcheck.suites.quantization import QuantizationSuite
from flashcheck.suites.splitting import SplittingSuite
from flashcheck.suites.step.suite import StepSuite

DrawnSuite = QuantizationSuite | SplittingSuite | EdgeSuite | StepSuite
"""One whose cases are measured one after the other."""

Suite = DrawnSuite | ExhaustiveSuite


@dataclass(frozen=True)
class Part:
    """Which part of an enumeration; nulls mean all."""

    exponents: Exponents | None = None
    limit: int | None = None
    shard: Shard | None = None

    def options(self) -> list[str]:
        """Those that are given, as the command line names them."""
        return [f"--{name}" for name, value in vars(self).items() if value is not None]


_ALL = Part()


def make_suite(config: SuiteConfig, selection: Selection) -> Suite:
    """The suite a configuration defines, as far as it is selected."""
    match config:
        case QuantizationConfig():
            return QuantizationSuite(config, selection)
        case SplittingConfig():
            return SplittingSuite(config, selection)
        case EdgeConfig():
            return EdgeSuite(config, selection)
        case ExhaustiveConfig():
            return ExhaustiveSuite(config, selection)
        case StepConfig():
            return StepSuite(config, selection)


def select(
    configs: Sequence[SuiteConfig],
    *,
    battery: Sequence[str],
    spec: Sequence[str],
    part: Part = _ALL,
) -> list[Suite]:
    """The selected part of each suite; a suite that has no part in the selection is left out.

    Raises:
        UsageError: no suite here has a tensor or spec of that name, or a suite that enumerates
            nothing is to be run in part.
        NothingComparedError: no suite is left.
    """
    for config in configs:
        if part.options() and not isinstance(config, ExhaustiveConfig):
            raise UsageError(
                f"{part.options()[0]}: suite '{config.suite}' enumerates nothing; it takes a part "
                "of a suite of kind exhaustive only"
            )
    _check_known("--battery", battery, [name for c in configs for name in tensor_names(c)])
    _check_known("--spec", spec, [name for c in configs for name in spec_names(c)])
    suites = []
    for config in configs:
        mine = Selection(
            battery=[name for name in battery if name in tensor_names(config)],
            spec=[name for name in spec if name in spec_names(config)],
            **vars(part),
        )
        if bool(battery) == bool(mine.battery) and bool(spec) == bool(mine.spec):
            suites.append(make_suite(config, mine))
    if not suites:
        raise NothingComparedError("the selection leaves nothing to compare; widen it")
    return suites


def _check_known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: unknown here; {did_you_mean(name, set(known))}")
