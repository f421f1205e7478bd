"""The reference's optimizer step, bit by bit against the oracle, and in float64 against torch."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from flashcheck.formats import (
    BF16,
    FP16,
    FP32,
    INT8,
    INT16,
    UINT8,
    CodeFormat,
    FloatFormat,
    torch_dtype,
)
from flashcheck.optimizers import (
    Constants,
    Hyperparameters,
    Optimizer,
    State,
    check_state,
    nearest_float32,
)
from flashcheck.reference.arithmetic import CHUNK, PAPER, Arithmetic, NanAbsmax, Rounding
from flashcheck.reference.optimizers import (
    Advanced,
    advance,
    read_moment,
    read_param,
    step,
    store,
)
from tests import oracle, oracle_step
from tests.conftest import CHECKOUT
from tests.oracle import bits_of, decode, differences, encode, landmarks, tensor_of

SEED = 260223349
GROUP = 32

ARITHMETICS = {
    "paper": PAPER,
    "half_away": Arithmetic(rounding=Rounding.HALF_AWAY),
    "half_up": Arithmetic(rounding=Rounding.HALF_UP),
    "fused": Arithmetic(fused_multiply_add=True),
    "reciprocal": Arithmetic(reciprocal_division=True),
    # One whose float16 is not zero, so that it shows in the scale as well.
    "high_floor": Arithmetic(absmax_floor=0.3),
    "ignore_nan": Arithmetic(nan_absmax=NanAbsmax.IGNORE),
    "float32_scalars": Arithmetic(float32_scalars=True),
    "distributed": Arithmetic(distributed_update=True),
    "corrections": Arithmetic(correction_rounding=Rounding.HALF_AWAY),
    "distributed_fused": Arithmetic(distributed_update=True, fused_multiply_add=True),
    "kernel": Arithmetic(
        rounding=Rounding.HALF_UP,
        fused_multiply_add=True,
        reciprocal_division=True,
        absmax_floor=1e-12,
        nan_absmax=NanAbsmax.IGNORE,
        float32_scalars=True,
        distributed_update=True,
        correction_rounding=Rounding.HALF_AWAY,
    ),
}


def hyper(optimizer: str, **values: Any) -> Hyperparameters:
    return Hyperparameters(Optimizer(optimizer), **values)


HYPERS = {
    "adam": hyper("adam", lr=0.03),
    "adam-decay": hyper("adam", lr=0.01, weight_decay=0.1, eps=0.05, beta1=0.7, beta2=0.93),
    "adamw": hyper("adamw", lr=0.02, beta1=0.8, beta2=0.97),
    "adamw-decay": hyper("adamw", lr=0.07, weight_decay=0.3, eps=1e-3),
    "adamw-initial_lr": hyper("adamw", lr=2.0**-6, weight_decay=0.1, initial_lr=2.0**-4),
    "sgd": hyper("sgd", lr=0.3, momentum=0.85),
    "sgd-plain": hyper("sgd", lr=0.3, momentum=0.0, nesterov=True, dampening=0.7),
    "sgd-plain-decay": hyper("sgd", lr=0.3, momentum=0.0, weight_decay=0.2),
    "sgd-nesterov-decay": hyper("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd-dampening": hyper("sgd", lr=0.1, momentum=0.9, dampening=0.1),
    "sgdw-dampening-decay": hyper("sgdw", lr=0.1, momentum=0.7, dampening=0.3, weight_decay=0.1),
    "sgdw-both": hyper(
        "sgdw", lr=0.1, momentum=0.7, dampening=0.3, nesterov=True, weight_decay=0.1
    ),
    "sgdw-plain-decay": hyper("sgdw", lr=0.5, momentum=0.0, weight_decay=0.18),
    "sgdw-initial_lr": hyper(
        "sgdw", lr=2.0**-3, momentum=0.9, nesterov=True, weight_decay=0.1, initial_lr=2.0**-1
    ),
    "lion": hyper("lion", lr=0.01, beta1=0.95, beta2=0.98),
    "lion-decay": hyper("lion", lr=0.03, beta1=0.9, beta2=0.99, weight_decay=0.1),
    "lion-initial_lr": hyper("lion", lr=2.0**-6, beta2=0.9, weight_decay=0.3, initial_lr=2.0**-5),
}


class Weights(NamedTuple):
    fmt: FloatFormat
    ecc: CodeFormat | None


WEIGHTS = {
    "bf16": Weights(BF16, None),
    "fp16": Weights(FP16, None),
    "fp32": Weights(FP32, None),
    "bf16+int8": Weights(BF16, INT8),
    "bf16+int16": Weights(BF16, INT16),
    "fp16+int8": Weights(FP16, INT8),
    "fp16+int16": Weights(FP16, INT16),
}
STATES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "quantized": ("momentum", "variance"),
    "momentum": ("momentum",),
    "variance": ("variance",),
}
"""Which of the moments are quantized."""

STEPS = (1, 2, 57)
FACTORS: tuple[Collection[Any], ...] = (HYPERS, ARITHMETICS, WEIGHTS, STATES, STEPS)


class Case(NamedTuple):
    """One combination, by its words."""

    hyper: str
    arithmetic: str
    weights: str
    states: str
    step: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @property
    def hyperparameters(self) -> Hyperparameters:
        return replace(HYPERS[self.hyper], step=self.step)

    def pairs(self) -> set[tuple[tuple[int, object], ...]]:
        return set(itertools.combinations(enumerate(self), 2))


def covering() -> list[Case]:
    """Of all combinations in a random order, each that has a pair of settings not seen before."""
    every = [Case(*values) for values in itertools.product(*FACTORS)]
    random.Random(SEED).shuffle(every)
    seen: set[tuple[tuple[int, object], ...]] = set()
    chosen = []
    for case in every:
        if not case.pairs() <= seen:
            seen |= case.pairs()
            chosen.append(case)
    return chosen


CASES = covering()


# ---- Inputs --------------------------------------------------------------------------------

SIZES = (5, 32, 69, 101)
CENTRES = {"param": -1, "grad": -3, "momentum": -3, "variance": -6}
"""The exponents about which most values lie, so that the formulas' terms are comparable."""


def near(rng: random.Random, fmt: FloatFormat, centre: int, *, signed: bool = True) -> int:
    """A value of that exponent or a little less."""
    field = max(0, centre + fmt.bias - rng.choice((0, 0, 1, 1, 2, 5)))
    sign = rng.getrandbits(1) << (fmt.bits - 1) if signed else 0
    return sign | field << fmt.mantissa_bits | rng.getrandbits(fmt.mantissa_bits)


