"""Why outputs differ from the literal paper: the search for causes, whatever the outputs are.

The cause of a mismatch is the smallest set of switches under which the reference gives the
subject's very bits. Where no set does, it is a proven bound (``rounding_boundary``, ``ulp_bound``)
or it is ``unexplained``; nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flashcheck.compare.settings import LITERAL, Setting, Switch, settings
from flashcheck.compare.ulp import apart, differing
from flashcheck.reference.arithmetic import CHUNK

UNEXPLAINED = "unexplained"
ROUNDING_BOUNDARY = "rounding_boundary"
ULP_BOUND = "ulp_bound"
PROPAGATED = "propagated"
"""A value that is right for the subject's own code, which differs and has a cause of its own."""
STRIDES_IGNORED = "strides_ignored"
"""What comes of the input's storage read in the order of memory: a fault, but a known one."""
OUTSIDE_DOMAIN = "outside_domain"
"""The code of an input that is not finite, or rounds to infinity: the paper defines none."""


@dataclass
class Causes:
    """The cause of each of some mismatches, as indices into a list of names.

    Attributes:
        names: the causes met so far; index 0 is :data:`UNEXPLAINED`.
        seen: the settings that explained something.
    """

    names: list[str] = field(default_factory=lambda: [UNEXPLAINED])
    seen: list[Setting] = field(default_factory=list)

    def index(self, name: str) -> int:
        """Of a cause, entered if it is new."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def search(
    causes: Causes,
    settings: Iterable[Setting],
    labels: torch.Tensor,
    reproduces: Callable[[Setting, torch.Tensor], torch.Tensor],
) -> None:
    """Label each unexplained mismatch with the first setting that gives the subject's bits.

    Args:
        labels: int64, one a mismatch, 0 where unexplained; written in place.
        reproduces: of a setting and the indices of some mismatches, which of them it gives.
    """
    for setting in settings:
        open_ = (labels == 0).nonzero().squeeze(1)
        if not open_.numel():
            return
        given = reproduces(setting, open_)
        if bool(given.any()):
            labels[open_[given]] = causes.index(setting.cause)
            if setting not in causes.seen:
                causes.seen.append(setting)


def count(causes: Causes, labels: torch.Tensor) -> dict[str, int]:
    """How many mismatches have each cause, those that occur."""
    numbers = torch.bincount(labels, minlength=len(causes.names)).tolist()
    return {name: number for name, number in zip(causes.names, numbers, strict=True) if number}


@dataclass(frozen=True)
class Best:
    """The setting that leaves fewest mismatches over all outputs, and those that do as well."""

    setting: Setting
    left: int
    equals: list[Setting]


def candidates(explanation: Explanation, *, step: bool = False) -> list[Setting]:
    """Every setting of the switches that explained something; ``step`` as for ``settings``."""
    seen = explanation.seen
    if not seen:
        return []
    # A tie that goes either way is put down to the first rounding that gives it, and one switch may
    # hide another: which setting fits all outputs is seen here only.
    switches = {switch for setting in seen for switch in setting.switches}
    return settings([switch for switch in Switch if switch in switches], step=step)


def best(total: int, left: Mapping[Setting, int]) -> Best:
    """The setting that leaves fewest mismatches, and of those the one of fewest switches.

    Args:
        total: how many the literal setting leaves.
        left: how many each candidate leaves over all outputs, those that agree now included.
    """
    every = {LITERAL: total, **left}
    ranked = sorted(every, key=lambda setting: (every[setting], len(setting.switches)))
    winner = ranked[0]
    equals = [
        setting
        for setting in ranked[1:]
        if every[setting] == every[winner] and len(setting.switches) == len(winner.switches)
    ]
    return Best(winner, every[winner], equals)


@dataclass(frozen=True)
class Margin:
    """Of outputs that are explained by a bound: the farthest seen, and the bound there."""

    output: str
    largest_ulp: float
    bound_ulp: float


def farthest_margin(output: str, far: torch.Tensor, bound: torch.Tensor) -> list[Margin]:
    """The margin of some outputs that a bound explains: none of none."""
    if not far.numel():
        return []
    position = int(far.argmax())
    return [Margin(output, float(far[position]), float(bound[position]))]


@dataclass(frozen=True)
class Offender:
    """One mismatch, with its values as they are."""

    output: str
    index: int
    input: tuple[torch.Tensor, ...]
    subject: torch.Tensor
    reference: torch.Tensor
    distance: int
    stage: str
    cause: str


@dataclass(frozen=True)
class Explanation:
    """Everything said of the mismatches of some outputs; parts of a sweep add up.

    ``by_stratum`` has the counts of ``by_output`` again, by stratum, where elements have one.
    """

    by_output: dict[str, dict[str, int]] = field(default_factory=dict)
    by_stratum: dict[int, dict[str, dict[str, int]]] = field(default_factory=dict)
    seen: list[Setting] = field(default_factory=list)
    margins: list[Margin] = field(default_factory=list)
    worst: list[Offender] = field(default_factory=list)

    def total(self) -> int:
        return sum(number for causes in self.by_output.values() for number in causes.values())

    def by_cause(self) -> dict[str, int]:
        """The counts of all outputs, the most frequent cause first."""
        sums: dict[str, int] = {}
        for causes in self.by_output.values():
            for cause, number in causes.items():
                sums[cause] = sums.get(cause, 0) + number
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def __add__(self, other: Explanation) -> Explanation:
        by_stratum = dict(self.by_stratum)
        for stratum, by_output in other.by_stratum.items():
            by_stratum[stratum] = summed(by_stratum.get(stratum, {}), by_output)
        return Explanation(
            by_output=summed(self.by_output, other.by_output),
            by_stratum=by_stratum,
            seen=[*self.seen, *(s for s in other.seen if s not in self.seen)],
            margins=_farthest([*self.margins, *other.margins]),
            worst=worst_of([*self.worst, *other.worst]),
        )


def summed(
    one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Counts of causes by output, added up."""
    sums = {name: dict(causes) for name, causes in one.items()}
    for name, causes in other.items():
        mine = sums.setdefault(name, {})
        for cause, number in causes.items():
            mine[cause] = mine.get(cause, 0) + number
    return sums


