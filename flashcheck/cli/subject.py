"""``flashcheck subject``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashcheck.cli.common import a_reader_may_go, exits
from flashcheck.errors import UsageError

app = typer.Typer(help="Begin a subject of your own.", no_args_is_help=True)

_TEST = '''\
"""Does {title} compute what the paper says?"""

import pytest
from flashcheck.testing import check

from {module} import {title}


@pytest.mark.parametrize("suite", ["quant"])
def test_{module}_computes_what_the_paper_says(suite):
    check({title}, suite=suite)
'''


@app.command(name="new")
@exits
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the class, such as MyKernels.")],
) -> None:
    """Write a subject that runs, and a test of it, into this folder."""
    import keyword
    import re

    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise UsageError(f"subject new {name}: is no name of a class; take letters and digits")
    title = name[0].upper() + name[1:]
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).lower()
    file, test = Path(f"{module}.py"), Path(f"test_{module}.py")
    source = Path(__file__).parents[1] / "subjects" / "template.py"
    text = source.read_text(encoding="utf-8")
    text = text.replace("class Template", f"class {title}")
    text = text.replace('name = "template"', f'name = "{module}"')
    _write({file: text, test: _TEST.format(title=title, module=module)})
    with a_reader_may_go():
        typer.echo(f"{file} and {test} are written; try them:")
        typer.echo(f"  flashcheck run quant --subject {file}:{title} --out {module}.json")
        typer.echo(f"  python -m pytest {test}")


def _write(texts: dict[Path, str]) -> None:
    """Write all files, or none where one is there."""
    for path in texts:
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path}: is there already; move it, or take another NAME")
    for path, text in texts.items():
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written: {error.strerror}; go to another folder"
            ) from None