def small(rng: random.Random, fmt: FloatFormat) -> int:
    """A zero, a subnormal or a normal number beside them."""
    field = rng.choice((0, 0, 0, 1, 2)) << fmt.mantissa_bits
    significand = rng.choice((0, 1, rng.getrandbits(fmt.mantissa_bits)))
    return rng.getrandbits(1) << (fmt.bits - 1) | field | significand


def group_of(rng: random.Random, kind: str, fmt: FloatFormat, name: str, size: int) -> list[int]:
    if kind == "any":
        return [rng.getrandbits(fmt.bits) for _ in range(size)]
    if kind == "small":
        return [small(rng, fmt) for _ in range(size)]
    return [near(rng, fmt, CENTRES[name], signed=name != "variance") for _ in range(size)]


def drawn(case: Case) -> tuple[State, torch.Tensor]:
    """A state and a gradient.

    The first group is of comparable values; each other one is that, or small, or of any patterns,
    and has an infinity or a NaN in one of the tensors. The last one is mostly not whole.
    """
    rng = random.Random(f"{SEED} {case}")
    fmt, ecc = WEIGHTS[case.weights]
    size = rng.choice(SIZES)
    groups = -(-size // GROUP)
    kinds = ["near", *(rng.choice(("near", "small", "any")) for _ in range(groups - 1))]
    moments = HYPERS[case.hyper].moments()
    names = ["param", "grad", *moments]
    bits = {
        name: [b for kind in kinds for b in group_of(rng, kind, fmt, name, GROUP)][:size]
        for name in names
    }
    scales = {
        name: [group_of(rng, kind, FP16, "variance", 1)[0] for kind in kinds]
        for name in moments
        if name in STATES[case.states]
    }
    for i in range(1, groups):
        name = rng.choice(names)
        if name in scales:
            scales[name][i] = special(FP16, i)
        else:
            bits[name][rng.randrange(i * GROUP, min(size, (i + 1) * GROUP))] = special(fmt, i)
    state = {name: tensor_of(bits[name], fmt) for name in names}
    for name, patterns in scales.items():
        state[name] = random_codes(rng, INT8 if name == "momentum" else UINT8, size)
        state[f"{name}_scales"] = tensor_of(patterns, FP16)
    if ecc is not None:
        state["ecc"] = random_codes(rng, ecc, size)
    return state, state.pop("grad")


def special(fmt: FloatFormat, i: int) -> int:
    """An infinity and a NaN by turns."""
    return fmt.exponent_mask << fmt.mantissa_bits if i % 2 else oracle.quiet_nan(fmt)


def random_codes(rng: random.Random, fmt: CodeFormat, size: int) -> torch.Tensor:
    # The least of a signed format is no code of ours, but a subject may store it.
    low = fmt.min_code - fmt.signed
    codes = [rng.choice((low, 0, *(rng.randint(low, fmt.max_code),) * 8)) for _ in range(size)]
    return torch.tensor(codes, dtype=torch_dtype(fmt))


def contents(state: State) -> dict[str, list[int]]:
    """Codes, and the bit patterns of all else."""
    formats = {torch_dtype(fmt): fmt for fmt in (BF16, FP16, FP32)}
    return {
        name: bits_of(x, formats[x.dtype]) if x.dtype in formats else x.tolist()
        for name, x in state.items()
    }


def same(one: State, other: State) -> bool:
    return contents(one) == contents(other)


# ---- Against the oracle --------------------------------------------------------------------


def test_the_oracle_takes_nothing_from_what_it_is_compared_with() -> None:
    tree = ast.parse(Path(oracle_step.__file__).read_text(encoding="utf-8"))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    ours = {name for name in imported if name and name.startswith(("flashcheck", "tests"))}
    assert ours == {"flashcheck.formats", "tests", "tests.oracle"}


def test_the_cases_have_every_pair_of_settings() -> None:
    seen = set().union(*(case.pairs() for case in CASES))
    for (i, one), (j, other) in itertools.combinations(enumerate(FACTORS), 2):
        for pair in itertools.product(one, other):
            assert ((i, pair[0]), (j, pair[1])) in seen, f"{pair}, seed {SEED}"
    assert {"param", "momentum", "variance", "ecc"} <= {n for c in CASES for n in drawn(c)[0]}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_is_bit_equal(case: Case) -> None:
    """What is stored, and the float32 numbers before: codes of 8 bits hide most errors of them."""
    state, grad = drawn(case)
    given, arithmetic = case.hyperparameters, ARITHMETICS[case.arithmetic]
    want = oracle_step.advance(state, grad, given, arithmetic)
    got = advance(state, grad, given, arithmetic)
    shown = shown_elements(state, grad)
    numbers = {"param": [x.theta for x in want]}
    numbers |= {"momentum": [x.m for x in want if x.m]} if got.momentum is not None else {}
    numbers |= {"variance": [x.v for x in want if x.v]} if got.variance is not None else {}
    assert [*numbers] == ["param", *given.moments()]
    for name, exact in numbers.items():
        patterns = [encode(x, FP32) for x in exact]
        found = differences(bits_of(getattr(got, name), FP32), patterns, shown)
        assert found == [], f"{name} in float32, seed {SEED}"
    stored = contents(step(state, grad, given, arithmetic))
    expected = oracle_step.store(want, state, arithmetic)
    assert stored.keys() == expected.keys() == state.keys()
    for name, values in expected.items():
        places = shown if len(values) == len(shown) else range(len(values))
        assert differences(stored[name], values, places) == [], f"{name}, seed {SEED}"


def shown_elements(state: State, grad: torch.Tensor) -> list[str]:
    columns = contents({**state, "grad": grad})
    return [
        f"element {i}: "
        + ", ".join(
            f"{name} {values[i // GROUP if name.endswith('_scales') else i]:#x}"
            for name, values in columns.items()
        )
        for i in range(len(grad))
    ]


SHOWS_IN = {
    "high_floor": {"momentum", "momentum_scales", "variance", "variance_scales"},
    "ignore_nan": {"momentum", "momentum_scales", "variance", "variance_scales"},
}
"""Where a switch of storing may show; any other may show anywhere."""


@pytest.mark.parametrize(
    "name", ["fused", "reciprocal", "float32_scalars", "distributed", "kernel", *SHOWS_IN]
)
def test_each_switch_changes_some_step(name: str) -> None:
    """Else the cases above would not tell it from the paper's arithmetic."""
    changed: set[str] = set()
    for case in CASES:
        if case.arithmetic == name:
            state, grad = drawn(case)
            mine, paper = (
                contents(step(state, grad, case.hyperparameters, arithmetic))
                for arithmetic in (ARITHMETICS[name], PAPER)
            )
            changed |= {key for key in mine if mine[key] != paper[key]}
    assert changed
    assert changed <= SHOWS_IN.get(name, changed)


def near_ties() -> Advanced:
    """Numbers that are at or by ties of their codes, which the cases above hardly have.

    A group's maximum is 1. A weight is too small for float16: all of it is its correction.
    """
    m, v, theta = [], [], []
    for k in range(0, 127, 2):
        for sign in (-1, 1):
            y = Fraction(2 * k + 1, 254)
            m.append(sign * y / (2 - y))
            v.append(Fraction(4 * k + sign + 2, 510) ** 2)
            theta.append(sign * Fraction(512 * k + 1, 2 * INT16.max_code) / (1 << 25))
    return Advanced(*(in_groups(values) for values in (theta, m, v)))


def in_groups(values: Sequence[Fraction]) -> torch.Tensor:
    """A 1 before every 31 of the float32 nearest those values, and the neighbours of each."""
    patterns = [encode(oracle_step.float32(x), FP32) + d for x in values for d in (-1, 0, 1)]
    one = encode(oracle.ONE, FP32)
    groups = [[one, *patterns[i : i + GROUP - 1]] for i in range(0, len(patterns), GROUP - 1)]
    return tensor_of([bits for group in groups for bits in group], FP32)


ROUNDED = {
    "paper": PAPER,
    "half_away": Arithmetic(rounding=Rounding.HALF_AWAY),
    "half_up": Arithmetic(rounding=Rounding.HALF_UP),
    "corrections_even": Arithmetic(Rounding.HALF_UP, correction_rounding=Rounding.NEAREST_EVEN),
    "corrections_up": Arithmetic(Rounding.HALF_AWAY, correction_rounding=Rounding.HALF_UP),
    "corrections_away": Arithmetic(correction_rounding=Rounding.HALF_AWAY),
    "fused": Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=True),
    "kernel": ARITHMETICS["kernel"],
}


