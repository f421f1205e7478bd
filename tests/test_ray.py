"""Chunks on a Ray cluster: two nodes on this machine, of which one may be lost."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashcheck.errors import UnavailableError
from flashcheck.execution.cluster import Cluster
from flashcheck.suites.exhaustive import suite as suites
from flashcheck.suites.exhaustive.suite import Extent
from tests.conftest import CHECKOUT, TIMEOUT_S, Cli, Ran, strict_json
from tests.test_journal import EVERY, figures
from tests.test_parts import DRIVER, error_line

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="the package ray is missing")

# Ray leaves the sockets and files of what it started to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray"),
]

LIMIT = "1200"
CHUNKS = 20

# The reference, which says which processes it runs in, on which node, and takes its time.
SUBJECT = """
import os, time
from pathlib import Path
import torch
from tests.fakes import ReferenceSubject

FOLDER = Path(__file__).parent


class Slow:
    version = "1.0"

    def __getattr__(self, method):
        right = getattr(ReferenceSubject(), method)

        def slow(*tensors, **options):
            node = os.environ.get("RAY_NODE_ID", "none")
            if "ray" in __import__("sys").modules:
                import ray
                if ray.is_initialized():
                    node = ray.get_runtime_context().get_node_id()
            (FOLDER / "log" / f"{os.getpid()}-{node}").touch()
            if (FOLDER / "slowly").exists():
                time.sleep(0.08)
            if (FOLDER / "raises").exists() and method == "compute_ecc":
                if tensors[0].abs().max() >= 1:
                    raise RuntimeError(f"the first was {tensors[0].reshape(-1)[0].item()}")
            return right(*tensors, **options)

        if method.startswith("_") or method in ("name", "backend", "source_sha256"):
            raise AttributeError(method)
        return slow


class Cannot:
    def __init__(self):
        raise RuntimeError("not here")
"""


def ray_processes() -> set[int]:
    """Of this machine, those that Ray's own programs run in."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and any(w in words for w in (b"gcs_server", b"raylet", b"ray::")):
                found.add(int(folder.name))
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head, and no more; a test adds its second node."""
    if not HAS_RAY:
        pytest.skip("the package ray is missing")
    before = ray_processes()
    # Set before Ray is imported: what it starts inherits it.
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patched.setenv("PYTHONPATH", str(CHECKOUT))
        # A node that is lost is noticed soon.
        patched.setenv("RAY_health_check_period_ms", "500")
        patched.setenv("RAY_health_check_failure_threshold", "3")
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
        try:
            yield made
        finally:
            made.shutdown()
    deadline = time.monotonic() + 15
    while ray_processes() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ray_processes() - before, "Ray left processes behind"


@pytest.fixture
def second(cluster: Any) -> Iterator[Any]:
    """The second node."""
    node = cluster.add_node(num_cpus=1, num_gpus=0)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


class Runs:
    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli = cli
        self.folder = folder

    def run(self, out: str, *words: str, subject: str = "slow.py:Slow") -> Ran:
        return self.cli(
            "run", "every.yaml", "--limit", LIMIT, "--quiet", "--subject", subject, "--out", out,
            *words,
        )  # fmt: skip

    def on(self, cluster: Any, *words: str, **options: str) -> Ran:
        return self.run(
            "r.json", "--executor", "ray", "--address", cluster.address, *words, **options
        )

    def read(self, name: str) -> Any:
        return strict_json((self.folder / name).read_text())

    def same(self) -> None:
        """The report is that of a run in this process."""
        (self.folder / "slowly").unlink(missing_ok=True)
        assert self.run("whole.json").code in (0, 4)
        assert figures(self.read("r.json")) == figures(self.read("whole.json"))

    def workers(self) -> dict[int, str]:
        """Of each process that ran the subject, its node."""
        names = [path.name.partition("-") for path in (self.folder / "log").iterdir()]
        return {int(pid): node for pid, _, node in names if int(pid) != os.getpid()}

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def lines(self) -> int:
        path = self.folder / "r.json.journal"
        return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def runs(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    (tmp_path / "every.yaml").write_text(EVERY)
    (tmp_path / "slow.py").write_text(SUBJECT)
    (tmp_path / "log").mkdir()
    extent = Extent(part=1 << 8, chunk=1 << 8)
    monkeypatch.setattr(suites, "EXTENTS", dict.fromkeys(suites.EXTENTS, extent))
    return Runs(cli, tmp_path)


class Later(threading.Thread):
    """Does something while a run goes on; an error in it is the test's."""

    def __init__(self, does: Callable[[], None]) -> None:
        super().__init__()
        self.does = does
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.does()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def __enter__(self) -> Later:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        if self.error:
            raise self.error