def _farthest(margins: Sequence[Margin]) -> list[Margin]:
    """Of each output the margin of the farthest."""
    kept: dict[str, Margin] = {}
    for margin in sorted(margins, key=lambda m: m.largest_ulp):
        kept[margin.output] = margin
    return [kept[output] for output in sorted(kept)]


WORST = 5
"""How many offenders are kept."""

_UNEXPLAINED_FIRST = 2.0**40
_ON_A_GPU = 1 << 24


def worst_of(offenders: Sequence[Offender]) -> list[Offender]:
    """The unexplained first, then the farthest apart."""
    ranked = sorted(offenders, key=lambda o: (UNEXPLAINED not in o.cause, -o.distance, o.index))
    return ranked[:WORST]


@dataclass(frozen=True)
class Mismatches:
    """The elements of one output in which subject and reference differ.

    Attributes:
        output: its name: codes, scales, values, rho or reconstructed.
        index: where, int64, flat.
        subject: the subject's whole output, flat; ``reference`` likewise.
        input_of: the input, or inputs, that an element's worst offender is shown with.
        offset: of these elements in the whole output.
        strata: of each element of the output, int64, the stratum that it is counted in; none where
            there are none.
        order: of each element, int64, its place where that is not the one that it stands at.
    """

    output: str
    index: torch.Tensor
    subject: torch.Tensor
    reference: torch.Tensor
    input_of: Callable[[int], torch.Tensor | tuple[torch.Tensor, ...]]
    offset: int = 0
    strata: torch.Tensor | None = None
    order: torch.Tensor | None = None


@dataclass(frozen=True)
class Path:
    """How an output is computed: the settings that may change it, and the stage of each cause."""

    settings: Sequence[Setting]
    stages: dict[str, str]
    unexplained_stage: Callable[[int], str]


