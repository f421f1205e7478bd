"""The oracle against facts that are not ours: Python's floats, ``struct``, ``fsum``, torch."""

from __future__ import annotations

import ast
import math
import random
import struct
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashcheck.formats import BF16, FP16, FP32, INT8, INT16, UINT8, FloatFormat, torch_dtype
from flashcheck.reference.arithmetic import PAPER, Arithmetic, Rounding
from tests import oracle
from tests.oracle import Number, bits_of, decode, differences, encode, landmarks, tensor_of

FP64 = FloatFormat("fp64", "float64", exponent_bits=11, mantissa_bits=52)
"""Python's own float: the oracle's rounding knows no format by name, so it must do this too."""

STRUCT = {"fp16": "e", "fp32": "f", "fp64": "d"}
UNSIGNED = {"fp16": "H", "fp32": "I", "fp64": "Q"}
SEED = 20260223

EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=150)
FP32_BITS = st.sampled_from(landmarks(FP32)) | st.integers(0, 2**32 - 1)


def packed(value: float, fmt: FloatFormat) -> int:
    """The bits Python's ``struct`` rounds a double to, which raises where IEEE-754 overflows."""
    try:
        raw = struct.pack("<" + STRUCT[fmt.name], value)
    except OverflowError:
        raw = struct.pack("<" + STRUCT[fmt.name], math.copysign(math.inf, value))
    bits: int = struct.unpack("<" + UNSIGNED[fmt.name], raw)[0]
    return oracle.quiet_nan(fmt) if math.isnan(value) else bits


def python_float(bits: int, fmt: FloatFormat) -> float:
    value: float = struct.unpack(
        "<" + STRUCT[fmt.name], struct.pack("<" + UNSIGNED[fmt.name], bits)
    )[0]
    return value


def f32(value: float) -> Number:
    return decode(packed(value, FP32), FP32)


def test_the_oracle_takes_nothing_from_the_reference() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text(encoding="utf-8"))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    ours = {name for name in imported if name and name.startswith("flashcheck")}
    assert ours == {"flashcheck.formats"}
    assert "numpy" not in imported


# ---- Formats -------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
def test_all_narrow_patterns_decode_as_torch_widens_them(fmt: FloatFormat) -> None:
    patterns = list(range(1 << 16))
    widened = tensor_of(patterns, fmt).to(torch.float32)
    numbers = [decode(bits, fmt) for bits in patterns]
    assert differences([encode(x, FP32) for x in numbers], bits_of(widened, FP32), patterns) == []
    back = [encode(x, fmt) for x in numbers]
    assert differences(back, bits_of(tensor_of(patterns, fmt), fmt), patterns) == []


def test_all_float16_patterns_decode_as_struct_does() -> None:
    patterns = list(range(1 << 16))
    mine = [encode(decode(bits, FP16), FP64) for bits in patterns]
    theirs = [packed(python_float(bits, FP16), FP64) for bits in patterns]
    assert differences(mine, theirs, patterns) == []


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_wide_patterns_decode_to_python_floats(fmt: FloatFormat) -> None:
    for bits in landmarks(fmt):
        number, value = decode(bits, fmt), python_float(bits, fmt)
        if math.isfinite(value):
            assert number.exact == Fraction(value), hex(bits)
            assert number.negative == (math.copysign(1, value) < 0), hex(bits)
        assert encode(number, fmt) == packed(value, fmt), hex(bits)


def test_facts_of_the_formats() -> None:
    assert encode(oracle.finite(65504), FP16) == 0x7BFF
    assert encode(oracle.finite(Fraction(1, 1 << 24)), FP16) == 0x0001
    assert encode(oracle.finite(Fraction(1, 1 << 133)), BF16) == 0x0001
    assert decode(0x7F7F, BF16).exact == Fraction(255, 128) * 2**127
    assert decode(0x3F800000, FP32) == oracle.ONE
    assert encode(oracle.INFINITY.signed(True), BF16) == 0xFF80
    assert len(set(landmarks(FP16))) == len(landmarks(FP16))


