"""The tensor reference of Algorithms 2 and 3, bit by bit against the oracle."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashcheck.formats import BF16, FP16, FP32, FloatFormat, quantized_format, torch_dtype
from flashcheck.reference.arithmetic import CHUNK, PAPER, Arithmetic, NanAbsmax, Rounding
from flashcheck.reference.quantization import (
    dequantize,
    dequantize_groups,
    nmse,
    quantize,
    quantize_stages,
)
from tests import oracle
from tests.oracle import bits_of, decode, differences, encode, landmarks, tensor_of

SEED = 2602
EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=60)
SIGN = 1 << 31
INF, NAN = 0x7F800000, 0x7FC00000
FP64 = FloatFormat("fp64", "float64", exponent_bits=11, mantissa_bits=52)


class Spec(NamedTuple):
    """The algorithm's shape: keyword arguments of both the reference and the oracle."""

    signed: bool
    sqrt: bool
    softsign: bool


MOMENTUM, VARIANCE = Spec(True, False, True), Spec(False, True, False)
SPECS = {"momentum": MOMENTUM, "variance": VARIANCE}
ALL_SPECS = [Spec(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)]
BOTH = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)

ROUNDINGS = {
    "paper": PAPER,
    "half_away": Arithmetic(rounding=Rounding.HALF_AWAY),
    "half_up": Arithmetic(rounding=Rounding.HALF_UP),
    "half_away_fused": Arithmetic(rounding=Rounding.HALF_AWAY, fused_multiply_add=True),
    "half_up_fused": Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=True),
}
KERNEL = Arithmetic(
    rounding=Rounding.HALF_UP,
    fused_multiply_add=True,
    reciprocal_division=True,
    absmax_floor=1e-12,
    nan_absmax=NanAbsmax.IGNORE,
)
ARITHMETICS = ROUNDINGS | {
    "reciprocal": Arithmetic(reciprocal_division=True),
    "floor": Arithmetic(absmax_floor=1e-12),
    # One whose float16 is not zero, so that it shows in the scale as well.
    "high_floor": Arithmetic(absmax_floor=0.3),
    "ignore_nan": Arithmetic(nan_absmax=NanAbsmax.IGNORE),
    "kernel": KERNEL,
}
EACH = pytest.mark.parametrize("arithmetic", ARITHMETICS.values(), ids=ARITHMETICS)
EACH_ROUNDING = pytest.mark.parametrize("arithmetic", ROUNDINGS.values(), ids=ROUNDINGS)


def f32(exact: Fraction | float) -> int:
    """Bits of the float32 nearest a value."""
    return encode(oracle.round_exact(Fraction(exact), FP32), FP32)


def expected_groups(
    patterns: Sequence[int], spec: Spec, group_size: int, arithmetic: Arithmetic
) -> list[oracle.Group]:
    numbers = [decode(bits, FP32) for bits in patterns]
    return [
        oracle.quantize_group(
            numbers[start : start + group_size], **spec._asdict(), switches=arithmetic
        )
        for start in range(0, len(numbers), group_size)
    ]


def check_quantize(
    patterns: Sequence[int],
    spec: Spec,
    group_size: int,
    arithmetic: Arithmetic = PAPER,
    x: torch.Tensor | None = None,
) -> list[int]:
    """Codes and scales of float32 patterns, or of an ``x`` that stands for them."""
    x = tensor_of(patterns, FP32) if x is None else x
    codes, scales = quantize(x, **spec._asdict(), group_size=group_size, arithmetic=arithmetic)
    assert codes.dtype == torch_dtype(quantized_format(spec.signed))
    assert codes.shape == (len(patterns),)
    groups = expected_groups(patterns, spec, group_size, arithmetic)
    want = [code for group in groups for code in group.codes]
    shown = [f"{bits:#x} in group {i // group_size}" for i, bits in enumerate(patterns)]
    assert differences(codes.tolist(), want, shown) == [], f"codes, seed {SEED}"
    want_scales = [encode(group.scale, FP16) for group in groups]
    names = [shown[i * group_size] for i in range(len(groups))]
    assert differences(bits_of(scales, FP16), want_scales, names) == [], f"scales, seed {SEED}"
    return want


