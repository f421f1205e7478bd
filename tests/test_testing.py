"""What a package's own tests call, and the subject that ``flashcheck subject new`` begins with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcheck.errors import UnavailableError, UsageError
from flashcheck.subjects.template import Template
from flashcheck.testing import check
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli
from tests.fakes import ReferenceSubject

ONE = {"battery": ["const_groups"], "spec": ["momentum"]}


class Wrong(Template):
    name = "wrong"

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        codes, scales = super().quantize(x, **options)
        codes[0] -= 3
        return codes, scales


class Raises(Template):
    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        raise RuntimeError("no such kernel")


class OnlySplits:
    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        raise AssertionError("is not called")


def test_a_right_subject_gives_its_report() -> None:
    report = check(ReferenceSubject(), battery=["heavy_tail"])
    assert (report.suite, report.status) == ("quant", "pass")
    assert [case.case for case in report.cases] == ["heavy_tail/momentum", "heavy_tail/variance"]
    assert all(case.mismatches and not case.mismatches.total for case in report.cases)


def test_the_template_computes_what_the_paper_says_in_every_case() -> None:
    report = check(Template, suite="quant")
    assert report.subject.name == "template"
    assert report.summary.passed + report.summary.known == report.summary.cases == 14
    assert not any(c.mismatches and c.mismatches.by_cause.get("unexplained") for c in report.cases)


def made() -> Template:
    return Template()


@pytest.mark.parametrize(
    "subject", [Template, Template(), made, f"{CHECKOUT}/tests/test_testing.py:Wrong"]
)
def test_a_class_an_object_a_factory_and_a_name_are_subjects(subject: Any) -> None:
    if isinstance(subject, str):
        with pytest.raises(AssertionError, match="wrong 0"):
            check(subject, **ONE)
    else:
        assert check(subject, **ONE).summary.passed == 1


def test_a_wrong_subject_fails_with_the_case_the_gate_and_the_cause() -> None:
    with pytest.raises(AssertionError) as raised:
        check(Wrong, battery=["const_groups"])
    first, *cases = str(raised.value).splitlines()
    assert first.startswith("wrong 0.1 on native: suite 'quant' fail: ")
    assert "2 failed" in first
    assert [line.split(":")[0].strip() for line in cases] == [
        "const_groups/momentum",
        "const_groups/variance",
    ]
    assert all("unexplained" in line for line in cases)


def test_one_that_raises_fails_with_what_it_said() -> None:
    with pytest.raises(AssertionError, match="quantize raised RuntimeError: no such kernel"):
        check(Raises, **ONE)


def test_nothing_compared_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="nothing compared") as raised:
        check(OnlySplits, **ONE)
    assert "const_groups/momentum: unsupported: " in str(raised.value)


@pytest.mark.parametrize("subject", [5, object(), None])
def test_what_is_no_subject_is_refused(subject: Any) -> None:
    with pytest.raises(UnavailableError):
        check(subject, **ONE)


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean"):
        check(Template, suite="quantt")


# ---- flashcheck subject new ----------------------------------------------------------------


def test_what_it_writes_runs_and_passes_its_test(cli: Cli, tmp_path: Path) -> None:
    ran = cli("subject", "new", "MyKernels")
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "my_kernels.py",
        "test_my_kernels.py",
    ]
    command = next(line.split() for line in ran.out.splitlines() if "flashcheck run" in line)
    run = cli(*command[1:], "--battery", "const_groups", "--json", "--quiet")
    assert run.code == 0, run.err
    assert run.json()["subject"]["name"] == "my_kernels"

    def tested() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_kernels.py"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    right = tested()
    assert right.returncode == 0, right.stdout
    assert "1 passed" in right.stdout
    file = tmp_path / "my_kernels.py"
    file.write_text(file.read_text().replace("2 * share / (1 + share.abs())", "share"))
    wrong = tested()
    assert wrong.returncode == 1
    assert "AssertionError: my_kernels 0.1 on native: suite 'quant' fail" in wrong.stdout


@pytest.mark.parametrize("name", ["my-kernels", "1st", "class", "_x", "", "../x", "a b"])
def test_a_name_that_is_none_is_refused(cli: Cli, tmp_path: Path, name: str) -> None:
    ran = cli("subject", "new", name)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    ran = cli("subject", "new", "Mine")
    assert ran.code == 2
    assert "test_mine.py: is there already" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert (tmp_path / "test_mine.py").read_text() == "mine"
