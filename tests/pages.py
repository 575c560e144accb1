"""README and pages of docs/ as text: their fenced blocks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<text>.*?)^ *(?P=ticks) *$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block: its language, the words beside it, its text, its line in the page."""

    page: str
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def norun(self) -> bool:
        return "norun" in self.marks

    @property
    def file(self) -> str | None:
        """The name under which the block is kept in the page's folder."""
        return next((mark.removeprefix("file=") for mark in self.marks if mark.startswith("file=")), None)


def pages() -> list[Path]:
    """README and every page that is written by hand."""
    found = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    return [ROOT / "README.md", *sorted(found)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        language, *marks = found["info"].split() or [""]
        line = text.count("\n", 0, found.start()) + 1
        yield Block(name_of(page), line, language, tuple(marks), textwrap.dedent(found["text"]))
