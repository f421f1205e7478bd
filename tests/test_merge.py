"""Shards of a run, put together: exactly the report of the whole run, or a refusal."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcheck.report.models import Environment
from flashcheck.suites.exhaustive import suite as suites
from flashcheck.suites.exhaustive.suite import Extent
from tests.conftest import Cli, Ran, strict_json
from tests.fakes import QUANT, OnlyQuantizes, ReferenceSubject, changed
from tests.subjects.broken import Broken
from tests.test_journal import EVERY, figures

Use = Callable[[object], None]

LIMIT = ("--limit", "900")
CHUNKS = 16


def cut(monkeypatch: pytest.MonkeyPatch, inputs: int) -> None:
    """Have chunks of so many inputs."""
    extent = Extent(part=inputs, chunk=inputs)
    monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))


GOOD: dict[int, dict[str, bytes]] = {}


class Runs:
    """Runs and merges in one folder."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli = cli
        self.folder = folder

    def run(self, name: str, *words: str) -> int:
        ran = self.cli("run", "every.yaml", "--quiet", "--out", name, *words)
        assert ran.err == ""
        return ran.code

    def shards(self, count: int, *words: str) -> list[str]:
        names = [f"{index}of{count}.json" for index in range(1, count + 1)]
        for index, name in enumerate(names, 1):
            self.run(name, "--shard", f"{index}/{count}", *(words or LIMIT))
        return names

    def good(self, count: int) -> list[str]:
        """The shards of the control, run once."""
        if count not in GOOD:
            names = self.shards(count)
            GOOD[count] = {name: (self.folder / name).read_bytes() for name in names}
        for name, content in GOOD[count].items():
            (self.folder / name).write_bytes(content)
        return list(GOOD[count])

    def merge(self, *names: str) -> Ran:
        return self.cli("merge", *names, "--quiet", "--out", "merged.json")

    def read(self, name: str) -> Any:
        return strict_json((self.folder / name).read_text())

    def edit(self, name: str, alter: Callable[[Any], None]) -> None:
        report = self.read(name)
        before = copy.deepcopy(report)
        alter(report)
        assert report != before
        (self.folder / name).write_text(json.dumps(report))

    def refused(self, *names: str) -> str:
        """The line of a merge that is refused; nothing is written."""
        ran = self.merge(*names)
        assert ran.code == 2, ran
        assert ran.out == ""
        assert len(ran.err.splitlines()) == 1, ran.err
        assert ran.err.startswith("flashcheck: ")
        assert not (self.folder / "merged.json").exists()
        return ran.err.strip()


