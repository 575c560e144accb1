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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.core.sharing import share_out
from dpdist.mechanisms.tables.conjugate import EXACT, OF_DRAWS, SIDES, in_blocks, solved
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import Loadings
from dpdist.mechanisms.tables.rows import FigureRows, Rows, equal_rows, placed_in, row_values
from dpdist.mechanisms.tables.sizes import Sizes

MOST_TERMS = 6_000
"""Largest number of levels and tables' cells that drift on their own: those of most records."""
TAILS = 3
"""Number of steps that find variances of far Laplace noise."""
MOST_DENSE = 3_000
"""Largest number of sums with a dense covariance."""
FEWEST_DRAWS, ENTRIES_OF_DRAWS = 3 * SIDES, 10_000_000
"""Smallest number of draws of errors, and the number of their entries above which no more are drawn."""
PROBES, SEED = 2 * SIDES, 47
"""Number of draws that give variances of many rows, and their seed."""
NEIGHBOURS, REACH = 4, 0.2
"""Rows on either side that share draws, and the ratio of log variances at which a neighbour counts for 1/e."""


class Drift(NamedTuple):
    """Relative sizes of one period's drift by coordinate: of levels and tables' cells, and of all cells together."""

    cells: tuple[float, ...]
    common: tuple[float, ...]


class PeriodCells(NamedTuple):
    """Cells of the file and of earlier periods, in this order, (cell,).

    `cross` is the cross of columns, and `period` the number of totals since the reference, the file's counted. `size` are
    numbers of records, and `spread` standard deviations of a record's residuals, (cell, 1 + outcome). `since` (period,) are
    numbers of periods since the totals before.
    """

    cross: Ints
    period: Ints
    size: Floats
    spread: Floats
    since: Floats


