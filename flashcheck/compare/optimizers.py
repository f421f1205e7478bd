"""Why the state that an optimizer step stores differs from the literal paper's.

Every setting of the switches is tried on the whole step; what none of them gives is held against a
running error analysis of the step. A code that is right for the literal float32 number is at a
``rounding_boundary``; one that is right only for a number within the number's own bound is
``propagated``, as is a correction code that is right for the subject's own parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from flashcheck.compare import bounds
from flashcheck.compare.attribution import (
    OUTSIDE_DOMAIN,
    PROPAGATED,
    ROUNDING_BOUNDARY,
    ULP_BOUND,
    Best,
    Causes,
    Explanation,
    Margin,
    Mismatches,
    Path,
    best,
    candidates,
    explain_output,
    farthest_margin,
    search,
)
from flashcheck.compare.bounds import SLACK, OperationBounds, U
from flashcheck.compare.enclosure import Enclosure
from flashcheck.compare.settings import ABSMAX_FLOOR, Setting, Switch, settings
from flashcheck.compare.ulp import differing
from flashcheck.formats import ecc_format, quantized_format
from flashcheck.optimizers import GROUP_SIZE, SPECS, Hyperparameters, Optimizer, State
from flashcheck.reference import optimizers as reference
from flashcheck.reference.arithmetic import PAPER, Arithmetic
from flashcheck.reference.optimizers import Advanced
from flashcheck.reference.quantization import as_groups
from flashcheck.reference.splitting import log2_half_ulp

_STAGES = {
    OUTSIDE_DOMAIN: "stored",
    Switch.RECIPROCAL_DIVISION.value: "read",
    Switch.FLOAT32_SCALARS.value: "hyperparameters",
    Switch.DISTRIBUTED_UPDATE.value: "update",
    Switch.FUSED_MULTIPLY_ADD.value: "update",
    Switch.NAN_ABSMAX.value: "absmax",
    Switch.ABSMAX_FLOOR.value: "absmax",
    PROPAGATED: "update",
    ULP_BOUND: "update",
    ROUNDING_BOUNDARY: "stored",
    Switch.ROUNDING_TIE.value: "stored",
}


@dataclass(frozen=True)
class StepCase:
    """One step of both sides from one state.

    Attributes:
        before: the state that both were given; flat tensors on the CPU.
        subject: what the subject stored, or as much of it as is compared.
        against: what it is compared with, if that is not what the literal reference stores: then
            both have to be explained where they differ.
    """

    before: State
    grad: torch.Tensor
    hyper: Hyperparameters
    subject: State
    operations: OperationBounds
    against: State | None = None
    _stored: dict[Arithmetic, State] = field(default_factory=dict)
    _advanced: dict[Arithmetic, Advanced] = field(default_factory=dict)

    def reference(self, arithmetic: Arithmetic = PAPER) -> State:
        """What the reference stores under a setting, computed once."""
        if arithmetic not in self._stored:
            made = reference.store(self.advanced(arithmetic), self.before, arithmetic)
            self._stored[arithmetic] = made
        return self._stored[arithmetic]

    def advanced(self, arithmetic: Arithmetic = PAPER) -> Advanced:
        """The reference's float32 numbers before they are stored, likewise."""
        # How a code is rounded, and what divides a group, comes into play in storing only.
        alike = replace(
            PAPER,
            fused_multiply_add=arithmetic.fused_multiply_add,
            reciprocal_division=arithmetic.reciprocal_division,
            float32_scalars=arithmetic.float32_scalars,
            distributed_update=arithmetic.distributed_update,
        )
        if alike not in self._advanced:
            made = reference.advance(self.before, self.grad, self.hyper, alike)
            self._advanced[alike] = made
        return self._advanced[alike]

    @property
    def theirs(self) -> State:
        """What the subject's is compared with."""
        return self.reference() if self.against is None else self.against

    @cached_property
    def settings(self) -> list[Setting]:
        """Those that may change something of this step."""
        coded = "ecc" in self.before or bool(self.quantized)
        groups = [self._absmax(moment) for moment in self.quantized]
        may_matter = {
            Switch.ROUNDING_TIE: coded,
            Switch.FUSED_MULTIPLY_ADD: True,
            Switch.RECIPROCAL_DIVISION: coded,
            Switch.ABSMAX_FLOOR: any(bool((each < _NEAR_FLOOR).any()) for each in groups),
            Switch.NAN_ABSMAX: any(bool(each.isnan().any()) for each in groups),
            Switch.FLOAT32_SCALARS: True,
            Switch.DISTRIBUTED_UPDATE: True,
        }
        return settings([switch for switch in Switch if may_matter[switch]], step=True)

    @property
    def quantized(self) -> list[str]:
        """The moments that are stored as codes."""
        return [moment for moment in SPECS if f"{moment}_scales" in self.before]

    def _absmax(self, moment: str) -> torch.Tensor:
        values = getattr(self.advanced(), moment)
        values = values.double().sqrt() if SPECS[moment]["sqrt"] else values
        return as_groups(values.abs(), GROUP_SIZE).amax(dim=1)

    @cached_property
    def bounded(self) -> list[dict[str, Enclosure]]:
        """What each number may be, for each order in which the update may be evaluated."""
        return [
            _enclosures(self.before, self.grad, self.hyper, self.operations, distributed=d)
            for d in (False, True)
        ]


