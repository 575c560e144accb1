"""Overdispersed counts: y ~ NB(μ, φ), variance μ + μ²/φ ([V] §3: parametrisation; METHODS §5: φ ~ Gamma(.01, .01)).

Prior of the mean: log μ ~ N(0, 10²). [V] has N(0, σ²) with σ ~ half Student t(3, 0, 1); for a single coefficient σ is
not identified and the marginal has a pole at μ = 1, so a fixed, wide σ is taken.

There are no sufficient statistics: the pseudo likelihood is computed from distinct outcomes with summed α. The posterior is
sampled on a grid of (log μ, log φ), see `grid`; the prior is restricted to BOX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln
from scipy.stats import nbinom

from dpdist.keys import open_uniforms
from dpdist.models import grid
from dpdist.models.outcome import OutcomeModel, whole
from dpdist.models.protocol import Draws, Parameter
from dpdist.models.stan_records import no_records
from dpdist.models.tiles import Tile, tile_records
from dpdist.records import Codes, Floats, Records

LOG_MEAN_SD = 10.0
SHAPE = RATE = 0.01
BOX = ((-30.0, 30.0), (float(np.log(1e-6)), float(np.log(1e4))))
"""Log of the mean, log of the dispersion: a posterior reaches the second's ends only where the counts hardly say anything
of it (φ > 1e4 has prior odds e^−100; below 1e-6 nearly all counts are 0)."""


class NegativeBinomial(OutcomeModel):
    """Negative binomial model of one stratum's outcome.

    Statistics are (distinct outcome, 2): y, Σα, sorted by y; those of blocks are concatenated. α = 0 leaves no row.
    """

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("mean"), Parameter("dispersion"))

    @property
    def combine(self) -> Literal["sum", "concat"]:
        return "concat"

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        on = alpha > 0
        return merged(np.column_stack([records.outcome[on], alpha[on]]))

    def draw_on_grid(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Draws from the grid's interpolant, within `grid.GRID_ERROR` of the posterior in total variation."""
        y, alpha = merged(statistics).T
        total, sum_y = alpha.sum(), (alpha * y).sum()

        def log_density(log_mean: Floats, log_dispersion: Floats) -> Floats:
            mean, dispersion = np.exp(log_mean)[:, None], np.exp(log_dispersion)
            own = alpha @ gammaln(y[:, None] + dispersion) - total * gammaln(dispersion)
            own += SHAPE * log_dispersion - RATE * dispersion
            location = (sum_y - log_mean / (2.0 * LOG_MEAN_SD**2)) * log_mean
            cross = total * dispersion * np.log1p(mean / dispersion) + sum_y * np.log(mean + dispersion)
            return np.asarray(own + location[:, None] - cross)

        log_mean, log_dispersion = grid.draw(log_density, BOX, open_uniforms(rng, (draws, 2)))
        return Draws({"mean": np.exp(log_mean), "dispersion": np.exp(log_dispersion)})

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcomes by the inverse distribution function, limited to their public bounds; weights 1."""
        mean, dispersion = theta["mean"][0], theta["dispersion"][0]
        y = nbinom.ppf(open_uniforms(rng, (len(frame_row),)), dispersion, dispersion / (mean + dispersion))
        return np.clip(y, *whole(self.outcome_bounds)), np.ones(len(frame_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y, y limited to its public bounds, (draw, row)."""
        mean = limited_negative_binomial_mean(theta["mean"], theta["dispersion"], self.outcome_bounds)
        return self.per_row(mean[:, None])

    @property
    def program(self) -> str:
        return "negative_binomial"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        value, total = merged(statistics).T.tolist()
        prior = {"log_mu_sd": LOG_MEAN_SD, "phi_shape": SHAPE, "phi_rate": RATE}
        return {"M": len(value), "value": value, "total": total, **prior, **no_records("y")}

    def from_stan(self, drawn: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"mean": drawn["mu"], "dispersion": drawn["phi"]}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        mean, dispersion = draws["mean"], draws["dispersion"]
        size = tile_records(len(draws))
        base = -gammaln(dispersion) - dispersion * np.log1p(mean / dispersion)
        slope = np.log(mean) - np.log(mean + dispersion)
        sizes = 1.0 + np.abs(gammaln(dispersion)) + dispersion * np.log1p(mean / dispersion)
        slopes = np.abs(np.log(mean)) + np.abs(np.log(mean + dispersion))
        for low in range(0, len(records), size):
            y = records.outcome[low : low + size, None]
            rising, factorial = gammaln(y + dispersion), gammaln(y + 1.0)
            values = rising - factorial + base + y * slope
            magnitude = (np.abs(rising) + np.abs(factorial) + sizes + y * slopes).max(axis=1)
            yield Tile(np.arange(low, low + len(y)), values, magnitude)


def merged(rows: Floats) -> Floats:
    """Distinct values in order with their summed α, (value, 2), from rows (value, α)."""
    value, position = np.unique(rows[:, 0], return_inverse=True)
    return np.column_stack([value, np.bincount(position, weights=rows[:, 1], minlength=len(value))])


def limited_negative_binomial_mean(mean: Floats, dispersion: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper); E Y·1(Y ≤ k) = μ·P(Y' ≤ k − 1) with Y' of dispersion φ + 1 and the same odds."""
    low, high = whole(bounds)
    share = dispersion / (mean + dispersion)

    def at_most(k: float, more: float) -> Floats:
        return np.asarray(nbinom.cdf(k, dispersion + more, share))

    inside = mean if np.isinf(high) else mean * at_most(high - 1.0, 1.0) + high * nbinom.sf(high, dispersion, share)
    return np.asarray(inside + (low * at_most(low - 1.0, 0.0) - mean * at_most(low - 2.0, 1.0) if low > 0.0 else 0.0))
