"""The MODIPS models with a normal or lognormal law: means by cell and one variance, drawn given noisy moments.

u is the outcome (or log outcome) less the middle of its public bounds, in half widths of the bounds. v is the weight over
its public bound. The model is u = Xβ + σe, where X (cell, predictor) are the predictors of cells. The prior of β is flat.
The prior of σ² counts as one record with a standard deviation of a quarter of the half width. The posterior is β | σ ~
N(B, σ²K⁻¹) with K = X'AX, A = diag(Σv) over cells, and B = K⁻¹X'Σvu. σ² is (S + 1/16)/χ² with Σv − p + 1 degrees of
freedom, where S is the residual sum of squares and p the number of coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats
from dpdist.mechanisms.modips.sanitized_sums import Sanitized
from dpdist.mechanisms.modips.sensitivity import UNIT
from dpdist.models.lognormal.laws import limited_lognormal_mean
from dpdist.models.numerics.chi import chi_quantiles
from dpdist.models.protocol import Draws, Parameter

PRIOR_SD = 0.25
"""Prior standard deviation of the law, in half widths of the bounds; the prior counts as one record."""
LEAST_SD = 0.01
"""Smallest standard deviation of the law, in half widths of the bounds."""


@dataclass(frozen=True)
class Moments(Sanitized):
    """Model with the sums of 1 − v and of vu by cell, and of v(u² − 1/2) over all cells."""

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        first = () if self.weights is None else (tuple(f"1 - v of {cell}" for cell in self.labels),)
        second = () if self.variance is not None else (("v (u^2 - 1/2) of all cells",),)
        return (*first, tuple(f"v u of {cell}" for cell in self.labels), *second)

    @property
    def domain(self) -> tuple[Floats, Floats]:
        n, total = UNIT * self.count, UNIT * self.count.sum(keepdims=True) / 2.0
        second = np.empty(0) if self.variance is not None else total
        if self.weights is None:
            return np.concatenate([-n, -second]), np.concatenate([n, second])
        most = np.ceil(n * (1.0 - min(1.0, self.weights[0] / self.weights[1]))) + self.count
        return np.concatenate([np.zeros_like(n), -n, -second]), np.concatenate([np.minimum(most, n), n, second])

    @property
    def drawn(self) -> tuple[Parameter, ...]:
        units = "natural logarithm" if self.law == "lognormal" else "1"
        return Parameter("mean", (("cell", self.labels),), units), Parameter("standard_deviation", (), units)

    @property
    def middle(self) -> tuple[float, float]:
        """Centre and half width of the outcome's bounds; under the lognormal law, of the bounds of its logarithm."""
        low, high = np.log(self.outcome_bounds) if self.law == "lognormal" else self.outcome_bounds
        return (low + high) / 2.0, (high - low) / 2.0

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        centre, half = self.middle
        values = np.clip(records.outcome, *self.outcome_bounds)
        u = np.clip(((np.log(values) if self.law == "lognormal" else values) - centre) / half, -1.0, 1.0)
        v, cell, cells = self.entered(records, alpha), self.pattern(records.frame), len(self.labels)
        first = np.bincount(cell, weights=np.rint(v * u), minlength=cells)
        second = [] if self.variance is not None else [np.rint(v * (u**2 - 0.5)).sum()]
        return np.concatenate([self.absent(cell, alpha, v), first, second])

    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        held = self.held(sums)
        start = 0 if self.weights is None else len(self.count)
        b = np.clip(sums[:, start : start + len(self.count)] / UNIT, -held, held)
        uniforms = open_uniforms(rng, (len(sums), 1 + (len(self.count) if self.matrix is None else self.matrix.shape[1])))
        normals, total = scipy.special.ndtri(uniforms[:, 1:]), held.sum(axis=1)
        if self.matrix is None:
            centre, explained, spread = b / held, (b * b / held).sum(axis=1), normals / np.sqrt(held)
        else:
            x, xb = self.matrix, b @ self.matrix
            root = np.linalg.cholesky(np.einsum("ci,dc,cj->dij", x, held, x))
            beta = np.linalg.solve(root @ root.swapaxes(1, 2), xb[..., None])[..., 0]
            noise = np.linalg.solve(root.swapaxes(1, 2), normals[..., None])[..., 0]
            centre, explained, spread = beta @ x.T, (beta * xb).sum(axis=1), noise @ x.T
        sd = self._deviation(sums[:, -1], total, explained, uniforms[:, 0])
        middle, half = self.middle
        mean = np.clip(centre + sd[:, None] * spread, -1.0, 1.0)
        return {"mean": middle + half * mean, "standard_deviation": half * sd}

    def moved(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """The laws after a change of Σv.

        Means move as far as the posterior's centre does. Standard deviations change in proportion to those about the
        means.
        """
        middle, half = self.middle
        old, new = (self._centre(theta["sums"], held) for held in (before, after))
        mean = np.clip((theta["mean"] - middle) / half + new - old, -1.0, 1.0)
        sd = np.repeat(theta["standard_deviation"] / half, len(after))
        if self.variance is None:
            one, other = (self._variance(theta["sums"], *each) for each in ((before, old), (after, new)))
            sd = np.clip(sd * np.sqrt(other / one), LEAST_SD, 1.0)
        return {"mean": middle + half * mean, "standard_deviation": half * sd}

    def _centre(self, sums: Floats, held: Floats) -> Floats:
        """Posterior means of cells given the sums, in half widths of the bounds, (draw, cell)."""
        start = 0 if self.weights is None else len(self.count)
        b = np.clip(sums[:, start : start + len(self.count)] / UNIT, -held, held)
        if self.matrix is None:
            return np.asarray(b / held)
        x = self.matrix
        beta = np.linalg.solve(np.einsum("ci,dc,cj->dij", x, held, x), (b @ x)[..., None])[..., 0]
        return np.asarray(beta @ x.T)

    def _variance(self, sums: Floats, held: Floats, centre: Floats) -> Floats:
        """Variance of u about the cells' means, (draw,)."""
        total = held.sum(axis=1)
        square = sums[:, -1] / UNIT / total + 0.5 - (held * centre**2).sum(axis=1) / total
        return np.asarray(np.clip(square, LEAST_SD**2, 1.0))

    def _deviation(self, last: Floats, total: Floats, explained: Floats, uniforms: Floats) -> Floats:
        """Standard deviations drawn from their posteriors, in half widths of the bounds, (draw,)."""
        if self.variance is not None:
            return np.full(len(total), np.sqrt(self.variance))
        scatter = np.clip(last / UNIT + total / 2.0 - explained, LEAST_SD**2 * total, total)
        degrees = np.maximum(total - len(self.count if self.matrix is None else self.matrix.T), 0.0) + 1.0
        alike = np.unique(degrees)
        chi = chi_quantiles(float(alike[0]), uniforms) if len(alike) == 1 else _chi(degrees, uniforms)
        return np.clip(np.sqrt(scatter + PRIOR_SD**2) / chi, LEAST_SD, 1.0)

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each, with y limited to its public bounds."""
        mean, sd = theta["mean"], np.broadcast_to(theta["standard_deviation"][:, None], theta["mean"].shape)
        limit = limited_lognormal_mean(mean, sd**2, self.outcome_bounds) if self.law == "lognormal" else None
        typical = limited_normal_mean(mean, sd, self.outcome_bounds) if limit is None else limit
        weight = self.weight(theta)
        return weight[:, self.design.pattern], (weight * typical)[:, self.design.pattern]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws outcomes, clipped to their public bounds, with their cell's mean weight."""
        cell = self.pattern(frame_row)
        noise = scipy.special.ndtri(open_uniforms(rng, (len(frame_row),)))
        values = theta["mean"][0][cell] + theta["standard_deviation"][0] * noise
        outcome = np.exp(values) if self.law == "lognormal" else values
        return np.clip(outcome, *self.outcome_bounds), self.weight(theta)[0][cell]


def limited_normal_mean(mean: Floats, sd: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, low), high) for Y ~ N(mean, sd²), with `bounds` (low, high).

    It is low + sd (g(low) − g(high)), with sd·g(t) = E max(Y − t, 0).
    """

    def above(limit: float) -> Floats:
        t = (mean - limit) / sd
        return np.asarray(t * scipy.special.ndtr(t) + np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi))

    return np.clip(bounds[0] + sd * (above(bounds[0]) - above(bounds[1])), *bounds)


def _chi(degrees: Floats, uniforms: Floats) -> Floats:
    """Quantiles of χ distributions, each with its own number of degrees of freedom."""
    from scipy.special import gammaincinv

    return np.asarray(np.sqrt(2.0 * gammaincinv(degrees / 2.0, uniforms)))
