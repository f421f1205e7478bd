"""``flashcheck audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flashcheck.cli.common import a_reader_may_go, console, exits

if TYPE_CHECKING:
    from rich.table import Table

    from flashcheck.audit.instructions import Compiled
    from flashcheck.audit.prediction import Prediction
    from flashcheck.subjects.base import Kernel


@exits
def audit(
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A GPU to compile for, such as sm_90 or gfx942; repeatable.  "
            "[default: sm_80, sm_90, sm_100, gfx942]",
        ),
    ] = None,
    subject: Annotated[
        str, typer.Option(metavar="NAME", help="The implementation whose kernels are compiled.")
    ] = "flashoptim",
    json: Annotated[
        bool, typer.Option("--json", help="Print the instructions and predictions as JSON.")
    ] = False,
) -> None:
    """Compile a subject's kernels and say what arithmetic their instructions predict.

    Needs no GPU. Each kernel is compiled with Triton's contraction of a product and a sum allowed
    (its default up to 3.9) and forbidden.
    """
    from flashcheck.audit import targets

    chosen = [targets.find(name) for name in target or targets.DEFAULT]

    from flashcheck.audit.instructions import compile_kernel
    from flashcheck.subjects import registry

    kernels = registry.load_kernels(subject)
    screen = console(stderr=json)
    documents = []
    for one in chosen:
        table = _table(one.name)
        for kernel in kernels:
            ways = (True, False) if kernel.fuses else (False,)
            made = [compile_kernel(kernel, one, fp_fusion=fusion) for fusion in ways]
            documents += [_document(kernel, compiled) for compiled in made]
            _add_rows(table, kernel, made)
        with a_reader_may_go():
            screen.print(table)
            screen.print()
    if json:
        import json as encoder

        with a_reader_may_go():
            typer.echo(encoder.dumps(documents, indent=2))


def _table(target: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"{target}\nkernel", no_wrap=True)
    table.add_column("fusion")
    table.add_column("predicted arithmetic")
    table.add_column("instructions that bear on rounding")
    return table


def _add_rows(table: Table, kernel: Kernel, made: list[Compiled]) -> None:
    """A row for fusion allowed and one for off, or one for both where they predict the same."""
    predictions = [_predict(kernel, compiled).words() for compiled in made]
    if len(set(predictions)) == 1:
        label = "either" if kernel.fuses else "off"
        table.add_row(kernel.name, label, predictions[0], _instructions(made[0]))
        return
    for label, words, compiled in zip(("allowed", "off"), predictions, made, strict=True):
        name = kernel.name if compiled.fp_fusion else ""
        table.add_row(name, label, words, _instructions(compiled))


def _instructions(compiled: Compiled) -> str:
    opcodes: dict[str, int] = {}
    for kind, found in compiled.opcodes.items():
        if kind not in _ORDINARY:
            opcodes |= found
    return ", ".join(f"{opcode} {number}" for opcode, number in opcodes.items())


def _predict(kernel: Kernel, compiled: Compiled) -> Prediction:
    from flashcheck.audit.prediction import predict

    return predict(
        compiled, divisions=kernel.divisions, constant_divisions=kernel.constant_divisions
    )


_ORDINARY = {"multiplication", "addition", "integer to float"}
"""In every kernel and correctly rounded: in the JSON, not in the table."""


def _document(kernel: Kernel, compiled: Compiled) -> dict[str, object]:
    from dataclasses import asdict

    prediction = _predict(kernel, compiled)
    return {**asdict(compiled), "prediction": {**asdict(prediction), "words": prediction.words()}}
