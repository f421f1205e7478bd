"""Each derived bound, attacked: no kernel within the operations' tolerances ever leaves it.

A kernel is simulated with float32 results at every stage, each as far from the exact result of that
operation as its tolerance allows, in every combination of directions and at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch

from flashcheck.compare import bounds
from flashcheck.compare.bounds import Decision, OperationBounds
from flashcheck.reference.arithmetic import fma
from flashcheck.reference.splitting import log2_half_ulp

IEEE = OperationBounds(division_ulp=0.5, square_root_ulp=0.5)
GPU = OperationBounds(division_ulp=2.0, square_root_ulp=1.0)
COARSE = OperationBounds(division_ulp=3.5, square_root_ulp=3.0)
ALL = pytest.mark.parametrize("operations", [IEEE, GPU, COARSE], ids=["ieee", "gpu", "coarse"])

# One stage's choice: -1 the least float32 that its tolerance allows, 1 the greatest, 0 any.
Push = float
SIGNS: tuple[Push, ...] = (-1.0, 0.0, 1.0)


def spacing(exact: torch.Tensor) -> torch.Tensor:
    """The float32 ULP of exact numbers, by NumPy, as float64."""
    away = np.abs(exact.numpy()).astype(np.float64)
    exponent = np.frexp(away)[1] - 1
    return torch.from_numpy(np.ldexp(1.0, np.maximum(exponent, -126) - 23))


def within(exact: torch.Tensor, ulps: float, push: Push, seed: int = 0) -> torch.Tensor:
    """A float32 at most ``ulps`` ULP from an exact float64, pushed to either end."""
    if push == 0:
        generator = torch.Generator().manual_seed(seed)
        share = torch.rand(exact.shape, generator=generator, dtype=torch.float64) * 2 - 1
    else:
        share = torch.full_like(exact, push)
    reach = ulps * spacing(exact)
    made = (exact + share * reach).float()
    # Rounding to float32 may leave the tolerance: then step back toward the exact number.
    for _ in range(2):
        past = (made.double() - exact).abs() > reach
        made = torch.where(past, torch.nextafter(made, exact.float()), made)
    nearest = exact.float()
    # Of zero every operation here is exact, on any hardware.
    keep = ((made.double() - exact).abs() > reach) | (exact == 0)
    return torch.where(keep, nearest, made)


def divide(a: torch.Tensor, b: torch.Tensor, ulps: float, push: Push, seed: int) -> torch.Tensor:
    return within(a.double() / b.double(), ulps, push, seed)


ROUNDINGS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "nearest even": lambda m, n: (m * n).round(),
    "half up": lambda m, n: (m * n + 0.5).floor(),
    "half away": lambda m, n: torch.copysign(((m * n).abs() + 0.5).floor(), m),
    "fused half up": lambda m, n: fma(m, torch.full_like(m, n), torch.full_like(m, 0.5)).floor(),
}


def product(m: torch.Tensor, n: int) -> torch.Tensor:
    """The value before it is rounded, as float64."""
    return (m.abs() * n).double()


def pushes(stages: int) -> Iterator[tuple[Push, ...]]:
    return itertools.product(SIGNS, repeat=stages)


def test_the_simulated_operations_keep_their_tolerance_and_use_it() -> None:
    exact = torch.logspace(-30, 30, 20_001, dtype=torch.float64)
    for ulps in (0.5, 1.0, 2.0, 3.5):
        for push in SIGNS:
            off = (within(exact, ulps, push).double() - exact) / spacing(exact)
            assert float(off.abs().max()) <= ulps
            if push:
                assert float((off * push).max()) > ulps - 0.01
                assert ulps == 0.5 or float((off * push).min()) > ulps - 1.01
            else:
                assert off.min() < -ulps / 2 < ulps / 2 < off.max()


# --- Codes of momentum and variance -----------------------------------------------------------


def near_boundaries(n: int, softsign: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 pairs (x, absmax) whose decision value lies around a boundary, as near as can be."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.arange(0, n, dtype=torch.float64).repeat_interleave(64)
    scale = torch.exp2(torch.rand(codes.shape, generator=generator) * 30 - 15)
    target = (codes + 0.5) / n
    normalised = target / (2 - target) if softsign else target
    x = (normalised * scale.double()).float()
    steps = torch.randint(-6, 7, x.shape, generator=generator, dtype=torch.int32)
    return (x.view(torch.int32) + steps).view(torch.float32), scale


def momentum(x: torch.Tensor, s: torch.Tensor, d: float, push: tuple[Push, ...]) -> torch.Tensor:
    """The companded value, two divisions of it pushed."""
    normalised = divide(x, s, d, push[0], 1)
    return divide(2 * normalised, 1 + normalised.abs(), d, push[1], 2)


def linear(x: torch.Tensor, s: torch.Tensor, d: float, push: tuple[Push, ...]) -> torch.Tensor:
    return divide(x, s, d, push[0], 1)


@ALL
@pytest.mark.parametrize("softsign", [True, False])
def test_no_momentum_code_leaves_its_bound(operations: OperationBounds, softsign: bool) -> None:
    x, s = near_boundaries(127, softsign, 5)
    x = torch.cat([x, -x])
    s = torch.cat([s, s])
    decision = bounds.code_decision(
        x, s.double(), 127, sqrt=False, softsign=softsign, operations=operations
    )
    made = momentum if softsign else linear
    crossed = 0
    farthest = torch.zeros(())
    literal = made(x, s, 0.5, (1.0, 1.0))
    for push in pushes(2 if softsign else 1):
        m = made(x, s, operations.division_ulp, push)
        for name, rounding in ROUNDINGS.items():
            codes = rounding(m, 127).clamp(-127, 127)
            assert bool(decision.allows(codes).all()), (name, push)
            crossed += int((codes != (literal * 127).round()).sum())
        off = (product(m, 127) - decision.exact.abs()).abs()
        farthest = torch.maximum(farthest, (off / decision.error).max())
    assert crossed > 1000
    assert farthest <= 1
    # Nor is it loose: a fifth that nobody reaches is what independent worst cases cost.
    assert farthest > 1 / 3


@ALL
def test_no_variance_code_leaves_its_bound(operations: OperationBounds) -> None:
    root, s = near_boundaries(255, False, 6)
    v, largest = root.square(), s.square()
    exact_divisor = largest.double().sqrt()
    decision = bounds.code_decision(
        v, exact_divisor, 255, sqrt=True, softsign=False, operations=operations
    )
    crossed, farthest = 0, torch.zeros(())
    literal = (v.double().sqrt().float() / exact_divisor.float() * 255).round()
    for push in pushes(3):
        r = operations.square_root_ulp
        top = within(v.double().sqrt(), r, push[0], 3)
        bottom = within(exact_divisor, r, push[1], 4)
        m = divide(top, bottom, operations.division_ulp, push[2], 5)
        for name, rounding in ROUNDINGS.items():
            codes = rounding(m, 255).clamp(0, 255)
            assert bool(decision.allows(codes).all()), (name, push)
            crossed += int((codes != literal).sum())
        off = (product(m, 255) - decision.exact).abs()
        farthest = torch.maximum(farthest, (off / decision.error).max())
    assert crossed > 1000
    assert 1 / 3 < farthest <= 1


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({"sqrt": False, "softsign": True}, 127),
        ({"sqrt": False, "softsign": False}, 127),
        ({"sqrt": True, "softsign": False}, 255),
    ],
)
def test_a_code_two_apart_is_never_allowed(options: dict[str, bool], n: int) -> None:
    x = torch.rand(50_000, generator=torch.Generator().manual_seed(3)).clamp(min=1e-6)
    decision = bounds.code_decision(
        x, torch.ones(len(x), dtype=torch.float64), n, operations=COARSE, **options
    )
    nearest = decision.exact.round()
    assert decision.allows(nearest).all()
    for step in (-2, 2):
        assert not decision.allows(nearest + step).any()
    off = (decision.exact - nearest).abs()
    for step in (-1, 1):
        allowed = decision.allows(nearest + step)
        assert not allowed[off < 0.49].any()
        # Only on the exact number's own side of the nearest code.
        assert not allowed[(decision.exact - nearest) * step < 0].any()


@pytest.mark.parametrize("inside", [True, False])
def test_a_code_is_allowed_up_to_the_bound_and_not_past_it(inside: bool) -> None:
    exact = torch.arange(1, 100, dtype=torch.float64) + 0.5
    error = torch.full_like(exact, 1e-5)
    shift = 0.9e-5 if inside else 1.1e-5
    decision = Decision(exact - shift, error)
    assert bool(decision.allows(exact + 0.5).all()) is inside
    assert bool(decision.allows(exact + 0.5).any()) is inside
    far = decision.boundary_distance(exact + 0.5, exact - 0.5)
    assert ((far <= decision.bound_ulp()) == inside).all()


@pytest.mark.parametrize("exact", [float("nan"), float("inf"), -float("inf")])
def test_nothing_is_allowed_of_an_exact_number_that_is_not_finite(exact: float) -> None:
    number = torch.tensor([exact], dtype=torch.float64)
    for error in (0.0, 1.0, float("inf"), float("nan")):
        decision = Decision(number, torch.tensor([error], dtype=torch.float64))
        for value in (0.0, 127.0, float("inf"), float("nan"), exact):
            given = torch.tensor([value])
            assert not decision.allows(given).any()
            assert not decision.allows_value(given).any()
            assert not bounds.rounds_to_half(decision, given.half().abs()).any()


# --- Dequantized values -----------------------------------------------------------------------


def half_scales() -> torch.Tensor:
    """Float16 of every exponent, subnormals, the least and the greatest."""
    special = torch.tensor([1, 2, 3, 0x3FF, 0x400, 0x401, 0x3C00, 0x7BFF], dtype=torch.int16)
    drawn = torch.randint(
        1, 0x7C00, (500,), dtype=torch.int16, generator=torch.Generator().manual_seed(1)
    )
    return torch.cat([special, drawn]).view(torch.float16)


@ALL
@pytest.mark.parametrize(
    ("signed", "sqrt", "softsign"),
    [(True, False, True), (True, False, False), (False, True, False), (False, True, True)],
)
def test_no_dequantized_value_leaves_its_bound(
    operations: OperationBounds, signed: bool, sqrt: bool, softsign: bool
) -> None:
    n = 127 if signed else 255
    every = torch.arange(-127 if signed else 0, n + 1)
    scales = half_scales()
    codes = every.repeat(len(scales))
    scale = scales.repeat_interleave(len(every))
    decision = bounds.dequantized(
        codes, scale, n, sqrt=sqrt, softsign=softsign, operations=operations
    )
    farthest = torch.zeros(())
    for push in pushes(2):
        d = operations.division_ulp
        value = divide(codes.float(), torch.full_like(codes, n).float(), d, push[0], 1)
        if softsign:
            value = divide(value, 2 - value.abs(), d, push[1], 2)
        value = value * scale.float()
        if sqrt:
            value = value * value
        assert bool(decision.allows_value(value).all()), push
        off = (value.double() - decision.exact).abs()
        nonzero = codes != 0
        farthest = torch.maximum(farthest, (off / decision.error)[nonzero].max())
    assert 1 / 3 < farthest <= 1


@pytest.mark.parametrize(("sqrt", "softsign"), [(False, True), (True, False)])
def test_a_dequantized_value_far_off_is_not_allowed(sqrt: bool, softsign: bool) -> None:
    n = 255 if sqrt else 127
    codes = torch.arange(1, n + 1)
    scales = torch.full(codes.shape, 0.7).half()
    decision = bounds.dequantized(codes, scales, n, sqrt=sqrt, softsign=softsign, operations=GPU)
    for ulps in (20, -20):
        moved = (decision.exact.float().view(torch.int32) + ulps).view(torch.float32)
        assert not decision.allows_value(moved).any()
    assert not decision.allows_value(-decision.exact.float()).any()
    assert decision.allows_value(decision.exact.float()).all()


@pytest.mark.parametrize(("sqrt", "softsign"), [(False, True), (True, False)])
def test_an_exact_zero_has_no_error(sqrt: bool, softsign: bool) -> None:
    # 0 / N, 0 / (2 - 0), 0 s and 0^2 are exact in any arithmetic: nothing else is within a bound.
    decision = bounds.dequantized(
        torch.zeros(2, dtype=torch.int8),
        torch.tensor([1.0, 0.0]).half(),
        127,
        sqrt=sqrt,
        softsign=softsign,
        operations=GPU,
    )
    assert decision.allows_value(torch.zeros(2)).all()
    assert not decision.allows_value(torch.full((2,), 2.0**-149)).any()


# --- Reconstructed values ---------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("narrow_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [127, 32767])
def test_no_reconstructed_value_leaves_its_bound(
    operations: OperationBounds, narrow_dtype: torch.dtype, n: int
) -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    narrow = every.view(narrow_dtype)
    narrow = narrow[narrow.isfinite()]
    generator = torch.Generator().manual_seed(2)
    dtype = torch.int8 if n == 127 else torch.int16
    rho = torch.randint(-n, n + 1, narrow.shape, dtype=dtype, generator=generator)
    rho[::3] = n
    rho[1::17] = -1
    log2 = log2_half_ulp(narrow)
    decision = bounds.reconstructed(narrow, rho, log2, n, operations)
    farthest = torch.zeros(())
    power = torch.from_numpy(np.ldexp(1.0, log2.numpy()))
    for push in SIGNS:
        fraction = divide(
            rho.float(), torch.full(rho.shape, float(n)), operations.division_ulp, push, 1
        )
        exact_product = fraction.double() * power
        wide = narrow.float()
        for value in (
            wide + exact_product.float(),
            (narrow.double() + exact_product).float(),
        ):
            assert bool(decision.allows_value(value).all()), push
            off = (value.double() - decision.exact).abs()
            farthest = torch.maximum(farthest, (off / decision.error).max())
    assert 1 / 3 < farthest <= 1


def test_a_reconstructed_value_one_ulp_further_is_not_allowed() -> None:
    narrow = torch.full((127,), 1.5).bfloat16()
    rho = torch.arange(1, 128, dtype=torch.int8)
    decision = bounds.reconstructed(narrow, rho, log2_half_ulp(narrow), 127, GPU)
    nearest = decision.exact.float()
    assert decision.allows_value(nearest).all()
    for step in (-2, 2):
        moved = (nearest.view(torch.int32) + step).view(torch.float32)
        assert not decision.allows_value(moved).any()
    once = (nearest.view(torch.int32) + 1).view(torch.float32)
    assert int(decision.allows_value(once).sum()) < 3


# --- Scales -----------------------------------------------------------------------------------

INFINITE = 0x7C00


def half_value(bits: int) -> Fraction:
    """A non-negative float16 exactly; infinity as the number that rounding takes it for."""
    exponent, mantissa = bits >> 10, bits & 0x3FF
    if exponent == 0:
        return Fraction(mantissa, 1 << 24)
    return Fraction((1024 + mantissa) << exponent, 1 << 25)


def rounds_to(exact: Fraction, bits: int) -> bool:
    """Whether rounding to nearest gives a float16, ties either way: the oracle."""
    value = half_value(bits)
    if bits and exact < (half_value(bits - 1) + value) / 2:
        return False
    return bits == INFINITE or exact <= (value + half_value(bits + 1)) / 2


def test_the_oracle_of_scales_agrees_with_numpy() -> None:
    for bits in (*range(2050), *range(0x3BF0, 0x3C10), *range(0x7BF0, 0x7C00)):
        assert half_value(bits) == Fraction(float(np.uint16(bits).view(np.float16)))
    assert not rounds_to(Fraction(65519), INFINITE)
    assert rounds_to(Fraction(65520), INFINITE)
    assert rounds_to(Fraction(65520), 0x7BFF)
    assert rounds_to(Fraction(1, 1 << 25), 0)
    assert rounds_to(Fraction(1, 1 << 25), 1)


def test_a_scale_is_what_its_exact_number_rounds_to_for_every_float16() -> None:
    bits = list(range(INFINITE + 1))
    scales = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = torch.tensor([float(half_value(b)) for b in bits], dtype=torch.float64)
    values[-1] = 65536.0
    below = torch.cat([torch.zeros(1, dtype=torch.float64), values[:-1]])
    above = torch.cat([values[1:], torch.tensor([65536.0], dtype=torch.float64)])
    none = torch.zeros_like(values)
    for exact in (
        values,
        (below + values) / 2,
        (values + above) / 2,
        (below + values) / 2 * (1 - 2.0**-40),
        (below + values) / 2 * (1 + 2.0**-40),
        (values + above) / 2 * (1 - 2.0**-40),
        (values + above) / 2 * (1 + 2.0**-40),
    ):
        got = bounds.rounds_to_half(Decision(exact, none), scales).tolist()
        wanted = [
            rounds_to(Fraction(number), b) for number, b in zip(exact.tolist(), bits, strict=True)
        ]
        wrong = [
            (b, number, g)
            for b, number, g, w in zip(bits, exact.tolist(), got, wanted, strict=True)
            if g != w
        ]
        assert not wrong, wrong[:5]


@pytest.mark.parametrize("exact", [65536.0, 65537.0, 1e5, 1e30])
def test_what_is_past_the_greatest_float16_rounds_to_infinity(exact: float) -> None:
    decision = bounds.scale_decision(torch.tensor([exact], dtype=torch.float64), GPU)
    infinite = torch.tensor([float("inf")]).half()
    assert bounds.rounds_to_half(decision, infinite).all()
    assert not bounds.rounds_to_half(decision, torch.tensor([65504.0]).half()).any()


@pytest.mark.parametrize("exact", [0.0, 2.0**-25, 1.0, 65536.0])
@pytest.mark.parametrize("wrong", [float("nan"), -1.5, -float("inf"), -(2.0**-24)])
def test_no_root_rounds_to_a_nan_or_a_negative_scale(exact: float, wrong: float) -> None:
    decision = bounds.scale_decision(torch.tensor([exact], dtype=torch.float64), GPU)
    assert not bounds.rounds_to_half(decision, torch.tensor([wrong]).half()).any()


@ALL
def test_no_scale_of_an_approximate_root_leaves_its_bound(operations: OperationBounds) -> None:
    middle = torch.arange(0, INFINITE, dtype=torch.int32)
    low = middle.to(torch.int16).view(torch.float16).double()
    high = torch.cat([low[1:], torch.tensor([65536.0], dtype=torch.float64)])
    v = ((low + high) / 2).square().float()
    exact = v.double().sqrt()
    decision = bounds.scale_decision(exact, operations)
    literal = exact.float().half()
    crossed, farthest = 0, torch.zeros(())
    for push in SIGNS:
        root = within(exact, operations.square_root_ulp, push, 7)
        scales = root.half()
        assert bool(bounds.rounds_to_half(decision, scales).all()), push
        differ = scales.view(torch.int16) != literal.view(torch.int16)
        crossed += int(differ.sum())
        far = bounds.half_boundary_distance(decision, scales, literal)[differ]
        assert (far <= decision.bound_ulp()[differ]).all()
        off = (root.double() - exact).abs()
        farthest = torch.maximum(farthest, (off / decision.error)[v > 0].max())
    assert crossed > 0 or operations is IEEE
    assert 1 / 3 < farthest <= 1
    # A scale one further is never within reach, as a float16 is 8192 float32 ULP wide.
    for step in (-1, 1):
        moved = (literal.view(torch.int16) + 2 * step).clamp(0, INFINITE).view(torch.float16)
        real = moved.view(torch.int16) == literal.view(torch.int16) + 2 * step
        assert not bounds.rounds_to_half(decision, moved)[real].any()


@pytest.mark.parametrize("x", [0.0, 2.0**-149, 2.0**-126, 1.0, 1.999, 2.0, 3.4e38])
def test_the_ulp_is_the_distance_to_the_next_float32(x: float) -> None:
    number = torch.tensor([x])
    wanted = torch.nextafter(number, torch.tensor(torch.inf)).double() - number.double()
    assert bounds.ulp(number.double()) == wanted
    assert bounds.ulp(-number.double()) == wanted


def test_an_operation_is_never_better_than_correctly_rounded() -> None:
    assert (IEEE.division, IEEE.square_root) == (1, 1)
    assert (GPU.division, GPU.square_root) == (4, 2)