def test_ties_are_stored_as_each_rounding_has_them() -> None:
    advanced = near_ties()
    elements = [
        oracle_step.Element(*x)
        for x in zip(*map(oracle_step.numbers, vars(advanced).values()), strict=True)
    ]
    like = {
        "param": torch.zeros(1, dtype=torch.float16),
        "ecc": torch.zeros(1, dtype=torch.int16),
        "momentum": torch.zeros(1, dtype=torch.int8),
        "momentum_scales": torch.zeros(1, dtype=torch.float16),
        "variance": torch.zeros(1, dtype=torch.uint8),
        "variance_scales": torch.zeros(1, dtype=torch.float16),
    }
    stored = {}
    for name, arithmetic in ROUNDED.items():
        stored[name] = contents(store(advanced, like, arithmetic))
        want = oracle_step.store(elements, like, arithmetic)
        assert stored[name].keys() == want.keys()
        for key, values in want.items():
            assert differences(stored[name][key], values, range(len(values))) == [], (name, key)
    # Each was told apart from each; codes of the variance have no sign to tell two by.
    for key in ("momentum", "ecc"):
        assert len({tuple(stored[n][key]) for n in ("paper", "half_away", "half_up")}) == 3, key
    assert stored["paper"]["variance"] != stored["half_up"]["variance"]
    for own, same_as in (("even", "paper"), ("up", "half_up"), ("away", "half_away")):
        assert stored[f"corrections_{own}"]["ecc"] == stored[same_as]["ecc"]


@pytest.mark.parametrize("function", [step, advance, read_param, read_moment, store])
def test_the_literal_paper_is_the_default(function: Callable[..., Any]) -> None:
    assert inspect.signature(function).parameters["arithmetic"].default is PAPER


def advanced_weights(
    state: State, grad: torch.Tensor, given: Hyperparameters, arithmetic: str
) -> list[str]:
    """Where the weights in float32 are not the oracle's."""
    switches = ARITHMETICS[arithmetic]
    got = bits_of(advance(state, grad, given, switches).param, FP32)
    want = [encode(x.theta, FP32) for x in oracle_step.advance(state, grad, given, switches)]
    return differences(got, want, shown_elements(state, grad))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("ecc", [torch.int8, torch.int16])
@pytest.mark.parametrize(("narrow", "pattern"), [(FP16, 0), (BF16, 0), (BF16, 0x0480)])
def test_a_weight_that_is_mostly_correction_is_read_bit_equal(
    narrow: FloatFormat, pattern: int, ecc: torch.dtype, arithmetic: str
) -> None:
    """Of 0 and of the smallest weights a correction is all there is, or subnormal."""
    codes = torch.arange(-127, 128).to(ecc)
    state = {"param": tensor_of([pattern] * codes.numel(), narrow), "ecc": codes}
    still = hyper("sgd", lr=0.0, momentum=0.0)
    grad = torch.zeros_like(state["param"])
    assert advanced_weights(state, grad, still, arithmetic) == []


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(
    "given",
    [
        hyper("adamw", lr=0.02, weight_decay=0.1, initial_lr=0.05),
        hyper("sgdw", lr=0.3, weight_decay=0.1, initial_lr=0.3),
        hyper("lion", lr=0.3, weight_decay=0.1, initial_lr=0.3),
    ],
    ids=lambda given: given.optimizer.value,
)
def test_a_decay_of_its_own_is_bit_equal(given: Hyperparameters, arithmetic: str) -> None:
    """Where the learning rates' quotient is 1, or has no short expansion."""
    state, grad = ordinary(given, 200)
    assert advanced_weights(state, grad, given, arithmetic) == []


# ---- What the docstrings say of particular values ------------------------------------------


def one_step(
    given: Hyperparameters, param: float, grad: float, *moments: float, **switches: Any
) -> list[float]:
    """Of a single float32 weight with plain moments: the weight and the moments after."""
    state = {"param": torch.tensor([param])}
    state |= {n: torch.tensor([x]) for n, x in zip(given.moments(), moments, strict=True)}
    stored = step(state, torch.tensor([grad]), given, Arithmetic(**switches))
    return [x.item() for x in stored.values()]


