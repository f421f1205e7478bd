"""How fast the exhaustive suite goes on a CPU, and how much memory it takes.

A whole process enumerates one exponent of every domain, and one more that holds the largest
buckets; the rates are those of its report: subject on Triton's interpreter, reference, comparison.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from against_seed import measure

from flashcheck.environment import cpu_name
from flashcheck.report.store import read

EXPONENTS = "126:127"


def main() -> None:
    print(f"{os.cpu_count()} processors, {cpu_name()}, Triton's interpreter")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "exhaustive.json"
        command = [sys.executable, "-m", "flashcheck", "run", "exhaustive", "--quiet"]
        part = ["--backend", "interpreter", "--exponents", EXPONENTS, "--out", str(out)]
        cost = measure([*command, *part])
        report = read(out)
    print("| case | inputs | M elements/s |")
    print("| --- | ---: | ---: |")
    for case in report.cases:
        assert case.enumeration
        rate = case.enumeration.covered / case.duration_s / 1e6
        print(f"| {case.case} | {case.enumeration.covered:,} | {rate:.1f} |")
    print(f"most memory of the process: {cost.peak_mib:,.0f} MiB")


if __name__ == "__main__":
    main()