@pytest.fixture
def runs(cli: Cli, use_subject: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    (tmp_path / "every.yaml").write_text(EVERY)
    cut(monkeypatch, 1 << 8)
    use_subject(ReferenceSubject())
    return Runs(cli, tmp_path)


# ---- The report of the whole run -----------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, CHUNKS + 3])
def test_the_shards_of_a_run_are_the_run(runs: Runs, count: int) -> None:
    assert runs.run("whole.json", *LIMIT) == 0
    names = runs.good(count)
    random.Random(count).shuffle(names)
    ran = runs.merge(*names)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    merged, whole = runs.read("merged.json"), runs.read("whole.json")
    assert figures(merged) == figures(whole)
    assert {case["status"] for case in merged["cases"]} == {"pass"}
    assert merged["selection"]["shard"] is None


def test_the_shards_have_each_chunk_once(runs: Runs) -> None:
    names = runs.good(3)
    covered = [
        sum(case["enumeration"]["covered"] for case in runs.read(name)["cases"]) for name in names
    ]
    assert sum(covered) == 4 * 900
    assert min(covered) > 0


def test_shards_of_a_part_of_the_domain(runs: Runs) -> None:
    words = ("--exponents", "100:130:3", "--limit", "2000", "--spec", "bf16+int8")
    assert runs.run("whole.json", *words) == 0
    assert runs.merge(*reversed(runs.shards(4, *words))).code == 0
    merged = runs.read("merged.json")
    assert figures(merged) == figures(runs.read("whole.json"))
    assert [case["case"] for case in merged["cases"]] == [
        "compute_ecc/bf16+int8",
        "reconstruct/bf16+int8",
    ]


def test_when_and_how_long_and_by_which_words(runs: Runs) -> None:
    names = runs.good(3)
    for name, at, seconds in zip(
        names, ("2026-03-04T05:06:08Z", "2026-03-04T05:06:07Z", "2026-03-05T00:00:00Z"), (4, 2, 1)
    , strict=True):  # fmt: skip
        runs.edit(name, lambda r, a=at, s=seconds: r.update(started_at=a, duration_s=s))
        runs.edit(name, lambda r, s=seconds: [c.update(duration_s=s) for c in r["cases"]])
    assert runs.merge(*names).code == 0
    merged = runs.read("merged.json")
    assert (merged["started_at"], merged["duration_s"]) == ("2026-03-04T05:06:07Z", 7)
    assert {case["duration_s"] for case in merged["cases"]} == {7}
    assert merged["command"] == [
        "flashcheck", "merge", *names, "--quiet", "--out", "merged.json"
    ]  # fmt: skip


def test_merging_prints_as_a_run_does(runs: Runs) -> None:
    names = runs.good(2)
    ran = runs.cli("merge", *names, "--json")
    assert ran.code == 0
    assert ran.json() == runs.read("reports/every.json")
    assert "wrote reports/every.json" in ran.err
    assert "compute_ecc/bf16+int8" in runs.cli("merge", *names).out


def test_the_shards_are_left_as_they_are(runs: Runs) -> None:
    names = runs.good(2)
    before = [(runs.folder / name).read_bytes() for name in names]
    assert runs.merge(*names).code == 0
    assert [(runs.folder / name).read_bytes() for name in names] == before


def test_machines_of_other_names_are_both_listed(runs: Runs) -> None:
    names = runs.good(3)
    runs.edit(names[0], lambda r: r["environment"].update(cpu="Z80", platform="CP/M"))
    runs.edit(names[2], lambda r: r["environment"].update(cpu="6502"))
    here = runs.read(names[1])["environment"]
    assert runs.merge(*names).code == 0
    merged = runs.read("merged.json")["environment"]
    assert set(merged["cpu"].split(" | ")) == {"Z80", "6502", here["cpu"]}
    assert set(merged["platform"].split(" | ")) == {"CP/M", here["platform"]}
    assert merged | {"cpu": "", "platform": ""} == here | {"cpu": "", "platform": ""}


# ---- What is no pass -----------------------------------------------------------------------


class Cut(ReferenceSubject):
    """See :class:`Broken`."""

    quantize = Broken.quantize
    compute_ecc = Broken.compute_ecc


class Raises(ReferenceSubject):
    """Raises where it meets numbers past a bound, and says which number came first."""

    def __init__(self, least: float, words: str) -> None:
        self.least, self.words = least, words

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        if bool((x.abs() >= self.least).any()):
            raise RuntimeError(self.words.format(x.reshape(-1)[0].item()))
        return super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)


class Changes(ReferenceSubject):
    """Changes its input in place, for some inputs."""

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        result = super().quantize(x, **options)
        if bool((x.abs() < 1e-30).any()):
            x += 1
        return result


class Nan(ReferenceSubject):
    """Gives NaN back, or infinity, for some weights."""

    def reconstruct(self, narrow: torch.Tensor, ecc: torch.Tensor) -> Any:
        values = super().reconstruct(narrow, ecc)
        values = torch.where(ecc == 3, torch.nan, values)
        return torch.where(ecc == 4, torch.inf, values)


