"""A reference's distribution function F, its inverse, and a linear spline of an outcome's score on the weight's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints, quotient_or
from dpdist.models.numerics.chi import chi_quantiles

# With v = z_w clipped to ±2.5, the basis is b(v) = (1, v, (v − k)₊ for every knot k).
KNOTS = np.array([-1.5, -0.75, 0.0, 0.75, 1.5])
"""Scores of the weight at which the regression's slope changes."""
REACH = 2.5
"""Absolute score of the weight beyond which the regression is flat."""
EDGES = np.array([-REACH, *KNOTS, REACH])
INTERVALS, BASIS = len(EDGES) + 1, len(KNOTS) + 2
"""Numbers of intervals of z_w, including the two flat ones, and of basis functions."""
TERMS = 6
"""Number of sums in an interval: of 1, z_y, z_w, z_y², z_y z_w and z_w²."""
WORTH = 10.0
"""Number n0 of records that a prior is worth."""
PRECISION = np.array([WORTH] + [2.0 * WORTH] * (BASIS - 1))
"""The diagonal of the prior's matrix D."""


def intervals(v: Floats) -> Ints:
    """The interval of each score z_w, from 0 below −2.5 to INTERVALS − 1 from 2.5 on."""
    return np.searchsorted(EDGES, v, side="right")


def basis(v: Floats) -> Floats:
    """The basis functions b of weights' scores, (…, BASIS)."""
    inside = np.clip(v, -REACH, REACH)
    hinges = np.maximum(inside[..., None] - KNOTS, 0.0)
    return np.concatenate([np.ones((*inside.shape, 1)), inside[..., None], hinges], axis=-1)


def _lines() -> tuple[Floats, Floats]:
    """The basis functions of every interval as lines, constant + slope · z_w, (interval, BASIS) each."""
    constant, slope = np.zeros((INTERVALS, BASIS)), np.zeros((INTERVALS, BASIS))
    constant[0], constant[-1] = basis(np.array(-REACH)), basis(np.array(REACH))
    for j in range(1, INTERVALS - 1):
        edge = EDGES[j - 1]
        slope[j] = [0.0, 1.0, *(edge >= KNOTS)]
        constant[j] = [1.0, 0.0, *np.where(edge >= KNOTS, -KNOTS, 0.0)]
    return constant, slope


CONSTANT, SLOPE = _lines()


def products(z_y: Floats, z_w: Floats) -> Floats:
    """The products 1, z_y, z_w, z_y², z_y z_w and z_w² of every record, (TERMS, record)."""
    return np.array([np.ones_like(z_w), z_y, z_w, z_y * z_y, z_y * z_w, z_w * z_w])


class SplineMoments(NamedTuple):
    """Sums A'diag(α)A, A'diag(α)z, Σαz² and Σα of one or several regressions."""

    gram: Floats
    cross: Floats
    square: Floats
    total: Floats


def spline_moments(sums: Floats) -> SplineMoments:
    """Sums for the outcome's regression, from the sums of products by interval, (…, interval, TERMS)."""
    n, u, v, uu, uv, vv = np.moveaxis(sums, -1, 0)
    gram = np.einsum("...j,ja,jb->...ab", n, CONSTANT, CONSTANT) + np.einsum("...j,ja,jb->...ab", vv, SLOPE, SLOPE)
    mixed = np.einsum("...j,ja,jb->...ab", v, CONSTANT, SLOPE)
    gram = gram + mixed + np.swapaxes(mixed, -1, -2)
    cross = u @ CONSTANT + uv @ SLOPE
    return SplineMoments(gram, cross, uu.sum(axis=-1), n.sum(axis=-1))


def mean_moments(total: Floats, linear: Floats, square: Floats) -> SplineMoments:
    """Sums for a regression on a constant, from Σα, Σαz and Σαz²."""
    return SplineMoments(total[..., None, None], linear[..., None], square, total)


