"""The model of noisy counts of zeros and ones: post-processing of what was released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats, Frame
from dpdist.job import Job
from dpdist.mechanisms.sums_model import SumsModel
from dpdist.models.design import counted, design
from dpdist.models.protocol import Draws, Parameter
from dpdist_counts.sensitivity import scale_of


@dataclass(frozen=True)
class Counts(SumsModel):
    """Cells of one stratum; the statistics are its counts of zeros and of ones, (cell, 2)."""

    number: Floats
    """Sample records of every cell, public, (cell,)."""
    scale: Fraction
    """Scale of the noise on the counts of a set."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Counts:
        cells = design(frame, tuple(name for name in job.cell_columns if name not in frame.strata), rows)
        return cls(cells, (0.0, 1.0), counted(frame, rows, cells), scale_of(job))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cells = tuple(str(cell) for cell in range(len(self.number)))
        return (Parameter("counts", (("cell", cells), ("value", ("0", "1")))),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        one = (records.outcome >= 0.5).astype(int)
        place, places = 2 * self.pattern(records.frame) + one, 2 * len(self.number)
        return np.bincount(place, weights=alpha, minlength=places).astype(float).reshape(-1, 2)

    def share(self, theta: Draws) -> Floats:
        """The share of ones, (draw, cell); one half where no noisy count is above 0."""
        positive = np.maximum(theta["counts"], 0.0)
        total = positive.sum(axis=2)
        return np.asarray(np.divide(positive[..., 1], total, out=np.full_like(total, 0.5), where=total > 0.0))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y of every frame row, (draw, row)."""
        share = self.share(theta)[:, self.design.pattern]
        return np.ones_like(share), share

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        one = rng.random(len(frame_row)) < self.share(theta)[0, self.pattern(frame_row)]
        return one.astype(float), np.ones(len(frame_row))

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Counts of other samples, without noise."""
        ones = rng.binomial(self.number.astype(int), self.share(theta)[0], (draws, len(self.number)))
        return Draws({"counts": np.stack([self.number - ones, ones], axis=-1).astype(float)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Expected counts under other noise of the same law, for standard errors only."""
        ones = self.number * self.share(theta)[0]
        noise = rng.laplace(0.0, float(self.scale), (draws, len(ones), 2))
        return Draws({"counts": np.stack([self.number - ones, ones], axis=-1) + noise})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {**super().describe(theta), "noise": f"discrete Laplace, scale {self.scale}"}


def model_of(job: Job) -> type[Counts]:
    """The model of every job under the mechanism."""
    return Counts