BY_HAND: dict[str, tuple[Hyperparameters, tuple[float, ...], list[float]]] = {
    # m = 1/2 4 + 1/2 2 = 3; v = 3/4 4 + 1/4 4 = 4; m / (3/4) = 4; v / (7/16) = 64/7.
    "adam": (
        hyper("adam", lr=1.0, beta1=0.5, beta2=0.75, eps=0.0, step=2),
        (8.0, 2.0, 4.0, 4.0),
        [8 - 4 / (64 / 7) ** 0.5, 3.0, 4.0],
    ),
    # At t = 1 from zero moments u = g / (|g| + eps) = 2 / (2 + 2).
    "adam's first": (
        hyper("adam", lr=1.0, beta1=0.5, beta2=0.75, eps=2.0),
        (8.0, 2.0, 0.0, 0.0),
        [7.5, 1.0, 1.0],
    ),
    # g = 2 + 1/4 8 = 4.
    "adam coupled": (
        hyper("adam", lr=1.0, beta1=0.5, beta2=0.75, eps=4.0, weight_decay=0.25),
        (8.0, 2.0, 0.0, 0.0),
        [7.5, 2.0, 4.0],
    ),
    "adamw decoupled": (
        hyper("adamw", lr=0.5, beta1=0.5, beta2=0.75, eps=2.0, weight_decay=0.25),
        (8.0, 2.0, 0.0, 0.0),
        [8 - 0.5 * (0.5 + 2.0), 1.0, 1.0],
    ),
    # The weight loses 1/4 (1/2 / 2) of itself, and 1/2 u.
    "adamw decoupled from lr": (
        hyper("adamw", lr=0.5, beta1=0.5, beta2=0.75, eps=2.0, weight_decay=0.25, initial_lr=2.0),
        (8.0, 2.0, 0.0, 0.0),
        [8 - 0.25 - 0.5, 1.0, 1.0],
    ),
    # m = 3/4 4 + 1/2 2 = 4.
    "sgd": (hyper("sgd", lr=0.5, momentum=0.75, dampening=0.5), (8.0, 2.0, 4.0), [6.0, 4.0]),
    # u = 2 + 3/4 4 = 5.
    "sgd nesterov": (
        hyper("sgd", lr=0.5, momentum=0.75, dampening=0.5, nesterov=True),
        (8.0, 2.0, 4.0),
        [5.5, 4.0],
    ),
    "sgd plain": (hyper("sgd", lr=0.5, momentum=0.0, dampening=0.5), (8.0, 2.0), [7.0]),
    "sgd plain coupled": (
        hyper("sgd", lr=0.5, momentum=0.0, weight_decay=0.25),
        (8.0, 2.0),
        [8 - 0.5 * (2 + 2)],
    ),
    "sgdw": (
        hyper("sgdw", lr=0.5, momentum=0.75, dampening=0.5, weight_decay=0.25),
        (8.0, 2.0, 4.0),
        [8 - 0.5 * (4 + 2), 4.0],
    ),
    # 3/4 4 - 1/4 8 = 1 is positive; 1/4 4 - 3/4 8 = -5.
    "lion": (
        hyper("lion", lr=0.5, beta1=0.75, beta2=0.25, weight_decay=0.25),
        (8.0, -8.0, 4.0),
        [8 - 0.5 * (1 + 2), -5.0],
    ),
}


@pytest.mark.parametrize("distributed", [False, True], ids=["", "distributed"])
@pytest.mark.parametrize(("given", "before", "after"), BY_HAND.values(), ids=BY_HAND)
def test_steps_by_hand(
    given: Hyperparameters, before: tuple[float, ...], after: list[float], distributed: bool
) -> None:
    got = one_step(given, *before, distributed_update=distributed)
    # All but Adam's root is a number that float32 has.
    assert got == pytest.approx(after, rel=2.0**-22, abs=0)
    assert got[1:] == after[1:]


def test_the_sign_of_lion_is_of_the_sum_as_it_is_rounded() -> None:
    """3/4 m + 1/4 g is just below 0, and 0 where the products are rounded."""
    given = hyper("lion", lr=0.5, beta1=0.75)
    before = (1.0, -(3 + 2.0**-21), 1 + 2.0**-23)
    assert one_step(given, *before)[0] == 1.0
    assert one_step(given, *before, fused_multiply_add=True)[0] == 1.5


def test_a_fused_update_is_rounded_once() -> None:
    given = hyper("sgd", lr=2.0**-12 * (1 + 2.0**-18), momentum=0.0)
    before = (1 + 2.0**-23, -(2.0**-12) * (1 - 2.0**-18))
    # The exact sum is just below the middle to the next float32; its product rounds up to it.
    assert one_step(given, *before, fused_multiply_add=True) == [1 + 2.0**-23]
    assert one_step(given, *before) == [1 + 2 * 2.0**-23]


@pytest.mark.parametrize("distributed", [False, True], ids=["", "distributed"])
def test_without_an_epsilon_no_variance_divides_by_zero(distributed: bool) -> None:
    given = hyper("adam", eps=0.0)
    still = one_step(given, 1.0, 0.0, 0.0, 0.0, distributed_update=distributed)
    assert math.isnan(still[0])
    moving = one_step(given, 1.0, 0.0, 1.0, 0.0, distributed_update=distributed)
    assert moving[0] == -math.inf


def test_a_constant_that_is_zero_still_multiplies() -> None:
    assert math.isnan(one_step(hyper("adam", beta1=0.0), 1.0, 1.0, math.inf, 1.0)[1])
    assert math.isnan(one_step(hyper("sgd", lr=0.0, momentum=0.0), 1.0, math.inf)[0])


@pytest.mark.parametrize("grad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("optimizer", [o for o in Optimizer if o is not Optimizer.LION])
def test_a_gradient_that_is_not_finite_spreads(optimizer: Optimizer, grad: float) -> None:
    """To its weight and to its groups' scales, and to nothing else."""
    given = Hyperparameters(optimizer, weight_decay=0.1)
    state, gradients = ordinary(given, 70)
    gradients[33] = grad
    stored = step(state, gradients, given)
    assert stored["param"].isfinite().logical_not().nonzero().tolist() == [[33]]
    for moment in given.moments():
        wrong = stored[f"{moment}_scales"].isfinite().logical_not()
        assert wrong.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("grad", "moved"), [(math.inf, -1.0), (-math.inf, 1.0), (math.nan, 0.0), (0.0, 0.0)]
)
def test_the_sign_of_a_gradient_that_is_not_finite_is_finite(grad: float, moved: float) -> None:
    """Lion's weight moves by its learning rate at most; only the momentum shows what it was."""
    given = hyper("lion", lr=0.25)
    weight, momentum = one_step(given, 1.0, grad, 0.0)
    assert weight == 1.0 + 0.25 * moved
    assert math.isfinite(momentum) == math.isfinite(grad)


