"""The smallest input that shows a mismatch, and its script where flashcheck is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TIMEOUT_S, Cli
from tests.fakes import changed

EDGE = """\
suite: odd
kind: edge
description: a battery with a layout, and splitting
seed: 5
group_size: 32
battery:
  - {name: plain, generator: normal, size: 200}
  - {name: turned, generator: normal, size: 96, shape: [8, 12], layout: transposed}
  - {name: half, generator: normal, size: 64, dtype: bf16}
specs:
  - {name: momentum, signed: true, sqrt: false, softsign: true}
formats:
  - {narrow: bf16, ecc: int8}
gates: []
"""

SWEEP = """\
suite: sweep
kind: splitting
description: a few exponents
seed: 11
sweep:
  exponents: {start: 100, stop: 140, step: 10}
  samples: 64
formats:
  - {narrow: bf16, ecc: int8}
gates: []
"""

# No import of flashcheck: a subject as a user has it, each class with one fault.
SUBJECTS = """\
import torch


def flat_groups(x, size):
    flat = x.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).reshape(-1, size)


class Right:
    name = "mine"
    version = "1"
    backend = "native"

    def quantize(self, x, *, signed, sqrt, softsign, group_size):
        groups = flat_groups(x.float(), group_size)
        absmax = groups.abs().amax(dim=1)
        m = groups / torch.where(absmax == 0, 1.0, absmax)[:, None]
        m = 2 * m / (1 + m.abs())
        codes = (m * 127).round().to(torch.int8)
        return codes.reshape(-1)[: x.numel()].reshape(x.shape), absmax.half()

    def dequantize(self, codes, scales, *, signed, sqrt, softsign, group_size):
        m = flat_groups(codes.float(), group_size)
        m = m / torch.full_like(m, 127.0)
        m = m / (2 - m.abs()) * scales.float()[:, None]
        return m.reshape(-1)[: codes.numel()].reshape(codes.shape)

    def exponent(self, narrow):
        field = (narrow.contiguous().view(torch.int16).int() >> 7) & 0xFF
        return (field.clamp(min=1) - 135).double()

    def compute_ecc(self, x, narrow, *, ecc_dtype):
        e = (x - narrow.float()).double() * torch.exp2(-self.exponent(narrow))
        return (e.clamp(-1, 1).float() * 127).round().to(torch.int8)

    def reconstruct(self, narrow, ecc):
        fraction = ecc.float() / torch.full_like(ecc.float(), 127.0)
        correction = fraction.double() * torch.exp2(self.exponent(narrow))
        return narrow.float() + correction.float()


class NoSign(Right):
    def quantize(self, x, **options):
        return super().quantize(x.abs(), **options)


class NoStride(Right):
    def quantize(self, x, **options):
        flat = x.t() if x.dim() == 2 and not x.is_contiguous() else x
        codes, scales = super().quantize(flat, **options)
        return codes.reshape(x.shape), scales


class LastOnly(Right):
    # Wrong only past the first 150 elements: no group alone shows it.
    def quantize(self, x, **options):
        codes, scales = super().quantize(x, **options)
        codes.reshape(-1)[150:] = 0
        return codes, scales


class Doubled(Right):
    def reconstruct(self, narrow, ecc):
        return super().reconstruct(narrow, ecc) * 2


class LateCodes(Right):
    # Wrong only past the first 100 values: no value alone shows it.
    def compute_ecc(self, x, narrow, *, ecc_dtype):
        rho = super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)
        rho.reshape(-1)[100:] = 0
        return rho


class ZeroSign(Right):
    def dequantize(self, codes, scales, **options):
        values = super().dequantize(codes, scales, **options)
        return torch.where(values == 0, -0.0, values)


def on_backend(backend):
    made = NoSign()
    made.version = f"on {backend}"
    return made
"""

# Found first on the path: whoever imports flashcheck in a script fails there.
BLOCK = """\
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flashcheck":
            raise ImportError("flashcheck is not installed here")

