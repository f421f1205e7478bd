"""What the compiler says: instructions counted, arithmetic predicted, contradictions found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from flashcheck.audit import targets
from flashcheck.audit.instructions import _MACHINE_OPCODE as MACHINE_OPCODE
from flashcheck.audit.instructions import _OPCODE as OPCODE
from flashcheck.audit.instructions import KINDS, Compiled, sorted_by_kind
from flashcheck.audit.prediction import Prediction, contradictions, predict
from flashcheck.compare.settings import Switch, settings
from flashcheck.describing import held
from flashcheck.errors import UsageError
from flashcheck.report.models import (
    BestArithmetic,
    CaseResult,
    KernelPrediction,
    Mismatches,
    Status,
    summarize,
)
from flashcheck.report.models import Prediction as ReportedPrediction
from flashcheck.suites.explaining import arithmetic_record
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli

# --- Counting, on literal texts ---------------------------------------------------------------

PTX = """\
.visible .entry kernel(
        .param .u64 .ptr .global .align 1 kernel_param_0
)
{
        .reg .pred      %p<3>;
        // mul.f32 in a comment counts for nothing
        ld.param.b64    %rd1, [kernel_param_0];
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        cvt.rn.f32.s16  %r5, %rs1;
        div.full.f32    %r6, %r5, 0f42FE0000;
        @!%p2 fma.rn.f32        %r7, %r6, %r5, %r4;
        mul.f32         %r8, %r7, %r6;
        mul.rn.ftz.f32  %r9, %r7, %r6;
        add.rn.f32      %r10, %r8, %r9;
        sqrt.approx.ftz.f32     %r11, %r10;
        sqrt.rn.f32     %r12, %r10;
        div.rn.f32      %r13, %r12, %r11;
        ex2.approx.ftz.f32      %r14, %r13;
        rcp.approx.ftz.f32      %r15, %r13;
        cvt.rmi.f32.f32 %r16, %r15;
        cvt.rzi.s32.f32 %r17, %r16;
        cvt.rn.f16.f32  %rs3, %r16;
        fma.rn.f64      %fd1, %fd1, %fd2, %fd3;
        ret;
}
"""

SASS = """\
        /*0080*/                   IMAD.MOV.U32 R9, RZ, RZ, 0x4 ;     /* 0x00000004ff097424 */
        /*0090*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x0000000402048981 */
        /*00a0*/                   FFMA R7, R6, R5, R4 ;              /* 0x0000000506077223 */
        /*00b0*/              @P1  FFMA.FTZ R7, R6, R5, R4 ;          /* 0x0000000506077223 */
        /*00c0*/                   FMUL R8, R7, 0.0078740157186985015869 ; /* 0x3c01020407087820 */
        /*00d0*/                   FADD R8, R7, R8 ;                  /* 0x0000000807087221 */
        /*00e0*/                   MUFU.RCP R9, R8 ;                  /* 0x0000000800097308 */
        /*00f0*/             @!UP0 MUFU.SQRT R9, R8 ;                 /* 0x0000000800097308 */
        /*0100*/                   MUFU.RSQ R9, R8 ;                  /* 0x0000000800097308 */
        /*0110*/                   MUFU.EX2 R9, R8 ;                  /* 0x0000000800097308 */
        /*0120*/                   FRND.FLOOR R9, R8 ;                /* 0x0000000800097307 */
        /*0130*/                   F2I.TRUNC.NTZ R9, R8 ;             /* 0x0000000800097305 */
        /*0140*/                   I2F.S8 R9, R8 ;                    /* 0x0000000800097306 */
        /*0150*/                   F2FP.F16.F32.PACK_AB R9, RZ, R8 ;  /* 0x00000008ff09723e */
