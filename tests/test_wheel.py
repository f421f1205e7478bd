"""The wheel is whole: installed in an empty folder it runs a built-in suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    (made,) = out.glob("*.whl")
    return made


def test_the_wheel_holds_the_suites_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"flashcheck/configs/{path.name}" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_the_wheel_runs_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "empty"
    folder.mkdir()
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-warn-conflicts")
    run(*pip, "--target", str(site), str(wheel), cwd=folder)
    where = run(
        "-c", "import flashcheck; print(flashcheck.__file__)", cwd=folder, PYTHONPATH=str(site)
    )
    assert Path(where.stdout.strip()).is_relative_to(site)
    run("-m", "flashcheck", "run", "ecc", cwd=folder, PYTHONPATH=str(site))
    report = json.loads((folder / "reports" / "ecc.json").read_text(encoding="utf-8"))
    assert report["status"] == "pass"
    assert report["summary"]["elements"] == 64 << 16
