"""``flashcheck run``: what is run, what is judged, what is written, and how it ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcheck.report import store
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli, Ran, strict_json
from tests.fakes import (
    QUANT,
    SPLIT,
    Altered,
    DoesNothing,
    OnlyQuantizes,
    ReferenceSubject,
    changed,
    code_off_by_one,
    raises_on,
)

Use = Callable[[object], None]

PASS, FAIL, USAGE, UNAVAILABLE, ERROR, INTERRUPTED = 0, 1, 2, 3, 4, 130


def statuses(report: Any) -> dict[str, str]:
    return {case["case"]: case["status"] for case in report["cases"]}


def run_json(cli: Cli, *words: str | Path) -> tuple[int, Any]:
    ran = cli("run", *words, "--json")
    return ran.code, ran.json()


# ---- The verdict ---------------------------------------------------------------------------


def test_the_control_passes(cli: Cli, use_subject: Use, quant: Path, split: Path) -> None:
    use_subject(ReferenceSubject())
    code, reports = run_json(cli, quant, split)
    assert code == PASS
    assert [report["status"] for report in reports] == ["pass", "pass"]
    assert statuses(reports[0]) == dict.fromkeys(
        ["plain/momentum", "plain/variance", "skewed/momentum", "skewed/variance"], "pass"
    )
    assert statuses(reports[1]) == {"bf16+int8": "pass", "fp16+int16": "pass"}
    assert reports[0]["summary"]["elements"] == 2 * (200 + 97)
    assert reports[1]["summary"]["elements"] == 2 * 5 * 64


def test_a_code_off_by_one_fails(cli: Cli, use_subject: Use, quant: Path) -> None:
    use_subject(code_off_by_one(signed_only=True))
    code, report = run_json(cli, quant)
    assert code == FAIL
    assert report["status"] == "fail"
    assert statuses(report) == {
        "plain/momentum": "fail",
        "plain/variance": "pass",
        "skewed/momentum": "fail",
        "skewed/variance": "pass",
    }
    case = report["cases"][0]
    assert "int_agree is 0.995, must be >= 0.9999" in case["reason"]
    assert case["metrics"]["int_mismatches"] == 1
    gate = next(gate for gate in case["gates"] if gate["metric"] == "int_agree")
    assert (gate["ok"], gate["value"], gate["limit"], gate["op"]) == (False, 0.995, 0.9999, ">=")


def test_a_correction_code_off_by_one_fails(cli: Cli, use_subject: Use, split: Path) -> None:
    def alter(codes: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.where(codes < 1, codes + 1, codes - 1)

    use_subject(Altered("compute_ecc", alter))
    code, report = run_json(cli, split)
    assert code == FAIL
    assert set(statuses(report).values()) == {"fail"}
    assert report["cases"][0]["metrics"]["rho_agree_frac"] == 0
    assert report["cases"][0]["metrics"]["rho_mismatches"] == 5 * 64


KNOWN = """
known_deviations:
  - subject: {subject}
    case: plain/momentum
    breaks: [{breaks}]
    reason: its first code is one too far
