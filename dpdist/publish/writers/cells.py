"""Texts that a spreadsheet shows as they are."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"[=@＝＠]|[-+－＋](?!\d+\.?\d*$)")


def plain(text: str) -> str:
    """With an apostrophe before what a spreadsheet would run as a formula; a signed number is none."""
    return f"'{text}" if _FORMULA.match(text) else text
