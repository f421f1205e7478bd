"""What is not named as sensitive gives the same bits under every switch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashcheck.compare.sensitivity import fusing_matters, near_tie
from flashcheck.formats import BF16, INT16
from flashcheck.reference.arithmetic import PAPER, Arithmetic, Rounding, round_product
from flashcheck.reference.splitting import reconstruct_chunk
from tests import oracle

N = (127, 255, 32767)
ROUNDINGS = [PAPER] + [
    Arithmetic(rounding=rounding, fused_multiply_add=fused)
    for rounding in (Rounding.HALF_AWAY, Rounding.HALF_UP)
    for fused in (False, True)
]


def integers(x: torch.Tensor, n: int) -> torch.Tensor:
    """What each rounding makes of it, a row a rounding."""
    return torch.stack([round_product(x.clone(), n, setting) for setting in ROUNDINGS]).int()


def moved(x: torch.Tensor, n: int) -> torch.Tensor:
    """Where two roundings differ."""
    found = integers(x, n)
    return (found != found[0]).any(dim=0)


def from_bits(bits: list[int]) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)


# Patterns from 0 to 1, of either sign.
PATTERN = st.builds(
    lambda magnitude, sign: magnitude | sign << 31, st.integers(0, 0x3F800000), st.integers(0, 1)
)


def ties(n: int, around: int) -> torch.Tensor:
    """The float32 nearest each tie of ``x n``, and some before and after it, of both signs."""
    exact = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    bits = exact.float().view(torch.int32)
    steps = torch.arange(-around, around + 1, dtype=torch.int32)
    x = (bits[:, None] + steps).reshape(-1).view(torch.float32)
    x = x[x <= 1]
    return torch.cat([x, -x])


@settings(max_examples=200)
@given(st.lists(PATTERN, min_size=1, max_size=100), st.sampled_from(N))
def test_far_from_a_tie_all_roundings_agree(patterns: list[int], n: int) -> None:
    x = from_bits(patterns)
    assert not bool((moved(x, n) & ~near_tie(x * n, n)).any())


@settings(max_examples=200)
@given(
    st.sampled_from(N),
    st.lists(
        st.tuples(st.integers(0, 32766), st.integers(-400, 400), st.booleans()),
        min_size=1,
        max_size=100,
    ),
)
def test_beside_ties_what_is_not_named_agrees(n: int, chosen: list[tuple[int, int, bool]]) -> None:
    exact = torch.tensor([(k % n + 0.5) / n for k, _, _ in chosen], dtype=torch.float64)
    steps = torch.tensor([step for _, step, _ in chosen], dtype=torch.int32)
    signs = torch.tensor([-1.0 if negative else 1.0 for _, _, negative in chosen])
    x = (exact.float().view(torch.int32) + steps).view(torch.float32) * signs
    x = x[x.abs() <= 1]
    assert not bool((moved(x, n) & ~near_tie(x * n, n)).any())


@pytest.mark.parametrize("n", N)
def test_at_every_tie_what_is_not_named_agrees(n: int) -> None:
    x = ties(n, around=12)
    differ, named = moved(x, n), near_tie(x * n, n)
    assert not bool((differ & ~named).any())
    # It is not all in vain: some do differ, and are named.
    assert int(differ.sum()) > n // 4
    # Nor is all named: a code apart from its ties is not.
    middle = torch.arange(n + 1).double().div(n).float()
    assert not bool(near_tie(middle * n, n).any())


@pytest.mark.parametrize("n", N)
def test_few_are_named(n: int) -> None:
    x = torch.rand(1 << 18, generator=torch.Generator().manual_seed(1)) * 2 - 1
    share = float(near_tie(x * n, n).float().mean())
    # Of the distances to a tie, from 0 to 1/2, those up to (n + 1) 2^-23.
    assert share <= 4 * (n + 1) * 2.0**-23


@pytest.mark.parametrize("n", N)
def test_what_is_not_named_is_nearest_to_the_exact_product(n: int) -> None:
    x = ties(n, around=40)[:: max(1, n // 20)]
    far = x[~near_tie(x * n, n)]
    assert len(far) > 100
    for value, codes in zip(far.tolist(), integers(far, n).T.tolist(), strict=True):
        exact = Fraction(value) * n
        assert {round(exact)} == set(codes), (value, n)


@settings(max_examples=50)
@given(st.lists(PATTERN, min_size=1, max_size=20), st.sampled_from(N))
def test_the_roundings_are_those_of_exact_arithmetic(patterns: list[int], n: int) -> None:
    # What agrees has to be what the paper says, not one mistake made five times.
    x = from_bits(patterns)
    for setting, row in zip(ROUNDINGS, integers(x, n).tolist(), strict=True):
        for value, code in zip(x.tolist(), row, strict=True):
            exact = oracle.round_product(oracle.finite(Fraction(value)), n, setting)
            assert exact.exact == code


# ---- Fused sums ----------------------------------------------------------------------------

DIVISIONS = [False, True]


def every_narrow(dtype: torch.dtype) -> torch.Tensor:
    every = torch.arange(1 << 16).to(torch.int16).view(dtype)
    return every[every.isfinite()]


def fused_differ(narrow: torch.Tensor, rho: torch.Tensor, *, reciprocal: bool) -> torch.Tensor:
    """Where the fused sum has other bits."""
    setting = replace(PAPER, reciprocal_division=reciprocal)
    values = [
        reconstruct_chunk(narrow, rho, replace(setting, fused_multiply_add=fused))
        for fused in (False, True)
    ]
    return values[0].view(torch.int32) != values[1].view(torch.int32)


@pytest.mark.parametrize("reciprocal", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_int8_code_of_every_weight_that_is_not_named(
    dtype: torch.dtype, reciprocal: bool
) -> None:
    narrow = every_narrow(dtype)
    if dtype == torch.bfloat16:
        # Up to a few exponents past the limit; above, one weight of each is like the others.
        small = narrow[narrow.abs().float() < 2.0**-90]
        narrow = torch.cat([small, narrow[::67]])
    differing = 0
    for codes in torch.arange(-127, 128).to(torch.int8).split(32):
        pairs = torch.cartesian_prod(torch.arange(len(narrow)), torch.arange(len(codes)))
        weights, rho = narrow[pairs[:, 0]], codes[pairs[:, 1]]
        differ, named = fused_differ(weights, rho, reciprocal=reciprocal), fusing_matters(weights)
        assert not bool((differ & ~named).any())
        differing += int(differ.sum())
    if dtype == torch.bfloat16:
        assert differing > 0
    else:
        assert differing == 0
        assert not bool(fusing_matters(narrow).any())


@pytest.mark.parametrize("reciprocal", DIVISIONS)
def test_every_int16_code_around_the_limit(reciprocal: bool) -> None:
    codes = torch.arange(-32767, 32768).to(torch.int16)
    named_exponents, differing_exponents = set(), set()
    for field, sign in itertools.product(range(32), (0, -32768)):
        for mantissa in (0, 1, 0x55, 0x7F):
            narrow = torch.tensor([field << 7 | mantissa | sign]).to(torch.int16)
            weights = narrow.view(torch.bfloat16).expand(len(codes)).contiguous()
            named = fusing_matters(weights)
            assert bool(named.all()) or not bool(named.any())
            differ = bool(fused_differ(weights, codes, reciprocal=reciprocal).any())
            assert bool(named[0]) or not differ
            named_exponents |= {field} if bool(named[0]) else set()
            differing_exponents |= {field} if differ else set()
    # The limit is where a product can be subnormal, which a code of 1 of 32767 has first.
    assert named_exponents == set(range(24))
    assert differing_exponents <= named_exponents
    # Below 2 the sum is as fine as its subnormal terms.
    assert {2, 3, 4, 5} <= differing_exponents


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, (1 << 16) - 1), st.integers(-32767, 32767)),
        min_size=1,
        max_size=50,
    ),
    st.booleans(),
    st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_any_pair_that_is_not_named_agrees(
    pairs: list[tuple[int, int]], reciprocal: bool, dtype: torch.dtype
) -> None:
    bits = torch.tensor([weight for weight, _ in pairs]).to(torch.int16)
    narrow = bits.view(dtype)
    rho = torch.tensor([code for _, code in pairs]).to(torch.int16)
    finite = narrow.isfinite()
    narrow, rho = narrow[finite], rho[finite]
    differ = fused_differ(narrow, rho, reciprocal=reciprocal)
    assert not bool((differ & ~fusing_matters(narrow)).any())


def test_a_case_in_which_fusing_does_matter() -> None:
    # Of 2^-125 a float32 is a multiple of 2^-148; a subnormal product was one of 2^-149 before.
    narrow = torch.tensor([2 << 7], dtype=torch.int16).view(torch.bfloat16).expand(65535)
    codes = torch.arange(-32767, 32768).to(torch.int16)
    assert bool(fusing_matters(narrow).all())
    differ = fused_differ(narrow.contiguous(), codes, reciprocal=False)
    assert bool(differ.any())
    code = int(codes[differ.nonzero()[0]])
    both = [
        oracle.decompress(
            oracle.finite(Fraction(2) ** -125),
            code,
            BF16,
            INT16,
            replace(PAPER, fused_multiply_add=fused),
        ).exact
        for fused in (False, True)
    ]
    assert both[0] != both[1]