def random_group(rng: random.Random, size: int, *, signed: bool) -> list[int]:
    """Values within a few powers of two of each other, so that their codes are not all zero."""
    top = rng.randrange(2, 255)
    return [
        max(0, top - rng.choice((0, 0, 1, 2, 3, 7, 40))) << 23
        | rng.getrandbits(23)
        | (rng.getrandbits(1) << 31 if signed else 0)
        for _ in range(size)
    ]


# ---- Quantize ------------------------------------------------------------------------------

ABSMAX = [
    # Zero, the ends of the subnormals, the smallest normal number.
    *(0, 1, 0x007FFFFF, 0x00800000),
    # Scales that are subnormal, or round to zero.
    *(f32(2.0**-25), f32(2.0**-24), f32(1.5 * 2.0**-24), f32(2.0**-14)),
    # Beside the floors, and where float16 is coarse.
    *(f32(1e-12), f32(0.3), f32(1), f32(2049)),
    # Scales that are the greatest, or round to infinity.
    *(f32(65504), f32(65519), f32(65520), 0x7F7FFFFF),
]


def group_with(absmax: int) -> list[int]:
    """A group of that maximum: itself, near it, its half, the least values, both zeros."""
    return [
        *(absmax, absmax | SIGN, max(absmax - 1, 0), max(absmax - 2, 0) | SIGN),
        *(max(absmax - (1 << 23), 0), max(absmax - (9 << 22), 0) | SIGN),
        *(min(1, absmax), SIGN, 0),
    ]


@BOTH
@EACH
def test_group_maxima_and_their_neighbours(spec: Spec, arithmetic: Arithmetic) -> None:
    for centre in ABSMAX:
        for step in (-1, 0, 1):
            absmax = min(max(centre + step, 0), 0x7F7FFFFF)
            if spec.sqrt:
                # The value whose root is that maximum, and its neighbours.
                square = oracle.multiply(decode(absmax, FP32), decode(absmax, FP32))
                absmax = min(max(encode(square, FP32) + step, 0), 0x7F7FFFFF)
            group = group_with(absmax)
            if spec.sqrt:
                # -0 has a root, other negative values have none.
                group = [bits if bits == SIGN else bits & ~SIGN for bits in group]
            check_quantize(group, spec, len(group), arithmetic)


NONFINITE = [
    [0, 0, 0],
    [SIGN, SIGN],
    [f32(1), NAN, f32(2)],
    [f32(1), NAN | SIGN, f32(2)],
    [f32(1), 0x7F800001, f32(-2)],
    [NAN, NAN],
    [INF, f32(1), 0, f32(-1)],
    [INF | SIGN, f32(1)],
    [INF, INF | SIGN],
    [NAN, INF, f32(1)],
    [NAN, 0, SIGN],
    [f32(-1), f32(4)],
    [0x7F7FFFFF, INF, 1],
]
"""And groups of zeros, which must not make any."""


@BOTH
@EACH
def test_zeros_nan_and_infinities(spec: Spec, arithmetic: Arithmetic) -> None:
    for group in NONFINITE:
        # Between two plain groups, which must not notice.
        plain = [f32(0.75), f32(0.5), f32(1), f32(0)][: len(group)]
        check_quantize([*plain, *group, *plain], spec, len(group), arithmetic)


def test_nonfinite_values_do_what_the_docstring_says() -> None:
    inf, nan = math.inf, math.nan
    codes, scales = quantize(torch.tensor([nan, 1.0, inf, 1.0, -inf, 0.0]), group_size=2)
    assert codes.tolist() == [0] * 6
    assert scales.isnan().tolist() == [True, False, False]
    assert scales[1:].tolist() == [inf, inf]
    codes, scales = quantize(
        torch.tensor([-1.0, 4.0]), signed=False, sqrt=True, softsign=False, group_size=2
    )
    assert codes.tolist() == [0, 0]
    assert scales.isnan().tolist() == [True]
    absmax = torch.tensor([65519.0, 65520.0, 2.0**-24, 2.0**-25])
    assert quantize(absmax, group_size=1)[1].tolist() == [65504.0, inf, 2.0**-24, 0.0]


def near_ties(spec: Spec) -> list[int]:
    """1, and values whose code before rounding is at or by an integer and a half."""
    n = quantized_format(spec.signed).max_code
    patterns = [f32(1)]
    for k in range(n):
        y = Fraction(2 * k + 1, 2 * n)
        m = y / (2 - y) if spec.softsign else y
        centre = f32(m * m if spec.sqrt else m)
        patterns += [centre + d for d in (-1, 0, 1)]
    return patterns + ([bits | SIGN for bits in patterns] if spec.signed else [])


