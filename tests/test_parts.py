"""Long runs: parts of an enumeration, killed and resumed, and spread over processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashcheck.errors import CheckerError, ExitCode, SubjectError, UnavailableError, WorkerError
from flashcheck.execution import worker
from flashcheck.execution.serial import Serial
from flashcheck.suites.exhaustive import suite as suites
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite, Extent
from flashcheck.suites.exhaustive.tally import Tally
from tests.conftest import TIMEOUT_S, Cli, Ran, strict_json
from tests.fakes import OnlyQuantizes, ReferenceSubject
from tests.test_journal import EVERY, figures
from tests.test_merge import Changes, Nan, Raises

Use = Callable[[object], None]

CHUNKS = 16


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small suite, and chunks of a few inputs."""
    (tmp_path / "every.yaml").write_text(EVERY)
    extent = Extent(part=1 << 8, chunk=1 << 8)
    monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))


def enumeration(*words: str, out: str = "r.json") -> list[str]:
    return ["run", "every.yaml", "--limit", "900", "--quiet", "--out", out, *words]


def error_line(ran: Ran, code: int) -> str:
    """The one line that an error is."""
    assert ran.code == code, ran
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("flashcheck: ")
    return lines[0]


# ---- Which part ----------------------------------------------------------------------------

EXHAUSTIVE = ("exhaustive", "--subject", "x.py:X")

BAD: list[tuple[tuple[str, ...], list[str]]] = [
    *(
        ((*EXHAUSTIVE, "--exponents", text), [f"--exponents {text}: ", "expected A:B or A:B:STEP"])
        for text in (
            "", "a", "5", "5:5", "9:3", "0:257", "0:10:0", "1:2:3:4", "-1:5", "٣:٤", "1:", ":5",
            ":", "0x1:5", "1.0:5", " 1:5", "1:5:", "256:257", "+1:5", "1_0:20", "²:5",
            f"0:{'9' * 5000}",
        )
    ),
    *(((*EXHAUSTIVE, f"--limit={text}"), [f"--limit {text}: must be 1 or more"]) for text in
      ("0", "-5")),
    *(
        ((*EXHAUSTIVE, "--shard", text), [f"--shard {text}: ", "expected I/N with 1 <= I <= N"])
        for text in (
            "0/3", "4/3", "1/0", "x", "1", "1/2/3", "", "/", "1/", "/2", "-1/2", "1/-2", "١/٢",
            "1 /2", "1.0/2", "0/0", f"1/{'9' * 5000}",
        )
    ),
    *(((*EXHAUSTIVE, f"--jobs={text}"), [f"--jobs {text}: must be 1 or more"]) for text in
      ("0", "-1")),
    ((*EXHAUSTIVE, "--jobs", "2", "--executor", "ray"), ["--jobs: ", "leave it out"]),
    ((*EXHAUSTIVE, "--address", "127.0.0.1:6379"), ["--address: ", "add --executor ray"]),
    ((*EXHAUSTIVE, "--address", ""), ["--address: ", "add --executor ray"]),
    ((*EXHAUSTIVE, "--executor", "foo"), ["--executor foo: unknown", "known: local, ray"]),
    ((*EXHAUSTIVE, "--executor", ""), ["--executor ''", "local", "ray"]),
    ((*EXHAUSTIVE, "--executor", "rai"), ["--executor rai", "did you mean 'ray'?"]),
    ((*EXHAUSTIVE, "--spec", "momentun"), ["--spec momentun", "'momentum'"]),
    ((*EXHAUSTIVE, "--battery", "normal"), ["--battery normal: unknown here"]),
    *(
        ((suite, *words), [f"{words[0]}: suite '{first}' ", "exhaustive only"])
        for suite, first in (("quant", "quant"), ("all", "ecc"))
        for words in (
            ("--limit", "5"), ("--exponents", "1:5"), ("--shard", "1/2"), ("--jobs", "2"),
            ("--resume",), ("--executor", "ray"),
        )
    ),
    (("quant", "exhaustive", "--limit", "5"), ["--limit: suite 'quant' "]),
    (("exhaustive", "quant", "--jobs", "3"), ["--jobs: suite 'quant' "]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), BAD, ids=[" ".join(words)[:60] for words, _ in BAD])