sys.meta_path.insert(0, Blocked())
"""


@dataclass(frozen=True)
class Answer:
    """What the script did."""

    code: int
    out: str
    err: str


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Path], Answer]:
    """Run a folder's script from elsewhere, where flashcheck cannot be imported."""
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(BLOCK)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(block)
    probe = subprocess.run(
        [sys.executable, "-c", "import flashcheck"],
        cwd=elsewhere,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert "flashcheck is not installed here" in probe.stderr

    def run(folder: Path) -> Answer:
        done = subprocess.run(
            [sys.executable, str(folder / "repro.py")],
            cwd=elsewhere,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def made(cli: Cli, tmp_path: Path) -> Callable[..., Path]:
    """Run a case on a class of the user's file, and write its reproduction."""
    (tmp_path / "mine.py").write_text(SUBJECTS)

    def make(attribute: str, suite: str, case: str, *, elements: int) -> Path:
        name = suite.split()[1]
        (tmp_path / f"{name}.yaml").write_text(suite)
        cli("run", f"{name}.yaml", "--subject", f"mine.py:{attribute}", "--quiet")
        ran = cli("repro", f"reports/{name}.json", case)
        assert ran.code == 0, ran.err
        folder = tmp_path / "repro" / f"{name}-{case.replace('/', '-')}"
        assert f"{elements:,} elements, it differs here" in ran.err
        assert set(os.listdir(folder)) >= {"input.npz", "repro.py", "subject_under_test.py"}
        with np.load(folder / "input.npz") as arrays:
            assert arrays["x"].size == elements
        return folder

    return make


Made = Callable[..., Path]
Play = Callable[[Path], Answer]


def differs(answer: Answer, *outputs: str) -> None:
    """The script ended with both answers beside each other for these outputs."""
    assert answer.code == 1, answer.err
    assert answer.err == ""
    for output in outputs:
        lines = answer.out.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{output}: "))
        assert not lines[at].startswith(f"{output}: 0 of")
        assert "subject " in lines[at + 1]
        assert "reference " in lines[at + 1]


def test_a_quantization_case_is_one_group(made: Made, play: Play) -> None:
    folder = made("NoSign", EDGE, "plain/momentum", elements=32)
    differs(play(folder), "codes", "values")
    # It says nothing of flashcheck but that it is not needed.
    text = (folder / "repro.py").read_text()
    assert "import flashcheck" not in text
    assert "from flashcheck" not in text


def test_a_fault_that_no_group_alone_shows_is_the_whole_input(made: Made, play: Play) -> None:
    folder = made("LastOnly", EDGE, "plain/momentum", elements=200)
    differs(play(folder), "codes")


def test_an_edge_case_keeps_its_layout(made: Made, play: Play) -> None:
    folder = made("NoStride", EDGE, "turned/momentum", elements=96)
    answer = play(folder)
    differs(answer, "codes")
    assert ".t()" in (folder / "repro.py").read_text()


def test_an_edge_case_keeps_its_dtype(made: Made, play: Play) -> None:
    folder = made("NoSign", EDGE, "half/momentum", elements=32)
    differs(play(folder), "codes")
    assert "torch.bfloat16" in (folder / "repro.py").read_text()


@pytest.mark.parametrize(("suite", "case"), [(SWEEP, "bf16+int8"), (EDGE, "plain/bf16+int8")])
def test_a_splitting_case_is_one_value(made: Made, play: Play, suite: str, case: str) -> None:
    folder = made("Doubled", suite, case, elements=1)
    answer = play(folder)
    differs(answer, "values")
    assert "rho: 0 of 1 differ" in answer.out


@pytest.mark.parametrize(
    ("suite", "case", "elements"),
    [(EDGE, "plain/bf16+int8", 200), (SWEEP, "bf16+int8", 256)],
)
def test_a_fault_of_splitting_that_no_value_alone_shows(
    made: Made, play: Play, suite: str, case: str, elements: int
) -> None:
    folder = made("LateCodes", suite, case, elements=elements)
    differs(play(folder), "rho")


def test_a_factory_that_takes_a_backend_is_given_one(made: Made, play: Play) -> None:
    folder = made("on_backend", EDGE, "plain/momentum", elements=32)
    differs(play(folder), "codes")


def test_a_difference_in_the_sign_of_zero_is_one_in_the_script_too(made: Made, play: Play) -> None:
    # The report compares bits, so that the script has to.
    zero = changed(
        EDGE,
        "  - {name: plain, generator: normal, size: 200}",
        "  - {name: plain, generator: zero_inflated_normal, size: 200, zero_probability: 0.5}",
    )
    folder = made("ZeroSign", zero, "plain/momentum", elements=32)
    differs(play(folder), "values")


def test_the_authors_kernels_are_reproduced_without_flashcheck(
    cli: Cli, play: Play, tmp_path: Path
) -> None:
    (tmp_path / "odd.yaml").write_text(EDGE)
    cli("run", "odd.yaml", "--battery", "turned", "--spec", "momentum", "--quiet")
    ran = cli("repro", "reports/odd.json", "turned/momentum", "--out", "there")
    assert ran.code == 0, ran.err
    assert "96 elements, it differs here" in ran.err
    assert f"run it: python {Path('there') / 'repro.py'}" in ran.err
    differs(play(tmp_path / "there"), "codes", "scales")


# --- What cannot be reproduced ----------------------------------------------------------------


@pytest.fixture
def report(cli: Cli, tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SUBJECTS)
    (tmp_path / "odd.yaml").write_text(EDGE)
    cli("run", "odd.yaml", "--subject", "mine.py:NoSign", "--quiet")
    return tmp_path / "reports" / "odd.json"


def one_line(err: str) -> str:
    (line,) = err.strip().splitlines()
    assert line.startswith("flashcheck: ")
    return line


def test_no_such_case_names_the_near_one(cli: Cli, report: Path) -> None:
    ran = cli("repro", report, "plain/momentun")
    assert ran.code == 2
    line = one_line(ran.err)
    assert "no case 'plain/momentun'; did you mean 'plain/momentum'?" in line


def test_a_case_without_a_mismatch_is_refused(cli: Cli, report: Path) -> None:
    ran = cli("repro", report, "plain/bf16+int8")
    assert ran.code == 2
    assert "case plain/bf16+int8 has no mismatch to reproduce" in one_line(ran.err)
    assert not Path("repro").exists()


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused(
    cli: Cli, report: Path, tmp_path: Path, out: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    ran = cli("repro", report, "plain/momentum", "--out", out)
    assert ran.code == 2
    assert f"--out {out}: cannot be written: " in one_line(ran.err)
    assert "None" not in ran.err


def test_a_report_that_is_none_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    ran = cli("repro", "bad.json", "plain/momentum")
    assert ran.code == 2
    assert one_line(ran.err)
    ran = cli("repro", "nowhere.json", "plain/momentum")
    assert ran.code == 2
    assert one_line(ran.err)


def test_an_input_that_is_drawn_otherwise_here_is_refused(cli: Cli, report: Path) -> None:
    stored = json.loads(report.read_text())
    for case in stored["cases"]:
        case["input_sha256"] = "0" * 64
    report.write_text(json.dumps(stored))
    ran = cli("repro", report, "plain/momentum")
    assert ran.code == 2
    assert "its input cannot be made again here" in one_line(ran.err)


def test_a_subjects_file_that_is_gone_is_said_and_no_broken_script_is_left(
    cli: Cli, report: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").unlink()
    ran = cli("repro", report, "plain/momentum", "--out", "there")
    # Without the file the script could only fail: importing subject_under_test.
    assert "mine.py" in ran.err
    assert ran.code in (2, 3)
    assert not (tmp_path / "there" / "repro.py").exists()
