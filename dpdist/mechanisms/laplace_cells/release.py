"""The model of noisy sums of base cells, from which `laplace_strict` makes tables and synthetic records.

All of it is post-processing. A cell's mean weight and mean outcome are clipped to their public bounds. Margins are sums
of cells, so that a table is additive. A synthetic record has its cell's mean weight and mean outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import Codes, Floats, Frame, Records
from dpdist.job import Job
from dpdist.mechanisms.laplace_cells.sensitivity import UNIT, CellBounds, noise_scale
from dpdist.mechanisms.sums_model import SumsModel
from dpdist.models.design import counted, counted_again, design
from dpdist.models.protocol import Draws, Parameter
from dpdist.privacy.units import moves, record_epsilon


@dataclass(frozen=True)
class CellSums(SumsModel):
    """Base cells of one stratum; the statistics are sums of `CellBounds.pairs` in whole units of 1/UNIT, (cell, 2)."""

    labels: tuple[str, ...]
    count: Floats
    """Sample records of every cell, public."""
    bounds: CellBounds
    least_weight: float
    scale: Fraction
    """The scale of the noise on a set's sums, in units of 1/UNIT."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> CellSums:
        columns = tuple(dict.fromkeys(name for table in job.tables for name in table.by if name not in frame.strata))
        cells, (low, high) = design(frame, columns, rows), job.outcome_column.bounds or (0.0, 1.0)
        first = [int(np.flatnonzero(cells.pattern == cell)[0]) + rows.start for cell in range(len(cells.matrix))]
        labels = tuple(" / ".join(str(frame.levels[c][frame.codes[c][row]]) for c in columns) or "all" for row in first)
        count = counted(frame, rows, cells)
        declared = job.columns[job.survey.weight].bounds if job.survey.weight else None
        least, most = declared or (1.0, 1.0)
        return cls(
            cells,
            (low, high),
            labels,
            count,
            CellBounds(most, low, high),
            least,
            noise_scale(record_epsilon(job, job.epsilon_per_set) / moves(job)),
        )

    @property
    def noise_of_one(self) -> tuple[float, float]:
        """Least noise of a count and of a mean of one record, in direct standard errors (`runtime.expected_noise`)."""
        least = float(np.sqrt(2.0) * float(self.scale) / UNIT)
        return least, least

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("sums", (("cell", self.labels), ("sum", ("weight", "centred product")))),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        pairs = alpha[:, None] * self.bounds.pairs(records.weight, records.outcome)
        cell, cells = self.pattern(records.frame), len(self.labels)
        return np.column_stack([np.bincount(cell, weights=column, minlength=cells) for column in pairs.T])

    def means(self, theta: Draws) -> tuple[Floats, Floats]:
        """Mean weight and mean outcome of every cell, within their public bounds, (draw, cell) each."""
        sums = self.bounds.sums(theta["sums"])
        weight = np.clip(sums[..., 0] / theta.values.get("count", self.count), self.least_weight, self.bounds.weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            outcome = np.where(sums[..., 0] > 0, sums[..., 1] / sums[..., 0], self.bounds.centre)
        return weight, np.clip(outcome, *self.outcome_bounds)

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        weight, outcome = (values[:, self.design.pattern] for values in self.means(theta))
        return weight, weight * outcome

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        weight, outcome = (values[0][self.pattern(frame_row)] for values in self.means(theta))
        return outcome, weight

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums unchanged, because the variation of records within a cell was not released."""
        return Draws({"sums": np.repeat(theta["sums"], draws, axis=0)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums with further noise of the same law, for standard errors only."""
        noise = rng.laplace(0.0, float(self.scale), (draws, *theta["sums"].shape[1:]))
        return Draws({"sums": theta["sums"] + noise})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released sums under other sample counts (draw, row)."""
        return Draws({"sums": np.repeat(theta["sums"], len(counts), axis=0), "count": counted_again(self.design, counts)})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {
            **super().describe(theta),
            "noise": f"discrete Laplace, scale {self.scale}, in units of 2^-20 of the bounds",
        }


def model_of(job: Job) -> type[CellSums]:
    """The model of every job under the mechanism."""
    return CellSums
