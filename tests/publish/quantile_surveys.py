"""Surveys of lognormal incomes by group and area, released in memory, and how often intervals of quantiles hold the truth.

Answers may be heaped, as survey answers are: multiples of 1,000, 5,000, 10,000 and 24,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Crosstab, Floats, Ints
from dpdist.job import Job
from dpdist.quality.predicted.replicates import PublicReplicate, release_of, tables_of
from dpdist.survey.census import take_census
from dpdist.survey.source import open_source

GROUPS, AREAS = ("a", "b", "c", "d"), tuple("012345")
MIDDLE, WEIGHT = np.log([8_000.0, 15_000.0, 30_000.0, 50_000.0]), np.array([20.0, 60.0, 40.0, 100.0])
SPREAD = 0.8
STEPS, HEAPED = np.array([1_000.0, 5_000.0, 10_000.0, 24_000.0]), (0.25, 0.2, 0.3, 0.1)
"""Steps to which answers are rounded, and the parts of answers that are; the others are exact."""
LEVELS = {"median": 0.5, "quantile 0.25": 0.25, "quantile 0.9": 0.9}
POPULATION = 200_000
OF_GROUPS = "{median: income}, {quantile: income, at: 0.25}, {quantile: income, at: 0.9}"
JOB = """
dataset: incomes
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  group: {{levels: [a, b, c, d]}}
  area: {{levels: ["0", "1", "2", "3", "4", "5"]}}
  income: {{bounds: [0, 1000000], outside: clip}}
  weight: {{bounds: [0.1, 2000], outside: clip}}
survey: {{weight: weight}}
outcome: income
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "1"}}
{reference}
tables:
  - {{name: groups, by: [group], statistics: [{of_groups}]}}
  - {{name: areas, by: [group, area], margins: false, statistics: {of_areas}}}
runtime: {{executor: serial}}
"""


class Survey(NamedTuple):
    """`cell_records` in every group and area; weights of the first area are `light` times the others'."""

    cell_records: int = 400
    heaped: bool = False
    light: float = 1.0
    drift: float = 0.0
    """Change of log incomes since the reference."""
    without: float = 0.0
    """The part of records with an income of 0."""

    def incomes(self, group: Ints, rng: np.random.Generator, drift: float = 0.0) -> Floats:
        exact = np.exp(MIDDLE[group] + drift + SPREAD * rng.standard_normal(len(group)))
        if self.heaped:
            step = np.array([np.nan, *STEPS])[rng.choice(5, len(group), p=(1.0 - sum(HEAPED), *HEAPED))]
            exact = np.where(np.isnan(step), exact, np.fmax(np.rint(exact / step), 1.0) * step)
        exact = np.where(rng.random(len(group)) < self.without, 0.0, exact) if self.without else exact
        return np.clip(exact, 0.0, 1e6)

    def sample(self, rng: np.random.Generator, drift: float = 0.0) -> Records:
        row = np.repeat(np.arange(len(GROUPS) * len(AREAS)), self.cell_records)
        group, area = row // len(AREAS), row % len(AREAS)
        weight = WEIGHT[group] * np.where(area == 0, self.light, 1.0) * rng.choice([0.5, 0.8, 1.0, 1.7], len(row))
        number = np.arange(len(row))
        return Records(number, row.astype(np.int32), self.incomes(group, rng, drift)[:, None], weight, number)

    def truths(self) -> dict[tuple[str, str], float]:
        rng = np.random.default_rng(99)
        pools = [np.sort(self.incomes(np.full(POPULATION, g), rng, self.drift)) for g in range(len(GROUPS))]
        everybody, weight = np.concatenate(pools), np.repeat(WEIGHT, POPULATION)
        order = np.argsort(everybody, kind="stable")
        reached = np.cumsum(weight[order]) / weight.sum()
        found = {}
        for statistic, level in LEVELS.items():
            found[TOTAL, statistic] = float(everybody[order][np.searchsorted(reached, level)])
            found |= {(g, statistic): float(v[int(level * len(v))]) for g, v in zip(GROUPS, pools, strict=True)}
        return found


REFERENCE_TABLES = "tables"


def job_of(
    folder: Path, survey: Survey, *, reference: bool, of_areas: str = "[count]", mechanism: str = REFERENCE_TABLES
) -> tuple[Job, Crosstab]:
    records = survey.sample(np.random.default_rng(0))
    columns = {
        "group": np.array(GROUPS)[records.row // len(AREAS)],
        "area": np.array(AREAS)[records.row % len(AREAS)],
        **{"income": records.outcome, "weight": records.weight},
    }
    pd.DataFrame(columns).to_parquet(folder / "now.parquet")
    path = f"reference: {{path: {folder}/now.parquet}}" if reference else ""
    text = JOB.format(folder=folder, reference=path, of_groups=OF_GROUPS, of_areas=of_areas, mechanism=mechanism)
    job = dpdist.parse_job(text)
    return job, take_census(job, open_source(job)).crosstab


def released_quantiles(
    folder: Path, survey: Survey, replicates: int, *, reference: bool, mechanism: str = REFERENCE_TABLES
) -> pd.DataFrame:
    """Published quantiles of independent samples, references and noises, with their truth, one row each."""
    job, crosstab = job_of(folder, survey, reference=reference, mechanism=mechanism)
    rows, truths = list[pd.DataFrame](), survey.truths()
    for number in range(replicates):
        rng = np.random.default_rng([7, number])
        now, before = survey.sample(rng, survey.drift), survey.sample(rng) if reference else None
        made = release_of(job, crosstab, PublicReplicate(now, before), Key(bytes(31) + b"q").child(str(number)))
        table = tables_of(made)["groups"]
        rows.append(table[table["estimator"] == "parameters"].assign(replicate=number))
    published = pd.concat(rows, ignore_index=True)
    cells = zip(published["group"], published["statistic"], strict=True)
    return published.assign(truth=[truths[cell] for cell in cells])


def held(published: pd.DataFrame, shift: float = 1.0) -> pd.Series:
    """Whether intervals hold the truth; of another truth, `shift` times it, as a control."""
    truth = published["truth"] * shift
    return (published["lower"] <= truth) & (truth <= published["upper"])


def by_replicate(published: pd.DataFrame, shift: float = 1.0) -> Iterator[float]:
    """The part of a replicate's intervals that hold the truth; replicates are independent."""
    yield from held(published, shift).groupby(published["replicate"]).mean()
