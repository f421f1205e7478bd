"""``flashcheck selftest``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from flashcheck.cli.common import a_reader_may_go, console, exits, import_torch, say
from flashcheck.errors import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from flashcheck.selftest.verdicts import Verdict

_SUITES = ["edge", "quant", "ecc", "int16"]
_STEPS = ["step"]


@exits
def selftest() -> None:
    """Prove that faulty kernels are caught and that correct ones are not flagged.

    Runs the suites on subjects with one fault each and on correct ones that differ in legitimate
    arithmetic only. Exits 0 only if every verdict is right.
    """
    from rich import box
    from rich.table import Table

    import_torch()

    from flashcheck import catalog, selection
    from flashcheck.selftest import (  # noqa: F401 - importing them registers their specimens
        faults_calls,
        faults_quantization,
        faults_splitting,
        faults_step,
        variants,
        variants_step,
    )
    from flashcheck.selftest.registry import SPECIMENS
    from flashcheck.selftest.verdicts import verdicts

    suites = selection.select(catalog.find(_SUITES), battery=[], spec=[])
    steps = selection.select(catalog.find(_STEPS), battery=[], spec=[])
    screen = console()
    table = Table("", "subject", "caught by", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    judged = []
    with screen.status("running the suites") if screen.is_terminal else nullcontext():
        for verdict in verdicts(SPECIMENS, suites, steps):
            judged.append(verdict)
            _add_row(table, verdict)
    with a_reader_may_go():
        screen.print(table)
    faulty = [verdict for verdict in judged if verdict.specimen.faulty]
    correct = [verdict for verdict in judged if not verdict.specimen.faulty]
    caught, passed = (sum(v.right for v in group) for group in (faulty, correct))
    say(
        f"{caught} of {len(faulty)} faulty subjects caught, "
        f"{passed} of {len(correct)} correct ones passed"
    )
    right = all(verdict.right for verdict in judged)
    sys.exit(ExitCode.OK if right else ExitCode.GATE_FAILED)


def _add_row(table: Table, verdict: Verdict) -> None:
    from rich.text import Text

    if verdict.caught_by:
        case, reason = verdict.caught_by
        words = f"{case}: {reason.split('; ')[0]}"
    else:
        words = f"nothing, in {verdict.cases} cases"
    kind = "faulty" if verdict.specimen.faulty else "correct"
    mark = Text(kind if verdict.right else f"WRONG, {kind}", "" if verdict.right else "bold red")
    table.add_row(mark, Text(verdict.specimen.description), Text(words))
