"""Computes ratios of root mean squared errors (RMSE) by cell, from the errors of all replicates of a study of tables."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.studies.kinds.tables_settings import STATISTICS

BATCHES = 50
MONTE_CARLO = "_monte_carlo"
"""Suffix of the measure that holds the standard error, over resampled replicates, of a median over cells."""


class Compared(Protocol):
    """The settings of a study that ratios need: its seed, and the labels of its yardsticks."""

    @property
    def seed(self) -> int: ...

    @property
    def yardsticks(self) -> tuple[str, ...]: ...


def ratios(study: Compared, results: pd.DataFrame) -> pd.DataFrame:
    """RMSE of every arm divided by the RMSE of every yardstick: case, mechanism, epsilon, cell, measure, value.

    With one yardstick there are also rows named `_bias_`: every arm's |mean error| over the yardstick's RMSE. Measures with
    the suffix `_monte_carlo` hold the standard error of the median over cells.
    """
    errors = results[results["measure"].str.contains(" error ")]
    split = errors["measure"].str.split(" error ", n=1, expand=True)
    errors = errors.assign(statistic=split[0], cell=split[1])
    rng, only = np.random.default_rng(study.seed), len(study.yardsticks) == 1
    found: list[pd.DataFrame] = []
    for (case, epsilon), part in errors.groupby(["case", "epsilon"], sort=False):
        number = int(part["replicate"].nunique())
        drawn = rng.integers(0, number, (BATCHES, number))
        for statistic in STATISTICS:
            mine = part[part["statistic"] == statistic]
            signed = {
                str(label): own.pivot(index="replicate", columns="cell", values="value")
                for label, own in mine.groupby("mechanism", sort=False)
            }
            squares = {label: values**2 for label, values in signed.items()}
            if only:
                (yardstick,) = study.yardsticks
                unit = np.sqrt(squares[yardstick].mean())
                for label, values in signed.items():
                    bias = (values.mean().abs() / unit).rename_axis("cell").reset_index(name="value")
                    bias = bias.assign(measure=f"{statistic}_bias_{yardstick}")
                    found.append(bias.assign(case=str(case), mechanism=label, epsilon=str(epsilon)))
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
                    found.append(pd.concat([rows, again]).assign(case=str(case), mechanism=label, epsilon=str(epsilon)))
    return pd.concat(found, ignore_index=True)[["case", "mechanism", "epsilon", "cell", "measure", "value"]]


def _ratio(square: Floats, other: Floats, drawn: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> tuple[Floats, float]:
    """Ratio in every cell, from squared errors (replicate, cell), and the standard error of its median over cells."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt(np.nanmean(square, axis=0) / np.nanmean(other, axis=0))
        rows = drawn % len(square)
        medians = [np.nanmedian(np.sqrt(np.nanmean(square[k], axis=0) / np.nanmean(other[k], axis=0))) for k in rows]
    return ratio, float(np.std(medians, ddof=1))
