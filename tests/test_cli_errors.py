"""Bad input: one clear line that names file, line and key and says the mend, and the exit code."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import CHECKOUT, Cli, Ran
from tests.fakes import (
    QUANT,
    SPLIT,
    Altered,
    DoesNothing,
    OnlyQuantizes,
    ReferenceSubject,
    changed,
)

HERE = "# here"


def the_line(ran: Ran, code: int) -> str:
    """The one line that an error is."""
    assert ran.code == code, ran
    assert ran.out == ""
    assert "Traceback" not in ran.err
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    return lines[0]


def place(text: str) -> int:
    """The 1-based line that the edit is marked on."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if HERE in line)


KNOWN = """
known_deviations:
  - subject: fake
    case: plain/momentum
    breaks: [int_agree]
    reason: it is so
"""

# What is wrong, the edit (its fault on the line marked '# here'), the key, and what the line says.
FAULTS: list[Any] = [
    pytest.param(QUANT, "seed: 7", f"seed: @7 {HERE}", None, ["not valid YAML"], id="not-yaml"),
    pytest.param(
        QUANT, "    generator: normal\n    size: 200\n",
        f"    generator: constant\n    size: 200\n    value: 1e300 {HERE}\n", "battery[0].value",
        ["1e+300"], id="constant-past-float32",
    ),
    pytest.param(
        QUANT, "seed: 7", f"seed: 7\nsuite: again {HERE}", "suite", ["duplicate key", "remove"],
        id="duplicate-key",
    ),
    pytest.param(
        QUANT, "    size: 200", f"    size: 200\n    size: 201 {HERE}", "size",
        ["duplicate key", "remove"], id="duplicate-key-nested",
    ),
    pytest.param(
        SPLIT, "    step: 60", f"    step: 60\n    start: 2 {HERE}", "start",
        ["duplicate key", "remove"], id="duplicate-key-nested-twice",
    ),
    pytest.param(
        QUANT, "seed: 7", f"seed: 7\ngroupsize: 32 {HERE}", "groupsize",
        ["unknown key", "did you mean 'group_size'?"], id="unknown-key",
    ),
    pytest.param(
        QUANT, "    sigma: 2.0", f"    sigma: 2.0\n    sise: 3 {HERE}", "battery[1].sise",
        ["unknown key", "did you mean 'size'?"], id="unknown-key-nested",
    ),
    pytest.param(
        SPLIT, "    step: 60", f"    step: 60\n    stopp: 4 {HERE}", "sweep.exponents.stopp",
        ["unknown key", "did you mean 'stop'?"], id="unknown-key-nested-twice",
    ),
    pytest.param(
        QUANT, "seed: 7", f"seed: seven {HERE}", "seed", ["'seven'", "integer"], id="type-seed"
    ),
    pytest.param(
        QUANT, "    size: 200", f"    size: 200.0 {HERE}", "battery[0].size",
        ["200.0", "integer"], id="type-size",
    ),
    pytest.param(
        QUANT, "    size: 200", f"    size: true {HERE}", "battery[0].size",
        ["True", "integer"], id="type-bool-for-size",
    ),
    pytest.param(
        QUANT, "    sigma: 2.0", f"    sigma: '2.0' {HERE}", "battery[1].sigma",
        ["'2.0'", "number"], id="type-quoted-number",
    ),
    pytest.param(
        QUANT, "momentum, signed: true", f"momentum, signed: 1 {HERE}\n   ", "specs[0].signed",
        ["1", "boolean"], id="type-int-for-bool",
    ),
    pytest.param(
        QUANT, "    limit: 0\n", f"    limit: none {HERE}\n", "gates[1].limit",
        ["'none'", "number"], id="type-limit",
    ),
    pytest.param(
        SPLIT, "  samples: 64", f"  samples: {{n: 64}} {HERE}", "sweep.samples",
        ["integer"], id="type-mapping-for-int",
    ),
    pytest.param(
        QUANT, "    size: 200", f"    size: -200 {HERE}", "battery[0].size",
        ["-200", "greater than or equal to 1"], id="negative-size",
    ),
    pytest.param(
        QUANT, "    size: 200", f"    size: 0 {HERE}", "battery[0].size",
        ["0", "greater than or equal to 1"], id="zero-size",
    ),
    pytest.param(
        SPLIT, "  samples: 64", f"  samples: -1 {HERE}", "sweep.samples",
        ["-1", "greater than or equal to 1"], id="negative-samples",
    ),
    pytest.param(
        QUANT, "group_size: 32", f"group_size: -32 {HERE}", "group_size",
        ["-32", "greater than or equal to 1"], id="negative-group-size",
    ),
    pytest.param(
        SPLIT, "    start: 1", f"    start: -1 {HERE}", "sweep.exponents.start",
        ["-1", "greater than or equal to 0"], id="exponent-below-0",
    ),
    pytest.param(
        SPLIT, "    start: 1", f"    start: 256 {HERE}", "sweep.exponents.start",
        ["256", "less than or equal to 255"], id="exponent-above-255",
    ),
    pytest.param(
        SPLIT, "    stop: 255", f"    stop: 257 {HERE}", "sweep.exponents.stop",
        ["257", "less than or equal to 256"], id="exponent-stop-above-256",
    ),
    pytest.param(
        SPLIT, "  exponents:\n    start: 1\n    stop: 255",
        f"  exponents: {HERE}\n    start: 9\n    stop: 9",
        "sweep.exponents", ["start 9", "below stop 9"], id="no-exponents",
    ),
    pytest.param(
        SPLIT, "    step: 60", f"    step: 0 {HERE}", "sweep.exponents.step",
        ["0", "greater than or equal to 1"], id="stride-0",
    ),
    pytest.param(
        QUANT, "    generator: normal\n", f"    generator: norml {HERE}\n",
        "battery[0].generator", ["unknown", "'norml'", "did you mean 'normal'?"],
        id="unknown-generator",
    ),
    pytest.param(
        QUANT, "    generator: normal\n", f"    generator: xyz {HERE}\n",
        "battery[0].generator", ["unknown", "'xyz'", "squared_normal", "constant"],
        id="unknown-generator-far",
    ),
    pytest.param(
        QUANT, "    generator: normal\n", f"    generator: 5 {HERE}\n",
        "battery[0].generator", ["'5'", "normal"], id="generator-no-name",
    ),
    pytest.param(
        QUANT, "kind: quantization", f"kind: quantisation {HERE}", "kind",
        ["unknown", "'quantisation'", "did you mean 'quantization'?"], id="unknown-kind",
    ),
    pytest.param(
        SPLIT, "narrow: bf16", f"narrow: bf15 {HERE}\n   ", "formats[0].narrow",
        ["unknown", "'bf15'", "did you mean 'bf16'?"], id="unknown-format",
    ),
    pytest.param(
        QUANT, "  - metric: int_agree", f"  - metric: int_agre {HERE}", "gates[0].metric",
        ["unknown metric", "'int_agre'", "did you mean 'int_agree'?"], id="unknown-metric",
    ),
    pytest.param(
        QUANT, "  - metric: int_agree", f"  - metric: rho_agree_frac {HERE}", "gates[0].metric",
        ["unknown metric", "'rho_agree_frac'"], id="metric-of-another-kind",
    ),
    pytest.param(
        QUANT, '    op: ">="', f'    op: ">" {HERE}', "gates[0].op",
        ["unknown", "'>'", "'>='"], id="unknown-operator",
    ),
    pytest.param(
        QUANT + KNOWN, "    case: plain/momentum", f"    case: plain/momentun {HERE}",
        "known_deviations[0].case",
        ["no case 'plain/momentun'", "did you mean 'plain/momentum'?"], id="known-names-no-case",
    ),
    pytest.param(
        QUANT + KNOWN, "    breaks: [int_agree]", f"    breaks: [int_agre] {HERE}",
        "known_deviations[0].breaks[0]", ["'int_agre'", "did you mean 'int_agree'?"],
        id="known-names-no-gate",
    ),
    pytest.param(
        QUANT, "    sigma: 2.0", f"    sigma: .nan {HERE}", "battery[1].sigma",
        ["nan", "finite"], id="nan-parameter",
    ),
    pytest.param(
        QUANT, "    limit: 0.9999", f"    limit: .inf {HERE}", "gates[0].limit",
        ["inf", "finite"], id="infinite-limit",
    ),
    pytest.param(
        QUANT, "  - name: skewed", f"  - name: plain {HERE}", None,
        ["'plain'", "twice", "rename"], id="two-tensors-of-one-name",
    ),
    pytest.param(
        QUANT, "  - name: plain", f"  - name: a/b {HERE}", "battery[0].name",
        ["'a/b'"], id="name-that-would-split-a-case",
    ),
    pytest.param(
        QUANT, "seed: 7", f"seed: a\x07b {HERE}", None, ["not valid YAML"], id="control-character"
    ),
    pytest.param(
        QUANT, "seed: 7", f"seed: 7\n? [a, b] {HERE}\n: 1", None, [], id="key-that-is-a-list"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("base", "old", "new", "key", "words"), FAULTS)
def test_a_fault_in_a_suite(
    cli: Cli,
    use_subject: Callable[[object], None],
    tmp_path: Path,
    base: str,
    old: str,
    new: str,
    key: str | None,
    words: list[str],
) -> None:
    use_subject(ReferenceSubject())
    text = changed(base, old, new)
    (tmp_path / "own.yaml").write_text(text)
    line = the_line(cli("run", "own.yaml"), 2)
    prefix = f"flashcheck: own.yaml:{place(text)}: "
    if key is not None:
        prefix += f"{key}: "
    assert line.startswith(prefix)
    for word in words:
        assert word in line.removeprefix(prefix)


def test_a_bracket_that_is_never_closed_shows_on_the_next_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(changed(QUANT, "seed: 7", "seed: [7"))
    line = the_line(cli("run", "own.yaml"), 2)
    assert line.startswith("flashcheck: own.yaml:5: not valid YAML: ")


@pytest.mark.parametrize(
    ("base", "block"),
    [
        (QUANT, QUANT[QUANT.index("battery:") : QUANT.index("specs:")]),
        (QUANT, QUANT[QUANT.index("specs:") : QUANT.index("gates:")]),
        (SPLIT, SPLIT[SPLIT.index("formats:") : SPLIT.index("gates:")]),
    ],
    ids=["battery", "specs", "formats"],
)
def test_an_empty_list_is_refused(cli: Cli, tmp_path: Path, base: str, block: str) -> None:
    key = block.partition(":")[0]
    text = changed(base, block, f"{key}: [] {HERE}\n")
    (tmp_path / "own.yaml").write_text(text)
    line = the_line(cli("run", "own.yaml"), 2)
    assert line.startswith(f"flashcheck: own.yaml:{place(text)}: {key}: ")
    assert "empty" in line
    assert "at least one" in line


@pytest.mark.parametrize("key", ["suite", "kind", "description", "seed", "battery", "specs"])
def test_a_missing_key_is_named(cli: Cli, tmp_path: Path, key: str) -> None:
    lines = QUANT.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
    stop = next(i for i, line in enumerate(lines[start + 1 :], start + 1) if line[0] not in " ")
    (tmp_path / "own.yaml").write_text("\n".join(lines[:start] + lines[stop:]) + "\n")
    line = the_line(cli("run", "own.yaml"), 2)
    assert line.startswith("flashcheck: own.yaml:1: ")
    assert key in line
    assert "missing; add it" in line


def test_several_faults_are_counted(cli: Cli, tmp_path: Path) -> None:
    text = changed(changed(QUANT, "size: 200", "size: -1"), "size: 97", "size: -2")
    (tmp_path / "own.yaml").write_text(text)
    assert "(and 1 more)" in the_line(cli("run", "own.yaml"), 2)


@pytest.mark.parametrize(
    "content",
    [b"", b"- 1\n", b"suite: caf\xe9\n", b"x: " + b"[" * 5000, b"\x00\x01\x02"],
    ids=["empty", "list", "latin-1", "deep", "binary"],
)
def test_a_file_that_is_no_suite(cli: Cli, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.yaml").write_bytes(content)
    assert the_line(cli("run", "own.yaml"), 2).startswith("flashcheck: own.yaml")


@pytest.mark.parametrize("path", ["absent.yaml", "absent/", "folder.yaml"])
def test_a_suite_file_that_cannot_be_read(cli: Cli, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    assert path.rstrip("/") in the_line(cli("run", path), 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["qant"], ["qant", "did you mean 'quant'?"]),
        (["xyz"], ["xyz", "quant", "ecc", "int16", "all"]),
        (["quant", "--battery", "heavytail"], ["--battery", "heavytail", "'heavy_tail'"]),
        (["quant", "--battery", "xyz"], ["--battery", "xyz", "normal", "with_zeros"]),
        (["quant", "--spec", "momentun"], ["--spec", "momentun", "'momentum'"]),
        (["ecc", "--spec", "bf16+int9"], ["--spec", "bf16+int9", "'bf16+int8'"]),
        (["ecc", "--battery", "normal"], ["--battery", "normal"]),
        (["quant", "--subject", "flashoptm"], ["--subject", "flashoptm", "'flashoptim'"]),
        (["quant", "--backend", "cudda"], ["--backend", "cudda", "'cuda'"]),
        (["quant", "--backend", "interpret"], ["--backend", "interpret", "'interpreter'"]),
        (["quant", "--backend", ""], ["--backend", "auto", "cuda", "interpreter"]),
    ],
)
def test_an_unknown_name_on_the_command_line(
    cli: Cli, tmp_path: Path, words: list[str], said: list[str]
) -> None:
    line = the_line(cli("run", *words), 2)
    for word in said:
        assert word in line
    assert not (tmp_path / "reports").exists() or not any((tmp_path / "reports").iterdir())


def test_two_files_that_define_one_suite(cli: Cli, tmp_path: Path) -> None:
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text(QUANT)
    line = the_line(cli("run", "one.yaml", "two.yaml"), 2)
    assert "two.yaml" in line
    assert "'small'" in line
    assert "rename" in line


class TestOut:
    """``--out`` that cannot be written is found out before anything runs."""

    @pytest.fixture(autouse=True)
    def _subject(self, use_subject: Callable[[object], None]) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("the run began although its report cannot be written")

        use_subject(Altered("quantize", refuse))

    @pytest.mark.parametrize("out", ["file/report.json", "file/folder", "file/a/b/report.json"])
    def test_below_a_regular_file(self, cli: Cli, tmp_path: Path, quant: Path, out: str) -> None:
        (tmp_path / "file").write_text("precious")
        line = the_line(cli("run", quant, "--out", out), 2)
        assert "--out file" in line
        assert "cannot be written" in line
        assert "name another" in line
        assert (tmp_path / "file").read_text() == "precious"

    def test_a_regular_file_as_the_folder(self, cli: Cli, tmp_path: Path, quant: Path) -> None:
        (tmp_path / "file").write_text("precious")
        assert "--out file" in the_line(cli("run", quant, "--out", "file"), 2)
        assert (tmp_path / "file").read_text() == "precious"

    def test_a_folder_in_the_reports_place(self, cli: Cli, tmp_path: Path, quant: Path) -> None:
        (tmp_path / "out" / "small.json").mkdir(parents=True)
        assert "cannot be written" in the_line(cli("run", quant, "--out", "out"), 2)

    def test_where_no_file_can_be_made(self, cli: Cli, quant: Path) -> None:
        assert "cannot be written" in the_line(cli("run", quant, "--out", "/proc/x.json"), 2)

    def test_the_default_folder_too(self, cli: Cli, tmp_path: Path, quant: Path) -> None:
        (tmp_path / "reports").write_text("a file")
        assert "reports" in the_line(cli("run", quant), 2)

    def test_one_file_for_several_suites(
        self, cli: Cli, tmp_path: Path, quant: Path, split: Path
    ) -> None:
        line = the_line(cli("run", quant, split, "--out", "both.json"), 2)
        assert "--out both.json" in line
        assert "name a folder" in line
        assert not (tmp_path / "both.json").exists()


@pytest.fixture
def report(cli: Cli, use_subject: Callable[[object], None], quant: Path, tmp_path: Path) -> Path:
    """A good report."""
    use_subject(ReferenceSubject())
    assert cli("run", quant, "--quiet", "--out", "good.json").code == 0
    return tmp_path / "good.json"


class TestShow:
    """A report that cannot be read."""

    @pytest.mark.parametrize("version", ["2", "0", '"1"', "null", "[1]", "1.5", "1.0", "true"])
    def test_an_unknown_schema_version(
        self, cli: Cli, tmp_path: Path, report: Path, version: str
    ) -> None:
        text = changed(report.read_text(), '"schema_version": 1', f'"schema_version": {version}')
        (tmp_path / "other.json").write_text(text)
        line = the_line(cli("show", "other.json"), 2)
        assert line.startswith("flashcheck: other.json: schema_version: ")

    def test_an_unknown_schema_version_says_which_is_read(
        self, cli: Cli, tmp_path: Path, report: Path
    ) -> None:
        text = changed(report.read_text(), '"schema_version": 1', '"schema_version": 99')
        (tmp_path / "newer.json").write_text(text)
        line = the_line(cli("show", "newer.json"), 2)
        assert "99" in line
        assert "reads 1" in line

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 0.9, 1.0])
    def test_a_truncated_report(self, cli: Cli, tmp_path: Path, report: Path, share: float) -> None:
        whole = report.read_bytes().rstrip()
        part = whole[: min(int(len(whole) * share), len(whole) - 1)]
        (tmp_path / "part.json").write_bytes(part)
        line = the_line(cli("show", "part.json"), 2)
        number = int(line.removeprefix("flashcheck: part.json:").split(":")[0])
        # Where the text ends, or before the blanks it ends in.
        assert part.rstrip().count(b"\n") + 1 <= number <= part.count(b"\n") + 1
        assert "truncated" in line
        assert "flashcheck run" in line

    def test_an_integer_that_nothing_counts(self, cli: Cli, tmp_path: Path, report: Path) -> None:
        text = changed(
            report.read_text(), '"schema_version": 1', '"schema_version": 1' + "0" * 5000
        )
        (tmp_path / "big.json").write_text(text)
        line = the_line(cli("show", "big.json"), 2)
        assert "an integer of 5,001 digits" in line

    def test_what_no_reader_should_obey(self, cli: Cli, tmp_path: Path, report: Path) -> None:
        """A key with a line feed makes no second line, and nothing reverses what follows."""
        data = json.loads(report.read_text())
        data["a\nflashcheck: all is well"] = 1
        (tmp_path / "forged.json").write_text(json.dumps(data))
        assert "a\\nflashcheck: all is well" in the_line(cli("show", "forged.json"), 2)
        del data["a\nflashcheck: all is well"]
        data["cases"][0]["case"] = "evil\u202elive\u2066"
        (tmp_path / "bidi.json").write_text(json.dumps(data))
        ran = cli("show", "bidi.json")
        assert ran.code == 0, ran.err
        assert not set("\u202e\u2066") & set(ran.out)
        assert "x202elive" in ran.out

    def test_an_empty_sentence_and_a_label_that_is_no_number(
        self, cli: Cli, tmp_path: Path
    ) -> None:
        stored = CHECKOUT / "reports" / "interpreter-flashoptim-0.1.4" / "quant.json"
        data = json.loads(stored.read_text())
        for case in data["cases"]:
            case["mismatches"] |= {
                "sentence": "",
                "distances": {"codes": {"abc": 1, "nan": 2, "4": 3}},
            }
        (tmp_path / "odd.json").write_text(json.dumps(data))
        assert cli("show", "odd.json").code == 0
        assert cli("show", "odd.json", "--html", "odd.html").code == 0

    @pytest.mark.parametrize("text", ["[]", "3", '"text"', "{}", "null", '{"a": 1}'])
    def test_json_that_is_no_report(self, cli: Cli, tmp_path: Path, text: str) -> None:
        (tmp_path / "other.json").write_text(text)
        line = the_line(cli("show", "other.json"), 2)
        assert line.startswith("flashcheck: other.json: schema_version: ")
        assert "no flashcheck report" in line

    @pytest.mark.parametrize("content", [b"suite: x\n", b"\xff\xfe\x00", b"\x00" * 9, b"[" * 9999])
    def test_what_is_no_json(self, cli: Cli, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "other.json").write_bytes(content)
        assert "not valid JSON" in the_line(cli("show", "other.json"), 2)

    @pytest.mark.parametrize(
        ("old", "new", "key"),
        [
            ('"suite": "small",\n  "kind"', '"kind"', "suite"),
            ('"status": "pass",\n  "started_at"', '"status": "fine",\n  "started_at"', "status"),
            ('"schema_version": 1', '"schema_version": 1, "extra": 1', "extra"),
        ],
    )
    def test_a_report_with_a_fault_names_its_key(
        self, cli: Cli, tmp_path: Path, report: Path, old: str, new: str, key: str
    ) -> None:
        (tmp_path / "other.json").write_text(changed(report.read_text(), old, new))
        assert the_line(cli("show", "other.json"), 2).startswith(f"flashcheck: other.json: {key}: ")

    def test_a_figure_that_is_nan(self, cli: Cli, tmp_path: Path, report: Path) -> None:
        text = report.read_text()
        at = text.index('"nmse_subject": ')
        end = text.index(",", at)
        (tmp_path / "other.json").write_text(f'{text[:at]}"nmse_subject": NaN{text[end:]}')
        assert "nmse_subject" in the_line(cli("show", "other.json"), 2)

    @pytest.mark.parametrize("path", ["absent.json", ".", "no/such/folder.json"])
    def test_a_report_that_cannot_be_read(self, cli: Cli, path: str) -> None:
        assert f"flashcheck: {path}: " in the_line(cli("show", path), 2)