@dataclass(frozen=True)
class ResidualPrior:
    """Law of z before the measurement. `terms` (cross, term) are drift's terms.

    z_0 of a secret number of records is Σ w − n̂ m_w, with the predicted number n̂. Its variance has that of the number
    times m_w², and errors of n̂ times m_w. Cells are crosses of columns, unless there are earlier periods.
    """

    prediction: Prediction
    sizes: Sizes
    terms: scipy.sparse.csr_array
    weight: float | Floats = 1.0
    """Factor of weights since the reference where numbers of records are secret, one or (cell,); `size` is times it."""
    growth: float = 1.0
    """The file's count over the reference's, as the first sums show it, where numbers of records are secret."""
    drift: tuple[Drift, ...] = ()
    """Drift of every period, if it is known: since the totals before it."""
    changed: Loadings | None = None
    """What changes of public numbers of records let expect of the file's weights, in sums, (cell, change)."""
    resized: float = 0.0
    """Relative change of weights if a public number of records has changed, and its population has not."""
    earlier: PeriodCells | None = None
    factor: Floats | float = 1.0
    """A record's residuals over those of the reference's records, (cell, 1 + outcome). Spreads of `earlier` have it."""

    @classmethod
    def of(cls, prediction: Prediction, sizes: Sizes, levels: Sequence[Ints], cells: Sequence[Ints]) -> ResidualPrior:
        """`levels` are the levels of every column, and `cells` the cells of every table, by cross."""
        base, indices = np.arange(len(sizes.count), dtype=np.int32), (*levels, *cells)
        sums = [np.bincount(index, weights=sizes.count) for index in indices]
        least = np.sort(np.concatenate([np.zeros(1), *sums]))[-MOST_TERMS:][0]
        blocks = [scipy.sparse.csr_array((len(base), 0))]
        for index, records in zip(indices, sums, strict=True):
            terms = np.flatnonzero(records >= least)
            place = np.full(len(records), -1, dtype=np.int32)
            place[terms] = np.arange(len(terms))
            members = base[place[index] >= 0]
            block = (np.ones(len(members)), (members, place[index[members]]))
            blocks.append(scipy.sparse.csr_array(block, shape=(len(base), len(terms))))
        return cls(prediction, sizes, scipy.sparse.hstack(blocks).tocsr())

    def drifting(self, cells: float, common: float) -> ResidualPrior:
        """This law with drift of these sizes in every coordinate."""
        return self.moving(Drift((cells,) * self.coordinates, (common,) * self.coordinates))

    def moving(self, drift: Drift) -> ResidualPrior:
        """This law with this drift in one period, and so much more since totals of several periods before."""
        drifts = (
            Drift(*(tuple(root * size for size in sizes) for sizes in drift)) for root in np.sqrt(self.since).tolist()
        )
        return replace(self, drift=tuple(drifts))

    def spreading(self, spread: Floats) -> ResidualPrior:
        """This law with other standard deviations of a record's residuals in the file's cells, (cell, 1 + outcome)."""
        of_reference = spread / np.broadcast_to(self.factor, self.spread.shape)[: len(spread)]
        of_crosses = np.concatenate([of_reference, self.prediction.spread[len(spread) :]])
        prediction, earlier = replace(self.prediction, spread=of_crosses), self.earlier
        if earlier is not None:
            earlier = earlier._replace(spread=np.concatenate([spread, earlier.spread[len(spread) :]]))
        return replace(self, prediction=prediction, earlier=earlier)

    def rescaled(self, factors: Floats) -> ResidualPrior:
        """This law where a record's residuals in the file have changed by these factors, (1 + outcome,).

        Sampling variances and errors of the prediction go with them.
        """
        file = len(self.size) if self.earlier is None else int((self.earlier.period == self.earlier.period.max()).sum())
        factor, earlier = np.array(np.broadcast_to(self.factor, self.spread.shape)), self.earlier
        factor[:file] *= factors
        if earlier is not None:
            earlier = earlier._replace(spread=np.concatenate([earlier.spread[:file] * factors, earlier.spread[file:]]))
        return replace(self, factor=factor, earlier=earlier)

    @property
    def records_by_coordinate(self) -> Floats:
        """Numbers of records times factors of their residuals, (1 + outcome, cell)."""
        return np.asarray((self.factor * self.size[:, None] * np.ones(self.coordinates)).T)

    def sized(self, sizes: Sizes, weight: float, growth: float) -> ResidualPrior:
        """This law with other secret numbers of records of the file, `growth` times the reference's, and its `weight`."""
        earlier, file = self.earlier, len(sizes.count)
        if earlier is None:
            return replace(self, sizes=sizes, weight=weight, growth=growth)
        size, before = np.concatenate([sizes.count, earlier.size[file:]]), np.broadcast_to(self.weight, earlier.size.shape)
        weights = np.concatenate([np.full(file, weight), before[file:]])
        return replace(self, sizes=sizes, weight=weights, growth=growth, earlier=earlier._replace(size=size))

    @property
    def coordinates(self) -> int:
        return int(self.prediction.means.shape[1])

    @property
    def size(self) -> Floats:
        """Numbers of records, (cell,)."""
        return self.sizes.count if self.earlier is None else self.earlier.size

    @property
    def spread(self) -> Floats:
        """Standard deviations of a record's residuals, (cell, 1 + outcome)."""
        return self.factor * self.prediction.spread if self.earlier is None else self.earlier.spread

    @cached_property
    def records(self) -> scipy.sparse.csr_array:
        """Numbers of records by cell and its cross, (cell, cross)."""
        cells = np.arange(len(self.size))
        cross = cells if self.earlier is None else self.earlier.cross
        return scipy.sparse.csr_array((self.size, (cells, cross)), shape=(len(cells), len(self.sizes.count)))

    @cached_property
    def shared(self) -> tuple[Loadings, ...]:
        """The prediction's errors that cells share, in sums, of every coordinate, (cell, effect)."""
        spread, cross = self.prediction.spread, self.records.indices.astype(np.int64)
        of_residuals = [load.scaled(spread[:, j]) for j, load in enumerate(self.prediction.loadings)]
        of_numbers = self.sizes.shared.scaled(self.prediction.means[:, 0] / self.sizes.count)
        by_record = (of_residuals[0].plus(of_numbers), *of_residuals[1:])
        changed = (
            None if self.changed is None else self.changed.scaled(np.broadcast_to(self.factor, self.spread.shape)[:, 0])
        )
        of_weights, *of_outcomes = (
            load.of_cells(cross).scaled(records)
            for load, records in zip(by_record, self.records_by_coordinate, strict=True)
        )
        return of_weights if changed is None else of_weights.plus(changed), *of_outcomes

    @cached_property
    def alone(self) -> tuple[scipy.sparse.csr_array, ...]:
        """Sums that the prediction's other errors add, of every coordinate, (cell, cross)."""
        of_residuals = self.prediction.spread * self.prediction.alone
        of_numbers = self.prediction.means[:, 0] / self.sizes.count * self.sizes.alone
        deviations = np.column_stack([np.hypot(of_residuals[:, 0], of_numbers), of_residuals[:, 1:]])
        return tuple(
            (scipy.sparse.diags_array(records) @ self.combinations @ scipy.sparse.diags_array(deviation)).tocsr()
            for records, deviation in zip(self.records_by_coordinate, deviations.T, strict=True)
        )

    @cached_property
    def relative(self) -> Floats:
        """Sums that a relative drift of 1 adds, (cell, 1 + outcome)."""
        return np.asarray(self.records @ self.prediction.drifting)

    def reached(self, j: int, period: int) -> Floats:
        """Sums that a coordinate's relative drift of 1 in a period adds, (cell,)."""
        relative: Floats = self.relative[:, j]
        return relative if self.earlier is None else np.where(self.earlier.period >= period, relative, 0.0)

    def diagonal(self, j: int, k: int) -> Floats:
        """Covariance of z_j and z_k by the sample of records, (cell,)."""
        number, spread = self.weight * self.size, self.spread
        covariance: Floats = number * self.prediction.correlation[j, k] * spread[:, j] * spread[:, k]
        if j == k == 0 and self.sizes.secret:
            covariance = covariance + self.weight * (self.records @ self.prediction.means[:, 0] ** 2)
        return covariance

    def lone(self, j: int, k: int) -> Floats:
        """Covariance of z_j and z_k by the sample of records and errors that cells do not share, in the file's cells."""
        cells = len(self.size) if self.earlier is None else int((self.earlier.period == self.earlier.period.max()).sum())
        alone = self.alone[j].diagonal()[:cells] ** 2 if j == k else 0.0
        return np.asarray(self.diagonal(j, k)[:cells] + alone)

    def factors(self, rows: Rows) -> Floats:
        """Rows of the prediction's shared errors, (row, effect)."""
        return np.concatenate([load.rows(row) for row, load in zip(rows, self.shared, strict=True)], axis=1)

    @cached_property
    def combinations(self) -> scipy.sparse.csr_array:
        """Takes values of crosses to cells, (cell, cross)."""
        return scipy.sparse.csr_array(
            (np.ones(len(self.size)), self.records.indices, self.records.indptr), self.records.shape
        )

    def drifts(self, rows: Rows, j: int, period: int) -> Floats:
        """Rows of a coordinate's drift of size 1 in a period, (row, term)."""
        reached = scipy.sparse.diags_array(self.reached(j, period))
        return np.asarray((rows[j] @ reached @ self.combinations @ self.terms).toarray())

    def common_drift(self, rows: Rows, j: int, period: int) -> Floats:
        """Rows of a coordinate's common drift of size 1 in a period, (row,)."""
        return np.asarray(rows[j] @ self.reached(j, period))

    def covariance(self, left: Rows, right: Rows) -> Floats:
        """Covariance of rows without drift, (left, right)."""
        covariance = self.factors(left) @ self.factors(right).T
        for j in range(self.coordinates):
            covariance += ((left[j] @ self.alone[j]) @ (right[j] @ self.alone[j]).T).toarray()
            for k in range(self.coordinates):
                covariance += (left[j] @ scipy.sparse.diags_array(self.diagonal(j, k)) @ right[k].T).toarray()
        return covariance

    @property
    def moves(self) -> list[tuple[int, int, float, float]]:
        """Period, coordinate, and sizes of drift of cells and of all cells together."""
        return [
            (period, j, tau, common)
            for period, drift in enumerate(self.drift, start=1)
            for j, (tau, common) in enumerate(zip(*drift, strict=True))
        ]

    @property
    def since(self) -> Floats:
        """Numbers of periods since the totals before, (period,), that of the file last."""
        return np.ones(1) if self.earlier is None else self.earlier.since

    def with_drift(self, left: Rows, right: Rows) -> Floats:
        covariance = self.covariance(left, right)
        for period, j, tau, common in self.moves:
            if tau:
                covariance += tau**2 * (self.drifts(left, j, period) @ self.drifts(right, j, period).T)
            if common:
                covariance += common**2 * np.outer(self.common_drift(left, j, period), self.common_drift(right, j, period))
        return covariance

    def spread_out(self, rows: Rows, values: Floats) -> Floats:
        """Covariance of z with rows, applied to `values` (row,) or (row, draw): (cell, 1 + outcome) or with draws last."""
        return self.times([row.T @ values for row in rows])

    def times(self, onto: Sequence[Floats], sampling: bool = True) -> Floats:
        """Covariance of z, with or without that of sampling, applied to values by coordinate, (cell,) or (cell, draw), as
        `spread_out` has it.
        """
        columns = []
        for j in range(self.coordinates):
            value = self.shared[j] @ self.shared[j].back(onto[j])
            if sampling:
                value = value + sum(_scaled(self.diagonal(j, k), onto[k]) for k in range(self.coordinates))
            columns.append(value + self.alone[j] @ (self.alone[j].T @ onto[j]))
        for period, j, tau, common in self.moves:
            reached = self.reached(j, period)
            of_terms = self.terms @ (self.terms.T @ (self.combinations.T @ _scaled(reached, onto[j])))
            columns[j] = columns[j] + tau**2 * _scaled(reached, self.combinations @ of_terms)
            columns[j] = columns[j] + common**2 * np.multiply.outer(reached, reached @ onto[j])
        return _beside(columns)

    def sampled(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws of z by the sample of records, given their numbers, (cell, 1 + outcome, draw)."""
        root = np.linalg.cholesky(self.prediction.correlation + 1e-9 * np.eye(self.coordinates))
        alike = np.einsum("jk,bkd->jbd", root, rng.standard_normal((len(self.size), self.coordinates, number)))
        alike *= (np.sqrt(self.weight * self.size)[:, None] * self.spread).T[..., None]
        return np.asarray(alike.swapaxes(0, 1))

    def deviated(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws of z by the prediction's errors and drift, (cell, 1 + outcome, draw)."""
        columns = []
        for j in range(self.coordinates):
            value = self.alone[j] @ rng.standard_normal((len(self.sizes.count), number))
            value += self.shared[j] @ rng.standard_normal((self.shared[j].shape[1], number))
            for period, _, tau, common in (move for move in self.moves if move[1] == j):
                reached = self.reached(j, period)
                if tau:
                    term = tau * rng.standard_normal((self.terms.shape[1], number))
                    value += _scaled(reached, self.combinations @ (self.terms @ term))
                if common:
                    value += common * np.outer(reached, rng.standard_normal(number))
            columns.append(value)
        return _beside(columns)


def _beside(columns: Sequence[Floats]) -> Floats:
    """Coordinates (cell,) or (cell, draw) as (cell, coordinate) or (cell, coordinate, draw), each contiguous in memory:
    sparse products copy what is not.
    """
    return np.stack(columns).swapaxes(0, 1)


def _scaled(by: Floats, values: Floats) -> Floats:
    return by[:, None] * values if values.ndim == 2 else by * values


@dataclass(frozen=True)
class Posterior:
    """Posterior of z given noisy sums. `observed` (row,) are residual sums, `noise` (row,) their error variances.

    `clipped` (row, factor) are factors of errors that rows share, which `noise` has as well: what limits clip of a record,
    they clip in every table.
    """

    prior: ResidualPrior
    rows: Rows
    noise: Floats
    clipped: scipy.sparse.csr_array | None = None
    erring: ResidualPrior | None = None
    """The law with the drift that errors have, where that by which sums are shrunk is another."""
    laplace: bool = False
    """True if noise is Laplace, whose tails are heavier than those of a normal law."""

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the rows before the measurement, without errors of observations."""
        return self.prior.with_drift(self.rows, self.rows)

    def under(self, noise: Floats, clipped: scipy.sparse.csr_array | None = None, rows: Rows | None = None) -> Posterior:
        """The posterior with other error variances, and with other shared ones and other rows if they are given."""
        clipped, before = self.clipped if clipped is None else clipped, self.rows
        copy = replace(self, noise=noise, clipped=clipped, rows=rows or before)
        if self.dense and (rows is None or equal_rows(rows, before)):
            copy.__dict__.update(covariance=self.covariance, reached=self.reached)
        return copy

    def with_tails(self, observed: Floats) -> Posterior:
        """The posterior with larger variances of Laplace noise where it is far out, by what rows show of it: r beyond √2
        standard deviations σ counts as normal noise of variance |r| σ / √2, which has the same slope of the density.
        """
        if not self.laplace:
            return self
        alone, posterior = self.noise - squares_of(self.clipped), self
        bend = np.sqrt(2.0 * np.maximum(alone, 1e-300))
        for _ in range(TAILS):
            noise = posterior.noise - squares_of(self.clipped)
            size = np.abs(noise * posterior.solve(observed, OF_DRAWS))
            posterior = self.under(self.noise + alone * np.maximum(size / bend - 1.0, 0.0))
        return posterior

    @cached_property
    def reached(self) -> dict[int, tuple[Rows, Floats, Floats]]:
        """Rows whose variances were asked for, their covariance with what is observed, and their variances before."""
        return {}

    @cached_property
    def root(self) -> Floats:
        """Lower Cholesky factor of the covariance of what is observed."""
        return scipy.linalg.cholesky(self.covariance + errors_of(self.noise, self.clipped), lower=True)

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
        return self.noise - squares_of(self.clipped)

    def times(self, values: Floats) -> Floats:
        """The covariance of what is observed times values, (row, side)."""
        z = self.prior.spread_out(self.rows, values)
        alone = self.unshared[:, None] * values
        return (
            row_values(self.rows, z) + alone + (0.0 if self.clipped is None else self.clipped @ (self.clipped.T @ values))
        )

    def disturbed(self, standard: Floats, rng: np.random.Generator) -> Floats:
        """Draws of errors of observations, (row, draw), from errors of variance 1."""
        alone = np.sqrt(np.maximum(self.unshared, 0.0))[:, None] * standard
        if self.clipped is None:
            return np.asarray(alone)
        return np.asarray(alone + self.clipped @ rng.standard_normal((self.clipped.shape[1], standard.shape[1])))

    def solve(self, observed: Floats, tolerance: float = EXACT) -> Floats:
        if self.dense:
            return np.asarray(scipy.linalg.cho_solve((self.root, True), observed))
        return solved(replace(self).times, self.diagonal, observed, tolerance)

    def estimate(self, observed: Floats) -> Floats:
        """Posterior mean of z, (cell, 1 + outcome)."""
        return self.prior.spread_out(self.rows, self.solve(observed))

    def deviation(self, observed: Floats) -> Floats:
        """Posterior mean of what errors of the prediction and drift add to z, (cell, 1 + outcome): z without sampling.

        Of many sums it is solved as draws of errors are.
        """
        solved = self.solve(observed, OF_DRAWS)
        return self.prior.times([row.T @ solved for row in self.rows], sampling=False)

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
        for (period, j, *typical), (*_, tau, common) in zip(self.prior.moves, self.erring.moves, strict=True):
            more = np.maximum(np.square([tau, common]) - np.square(typical), 0.0)
            for drift, extra in ((self.prior.drifts, more[0]), (self.prior.common_drift, more[1])):
                of_estimates, of_sums = (
                    drift(matrices, j, period).reshape(matrices[0].shape[0], -1) for matrices in (rows, self.rows)
                )
                variance += extra * ((of_estimates - gain.T @ of_sums) ** 2).sum(axis=1)
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
        blocks = in_blocks(draws, len(self.noise))
        seeds = rng.integers(2**63, size=len(blocks)).tolist()
        pieces = [(seed, block.stop - block.start) for seed, block in zip(seeds, blocks, strict=True)]
        yield from zip(blocks, share_out(_DrawnBlock(replace(self), draw), pieces), strict=True)

    def answers(self, z: Floats, noise: Floats | float = 0.0) -> Floats:
        """Estimates of z from its own rows with errors of observations, (cell, 1 + outcome, draw)."""
        return self.prior.spread_out(self.rows, self.solve(row_values(self.rows, z) + noise, OF_DRAWS))


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
        noise = rng.laplace(0.0, np.sqrt(0.5), size) if self.laplace else rng.standard_normal(size)
        return np.asarray(posterior.answers(z, posterior.disturbed(noise, rng)) - z)


@dataclass(frozen=True)
class _DrawnBlock:
    """Work on a seed and a number of draws."""

    posterior: Posterior
    draw: ErrorDraws

    def __call__(self, piece: tuple[int, int]) -> Floats:
        seed, number = piece
        return self.draw(self.posterior, number, np.random.default_rng(seed))


def squares_of(clipped: scipy.sparse.csr_array | None) -> Floats | float:
    """Variances of shared errors, (row,)."""
    return 0.0 if clipped is None else np.asarray(clipped.power(2).sum(axis=1), dtype=np.float64).ravel()


def errors_of(noise: Floats, clipped: scipy.sparse.csr_array | None) -> Floats:
    """The covariance of errors of observations, (row, row)."""
    if clipped is None:
        return np.diag(noise)
    return np.asarray((clipped @ clipped.T).toarray() + np.diag(noise - squares_of(clipped)))


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


def lone_variances(prior: ResidualPrior, rows: Rows) -> Floats:
    """Variances of rows before the measurement without shared errors and drift, (row,)."""
    numbers = range(prior.coordinates)
    sampled = sum(rows[j].multiply(rows[k]).tocsr() @ prior.diagonal(j, k) for j in numbers for k in numbers)
    alone = sum((rows[j] @ prior.alone[j]).power(2).sum(axis=1) for j in numbers)
    return np.asarray(np.asarray(sampled) + np.asarray(alone).ravel())


def prior_variances(prior: ResidualPrior, rows: Rows) -> Floats:
    """Variances of rows before the measurement, (row,)."""
    variance: Floats = (prior.factors(rows) ** 2).sum(axis=1)
    for period, j, tau, common in prior.moves:
        if tau:
            variance += tau**2 * (prior.drifts(rows, j, period) ** 2).sum(axis=1)
        variance += (common * prior.common_drift(rows, j, period)) ** 2
    return variance + lone_variances(prior, rows)
