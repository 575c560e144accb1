"""Sizes of drift by their likelihoods given noisy sums, and the posterior of residual sums under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.posterior import Posterior, errors_of, root_of, squares_of
from dpdist.mechanisms.tables.residual_prior import OF_ALL, OF_CELLS, ResidualPrior
from dpdist.mechanisms.tables.rows import Matrix, Rows

NEW = {3.0: 3e-5, 10.0: 3e-6}
"""Relative sizes of drift with their probabilities before the measurement, for new records: where those of the reference
are all alike, drift is relative to little."""
DRIFTS = {0.0005: 0.3, 0.002: 0.25, 0.006: 0.2, 0.02: 0.15, 0.05: 0.08, 0.12: 0.018, 0.3: 0.0018, 0.9: 0.0002} | NEW
"""Relative sizes of drift of tables' cells, with their probabilities before the measurement."""
LEVEL_DRIFTS = {0.0005: 0.15, 0.002: 0.15, 0.006: 0.2, 0.02: 0.25, 0.05: 0.15, 0.12: 0.075, 0.3: 0.022, 0.9: 0.003} | NEW
"""The same of a column's levels, somewhat smaller than between years of public files, where a quarter exceed .05 and a
tenth .12: a reference may be nearer.
"""
COMMON_DRIFTS = {0.001: 0.25, 0.003: 0.15, 0.01: 0.2, 0.03: 0.2, 0.1: 0.15, 0.3: 0.045, 0.9: 0.005}
"""The same of drift that all cells have in common, of which half exceed .04 between years of public files."""
GROWTH, STABLE = 0.01, 0.1
"""Probability that a file of a secret number of records has grown by what its first sums show, and not drifted alone; and
that weights have changed by as much as a public number of records, because the population has not."""
NOMINAL = 1.645
"""Half the width of a 90 % interval in standard deviations of a normal law."""
SWEEPS = 2
"""Number of times that every size of drift is learned given the others."""
MOST_OF_DRIFT = 1_000
"""Largest number of sums from which sizes of drift are learned: those in which a drift shows most."""
FEW_TERMS = 0.25
"""Number of terms relative to sums up to which all sizes of their drift have one factorisation of the sums' covariance."""
MOST_FAR = 16
"""Largest number of rows that may have far Laplace noise while drift is learned."""


def learned(
    prior: ResidualPrior,
    rows: Rows,
    observed: Floats,
    noise: Floats,
    clipped: Matrix | None = None,
    laplace: bool = False,
    previous: Posterior | None = None,
    of_inequality: Floats | None = None,
) -> Posterior:
    """The posterior with drift of typical sizes: geometric means of their laws, each given the others.

    A size of the largest likelihood would follow the noise where that hides any drift. `previous` is a posterior
    given nearly the same sums, if one is known.
    """
    likelihoods = _Likelihoods.of(prior, rows, observed, noise, clipped, laplace, of_inequality)
    sizes = likelihoods.typical_sizes if previous is None else previous.prior.drift[-1].copy()
    errors = np.empty_like(sizes)
    for _ in range(SWEEPS if previous is None else 1):
        # Drift of all cells first: it would otherwise be taken for that of all levels.
        for size in likelihoods.laws:
            grid, weight = likelihoods.weights(size, sizes)
            sizes[size], errors[size] = _typical(grid, weight), _covering(grid, weight)
    return Posterior(prior.moving(sizes), rows, noise, clipped, prior.moving(errors), laplace, of_inequality)


def mean_square_drift(posterior: Posterior, observed: Floats) -> Floats:
    """Root mean square sizes of drift in a period, (family, coordinate), each given typical sizes of the others.

    Where noise hides a drift, it may be many times as large as a typical one. A change between periods errs by it.
    """
    prior, errors = posterior.prior, (posterior.noise, posterior.clipped, posterior.laplace, posterior.of_inequality)
    likelihoods = _Likelihoods.of(prior, posterior.rows, observed, *errors)
    squares = np.empty_like(prior.drift[-1])
    for size in likelihoods.laws:
        grid, weight = likelihoods.weights(size, prior.drift[-1])
        squares[size] = np.average(grid**2, weights=weight)
    return np.sqrt(squares)


