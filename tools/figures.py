"""Fills the marked blocks of the READMEs from the committed reports, so that no figure is typed.

``python tools/figures.py`` writes them; with ``--check`` it only says whether they are current.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flashcheck.measures import (
    QuantizationMetrics,
    SplittingMetrics,
    StepMetrics,
    TrajectoryMetrics,
)
from flashcheck.report.enumeration import Bucket
from flashcheck.report.models import CaseResult, Report, Status
from flashcheck.report.store import read

ROOT = Path(__file__).parent.parent
GPU = ROOT / "reports" / "nvidia-h200-flashoptim-0.1.4"
CPU = ROOT / "reports" / "interpreter-flashoptim-0.1.4"
UNFUSED = GPU / "fusion-off"
CONTROL = ROOT / "reports" / "nvidia-h200-triton"
SUITES = ("quant", "ecc", "int16")


def load(folder: Path, suite: str) -> Report:
    return read(folder / f"{suite}.json")


def cases(report: Report) -> dict[str, CaseResult]:
    return {case.case: case for case in report.cases}


def side_by_side() -> list[str]:
    """The quantization battery on both backends."""
    gpu, cpu = (cases(load(folder, "quant")) for folder in (GPU, CPU))
    lines = [
        "| case | codes differ, H200 | interpreter | values, H200 | NMSE ratio, H200 | status |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, case in gpu.items():
        mine, other = case.metrics, cpu[name].metrics
        assert isinstance(mine, QuantizationMetrics)
        assert isinstance(other, QuantizationMetrics)
        lines.append(
            f"| {name} | {mine.int_mismatches:,} of {case.numel:,} | {other.int_mismatches:,} "
            f"| ≤ {mine.dequant_max_ulp} ULP | {mine.nmse_ratio:.6f} | {case.status.value} |"
        )
    return lines


def splitting() -> list[str]:
    """The sweeps on both backends."""
    lines = [
        "| suite | backend | codes that differ | given back that differ | exact | reference exact "
        "| in a sentence |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for suite in ("ecc", "int16"):
        for folder, label in ((GPU, "H200"), (UNFUSED, "H200, fusion off"), (CPU, "interpreter")):
            for case in load(folder, suite).cases:
                metrics = case.metrics
                assert isinstance(metrics, SplittingMetrics)
                assert case.mismatches
                shares = (metrics.subject_exact_frac, metrics.reference_exact_frac)
                exact, theirs = (f"{100 * (share or 0):.4f}%" for share in shares)
                lines.append(
                    f"| {suite} | {label} | {metrics.rho_mismatches:,} of {case.numel:,} "
                    f"| {metrics.recon_mismatches:,} | {exact} "
                    f"| {theirs} | {case.mismatches.sentence} |"
                )
    return lines


def causes() -> list[str]:
    """Every cause found on the GPU, over the three suites."""
    lines = [
        "| suite | outputs compared | differ from the paper | causes |",
        "| --- | ---: | ---: | --- |",
    ]
    for folder, label in ((GPU, ""), (UNFUSED, ", fusion off")):
        for suite in SUITES:
            found: dict[str, int] = {}
            total = outputs = 0
            for case in load(folder, suite).cases:
                assert case.mismatches
                total += case.mismatches.total
                outputs += case.mismatches.outputs
                for cause, number in case.mismatches.by_cause.items():
                    found[cause] = found.get(cause, 0) + number
            words = ", ".join(
                f"{cause} {number:,}"
                for cause, number in sorted(found.items(), key=lambda i: -i[1])
            )
            lines.append(f"| {suite}{label} | {outputs:,} | {total:,} | {words or 'none'} |")
    return lines


def proved() -> list[str]:
    """What the enumerations say, a line a case."""
    lines = [
        "| case, all its inputs | compared | differ from the paper | the best arithmetic leaves "
        "| in a sentence |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for case in load(GPU, "exhaustive").cases:
        found = case.mismatches
        assert found
        # The scope is in the first columns already.
        sentence = found.sentence.rpartition(": ")[2]
        lines.append(
            f"| {case.case} | {case.numel:,} | {found.total:,} "
            f"| {found.best_arithmetic.mismatches:,} | {sentence} |"
        )
    return lines


def exact() -> list[str]:
    """Which share of float32 comes back bit for bit, by exponent, of the kernels and the paper."""
    lines = [
        "| pair | exponents | H200 | the paper's arithmetic |",
        "| --- | --- | ---: | ---: |",
    ]
    for case in load(GPU, "exhaustive").cases:
        if case.case.startswith("compute_ecc/") and case.enumeration:
            pair = case.case.partition("/")[2]
            buckets = [bucket for bucket in case.enumeration.buckets if bucket.n]
            whole = _shares(buckets)
            lines.append(
                f"| **{pair}** | all that have a finite weight | {whole[0]} | {whole[1]} |"
            )
            lines += [f"| | {row} |" for row in _by_exponent(buckets)]
    return lines


def _shares(buckets: Sequence[Bucket]) -> tuple[str, str]:
    n = sum(bucket.n for bucket in buckets)
    subject, reference = (
        sum(bucket.counts[name] for bucket in buckets)
        for name in ("subject_exact", "reference_exact")
    )
    return f"{100 * subject / n:.4f}%", f"{100 * reference / n:.4f}%"


def _by_exponent(buckets: Sequence[Bucket]) -> list[str]:
    """A row for exponents of equal shares, and one for several in turn that are all different."""
    runs: list[list[Bucket]] = []
    for _, group in itertools.groupby(buckets, key=lambda bucket: _shares([bucket])):
        runs.append(list(group))
    rows = []
    for alone, some in itertools.groupby(runs, key=lambda run: len(run) == 1):
        gathered = list(some)
        if alone and len(gathered) > 1:
            each = [_shares(run) for run in gathered]
            sides = [
                sorted(side, key=lambda text: float(text[:-1])) for side in zip(*each, strict=True)
            ]
            cells = " | ".join(f"{side[0]} to {side[-1]}" for side in sides)
            rows.append(f"{gathered[0][0].exponent}–{gathered[-1][0].exponent} | {cells}")
        else:
            for run in gathered:
                names = str(run[0].exponent)
                names += f"–{run[-1].exponent}" if len(run) > 1 else ""
                rows.append(f"{names} | {' | '.join(_shares(run))}")
    return rows


def steps(folder: Path, suite: str) -> list[str]:
    """Single steps, summed up by optimizer."""
    lines = [
        "| optimizer, all its cases | steps | elements stored | differ from the paper "
        "| the best arithmetic leaves | unexplained |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows: dict[str, list[CaseResult]] = {}
    for case in load(folder, suite).cases:
        if isinstance(case.metrics, StepMetrics) and not case.case.startswith("consistency/"):
            rows.setdefault(case.case.partition("/")[0], []).append(case)
    for optimizer, some in rows.items():
        found = [case.mismatches for case in some if case.mismatches]
        left = sum(each.best_arithmetic.mismatches for each in found)
        unexplained = sum(each.by_cause.get("unexplained", 0) for each in found)
        lines.append(
            f"| {optimizer} | {len(some)} | {sum(each.outputs for each in found):,} "
            f"| {sum(each.total for each in found):,} | {left:,} | {unexplained:,} |"
        )
    return lines


def trajectories() -> list[str]:
    """How far the sides part, and how far each is from exact training."""
    lines = [
        "| 200 steps of | weights that differ at the end, H200 | interpreter "
        "| error of the kernels, H200 | interpreter | of the reference | of bf16 alone |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    there = cases(load(GPU, "step"))
    for name, case in cases(load(CPU, "step")).items():
        here, gpu = case.metrics, there[name].metrics
        if isinstance(here, TrajectoryMetrics) and isinstance(gpu, TrajectoryMetrics):
            errors = (gpu.error_subject, here.error_subject, here.error_reference, here.error_naive)
            cells = " | ".join(f"{100 * (error or 0):.2f}%" for error in errors)
            lines.append(
                f"| {name.removeprefix('trajectory/')} | {gpu.param_differ} of "
                f"{case.numel // here.steps:,} | {here.param_differ} | {cells} |"
            )
    return lines


def environment(folder: Path) -> list[str]:
    """Versions, the command, and what the figures say, of one folder of reports."""
    reports = [read(path) for path in sorted(folder.glob("*.json"))]
    first = reports[0]
    there = first.environment
    lines = [
        f"- {first.subject.name} {first.subject.version}, torch {there.torch}, "
        f"Triton {there.triton}, NumPy {there.numpy}, Python {there.python}",
        f"- backend {there.backend}"
        + (
            f" on {there.device}, compute capability {there.compute_capability}, driver "
            f"{there.driver}, Triton's default for fusion {'on' if there.fp_fusion else 'off'}"
            if there.backend == "cuda"
            else f" on {there.cpu}, with the shims {', '.join(s.name for s in there.shims)}"
        ),
        "",
    ]
    for report in reports:
        summary = report.summary
        lines.append(
            f"- `{' '.join(report.command)}`: **{report.suite} {report.status}**, "
            f"{summary.elements:,} elements, {summary.passed} cases passed, {summary.known} known "
            f"to deviate, {summary.failed} failed, {_unexplained(report)}"
        )
    return lines


def _unexplained(report: Report) -> str:
    """Mismatches without a cause, and those of cases that are known to deviate."""
    new = known = 0
    for case in report.cases:
        number = case.mismatches.by_cause.get("unexplained", 0) if case.mismatches else 0
        if case.status is Status.KNOWN:
            known += number
        else:
            new += number
    words = f"{new:,} mismatches unexplained"
    return (
        f"{words} (and {known:,} in cases whose known fault is none of arithmetic)"
        if known
        else words
    )


BLOCKS: dict[Path, dict[str, Callable[[], list[str]]]] = {
    ROOT / "README.md": {
        "quant": side_by_side,
        "splitting": splitting,
        "causes": causes,
        "proved": proved,
        "exact": exact,
        "steps": lambda: steps(CPU, "step"),
        "steps-h200": lambda: steps(GPU, "step-full"),
        "trajectories": trajectories,
    },
    GPU / "README.md": {
        "runs": lambda: environment(GPU),
        "unfused": lambda: environment(UNFUSED),
        "causes": causes,
    },
    CPU / "README.md": {"runs": lambda: environment(CPU)},
    CONTROL / "README.md": {"runs": lambda: environment(CONTROL)},
}


def filled(text: str, blocks: dict[str, Callable[[], list[str]]]) -> str:
    """A README with each ``<!-- figures: NAME -->`` block made anew."""
    for name, make in blocks.items():
        start, end = f"<!-- figures: {name} -->", "<!-- end -->"
        head, _, rest = text.partition(start)
        _, _, tail = rest.partition(end)
        text = "".join([head, start, "\n", "\n".join(make()), "\n", end, tail])
    return text


def main() -> int:
    stale = []
    for path, blocks in BLOCKS.items():
        text = path.read_text(encoding="utf-8")
        made = filled(text, blocks)
        if made != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(made, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'is not current' if '--check' in sys.argv else 'written'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
