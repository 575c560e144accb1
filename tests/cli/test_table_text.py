"""Tables on a screen of 80 columns: no word of a head and no figure is broken, and no line is longer."""

from __future__ import annotations

import re
from textwrap import wrap

import pandas as pd
import pytest
from rich.console import Console

from dpdist.cli.caution_lines import MOST_LINES, caution_lines
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


def far_off(tables: int) -> list[str]:
    facts = {"statistic": "count", "factor": 2, "cells": "1 cell"}
    return [Caution.of("far_off", table=f"table {number}", **facts).text for number in range(tables)]


@pytest.mark.parametrize("tables", [LISTED, LISTED + 1])
def test_many_tables_with_figures_far_off_have_one_caution_together(tables: int) -> None:
    """Control: up to `LISTED` tables have each their own, which do not all have room."""
    listed = stated_cautions({"cautions": ["δ is large", *far_off(tables)]})["cautions"].splitlines()
    assert ("more caution" in listed[-1]) == (tables == LISTED)
    if tables > LISTED:
        assert all(f"table {number}" in listed[0] for number in range(tables))
        assert listed[1] == "- δ is large [from_mechanism]"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("number", [1, 3, 9])
def test_cautions_take_five_lines_and_name_the_rest_by_code(number: int, width: int) -> None:
    """Control: two short cautions are both stated, and no code stands alone."""
    every = [
        Caution.of("fit_unseen", command="`dpdist report W --confidential`"),
        Caution.of("exact_losses", command="`dpdist audit W`"),
        *(Caution.of("far_off", table=f"table {k}", statistic="count", factor=2, cells="1 cell") for k in range(7)),
    ][:number]
    lines = caution_lines(every, width)
    assert sum(len(wrap(line, width)) for line in lines) <= MOST_LINES
    assert all(any(caution.code in line for line in lines) for caution in every)
    assert any(line.startswith(every[0].text[:40]) for line in lines)
    assert ("dpdist explain CODE" in lines[-1]) == (len(lines) <= len(every) and not lines[-1].startswith(every[-1].text))
    assert (number < 9) or "dpdist explain CODE" in lines[-1]
    short = [Caution("weak_guarantee", "ε is large."), Caution("large_delta", "δ is large.")]
    assert caution_lines(short, width) == ["ε is large. [weak_guarantee]", "δ is large. [large_delta]"]


@pytest.mark.parametrize("width", [60, 120])
def test_a_long_caution_is_its_first_sentence_and_small_counts_are_in_full(width: int) -> None:
    """Control: without a first sentence that fits, the code alone is named."""
    counts = Caution("small_counts", "Two counts are small. " + "They are published. " * 20, "Merge levels.")
    text = "The law does not fit. " + "A long explanation follows. " * 20
    first, second = caution_lines([Caution("distribution_misfits", text), counts], width)
    assert first == f"{counts} [small_counts]"
    assert second == "The law does not fit. [distribution_misfits]"
    assert caution_lines([Caution("distribution_misfits", text.replace(".", ","))], width) == [
        "1 caution (see `dpdist explain CODE`): distribution_misfits"
    ]