# ---- Two nodes -----------------------------------------------------------------------------


@needs_ray
def test_two_nodes_come_to_the_report_of_one_process(cluster: Any, second: Any, runs: Runs) -> None:
    (runs.folder / "slowly").touch()
    ran = runs.on(cluster)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    workers = runs.workers()
    assert len(set(workers.values())) == 2, workers
    runs.same()


@needs_ray
def test_a_worker_that_is_killed_is_made_up_for(cluster: Any, second: Any, runs: Runs) -> None:
    (runs.folder / "slowly").touch()
    killed = []

    def kill() -> None:
        runs.until(lambda: runs.lines() > 4)
        pid = next(iter(runs.workers()))
        os.kill(pid, signal.SIGKILL)
        killed.append((pid, runs.lines()))

    with Later(kill):
        ran = runs.on(cluster, "--resume")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert killed[0][1] < CHUNKS
    assert len(runs.workers()) > 2
    runs.same()
    assert not (runs.folder / "r.json.journal").exists()


@needs_ray
def test_a_node_that_is_lost_is_made_up_for(cluster: Any, second: Any, runs: Runs) -> None:
    (runs.folder / "slowly").touch()
    lost = []

    def lose() -> None:
        runs.until(lambda: runs.lines() > 4 and len(set(runs.workers().values())) == 2)
        lost.append(runs.lines())
        cluster.remove_node(second, allow_graceful=False)

    with Later(lose):
        ran = runs.on(cluster, "--resume")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert lost[0] < CHUNKS
    assert len(cluster.worker_nodes) == 0
    runs.same()


@needs_ray
def test_an_interrupted_run_is_resumed_in_one_process(
    cluster: Any, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashcheck.execution.journal import Journal

    add = Journal.add

    def added(self: Journal, chunk: int, tally: Any) -> None:
        add(self, chunk, tally)
        if runs.lines() == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "add", added)
        assert runs.on(cluster, "--resume").code == 130
    assert runs.lines() == 8
    ran = runs.run("r.json", "--resume")
    assert (ran.code, ran.err) == (0, "flashcheck: r.json.journal: 7 chunks are done already\n")
    runs.same()


@needs_ray
def test_a_subject_that_raises_is_the_same_error(cluster: Any, second: Any, runs: Runs) -> None:
    (runs.folder / "raises").touch()
    ran = runs.on(cluster)
    assert (ran.code, ran.err) == (4, "")
    assert "the first was " in runs.read("r.json")["cases"][0]["reason"]
    runs.same()


@needs_ray
def test_a_subject_that_cannot_be_made_is_one_line(cluster: Any, runs: Runs) -> None:
    line = error_line(runs.on(cluster, subject="slow.py:Cannot"), 3)
    assert "slow.py:Cannot: cannot be made: RuntimeError: not here" in line
    assert not (runs.folder / "r.json").exists()


@needs_ray
def test_a_gpu_is_not_waited_for_where_there_is_none(cluster: Any, runs: Runs) -> None:
    began = time.monotonic()
    line = error_line(runs.on(cluster, "--backend", "cuda"), 3)
    assert "--backend cuda: no machine of the Ray cluster has a GPU" in line
    assert "--backend interpreter" in line
    assert time.monotonic() - began < 20


