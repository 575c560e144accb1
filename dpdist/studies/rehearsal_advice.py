"""Gives advice if no mechanism of a rehearsal is good enough: which figures exceed their limits, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from dpdist.evaluation.under_design import NOMINAL
from dpdist.studies.rehearsal_trials import (
    GOOD_BIAS,
    GOOD_COVERAGE,
    GOOD_ERROR,
    GOOD_LARGEST,
    Rehearsal,
    Trial,
)

FEW = 10
"""Number of records of a cell, in one third of the file, below which its direct standard error is itself uncertain."""
NAMED = 8
"""Largest number of cells that are named."""
COARSEN = (
    "Publish these cells in coarser ones: merge their levels in `columns`, leave a column out of the table, or make two "
    "tables of fewer columns. A whole file has three times the records of a third"
)
LARGER = (
    "These cells have records enough: raise the budget, state narrower public bounds, or put the skewed ones into strata "
    "of their own"
)
NOISY = "Most cells are too noisy: raise the budget (`dpdist plan --for-error 0.5` says to what), or publish fewer figures"
SHIFTED = "Figures are off to one side: clipping or borrowed shapes bias them. Raise the budget, or merge small cells"
MISSED = (
    "Intervals miss the truth more often than direct ones do: quote them with care, merge small cells, or take another "
    "mechanism"
)


def advice(made: Rehearsal) -> list[str]:
    """Returns sentences on figures that exceed their limits, and on remedies; empty if a mechanism is good enough."""
    if made.good:
        return []
    thirds = {"the first third": made.best, "the other third": made.confirmed}
    return list(dict.fromkeys(line for name, each in thirds.items() if each is not None for line in _of_trial(name, each)))


def _of_trial(third: str, trial: Trial) -> Iterator[str]:
    rows = trial.by_statistic
    far = rows[rows["largest"] > GOOD_LARGEST]
    for row in far.to_dict("records"):
        cells = _far_cells(trial, row["table"], row["statistic"])
        few = cells[cells["records"] < FEW]
        yield (
            f"{third}, {row['table']}, {row['statistic']}: {len(cells)} of {row['cells']} cells are more than "
            f"{GOOD_LARGEST:g} direct standard errors off, {len(few)} of them with fewer than {FEW} records in the third: "
            f"{_listed(cells)}"
        )
        if len(few):
            yield COARSEN
        if len(few) < len(cells):
            yield LARGER
    limits = {"median": (GOOD_ERROR, NOISY), "bias": (GOOD_BIAS, SHIFTED)}
    for figure, (limit, remedy) in limits.items():
        for row in rows[rows[figure].abs() > limit].to_dict("records"):
            yield f"{third}, {row['table']}, {row['statistic']}: {figure} error {row[figure]:.2f}, limit {limit:g}"
            yield remedy
    beyond = (NOMINAL - rows["direct"]).clip(lower=0.0)
    for row in rows[rows["coverage"] + beyond < GOOD_COVERAGE].to_dict("records"):
        yield (
            f"{third}, {row['table']}, {row['statistic']}: intervals hold {row['coverage']:.2f} of the truth, direct ones "
            f"{row['direct']:.2f}; the limit is {GOOD_COVERAGE - max(NOMINAL - row['direct'], 0.0):.2f}"
        )
        yield MISSED


def _far_cells(trial: Trial, table: str, statistic: str) -> pd.DataFrame:
    """Returns cells whose error exceeds the limit in at least one draw, largest errors first, with their records."""
    own = trial.cells[(trial.cells["table"] == table) & (trial.cells["statistic"] == statistic)]
    cells = own.groupby("cell", sort=False).agg(error=("error_in_direct_se", "max"), records=("records", "first"))
    return cells[cells["error"] > GOOD_LARGEST].sort_values("error", ascending=False)


def _listed(cells: pd.DataFrame) -> str:
    named = [f"{name} ({int(row['records'])} records)" for name, row in cells.head(NAMED).iterrows()]
    return ", ".join(named) + (f", and {len(cells) - NAMED} more" if len(cells) > NAMED else "")