def explain(case: StepCase) -> Explanation:
    """Give every element of every stored tensor that differs its cause."""
    return sum((_explain(case, name) for name in case.subject), Explanation())


def best_setting(case: StepCase, explanation: Explanation) -> Best:
    """The setting that leaves fewest elements of the stored state different."""

    def left(setting: Setting) -> int:
        theirs = case.reference(setting.arithmetic)
        return sum(int(differing(mine, theirs[name]).sum()) for name, mine in case.subject.items())

    tried = {setting: left(setting) for setting in candidates(explanation, step=True)}
    if explanation.total() and min(tried.values(), default=1):
        # One switch may give by chance what is due to two, so that neither of them was seen.
        tried |= {setting: left(setting) for setting in case.settings}
    found = best(explanation.total(), tried)
    if found.setting.arithmetic.correction_rounding:
        return found
    # That corrections may be rounded in another way is worth a word where it is needed.
    plain = [each for each in found.equals if not each.arithmetic.correction_rounding]
    return Best(found.setting, found.left, plain)


def _explain(case: StepCase, name: str) -> Explanation:
    subject, theirs = case.subject[name], case.theirs[name]
    index = differing(subject, theirs).nonzero().squeeze(1)

    def made(setting: Setting, where: torch.Tensor) -> torch.Tensor:
        return case.reference(setting.arithmetic)[name][where]

    def prove(causes: Causes, labels: torch.Tensor) -> list[Margin]:
        margins = _prove(case, name, causes, labels, index)
        if case.against is not None:
            labels[~_is_right(replace(case, subject=case.against, against=None), name, index)] = 0
        return margins

    return explain_output(
        Mismatches(name, index, subject, theirs, lambda i: _input_of(case, name, i)),
        Path(case.settings, _STAGES, lambda _: "update"),
        made,
        prove,
        part=max(1, index.numel()),
    )


def _is_right(case: StepCase, name: str, index: torch.Tensor) -> torch.Tensor:
    """Of some elements, whether a setting or a bound explains the subject's."""
    subject = case.subject[name][index]
    causes, labels = Causes(), torch.zeros_like(index)
    labels[~differing(subject, case.reference()[name][index])] = causes.index("the reference's")

    def reproduces(setting: Setting, chosen: torch.Tensor) -> torch.Tensor:
        made = case.reference(setting.arithmetic)[name][index[chosen]]
        return ~differing(subject[chosen], made)

    search(causes, case.settings, labels, reproduces)
    _prove(case, name, causes, labels, index)
    return labels != 0


