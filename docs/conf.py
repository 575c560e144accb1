"""Sphinx: pages in MyST Markdown, with parts that follow from the code (`generated`) and a built gallery (`gallery`)."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import gallery

gallery.make(Path(__file__).parent / "_gallery" / "gallery")

project = "dpdist"
author = "the authors of dpdist"
version = release = metadata.version("dpdist")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "_gallery"]
autodoc_typehints = "none"  # the section Parameters says what each one is
add_module_names = False
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
default_role = "code"
smartquotes = False  # options are written --so
templates_path = ["_templates"]
html_theme = "pydata_sphinx_theme"
html_title = f"dpdist {version}"
html_show_sphinx = False
html_show_copyright = False
html_extra_path = ["_gallery"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_persistent": ["search-button"],  # the field has a label that is not its text
    "navbar_end": ["versions", "theme-switcher"],
    "switcher": {"json_url": "../versions.json", "version_match": version},  # see `build_site`
    "check_switcher": False,
}


FIELDS = {"Parameters": ":param {}: ", "Raises": ":raises {}: ", "Returns": ":returns: ", "Yields": ":yields: "}


def as_fields(_app: Any, _kind: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Sections of a docstring, one `name : meaning` a line, as the fields that Sphinx knows."""
    field, kept = "", []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if set(below) == {"-"} and line.strip():
            field = FIELDS.get(line.strip(), "")
            kept += [] if field else [f".. rubric:: {line.strip()}", ""]
        elif set(line) == {"-"}:
            kept.append("")
        elif field and "{}" not in field and line.startswith("  "):
            kept.append(f"    {line}")  # a list among what is returned
        elif not field or not line.strip() or line.startswith(" "):
            kept.append(line)
        elif "{}" in field and (parts := re.fullmatch(r"([\w.*, ]+?) : (.+)", line)):
            kept.append(field.format(parts[1]) + parts[2])
        else:
            first = "{}" not in field and not any(known.startswith(field) for known in kept)
            kept.append(field + line if first else f"    {line}")
    lines[:] = kept


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_fields)