class SplinePrior(NamedTuple):
    """Centre of a regression's prior: β₀ (…, basis) and σ₀² (…,)."""

    location: Floats
    variance: Floats

    @classmethod
    def independence(cls, shape: tuple[int, ...], size: int) -> SplinePrior:
        """Prior without any information: scores are standard normal, and outcome and weight are independent."""
        return cls(np.zeros((*shape, size)), np.ones(shape))

    def of_units(self, unit: Ints) -> SplinePrior:
        """One prior per unit, from one per cell or part of a cell."""
        first = np.unique(unit, return_index=True)[1]
        size = self.location.shape[-1]
        return SplinePrior(self.location.reshape(-1, size)[first], self.variance.reshape(-1)[first])


# In every interval between knots, b is a line in z_w. So sums of (1, z_y, z_w, z_y², z_y z_w, z_w²) by interval are
# sufficient, and a log density is a dot product with these six products.
#
# The conjugate posterior: A has the rows b(v) of the records, z are their z_y, α their privacy weights, and r the residuals
# z − Aβ̂. The prior is worth n0 = 10 records and centred at (β₀, σ₀²); D = diag(10, 20, …, 20). Then
#
#     K = A'diag(α)A + D, β̂ = K⁻¹(A'diag(α)z + Dβ₀), SS = Σα r² + (β̂ − β₀)'D(β̂ − β₀) + n0 σ₀², ν = Σα + n0,
#     σ² = SS/χ²_ν, β ~ N(β̂, σ²K⁻¹).
class SplinePosterior(NamedTuple):
    """Posterior of one or several regressions: K, β̂, SS and ν, as in the module's text."""

    precision: Floats
    location: Floats
    scatter: Floats
    degrees: Floats

    @classmethod
    def of(cls, moments: SplineMoments, prior: SplinePrior) -> SplinePosterior:
        precision = PRECISION[: moments.cross.shape[-1]]
        k = moments.gram + np.diag(precision)
        b = moments.cross + precision * prior.location
        location = np.linalg.solve(k, b[..., None])[..., 0]
        squares = (precision * prior.location**2).sum(axis=-1) + moments.square - (b * location).sum(axis=-1)
        scatter = np.maximum(squares, 0.0) + WORTH * prior.variance
        return cls(k, np.asarray(location, dtype=np.float64), scatter, moments.total + WORTH)

    @property
    def variance(self) -> Floats:
        """SS/ν, an estimate of σ²."""
        return self.scatter / self.degrees

    def draw(self, uniforms: Floats) -> tuple[Floats, Floats]:
        """Draws of σ (draw, unit) and β (draw, unit, basis), from uniforms (draw, unit·(1 + basis))."""
        units, size = self.location.shape
        by_unit = uniforms.reshape(len(uniforms), units, 1 + size)
        sd, location = np.empty((len(by_unit), units)), np.empty((len(by_unit), units, size))
        for u in range(units):
            sd[:, u] = np.sqrt(self.scatter[u]) / chi_quantiles(float(self.degrees[u]), by_unit[:, u, 0])
            root = np.linalg.cholesky(self.precision[u])
            spread = scipy.linalg.solve_triangular(root, scipy.special.ndtri(by_unit[:, u, 1:]).T, lower=True, trans="T").T
            location[:, u] = self.location[u] + sd[:, u, None] * spread
        return sd, location


def together(sums: Floats, unit: NDArray[np.int64], axis: int) -> Floats:
    """Sums over the cells of each unit, along an axis; `unit` (cell,) is the unit of each cell."""
    membership = (np.arange(int(unit.max()) + 1)[:, None] == unit).astype(np.float64)
    return np.moveaxis(np.tensordot(membership, sums, axes=(1, axis)), 0, axis)


NODES = 1_000
"""Approximate number of nodes of a distribution, without the nodes in its tails."""
TAIL = 50
"""Every value of this many lowest, and of this many highest, records is a node."""
MARGIN = 1e-6
"""At either end of an atom's step, this share of it stays without records, so that rounding of Φ and Φ⁻¹ cannot leave the
step."""
BINS = np.concatenate([[-9.0], np.linspace(-4.0, 4.0, 49), [9.0]])
"""Edges of the bins of an outcome's normal score, which are a sixth wide between −4 and 4."""


