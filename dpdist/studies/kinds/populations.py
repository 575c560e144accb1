"""Simulated surveys and informative samples of a file that is taken for the population, with the errors of their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.files import scratch
from dpdist.core.records import Cells, Crosstab, Floats, Ints
from dpdist.estimation.direct import Totals, totals
from dpdist.job import Job, StatisticName
from dpdist.quality.evaluate import truth_in_cells
from dpdist.studies.settings import Result
from dpdist.survey.census import place, take_census
from dpdist.survey.simulate import Truth
from dpdist.survey.source import open_source

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
        resamples = rng.integers(0, number, (BATCHES, number))
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
                    ratio, error = _ratio(both[0].to_numpy(), both[1].to_numpy(), resamples)
                    rows = pd.DataFrame({"cell": both[0].columns, "value": ratio})
                    rows = rows.assign(measure=f"{statistic}_ratio_{other}")
                    again = pd.DataFrame({"cell": ["median"], "value": [error]})
                    again = again.assign(measure=f"{statistic}_ratio_{other}{MONTE_CARLO}")
                    frames.append(pd.concat([rows, again]).assign(case=str(case), mechanism=label, epsilon=str(epsilon)))
    return pd.concat(frames, ignore_index=True)[["case", "mechanism", "epsilon", "cell", "measure", "value"]]


def _ratio(
    square: Floats, other: Floats, resamples: np.ndarray[tuple[int, int], np.dtype[np.int64]]
) -> tuple[Floats, float]:
    """Ratio by cell, from squared errors (replicate, cell), and the standard error of its median."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt(np.nanmean(square, axis=0) / np.nanmean(other, axis=0))
        rows = resamples % len(square)
        medians = [np.nanmedian(np.sqrt(np.nanmean(square[k], axis=0) / np.nanmean(other[k], axis=0))) for k in rows]
    return ratio, float(np.std(medians, ddof=1))


NOISE = 0.4
"""Standard deviation of the noise in log size, given the outcome."""
SIZE = "size of unit"
WEIGHT = "weight"


def informative_size(y: Floats, rng: np.random.Generator) -> Floats:
    """(y + ȳ/2)·exp(.4 z) with z normal; positive even for y = 0."""
    return np.asarray((y + y.mean() / 2.0) * np.exp(NOISE * rng.standard_normal(len(y))))


def inclusion(size: Floats, n: int) -> Floats:
    """min(1, c·size), (unit,), with c so that they sum to n. Raises `ValueError` unless n < units."""
    if n >= len(size):
        raise ValueError(f"a sample of {n:,} from {len(size):,} units leaves none out: use a smaller one")
    certain = np.zeros(len(size), dtype=bool)
    while True:
        chance = np.where(certain, 1.0, (n - certain.sum()) * size / size[~certain].sum())
        over = chance > 1.0
        if not over.any():
            return chance
        certain |= over


def systematic(chance: Floats, rng: np.random.Generator) -> Ints:
    """Positions of a systematic sample in random order, (sampled,)."""
    order = rng.permutation(len(chance))
    steps = rng.random() + np.cumsum(chance[order])
    before = np.concatenate([[steps[0] - chance[order[0]]], steps[:-1]])
    return np.sort(order[np.floor(steps) > np.floor(before)])


def systematic_sample(rows: pd.DataFrame, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A systematic sample of n units, proportional to size; weights are inverse probabilities."""
    chance = inclusion(rows[SIZE].to_numpy(float), n)
    selected = systematic(chance, rng)
    return rows.iloc[selected].drop(columns=SIZE).assign(**{WEIGHT: 1.0 / chance[selected]}).reset_index(drop=True)


@dataclass(frozen=True)
class SimulatedSurvey:
    """A sample, the table's cells, the truth in them, and direct totals."""

    crosstab: Crosstab
    records: Records
    cells: Cells
    truth: dict[str, Floats]
    totals: Totals


def placed_survey(job: Job, truth: Truth | None = None) -> SimulatedSurvey:
    """Records in their crosstab, with the population's figures: `truth`, or those of a simulation."""
    source = open_source(job)
    truth = truth or source.truth
    assert truth is not None
    census = take_census(job, source)
    crosstab = census.crosstab
    with scratch() as folder:
        records = Records.joined([place(job, source, census, folder)])
    cells, figures = job.tables[0].cells(crosstab), truth_in_cells(truth, job, job.tables[0], crosstab)
    return SimulatedSurvey(crosstab, records, cells, figures, totals([records], crosstab, clustered=False))


def errors_of(
    label: str, epsilon: str, values: Mapping[StatisticName, Floats], survey: SimulatedSurvey
) -> Iterator[Result]:
    """(estimate − truth)/truth by cell; a cell without a record has no mean."""
    for statistic in STATISTICS:
        error = values[statistic] / survey.truth[statistic] - 1.0
        for cell, value in zip(survey.cells.labels, error, strict=True):
            if np.isfinite(value):
                yield Result(label, epsilon, f"{statistic} error {' / '.join(cell)}", float(value))