def _input_of(case: StepCase, name: str, index: int) -> tuple[torch.Tensor, ...]:
    """What an element, or a group's first, was computed from."""
    place = index * GROUP_SIZE if name.endswith("_scales") else index
    read = [reference.read_param(case.before)[place], case.grad[place]]
    for moment in case.hyper.moments():
        values = reference.read_moment(case.before, moment)
        assert values is not None
        read.append(values[place])
    return tuple(read)


def _prove(
    case: StepCase, name: str, causes: Causes, labels: torch.Tensor, index: torch.Tensor
) -> list[Margin]:
    """Label what a bound explains."""
    moment = name.removesuffix("_scales")
    literal = getattr(case.advanced(), moment if moment in SPECS else "param")
    if name == "ecc":
        outside = ~(literal.isfinite() & case.subject["param"].isfinite())
        labels[(labels == 0) & outside[index]] = causes.index(OUTSIDE_DOMAIN)
    elif moment in SPECS and name == moment and f"{name}_scales" in case.subject:
        labels[(labels == 0) & ~literal.isfinite()[index]] = causes.index(OUTSIDE_DOMAIN)
    margins = []
    numbers = [(False, Enclosure.of(literal))]
    numbers += [(True, each["param" if moment not in SPECS else moment]) for each in case.bounded]
    for own, enclosure in numbers:
        for prefix, allowed, margin in _allowed(case, name, enclosure):
            chosen = (labels == 0) & allowed[index]
            if not bool(chosen.any()):
                continue
            labels[chosen] = causes.index("+".join([*prefix, _bound(case, name, own=own)]))
            margins += [m for m in [margin(index[chosen])] if m]
    return margins


def _bound(case: StepCase, name: str, *, own: bool) -> str:
    """The name of what is proven: a boundary of storing, or a bound of the number itself."""
    exact = case.subject[name].dtype == torch.float32
    if exact:
        return ULP_BOUND
    code = name == "ecc" or (name in SPECS and f"{name}_scales" in case.subject)
    return PROPAGATED if own and code else ROUNDING_BOUNDARY


Allowed = tuple[list[str], torch.Tensor, Callable[[torch.Tensor], Margin | None]]


def _allowed(case: StepCase, name: str, number: Enclosure) -> list[Allowed]:
    """Where what the subject stored can come of a number within its enclosure."""
    subject = case.subject[name]
    if name == "ecc":
        return [([], _corrects(case, number), lambda _: None)]
    if name.endswith("_scales"):
        absmax = _absmax(case, name.removesuffix("_scales"), number)
        made = []
        for prefix, floor in _FLOORS:
            floored = Enclosure(absmax.exact.clamp(min=floor), absmax.error)
            made.append((prefix, floored.reaches(subject), _margin_of(name, floored, subject)))
        return made
    if name in SPECS and f"{name}_scales" in case.subject:
        return [
            (prefix, _codes(case, name, number, floor), _no_margin) for prefix, floor in _FLOORS
        ]
    return [([], number.reaches(subject), _margin_of(name, number, subject))]


_NEAR_FLOOR = 2 * ABSMAX_FLOOR
"""A group below this may be below the floor, whatever the arithmetic."""

_FLOORS: list[tuple[list[str], float]] = [([], 0.0), ([Switch.ABSMAX_FLOOR.value], ABSMAX_FLOOR)]


def _no_margin(_: torch.Tensor) -> None:
    return None


def _margin_of(
    name: str, number: Enclosure, subject: torch.Tensor
) -> Callable[[torch.Tensor], Margin | None]:
    """How far stored float32 are from the exact numbers, of those that a bound explains."""

    def margin(index: torch.Tensor) -> Margin | None:
        if subject.dtype != torch.float32:
            return None
        ulp = bounds.ulp(number.exact[index])
        far = (subject[index].double() - number.exact[index]).abs() / ulp
        return next(iter(farthest_margin(name, far, number.error[index] / ulp)), None)

    return margin


