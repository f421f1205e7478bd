"""The journal of a long run: what a kill, a full disk or a stranger does to it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashcheck import parts
from flashcheck.config import ExhaustiveConfig, parse
from flashcheck.errors import UnavailableError, UsageError
from flashcheck.execution.journal import Journal
from flashcheck.execution.serial import Serial
from flashcheck.report.models import Description, Environment, Selection, SubjectRecord
from flashcheck.suites.exhaustive import suite as suites
from flashcheck.suites.exhaustive.suite import ExhaustiveSuite, Extent
from flashcheck.suites.exhaustive.tally import BucketTally, Tally
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli, Ran
from tests.fakes import ReferenceSubject, changed

EVERY = """\
suite: every
kind: exhaustive
description: two functions of each kind
group_size: 32
formats:
  - {narrow: bf16, ecc: int8}
specs:
  - {name: momentum, signed: true, sqrt: false, softsign: true}
gates:
  - metric: code_beyond_1
    op: "=="
    limit: 0
    reason: two correct roundings of one real number are at most one code apart
"""

KEY = {"suite": "every", "part": "all of it"}

LINES = 6


def tally(number: int) -> Tally:
    """A tally that is like no other."""
    return Tally(
        buckets={number: BucketTally(n=number, counts={"exact": number}, digest=1 << 60)},
        left=[number, 2],
        totals={"groups": number},
        ranges={"subject": {-number: (-(1 << 31), number)}},
        undefined={"infinite": {"kept": number}},
        seconds=number / 7,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "every.json.journal"


@pytest.fixture
def content(path: Path) -> bytes:
    """A whole journal: its first line, and one for each of some chunks."""
    journal = Journal(path, KEY)
    for number in range(LINES):
        journal.add(number, tally(number))
    journal.close()
    return path.read_bytes()


def opened(path: Path) -> tuple[dict[int, Tally], int]:
    journal = Journal(path, KEY)
    journal.close()
    return journal.done, journal.dropped


def first(number: int) -> dict[int, Tally]:
    """What the first lines are of."""
    return {n: tally(n) for n in range(number)}


# ---- What is kept --------------------------------------------------------------------------


@pytest.mark.usefixtures("content")
def test_what_is_done_comes_back(path: Path) -> None:
    assert opened(path) == (first(LINES), 0)


def test_it_is_only_added_to(path: Path) -> None:
    before = b""
    for number in range(LINES):
        journal = Journal(path, KEY)
        opening = path.read_bytes()
        assert opening.startswith(before)
        journal.add(number, tally(number))
        journal.close()
        after = path.read_bytes()
        assert after.startswith(opening)
        assert after.count(b"\n") == number + 2
        before = after


def test_what_is_added_is_on_the_disk_before_the_next_chunk(path: Path) -> None:
    journal = Journal(path, KEY)
    for number in range(3):
        journal.add(number, tally(number))
        assert path.read_bytes().count(b"\n") == number + 2
    journal.close()


def test_removing_it_leaves_nothing(path: Path, content: bytes) -> None:
    Journal(path, KEY).remove()
    assert content
    assert list(path.parent.iterdir()) == []


# ---- Torn and damaged ----------------------------------------------------------------------


def starts(content: bytes) -> list[int]:
    """Where each line starts, and where the last ends."""
    return [0, *(i + 1 for i, byte in enumerate(content) if byte == ord("\n"))]


def test_torn_anywhere_it_gives_the_whole_lines_before(path: Path, content: bytes) -> None:
    at = starts(content)
    everywhere = range(at[-3], len(content) + 1)
    sample = random.Random(1).sample(range(at[1], at[-3]), 60)
    for cut in [*everywhere, *sample, *at[1:]]:
        path.write_bytes(content[:cut])
        whole = max(start for start in at if start <= cut)
        assert opened(path) == (first(at.index(whole) - 1), cut - whole)
        assert path.read_bytes() == content[:whole]


def test_what_follows_a_torn_line_is_whole_again(path: Path, content: bytes) -> None:
    at = starts(content)
    for cut in (at[-2] + 1, at[-1] - 1):
        path.write_bytes(content[:cut])
        journal = Journal(path, KEY)
        journal.add(LINES - 1, tally(LINES - 1))
        journal.close()
        assert path.read_bytes() == content
        assert opened(path) == (first(LINES), 0)


def test_torn_in_its_first_line_it_is_begun_anew(path: Path, content: bytes) -> None:
    """As a kill leaves it, or a full disk; the line has to be the one of this run."""
    end = starts(content)[1]
    for cut in range(1, end):
        path.write_bytes(content[:cut])
        assert opened(path) == ({}, cut)
        assert path.read_bytes() == content[:end]


def test_another_first_line_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    for cut in range(1, starts(content)[1]):
        damaged = bytearray(content[:cut])
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="is no journal, or its first line is damaged; remov"):
            Journal(path, KEY)
        assert path.read_bytes() == damaged


def test_a_flipped_bit_drops_its_line_and_all_after_it(path: Path, content: bytes) -> None:
    at = starts(content)
    chance = random.Random(2)
    for line in (1, 2, LINES - 1, LINES):
        places = [at[line], at[line] + 15, at[line] + 16, at[line + 1] - 2, at[line + 1] - 1]
        for place in [*places, *chance.sample(range(at[line], at[line + 1]), 20)]:
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            assert opened(path) == (first(line - 1), len(content) - at[line])
            assert path.read_bytes() == content[: at[line]]


def test_a_line_taken_out_of_the_middle_is_only_not_done(path: Path, content: bytes) -> None:
    at = starts(content)
    path.write_bytes(content[: at[2]] + content[at[3] :])
    done, dropped = opened(path)
    assert (sorted(done), dropped) == ([0, 2, 3, 4, 5], 0)


def test_lines_of_another_journal_are_dropped(path: Path, content: bytes) -> None:
    """A line is bound to the first: whole as it is, it says nothing of another run."""
    other = path.with_name("other.journal")
    journal = Journal(other, {**KEY, "part": "another"})
    for number in range(LINES):
        journal.add(number, tally(number))
    journal.close()
    theirs = other.read_bytes()
    header = content[: starts(content)[1]]
    path.write_bytes(header + theirs[starts(theirs)[1] :])
    done, dropped = opened(path)
    assert (done, dropped) == ({}, len(theirs) - starts(theirs)[1])
    assert path.read_bytes() == header


def test_a_chunk_that_was_there_before_is_dropped_with_what_follows(
    path: Path, content: bytes
) -> None:
    at = starts(content)
    again = content[at[3] : at[4]]
    path.write_bytes(content[: at[5]] + again + content[at[5] :])
    done, dropped = opened(path)
    assert (done, dropped) == (first(4), len(again) + len(content) - at[5])


def test_garbage_at_its_end_is_cut(path: Path, content: bytes) -> None:
    for garbage in (b"\0" * 512, b"\n", b"\r\n", b"0" * 16 + b" {}\n", content[5:-1]):
        path.write_bytes(content + garbage)
        done, dropped = opened(path)
        assert done == first(LINES)
        # The rest of a copy of itself has whole lines after its first, which is not.
        assert dropped == len(garbage)
        assert path.read_bytes() == content


def test_a_whole_journal_at_its_end_is_refused_or_dropped(path: Path, content: bytes) -> None:
    path.write_bytes(content + content)
    try:
        done, dropped = opened(path)
    except UsageError as error:
        assert "remove it" in str(error)  # noqa: PT017 - either is right
        assert path.read_bytes() == content + content
    else:
        assert (done, dropped) == (first(LINES), len(content))


FOREIGN = [
    b'{"schema_version": 1}\n',
    b"a text\n",
    b"\0" * 4096,
    b"\xff\xfe",
    b"0123456789abcdef {}\n",
    b"chunk,tally\n1,2\n",
]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(path: Path, foreign: bytes) -> None:
    path.write_bytes(foreign)
    with pytest.raises(UsageError, match=r"every\.json\.journal: is no journal"):
        Journal(path, KEY)
    assert path.read_bytes() == foreign


def test_an_empty_file_becomes_a_journal(path: Path, content: bytes) -> None:
    path.write_bytes(b"")
    assert opened(path) == ({}, 0)
    assert path.read_bytes() == content[: starts(content)[1]]


@pytest.mark.parametrize("place", ["folder", "absent/x.journal"])
def test_where_no_file_can_be_opened(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnavailableError, match="cannot be written"):
        Journal(tmp_path / place, KEY)


# ---- Of something else ---------------------------------------------------------------------


def _described() -> Description:
    return Description(
        environment=Environment(
            python="3.12", platform="Linux", cpu="a processor", torch="2.11", triton="3.6",
            numpy="2.0", backend="native", device="cpu", compute_capability=None, driver=None,
            fp_fusion=None, shims=[],
        ),
        subject=SubjectRecord(name="fake", version="1.0", source_sha256="0" * 64),
        methods=["quantize"],
        prediction=None,
    )  # fmt: skip


def _suite(text: str = EVERY, **selection: Any) -> ExhaustiveSuite:
    import yaml

    config = parse(yaml.safe_load(text))
    assert isinstance(config, ExhaustiveConfig)
    return ExhaustiveSuite(config, Selection(**selection))


def _key(
    suite: ExhaustiveSuite | None = None,
    *,
    environment: dict[str, Any] | None = None,
    subject: dict[str, Any] | None = None,
    every: bool = False,
) -> dict[str, str]:
    described = _described()
    described = described.model_copy(
        update={
            "environment": described.environment.model_copy(update=environment or {}),
            "subject": described.subject.model_copy(update=subject or {}),
        }
    )
    return parts.journal_key(suite or _suite(), described, every_configuration=every)


# What is another, the names that may be said to differ, and the key of the run that it is.
OTHERS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "suite": ("configuration", lambda: _key(_suite(changed(EVERY, "suite: every", "suite: x")))),
    "gate": ("configuration", lambda: _key(_suite(changed(EVERY, "limit: 0", "limit: 1")))),
    "group size": ("configuration", lambda: _key(_suite(changed(EVERY, "size: 32", "size: 64")))),
    "limit": ("part", lambda: _key(_suite(limit=5))),
    "exponents": ("part", lambda: _key(_suite(exponents={"start": 1, "stop": 2}))),
    "spec": ("part", lambda: _key(_suite(spec=["momentum"]))),
    "shard": ("part", lambda: _key(_suite(shard={"index": 1, "count": 2}))),
    "name": ("subject", lambda: _key(subject={"name": "other"})),
    "version": ("subject", lambda: _key(subject={"version": "1.1"})),
    "origin": ("subject", lambda: _key(subject={"origin": "plugin"})),
    "source": ("source of the subject", lambda: _key(subject={"source_sha256": "1" * 64})),
    "no source": ("source of the subject", lambda: _key(subject={"source_sha256": None})),
    "launch": ("launch configuration", lambda: _key(subject={"configurations": {"k": "warps 4"}})),
    "autotune": ("--autotune", lambda: _key(every=True)),
    "backend": ("backend", lambda: _key(environment={"backend": "interpreter"})),
    "device": ("device", lambda: _key(environment={"device": "a GPU"})),
    "torch": ("torch", lambda: _key(environment={"torch": "2.12"})),
    "triton": ("Triton", lambda: _key(environment={"triton": None})),
    "fusion": ("fusion", lambda: _key(environment={"fp_fusion": False})),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_has_another_key(what: str) -> None:
    name, other = OTHERS[what]
    mine, theirs = _key(), other()
    assert mine.keys() == theirs.keys()
    differing = {some for some in mine if mine[some] != theirs[some]}
    assert differing == ({name, "suite"} if what == "suite" else {name})


@pytest.mark.parametrize(
    ("attribute", "value", "name"),
    [
        ("__version__", "99.0", "flashcheck"),
        ("_own_source", lambda: "0" * 64, "source of flashcheck and its reference"),
    ],
)
def test_another_flashcheck_has_another_key(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, name: str
) -> None:
    mine = _key()
    monkeypatch.setattr(parts, attribute, value)
    theirs = _key()
    assert {some for some in mine if mine[some] != theirs[some]} == {name}


def test_the_source_of_every_module_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("", "reference"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "some.py").write_text("x = 1\n")
    monkeypatch.setattr(parts, "__file__", str(tmp_path / "parts.py"))
    seen = {parts._own_source()}
    for edit in ("x = 2\n", "x = 1 \n"):
        (tmp_path / "reference" / "some.py").write_text(edit)
        seen.add(parts._own_source())
    (tmp_path / "reference" / "some.py").rename(tmp_path / "reference" / "other.py")
    seen.add(parts._own_source())
    assert len(seen) == 4


def test_a_second_key_is_as_the_first() -> None:
    assert _key() == _key()


@pytest.mark.parametrize("name", _key())
def test_a_journal_with_another_key_is_refused_and_left_alone(path: Path, name: str) -> None:
    journal = Journal(path, _key())
    journal.add(0, tally(0))
    journal.close()
    before = path.read_bytes()
    with pytest.raises(UsageError) as refused:
        Journal(path, _key() | {name: "something else"})
    line = str(refused.value)
    assert line.startswith(f"{path}: is of a run with another {name} (")
    assert line.endswith(", now something else); remove it, or name another --out")
    assert "\n" not in line
    assert len(line) < 300 + len(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", _key())
def test_a_journal_that_lacks_a_key_or_has_one_more_is_refused(path: Path, name: str) -> None:
    less = _key()
    del less[name]
    for stored, mine in ((less, _key()), (_key(), less)):
        Journal(path, stored).close()
        with pytest.raises(UsageError, match=f"is of a run with another {name} "):
            Journal(path, mine)
        path.unlink()


# ---- One run at a time ---------------------------------------------------------------------

HOLDS = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX);"


def test_it_is_refused_while_another_process_has_it(path: Path, content: bytes) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS + "print('held', flush=True); sys.stdin.read()", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(UsageError, match=r"another run is writing it; wait for it, or name anot"):
        Journal(path, KEY)
    other.communicate(timeout=TIMEOUT_S)
    assert path.read_bytes() == content
    assert opened(path)[0] == first(LINES)


def test_another_process_is_refused_while_this_has_it(path: Path) -> None:
    asks = HOLDS.replace("LOCK_EX", "LOCK_EX | fcntl.LOCK_NB")
    journal = Journal(path, KEY)
    for expected in (1, 0):
        ran = subprocess.run([sys.executable, "-c", asks, path], capture_output=True, check=False)
        assert ran.returncode == expected, ran
        journal.close()


# ---- On the command line -------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few inputs."""
    extent = Extent(part=1 << 8, chunk=1 << 8)
    monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))


