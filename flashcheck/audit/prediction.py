"""The arithmetic that a kernel's instructions predict, held against what was attributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashcheck.audit.instructions import Compiled, compile_kernel
from flashcheck.audit.targets import Target
from flashcheck.compare.attribution import ROUNDING_BOUNDARY, ULP_BOUND
from flashcheck.compare.settings import Switch
from flashcheck.subjects.base import Kernel

_FMAS_OF_A_DIVISION = 5
"""AMD's correctly rounded division is a sequence of this many, which fuse nothing of the source."""


@dataclass(frozen=True)
class Prediction:
    """What one kernel computes with.

    Attributes:
        fused: a product of the source is contracted with a sum.
        reciprocal: a division by a constant became a multiplication by its reciprocal.
        division: how the others divide: ``correctly rounded``, ``approximate`` or ``none``.
        square_root: likewise.
    """

    kernel: str
    fused: bool
    reciprocal: bool
    division: str
    square_root: str

    @property
    def approximate(self) -> bool:
        return "approximate" in (self.division, self.square_root)

    def words(self) -> str:
        """One line of it."""
        parts = [
            "fused multiply-add" if self.fused else "no fusion",
            *(["constants by their reciprocal"] if self.reciprocal else []),
            *([f"division {self.division}"] if self.division != "none" else []),
            *([f"square root {self.square_root}"] if self.square_root != "none" else []),
        ]
        return ", ".join(parts)


def predict(compiled: Compiled, *, divisions: int, constant_divisions: int) -> Prediction:
    """Read a prediction off the instructions.

    Args:
        divisions: how many divisions by a variable the source makes of each element.
        constant_divisions: how many by a constant that has no exact reciprocal.
    """
    exact = compiled.number("division, correctly rounded")
    # An integer is converted once an element, or oftener: that bounds the elements from above.
    elements = max(1, compiled.number("integer to float", machine=compiled.nvidia))
    if compiled.nvidia:
        # A fast division by a variable takes the hardware's reciprocal; one by a constant does not.
        fast = 0 if exact else compiled.number("reciprocal", machine=True)
        # A correctly rounded division is itself made of fused operations in machine code.
        fmas = compiled.number("fused multiply-add", machine=not exact)
    else:
        fast = 0
        fmas = compiled.number("fused multiply-add") - _FMAS_OF_A_DIVISION * exact
    return Prediction(
        kernel=compiled.kernel,
        fused=fmas > 0,
        # Where each element is divided less often than the source says, constants were turned.
        reciprocal=constant_divisions > 0 and exact + fast <= divisions * elements,
        division="approximate" if fast else "correctly rounded" if exact else "none",
        square_root=_kind(compiled, "square root"),
    )


def _kind(compiled: Compiled, operation: str) -> str:
    """As the assembly says it: machine code takes a root by approximate steps in either case."""
    if compiled.number(f"{operation}, approximate", machine=False):
        return "approximate"
    return "correctly rounded" if compiled.number(f"{operation}, correctly rounded") else "none"


_MAKERS = {
    "codes": ("quantize",),
    "scales": ("quantize",),
    "values": ("dequantize",),
    "rho": ("compute_ecc",),
    "reconstructed": ("compute_ecc", "reconstruct"),
}
"""The kernels that make each output of a case; of a step's the compiler is not asked."""


def contradictions(
    case: str, by_output: Mapping[str, Mapping[str, int]], predictions: Sequence[Prediction]
) -> list[str]:
    """Causes found in a case that the kernels it ran cannot have.

    Args:
        case: its name, which ends in the spec or pair of formats that the kernels' names end in.
        by_output: of each output, its causes and how often they were found.
        predictions: of all kernels of the subject.
    """
    form = case.rsplit("/", maxsplit=1)[-1].removesuffix("-toward_zero")
    found = []
    for output, causes in by_output.items():
        kernels = {f"{maker}/{form}" for maker in _MAKERS.get(output, ())}
        makers = [prediction for prediction in predictions if prediction.kernel in kernels]
        for cause, number in causes.items() if makers else ():
            found += [
                f"{case}: {number:,} {output} are put down to {part}, which the compiled kernels "
                "cannot do"
                for part in cause.split("+")
                if not _possible(part, makers)
            ]
    return found


def _possible(cause: str, makers: Sequence[Prediction]) -> bool:
    if cause == Switch.FUSED_MULTIPLY_ADD.value:
        return any(maker.fused for maker in makers)
    if cause == Switch.RECIPROCAL_DIVISION.value:
        return any(maker.reciprocal for maker in makers)
    if cause in (ROUNDING_BOUNDARY, ULP_BOUND):
        return any(maker.approximate for maker in makers)
    return True


def predict_all(kernels: Sequence[Kernel], target: Target, *, fp_fusion: bool) -> list[Prediction]:
    """Compile kernels for a target and predict the arithmetic of each."""
    return [
        predict(
            compile_kernel(kernel, target, fp_fusion=fp_fusion and kernel.fuses),
            divisions=kernel.divisions,
            constant_divisions=kernel.constant_divisions,
        )
        for kernel in kernels
    ]
