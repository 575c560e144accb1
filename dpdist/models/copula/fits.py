"""For `copula.model`: weighted sums of normal scores by cell, then posteriors of parameters (METHODS §5b).

z_w and z_y are the normal scores of a record's weight and outcome, and α is its privacy weight. The records of a cell
have two parts: part 0 with an outcome of 0, part 1 with any other outcome. All records are in part 1 if no outcome can be
0. A unit is a set of cells, or of parts of cells, that share one fit because each alone has too few records.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdist.core.keys import open_uniforms
from dpdist.core.records import Floats, Ints
from dpdist.models.copula.normal_scores import Kind, ScoredRecords
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.spline import (
    BASIS,
    INTERVALS,
    TERMS,
    WORTH,
    SplinePosterior,
    mean_moments,
    products,
    spline_moments,
    together,
)
from dpdist.models.numerics.chi import chi_quantiles
from dpdist.models.numerics.tiles import by_pattern

T = TypeVar("T", np.float64, np.int64)
INSIDE = (2.0**-1000, 1.0 - 2.0**-53)
"""Probabilities of part 1 are limited to this interval, where log p and log(1 − p) are finite."""
LEADING = 3
"""Number of statistics of a cell's part 0: Σα, Σα z_w and Σα z_w².

The statistics of part 1 follow: six for each interval of z_w (see `spline`).
"""


def sums(scored: ScoredRecords, alpha: Floats, cells: int) -> Floats:
    """The statistics of every cell, (cell, statistic): sums over records of α times products of their scores.

    The products are (1, z_w, z_w²) in part 0. In part 1 they are all six `products`, summed for each interval of z_w.
    """
    terms, size = products(scored.outcome, scored.weight), cells * (1 + INTERVALS)
    totals = [np.bincount(scored.pattern, weights=alpha * term, minlength=size) for term in terms]
    return _flat(np.array(totals, dtype=np.float64).T.reshape(cells, 1 + INTERVALS, TERMS))


def covariance_of_sums(scored: ScoredRecords, alpha: Floats, cells: int) -> Floats:
    """Covariance of `sums` over samples with the same number of records in every cell, (cell, statistic, statistic).

    Privacy weights of records are the same in all samples.
    """
    pattern, terms = scored.pattern, products(scored.outcome, scored.weight)
    slots = (1 + INTERVALS) * TERMS
    spread = np.zeros((cells, slots, slots))
    for rows, cell in by_pattern((pattern // (1 + INTERVALS)).astype(np.int32)):
        wide = np.zeros((len(rows), 1 + INTERVALS, TERMS))
        wide[np.arange(len(rows)), pattern[rows] % (1 + INTERVALS)] = (alpha[rows] * terms[:, rows]).T
        flat = wide.reshape(len(rows), slots)
        centred = flat - flat.mean(axis=0)
        spread[cell] = centred.T @ centred * (len(rows) / max(1, len(rows) - 1))
    slots_kept = _flat(np.arange(slots, dtype=np.int64).reshape(1 + INTERVALS, TERMS))
    return spread[:, slots_kept[:, None], slots_kept]


OF_WEIGHT = [0, 2, 5]
"""Positions of 1, z_w and z_w² among `products`."""


def _flat(wide: NDArray[T]) -> NDArray[T]:
    """The LEADING statistics of part 0, then those of part 1 by interval."""
    return np.concatenate([wide[..., 0, OF_WEIGHT], wide[..., 1:, :].reshape(*wide.shape[:-2], INTERVALS * TERMS)], axis=-1)


class FittedScores(NamedTuple):
    """Conjugate posteriors of the score model's parameters.

    - `weight` (…, unit): mean and variance of z_w.
    - `outcome` (…, unit): regression of z_y on z_w.
    - `ones`, `zeros` (…, cell): the two parameters of the Beta posterior of P(part 1).
    - `of_outcome` (cell,): the unit of each cell in `outcome`.
    - `of_weight` (cell, part): the unit of each part in `weight`.
    """

    weight: SplinePosterior
    outcome: SplinePosterior
    ones: Floats
    zeros: Floats
    of_outcome: Ints
    of_weight: Ints

    @classmethod
    def of(cls, statistics: Floats, facts: Facts, units: tuple[Ints, Ints]) -> FittedScores:
        """Computes the posteriors from one set of statistics, (cell, statistic), or from several, (set, cell, statistic).

        `facts` has the priors. `units` are `of_outcome` and `of_weight`.
        """
        of_outcome, of_weight = units
        of_part_one = statistics[..., LEADING:].reshape(*statistics.shape[:-1], INTERVALS, TERMS)
        parts = np.stack([statistics[..., :LEADING], of_part_one.sum(axis=-2)[..., OF_WEIGHT]], axis=-2)
        flat = together(parts.reshape(*parts.shape[:-3], -1, LEADING), of_weight.reshape(-1), parts.ndim - 3)
        weight = SplinePosterior.of(mean_moments(*np.moveaxis(flat, -1, 0)), facts.weight.of_units(of_weight))
        moments = spline_moments(together(of_part_one, of_outcome, of_part_one.ndim - 3))
        outcome = SplinePosterior.of(moments, facts.outcome.of_units(of_outcome))
        return cls(weight, outcome, *_beta_parameters(parts[..., 0], facts.share), of_outcome, of_weight)

    def centre(self) -> Law:
        """Posterior means of P(part 1), of the mean of z_w and of the regression, with standard deviations √(SS/ν)."""
        return Law(
            np.minimum(self.ones / (self.ones + self.zeros), INSIDE[1]),
            self.weight.location[..., 0][..., self.of_weight],
            np.sqrt(self.weight.variance)[..., self.of_weight],
            self.outcome.location[..., self.of_outcome, :],
            np.sqrt(self.outcome.variance)[..., self.of_outcome],
        )

    def draw(self, kind: Kind, draws: int, rng: np.random.Generator) -> Law:
        """Exact draws by inverse distribution functions: with the same uniforms, similar statistics give similar draws."""
        cells = len(self.of_outcome)
        sizes = [2 * cells, 2 * (int(self.of_weight.max()) + 1), (1 + BASIS) * (int(self.of_outcome.max()) + 1)]
        uniforms = open_uniforms(rng, (draws, sum(sizes)))
        for_weight, for_outcome = np.split(uniforms, np.cumsum(sizes)[:-1], axis=1)[1:]
        share = np.ones((draws, cells))
        if kind != "positive":
            for k in range(cells):
                shapes = (self.ones[k], self.zeros[k])
                gammas = [chi_quantiles(2.0 * a, uniforms[:, 2 * k + j]) ** 2 for j, a in enumerate(shapes)]
                share[:, k] = gammas[0] / (gammas[0] + gammas[1])
        sd, mean = self.weight.draw(for_weight)
        residual, slopes = self.outcome.draw(for_outcome)
        return Law(
            np.clip(share, *INSIDE),
            *(mean[:, self.of_weight, 0], sd[:, self.of_weight]),
            *(slopes[:, self.of_outcome], residual[:, self.of_outcome]),
        )


def _beta_parameters(sizes: Floats, share: Floats) -> tuple[Floats, Floats]:
    """The two parameters of the Beta posterior of P(part 1), (…, cell) each.

    `sizes` (…, cell, part) is Σα of both parts. The prior's centre is `share` (cell,), the reference's share of part 1.
    The prior is worth WORTH records of the rarer part.
    """
    odds = share / np.minimum(share, 1.0 - share)
    other = odds * (1.0 / share - 1.0)
    return sizes[..., 1] + WORTH * odds, sizes[..., 0] + WORTH * other
