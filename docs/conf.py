"""Sphinx: pages in MyST Markdown; what follows from the code is written by `generated` before pages are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import generated

project = "dpdist"
author = "the authors of dpdist"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes = False  # options are written --so
html_theme = "pydata_sphinx_theme"
html_title = "dpdist"
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}


def setup(app: Any) -> None:
    """Reference pages follow the code: they are written anew in every build."""
    app.connect("builder-inited", lambda _: generated.write(Path(__file__).parent / "_generated"))
