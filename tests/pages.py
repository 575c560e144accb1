"""README and pages of docs/ as text: their fenced blocks, and their sentences."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WRITTEN = ("methods.md", "bibliography.md")
"""Pages of formulas and of titles: no sentences are counted there."""
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


LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*(?:[A-Z0-9±Δεδραx]|code\b|dpdist\b))")
"""An end of a sentence: names of code, which `_plain` calls code, may begin the next."""
ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|vs|cf|al|no)\.$")


def sentences(text: str) -> list[str]:
    """Sentences of prose: no code, no tables, no headings; an item of a list ends one, so does a colon before a list."""
    return [each for block in _prose(text) for each in _split(block)]


def cells(text: str) -> list[str]:
    """Sentences in the cells of tables."""
    plain = _plain(text)
    rows = [line for line in plain.splitlines() if line.lstrip().startswith("|")]
    return [each for row in rows for cell in row.split("|") for each in _split(cell)]


def _plain(text: str) -> str:
    text = FENCE.sub("\n\n", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$\n]+\$", "formula", text)
    text = CODE.sub(lambda found: "code" + ("." if found[2].endswith(".") else ""), text)
    text = re.sub(r"\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}", "code", text)  # what a job writes in braces
    return LINK.sub(r"\1", text)


def _prose(text: str) -> Iterator[str]:
    """Paragraphs and items, each on one line."""
    gathered: list[str] = []
    for line in [*_plain(text).splitlines(), ""]:
        bare = line.strip()
        item = re.match(r"(?:[-*+]|\d+\.|:)\s+", bare)
        out = not bare or bare[0] in "#|" or re.fullmatch(r"\(.*\)=|:?-{3,}:?|:[a-z]+:.*", bare)
        if gathered and (out or item):
            yield " ".join(gathered)
            gathered = []
        if not out:
            gathered.append(bare[item.end() :] if item else bare)


def _split(block: str) -> Iterator[str]:
    held = ""
    for part in END.split(block):
        held = f"{held} {part}".strip()
        if not ABBREVIATED.search(held):
            if len(words(held)) > 1:
                yield held
            held = ""
    if held:
        yield held


def words(sentence: str) -> list[str]:
    return [word for word in sentence.split() if re.search(r"\w", word)]