"""

AMDGCN = """\
kernel:
        s_load_dwordx2 s[0:1], s[4:5], 0x0
        v_cvt_f32_i32_e32 v1, v0
        v_div_scale_f32 v2, s[0:1], v1, v1, v0
        v_rcp_f32_e32 v3, v2
        v_fma_f32 v4, -v2, v3, 1.0
        v_fmac_f32_e32 v3, v4, v3
        v_div_fmas_f32 v5, v4, v3, v2
        v_div_fixup_f32 v6, v5, v1, v0
        v_mul_f32_e32 v7, v6, v5
        v_pk_mul_f32 v[8:9], v[6:7], v[4:5]
        v_add_f32_e64 v10, v7, v8
        v_sub_f32_sdwa v10, v7, v8
        v_sqrt_f32_e32 v11, v10
        v_exp_f32_e32 v12, v11
        v_floor_f32_e32 v13, v12
        v_cvt_i32_f32_e32 v14, v13
        v_cvt_f16_f32_e32 v15, v13
"""


def counted(pattern: Any, text: str) -> dict[str, dict[str, int]]:
    return sorted_by_kind(Counter(pattern.findall(text)))


def test_the_instructions_of_ptx_are_counted_by_kind() -> None:
    assert counted(OPCODE, PTX) == {
        "division, correctly rounded": {"div.rn.f32": 1},
        "division, approximate": {"div.full.f32": 1},
        "reciprocal": {"rcp.approx.ftz.f32": 1},
        "square root, correctly rounded": {"sqrt.rn.f32": 1},
        "square root, approximate": {"sqrt.approx.ftz.f32": 1},
        "exp2": {"ex2.approx.ftz.f32": 1},
        "fused multiply-add": {"fma.rn.f32": 1},
        "multiplication": {"mul.f32": 1, "mul.rn.ftz.f32": 1},
        "addition": {"add.rn.f32": 1},
        "floor": {"cvt.rmi.f32.f32": 1},
        "float to integer": {"cvt.rzi.s32.f32": 1},
        "to float16": {"cvt.rn.f16.f32": 1},
        "integer to float": {"cvt.rn.f32.s16": 1},
        "flush to zero": {
            "ex2.approx.ftz.f32": 1,
            "mul.rn.ftz.f32": 1,
            "rcp.approx.ftz.f32": 1,
            "sqrt.approx.ftz.f32": 1,
        },
    }


def test_the_instructions_of_machine_code_are_counted_by_kind() -> None:
    assert counted(MACHINE_OPCODE, SASS) == {
        "reciprocal": {"MUFU.RCP": 1},
        "square root, approximate": {"MUFU.RSQ": 1, "MUFU.SQRT": 1},
        "exp2": {"MUFU.EX2": 1},
        "fused multiply-add": {"FFMA": 1, "FFMA.FTZ": 1},
        "multiplication": {"FMUL": 1},
        "addition": {"FADD": 1},
        "floor": {"FRND.FLOOR": 1},
        "float to integer": {"F2I.TRUNC.NTZ": 1},
        "to float16": {"F2FP.F16.F32.PACK_AB": 1},
        "integer to float": {"I2F.S8": 1},
        "flush to zero": {"FFMA.FTZ": 1},
    }


def test_the_instructions_of_amd_are_counted_by_kind() -> None:
    assert counted(OPCODE, AMDGCN) == {
        "division, correctly rounded": {"v_div_fixup_f32": 1},
        "reciprocal": {"v_rcp_f32_e32": 1},
        "square root, approximate": {"v_sqrt_f32_e32": 1},
        "exp2": {"v_exp_f32_e32": 1},
        "fused multiply-add": {"v_fma_f32": 1, "v_fmac_f32_e32": 1},
        "multiplication": {"v_mul_f32_e32": 1, "v_pk_mul_f32": 1},
        "addition": {"v_add_f32_e64": 1, "v_sub_f32_sdwa": 1},
        "floor": {"v_floor_f32_e32": 1},
        "float to integer": {"v_cvt_i32_f32_e32": 1},
        "to float16": {"v_cvt_f16_f32_e32": 1},
        "integer to float": {"v_cvt_f32_i32_e32": 1},
    }


@pytest.mark.parametrize(
    "opcode", ["fma.rn.f64", "IMAD", "LDG.E.128", "ld.global.v4.b32", "v_mov_b32_e32", "s_endpgm"]
)
def test_what_does_not_bear_on_rounding_is_not_counted(opcode: str) -> None:
    assert sorted_by_kind({opcode: 7}) == {}


@pytest.mark.parametrize("opcode", ["v_fmaak_f32", "v_fmamk_f32", "v_pk_fma_f32", "v_fmac_f32_e64"])
def test_every_fused_form_of_amd_is_one(opcode: str) -> None:
    # With a constant in the code: v_fmaak_f32 adds it, v_fmamk_f32 multiplies by it.
    assert "fused multiply-add" in sorted_by_kind({opcode: 1})


def test_every_kind_that_is_asked_for_is_listed() -> None:
    named = " ".join(KINDS)
    for word in ("division", "reciprocal", "square root", "exp2", "fused multiply-add"):
        assert word in named
    for word in ("flush to zero", "float to integer", "to float16", "integer to float"):
        assert word in named


# --- Predicting -------------------------------------------------------------------------------


def compiled(opcodes: dict[str, int], target: str = "sm_90") -> Compiled:
    return Compiled("reconstruct/bf16+int8", target, True, sorted_by_kind(opcodes))


NVIDIA_BASE = {"I2F.S8": 4, "cvt.rn.f32.s16": 4, "FMUL": 8}
AMD_BASE = {"v_cvt_f32_i32_e32": 4, "v_mul_f32_e32": 8}
AMD_DIVISION = {"v_div_fixup_f32": 4, "v_fma_f32": 12, "v_fmac_f32_e32": 8}


@pytest.mark.parametrize(
    ("opcodes", "divisions", "constants", "words"),
    [
        (NVIDIA_BASE, 0, 0, "no fusion"),
        ({**NVIDIA_BASE, "FFMA": 4}, 0, 0, "fused multiply-add"),
        # ptxas fuses what PTX leaves open: the machine's word counts.
        ({**NVIDIA_BASE, "fma.rn.f32": 4}, 0, 0, "no fusion"),
        ({**NVIDIA_BASE, "div.full.f32": 4}, 0, 1, "no fusion, constants by their reciprocal"),
        (
            {**NVIDIA_BASE, "div.full.f32": 4, "MUFU.RCP": 4},
            1,
            0,
            "no fusion, division approximate",
        ),
        (
            {**NVIDIA_BASE, "div.full.f32": 8, "MUFU.RCP": 4},
            1,
            1,
            "no fusion, constants by their reciprocal, division approximate",
        ),
        # A correctly rounded division is made of fused operations in machine code.
        (
            {**NVIDIA_BASE, "div.rn.f32": 8, "MUFU.RCP": 8, "FFMA": 40},
            1,
            1,
            "no fusion, division correctly rounded",
        ),
        (
            {**NVIDIA_BASE, "div.rn.f32": 4, "FFMA": 20, "fma.rn.f32": 4},
            1,
            0,
            "fused multiply-add, division correctly rounded",
        ),
        (
            {**NVIDIA_BASE, "sqrt.approx.ftz.f32": 4, "MUFU.SQRT": 4},
            0,
            0,
            "no fusion, square root approximate",
        ),
        (
            {**NVIDIA_BASE, "sqrt.rn.f32": 4},
            0,
            0,
            "no fusion, square root correctly rounded",
        ),
        ({**AMD_BASE}, 0, 0, "no fusion"),
        ({**AMD_BASE, **AMD_DIVISION}, 0, 1, "no fusion, division correctly rounded"),
        (
            {**AMD_BASE, **AMD_DIVISION, "v_fmac_f32_e32": 12},
            0,
            1,
            "fused multiply-add, division correctly rounded",
        ),
    ],
)
def test_a_prediction_is_read_off_the_instructions(
    opcodes: dict[str, int], divisions: int, constants: int, words: str
) -> None:
    made = predict(compiled(opcodes), divisions=divisions, constant_divisions=constants)
    assert made.words() == words
    assert made.kernel == "reconstruct/bf16+int8"


def prediction(kernel: str, **given: Any) -> Prediction:
    figures: dict[str, Any] = {
        "fused": False,
        "reciprocal": False,
        "division": "none",
        "square_root": "none",
        **given,
    }
    return Prediction(kernel, **figures)


# --- Contradictions ---------------------------------------------------------------------------

RECONSTRUCT = "reconstruct/bf16+int8"
ECC = "compute_ecc/bf16+int8"


@pytest.mark.parametrize(
    ("cause", "able"),
    [
        ("fused_multiply_add", {"fused": True}),
        ("reciprocal_division", {"reciprocal": True}),
        ("rounding_boundary", {"division": "approximate"}),
        ("rounding_boundary", {"square_root": "approximate"}),
        ("ulp_bound", {"division": "approximate"}),
    ],
)
@pytest.mark.parametrize("other", ["", "rounding_tie+", "propagated+"])
def test_a_cause_that_the_kernels_cannot_have_is_a_contradiction(
    cause: str, able: dict[str, Any], other: str
) -> None:
    by_output = {"reconstructed": {other + cause: 1234}}
    case = "bf16+int8"
    unable = [prediction(ECC), prediction(RECONSTRUCT)]
    (found,) = contradictions(case, by_output, unable)
    assert found == (
        f"bf16+int8: 1,234 reconstructed are put down to {cause}, which the compiled kernels "
        "cannot do"
    )
    for kernels in (
        [prediction(ECC, **able), prediction(RECONSTRUCT)],
        [prediction(ECC), prediction(RECONSTRUCT, **able)],
    ):
        assert contradictions(case, by_output, kernels) == []


@pytest.mark.parametrize(
    "cause", ["rounding_tie", "absmax_floor", "nan_absmax", "outside_domain", "unexplained"]
)
def test_a_cause_that_no_instruction_shows_contradicts_nothing(cause: str) -> None:
    kernels = [prediction(ECC), prediction(RECONSTRUCT)]
    assert contradictions("bf16+int8", {"rho": {cause: 3}}, kernels) == []


@pytest.mark.parametrize(
    ("output", "maker"),
    [
        ("codes", "quantize/momentum"),
        ("scales", "quantize/momentum"),
        ("values", "dequantize/momentum"),
    ],
)
def test_only_the_kernel_that_makes_an_output_answers_for_it(output: str, maker: str) -> None:
    every = ["quantize/momentum", "dequantize/momentum", "quantize/variance", "dequantize/variance"]
    by_output = {output: {"ulp_bound": 2}}
    able = [
        prediction(kernel, division="none" if kernel == maker else "approximate")
        for kernel in every
    ]
    assert len(contradictions("normal/momentum", by_output, able)) == 1
    able = [
        prediction(kernel, division="approximate" if kernel == maker else "none")
        for kernel in every
    ]
    assert contradictions("normal/momentum", by_output, able) == []


def test_a_rounding_of_the_narrow_weight_is_no_other_kernel() -> None:
    by_output = {"reconstructed": {"fused_multiply_add": 5}}
    case = "size_33/bf16+int8-toward_zero"
    assert len(contradictions(case, by_output, [prediction(RECONSTRUCT)])) == 1
    assert contradictions(case, by_output, [prediction(RECONSTRUCT, fused=True)]) == []


def test_kernels_that_are_not_there_contradict_nothing() -> None:
    by_output = {"reconstructed": {"fused_multiply_add": 5}}
    assert contradictions("fp16+int8", by_output, [prediction(RECONSTRUCT)]) == []


def case_result(by_output: dict[str, dict[str, int]], best: dict[str, Any]) -> CaseResult:
    words = best.pop("words")
    setting = next(s for s in settings(list(Switch)) if s.words() == words)
    return CaseResult(
        case="bf16+int8",
        status=Status.PASS,
        numel=9,
        duration_s=0.0,
        mismatches=Mismatches(
            total=3,
            outputs=18,
            by_cause={},
            by_output=by_output,
            best_arithmetic=BestArithmetic(
                arithmetic=arithmetic_record(setting.arithmetic), words=words, **best
            ),
            margin=[],
            worst=[],
            sentence="",
        ),
    )


FUSION, RECIPROCAL = "fused multiply-add", "multiplication by the reciprocal"


@pytest.mark.parametrize(
    ("words", "left", "equally_good", "contradicted"),
    [
        # The reciprocal, which the kernel can do, gives all bits.
        (RECIPROCAL, 0, [], False),
        (f"half away + {RECIPROCAL}", 0, [], False),
        (FUSION, 0, [RECIPROCAL], False),
        # Nothing that it can do gives them all.
        (RECIPROCAL, 1, [], True),
        (FUSION, 0, [], True),
        (f"{FUSION} + {RECIPROCAL}", 0, [], True),
        (FUSION, 1, [RECIPROCAL], True),
    ],
)
def test_a_cause_that_another_setting_does_as_well_contradicts_nothing(
    words: str, left: int, equally_good: list[str], contradicted: bool
) -> None:
    # A bit that either switch gives was put down to the first, which the kernel cannot do.
    by_output = {"reconstructed": {"fused_multiply_add": 2, "reciprocal_division": 1}}
    best = {"words": words, "mismatches": left, "equally_good": equally_good}
    kernel = {"kernel": RECONSTRUCT, "fused": False, "reciprocal": True, "words": ""}
    kernels = [KernelPrediction(**kernel, division="none", square_root="none")]
    made = ReportedPrediction(target="sm_90", fp_fusion=False, kernels=kernels, contradictions=[])
    found = held(made, [case_result(by_output, best)])
    assert found
    assert bool(found.contradictions) is contradicted


def test_a_contradiction_makes_the_report_an_error() -> None:
    assert summarize([], contradicted=True).status == "error"
    assert summarize([], contradicted=False).status == "nothing_compared"


# --- Targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_the_targets_that_are_asked_for_are_known_and_the_default(name: str) -> None:
    assert targets.find(name).name == name
    assert name in targets.DEFAULT


@pytest.mark.parametrize(("capability", "name"), [((9, 0), "sm_90"), ((10, 0), "sm_100")])
def test_a_gpu_is_its_own_target(capability: tuple[int, int], name: str) -> None:
    assert targets.of_capability(capability) == targets.find(name)


@pytest.mark.parametrize("name", ["sm_91", "SM_90", "h200", "", "gfx"])
def test_an_unknown_target_is_a_usage_error_that_names_the_known(cli: Cli, name: str) -> None:
    with pytest.raises(UsageError):
        targets.find(name)
    ran = cli("audit", "--target", "sm_90", "--target", name)
    assert ran.code == 2
    (line,) = ran.err.strip().splitlines()
    assert line.startswith(f"flashcheck: --target {name}: unknown;")
    for known in targets.TARGETS:
        assert known in line


def test_a_subject_with_no_kernels_is_refused(
    subprocess_cli: Callable[..., subprocess.Popen[str]], tmp_path: Any
) -> None:
    (tmp_path / "plain.py").write_text("from flashcheck.selftest.eager import Eager\n")
    process = subprocess_cli("audit", "--subject", "plain.py:Eager", "--target", "sm_90")
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 3
    assert "has no method kernels(), so there is nothing to compile" in err
    assert "Traceback" not in err


# --- Compiling, in a process that has not chosen the interpreter --------------------------------


KERNELS = (
    "dequantize/variance",
    "quantize/momentum",
    "quantize/variance",
    "reconstruct/bf16+int8",
    "reconstruct/fp16+int8",
)

# The command itself, on some of the kernels: each takes half a second a target.
AUDIT = """
import sys
from flashcheck.cli import main
from flashcheck.subjects import registry