def test_no_decay_does_not_multiply_an_infinite_weight() -> None:
    for optimizer in Optimizer:
        given = Hyperparameters(optimizer)
        weight = one_step(given, math.inf, 1.0, *[1.0] * len(given.moments()))[0]
        assert weight == math.inf, optimizer


# ---- What a step takes and gives -----------------------------------------------------------


def ordinary(given: Hyperparameters, size: int) -> tuple[State, torch.Tensor]:
    """bfloat16 with int8 corrections and quantized moments, and a gradient."""
    generator = torch.Generator().manual_seed(SEED)

    def codes(dtype: torch.dtype) -> torch.Tensor:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max + 1, (size,), generator=generator).to(dtype)

    def values(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(count, generator=generator).to(dtype)

    state = {"param": values(size, torch.bfloat16), "ecc": codes(torch.int8)}
    for moment in given.moments():
        state[moment] = codes(torch.int8 if moment == "momentum" else torch.uint8)
        state[f"{moment}_scales"] = values(-(-size // GROUP), torch.float16).abs()
    return state, values(size, torch.bfloat16)


def test_a_step_changes_nothing_that_it_is_given() -> None:
    """And gives tensors of the same names, dtypes and shapes, in memory of their own."""
    for case in CASES:
        state, grad = drawn(case)
        given = {**state, "grad": grad}
        before = contents(given)
        stored = step(state, grad, case.hyperparameters, ARITHMETICS[case.arithmetic])
        assert contents(given) == before, case
        assert stored.keys() == state.keys()
        for name, x in stored.items():
            assert (x.dtype, x.shape) == (state[name].dtype, state[name].shape), f"{case}, {name}"
        shared = {x.data_ptr() for x in given.values()} & {x.data_ptr() for x in stored.values()}
        assert not shared, case


@pytest.mark.parametrize("name", HYPERS)
def test_threads_change_no_bit(name: str) -> None:
    state, grad = ordinary(HYPERS[name], CHUNK + 37)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(step(state, grad, HYPERS[name]))
    finally:
        torch.set_num_threads(before)
    for key, x in results[0].items():
        assert torch.equal(*(r[key].view(integer(x)) for r in results)), f"{key}, seed {SEED}"


def integer(x: torch.Tensor) -> torch.dtype:
    """The dtype of a tensor's bits, whose NaN are equal to themselves."""
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]


@pytest.mark.parametrize("name", HYPERS)
def test_groups_are_stepped_each_by_itself(name: str) -> None:
    """Whatever of a tensor's elements are done at once, as vectors or one by one."""
    state, grad = ordinary(HYPERS[name], 5 * GROUP + 7)
    whole = contents(step(state, grad, HYPERS[name]))
    parts: dict[str, list[int]] = {key: [] for key in whole}
    for i in range(6):
        part = {
            key: x[i : i + 1] if key.endswith("_scales") else x[i * GROUP : (i + 1) * GROUP]
            for key, x in {**state, "grad": grad}.items()
        }
        gradient = part.pop("grad")
        for key, values in contents(step(part, gradient, HYPERS[name])).items():
            parts[key] += values
    assert parts == whole


@pytest.mark.parametrize("name", HYPERS)
def test_nothing_in_nothing_out(name: str) -> None:
    state, grad = ordinary(HYPERS[name], 0)
    stored = step(state, grad, HYPERS[name])
    assert stored.keys() == state.keys()
    assert {x.numel() for x in stored.values()} == {0}


# ---- check_state ---------------------------------------------------------------------------

N = 40
OTHER_DTYPE = {
    "param": torch.float64,
    "grad": torch.float32,
    "ecc": torch.uint8,
    "momentum": torch.uint8,
    "momentum_scales": torch.bfloat16,
    "variance": torch.int8,
    "variance_scales": torch.float32,
}
NEEDS = {
    "param": "bfloat16 or float16 or float32",
    "grad": "bfloat16",
    "ecc": "int8 or int16",
    "momentum": "int8",
    "momentum_scales": "float16",
    "variance": "uint8",
    "variance_scales": "float16",
}


def check(given: State, hyperparameters: Hyperparameters, message: str) -> None:
    """Both the check and a step say that, and nothing else."""
    state = dict(given)
    grad = state.pop("grad")
    for checks in (check_state, step):
        with pytest.raises(ValueError, match=r".") as caught:
            checks(state, grad, hyperparameters)
        assert str(caught.value) == message


def right(given: Hyperparameters) -> State:
    state, grad = ordinary(given, N)
    check_state(state, grad, given)
    return {**state, "grad": grad}


@pytest.mark.parametrize("name", NEEDS)
def test_a_tensor_of_another_dtype_is_named(name: str) -> None:
    given = hyper("adamw")
    state = right(given)
    state[name] = state[name].to(OTHER_DTYPE[name])
    dtype = str(OTHER_DTYPE[name]).removeprefix("torch.")
    param = dtype if name == "param" else "bfloat16"
    size = len(state[name])
    check(
        state,
        given,
        f"{name} is {dtype} of shape ({size},), but a {param} param of shape ({N},) needs "
        f"{NEEDS[name]} of shape ({size},)",
    )


@pytest.mark.parametrize("how", [lambda x: x[:-1], lambda x: x[:, None]], ids=["short", "column"])
@pytest.mark.parametrize("name", [name for name in NEEDS if name != "param"])
def test_a_tensor_of_another_shape_is_named(
    name: str, how: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    given = hyper("adamw")
    state = right(given)
    size = len(state[name])
    state[name] = how(state[name])
    dtype = str(state[name].dtype).removeprefix("torch.")
    check(
        state,
        given,
        f"{name} is {dtype} of shape {tuple(state[name].shape)}, but a bfloat16 param of shape "
        f"({N},) needs {NEEDS[name]} of shape ({size},)",
    )


def test_a_param_that_is_not_flat_is_named() -> None:
    given = hyper("adamw")
    state = right(given)
    state["param"] = state["param"].reshape(5, 8)
    check(
        state,
        given,
        "param is bfloat16 of shape (5, 8), but a bfloat16 param of shape (5, 8) needs "
        "bfloat16 or float16 or float32 of shape (40,)",
    )


@pytest.mark.parametrize("name", ["param", "momentum", "variance"])
def test_a_missing_tensor_is_named(name: str) -> None:
    given = hyper("adamw")
    state = right(given)
    del state[name]
    check(state, given, f"the state's {name} is missing")


@pytest.mark.parametrize("name", ["momentum", "variance"])
def test_codes_without_scales_are_not_values(name: str) -> None:
    given = hyper("adamw")
    state = right(given)
    del state[f"{name}_scales"]
    check(
        state,
        given,
        f"{name} is {NEEDS[name]} of shape (40,), but a bfloat16 param of shape (40,) needs "
        "bfloat16 of shape (40,)",
    )


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (hyper("sgd"), "variance"),
        (hyper("sgdw"), "variance_scales"),
        (hyper("lion"), "variance"),
        (hyper("sgd", momentum=0.0), "momentum"),
        (hyper("sgdw", momentum=0.0), "momentum_scales"),
        (hyper("adamw"), "velocity"),
    ],
)
def test_a_superfluous_tensor_is_named(given: Hyperparameters, name: str) -> None:
    state = right(given)
    state[name] = right(hyper("adamw")).get(name, torch.zeros(N))
    check(state, given, f"the state's {name} is none of {given.optimizer.value}'s")


def test_correction_codes_of_a_float32_weight_are_named() -> None:
    """The module has them "only with a master weight"; float32 needs none."""
    given = hyper("sgd", momentum=0.0)
    state = {
        "param": torch.zeros(N),
        "grad": torch.zeros(N),
        "ecc": torch.zeros(N, dtype=torch.int8),
    }
    check(state, given, "the state's ecc is none of a float32 param's")


# ---- Hyperparameters -----------------------------------------------------------------------

ALL_OPTIONS = {
    "step": 3,
    "lr": 0.25,
    "weight_decay": 0.125,
    "initial_lr": 0.5,
    "beta1": 0.75,
    "beta2": 0.875,
    "eps": 2.0**-20,
    "momentum": 0.625,
    "dampening": 0.375,
    "nesterov": True,
}
COMMON = ["optimizer", "step", "lr", "weight_decay", "initial_lr"]


@pytest.mark.parametrize(
    ("optimizer", "own", "moments"),
    [
        ("adam", ["beta1", "beta2", "eps"], ["momentum", "variance"]),
        ("adamw", ["beta1", "beta2", "eps"], ["momentum", "variance"]),
        ("sgd", ["momentum", "dampening", "nesterov"], ["momentum"]),
        ("sgdw", ["momentum", "dampening", "nesterov"], ["momentum"]),
        ("lion", ["beta1", "beta2"], ["momentum"]),
    ],
)
def test_options_and_moments_are_the_optimizers_own(
    optimizer: str, own: list[str], moments: list[str]
) -> None:
    given = hyper(optimizer, **ALL_OPTIONS)
    want = {"optimizer": optimizer, **ALL_OPTIONS}
    assert given.options() == {name: want[name] for name in [*COMMON, *own]}
    assert type(given.options()["optimizer"]) is str
    assert given.moments() == moments
    # Only SGD's momentum is that parameter.
    plain = replace(given, momentum=0.0)
    assert plain.moments() == ([] if optimizer in ("sgd", "sgdw") else moments)


# ---- Rounding real numbers to float32 ------------------------------------------------------


def around_float32(positive: Sequence[int]) -> Iterator[Fraction]:
    """Of each pattern its value, the middle to the next, and what is beside them by so little
    that float64 loses it: half of that would be decided by rounding twice."""
    for bits in positive:
        low, high = decode(bits, FP32), decode(bits + 1, FP32)
        gap = oracle.ulp(low.magnitude, FP32)
        assert not high.finite or high.exact - low.exact == gap
        for at in (low.exact, low.exact + gap / 2):
            yield from (at + side * gap / 2**k for side in (-1, 1) for k in (3, 31, 1100))
            yield at


def test_the_nearest_float32_is_that_of_the_exact_number() -> None:
    rng = random.Random(SEED)
    patterns = [bits for bits in landmarks(FP32) if bits < 0x7F800000][::3]
    patterns += [0, 1, 0x7F7FFFFF, *(rng.randrange(0x7F800000) for _ in range(100))]
    overflows = 0
    for exact in (s * x for x in around_float32(patterns) for s in (-1, 1)):
        want = oracle.round_exact(exact, FP32)
        if want.finite:
            assert nearest_float32(exact) == want.exact, f"{exact}, seed {SEED}"
        else:
            overflows += 1
            with pytest.raises(OverflowError):
                nearest_float32(exact)
    assert overflows > 0


@pytest.mark.parametrize(
    ("exact", "nearest"),
    [
        # One and half an ULP, and a little more: float64 has the middle for both.
        (1 + Fraction(1, 1 << 24), Fraction(1)),
        (1 + Fraction(1, 1 << 24) + Fraction(1, 1 << 80), 1 + Fraction(1, 1 << 23)),
        (1 + Fraction(3, 1 << 24), 1 + Fraction(1, 1 << 22)),
        (1 + Fraction(3, 1 << 24) - Fraction(1, 1 << 80), 1 + Fraction(1, 1 << 23)),
        (Fraction(1, 1 << 150), Fraction(0)),
        (Fraction(1, 1 << 150) + Fraction(1, 1 << 2000), Fraction(1, 1 << 149)),
        (Fraction(1, 1 << 2000), Fraction(0)),
        (Fraction(2**128 - 2**103) - Fraction(1, 1 << 2000), Fraction(2**128 - 2**104)),
        (Fraction(0), Fraction(0)),
    ],
)
def test_nearest_float32_by_hand(exact: Fraction, nearest: Fraction) -> None:
    assert nearest_float32(exact) == nearest
    assert nearest_float32(-exact) == -nearest


@pytest.mark.parametrize("exact", [2**128 - 2**103, 2**128, 10**39, 10**308, 2**1024, 10**400])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("more", [0, Fraction(1, 1 << 80)])
def test_what_is_beyond_float32_overflows(exact: int, sign: int, more: Fraction) -> None:
    with pytest.raises(OverflowError):
        nearest_float32(sign * (exact + more))


# ---- Constants -----------------------------------------------------------------------------

IN_BOTH = pytest.mark.parametrize("float32_first", [False, True], ids=["exact", "float32_first"])


def compare_constants(given: Hyperparameters, *, float32_first: bool) -> dict[str, tuple[Any, Any]]:
    """Where the constants are not the oracle's."""
    got = Constants.of(given, float32_first=float32_first)
    want = oracle_step.constants(given, float32_scalars=float32_first)
    assert [field.name for field in fields(got)] == list(want._fields)
    return {
        name: (mine, exact.exact)
        for (name, mine), exact in zip(vars(got).items(), want, strict=True)
        if type(mine) is not float or Fraction(mine) != exact.exact
    }


@IN_BOTH
@pytest.mark.parametrize("t", [1, 2, 3, 10, 57, 200, 1000])
def test_constants_are_rounded_from_the_exact_numbers(t: int, float32_first: bool) -> None:
    for given in HYPERS.values():
        found = compare_constants(replace(given, step=t), float32_first=float32_first)
        assert found == {}, given


@IN_BOTH
@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0**-24, 1e-5, 0.999999, 1 - 2.0**-25, 1 - 2.0**-53])
def test_constants_of_remarkable_betas(beta: float, float32_first: bool) -> None:
    """Ties of ``1 - beta^t`` are among them, and what is 1, or rounds to it."""
    for t in (1, 2, 24, 25, 26, 149, 150, 151, 300):
        for given in (hyper("adam", step=t, beta1=beta), hyper("adam", step=t, beta2=beta)):
            assert compare_constants(given, float32_first=float32_first) == {}, given