MISBEHAVE = {
    "fails": (Cut(), 1, "fail"),
    "changes its input": (Changes(), 1, "fail"),
    "gives NaN": (Nan(), 1, "fail"),
    "raises in one chunk": (Raises(3e38, "too large"), 4, "error"),
    "raises in several chunks": (Raises(1.0, "too large"), 4, "error"),
    "raises in all chunks": (Raises(0.0, "too large"), 4, "error"),
    "lacks methods": (OnlyQuantizes(), 0, "pass"),
}


@pytest.mark.parametrize(
    ("subject", "count"),
    [*((subject, 3) for subject in MISBEHAVE), ("fails", CHUNKS + 1), ("lacks methods", 7)],
)
def test_the_verdict_is_that_of_the_whole_run(
    runs: Runs, use_subject: Use, subject: str, count: int
) -> None:
    made, code, status = MISBEHAVE[subject]
    use_subject(made)
    assert runs.run("whole.json", *LIMIT) == code
    names = runs.shards(count)
    assert runs.merge(*names[::-1]).code == code
    merged, whole = runs.read("merged.json"), runs.read("whole.json")
    assert figures(merged) == figures(whole)
    assert merged["status"] == merged["summary"]["status"] == status


def test_one_bad_shard_among_good_ones_decides(runs: Runs, use_subject: Use) -> None:
    use_subject(Raises(3e38, "too large"))
    names = runs.shards(4)
    assert sorted(runs.read(name)["status"] for name in names) == ["error", "pass", "pass", "pass"]
    assert runs.merge(*names).code == 4
    case = runs.read("merged.json")["cases"][0]
    assert (case["status"], case["reason"]) == (
        "error",
        "compute_ecc raised RuntimeError: too large",
    )


def test_of_several_errors_that_of_the_first_chunk_is_told(runs: Runs, use_subject: Use) -> None:
    use_subject(Raises(1.0, "the first was {}"))
    assert runs.run("whole.json", *LIMIT) == 4
    reasons = set()
    for count in (2, 3, 5):
        names = runs.shards(count)
        reasons |= {runs.read(name)["cases"][0]["reason"] for name in names}
        assert runs.merge(*names).code == 4
        assert figures(runs.read("merged.json")) == figures(runs.read("whole.json"))
    assert len(reasons) > 2


def test_a_known_error_is_known_once(runs: Runs, use_subject: Use) -> None:
    known = """
known_deviations:
  - subject: fake
    case: compute_ecc/bf16+int8
    breaks: [error]
    reason: it cannot
"""
    (runs.folder / "every.yaml").write_text(EVERY + known)
    use_subject(Raises(0.0, "too large"))
    assert runs.run("whole.json", *LIMIT) == 0
    assert runs.merge(*runs.shards(2)).code == 0
    merged = runs.read("merged.json")
    assert merged["cases"][0]["status"] == "known"
    assert figures(merged) == figures(runs.read("whole.json"))


def test_a_known_deviation_that_one_shard_does_not_show_is_known(
    runs: Runs, use_subject: Use
) -> None:
    known = """
known_deviations:
  - subject: fake
    case: compute_ecc/bf16+int8
    breaks: [unexplained]
    reason: its codes are cut
"""
    (runs.folder / "every.yaml").write_text(EVERY + known)

    class Rarely(Raises):
        def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, **options: Any) -> Any:
            codes = ReferenceSubject.compute_ecc(self, x, narrow, **options)
            return torch.where((x > 1e38) & x.isfinite(), -codes - 1, codes)

    use_subject(Rarely(0, ""))
    code = runs.run("whole.json", *LIMIT)
    names = runs.shards(8)
    assert {runs.read(name)["status"] for name in names} > {"fail"}
    assert runs.merge(*names).code == code
    assert figures(runs.read("merged.json")) == figures(runs.read("whole.json"))


def test_shards_in_which_nothing_is_compared(runs: Runs) -> None:
    words = ("--exponents", "255:256", "--limit", "600")
    assert runs.run("whole.json", *words) == 3
    assert runs.merge(*runs.shards(2, *words)).code == 3
    merged = runs.read("merged.json")
    assert merged["status"] == "nothing_compared"
    assert {case["status"] for case in merged["cases"]} == {"unsupported"}
    assert figures(merged) == figures(runs.read("whole.json"))


