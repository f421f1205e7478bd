"""Any subject: a class or factory in a file, and an installed plugin."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flashcheck.report.models import Status
from flashcheck.report.store import read
from flashcheck.subjects import registry
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli, Ran

SUITE = ("run", "edge", "--battery", "size_33", "--spec", "momentum", "--json", "--quiet")

RIGHT = """\
from flashcheck.selftest.eager import Eager

class Right(Eager):
    name = "mine"

class WrongOne(Eager):
    def clamp_code(self, code, signed):
        done = super().clamp_code(code, signed)
        done[0, 5] += 7
        return done

def factory():
    return Right()

def on_backend(backend):
    made = Right()
    made.version = f"on {backend}"
    return made

def by_default(backend="nowhere"):
    made = Right()
    made.version = f"on {backend}"
    return made

def raises():
    raise OSError("no such device")

def needs(argument):
    return Right()

def nothing():
    return None

def a_number():
    return 5

def a_module():
    import math
    return math

constant = 5

class NoMethods:
    pass

class NotCallable:
    quantize = 5

class Slots:
    __slots__ = ()

    def quantize(self, x, **options):
        return Right().quantize(x, **options)

class NumberAsVersion(Eager):
    version = 2

class Fails(Eager):
    def quantize(self, x, **options):
        return self.deep(x)

    def deep(self, x):
        raise RuntimeError("the kernel failed")

class OnlySplits:
    def compute_ecc(self, x, narrow, *, ecc_dtype):
        return Right().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)

    def reconstruct(self, narrow, ecc):
        return Right().reconstruct(narrow, ecc)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RIGHT)
    return path


@pytest.fixture
def run_mine(cli: Cli, mine: Path) -> Callable[..., Ran]:
    """Run the one case on something in the user's file."""

    def run(attribute: str, *more: str) -> Ran:
        return cli(*SUITE, "--subject", f"{mine}:{attribute}", *more)

    return run


Mine = Callable[..., Ran]


def refused(ran: Ran, *words: str) -> None:
    """Exit 3, one line that has some words, and no traceback."""
    assert ran.code == 3, ran.err
    assert "Traceback" not in ran.err
    (line,) = ran.err.strip().splitlines()
    assert line.startswith("flashcheck: --subject ")
    for word in words:
        assert word in line


# --- A file that works ------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["Right", "factory", "on_backend", "by_default"])
def test_a_class_or_factory_of_a_file_runs(run_mine: Mine, mine: Path, attribute: str) -> None:
    ran = run_mine(attribute)
    assert ran.code == 0, ran.err
    report = ran.json()
    assert report["subject"]["name"] == "mine"
    assert report["subject"]["origin"].endswith(f"mine.py:{attribute}")
    assert len(report["subject"]["source_sha256"]) == 64
    (case,) = report["cases"]
    assert case["status"] == "pass"


@pytest.mark.parametrize("factory", ["on_backend", "by_default"])
def test_a_factory_that_takes_a_backend_is_given_it(run_mine: Mine, factory: str) -> None:
    ran = run_mine(factory, "--backend", "interpreter")
    assert ran.json()["subject"]["version"] == "on interpreter"


@pytest.mark.usefixtures("interpreted")
def test_a_subject_without_triton_has_no_shims_whatever_else_imported_it() -> None:
    fakes = CHECKOUT / "tests" / "fakes.py"
    subject, shims = registry.load(f"{fakes}:ReferenceSubject", "interpreter")
    assert (subject.backend, list(shims)) == ("native", [])


def test_a_wrong_class_fails_its_gate(run_mine: Mine) -> None:
    ran = run_mine("WrongOne")
    assert ran.code == 1
    (case,) = ran.json()["cases"]
    assert case["status"] == "fail"
    assert case["mismatches"]["by_cause"] == {"unexplained": 1}
    assert case["mismatches"]["worst"][0]["index"] == 5


def test_a_subject_need_not_say_who_it_is(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        "from flashcheck.selftest.eager import Eager\n"
        "class Bare:\n"
        "    quantize = lambda self, x, **o: Eager().quantize(x, **o)\n"
        "    dequantize = lambda self, c, s, **o: Eager().dequantize(c, s, **o)\n"
    )
    ran = cli(*SUITE, "--subject", "bare.py:Bare")
    assert ran.code == 0, ran.err
    subject = ran.json()["subject"]
    assert (subject["name"], subject["version"]) == ("Bare", "0")
    assert ran.json()["environment"]["backend"] == "native"


def test_a_subject_without_a_suites_methods_is_unsupported(run_mine: Mine) -> None:
    ran = run_mine("OnlySplits")
    assert ran.code == 3
    (case,) = ran.json()["cases"]
    assert case["status"] == "unsupported"
    assert case["reason"] == "the subject has no quantize and no dequantize"


# --- Files that do not ------------------------------------------------------------------------


def test_a_file_that_is_not_there(cli: Cli) -> None:
    refused(cli(*SUITE, "--subject", "nowhere/none.py:Thing"), "there is no file nowhere/none.py")


