"""Every input of a domain is met once, in the bucket of its exponent, and by its own index."""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashcheck.formats import BF16, FP16, INT8, INT16, UINT8, CodeFormat, FloatFormat
from flashcheck.inputs.domains import (
    EVERY_FLOAT32,
    MINUS_ONE_TO_ONE,
    ZERO_TO_ONE,
    Bucket,
    Domain,
    Enumeration,
    Float32,
    Pairs,
    Slice,
)

FLOATS = {"every": EVERY_FLOAT32, "signed": MINUS_ONE_TO_ONE, "unsigned": ZERO_TO_ONE}
BF16_INT8, BF16_INT16 = Pairs(BF16, INT8), Pairs(BF16, INT16)
FP16_INT8, FP16_INT16 = Pairs(FP16, INT8), Pairs(FP16, INT16)
SCALES_INT8, SCALES_UINT8 = Pairs(FP16, INT8, together=True), Pairs(FP16, UINT8, together=True)
PAIRS = {
    "bf16+int8": BF16_INT8,
    "bf16+int16": BF16_INT16,
    "fp16+int8": FP16_INT8,
    "fp16+int16": FP16_INT16,
    "scales+int8": SCALES_INT8,
    "scales+uint8": SCALES_UINT8,
}
DOMAINS: dict[str, Domain] = {**FLOATS, **PAIRS}
NAMES = list(DOMAINS)


def bits_of(x: torch.Tensor) -> np.ndarray:
    """Of float32 or narrow floats the bits, as unsigned numbers."""
    signed = x.view(torch.int32 if x.element_size() == 4 else torch.int16).numpy()
    return signed.view(np.uint32 if x.element_size() == 4 else np.uint16)


def fields_of(values: np.ndarray) -> np.ndarray:
    """The float32 exponent field of float64, by their size and not by their bits."""
    # A normal number is m 2^e with m from 1/2, so that its field is e + 126.
    fields = np.maximum(np.frexp(values)[1] + 126, 0)
    fields[values == 0] = 0
    fields[~np.isfinite(values)] = 255
    return fields


def doubles(x: torch.Tensor) -> np.ndarray:
    """What narrow floats stand for, widened by NumPy alone."""
    bits = bits_of(x)
    if x.dtype == torch.float16:
        return bits.view(np.float16).astype(np.float64)
    if x.dtype == torch.bfloat16:
        bits = bits.astype(np.uint32) << 16
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return bits.view(np.float32).astype(np.float64)


def finite_patterns(floats: FloatFormat) -> np.ndarray:
    every = np.arange(1 << 16, dtype=np.uint32)
    if floats is FP16:
        return every[np.isfinite(every.astype(np.uint16).view(np.float16))]
    return every[np.isfinite((every << 16).view(np.float32))]


def code_range(codes: CodeFormat) -> tuple[int, int]:
    return {"int8": (-127, 127), "int16": (-32767, 32767), "uint8": (0, 255)}[codes.name]


def whole_bucket(domain: Domain, bucket: Bucket) -> tuple[torch.Tensor, ...]:
    return domain.values(bucket.exponent, torch.arange(bucket.size))


# ---- Sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_buckets_are_in_order_and_each_begins_where_the_last_ended(name: str) -> None:
    first = 0
    exponents = []
    for bucket in DOMAINS[name].buckets:
        assert bucket.size > 0
        assert bucket.first == first
        first += bucket.size
        exponents.append(bucket.exponent)
    assert exponents == sorted(set(exponents))


def test_there_are_as_many_float32_as_there_are() -> None:
    assert {bucket.size for bucket in EVERY_FLOAT32.buckets} == {1 << 24}
    assert [bucket.exponent for bucket in EVERY_FLOAT32.buckets] == list(range(256))
    assert sum(bucket.size for bucket in EVERY_FLOAT32.buckets) == 1 << 32
    one = struct.unpack("<I", struct.pack("<f", 1.0))[0]
    # Every pattern from that of 0 to that of 1.
    assert sum(bucket.size for bucket in ZERO_TO_ONE.buckets) == one + 1
    assert sum(bucket.size for bucket in MINUS_ONE_TO_ONE.buckets) == 2 * (one + 1)
    assert sum(b.size for b in MINUS_ONE_TO_ONE.buckets) == (1 << 31) - (1 << 24) + 2


