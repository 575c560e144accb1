"""What is made of noisy counts of zeros and ones: tables, errors, synthetic records and measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import Codes, Crosstab, Floats
from dpdist.job import Job
from dpdist.mechanisms.parts import NO_LIMITS, Figures, Words, cells_of
from dpdist.models.protocol import Draws, Parameter, ReleaseView
from dpdist.models.public_model import PublicModel, cell_counts, design
from dpdist_counts.sensitivity import scale_of

WORDS = Words(
    density="noisy counts of {outcome} = 0 and of {outcome} = 1 in every cell",
    errors="Estimator `parameters`: other samples' counts and other noise, both simulated from the first set's counts.",
)
DEFINITIONS = {"zeros": "the number of records with the outcome 0", "ones": "the number of records with the outcome 1"}


@dataclass(frozen=True)
class Counts(PublicModel):
    """Cells of one stratum, with noisy counts of zeros and of ones, (cell, 2)."""

    number: Floats
    """Sample records of every cell, public, (cell,)."""
    scale: Fraction
    """Scale of the noise on the counts of a set."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Counts:
        cells = design(crosstab, tuple(name for name in job.cell_columns if name not in crosstab.strata), rows)
        return cls(cells, (0.0, 1.0), cell_counts(crosstab, rows, cells), scale_of(job))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cells = tuple(str(cell) for cell in range(len(self.number)))
        return (Parameter("counts", (("cell", cells), ("value", ("0", "1")))),)

    def share(self, theta: Draws) -> Floats:
        """The share of ones, (draw, cell); one half where no noisy count is above 0."""
        positive = np.maximum(theta["counts"], 0.0)
        total = positive.sum(axis=2)
        return np.asarray(np.divide(positive[..., 1], total, out=np.full_like(total, 0.5), where=total > 0.0))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y of every frame row, (draw, row)."""
        share = self.share(theta)[:, self.design.pattern]
        return np.ones_like(share), share

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        one = rng.random(len(crosstab_row)) < self.share(theta)[0, self.pattern(crosstab_row)]
        return one.astype(float), np.ones(len(crosstab_row))

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


def figures(release: ReleaseView, model: Counts, stratum: int, theta: Draws) -> Iterator[Figures]:
    cells = cells_of(release, model, stratum)
    yield Figures(cells, ["zeros", "ones"], theta["counts"][0], [model.scale] * 2, lambda *_: NO_LIMITS, unit=1)
