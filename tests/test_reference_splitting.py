"""The tensor reference of Algorithm 1, bit by bit against the oracle."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashcheck.formats import (
    BF16,
    FP16,
    FP32,
    INT8,
    INT16,
    CodeFormat,
    FloatFormat,
    torch_dtype,
)
from flashcheck.reference import splitting as reference
from flashcheck.reference.arithmetic import CHUNK, PAPER, Arithmetic, Rounding
from flashcheck.reference.splitting import compress, decompress, log2_half_ulp
from tests import oracle
from tests.oracle import bits_of, decode, differences, encode, landmarks, tensor_of

SEED = 23349
EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=80)
SIGN = 1 << 31

ROUNDINGS = {
    "paper": PAPER,
    "half_away": Arithmetic(rounding=Rounding.HALF_AWAY),
    "half_up": Arithmetic(rounding=Rounding.HALF_UP),
    "half_away_fused": Arithmetic(rounding=Rounding.HALF_AWAY, fused_multiply_add=True),
    "half_up_fused": Arithmetic(rounding=Rounding.HALF_UP, fused_multiply_add=True),
}
SUMS = {
    "paper": PAPER,
    "fused": Arithmetic(fused_multiply_add=True),
    "reciprocal": Arithmetic(reciprocal_division=True),
    "kernel": Arithmetic(Rounding.HALF_AWAY, fused_multiply_add=True, reciprocal_division=True),
}
EACH_ROUNDING = pytest.mark.parametrize("arithmetic", ROUNDINGS.values(), ids=ROUNDINGS)
EACH_SUM = pytest.mark.parametrize("arithmetic", SUMS.values(), ids=SUMS)
NARROW = pytest.mark.parametrize("narrow", [BF16, FP16], ids=lambda f: f.name)
ECC = pytest.mark.parametrize("ecc", [INT8, INT16], ids=lambda f: f.name)


def f32(exact: Fraction | float) -> int:
    """Bits of the float32 nearest a value."""
    return encode(oracle.round_exact(Fraction(exact), FP32), FP32)


def check_compress(
    patterns: Sequence[int], narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic
) -> None:
    got, rho = compress(
        tensor_of(patterns, FP32), torch_dtype(narrow), torch_dtype(ecc), arithmetic
    )
    assert rho.dtype == torch_dtype(ecc)
    want = [oracle.compress(decode(bits, FP32), narrow, ecc, arithmetic) for bits in patterns]
    weights = [encode(weight, narrow) for weight, _ in want]
    assert differences(bits_of(got, narrow), weights, patterns) == [], f"weights, seed {SEED}"
    codes = [code for _, code in want]
    assert differences(rho.tolist(), codes, patterns) == [], f"codes, seed {SEED}"


def check_decompress(
    weights: Sequence[int],
    codes: Sequence[int],
    narrow: FloatFormat,
    ecc: CodeFormat,
    arithmetic: Arithmetic,
) -> None:
    rho = torch.tensor(codes, dtype=torch_dtype(ecc))
    got = decompress(tensor_of(weights, narrow), rho, arithmetic)
    want = [
        encode(oracle.decompress(decode(bits, narrow), code, narrow, ecc, arithmetic), FP32)
        for bits, code in zip(weights, codes, strict=True)
    ]
    shown = [f"{bits:#x} and {code}" for bits, code in zip(weights, codes, strict=True)]
    assert differences(bits_of(got, FP32), want, shown) == [], f"seed {SEED}"


def around(weight: int, narrow: FloatFormat, least: int = -3, most: int = 3) -> list[int]:
    """The float32 at half-way between a narrow number and its successor, and its neighbours."""
    low, high = decode(weight, narrow), decode(weight + 1, narrow)
    # After the greatest number comes what would be next: there rounding turns to infinity.
    spacing = oracle.ulp(low.magnitude, narrow)
    after = high.exact if high.finite else low.exact + spacing
    middle = f32((low.exact + after) / 2)
    return [max(0, middle + step) for step in range(least, most + 1)]


# ---- Half an ULP ---------------------------------------------------------------------------


@NARROW
def test_half_ulp_of_every_narrow_number(narrow: FloatFormat) -> None:
    patterns = list(range(1 << 16))
    got = log2_half_ulp(tensor_of(patterns, narrow))
    assert got.dtype == torch.int32
    # The kinds that the paper gives no ULP are read alike, whatever a NaN's payload.
    want = [oracle.log2_ulp(decode(bits, narrow), narrow) - 1 for bits in patterns]
    assert differences(got.tolist(), want, patterns) == []


# ---- Compress ------------------------------------------------------------------------------


@NARROW
@ECC
@EACH_ROUNDING
def test_landmarks_are_split(narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic) -> None:
    patterns = landmarks(FP32)
    if arithmetic is not PAPER:
        patterns = patterns[::5]
    check_compress(patterns, narrow, ecc, arithmetic)


@NARROW
@ECC
@EACH_ROUNDING
def test_ties_of_the_narrow_format_are_split(
    narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic
) -> None:
    """Where the narrow weight rounds either way the code is an end code, or half of one just
    below a power of two, where the spacing is half an ULP."""
    weights = [bits for bits in landmarks(narrow) if bits < narrow.exponent_mask * 2**7]
    step = max(1, len(weights) // 60)
    top = (narrow.exponent_mask << narrow.mantissa_bits) - 1
    patterns = [b for bits in [*weights[::step], 0, 1, top] for b in around(bits, narrow, -2, 2)]
    check_compress([b | s for b in patterns for s in (0, SIGN)], narrow, ecc, arithmetic)


@NARROW
@ECC
@EACH_ROUNDING
def test_errors_of_one_weight_are_split(
    narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic
) -> None:
    """From one narrow weight's lower bound to its upper, and all errors by its code's ties."""
    dropped = FP32.mantissa_bits - narrow.mantissa_bits
    half = 1 << (dropped - 1)
    errors = {*range(-half, half + 1, max(1, half // 100)), -half, half}
    # The code N/2 is the tie that errors of few bits reach; for int16 float32 rounds onto more.
    errors.update(side * half // 2 + d for side in (-1, 1) for d in range(-30, 31))
    weight = f32(-1.5)
    check_compress([weight + e for e in sorted(errors)], narrow, ecc, arithmetic)


def near_code_ties(ecc: CodeFormat) -> list[int]:
    """Weights too small for float16, whose whole 24 bits are the error: code ties at them all."""
    n = ecc.max_code
    step = max(1, n // 50)
    ties = [Fraction(2 * k + 1, 2 * n) / (1 << 25) for k in [*range(0, n, step), n - 1]]
    patterns = [f32(tie) + d for tie in ties for d in (-1, 0, 1)]
    return [bits | s for bits in patterns for s in (0, SIGN)]


@ECC
@EACH_ROUNDING
def test_codes_at_ties(ecc: CodeFormat, arithmetic: Arithmetic) -> None:
    check_compress(near_code_ties(ecc), FP16, ecc, arithmetic)


@ECC
def test_ties_are_hit(ecc: CodeFormat) -> None:
    """Else the roundings above were never told apart."""
    x = tensor_of(near_code_ties(ecc), FP32)
    codes = {
        name: compress(x, torch.float16, torch_dtype(ecc), arithmetic)[1].tolist()
        for name, arithmetic in ROUNDINGS.items()
    }
    assert codes["half_away"] != codes["paper"]
    assert codes["half_up"] != codes["paper"]
    assert codes["half_up"] != codes["half_away"]


@EXACT
@given(
    st.lists(
        st.sampled_from(landmarks(FP32))
        | st.integers(0, 2**32 - 1)
        # About the exponents that float16 has.
        | st.integers(f32(2.0**-27), f32(2.0**17)),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([BF16, FP16]),
    st.sampled_from([INT8, INT16]),
    st.sampled_from(list(ROUNDINGS.values())),
)
@example([0x7F7FFFFF, 0xFF7FFFFF, 0x477FF000, 0xC77FEFFF], FP16, INT16, PAPER)
@example([0x7F7F7FFF, 0x7F7F8000, 0xFF7F8000], BF16, INT8, PAPER)
def test_random_weights_are_split(
    patterns: list[int], narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic
) -> None:
    check_compress(patterns, narrow, ecc, arithmetic)


@NARROW
@ECC
def test_codes_for_a_narrow_weight_of_another_rounding(
    narrow: FloatFormat, ecc: CodeFormat
) -> None:
    """A subject may round the weight its own way; its errors then pass half an ULP and clamp."""
    rng = random.Random(SEED)
    x = [rng.randrange(f32(2.0**-20), f32(2.0**10)) for _ in range(100)] + [f32(1), 0x7F800000]
    nearest = [encode(oracle.convert(decode(bits, FP32), narrow), narrow) for bits in x]
    for step in (-2, -1, 0, 1, 2):
        weights = [bits + step for bits in nearest]
        pair = tensor_of(x, FP32), tensor_of(weights, narrow)
        want = [
            oracle.correction_code(decode(a, FP32), decode(b, narrow), narrow, ecc, PAPER)
            for a, b in zip(x, weights, strict=True)
        ]
        got = reference.encode(*pair, torch_dtype(ecc))
        assert got.dtype == torch_dtype(ecc)
        assert differences(got.tolist(), want, x) == [], f"step {step}, seed {SEED}"
        assert torch.equal(reference.correction_codes(*pair, torch_dtype(ecc)), got)


def test_codes_for_a_narrow_weight_follow_the_arithmetic() -> None:
    x = tensor_of(near_code_ties(INT8), FP32)
    for arithmetic in ROUNDINGS.values():
        weights, rho = compress(x, torch.float16, torch.int8, arithmetic)
        assert torch.equal(reference.encode(x, weights, torch.int8, arithmetic), rho)


@NARROW
@ECC
def test_where_splitting_is_not_defined(narrow: FloatFormat, ecc: CodeFormat) -> None:
    x = torch.tensor([math.nan, 3.4028235e38, -3.4028235e38, math.inf, -math.inf])
    weight, rho = compress(x, torch_dtype(narrow), torch_dtype(ecc))
    assert rho.tolist() == [0, -ecc.max_code, ecc.max_code, 0, 0]
    assert weight[0].isnan()
    assert weight[1:].tolist() == [math.inf, -math.inf, math.inf, -math.inf]
    back = decompress(weight, rho)
    assert back[0].isnan()
    assert back[1:].tolist() == [math.inf, -math.inf, math.inf, -math.inf]


# ---- Decompress ----------------------------------------------------------------------------


def some_weights(narrow: FloatFormat) -> list[int]:
    """Zero, subnormals, a power of two with its neighbours, the ends, infinity and NaN."""
    one, least = narrow.bias << narrow.mantissa_bits, 1 << narrow.mantissa_bits
    top = (narrow.exponent_mask << narrow.mantissa_bits) - 1
    positive = [0, least - 1, least, 2 * least + 1, one - 1, one, top, top + 1]
    return [*positive, one + 5 | 1 << 15, top | 1 << 15, oracle.quiet_nan(narrow)]


@NARROW
@EACH_SUM
def test_all_codes_of_8_bits_are_decompressed(narrow: FloatFormat, arithmetic: Arithmetic) -> None:
    # -128 is no code of ours, but a subject may store it.
    for weight in some_weights(narrow):
        codes = range(-128, 128)
        check_decompress([weight] * len(codes), codes, narrow, INT8, arithmetic)


@NARROW
@EACH_SUM
def test_codes_of_16_bits_are_decompressed(narrow: FloatFormat, arithmetic: Arithmetic) -> None:
    codes = [-32768, -32767, -32766, -1, 0, 1, 16383, 16384, 32766, *range(-32767, 32768, 509)]
    for weight in some_weights(narrow):
        check_decompress([weight] * len(codes), codes, narrow, INT16, arithmetic)


@NARROW
@ECC
@EACH_SUM
def test_landmarks_are_decompressed(
    narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic
) -> None:
    rng = random.Random(SEED)
    n = ecc.max_code
    ends = (-n - 1, -n, 1 - n, -1, 0, 1, n - 1, n)
    weights = landmarks(narrow)[:: 1 if arithmetic is PAPER else 3]
    codes = [rng.choice([*ends, rng.randint(-n, n), rng.randint(-n, n)]) for _ in weights]
    check_decompress(weights, codes, narrow, ecc, arithmetic)


@EXACT
@given(
    st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(-(2**15), 2**15 - 1)), min_size=1),
    st.sampled_from([BF16, FP16]),
    st.sampled_from([INT8, INT16]),
    st.sampled_from(list(SUMS.values())),
)
def test_random_weights_are_decompressed(
    pairs: list[tuple[int, int]], narrow: FloatFormat, ecc: CodeFormat, arithmetic: Arithmetic
) -> None:
    weights = [weight for weight, _ in pairs]
    codes = [code if ecc is INT16 else code >> 8 for _, code in pairs]
    check_decompress(weights, codes, narrow, ecc, arithmetic)


def small_pairs(ecc: CodeFormat) -> list[tuple[int, int]]:
    """bfloat16 weights a little above float32's subnormals, whose corrections are subnormal.

    Only there is the correction's product with a power of two not exact, and only there does a
    fused sum differ.
    """
    rng = random.Random(SEED)
    n = ecc.max_code
    return [
        (field << 7 | rng.getrandbits(7) | rng.getrandbits(1) << 15, rng.randint(-n, n))
        for field in range(1, 12)
        for _ in range(30)
    ]


@ECC
@EACH_SUM
def test_subnormal_corrections_are_added(ecc: CodeFormat, arithmetic: Arithmetic) -> None:
    weights, codes = zip(*small_pairs(ecc), strict=True)
    check_decompress(weights, codes, BF16, ecc, arithmetic)


def changed(
    weights: Sequence[int], codes: Sequence[int], narrow: FloatFormat, ecc: CodeFormat
) -> dict[str, int]:
    """How many results each switch changes."""
    pair = tensor_of(weights, narrow), torch.tensor(codes, dtype=torch_dtype(ecc))
    paper = decompress(*pair)
    return {name: int((decompress(*pair, how) != paper).sum()) for name, how in SUMS.items()}


@ECC
def test_each_switch_of_a_sum_changes_something(ecc: CodeFormat) -> None:
    """Else the switches above would test nothing."""
    weights, codes = zip(*small_pairs(ecc), strict=True)
    fused = changed(weights, codes, BF16, ecc)
    assert fused["fused"] > 0
    assert fused["kernel"] > 0
    # Beside any other weight than zero, the last bit of the correction is lost.
    n = ecc.max_code
    every_code = range(-n, n + 1)
    reciprocal = changed([0] * len(every_code), every_code, FP16, ecc)
    assert reciprocal["reciprocal"] > 0
    assert reciprocal["kernel"] > 0


# ---- What the functions take ---------------------------------------------------------------


@NARROW
@ECC
def test_shapes_and_layouts_are_kept(narrow: FloatFormat, ecc: CodeFormat) -> None:
    rng = random.Random(SEED)
    patterns = [rng.randrange(f32(2.0**-20), f32(2.0**10)) for _ in range(60)]
    dtypes = torch_dtype(narrow), torch_dtype(ecc)
    x = tensor_of(patterns, FP32)
    flat_weights, flat_rho = compress(x, *dtypes)
    flat = bits_of(decompress(flat_weights, flat_rho), FP32)
    transposed = x.reshape(12, 5).t().contiguous().t()
    strided = torch.stack([x, -x], dim=1)[:, 0]
    assert not transposed.is_contiguous()
    assert not strided.is_contiguous()
    for view in (x.reshape(3, 4, 5), transposed, strided, x.clone().requires_grad_()):
        weights, rho = compress(view, *dtypes)
        assert weights.shape == rho.shape == view.shape
        assert not weights.requires_grad
        assert bits_of(weights, narrow) == bits_of(flat_weights, narrow)
        assert rho.reshape(-1).tolist() == flat_rho.tolist()
        back = decompress(weights, rho)
        assert (back.shape, back.dtype) == (view.shape, torch.float32)
        assert bits_of(back, FP32) == flat
    strided_weights = torch.stack([flat_weights, -flat_weights], dim=1)[:, 0]
    strided_rho = torch.stack([flat_rho, -flat_rho], dim=1)[:, 0]
    assert bits_of(decompress(strided_weights, strided_rho), FP32) == flat
    for view in (transposed, strided):
        weights, rho = compress(view, *dtypes)
        assert torch.equal(reference.encode(view, weights.contiguous(), dtypes[1]), rho)
        assert torch.equal(reference.encode(view.contiguous(), weights, dtypes[1]), rho)
    one_weight, one_rho = compress(x[0], *dtypes)
    assert one_weight.shape == one_rho.shape == ()
    assert bits_of(decompress(one_weight, one_rho), FP32) == flat[:1]
    none = compress(torch.empty(0, 3), *dtypes)
    assert decompress(*none).shape == none[0].shape == (0, 3)


def test_inputs_are_left_alone() -> None:
    patterns = [f32(1.3), oracle.quiet_nan(FP32), 0x7F800000, 0x7F7FFFFF, 1, SIGN]
    x = tensor_of(patterns, FP32)
    for arithmetic in [*ROUNDINGS.values(), *SUMS.values()]:
        weights, rho = compress(x, torch.bfloat16, torch.int8, arithmetic)
        kept = bits_of(weights, BF16), rho.tolist()
        reference.correction_codes(x, weights, torch.int8, arithmetic)
        decompress(weights, rho, arithmetic)
        reference.reconstruct_chunk(weights, rho, arithmetic)
        log2_half_ulp(weights)
        assert (bits_of(weights, BF16), rho.tolist()) == kept
    assert bits_of(x, FP32) == patterns


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_only_float32_is_split(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"x is {dtype}; only float32 weights are split"):
        compress(torch.ones(2, dtype=dtype), torch.bfloat16, torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16])
def test_only_two_narrow_formats_are_known(dtype: torch.dtype) -> None:
    named = f"no format for {dtype}; expected one of bfloat16, float16"
    with pytest.raises(ValueError, match=named):
        compress(torch.ones(2), dtype, torch.int8)
    with pytest.raises(ValueError, match=named):
        decompress(torch.ones(2, dtype=dtype), torch.zeros(2, dtype=torch.int8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float32])
def test_only_two_code_formats_are_known(dtype: torch.dtype) -> None:
    named = f"no format for {dtype}; expected one of int8, int16"
    with pytest.raises(ValueError, match=named):
        compress(torch.ones(2), torch.bfloat16, dtype)
    with pytest.raises(ValueError, match=named):
        decompress(torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=dtype))


def test_weights_and_codes_are_of_one_shape() -> None:
    weights, rho = torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(6, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"narrow is \(2, 3\) but rho is \(6,\)"):
        decompress(weights, rho)


@pytest.mark.parametrize(
    ("x", "narrow", "ecc_dtype", "message"),
    [
        (torch.ones(2).double(), torch.ones(2).half(), torch.int8, "x is torch.float64 of shape"),
        (torch.ones(2), torch.ones(3).half(), torch.int8, r"\(2,\) and narrow of shape \(3,\)"),
        (torch.ones(2), torch.ones(2), torch.int8, "no format for torch.float32"),
        (torch.ones(2), torch.ones(2).half(), torch.uint8, "no format for torch.uint8"),
    ],
    ids=["wide", "shapes", "narrow", "codes"],
)
def test_what_codes_cannot_be_made_of(
    x: torch.Tensor, narrow: torch.Tensor, ecc_dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reference.encode(x, narrow, ecc_dtype)


@NARROW
@ECC
def test_a_chunk_stays_on_its_device(narrow: FloatFormat, ecc: CodeFormat) -> None:
    """The device "meta" holds no values, but like any other takes no operand of the CPU's."""
    x = torch.ones(5, device="meta")
    weights = x.to(torch_dtype(narrow))
    for arithmetic in [*ROUNDINGS.values(), *SUMS.values()]:
        rho = reference.correction_codes(x, weights, torch_dtype(ecc), arithmetic)
        assert (rho.device.type, rho.dtype) == ("meta", torch_dtype(ecc))
        assert reference.reconstruct_chunk(weights, rho, arithmetic).device.type == "meta"


