"""Gaussian posterior of base cells' residual sums from noisy sums over tables' cells.

z_j (cell,) is the sum over a base cell's records of w − m_w for j = 0, and of w(y_j − m_j) for outcomes. Before the
measurement z has the records' sampling covariance, independent by base cell, the errors of the prediction, and drift
since the reference: common to all cells, by level of every column, and by cell of every table. `drift_sizes` learns
the relative sizes of drift from the noisy sums. Measured rows are linear in z: a cell's sum of r is Σ z_0, and its sum of
ρ_j is Σ (m_j − μ_j) z_0 + z_j. Published rows are the same rows. Everything is a product with covariances of rows.

An earlier period's base cells are cells of their own, after those of the file. Periods share the prediction's errors, and
the drift of every period up to the earlier of the two. Drift has the same sizes in all periods, which all noisy sums show
together. Their records are distinct.

Up to `MOST_DENSE` sums have a dense covariance. More are solved by products alone, and their variances follow from draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.core.sharing import share_out
from dpdist.mechanisms.tables.conjugate import EXACT, MOST_SIDES, OF_DRAWS, OF_LAW, in_blocks, solved
from dpdist.mechanisms.tables.random_effects import Loadings
from dpdist.mechanisms.tables.residual_prior import ResidualPrior, lone_variances, prior_variances
from dpdist.mechanisms.tables.rows import FigureRows, Matrix, Rows, RowsOfTables, equal_rows, placed_in, row_values

TAILS = 3
"""Number of steps that find variances of far Laplace noise."""
MOST_DENSE = 3_000
"""Largest number of sums with a dense covariance."""
FEWEST_DRAWS, ENTRIES_OF_DRAWS = 4 * MOST_SIDES, 10_000_000
"""Smallest number of draws of errors, and the number of their entries above which no more are drawn."""
PROBES, SEED = 48, 47
"""Number of draws that give variances of many rows, and their seed."""
ROUNDING = 1e-12
"""Part of a variance that rounding may take away."""
MOST_FACTORED = 6_000
"""Largest number of sums with a dense covariance where conjugate gradients do not end."""
LEAST_NOISE = 1e-3
"""Least variance of noise in many sums, over their own. Sums of tables depend on each other, so systems without noise are
singular: conjugate gradients would not end. Estimates differ by about this part of what a sum shows.
"""
FACTORS = "design", "lone", "root", "scale"
"""Fields of `Loadings` that products use."""
SINGLE = 30.0
"""Largest exponent to base 10 of variances of sums that are computed in single precision."""
NEIGHBOURS, REACH = 4, 0.2
"""Rows on either side that share draws, and the ratio of log variances at which a neighbour counts for 1/e."""


@dataclass(frozen=True)
class Posterior:
    """Posterior of z given noisy sums. `observed` (row,) are residual sums, `noise` (row,) their error variances.

    `clipped` (row, factor) are factors of errors that rows share, which `noise` has as well: what limits clip of a record,
    they clip in every table.
    """

    prior: ResidualPrior
    rows: Rows
    noise: Floats
    clipped: Matrix | None = None
    erring: ResidualPrior | None = None
    """The law with the drift that errors have, where that by which sums are shrunk is another."""
    laplace: bool = False
    """True if noise is Laplace, whose tails are heavier than those of a normal law."""
    of_inequality: Floats | None = None
    """What a standard error of weights' inequality adds to every sum, (row,): `noise` does not have it."""

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the rows before the measurement, without errors of observations."""
        return self.prior.with_drift(self.rows, self.rows)

    def under(
        self,
        noise: Floats,
        clipped: Matrix | None = None,
        rows: Rows | None = None,
        of_inequality: Floats | None = None,
    ) -> Posterior:
        """The posterior with other error variances, and with other shared ones and other rows if they are given."""
        clipped, before = self.clipped if clipped is None else clipped, self.rows
        of_inequality = self.of_inequality if of_inequality is None else of_inequality
        copy = replace(self, noise=noise, clipped=clipped, rows=rows or before, of_inequality=of_inequality)
        if self.dense and (rows is None or equal_rows(rows, before)):
            copy.__dict__.update(covariance=self.covariance, reached=self.reached)
        return copy

    def with_tails(self, observed: Floats, solution: Floats | None = None) -> Posterior:
        """The posterior with larger variances of Laplace noise where it is far out, by what rows show of it: r beyond √2
        standard deviations σ counts as normal noise of variance |r| σ / √2, which has the same slope of the density.
        `solution` is one of `solve`, from which the search begins.
        """
        if not self.laplace:
            return self
        alone, posterior = self.noise - squares_of(self.clipped), self
        bend = np.sqrt(2.0 * np.maximum(alone, 1e-300))
        for _ in range(TAILS):
            noise = posterior.noise - squares_of(self.clipped)
            solution = posterior.solve(observed, OF_LAW, solution)
            size = np.abs(noise * solution)
            posterior = self.under(self.noise + alone * np.maximum(size / bend - 1.0, 0.0))
        return posterior

    @cached_property
    def reached(self) -> dict[int, tuple[Rows, Floats, Floats]]:
        """Rows whose variances were asked for, their covariance with what is observed, and their variances before."""
        return {}

    @cached_property
    def root(self) -> Floats:
        """Lower Cholesky factor of the covariance of what is observed."""
        errors = errors_of(self.noise, self.clipped, self.of_inequality)
        return root_of(self.covariance + errors)

    @property
    def dense(self) -> bool:
        return len(self.noise) <= MOST_DENSE

    @cached_property
    def diagonal(self) -> Floats:
        """Variances of what is observed, without shared errors and drift, (row,)."""
        return lone_variances(self.prior, self.rows) + self.noise

    @cached_property
    def unshared(self) -> Floats:
        """Variances of errors of observations that no other row shares, (row,)."""
        alone = self.noise - squares_of(self.clipped)
        return alone if self.dense else np.maximum(alone, LEAST_NOISE * self.diagonal)

    def disturbed(self, standard: Floats, rng: np.random.Generator) -> Floats:
        """Draws of errors of observations, (row, draw), from errors of variance 1."""
        errors, draws = np.sqrt(np.maximum(self.unshared, 0.0))[:, None] * standard, standard.shape[1]
        if self.clipped is not None:
            errors = errors + self.clipped @ rng.standard_normal((self.clipped.shape[1], draws))
        if self.of_inequality is not None:
            errors = errors + self.of_inequality[:, None] * rng.standard_normal(draws)
        return np.asarray(errors)

    def solve(self, observed: Floats, tolerance: float = EXACT, start: Floats | None = None) -> Floats:
        """The inverse of the covariance of what is observed, times it. `start` is that of nearly the same sums."""
        if self.dense:
            return self._factored(observed)
        # What gradients have not solved once, they would not solve again.
        if "_with_dense_covariance" not in self.__dict__:
            covariance = ObservedCovariance.of(self, stored=observed.ndim == 1)
            with suppress(ArithmeticError, np.linalg.LinAlgError):
                return solved(covariance, self.diagonal, observed, tolerance, start)
        return self._with_dense_covariance._factored(observed)

    def _factored(self, observed: Floats) -> Floats:
        return np.asarray(scipy.linalg.cho_solve((self.root, True), observed))

    @cached_property
    def _with_dense_covariance(self) -> Posterior:
        """The same with rows that a dense covariance can have. Without noise, conjugate gradients may not end where errors
        of the prediction are far above those of sampling.
        """
        if len(self.noise) > MOST_FACTORED:
            raise ArithmeticError(f"a system of {len(self.noise):,} sums was not solved: ε is too large for so many sums")
        rows = [row.matrix if isinstance(row, RowsOfTables) else row for row in self.rows]
        clipped = self.clipped.matrix if isinstance(self.clipped, RowsOfTables) else self.clipped
        return replace(self, rows=rows, noise=self.unshared + squares_of(self.clipped), clipped=clipped)

    def estimate(self, observed: Floats) -> Floats:
        """Posterior mean of z, (cell, 1 + outcome)."""
        return self.prior.spread_out(self.rows, self.solve(observed))

    def deviation(self, solution: Floats) -> Floats:
        """Posterior mean of what errors of the prediction and drift add to z, (cell, 1 + outcome): z without sampling.
        `solution` is that of `solve`.
        """
        return self.prior.times([row.T @ solution for row in self.rows], sampling=False)

    def across(self, figures: FigureRows, weight: Floats, signs: NDArray[np.int8]) -> Floats:
        """Covariance of what is observed with figures, applied to `weight` (row,) times `signs` (row, side): (observed row,
        side).
        """
        return row_values(self.rows, self.prior.times(figures.back(weight, signs)))

    def variances(self, rows: Rows | FigureRows) -> Floats:
        """Posterior variances of rows of the file's cells, (row,)."""
        if isinstance(rows, FigureRows):
            if not self.dense:
                squares = np.concatenate([(part**2).mean(axis=1) for part in rows.of(self._errors)])
                return _drawn_variances(rows.lone_variances(self.prior.lone), squares, rows.coordinate)
            rows = rows.matrix
        if rows[0].shape[1] < len(self.prior.size):
            rows = placed_in(rows, 0, len(self.prior.size))
        if not self.dense:
            squares = (row_values(rows, self._errors) ** 2).mean(axis=1)
            coordinate = np.max([j * (np.diff(row.indptr) > 0) for j, row in enumerate(rows)], axis=0)
            return _drawn_variances(lone_variances(self.prior, rows), squares, coordinate)
        if id(rows) not in self.reached:
            self.reached[id(rows)] = rows, self.prior.with_drift(self.rows, rows), prior_variances(self.prior, rows)
        _, across, before = self.reached[id(rows)]
        half = scipy.linalg.solve_triangular(self.root, across, lower=True)
        gain = scipy.linalg.solve_triangular(self.root, half, lower=True, trans="T")
        return np.asarray(np.maximum(before - (half**2).sum(axis=0), 0.0) + self.further_drift(rows, gain))

    def further_drift(self, rows: Rows, gain: Floats) -> Floats:
        """What drift adds to variances of estimated rows, (row,), beyond that by which sums are shrunk; `gain` is (observed
        row, row).
        """
        variance = np.zeros(rows[0].shape[0])
        if self.erring is None:
            return variance
        for (period, j, typical), (*_, sizes) in zip(self.prior.moves, self.erring.moves, strict=True):
            more = np.maximum(sizes**2 - typical**2, 0.0)
            of_estimates, of_sums = (self.prior.drifts(matrices, j, period) for matrices in (rows, self.rows))
            variance += (of_estimates - gain.T @ of_sums) ** 2 @ more
        return variance

    def draws(self, number: int) -> int:
        """The number of draws of errors: the one that is wanted, or fewer of many sums."""
        entries = len(self.noise) + 2 * self.prior.coordinates * len(self.prior.size)
        return number if self.dense else min(number, max(FEWEST_DRAWS, ENTRIES_OF_DRAWS // entries))

    @cached_property
    def _errors(self) -> Floats:
        """Draws of the estimate's errors, (cell, 1 + outcome, draw)."""
        rng = np.random.default_rng(SEED)
        z = self.prior.sampled(PROBES, rng) + (self.erring or self.prior).deviated(PROBES, rng)
        return self.answers(z, self.disturbed(rng.standard_normal((len(self.noise), PROBES)), rng)) - z

    def redrawn(self, draw: ErrorDraws, draws: int, rng: np.random.Generator) -> Iterator[tuple[slice, Floats]]:
        """Estimates, or their errors, under other samples or other noise, (cell, 1 + outcome, draw), some at a time."""
        if self.dense:
            yield slice(0, draws), draw(self, draws, rng)
            return
        blocks = in_blocks(draws, 4 * len(self.noise))
        seeds = rng.integers(2**63, size=len(blocks)).tolist()
        pieces = [(seed, block.stop - block.start) for seed, block in zip(seeds, blocks, strict=True)]
        yield from zip(blocks, share_out(_DrawnBlock(replace(self), draw), pieces), strict=True)

    def answers(self, z: Floats, noise: Floats | float = 0.0) -> Floats:
        """Estimates of z from its own rows with errors of observations, (cell, 1 + outcome, draw)."""
        observed = row_values(self.rows, z) + noise
        if self.dense:
            return self.prior.spread_out(self.rows, self.solve(observed))
        del noise  # as large as the sums, which are kept in the precision of draws
        observed = observed.astype(self.precision_of_draws)
        solution, products = self.of_draws(observed)
        return np.stack(products.spread_out(solution)).swapaxes(0, 1)

    @property
    def precision_of_draws(self) -> type[np.floating[Any]]:
        """Single precision, unless variances are too large or small for it."""
        ends = np.log10([self.diagonal.min(), self.diagonal.max()])
        return np.float32 if (np.abs(ends) < SINGLE).all() else np.float64

    def of_draws(self, observed: Floats) -> tuple[Floats, ObservedCovariance]:
        """`solve` of many sums for draws (row, draw), and the products that gave it, in double precision if single finds no
        solution.
        """
        products = ObservedCovariance.of(self, self.precision_of_draws)
        try:
            return solved(products, self.diagonal, observed.astype(products.precision, copy=False), OF_DRAWS), products
        except (ArithmeticError, np.linalg.LinAlgError):
            products = ObservedCovariance.of(self)
            return self.solve(observed.astype(np.float64, copy=False), OF_DRAWS), products


@dataclass(frozen=True, eq=False)
class ObservedCovariance:
    """The covariance of what is observed, as products with values (row, side) of one precision."""

    rows: Rows
    sampling: Floats
    """Covariances of z by sampling, (1 + outcome, 1 + outcome, cell)."""
    shared: tuple[Loadings, ...]
    """Errors of the prediction that cells share, by coordinate."""
    independent: tuple[scipy.sparse.csr_array, ...]
    """Other errors of the prediction, and drift, by coordinate (`independent_effects`)."""
    unshared: Floats
    clipped: Matrix | None
    of_inequality: Floats | None

    @classmethod
    def of(
        cls, posterior: Posterior, precision: type[np.floating[Any]] = np.float64, stored: bool = False
    ) -> ObservedCovariance:
        """`stored` entries of rows take much memory, and are faster for one side."""
        prior, numbers = posterior.prior, range(posterior.prior.coordinates)

        def cast(matrix: Matrix) -> Matrix:
            if isinstance(matrix, RowsOfTables):
                return matrix.matrix if stored else matrix
            return None if matrix is None else matrix.astype(precision, copy=False)

        sampling = np.array([[prior.diagonal(j, k) for k in numbers] for j in numbers]).astype(precision)
        shared = tuple(replace(of, **{name: cast(getattr(of, name)) for name in FACTORS}) for of in prior.shared)
        independent = tuple(cast(prior.independent_effects(j)) for j in numbers)
        parts = posterior.unshared, posterior.clipped, posterior.of_inequality
        rows, *errors = list(map(cast, posterior.rows)), *map(cast, parts)
        return cls(rows, sampling, shared, independent, *errors)

    @property
    def precision(self) -> np.dtype[Any]:
        return self.unshared.dtype

    def __call__(self, values: Floats) -> Floats:
        image = self.unshared[:, None] * values
        for row, of_z in zip(self.rows, self.spread_out(values), strict=True):
            image += row @ of_z
        if self.clipped is not None:
            image += self.clipped @ (self.clipped.T @ values)
        if self.of_inequality is not None:
            image += np.outer(self.of_inequality, self.of_inequality @ values)
        return image

    def spread_out(self, values: Floats) -> list[Floats]:
        """Covariance of z with what is observed times values, (cell, side) by coordinate."""
        onto = [row.T @ values for row in self.rows]
        z = [shared @ shared.back(each) for shared, each in zip(self.shared, onto, strict=True)]
        for j, of_z in enumerate(z):
            of_z += self.independent[j] @ (self.independent[j].T @ onto[j])
            for covariance, each in zip(self.sampling[j], onto, strict=True):
                of_z += covariance[:, None] * each
        return z


class ErrorDraws(Protocol):
    """Draws so many estimates, or errors, of z, (cell, 1 + outcome, draw). It can be pickled."""

    def __call__(self, posterior: Posterior, number: int, rng: np.random.Generator) -> Floats: ...


@dataclass(frozen=True)
class SampleErrorDraws:
    """Draws estimates under other samples of the file's records, without noise. `cells` is the number of its cells."""

    cells: int

    def __call__(self, posterior: Posterior, number: int, rng: np.random.Generator) -> Floats:
        sampled = posterior.prior.sampled(number, rng)
        sampled[self.cells :] = 0.0  # samples of earlier periods are those that were drawn
        return posterior.answers(sampled)


@dataclass(frozen=True)
class SampleDraws:
    """Draws the same samples as `SampleErrorDraws`, before they are estimated."""

    def __call__(self, posterior: Posterior, number: int, rng: np.random.Generator) -> Floats:
        return posterior.prior.sampled(number, rng)


@dataclass(frozen=True)
class NoiseErrorDraws:
    """Draws errors under other noise, other errors of the prediction, and other drift. Earlier periods, whose cells follow
    the file's `cells`, have other samples, too.
    """

    cells: int
    laplace: bool

    def __call__(self, posterior: Posterior, number: int, rng: np.random.Generator) -> Floats:
        z = (posterior.erring or posterior.prior).deviated(number, rng)
        if len(z) > self.cells:
            z[self.cells :] += posterior.prior.sampled(number, rng)[self.cells :]
        size = (len(posterior.noise), number)
        answers = posterior.answers(
            z,
            posterior.disturbed(rng.laplace(0.0, np.sqrt(0.5), size) if self.laplace else rng.standard_normal(size), rng),
        )
        answers -= z
        return answers


@dataclass(frozen=True)
class _DrawnBlock:
    """Work on a seed and a number of draws."""

    posterior: Posterior
    draw: ErrorDraws

    def __call__(self, piece: tuple[int, int]) -> Floats:
        seed, number = piece
        return self.draw(self.posterior, number, np.random.default_rng(seed))


def squares_of(clipped: Matrix | None) -> Floats | float:
    """Variances of shared errors, (row,)."""
    if isinstance(clipped, RowsOfTables):
        return clipped.squares()
    return 0.0 if clipped is None else np.asarray(clipped.power(2).sum(axis=1), dtype=np.float64).ravel()


def root_of(covariance: Floats) -> Floats:
    """Lower Cholesky factor of the covariance of sums, (row, row)."""
    try:
        root: Floats = scipy.linalg.cholesky(covariance, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        # Where noise is nearly none, errors that sums share leave a matrix that rounding makes singular.
        rounding = np.diag(ROUNDING * np.diag(covariance))
        root = scipy.linalg.cholesky(covariance + rounding, lower=True, check_finite=False)
    return root


def errors_of(noise: Floats, clipped: Matrix | None, of_inequality: Floats | None = None) -> Floats:
    """The covariance of errors of observations, (row, row)."""
    errors = np.diag(noise - squares_of(clipped))
    if clipped is not None:
        errors += (clipped @ clipped.T).toarray()
    return errors if of_inequality is None else errors + np.outer(of_inequality, of_inequality)


def _drawn_variances(alone: Floats, squares: Floats, coordinate: Ints) -> Floats:
    """Variances of rows from mean squares of draws, relative to variances of sampling `alone`, in the mean over rows of the
    same coordinate and of about that size, (row,).
    """
    variance = np.zeros(len(alone))
    for j in range(int(coordinate.max(initial=-1)) + 1):
        alike = np.flatnonzero((coordinate == j) & (alone > 0.0))
        alike = alike[np.argsort(alone[alike], kind="stable")]
        variance[alike] = alone[alike] * _smooth(squares[alike] / alone[alike], np.log(alone[alike]))
    return variance


def _smooth(values: Floats, place: Floats) -> Floats:
    """Means of values and of their neighbours at sorted crosses, which weigh less the farther they are."""
    total, weight = values.copy(), np.ones(len(values))
    for step in range(1, min(NEIGHBOURS, len(values) - 1) + 1):
        near = np.exp(-(place[step:] - place[:-step]) / REACH)
        for to, of in ((slice(step, None), slice(None, -step)), (slice(None, -step), slice(step, None))):
            total[to] += near * values[of]
            weight[to] += near
    return total / weight
