"""Writes out control characters in texts, so that a terminal does not obey them."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than newline and tab, line separators, marks of writing direction, and lone surrogates."""


def control(text: str) -> str | None:
    """The first control character of a one-line text, written out; None if there is none."""
    character = re.search(f"[\t\n]|{_CONTROL.pattern}", text)
    return _written(character) if character else None


def escaped(text: str) -> str:
    """The text with control characters written out. Newlines and tabs stay."""
    return _CONTROL.sub(_written, text)


def _written(character: re.Match[str]) -> str:
    return f"\\x{ord(character[0]):02x}" if ord(character[0]) < 0x100 else f"\\u{ord(character[0]):04x}"
