"""Puts an apostrophe before texts that a spreadsheet would otherwise run as formulas."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"[=@＝＠]|[-+－＋](?!\d+\.?\d*$)")


def plain(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would run it as a formula.

    Signed numbers stay as they are.
    """
    return f"'{text}" if _FORMULA.match(text) else text
