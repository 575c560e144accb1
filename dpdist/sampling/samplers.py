"""The base class of samplers, and that without Markov chains: `exact`, `grid`, and rejection from a clamped posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.protocol import Clamped, Draws, StratumModel, redrawing, supports

MANY, DEEPEST = 1000, 30
"""The public box starts with 2⁶ squares on a side.
From MANY records on it starts with 2⁵, because a mode is then wide enough.

The side of a square is at least 2^−DEEPEST of the box's.
"""
DROP, STEP, SLOPE = 40.0, 1.0, 0.5
"""A square is split if its nine log densities range over more than STEP + SLOPE × their distance from the maximum."""
VARIATION = 1e-3
"""Total variation between the law of draws and the posterior on the public box, in tests.

The negative binomial model reaches it if nearly all records are clamped. For the beta model it is below 1e-5.
"""
POINTS_AT_ONCE = 4096
"""Number of points at which the density is computed at a time."""
NINE = np.array([(i, j) for i in range(3) for j in range(3)])


# The proposal is a step function over the model's public box. A square of the box is split into four until the log density
# varies little over nine points in it, or until the density there is below e^−DROP of the maximum. The step's height is the
# largest of the nine values, raised by half of their range. A proposed point is uniform in its square, and accepted with
# probability density over height, with the density at the point itself. So squares affect only how many proposals are
# needed, and no part of the box is left out. Draws follow min(density, height). That is the posterior, except at points
# between the nine where the density exceeds the height. VARIATION bounds the mass of such points in the tested cases, not
# for every file.
class Squares(NamedTuple):
    """Lower corners (square, 2) and sides (square,) as shares of the box, and log heights of the proposal, (square,)."""

    corner: Floats
    side: Floats
    log_height: Floats


def draw_clamped(model: StratumModel, posterior: Clamped, draws: int, rng: np.random.Generator) -> Draws:
    """Draws independently from the clamped posterior."""
    records, count = posterior.distinct()
    squares = _kept(model, posterior)
    log_mass = squares.log_height + 2.0 * np.log(squares.side)
    mass = np.cumsum(np.exp(log_mass - log_mass.max()))
    accepted: list[Floats] = []
    number = 0
    while number < draws:
        uniforms = rng.random((2 * (draws - number) + 32, 4))
        square = np.minimum(np.searchsorted(mass, uniforms[:, 0] * mass[-1], side="right"), len(mass) - 1)
        points = _inside(model, squares.corner[square] + squares.side[square, None] * uniforms[:, 1:3])
        accept = np.log1p(-uniforms[:, 3]) <= log_density(model, records, count, points) - squares.log_height[square]
        accepted.append(points[accept])
        number += int(accept.sum())
    return model.draws_at(np.concatenate(accepted)[:draws])


def log_density(model: StratumModel, records: Clamped, count: Floats, points: Floats) -> Floats:
    """Log of the clamped posterior density at points (point, 2) in the model's coordinates, up to a constant."""
    total = model.log_prior(points)
    for start in range(0, len(points), POINTS_AT_ONCE):
        tile = slice(start, start + POINTS_AT_ONCE)
        for which, values, _ in model.tiles(model.draws_at(points[tile]), records.records):
            values -= records.offset[which, None]
            values *= records.alpha[which, None]
            np.clip(values, -records.clamp, records.clamp, out=values)
            total[tile] += count[which] @ values
    return total


