"""The site: broken links and lost pages are seen, and versions are listed newest first."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT

PAGES = {
    "index.html": '<a href="a/one.html#there">one</a> <a href="https://example.org/x">out</a> <img src="p.svg">',
    "a/one.html": '<h2 id="there">1</h2> <a href="../index.html">back</a>',
    "p.svg": "<svg/>",
    "search.html": "",
}


@pytest.fixture
def build_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import build_site

    return build_site


def site(folder: Path, pages: dict[str, str]) -> Path:
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, []),
        (
            {"index.html": PAGES["index.html"].replace("#there", "#gone")},
            ["index.html: a/one.html#gone leads to no anchor"],
        ),
        ({"index.html": PAGES["index.html"].replace("p.svg", "q.svg")}, ["index.html: q.svg leads to no file"]),
        ({"lost.html": '<a href="lost.html">to itself</a>'}, ["lost.html: no page leads to it"]),
    ],
)
def test_links_are_checked_both_ways(
    change: dict[str, str], fault: list[str], build_site: ModuleType, tmp_path: Path
) -> None:
    made = site(tmp_path, PAGES | change)
    assert list(build_site.faults(made)) == fault


def test_a_version_is_listed_once_and_first(build_site: ModuleType, tmp_path: Path) -> None:
    for version in ("0.1.1", "0.2.0", "0.2.0"):
        build_site.add_version(tmp_path, version)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(entry["version"], entry["preferred"]) for entry in listed] == [("0.2.0", True), ("0.1.1", False)]
    assert "0.2.0/index.html" in (tmp_path / "index.html").read_text()


def test_addresses_of_pages_that_moved_lead_to_pages_and_headings_of_today(build_site: ModuleType, tmp_path: Path) -> None:
    """Control: an address of today is none of them."""
    for old, new in build_site.MOVED.items():
        page, _, heading = new.partition("#")
        target = (ROOT / "docs" / old).parent / page.replace(".html", ".md")
        assert target.is_file()
        assert not heading or f"\n## {heading.replace('-', ' ').capitalize()}\n" in target.read_text(encoding="utf-8")
        assert not (ROOT / "docs" / old.replace(".html", ".md")).exists()
        (tmp_path / old).parent.mkdir(parents=True, exist_ok=True)
    build_site.forward(tmp_path)
    assert all(f"url={new}" in (tmp_path / old).read_text() for old, new in build_site.MOVED.items())
    assert "how-to/tables.html" not in build_site.MOVED
