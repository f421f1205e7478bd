"""The machines of a Ray cluster: chunks are its tasks, given again where a worker is lost."""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashcheck.errors import FlashcheckError, UnavailableError
from flashcheck.execution import worker
from flashcheck.execution.base import Outcome
from flashcheck.report.models import Description
from flashcheck.subjects.base import Backend
from flashcheck.suites.exhaustive.suite import Chunk

_RETRIES = 5
_ANSWERS_WITHIN_S = 5.0
_WAITING = 2
"""Chunks handed out for each processor or GPU that the cluster has."""


@dataclass(frozen=True)
class Cluster:
    """Workers on a Ray cluster, each with a GPU of its own where the backend needs one.

    Args:
        order: what the workers are told; a subject's file has to be on each machine.
        address: of the cluster; none for one of this machine alone.
    """

    order: worker.Order
    address: str | None

    @functools.cached_property
    def _ray(self) -> Any:
        if importlib.util.find_spec("ray") is None:
            raise UnavailableError(
                "--executor ray: the package ray is missing: pip install 'flashcheck[ray]'"
            )
        import ray

        # It would report each cluster to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self.address is not None:
            _check_answers(self.address)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            options |= {"address": "local", "include_dashboard": False}
        else:
            options |= {"address": self.address}
        try:
            ray.init(**options)
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise _unreachable(self.address or "local", words) from None
        return ray

    @functools.cached_property
    def _description(self) -> Description:
        return Description.model_validate_json(self._get(self._task(worker.describe)))

    def describe(self) -> Description:
        return self._description

    def close(self) -> None:
        if "_ray" in self.__dict__:
            self._ray.shutdown()

    def run(self, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, Outcome]]:
        expected = worker.identity(self.describe())
        running: dict[Any, Chunk] = {}
        most = _WAITING * self._slots
        for chunk in chunks:
            told = worker.CHUNK.dump_json(chunk).decode()
            running[self._task(worker.check, told)] = chunk
            if len(running) >= most:
                yield self._finished(running, expected)
        while running:
            yield self._finished(running, expected)

    def _finished(self, running: dict[Any, Chunk], expected: str) -> tuple[Chunk, Outcome]:
        (done, *_), _rest = self._ray.wait(list(running), num_returns=1)
        return running.pop(done), worker.outcome_of(self._get(done), expected)

    def _task(self, function: Callable[..., str], *told: str) -> Any:
        """Hand out a task; what it will have answered."""
        options = {"num_cpus": 1, "num_gpus": self._gpus_each, "max_retries": _RETRIES}
        remote = self._ray.remote(**options)(function)
        return remote.remote(self.order.model_dump_json(), *told)

    def _get(self, answer: Any) -> str:
        try:
            text: str = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, FlashcheckError):
                raise cause from None
            raise
        except self._ray.exceptions.RayError as error:
            words = " ".join(str(error).split())[:200]
            raise UnavailableError(
                f"--executor ray: a task was given {_RETRIES + 1} times, and each worker was lost: "
                f"{words}; what was done is kept with --resume"
            ) from None
        return text

    @functools.cached_property
    def _gpus_each(self) -> int:
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        if self.order.backend == Backend.CUDA.value and not gpus:
            raise UnavailableError(
                "--backend cuda: no machine of the Ray cluster has a GPU; use --backend interpreter"
            )
        return 1 if gpus and self.order.backend != Backend.INTERPRETER.value else 0

    @property
    def _slots(self) -> int:
        resource = "GPU" if self._gpus_each else "CPU"
        return max(1, int(self._ray.cluster_resources().get(resource, 1)))


def _check_answers(address: str) -> None:
    """Find out whether anybody listens, before Ray does, which goes on trying for many minutes.

    Raises:
        UnavailableError: nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", or another word that Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str, why: str) -> UnavailableError:
    return UnavailableError(
        f"--address {address}: no Ray cluster can be joined there: {why}; start one with 'ray "
        "start --head', or leave --address out for this machine alone"
    )