Enumerate = Callable[..., Ran]


@pytest.fixture
def enumerate_(
    cli: Cli, use_subject: Callable[[object], None], small: None, tmp_path: Path
) -> Enumerate:
    """Run a small enumeration of the reference, to be resumed."""
    (tmp_path / "every.yaml").write_text(EVERY)
    use_subject(ReferenceSubject())

    def run(*words: str) -> Ran:
        return cli(
            "run", "every.yaml", "--limit", "900", "--resume", "--quiet", "--out", "r.json", *words
        )

    return run


@pytest.fixture
def stopped(enumerate_: Enumerate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The journal of a run that was interrupted at its sixth chunk."""
    check = Serial.check

    def checked(self: Serial, chunk: Any) -> Any:
        if chunk.number == 5:
            raise KeyboardInterrupt
        return check(self, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(Serial, "check", checked)
        ran = enumerate_()
    assert ran.code == 130
    assert ran.err == "flashcheck: interrupted; nothing half-written was left behind\n"
    path = tmp_path / "r.json.journal"
    assert path.read_bytes().count(b"\n") == 6
    assert not (tmp_path / "r.json").exists()
    return path


def test_it_says_what_is_done_already(enumerate_: Enumerate, stopped: Path) -> None:
    ran = enumerate_()
    assert ran.code == 0
    assert ran.err == "flashcheck: r.json.journal: 5 chunks are done already\n"
    assert not stopped.exists()


def test_it_says_what_is_dropped(enumerate_: Enumerate, stopped: Path) -> None:
    content = stopped.read_bytes()
    at = starts(content)
    damaged = bytearray(content)
    damaged[at[3] + 40] ^= 1
    stopped.write_bytes(damaged)
    ran = enumerate_()
    assert ran.code == 0
    dropped = f"{len(content) - at[3]:,}"
    assert ran.err.splitlines() == [
        f"flashcheck: r.json.journal: its last {dropped} bytes are not whole, as a kill leaves "
        "them; they are dropped",
        "flashcheck: r.json.journal: 2 chunks are done already",
    ]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--limit", "901"], "part"),
        (["--exponents", "1:200"], "part"),
        (["--shard", "1/2"], "part"),
        (["--spec", "momentum"], "part"),
        (["--autotune", "all"], "--autotune"),
    ],
)
def test_options_of_another_run_are_refused(
    enumerate_: Enumerate, stopped: Path, words: list[str], name: str
) -> None:
    refused(enumerate_(*words), stopped, name)


def refused(ran: Ran, path: Path, name: str) -> None:
    """One line that names what differs; the journal is as it was, and there is no report."""
    assert ran.code == 2, ran
    assert len(ran.err.splitlines()) == 1, ran.err
    assert f"r.json.journal: is of a run with another {name} (" in ran.err
    assert path.read_bytes().count(b"\n") == 6
    assert not path.with_name("r.json").exists()


@pytest.mark.parametrize("attribute", ["name", "version", "source_sha256"])
def test_another_subject_is_refused(
    enumerate_: Enumerate, use_subject: Callable[[object], None], stopped: Path, attribute: str
) -> None:
    other = ReferenceSubject()
    setattr(other, attribute, "1" * 64)
    use_subject(other)
    name = "source of the subject" if attribute == "source_sha256" else "subject"
    refused(enumerate_(), stopped, name)


def test_another_suite_of_that_name_is_refused(
    enumerate_: Enumerate, stopped: Path, tmp_path: Path
) -> None:
    (tmp_path / "every.yaml").write_text(changed(EVERY, "limit: 0", "limit: 1"))
    refused(enumerate_(), stopped, "configuration")


def test_without_resume_it_is_neither_read_nor_touched(
    cli: Cli, stopped: Path, tmp_path: Path
) -> None:
    before = stopped.read_bytes()
    assert cli("run", "every.yaml", "--limit", "901", "--quiet", "--out", "r.json").code == 0
    assert stopped.read_bytes() == before
    assert (tmp_path / "r.json").exists()


def test_a_foreign_file_in_its_place_is_kept(enumerate_: Enumerate, tmp_path: Path) -> None:
    (tmp_path / "r.json.journal").write_text("precious\n")
    ran = enumerate_()
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "is no journal" in ran.err
    assert (tmp_path / "r.json.journal").read_text() == "precious\n"
    assert [p.name for p in tmp_path.glob("r.json*")] == ["r.json.journal"]


# ---- A full disk ---------------------------------------------------------------------------

# Runs the command once for each size that a file may grow to, then once more with room.
FULL = """
import contextlib, io, json, resource, signal, sys
from pathlib import Path
from flashcheck.cli import main
from flashcheck.subjects import registry
from flashcheck.suites.exhaustive import suite
from tests.fakes import ReferenceSubject

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
extent = suite.Extent(part=1 << 8, chunk=1 << 8)
suite.EXTENTS.update(dict.fromkeys(suite.EXTENTS, extent))
registry.load = lambda *_, **__: (ReferenceSubject(), [])
words = "flashcheck run every.yaml --limit 900 --resume --quiet --out r.json"
journal, report = Path("r.json.journal"), Path("r.json")


def run(most):
    sys.argv = words.split()
    code, err = 0, io.StringIO()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most is None else most, hard))
    with contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    kept = journal.read_bytes() if journal.exists() else b""
    made = json.loads(report.read_text()) if report.exists() else None
    return {"code": int(code), "err": err.getvalue(), "kept": kept.decode(), "report": made}


