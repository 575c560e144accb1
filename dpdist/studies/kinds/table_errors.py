"""For several kinds of study: errors of tables, ratios of errors by cell, and captions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.job import StatisticName
from dpdist.studies.kinds.protocol import Caption

STATISTICS: tuple[StatisticName, ...] = ("count", "mean")


SIZES = ("median", "max")
"""Summaries over cells of |error| in direct standard errors."""


def sizes_of(statistic: str) -> tuple[str, ...]:
    """Summaries of a statistic's errors; for counts also for fixed cell sizes."""
    given = tuple(f"given_{size}" for size in SIZES) if statistic == "count" else ()
    return (*SIZES, *given)


def scale(size: str) -> str:
    """Names the direct standard errors that are the unit."""
    return "given the cells' sizes" if size.startswith("given_") else "as designed"


BATCHES = 50


MONTE_CARLO = "_monte_carlo"
"""Suffix of the measure with the standard error of a median over cells, from resampled replicates."""


class Compared(Protocol):
    """What `ratios` needs of a study."""

    @property
    def seed(self) -> int: ...

    @property
    def yardsticks(self) -> tuple[str, ...]: ...


def ratios(study: Compared, results: pd.DataFrame) -> pd.DataFrame:
    """Ratios of every arm's RMSE to every yardstick's: case, mechanism, epsilon, cell, measure, value.

    With one yardstick it adds `_bias_`, |mean error| over its RMSE. `_monte_carlo` is the standard error of a median
    over cells.
    """
    errors = results[results["measure"].str.contains(" error ")]
    split = errors["measure"].str.split(" error ", n=1, expand=True)
    errors = errors.assign(statistic=split[0], cell=split[1])
    rng, only = np.random.default_rng(study.seed), len(study.yardsticks) == 1
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
            if only:
                (yardstick,) = study.yardsticks
                unit = np.sqrt(squares[yardstick].mean())
                for label, values in signed.items():
                    bias = (values.mean().abs() / unit).rename_axis("cell").reset_index(name="value")
                    bias = bias.assign(measure=f"{statistic}_bias_{yardstick}")
                    frames.append(bias.assign(case=str(case), mechanism=label, epsilon=str(epsilon)))
            for other in study.yardsticks:
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


WITHOUT = (
    "Where cells are no design strata, a count's holds the chance in the number of the cell's records, which is released.",
    "The number of a cell's records is released, and its chance is left out: base cells are strata.",
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


def biases() -> dict[str, Caption]:
    reading = (
        "|Mean error over replicates| over the direct estimate's RMSE, cell by cell; without bias it is about .8/√R times "
        "the ratio of RMSEs."
    )
    return {f"{name}_bias_direct": Caption(f"|bias| of {name}s / direct RMSE", reading) for name in STATISTICS}


def errors_in_direct_se() -> Mapping[str, Caption]:
    """Captions for single releases, and for the last releases of a chain."""
    times = (
        ("", "", ""),
        ("last_", ", last release", ", of the chain's last release"),
        ("late_", ", last quarter of the chain", ", mean over the chain's last quarter"),
    )
    return {
        f"{name}_{when}{size}": _error(name, size, title, whose or "; of a chain, the mean over its releases")
        for name in STATISTICS
        for size in sizes_of(name)
        for when, title, whose in times
    }


def _error(statistic: str, size: str, when: str, whose: str) -> Caption:
    given = size.startswith("given_")
    which = "largest" if size.endswith("max") else "median"
    reading = (
        f"|published − direct estimate| over the direct estimate's standard error {scale(size)}, {which} over cells and "
        f"margins{whose}. {WITHOUT[given]}"
    )
    title = f"{size.removeprefix('given_')} |error| of {statistic}s in direct standard errors {scale(size)}{when}"
    return Caption(title, reading, "direct standard errors" + (" given sizes" if given else ""))


def chain_epsilon() -> dict[str, Caption]:
    reading = "The sum of all releases' ε, by adaptive composition: what a person in all files loses."
    return {"chain_epsilon": Caption("ε of a person in all files of the chain", reading)}
