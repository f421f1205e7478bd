"""The subjects by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from flashcheck.errors import UsageError, did_you_mean
from flashcheck.subjects.backend import Requested, choose, prepare
from flashcheck.subjects.base import Shim, Subject


@dataclass(frozen=True)
class BuiltIn:
    """A subject that comes with flashcheck, imported only when it is run."""

    name: str
    description: str
    module: str
    factory: str
    package: str


BUILT_IN = (
    BuiltIn(
        name="flashoptim",
        description="the FlashOptim authors' Triton kernels, by their public functions",
        module="flashcheck.subjects.flashoptim",
        factory="FlashOptim",
        package="flashoptim",
    ),
)


@dataclass(frozen=True)
class Availability:
    """A subject as it is listed: its version here, or why it cannot run."""

    name: str
    description: str
    version: str | None
    reason: str | None


def listing() -> list[Availability]:
    """All subjects, without importing any."""
    entries = []
    for subject in BUILT_IN:
        missing = [
            package
            for package in ("torch", "triton", subject.package)
            if importlib.util.find_spec(package) is None
        ]
        entries.append(
            Availability(
                name=subject.name,
                description=subject.description,
                version=None if missing else version(subject.package),
                reason=f"missing: {', '.join(missing)}" if missing else None,
            )
        )
    return entries


def check_name(name: str) -> BuiltIn:
    """The entry of a name.

    Raises:
        UsageError: there is no such subject.
    """
    for entry in BUILT_IN:
        if entry.name == name:
            return entry
    hint = did_you_mean(name, [entry.name for entry in BUILT_IN])
    raise UsageError(f"--subject {name}: unknown; {hint}")


def load(name: str, requested: Requested) -> tuple[Subject, Sequence[Shim]]:
    """Choose the backend, make it ready, and import a subject.

    Returns:
        The subject and the interpreter's shims it runs with.

    Raises:
        UsageError: there is no such subject.
        UnavailableError: this machine cannot run it.
    """
    entry = check_name(name)
    backend = choose(requested)
    shims = prepare(backend)
    factory = getattr(importlib.import_module(entry.module), entry.factory)
    subject: Subject = factory(backend)
    return subject, [*shims, *getattr(subject, "shims", [])]