def test_encode_refuses_what_it_would_have_to_round() -> None:
    with pytest.raises(ValueError, match="bf16 has no"):
        encode(oracle.finite(Fraction(257)), BF16)
    with pytest.raises(ValueError, match="fp16 has no"):
        encode(oracle.finite(65536), FP16)


# ---- Rounding ------------------------------------------------------------------------------


def midpoints(fmt: FloatFormat) -> list[float]:
    """Doubles at, just under and just over half-way between landmarks and their successors."""
    found = []
    for bits in landmarks(fmt):
        low, high = decode(bits, fmt), decode(bits + 1, fmt)
        if low.finite:
            high_exact = high.exact if high.finite else low.exact + oracle.ulp(low.magnitude, fmt)
            middle = float((low.exact + high_exact) / 2)
            found += [middle, math.nextafter(middle, math.inf), math.nextafter(middle, -math.inf)]
    return found


@pytest.mark.parametrize("fmt", [FP16, FP32], ids=lambda f: f.name)
def test_rounding_is_that_of_struct(fmt: FloatFormat) -> None:
    values = midpoints(fmt) + [python_float(b, FP64) for b in landmarks(FP64)]
    values = [v for v in values if math.isfinite(v)]
    rounded = [oracle.round_exact(Fraction(v), fmt, math.copysign(1, v) < 0) for v in values]
    mine = [encode(x, fmt) for x in rounded]
    assert differences(mine, [packed(v, fmt) for v in values], values) == []


def test_rounding_to_double_is_that_of_python_division() -> None:
    rng = random.Random(SEED)
    for _ in range(500):
        over, under = rng.getrandbits(rng.randrange(1, 900)), rng.getrandbits(700) + 1
        exact = Fraction(over, under)
        got = encode(oracle.round_exact(exact, FP64), FP64)
        assert got == packed(over / under, FP64), f"{exact}, seed {SEED}"


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
def test_narrowing_is_that_of_torch(fmt: FloatFormat) -> None:
    rng = random.Random(SEED)
    drop = FP32.mantissa_bits - fmt.mantissa_bits
    half = 1 << (drop - 1)
    patterns = landmarks(FP32) + [rng.getrandbits(32) for _ in range(500)]
    # Normal results tie where the dropped bits are exactly one half; subnormal ones do below.
    patterns += [(b >> drop << drop) + d for b in patterns for d in (half - 1, half, half + 1)]
    patterns += [packed(v, FP32) for v in midpoints(fmt)]
    mine = [encode(oracle.convert(decode(b, FP32), fmt), fmt) for b in patterns]
    theirs = bits_of(tensor_of(patterns, FP32).to(torch_dtype(fmt)), fmt)
    assert differences(mine, theirs, patterns) == [], f"seed {SEED}"


def test_narrowing_to_bf16_is_the_carry_of_the_low_half() -> None:
    rng = random.Random(SEED)
    for bits in landmarks(FP32) + [rng.getrandbits(32) for _ in range(500)]:
        number = decode(bits, FP32)
        if number is not oracle.NAN:
            carried = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            assert encode(oracle.convert(number, BF16), BF16) == carried, f"{bits:#x}, seed {SEED}"


# ---- Operations ----------------------------------------------------------------------------

SPECIAL = [
    *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x33800000, 0x34000000),
    *(0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x40000000, 0x4B7FFFFF, 0x73800000),
    *(0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001),
]
SPECIAL += [bits | 1 << 31 for bits in SPECIAL]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (oracle.add, torch.add),
        (oracle.subtract, torch.sub),
        (oracle.multiply, torch.mul),
        (oracle.divide, torch.div),
    ],
    ids=["add", "subtract", "multiply", "divide"],
)
def test_special_operands_follow_torch(mine, theirs) -> None:  # type: ignore[no-untyped-def]
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    left, right = zip(*pairs, strict=True)
    got = [encode(mine(decode(a, FP32), decode(b, FP32)), FP32) for a, b in pairs]
    expected = bits_of(theirs(tensor_of(left, FP32), tensor_of(right, FP32)), FP32)
    assert differences(got, expected, [f"{a:#x}, {b:#x}" for a, b in pairs]) == []


