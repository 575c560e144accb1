"""Loads the templates of HTML pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(*packages: str) -> Environment:
    """The environment of templates in these packages. It escapes every text; Jinja is imported at the first page."""
    import jinja2

    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages])
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
