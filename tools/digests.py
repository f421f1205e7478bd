"""Enumerates every domain with the reference on the CPU, and keeps a digest of each bucket.

``python tools/digests.py`` writes ``flashcheck/reference/digests.json``, what a GPU's answers are
held against; it takes about half an hour on two cores. With ``--check FUNCTION EXPONENT`` it only
computes one bucket and says whether the file has it so.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from flashcheck.compare.digest import MODULUS, mix
from flashcheck.compare.ulp import bits
from flashcheck.config import ExhaustiveConfig, load
from flashcheck.inputs.domains import Enumeration, Slice
from flashcheck.reference import quantization, splitting
from flashcheck.report.models import Selection
from flashcheck.suites.exhaustive.checks import Check, Fed
from flashcheck.suites.exhaustive.codes import Quantize
from flashcheck.suites.exhaustive.round_trip import RoundTrip
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite
from flashcheck.suites.exhaustive.values import Dequantize, Reconstruct

ROOT = Path(__file__).parent.parent
FILE = ROOT / "flashcheck" / "reference" / "digests.json"
AT_ONCE = 1 << 18


def checks() -> dict[str, Check]:
    """The cases of the built-in suite, by what the reference computes in them."""
    config = load(ROOT / "configs" / "exhaustive.yaml")
    assert isinstance(config, ExhaustiveConfig)
    made = ExhaustiveSuite(config, Selection()).checks
    return {check.function: check for check in made.values()}


def answers(check: Check, fed: Fed) -> tuple[torch.Tensor, ...]:
    """The bits of inputs, and of what the reference makes of those it is defined for."""
    match check:
        case RoundTrip():
            (x,) = fed.inputs
            narrow, rho = splitting.compress(x, check.narrow_dtype, check.ecc_dtype)
            defined = x.isfinite() & narrow.isfinite()
            values = splitting.decompress(narrow, rho)
            return bits(x)[defined], rho[defined], bits(values)[defined]
        case Reconstruct():
            narrow, rho = fed.inputs
            return bits(narrow), rho, bits(splitting.decompress(narrow, rho))
        case Dequantize():
            scales, codes = fed.inputs
            options = check.spec.options()
            values = quantization.dequantize(codes, scales, group_size=1, **options)
            return bits(scales), codes, bits(values)
        case Quantize():
            (x,) = fed.inputs
            groups = torch.stack([torch.ones_like(x), x], dim=1)
            return bits(x), quantization.quantize_stages(groups, **check.spec.options()).codes[:, 1]
    raise TypeError(check)


def of_bucket(function: str, exponent: int) -> int:
    """The digest of one bucket."""
    torch.set_num_threads(1)
    check = checks()[function]
    enumeration = Enumeration(check.domain, exponents=[exponent])
    total = 0
    for part in enumeration.slices(AT_ONCE):
        total += of_slice(check, enumeration, part)
    return total % MODULUS


def of_slice(check: Check, enumeration: Enumeration, part: Slice) -> int:
    """The digest of a part of one."""
    mixed = mix(*answers(check, Fed.of(check.domain, enumeration, [part], "cpu", digested=True)))
    return int(mixed.sum(dtype=torch.int64))


def main() -> int:
    if sys.argv[1:2] == ["--check"]:
        function, exponent = sys.argv[2:]
        stored = json.loads(FILE.read_text(encoding="utf-8"))[function][exponent]
        same = f"0x{of_bucket(function, int(exponent)):08x}" == stored
        print("as in the file" if same else "not as in the file")
        return 0 if same else 1
    found: dict[str, dict[str, str]] = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for function, check in checks().items():
            exponents = [bucket.exponent for bucket in check.domain.buckets]
            made = pool.map(of_bucket, [function] * len(exponents), exponents)
            found[function] = {
                str(exponent): f"0x{value:08x}"
                for exponent, value in zip(exponents, made, strict=True)
            }
            print(function, flush=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
