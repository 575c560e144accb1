"""Links of README and pages: those within lead to files and headings; those to the net are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import FENCE, name_of, pages

WITHIN = re.compile(r"(?<!\!)\[[^\]]*\]\((?!https?://)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
OUTSIDE = re.compile(r"https?://[^\s)>\]\"'`]+")
HEADING = re.compile(r"^#{1,4} +(.+?)\s*$|^\(([\w-]+)\)=$", re.MULTILINE)
EXAMPLES = re.compile(r"//(?:[\w.-]*\.)?(?:example(?:\.\w+)?|localhost|minio\S*|127\.0\.0\.1)(?:[:/]|$)")
"""Hosts of examples, which are not there."""
LISTED: dict[str, str] = {}
"""Links to the net, by the first page that has them: each is to be asked by hand when it is added."""


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, and the targets that it states itself."""
    found = HEADING.findall(prose(page))
    named = (re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading, _ in found if heading)
    return {*named, *(target for _, target in found if target)}


def broken(page: Path, text: str) -> list[str]:
    """Links of a page's text that lead to no file, or to no heading of a page."""
    lost = []
    for link in WITHIN.finditer(text):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        if not target.exists() or (link["anchor"] and target.suffix == ".md" and link["anchor"] not in anchors(target)):
            lost.append(link[0])
    return lost


def outside(text: str) -> list[str]:
    """Links to the net in a text; addresses of examples apart."""
    return [link.rstrip(".,;:") for link in OUTSIDE.findall(text) if not EXAMPLES.search(link)]


def external(among: list[Path]) -> dict[str, str]:
    """Every link to the net and the first page that has it."""
    found: dict[str, str] = {}
    for page in among:
        for link in outside(prose(page)):
            found.setdefault(link, name_of(page))
    return found


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_within_lead_to_files_and_headings(page: Path) -> None:
    assert broken(page, prose(page)) == []


def test_links_to_the_net_are_listed() -> None:
    """None so far: no page needs the net. Control: one in a page's text is seen, one of an example is not."""
    assert external(pages()) == LISTED
    assert outside("see [it](https://dp.invalid/a), or https://example.org/b.") == ["https://dp.invalid/a"]
