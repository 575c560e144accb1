"""Captions for measures that several kinds of study share: errors, ratios of errors, coverage, costs of chains."""

from __future__ import annotations

from collections.abc import Mapping

from dpdist.studies.kinds.protocol import Caption
from dpdist.studies.kinds.tables_settings import STATISTICS, scale, sizes_of

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
    """Captions of the coverage of 90 % intervals, over all cells."""
    return {f"{name}_coverage": Caption(COVERAGE_TITLE.format(name), COVERED + ALL_CELLS) for name in STATISTICS}


def biases() -> dict[str, Caption]:
    reading = (
        "|Mean error over replicates| over the direct estimate's RMSE, cell by cell; without bias it is about .8/√R times "
        "the ratio of RMSEs."
    )
    return {f"{name}_bias_direct": Caption(f"|bias| of {name}s / direct RMSE", reading) for name in STATISTICS}


def errors_in_direct_se() -> Mapping[str, Caption]:
    """Captions of |error| in direct standard errors, for single releases and for the last release of a chain."""
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
