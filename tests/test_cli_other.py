"""The commands beside ``run``, and what holds of them all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import flashcheck
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli, strict_json
from tests.fakes import QUANT, ReferenceSubject, changed, code_off_by_one

Use = Callable[[object], None]
Start = Callable[..., "subprocess.Popen[str]"]

HEAVY = ("torch", "triton", "numpy", "flashoptim")


def words(text: str) -> str:
    """A table's text, whatever its columns and where its lines break."""
    return " ".join(text.split())


# ---- Light commands ------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["--help"], ["list"], ["run", "--help"], ["show", "--help"]])
def test_help_and_list_import_nothing_heavy(subprocess_cli: Start, command: list[str]) -> None:
    process = subprocess_cli(*command, python=("-X", "importtime"))
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert out
    imported = {line.split("|")[-1].strip().split(".")[0] for line in err.splitlines()}
    assert "flashcheck" in imported
    assert imported.isdisjoint(HEAVY)


def test_a_wrong_suite_is_found_without_torch(subprocess_cli: Start, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("suite: [\n")
    process = subprocess_cli("run", "own.yaml", python=("-X", "importtime"))
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert "torch" not in {line.split("|")[-1].strip() for line in err.splitlines()}


def test_python_m_flashcheck(subprocess_cli: Start) -> None:
    process = subprocess_cli("--help")
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "python -m flashcheck" in out or "Usage: flashcheck" in out
    for command in ("run", "list", "show", "schema", "doctor"):
        assert command in out


def test_the_installed_script_is_the_same(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("flashcheck")
    if not script.exists():
        pytest.skip(f"flashcheck is not installed beside {sys.executable}")
    done = subprocess.run(
        [script, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0
    assert "doctor" in done.stdout
    assert "\x1b" not in done.stdout


def test_help_names_every_option_of_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran = cli("run", "--help")
    assert ran.code == 0
    for option in (
        "--battery", "--spec", "--subject", "--backend", "--out", "--json", "--quiet", "--autotune",
        "auto", "cuda", "interpreter",
    ):  # fmt: skip
        assert option in ran.out


@pytest.mark.parametrize("command", [["bogus"], ["run"], ["show"], ["run", "quant", "--bogus"]])
def test_a_wrong_command_line_is_a_usage_error(cli: Cli, command: list[str]) -> None:
    ran = cli(*command)
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err


# ---- list ----------------------------------------------------------------------------------


def test_list_names_suites_batteries_subjects_and_backends(cli: Cli) -> None:
    ran = cli("list")
    assert ran.code == 0
    assert ran.err == ""
    assert "\x1b" not in ran.out
    text = words(ran.out)
    for name in ("quant", "ecc", "int16", "flashoptim", "cuda", "interpreter"):
        assert name in text
    for tensor in ("normal", "heavy_tail", "tiny", "adam_v_like", "nonmult32", "const_groups"):
        assert tensor in text
    for spec in ("momentum", "variance", "bf16+int8", "bf16+int16"):
        assert spec in text
    assert "version 0.1.4" in text


def test_list_says_why_there_is_no_gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashcheck.subjects import gpu

    monkeypatch.setattr(gpu, "why_none", lambda: "no NVIDIA driver is installed")
    assert "cuda unavailable: no NVIDIA driver is installed" in words(cli("list").out)
    monkeypatch.setattr(gpu, "why_none", lambda: None)
    assert "cuda available" in words(cli("list").out)


def test_list_shows_the_suites_of_the_folder_first(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    mine = changed(QUANT, "suite: small", "suite: quant")
    (tmp_path / "configs" / "quant.yaml").write_text(mine)
    (tmp_path / "configs" / "own.yaml").write_text(changed(QUANT, "suite: small", "suite: own"))
    text = words(cli("list").out)
    assert text.count("two tensors of a few groups") == 2
    assert "adam_v_like" not in text
    assert "bf16+int8" in text


def test_list_shows_a_broken_suite_with_its_fault(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "own.yaml").write_text(changed(QUANT, "seed: 7", "sead: 7"))
    ran = cli("list")
    assert ran.code == 0
    text = words(ran.out)
    assert "cannot be used: configs/own.yaml:4: sead: unknown key; did you mean 'seed'?" in text
    assert "heavy_tail" in text


@pytest.mark.parametrize("command", [["list"], ["--help"], ["run", "--help"]])
def test_text_is_no_wider_than_80_columns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(*command).out.splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80


# ---- schema --------------------------------------------------------------------------------


def test_schema_is_a_json_schema(cli: Cli) -> None:
    ran = cli("schema")
    assert ran.code == 0
    assert ran.err == ""
    schema = ran.json()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema_version"]["const"] == 1


# ---- show ----------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [ReferenceSubject, code_off_by_one])
def test_show_prints_what_the_run_printed(
    cli: Cli, use_subject: Use, quant: Path, split: Path, subject: Callable[[], object]
) -> None:
    use_subject(subject())
    for suite, name in ((quant, "small"), (split, "sweep")):
        ran = cli("run", suite)
        shown = cli("show", f"reports/{name}.json")
        assert shown.code == 0
        assert shown.err == ""
        assert shown.out == ran.out
        assert "\x1b" not in shown.out


def test_show_needs_no_subject(
    cli: Cli, use_subject: Use, quant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashcheck.subjects import registry

    use_subject(ReferenceSubject())
    cli("run", quant, "--quiet")

    def refuse(*_: object) -> None:
        raise AssertionError("a stored report needs no subject")

    monkeypatch.setattr(registry, "load", refuse)
    assert cli("show", "reports/small.json").code == 0


def test_show_prints_hostile_text_as_it_is(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path
) -> None:
    use_subject(ReferenceSubject())
    cli("run", quant, "--quiet")
    report = strict_json((tmp_path / "reports" / "small.json").read_text())
    report["cases"][0] |= {"status": "fail", "reason": "[red]not markup[/red] :smile: [/]"}
    (tmp_path / "other.json").write_text(json.dumps(report))
    ran = cli("show", "other.json")
    assert ran.code == 0
    assert "[red]not markup[/red] :smile: [/]" in ran.out


# ---- doctor --------------------------------------------------------------------------------


def test_doctor_says_what_runs_here(subprocess_cli: Start) -> None:
    process = subprocess_cli("doctor")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "\x1b" not in out
    text = words(out)
    for name in (
        "flashcheck",
        "python",
        "torch",
        "triton",
        "numpy",
        "flashoptim",
        "gpu",
        "backend",
    ):
        assert name in text
    assert flashcheck.__version__ in text
    assert "subject flashoptim" in text
    if "auto takes interpreter" in text:
        assert "shim" in text
        assert "65,536" in text


class TestDoctorInThisProcess:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from flashcheck.errors import UnavailableError
        from flashcheck.subjects import registry

        def load(*_: object) -> Any:
            raise UnavailableError("the package flashoptim is missing; install it")

        monkeypatch.setattr(registry, "load", load)

    @pytest.mark.usefixtures("broken")
    def test_doctor_fails_where_no_subject_loads(self, cli: Cli) -> None:
        ran = cli("doctor")
        assert ran.code == 3
        assert "unavailable: the package flashoptim is missing" in words(ran.out)
        assert "Traceback" not in ran.err

    def test_doctor_says_the_mend_where_there_is_no_gpu(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flashcheck.subjects import gpu

        monkeypatch.setattr(gpu, "why_none", lambda: "the NVIDIA driver finds no GPU")
        text = words(cli("doctor").out)
        assert "the NVIDIA driver finds no GPU; mend, if this machine has one: install" in text
        assert "--force-reinstall torch" not in text

    @pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a GPU here")
    def test_doctor_says_the_mend_where_torch_cannot_use_the_gpu(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flashcheck.subjects import gpu

        monkeypatch.setattr(gpu, "why_none", lambda: None)
        text = words(cli("doctor").out)
        assert "found by the driver" in text
        assert "mend: pip install --force-reinstall torch" in text

    def test_doctor_names_a_missing_package_and_the_mend(
        self, cli: Cli, use_subject: Use, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flashcheck import environment

        def version(name: str) -> str | None:
            return None if name == "triton" else "1.0"

        monkeypatch.setattr(environment, "package_version", version)
        use_subject(ReferenceSubject())
        assert "missing; mend: pip install triton" in words(cli("doctor").out)


# ---- The checkout --------------------------------------------------------------------------


def test_committed_reports_load_and_fit_the_schema(cli: Cli) -> None:
    schema = cli("schema").json()
    committed = subprocess.run(
        ["git", "ls-files", "-z", "reports/*.json"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    paths = [CHECKOUT / path for path in committed.stdout.split("\0") if path]
    if not paths:
        pytest.skip("no report is committed here, or this is no git checkout")
    for path in paths:
        report = strict_json(path.read_text())
        if "schema_version" in report:
            jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)
            assert cli("show", path).code == 0
