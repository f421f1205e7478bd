"""Text of a report or a subject without what a reader would obey."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Control characters but line feeds spelled out: what a terminal obeys, and XML forbids."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
