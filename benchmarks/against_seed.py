"""``make bench``: whole processes, one after the other on this machine, and their ratio.

Times are the wall clock of a process from start to exit, memory its peak resident size as the
kernel accounts it. Machines are noisy: read the ratio, which both sides share the noise of.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RUNS = 5
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_mib: float


def measure(command: list[str]) -> Cost:
    """Run a command whole; it must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    # The process is reaped: tell its object, which would otherwise wait for it again.
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} exited with {process.returncode}")
    return Cost(seconds, usage.ru_maxrss / 1024)


def main() -> None:
    cli = [sys.executable, "-m", "flashcheck"]
    with tempfile.TemporaryDirectory() as out:
        run_all = [*cli, "run", "all", "--backend", "interpreter", "--out", out]
        costs = [measure(run_all) for _ in range(RUNS)]
        help_ = [measure([*cli, "--help"]) for _ in range(RUNS)]
    script = measure([sys.executable, str(HERE / "seed_protocol.py")])
    seconds = statistics.median(cost.seconds for cost in costs)
    peak = max(cost.peak_mib for cost in costs)
    print(f"{os.cpu_count()} processors, no GPU; flashcheck's figures over {RUNS} runs")
    print(f"the script's protocol        {script.seconds:8.1f} s  {script.peak_mib:8.0f} MiB")
    print(f"flashcheck run, median       {seconds:8.1f} s  {peak:8.0f} MiB (largest)")
    print(f"flashcheck takes 1/{script.seconds / seconds:.1f} of the script's time")
    print(f"flashcheck --help, median    {statistics.median(c.seconds for c in help_):8.2f} s")


if __name__ == "__main__":
    main()