def _root(name: str, number: Enclosure, operations: OperationBounds) -> Enclosure:
    return number.root(operations) if SPECS[name]["sqrt"] else number


def _absmax(case: StepCase, name: str, number: Enclosure) -> Enclosure:
    """Of each group the largest magnitude of what is quantized."""
    values = _root(name, number, case.operations)
    magnitude, error = (as_groups(x, GROUP_SIZE) for x in (values.exact.abs(), values.error))
    largest = magnitude.amax(dim=1)
    high = (magnitude + error).amax(dim=1)
    low = (magnitude - error).amax(dim=1)
    return Enclosure(largest, torch.maximum(high - largest, largest - low))


def _codes(case: StepCase, name: str, number: Enclosure, floor: float) -> torch.Tensor:
    """Where the subject's code is one that a number within its enclosure may get."""
    values = _root(name, number, case.operations)
    absmax = _absmax(case, name, number)
    exact = absmax.exact.clamp(min=floor)
    exact = torch.where(exact == 0, 1.0, exact)
    n = values.exact.numel()
    divisor = Enclosure(*(x.repeat_interleave(GROUP_SIZE)[:n] for x in (exact, absmax.error)))
    share = values.over(divisor, case.operations)
    if SPECS[name]["softsign"]:
        one = Enclosure.of(torch.ones(()))
        share = share.by(2.0).over(one + share.magnitude(), case.operations)
    fmt = quantized_format(SPECS[name]["signed"])
    scaled = share.by(float(fmt.max_code))
    code = case.subject[name].double()
    # Rounding by floor(x + 0.5) rounds the sum as well.
    half = 0.5 + bounds.ulp(scaled.exact.abs() + 0.5) / 2
    near = (scaled.exact.clamp(fmt.min_code, fmt.max_code) - code).abs() <= scaled.error + half
    return near & scaled.exact.isfinite()


def _corrects(case: StepCase, number: Enclosure) -> torch.Tensor:
    """Where the subject's correction code is right for its own parameter, of such a number."""
    param, code = case.subject["param"], case.subject["ecc"].double()
    fmt = ecc_format(case.subject["ecc"].dtype)
    finite = param.isfinite()
    shift = -log2_half_ulp(param).long()
    factor = bounds.power_of_two(torch.where(finite, shift, 0)) * fmt.max_code
    ends = [(end - param.double()) * factor for end in (number.low, number.high)]
    low, high = (end.clamp(-fmt.max_code, fmt.max_code) for end in ends)
    half = 0.5 + fmt.max_code * U * SLACK
    return (code >= low - half) & (code <= high + half) & finite & number.error.isfinite()


def _enclosures(
    before: State,
    grad: torch.Tensor,
    hyper: Hyperparameters,
    operations: OperationBounds,
    *,
    distributed: bool,
) -> dict[str, Enclosure]:
    """The numbers of a step, each with all that its operations may be off by."""
    scalars = _Scalars(hyper, operations)
    theta = _read_param(before, operations)
    g = Enclosure.of(grad)
    decays = bool(hyper.weight_decay)
    if decays and not hyper.optimizer.decoupled:
        g = g + theta * scalars.decay
    m, v = (_read_moment(before, name, operations) for name in SPECS)
    found = {}
    lr_applied = False
    if hyper.optimizer.adaptive:
        assert m is not None
        assert v is not None
        m = m * scalars.beta1 + g * scalars.rest1
        v = v * scalars.beta2 + g * g * scalars.rest2
        found = {"momentum": m, "variance": v}
        corrected = m.over(scalars.bias1, operations)
        denominator = v.over(scalars.bias2, operations).root(operations) + scalars.eps
        if distributed:
            corrected, lr_applied = corrected * scalars.lr, True
        direction = corrected.over(denominator, operations)
    elif hyper.optimizer is Optimizer.LION:
        assert m is not None
        direction = _sign(m * scalars.beta1 + g * scalars.rest1)
        found = {"momentum": m * scalars.beta2 + g * scalars.rest2}
    elif m is None:
        direction = g
    else:
        m = m * scalars.momentum + g * scalars.undamped
        found = {"momentum": m}
        direction = g + m * scalars.momentum if hyper.nesterov else m
    decoupled = decays and hyper.optimizer.decoupled
    if distributed:
        kept = theta * scalars.kept if decoupled else theta
        found["param"] = kept - (direction if lr_applied else direction * scalars.lr)
    elif decoupled and hyper.initial_lr:
        found["param"] = theta - (direction * scalars.lr + theta * scalars.decay)
    elif decoupled:
        found["param"] = theta - (direction + theta * scalars.decay) * scalars.lr
    else:
        found["param"] = theta - direction * scalars.lr
    return found