def test_a_file_that_is_a_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    refused(cli(*SUITE, "--subject", "folder.py:Thing"), "there is no file folder.py")


@pytest.mark.parametrize("ending", ["", ":"])
def test_a_file_without_a_class(cli: Cli, mine: Path, ending: str) -> None:
    refused(cli(*SUITE, "--subject", f"{mine}{ending}"), "names no class", "path/to/file.py:CLASS")


def test_a_near_name_is_suggested(run_mine: Mine) -> None:
    refused(run_mine("Rigth"), "has no 'Rigth'", "did you mean 'Right'?")


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("raises", "cannot be made: OSError: no such device"),
        ("needs", "cannot be made: TypeError"),
        ("constant", "is a int, not a class or factory"),
        ("NoMethods", "has none of the methods quantize, dequantize, compute_ecc, reconstruct"),
        ("NotCallable", "has none of the methods"),
        ("nothing", ""),
        ("a_number", ""),
        ("a_module", "has none of the methods"),
    ],
)
def test_what_is_no_subject_is_refused_in_one_line(
    run_mine: Mine, attribute: str, words: str
) -> None:
    refused(run_mine(attribute), words)


@pytest.mark.parametrize("attribute", ["Slots", "NumberAsVersion"])
def test_a_subject_that_describes_itself_oddly_is_no_internal_error(
    run_mine: Mine, attribute: str
) -> None:
    ran = run_mine(attribute)
    assert "internal error" not in ran.err
    assert "Traceback" not in ran.err
    assert ran.code in (0, 3, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise KeyError('gone')", "cannot be imported: KeyError: 'gone'"),
        ("import no_such_package_at_all", "cannot be imported: ModuleNotFoundError"),
        ("def broken(:\n    pass", "cannot be imported: SyntaxError"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit"),
        ("import sys; sys.exit()", "cannot be imported: SystemExit"),
        ("\x00", "cannot be imported"),
    ],
)
def test_a_file_that_raises_at_import_is_refused_in_one_line(
    cli: Cli, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "bad.py").write_text(text + "\n")
    refused(cli(*SUITE, "--subject", "bad.py:Thing"), words)