@EXACT
@given(FP32_BITS, FP32_BITS)
def test_operations_are_those_of_double_rounded_again(a: int, b: int) -> None:
    """Double has over twice float32's bits and two, so rounding its result again is rounding once
    (Figueroa, "When is double rounding innocuous?", 1995)."""
    x, y = python_float(a, FP32), python_float(b, FP32)
    nx, ny = decode(a, FP32), decode(b, FP32)
    assert encode(oracle.add(nx, ny), FP32) == packed(x + y, FP32)
    assert encode(oracle.subtract(nx, ny), FP32) == packed(x - y, FP32)
    assert encode(oracle.multiply(nx, ny), FP32) == packed(x * y, FP32)
    if y != 0:
        assert encode(oracle.divide(nx, ny), FP32) == packed(x / y, FP32)


def test_division_by_zero_is_signed() -> None:
    zero, one = oracle.finite(0), oracle.ONE
    assert oracle.divide(one, zero.signed(True)) == oracle.INFINITY.signed(True)
    assert oracle.divide(one.signed(True), zero.signed(True)) == oracle.INFINITY
    assert oracle.divide(zero, zero) is oracle.NAN


def test_square_roots_are_those_of_double_rounded_again() -> None:
    """Python's ``math.sqrt``, as torch's own square root is not correctly rounded with MKL."""
    rng = random.Random(SEED)
    for bits in landmarks(FP32) + [rng.getrandbits(31) for _ in range(2000)]:
        x = python_float(bits, FP32)
        root = math.nan if x < 0 else math.copysign(math.sqrt(x), x)
        got = encode(oracle.square_root(decode(bits, FP32)), FP32)
        assert got == packed(root, FP32), f"{bits:#x}, seed {SEED}"


@EXACT
@given(FP32_BITS, FP32_BITS, FP32_BITS)
@example(0x3F800001, 0x3F800001, 0xBF800002)  # (1 + u)^2 - (1 + 2u) leaves u^2
@example(0x80000000, 0x3F800000, 0x80000000)
@example(0x7F800000, 0x00000000, 0x3F800000)
@example(0x7F7FFFFF, 0x7F7FFFFF, 0xFF800000)
@example(0x00000001, 0x80000001, 0x00000000)
def test_fused_multiply_add_brackets_the_exact_sum(a: int, b: int, c: int) -> None:
    """The product of two float32 is a double, and ``fsum`` rounds a sum of doubles once. That
    double is not the float32 yet, but no float32 may lie nearer the sum than the result does."""
    x, y, z = (python_float(bits, FP32) for bits in (a, b, c))
    result = oracle.fused_multiply_add(*(decode(bits, FP32) for bits in (a, b, c)))
    if not all(map(math.isfinite, (x, y, z))):
        assert encode(result, FP32) == packed(x * y + z, FP32)
        return
    total = math.fsum([x * y, z])
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if total == 0:
        # fsum has no negative zero; Python's own sum, exact here, does.
        assert encode(result, FP32) == packed(x * y + z, FP32)
        return
    assert encode(oracle.round_exact(exact, FP64), FP64) == packed(total, FP64)
    assert result.negative == (exact < 0)
    bits = encode(oracle.absolute(result), FP32)
    gap = abs(unbounded(bits) - abs(exact))
    for neighbour in (bits - 1, bits + 1):
        if 0 <= neighbour <= INFINITY_BITS:
            away = abs(unbounded(neighbour) - abs(exact))
            assert gap < away or (gap == away and bits % 2 == 0)