class TestUnavailable:
    """Exit code 3: this machine cannot, or nothing is left."""

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
    def test_cuda_without_a_gpu(self, cli: Cli, quant: Path) -> None:
        line = the_line(cli("run", quant, "--backend", "cuda"), 3)
        assert "--backend cuda" in line
        assert "--backend interpreter" in line

    @pytest.fixture
    def _no_flashoptim(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = importlib.util.find_spec

        def find_spec(name: str, package: str | None = None) -> Any:
            return None if name.startswith("flashoptim") else found(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)

    @pytest.mark.usefixtures("_no_flashoptim")
    def test_the_package_is_missing(self, cli: Cli, tmp_path: Path, quant: Path) -> None:
        (tmp_path / "reports").mkdir()
        (tmp_path / "reports" / "small.json").write_text("earlier")
        line = the_line(cli("run", quant, "--backend", "interpreter"), 3)
        assert "flashoptim is missing" in line
        assert "pip install flashoptim" in line
        assert [p.name for p in (tmp_path / "reports").iterdir()] == ["small.json"]
        assert (tmp_path / "reports" / "small.json").read_text() == "earlier"

    @pytest.mark.usefixtures("_no_flashoptim")
    def test_list_says_that_the_package_is_missing(self, cli: Cli) -> None:
        ran = cli("list")
        assert ran.code == 0
        assert "unavailable: missing: flashoptim" in " ".join(ran.out.split())

    @pytest.mark.parametrize(
        "words",
        [
            ["small.yaml", "sweep.yaml", "--battery", "plain", "--spec", "bf16+int8"],
            ["sweep.yaml", "small.yaml", "--spec", "bf16+int8", "--battery", "skewed"],
        ],
    )
    @pytest.mark.usefixtures("quant", "split")
    def test_a_selection_that_leaves_nothing(self, cli: Cli, words: list[str]) -> None:
        assert "nothing to compare" in the_line(cli("run", *words), 3)

    @pytest.mark.parametrize("subject", [DoesNothing(), OnlyQuantizes()])
    def test_a_subject_that_supports_no_case(
        self, cli: Cli, use_subject: Callable[[object], None], split: Path, subject: object
    ) -> None:
        use_subject(subject)
        ran = cli("run", split, "--json")
        assert ran.code == 3
        report = ran.json()
        assert report["status"] == report["summary"]["status"] == "nothing_compared"
        assert {case["status"] for case in report["cases"]} == {"unsupported"}
        assert report["summary"]["elements"] == 0


def test_a_wrong_suite_stops_the_run_before_a_right_one_is_overwritten(
    cli: Cli, use_subject: Callable[[object], None], tmp_path: Path, quant: Path
) -> None:
    use_subject(ReferenceSubject())
    (tmp_path / "wrong.yaml").write_text(changed(SPLIT, "step: 60", "step: 0"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "small.json").write_text("earlier")
    the_line(cli("run", quant, "wrong.yaml"), 2)
    assert [p.name for p in (tmp_path / "reports").iterdir()] == ["small.json"]
    assert (tmp_path / "reports" / "small.json").read_text() == "earlier"
