"""Measures published figures by three parts of a file: a current one, its reference, and a third that stands for the truth.

The parts are independent samples of one population. So the third part gives the truth, with an error of its own. An
interval is judged by the distance of its figure from the third part's. Both errors count in this distance.

Errors are those given n, the numbers of records in the base cells: the three parts have the same ones. Base cells are
strata then, and records are drawn one by one, whatever the survey's design: parts of a file share its clusters.
A published error that holds the random sizes of cells is reduced by as much as the direct one is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.core.table_cells import cross
from dpdist.estimation.direct import Design
from dpdist.estimation.further import Direct
from dpdist.evaluation.under_design import NOMINAL, SAME, without_error
from dpdist.job import Job, Table
from dpdist.survey.census import take_census
from dpdist.survey.placement import records_as_they_came
from dpdist.survey.source import open_file

ESTIMATES = ("value", "error", "design_error", "df")
"""Columns of `given_sizes`."""
LEFT_OVER = 3
"""The number of records that make no third of their cell. They are in the reference."""


class Parts(NamedTuple):
    """Paths of three files: the one to release, its reference, and the one that stands for the truth."""

    current: Path
    earlier: Path
    truth: Path


def numbered(keys: pd.DataFrame) -> Ints:
    """The number of each record's cell, (record,): records of one cell have the same keys, as texts."""
    texts = keys.astype(str)
    return np.asarray(texts.groupby(list(texts), sort=False).ngroup(), dtype=np.int64)


def thirds(cell: Ints, rng: np.random.Generator) -> Ints:
    """Splits records at random into thirds 0, 1 and 2 of the same size in every cell, (record,); the rest is LEFT_OVER."""
    shuffled, place = rng.permutation(len(cell)), np.empty(len(cell), dtype=np.int64)
    place[shuffled] = pd.Series(cell[shuffled]).groupby(cell[shuffled]).cumcount().to_numpy()
    return np.where(place < np.bincount(cell)[cell] // 3 * 3, place % 3, LEFT_OVER)


def parted(third: Ints, current: int = 0, earlier: int = 1) -> Iterator[NDArray[np.bool_]]:
    """Yields which records are in each of `Parts`, (record,). The third that has no other role is the truth."""
    yield third == current
    yield (third == earlier) | (third == LEFT_OVER)
    yield third == 3 - current - earlier


def given_sizes(job: Job, path: Path) -> dict[str, pd.DataFrame]:
    """Direct estimates of a file by table, with errors given the base cells' sizes.

    Columns: those of the table, `statistic`, `variable`, and `value`, `error`, `df`. `design_error` is the error under the
    job's design strata, also without clusters. Raises `DataError`.
    """
    source = open_file(path, job.input)
    census = take_census(job, source)
    passes = [records_as_they_came(job, source, census, number) for number in range(len(job.outcomes))]
    strata = Direct.of(job, census.frame, Design(lonely="certainty"), passes).without_clusters
    cells = replace(strata, frame=replace(census.frame, design_strata=tuple(census.frame.codes)))
    return {table.name: _estimates(cells, strata, table) for table in job.tables}


def _estimates(direct: Direct, by_strata: Direct, table: Table) -> pd.DataFrame:
    cells = cross(direct.frame, table.by, table.margins)
    df = cells.membership @ np.maximum(direct.frame.count - 1.0, 0.0)
    frames = []
    for statistic in table.statistics:
        value, variance = direct.estimate(cells, statistic)
        error, design_error = np.sqrt(variance), np.sqrt(by_strata.estimate(cells, statistic).variance)
        rows = pd.DataFrame(list(cells.labels), columns=list(table.by), index=range(len(cells)))
        rows["statistic"], rows["variable"] = statistic.label, statistic.about
        rows = rows.assign(value=value, error=np.where(without_error(value, error), 0.0, error))
        frames.append(rows.assign(design_error=design_error, df=df))
    return pd.concat(frames, ignore_index=True)


def beside_truth(
    evaluation: pd.DataFrame, current: pd.DataFrame, truth: pd.DataFrame, clusters: bool = False
) -> pd.DataFrame:
    """Says of every row of an evaluation whether two intervals hold the truth: `covered` and `direct_covered`, (row,).

    `current` and `truth` are estimates of `given_sizes` for the released file and the third. Both columns are 1, 0, or NaN
    where a part has no direct error. A published figure without an interval counts as not held. `clusters` says whether
    published errors hold those of clusters.
    """
    keys = [*evaluation.columns[: evaluation.columns.get_loc("statistic")], "statistic", "variable"]
    left = evaluation.astype(dict.fromkeys(keys, object))
    for name, rows in (("now", current), ("truth", truth)):
        named = rows.rename(columns={column: f"{name}_{column}" for column in ESTIMATES})
        left = left.merge(named.astype(dict.fromkeys(keys, object)), on=keys, how="left", validate="one_to_one")
    figure = {name: left[name].to_numpy(dtype=float) for name in left.columns if name not in keys and _numeric(left[name])}
    other = _half_width(figure["truth_error"], figure["truth_df"])
    judged = np.isfinite(other) & np.isfinite(figure["now_error"]) & (figure["now_df"] > 0)
    gap = figure["truth_value"] - figure["synthetic"]
    below = figure["synthetic"] - figure["synthetic_lower"]
    above = figure["synthetic_upper"] - figure["synthetic"]
    width = np.where(gap < 0, below, above) * _share_given_sizes(figure, clusters)
    same = SAME * np.abs(figure["truth_value"])
    held = np.abs(gap) <= np.hypot(width, other) + same
    apart = np.abs(figure["truth_value"] - figure["now_value"])
    direct = apart <= np.hypot(_half_width(figure["now_error"], figure["now_df"]), other) + same
    columns = {"covered": np.where(judged, held, np.nan), "direct_covered": np.where(judged, direct, np.nan)}
    return pd.DataFrame(columns, index=evaluation.index)


def _numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column)


def _half_width(error: Floats, df: Floats) -> Floats:
    """Half width of a direct interval, (row,); NaN without degrees of freedom."""
    return np.asarray(scipy.special.stdtrit(np.where(df > 0, df, np.nan), (1.0 + NOMINAL) / 2.0) * error)


def _share_given_sizes(figure: dict[str, Floats], clusters: bool) -> Floats:
    """The share of a published standard error that is left given the cells' sizes, and without clusters, (row,).

    A published error holds the sampling error under the job's design, and that of clusters if the job states their effect.
    """
    design = figure["direct_se"] if clusters else np.fmin(figure["direct_se"], figure["now_design_error"])
    sizes = np.maximum(design**2 - figure["now_error"] ** 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = 1.0 - np.nan_to_num(sizes) / figure["synthetic_se"] ** 2
    return np.sqrt(np.clip(np.nan_to_num(left, nan=1.0), 0.0, 1.0))
