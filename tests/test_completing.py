"""What a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashcheck.cli import completing
from tests.conftest import TIMEOUT_S


def test_names_that_start_as_typed_are_offered() -> None:
    assert completing.suites("e") == ["ecc", "edge", "exhaustive"]
    assert "all" in completing.suites("")
    assert completing.tensors("heavy") == ["heavy_tail"]
    assert completing.specs("sgd-n") == ["sgd-nesterov"]
    assert completing.subjects("") == ["flashoptim", "triton"]
    assert completing.terms("rounding") == ["rounding_boundary", "rounding_tie"]
    assert completing.suites("nothing") == []


def test_a_suite_that_cannot_be_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text("suite: [")
    assert completing.suites("m") == ["mine"]
    assert "momentum" in completing.specs("mo")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("flashcheck run ex", "exhaustive"),
        ("flashcheck run step --spec li", "lion"),
        ("flashcheck run quant --subject tr", "triton"),
        ("flashcheck explain nmse_ra", "nmse_ratio"),
    ],
)
def test_bash_is_answered(words: str, wanted: str) -> None:
    typed = words.split()
    asked = {
        "_FLASHCHECK_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
    }
    ran = subprocess.run(
        [sys.executable, "-c", "from flashcheck.cli import app; app(prog_name='flashcheck')"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert wanted in ran.stdout.split()
    assert ran.stderr == ""