def test_float32_first_makes_other_constants() -> None:
    """Else the two would not be told apart above."""
    different = set()
    for given in HYPERS.values():
        exact, rounded = (Constants.of(given, float32_first=how) for how in (False, True))
        different |= {n for n, x in vars(exact).items() if x != vars(rounded)[n]}
    assert different == {"kept", "rest1", "bias1", "rest2", "bias2"}


@IN_BOTH
@pytest.mark.parametrize(
    "given",
    [
        hyper("sgdw", lr=0.3, weight_decay=0.7),
        hyper("adamw", lr=0.01, weight_decay=0.3, initial_lr=0.7),
        hyper("sgd", dampening=0.6),
    ],
    ids=["kept", "decay", "undamped"],
)
def test_what_is_made_of_other_hyperparameters_is_rounded_once(
    given: Hyperparameters, float32_first: bool
) -> None:
    """``float32_scalars`` is of the betas and of what is taken from 1 only."""
    assert compare_constants(given, float32_first=float32_first) == {}


def power_between(beta: float, t: int, digits: int = 700) -> tuple[Fraction, Fraction]:
    """Bounds of ``beta^t``, by squaring integers of so many bits, rounded down and rounded up."""
    one = 1 << digits
    exact = Fraction(beta) * one
    assert exact.denominator == 1
    low = high = one
    for bit in f"{t:b}":
        for factor in (None, int(exact)) if bit == "1" else (None,):
            low = low * (low if factor is None else factor) >> digits
            high = -(-high * (high if factor is None else factor) >> digits)
    return Fraction(low, one), Fraction(high, one)