class _Likelihoods(NamedTuple):
    """Likelihoods of sizes of drift in a period, by family of terms and coordinate."""

    laws: dict[tuple[int, int], dict[float, float]]
    """Sizes with their probabilities before the measurement."""
    values: Floats
    plain: Floats
    """Covariance of observed sums without this drift."""
    factors: dict[tuple[int, int], Floats]
    """What drift of size 1 adds to sums, (row, term), where terms are few."""
    parts: dict[tuple[int, int], Floats]
    """What it adds to their covariance."""
    far: Floats
    """Rows of Laplace noise that may be far out, in standard deviations of noise, (row, far one)."""
    far_noise: Floats
    """This noise as it was last found, from which the next search begins, (far one,)."""

    @classmethod
    def of(
        cls,
        prior: ResidualPrior,
        rows: Rows,
        observed: Floats,
        noise: Floats,
        clipped: Matrix | None,
        laplace: bool,
        of_inequality: Floats | None,
    ) -> _Likelihoods:
        selection = np.sort(np.argsort(-_signal(prior, rows) / noise, kind="stable")[:MOST_OF_DRIFT])
        selected_rows, values, numbers = [row[selection] for row in rows], observed[selection], range(prior.coordinates)
        shared = (None if part is None else part[selection] for part in (clipped, of_inequality))
        plain = prior.covariance(selected_rows, selected_rows) + errors_of(noise[selection], *shared)
        families = OF_ALL, *range(OF_CELLS + 1, prior.families_of_drift), OF_CELLS
        of_families = {OF_ALL: COMMON_DRIFTS, OF_CELLS: DRIFTS}
        laws = {(family, j): of_families.get(family, LEVEL_DRIFTS) for family in families for j in numbers[::-1]}
        if prior.sizes.secret:
            laws[OF_ALL, 0] = COMMON_DRIFTS | {max(abs(1.0 - 1.0 / prior.growth), min(COMMON_DRIFTS)): GROWTH}
        elif prior.resized:
            laws[OF_ALL, 0] = COMMON_DRIFTS | {abs(prior.resized): STABLE}
        factors, parts = dict[tuple[int, int], Floats](), dict[tuple[int, int], Floats]()
        for j in numbers:
            of_periods = [
                np.sqrt(since) * prior.drifts(selected_rows, j, period) for period, since in enumerate(prior.since, start=1)
            ]
            for family in families:
                factor = np.concatenate([part[:, prior.families == family] for part in of_periods], axis=1)
                parts[family, j] = squared(factor)
                if factor.shape[1] <= FEW_TERMS * len(values):
                    factors[family, j] = factor
        deviation = np.sqrt(np.maximum(laplace * (noise - squares_of(clipped))[selection], 0.0))
        far = _far_rows(plain, [plain + sum(parts.values())] if deviation.any() else [], values, deviation)
        of_far = scipy.sparse.diags_array(deviation).tocsc()[:, far].toarray()
        return cls(laws, values, plain, factors, parts, of_far, np.zeros(len(far)))

    @property
    def typical_sizes(self) -> Floats:
        """Typical sizes before the measurement, (family, coordinate)."""
        sizes = np.empty(np.max(list(self.laws), axis=0) + 1)
        for size, law in self.laws.items():
            sizes[size] = _typical(np.array(list(law)), np.array(list(law.values())))
        return sizes

    def weights(self, size: tuple[int, int], sizes: Floats) -> tuple[Floats, Floats]:
        """Sizes of one drift with their probabilities, up to a factor, given the sizes of the others."""
        covariance = self.plain + sum(sizes[other] ** 2 * part for other, part in self.parts.items() if other != size)
        grid = np.array(list(self.laws[size]))
        if size not in self.factors:
            covariances = (covariance + tau**2 * self.parts[size] for tau in grid)
            logs = np.concatenate([_log_likelihoods(each, self.values, self.far, self.far_noise) for each in covariances])
        else:
            logs = _log_likelihoods(covariance, self.values, self.far, self.far_noise, self.factors[size], grid**2)
        return grid, np.exp(logs - logs.max()) * np.array(list(self.laws[size].values()))


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
        root = root_of(covariance / np.outer(unit, unit))
        size = deviation / unit * np.abs(scipy.linalg.cho_solve((root, True), values / unit, check_finite=False))
        rows.append(np.argsort(-size, kind="stable")[:MOST_FAR])
        rows[-1] = rows[-1][size[rows[-1]] > np.sqrt(2.0)]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *rows]))


def _typical(sizes: Floats, weight: Floats) -> float:
    """The geometric mean of sizes of drift. A mean of squares would follow noise that could hide a large drift."""
    return float(np.exp(np.average(np.log(sizes), weights=weight)))


def _covering(sizes: Floats, weight: Floats) -> float:
    """The size of a drift that is normal and within 1.645 sizes of 0 as often as one whose size has this law: in 90 %."""
    ends = np.geomspace(sizes.min(), 2.0 * sizes.max(), 200)
    inside = scipy.special.erf(ends[:, None] / sizes / np.sqrt(2.0)) @ (weight / weight.sum())
    return float(np.interp(0.9, inside, ends)) / NOMINAL


def _signal(prior: ResidualPrior, rows: Rows) -> Floats:
    """Squared sums that a relative drift of 1 in every period adds to rows, (row,)."""
    pairs = [(j, period) for j in range(prior.coordinates) for period in range(1, 1 + len(prior.since))]
    return np.asarray(sum((rows[j] @ prior.reached(j, period)) ** 2 for j, period in pairs))


def _log_likelihoods(
    covariance: Floats,
    observed: Floats,
    far: Floats,
    far_noise: Floats,
    factors: Floats | None = None,
    sizes: Floats | None = None,
) -> Floats:
    """Log likelihoods of a covariance, or of it with each of the `sizes` times the squares of `factors` (row, term), with
    Laplace noise in `far` rows (row, far one). The search for it begins at `far_noise` and leaves its result there.
    """
    root = root_of(covariance)
    vectors = np.zeros((len(observed), 0)) if factors is None else factors
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
        logs.append(-plain - 0.5 * np.log1p(each).sum() - huber_loss(remainder, far_noise))
    return np.array(logs)


def huber_loss(product: Floats, far_noise: Floats) -> float:
    """Half the square of observed sums less far noise, which costs √2 for every standard deviation (Huber's loss).

    `product` are inner products of the sums and of noise of one standard deviation in far rows, (1 + far one, 1 + far one).
    The search begins at `far_noise`, (far one,), and leaves there what it finds.
    """
    if not len(far_noise):
        return float(0.5 * product[0, 0])
    square, slope, curvature = product[0, 0], product[1:, 0], product[1:, 1:]
    sign, price = np.sign(far_noise), np.sqrt(2.0)
    for _ in range(1 + 2 * len(slope)):
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
        gradient = np.where(sign == 0.0, slope - curvature @ far_noise, 0.0)
        most = int(np.abs(gradient).argmax())
        if abs(gradient[most]) <= price * (1.0 + 1e-9):
            break
        sign[most] = np.sign(gradient[most])
    return float(
        0.5 * square - far_noise @ slope + 0.5 * far_noise @ curvature @ far_noise + price * np.abs(far_noise).sum()
    )
