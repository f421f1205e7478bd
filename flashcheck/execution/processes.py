"""Several processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread

from flashcheck.errors import UnavailableError
from flashcheck.execution import worker
from flashcheck.execution.base import Outcome
from flashcheck.execution.serial import Serial
from flashcheck.report.models import Description
from flashcheck.suites.exhaustive.suite import Chunk

_WAITING = 2
"""Chunks handed out for each process: one that it checks, and one that waits for it."""


@dataclass(frozen=True)
class Processes:
    """Each checks one chunk at a time.

    Attributes:
        here: the same in this process, which describes itself for all.
        order: what the processes are told.
        jobs: how many there are.
    """

    here: Serial
    order: worker.Order
    jobs: int

    def describe(self) -> Description:
        return self.here.describe()

    def close(self) -> None:
        """Nothing is held between runs."""

    def run(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, Outcome]]:
        expected = worker.identity(self.here.describe(predicted=False))
        order = self.order.model_dump_json()
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        pool = ProcessPoolExecutor(
            self.jobs, get_context("spawn"), initializer=_started, initargs=(threads,)
        )
        running: dict[Future[str], Chunk] = {}
        try:
            for chunk in chunks:
                told = worker.CHUNK.dump_json(chunk).decode()
                with _interrupts_held_back():
                    running[pool.submit(worker.check, order, told)] = chunk
                if len(running) >= _WAITING * self.jobs:
                    yield from _finished(running, expected)
            while running:
                yield from _finished(running, expected)
        except BrokenProcessPool:
            raise UnavailableError(
                "a process of --jobs was killed, perhaps for want of memory; what was done is kept "
                "with --resume: take fewer jobs"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _finished(running: dict[Future[str], Chunk], expected: str) -> Iterator[tuple[Chunk, Outcome]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), worker.outcome_of(future.result(), expected)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes started here inherit it: Ctrl-C reaches them too, but what it means they are told.

    From their very start: they need seconds to import torch.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _started(threads: int) -> None:
    import torch

    Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_the_parent() -> None:
    """One that is killed cannot send its workers away: they would wait for it for ever."""
    parent = parent_process()
    assert parent
    parent.join()
    os._exit(1)