@needs_ray
def test_nothing_is_told_to_its_makers(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    said: list[str | None] = []

    def init(**_: Any) -> None:
        said.append(os.environ.get("RAY_USAGE_STATS_ENABLED"))
        raise RuntimeError("enough was seen")

    monkeypatch.setattr(ray, "init", init)
    # Restored afterwards, whatever the run sets.
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    assert "enough was seen" in error_line(runs.run("r.json", "--executor", "ray"), 3)
    assert said == ["0"]


# ---- No cluster ----------------------------------------------------------------------------


def test_the_package_is_missing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name.partition(".")[0] == "ray" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    line = error_line(runs.run("r.json", "--executor", "ray"), 3)
    assert "--executor ray: the package ray is missing" in line
    assert "pip install 'flashcheck[ray]'" in line
    assert not (runs.folder / "r.json").exists()


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1"])
def test_an_address_that_cannot_be_reached_is_one_line(
    runs: Runs, subprocess_cli: Any, address: str
) -> None:
    """In a process of its own: Ray writes past Python's stderr."""
    began = time.monotonic()
    started = subprocess_cli(
        "run", "every.yaml", "--limit", "10", "--quiet", "--subject", "slow.py:Slow",
        "--executor", "ray", "--address", address, "--out", "r.json",
    )  # fmt: skip
    try:
        out, err = started.communicate(timeout=45)
    except subprocess.TimeoutExpired:
        started.kill()
        started.communicate()
        pytest.fail(f"--address {address} was waited for, for more than 45 s")
    line = error_line(Ran(started.returncode, out, err), 3)
    assert f"--address {address}" in line
    assert "ray start --head" in line
    assert time.monotonic() - began < 45
    assert not (runs.folder / "r.json").exists()


@needs_ray
@pytest.mark.parametrize("address", ["nonsense", "", "127.0.0.1:99999", "127.0.0.1:x", ":"])
def test_an_address_that_is_none_is_one_line(runs: Runs, address: str) -> None:
    line = error_line(runs.run("r.json", "--executor", "ray", "--address", address), 3)
    assert f"--address {address}" in line
    assert not (runs.folder / "r.json").exists()


@needs_ray
def test_without_an_address_it_is_this_machine_and_nothing_stays(
    runs: Runs, subprocess_cli: Any, tmp_path: Path
) -> None:
    before = ray_processes()
    started = subprocess_cli(
        "run", "every.yaml", "--limit", LIMIT, "--quiet", "--subject", "slow.py:Slow",
        "--executor", "ray", "--out", "r.json", python=("-c", DRIVER),
    )  # fmt: skip
    out, err = started.communicate(timeout=TIMEOUT_S)
    assert (started.returncode, out, err) == (0, "", "")
    runs.same()
    deadline = time.monotonic() + 15
    while ray_processes() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ray_processes() - before
    assert sys.modules.get("ray") is None or not sys.modules["ray"].is_initialized()


# ---- Which resources a task asks for -------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "backend", "gpus", "slots"),
    [
        ({"CPU": 8.0, "GPU": 2.0}, "cuda", 1, 2),
        ({"CPU": 8.0, "GPU": 2.0}, "auto", 1, 2),
        ({"CPU": 8.0, "GPU": 2.0}, "interpreter", 0, 8),
        ({"CPU": 8.0}, "auto", 0, 8),
        ({}, "auto", 0, 1),
    ],
)
def test_a_task_asks_for_a_gpu_where_there_is_one(
    resources: dict[str, float], backend: str, gpus: int, slots: int
) -> None:
    asked = _cluster_of(resources, backend)
    assert (asked._gpus_each, asked._slots) == (gpus, slots)


def test_a_cluster_without_a_gpu_is_refused_for_cuda() -> None:
    with pytest.raises(UnavailableError, match="has a GPU"):
        _ = _cluster_of({"CPU": 8.0}, "cuda")._gpus_each


def _cluster_of(resources: dict[str, float], backend: str) -> Cluster:
    """A cluster that has some resources, and of all else nothing."""
    made = Cluster.__new__(Cluster)
    ray = SimpleNamespace(cluster_resources=lambda: resources)
    vars(made).update(_ray=ray, order=SimpleNamespace(backend=backend))
    return made