def test_a_bad_option_is_one_line(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    line = error_line(cli("run", *words), 2)
    for word in said:
        assert word in line
    assert list(tmp_path.rglob("*.json*")) == []


@pytest.mark.parametrize("option", ["--limit", "--jobs"])
@pytest.mark.parametrize("text", ["x", "1.5", "", "1e3", pytest.param("9" * 5000, id="long")])
def test_what_is_no_number_is_refused(cli: Cli, tmp_path: Path, option: str, text: str) -> None:
    ran = cli("run", *EXHAUSTIVE, option, text)
    assert ran.code == 2
    assert ran.out == ""
    assert option in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.rglob("*.json*")) == []


def test_a_limit_of_one_compares_something(cli: Cli, use_subject: Use, small: None) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", "every.yaml", "--limit", "1", "--json", "--quiet")
    report = ran.json()
    assert report["summary"]["elements"] > 0
    assert ran.code == 0
    for case in report["cases"]:
        assert case["enumeration"]["covered"] == 1
        assert (case["status"] == "pass") == (case["numel"] == 1)
        assert case["status"] in ("pass", "unsupported")


@pytest.mark.parametrize(
    "words",
    [
        ("--exponents", "255:256", "--limit", "99"),
        ("--limit", "1", "--exponents", "255:256", "--spec", "bf16+int8"),
        ("--exponents", "200:201", "--limit", "9", "--spec", "momentum"),
    ],
)
def test_a_part_with_nothing_in_it_is_no_pass(
    cli: Cli, use_subject: Use, small: None, words: tuple[str, ...]
) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", "every.yaml", *words, "--json", "--quiet")
    report = ran.json()
    assert (ran.code, report["status"]) == (3, "nothing_compared")
    for case in report["cases"]:
        assert case["status"] == "unsupported"
        assert case["reason"] == "nothing of it is compared in this part"
        assert case["numel"] == 0


def test_a_case_with_nothing_in_it_is_no_pass_of_that_case(
    cli: Cli, use_subject: Use, small: None
) -> None:
    use_subject(ReferenceSubject())
    ran = cli("run", "every.yaml", "--exponents", "200:240", "--limit", "99", "--json", "--quiet")
    report = ran.json()
    assert (ran.code, report["status"]) == (0, "pass")
    assert {case["case"]: case["status"] for case in report["cases"]} == {
        "compute_ecc/bf16+int8": "pass",
        "reconstruct/bf16+int8": "pass",
        "dequantize/momentum": "unsupported",
        "quantize/momentum": "unsupported",
    }


# ---- Resumed in this process ---------------------------------------------------------------