"""


def broken_by_one_code(report: Any) -> list[str]:
    """The gates that a single wrong code breaks."""
    return [gate["metric"] for gate in report["cases"][0]["gates"] if not gate["ok"]]


@pytest.fixture
def breaks(cli: Cli, use_subject: Use, quant: Path) -> str:
    use_subject(code_off_by_one(signed_only=True))
    metrics = broken_by_one_code(run_json(cli, quant)[1])
    assert "int_agree" in metrics
    return ", ".join(metrics)


def test_a_known_deviation_is_no_failure(
    cli: Cli, use_subject: Use, quant: Path, breaks: str
) -> None:
    quant.write_text(QUANT + KNOWN.format(subject="fake", breaks=breaks))
    use_subject(code_off_by_one(signed_only=True))
    code, report = run_json(cli, quant, "--battery", "plain")
    assert code == PASS
    assert statuses(report) == {"plain/momentum": "known", "plain/variance": "pass"}
    assert report["cases"][0]["reason"] == "its first code is one too far"
    assert (report["summary"]["known"], report["summary"]["passed"]) == (1, 1)


def test_a_known_deviation_is_of_its_case_only(
    cli: Cli, use_subject: Use, quant: Path, breaks: str
) -> None:
    quant.write_text(QUANT + KNOWN.format(subject="fake", breaks=breaks))
    use_subject(code_off_by_one(signed_only=True))
    code, report = run_json(cli, quant)
    assert code == FAIL
    assert statuses(report)["plain/momentum"] == "known"
    assert statuses(report)["skewed/momentum"] == "fail"


def test_a_known_deviation_is_of_its_subject_only(
    cli: Cli, use_subject: Use, quant: Path, breaks: str
) -> None:
    quant.write_text(QUANT + KNOWN.format(subject="another", breaks=breaks))
    use_subject(code_off_by_one(signed_only=True))
    code, report = run_json(cli, quant, "--battery", "plain")
    assert code == FAIL
    assert statuses(report)["plain/momentum"] == "fail"


def test_a_known_deviation_excuses_no_other_gate(
    cli: Cli, use_subject: Use, quant: Path, breaks: str
) -> None:
    text = changed(QUANT, "metric: nonfinite_disagree", "metric: int_within_1")
    text = changed(changed(text, 'op: "=="', 'op: ">="'), "    limit: 0\n", "    limit: 1.0\n")
    quant.write_text(text + KNOWN.format(subject="fake", breaks=breaks))

    def alter(result: tuple[torch.Tensor, torch.Tensor], _: torch.Tensor) -> Any:
        result[0][0] += 3 if result[0][0] < 1 else -3
        return result

    use_subject(Altered("quantize", alter))
    code, report = run_json(cli, quant, "--battery", "plain")
    assert code == FAIL
    assert statuses(report)["plain/momentum"] == "fail"
    assert "int_within_1" in report["cases"][0]["reason"]


def test_a_known_deviation_that_passes_is_a_failure(
    cli: Cli, use_subject: Use, quant: Path
) -> None:
    quant.write_text(QUANT + KNOWN.format(subject="fake", breaks="int_agree"))
    use_subject(ReferenceSubject())
    code, report = run_json(cli, quant)
    assert code == FAIL
    assert statuses(report)["plain/momentum"] == "unexpected_pass"
    assert report["summary"]["unexpected_pass"] == 1
    assert "known to break int_agree" in report["cases"][0]["reason"]


def test_another_gate_changes_the_verdict(cli: Cli, use_subject: Use, quant: Path) -> None:
    # All but one code agree: enough for a gate of 0.99, if it is the only one.
    head = QUANT[: QUANT.index("gates:")]
    quant.write_text(
        f"{head}gates:\n"
        "  - {metric: int_agree, op: '>=', limit: 0.98, reason: near enough}\n"
        "  - {metric: unexplained, op: '<=', limit: 1000, reason: not of interest here}\n"
    )
    use_subject(code_off_by_one())
    assert run_json(cli, quant)[0] == PASS


# ---- Subjects that misbehave ---------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error:\n  an illegal\taccess"),
        KeyError("x"),
        MemoryError(),
        SystemExit(0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_subject_that_raises_in_one_case(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path, error: BaseException
) -> None:
    use_subject(raises_on(97, error))
    ran = cli("run", quant, "--quiet")
    assert ran.code == ERROR
    assert "Traceback" not in ran.err
    report = strict_json((tmp_path / "reports" / "small.json").read_text())
    assert statuses(report) == {
        "plain/momentum": "pass",
        "plain/variance": "pass",
        "skewed/momentum": "error",
        "skewed/variance": "error",
    }
    assert report["status"] == "error"
    assert report["summary"]["errors"] == 2
    reason = report["cases"][2]["reason"]
    assert f"quantize raised {type(error).__name__}" in reason
    assert "\n" not in reason
    assert "\t" not in reason
    assert report["cases"][2]["metrics"] is None
    assert report["cases"][2]["numel"] == 0


def test_an_error_weighs_more_than_a_failure(cli: Cli, use_subject: Use, quant: Path) -> None:
    def alter(result: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor) -> Any:
        if x.numel() == 97:
            raise ValueError("no")
        result[0][0] += 1 if result[0][0] < 1 else -1
        return result

    use_subject(Altered("quantize", alter))
    code, report = run_json(cli, quant)
    assert code == ERROR
    assert set(statuses(report).values()) == {"fail", "error"}


def test_an_error_in_the_first_suite_does_not_keep_the_second_from_running(
    cli: Cli, use_subject: Use, quant: Path, split: Path, tmp_path: Path
) -> None:
    use_subject(raises_on(200, RuntimeError("no")))
    code, reports = run_json(cli, quant, split)
    assert code == ERROR
    assert [report["status"] for report in reports] == ["error", "pass"]
    assert sorted(p.name for p in (tmp_path / "reports").iterdir()) == ["small.json", "sweep.json"]


@pytest.mark.parametrize("method", ["dequantize", "compute_ecc", "reconstruct"])
def test_whichever_method_raises_is_named(
    cli: Cli, use_subject: Use, quant: Path, split: Path, method: str
) -> None:
    def alter(*_: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    use_subject(Altered(method, alter))
    code, reports = run_json(cli, quant, split)
    assert code == ERROR
    reasons = {case["reason"] for report in reports for case in report["cases"]}
    assert f"{method} raised ZeroDivisionError: by nothing" in reasons


@pytest.mark.parametrize(
    ("method", "alter", "says"),
    [
        ("quantize", lambda r, _: (r[0].to(torch.int16), r[1]), ["codes", "int16", "int8"]),
        ("quantize", lambda r, _: (r[0].float(), r[1]), ["codes", "float32", "int8"]),
        ("quantize", lambda r, _: (r[0][:-1], r[1]), ["codes", "199", "200"]),
        ("quantize", lambda r, _: (r[0][None], r[1]), ["codes", "(1, 200)", "(200,)"]),
        ("quantize", lambda r, _: (r[0], r[1].float()), ["scales", "float32", "float16"]),
        ("quantize", lambda r, _: (r[0], r[1][:-1]), ["scales", "(6,)", "(7,)"]),
        ("quantize", lambda r, _: r[0], ["quantize", "Tensor", "pair"]),
        ("quantize", lambda r, _: (*r, r[1]), ["quantize", "pair"]),
        ("quantize", lambda *_: None, ["quantize", "None", "pair"]),
        ("quantize", lambda r, _: (r[0].tolist(), r[1]), ["codes", "list", "tensor"]),
        ("dequantize", lambda r, _: r.double(), ["values", "float64", "float32"]),
        ("dequantize", lambda r, _: r.half(), ["values", "float16", "float32"]),
        ("dequantize", lambda r, _: r[:-1], ["values", "199", "200"]),
        ("dequantize", lambda *_: None, ["dequantize", "None", "tensor"]),
    ],
)
def test_a_quantizer_that_returns_the_wrong_thing(
    cli: Cli,
    use_subject: Use,
    quant: Path,
    split: Path,
    method: str,
    alter: Callable[..., Any],
    says: list[str],
) -> None:
    use_subject(Altered(method, alter))
    code, reports = run_json(cli, quant, split)
    assert code == ERROR
    case = reports[0]["cases"][0]
    assert case["status"] == "error"
    assert case["reason"].startswith(f"{method} returned")
    for word in says:
        assert word in case["reason"]
    assert reports[1]["status"] == "pass"


@pytest.mark.parametrize(
    ("method", "alter", "says"),
    [
        ("compute_ecc", lambda r, _: r.to(torch.int32), ["codes", "int32", "int8"]),
        ("compute_ecc", lambda r, _: r[:-1], ["codes", "319", "320"]),
        ("compute_ecc", lambda *_: None, ["None", "tensor"]),
        ("reconstruct", lambda r, _: r.double(), ["values", "float64", "float32"]),
        ("reconstruct", lambda r, _: r.to(torch.bfloat16), ["values", "bfloat16", "float32"]),
        ("reconstruct", lambda r, _: r[None], ["values", "(1, 320)", "(320,)"]),
        ("reconstruct", lambda *_: 0.0, ["float", "tensor"]),
    ],
)
def test_a_splitter_that_returns_the_wrong_thing(
    cli: Cli,
    use_subject: Use,
    quant: Path,
    split: Path,
    method: str,
    alter: Callable[..., Any],
    says: list[str],
) -> None:
    use_subject(Altered(method, alter))
    code, reports = run_json(cli, split, quant)
    assert code == ERROR
    case = reports[0]["cases"][0]
    assert case["status"] == "error"
    assert case["reason"].startswith(f"{method} returned")
    for word in says:
        assert word in case["reason"]
    assert reports[1]["status"] == "pass"


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a CUDA tensor could be made")
def test_a_result_on_another_device_is_an_error(cli: Cli, use_subject: Use, quant: Path) -> None:
    use_subject(Altered("dequantize", lambda r, _: r.to("meta")))
    code, report = run_json(cli, quant)
    assert code == ERROR
    assert "on meta; expected torch.float32 of shape (200,) on cpu" in report["cases"][0]["reason"]


def test_what_a_subject_cannot_do_is_unsupported(
    cli: Cli, use_subject: Use, quant: Path, split: Path
) -> None:
    use_subject(OnlyQuantizes())
    code, reports = run_json(cli, quant, split)
    assert statuses(reports[0]) == dict.fromkeys(statuses(reports[0]), "pass")
    assert statuses(reports[1]) == {"bf16+int8": "unsupported", "fp16+int16": "unsupported"}
    assert reports[1]["cases"][0]["reason"] == "the subject has no compute_ecc and no reconstruct"
    # The sweep compared nothing, which is never a pass.
    assert code == UNAVAILABLE


def test_half_a_pair_of_methods_is_not_enough(cli: Cli, use_subject: Use, quant: Path) -> None:
    class OneWay(DoesNothing):
        quantize = ReferenceSubject.quantize

    use_subject(OneWay())
    code, report = run_json(cli, quant)
    assert code == UNAVAILABLE
    assert report["cases"][0]["reason"] == "the subject has no dequantize"


def test_an_internal_error_is_not_taken_for_a_broken_gate(
    cli: Cli, use_subject: Use, quant: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from flashcheck import runner

    def fault(*_: object, **__: object) -> None:
        raise AssertionError("a fault of flashcheck's own")

    monkeypatch.setattr(runner, "run", fault)
    use_subject(ReferenceSubject())
    ran = cli("run", quant)
    assert ran.code == ERROR
    assert "a fault of flashcheck's own" in ran.err
    assert list((tmp_path / "reports").iterdir()) == []


# ---- Selection -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (["--battery", "skewed"], ["skewed/momentum", "skewed/variance"]),
        (["--spec", "variance"], ["plain/variance", "skewed/variance"]),
        (["--battery", "plain", "--spec", "momentum"], ["plain/momentum"]),
        (
            ["--battery", "skewed", "--battery", "plain", "--spec", "momentum"],
            ["plain/momentum", "skewed/momentum"],
        ),
        (
            ["--spec", "variance", "--spec", "momentum", "--battery", "skewed"],
            ["skewed/momentum", "skewed/variance"],
        ),
    ],
)
def test_a_part_of_a_battery(
    cli: Cli, use_subject: Use, quant: Path, options: list[str], cases: list[str]
) -> None:
    use_subject(ReferenceSubject())
    code, report = run_json(cli, quant, *options)
    assert code == PASS
    assert list(statuses(report)) == cases
    words = dict(zip(options[::2], options[1::2], strict=True))
    for option in ("battery", "spec"):
        assert (words.get(f"--{option}") in report["selection"][option]) == (f"--{option}" in words)


def test_one_pair_of_formats_of_a_sweep(cli: Cli, use_subject: Use, split: Path) -> None:
    use_subject(ReferenceSubject())
    code, report = run_json(cli, split, "--spec", "fp16+int16")
    assert code == PASS
    assert list(statuses(report)) == ["fp16+int16"]


def test_a_suite_without_part_in_the_selection_is_left_out(
    cli: Cli, use_subject: Use, quant: Path, split: Path, tmp_path: Path
) -> None:
    use_subject(ReferenceSubject())
    other = changed(QUANT, "suite: small", "suite: other")
    (tmp_path / "other.yaml").write_text(changed(other, "- name: plain", "- name: distinct"))
    code, report = run_json(cli, quant, split, "other.yaml", "--battery", "plain")
    assert code == PASS
    assert report["suite"] == "small"
    assert list(statuses(report)) == ["plain/momentum", "plain/variance"]


# ---- Suites --------------------------------------------------------------------------------


def test_all_is_every_suite_of_the_folder_and_the_built_in_ones(
    cli: Cli, use_subject: Use, tmp_path: Path
) -> None:
    # Files in ./configs hide the built-in ones of their name, and make this run short.
    (tmp_path / "configs").mkdir()
    for name in ("quant", "own"):
        text = changed(QUANT, "suite: small", f"suite: {name}")
        (tmp_path / "configs" / f"{name}.yaml").write_text(text)
    for name in ("ecc", "int16"):
        text = changed(SPLIT, "suite: sweep", f"suite: {name}")
        (tmp_path / "configs" / f"{name}.yaml").write_text(text)
    use_subject(ReferenceSubject())
    code, reports = run_json(cli, "all")
    assert code == PASS
    names = [report["suite"] for report in reports]
    assert set(names) >= {"ecc", "int16", "own", "quant"}
    assert len(names) == len(set(names))
    assert {p.stem for p in (tmp_path / "reports").iterdir()} == set(names)


def test_a_suite_named_twice_runs_once(cli: Cli, use_subject: Use, quant: Path) -> None:
    use_subject(ReferenceSubject())
    code, report = run_json(cli, quant, quant)
    assert code == PASS
    assert report["suite"] == "small"


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_path_is_run(cli: Cli, use_subject: Use, tmp_path: Path, suffix: str) -> None:
    use_subject(ReferenceSubject())
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / f"own{suffix}").write_text(QUANT)
    code, report = run_json(cli, f"deep/own{suffix}")
    assert code == PASS
    assert report["suite"] == "small"
    assert (tmp_path / "reports" / "small.json").is_file()


def test_the_report_holds_the_resolved_configuration(
    cli: Cli, use_subject: Use, quant: Path
) -> None:
    quant.write_text(changed(QUANT, "group_size: 32\n", ""))
    use_subject(ReferenceSubject())
    _, report = run_json(cli, quant)
    assert report["config"]["group_size"] == 32
    assert report["config"]["battery"][0]["scale"] == 1.0
    reason = report["config"]["gates"][0]["reason"]
    assert reason == "a kernel that computes the paper gives its codes"
    assert report["command"][0] == "flashcheck"
    assert report["command"][1:] == ["run", str(quant), "--json"]


# ---- Output --------------------------------------------------------------------------------

SUBJECTS = {
    PASS: ReferenceSubject,
    FAIL: code_off_by_one,
    UNAVAILABLE: DoesNothing,
    ERROR: lambda: raises_on(97, RuntimeError("no")),
}
FLAGS: list[list[str]] = [
    [],
    ["--quiet"],
    ["--json"],
    ["--json", "--quiet"],
    ["--out", "there"],
    ["--out", "there.json", "--quiet"],
]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
@pytest.mark.parametrize("code", list(SUBJECTS))
def test_output_flags_do_not_change_the_exit_code(
    cli: Cli, use_subject: Use, quant: Path, code: int, flags: list[str]
) -> None:
    use_subject(SUBJECTS[code]())
    assert cli("run", quant, *flags).code == code


def test_json_is_one_object_and_all_of_stdout(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path
) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", quant, "--json")
    assert isinstance(ran.json(), dict)
    assert ran.json() == strict_json((tmp_path / "reports" / "small.json").read_text())
    assert "plain/momentum" in ran.err
    assert ran.err.endswith("wrote reports/small.json\n")


def test_what_a_subject_prints_does_not_get_into_the_json(
    cli: Cli, use_subject: Use, quant: Path
) -> None:
    def alter(result: Any, _: torch.Tensor) -> Any:
        print("a kernel's chatter")  # noqa: T201
        return result

    use_subject(Altered("quantize", alter))
    ran = cli("run", quant, "--json")
    assert ran.json()["status"] == "pass"
    assert "chatter" in ran.err


def test_json_of_several_suites_is_a_list_in_their_order(
    cli: Cli, use_subject: Use, quant: Path, split: Path
) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", split, quant, "--json")
    assert [report["suite"] for report in ran.json()] == ["sweep", "small"]


def test_without_json_the_tables_are_on_stdout(cli: Cli, use_subject: Use, quant: Path) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", quant)
    assert "plain/momentum" in ran.out
    assert "small: pass (4 passed" in ran.out
    assert ran.err == "wrote reports/small.json\n"


@pytest.mark.parametrize("code", list(SUBJECTS))
def test_quiet_prints_nothing_but_writes(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path, code: int
) -> None:
    use_subject(SUBJECTS[code]())
    assert cli("run", quant, "--quiet") == Ran(code, "", "")
    assert (tmp_path / "reports" / "small.json").is_file()


def test_quiet_json_prints_only_json(cli: Cli, use_subject: Use, quant: Path) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", quant, "--quiet", "--json")
    assert ran.json()["suite"] == "small"
    assert ran.err == ""


@pytest.mark.parametrize(
    ("out", "written"),
    [
        ("folder", "folder/small.json"),
        ("a/b/c", "a/b/c/small.json"),
        ("file.json", "file.json"),
        ("a/b/file.json", "a/b/file.json"),
        ("./", "small.json"),
    ],
)
def test_out_is_a_folder_or_a_file(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path, out: str, written: str
) -> None:
    use_subject(ReferenceSubject())
    assert cli("run", quant, "--quiet", "--out", out).code == PASS
    assert strict_json((tmp_path / written).read_text())["suite"] == "small"
    assert not (tmp_path / "reports").exists()


def test_a_folder_that_ends_in_json_is_a_folder(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path
) -> None:
    (tmp_path / "all.json").mkdir()
    use_subject(ReferenceSubject())
    assert cli("run", quant, "--quiet", "--out", "all.json").code == PASS
    assert (tmp_path / "all.json" / "small.json").is_file()


def test_a_run_overwrites_the_earlier_report(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "small.json").write_text("earlier")
    use_subject(ReferenceSubject())
    assert cli("run", quant, "--quiet").code == PASS
    assert [p.name for p in (tmp_path / "reports").iterdir()] == ["small.json"]
    assert strict_json((tmp_path / "reports" / "small.json").read_text())["status"] == "pass"


def test_nothing_is_drawn_for_a_terminal_in_a_pipe(
    cli: Cli, use_subject: Use, quant: Path, split: Path
) -> None:
    use_subject(code_off_by_one())
    ran = cli("run", quant, split)
    assert "\x1b" not in ran.out + ran.err
    assert "\r" not in ran.out + ran.err
    assert "%" not in ran.err


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_is_no_wider_than_the_terminal(
    cli: Cli,
    use_subject: Use,
    quant: Path,
    split: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    use_subject(code_off_by_one())
    lines = cli("run", quant, split).out.splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= columns


# ---- Nothing earlier is lost ---------------------------------------------------------------


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "small.json").write_text("earlier")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    use_subject(ReferenceSubject())
    ran = cli("run", quant, "--quiet")
    assert ran.code in (USAGE, ERROR)
    assert "No space left on device" in ran.err
    assert [p.name for p in (tmp_path / "reports").iterdir()] == ["small.json"]
    assert (tmp_path / "reports" / "small.json").read_text() == "earlier"


def test_an_interruption_while_writing_leaves_the_earlier_report(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "small.json").write_text("earlier")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    use_subject(ReferenceSubject())
    ran = cli("run", quant, "--quiet")
    assert ran.code == INTERRUPTED
    assert "Traceback" not in ran.err
    assert [p.name for p in (tmp_path / "reports").iterdir()] == ["small.json"]
    assert (tmp_path / "reports" / "small.json").read_text() == "earlier"


def test_an_interruption_inside_the_subject(
    cli: Cli, use_subject: Use, quant: Path, tmp_path: Path
) -> None:
    use_subject(raises_on(97, KeyboardInterrupt()))
    ran = cli("run", quant)
    assert ran.code == INTERRUPTED
    assert "Traceback" not in ran.err
    assert "interrupted" in ran.err
    assert list((tmp_path / "reports").iterdir()) == []


DRIVER = """
from flashcheck.cli import main
from flashcheck.subjects import registry
from tests.fakes import code_off_by_one
registry.load = lambda *_, **__: (code_off_by_one(), [])
main()
"""


def test_a_reader_that_has_gone_hides_no_failure(tmp_path: Path, quant: Path, split: Path) -> None:
    # As in 'flashcheck run … | head -1' under 'set -o pipefail'.
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, "run", str(quant), str(split)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(theirs)
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in (tmp_path / "reports").iterdir()) == ["small.json", "sweep.json"]
    assert done.returncode == FAIL


@pytest.mark.parametrize("moment", ["importing", "running"])
def test_ctrl_c(
    subprocess_cli: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    quant: Path,
    moment: str,
) -> None:
    # The second suite would run for minutes.
    long = changed(changed(SPLIT, "step: 60", "step: 1"), "samples: 64", "samples: 1_000_000")
    (tmp_path / "long.yaml").write_text(long)
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "sweep.json").write_text("earlier")
    process = subprocess_cli(
        "run",
        quant,
        "long.yaml",
        "--backend",
        "interpreter",
        # Tells of each import when it is done, and so when torch's have begun.
        python=("-X", "importtime") if moment == "importing" else (),
    )
    assert process.stderr
    try:
        deadline = time.monotonic() + TIMEOUT_S
        if moment == "running":
            while not (reports / "small.json").exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(0.3)
        else:
            # While libtorch itself is loaded, an exception of Python's ends the process.
            while (line := process.stderr.readline()).split("|")[-1].strip() != "torch._C":
                assert line, process.communicate()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in err
    finished = ["small.json"] if moment == "running" else []
    assert sorted(p.name for p in reports.iterdir()) == [*finished, "sweep.json"]
    assert (reports / "sweep.json").read_text() == "earlier"
    if moment == "running":
        assert store.read(reports / "small.json").status in ("pass", "fail")


# ---- The authors' kernels ------------------------------------------------------------------


def test_the_authors_kernels_in_a_process_of_their_own(
    subprocess_cli: Callable[..., subprocess.Popen[str]], tmp_path: Path, quant: Path, split: Path
) -> None:
    process = subprocess_cli("run", quant, split, "--json", "--backend", "interpreter")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == PASS, err
    assert "\x1b" not in out + err
    reports = strict_json(out)
    for report in reports:
        assert report["status"] == "pass"
        assert report["subject"]["name"] == "flashoptim"
        assert report["environment"]["backend"] == "interpreter"
        assert report["environment"]["device"] == "cpu"
        names = [shim["name"] for shim in report["environment"]["shims"]]
        assert names
        assert len(names) == len(set(names))
        assert all(shim["repairs"] and shim["checked"] for shim in report["environment"]["shims"])
        assert len(report["subject"]["configurations"]) == 2
        assert store.read(tmp_path / "reports" / f"{report['suite']}.json")


def test_a_progress_bar_on_a_terminal_without_colour(tmp_path: Path, quant: Path) -> None:
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, "run", str(quant)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(CHECKOUT),
                "TERM": "xterm-256color",
                "NO_COLOR": "1",
                "COLUMNS": "80",
            },
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # What Linux says once the other end is closed.
                break
            if not part:
                break
            seen += part
    finally:
        os.close(ours)
    assert process.wait(timeout=TIMEOUT_S) == FAIL
    shown = seen.decode()
    before_the_tables = shown.split("small: ")[0]
    assert before_the_tables != shown
    assert "%" in before_the_tables
    for code in (*range(30, 50), *range(90, 108)):
        assert f"\x1b[{code}m" not in shown
        assert f";{code}m" not in shown


def test_all_and_a_suite_that_is_not_in_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashcheck import catalog

    monkeypatch.chdir(tmp_path)
    names = [config.suite for config in catalog.find(["all", "edge"])]
    assert names == [*(config.suite for config in catalog.find(["all"])), "edge"]
    assert next(config.suite for config in catalog.find(["edge", "all"])) == "edge"
    assert names.count("ecc") == 1


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["pass", "pass"], 0),
        (["pass", "nothing_compared"], 3),
        (["nothing_compared", "fail"], 1),
        (["fail", "error"], 4),
        (["error", "nothing_compared"], 4),
        ([], 3),
    ],
)
def test_the_gravest_of_several_suites_is_the_exit_code(statuses: list[str], code: int) -> None:
    from types import SimpleNamespace
    from typing import cast

    from flashcheck.report.models import exit_code

    reports = cast("Any", [SimpleNamespace(status=status) for status in statuses])
    assert exit_code(reports) == code
