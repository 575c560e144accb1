"""Reference tables (METHODS §7b): clipped sums of every finest cell, unclipped with the help of a public reference.

The released parameters are the noisy sums, the limits they were clipped at, and what follows from both: a mean weight and
a mean outcome of every cell with covariances. Margins are sums of cells. A synthetic record has its cell's means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.job import Job
from dpdist.models.clipping import Cell, complete
from dpdist.models.design import design
from dpdist.models.outcome import OutcomeModel
from dpdist.models.protocol import Draws, Extremes, Parameter
from dpdist.models.unclipping import unclip
from dpdist.privacy.reference_cells import UNIT, Limits, noise_scale
from dpdist.records import Codes, Floats, Frame, Records

PAIR, MATRIX = ("log mean weight", "mean outcome"), ("weight", "both", "outcome")


@dataclass(frozen=True)
class ReferenceCells(OutcomeModel):
    """Cells of one stratum; statistics are (cell, 2), in whole units, once `limits` are known."""

    labels: tuple[str, ...]
    count: Floats
    """Sample records of every cell, public."""
    scale: Fraction
    """Of the noise on a sum, in units."""
    weighted: bool
    shrinkage: bool
    limits: Limits | None = None

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> ReferenceCells:
        columns = tuple(name for name in job.cell_columns if name not in frame.strata)
        cells = design(frame, columns, rows)
        first = [int(np.flatnonzero(cells.pattern == cell)[0]) + rows.start for cell in range(len(cells.matrix))]
        labels = tuple(" / ".join(str(frame.levels[c][frame.codes[c][row]]) for c in columns) or "all" for row in first)
        count = np.bincount(cells.pattern, weights=frame.count[rows]).astype(np.float64)
        scale = noise_scale(job.epsilon_per_set, job.budget.adjacency)
        bounds, weighted = job.outcome.bounds or (0.0, 1.0), job.survey.weight is not None
        return cls(cells, bounds, labels, count, scale, weighted, job.mechanism.shrinkage)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cell = ("cell", self.labels)
        return (
            Parameter("sums", (cell, ("sum", ("1 - v", "vc")))),
            Parameter("limits", (cell, ("limit", ("centre", "cap", "reach")))),
            Parameter("means", (cell, ("mean", ("weight", "outcome")))),
            Parameter("sampling", (cell, ("covariance", MATRIX))),
            Parameter("noise", (cell, ("covariance", MATRIX))),
        )

    @property
    def noise_variance(self) -> float:
        """Of a sum, in records."""
        return 2.0 * (float(self.scale) / UNIT) ** 2

    def told(self, records: Records) -> list[Cell]:
        """Every cell of the reference's records."""
        cell = self.pattern(records.frame)
        own = [cell == number for number in range(len(self.labels))]
        found = [Cell.of(records.weight[k], records.outcome[k], self.outcome_bounds, self.weighted) for k in own]
        return complete(found)

    def limited(self, cells: list[Cell]) -> Limits:
        """μ, U and R of every cell from the reference and public sizes."""
        chosen = [cell.choose(int(n), self.noise_variance) for cell, n in zip(cells, self.count, strict=True)]
        return Limits(*np.array(chosen, dtype=np.float64).T)

    def within(self, limits: Limits) -> ReferenceCells:
        return replace(self, limits=limits)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        assert self.limits is not None
        cell, cells = self.pattern(records.frame), len(self.labels)
        pairs = alpha[:, None] * self.limits.cone(cell, records.weight, records.outcome)
        return np.column_stack([np.bincount(cell, weights=column, minlength=cells) for column in pairs.T])

    def unclipped(self, sums: Floats, cells: list[Cell]) -> Draws:
        """What is released, from noisy sums and the reference."""
        assert self.limits is not None
        found = unclip(cells, self.limits, sums, self.count, self.noise_variance, self.shrinkage)
        triangle = (slice(None), [0, 0, 1], [0, 1, 1])
        values = {"sums": sums, "limits": np.column_stack(self.limits), "means": found.estimate}
        values |= {"sampling": found.sampling[triangle], "noise": found.noise[triangle]}
        return Draws({name: value[None] for name, value in values.items()})

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row)."""
        means = theta["means"][:, self.design.pattern]
        return means[..., 0], means[..., 0] * means[..., 1]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        means = theta["means"][0, self.pattern(frame_row)]
        return means[:, 1], means[:, 0]

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Means under other samples of both files, without noise."""
        return self._varied(theta, "sampling", draws, rng)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Means under other noise: for standard errors, not for release."""
        return self._varied(theta, "noise", draws, rng)

    def _varied(self, theta: Draws, name: str, draws: int, rng: np.random.Generator) -> Draws:
        covariance = theta[name][0][:, [0, 1, 1, 2]].reshape(-1, 2, 2)
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        error = np.einsum("cij,dcj->dci", root, rng.standard_normal((draws, len(root), 2)))
        weight = theta["means"][..., 0] * np.exp(np.clip(error[..., 0], -5.0, 5.0))
        return Draws({"means": np.stack([weight, theta["means"][..., 1] + error[..., 1]], axis=-1)})

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Sums have no density of a record."""
        return np.full((len(draws), len(records)), np.nan)

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        return Extremes(np.full(len(records), np.inf), np.full(len(records), -np.inf))

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {**super().describe(theta), "noise_law": f"discrete Laplace, scale {self.scale}, in units of 2^-20"}
