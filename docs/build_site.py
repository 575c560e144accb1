"""Builds the site of all versions: `python docs/build_site.py SITE` writes SITE/VERSION, and adds it to SITE/versions.json.

Folders of earlier versions stay as they are. It fails where a link within leads nowhere, or where no page leads to a page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

APART = {"search.html", "genindex.html", "py-modindex.html"}
"""Pages of Sphinx that forms and buttons lead to."""
FORWARD = '<!doctype html><html lang="en"><title>dpdist</title><meta http-equiv="refresh" content="0; url={}">\n'
MOVED = {
    "explanation/five-questions.html": "promises.html#questions-about-surveys",
    "explanation/noise-once.html": "promises.html#noise-is-drawn-once",
    "reference/cautions.html": "cli.html#cautions",
}
"""Pages of earlier versions, and where their content is now, as seen from there."""


class Links(HTMLParser):
    """Collects what a page names by href and src, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.named: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.named |= {value for name in ("href", "src") if (value := values.get(name)) and tag != "base"}
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}


def read(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def faults(site: Path) -> Iterator[str]:
    """Links within that lead to no file or anchor, and pages that no link leads to."""
    root = site.resolve()
    pages = {page: read(page) for page in sorted(root.rglob("*.html")) if "_static" not in page.parts}
    reached = {root / "index.html"}
    for page, links in pages.items():
        for link in sorted(links.named):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.exists():
                yield f"{page.relative_to(root)}: {link} leads to no file"
            elif target in pages:
                reached |= {target} - {page}
                if parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
                    yield f"{page.relative_to(root)}: {link} leads to no anchor"
    for page in sorted(set(pages) - reached):
        if page.name not in APART:
            yield f"{page.relative_to(root)}: no page leads to it"


def add_version(site: Path, version: str) -> None:
    """Puts a version first into `versions.json`, and lets the front page lead to it."""
    listed = site / "versions.json"
    others = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []
    entries = [{"version": version, "url": f"../{version}/", "preferred": True}]
    entries += [entry | {"preferred": False} for entry in others if entry["version"] != version]
    listed.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(FORWARD.format(f"{version}/index.html"), encoding="utf-8")


def forward(folder: Path) -> None:
    """Lets addresses of pages that are no more lead to where their content is."""
    for old, new in MOVED.items():
        (folder / old).write_text(FORWARD.format(new), encoding="utf-8")


def main(site: Path) -> int:
    from sphinx.cmd.build import main as sphinx

    version = metadata.version("dpdist")
    if rc := sphinx(["-W", "-q", "-b", "html", str(Path(__file__).parent), str(site / version)]):
        return rc
    broken = list(faults(site / version))
    print("\n".join(broken))
    if not broken:
        forward(site / version)
        add_version(site, version)
    return len(broken) > 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