def explain_output(
    mismatches: Mismatches,
    path: Path,
    made: Callable[[Setting, torch.Tensor], torch.Tensor],
    prove: Callable[[Causes, torch.Tensor], list[Margin]],
    *,
    part: int,
) -> Explanation:
    """Give each mismatch of an output its cause.

    Args:
        made: what the reference gives under a setting, for the output's elements at some indices.
        prove: labels what a bound explains of the mismatches still labelled 0.
        part: how many elements ``made`` is asked for at a time, to bound its memory.
    """
    index = mismatches.index
    if not index.numel():
        return Explanation()
    causes, labels = Causes(), torch.zeros_like(index)

    def reproduces(setting: Setting, chosen: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [
                ~differing(made(setting, some), mismatches.subject[some])
                for some in torch.split(index[chosen], part)
            ]
        )

    search(causes, path.settings, labels, reproduces)
    margins = prove(causes, labels)
    return Explanation(
        by_output={mismatches.output: count(causes, labels)},
        by_stratum=_by_stratum(mismatches, causes, labels),
        seen=causes.seen,
        margins=_farthest(margins),
        worst=_offenders(mismatches, path, causes, labels),
    )


def _by_stratum(
    mismatches: Mismatches, causes: Causes, labels: torch.Tensor
) -> dict[int, dict[str, dict[str, int]]]:
    if mismatches.strata is None:
        return {}
    kinds = len(causes.names)
    numbers = torch.bincount(mismatches.strata[mismatches.index] * kinds + labels).tolist()
    found: dict[int, dict[str, dict[str, int]]] = {}
    for key, number in enumerate(numbers):
        if number:
            counts = found.setdefault(key // kinds, {mismatches.output: {}})
            counts[mismatches.output][causes.names[key % kinds]] = number
    return found


def part_of(x: torch.Tensor) -> int:
    """How many elements to work on at a time: what the device's cache, or its memory, is for."""
    return CHUNK if x.device.type == "cpu" else _ON_A_GPU


def _offenders(
    mismatches: Mismatches, path: Path, causes: Causes, labels: torch.Tensor
) -> list[Offender]:
    subject, theirs = mismatches.subject, mismatches.reference
    distance = apart(subject[mismatches.index], theirs[mismatches.index])
    score = distance.double() + (labels == 0) * _UNEXPLAINED_FIRST
    offenders = []
    order = None if mismatches.order is None else mismatches.order[mismatches.index]
    for position in _highest(score, WORST, order):
        index = int(mismatches.index[position])
        given = mismatches.input_of(index)
        cause = causes.names[int(labels[position])]
        offenders.append(
            Offender(
                output=mismatches.output,
                index=index + mismatches.offset
                if mismatches.order is None
                else int(mismatches.order[index]),
                input=given if isinstance(given, tuple) else (given,),
                subject=subject[index],
                reference=theirs[index],
                distance=int(distance[position]),
                stage=_stage(cause, path, index),
                cause=cause,
            )
        )
    return worst_of(offenders)


def _highest(score: torch.Tensor, number: int, order: torch.Tensor | None) -> list[int]:
    """Positions of the highest scores; of equal ones the first, whatever the chunks were."""
    least = torch.topk(score, min(number, score.numel())).values[-1]
    above = (score > least).nonzero().squeeze(1).tolist()
    level = (score == least).nonzero().squeeze(1)
    wanted = number - len(above)
    if order is None:
        return [*above, *level[:wanted].tolist()]
    first = torch.topk(order[level], min(wanted, level.numel()), largest=False).indices
    return [*above, *level[first].tolist()]


def _stage(cause: str, path: Path, index: int) -> str:
    """The first stage of the path at which one of the cause's parts acts."""
    parts = cause.split("+")
    known = (where for part, where in path.stages.items() if part in parts)
    return next(known, None) or path.unexplained_stage(index)