# ---- Chunks and threads --------------------------------------------------------------------


def many(count: int) -> torch.Tensor:
    """Any float32 but the non-finite, as bits of both signs."""
    generator = torch.Generator().manual_seed(SEED)
    bits = torch.randint(0, 255 << 23, (count,), generator=generator)
    sign = torch.randint(0, 2, (count,), generator=generator) << 31
    return (bits | sign).to(torch.int32).view(torch.float32)


@NARROW
@ECC
def test_chunks_change_no_bit(narrow: FloatFormat, ecc: CodeFormat) -> None:
    dtypes = torch_dtype(narrow), torch_dtype(ecc)
    x = many(2 * CHUNK + 5)
    for length in (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, len(x)):
        weights, rho = compress(x[:length], *dtypes)
        sliced = [compress(part, *dtypes) for part in torch.split(x[:length], 20011)]
        assert torch.equal(weights, torch.cat([w for w, _ in sliced])), f"{length}, seed {SEED}"
        assert torch.equal(rho, torch.cat([r for _, r in sliced])), f"{length}, seed {SEED}"
        back = torch.cat([decompress(*part) for part in sliced])
        assert torch.equal(decompress(weights, rho), back), f"{length}, seed {SEED}"
        unchunked = reference.correction_codes(x[:length], weights, torch_dtype(ecc))
        assert torch.equal(rho, unchunked), f"{length}, seed {SEED}"
        assert torch.equal(reference.reconstruct_chunk(weights, rho), back), (
            f"{length}, seed {SEED}"
        )


@NARROW
def test_chunk_edges_agree_with_the_oracle(narrow: FloatFormat) -> None:
    x = many(2 * CHUNK + 5)
    weights, rho = compress(x, torch_dtype(narrow), torch.int16)
    at = [*range(40), *range(CHUNK - 40, CHUNK + 40), *range(2 * CHUNK - 3, 2 * CHUNK + 5)]
    patterns = bits_of(x[at], FP32)
    want = [oracle.compress(decode(bits, FP32), narrow, INT16, PAPER) for bits in patterns]
    assert bits_of(weights[at], narrow) == [encode(weight, narrow) for weight, _ in want]
    assert differences(rho[at].tolist(), [code for _, code in want], patterns) == []


@NARROW
@ECC
def test_threads_change_no_bit(narrow: FloatFormat, ecc: CodeFormat) -> None:
    x = many(2 * CHUNK + 5)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            weights, rho = compress(x, torch_dtype(narrow), torch_dtype(ecc))
            results.append((weights, rho, decompress(weights, rho)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two), f"seed {SEED}"
