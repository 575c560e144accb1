"""Escapes control characters in texts, so that they are not sent to a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except newline and tab, line separators, marks that reverse the order of text, half characters."""


def control(text: str) -> str | None:
    """The first control character of a one-line text, written out."""
    found = re.search(f"[\t\n]|{_CONTROL.pattern}", text)
    return _written(found) if found else None


def escaped(text: str) -> str:
    """The text with control characters written out, except newlines and tabs."""
    return _CONTROL.sub(_written, text)


def _written(character: re.Match[str]) -> str:
    return f"\\x{ord(character[0]):02x}" if ord(character[0]) < 0x100 else f"\\u{ord(character[0]):04x}"