def nearest(exact: Fraction) -> Fraction:
    return oracle.round_exact(exact, FP32).exact


@IN_BOTH
@pytest.mark.parametrize(
    ("beta", "t"),
    [
        (0.9, 10**4),
        (0.9, 10**6),
        (0.999, 10**4),
        (0.999, 10**6),
        (0.9999, 10**6),
        (0.9999999, 10**6),
        (0.9999999, 10**9),
        (0.999999999, 10**6),
        (0.999999999, 10**9),
        (1 - 2.0**-53, 10**9),
    ],
)
def test_constants_of_large_steps(beta: float, t: int, float32_first: bool) -> None:
    got = Constants.of(hyper("adam", step=t, beta1=beta, beta2=beta), float32_first=float32_first)
    base = nearest(Fraction(beta)) if float32_first else Fraction(beta)
    low, high = power_between(float(base), t)
    assert high - low < Fraction(1, 1 << 600)
    if float32_first:
        low, high = nearest(low), nearest(high)
    want = {nearest(1 - low), nearest(1 - high)}
    assert {Fraction(got.bias1), Fraction(got.bias2)} == want
    assert len(want) == 1


def test_constants_of_the_largest_step_take_no_time() -> None:
    """A configuration may ask for 2^30."""
    code = "; ".join(
        [
            "from flashcheck.optimizers import Constants, Hyperparameters, Optimizer",
            "made = Constants.of(Hyperparameters(Optimizer.ADAM, step=1 << 30))",
            "assert made.bias1 == made.bias2 == 1",
        ]
    )
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, timeout=5, check=True)


# ---- Against torch.optim, in float64 -------------------------------------------------------

U = 2.0**-24
"""A float32 operation, or a constant made float32, is off by this share of its result at most."""

UNROUNDED = {
    "adam": hyper("adam", lr=0.05, eps=0.1, beta1=0.8, beta2=0.95),
    "adam-decay": hyper("adam", lr=0.05, eps=0.1, weight_decay=0.1),
    "adam-later": hyper("adam", lr=0.05, eps=0.1, weight_decay=0.1, step=57),
    "adamw-decay": hyper("adamw", lr=0.05, eps=0.1, weight_decay=0.1),
    "adamw-later": hyper("adamw", lr=0.05, eps=0.1, weight_decay=0.1, step=57),
    "adamw-initial_lr": hyper("adamw", lr=0.05, eps=0.1, weight_decay=0.1, initial_lr=0.3),
    "sgd": hyper("sgd", lr=0.05, momentum=0.5),
    "sgd-plain-decay": hyper("sgd", lr=0.05, momentum=0.0, weight_decay=0.1),
    "sgd-nesterov-decay": hyper("sgd", lr=0.05, momentum=0.5, nesterov=True, weight_decay=0.1),
    "sgd-dampening-decay": hyper("sgd", lr=0.05, momentum=0.5, dampening=0.3, weight_decay=0.1),
    "sgdw-nesterov-decay": hyper("sgdw", lr=0.05, momentum=0.5, nesterov=True, weight_decay=0.1),
    "sgdw-plain-decay": hyper("sgdw", lr=0.05, momentum=0.0, weight_decay=0.1),
    "sgdw-initial_lr": hyper("sgdw", lr=0.05, momentum=0.5, weight_decay=0.1, initial_lr=0.3),
    "lion": hyper("lion", lr=0.05, beta1=0.9, beta2=0.95),
    "lion-decay": hyper("lion", lr=0.05, beta1=0.9, beta2=0.95, weight_decay=0.1),
}
TAKEN = 4
"""Steps, each from the state of the one before."""