class Stopper:
    """Notes which chunks are checked, and is interrupted at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checked: list[int] = []
        self.stop_at: int | None = None
        check = Serial.check

        def checked(serial: Serial, chunk: Any) -> Any:
            if chunk.number == self.stop_at:
                raise KeyboardInterrupt
            self.checked.append(chunk.number)
            return check(serial, chunk)

        monkeypatch.setattr(Serial, "check", checked)

    def stop(self, at: int | None) -> None:
        self.checked, self.stop_at = [], at


@pytest.fixture
def stopper(monkeypatch: pytest.MonkeyPatch) -> Stopper:
    return Stopper(monkeypatch)


def test_what_is_done_is_not_checked_again(
    cli: Cli, use_subject: Use, small: None, stopper: Stopper, tmp_path: Path
) -> None:
    use_subject(ReferenceSubject())
    assert cli(*enumeration(out="whole.json")).code == 0
    assert stopper.checked == list(range(CHUNKS))
    before = 0
    for at in (1, 2, 7, 15):
        stopper.stop(at)
        ran = cli(*enumeration("--resume"))
        assert ran.code == 130
        assert ran.err.splitlines()[-1].startswith("flashcheck: interrupted")
        assert stopper.checked == list(range(before, at))
        assert (tmp_path / "r.json.journal").exists()
        assert not (tmp_path / "r.json").exists()
        before = at
    stopper.stop(None)
    assert cli(*enumeration("--resume")).code == 0
    assert stopper.checked == [15]
    whole, resumed = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert figures(resumed) == figures(whole)
    assert not (tmp_path / "r.json.journal").exists()


def test_the_seconds_of_what_was_done_before_count(
    cli: Cli, use_subject: Use, small: None, stopper: Stopper, tmp_path: Path
) -> None:
    use_subject(ReferenceSubject())
    stopper.stop(CHUNKS - 1)
    assert cli(*enumeration("--resume")).code == 130
    stopper.stop(None)
    assert cli(*enumeration("--resume")).code == 0
    cases = strict_json((tmp_path / "r.json").read_text())["cases"]
    assert all(case["duration_s"] > 0 for case in cases)


def test_a_run_that_was_done_but_not_reported_checks_nothing(
    cli: Cli, use_subject: Use, small: None, stopper: Stopper, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from flashcheck.report import store

    use_subject(ReferenceSubject())

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", interrupted)
        assert cli(*enumeration("--resume")).code == 130
    assert (tmp_path / "r.json.journal").exists()
    stopper.stop(None)
    assert cli(*enumeration("--resume")).code == 0
    assert stopper.checked == []
    assert not (tmp_path / "r.json.journal").exists()


MISBEHAVE = {
    "gives NaN": (Nan(), 1),
    "changes its input": (Changes(), 1),
    "raises in one chunk": (Raises(3e38, "too large"), 4),
    "raises in several": (Raises(1.0, "the first was {}"), 4),
    "lacks methods": (OnlyQuantizes(), 0),
}


@pytest.mark.parametrize("subject", MISBEHAVE)
def test_the_verdict_is_that_of_an_undisturbed_run(
    cli: Cli, use_subject: Use, small: None, stopper: Stopper, tmp_path: Path, subject: str
) -> None:
    made, code = MISBEHAVE[subject]
    use_subject(made)
    assert cli(*enumeration(out="whole.json")).code == code
    for at in (5, 10, 14):
        stopper.stop(at)
        assert cli(*enumeration("--resume")).code in (130, code)
    stopper.stop(None)
    assert cli(*enumeration("--resume")).code == code
    whole, resumed = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert figures(resumed) == figures(whole)


def test_a_shard_is_resumed(
    cli: Cli, use_subject: Use, small: None, stopper: Stopper, tmp_path: Path
) -> None:
    use_subject(ReferenceSubject())
    assert cli(*enumeration("--shard", "2/3", out="whole.json")).code == 0
    assert stopper.checked == [1, 4, 7, 10, 13]
    stopper.stop(7)
    assert cli(*enumeration("--shard", "2/3", "--resume")).code == 130
    stopper.stop(None)
    assert cli(*enumeration("--shard", "2/3", "--resume")).code == 0
    assert stopper.checked == [7, 10, 13]
    whole, resumed = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert figures(resumed) == figures(whole)


# ---- What a worker answers -----------------------------------------------------------------


def order(subject: str = "nobody.py:Nobody") -> str:
    import yaml

    return worker.Order(
        config=yaml.safe_load(EVERY), selection={"limit": 900}, subject=subject, origin=subject,
        backend="auto", every_configuration=False, seed=1,
    ).model_dump_json()  # fmt: skip


CHUNK = '{"number": 0, "case": "quantize/momentum", "slices": [], "sampled": false}'


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckerError("a fault of ours"), ExitCode.ERROR),
        (UnavailableError("it is not here"), ExitCode.UNAVAILABLE),
    ],
)
def test_the_error_of_a_worker_comes_with_its_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def raises(_: str) -> Any:
        raise error

    monkeypatch.setattr(worker, "_made", raises)
    answer = worker.check(order(), CHUNK)
    with pytest.raises(WorkerError) as caught:
        worker.outcome_of(answer, "anybody")
    assert str(caught.value) == str(error)
    assert caught.value.exit_code == code


def test_the_answer_of_another_subject_is_not_taken() -> None:
    answers = [
        json.dumps({"identity": "mine", "tally": Tally(left=[1]).model_dump(mode="json")}),
        json.dumps({"identity": "mine", "subject_error": "it raised"}),
    ]
    assert worker.outcome_of(answers[0], "mine") == Tally(left=[1])
    outcome = worker.outcome_of(answers[1], "mine")
    assert isinstance(outcome, SubjectError)
    assert str(outcome) == "it raised"
    for answer in answers:
        with pytest.raises(UnavailableError, match="another subject or environment"):
            worker.outcome_of(answer, "another")


# ---- Several processes ---------------------------------------------------------------------

# The reference, which notes its calls in files of a folder; what it does beside that is told by
# TEST_DOES and happens in the processes of --jobs only.
SUBJECT = """
import hashlib, multiprocessing, os, signal, time
from pathlib import Path
import torch
from tests.fakes import ReferenceSubject

DOES = os.environ.get("TEST_DOES", "")
IN_WORKER = multiprocessing.parent_process() is not None
(Path(os.environ["TEST_LOG"]) / f"pid{os.getpid()}").touch()

if DOES == "cannot" and IN_WORKER:
    raise RuntimeError("not in a worker")
if DOES == "checker" and IN_WORKER:
    from flashcheck.errors import CheckerError
    from flashcheck.suites.exhaustive.suite import ExhaustiveSuite

    def check(*_, **__):
        raise CheckerError("the digest is another")

    ExhaustiveSuite.check = check


