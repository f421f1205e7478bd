"""The faulty subjects and the correct variants, each registered by its class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flashcheck.selftest.eager import Eager

_Subject = TypeVar("_Subject", bound=type[Eager])


@dataclass(frozen=True)
class Specimen:
    """A subject whose verdict is known.

    Attributes:
        faulty: whether it has to be caught, or has to pass.
        steps: whether it is an optimizer step that is judged, not single functions.
    """

    description: str
    faulty: bool
    make: Callable[[], Eager]
    steps: bool = False


SPECIMENS: list[Specimen] = []


def fault(description: str) -> Callable[[_Subject], _Subject]:
    """Register a class that computes something wrong."""
    return _register(description, faulty=True)


def variant(description: str) -> Callable[[_Subject], _Subject]:
    """Register a class that differs from the paper in legitimate arithmetic only."""
    return _register(description, faulty=False)


def faulty_step(description: str) -> Callable[[_Subject], _Subject]:
    """Register a class whose optimizer step is wrong."""
    return _register(description, faulty=True, steps=True)


def correct_step(description: str) -> Callable[[_Subject], _Subject]:
    """Register a class whose optimizer step is right."""
    return _register(description, faulty=False, steps=True)


def _register(
    description: str, *, faulty: bool, steps: bool = False
) -> Callable[[_Subject], _Subject]:
    def decorate(subject: _Subject) -> _Subject:
        SPECIMENS.append(Specimen(description, faulty, subject, steps))
        return subject

    return decorate
