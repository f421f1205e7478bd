"""The exactly rounded pieces of the tensor reference, bit by bit against the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashcheck.formats import FP32, INT8, INT16, UINT8, CodeFormat, torch_dtype
from flashcheck.reference.arithmetic import (
    CHUNK,
    PAPER,
    Arithmetic,
    NanAbsmax,
    Rounding,
    divide_by_constant,
    fma,
    in_chunks,
    power_of_two,
    round_product,
    to_codes,
)
from tests import oracle
from tests.oracle import bits_of, decode, differences, encode, finite, landmarks, tensor_of

SEED = 41
EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=60)
SIGN = 1 << 31

ROUNDINGS = [
    Arithmetic(),
    Arithmetic(rounding=Rounding.HALF_AWAY),
    Arithmetic(rounding=Rounding.HALF_UP),
    Arithmetic(rounding=Rounding.HALF_AWAY, fused_multiply_add=True),
    Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=True),
]
"""Every way ``round_product`` can go: a fused product needs a sum."""


def rounding_name(arithmetic: Arithmetic) -> str:
    return arithmetic.rounding.value + ("-fused" if arithmetic.fused_multiply_add else "")


def nearest(numerator: int, denominator: int) -> int:
    """Bits of the float32 nearest a fraction."""
    return encode(oracle.round_exact(Fraction(numerator, denominator), FP32), FP32)


def test_paper_is_the_literal_reading() -> None:
    assert PAPER.rounding is Rounding.NEAREST_EVEN
    assert not PAPER.fused_multiply_add
    assert not PAPER.reciprocal_division
    assert PAPER.absmax_floor == 0
    assert PAPER.nan_absmax is NanAbsmax.PROPAGATE


# ---- Powers of two -------------------------------------------------------------------------


def test_every_normal_power_of_two() -> None:
    exponents = list(range(FP32.min_exponent, FP32.bias + 1))
    got = power_of_two(torch.tensor(exponents, dtype=torch.int32).reshape(2, 127))
    assert got.shape == (2, 127)
    expected = [encode(finite(oracle.power(k)), FP32) for k in exponents]
    assert differences(bits_of(got, FP32), expected, exponents) == []


# ---- Fused multiply-add --------------------------------------------------------------------

Triple = tuple[int, int, int]


def check_fma(triples: Sequence[Triple]) -> None:
    a, b, c = (tensor_of(column, FP32) for column in zip(*triples, strict=True))
    expected = [
        encode(oracle.fused_multiply_add(*(decode(bits, FP32) for bits in triple)), FP32)
        for triple in triples
    ]
    shown = [" * ".join(f"{bits:#x}" for bits in t[:2]) + f" + {t[2]:#x}" for t in triples]
    assert differences(bits_of(fma(a, b, c), FP32), expected, shown) == [], f"seed {SEED}"


def twice_rounded(triples: Sequence[Triple]) -> int:
    """How many of these a float64 sum rounded to float32 gets wrong."""
    a, b, c = (tensor_of(column, FP32) for column in zip(*triples, strict=True))
    naive = (a.double() * b.double() + c.double()).float()
    exact = [
        encode(oracle.fused_multiply_add(*(decode(bits, FP32) for bits in triple)), FP32)
        for triple in triples
    ]
    return len(differences(bits_of(naive, FP32), exact, triples, most=len(triples)))


def signs(triples: Sequence[Triple]) -> list[Triple]:
    return [(a ^ sa, b, c ^ sc) for a, b, c in triples for sa in (0, SIGN) for sc in (0, SIGN)]


def near_midpoints() -> list[Triple]:
    """Products a hair off half an ULP of the addend, closer than a float64 sum can say.

    ``(1 + i u)`` times the float32 nearest its inverse is 1 up to about 2^-24, and for some ``i``
    as near as 2^-46. Scaled to half an ULP of the addend, the sum is that near a float32
    midpoint: float64 rounds it to the midpoint, and the parity of the addend then decides.
    """
    pairs = []
    # Of i from 363 to 511 the sum is over half and under one float64 ULP off the midpoint.
    for i in [*range(1, 40), *range(350, 520, 8), 0x2AAAAA, 0x555555, 0x7FFFFF]:
        a = 0x3F800000 + i
        exact = 1 / decode(a, FP32).exact
        pairs.append((a, encode(oracle.round_exact(exact, FP32), FP32)))
    # (1 + 2^-k)(1 - 2^-k) = 1 - 2^-2k.
    for k in range(12, 24):
        up, down = 2**k + 1, 2**k - 1
        pairs.append((nearest(up, 2**k), nearest(down, 2**k)))
    triples = []
    for c in (0x3F800000, 0x3F800001, 0x3F800002, 0x3FFFFFFE, 0x3FFFFFFF, 0x40490FDB, 0x40490FDA):
        # Half an ULP of an addend of 2^e is 2^(e-24); at a power of two the ULP below is half.
        exponent = (c >> 23) - FP32.bias
        for a, b in pairs:
            for shift in (24, 25):
                triples.append((a, b + ((exponent - shift) << 23), c))
    return signs(triples)


def test_fma_near_midpoints_rounds_once() -> None:
    triples = near_midpoints()
    # The cases are worth nothing if the obvious float64 emulation passes them.
    assert twice_rounded(triples) > 100
    check_fma(triples)


def test_fma_near_midpoints_of_subnormals_rounds_once() -> None:
    """2^-150 is half of the smallest subnormal; each sum lies just off a subnormal midpoint."""
    triples = []
    for c in (0x00000000, 0x00000001, 0x00000002, 0x003FFFFF, 0x00400000, 0x007FFFFF, 0x00800000):
        for k in range(12, 24):
            a, b = nearest(2**k + 1, 2**k), nearest(2**k - 1, 2**k)
            triples.append((a - (75 << 23), b - (75 << 23), c))
            triples.append((a - (75 << 23), 0x3F800000 - (75 << 23), c))
            triples.append((b - (75 << 23), 0x3F800000 - (75 << 23), c))
        triples.append((0x3F800000 - (75 << 23), 0x3F800000 - (75 << 23), c))
    assert twice_rounded(signs(triples)) > 20
    check_fma(signs(triples))


def test_fma_ties_go_to_even() -> None:
    triples = [(nearest(1, 2**24), 0x3F800000, 0x3F800000 + i) for i in range(8)] + [
        (nearest(3, 2**25), 0x3F800000, 0x3F800000 + i) for i in range(8)
    ]
    check_fma(signs(triples))


def test_fma_cancels_exactly() -> None:
    """``a b - round(a b)`` is the rounding error of the product, which a float32 holds."""
    rng = random.Random(SEED)
    triples = []
    for _ in range(200):
        a, b = (rng.randrange(0x30000000, 0x50000000) for _ in range(2))
        product = oracle.multiply(decode(a, FP32), decode(b, FP32))
        for near in (-1, 0, 1):
            triples.append((a, b, encode(oracle.negate(product), FP32) + near))
    assert all(0 <= c < 1 << 32 for _, _, c in triples)
    check_fma(triples)


def test_fma_overflows_where_the_sum_does_not_the_product() -> None:
    greatest = 0x7F7FFFFF
    half_ulp = 0x73000000  # 2^103: half an ULP of the greatest float32
    triples = [
        (greatest, 0x40000000, greatest | SIGN),  # 2 M - M = M
        (greatest, greatest, 0x7F800000 | SIGN),  # finite though no float32, less infinity
        (greatest, greatest, greatest | SIGN),
        (half_ulp, 0x3F800000, greatest),  # a tie, to the even 2^128, infinity
        (half_ulp - 1, 0x3F800000, greatest),
        (half_ulp + 1, 0x3F800000, greatest),
        (0x73000001, 0x3F7FFFFE, greatest),  # 2^103 (1 - 2^-46): double rounding would overflow
        (0x73000001, 0x3F7FFFFF, greatest),
        (greatest, 0x3F800000, greatest),
        (greatest, 0x3F800001, 0x00000001),
        (0x00000001, 0x00000001, 0x00000000),
        (0x00000001, 0x00000001, 0x00000001),
        (0x00000001, 0x00000001, greatest),
        (0x00000001, greatest, 0x00000001),
    ]
    check_fma(signs(triples))


def test_fma_of_special_values() -> None:
    values = [0x00000000, 0x00000001, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001]
    values += [bits | SIGN for bits in values]
    check_fma([(a, b, c) for a in values for b in values for c in values])


@st.composite
def fma_triples(draw: st.DrawFn) -> list[Triple]:
    """Random operands; half of them with an addend within reach of the product."""
    pattern = st.sampled_from(landmarks(FP32)) | st.integers(0, 2**32 - 1)
    triples = []
    for _ in range(draw(st.integers(1, 30))):
        a, b, c = draw(st.tuples(pattern, pattern, pattern))
        product = oracle.multiply(decode(a, FP32), decode(b, FP32))
        if draw(st.booleans()) and product.finite:
            distance = draw(st.integers(-60, 60)) << 23
            near = encode(oracle.absolute(product), FP32) + distance
            c = min(max(near, 0), 0x7F7FFFFF) ^ draw(st.integers(0, 2**24 - 1)) ^ (c & SIGN)
        triples.append((a, b, c))
    return triples


@EXACT
@given(fma_triples())
def test_fma_of_random_values(triples: list[Triple]) -> None:
    check_fma(triples)


def test_fma_keeps_the_shape() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert fma(x, x, x).tolist() == [[0.0, 2.0, 6.0], [12.0, 20.0, 30.0]]
    assert fma(x, x, x).dtype == torch.float32


# ---- Division by N -------------------------------------------------------------------------

CONSTANTS = [INT8.max_code, UINT8.max_code, INT16.max_code]


def check_division(patterns: list[int], n: int, arithmetic: Arithmetic) -> None:
    got = divide_by_constant(tensor_of(patterns, FP32), n, arithmetic)
    expected = [
        encode(oracle.divide_by_constant(decode(b, FP32), n, arithmetic), FP32) for b in patterns
    ]
    assert differences(bits_of(got, FP32), expected, patterns) == [], f"seed {SEED}"


@pytest.mark.parametrize("n", CONSTANTS)
@pytest.mark.parametrize("reciprocal", [False, True], ids=["quotient", "reciprocal"])
def test_division_by_a_constant(n: int, reciprocal: bool) -> None:
    rng = random.Random(SEED)
    codes = range(n + 1) if n < 1000 else range(1, n + 1, 37)
    patterns = [nearest(code, 1) for code in codes]
    patterns += landmarks(FP32)[::3] + [rng.getrandbits(32) for _ in range(200)]
    check_division(patterns, n, Arithmetic(reciprocal_division=reciprocal))


def test_the_reciprocal_differs_from_the_quotient() -> None:
    codes = torch.arange(1.0, 128.0)
    quotients = divide_by_constant(codes, 127, PAPER)
    products = divide_by_constant(codes, 127, Arithmetic(reciprocal_division=True))
    assert 0 < int((quotients != products).sum()) < 127


# ---- Rounding to codes ---------------------------------------------------------------------

FACTORS = [19, 23, *CONSTANTS]
"""The codes' own N, and two at which a fused product and half round otherwise at 1/2."""