def test_a_shard_without_a_chunk_compares_nothing_and_is_no_pass(runs: Runs) -> None:
    last = f"{CHUNKS + 1}/{CHUNKS + 1}"
    assert runs.run("empty.json", "--shard", last, *LIMIT) == 3
    report = runs.read("empty.json")
    assert report["status"] == "nothing_compared"
    assert {case["status"] for case in report["cases"]} == {"unsupported"}


# ---- Refused -------------------------------------------------------------------------------


def test_a_shard_twice(runs: Runs) -> None:
    names = runs.good(2)
    line = runs.refused(names[0], names[1], names[0])
    assert "1of2.json: is shard 1 of 2, and so is 1of2.json; give each shard once" in line


def test_a_copy_of_a_shard(runs: Runs) -> None:
    names = runs.good(2)
    (runs.folder / "copy.json").write_bytes((runs.folder / names[1]).read_bytes())
    assert "copy.json: is shard 2 of 2, and so is 2of2.json" in runs.refused(*names, "copy.json")


@pytest.mark.parametrize("left_out", [0, 2, 4])
def test_a_missing_shard(runs: Runs, left_out: int) -> None:
    names = runs.good(5)
    del names[left_out]
    line = runs.refused(*names)
    assert f"missing: shard {left_out + 1}/5; run it with --shard" in line


def test_several_missing_shards(runs: Runs) -> None:
    names = runs.good(4)
    assert "missing: shard 2/4, 3/4, 4/4;" in runs.refused(names[0])


def test_one_of_a_great_many_shards(runs: Runs) -> None:
    assert runs.run("one.json", "--shard", "7/3000000", *LIMIT) == 0
    line = runs.refused("one.json")
    assert line.startswith("flashcheck: missing: shard 1/3000000")
    assert len(line) < 500


def test_shards_of_different_counts(runs: Runs) -> None:
    two, three = runs.good(2), runs.good(3)
    line = runs.refused(two[0], three[1], three[2])
    assert "2of3.json: is shard 2 of 3, others are of 2; merge the shards of one run" in line
    runs.refused(*two, *three)


def test_a_whole_report(runs: Runs) -> None:
    runs.run("whole.json", *LIMIT)
    said = "whole.json: is no shard of a run; merge what --shard wrote"
    assert said in runs.refused("whole.json")
    assert said in runs.refused(*runs.good(2), "whole.json")


def test_a_merged_report(runs: Runs) -> None:
    names = runs.good(2)
    assert runs.merge(*names).code == 0
    (runs.folder / "merged.json").rename(runs.folder / "all.json")
    assert "all.json: is no shard of a run" in runs.refused("all.json")


def test_the_report_of_a_suite_that_enumerates_nothing(runs: Runs) -> None:
    (runs.folder / "small.yaml").write_text(QUANT)
    assert runs.cli("run", "small.yaml", "--quiet", "--out", "quant.json").code == 0
    assert "quant.json: is no shard of a run" in runs.refused("quant.json")


def test_nothing_given(runs: Runs) -> None:
    ran = runs.cli("merge")
    assert ran.code == 2
    assert ran.out == ""
    assert "REPORT" in ran.err
    assert "Traceback" not in ran.err


