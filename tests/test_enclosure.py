"""The running error analysis of a step, attacked: no float32 computation ever leaves an enclosure.

A computation is simulated operation by operation: each division and root as far from its exact
result as its tolerance allows, at either end or at random; sums and products correctly rounded, or
fused. The enclosures must hold all of it, and no more than a small multiple of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.enclosure import Enclosure
from flashcheck.reference.arithmetic import fma

IEEE = OperationBounds(division_ulp=0.5, square_root_ulp=0.5)
GPU = OperationBounds(division_ulp=2.0, square_root_ulp=1.0)
COARSE = OperationBounds(division_ulp=3.5, square_root_ulp=3.0)
ALL = pytest.mark.parametrize("operations", [IEEE, GPU, COARSE], ids=["ieee", "gpu", "coarse"])

N = 4096
SMALLEST_NORMAL = 2.0**-126
SMALLEST = 2.0**-149
U = 2.0**-24
INF = math.inf


def spacing(exact: torch.Tensor) -> torch.Tensor:
    """The float32 ULP of exact numbers, as float64."""
    exponent = torch.frexp(exact.abs()).exponent.double() - 1
    return torch.pow(torch.tensor(2.0, dtype=torch.float64), exponent.clamp(min=-126) - 23)


def float32(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).float()


def drawn(exponents: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Float32 of random signs and mantissas and of exponents in a range, a few of them zero."""
    mantissa = torch.randint(0, 1 << 23, (N,), generator=generator)
    exponent = torch.randint(*exponents, (N,), generator=generator)
    sign = torch.randint(0, 2, (N,), generator=generator)
    # Powers of two lie where an ULP is largest in proportion.
    mantissa[: N // 8] = 0
    bits = (sign << 31) | (exponent + 127 << 23) | mantissa
    made = bits.to(torch.int32).view(torch.float32)
    made[N // 2 : N // 2 + N // 32] = 0.0
    return made


@dataclass
class Kernel:
    """Operations within their tolerances, each pushed to an end or anywhere between."""

    operations: OperationBounds
    generator: torch.Generator

    def off(self, exact: torch.Tensor, ulps: float) -> torch.Tensor:
        """A float32 at most so many ULP from an exact number, both ends among them.

        Subnormal results are rounded to the nearest, as the analysis has it.
        """
        share = torch.rand(exact.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        ends = torch.rand(exact.shape, generator=self.generator) < 0.5
        share = torch.where(ends, share.sign(), share)
        reach = ulps * spacing(exact)
        made = (exact + share * reach).float()
        for _ in range(2):
            past = (made.double() - exact).abs() > reach
            made = torch.where(past, torch.nextafter(made, exact.float()), made)
        nearest = ((made.double() - exact).abs() > reach) | (exact.abs() < SMALLEST_NORMAL)
        return torch.where(nearest, exact.float(), made)

    def divide(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.off(a.double() / b.double(), self.operations.division_ulp)

    def root(self, a: torch.Tensor) -> torch.Tensor:
        made = self.off(a.double().sqrt(), self.operations.square_root_ulp)
        if self.operations.square_root_ulp > 0.5:
            # An approximate root may flush what is subnormal.
            flushed = torch.rand(a.shape, generator=self.generator) < 0.5
            made = torch.where(flushed & (a < SMALLEST_NORMAL), 0.0, made)
        return made


@dataclass
class Number:
    """A float32 as a kernel has it, and what the analysis says of it."""

    is_: torch.Tensor
    says: Enclosure

    @classmethod
    def given(cls, values: torch.Tensor) -> Number:
        return cls(values, Enclosure.of(values))


def operate(word: str, a: Number, b: Number, c: Number, kernel: Kernel) -> Number:
    match word:
        case "add":
            return Number(a.is_ + b.is_, a.says + b.says)
        case "subtract":
            return Number(a.is_ - b.is_, a.says - b.says)
        case "multiply":
            return Number(a.is_ * b.is_, a.says * b.says)
        case "by":
            return Number(a.is_ * 127.0, a.says.by(127.0))
        case "fused":
            return Number(fma(a.is_, b.is_, c.is_), a.says * b.says + c.says)
        case "divide":
            return Number(kernel.divide(a.is_, b.is_), a.says.over(b.says, kernel.operations))
        case "root":
            magnitude = a.is_.abs()
            made = a.says.magnitude().root(kernel.operations)
            return Number(kernel.root(magnitude), made)
    raise AssertionError(word)


WORDS = ("add", "subtract", "multiply", "by", "fused", "divide", "root")


def holds(number: Number, valid: torch.Tensor) -> None:
    """That what a kernel has lies within what the analysis says, where it says something."""
    off = (number.is_.double() - number.says.exact).abs()
    past = valid & (off > number.says.error)
    assert not bool(past.any()), (
        number.is_[past][0],
        number.says.exact[past][0],
        number.says.error[past][0],
    )
    missed = valid & ~number.says.reaches(number.is_) & (number.is_ != 0)
    assert not bool(missed.any())


# Of normal numbers only, of some near the smallest, and of all that a chain can multiply.
RANGES = {"middle": (-12, 12), "tiny": (-126, -110), "subnormal": (-127, -120), "wide": (-60, 40)}


@pytest.mark.parametrize("exponents", RANGES.values(), ids=RANGES)
@ALL
def test_a_chain_of_operations_never_leaves_its_enclosure(
    operations: OperationBounds, exponents: tuple[int, int]
) -> None:
    used: set[str] = set()
    looked_at = 0
    for seed in range(25):
        choice = random.Random(seed)
        kernel = Kernel(operations, torch.Generator().manual_seed(seed))
        pool = [Number.given(drawn(exponents, kernel.generator)) for _ in range(3)]
        pool.append(Number.given(drawn((-3, 3), kernel.generator)))
        valid = torch.ones(N, dtype=torch.bool)
        for _ in range(7):
            word = choice.choice(WORDS)
            a, b, c = (choice.choice(pool) for _ in range(3))
            number = operate(word, a, b, c, kernel)
            # Of overflows, and of a division by what may be 0, it says nothing.
            valid &= number.is_.isfinite() & number.says.error.isfinite()
            holds(number, valid)
            pool.append(number)
            used.add(word)
            looked_at += int(valid.sum())
    assert used == set(WORDS)
    assert looked_at > 200_000


@pytest.mark.parametrize("exponents", RANGES.values(), ids=RANGES)
@ALL
def test_an_adam_step_never_leaves_its_enclosure(
    operations: OperationBounds, exponents: tuple[int, int]
) -> None:
    kernel = Kernel(operations, torch.Generator().manual_seed(1))
    theta, m, g = (Number.given(drawn(exponents, kernel.generator)) for _ in range(3))
    v = Number.given(drawn(exponents, kernel.generator).abs())
    beta, rest, bias, eps = (
        Number.given(torch.full((N,), x).float()) for x in (0.9, 0.1, 0.3, 1e-8)
    )

    def do(word: str, a: Number, b: Number, c: Number | None = None) -> Number:
        return operate(word, a, b, c or a, kernel)

    m = do("fused", m, beta, do("multiply", g, rest))
    v = do("add", do("multiply", v, beta), do("multiply", do("multiply", g, g), rest))
    denominator = do("add", do("root", do("divide", v, bias), v), eps)
    direction = do("divide", do("divide", m, bias), denominator)
    moved = do("subtract", theta, do("multiply", direction, rest))
    for number in (m, v, denominator, direction, moved):
        valid = number.is_.isfinite() & number.says.error.isfinite()
        assert valid.float().mean() > 0.5
        holds(number, valid)


@ALL
def test_bounds_are_no_wider_than_a_few_hundred_ulp_and_are_used(
    operations: OperationBounds,
) -> None:
    # Nothing cancels where all is positive: then each operation adds a few ULP, and no more.
    kernel = Kernel(operations, torch.Generator().manual_seed(2))
    number, other = (Number.given(drawn((-8, 8), kernel.generator).abs() + 2**-9) for _ in "ab")
    for word in ("multiply", "divide", "add", "root", "divide", "multiply", "fused", "root"):
        number = operate(word, number, other, other, kernel)
    wide = number.says.error / spacing(number.says.exact)
    assert float(wide.max()) < 40
    share = (number.is_.double() - number.says.exact).abs() / number.says.error
    # Random directions rarely add up, and yet come to a good part of it.
    assert 0.2 < float(share.max()) <= 1


@ALL
def test_a_value_off_by_twice_the_bound_is_not_reached(operations: OperationBounds) -> None:
    for seed in range(5):
        choice = random.Random(seed)
        kernel = Kernel(operations, torch.Generator().manual_seed(seed))
        pool = [Number.given(drawn((-8, 8), kernel.generator)) for _ in range(3)]
        for _ in range(6):
            a, b, c = (choice.choice(pool) for _ in range(3))
            pool.append(operate(choice.choice(WORDS), a, b, c, kernel))
        for number in pool:
            says = number.says
            known = says.error.isfinite() & says.exact.isfinite() & (says.exact.abs() < 2.0**120)
            # Twice the bound, and an ULP that rounding to float32 may take back.
            far = 2 * says.error + spacing(says.exact.abs() + 2 * says.error)
            for sign in (-1, 1):
                value = (says.exact + sign * far).float()
                assert not bool(says.reaches(value)[known].any())
            assert bool(says.reaches(says.exact.float())[known & (says.exact != 0)].all())


# ---- One operation, tightly ------------------------------------------------------------------


def uncertain(seed: int, *, positive: bool = False) -> Enclosure:
    """Numbers that are off by up to a thousandth."""
    generator = torch.Generator().manual_seed(seed)
    exact = drawn((-8, 8), generator).double()
    exact = torch.where(exact == 0, 1.0, exact)
    exact = exact.abs() if positive else exact
    share = torch.rand(N, generator=generator, dtype=torch.float64) * 1e-3
    return Enclosure(exact, exact.abs() * share)


def corners(a: Enclosure) -> list[torch.Tensor]:
    return [a.low, a.high]


BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}
ENCLOSED: dict[str, Callable[[Enclosure, Enclosure, OperationBounds], Enclosure]] = {
    "add": lambda a, b, _: a + b,
    "subtract": lambda a, b, _: a - b,
    "multiply": lambda a, b, _: a * b,
    "divide": lambda a, b, operations: a.over(b, operations),
}


@pytest.mark.parametrize("word", BINARY)
@ALL
def test_what_operands_may_be_off_by_is_carried_on_and_no_more(
    operations: OperationBounds, word: str
) -> None:
    a, b = uncertain(3), uncertain(4)
    made = ENCLOSED[word](a, b, operations)
    reached = torch.stack([BINARY[word](x, y) for x in corners(a) for y in corners(b)])
    off = (reached - made.exact).abs().amax(dim=0)
    assert torch.equal(made.exact, BINARY[word](a.exact, b.exact))
    assert bool((off <= made.error).all())
    # The operation's own rounding is far less than the thousandth.
    assert bool((made.error <= off * 1.0001 + made.exact.abs() * 20 * U).all())


@ALL
def test_what_a_number_may_be_off_by_is_carried_through_its_root(
    operations: OperationBounds,
) -> None:
    a = uncertain(5, positive=True)
    made = a.root(operations)
    off = torch.stack([(end.sqrt() - made.exact).abs() for end in corners(a)]).amax(dim=0)
    assert torch.equal(made.exact, a.exact.sqrt())
    assert bool((off <= made.error).all())
    assert bool((made.error <= off + made.exact * 20 * U).all())


@pytest.mark.parametrize("factor", [127.0, -2.0, 0.5])
def test_a_multiple_is_off_by_as_many_times_as_much(factor: float) -> None:
    a = uncertain(6)
    made = a.by(factor)
    assert torch.equal(made.exact, a.exact * factor)
    least = a.error * abs(factor)
    rounded = (made.exact.abs() + least) * U
    assert bool((made.error >= least + rounded).all())
    assert bool((made.error <= least + rounded * 1.001).all())


def test_an_operation_of_exact_numbers_is_off_by_its_own_rounding_alone() -> None:
    a, b = Enclosure.of(float32([3.0, 1.0])), Enclosure.of(float32([7.0, 3.0]))
    for made, relative in (
        (a + b, 1),
        (a - b, 1),
        (a * b, 1),
        (a.over(b, IEEE), 1),
        (a.over(b, GPU), 4),
        (a.over(b, COARSE), 7),
        (a.root(IEEE), 1),
        (a.root(GPU), 2),
        (a.root(COARSE), 6),
    ):
        bound = made.exact.abs() * (relative * U)
        assert bool((made.error >= bound).all())
        assert bool((made.error <= bound * 1.001).all())


def test_sums_of_subnormal_numbers_are_exact_and_products_are_rounded() -> None:
    tiny = Enclosure.of(float32([3 * SMALLEST]))
    assert float((tiny + tiny).error) < SMALLEST / 4
    assert float((tiny * Enclosure.of(float32([0.5]))).error) >= SMALLEST / 2
    # 4.5 times the smallest number, as near to 4 as to 5 of it.
    made = tiny * Enclosure.of(float32([1.5]))
    assert made.reaches(float32([4 * SMALLEST])).tolist() == [True]
    assert made.reaches(float32([5 * SMALLEST])).tolist() == [True]
    assert made.reaches(float32([6 * SMALLEST])).tolist() == [False]


def test_an_approximate_root_may_flush_what_is_subnormal_and_a_right_one_may_not() -> None:
    tiny = Enclosure.of(float32([2.0**-130]))
    assert tiny.root(GPU).reaches(float32([0.0])).tolist() == [True]
    assert tiny.root(IEEE).reaches(float32([0.0])).tolist() == [False]
    normal = Enclosure.of(float32([2.0**-126]))
    assert normal.root(GPU).reaches(float32([0.0])).tolist() == [False]


# ---- What is not claimed ---------------------------------------------------------------------


def test_a_division_by_what_may_be_zero_proves_nothing() -> None:
    may_be = Enclosure(torch.tensor([1.0, -1.0, 0.0, 0.0]).double(), torch.ones(4).double())
    surely = Enclosure.of(torch.zeros(4))
    everything = float32([0.0, 1.0, -1e30, INF])
    for above in (Enclosure.of(torch.ones(4)), Enclosure.of(torch.zeros(4))):
        for below in (may_be, surely):
            made = above.over(below, GPU)
            for value in everything:
                assert not bool(made.reaches(value.expand(4)).any())
    # A little farther from it, something is known.
    apart = Enclosure(torch.tensor([1.0]).double(), torch.tensor([0.5]).double())
    assert Enclosure.of(torch.ones(1)).over(apart, GPU).reaches(float32([1.5])).tolist() == [True]


def test_nothing_over_something_is_nothing() -> None:
    made = Enclosure.of(torch.zeros(1)).over(Enclosure.of(float32([3.0])), GPU)
    assert (float(made.exact), float(made.error)) == (0.0, 0.0)


@pytest.mark.parametrize("exact", [INF, -INF, math.nan])
def test_nothing_is_said_of_what_is_not_finite(exact: float) -> None:
    for error in (0.0, 1.0, INF):
        number = Enclosure(torch.tensor([exact]).double(), torch.tensor([error]).double())
        for value in (0.0, -0.0, 1.0, INF, -INF, math.nan):
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                assert number.reaches(torch.tensor([value]).to(dtype)).tolist() == [False]


def test_nothing_is_reached_with_an_error_that_is_not_finite() -> None:
    for error in (INF, math.nan):
        number = Enclosure(torch.ones(1).double(), torch.tensor([error]).double())
        assert number.reaches(torch.ones(1)).tolist() == [False]


def test_no_nan_is_reached_and_no_infinity_from_afar() -> None:
    number = Enclosure(torch.ones(1).double(), torch.ones(1).double())
    for value in (math.nan, INF, -INF):
        assert number.reaches(torch.tensor([value])).tolist() == [False]
    # A number that rounds to infinity in a narrow format reaches it there.
    large = Enclosure(torch.tensor([65519.0]).double(), torch.tensor([1.0]).double())
    assert large.reaches(torch.tensor([INF]).half()).tolist() == [True]
    assert large.reaches(torch.tensor([INF])).tolist() == [False]


def test_infinities_spread_to_results_of_which_nothing_is_said() -> None:
    infinite, one = Enclosure.of(float32([INF])), Enclosure.of(float32([1.0]))
    for made in (
        infinite + one,
        infinite - infinite,
        infinite * Enclosure.of(float32([0.0])),
        infinite.over(one, GPU),
        infinite.root(GPU),
    ):
        for value in (0.0, 1.0, INF, math.nan):
            assert made.reaches(torch.tensor([value])).tolist() == [False], (made, value)


# ---- What is stored --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_float32_within_is_reached_however_it_is_rounded(dtype: torch.dtype) -> None:
    a = uncertain(7)
    generator = torch.Generator().manual_seed(8)
    for _ in range(5):
        share = torch.rand(N, generator=generator, dtype=torch.float64) * 2 - 1
        value = (a.exact + share * a.error).float()
        inside = (value.double() - a.exact).abs() <= a.error
        assert bool(a.reaches(value.to(dtype))[inside].all())
    # Two narrow numbers beyond the ends is outside.
    for end, toward in ((a.low, -INF), (a.high, INF)):
        narrow = end.float().to(dtype)
        outside = torch.nextafter(narrow, torch.full_like(narrow, toward))
        assert not bool(a.reaches(outside).any())


def test_an_exact_zero_keeps_its_sign() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        zero = Enclosure.of(torch.zeros(1))
        assert zero.reaches(torch.tensor([0.0]).to(dtype)).tolist() == [True]
        assert zero.reaches(torch.tensor([-0.0]).to(dtype)).tolist() == [False]


def test_a_subnormal_quotient_may_be_off_by_as_many_ulp_as_any_other() -> None:
    made = Enclosure.of(float32([1000 * SMALLEST])).over(Enclosure.of(float32([2.0])), GPU)
    assert made.reaches(float32([502 * SMALLEST])).tolist() == [True]
