"""The report: strict JSON of one schema, written whole or not at all."""

from __future__ import annotations

import copy
import errno
import json
import os
import stat
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flashcheck.errors import ReportError, UsageError
from flashcheck.report import store
from flashcheck.report.models import Report, Status
from tests.conftest import CHECKOUT, Cli, strict_json
from tests.fakes import (
    QUANT,
    Altered,
    OnlyQuantizes,
    ReferenceSubject,
    changed,
    code_off_by_one,
    raises_on,
)

Use = Callable[[object], None]

# DESIGN.md, schema version 1: names are added to, never renamed.
TOP = {
    "schema_version", "flashcheck_version", "suite", "kind", "status", "started_at", "duration_s",
    "command", "environment", "subject", "reference", "config", "config_sha256", "cases", "summary",
}  # fmt: skip
ENVIRONMENT = {
    "python", "platform", "cpu", "torch", "triton", "numpy", "backend", "device",
    "compute_capability", "driver", "fp_fusion", "shims",
}  # fmt: skip
CASE = {
    "case", "status", "reason", "numel", "duration_s", "metrics", "gates", "strata",
}  # fmt: skip
GATE = {"metric", "op", "limit", "value", "ok"}
SUMMARY = {
    "status", "cases", "passed", "failed", "known", "unexpected_pass", "unsupported", "errors",
    "elements",
}  # fmt: skip
QUANTIZATION = {
    "int_agree", "int_within_1", "int_mismatches", "scale_agree", "scale_mismatches",
    "dequant_bit_agree", "dequant_max_ulp", "nmse_subject", "nmse_reference", "nmse_ratio",
    "nonfinite_subject", "nonfinite_reference", "nonfinite_disagree", "scale_overflow_groups",
    "scale_underflow_groups",
}  # fmt: skip
SPLITTING = {
    "rho_agree_frac", "rho_mismatches", "recon_agree_frac", "recon_mismatches",
    "subject_exact_frac", "subject_exact", "reference_exact_frac", "reference_exact",
    "subject_mean_rel_err", "reference_mean_rel_err", "nonfinite_subject", "nonfinite_reference",
    "nonfinite_disagree",
}  # fmt: skip
STRATUM = {
    "exponent", "n", "rho_mismatches", "recon_mismatches", "subject_exact", "reference_exact",
}  # fmt: skip

KNOWN = """
known_deviations:
  - subject: fake
    case: plain/momentum
    breaks: [int_agree]
    reason: so it is
"""
# One report of each outcome, and of each kind.
MAKERS: dict[str, tuple[str, Callable[[], object], str]] = {
    "pass": ("small", ReferenceSubject, ""),
    "fail": ("small", code_off_by_one, ""),
    "unexpected": ("small", ReferenceSubject, KNOWN),
    "error": ("small", lambda: raises_on(97, RuntimeError("no")), ""),
    "sweep": ("sweep", ReferenceSubject, ""),
    "sweep_fail": ("sweep", lambda: Altered("compute_ecc", lambda r, _: -r), ""),
    "unsupported": ("sweep", OnlyQuantizes, ""),
    "nonfinite": ("small", lambda: Altered("dequantize", lambda r, _: r / 0), ""),
}


@pytest.fixture(params=list(MAKERS))
def path(
    request: pytest.FixtureRequest,
    cli: Cli,
    use_subject: Use,
    quant: Path,
    split: Path,
    tmp_path: Path,
) -> Path:
    """A written report."""
    suite, subject, known = MAKERS[request.param]
    if known:
        quant.write_text(QUANT + known)
    use_subject(subject())
    cli("run", quant if suite == "small" else split, "--quiet")
    return tmp_path / "reports" / f"{suite}.json"


@pytest.fixture
def schema(cli: Cli) -> Any:
    return cli("schema").json()


def valid(data: Any, schema: Any) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return bool(jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(data))


@pytest.fixture
def good(cli: Cli, use_subject: Use, quant: Path, tmp_path: Path) -> Report:
    use_subject(ReferenceSubject())
    cli("run", quant, "--quiet")
    return store.read(tmp_path / "reports" / "small.json")