INFINITY_BITS = 0x7F800000


def unbounded(bits: int) -> Fraction:
    """The value of a positive float32, infinity being the power of two that follows the rest."""
    return Fraction(2) ** 128 if bits == INFINITY_BITS else decode(bits, FP32).exact


# ---- What the switches decide --------------------------------------------------------------


def test_ties_go_where_the_rounding_says() -> None:
    def codes(rounding: Rounding) -> list[int]:
        halves = [f32(v) for v in (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)]
        return [
            oracle.to_code(oracle.round_product(x, 1, Arithmetic(rounding=rounding)), INT8)
            for x in halves
        ]

    assert codes(Rounding.NEAREST_EVEN) == [-2, -2, 0, 0, 2, 2]
    assert codes(Rounding.HALF_AWAY) == [-3, -2, -1, 1, 2, 3]
    assert codes(Rounding.HALF_UP) == [-2, -1, 0, 1, 2, 3]


def test_a_rounding_that_is_not_known_is_refused() -> None:
    class Unknown:
        rounding = "down"
        fused_multiply_add = reciprocal_division = False
        absmax_floor = 0.0
        nan_absmax = "propagate"

    with pytest.raises(ValueError, match="no rounding down"):
        oracle.round_product(oracle.ONE, 127, Unknown())


def test_integral_numbers_keep_the_sign_of_a_zero() -> None:
    small = f32(-0.001)
    for rounding in (Rounding.NEAREST_EVEN, Rounding.HALF_AWAY):
        got = oracle.round_product(small, 127, Arithmetic(rounding=rounding))
        assert got == oracle.finite(0).signed(True)


def test_the_product_is_rounded_before_the_half_unless_fused() -> None:
    # -255 x is just under -1/2; rounded it is -1/2.
    x = decode(0xBB008081, FP32)
    assert Fraction(-1, 2) - Fraction(1, 1 << 25) < x.exact * 255 < Fraction(-1, 2)
    half_up = Arithmetic(rounding=Rounding.HALF_UP)
    fused = Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=True)
    assert oracle.round_product(x, 255, half_up).exact == 0
    assert oracle.round_product(x, 255, fused).exact == -1


def test_the_sum_with_the_half_rounds_too() -> None:
    # The largest float32 under 1/2, plus 1/2, is a tie in float32, which goes to 1.
    below = decode(0x3EFFFFFF, FP32)
    for fused in (False, True):
        half_up = Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=fused)
        assert oracle.round_product(below, 1, half_up) == oracle.ONE
    assert oracle.round_product(below, 1, PAPER) == oracle.finite(0)


def test_codes_saturate() -> None:
    minus = oracle.INFINITY.signed(True)
    assert [oracle.to_code(minus, fmt) for fmt in (INT8, UINT8, INT16)] == [-127, 0, -32767]
    assert [oracle.to_code(oracle.INFINITY, fmt) for fmt in (INT8, UINT8)] == [127, 255]
    assert oracle.to_code(f32(300.0), INT8) == 127
    assert oracle.to_code(f32(-1.0), UINT8) == 0
    assert oracle.to_code(oracle.NAN, INT16) == 0


# ---- The algorithms, worked by hand --------------------------------------------------------


