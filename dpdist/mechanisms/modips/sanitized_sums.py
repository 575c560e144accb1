"""The base model of MODIPS: a synthetic set's noisy sums, and a law drawn from the posterior given them ([M]; METHODS §8).

All of it is post-processing. The noise is not modelled: the posterior is conditional on the released sums, clipped to
their public range. Weights w enter as v = w/U, where U is the weight's public bound. They were clipped to both of their
public bounds when the file was read. So Σv is at most the
effective number of records, and the posterior is at least as wide as the sampling error. A synthetic record has its
cell's mean weight.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats, Frame
from dpdist.job import Adjacency, Job
from dpdist.mechanisms.modips.sensitivity import UNIT, groups, sanitization
from dpdist.mechanisms.modips.spec import Law, Modips, Truncation
from dpdist.mechanisms.sums_model import SumsModel
from dpdist.models.design import counted, counted_again, design, patterns
from dpdist.models.protocol import Draws, Parameter
from dpdist.privacy.queries import NoisyQuery, moves, record_epsilon

LEAST_MEAN_WEIGHT = 1e-3
"""Smallest mean v of a cell; smaller means are raised to it."""


def sums_of(job: Job) -> tuple[Law, bool, bool, Adjacency]:
    """What decides which sums are measured: law, whether there are weights, whether the variance is known, and adjacency.

    If sample sizes are secret the adjacency is zero_out, because an exchange for any other record is two such changes.
    """
    said = job.mechanism
    assert isinstance(said, Modips)
    adjacency: Adjacency = "zero_out" if job.sizes_secret else job.budget.adjacency
    return said.law, job.survey.weight is not None, said.variance is not None, adjacency


def queries_of(job: Job, settings: Modips) -> tuple[NoisyQuery, ...]:
    """The queries of one sanitization: one for all sums together, or one for each group."""
    return sanitization(*sums_of(job), record_epsilon(job, settings.epsilon(job)) / moves(job), settings)


def by_group(job: Job, settings: Modips) -> tuple[NoisyQuery, ...]:
    """The query of each group's sums, of which a shared one is asked for in parts."""
    queries, number = queries_of(job, settings), len(groups(*sums_of(job)))
    return queries if len(queries) == number else (queries[0], *[queries[0].further()] * (number - 1))


