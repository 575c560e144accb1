"""Gaussian posterior of base cells' residual sums from noisy sums over tables' cells.

z_j (cell,) is the sum over a base cell's records of w − m_w for j = 0, and of w(y_j − m_j) for outcomes. Before the
measurement z has the records' sampling covariance, independent by base cell, the errors of the prediction, and drift
since the reference: common to all cells, by level of every column, and by cell of every table. The relative size of
drift maximises the likelihood of the noisy sums. Measured rows are linear in z: a cell's sum of r is Σ z_0, and its sum
of ρ_j is Σ (m_j − μ_j) z_0 + z_j. Published rows are the same rows. Everything is a product with covariances of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.sizes import Sizes

DRIFTS = {0.0005: 0.3, 0.002: 0.25, 0.006: 0.2, 0.02: 0.15, 0.05: 0.08, 0.12: 0.02}
"""Relative sizes of drift of levels and cells, with their probabilities before the measurement."""
COMMON_DRIFTS = {0.0: 0.4, 0.003: 0.2, 0.01: 0.2, 0.03: 0.15, 0.1: 0.045, 0.3: 0.005}
"""Relative sizes of drift that all cells have in common, with their probabilities."""
GROWTHS = {0.0: 0.2, 0.003: 0.15, 0.01: 0.15, 0.03: 0.15, 0.1: 0.15, 0.3: 0.1, 1.0: 0.08, 10.0: 0.02}
"""The same of counts where numbers of records are secret: a file may be of another size than its reference."""
SWEEPS = 2
"""Number of times that every size of drift is learned given the others."""

Rows = list[scipy.sparse.csr_array]
"""Rows that are linear in z, by coordinate: (row, cell) each."""


def rows_of(cell: Ints, mean: Floats, prediction: Prediction, hidden: Floats | None = None) -> Rows:
    """Rows of a table, of which `cell` is the cell of every base cell.

    `hidden` (cell, 1 + outcome) is the part of the count that each sum lacks beyond limits (`TableLimits`).
    """
    base = np.arange(len(cell))
    adding = scipy.sparse.csr_array((np.ones(len(base)), (cell, base)), shape=(mean.shape[0], len(base)))
    rows = rows_about(adding, mean, prediction)
    if hidden is None or not hidden.any():
        return rows
    lacking = scipy.sparse.vstack([scipy.sparse.diags_array(part) @ adding for part in hidden.T])
    return [(rows[0] - lacking).tocsr(), *rows[1:]]


def rows_about(adding: scipy.sparse.csr_array, mean: Floats, prediction: Prediction) -> Rows:
    """Sums of r of the rows of `adding` (row, cell), then for each outcome sums of ρ about a row's mean (row, outcome)."""
    none, coordinates = scipy.sparse.csr_array(adding.shape), 1 + mean.shape[1]
    blocks = [[adding if j == 0 else none for j in range(coordinates)]]
    for k in range(1, coordinates):
        predicted = adding @ scipy.sparse.diags_array(prediction.means[:, k])
        leaning = predicted - scipy.sparse.diags_array(mean[:, k - 1]) @ adding
        blocks.append([leaning if j == 0 else (adding if j == k else none) for j in range(coordinates)])
    return [scipy.sparse.vstack([block[j] for block in blocks]).tocsr() for j in range(coordinates)]


def stacked(parts: Sequence[Rows]) -> Rows:
    return [scipy.sparse.vstack([part[j] for part in parts]).tocsr() for j in range(len(parts[0]))]


