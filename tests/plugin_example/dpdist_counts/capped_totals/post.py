"""What is made of noisy sums of capped weights: tables, errors, synthetic records and measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import Codes, Crosstab, Floats
from dpdist.job import Job
from dpdist.mechanisms.parts import Figures, Words, cells_of
from dpdist.models.protocol import Draws, Parameter, ReleaseView
from dpdist.models.public_model import PublicModel, cell_counts, design
from dpdist_counts.capped_totals.sensitivity import UNIT, scale_of
from dpdist_counts.capped_totals.spec import CappedTotals

WORDS = Words(
    density="noisy sums of {weight}, cut at a cap, of records with {outcome} = 0 and with {outcome} = 1 in every cell",
    errors="Estimator `parameters`: other noise, simulated. How records vary within a cell is not in it.",
)
DEFINITIONS = {
    "zeros": "the sum of min(w, U) / U of records with the outcome 0, with w the weight and U the weight_cap",
    "ones": "the sum of min(w, U) / U of records with the outcome 1, with w the weight and U the weight_cap",
}


@dataclass(frozen=True)
class Totals(PublicModel):
    """Cells of one stratum, with noisy sums of capped weights of zeros and of ones, (cell, 2), in units of cap/UNIT."""

    number: Floats
    """Sample records of every cell, public, (cell,)."""
    cap: float
    scale: Fraction
    """Scale of the noise on the sums of a set."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Totals:
        assert isinstance(job.mechanism, CappedTotals)
        cells = design(crosstab, tuple(name for name in job.cell_columns if name not in crosstab.strata), rows)
        return cls(cells, (0.0, 1.0), cell_counts(crosstab, rows, cells), job.mechanism.cap, scale_of(job))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cells = tuple(str(cell) for cell in range(len(self.number)))
        return (Parameter("sums", (("cell", cells), ("value", ("0", "1")))),)

    def means(self, theta: Draws) -> tuple[Floats, Floats]:
        """Mean weight, from 0 to the cap, and share of ones of every cell, (draw, cell) each."""
        positive = np.maximum(theta["sums"], 0.0)
        total = positive.sum(axis=2)
        share = np.divide(positive[..., 1], total, out=np.full_like(total, 0.5), where=total > 0.0)
        return np.minimum(total / UNIT / self.number, 1.0) * self.cap, share

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w and E wy of every frame row, (draw, row)."""
        weight, share = (values[:, self.design.pattern] for values in self.means(theta))
        return weight, weight * share

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        weight, share = (values[0, self.pattern(crosstab_row)] for values in self.means(theta))
        return (rng.random(len(crosstab_row)) < share).astype(float), weight

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums unchanged."""
        return Draws({"sums": np.repeat(theta["sums"], draws, axis=0)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums with further noise of the same law, for standard errors only."""
        noise = rng.laplace(0.0, float(self.scale), (draws, *theta["sums"].shape[1:]))
        return Draws({"sums": theta["sums"] + noise})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {**super().describe(theta), "noise": f"discrete Laplace, scale {self.scale}, in units of 2^-20 of the cap"}


def model_of(job: Job) -> type[Totals]:
    """The model of every job under the mechanism."""
    return Totals


def figures(release: ReleaseView, model: Totals, stratum: int, theta: Draws) -> Iterator[Figures]:
    cells = cells_of(release, model, stratum)
    yield Figures(cells, ["zeros", "ones"], theta["sums"][0], [model.scale] * 2, lambda *_: (None, model.cap, None))