# ---- The file ------------------------------------------------------------------------------


def test_it_is_strict_json_of_the_schema(path: Path, schema: Any) -> None:
    data = strict_json(path.read_text(encoding="utf-8"))
    jsonschema.validate(data, schema, cls=jsonschema.Draft202012Validator)


def test_the_committed_schema_is_current(schema: Any) -> None:
    committed = json.loads((CHECKOUT / "reports" / "schema.json").read_text())
    assert committed == schema, "run: flashcheck schema > reports/schema.json"


EARLIER = sorted((CHECKOUT / "tests" / "earlier_reports").glob("*.json"))


@pytest.mark.parametrize("earlier", EARLIER, ids=lambda p: p.stem)
def test_a_report_of_an_earlier_flashcheck_still_loads_and_shows(cli: Cli, earlier: Path) -> None:
    # As they landed first, before steps, enumerations and comparisons were.
    data = json.loads(earlier.read_text())
    assert "enumeration" not in data["cases"][0]
    report = store.read(earlier)
    assert report.summary.elements == sum(case["numel"] for case in data["cases"]) > 0
    ran = cli("show", str(earlier))
    assert ran.code == 0
    assert f"{report.suite}: pass" in ran.out


def test_reading_gives_what_was_written(path: Path, tmp_path: Path) -> None:
    first = store.read(path)
    store.write(first, tmp_path / "again.json")
    assert store.read(tmp_path / "again.json") == first
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_it_has_every_name_of_the_design(path: Path) -> None:
    data = strict_json(path.read_text())
    assert data.keys() >= TOP
    assert data["environment"].keys() >= ENVIRONMENT
    assert data["subject"].keys() >= {"name", "version", "source_sha256"}
    assert data["reference"].keys() >= {"name", "arithmetic"}
    assert data["summary"].keys() >= SUMMARY
    for case in data["cases"]:
        assert case.keys() >= CASE
        for gate in case["gates"]:
            assert gate.keys() >= GATE
        for stratum in case["strata"]:
            assert stratum.keys() >= STRATUM
        if case["metrics"] is not None:
            named = SPLITTING if data["kind"] == "splitting" else QUANTIZATION
            assert case["metrics"].keys() >= named


def test_its_counts_add_up(path: Path) -> None:
    data = strict_json(path.read_text())
    summary, cases = data["summary"], data["cases"]
    assert summary["cases"] == len(cases)
    assert summary["elements"] == sum(case["numel"] for case in cases)
    assert summary["status"] == data["status"]
    words = {
        "pass": "passed", "fail": "failed", "known": "known", "unexpected_pass": "unexpected_pass",
        "unsupported": "unsupported", "error": "errors",
    }  # fmt: skip
    assert set(words) == {status.value for status in Status}
    for status, name in words.items():
        assert summary[name] == sum(case["status"] == status for case in cases)
    for case in cases:
        assert (case["status"] == "pass") == (case["reason"] is None)
        assert (case["metrics"] is None) == (case["status"] in ("error", "unsupported"))
        assert (case["numel"] == 0) == (case["metrics"] is None)


def test_fractions_and_counts_agree(path: Path) -> None:
    for case in strict_json(path.read_text())["cases"]:
        metrics, n = case["metrics"], case["numel"]
        if metrics is None:
            continue
        if "rho_mismatches" in metrics:
            assert metrics["rho_agree_frac"] == (n - metrics["rho_mismatches"]) / n
            assert metrics["recon_agree_frac"] == (n - metrics["recon_mismatches"]) / n
            for side in ("subject", "reference"):
                assert metrics[f"{side}_exact_frac"] == metrics[f"{side}_exact"] / n
            for name in STRATUM - {"exponent", "n"}:
                assert metrics[name] == sum(row[name] for row in case["strata"]), name
            assert n == sum(row["n"] for row in case["strata"])
        else:
            assert metrics["int_agree"] == (n - metrics["int_mismatches"]) / n
            assert metrics["scale_agree"] == (
                (metrics["groups"] - metrics["scale_mismatches"]) / metrics["groups"]
            )