told = []
for most in map(int, sys.argv[1:]):
    report.unlink(missing_ok=True)
    journal.unlink(missing_ok=True)
    told.append({"full": run(most), "kept": run(0), "room": run(None)})
print(json.dumps(told))
"""


def figures(report: Any) -> Any:
    """A report but for when it was made, how long it took and by which words."""
    assert report is not None
    kept = {k: v for k, v in report.items() if k not in ("started_at", "duration_s", "command")}
    return kept | {
        "cases": [{k: v for k, v in c.items() if k != "duration_s"} for c in report["cases"]]
    }


# In the first line, at its end, in some line after it; the last has no room for the report alone.
SIZES = [0, 1, 17, 500, 561, 5_000, 40_000, 105_000, 200_000]


@pytest.fixture(scope="module")
def on_a_full_disk(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("full")
    (folder / "every.yaml").write_text(EVERY)
    ran = subprocess.run(
        [sys.executable, "-c", FULL, *map(str, SIZES)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told: list[Any] = json.loads(ran.stdout)
    return told


@pytest.fixture(params=range(len(SIZES)), ids=lambda i: f"{SIZES[i]} bytes")
def disk(request: pytest.FixtureRequest, on_a_full_disk: list[Any]) -> Any:
    return on_a_full_disk[request.param]


def test_a_full_disk_is_one_line(disk: Any) -> None:
    full = disk["full"]
    assert full["report"] is None
    assert "Traceback" not in full["err"]
    assert len(full["err"].splitlines()) == 1
    assert full["err"].startswith("flashcheck: r.json")
    assert "cannot be written" in full["err"]
    assert "name another" in full["err"]
    assert full["code"] in ((2, 3) if is_done(full["kept"]) else (3,))


CHUNKS = 16


def is_done(kept: str) -> bool:
    """Whether every chunk is kept, so that only the report found no room."""
    return kept.count("\n") == CHUNKS + 1


def test_what_was_kept_before_the_disk_was_full_stays(disk: Any) -> None:
    def whole(text: str) -> str:
        return text[: text.rfind("\n") + 1]

    assert whole(disk["kept"]["kept"]) == whole(disk["full"]["kept"])
    assert disk["kept"]["code"] in ((2, 3) if is_done(disk["full"]["kept"]) else (3,))


def test_a_later_run_with_room_comes_to_the_same_report(
    disk: Any, enumerate_: Enumerate, tmp_path: Path
) -> None:
    room = disk["room"]
    assert room["code"] == 0, room["err"]
    assert room["kept"] == ""
    done = max(0, disk["full"]["kept"].count("\n") - 1)
    assert (f"{done} chunks are done already" in room["err"]) == bool(done)
    assert enumerate_().code == 0
    undisturbed = json.loads((tmp_path / "r.json").read_text())
    assert figures(room["report"]) == figures(undisturbed)


def test_some_of_the_sizes_kept_chunks(on_a_full_disk: list[Any]) -> None:
    lines = [told["full"]["kept"].count("\n") for told in on_a_full_disk]
    assert lines[0] == 0
    assert lines[-1] == CHUNKS + 1
    assert any(3 < number <= CHUNKS for number in lines)


def test_the_signal_of_a_full_disk_is_not_what_ends_a_run() -> None:
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN


# ---- The sample ----------------------------------------------------------------------------


def test_two_runs_at_once_draw_different_samples(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the clock says."""
    seeds: list[int] = []
    check = ExhaustiveSuite.check

    def noted(self: ExhaustiveSuite, *parts: Any, seed: int) -> Tally:
        seeds.append(seed)
        return check(self, *parts, seed=seed)

    monkeypatch.setattr(ExhaustiveSuite, "check", noted)
    monkeypatch.setattr("time.time", lambda: 1.0)
    (tmp_path / "every.yaml").write_text(EVERY)
    subject = f"{CHECKOUT / 'tests' / 'fakes.py'}:ReferenceSubject"
    for _ in range(2):
        ran = cli("run", "every.yaml", "--limit", "100", "--subject", subject, "--out", "r.json")
        assert ran.code == 0, ran.err
    assert len(set(seeds)) == 2
