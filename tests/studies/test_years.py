"""Coverage where the reference is an earlier year of the same public survey: the drift between real files.

`pytest -m slow -s tests/studies/test_years.py` prints the rows of docs/explanation/accuracy.md: noise has seeds. A sample
of the later year is released, and its other records are the truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from dpdist.core.records import Floats, Ints
from tests.mechanisms.table_populations import Figures, Files, Public, Release, Sample, cells_of, direct, release, tables_of

pytestmark = [pytest.mark.slow, pytest.mark.real_data]
SPLITS = 4
FEWEST = 10
"""Smallest number of records of a cell that is looked at, in the sample and among the others."""


class Years(NamedTuple):
    """A survey in two years. `tables` are positions of columns."""

    file: str
    period: str
    years: tuple[str, str]
    columns: tuple[str, ...]
    outcome: str
    weights: tuple[float, float]
    bounds: tuple[float, float]
    records: int
    tables: tuple[tuple[int, ...], ...]


VOTE = ("state", "age_group", "sex", "race")
OF_VOTE = ((0,), (1,), (2,), (1, 2), (0, 2), (3,), (1, 3))
SURVEYS = {
    "wages of men 20 years later": Years(
        *("cps_org_men.parquet", "period", ("1983-1985", "2003-2005")),
        *(("education", "experience", "union", "married", "nonwhite"), "wage", (0.0, 20.0), (0.0, 120.0), 5_000),
        ((0,), (1,), (0, 1), (2, 3), (0, 2), (1, 4), (0, 3, 4)),
    ),
    "voters of 1996, reference 1994": Years(
        "cps_vote.parquet", "year", ("1994", "1996"), VOTE, "voted", (0.0, 2e4), (0.0, 1.0), 3_000, OF_VOTE
    ),
    "voters of 2012, reference 2010": Years(
        "cps_vote.parquet", "year", ("2010", "2012"), VOTE, "voted", (0.0, 2e4), (0.0, 1.0), 3_000, OF_VOTE
    ),
    "tax units of 2014, reference 2012": Years(
        *("cps_taxunits.parquet", "income_year", ("2012", "2014")),
        *(("state", "filing_status", "age_group", "dependent_filer"), "wages", (0.0, 1e4), (0.0, 3e6), 8_000),
        ((0,), (1,), (2,), (0, 1), (1, 2), (3,), (2, 3)),
    ),
}


def samples(survey: Years, data: Path) -> tuple[list[Sample], tuple[int, ...]]:
    """Records of both years, the earlier one first, and numbers of levels."""
    names = [survey.period, "weight", *survey.columns, survey.outcome]
    rows = pd.read_parquet(data / survey.file, columns=names).dropna()
    levels = [sorted(set(rows[name].astype(str))) for name in survey.columns]
    outcome = rows[survey.outcome]
    values = (outcome.astype(str) == "Yes").astype(float) if survey.outcome == "voted" else outcome.astype(float)
    codes = [pd.Categorical(rows[c].astype(str), categories=of).codes for c, of in zip(survey.columns, levels, strict=True)]
    every = Sample(np.column_stack(codes).astype(np.int64), rows["weight"].to_numpy(float), values.to_numpy(float)[:, None])
    year = rows[survey.period].astype(str).to_numpy()
    return [taken(every, np.flatnonzero(year == one)) for one in survey.years], tuple(map(len, levels))


def taken(sample: Sample, records: Ints) -> Sample:
    return Sample(*(part[records] for part in sample))


def measured(survey: Years, data: Path, epsilon: float, same_year: bool = False) -> tuple[Floats, Floats]:
    """Coverage of 90 % intervals with joint errors of release and truth, median errors in direct ones: counts, means."""
    (earlier, later), sizes = samples(survey, data)
    public = Public(sizes, survey.tables, survey.weights, (survey.bounds,))
    covered, off = list[Floats](), list[Floats]()
    for split in range(SPLITS):
        rng = np.random.default_rng([7, split])
        order = rng.permutation(len(later.weight))
        number = min(survey.records, len(order) // 3)
        current, others = taken(later, order[:number]), taken(later, order[2 * number :])
        reference = taken(later, order[number : 2 * number])
        if not same_year:
            reference = taken(earlier, rng.permutation(len(earlier.weight))[: survey.records])
        of_file = release(public, Files(reference, current), epsilon, split)
        for by in tables_of(public):
            cell, (_, place) = cells_of(of_file.model.codes, [reference.codes, others.codes], by)
            cells, inside, figures = int(cell.max()) + 1, np.flatnonzero(place >= 0), of_file.figures(cell)
            sampled = direct(current, cell[of_file.base], cells)
            truth = direct(taken(others, inside), place[inside], cells, sampled.records)
            large = (sampled.records >= FEWEST) & (truth.records >= FEWEST)
            errors = np.sqrt(figures.errors**2 + truth.errors**2 + numbers_of_records(of_file, cell, figures))
            distance = np.abs(figures.values - truth.values) / errors
            covered.append((distance <= 1.645)[large])
            unit = np.maximum(np.maximum(sampled.errors, 2.5e-3 * np.abs(sampled.values)), 1e-9)
            off.append((np.abs(figures.values - sampled.values) / unit)[large])
    return np.concatenate(covered).mean(axis=0), np.median(np.concatenate(off), axis=0)


def numbers_of_records(of_file: Release, cell: Ints, figures: Figures) -> Floats:
    """Variances of a table's figures by the sample's numbers of records in base cells, given those in the table's cells,
    (cell, 1 + outcome): published errors are given them, and the truth has other ones.
    """
    size, sums = of_file.model.count, of_file.sums
    count, mean = figures.values[:, :1], figures.values[:, 1:]
    average = (count[:, 0] / np.bincount(cell, weights=size))[cell]
    apart = np.column_stack([sums[:, 0] - size * average, sums[:, 1:] - sums[:, :1] * mean[cell]]) / size[:, None]
    squares = np.column_stack([np.bincount(cell, weights=size * part**2) for part in apart.T])
    return np.asarray(squares / np.column_stack([np.ones(len(count)), *[count**2] * mean.shape[1]]))


@pytest.mark.parametrize("name", SURVEYS)
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_coverage_after_years_is_what_accuracy_states(name: str, epsilon: float, data: Path) -> None:
    """Coverage is printed: the target of .86 is missed after some drifts. With a reference of the same year, the
    control, it is .9 to .98.
    """
    coverage, errors = measured(SURVEYS[name], data, epsilon)
    control, _ = measured(SURVEYS[name], data, epsilon, same_year=True)
    print(
        f"{name}, epsilon {epsilon}: coverage {coverage.round(2)}, errors {errors.round(2)}; same year {control.round(2)}"
    )
    assert (control >= 0.86).all()
    assert (coverage >= 0.6).all()