@BOTH
@EACH_ROUNDING
def test_codes_at_ties(spec: Spec, arithmetic: Arithmetic) -> None:
    patterns = near_ties(spec)
    check_quantize(patterns, spec, len(patterns), arithmetic)


@BOTH
def test_ties_are_hit(spec: Spec) -> None:
    """Else the roundings above were never told apart."""
    x = tensor_of(near_ties(spec), FP32)
    codes = {
        name: quantize(x, **spec._asdict(), group_size=len(x), arithmetic=arithmetic)[0].tolist()
        for name, arithmetic in ROUNDINGS.items()
    }
    assert codes["half_up"] != codes["paper"]
    assert codes["half_away"] != codes["paper"]
    # Codes of the variance have no sign to tell these two apart.
    assert (codes["half_up"] != codes["half_away"]) == spec.signed


@BOTH
@pytest.mark.parametrize("group_size", [1, 31, 32, 33])
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 65])
def test_group_sizes_and_last_groups(length: int, group_size: int, spec: Spec) -> None:
    rng = random.Random(SEED + length)
    patterns: list[int] = []
    while len(patterns) < length:
        patterns += random_group(rng, group_size, signed=spec.signed)
    for arithmetic in (PAPER, KERNEL):
        check_quantize(patterns[:length], spec, group_size, arithmetic)


@st.composite
def float_patterns(draw: st.DrawFn) -> list[int]:
    """Some values about one exponent, or of any, or remarkable."""
    top = draw(st.integers(0, 254))
    near = st.builds(
        lambda drop, low: max(0, top - drop) << 23 | low,
        st.integers(0, 9),
        st.sampled_from([0, 1, 0x7FFFFF]) | st.integers(0, 2**23 - 1),
    )
    anything = st.sampled_from(landmarks(FP32)) | st.integers(0, 2**32 - 1)
    positive = draw(st.lists(near, min_size=1, max_size=40))
    patterns = [bits | draw(st.sampled_from((0, SIGN))) for bits in positive]
    return patterns + draw(st.lists(anything, max_size=3))


@EXACT
@given(
    float_patterns(),
    st.sampled_from(ALL_SPECS),
    st.sampled_from([1, 2, 3, 31, 32, 33]),
    st.sampled_from(list(ARITHMETICS.values())),
)
@example([f32(1), f32(-0.5)], Spec(False, False, False), 2, PAPER)
@example([0x1, 0x2, 0x3], Spec(True, False, False), 2, KERNEL)
def test_random_values(
    patterns: list[int], spec: Spec, group_size: int, arithmetic: Arithmetic
) -> None:
    check_quantize(patterns, spec, group_size, arithmetic)


