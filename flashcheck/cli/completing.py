"""What a shell completes: the names of suites, tensors, specs and subjects. Nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashcheck.config import SuiteConfig


def suites(incomplete: str) -> list[str]:
    """Suites of this folder and the built-in ones, and ``all``."""
    from flashcheck import catalog

    return _starting(incomplete, ["all", *catalog.suite_files()])


def tensors(incomplete: str) -> list[str]:
    """Of all suites."""
    from flashcheck.config import tensor_names

    return _starting(incomplete, (name for each in _configs() for name in tensor_names(each)))


def specs(incomplete: str) -> list[str]:
    """Of all suites."""
    from flashcheck.config import spec_names

    return _starting(incomplete, (name for each in _configs() for name in spec_names(each)))


def subjects(incomplete: str) -> list[str]:
    """Those that are built in, and plugins."""
    from flashcheck.subjects import registry

    return _starting(incomplete, registry.names())


def terms(incomplete: str) -> list[str]:
    """Of the glossary."""
    from flashcheck.glossary import entries

    return _starting(incomplete, (entry.term for entry in entries()))


def _configs() -> Iterator[SuiteConfig]:
    """Those that can be read: a fault in one is told of by the command, not while typing it."""
    from flashcheck import catalog
    from flashcheck.config import load
    from flashcheck.errors import ConfigError

    for path in catalog.suite_files().values():
        try:
            yield load(path)
        except ConfigError:
            continue


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
