"""Texts, such as jobs, with parts exchanged."""

from __future__ import annotations


def edited(text: str, *edits: tuple[str, str]) -> str:
    """The text with the second part of every pair in place of the first, which must be there; an empty pair is no edit."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new) if old else text
    return text
