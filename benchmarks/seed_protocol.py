"""The work of the script that flashcheck grew from, on the CPU, as that script did it.

Every tensor of the battery under both specs, and 64 exponents one after the other, each by the
authors' wrappers with a launch configuration and block sizes of their own; the eager side and its
comparisons whole tensors at a time. Triton's interpreter is repaired, and no more: no larger
blocks. Of the authors' six configurations it takes the largest block, the fastest on the CPU.

Run by ``make bench``; prints the figures as JSON, as that script did.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from flashcheck import catalog
from flashcheck.config import QuantizationConfig, SplittingConfig
from flashcheck.inputs import battery, sweeps
from flashcheck.reference import quantization, splitting
from flashcheck.subjects import backend
from flashcheck.subjects.base import Backend


def main() -> None:
    backend.prepare(Backend.INTERPRETER)
    import flashoptim
    import flashoptim.optimizers as kernels

    kernels._get_sm_count = lambda *_: 1
    for tuned in (kernels._triton_quantize_kernel, kernels._triton_dequantize_kernel):
        tuned.configs = [max(tuned.configs, key=lambda c: c.kwargs["BLOCK_SIZE_N"])]
    quant, ecc, int16 = catalog.find(["quant", "ecc", "int16"])
    assert isinstance(quant, QuantizationConfig)
    assert isinstance(ecc, SplittingConfig)
    assert isinstance(int16, SplittingConfig)
    results = {
        "quant": quantize_all(quant, kernels),
        "ecc": split_all(ecc, flashoptim, torch.int8),
        "int16": split_all(int16, flashoptim, torch.int16),
    }
    print(json.dumps(results, indent=2))


def quantize_all(config: QuantizationConfig, kernels: Any) -> dict[str, dict[str, float]]:
    figures = {}
    names = [tensor.name for tensor in config.battery]
    for drawn in battery.draw(config.battery, seed=config.seed, selected=names):
        name, tensor = drawn.tensor.name, drawn.values
        for spec in config.specs:
            x = tensor.abs() if spec.absolute else tensor
            options = spec.options()
            codes, scales = kernels.quantize(x, **options)
            values = kernels.dequantize(codes, scales, **options)
            expected, expected_scales = quantization.quantize(x, **options)
            restored = quantization.dequantize(expected, expected_scales, **options)
            figures[f"{name}/{spec.name}"] = {
                "int_agree": float((codes == expected).float().mean()),
                "int_within_1": float(
                    ((codes.short() - expected.short()).abs() <= 1).float().mean()
                ),
                "nmse_subject": quantization.nmse(x, values),
                "nmse_reference": quantization.nmse(x, restored),
            }
    return figures


def split_all(config: SplittingConfig, package: Any, ecc_dtype: torch.dtype) -> dict[str, int]:
    figures = dict.fromkeys(
        ("n", "subject_exact", "reference_exact", "rho_agree", "recon_agree"), 0
    )
    drawn = sweeps.draw(config.sweep, seed=config.seed, drawn_after=config.drawn_after)
    for strata in drawn:
        for x in strata.values:
            narrow = x.to(torch.bfloat16)
            width = 2 + ecc_dtype.itemsize
            ecc = package.compute_ecc_bits(x, narrow, master_bytewidth=width)
            values = package.reconstruct_fp32_param(narrow, ecc)
            expected_narrow, expected = splitting.compress(x, torch.bfloat16, ecc_dtype)
            restored = splitting.decompress(expected_narrow, expected)
            figures["n"] += x.numel()
            figures["subject_exact"] += int((values == x).sum())
            figures["reference_exact"] += int((restored == x).sum())
            figures["rho_agree"] += int((ecc == expected).sum())
            figures["recon_agree"] += int((values == restored).sum())
    return figures


if __name__ == "__main__":
    print(f"# {Path(__file__).name}")
    main()
