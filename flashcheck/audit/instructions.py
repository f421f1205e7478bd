"""Compiling a kernel for a named target, and the instructions in it that bear on rounding."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashcheck.audit.targets import Target
from flashcheck.errors import UnavailableError

if TYPE_CHECKING:
    from flashcheck.subjects.base import Kernel

_OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.]*)\b", re.MULTILINE)
_WIDENING = re.compile(r"v_fma_mix_f32(?=[^\n]*,\s*1\.0\b)")
_MACHINE_OPCODE = re.compile(r"\*/\s+(?:@!?U?PT?\d*\s+)?([A-Z][A-Z0-9_.]*)")

# PTX, NVIDIA's machine code (SASS, in capitals), and AMD's assembly (v_). PTX is not the last word:
# ptxas turns a division by a constant into a multiplication, and may fuse what is not marked .rn.
KINDS: dict[str, re.Pattern[str]] = {
    "division, correctly rounded": re.compile(r"div\.rn\.f32|v_div_fixup_f32"),
    "division, approximate": re.compile(r"div\.(full|approx)(\.ftz)?\.f32"),
    "reciprocal": re.compile(r"rcp\..*f32|MUFU\.RCP|v_rcp_f32"),
    "square root, correctly rounded": re.compile(r"sqrt\.rn\.f32"),
    "square root, approximate": re.compile(r"sqrt\.approx(\.ftz)?\.f32|MUFU\.R?SQ.*|v_sqrt_f32"),
    "exp2": re.compile(r"ex2\..*|MUFU\.EX2|v_exp_f32"),
    "fused multiply-add": re.compile(
        r"fma\..*f32.*|FFMA.*|v_(pk_)?fma_f32|v_fma(c|ak|mk)_f32|v_fma_mix_f32"
    ),
    "multiplication": re.compile(r"mul\.(rn\.)?(ftz\.)?f32.*|FMUL.*|v_(pk_)?mul_f32"),
    "addition": re.compile(
        r"(add|sub)\.(rn\.)?(ftz\.)?f32.*|FADD.*|FHADD.*|v_(pk_)?(add|sub|subrev)_f32"
    ),
    "floor": re.compile(r"cvt\.rmi.*|FRND.*|v_floor_f32"),
    "float to integer": re.compile(r"cvt\.rzi.*|F2I.*|v_cvt_[iu]32_f32"),
    "to float16": re.compile(r"cvt\.r.\.f16\.f32|F2FP.*|v_cvt_f16_f32"),
    "integer to float": re.compile(r"cvt\.rn\.f32\.[us]\d+|I2F.*|v_cvt_f32_([iu]32|ubyte\d)"),
    "flush to zero": re.compile(r".*\.(ftz|FTZ)\b.*"),
}
"""What is counted, and the opcodes that are it."""


@dataclass(frozen=True)
class Compiled:
    """A kernel's instructions for one target.

    Attributes:
        opcodes: of each kind, the opcodes and how often they stand in the code.
    """

    kernel: str
    target: str
    fp_fusion: bool
    opcodes: dict[str, dict[str, int]]

    def number(self, kind: str, *, machine: bool | None = None) -> int:
        """How many instructions are of a kind: of NVIDIA's machine code, of assembly, or both."""
        found = self.opcodes.get(kind, {})
        return sum(
            number
            for opcode, number in found.items()
            if machine is None or opcode.isupper() is machine
        )

    @property
    def nvidia(self) -> bool:
        """Whether it has NVIDIA's machine code."""
        return any(opcode.isupper() for found in self.opcodes.values() for opcode in found)


def compile_kernel(kernel: Kernel, target: Target, *, fp_fusion: bool) -> Compiled:
    """Compile with Triton; needs no GPU. Triton must not have been imported for the interpreter."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**dict.fromkeys(kernel.constants, "constexpr"), **kernel.signature}
    made = triton.compile(
        ASTSource(kernel.function, signature, dict(kernel.constants), None),
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options={"enable_fp_fusion": fp_fusion},
    )
    if "ptx" in made.asm:
        opcodes = Counter(_OPCODE.findall(made.asm["ptx"]))
        opcodes += Counter(_MACHINE_OPCODE.findall(_disassembled(made.asm["cubin"])))
    else:
        opcodes = amd_opcodes(made.asm["amdgcn"])
    return Compiled(kernel.name, target.name, fp_fusion, sorted_by_kind(opcodes))


def amd_opcodes(assembly: str) -> Counter[str]:
    """Of AMD's assembly; a mixed multiply-add by 1 only widens a float16, and is named so."""
    return Counter(_OPCODE.findall(_WIDENING.sub("v_widening_mix", assembly)))


def _disassembled(cubin: bytes) -> str:
    """Machine code as text, by the disassembler that comes with Triton."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-sass", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnavailableError(
                f"Triton's cuobjdump cannot read its own code: {error}"
            ) from None
    return done.stdout


def sorted_by_kind(opcodes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Of each kind, its opcodes and how often each stands in the code."""
    return {
        kind: found
        for kind, pattern in KINDS.items()
        if (
            found := {
                opcode: number
                for opcode, number in sorted(opcodes.items())
                if pattern.fullmatch(re.sub(r"_(e32|e64|sdwa|dpp)$", "", opcode))
            }
        )
    }
