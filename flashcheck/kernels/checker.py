"""Checks an enumerated round trip in one pass: Algorithm 1 again, compared and counted on the spot.

It reads what the subject was fed and what it gave, computes the reference's answer in exactly
rounded operations, counts by row, and lists the elements that differ, or that some switch of the
arithmetic would change. The reference itself, eager, then explains those.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashcheck.kernels.rounding import half_floor, power_of_two
from flashcheck.kernels.splitting import log2_half_ulp, widened

TILE = tl.constexpr(1 << 16)
"""Float32 of a tile: they share their upper 16 bits."""

COUNTS = (
    "rho_mismatches",
    "recon_mismatches",
    "subject_exact",
    "reference_exact",
    "nonfinite_subject",
    "changed",
)
"""The columns of the counts, after which follows the digest."""

COLUMNS = len(COUNTS) + 1


@triton.jit
def _narrowed(x, MANTISSA: tl.constexpr):
    """The nearest narrow weight's bits, int16, ties to even; of numbers that have a finite one."""
    if MANTISSA == 7:
        bits = x.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
    return x.to(tl.float16).to(tl.int16, bitcast=True)


@triton.jit
def _mixed(x, code, value):
    """32 bits of an input and its outputs, as ``compare.digest`` mixes them."""
    h = x * -1640531527
    h = h ^ (h >> 15)
    h = (h ^ code) * -2048144789
    h = h ^ (h >> 13)
    h = (h ^ value) * -1028477387
    return h ^ (h >> 16)


@triton.jit
def _floors_differ(one, other, wanted):
    """Whether the floor of either number is another one. A rounding to integers costs four times
    what a comparison does.
    """
    return (tl.minimum(one, other) < wanted) | (tl.maximum(one, other) >= wanted + 1.0)


@triton.jit
def _tie_matters(clamped, product, code, LARGEST: tl.constexpr):
    """Whether another rounding of the product, with a half fused or not, gives another code."""
    away = tl.fma(tl.abs(clamped), LARGEST, 0.5)
    up = tl.fma(clamped, LARGEST, 0.5)
    differ = _floors_differ(tl.abs(product) + 0.5, away, tl.abs(code))
    return differ | _floors_differ(product + 0.5, up, code)


@triton.jit
def _quotient(code, approximate, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr):
    """``code / LARGEST`` correctly rounded, from its product with the reciprocal.

    The remainder is exact in a fused operation, and so is the correction by it but for its one
    rounding (Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990).
    That it holds for every code here, the digests of a full enumeration show.
    """
    remainder = tl.fma(-approximate, LARGEST, code)
    return tl.fma(remainder, RECIPROCAL, approximate)