LARGEST, WEIGHT = 5.0, 2.0
"""No gradient, moment or direction is larger; no weight is."""

ROUNDINGS = {"adam": 27, "adamw": 27, "sgd": 14, "sgdw": 14, "lion": 5}
"""How many roundings a step adds to a moment or a direction: each is off by ``U * LARGEST`` more.

SGD: the gradient takes 3 (a constant, a product, a sum), and twice where Nesterov's direction has
it twice; the momentum 5 (two constants, two products, a sum); the direction 3. The factors by which
later steps have them are 1 at most. Lion's momentum takes 5; its direction is exact, as it is the
sign of what is not near 0.

Adam, a step: the gradient 3, the momentum 5, all relative to ``1 - b1^t``, to which the weights of
its gradients sum. The variance, whose parts are positive, relative to itself: 6, and twice the
gradient's 3, which are 3 times that beside the least gradient; the root halves these 24. In the
last step the corrections take 2 and, halved, 2, the root 1, the sum with eps 2, the quotient 1. Of
20 a step and 7 more, each is of a quotient of 2.2 by 0.8 at most."""


def float64_bound(given: Hyperparameters, taken: int) -> tuple[float, float]:
    """How far a moment and a weight may be from exact ones after some steps.

    At step ``t`` the direction has the roundings of ``t`` steps. The decay takes 3 more and ``lr``
    2 of what is multiplied by ``lr``; the weight takes 3 of its own size a step. That coupled decay
    makes an error of a weight one of the next gradients adds less than as much again.
    """
    roundings = ROUNDINGS[given.optimizer.value]
    moved = sum(roundings * t + 5 for t in range(1, taken + 1)) * given.lr * LARGEST
    return U * roundings * taken * LARGEST, 2 * U * (moved + 3 * taken * WEIGHT)


class Exact(NamedTuple):
    """A start, float32, and the gradients that follow."""

    theta: torch.Tensor
    moments: dict[str, torch.Tensor]
    gradients: list[torch.Tensor]


def start(given: Hyperparameters) -> Exact:
    """Gradients, and what the moments are means of, from 1 to 2 in size."""
    generator = torch.Generator().manual_seed(SEED)

    def values() -> torch.Tensor:
        size = 1 + torch.rand(200, generator=generator)
        return size * (1 - 2 * torch.randint(0, 2, (200,), generator=generator))

    moments = {}
    for moment in given.moments():
        moments[moment] = values() if moment == "momentum" else values().square()
        if given.optimizer.adaptive:
            beta = given.beta1 if moment == "momentum" else given.beta2
            moments[moment] *= 1 - beta ** (given.step - 1)
    return Exact(values() / 2, moments, [values() for _ in range(TAKEN)])


def by_torch(given: Hyperparameters, begun: Exact) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    weight = torch.nn.Parameter(begun.theta.double())
    moments = {name: x.double() for name, x in begun.moments.items()}
    decay, lost = given.weight_decay, 0.0
    if given.initial_lr is not None:
        decay /= given.initial_lr
    if given.optimizer is Optimizer.SGDW:
        # torch has none: SGD, after the weight has lost its share.
        decay, lost = 0.0, given.lr * decay
    optimizer: torch.optim.Optimizer
    if given.optimizer.adaptive:
        kind = torch.optim.Adam if given.optimizer is Optimizer.ADAM else torch.optim.AdamW
        betas = given.beta1, given.beta2
        optimizer = kind([weight], lr=given.lr, betas=betas, eps=given.eps, weight_decay=decay)
        names = {"momentum": "exp_avg", "variance": "exp_avg_sq"}
        optimizer.state[weight]["step"] = torch.tensor(given.step - 1.0)
    else:
        optimizer = torch.optim.SGD(
            [weight],
            lr=given.lr,
            momentum=given.momentum,
            dampening=given.dampening,
            weight_decay=decay,
            nesterov=given.nesterov,
        )
        # Had it none, torch would start it as the first gradient, not dampened.
        names = {"momentum": "momentum_buffer"}
    optimizer.state[weight].update({names[name]: x for name, x in moments.items()})
    for gradient in begun.gradients:
        weight.grad = gradient.double()
        weight.data *= 1 - lost
        optimizer.step()
    return weight.data, {name: optimizer.state[weight][names[name]] for name in moments}


def lion(given: Hyperparameters, begun: Exact) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    theta, m = begun.theta.double(), begun.moments["momentum"].double()
    for gradient in begun.gradients:
        g = gradient.double()
        mean = given.beta1 * m + (1 - given.beta1) * g
        assert mean.abs().min() > 0.1
        theta = theta - given.lr * (mean.sign() + given.weight_decay * theta)
        m = given.beta2 * m + (1 - given.beta2) * g
    return theta, {"momentum": m}


@pytest.mark.parametrize("arithmetic", ["paper", "fused", "distributed", "distributed_fused"])
@pytest.mark.parametrize("name", UNROUNDED)
def test_steps_are_near_those_of_torch_in_float64(name: str, arithmetic: str) -> None:
    given = UNROUNDED[name]
    begun = start(given)
    assert max(x.abs().max().item() for x in begun.gradients) + given.weight_decay * WEIGHT <= 2.2
    state = {"param": begun.theta, **begun.moments}
    for t, gradient in enumerate(begun.gradients, given.step):
        state = step(state, gradient, replace(given, step=t), ARITHMETICS[arithmetic])
    truth = lion if given.optimizer is Optimizer.LION else by_torch
    theta, moments = truth(given, begun)
    moment_bound, weight_bound = float64_bound(given, TAKEN)
    assert moments.keys() == set(given.moments())
    assert theta.abs().max() <= WEIGHT
    # The bound is no more than a share of a thousand of what is bounded.
    assert (theta - begun.theta.double()).abs().median() > 1000 * weight_bound
    assert (state["param"].double() - theta).abs().max().item() <= weight_bound, f"seed {SEED}"
    for key, x in moments.items():
        assert x.abs().max() <= LARGEST
        off = (state[key].double() - x).abs().max().item()
        assert off <= moment_bound, f"{key}, seed {SEED}"
