"""For several kinds of study: errors of tables, ratios of errors by cell, and captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.job import StatisticName
from dpdist.studies.kinds.protocol import Caption

STATISTICS: tuple[StatisticName, ...] = ("count", "mean")


BATCHES = 50


MONTE_CARLO = "_monte_carlo"
"""Suffix of the measure with the standard error of a median over cells, from resampled replicates."""


def ratios(seed: int, yardsticks: Sequence[str], results: pd.DataFrame) -> pd.DataFrame:
    """Ratios of every arm's RMSE to every yardstick's: case, mechanism, epsilon, cell, measure, value.

    `_monte_carlo` is the standard error of a median over cells.
    """
    errors = results[results["measure"].str.contains(" error ")]
    split = errors["measure"].str.split(" error ", n=1, expand=True)
    errors = errors.assign(statistic=split[0], cell=split[1])
    rng = np.random.default_rng(seed)
    frames: list[pd.DataFrame] = []
    for (case, epsilon), part in errors.groupby(["case", "epsilon"], sort=False):
        number = int(part["replicate"].nunique())
        drawn = rng.integers(0, number, (BATCHES, number))
        for statistic in STATISTICS:
            mine = part[part["statistic"] == statistic]
            signed = {
                str(label): rows_of_arm.pivot(index="replicate", columns="cell", values="value")
                for label, rows_of_arm in mine.groupby("mechanism", sort=False)
            }
            squares = {label: values**2 for label, values in signed.items()}
            for other in yardsticks:
                for label, square in squares.items():
                    if label == other:
                        continue
                    both = square.align(squares[other])
                    ratio, error = _ratio(both[0].to_numpy(), both[1].to_numpy(), drawn)
                    rows = pd.DataFrame({"cell": both[0].columns, "value": ratio})
                    rows = rows.assign(measure=f"{statistic}_ratio_{other}")
                    again = pd.DataFrame({"cell": ["median"], "value": [error]})
                    again = again.assign(measure=f"{statistic}_ratio_{other}{MONTE_CARLO}")
                    frames.append(pd.concat([rows, again]).assign(case=str(case), mechanism=label, epsilon=str(epsilon)))
    return pd.concat(frames, ignore_index=True)[["case", "mechanism", "epsilon", "cell", "measure", "value"]]


def _ratio(square: Floats, other: Floats, drawn: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> tuple[Floats, float]:
    """Ratio by cell, from squared errors (replicate, cell), and the standard error of its median."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt(np.nanmean(square, axis=0) / np.nanmean(other, axis=0))
        rows = drawn % len(square)
        medians = [np.nanmedian(np.sqrt(np.nanmean(square[k], axis=0) / np.nanmean(other[k], axis=0))) for k in rows]
    return ratio, float(np.std(medians, ddof=1))


RATIO_TITLES = {
    "direct": "RMSE of {}s over the direct estimate's",
    "laplace": "RMSE of {}s over Laplace's, all of ε in every figure",
    "laplace_composed": "RMSE of {}s over Laplace's, ε shared",
    "laplace_strict": "RMSE of {}s over strict Laplace tables'",
}


RATIO = (
    "Root mean squared error against the truth over replicates, cell by cell, over the yardstick's; means and standard "
    "deviations here are over the cells. Below 1 the synthetic table is the better one."
)


COVERAGE_TITLE = "proportion of cells whose 90 % interval holds the true {}"


COVERED = (
    "Nominal .90, with the standard errors that a release publishes (direct estimates: Taylor, t); the mean over "
    "replicates has a Monte Carlo error of the sd over √R. Over "
)


MARGINS = "the margins, where it hardly matters that the model has no interaction of field and sex."


ALL_CELLS = "all cells of the table."


def ratio(statistic: str, yardstick: str, reading: str = RATIO) -> Caption:
    return Caption(RATIO_TITLES[yardstick].format(statistic), reading, "ratio of RMSE")


def ratios_of_errors(yardsticks: tuple[str, ...]) -> dict[str, Caption]:
    return {f"{name}_ratio_{other}": ratio(name, other) for name in STATISTICS for other in yardsticks}


def coverages() -> dict[str, Caption]:
    """Captions for 90 % intervals, over all cells."""
    return {f"{name}_coverage": Caption(COVERAGE_TITLE.format(name), COVERED + ALL_CELLS) for name in STATISTICS}