@pytest.mark.parametrize("name", PAIRS)
def test_there_are_as_many_pairs_as_there_are(name: str) -> None:
    domain = PAIRS[name]
    low, high = code_range(domain.codes)
    finite = {"bf16": 65280, "fp16": 63488}[domain.floats.name]
    assert len(finite_patterns(domain.floats)) == finite
    assert sum(bucket.size for bucket in domain.buckets) == finite * (high - low + 1)
    assert domain.row == (high - low + 1 if domain.together else 1)


@pytest.mark.parametrize("name", PAIRS)
def test_a_bucket_of_pairs_has_the_floats_of_its_exponent(name: str) -> None:
    domain = PAIRS[name]
    low, high = code_range(domain.codes)
    patterns = finite_patterns(domain.floats)
    wide = patterns.astype(np.uint16).view(np.float16) if domain.floats is FP16 else patterns << 16
    values = wide if domain.floats is FP16 else wide.view(np.float32)
    numbers = np.bincount(fields_of(values.astype(np.float64)), minlength=256)
    wanted = {int(field): int(numbers[field]) * (high - low + 1) for field in numbers.nonzero()[0]}
    assert {bucket.exponent: bucket.size for bucket in domain.buckets} == wanted


# ---- One to one ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "exponent"),
    [
        *(("every", field) for field in (0, 1, 127, 255)),
        *(("signed", field) for field in (126, 127)),
        *(("unsigned", field) for field in (0, 126, 127)),
    ],
)
def test_a_bucket_of_float32_has_each_once(name: str, exponent: int) -> None:
    domain = FLOATS[name]
    (bucket,) = (b for b in domain.buckets if b.exponent == exponent)
    (x,) = whole_bucket(domain, bucket)
    assert x.dtype == torch.float32
    bits = bits_of(x)
    # All different, all of one exponent: as many as that, they are all of it.
    sign_and_mantissa = bits >> 31 << 23 | bits & 0x7FFFFF
    assert np.bincount(sign_and_mantissa, minlength=1 << 24).max() == 1
    assert bool((fields_of(doubles(x)) == exponent).all())
    if name != "every":
        assert np.abs(doubles(x)).max() <= 1
    if name == "unsigned":
        assert not np.signbit(doubles(x)).any()


@given(st.sampled_from(list(FLOATS)), st.integers(0, (1 << 32) - 1))
def test_an_index_is_that_of_one_float32(name: str, number: int) -> None:
    domain = FLOATS[name]
    size = sum(bucket.size for bucket in domain.buckets)
    index = number % size
    bucket = max((b for b in domain.buckets if b.first <= index), key=lambda b: b.first)
    (x,) = domain.values(bucket.exponent, torch.tensor([index - bucket.first]))
    value = x.double().item()
    field = 255
    if math.isfinite(value):
        field = max(math.frexp(value)[1] + 126, 0) if value else 0
    assert field == bucket.exponent
    bits = int(bits_of(x)[0])
    half = bucket.size // domain.signs
    assert bits >> 31 == (index - bucket.first) // half
    assert bits & 0x7FFFFF == (index - bucket.first) % half


@pytest.mark.parametrize("name", ["bf16+int8", "fp16+int8", "scales+int8", "scales+uint8"])
def test_small_domains_enumerated_are_every_pair_once(name: str) -> None:
    domain = PAIRS[name]
    enumeration = Enumeration(domain)
    met = np.zeros(1 << 24, dtype=np.uint8)
    last = -1
    for part in enumeration.slices(1 << 22):
        positions = enumeration.positions(part)
        index = enumeration.index(part, positions)
        # In order, each index once.
        assert int(index[0]) == last + 1
        assert bool((index[1:] - index[:-1] == 1).all())
        last = int(index[-1])
        floats, codes = domain.values(part.exponent, positions)
        assert bool((fields_of(doubles(floats)) == part.exponent).all())
        met += np.bincount(
            bits_of(floats).astype(np.int64) << 8 | codes.numpy().astype(np.int64) & 0xFF,
            minlength=1 << 24,
        ).astype(np.uint8)
    low, high = code_range(domain.codes)
    wanted = np.zeros((1 << 16, 1 << 8), dtype=np.uint8)
    every_code = np.arange(low, high + 1) & 0xFF
    wanted[np.ix_(finite_patterns(domain.floats), every_code)] = 1
    assert bool((met.reshape(wanted.shape) == wanted).all())
    assert last + 1 == wanted.sum() == enumeration.total == enumeration.size