@dataclass(frozen=True)
class Prior:
    """Law of z before the measurement. `terms` (cell, term) are drift's terms.

    z_0 of a secret number of records is Σ w − n̂ m_w, with the predicted number n̂. Its variance has that of the number
    times m_w², and errors of n̂ times m_w.
    """

    prediction: Prediction
    sizes: Sizes
    terms: scipy.sparse.csr_array
    drift: tuple[float, ...] = ()
    """Relative size of drift by coordinate."""

    common: tuple[float, ...] = ()
    """Relative size of the drift that all cells have in common, by coordinate."""

    @classmethod
    def of(cls, prediction: Prediction, sizes: Sizes, levels: Sequence[Ints], cells: Sequence[Ints]) -> Prior:
        """`levels` are the levels of every column, and `cells` the cells of every table, by base cell."""
        base = np.arange(len(sizes.count))
        blocks = [
            scipy.sparse.csr_array((np.ones(len(base)), (base, index)), shape=(len(base), int(index.max()) + 1))
            for index in (*levels, *cells)
        ]
        none = scipy.sparse.csr_array((len(base), 0))
        return cls(prediction, sizes, scipy.sparse.hstack([none, *blocks]).tocsr())

    def drifting(self, drift: float, common: float) -> Prior:
        """This law with drift of these sizes in every coordinate."""
        return replace(self, drift=(drift,) * self.coordinates, common=(common,) * self.coordinates)

    @property
    def coordinates(self) -> int:
        return int(self.prediction.means.shape[1])

    @property
    def size(self) -> Floats:
        """Numbers of records, (cell,)."""
        return self.sizes.count

    @cached_property
    def shared(self) -> tuple[Floats, ...]:
        """Factors of the prediction's errors that cells share, in sums, of every coordinate, (cell, effect)."""
        scale = self.size[:, None] * self.prediction.spread
        of_residuals = [scale[:, j : j + 1] * load for j, load in enumerate(self.prediction.loadings)]
        of_numbers = self.prediction.means[:, :1] * self.sizes.shared
        return (np.column_stack([of_residuals[0], of_numbers]), *of_residuals[1:])

    @cached_property
    def alone(self) -> Floats:
        """Standard deviations of the prediction's other errors, in sums, (cell, 1 + outcome)."""
        of_residuals = self.size[:, None] * self.prediction.spread * self.prediction.alone
        of_numbers = self.prediction.means[:, 0] * self.sizes.alone
        return np.column_stack([np.hypot(of_residuals[:, 0], of_numbers), of_residuals[:, 1:]])

    @cached_property
    def relative(self) -> Floats:
        """Sums that a relative drift of 1 adds, (cell, 1 + outcome)."""
        return self.size[:, None] * self.prediction.drifting

    def diagonal(self, j: int, k: int) -> Floats:
        """Covariance of z_j and z_k within base cells, without loadings and drift, (cell,)."""
        spread = self.prediction.spread
        covariance: Floats = self.size * self.prediction.correlation[j, k] * spread[:, j] * spread[:, k]
        if j == k == 0:
            covariance = covariance + self.sizes.variance * self.prediction.means[:, 0] ** 2
        return covariance + self.alone[:, j] ** 2 if j == k else covariance

    def factors(self, rows: Rows) -> Floats:
        """Rows of the prediction's shared errors, (row, effect)."""
        parts = [row @ shared for row, shared in zip(rows, self.shared, strict=True)]
        return np.concatenate([np.asarray(part) for part in parts], axis=1)

    def drifts(self, rows: Rows, j: int) -> Floats:
        """Rows of a coordinate's drift of size 1, (row, term)."""
        return np.asarray((rows[j] @ scipy.sparse.diags_array(self.relative[:, j]) @ self.terms).toarray())

    def moved(self, rows: Rows, j: int) -> Floats:
        """Rows of a coordinate's common drift of size 1, (row,)."""
        return np.asarray(rows[j] @ self.relative[:, j])

    def covariance(self, left: Rows, right: Rows) -> Floats:
        """Covariance of rows without drift, (left, right)."""
        covariance = self.factors(left) @ self.factors(right).T
        for j in range(self.coordinates):
            for k in range(self.coordinates):
                covariance += (left[j] @ scipy.sparse.diags_array(self.diagonal(j, k)) @ right[k].T).toarray()
        return covariance

    def with_drift(self, left: Rows, right: Rows) -> Floats:
        covariance = self.covariance(left, right)
        for j, (tau, common) in enumerate(zip(self.drift, self.common, strict=True)):
            if tau:
                covariance += tau**2 * (self.drifts(left, j) @ self.drifts(right, j).T)
            if common:
                covariance += common**2 * np.outer(self.moved(left, j), self.moved(right, j))
        return covariance

    def spread_out(self, rows: Rows, values: Floats) -> Floats:
        """Covariance of z with rows, applied to `at` (row,) or (row, draw): (cell, 1 + outcome) or with draws last."""
        onto = [row.T @ values for row in rows]
        shared = self.factors(rows).T @ values
        width = np.cumsum([0, *(load.shape[1] for load in self.shared)])
        columns = []
        for j in range(self.coordinates):
            value = sum(_scaled(self.diagonal(j, k), onto[k]) for k in range(self.coordinates))
            value = value + self.shared[j] @ shared[width[j] : width[j + 1]]
            if self.drift and self.drift[j]:
                moved = self.terms @ (self.drift[j] ** 2 * (self.terms.T @ _scaled(self.relative[:, j], onto[j])))
                value = value + _scaled(self.relative[:, j], moved)
            if self.common and self.common[j]:
                value = value + self.common[j] ** 2 * np.multiply.outer(self.relative[:, j], self.relative[:, j] @ onto[j])
            columns.append(value)
        return np.stack(columns, axis=1)

    def sampled(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws of z by the sample of records, given their numbers, (cell, 1 + outcome, draw)."""
        root = np.linalg.cholesky(self.prediction.correlation + 1e-9 * np.eye(self.coordinates))
        alike = np.einsum("jk,bkd->bjd", root, rng.standard_normal((len(self.size), self.coordinates, number)))
        return np.asarray((np.sqrt(self.size)[:, None] * self.prediction.spread)[..., None] * alike)

    def deviated(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws of z by the prediction's errors and drift, (cell, 1 + outcome, draw)."""
        base, columns = len(self.size), []
        for j in range(self.coordinates):
            value = _scaled(self.alone[:, j], rng.standard_normal((base, number)))
            value += self.shared[j] @ rng.standard_normal((self.shared[j].shape[1], number))
            if self.drift and self.drift[j]:
                term = self.drift[j] * rng.standard_normal((self.terms.shape[1], number))
                value += _scaled(self.relative[:, j], self.terms @ term)
            if self.common and self.common[j]:
                value += self.common[j] * np.outer(self.relative[:, j], rng.standard_normal(number))
            columns.append(value)
        return np.stack(columns, axis=1)


def _scaled(by: Floats, values: Floats) -> Floats:
    return by[:, None] * values if values.ndim == 2 else by * values


@dataclass(frozen=True)
class Posterior:
    """Posterior of z given noisy sums. `observed` (row,) are residual sums, `noise` (row,) their error variances."""

    prior: Prior
    rows: Rows
    noise: Floats

    @cached_property
    def root(self) -> Floats:
        """Lower Cholesky factor of the covariance of what is observed."""
        covariance = self.prior.with_drift(self.rows, self.rows)
        return scipy.linalg.cholesky(covariance + np.diag(self.noise), lower=True)

    def solve(self, observed: Floats) -> Floats:
        return np.asarray(scipy.linalg.cho_solve((self.root, True), observed))

    def estimate(self, observed: Floats) -> Floats:
        """Posterior mean of z, (cell, 1 + outcome)."""
        return self.prior.spread_out(self.rows, self.solve(observed))

    def variances(self, rows: Rows) -> Floats:
        """Posterior variances of rows, (row,)."""
        across = self.prior.with_drift(self.rows, rows)
        half = scipy.linalg.solve_triangular(self.root, across, lower=True)
        return np.asarray(np.maximum(prior_variances(self.prior, rows) - (half**2).sum(axis=0), 0.0))

    def answers(self, z: Floats, noise: Floats | float = 0.0) -> Floats:
        """Estimates of z from its own rows with errors of observations, (cell, 1 + outcome, draw)."""
        seen = sum(self.rows[j] @ z[:, j] for j in range(self.prior.coordinates)) + noise
        return self.prior.spread_out(self.rows, self.solve(np.asarray(seen)))


def prior_variances(prior: Prior, rows: Rows) -> Floats:
    """Variances of rows before the measurement, (row,)."""
    variance: Floats = (prior.factors(rows) ** 2).sum(axis=1)
    for j, (tau, common) in enumerate(zip(prior.drift, prior.common, strict=True)):
        if tau:
            variance += tau**2 * (prior.drifts(rows, j) ** 2).sum(axis=1)
        variance += (common * prior.moved(rows, j)) ** 2
    for j in range(prior.coordinates):
        for k in range(prior.coordinates):
            variance += np.asarray(rows[j].multiply(rows[k]).tocsr() @ prior.diagonal(j, k)).ravel()
    return variance


def learned(prior: Prior, rows: Rows, observed: Floats, noise: Floats) -> Posterior:
    """The posterior with drift whose squared sizes are their posterior means, each given the others.

    A size of the largest likelihood would follow the noise where that hides any drift.
    """
    plain = prior.covariance(rows, rows) + np.diag(noise)
    numbers = range(prior.coordinates)
    of_levels = [prior.drifts(rows, j) for j in numbers]
    parts = [part @ part.T for part in of_levels] + [
        np.outer(part, part) for part in (prior.moved(rows, j) for j in numbers)
    ]

    def log_likelihood(sizes: Sequence[float]) -> float:
        whole = plain + sum(tau**2 * part for tau, part in zip(sizes, parts, strict=True))
        root = scipy.linalg.cholesky(whole, lower=True, check_finite=False)
        fit = scipy.linalg.solve_triangular(root, observed, lower=True, check_finite=False)
        return float(-np.log(np.diag(root)).sum() - 0.5 * fit @ fit)

    growth = GROWTHS if prior.sizes.secret else COMMON_DRIFTS
    laws = [DRIFTS] * prior.coordinates + [growth] + [COMMON_DRIFTS] * (prior.coordinates - 1)
    sizes = [float(np.sqrt(sum(tau**2 * share for tau, share in law.items()))) for law in laws]
    for _ in range(SWEEPS):
        # Common drift first: it would otherwise be taken for that of all levels.
        for j in reversed(range(len(laws))):
            logs = np.array([log_likelihood([*sizes[:j], tau, *sizes[j + 1 :]]) for tau in laws[j]])
            weight = np.exp(logs - logs.max()) * np.array(list(laws[j].values()))
            sizes[j] = float(np.sqrt(weight @ np.array(list(laws[j])) ** 2 / weight.sum()))
    drift, common = tuple(sizes[: prior.coordinates]), tuple(sizes[prior.coordinates :])
    return Posterior(replace(prior, drift=drift, common=common), rows, noise)