@dataclass(frozen=True)
class Sanitized(SumsModel):
    """Cells of one stratum; the statistics are (sum,), by group and cell, in whole units of 1/UNIT.

    A group is a kind of sum: 1 − v, vu, v(u² − 1/2) or v 1[y = k] (see `sensitivity`).
    """

    labels: tuple[str, ...]
    count: Floats
    """Sample records of every cell, public."""
    weights: tuple[float, float] | None
    """Public bounds of the weight; None without a weight."""
    law: Law
    variance: float | None
    """Public variance of the normal law, in squared half widths of the outcome's bounds; None where it is not public."""
    scales: tuple[Fraction, ...]
    """The scale of the noise on each group's sums, in units of 1/UNIT."""
    queries: tuple[NoisyQuery, ...]
    """What each group's sums lose under noise; where all groups share one query, the later ones are parts of it."""
    truncation: Truncation
    matrix: Floats | None
    """Predictors of every cell, (cell, predictor); None: the means of cells are not tied to each other."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Sanitized:
        said, weight = job.mechanism, job.survey.weight
        assert isinstance(said, Modips)
        columns = tuple(dict.fromkeys(name for table in job.tables for name in table.by if name not in frame.strata))
        regressed = said.location == "main_effects"
        cells = design(frame, columns, rows) if regressed else patterns(frame, columns, rows)
        labels = cells.names if not regressed else patterns(frame, columns, rows).names
        count = counted(frame, rows, cells)
        queries = by_group(job, said)
        low, high = job.outcome_column.bounds or (0.0, 1.0)
        return cls(
            cells,
            (low, high),
            labels,
            count,
            job.columns[weight].bounds if weight is not None else None,
            said.law,
            None if said.variance is None else said.variance / ((high - low) / 2.0) ** 2,
            tuple(query.scale for query in queries),
            queries,
            said.truncation,
            cells.matrix if regressed else None,
        )

    @property
    @abstractmethod
    def names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the sums, by group."""

    @property
    @abstractmethod
    def domain(self) -> tuple[Floats, Floats]:
        """Smallest and largest possible value of every sum, for any records, (sum,) each, in whole units of 1/UNIT."""

    @abstractmethod
    def statistics(self, records: Records, alpha: Floats) -> Floats:
        """Sums of records, (sum,), in whole units of 1/UNIT."""

    @abstractmethod
    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        """Laws drawn from the posteriors given sums (draw, sum), by the parameter's name."""

    @abstractmethod
    def moved(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """Released laws after a change of Σv from `before` (1, cell) to `after` (draw, cell), by the parameter's name."""

    @property
    @abstractmethod
    def drawn(self) -> tuple[Parameter, ...]:
        """Names of the parameters that `laws` draws."""

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """First position of every group's sums, and the position after the last."""
        return tuple(pairwise(np.cumsum([0, *map(len, self.names)]).tolist()))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        names = tuple(name for group in self.names for name in group)
        weight = () if self.weights is None else (Parameter("weight", (("cell", self.labels),)),)
        return (Parameter("sums", (("statistic", names),)), *self.drawn, *weight)

    def entered(self, records: Records, alpha: Floats) -> Floats:
        """v of every record in whole units of 1/UNIT; 0 for a record that is switched off."""
        whole = alpha * UNIT
        return np.rint(whole if self.weights is None else whole * (records.weight / self.weights[1]))

    def absent(self, cell: Codes, alpha: Floats, entered: Floats) -> Floats:
        """Sums of 1 − v by cell; a record that is switched off adds nothing; empty without weights."""
        if self.weights is None:
            return np.empty(0)
        return np.bincount(cell, weights=np.rint(alpha * UNIT) - entered, minlength=len(self.labels)).astype(np.float64)

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """The released parameters: the noisy sums, and laws drawn given them."""
        return self._all(np.repeat(statistics[None], draws, axis=0), rng)

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Laws drawn again given the released sums; they vary as laws of other samples do, without noise."""
        return self._all(np.repeat(theta["sums"], draws, axis=0), rng)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Laws given the released sums with further noise of the same law, for standard errors only."""
        by = np.concatenate(
            [np.full(stop - start, float(b)) for (start, stop), b in zip(self.parts, self.scales, strict=True)]
        )
        noisy = theta["sums"] + by * rng.laplace(size=(draws, len(by)))
        return self._all(np.clip(noisy, *self.domain), rng)

    def _all(self, sums: Floats, rng: np.random.Generator) -> Draws:
        found = {"sums": sums, **self.laws(sums, rng)}
        if self.weights is not None:
            found["weight"] = self.weights[1] * self.held(sums) / self.count
        return Draws({parameter.name: found[parameter.name] for parameter in self.parameters})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released laws, adjusted to other sample counts (draw, row)."""
        count = counted_again(self.design, counts)
        sums = np.repeat(theta["sums"], len(counts), axis=0)
        held = self.held(sums, count)
        found = {"sums": sums, **self.moved(theta, self.held(theta["sums"]), held)}
        if self.weights is not None:
            found["weight"] = self.weights[1] * held / count
        return Draws({parameter.name: found[parameter.name] for parameter in self.parameters})

    def held(self, sums: Floats, count: Floats | None = None) -> Floats:
        """Σv of every cell, (draw, cell), clipped to its range under the published sample counts, or under `count`."""
        count = np.repeat(self.count[None], len(sums), axis=0) if count is None else count
        if self.weights is None:
            return count
        least = count * max(self.weights[0] / self.weights[1], LEAST_MEAN_WEIGHT)
        return np.clip(count - sums[:, : len(self.count)] / UNIT, least, count)

    def weight(self, theta: Draws) -> Floats:
        """Mean weight of every cell, (draw, cell)."""
        return np.ones((len(theta), len(self.count))) if self.weights is None else theta["weight"]

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        each = ", ".join(f"{scale} on {self.named(names)}" for scale, names in zip(self.scales, self.names, strict=True))
        return {
            **super().describe(theta),
            "noise": f"discrete Laplace, scale {each}, in units of 1/{UNIT}, {self.truncation} to the domain of each sum",
        }

    @staticmethod
    def named(names: tuple[str, ...]) -> str:
        """The name of a group's statistic, without the cell."""
        return names[0].partition(" of ")[0]
