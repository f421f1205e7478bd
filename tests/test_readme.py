"""The README is true: its commands run, its files work, its tables are the reports'."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
    if line.startswith("flashcheck ")
]
TIMEOUT_S = 300


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) >= 8
    assert {shlex.split(command)[1] for command in COMMANDS} >= {"run", "list", "doctor", "repro"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder: the files that the README shows, each named in its first line."""
    made = tmp_path_factory.mktemp("reader")
    for language, text in BLOCKS:
        named = re.match(r"# (\S+\.\w+)\n", text)
        if language in {"yaml", "python"} and named:
            (made / named.group(1)).write_text(text, encoding="utf-8")
    (made / "reports").symlink_to(ROOT / "reports")
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, folder: Path, tmp_path: Path) -> None:
    words = shlex.split(command, comments=True)
    # What it writes goes to this test's folder, not over the reports that are committed.
    words = [
        str(tmp_path / Path(word).name) if word.startswith("/tmp/") else word for word in words
    ]
    if words[1] == "run" and "--out" not in words:
        words += ["--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr


def test_the_tables_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/figures.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tables_are_seen_to_be_stale(tmp_path: Path) -> None:
    """The check above can fail: a figure changed by hand is noticed."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import figures
    finally:
        sys.path.pop(0)
    blocks = figures.BLOCKS[ROOT / "README.md"]
    changed = README.replace("| tiny/momentum | 65,276", "| tiny/momentum | 65,275")
    assert changed != README
    assert figures.filled(changed, blocks) == README


def test_every_exit_code_is_explained() -> None:
    from flashcheck.errors import ExitCode

    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", README, re.MULTILINE), code


def test_every_cause_is_explained() -> None:
    from flashcheck.compare import attribution
    from flashcheck.compare.settings import Switch

    causes = {switch.value for switch in Switch} | {
        attribution.UNEXPLAINED,
        attribution.ROUNDING_BOUNDARY,
        attribution.ULP_BOUND,
        attribution.PROPAGATED,
        attribution.OUTSIDE_DOMAIN,
    }
    for cause in causes:
        assert f"| `{cause}` |" in README, cause
