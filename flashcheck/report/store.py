"""Reports on disk: written whole or not at all, and read with a clear word about what is wrong."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flashcheck.errors import ReportError, UsageError
from flashcheck.report.models import SCHEMA_VERSION, Report

_DIGITS = 20
"""Of an integer of 64 bits, with its sign."""

_HALF = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")


def destination(out: Path | None, suite: str, *, alone: bool) -> Path:
    """Where the report of a suite goes.

    Args:
        out: the user's ``--out``: a folder, or, for one suite, a file ending in ``.json``.
        alone: whether it is the only suite of the run.

    Raises:
        UsageError: one file is named for several suites.
    """
    if out is None:
        return Path("reports") / f"{suite}.json"
    if out.suffix == ".json" and not out.is_dir():
        if not alone:
            raise UsageError(f"--out {out}: one file for several suites; name a folder")
        return out
    return out / f"{suite}.json"


def check_writable(path: Path, *, option: str = "--out") -> None:
    """Find out before the run that its report can be written.

    Raises:
        UsageError: it cannot; nothing was changed but that missing folders were made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{option} {path}: cannot be written: {reason}; name another") from None


def write(report: Report, path: Path) -> None:
    """Write a report whole, as JSON."""
    write_text(report.model_dump_json(indent=2) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a file whole: into a temporary one beside it, which then takes its name.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _cannot(path, error) from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise _cannot(path, error) from None
    except BaseException:
        os.unlink(temporary)
        raise


def _cannot(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written: {error.strerror}; name another")


def _parsed(content: bytes) -> Any:
    """JSON whose integers and characters every program can take.

    Raises:
        ValueError: it is not JSON, or has an integer of more than 64 bits.
    """
    text = content.decode(json.detect_encoding(content), "surrogatepass")
    data = json.loads(text, parse_int=_integer)
    if _HALF.search(text):
        # Half a character is none, and cannot be written.
        data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    return data


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def read(path: Path) -> Report:
    """Read a stored report.

    Raises:
        ReportError: it is missing, truncated, no report, or of an unknown schema version.
    """
    try:
        data = _parsed(path.read_bytes())
    except FileNotFoundError:
        raise ReportError(
            f"{path}: no such file; 'flashcheck run' writes one, by default into reports/"
        ) from None
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}; name another") from None
    except json.JSONDecodeError as error:
        raise ReportError(
            f"{path}:{error.lineno}: not valid JSON ({error.msg}); "
            "the file is damaged or truncated: write it anew with 'flashcheck run'"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"{path}: not valid JSON: {error}; name a report of 'flashcheck run'"
        ) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version is None:
        raise ReportError(
            f"{path}: schema_version: missing; this is no flashcheck report; name one "
            "of 'flashcheck run'"
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ReportError(
            f"{path}: schema_version: {version!r} is unknown, this flashcheck reads "
            f"{SCHEMA_VERSION}; use the flashcheck that wrote it"
        )
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ReportError(f"{path}: {key}: {first['msg']}; write it anew") from None