@triton.jit
def enumerate_kernel(tiles_ptr, x_ptr, narrow_ptr, MANTISSA: tl.constexpr, BLOCK: tl.constexpr):
    """Writes float32, as int32, and their nearest narrow weights; arguments as below."""
    program = tl.program_id(0)
    upper = tl.load(tiles_ptr + program // (TILE // BLOCK)) << 16
    lower = (program % (TILE // BLOCK)) * BLOCK + tl.arange(0, BLOCK)
    bits = upper | lower
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, bits)
    tl.store(narrow_ptr + at, _narrowed(bits.to(tl.float32, bitcast=True), MANTISSA))


@triton.jit
def check_round_trip_kernel(
    tiles_ptr,
    rows_ptr,
    x_ptr,
    narrow_ptr,
    rho_ptr,
    values_ptr,
    counts_ptr,
    listed_ptr,
    n_listed_ptr,
    LARGEST: tl.constexpr,
    RECIPROCAL: tl.constexpr,
    MANTISSA: tl.constexpr,
    EXPONENT_MASK: tl.constexpr,
    BIAS: tl.constexpr,
    FUSING_BELOW: tl.constexpr,
    LISTS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One tile of 2^16 float32 a program.

    Args:
        tiles_ptr: int32, the upper 16 bits of each tile's float32, as a number.
        rows_ptr: int32, the row of the counts that each tile is counted in.
        x_ptr: the float32 fed, as int32; ``narrow_ptr``: the narrow weights fed, as int16.
        rho_ptr: the subject's codes; ``values_ptr``: its values, as int32.
        counts_ptr: int32 of shape (rows, 7): the counts and the digest are added to.
        listed_ptr: int32 of shape (3, LISTS, CAPACITY): inputs' bits, codes, and values' bits.
        n_listed_ptr: int32 of shape (LISTS,): how many each list has, or would have, if it is more.
        RECIPROCAL: the float32 nearest 1 / LARGEST.
        FUSING_BELOW: the float32 exponent field below which a fused sum may be another one.
    """
    program = tl.program_id(0)
    tile = tl.load(tiles_ptr + program)
    upper = tile << 16
    fusing = ((tile >> 7) & 0xFF) < FUSING_BELOW
    start = program.to(tl.int64) * TILE
    # Counts of up to 2^16 / BLOCK blocks, in bytes of two integers.
    first = tl.zeros([BLOCK], tl.int32)
    second = tl.zeros([BLOCK], tl.int32)
    digest = tl.zeros([BLOCK], tl.int32)
    for step in range(TILE // BLOCK):
        lower = step * BLOCK + tl.arange(0, BLOCK)
        at = start + lower
        bits = upper | lower
        x = bits.to(tl.float32, bitcast=True)
        narrow = _narrowed(x, MANTISSA)
        changed = (tl.load(x_ptr + at) != bits) | (tl.load(narrow_ptr + at) != narrow)
        rho = tl.load(rho_ptr + at).to(tl.int32)
        given = tl.load(values_ptr + at)

        wide = widened(narrow, MANTISSA)
        ulp = log2_half_ulp(narrow, MANTISSA, EXPONENT_MASK, BIAS)
        half = half_floor(-ulp)
        error = ((x - wide) * power_of_two(half)) * power_of_two(-ulp - half)
        clamped = tl.minimum(tl.maximum(error, -1.0), 1.0)
        product = clamped * LARGEST
        # As round_half_even does it; the sum's bits have the integer as well.
        rounded = product + 12582912.0
        code = rounded - 12582912.0
        integer = rounded.to(tl.int32, bitcast=True) - 0x4B400000
        rho_differs = rho != integer

        half = half_floor(ulp)
        scale, rest = power_of_two(half), power_of_two(ulp - half)
        approximate = code * RECIPROCAL
        fraction = _quotient(code, approximate, LARGEST, RECIPROCAL) * scale
        by_reciprocal = approximate * scale
        value = (wide + fraction * rest).to(tl.int32, bitcast=True)
        value_differs = value != given
        # A sum is also another one where it is fused, or of a product with the reciprocal.
        moves = (wide + by_reciprocal * rest).to(tl.int32, bitcast=True) != value
        if fusing:
            moves |= tl.fma(fraction, rest, wide).to(tl.int32, bitcast=True) != value
            moves |= tl.fma(by_reciprocal, rest, wide).to(tl.int32, bitcast=True) != value
        moves |= _tie_matters(clamped, product, code, LARGEST)

        nonfinite = (given & 0x7F800000) == 0x7F800000
        first += rho_differs.to(tl.int32) + (value_differs.to(tl.int32) << 8)
        first += ((given == bits).to(tl.int32) << 16) + ((value == bits).to(tl.int32) << 24)
        second += nonfinite.to(tl.int32) + (changed.to(tl.int32) << 8)
        digest += _mixed(bits, integer, value)

        listed = rho_differs | value_differs | moves
        list_ = program % LISTS
        counter = n_listed_ptr + list_ + tl.zeros([BLOCK], tl.int32)
        slot = tl.atomic_add(counter, 1, mask=listed, sem="relaxed")
        kept = listed & (slot < CAPACITY)
        into = listed_ptr + list_ * CAPACITY + slot
        tl.store(into, bits, mask=kept)
        tl.store(into + LISTS * CAPACITY, rho, mask=kept)
        tl.store(into + 2 * LISTS * CAPACITY, given, mask=kept)
    counts = counts_ptr + tl.load(rows_ptr + program) * 7
    for column in tl.static_range(4):
        tl.atomic_add(counts + column, tl.sum((first >> (8 * column)) & 0xFF), sem="relaxed")
    for column in tl.static_range(2):
        tl.atomic_add(counts + 4 + column, tl.sum((second >> (8 * column)) & 0xFF), sem="relaxed")
    tl.atomic_add(counts + 6, tl.sum(digest), sem="relaxed")
