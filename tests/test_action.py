"""The GitHub action, as far as it can be tried without GitHub: its script, run in bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from tests.conftest import CHECKOUT, TIMEOUT_S

ACTION: dict[str, Any] = yaml.safe_load((CHECKOUT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def run(
    step: str, inputs: dict[str, str], cwd: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """A step's script with its inputs, each where the step asks for it."""
    given = {name: each["default"] for name, each in ACTION["inputs"].items()} | inputs
    environ = {
        name: given[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in STEPS[step].get("env", {}).items()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", STEPS[step]["run"]],
        cwd=cwd,
        env={**os.environ, **environ, "PATH": path, **more},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def inputs(tmp_path: Path, quant: Path) -> dict[str, str]:
    return {
        "suites": str(quant),
        "subject": f"{CHECKOUT}/tests/fakes.py:ReferenceSubject",
        "backend": "interpreter",
    }


def test_it_runs_writes_all_forms_and_summarizes(tmp_path: Path, inputs: dict[str, str]) -> None:
    ran = run("Run", inputs, tmp_path)
    assert ran.returncode == 0, ran.stderr
    out = tmp_path / "flashcheck-reports"
    assert sorted(path.name for path in out.iterdir()) == [
        "flashcheck.xml",
        "small.json",
        "summary.md",
    ]
    assert JUnitXml.fromfile(str(out / "flashcheck.xml")).tests == 4
    summary = tmp_path / "step-summary"
    summary.write_text("before\n")
    run("Summarize, also a failed run", inputs, tmp_path, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text() == "before\n" + (out / "summary.md").read_text()


def test_a_failing_subject_fails_it_and_a_baseline_is_held(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    assert run("Run", inputs, tmp_path).returncode == 0
    held = run("Run", {**inputs, "baseline": "flashcheck-reports/small.json"}, tmp_path)
    assert held.returncode == 0
    assert "no result changed" in held.stdout
    (tmp_path / "wrong.py").write_text(
        "from tests.fakes import ReferenceSubject\n\n\n"
        "class Wrong(ReferenceSubject):\n"
        "    def quantize(self, x, **options):\n"
        "        codes, scales = super().quantize(x, **options)\n"
        "        return codes // 2, scales\n"
    )
    wrong = {**inputs, "subject": "wrong.py:Wrong"}
    assert run("Run", wrong, tmp_path, PYTHONPATH=str(CHECKOUT)).returncode == 1


def test_an_input_is_no_part_of_a_script(tmp_path: Path, inputs: dict[str, str]) -> None:
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")
    ran = run("Run", {**inputs, "subject": "$(touch hacked); touch hacked"}, tmp_path)
    assert ran.returncode == 2
    assert not (tmp_path / "hacked").exists()