@BOTH
@EACH
def test_every_step_is_bit_equal(spec: Spec, arithmetic: Arithmetic) -> None:
    """Codes of 8 bits hide most errors of what they are rounded from; these are all its bits."""
    rng = random.Random(SEED)
    size = 16
    patterns = [b for _ in range(8) for b in random_group(rng, size, signed=spec.signed)]
    # Its codes cannot tell the guarded quotient 0/1 from the NaN of 0/0.
    patterns += [0, SIGN] * (size // 2)
    groups = tensor_of(patterns, FP32).reshape(-1, size)
    stages = quantize_stages(groups, **spec._asdict(), arithmetic=arithmetic)
    want = expected_groups(patterns, spec, size, arithmetic)
    absmax = [encode(group.absmax, FP32) for group in want]
    assert differences(bits_of(stages.absmax, FP32), absmax, range(len(want))) == []
    for name in ("normalised", "companded"):
        numbers = [x for group in want for x in getattr(group, name)]
        got = bits_of(getattr(stages, name), FP32)
        steps = [encode(x, FP32) for x in numbers]
        assert differences(got, steps, patterns) == [], f"{name}, seed {SEED}"
    assert stages.codes.reshape(-1).tolist() == [code for group in want for code in group.codes]
    assert bits_of(stages.scales, FP16) == [encode(group.scale, FP16) for group in want]


def test_square_roots_are_correctly_rounded() -> None:
    """torch.sqrt is not everywhere: with MKL it is off by an ULP for one float32 in 170."""
    rng = random.Random(SEED)
    patterns = [rng.randrange(0x7F800000) for _ in range(3000)]
    x = tensor_of(patterns, FP32)
    stages = quantize_stages(x[:, None], **VARIANCE._asdict())
    want = [encode(oracle.square_root(decode(bits, FP32)), FP32) for bits in patterns]
    assert differences(bits_of(stages.absmax, FP32), want, patterns) == [], f"seed {SEED}"
    whole = quantize_stages(x[None, :], **VARIANCE._asdict())
    assert bits_of(whole.absmax, FP32) == [max(want)]


# ---- What quantize takes -------------------------------------------------------------------


@BOTH
def test_other_dtypes_are_rounded_to_float32_first(spec: Spec) -> None:
    rng = random.Random(SEED)
    wide = [0x3FF0000000000000, 0x3FF0000010000000, 0x3FF0000030000000, 0x3FF0000010000001]
    wide += [rng.randrange(0x3FE0 << 48, 0x4000 << 48) for _ in range(28)]
    for fmt, patterns in (
        (FP64, wide),
        (FP64, [*wide[:5], 0x7FE0000000000000, 0x3690000000000000, 0x3690000000000001]),
        (BF16, [rng.randrange(0x3F00, 0x4080) for _ in range(40)] + [0x0001, 0x0080]),
        (FP16, [rng.randrange(0x3800, 0x4400) for _ in range(40)] + [0x0001, 0x7BFF]),
    ):
        rounded = [encode(oracle.convert(decode(b, fmt), FP32), FP32) for b in patterns]
        check_quantize(rounded, spec, 8, PAPER, tensor_of(patterns, fmt))


def test_other_layouts_are_read_in_row_major_order() -> None:
    rng = random.Random(SEED)
    patterns = random_group(rng, 70, signed=True)
    x = tensor_of(patterns, FP32)
    transposed = x.reshape(10, 7).t().contiguous().t()
    strided = torch.stack([x, -x], dim=1)[:, 0]
    for view in (x.reshape(2, 5, 7), transposed, strided):
        check_quantize(patterns, MOMENTUM, 32, PAPER, view)
    assert not transposed.is_contiguous()
    assert not strided.is_contiguous()
    check_quantize(patterns[:1], MOMENTUM, 32, PAPER, x[0])
    check_quantize(patterns, MOMENTUM, 32, PAPER, x.clone().requires_grad_())


def test_the_defaults_are_momentum_in_groups_of_32() -> None:
    patterns = random_group(random.Random(SEED), 70, signed=True)
    codes, scales = quantize(tensor_of(patterns, FP32))
    groups = expected_groups(patterns, MOMENTUM, 32, PAPER)
    assert codes.tolist() == [code for group in groups for code in group.codes]
    assert bits_of(scales, FP16) == [encode(group.scale, FP16) for group in groups]
    plain, default = dequantize(codes, scales), dequantize(codes, scales, True, False, True, 32)
    assert bits_of(plain, FP32) == bits_of(default, FP32)


def test_nothing_in_nothing_out() -> None:
    codes, scales = quantize(torch.empty(0))
    assert (codes.dtype, codes.shape) == (torch.int8, (0,))
    assert (scales.dtype, scales.shape) == (torch.float16, (0,))
    values = dequantize(codes, scales)
    assert (values.dtype, values.shape) == (torch.float32, (0,))


def test_inputs_are_left_alone() -> None:
    patterns = [f32(3), NAN, INF, f32(-1), 1, SIGN]
    x = tensor_of(patterns, FP32)
    for arithmetic in ARITHMETICS.values():
        for spec in ALL_SPECS:
            codes, scales = quantize(x, **spec._asdict(), group_size=2, arithmetic=arithmetic)
            kept = codes.tolist(), bits_of(scales, FP16)
            dequantize(codes, scales, **spec._asdict(), group_size=2, arithmetic=arithmetic)
            assert (codes.tolist(), bits_of(scales, FP16)) == kept
    assert bits_of(x, FP32) == patterns


@pytest.mark.parametrize("group_size", [0, -1])
def test_group_sizes_are_positive(group_size: int) -> None:
    with pytest.raises(ValueError, match=f"group_size is {group_size}; it must be positive"):
        quantize(torch.ones(4), group_size=group_size)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_only_floating_values_are_quantized(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"x is {dtype}; it must be of a floating dtype"):
        quantize(torch.ones(4, dtype=dtype))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_there_is_one_scale_a_group(count: int) -> None:
    codes, scales = torch.zeros(33, dtype=torch.int8), torch.ones(count, dtype=torch.float16)
    with pytest.raises(ValueError, match=f"{count} scales for 2 groups of 32"):
        dequantize(codes, scales)


# ---- Dequantize ----------------------------------------------------------------------------

SCALES = [
    *(0x0000, 0x0001, 0x0002, 0x03FF, 0x0400, 0x0401, 0x1400, 0x2E66, 0x3555, 0x3BFF, 0x3C00),
    *(0x3C01, 0x4248, 0x5BFF, 0x7BFE, 0x7BFF, 0x7C00, 0x7E00, 0xBC00),
]
"""Zero, subnormals, powers of two and neighbours, the greatest, infinity, NaN, and a negative."""


def check_dequantize(
    codes: Sequence[int],
    scales: Sequence[int],
    spec: Spec,
    group_size: int,
    arithmetic: Arithmetic,
) -> None:
    dtype = torch_dtype(quantized_format(spec.signed))
    got = dequantize(
        torch.tensor(codes, dtype=dtype),
        tensor_of(scales, FP16),
        **spec._asdict(),
        group_size=group_size,
        arithmetic=arithmetic,
    )
    assert got.shape == (len(codes),)
    numbers = [decode(bits, FP16) for bits in scales]
    want = [
        oracle.dequantize(code, numbers[i // group_size], **spec._asdict(), switches=arithmetic)
        for i, code in enumerate(codes)
    ]
    shown = [f"{code} * {scales[i // group_size]:#x}" for i, code in enumerate(codes)]
    assert differences(bits_of(got, FP32), [encode(x, FP32) for x in want], shown) == []


@BOTH
@pytest.mark.parametrize("reciprocal", [False, True], ids=["quotient", "reciprocal"])
def test_all_codes_are_dequantized(reciprocal: bool, spec: Spec) -> None:
    # -128 is no code of ours, but a subject may store it.
    codes = list(range(-128, 128) if spec.signed else range(256))
    arithmetic = Arithmetic(reciprocal_division=reciprocal)
    check_dequantize(codes * len(SCALES), SCALES, spec, 256, arithmetic)


@EXACT
@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=70),
    st.integers(0, 2**64),
    st.sampled_from(ALL_SPECS),
    st.sampled_from([1, 31, 32, 33]),
    st.sampled_from([PAPER, KERNEL, Arithmetic(fused_multiply_add=True)]),
)
def test_random_codes_are_dequantized(
    codes: list[int], seed: int, spec: Spec, group_size: int, arithmetic: Arithmetic
) -> None:
    rng = random.Random(seed)
    scales = [rng.getrandbits(16) for _ in range(-(-len(codes) // group_size))]
    codes = [code - 128 for code in codes] if spec.signed else codes
    check_dequantize(codes, scales, spec, group_size, arithmetic)


def test_an_infinite_scale_does_what_the_docstring_says() -> None:
    scale = torch.tensor([math.inf], dtype=torch.float16)
    got = dequantize(torch.tensor([-3, 0, 3], dtype=torch.int8), scale)
    assert got[0] == -math.inf
    assert got[1].isnan()
    assert got[2] == math.inf


def test_codes_of_other_layouts_are_read_in_row_major_order() -> None:
    codes = torch.arange(-35, 35, dtype=torch.int8)
    scales = torch.tensor([[1.0], [2.0], [0.5]], dtype=torch.float16)
    flat = dequantize(codes, scales.reshape(-1))
    transposed = codes.reshape(10, 7).t().contiguous().t()
    assert not transposed.is_contiguous()
    assert bits_of(dequantize(transposed, scales), FP32) == bits_of(flat, FP32)


@EACH
def test_groups_stay_on_their_device(arithmetic: Arithmetic) -> None:
    """The device "meta" holds no values, but like any other takes no operand of the CPU's."""
    for spec in ALL_SPECS:
        options = {**spec._asdict(), "arithmetic": arithmetic}
        stages = quantize_stages(torch.ones(2, 3, device="meta"), **options)
        assert {step.device.type for step in vars(stages).values()} == {"meta"}
        assert dequantize_groups(stages.codes, stages.scales, **options).device.type == "meta"


# ---- Chunks and threads --------------------------------------------------------------------


def many(count: int) -> torch.Tensor:
    """Positive float32 between 2^-8 and 2, as bits."""
    generator = torch.Generator().manual_seed(SEED)
    bits = torch.randint(119 << 23, 128 << 23, (count,), generator=generator)
    return bits.to(torch.int32).view(torch.float32)


@BOTH
@pytest.mark.parametrize("group_size", [1, 32, 33, CHUNK, CHUNK + 1])
def test_chunks_change_no_bit(group_size: int, spec: Spec) -> None:
    """The whole is its slices: each a few groups, which one chunk holds."""
    rows = max(1, CHUNK // group_size)
    edge = rows * group_size
    x = many(2 * edge + group_size + 1)
    few = max(1, rows // 3) * group_size
    for length in {edge - 1, edge, edge + 1, edge + group_size, CHUNK - 1, CHUNK + 1, len(x)}:
        part = x[:length]
        codes, scales = quantize(part, **spec._asdict(), group_size=group_size)
        sliced = [
            quantize(p, **spec._asdict(), group_size=group_size) for p in torch.split(part, few)
        ]
        assert torch.equal(codes, torch.cat([c for c, _ in sliced])), f"{length}, seed {SEED}"
        assert torch.equal(scales, torch.cat([s for _, s in sliced])), f"{length}, seed {SEED}"
        values = dequantize(codes, scales, **spec._asdict(), group_size=group_size)
        back = [dequantize(*p, **spec._asdict(), group_size=group_size) for p in sliced]
        assert torch.equal(values, torch.cat(back)), f"{length}, seed {SEED}"


def test_chunk_edges_agree_with_the_oracle() -> None:
    """The groups at both sides of an edge, cut out of the whole."""
    x = many(CHUNK + 40)
    patterns = bits_of(x[CHUNK - 64 :], FP32)
    codes, scales = quantize(x)
    groups = expected_groups(patterns, MOMENTUM, 32, PAPER)
    assert codes[CHUNK - 64 :].tolist() == [code for group in groups for code in group.codes]
    assert bits_of(scales[CHUNK // 32 - 2 :], FP16) == [encode(g.scale, FP16) for g in groups]


@BOTH
def test_threads_change_no_bit(spec: Spec) -> None:
    x = many(2 * CHUNK + 33)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            codes, scales = quantize(x, **spec._asdict())
            results.append((codes, scales, dequantize(codes, scales, **spec._asdict())))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two), f"seed {SEED}"


# ---- Normalised mean squared error ---------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "value"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.0], [0.0, 0.0], 1.0),
        ([3.0, 4.0], [3.0, -1.0], 1.0),
        ([1.0, 2.0, 2.0], [1.0, 2.0, 0.5], 0.25),
        ([0.0, -0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1.0], math.inf),
        ([], [], 0.0),
        ([1.0], [math.inf], math.inf),
        ([0.0], [math.inf], math.inf),
        ([0.0], [1e-30], math.inf),
    ],
)
def test_nmse(x: list[float], y: list[float], value: float) -> None:
    got = nmse(torch.tensor(x), torch.tensor(y))
    assert type(got) is float
    assert got == value


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([math.nan, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, math.nan]),
        ([math.inf], [1.0]),
        ([math.inf], [math.inf]),
        ([0.0], [math.nan]),
    ],
)
def test_nmse_of_nonfinite_elements_is_not_finite(x: list[float], y: list[float]) -> None:
    assert not math.isfinite(nmse(torch.tensor(x), torch.tensor(y)))


def test_nmse_is_in_float64_whatever_it_is_given() -> None:
    # The squares are no float32: 2^-200 and 2^200 over 2^202.
    tiny, huge = torch.tensor([2.0**-100]), torch.tensor([2.0**100])
    assert nmse(tiny, torch.zeros(1)) == 1.0
    assert nmse(2 * huge, huge) == 0.25
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    y = torch.tensor([1.0, 2.5, 3.0, 4.0])
    want = float(Fraction(5, 4) / 39)
    assert nmse(x, y) == want
    assert nmse(x.t().contiguous().t(), y) == want
    assert nmse(x.half(), y.bfloat16()) == want
    assert nmse(x.double(), y.double()) == want
    # 1 + 2^-52 is itself only in float64.
    near = torch.tensor([1 + 2.0**-52], dtype=torch.float64)
    assert nmse(near, torch.ones(1)) == 2.0**-104 / (1 + 2.0**-52) ** 2
    assert x.tolist() == [[1.0, 2.0], [3.0, 5.0]]
