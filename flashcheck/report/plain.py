"""Text of a report or a subject without what a reader would obey."""

from __future__ import annotations

import re

# Also what reorders or hides the text around it, and what some readers take for a line's end.
_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """Control characters but line feeds spelled out: what a terminal obeys, or XML forbids."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
