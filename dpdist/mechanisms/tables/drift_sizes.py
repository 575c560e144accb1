"""Sizes of drift by their likelihoods given noisy sums, and the posterior of residual sums under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.posterior import Posterior, errors_of, squares_of
from dpdist.mechanisms.tables.residual_prior import Drift, ResidualPrior
from dpdist.mechanisms.tables.rows import Matrix, Rows

DRIFTS = {0.0005: 0.3, 0.002: 0.25, 0.006: 0.2, 0.02: 0.15, 0.05: 0.08, 0.12: 0.018, 0.3: 0.0018, 0.9: 0.0002}
"""Relative sizes of drift of levels and cells, with their probabilities before the measurement."""
COMMON_DRIFTS = {0.001: 0.4, 0.003: 0.2, 0.01: 0.2, 0.03: 0.15, 0.1: 0.045, 0.3: 0.0048, 0.9: 0.0002}
"""Relative sizes of drift that all cells have in common, with their probabilities."""
USUAL_DRIFT = 0.05
"""Size of drift above which sizes are likelier for errors, as between years of public files, than for estimates, which
lose by a drift that is not there: in proportion."""
GROWTH, STABLE = 0.01, 0.1
"""Probability that a file of a secret number of records has grown by what its first sums show, and not drifted alone; and
that weights have changed by as much as a public number of records, because the population has not."""
NOMINAL = 1.645
"""Half the width of a 90 % interval in standard deviations of a normal law."""
SWEEPS = 2
"""Number of times that every size of drift is learned given the others."""
MOST_OF_DRIFT = 1_000
"""Largest number of sums from which sizes of drift are learned: those in which a drift shows most."""
MOST_FAR = 16
"""Largest number of rows that may have far Laplace noise while drift is learned."""


def learned(
    prior: ResidualPrior,
    rows: Rows,
    observed: Floats,
    noise: Floats,
    clipped: Matrix | None = None,
    laplace: bool = False,
) -> Posterior:
    """The posterior with drift of typical sizes: geometric means of their laws, each given the others.

    A size of the largest likelihood would follow the noise where that hides any drift.
    """
    likelihoods = _Likelihoods.of(prior, rows, observed, noise, clipped, laplace)
    sizes = [_typical(list(law), list(law.values())) for law in likelihoods.laws]
    for _ in range(SWEEPS):
        # Common drift first: it would otherwise be taken for that of all levels.
        for j in reversed(range(len(sizes))):
            sizes[j] = _typical(*likelihoods.weights(j, sizes))
    laws = [likelihoods.weights(j, sizes) for j in range(len(sizes))]
    errors = [_covering(grid, weight * np.hypot(1.0, grid / USUAL_DRIFT)) for grid, weight in laws]
    shrinking, erring = (
        Drift(tuple(values[: prior.coordinates]), tuple(values[prior.coordinates :])) for values in (sizes, errors)
    )
    return Posterior(prior.moving(shrinking), rows, noise, clipped, prior.moving(erring), laplace)


def mean_square_drift(posterior: Posterior, observed: Floats) -> Drift:
    """Root mean square sizes of drift in a period, each given typical sizes of the others.

    Where noise hides a drift, it may be many times as large as a typical one. A change between periods errs by it.
    """
    prior = posterior.prior
    likelihoods = _Likelihoods.of(prior, posterior.rows, observed, posterior.noise, posterior.clipped, posterior.laplace)
    sizes = [*prior.drift[-1].cells, *prior.drift[-1].common]
    squares = list[float]()
    for j in range(len(sizes)):
        grid, weight = likelihoods.weights(j, sizes)
        squares.append(float(np.sqrt(np.average(grid**2, weights=weight))))
    return Drift(tuple(squares[: prior.coordinates]), tuple(squares[prior.coordinates :]))


class _Likelihoods(NamedTuple):
    """Likelihoods of sizes of drift in a period: of cells by coordinate, then of all cells together."""

    laws: list[dict[float, float]]
    values: Floats
    plain: Floats
    """Covariance of observed sums without this drift."""
    parts: list[Floats]
    """What drift of size 1 adds to it."""
    common: list[Floats]
    far: Floats
    """Rows of Laplace noise that may be far out, in standard deviations of noise, (row, far one)."""

    @classmethod
    def of(
        cls,
        prior: ResidualPrior,
        rows: Rows,
        observed: Floats,
        noise: Floats,
        clipped: Matrix | None,
        laplace: bool,
    ) -> _Likelihoods:
        selection = np.sort(np.argsort(-_signal(prior, rows) / noise, kind="stable")[:MOST_OF_DRIFT])
        selected_rows, values, numbers = [row[selection] for row in rows], observed[selection], range(prior.coordinates)
        plain = prior.covariance(selected_rows, selected_rows) + errors_of(
            noise[selection], None if clipped is None else clipped[selection]
        )
        periods = list(enumerate(prior.since, start=1))
        levels = [
            sum(since * squared(prior.drifts(selected_rows, j, period)) for period, since in periods) for j in numbers
        ]
        common = [
            np.column_stack([np.sqrt(since) * prior.common_drift(selected_rows, j, k) for k, since in periods])
            for j in numbers
        ]
        laws = [DRIFTS] * prior.coordinates + [COMMON_DRIFTS] * prior.coordinates
        if prior.sizes.secret:
            laws[prior.coordinates] = COMMON_DRIFTS | {max(abs(1.0 - 1.0 / prior.growth), min(COMMON_DRIFTS)): GROWTH}
        elif prior.resized:
            laws[prior.coordinates] = COMMON_DRIFTS | {abs(prior.resized): STABLE}
        parts = levels + [squared(part) for part in common]
        deviation = np.sqrt(np.maximum(laplace * (noise - squares_of(clipped))[selection], 0.0))
        far = _far_rows(plain, [plain + sum(parts)] if deviation.any() else [], values, deviation)
        return cls(laws, values, plain, parts, common, scipy.sparse.diags_array(deviation).tocsc()[:, far].toarray())

    def weights(self, j: int, sizes: Sequence[float]) -> tuple[Floats, Floats]:
        """Sizes of one drift with their probabilities, up to a factor, given the sizes of the others."""
        covariance = self.plain + sum(sizes[k] ** 2 * part for k, part in enumerate(self.parts) if k != j)
        grid, coordinates = np.array(list(self.laws[j])), len(self.common)
        if j < coordinates:
            each = (_log_likelihoods(covariance + tau**2 * self.parts[j], self.values, self.far) for tau in grid)
            logs = np.concatenate(list(each))
        else:
            logs = _log_likelihoods(covariance, self.values, self.far, self.common[j - coordinates], grid**2)
        return grid, np.exp(logs - logs.max()) * np.array(list(self.laws[j].values()))


def squared(factors: Floats) -> Floats:
    """The covariance of rows with these factors, (row, row)."""
    return factors @ factors.T


def _far_rows(plain: Floats, alternatives: Sequence[Floats], values: Floats, deviation: Floats) -> Ints:
    """Rows whose Laplace noise is likelier than not beyond √2 standard deviations under one of several covariances, the
    farthest `MOST_FAR` of each.
    """
    rows = list[Ints]()
    for covariance in (plain, *alternatives) if alternatives else ():
        unit = np.sqrt(np.diag(covariance))
        relative = scipy.linalg.cho_factor(covariance / np.outer(unit, unit), lower=True, check_finite=False)
        size = deviation / unit * np.abs(scipy.linalg.cho_solve(relative, values / unit, check_finite=False))
        rows.append(np.argsort(-size, kind="stable")[:MOST_FAR])
        rows[-1] = rows[-1][size[rows[-1]] > np.sqrt(2.0)]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *rows]))


def _typical(sizes: Sequence[float] | Floats, weight: Sequence[float] | Floats) -> float:
    """The geometric mean of sizes of drift. A mean of squares would follow noise that could hide a large drift."""
    return float(np.exp(np.average(np.log(sizes), weights=weight)))


def _covering(sizes: Floats, weight: Floats) -> float:
    """The size of a drift that is normal and within 1.645 sizes of 0 as often as one whose size has this law: in 90 %."""
    ends = np.geomspace(sizes.min(), 2.0 * sizes.max(), 200)
    inside = scipy.special.erf(ends[:, None] / sizes / np.sqrt(2.0)) @ (weight / weight.sum())
    return float(np.interp(0.9, inside, ends)) / NOMINAL


def _signal(prior: ResidualPrior, rows: Rows) -> Floats:
    """Squared sums that a relative drift of 1 in every period adds to rows, (row,)."""
    periods = range(1, 1 + len(prior.since))
    return np.asarray(sum(prior.common_drift(rows, j, k) ** 2 for j in range(prior.coordinates) for k in periods))


def _log_likelihoods(
    covariance: Floats, observed: Floats, far: Floats, common: Floats | None = None, sizes: Floats | None = None
) -> Floats:
    """Log likelihoods of a covariance, or of it with each of the `sizes` times the squares of `common` (row, vector), with
    Laplace noise in `far` rows (row, far one).
    """
    root = scipy.linalg.cholesky(covariance, lower=True, check_finite=False)
    vectors = np.zeros((len(observed), 0)) if common is None else common
    sides = np.column_stack([observed, vectors, far])
    fit = scipy.linalg.solve_triangular(root, sides, lower=True, check_finite=False)
    values, vectors, far = np.split(fit, [1, 1 + vectors.shape[1]], axis=1)
    square, axes = np.linalg.eigh(vectors.T @ vectors)
    sides = np.column_stack([values, far])
    product, along = sides.T @ sides, axes.T @ (vectors.T @ sides)
    logs, plain = list[float](), np.log(np.diag(root)).sum()
    for size in np.ones(1) if sizes is None else sizes:
        each = size * np.maximum(square, 0.0)
        remainder = product - (along.T * (size / (1.0 + each))) @ along
        logs.append(-plain - 0.5 * np.log1p(each).sum() - _loss(remainder))
    return np.array(logs)


def _loss(product: Floats) -> float:
    """Half the square of observed sums less far noise, which costs √2 for every standard deviation (Huber's loss).

    `product` are inner products of the sums and of noise of one standard deviation in far rows, (1 + far one, 1 + far one).
    """
    square, slope, curvature = product[0, 0], product[1:, 0], product[1:, 1:]
    far_noise, sign, price = np.zeros(len(slope)), np.zeros(len(slope)), np.sqrt(2.0)
    for _ in range(2 * len(slope)):
        gradient = np.where(sign == 0.0, slope - curvature @ far_noise, 0.0)
        most = int(np.abs(gradient).argmax())
        if abs(gradient[most]) <= price * (1.0 + 1e-9):
            break
        sign[most] = np.sign(gradient[most])
        while len(active := np.flatnonzero(sign)):
            aim = np.linalg.solve(curvature[np.ix_(active, active)], slope[active] - price * sign[active])
            wrong, before = aim * sign[active] <= 0.0, far_noise[active]
            # A step ends where the first of them would change its sign.
            length = float((before[wrong] / (before[wrong] - aim[wrong])).min()) if wrong.any() else 1.0
            far_noise[active] = before + length * (aim - before)
            if not wrong.any():
                break
            sign[active[wrong & (np.abs(far_noise[active]) <= 1e-9 * (1.0 + np.abs(before)))]] = 0.0
            far_noise[sign == 0.0] = 0.0
    return float(
        0.5 * square - far_noise @ slope + 0.5 * far_noise @ curvature @ far_noise + price * np.abs(far_noise).sum()
    )