class Noted:
    version = "1.0"

    def __getattr__(self, method):
        right = getattr(ReferenceSubject(), method)

        def noted(*tensors, **options):
            bits = [bytes(t.contiguous().view(torch.uint8).numpy()) for t in tensors]
            digest = hashlib.sha256(method.encode() + b"".join(bits)).hexdigest()[:16]
            with open(Path(os.environ["TEST_LOG"]) / f"calls{os.getpid()}", "a") as log:
                log.write(f"{digest}\\n")
            time.sleep(float(os.environ.get("TEST_NAP", "0")))
            if DOES == "raises" and method == "compute_ecc" and tensors[0].abs().max() >= 1:
                raise RuntimeError(f"the first was {tensors[0].reshape(-1)[0].item()}")
            if DOES == "dies" and method == "dequantize" and IN_WORKER:
                os.kill(os.getpid(), signal.SIGKILL)
            return right(*tensors, **options)

        if method.startswith("_") or method in ("name", "backend", "source_sha256"):
            raise AttributeError(method)
        return noted
"""

# Small chunks, in a process of its own.
DRIVER = f"""
import sys
del sys.argv[1:3]
from flashcheck.suites.exhaustive import suite
suite.EXTENTS.update(dict.fromkeys(suite.EXTENTS, suite.Extent(part={1 << 8}, chunk={1 << 8})))
from flashcheck.cli import main
main()
"""

NOTED = ("--subject", "noted.py:Noted")


class Log:
    """What a subject did, in this process or others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def calls(self) -> Counter[str]:
        return Counter(
            line for path in self.folder.glob("calls*") for line in path.read_text().splitlines()
        )

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def alive(self) -> list[int]:
        """The processes that loaded the subject, this one excepted, and are still there."""
        pids = [int(path.name[3:]) for path in self.folder.glob("pid*")]
        return [pid for pid in pids if pid != os.getpid() and _is_running(pid)]

    def all_end(self, seconds: float = 10) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive()

    def end(self) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def log(small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    (tmp_path / "noted.py").write_text(SUBJECT)
    log = Log(tmp_path / "log")
    monkeypatch.setenv("TEST_LOG", str(log.folder))
    yield log
    log.end()


@pytest.fixture
def calls_of(cli: Cli, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the subject is asked for each chunk; the report of that run is ``whole.json``."""
    found: dict[int, Counter[str]] = {}
    with monkeypatch.context() as patched:
        check = Serial.check

        def checked(serial: Serial, chunk: Any) -> Any:
            before = log.calls()
            outcome = check(serial, chunk)
            found[chunk.number] = log.calls() - before
            return outcome

        patched.setattr(Serial, "check", checked)
        assert cli(*enumeration(*NOTED, out="whole.json")).code == 0
    assert len(found) == CHUNKS
    assert all(found.values())
    log.clear()
    return found


def test_several_processes_come_to_the_same_report(
    cli: Cli, calls_of: Any, log: Log, tmp_path: Path
) -> None:
    ran = cli(*enumeration(*NOTED, "--jobs", "2"))
    assert (ran.code, ran.err) == (0, "")
    whole, spread = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert figures(spread) == figures(whole)
    assert log.calls() == sum(calls_of.values(), Counter())
    assert not (log.folder / f"calls{os.getpid()}").exists()
    assert log.all_end()


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("cannot", 3, "--subject noted.py:Noted: cannot be imported: RuntimeError: not in a work"),
        ("checker", 4, "the digest is another"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_one_line(
    cli: Cli, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    does: str, code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("TEST_DOES", does)
    line = error_line(cli(*enumeration(*NOTED, "--jobs", "2")), code)
    assert said in line.replace(str(tmp_path) + "/", "")
    assert not (tmp_path / "r.json").exists()
    assert log.all_end()


def test_a_subject_that_raises_in_a_worker_is_the_same_error(
    cli: Cli, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_DOES", "raises")
    assert cli(*enumeration(*NOTED, out="whole.json")).code == 4
    ran = cli(*enumeration(*NOTED, "--jobs", "2"))
    assert (ran.code, ran.err) == (4, "")
    whole, spread = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert whole["cases"][0]["status"] == "error"
    assert "the first was " in whole["cases"][0]["reason"]
    assert figures(spread) == figures(whole)


def test_a_killed_worker_is_one_line_and_the_run_can_be_resumed(
    cli: Cli, calls_of: Any, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TEST_DOES", "dies")
        line = error_line(cli(*enumeration(*NOTED, "--jobs", "2", "--resume")), 3)
    assert "a process of --jobs was killed" in line
    assert "--resume" in line
    assert not (tmp_path / "r.json").exists()
    assert log.all_end()
    done = _done(tmp_path)
    assert done
    log.clear()
    assert cli(*enumeration(*NOTED, "--resume")).code == 0
    assert log.calls() == sum((calls_of[n] for n in calls_of if n not in done), Counter())
    whole, resumed = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert figures(resumed) == figures(whole)


def _done(folder: Path) -> set[int]:
    """The chunks of a journal's whole lines."""
    lines = (folder / "r.json.journal").read_text().splitlines(keepends=True)
    return {
        json.loads(line.partition(" ")[2])["chunk"] for line in lines[1:] if line.endswith("\n")
    }


# ---- Killed --------------------------------------------------------------------------------


class Run:
    """The command line in a process group of its own."""

    def __init__(self, start: Callable[..., Any], folder: Path, *words: str, nap: float) -> None:
        self.journal = folder / "r.json.journal"
        self.errors = folder / "stderr"
        with self.errors.open("w") as stderr:
            self.process: subprocess.Popen[str] = start(
                *enumeration(*NOTED, "--resume", *words),
                python=("-c", DRIVER),
                env={"TEST_NAP": str(nap)},
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def lines(self) -> int:
        return self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0

    def until(self, lines: int) -> None:
        """Wait until the journal has so many."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.lines() < lines:
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_killed_again_and_again_it_comes_to_the_same_report(
    cli: Cli, calls_of: Any, log: Log, subprocess_cli: Any, tmp_path: Path, jobs: str
) -> None:
    chance = random.Random(int(jobs))
    lines = 1
    for _ in range(3):
        done = _done(tmp_path) if lines > 1 else set()
        run = Run(subprocess_cli, tmp_path, "--jobs", jobs, nap=0.04)
        run.until(lines + 1)
        time.sleep(chance.uniform(0, 0.3))
        run.kill()
        assert log.all_end(), "processes outlive a run that was killed"
        assert not (tmp_path / "r.json").exists()
        assert _done(tmp_path) > done
        again = log.calls() & sum((calls_of[n] for n in done), Counter())
        assert not again, "a chunk was checked although it was done"
        log.clear()
        lines = run.lines()
    done = _done(tmp_path)
    assert 3 <= len(done) < CHUNKS
    ran = cli(*enumeration(*NOTED, "--resume"))
    assert ran.code == 0
    assert ran.err.endswith(f"flashcheck: r.json.journal: {len(done)} chunks are done already\n")
    assert log.calls() == sum((calls_of[n] for n in calls_of if n not in done), Counter())
    whole, resumed = (strict_json((tmp_path / n).read_text()) for n in ("whole.json", "r.json"))
    assert figures(resumed) == figures(whole)
    assert not (tmp_path / "r.json.journal").exists()
    assert [p.name for p in tmp_path.glob(".r.json*")] == []


@pytest.mark.parametrize("early", [False, True], ids=["in the middle", "as the workers start"])
def test_interrupted_it_keeps_what_is_done(
    log: Log, subprocess_cli: Any, tmp_path: Path, early: bool
) -> None:
    run = Run(subprocess_cli, tmp_path, "--jobs", "2", nap=0.04)
    run.until(1 if early else 3)
    if early:
        time.sleep(0.5)
    before = run.journal.read_bytes()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.wait(TIMEOUT_S) == 130
    assert run.errors.read_text().splitlines() == [
        "flashcheck: interrupted; nothing half-written was left behind"
    ]
    assert run.journal.read_bytes().startswith(before)
    assert not (tmp_path / "r.json").exists()
    assert log.all_end()


def test_every_chunk_has_a_number_of_its_own() -> None:
    import yaml

    from flashcheck.config import ExhaustiveConfig, parse
    from flashcheck.report.models import Selection, Shard

    config = parse(yaml.safe_load(EVERY))
    assert isinstance(config, ExhaustiveConfig)
    methods = ["quantize", "dequantize", "compute_ecc", "reconstruct"]

    def numbers(shard: Shard | None) -> list[int]:
        suite = ExhaustiveSuite(config, Selection(limit=40_000_000, shard=shard))
        return [chunk.number for chunk in suite.chunks("native", methods)]

    whole = numbers(None)
    assert whole == list(range(len(whole)))
    assert len(whole) > 4
    for count in (2, 3):
        shards = [numbers(Shard(index=index, count=count)) for index in range(1, count + 1)]
        assert sorted(number for shard in shards for number in shard) == whole
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