@pytest.mark.parametrize(
    ("theta", "narrow", "rho8", "rho16"),
    [
        # 1 + 2^-9: theta' = 1, ULP 2^-7, e is half of half an ULP: 63.5 and 16383.5.
        (0x3F804000, 0x3F80, 64, 16384),
        # 1 + 2^-8 is a tie, to even: e_norm is 1.
        (0x3F808000, 0x3F80, 127, 32767),
        # 1 - 2^-9 is a tie too, between 1 - 2^-8 (odd) and 1, whose ULP is twice the spacing.
        (0x3F7F8000, 0x3F80, -64, -16384),
        (0x3F800000, 0x3F80, 0, 0),
        (0x80000000, 0x8000, 0, 0),
        # The smallest float32 is 2^-149; ULP(0) is 2^-133, so e_norm is 2^-15.
        (0x00000001, 0x0000, 0, 1),
        # The largest float32 rounds to infinity, the error is minus infinity.
        (0x7F7FFFFF, 0x7F80, -127, -32767),
        (0x7F800000, 0x7F80, 0, 0),
    ],
)
def test_splitting_by_hand(theta: int, narrow: int, rho8: int, rho16: int) -> None:
    for ecc, rho in ((INT8, rho8), (INT16, rho16)):
        got, code = oracle.compress(decode(theta, FP32), BF16, ecc, PAPER)
        assert (encode(got, BF16), code) == (narrow, rho)


def test_reconstruction_by_hand() -> None:
    # 1 + (127/127) 2^-8, and the same from the other end.
    assert oracle.decompress(oracle.ONE, 127, BF16, INT8, PAPER) == f32(1 + 2.0**-8)
    assert oracle.decompress(oracle.ONE, -127, BF16, INT8, PAPER) == f32(1 - 2.0**-8)
    assert oracle.decompress(oracle.ONE, 32767, FP16, INT16, PAPER) == f32(1 + 2.0**-11)
    assert oracle.decompress(oracle.finite(0), 127, FP16, INT8, PAPER) == f32(2.0**-25)


def test_momentum_by_hand() -> None:
    # s = 2; m' = 1, 1/2, -1/4, 0; m'' = 1, 2/3, -2/5, 0; 127 m'' = 127, 84.67, -50.8, 0.
    group = [f32(v) for v in (2.0, 1.0, -0.5, 0.0)]
    got = oracle.quantize_group(group, signed=True, sqrt=False, softsign=True, switches=PAPER)
    assert got.codes == [127, 85, -51, 0]
    assert got.scale == oracle.TWO
    back = [
        oracle.dequantize(q, got.scale, signed=True, sqrt=False, softsign=True, switches=PAPER)
        for q in got.codes
    ]
    assert [back[0], back[3]] == [oracle.TWO, oracle.finite(0)]
    # 85/127 / (2 - 85/127) = 85/169.
    assert abs(back[1].exact - Fraction(2 * 85, 169)) < Fraction(1, 1 << 21)


def test_variance_by_hand() -> None:
    # v' = 2, 1, 1/2, 0; s = 2; 255 v'/s = 255, 127.5 (to even), 63.75, 0.
    group = [f32(v) for v in (4.0, 1.0, 0.25, 0.0)]
    got = oracle.quantize_group(group, signed=False, sqrt=True, softsign=False, switches=PAPER)
    assert got.codes == [255, 128, 64, 0]
    assert got.scale == oracle.TWO
    back = oracle.dequantize(
        255, got.scale, signed=False, sqrt=True, softsign=False, switches=PAPER
    )
    assert back == oracle.finite(4)


@pytest.mark.parametrize(
    ("absmax", "scale"),
    [
        (0x477FE000, 0x7BFF),  # 65504
        (0x477FEFFF, 0x7BFF),  # just under 65520
        (0x477FF000, 0x7C00),  # 65520, a tie that goes to infinity
        (0x33800000, 0x0001),  # 2^-24
        (0x33000001, 0x0001),  # just over 2^-25
        (0x33000000, 0x0000),  # 2^-25, a tie that goes to zero
        (0x7FC00000, 0x7E00),
        (0x7F800000, 0x7C00),
        (0x00000000, 0x0000),
    ],
)
def test_scales_by_hand(absmax: int, scale: int) -> None:
    group = [decode(absmax, FP32), oracle.finite(0)]
    got = oracle.quantize_group(group, signed=True, sqrt=False, softsign=True, switches=PAPER)
    assert encode(got.scale, FP16) == scale
