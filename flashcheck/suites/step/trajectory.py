"""Many steps: subject and reference each from its own state, and how far from exact training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flashcheck.compare.ulp import differing
from flashcheck.config import StepConfig
from flashcheck.config import Trajectory as TrajectoryConfig
from flashcheck.measures import TrajectoryMetrics
from flashcheck.optimizers import SPECS, Hyperparameters, Optimizer, State
from flashcheck.reference import optimizers as reference
from flashcheck.report.models import Point
from flashcheck.suites.base import InputDigest, Measured, Progress
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.step import states
from flashcheck.suites.step.single import largest_ulp

_SHOWN = (1, 2, 5)
"""Of each power of ten, the steps after which the sides are looked at; and the last."""

_CODES = ("ecc", *SPECS)


@dataclass
class _Sides:
    """The states of one trajectory."""

    subject: State
    reference: State
    naive: State
    exact: _Exact

    def errors(self) -> dict[str, float | None]:
        sides = {"subject": self.subject, "reference": self.reference, "naive": self.naive}
        return {f"error_{name}": self.exact.distance(state) for name, state in sides.items()}


def measure(
    measured: Measured,
    config: StepConfig,
    trajectory: TrajectoryConfig,
    calls: SubjectCalls,
    progress: Progress,
) -> Measured:
    """Take all steps on each side.

    Raises:
        SubjectError: the subject raised, or broke its protocol.
    """
    optimizer = next(o for o in config.optimizers if o.name == trajectory.optimizer)
    tensor = states.gradient_of(config, trajectory.gradient)
    weights = trajectory.weights
    start = states.draw(
        config, trajectory.case, weights, trajectory.states, trajectory.gradient, optimizer.at(1)
    ).state
    digest = InputDigest(*(start[name] for name in sorted(start)))
    sides = _Sides(dict(start), dict(start), _naive(start), _Exact(optimizer.at(1), start))
    changed: list[str] = []
    first = None
    for step in range(1, trajectory.steps + 1):
        hyper = optimizer.at(step)
        grad = states.drawn_gradient(config, tensor, weights, step=step)
        digest.add(grad)
        sides.subject = calls.step_once(sides.subject, grad, hyper, changed)
        sides.reference = reference.step(sides.reference, grad, hyper)
        sides.naive = reference.step(sides.naive, grad.to(torch.bfloat16), hyper)
        sides.exact.step(grad)
        if first is None and _differ(sides):
            first = step
        if step == trajectory.steps or step in _looked_at(trajectory.steps):
            measured.trajectory.append(_point(step, sides))
        progress(tensor.size)
    last = measured.trajectory[-1]
    measured.numel = trajectory.steps * tensor.size
    measured.input_sha256 = digest.hexdigest()
    measured.metrics = TrajectoryMetrics(
        steps=trajectory.steps,
        first_difference=first,
        error_ratio=_ratio(last.error_subject, last.error_reference),
        **last.model_dump(exclude={"step"}),
    )
    return measured


def _looked_at(steps: int) -> set[int]:
    powers: Iterator[int] = itertools.takewhile(lambda p: p <= steps, (10**k for k in range(9)))
    return {power * digit for power in powers for digit in _SHOWN}


def _point(step: int, sides: _Sides) -> Point:
    subject, theirs = sides.subject, sides.reference
    codes = [name for name in _CODES if name in subject and not subject[name].is_floating_point()]
    return Point(
        step=step,
        param_differ=int(differing(subject["param"], theirs["param"]).sum()),
        param_max_ulp=largest_ulp(subject["param"], theirs["param"]),
        codes_differ=sum(int(differing(subject[name], theirs[name]).sum()) for name in codes),
        **sides.errors(),
    )


def _differ(sides: _Sides) -> bool:
    return any(
        bool(differing(mine, sides.reference[name]).any()) for name, mine in sides.subject.items()
    )


def _ratio(subject: float | None, theirs: float | None) -> float | None:
    if subject is None or theirs is None:
        return None
    if not theirs:
        return None if subject else 1.0
    return subject / theirs


def _naive(start: State) -> State:
    """The same start with everything in bfloat16, and no corrections."""
    made = {"param": reference.read_param(start).to(torch.bfloat16)}
    for moment in SPECS:
        values = reference.read_moment(start, moment)
        if values is not None:
            made[moment] = values.to(torch.bfloat16)
    return made


class _Exact:
    """The same steps in float64: ``torch.optim``'s, and for Lion, which it has not, the formulas.

    ``torch.optim`` has no decay that is decoupled from SGD, which is applied before each step, and
    dampens no first gradient, unless there is a momentum of zeros already.
    """

    def __init__(self, hyper: Hyperparameters, start: State) -> None:
        self._hyper = hyper
        self._param = reference.read_param(start).double().requires_grad_()
        self._start = self._param.detach().clone()
        self._momentum = torch.zeros_like(self._start)
        self._optimizer = None if hyper.optimizer is Optimizer.LION else self._made()

    def _made(self) -> torch.optim.Optimizer:
        hyper, params = self._hyper, [self._param]
        if hyper.optimizer.adaptive:
            kind: type[torch.optim.Adam] = (
                torch.optim.AdamW if hyper.optimizer.decoupled else torch.optim.Adam
            )
            return kind(
                params,
                lr=hyper.lr,
                betas=(hyper.beta1, hyper.beta2),
                eps=hyper.eps,
                weight_decay=hyper.weight_decay / (hyper.initial_lr or 1.0),
                foreach=False,
            )
        made = torch.optim.SGD(
            params,
            lr=hyper.lr,
            momentum=hyper.momentum,
            dampening=hyper.dampening,
            nesterov=hyper.nesterov,
            weight_decay=0.0 if hyper.optimizer.decoupled else hyper.weight_decay,
            foreach=False,
        )
        if hyper.momentum:
            made.state[self._param]["momentum_buffer"] = self._momentum
        return made

    def step(self, grad: torch.Tensor) -> None:
        hyper, exact = self._hyper, grad.double()
        share = hyper.weight_decay * hyper.lr / (hyper.initial_lr or 1.0)
        if hyper.optimizer in (Optimizer.LION, Optimizer.SGDW):
            self._param.data.mul_(1 - share)
        if self._optimizer:
            self._param.grad = exact
            self._optimizer.step()
            return
        direction = hyper.beta1 * self._momentum + (1 - hyper.beta1) * exact
        self._param.data.sub_(hyper.lr * direction.sign())
        self._momentum.mul_(hyper.beta2).add_((1 - hyper.beta2) * exact)

    def distance(self, state: State) -> float | None:
        """From the weights of a state, relative to the way gone; none if that is not finite."""
        exact = self._param.detach()
        way = float((exact - self._start).norm())
        off = float((reference.read_param(state).double() - exact).norm())
        if not way:
            return None if off else 0.0
        ratio = off / way
        return ratio if ratio < float("inf") else None
