"""The model of a perturbed histogram: noisy counts of equal bins over public bounds ([G], Supplement 1).

Values are uniform within a bin. Counts below 0 become 0; if no count is above 0, all bins are equally likely. The job may
state the number of bins. Otherwise it is ⌈ln n⌉, where n is the public mean number of records of a stratum. It is never
chosen from the outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Frame, Ints, Records
from dpdist.job import Job
from dpdist.job.noisy_mechanisms import PerturbedHistogram
from dpdist.models.design import design
from dpdist.models.outcome import OutcomeModel
from dpdist.models.protocol import Draws, Extremes, Parameter
from dpdist.privacy.guarantees import count_scale
from dpdist.privacy.queries import Moved, NoisyQuery, record_epsilon


def bin_counts(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the counts of all bins. A record is in one of them, and an exchanged one leaves and enters one."""
    return NoisyQuery("counts of bins", Moved(Fraction(1), Fraction(2), Fraction(2)), scale, times=times)


def scale_of(job: Job) -> Fraction:
    """Scale of the noise on the counts of a set."""
    return count_scale(record_epsilon(job, job.epsilon_per_set), job.budget.adjacency)


@dataclass(frozen=True)
class Histogram(OutcomeModel):
    """Bins of one stratum; the statistics are the sums of privacy weights by bin, (1, bin)."""

    bins: int
    scale: Fraction
    """Scale of the noise on the counts of a set."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Histogram:
        assert job.outcome_column.bounds is not None
        assert isinstance(job.mechanism, PerturbedHistogram)
        bins = job.mechanism.bins or max(1, int(np.ceil(np.log(frame.stratum_count.mean()))))
        return cls(design(frame, (), rows), job.outcome_column.bounds, bins, scale_of(job))

    @property
    def edges(self) -> Floats:
        return np.linspace(*self.outcome_bounds, self.bins + 1)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        names = tuple(f"from {low:.10g} to {high:.10g}" for low, high in zip(self.edges, self.edges[1:], strict=False))
        return (Parameter("counts", (("bin", names),)),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return np.bincount(self.bin(records.outcome), weights=alpha, minlength=self.bins).astype(np.float64)[None, :]

    def bin(self, outcome: Floats) -> Ints:
        """The bin of every outcome, from 0; the upper bound is in the last bin."""
        return np.clip(np.searchsorted(self.edges, outcome, side="right") - 1, 0, self.bins - 1)

    def shares(self, counts: Floats) -> Floats:
        """The bins' probabilities from noisy counts, (draw, bin)."""
        positive = np.maximum(counts, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        even = np.full_like(positive, 1.0 / self.bins)
        return np.asarray(np.divide(positive, total, out=even, where=total > 0.0))

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """The log density, (draw, record), which is −∞ in an empty bin."""
        with np.errstate(divide="ignore"):
            density = np.log(self.shares(draws["counts"]) / np.diff(self.edges))
        return np.asarray(density[:, self.bin(records.outcome)])

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        values = self.log_lik(draws, records)
        return Extremes(values.max(axis=0), values.min(axis=0))

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws a bin by its probability, then a value uniform within the bin. Weights are 1."""
        uniforms, cumulated = open_uniforms(rng, (len(frame_row), 2)), np.cumsum(self.shares(theta["counts"])[0])
        own = np.minimum(np.searchsorted(cumulated, uniforms[:, 0] * cumulated[-1], side="right"), self.bins - 1)
        return self.edges[own] + uniforms[:, 1] * np.diff(self.edges)[own], np.ones(len(frame_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y of every frame row, (draw, row)."""
        middle = (self.edges[1:] + self.edges[:-1]) / 2.0
        return self.per_row((self.shares(theta["counts"]) @ middle)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """The share of records that are at most `value`, (draw, pair); values are uniform within a bin."""
        share = self.shares(theta["counts"])
        reached = np.concatenate([np.zeros((len(share), 1)), np.cumsum(share, axis=1)], axis=1)
        own = self.bin(value)
        part = np.clip((value - self.edges[own]) / np.diff(self.edges)[own], 0.0, 1.0)
        return np.asarray(reached[:, own] + part * share[:, own])

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Counts of other samples of the same size from the released histogram, without noise."""
        return Draws({"counts": rng.multinomial(records, self.shares(theta["counts"])[0], draws).astype(float)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released histogram's expected counts with new noise of the same law, for standard errors only."""
        expected = records * self.shares(theta["counts"])
        return Draws({"counts": expected + rng.laplace(0.0, float(self.scale), (draws, self.bins))})

    def averaged(self, drawn: Draws) -> Draws:
        """Counts in proportion to the mean shares under other noise.

        No share is below 0, so that noise fills empty bins.
        """
        return Draws({"counts": self.shares(drawn["counts"]).mean(axis=0, keepdims=True)})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released histogram for any sample counts (draw, row), because its shares do not depend on them."""
        return Draws({"counts": np.repeat(theta["counts"], len(counts), axis=0)})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {**super().describe(theta), "noise": f"discrete Laplace, scale {self.scale}"}


def model_of(job: Job) -> type[Histogram]:
    """The model of every job under the mechanism."""
    return Histogram
