"""One configured suite of kind ``step``: its cases, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flashcheck.compare.bounds import OperationBounds
from flashcheck.config import StepCombination, StepConfig, Trajectory
from flashcheck.errors import SubjectError
from flashcheck.report.models import Selection
from flashcheck.subjects.base import Subject, missing_methods
from flashcheck.suites.base import Measured, Progress, failed, unsupported
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.step import consistency, single, states, trajectory


@dataclass(frozen=True)
class StepSuite:
    """Single steps, trajectories, and the consistency of inline copies."""

    config: StepConfig
    selection: Selection

    def elements(self) -> int:
        """How many elements a run feeds."""
        sizes = {tensor.name: tensor.size for tensor in self.config.gradients}
        single_steps = sum(sizes[each.gradient] for each in self._combinations())
        long_ones = sum(each.steps * sizes[each.gradient] for each in self._trajectories())
        copies = len(self._consistency()) * self.config.gradients[0].size
        return single_steps + long_ones + copies

    def run(self, subject: Subject, calls: SubjectCalls, progress: Progress) -> Iterator[Measured]:
        """Measure every selected case."""
        operations = OperationBounds.of(self.config.tolerances)
        sizes = {tensor.name: tensor.size for tensor in self.config.gradients}
        optimizers = {optimizer.name: optimizer for optimizer in self.config.optimizers}

        def one(each: StepCombination) -> Callable[[Measured], Measured]:
            hyper = optimizers[each.optimizer].at(each.step)

            def measure(measured: Measured) -> Measured:
                start = states.draw(
                    self.config, each.case, each.weights, each.states, each.gradient, hyper
                )
                return single.measure(measured, start, hyper, operations, calls)

            return measure

        for each in self._combinations():
            yield _measured(subject, each.case, ("step",), one(each))
            progress(sizes[each.gradient])

        def many(long: Trajectory) -> Callable[[Measured], Measured]:
            return lambda m: trajectory.measure(m, self.config, long, calls, progress)

        for long in self._trajectories():
            yield _measured(subject, long.case, ("step",), many(long))
        for name in self._consistency():
            yield _measured(
                subject,
                name,
                consistency.METHODS,
                lambda m: consistency.measure(m, self.config, operations, calls),
            )
            progress(self.config.gradients[0].size)

    def _takes(self, optimizer: str, gradient: str) -> bool:
        return self.selection.takes_spec(optimizer) and self.selection.takes_tensor(gradient)

    def _combinations(self) -> list[StepCombination]:
        every = self.config.combinations()
        return [each for each in every if self._takes(each.optimizer, each.gradient)]

    def _trajectories(self) -> list[Trajectory]:
        every = self.config.trajectories
        return [each for each in every if self._takes(each.optimizer, each.gradient)]

    def _consistency(self) -> list[str]:
        """They are of no optimizer and no gradient of the file."""
        some = self.selection.spec or self.selection.battery
        return [] if some else self.config.consistency_cases()


def _measured(
    subject: Subject,
    case: str,
    methods: Sequence[str],
    measure: Callable[[Measured], Measured],
) -> Measured:
    measured = Measured(case=case)
    missing = missing_methods(subject, *methods)
    if missing:
        return unsupported(measured, missing)
    try:
        return measure(measured)
    except SubjectError as error:
        return failed(measured, error)
