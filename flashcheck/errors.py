"""Every error flashcheck raises on purpose, and the exit code that each one becomes.

FlashcheckError
├── UsageError               2  a wrong argument, configuration or report file
│   ├── ConfigError             … in a YAML file: names the file, the line and the key
│   └── ReportError             … in a stored report
├── UnavailableError         3  a subject or backend that this machine cannot run
├── NothingComparedError     3  the selection left nothing to compare
├── SubjectError             4  the subject raised, or broke its protocol
├── CheckerError             4  a faster comparison is not that of the CPU
└── WorkerError              …  an error of another process, with its exit code

Each message is one line: what is wrong, where, and how to mend it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What the process returns. Output options never change it."""

    OK = 0
    GATE_FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    ERROR = 4
    INTERRUPTED = 130


class FlashcheckError(Exception):
    """Base of all deliberate errors."""

    exit_code = ExitCode.ERROR


class UsageError(FlashcheckError):
    """A wrong argument, configuration or report file."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A fault in a YAML file, with its place.

    Args:
        message: What is wrong and how to mend it.
        file: The YAML file.
        line: 1-based line, where it is known.
        key: Dotted path of the key, such as ``gates[2].metric``.
    """

    def __init__(
        self, message: str, *, file: Path | str, line: int | None = None, key: str = ""
    ) -> None:
        self.file = Path(file)
        self.line = line
        self.key = key
        place = f"{file}:{line}" if line is not None else str(file)
        super().__init__(": ".join(part for part in (place, key, message) if part))


class ReportError(UsageError):
    """A stored report that cannot be read."""


class UnavailableError(FlashcheckError):
    """A subject or backend that this machine cannot run."""

    exit_code = ExitCode.UNAVAILABLE


class NothingComparedError(FlashcheckError):
    """The selection left nothing to compare, which is never a pass."""

    exit_code = ExitCode.UNAVAILABLE


class SubjectError(FlashcheckError):
    """The subject raised, or returned something its protocol does not allow.

    Attributes:
        chunk: the number of the chunk of an enumeration in which it did.
    """

    chunk: int | None = None


class CheckerError(FlashcheckError):
    """A comparison on another device came to another result than the CPU's: a fault of ours."""


class WorkerError(FlashcheckError):
    """An error that another process told of.

    Args:
        exit_code: that of the error there.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(exit_code)


def shortened(value: object, most: int) -> str:
    """A value in a message, or so many characters of its start."""
    text = str(value)
    return text if len(text) <= most else text[:most] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the near one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names)}" if names else "none is known"
