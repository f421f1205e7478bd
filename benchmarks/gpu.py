"""``make bench-gpu``: how fast a GPU enumerates, and against what.

Times of the GPU are by its own events, of the sweep by the wall clock with the GPU waited for; each
is a median, after compilation. A share of copy bandwidth has the bytes that have to be moved, each
input read and each output written once, over what a plain copy moves in the same time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from triton.testing import do_bench

from flashcheck import environment, selection
from flashcheck.config import ExhaustiveConfig, load
from flashcheck.report.models import Selection
from flashcheck.subjects import registry
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive import fused
from flashcheck.suites.exhaustive.round_trip import RoundTrip
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite

ROOT = Path(__file__).parent.parent
RUNS = 7
SWEEP = 1 << 32
AT_ONCE = 1 << 26
PAIRS = ("bf16+int8", "bf16+int16")


@dataclass(frozen=True)
class Row:
    """What was timed: elements, and the bytes that each has to have moved."""

    what: str
    elements: int
    seconds: float
    bytes_each: float | None = None

    def cells(self, copy: float) -> str:
        rate = self.elements / self.seconds
        share = "" if self.bytes_each is None else f"{100 * rate * self.bytes_each / copy:.0f}%"
        return f"{self.seconds * 1e3:.1f} | {rate / 1e9:.1f} | {share}"


def on_the_gpu(function: Callable[[], object]) -> float:
    """Seconds of one call, by the GPU's events."""
    milliseconds: float = do_bench(function, warmup=50, rep=200, return_mode="median")
    return milliseconds / 1e3


def by_the_clock(function: Callable[[], object]) -> float:
    """Seconds of one call, the GPU waited for before and after."""
    function()
    seconds = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a device-to-device copy."""
    x = torch.empty(1 << 28)
    source, target = (x.to("cuda") for _ in range(2))
    return 2 * 4 * source.numel() / on_the_gpu(lambda: target.copy_(source))


def suite_of(pair: str) -> ExhaustiveSuite:
    config = load(ROOT / "configs" / "exhaustive.yaml")
    assert isinstance(config, ExhaustiveConfig)
    made = selection.make_suite(config, Selection(spec=[pair]))
    assert isinstance(made, ExhaustiveSuite)
    return made


def rows_of(pair: str, calls: SubjectCalls) -> list[Row]:
    """The kernels alone, scaled to a sweep, and the sweep as the suite does it."""
    suite = suite_of(pair)
    check = suite.checks[f"compute_ecc/{pair}"]
    assert isinstance(check, RoundTrip)
    there = replace(calls, compare_on=calls.device)
    middle = [fused.Row(exponent, 0, 256) for exponent in range(126, 130)]
    run = fused.Run(check, middle, there)
    code = check.ecc_dtype.itemsize
    x, narrow = run.inputs(run.tiles[0])
    outputs = run.split(x, narrow)
    scale = SWEEP // AT_ONCE
    chunks = [c for c in suite.chunks("cuda", check.methods) if c.case == check.case]
    swept = [replace(chunk, sampled=False) for chunk in chunks]
    return [
        Row(f"{pair}: inputs", SWEEP, scale * on_the_gpu(lambda: run.inputs(run.tiles[0])), 6),
        Row(
            f"{pair}: the subject's kernels",
            SWEEP,
            scale * on_the_gpu(lambda: run.split(x, narrow)),
            13 + 2 * code - 1,
        ),
        Row(
            f"{pair}: the checker's kernel",
            SWEEP,
            scale * on_the_gpu(lambda: run.launch(run.tiles, x, narrow, outputs)),
            10 + code,
        ),
        Row(
            f"{pair}: the sweep",
            SWEEP,
            by_the_clock(lambda: [suite.check(chunk, calls, seed=0) for chunk in swept]),
        ),
        Row(
            f"{pair}: the sweep, and a sample on the CPU",
            SWEEP,
            by_the_clock(lambda: [suite.check(chunk, calls, seed=0) for chunk in chunks]),
        ),
    ]


def whole_suite(subject: str) -> float:
    """A process from its start to its end, nothing compiled before."""
    with tempfile.TemporaryDirectory() as empty:
        environ = {**os.environ, "TRITON_CACHE_DIR": empty}
        command = [sys.executable, "-m", "flashcheck", "run", "exhaustive", "--quiet"]
        start = time.perf_counter()
        subprocess.run(
            [*command, "--subject", subject, "--out", f"{empty}/exhaustive.json"],
            check=True,
            env=environ,
        )
        return time.perf_counter() - start


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark is of a GPU, and torch sees none")
    subject, _ = registry.load("flashoptim", "cuda")
    calls = SubjectCalls(subject)
    copy = copy_bandwidth()
    name = torch.cuda.get_device_name()
    print(f"{name}, {environment.cpu_name()}, torch {torch.__version__}")
    print(f"a copy moves {copy / 1e12:.2f} TB/s; medians of {RUNS} runs, after compilation")
    print()
    print("| over 2^32 float32 | ms | G elements/s | of a copy's bandwidth |")
    print("| --- | ---: | ---: | ---: |")
    total = subject_alone = 0.0
    for pair in PAIRS:
        for row in rows_of(pair, calls):
            print(f"| {row.what} | {row.cells(copy)} |", flush=True)
            total += row.seconds * row.what.endswith(": the sweep")
            subject_alone += row.seconds * row.what.endswith("subject's kernels")
    print()
    print(f"both sweeps of bf16, one after the other: {total:.3f} s")
    print(f"of that checking: {(total - subject_alone) / subject_alone:.2f} times the subject")
    print(f"most memory on the GPU: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    for each in ("flashoptim", "triton"):
        seconds = whole_suite(each)
        print(f"the whole suite on {each}, its process and all compilation: {seconds:.1f} s")


if __name__ == "__main__":
    main()
