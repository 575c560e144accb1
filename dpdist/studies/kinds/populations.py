"""For kinds of study with a reference: simulates populations, and draws samples from them.

The population `smooth` meets the assumptions of these mechanisms; each other population violates one.

The samples are informative: inclusion probabilities are proportional to a unit's `size`, which may depend on its outcome
`y`. Units are in a `cell`. For each population there is a job with one table by cell.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats, Frame, Ints
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.direct import Totals, totals
from dpdist.job import Budget, Frozen, Job, Name, StatisticName
from dpdist.quality.compare import truth_in_cells
from dpdist.studies.kinds.protocol import Result
from dpdist.studies.kinds.table_errors import STATISTICS
from dpdist.studies.settings import Study
from dpdist.survey.census import take_census
from dpdist.survey.placement import place
from dpdist.survey.simulate import TOP_CODE
from dpdist.survey.source import Source, open_source

PopulationName = Literal["smooth", "weight_atoms", "heavy_tails", "small_cells", "top_coded"]
UNITS = 200_000
CELLS: Mapping[PopulationName, int] = {
    "smooth": 12,
    "weight_atoms": 12,
    "heavy_tails": 12,
    "small_cells": 18,
    "top_coded": 12,
}

BOUND = 1_000_000.0
ATOMS = np.array([80.0, 30.0, 8.0, 3.0, 1.0])
"""Weights of five types of unit, as multiples of the smallest weight."""
NOISE = 0.4
"""Standard deviation of the noise in log size, given the outcome."""


def population(name: PopulationName, rng: np.random.Generator, units: int = UNITS) -> pd.DataFrame:
    """Columns cell, y and size."""
    cell, y, size = _LAWS[name](rng, units)
    return pd.DataFrame({"cell": np.array(levels(name))[cell], "y": np.minimum(y, bound(name)), "size": size})


def levels(name: PopulationName) -> list[str]:
    return [f"c{number:02d}" for number in range(CELLS[name])]


def bound(name: PopulationName) -> float:
    """The outcome's upper public bound."""
    return TOP_CODE if name == "top_coded" else BOUND


def population_job(name: PopulationName) -> dict[str, Any]:
    """A job of the population's samples, as a file has it; a study replaces its mechanism."""
    return {
        "dataset": name,
        "period": "simulated",
        "columns": {"cell": {"levels": levels(name)}, "y": {"bounds": [0.0, bound(name)], "outside": "clip"}},
        "survey": {"weight": "weight"},
        "outcome": "y",
        "mechanism": {"name": "reference_tables"},
        "budget": {"epsilon": "1"},
        "reference": {"path": "another sample"},
        "tables": [{"name": "cells", "by": ["cell"], "statistics": ["count", {"mean": "y"}]}],
    }


def informative_size(y: Floats, rng: np.random.Generator) -> Floats:
    """(y + ȳ/2)·exp(.4 z) with z normal; positive even for y = 0."""
    return np.asarray((y + y.mean() / 2.0) * np.exp(NOISE * rng.standard_normal(len(y))))


def inclusion(size: Floats, n: int) -> Floats:
    """min(1, c·size), (unit,), with c so that they sum to n. Raises `ValueError` unless n < units."""
    if n >= len(size):
        raise ValueError(f"a sample of {n:,} from {len(size):,} units leaves none out: take a smaller one")
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


Law = Callable[[np.random.Generator, int], tuple[Codes, Floats, Floats]]


def _evenly(rng: np.random.Generator, units: int) -> tuple[Codes, Floats]:
    """Cells of similar sizes, and the effect of each unit's cell on the log outcome."""
    cell = rng.integers(0, 12, units).astype(np.int32)
    return cell, 0.3 * rng.standard_normal(12)[cell]


