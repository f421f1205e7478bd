"""What changed between two runs, as models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from flashcheck.report.models import Status

Figure = float | int | str | bool | None


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Change(_Model):
    """One thing that is not the same."""

    what: str
    base: Figure
    new: Figure


class CaseChange(_Model):
    """A case that is not as it was; a status is null where the case is not there."""

    case: str
    base: Status | None
    new: Status | None
    regression: bool = Field(description="a graver status, or a case that is no longer checked")
    inputs_differ: bool = Field(description="whether other inputs were fed")
    metrics: list[Change]
    causes: list[Change] = Field(description="how many mismatches have each cause")
    reason: str | None = Field(description="why the new one is no plain pass")


class SuiteChange(_Model):
    """A suite that both runs have, or one of them."""

    suite: str
    base: str | None
    new: str | None
    regression: bool
    settings: list[Change] = Field(description="configuration and selection that differ")
    cases: list[CaseChange] = Field(description="those that changed, regressions first")
    unchanged: int
    not_selected: int = Field(description="cases of the base that the new run did not select")

    @property
    def changed(self) -> bool:
        return self.base != self.new or bool(self.settings or self.cases)


class Comparison(_Model):
    """Two runs, suite by suite."""

    base: str
    new: str
    environment: list[Change]
    suites: list[SuiteChange]

    @property
    def regression(self) -> bool:
        return any(suite.regression for suite in self.suites)

    @property
    def changed(self) -> bool:
        return any(suite.changed for suite in self.suites)
