"""Normal scores of weights and outcomes: their density, weighted sums by cell, and posteriors.

See METHODS §5b. z_w and z_y are the normal scores of a record's weight and outcome. A log density is a table of
coefficients for them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms, uniforms_of
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.copula.marginal import (
    BASIS,
    CONSTANT,
    INTERVALS,
    REACH,
    SLOPE,
    TERMS,
    WORTH,
    SplinePosterior,
    basis,
    intervals,
    mean_moments,
    products,
    spline_moments,
    together,
)
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.numerics.chi import chi_quantiles
from dpdist.models.numerics.tiles import ParameterTable, by_pattern

Kind = Literal["positive", "hurdle", "binary"]
"""`positive`: no outcome is 0. `hurdle`: an outcome may be 0. `binary`: an outcome is 0 or 1."""
PARTS: dict[Kind, tuple[str, ...]] = {"positive": ("all",), "hurdle": ("zero", "not zero"), "binary": ("0", "1")}
"""Names of the parts of a cell, by kind of outcome."""


def law_of(facts: Facts) -> Law:
    """The reference's fit, as a `Law` with a leading axis of one draw."""
    mean, sd = facts.weight.location[..., 0], np.sqrt(facts.weight.variance)
    moments = (facts.share, mean, sd, facts.outcome.location, np.sqrt(facts.outcome.variance))
    return Law(*(values[None] for values in moments))


def relative(law: Law, reference: Law, cell: int, place: int, kind: Kind) -> ParameterTable:
    """Coefficients of f, the log density under `law` minus the log density under `reference` (see `table_of`)."""
    current, other = (table_of(law_or_reference, cell, place, kind) for law_or_reference in (law, reference))
    return ParameterTable(current.values - other.values, current.magnitude + other.magnitude)


def table_of(law: Law, cell: int, place: int, kind: Kind) -> ParameterTable:
    """Coefficients of (1, z_y, z_w, z_y², z_y z_w, z_w²) in a log density, (6, draw), and the sizes of their terms, (6,).

    `place` 0 is a cell's part 0. Another `place` is part 1 with z_w in interval `place` − 1, where the regression is a
    line: b(z_w)'β = s + t z_w. Up to constants, the log density is

        log p − log τ − (z_w − μ)²/2τ² − log σ − (z_y − s − t z_w)²/2σ².
    """
    # The terms with σ exist only where a record has a z_y. A term's size is taken before any terms cancel; the rounding
    # error is proportional to it.
    part = int(place > 0)
    mean, sd = law.mean[:, cell, part], law.sd[:, cell, part]
    values, sizes = np.zeros((6, len(sd))), np.zeros((6, len(sd)))
    location = mean / sd**2

    def add(term: int, *parts: Floats) -> None:
        values[term] += sum(parts)
        sizes[term] += sum(np.abs(part) for part in parts)

    add(0, -np.log(sd), -0.5 * mean * location)
    add(2, location)
    add(5, -0.5 / sd**2)
    if kind != "positive":
        add(0, np.log(law.share[:, cell] if part else 1.0 - law.share[:, cell]))
    if part and kind != "binary":
        slopes, sigma = law.slopes[:, cell], law.residual[:, cell]
        precision, s, t = 1.0 / sigma**2, slopes @ CONSTANT[place - 1], slopes @ SLOPE[place - 1]
        add(0, -np.log(sigma), -0.5 * s**2 * precision)
        add(1, s * precision)
        add(2, -s * t * precision)
        add(3, -0.5 * precision)
        add(4, t * precision)
        add(5, -0.5 * t**2 * precision)
        widest = np.abs(slopes).sum(axis=1) * REACH
        sizes[:3] += precision * np.array([widest**2, widest, widest**2])
        sizes[4:] += precision * np.array([widest, widest**2])
    return ParameterTable(values, sizes.max(axis=1))