# Nodes a_1 < … < a_K have F(a−) = `low` just below a node and F(a) = `high` at it. F is linear between neighbouring nodes.
# A node with low < high is an atom: a value that many records have. There a record has the probability F(a−) + U (F(a) −
# F(a−)), with U a uniform of the record, and the inverse returns a exactly.
#
# For a continuous variable, the step at each value is made narrower by half a record at either side. Probabilities are at
# least half a record away from 0 and 1.
@dataclass(frozen=True, eq=False)
class Marginal:
    """The distribution of a weight or an outcome. `value`, `low` and `high` are (node,), each increasing.

    `records` is the number of reference records of the distribution.
    """

    value: Floats
    low: Floats
    high: Floats
    records: int

    @classmethod
    def of(cls, values: Floats, continuous: bool) -> Marginal:
        """The distribution of a reference's values. If it is discrete with few values, every value is an atom."""
        return cls._of(values, np.ones(len(values), dtype=np.int64), continuous)

    @classmethod
    def mixed(cls, values: Floats, rest: Floats, share: float, continuous: bool) -> Marginal:
        """The distribution of a mixture: `values` have the probability `share`, and `rest` the rest.

        If one kind is empty, or its share rounds to 0, the other kind has all of the probability.
        """
        own_copies, rest_copies = round(share * len(rest)), round((1.0 - share) * len(values))
        if len(rest) == 0 or rest_copies == 0 < len(values):
            return cls.of(values, continuous)
        if len(values) == 0 or own_copies == 0:
            return cls.of(rest, continuous)
        counts = np.repeat(np.array([own_copies, rest_copies], dtype=np.int64), [len(values), len(rest)])
        return cls._of(np.concatenate([values, rest]), counts // np.gcd(own_copies, rest_copies), continuous)

    @classmethod
    def _of(cls, values: Floats, counts: Ints, continuous: bool) -> Marginal:
        """The distribution of values with the given counts.

        At a value, half a record is half of the mean count of a record there. When tails are measured in records, one
        record is the smallest count of all.
        """
        distinct, place = np.unique(values, return_inverse=True)
        count = np.bincount(place, weights=counts).astype(np.int64)
        total = int(count.sum())
        above = np.cumsum(count, dtype=np.int64)
        below = above - count
        least = int(counts.min())
        bins = _kept(below, above, total, least)
        # Each step is made half a record narrower at either side. So a single record is no atom, the mean stays the
        # reference's, and scores are finite.
        halves = count / np.bincount(place) / 2.0 if continuous or len(distinct) > NODES else np.zeros(len(count))
        low, high = (below + halves)[bins] / total, (above - halves)[bins] / total
        return cls(distinct[bins], low, high, len(values))

    @property
    def edge(self) -> float:
        """The probability of half a record."""
        return 0.5 / self.records

    def scores(self, values: Floats, uniforms: Floats) -> Floats:
        """Normal scores Φ⁻¹(F(value)), finite and increasing in the value; `uniforms` (record,) has one for each record.

        A record at an atom is placed within the atom's step by its uniform. A value between two neighbouring atoms is
        assigned to both, in proportion to nearness. A value beyond the outermost atom is placed there.
        """
        last = np.searchsorted(self.value, values, side="right") - 1
        node, following = np.maximum(last, 0), np.minimum(last + 1, len(self.value) - 1)
        start, step = self.value[node], self.value[following] - self.value[node]
        place = MARGIN + (1.0 - 2.0 * MARGIN) * uniforms
        p_node, p_following = (self.low[k] + place * (self.high[k] - self.low[k]) for k in (node, following))
        share = np.clip(quotient_or(0.0, values - start, step), 0.0, 1.0)
        gap = self.low[following] - self.high[node]
        between = np.where(gap > 0, self.high[node] + share * gap, p_node + share * (p_following - p_node))
        p = np.where((values == start) | (last != node) | (node == following), p_node, between)
        return np.asarray(scipy.special.ndtri(np.clip(p, self.edge, 1.0 - self.edge)))

    def upper_scores(self, values: Floats) -> Floats:
        """Normal scores of F at the upper end of the step that a value is on, (value,)."""
        above = np.searchsorted(self.value, values, side="right")
        return np.asarray(
            scipy.special.ndtri(np.clip(np.concatenate([[0.0], self.high])[above], self.edge, 1.0 - self.edge))
        )

    def values(self, scores: Floats) -> Floats:
        """Values F⁻¹(Φ(score)), within the reference's range; the value of an atom comes back exactly."""
        p = np.clip(scipy.special.ndtr(scores), self.edge, 1.0 - self.edge)
        return np.asarray(np.interp(p, *self._steps))

    def averages(self, edges: Floats) -> Floats:
        """Mean value between neighbouring scores, (edge − 1,), if scores are standard normal."""
        p, (corners, heights, areas) = scipy.special.ndtr(edges), self._areas
        # Between two corners F⁻¹ is a line, and the area below it a parabola; k is the last corner at or below p.
        k = np.clip(np.searchsorted(corners, p, side="right") - 1, 0, len(corners) - 2)
        width = corners[k + 1] - corners[k]
        share = quotient_or(0.0, p - corners[k], width)
        until = areas[k] + (p - corners[k]) * (heights[k] + share * (heights[k + 1] - heights[k]) / 2.0)
        chance = np.diff(p)
        middle = self.values((edges[1:] + edges[:-1]) / 2.0)
        return np.asarray(np.divide(np.diff(until), chance, out=middle, where=chance > 1e-14))

    @cached_property
    def _steps(self) -> tuple[Floats, Floats]:
        """Corners of F⁻¹: probabilities, which do not decrease, and values."""
        return np.column_stack([self.low, self.high]).reshape(-1), np.repeat(self.value, 2)

    @cached_property
    def _areas(self) -> tuple[Floats, Floats, Floats]:
        """Corners of F⁻¹ from 0 to 1: probabilities, values, and the area below F⁻¹ up to each corner."""
        p, value = self._steps
        corners, heights = np.concatenate([[0.0], p, [1.0]]), np.concatenate([value[:1], value, value[-1:]])
        return corners, heights, np.concatenate([[0.0], np.cumsum(np.diff(corners) * (heights[1:] + heights[:-1]) / 2.0)])


def _kept(below: Ints, above: Ints, total: int, record: int) -> NDArray[np.bool_]:
    """Marks the distinct values that are nodes, (value,): all of them, if there are at most NODES.

    Otherwise the nodes are the values of the tails, the frequent values, and one value per 1/NODES of probability.
    """
    if len(below) <= NODES:
        return np.ones(len(below), dtype=bool)
    grid = below * NODES // total != above * NODES // total
    return np.asarray(grid | (below < TAIL * record) | (above > total - TAIL * record))


class MarginalBins(NamedTuple):
    """Narrow bins of one cell's normal scores, over which `expectations` sums (METHODS §5b).

    - `edges`: edges of the bins of the weight's score.
    - `splines` (bin, BASIS): the regression's basis functions at every bin's mean score.
    - `of_zeros`, `of_rest` (bin,): mean weight in the bin of a record with outcome 0, and of any other record.
    - `outcome` (bin,): number of the distribution of outcomes that a record in the bin has.
    - `means`: for each distribution of outcomes, by the number in `outcome`, its mean outcome in each of BINS.
    """

    edges: Floats
    splines: Floats
    of_zeros: Floats
    of_rest: Floats
    outcome: Ints
    means: dict[int, Floats]


def bins_of(marginals: Sequence[Marginal], of_weight: Ints, of_outcome: Ints, between: Floats) -> MarginalBins:
    """The bins of one cell.

    `of_weight` (part,) and `of_outcome` (class,) are positions in `marginals`. `between` are the weights that separate
    the classes. Each is also an edge of the bins, so that a bin lies in one class.
    """
    of_zeros, of_rest = (marginals[k] for k in of_weight)
    class_edges = of_rest.upper_scores(between)
    edges = np.unique(np.concatenate([BINS, class_edges]))
    outcome = of_outcome[(edges[:-1, None] >= class_edges).sum(axis=1)]
    density, chance = np.exp(-(edges**2) / 2.0) / np.sqrt(2.0 * np.pi), np.diff(scipy.special.ndtr(edges))
    middle = (edges[1:] + edges[:-1]) / 2.0
    splines = basis(np.divide(-np.diff(density), chance, out=middle, where=chance > 1e-14))
    means = {int(k): marginals[k].averages(BINS) for k in np.unique(outcome)}
    return MarginalBins(edges, splines, of_zeros.averages(edges), of_rest.averages(edges), outcome, means)