def test_it_is_readable_by_all_and_ends_in_a_newline(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_bytes().endswith(b"}\n")


def test_it_says_when_and_how_long(good: Report) -> None:
    assert good.started_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(timezone.utc) - good.started_at) < timedelta(minutes=5)
    assert good.duration_s >= 0
    assert sum(case.duration_s for case in good.cases) <= good.duration_s + 0.01


def test_it_names_the_arithmetic_of_the_reference(good: Report) -> None:
    assert good.reference.name == "paper"
    arithmetic = good.reference.arithmetic
    assert arithmetic["rounding"] == "nearest_even"
    assert arithmetic["fused_multiply_add"] is False
    assert arithmetic["absmax_floor"] == 0


def test_a_machine_without_a_gpu_has_no_gpu_facts(good: Report) -> None:
    environment = good.environment
    assert environment.device == "cpu"
    assert environment.compute_capability is None
    assert environment.driver is None
    assert environment.fp_fusion is None


def test_no_name_of_this_machines_folders_is_in_the_environment(good: Report) -> None:
    assert str(Path.home()) not in good.environment.model_dump_json()


# ---- The schema refuses --------------------------------------------------------------------


def _without(key: str) -> Callable[[Any], None]:
    return lambda data: data.pop(key)


def _set(*keys: Any) -> Callable[[Any], None]:
    *way, last, value = keys

    def change(data: Any) -> None:
        for key in way:
            data = data[key]
        data[last] = value

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _without("suite"),
        _without("schema_version"),
        _without("cases"),
        _set("schema_version", 2),
        _set("status", "fine"),
        _set("extra", 1),
        _set("cases", 0, "status", "passed"),
        _set("cases", 0, "numel", -1),
        _set("cases", 0, "metrics", "int_agree", 1.5),
        _set("cases", 0, "metrics", "int_mismatches", "none"),
        _set("cases", 0, "metrics", "int_mismatches", -1),
        _set("config_sha256", "abc"),
        _set("started_at", "yesterday"),
    ],
)
def test_a_damaged_report_is_refused_by_schema_and_reader(
    good: Report, schema: Any, tmp_path: Path, damage: Callable[[Any], None]
) -> None:
    data = json.loads(good.model_dump_json())
    assert valid(data, schema)
    before = copy.deepcopy(data)
    damage(data)
    assert data != before
    (tmp_path / "damaged.json").write_text(json.dumps(data))
    with pytest.raises(ReportError) as caught:
        store.read(tmp_path / "damaged.json")
    assert "damaged.json: " in str(caught.value)
    assert "\n" not in str(caught.value)
    if data.get("started_at") != "yesterday":
        # jsonschema checks a date only where a package for it is installed.
        assert not valid(data, schema)


def test_a_figure_that_is_no_number_can_not_get_in(good: Report) -> None:
    metrics = good.cases[0].metrics
    assert metrics is not None
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            type(metrics)(**{**metrics.model_dump(), "nmse_ratio": value})


# ---- Whole or not at all -------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_report_and_nothing_else(
    good: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: BaseException,
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "r.json").write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    # A disk that fails is said as it is; an interrupt goes on.
    said = UsageError if isinstance(error, OSError) else type(error)
    with pytest.raises(said):
        store.write(good, folder / "r.json")
    monkeypatch.undo()
    assert [p.name for p in folder.iterdir()] == ["r.json"]
    assert (folder / "r.json").read_text() == "old"
    store.write(good, folder / "r.json")
    assert store.read(folder / "r.json") == good


