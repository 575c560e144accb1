"""Turns an SVG document into an element that stands inside an HTML page."""

from __future__ import annotations

import re


def inline(svg: str, prefix: str, title: str) -> str:
    """The document without prologue, metadata and namespaces, but with a name and with identifiers unique on the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'<svg ([^>]*?)width="([\d.]+)pt"', r'<svg \1style="max-width:\2pt"', svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)\s*height="[\d.]+pt"', r"\1", svg, count=1)
    name = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