@pytest.mark.parametrize("text", ["raise KeyError('gone')", "def Thing(): raise KeyError('gone')"])
def test_traceback_shows_where_a_file_raised(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.py").write_text(text + "\n")
    ran = cli(*SUITE, "--subject", "bad.py:Thing", "--traceback")
    assert ran.code == 3
    assert "Traceback" in ran.err
    assert re.search(r'bad\.py", line 1', ran.err)
    assert ran.err.strip().splitlines()[-1].startswith("flashcheck: --subject ")


def test_a_case_in_which_it_raises_is_an_error_and_traceback_shows_where(run_mine: Mine) -> None:
    silent = run_mine("Fails")
    assert silent.code == 4
    (case,) = silent.json()["cases"]
    assert case["status"] == "error"
    assert case["reason"] == "quantize raised RuntimeError: the kernel failed"
    assert "Traceback" not in silent.err
    loud = run_mine("Fails", "--traceback")
    assert loud.code == 4
    assert "Traceback" in loud.err
    assert "in deep" in loud.err


# --- An installed plugin ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example plugin, built and installed by pip into a folder of its own, with no network."""
    folder = tmp_path_factory.mktemp("plugin")
    # Built from a copy: a build must leave nothing in the checkout.
    source = folder / "source"
    shutil.copytree(CHECKOUT / "tests" / "plugin_example", source)
    target = folder / "site"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--no-index", "--disable-pip-version-check"),
            *("--target", str(target), str(source)),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert list(target.glob("*.dist-info/entry_points.txt"))
    return target


@pytest.fixture
def with_plugin(installed: Path, tmp_path: Path) -> Callable[..., Ran]:
    """Run the command line in a process that has the plugin installed."""

    def run(*words: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "flashcheck", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{CHECKOUT}"},
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def test_an_installed_plugin_runs_by_its_name(with_plugin: Callable[..., Ran]) -> None:
    ran = with_plugin(*SUITE, "--subject", "plugin_example")
    assert ran.code == 0, ran.err
    report = ran.json()
    assert report["subject"]["name"] == "plugin_example"
    assert report["subject"]["version"] == "3.1.4"
    assert report["subject"]["origin"] == "plugin"
    assert [case["status"] for case in report["cases"]] == ["pass"]
    source = (CHECKOUT / "tests" / "plugin_example" / "flashcheck_plugin_example.py").read_bytes()
    import hashlib

    assert report["subject"]["source_sha256"] == hashlib.sha256(source).hexdigest()


def test_a_plugin_is_listed_and_one_that_fails_to_import_stays_listed_with_its_reason(
    with_plugin: Callable[..., Ran],
) -> None:
    ran = with_plugin("list")
    assert ran.code == 0, ran.err
    text = " ".join(ran.out.split())
    assert "plugin_example" in text
    assert "version 3.1.4" in text
    assert "plugin_broken" in text
    assert "unavailable: ImportError: libcudart_of_the_future.so" in text
    assert "flashoptim" in text


def test_a_plugin_that_fails_to_import_is_refused_with_its_reason(
    with_plugin: Callable[..., Ran],
) -> None:
    ran = with_plugin(*SUITE, "--subject", "plugin_broken")
    refused(ran, "cannot be imported: ImportError: libcudart_of_the_future.so")


def test_a_near_name_of_a_plugin_is_suggested(with_plugin: Callable[..., Ran]) -> None:
    ran = with_plugin(*SUITE, "--subject", "plugin_exmaple")
    assert ran.code == 2
    assert "did you mean 'plugin_example'?" in ran.err
    assert "path/to/file.py:CLASS" in ran.err


def test_a_repro_of_a_plugin_runs_without_flashcheck(
    with_plugin: Callable[..., Ran], installed: Path, tmp_path: Path
) -> None:
    # Subnormals: few enough bits that some lie on a tie, which half away breaks otherwise.
    (tmp_path / "tie.yaml").write_text(
        "suite: tie\nkind: edge\ndescription: a tie\nseed: 1\nbattery:\n"
        "  - {name: bits, generator: special, size: 64, scale: 0.0, every: 2,\n"
        "     values: ['0x000000ff', '0x000000fd']}\n"
        "specs:\n  - {name: momentum, signed: true, sqrt: false, softsign: true}\n"
        "gates: []\n"
    )
    ran = with_plugin("run", "tie.yaml", "--subject", "plugin_example", "--quiet")
    assert ran.code == 0, ran.err
    report = json.loads((tmp_path / "reports" / "tie.json").read_text())
    mismatches = report["cases"][0]["mismatches"]
    assert mismatches["by_cause"].keys() == {"rounding_tie"}
    made = with_plugin("repro", "reports/tie.json", "bits/momentum")
    assert made.code == 0, made.err
    script = tmp_path / "repro" / "tie-bits-momentum" / "repro.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1, done.stderr
    assert "subject" in done.stdout


def test_the_broken_subject_fails_both_suites(cli: Cli, tmp_path: Path) -> None:
    # Every code is within one of the right one: only what is unexplained gives it away.
    broken = CHECKOUT / "tests" / "subjects" / "broken.py"
    ran = cli("run", "quant", "ecc", "--subject", f"{broken}:Broken", "--out", str(tmp_path))
    assert ran.code == 1
    for suite in ("quant", "ecc"):
        report = read(tmp_path / f"{suite}.json")
        failed = [case for case in report.cases if case.status is Status.FAIL]
        assert failed
        for case in failed:
            assert case.mismatches
            assert case.mismatches.by_cause["unexplained"] > 0
            assert case.mismatches.worst[0].cause == "unexplained"


# --- What a digest is of ----------------------------------------------------------------------


def test_the_digest_is_of_what_a_file_imports_from_beside_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside.py").write_text("import flashcheck_test_helper\n" + RIGHT)
    helper = tmp_path / "flashcheck_test_helper.py"

    def digest(content: str) -> str:
        helper.write_text(content)
        subject, _ = registry.load(f"{tmp_path / 'beside.py'}:Right", "auto")
        made = subject.source_sha256
        assert isinstance(made, str)
        return made

    digests = [digest(content) for content in ("X = 1\n", "X = 2\n", "X = 1\n")]
    (tmp_path / "not_imported.py").write_text("X = 1\n")
    assert digest("X = 1\n") == digests[0] == digests[2] != digests[1]


def test_the_digest_of_a_package_is_of_the_modules_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "flashcheck_test_package"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "deep/__init__.py", "unused.py"):
        (package / name).touch()
    (package / "kernels.py").write_text("X = 1\n")
    (package / "deep" / "subject.py").write_text("from ..kernels import X\n" + RIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    factory = importlib.import_module("flashcheck_test_package.deep.subject").Right
    first = registry._source_digest(factory)
    (package / "unused.py").write_text("X = 2\n")
    assert registry._source_digest(factory) == first
    (package / "kernels.py").write_text("X = 2\n")
    assert registry._source_digest(factory) not in (first, None)


def test_what_is_installed_beside_a_subject_is_not_walked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version says what that is, and torch has thousands of files."""
    (tmp_path / "flashcheck_test_installed").mkdir()
    installed = tmp_path / "flashcheck_test_installed" / "__init__.py"
    module = tmp_path / "flashcheck_test_single.py"
    (tmp_path / "flashcheck_test_packaged").mkdir()
    packaged = tmp_path / "flashcheck_test_packaged" / "__init__.py"
    installed.write_text("X = 1\n")
    for file in (module, packaged):
        file.write_text("import flashcheck_test_installed\n" + RIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_installed", lambda: {tmp_path.resolve()})
    for name in ("flashcheck_test_single", "flashcheck_test_packaged"):
        factory = importlib.import_module(name).Right
        installed.write_text("X = 1\n")
        first = registry._source_digest(factory)
        installed.write_text("X = 2\n")
        assert registry._source_digest(factory) == first is not None
