"""For every mechanism's `post` and `publish.model_outputs`: types and texts of `measurements.parquet`, all noisy figures.

Each mechanism's `post.py` lists its noisy figures with these types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.job import Job
from dpdist.mechanisms.parts import MEASURED, Incomplete, Parts
from dpdist.models.protocol import Draws, ReleaseView
from dpdist.models.public_model import PublicModel

LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"
"""Names of the laws of noise."""
NO_LIMITS = (None, None, None)
"""The centre, cap and half width of a figure that is not clipped."""
SUM_OF_A = "the sum of a = min(w, U) / U, with w the weight and U the weight_cap"
SUM_OF_B = "the sum of b = a (clip(y, c - R, c + R) - c) / R, with y the outcome, c the centre and R the half_width"
SUM_OF_ABSENT = "the sum of 1 - v, v = min(w, U) / U, with w the weight and U the weight_cap"
SUM_OF_V = "the sum of v, v = min(w, U) / U, with w the weight and U the weight_cap; 1 without weights"


class Figures(NamedTuple):
    """Noisy figures of one kind, with what is needed to use them.

    - `cells`: for each cell its levels, by column.
    - `values`: the figures, (cell, statistic).
    - `scales`: scale of the noise on each statistic; None if it is confidential.
    - `limits`: a function of the positions of cell and statistic; it gives the centre, the cap and the half width of
      clipping.
    - `unit`: the figures are whole multiples of one over this number.
    - `law`: the name of the noise's law.
    - `table`: the name of the table that they belong to, if any.
    """

    cells: Sequence[dict[str, str]]
    statistics: Sequence[str]
    values: Floats
    scales: Sequence[Fraction | None]
    limits: Callable[[int, int], tuple[float | None, float | None, float | None]]
    unit: float = UNIT
    law: str = LAPLACE
    table: str | None = None
    units: Sequence[int] | None = None
    """Number of the noisy sum that a cell shares with other cells; unset if no two cells share a sum."""
    sensitivity: float | None = None
    """Sensitivity of the figures to one record, in L1, or in L2 under Gaussian noise; unset: the scale times ε."""


FIGURES: Parts[Callable[[ReleaseView, Any, int, Draws], Iterator[Figures]]] = Parts("figures", *MEASURED["figures"])
DEFINITIONS: Parts[Mapping[str, str]] = Parts("DEFINITIONS", *MEASURED["DEFINITIONS"])
QUERIES: Parts[Mapping[str, str]] = Parts("QUERIES", "post", "the query of each statistic, by the names of both")
"""Part of mechanisms that publish the answers of several queries."""


class Measurements(NamedTuple):
    """What a mechanism measured: its noisy figures by stratum and by a set's parameters, and their definitions."""

    mechanism: str
    figures: Callable[[ReleaseView, Any, int, Draws], Iterator[Figures]]
    definitions: Mapping[str, str]
    queries: Mapping[str, str]
    """The name of the query of each statistic; empty where all statistics answer every query."""

    def definition(self, statistic: str) -> str:
        """The definition of a statistic, whose name ends with the outcome's if a job has several outcomes.
        Raises `Incomplete`.
        """
        if (start := _start_of(statistic, self.definitions)) is None:
            lacking = f"the statistic '{statistic}' of '{self.mechanism}' has no definition"
            raise Incomplete(f"{lacking}: add it to DEFINITIONS in its post.py")
        return self.definitions[start]

    def query(self, statistic: str) -> str | None:
        """The name of the query that a statistic answers; None if it may be any."""
        start = _start_of(statistic, self.queries)
        return None if start is None else self.queries[start]


def _start_of(statistic: str, names: Iterable[str]) -> str | None:
    """The longest of the names with which a statistic's name begins."""
    starts = [start for start in names if statistic == start or statistic.startswith(f"{start} ")]
    return max(starts, key=len, default=None)


def measured_of(job: Job) -> Measurements:
    """The list of noisy figures of a job's mechanism. Raises `Incomplete` if its package lacks a part."""
    name = job.mechanism.name
    return Measurements(name, FIGURES[name], DEFINITIONS[name], QUERIES.optional(name, {}))


def cells_of(release: ReleaseView, model: PublicModel, stratum: int) -> list[dict[str, str]]:
    """The cells of a stratum's patterns, as levels by column, including columns that are constant within a pattern.

    A pattern is a combination of levels that the model distinguishes.
    """
    crosstab, rows = release.crosstab, release.crosstab.rows_of(stratum)
    pattern = model.design.pattern
    first = np.unique(pattern, return_index=True)[1]
    codes = {name: crosstab.codes[name][rows] for name in release.job.categories}
    constant = [name for name, values in codes.items() if np.array_equal(values, values[first][pattern])]
    return [{name: str(crosstab.levels[name][codes[name][row]]) for name in constant} for row in first]
