"""For every mechanism's `post` and `publish.model_outputs`: types and texts of `measurements.parquet`, all noisy figures.

Each mechanism's `post.py` lists its noisy figures with these types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.job import Job
from dpdist.mechanisms.parts import MEASURED, Incomplete, Parts
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws
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


class Measured(NamedTuple):
    """What a mechanism measured: its noisy figures by stratum and by a set's parameters, and their definitions."""

    mechanism: str
    figures: Callable[[ReleaseView, Any, int, Draws], Iterator[Figures]]
    definitions: Mapping[str, str]

    def definition(self, statistic: str) -> str:
        """The definition of a statistic, whose name ends with the outcome's if a job has several outcomes.
        Raises `Incomplete`.
        """
        starts = [start for start in self.definitions if statistic == start or statistic.startswith(f"{start} ")]
        if not starts:
            lacking = f"the statistic '{statistic}' of '{self.mechanism}' has no definition"
            raise Incomplete(f"{lacking}: add it to DEFINITIONS in its post.py")
        return self.definitions[max(starts, key=len)]


def measured_of(job: Job) -> Measured:
    """The list of noisy figures of a job's mechanism. Raises `Incomplete` if its package lacks a part."""
    name = job.mechanism.name
    return Measured(name, FIGURES[name], DEFINITIONS[name])


def cells_of(release: ReleaseView, model: PublicModel, stratum: int) -> list[dict[str, str]]:
    """The cells of a stratum's patterns, as levels by column, including columns that are constant within a pattern.

    A pattern is a combination of levels that the model distinguishes.
    """
    frame, rows = release.frame, release.frame.rows_of(stratum)
    pattern = model.design.pattern
    first = np.unique(pattern, return_index=True)[1]
    codes = {name: frame.codes[name][rows] for name in release.job.categories}
    constant = [name for name, values in codes.items() if np.array_equal(values, values[first][pattern])]
    return [{name: str(frame.levels[name][codes[name][row]]) for name in constant} for row in first]