def test_a_reader_never_sees_a_half_written_report(
    good: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "r.json"
    target.write_text("old")
    seen: list[str] = []
    replace, fsync = os.replace, os.fsync

    def watched_fsync(descriptor: int) -> None:
        seen.append(target.read_text())
        fsync(descriptor)

    def watched_replace(source: str, destination: Path) -> None:
        seen.append(target.read_text())
        assert store.read(Path(source)) == good
        replace(source, destination)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    store.write(good, target)
    assert seen == ["old", "old"]
    assert store.read(target) == good


def test_checking_a_destination_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("old")
    store.check_writable(tmp_path / "r.json")
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    assert (tmp_path / "r.json").read_text() == "old"


@pytest.mark.parametrize(
    ("out", "alone", "path"),
    [
        (None, True, "reports/s.json"),
        (None, False, "reports/s.json"),
        ("x", True, "x/s.json"),
        ("x", False, "x/s.json"),
        ("x.json", True, "x.json"),
        ("a/x.json", True, "a/x.json"),
    ],
)
def test_where_a_report_goes(out: str | None, alone: bool, path: str) -> None:
    assert store.destination(Path(out) if out else None, "s", alone=alone) == Path(path)


def test_one_file_is_refused_for_several_suites() -> None:
    with pytest.raises(UsageError, match="name a folder"):
        store.destination(Path("x.json"), "s", alone=False)


# ---- heavy_tail/momentum -------------------------------------------------------------------


def test_heavy_tail_overflows_its_scales_and_says_so(
    cli: Cli, use_subject: Use, schema: Any
) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", "quant", "--battery", "heavy_tail", "--spec", "momentum", "--json")
    assert ran.code == 0
    report = ran.json()
    jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)
    (momentum,) = report["cases"]
    assert (momentum["case"], momentum["status"]) == ("heavy_tail/momentum", "pass")
    metrics = momentum["metrics"]
    groups, elements = metrics["scale_overflow_groups"], metrics["nonfinite_subject"]
    assert groups > 0
    # Each group is lost whole: an infinity, or NaN where the code is 0.
    assert elements == metrics["nonfinite_reference"] == 32 * groups
    assert metrics["nonfinite_disagree"] == 0
    assert 0 < metrics["nmse_subject"] < 0.01
    assert metrics["nmse_subject"] == metrics["nmse_reference"]
    assert metrics["nmse_ratio"] == 1
    (note,) = momentum["notes"]
    assert f"{groups:,} of {metrics['groups']:,} groups" in note
    assert f"{elements:,} elements" in note
    assert metrics["groups"] == 2**15
    # Both counts stand in the table's row too.
    row = ran.err[ran.err.index("heavy_tail/momentum") :]
    assert f"{groups:,} groups" in row
    assert f"{elements:,} elements" in row


def test_tiny_underflows_its_scales_and_says_so(cli: Cli, use_subject: Use) -> None:
    use_subject(ReferenceSubject())
    report = cli("run", "quant", "--battery", "tiny", "--json").json()
    for case in report["cases"]:
        assert case["metrics"]["scale_underflow_groups"] == 2**11
        assert case["metrics"]["nmse_reference"] == 1
        assert "2,048 of 2,048 groups" in case["notes"][0]


def test_the_dequantization_is_of_the_subjects_own_codes(
    cli: Cli, use_subject: Use, quant: Path
) -> None:
    # One wrong code must not be counted a second time as a wrong dequantized value.
    use_subject(code_off_by_one())
    for case in cli("run", quant, "--json").json()["cases"]:
        assert case["metrics"]["int_mismatches"] == 1
        assert case["metrics"]["dequant_bit_agree"] == 1
        assert case["metrics"]["dequant_max_ulp"] == 0


def test_a_nan_of_one_side_only_is_counted_and_not_written(
    cli: Cli, use_subject: Use, quant: Path
) -> None:
    def alter(values: Any, _: object) -> Any:
        values[0] = float("nan")
        return values

    use_subject(Altered("dequantize", alter))
    ran = cli("run", quant, "--json")
    assert ran.code == 1
    for case in ran.json()["cases"]:
        assert case["metrics"]["nonfinite_disagree"] == 1
        assert "nonfinite_disagree is 1, must be == 0" in case["reason"]


def test_another_battery_tensor_is_another_case(cli: Cli, use_subject: Use, tmp_path: Path) -> None:
    more = "  - {name: more, generator: constant, size: 64, value: 0.5}\nspecs:\n"
    (tmp_path / "own.yaml").write_text(changed(QUANT, "specs:\n", more))
    use_subject(ReferenceSubject())
    cases = cli("run", "own.yaml", "--json").json()["cases"]
    assert [case["case"] for case in cases][-2:] == ["more/momentum", "more/variance"]
    assert cases[-1]["numel"] == 64