@pytest.mark.parametrize("name", ["bf16+int16", "fp16+int16"])
def test_a_bucket_of_wide_codes_has_each_pair_once(name: str) -> None:
    domain = PAIRS[name]
    bucket = min(domain.buckets, key=lambda b: b.size)
    floats, codes = whole_bucket(domain, bucket)
    assert codes.dtype == torch.int16
    assert int(codes.min()) == -32767
    assert int(codes.max()) == 32767
    fields = fields_of(doubles(floats[:: domain.codes.max_code]))
    assert bool((fields == bucket.exponent).all())
    # Pattern p of the bucket has all codes, then follows the next.
    patterns = bits_of(floats).reshape(-1, 65535)
    assert bool((patterns == patterns[:, :1]).all())
    assert len(set(patterns[:, 0].tolist())) == bucket.size // 65535
    keys = codes.numpy().reshape(-1, 65535)
    assert bool((np.diff(keys.astype(np.int32), axis=1) == 1).all())


@pytest.mark.parametrize("name", ["scales+int8", "scales+uint8"])
def test_a_row_is_a_scale_with_all_its_codes(name: str) -> None:
    domain = PAIRS[name]
    low, high = code_range(domain.codes)
    for bucket in domain.buckets[:3] + domain.buckets[-1:]:
        scales, codes = (some.reshape(-1, domain.row) for some in whole_bucket(domain, bucket))
        assert bool((codes.int() == torch.arange(low, high + 1, dtype=torch.int32)).all())
        assert bool((scales.view(torch.int16) == scales.view(torch.int16)[:, :1]).all())


def test_dtypes_and_words() -> None:
    for name, domain in PAIRS.items():
        floats, codes = domain.values(domain.buckets[0].exponent, torch.tensor([0, 1]))
        assert floats.dtype == (torch.float16 if domain.floats is FP16 else torch.bfloat16), name
        assert str(codes.dtype) == f"torch.{domain.codes.name}", name
    assert BF16_INT8.words == "pairs of a finite bf16 weight and an int8 code"
    assert SCALES_UINT8.words == "pairs of a finite fp16 scale and an uint8 code"


# ---- Parts of it ---------------------------------------------------------------------------


