"""Shared fixtures: the command line in this process, small suites, subjects to put in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

import flashcheck
from tests.fakes import QUANT, SPLIT

CHECKOUT = Path(flashcheck.__file__).parents[1]
TIMEOUT_S = 120

# No variable of a developer's terminal or of a CI system decides how a table looks in a test. Here,
# not in a fixture: typer reads some of them once, when it is imported.
for _name in (
    "COLUMNS",
    "LINES",
    "TERMINAL_WIDTH",
    "NO_COLOR",
    "FORCE_COLOR",
    "PY_COLORS",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "GITHUB_ACTIONS",
):
    os.environ.pop(_name, None)

# torch imports Triton for the first operation on its device "meta", before any backend is chosen.
os.environ.setdefault("TRITON_INTERPRET", "1")


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, as strict JSON: Python alone would let NaN pass."""
        return strict_json(self.out)


def strict_json(text: str) -> Any:
    """Parse JSON that has no NaN and no Infinity."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class Cli(Protocol):
    def __call__(self, *words: str | Path) -> Ran: ...


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run the entry point in this process, in ``tmp_path``; an escaped exception is a crash."""
    from flashcheck.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["flashcheck", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # noqa: BLE001
            # What the interpreter would do with it, KeyboardInterrupt included.
            traceback.print_exc()
            code = 1
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def subprocess_cli(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the command line in a process of its own, in ``tmp_path``, on this code."""

    def start(*words: str | Path, python: tuple[str, ...] = (), **options: Any) -> Any:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            **options.pop("env", {}),
        }
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(
            [sys.executable, *python, "-m", "flashcheck", *map(str, words)],
            cwd=tmp_path,
            env=environment,
            **options,
        )

    return start


@pytest.fixture
def use_subject(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Make the command line run a given object as its subject."""
    from flashcheck.subjects import registry

    def use(subject: object) -> None:
        monkeypatch.setattr(registry, "load", lambda *_, **__: (subject, []))

    return use


@pytest.fixture
def quant(tmp_path: Path) -> Path:
    """A small suite of kind ``quantization``."""
    path = tmp_path / "small.yaml"
    path.write_text(QUANT)
    return path


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A small suite of kind ``splitting``."""
    path = tmp_path / "sweep.yaml"
    path.write_text(SPLIT)
    return path


@pytest.fixture(scope="session")
def interpreted() -> Any:
    """The authors' kernels on Triton's interpreter, loaded once: it patches modules in place."""
    from flashcheck.subjects import registry

    return registry.load("flashoptim", "interpreter")