whole = registry.load_kernels

def some(name):
    kernels = whole(name)
    print(*(kernel.name for kernel in kernels), file=sys.stderr)
    return [kernel for kernel in kernels if kernel.name in NAMES]

registry.load_kernels = some
sys.argv = ["flashcheck", "audit", "--json"]
from flashcheck.audit import targets
assert targets.DEFAULT == ("sm_80", "sm_90", "sm_100", "gfx942")
main()
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What ``flashcheck audit --json`` prints for its four targets."""
    done = subprocess.run(
        [sys.executable, "-c", f"NAMES = {KERNELS!r}\n{AUDIT}"],
        cwd=tmp_path_factory.mktemp("audit"),
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TRITON_INTERPRET": ""},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def audited(printed: subprocess.CompletedProcess[str]) -> dict[tuple[str, str, bool], Any]:
    """A document for each kernel, target, and whether fusion is allowed."""
    documents = json.loads(printed.stdout)
    made = {(d["kernel"], d["target"], d["fp_fusion"]): d for d in documents}
    assert len(made) == len(documents)
    return made


TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
Audited = dict[tuple[str, str, bool], Any]


def test_every_kernel_that_a_suite_launches_is_there(
    printed: subprocess.CompletedProcess[str],
) -> None:
    pairs = [f"{narrow}+{ecc}" for narrow in ("bf16", "fp16") for ecc in ("int8", "int16")]
    assert set(printed.stderr.splitlines()[0].split()) == {
        *(f"{m}/{spec}" for m in ("quantize", "dequantize") for spec in ("momentum", "variance")),
        *(f"{m}/{pair}" for m in ("compute_ecc", "reconstruct") for pair in pairs),
    }


def test_the_tables_name_each_target_and_kernel(
    printed: subprocess.CompletedProcess[str],
) -> None:
    for word in (*TARGETS, *KERNELS, "predicted arithmetic", "allowed", "off", "either"):
        assert word in printed.stderr


def test_every_kernel_is_compiled_for_every_target_both_ways(audited: Audited) -> None:
    assert set(audited) == {
        (kernel, target, fusion)
        for kernel in KERNELS
        for target in TARGETS
        for fusion in (True, False)
    }
    for document in audited.values():
        # Counted, and each opcode under the one kind that it is of.
        assert sum(sum(found.values()) for found in document["opcodes"].values()) > 0


@pytest.mark.parametrize("narrow", ["bf16", "fp16"])
@pytest.mark.parametrize("target", TARGETS)
def test_reconstruction_is_fused_where_that_is_allowed_and_not_where_it_is_off(
    audited: Audited, target: str, narrow: str
) -> None:
    # On gfx942 a float16 weight is widened by the very instruction that adds: v_fma_mix_f32 of the
    # scaled code and the power of two is fused, of the weight and 1.0 is not.
    allowed = audited[f"reconstruct/{narrow}+int8", target, True]["prediction"]
    off = audited[f"reconstruct/{narrow}+int8", target, False]["prediction"]
    assert allowed["fused"] is True
    assert allowed["words"].startswith("fused multiply-add")
    assert off["fused"] is False
    assert off["words"].startswith("no fusion")


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_fused_where_fusing_is_off(audited: Audited, target: str) -> None:
    for kernel in KERNELS:
        assert audited[kernel, target, False]["prediction"]["fused"] is False, kernel


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_nvidia_divides_as_is_known(audited: Audited, target: str) -> None:
    for kernel in KERNELS:
        for fusion in (True, False):
            said = audited[kernel, target, fusion]["prediction"]
            quantizes = kernel.startswith("quantize")
            assert said["division"] == ("approximate" if quantizes else "none"), kernel
            assert said["reciprocal"] is kernel.startswith(("reconstruct", "dequantize"))
            root = "approximate" if kernel == "quantize/variance" else "none"
            assert said["square_root"] == root
    ptx = audited["quantize/momentum", target, True]["opcodes"]
    assert "div.full.f32" in ptx["division, approximate"]
    variance = audited["quantize/variance", target, True]["opcodes"]
    assert any(op.startswith("sqrt.approx") for op in variance["square root, approximate"])


def test_amd_divides_correctly_rounded(audited: Audited) -> None:
    for kernel in KERNELS:
        said = audited[kernel, "gfx942", True]["prediction"]
        assert said["division"] == "correctly rounded", kernel
        assert said["reciprocal"] is False
