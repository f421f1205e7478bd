"""How fast the exhaustive suite goes on a CPU, and how much memory it takes.

It enumerates one exponent of some domains, with a process for each processor: the subject on
Triton's interpreter, the reference, and the comparison. Memory is that of one process that does it
alone, at its peak.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from against_seed import Cost, measure

from flashcheck.environment import cpu_name
from flashcheck.report.models import Report
from flashcheck.report.store import read

EXPONENT = "126:127"
SPECS = ("bf16+int8", "bf16+int16", "fp16+int8", "fp16+int16", "momentum", "variance")


def enumerated(jobs: int) -> tuple[Cost, Report]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "exhaustive.json"
        command = [sys.executable, "-m", "flashcheck", "run", "exhaustive", "--quiet"]
        part = ["--backend", "interpreter", "--exponents", EXPONENT, "--jobs", str(jobs)]
        specs = [word for spec in SPECS for word in ("--spec", spec)]
        cost = measure([*command, *part, *specs, "--out", str(out)])
        return cost, read(out)


def main() -> None:
    processors = os.cpu_count() or 1
    print(f"{processors} processors, {cpu_name()}, Triton's interpreter")
    alone, _ = enumerated(1)
    _, report = enumerated(processors)
    print(f"| case, {processors} processes | inputs | M inputs/s |")
    print("| --- | ---: | ---: |")
    total = 0
    for case in report.cases:
        assert case.enumeration
        fed = case.enumeration.covered
        total += fed
        # Each process has measured its own time.
        rate = processors * fed / case.duration_s / 1e6
        print(f"| {case.case} | {fed:,} | {rate:.1f} |")
    rate = total / report.duration_s / 1e6
    print(f"| all, the start of the processes included | {total:,} | {rate:.1f} |")
    print(f"most memory of one process: {alone.peak_mib:,.0f} MiB")


if __name__ == "__main__":
    main()