def squares_of(model: StratumModel, posterior: Clamped) -> Squares:
    """The squares of the proposal, split as far as the density needs it."""
    records, count = posterior.distinct()
    first_level = 5 if len(posterior.rows) >= MANY else 6
    split = np.stack(np.meshgrid(*2 * [np.arange(2**first_level)], indexing="ij"), axis=-1).reshape(-1, 2)
    corners, levels, highest, lowest = [split[:0]], [np.empty(0)], [np.empty(0)], [np.empty(0)]
    peak = -np.inf
    for level in range(first_level, DEEPEST + 1):
        first, second = np.moveaxis(2 * split[:, None] + NINE, 2, 0)
        nodes, places = np.unique((first << 32) | second, return_inverse=True)
        shares = np.column_stack([nodes >> 32, nodes & (2**32 - 1)]) / 2.0 ** (level + 1)
        values = log_density(model, records, count, _inside(model, shares))[places.reshape(-1, 9)]
        high, low = values.max(axis=1), values.min(axis=1)
        peak = max(peak, float(high.max()))
        wide = (high - low > STEP + SLOPE * (peak - high)) & (2.0 * high - low >= peak - DROP) & (level < DEEPEST)
        corners.append(split[~wide] / 2.0**level)
        levels.append(np.full(int((~wide).sum()), float(level)))
        highest.append(high[~wide])
        lowest.append(low[~wide])
        quarters = 2 * split[wide][:, None] + np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
        split = quarters.reshape(-1, 2)
        if not len(split):
            break
    high, low = np.concatenate(highest), np.concatenate(lowest)
    return Squares(np.concatenate(corners), 0.5 ** np.concatenate(levels), high + (high - low) / 2.0)


def _inside(model: StratumModel, shares: Floats) -> Floats:
    """Coordinates of points (point, 2) that are given as shares of the box."""
    low, high = np.array(model.box).T
    return np.asarray(low + shares * (high - low))


def _kept(model: StratumModel, posterior: Clamped) -> Squares:
    """The proposal for a posterior, made once for all draws from it."""
    if posterior not in _SQUARES:
        _SQUARES[posterior] = squares_of(model, posterior)
    return _SQUARES[posterior]


_SQUARES: WeakKeyDictionary[Clamped, Squares] = WeakKeyDictionary()


class Unconverged(Exception):
    """A posterior could not be sampled as the job asks. The message gives the reason, without figures of the records."""


class PosteriorSampler(ABC):
    """Draws from π(θ) ∏ p(record_i | θ)^α_i, given statistics of α-weighted records, or from a clamped posterior.

    A generator in the same state gives the same draws, and similar statistics give similar draws. All rounds therefore
    share random numbers.
    """

    @abstractmethod
    def sample(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """The job's S draws. Raises `Improper` if the posterior does not exist."""

    @abstractmethod
    def draw(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """One draw."""

    def repeated(
        self, model: StratumModel, stream: Callable[[], np.random.Generator]
    ) -> Callable[[Floats | Clamped], Draws]:
        """`sample` of the rounds of one stage, which share the random numbers of a stream."""
        return lambda posterior: self.sample(model, posterior, stream())

    def complete(self, model: StratumModel) -> StratumModel:
        """The model, with a way to run its program's generated quantities if it needs one."""
        return model


@dataclass(frozen=True)
class IndependentSampler(PosteriorSampler):
    """Draws without Markov chains, each independent of the others.

    Draws from closed forms have the total variation 0 from the posterior. Where a model has none, draws are made on a dense
    public grid, and the model states the grid's error. Clamped posteriors are drawn from by `draw_clamped`.
    """

    draws: int

    def sample(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, self.draws, rng)

    def draw(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, 1, rng)

    def repeated(
        self, model: StratumModel, stream: Callable[[], np.random.Generator]
    ) -> Callable[[Floats | Clamped], Draws]:
        if not supports(model, "draw"):
            return super().repeated(model, stream)
        redraw = redrawing(model, self.draws, stream)

        def draws_of(posterior: Floats | Clamped) -> Draws:
            assert not isinstance(posterior, Clamped)
            return redraw(posterior)

        return draws_of

    def _draw(self, model: StratumModel, posterior: Floats | Clamped, draws: int, rng: np.random.Generator) -> Draws:
        if isinstance(posterior, Clamped):
            return draw_clamped(model, posterior, draws, rng)
        return model.draw(posterior, draws, rng) if supports(model, "draw") else model.draw_on_grid(posterior, draws, rng)
