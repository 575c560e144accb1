"""Tables on a screen of 80 columns: no word of a head and no figure is broken, and no line is longer."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from rich.console import Console

from dpdist.cli.table_text import LISTED, least_width, stated_cautions, table_text
from dpdist.core.cautions import Caution

LEVELS = {
    "housing_type": ["single family detached", "mobile home"],
    "census_region": ["northeast", "midwest"],
    "age_group": ["18-34", "35-64"],
}
WIDE = pd.DataFrame(
    {**LEVELS, "count": [33445566.0, 1200345.0], "±": [12003.0, 44556.0], "mean of consumption": [1.0, 2.0]}
)


def printed(rows: pd.DataFrame, width: int = 80) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(table_text("t", rows))
    return captured.get().splitlines()


def test_no_word_of_a_head_and_no_figure_is_broken() -> None:
    """A name with `_` goes on after it, on a line of its own."""
    lines = printed(WIDE)
    words = set(re.findall(r"[^\s│┃]+", "\n".join(lines)))
    whole = {"housing_", "type", "census_", "region", "age_", "group", "consumption", "northeast", "detached", "33,445,566"}
    assert whole - words == set()
    assert max(map(len, lines)) <= 80
    assert least_width(WIDE) <= 80 < least_width(pd.concat([WIDE, WIDE.add_suffix("_again")], axis=1))


def test_a_head_that_is_no_longer_than_its_levels_is_not_broken() -> None:
    assert "│ south_and_west │" in "\n".join(printed(pd.DataFrame({"in_or_out": ["south_and_west"]})))
    assert "┃ in_or_out      ┃" in "\n".join(printed(pd.DataFrame({"in_or_out": ["south_and_west"]})))


@pytest.mark.parametrize(("tables", "lines"), [(LISTED, LISTED + 1), (LISTED + 1, 2)])
def test_many_tables_with_figures_far_off_have_one_caution_together(tables: int, lines: int) -> None:
    facts = {"statistic": "count", "factor": 2, "cells": "1 cell"}
    far = [str(Caution.of("far_off", table=f"table {number}", **facts)) for number in range(tables)]
    listed = stated_cautions({"cautions": ["δ is large", *far]})["cautions"].splitlines()
    assert len(listed) == lines
    assert "- δ is large [of_mechanism]" in listed
    assert all(f"table {number}" in " ".join(listed) for number in range(tables))