def _read_param(before: State, operations: OperationBounds) -> Enclosure:
    if "ecc" not in before:
        return Enclosure.of(before["param"])
    decision = bounds.reconstructed(
        before["param"],
        before["ecc"],
        log2_half_ulp(before["param"]),
        ecc_format(before["ecc"].dtype).max_code,
        operations,
    )
    return Enclosure(decision.exact, decision.error)


def _read_moment(before: State, name: str, operations: OperationBounds) -> Enclosure | None:
    if name not in before:
        return None
    if f"{name}_scales" not in before:
        return Enclosure.of(before[name])
    codes = before[name]
    spec = SPECS[name]
    decision = bounds.dequantized(
        codes,
        before[f"{name}_scales"].repeat_interleave(GROUP_SIZE)[: codes.numel()],
        quantized_format(spec["signed"]).max_code,
        sqrt=spec["sqrt"],
        softsign=spec["softsign"],
        operations=operations,
    )
    return Enclosure(decision.exact, decision.error)


def _sign(number: Enclosure) -> Enclosure:
    """Of a number that may be on either side of 0, any sign."""
    either = number.exact.abs() <= number.error
    open_ = either & ~((number.exact == 0) & (number.error == 0))
    return Enclosure(number.exact.sign(), torch.where(open_, 2.0, 0.0))


class _Scalars:
    """The constants of a step, and how far a subject's may be: rounded before or after."""

    def __init__(self, hyper: Hyperparameters, operations: OperationBounds) -> None:
        decay = hyper.weight_decay
        share = decay * hyper.lr / hyper.initial_lr if hyper.initial_lr else decay * hyper.lr
        self.lr = _constant(hyper.lr)
        self.eps = _constant(hyper.eps)
        self.decay = _constant(share if hyper.initial_lr else decay)
        self.kept = _complement(share, share)
        self.momentum = _constant(hyper.momentum)
        self.undamped = _complement(hyper.dampening, 0.0)
        self.beta1, self.rest1, self.bias1 = _of_beta(hyper.beta1, hyper.step, operations)
        self.beta2, self.rest2, self.bias2 = _of_beta(hyper.beta2, hyper.step, operations)


def _of_beta(beta: float, step: int, operations: OperationBounds) -> tuple[Enclosure, ...]:
    power = beta**step
    # A beta that is rounded first is off by u, and its power by so many times as much; a power that
    # is made of products is off by u more for each of them.
    off = power * (2 * step + 2 * operations.power_ulp)
    return _constant(beta), _complement(beta, beta), _complement(power, off)


def _constant(x: float) -> Enclosure:
    exact = torch.tensor(x, dtype=torch.float64)
    return Enclosure(exact, exact.abs() * (U * SLACK))


def _complement(x: float, off: float) -> Enclosure:
    """``1 - x``, of an ``x`` that is off by so many ``u``."""
    exact = torch.tensor(1.0 - x, dtype=torch.float64)
    return Enclosure(exact, (abs(off) + exact.abs()) * (U * SLACK))