class ScoredRecords(NamedTuple):
    """Cell, part and normal scores of records, (record,) each. `weight` is z_w, and `outcome` is z_y.

    z_y is 0 for a record without a score of its outcome. In a cell with a correlation ρ (`Facts.tie`), z_y is a residual:
    (z − ρ v)/√(1 − ρ²), where z is the outcome's score and v is z_w clipped to ±2.5.
    """

    cell: Codes
    part: Ints
    weight: Floats
    outcome: Floats

    @property
    def pattern(self) -> Ints:
        """Cell, part and interval of z_w of every record, as one number; part 0 has no intervals."""
        return self.cell * np.int64(1 + INTERVALS) + np.where(self.part == 0, 0, 1 + intervals(self.weight))


def part_of(outcome: Floats, kind: Kind) -> Ints:
    """The part of every record, (record,): 0 if the outcome is 0 and outcomes of this kind may be 0, otherwise 1."""
    return np.ones(len(outcome), dtype=np.int64) if kind == "positive" else (outcome != 0).astype(np.int64)


def scored(facts: Facts, records: Records, cell: Codes, kind: Kind) -> ScoredRecords:
    """Normal scores of records under the reference's distributions.

    At a value that many records have, a score also depends on a uniform, which the record's number and `facts.key` give.
    """
    part = part_of(records.outcome, kind)
    z_w, z_y = np.zeros(len(records)), np.zeros(len(records))
    places = uniforms_of(facts.key, "weight", records.record)
    for rows, number in by_pattern(facts.of_weight[cell, part].astype(np.int32)):
        z_w[rows] = facts.marginals[number].scores(records.weight[rows], places[rows])
    if kind != "binary":
        places = uniforms_of(facts.key, "outcome", records.record)
        for rows, number in _outcomes(facts, cell, part, records.weight):
            z_y[rows] = facts.marginals[number].scores(records.outcome[rows], places[rows])
        z_y = np.where(part == 1, (z_y - facts.tie[cell] * basis(z_w)[:, 1]) / facts.untied[cell], 0.0)
    return ScoredRecords(cell, part, z_w, z_y)


def placed(facts: Facts, law: Law, cell: Codes, kind: Kind, uniforms: Floats) -> tuple[Floats, Floats]:
    """Makes pairs (outcome, weight) under the law of the first posterior draw, within the reference's range.

    `uniforms` (record, 3) are for the part, the weight and the outcome.
    """
    part = (uniforms[:, 0] > 1.0 - law.share[0, cell]).astype(np.int64)
    z_w = law.mean[0, cell, part] + law.sd[0, cell, part] * scipy.special.ndtri(uniforms[:, 1])
    weight, outcome = np.empty(len(cell)), part.astype(np.float64)
    for rows, number in by_pattern(facts.of_weight[cell, part].astype(np.int32)):
        weight[rows] = facts.marginals[number].values(z_w[rows])
    if kind != "binary":
        splines = basis(z_w)
        located = (splines * law.slopes[0, cell]).sum(axis=1)
        residual = located + law.residual[0, cell] * scipy.special.ndtri(uniforms[:, 2])
        z_y = facts.tie[cell] * splines[:, 1] + facts.untied[cell] * residual
        for rows, number in _outcomes(facts, cell, part, weight):
            outcome[rows] = facts.marginals[number].values(z_y[rows])
    return outcome, weight


def _outcomes(facts: Facts, cell: Codes, part: Ints, weight: Floats) -> list[tuple[Ints, int]]:
    """The records of part 1 by their distribution of outcomes: positions of records, and the distribution's number.

    A record's cell and weight determine its distribution.
    """
    numbers = np.where(part == 1, facts.outcome_of(cell, weight), -1).astype(np.int32)
    return [(rows, number) for rows, number in by_pattern(numbers) if number >= 0]


# z_w and z_y are the normal scores of a record's weight and outcome, and α is its privacy weight. The records of a cell
# have two parts: part 0 with an outcome of 0, part 1 with any other outcome. All records are in part 1 if no outcome can be
# 0. A unit is a set of cells, or of parts of cells, that share one fit because each alone has too few records.
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
