"""Public half of `perturbed_histogram`: tables, errors and records from noisy bins ([G]).

Values are uniform within a bin. Counts below 0 become 0; if no count is above 0, all bins are equally likely. The job may
state the number of bins. Otherwise it is ⌈ln n⌉, where n is the public mean number of records of a stratum. It is never
chosen from the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Crosstab, Floats, Ints, quotient_or
from dpdist.job import Job
from dpdist.mechanisms.parts import Figures, Words, cells_of
from dpdist.mechanisms.perturbed_histogram.sensitivity import bin_counts
from dpdist.mechanisms.perturbed_histogram.spec import PerturbedHistogram
from dpdist.models.protocol import Draws, Parameter, ReleaseView
from dpdist.models.public_model import PublicModel, design

COUNTED_AGAIN = (
    "Estimates from the released parameters (estimator `parameters`): standard errors include the variation in the "
    "sample's composition by x (predictors, strata and table columns), and the variation of bin counts in new samples "
    "and of new noise, both simulated from the first set's histogram. The bias from cutting counts off at 0 is estimated "
    "from noise on that histogram. The bias of binning is not included."
)
WORDS = Words(density="noisy histogram of {outcome} in equal bins, in the observed sample", errors=COUNTED_AGAIN)
DEFINITIONS = {
    "count_in_bin": "the number of records whose outcome lies between centre - half_width and centre + half_width",
}


@dataclass(frozen=True)
class Histogram(PublicModel):
    """Bins of one stratum, with noisy counts of their records."""

    bins: int
    scale: Fraction
    """Scale of the noise on the counts of a set."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Histogram:
        bins = PerturbedHistogram.of(job).bins or max(1, int(np.ceil(np.log(crosstab.stratum_count.mean()))))
        return cls(design(crosstab, (), rows), job.outcome_column.ends, bins, bin_counts(job).scale)

    @property
    def edges(self) -> Floats:
        return np.linspace(*self.outcome_bounds, self.bins + 1)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        names = tuple(f"from {low:.10g} to {high:.10g}" for low, high in zip(self.edges, self.edges[1:], strict=False))
        return (Parameter("counts", (("bin", names),)),)

    def bin(self, outcome: Floats) -> Ints:
        """The bin of every outcome, from 0; the upper bound is in the last bin."""
        return np.clip(np.searchsorted(self.edges, outcome, side="right") - 1, 0, self.bins - 1)

    def shares(self, counts: Floats) -> Floats:
        """The bins' probabilities from noisy counts, (draw, bin)."""
        positive = np.maximum(counts, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        return quotient_or(1.0 / self.bins, positive, total)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws a bin by its probability, then a value uniform within the bin. Weights are 1."""
        uniforms, cumulated = open_uniforms(rng, (len(crosstab_row), 2)), np.cumsum(self.shares(theta["counts"])[0])
        bins = np.minimum(np.searchsorted(cumulated, uniforms[:, 0] * cumulated[-1], side="right"), self.bins - 1)
        return self.edges[bins] + uniforms[:, 1] * np.diff(self.edges)[bins], np.ones(len(crosstab_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y of every crosstab row, (draw, row)."""
        middle = (self.edges[1:] + self.edges[:-1]) / 2.0
        return self.per_row((self.shares(theta["counts"]) @ middle)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """The share of records that are at most `value`, (draw, pair); values are uniform within a bin."""
        share = self.shares(theta["counts"])
        reached = np.concatenate([np.zeros((len(share), 1)), np.cumsum(share, axis=1)], axis=1)
        bin = self.bin(value)
        part = np.clip((value - self.edges[bin]) / np.diff(self.edges)[bin], 0.0, 1.0)
        return np.asarray(reached[:, bin] + part * share[:, bin])

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Counts of other samples of the same size from the released histogram, without noise."""
        return Draws({"counts": rng.multinomial(records, self.shares(theta["counts"])[0], draws).astype(float)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released histogram's expected counts with new noise of the same law, for standard errors only."""
        expected = records * self.shares(theta["counts"])
        return Draws({"counts": expected + rng.laplace(0.0, float(self.scale), (draws, self.bins))})

    def averaged(self, draws: Draws) -> Draws:
        """Counts in proportion to mean shares over simulated noise.

        No simulated share is negative, so the mean is above 0 even for empty bins.
        """
        return Draws({"counts": self.shares(draws["counts"]).mean(axis=0, keepdims=True)})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released histogram, unchanged: its shares do not depend on sample counts."""
        return Draws({"counts": np.repeat(theta["counts"], len(counts), axis=0)})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {**super().describe(theta), "noise": f"discrete Laplace, scale {self.scale}"}


def model_of(job: Job) -> type[Histogram]:
    """The model of every job under the mechanism."""
    return Histogram


def figures(release: ReleaseView, model: Histogram, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy counts of bins, each with the ends of its bin, for `measurements.parquet`."""
    (cell,) = cells_of(release, model, stratum)[:1]
    low, high = model.edges[:-1], model.edges[1:]
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    for bin, value in enumerate(theta["counts"][0]):
        limits = (float(middle[bin]), None, float(half[bin]))
        yield Figures([cell], ["count_in_bin"], np.array([[value]]), [model.scale], lambda *_, ends=limits: ends, 1)