def _smooth(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Lognormal outcomes and smooth weights, as models assume."""
    cell, typical = _evenly(rng, units)
    y = np.exp(10.5 + typical + 0.6 * rng.standard_normal(units))
    return cell, y, informative_size(y, rng)


def _weight_atoms(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Five types of unit, with weights up to 80-fold apart; outcomes grow as weights fall. No table shows types."""
    cell, typical = _evenly(rng, units)
    kind = rng.choice(5, units, p=(sampled := np.array([0.35, 0.25, 0.2, 0.12, 0.08]) * ATOMS) / sampled.sum())
    y = np.exp(9.5 + 0.4 * kind + typical + 0.7 * rng.standard_normal(units))
    return cell, y, np.exp(0.5 * rng.standard_normal(12))[cell] / ATOMS[kind]


def _heavy_tails(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """A quarter of outcomes is zero; others have an sd of 1.5 in logarithms, and sizes depend little on outcomes."""
    cell, typical = _evenly(rng, units)
    y = np.exp(9.0 + typical + 1.5 * rng.standard_normal(units)) * (rng.random(units) > 0.25)
    return cell, y, informative_size(y, rng) ** 0.3


def _small_cells(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Sizes are 28-fold apart; one cell in six has much smaller outcomes, and one in three a wider law."""
    share = np.repeat([2500.0, 300.0, 90.0], 6)
    cell = rng.choice(18, units, p=share / share.sum()).astype(np.int32)
    spread = np.where(cell % 3 == 0, 1.1, 0.5)
    z = rng.standard_normal(units)
    y = np.exp(10.0 + 0.3 * (cell % 5) - 2.0 * (cell % 6 == 5) + spread * z)
    noise = 0.5 * z + np.sqrt(0.75) * rng.standard_normal(units)
    return cell, y, np.exp((0.3 + 0.3 * (cell % 2)) * noise - 0.2 * (cell % 4))


def _top_coded(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Left-skewed outcomes in thousands, of which three in ten are at the top-code."""
    cell, typical = _evenly(rng, units)
    y = np.exp(11.6 + typical + 0.5 * (2.0 - rng.standard_gamma(4.0, units) / 2.0))
    y = np.clip(np.round(y, -3), 1e3, TOP_CODE)
    return cell, y, informative_size(y, rng)


_LAWS: Mapping[PopulationName, Law] = {
    "smooth": _smooth,
    "weight_atoms": _weight_atoms,
    "heavy_tails": _heavy_tails,
    "small_cells": _small_cells,
    "top_coded": _top_coded,
}
DESCRIBED: Mapping[PopulationName, str] = {
    "smooth": "lognormal outcomes, smooth weights",
    "weight_atoms": "five distinct weights in a cell, eightyfold apart",
    "heavy_tails": "a quarter of zeros, tails of sd 1.5 in logarithms",
    "small_cells": "18 cells 28-fold apart in size, some unlike the others",
    "top_coded": "left-skewed outcomes in whole thousands, many at the top-code",
}


BOUNDS = {"lognormal": (1e3, 2e6), "top_coded": (1e3, TOP_CODE)}
"""Public bounds of salaries."""


EARLIER = {"sd": 0.4, "noise_sd": 0.4, "gap": 1.0}
"""The law of the earlier survey: sd of log salaries, sd of the noise in log sizes, and relative gap between the sexes."""


class SurveyCase(Frozen):
    """A simulated survey and an earlier survey, new in every replicate.

    `sd` is of log salaries, `gap` multiplies the gap between the sexes, and `growth` is the relative growth since the
    earlier survey. The earlier survey has the values of `EARLIER`.
    """

    name: Name
    population: int = Field(gt=0)
    sample: int = Field(gt=0)
    law: Literal["lognormal", "top_coded"] = "lognormal"
    growth: float = Field(default=0.0, gt=-1)
    sd: float = Field(default=EARLIER["sd"], gt=0)
    noise_sd: float = Field(default=EARLIER["noise_sd"], ge=0)
    gap: float = Field(default=EARLIER["gap"], ge=0)
    replicates: int | None = Field(default=None, ge=1, description="at most, of this case")

    @property
    def n(self) -> int:
        return self.sample

    def described(self, every: str = "") -> str:
        """Text for the page; `every`, such as " a period", follows the growth."""
        law = "lognormal salaries" if self.law == "lognormal" else "left-skewed, rounded, top-coded salaries"
        drift = [f"salaries and population {100 * self.growth:+.0f} %{every}"] if self.growth else []
        ends = [(name, first, getattr(self, name)) for name, first in EARLIER.items()]
        drift += [f"{name} {first:g} → {last:g}" for name, first, last in ends if first != last]
        return f"n = {self.sample:,} of {self.population:,}, {law}, {', '.join(drift) or 'no drift'}"


class OfSurveys(Study):
    cases: tuple[SurveyCase, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    def replicates_of(self, case: int) -> int:
        return min(self.replicates, self.cases[case].replicates or self.replicates)


@dataclass(frozen=True)
class Survey:
    """A sample, the table's cells, the truth in them, and direct totals."""

    frame: Frame
    records: Records
    cells: Cells
    truth: dict[str, Floats]
    totals: Totals


def simulated(job: Job) -> Survey:
    source = open_source(job)
    truth = source.truth
    assert truth is not None
    return placed_survey(job, source, lambda frame, _: truth_in_cells(truth, job, job.tables[0], frame))


def placed_survey(job: Job, source: Source, truth: Callable[[Frame, Cells], dict[str, Floats]]) -> Survey:
    """Records in their frame; `truth` gives the population's figures."""
    census = take_census(job, source)
    frame = census.frame
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place(job, source, census, Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
        records = Records(*fields)
    table = job.tables[0]
    cells = cross(frame, table.by, table.margins, table.universe)
    return Survey(frame, records, cells, truth(frame, cells), totals([records], frame, clustered=False))


def errors_of(label: str, epsilon: str, values: Mapping[StatisticName, Floats], survey: Survey) -> Iterator[Result]:
    """(estimate − truth)/truth by cell; a cell without a record has no mean."""
    for statistic in STATISTICS:
        error = values[statistic] / survey.truth[statistic] - 1.0
        for cell, value in zip(survey.cells.labels, error, strict=True):
            if np.isfinite(value):
                yield Result(label, epsilon, f"{statistic} error {' / '.join(cell)}", float(value))