class Rows:
    """A small domain of rows: an input is its exponent and position."""

    words = "made up"

    def __init__(self, sizes: dict[int, int], row: int) -> None:
        self.row = row
        self.buckets = []
        first = 0
        for exponent, rows in sorted(sizes.items()):
            self.buckets.append(Bucket(exponent, rows * row, first))
            first += rows * row

    def values(self, exponent: int, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full_like(positions, exponent), positions


def taken_of(enumeration: Enumeration, longest: int) -> list[tuple[int, int, int]]:
    """Of each input taken, in order, its exponent, its position, and its index."""
    found = []
    for part in enumeration.slices(longest):
        positions = enumeration.positions(part)
        assert positions.dtype == torch.int64
        assert len(part) == positions.numel() == part.stop - part.start
        index = enumeration.index(part, positions)
        found += [
            (part.exponent, p, i) for p, i in zip(positions.tolist(), index.tolist(), strict=True)
        ]
    return found


SIZES = st.dictionaries(st.integers(0, 255), st.integers(1, 40), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(
    sizes=SIZES,
    row=st.integers(1, 5),
    limit=st.none() | st.integers(1, 900),
    exponents=st.none() | st.lists(st.integers(0, 255), max_size=4),
    longest=st.integers(1, 60),
    chosen=st.integers(0, 7),
)
def test_a_part_has_what_was_asked_for(
    sizes: dict[int, int],
    row: int,
    limit: int | None,
    exponents: list[int] | None,
    longest: int,
    chosen: int,
) -> None:
    domain = Rows(sizes, row)
    if exponents is not None:
        exponents.append(sorted(sizes)[chosen % len(sizes)])
    enumeration = Enumeration(domain, exponents=exponents, limit=limit)
    asked = [b for b in domain.buckets if exponents is None or b.exponent in exponents]
    there = sum(bucket.size for bucket in asked)
    size = sum(bucket.size for bucket in domain.buckets)
    number = there if limit is None else min(limit, there)
    assert enumeration.size == size
    assert enumeration.total == number
    assert enumeration.whole is (number == size)

    found = taken_of(enumeration, longest)
    assert len(found) == number
    # None twice, and each of its bucket: the index says which of all it is.
    assert len(set(found)) == number
    starts = [bucket.first for bucket in domain.buckets]
    for exponent, position, index in found:
        bucket = domain.buckets[bisect.bisect_right(starts, index) - 1]
        assert (bucket.exponent, index - bucket.first) == (exponent, position)
        assert 0 <= position < bucket.size
    assert {exponent for exponent, _, _ in found} <= {bucket.exponent for bucket in asked}

    for bucket in asked:
        some = [position for exponent, position, _ in found if exponent == bucket.exponent]
        # The bucket's share, to within one.
        assert abs(len(some) - Fraction(number * bucket.size, there)) < 1
        assert enumeration.taken.get(bucket.exponent, 0) == len(some)
        if bucket.exponent in enumeration.taken:
            whole = some == list(range(bucket.size))
            assert enumeration.is_whole(bucket.exponent) <= whole
            if number == there:
                assert enumeration.is_whole(bucket.exponent)
    # However it is cut, the same inputs come in the same order.
    assert taken_of(enumeration, 1 << 30) == found


@settings(max_examples=200, deadline=None)
@given(
    sizes=SIZES,
    row=st.integers(1, 7),
    limit=st.none() | st.integers(1, 900),
    longest=st.integers(1, 60),
)
def test_no_slice_cuts_a_row(
    sizes: dict[int, int], row: int, limit: int | None, longest: int
) -> None:
    domain = Rows(sizes, row)
    enumeration = Enumeration(domain, limit=limit)
    stops: dict[int, int] = {}
    for part in enumeration.slices(longest):
        assert part.start == stops.get(part.exponent, 0)
        assert part.start % row == 0
        assert 0 < len(part) <= max(longest, row)
        stops[part.exponent] = part.stop
        positions = enumeration.positions(part)
        # A row's inputs follow each other, from its first one.
        places = torch.arange(len(part)) % row
        assert bool((positions % row == places).all())
        assert len(set((positions // row).tolist())) == -(-len(part) // row)
    assert stops == enumeration.taken
    for part in enumeration.slices(longest):
        # Only where a bucket ends may a row be taken in part.
        assert part.stop % row == 0 or part.stop == enumeration.taken[part.exponent]


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_shared_by_all_buckets(name: str) -> None:
    enumeration = Enumeration(DOMAINS[name], limit=5000)
    assert enumeration.total == 5000
    assert not enumeration.whole
    assert not any(enumeration.is_whole(exponent) for exponent in enumeration.taken)
    for part in enumeration.slices(1 << 20):
        positions = enumeration.positions(part)
        assert len(set(positions.tolist())) == len(part)


def ones_and_zeros(bits: Iterable[int]) -> tuple[int, int]:
    ones, zeros = 0, 0
    for some in bits:
        ones |= some
        zeros |= ~some
    return ones, zeros


@pytest.mark.parametrize("name", list(FLOATS))
def test_a_limit_meets_every_bit_of_the_mantissa(name: str) -> None:
    domain = FLOATS[name]
    mask = 0x7FFFFF
    enumeration = Enumeration(domain, limit=3000)
    met = []
    for part in enumeration.slices(1 << 20):
        (x,) = domain.values(part.exponent, enumeration.positions(part))
        met += bits_of(x).tolist()
    ones, zeros = ones_and_zeros(met)
    assert ones & mask == mask
    assert zeros & mask == mask
    signs = {bits >> 31 for bits in met}
    assert signs == ({0} if name == "unsigned" else {0, 1})
    # And in one exponent, of which a few hundred are taken, evenly spread.
    one = Enumeration(domain, exponents=[100], limit=300)
    (part,) = one.slices(1 << 20)
    positions = one.positions(part)
    ones, zeros = ones_and_zeros(positions.tolist())
    assert ones & mask == mask
    assert zeros & mask == mask
    gaps = positions.sort().values.diff()
    (bucket,) = (b for b in domain.buckets if b.exponent == 100)
    assert int(gaps.max()) < 3 * bucket.size / 300


@pytest.mark.parametrize("name", ["bf16+int8", "fp16+int16"])
def test_a_limit_meets_every_bit_of_codes_and_weights(name: str) -> None:
    domain = PAIRS[name]
    enumeration = Enumeration(domain, limit=4000)
    seen: tuple[list[int], list[int]] = ([], [])
    for part in enumeration.slices(1 << 20):
        floats, codes = domain.values(part.exponent, enumeration.positions(part))
        seen[0].extend(bits_of(floats).tolist())
        seen[1].extend(codes.tolist())
    mantissa = (1 << domain.floats.mantissa_bits) - 1
    for bits, mask in zip(seen, (mantissa | 1 << 15, domain.codes.max_code), strict=True):
        ones, zeros = ones_and_zeros(bits)
        assert ones & mask == mask
        assert zeros & mask == mask


def test_buckets_of_a_limit_do_not_all_meet_the_same_mantissas() -> None:
    enumeration = Enumeration(EVERY_FLOAT32, limit=256 * 4)
    met = [
        position
        for part in enumeration.slices(1 << 20)
        for position in enumeration.positions(part).tolist()
    ]
    assert len(met) == 1024
    assert len(set(met)) > 1000


# ---- Ends of the range ---------------------------------------------------------------------


def test_a_limit_of_all_or_more_is_the_whole_in_order() -> None:
    domain = Rows({3: 4, 7: 5}, 2)
    for limit in (18, 19, 1 << 40):
        enumeration = Enumeration(domain, limit=limit)
        assert enumeration.whole
        assert enumeration.is_whole(3)
        assert enumeration.is_whole(7)
        assert taken_of(enumeration, 4) == [
            *((3, p, p) for p in range(8)),
            *((7, p, p + 8) for p in range(10)),
        ]


def test_whole_buckets_of_some_exponents_are_not_the_whole() -> None:
    enumeration = Enumeration(Rows({3: 4, 7: 5, 9: 1}, 2), exponents=[7, 8, 7])
    assert list(enumeration.slices(4)) == [Slice(7, 0, 4), Slice(7, 4, 8), Slice(7, 8, 10)]
    assert not enumeration.whole
    assert enumeration.is_whole(7)
    assert (enumeration.total, enumeration.size) == (10, 20)


def test_a_bucket_that_is_wholly_taken_among_spread_ones_is_not_in_its_order() -> None:
    # 19 of 20: one bucket is taken whole, but like the others in spread steps.
    enumeration = Enumeration(Rows({3: 10, 7: 10}, 1), limit=19)
    (full,) = (exponent for exponent, taken in enumeration.taken.items() if taken == 10)
    assert not enumeration.is_whole(full)


def test_nothing_where_no_bucket_has_the_exponent() -> None:
    enumeration = Enumeration(SCALES_INT8, exponents=[200])
    assert list(enumeration.slices(1 << 20)) == []
    assert enumeration.total == 0
    assert not enumeration.whole


def test_a_slice_longer_than_anything_is_the_bucket() -> None:
    small = Float32("a few", last=0, whole=False)
    assert list(Enumeration(small).slices(1 << 40)) == [Slice(0, 0, 2)]
    (x,) = small.values(0, torch.arange(2))
    assert bits_of(x).tolist() == [0, 0x80000000]