def near_ties(n: int) -> list[int]:
    """Patterns in [-1, 1] whose product with ``n`` is at or by an integer and a half."""
    step = max(1, n // 100)
    centres = [nearest(2 * k + 1, 2 * n) for k in [*range(0, n, step), n - 1]]
    near = [bits + d for bits in centres for d in (-2, -1, 0, 1, 2)]
    return [bits | s for bits in near for s in (0, SIGN)]


def check_rounding(patterns: Sequence[int], n: int, arithmetic: Arithmetic) -> None:
    got = round_product(tensor_of(patterns, FP32), n, arithmetic)
    expected = [
        encode(oracle.round_product(decode(b, FP32), n, arithmetic), FP32) for b in patterns
    ]
    assert differences(bits_of(got, FP32), expected, patterns) == [], f"seed {SEED}"


@pytest.mark.parametrize("arithmetic", ROUNDINGS, ids=rounding_name)
@pytest.mark.parametrize("n", FACTORS)
def test_products_round_at_ties(n: int, arithmetic: Arithmetic) -> None:
    check_rounding(near_ties(n), n, arithmetic)


@pytest.mark.parametrize("arithmetic", ROUNDINGS, ids=rounding_name)
def test_products_of_special_values_round(arithmetic: Arithmetic) -> None:
    check_rounding(landmarks(FP32)[::2] + landmarks(FP32)[-12:], 127, arithmetic)


@EXACT
@given(
    st.lists(st.integers(0, 0x3F800000) | st.integers(0, 2**32 - 1), min_size=1, max_size=60),
    st.sampled_from(FACTORS),
    st.sampled_from(ROUNDINGS),
)
def test_products_of_random_values_round(bits: list[int], n: int, arithmetic: Arithmetic) -> None:
    check_rounding(bits, n, arithmetic)


def test_every_rounding_differs_from_every_other() -> None:
    """Else the switches of the tests above would test nothing."""
    patterns = near_ties(19)
    results = [
        tuple(bits_of(round_product(tensor_of(patterns, FP32), 19, arithmetic), FP32))
        for arithmetic in ROUNDINGS
    ]
    assert len(set(results)) == len(ROUNDINGS)


@pytest.mark.parametrize("arithmetic", ROUNDINGS, ids=rounding_name)
def test_products_keep_nan_infinity_and_signs(arithmetic: Arithmetic) -> None:
    inf = float("inf")
    got = round_product(torch.tensor([float("nan"), inf, -inf, 0.0, -0.0]), 127, arithmetic)
    assert got[0].isnan()
    assert got[1:3].tolist() == [inf, -inf]
    assert got[3:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("fmt", [INT8, UINT8, INT16], ids=lambda f: f.name)
def test_codes_saturate_and_nan_is_zero(fmt: CodeFormat) -> None:
    low, high = fmt.min_code, fmt.max_code
    inf, nan = float("inf"), float("nan")
    values = [-inf, -3e38, low - 1.0, float(low), 0.0, -0.0, nan, high, high + 1.0, 3e38, inf]
    got = to_codes(torch.tensor(values), torch_dtype(fmt), low, high)
    assert got.dtype == torch_dtype(fmt)
    assert got.tolist() == [low, low, low, low, 0, 0, 0, high, high, high, high]


def test_inputs_are_left_alone() -> None:
    x = torch.tensor([float("nan"), -2.5, 300.0])
    before = x.clone()
    fma(x, x, x)
    divide_by_constant(x, 127, Arithmetic(reciprocal_division=True))
    for arithmetic in ROUNDINGS:
        round_product(x, 127, arithmetic)
    to_codes(x, torch.int8, -127, 127)
    assert bits_of(x, FP32) == bits_of(before, FP32)


@pytest.mark.parametrize("reciprocal", [False, True], ids=["quotient", "reciprocal"])
@pytest.mark.parametrize("shape", [(), (1,), (5,)], ids=["scalar", "one", "five"])
def test_constants_are_made_where_the_tensor_is(shape: tuple[int, ...], reciprocal: bool) -> None:
    """The device "meta" holds no values, but like any other takes no operand of the CPU's."""
    x = torch.ones(shape, device="meta")
    got = divide_by_constant(x, 127, Arithmetic(reciprocal_division=reciprocal))
    assert (got.device.type, got.shape) == ("meta", shape)
    for arithmetic in ROUNDINGS:
        assert round_product(x, 127, arithmetic).device.type == "meta"


# ---- Chunks and threads --------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 100])
def test_chunks_cover_every_row_once(rows: int) -> None:
    x, y = torch.arange(7), torch.arange(7) * 10
    total, parts = torch.full((7,), -1), []

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        parts.append(a.tolist())
        return (a + b,)

    in_chunks(function, [x, y], [total], rows)
    assert total.tolist() == [11 * i for i in range(7)]
    assert [i for part in parts for i in part] == list(range(7))
    assert max(map(len, parts)) <= rows


def test_nothing_to_do_calls_nothing() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor]:
        raise AssertionError("called with no rows")

    out = torch.empty(0)
    in_chunks(function, [torch.empty(0)], [out], 4)
    assert out.numel() == 0


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


FUSED = Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=True, reciprocal_division=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fma(x, x.flip(0), x.roll(1)),
        lambda x: round_product(x, 127, PAPER),
        lambda x: round_product(x, 255, FUSED),
        lambda x: divide_by_constant(x, 32767, PAPER),
        lambda x: divide_by_constant(x, 127, FUSED),
    ],
    ids=["fma", "round", "round-fused", "divide", "reciprocal"],
)
def test_threads_and_lengths_change_no_bit(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """torch splits long tensors over threads, and has vector and scalar code for their parts."""
    generator = torch.Generator().manual_seed(SEED)
    bits = torch.randint(-(2**31), 2**31, (2 * CHUNK + 3,), generator=generator)
    x = bits.to(torch.int32).view(torch.float32)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(function(x).view(torch.int32))
    assert torch.equal(results[0], results[1]), f"seed {SEED}"
    assert torch.equal(results[0], results[2]), f"seed {SEED}"
    strided = torch.stack([x, x], dim=1)[:, 0]
    assert not strided.is_contiguous()
    whole, apart = function(x), function(strided)
    same = (whole.view(torch.int32) == apart.view(torch.int32)) | (whole.isnan() & apart.isnan())
    assert bool(same.all()), f"seed {SEED}"