OTHER = {
    "suite": ("suite: every", "suite: other", "suite is other, but every in 1of2.json"),
    "gate": ("limit: 0", "limit: 1", "config_sha256 is "),
    "group size": ("group_size: 32", "group_size: 16", "config_sha256 is "),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_shard_of_another_suite(runs: Runs, what: str) -> None:
    old, new, said = OTHER[what]
    runs.run("1of2.json", "--shard", "1/2", *LIMIT)
    (runs.folder / "every.yaml").write_text(changed(EVERY, old, new))
    runs.run("2of2.json", "--shard", "2/2", *LIMIT)
    for names in (["1of2.json", "2of2.json"], ["2of2.json", "1of2.json"]):
        line = runs.refused(*names)
        assert line.startswith(f"flashcheck: 2of2.json: {said}")
        assert line.endswith("merge the shards of one run")


@pytest.mark.parametrize(
    ("attribute", "value"), [("name", "other"), ("version", "1.1"), ("source_sha256", "1" * 64)]
)
def test_a_shard_of_another_subject(
    runs: Runs, use_subject: Use, attribute: str, value: str
) -> None:
    runs.run("1of2.json", "--shard", "1/2", *LIMIT)
    other = ReferenceSubject()
    setattr(other, attribute, value)
    use_subject(other)
    runs.run("2of2.json", "--shard", "2/2", *LIMIT)
    line = runs.refused("1of2.json", "2of2.json")
    assert line.startswith(f"flashcheck: 2of2.json: subject.{attribute} is {value}, but ")


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (LIMIT, ("--limit", "901")),
        (LIMIT, ()),
        ((*LIMIT, "--exponents", "1:250"), (*LIMIT, "--exponents", "1:249")),
        ((*LIMIT, "--exponents", "0:256"), LIMIT),
        ((*LIMIT, "--spec", "momentum"), LIMIT),
        ((*LIMIT, "--spec", "momentum"), (*LIMIT, "--spec", "bf16+int8")),
    ],
)
def test_a_shard_of_another_part(
    runs: Runs, mine: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    runs.run("1of2.json", "--shard", "1/2", *mine)
    if theirs:
        runs.run("2of2.json", "--shard", "2/2", *theirs)
    else:
        runs.run("2of2.json", "--shard", "2/2", *mine)
        runs.edit("2of2.json", lambda r: r["selection"].update(limit=None))
    line = runs.refused("1of2.json", "2of2.json")
    assert line.startswith("flashcheck: 2of2.json: selection is ")


FIELDS: dict[str, Any] = {
    "python": "3.99",
    "torch": "99.0",
    "triton": "99.0",
    "numpy": "99.0",
    "backend": "cuda",
    "device": "a GPU",
    "compute_capability": "9.0",
    "driver": "999.9",
    "fp_fusion": True,
    "shims": [{"name": "some", "repairs": "this", "checked": "that"}],
}


def test_every_field_of_an_environment_is_held() -> None:
    assert FIELDS.keys() | {"cpu", "platform"} == Environment.model_fields.keys()


@pytest.mark.parametrize("field", FIELDS)
def test_a_shard_of_another_environment(runs: Runs, field: str) -> None:
    names = runs.good(2)
    runs.edit(names[1], lambda r: r["environment"].update({field: FIELDS[field]}))
    line = runs.refused(*names)
    assert line.startswith(f"flashcheck: 2of2.json: environment.{field} is ")
    assert ", but " in line


@pytest.mark.parametrize(
    ("alter", "name"),
    [
        (lambda r: r.update(flashcheck_version="99.0"), "flashcheck_version"),
        (lambda r: r["reference"].update(name="another"), "reference"),
        (lambda r: r["reference"]["arithmetic"].update(tie="up"), "reference"),
        (lambda r: r["subject"].update(configurations={"k": "4 warps"}), "subject.configurations"),
        (lambda r: r["cases"].reverse(), "cases"),
        (lambda r: r["cases"].pop(), "cases"),
    ],
)
def test_a_shard_of_another_flashcheck_or_other_cases(
    runs: Runs, alter: Callable[[Any], None], name: str
) -> None:
    names = runs.good(2)
    runs.edit(names[1], alter)
    assert runs.refused(*names).startswith(f"flashcheck: 2of2.json: {name} is ")


def test_shards_that_were_cut_otherwise_leave_gaps(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another flashcheck of the same version number may do."""
    runs.run("1of2.json", "--shard", "1/2", *LIMIT)
    cut(monkeypatch, 1 << 7)
    runs.run("2of2.json", "--shard", "2/2", *LIMIT)
    covered = [
        sum(case["enumeration"]["covered"] for case in runs.read(name)["cases"])
        for name in ("1of2.json", "2of2.json")
    ]
    assert sum(covered) != 4 * 900
    assert ".json: " in runs.refused("1of2.json", "2of2.json")


def test_one_shard_under_two_numbers_leaves_a_gap(runs: Runs) -> None:
    runs.run("1of2.json", "--shard", "1/2", *LIMIT)
    (runs.folder / "2of2.json").write_bytes((runs.folder / "1of2.json").read_bytes())
    runs.edit("2of2.json", lambda r: r["selection"]["shard"].update(index=2))
    covered = [case["enumeration"]["covered"] for case in runs.read("1of2.json")["cases"]]
    assert any(2 * number != 900 for number in covered)
    assert ".json: " in runs.refused("1of2.json", "2of2.json")


class TestTampered:
    """A report that was changed since it was written."""

    @pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
    def test_its_configuration(self, runs: Runs, which: tuple[int, ...]) -> None:
        names = runs.good(2)
        for index in which:
            runs.edit(names[index], lambda r: r["config"]["gates"][0].update(limit=10**6))
        assert "config" in runs.refused(*names)

    @pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
    def test_the_digest_of_its_configuration(self, runs: Runs, which: tuple[int, ...]) -> None:
        names = runs.good(2)
        for index in which:
            runs.edit(names[index], lambda r: r.update(config_sha256="0" * 64))
        assert "config" in runs.refused(*names)

    @pytest.mark.parametrize(
        "alter",
        [
            lambda r: r["config"].update(kind="quantization"),
            lambda r: r["config"].pop("formats"),
            lambda r: r["config"].update(formats=3),
            lambda r: r.update(config={}),
        ],
    )
    def test_a_configuration_that_is_none(self, runs: Runs, alter: Callable[[Any], None]) -> None:
        names = runs.good(2)
        for name in names:
            runs.edit(name, alter)
        assert "config" in runs.refused(*names)

    @pytest.mark.parametrize("key", ["cases", "selection", "environment", "config_sha256"])
    def test_a_key_that_is_gone(self, runs: Runs, key: str) -> None:
        names = runs.good(2)
        runs.edit(names[1], lambda r: r.pop(key))
        assert runs.refused(*names).startswith(f"flashcheck: 2of2.json: {key}: ")

    @pytest.mark.parametrize("shard", [{"index": 0, "count": 2}, {"index": 3, "count": 2}])
    def test_a_shard_that_cannot_be(self, runs: Runs, shard: dict[str, int]) -> None:
        names = runs.good(2)
        runs.edit(names[1], lambda r: r["selection"].update(shard=shard))
        assert runs.refused(*names).startswith("flashcheck: 2of2.json: selection.shard")

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
    def test_a_truncated_report(self, runs: Runs, share: float) -> None:
        names = runs.good(2)
        text = (runs.folder / names[0]).read_text()
        (runs.folder / names[0]).write_text(text[: int(len(text) * share)])
        line = runs.refused(*names)
        assert line.startswith("flashcheck: 1of2.json:")
        assert "truncated" in line

    @pytest.mark.parametrize("name", ["absent.json", "."])
    def test_a_report_that_cannot_be_read(self, runs: Runs, name: str) -> None:
        assert runs.refused(*runs.good(2), name).startswith(f"flashcheck: {name}: ")


def test_where_the_report_cannot_be_written(runs: Runs) -> None:
    names = runs.good(2)
    (runs.folder / "file").write_text("precious")
    ran = runs.cli("merge", *names, "--quiet", "--out", "file/merged.json")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "cannot be written" in ran.err
    assert (runs.folder / "file").read_text() == "precious"
