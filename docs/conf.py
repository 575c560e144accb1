"""Sphinx: pages in MyST Markdown. What follows from the code stands in them: see `generated`."""

from __future__ import annotations

project = "dpdist"
author = "the authors of dpdist"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes = False  # options are written --so
html_theme = "pydata_sphinx_theme"
html_title = "dpdist"
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
