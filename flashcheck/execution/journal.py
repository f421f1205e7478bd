"""Chunks that are done, kept in a file that is only added to, for a run that is killed.

Each line is a digest and what it is of. The first says what the journal is about: nothing is taken
from one that is about anything else, and as the digests of the others are of the first line as
well, none of another journal's lines counts. A line that is not whole, as a kill leaves it, or is
of a chunk that was there before, is dropped with all that follows it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from flashcheck.errors import UnavailableError, UsageError, shortened
from flashcheck.suites.exhaustive.tally import Tally

_DIGITS = 16
_MOST = 40

Key = dict[str, str]
"""What a journal is about, each thing under a name that a message can use."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    chunk: int
    tally: Tally


class Journal:
    """An open journal; nobody else can have it open.

    Args:
        path: of the file, made if it is not there.
        key: what the run is about.

    Attributes:
        done: the tallies of the chunks that are done, by their numbers.
        dropped: how many bytes at its end were no whole line.

    Raises:
        UsageError: it is about something else, or damaged from the start, or is in use.
        UnavailableError: it cannot be written.
    """

    def __init__(self, path: Path, key: Mapping[str, str]) -> None:
        self.path = path
        self.done: dict[int, Tally] = {}
        self.dropped = 0
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by close() and remove()
        except OSError as error:
            raise self._cannot(error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(
                f"{path}: another run is writing it; wait for it, or name another --out"
            ) from None
        try:
            self._read(dict(key))
        except BaseException:
            self._file.close()
            raise

    def _read(self, key: Key) -> None:
        self._file.seek(0)
        content = self._file.read()
        lines = _lines(content)
        first = json.dumps(key, sort_keys=True)
        # A kill, or a full disk, may leave the first line of this very run in part.
        if not lines and not _line(first).startswith(content):
            raise UsageError(
                f"{self.path}: is no journal, or its first line is damaged; remove it, or name "
                "another --out"
            )
        whole = 0
        self._about = first.encode()
        if lines:
            self._check(json.loads(lines[0].text), key)
            whole = lines[0].end
        for line in lines[1:]:
            try:
                entry = _Entry.model_validate_json(line.text)
            except ValidationError:
                break
            if entry.chunk in self.done:
                break
            self.done[entry.chunk] = entry.tally
            whole = line.end
        self.dropped = len(content) - whole
        try:
            self._file.truncate(whole)
        except OSError as error:
            raise self._cannot(error) from None
        if not lines:
            self._write(_line(first))

    def _check(self, stored: Key, key: Key) -> None:
        for name in sorted(stored.keys() | key.keys()):
            was, now = (some.get(name, "none") for some in (stored, key))
            if was != now:
                raise UsageError(
                    f"{self.path}: is of a run with another {name} ({shortened(was, _MOST)}, now "
                    f"{shortened(now, _MOST)}); remove it, or name another --out"
                )

    def add(self, chunk: int, tally: Tally) -> None:
        """Keep a chunk that is done.

        Raises:
            UnavailableError: there is no room; what was kept before stays.
        """
        entry = _Entry(chunk=chunk, tally=tally).model_dump_json()
        self._write(_line(entry, about=self._about))

    def _write(self, line: bytes) -> None:
        try:
            _write(self._file, line)
        except OSError as error:
            raise self._cannot(error) from None

    def _cannot(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"{self.path}: cannot be written: {error.strerror or error}; make room, or name "
            "another --out, and run again with --resume: what is in it is kept"
        )

    def close(self) -> None:
        """Leave it for a later run."""
        self._file.close()

    def remove(self) -> None:
        """The run is over, and its report written."""
        self.path.unlink(missing_ok=True)
        self._file.close()


def _write(file: RawIOBase, data: bytes) -> None:
    """Write all of it, with nothing kept back that could be written, and fail, at a later time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    os.fdatasync(file.fileno())


@dataclass(frozen=True)
class _Line:
    """A whole line's text, and where in the file the next one begins."""

    text: bytes
    end: int


def _lines(content: bytes) -> list[_Line]:
    """The lines up to the first that is not whole."""
    lines: list[_Line] = []
    about, end = b"", 0
    for line in content.splitlines(keepends=True):
        digest, _, text = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or digest != _digest(about + text):
            break
        end += len(line)
        lines.append(_Line(text, end))
        about = lines[0].text
    return lines


def _line(text: str, *, about: bytes = b"") -> bytes:
    """A line, bound to the first one."""
    line = text.encode()
    return _digest(about + line) + b" " + line + b"\n"


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_DIGITS].encode()
