"""The law of base cells' residual sums before the measurement: sampling, errors of the prediction, drift and periods.

z is that of `posterior`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints, quotient_or
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import Loadings
from dpdist.mechanisms.tables.rows import Rows, RowsOfTables
from dpdist.mechanisms.tables.sizes import Sizes

MOST_TERMS = 6_000
"""Largest number of levels and tables' cells that drift on their own: those of most records."""
AT_ONCE = 2**14
"""Number of cells whose samples are drawn at a time."""

WITHOUT_DRIFT = "records", "shared", "alone", "relative", "combinations"
"""Cached properties of a law that do not depend on sizes of drift."""
OF_ALL, OF_CELLS = 0, 1
"""Families of drift's terms: of all cells together, and of tables' cells. Levels of columns follow."""


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
    """Law of z before the measurement.

    `terms` (cross, term) are drift's terms, and `families` (term,) those with one size of drift: all cells together,
    tables' cells, then the levels of every column.

    z_0 of a secret number of records is Σ w − n̂ m_w, with the predicted number n̂. Its variance has that of the number
    times m_w², and errors of n̂ times m_w. Cells are crosses of columns, unless there are earlier periods.
    """

    prediction: Prediction
    sizes: Sizes
    terms: scipy.sparse.csr_array
    families: Ints
    weight: float | Floats = 1.0
    """Factor of weights since the reference where numbers of records are secret, one or (cell,); `size` is times it."""
    growth: float = 1.0
    """The file's count over the reference's, as the first sums show it, where numbers of records are secret."""
    drift: tuple[Floats, ...] = ()
    """Relative sizes of every period's drift since the totals before it, (family, coordinate), once they are known."""
    changed: Loadings | None = None
    """What changes of public numbers of records let expect of the file's weights, in sums, (cell, change)."""
    resized: float = 0.0
    """Relative change of weights if a public number of records has changed, and its population has not."""
    earlier: PeriodCells | None = None
    factor: Floats | float = 1.0
    """A record's residuals over those of the reference's records, (cell, 1 + outcome). Spreads of `earlier` have it."""
    raised: Floats | float = 1.0
    """The same beyond `factor`, of cells whose records have changed."""
    of_records: Floats | None = None
    """`spread` without earlier periods, where it is not that of the prediction times `factor`."""

    @classmethod
    def of(
        cls, prediction: Prediction, sizes: Sizes, levels: Sequence[Ints], cells: Sequence[Ints | Codes]
    ) -> ResidualPrior:
        """`levels` are the levels of every column, and `cells` the cells of every table, by cross."""
        base, indices = np.arange(len(sizes.count), dtype=np.int32), (*levels, *cells)
        sums = [np.bincount(index, weights=sizes.count) for index in indices]
        least = np.sort(np.concatenate([np.zeros(1), *sums]))[-MOST_TERMS:][0]
        blocks, families = [scipy.sparse.csr_array(np.ones((len(base), 1)))], [np.zeros(1, dtype=np.int64)]
        for number, (index, records) in enumerate(zip(indices, sums, strict=True), start=OF_CELLS + 1):
            terms = np.union1d(np.flatnonzero(records >= least), records.argmax())
            place = np.full(len(records), -1, dtype=np.int32)
            place[terms] = np.arange(len(terms))
            members = base[place[index] >= 0]
            block = (np.ones(len(members)), (members, place[index[members]]))
            blocks.append(scipy.sparse.csr_array(block, shape=(len(base), len(terms))))
            families.append(np.full(len(terms), OF_CELLS if number > OF_CELLS + len(levels) else number))
        return cls(prediction, sizes, scipy.sparse.hstack(blocks).tocsr(), np.concatenate(families))

    def drifting(self, cells: float, common: float) -> ResidualPrior:
        """This law with drift of these sizes in every coordinate: of levels and cells, and of all cells together."""
        sizes = np.full((self.families_of_drift, self.coordinates), cells)
        sizes[OF_ALL] = common
        return self.moving(sizes)

    def moving(self, drift: Floats) -> ResidualPrior:
        """This law with drift of these sizes in one period, and so much more since totals of several periods before."""
        moved = replace(self, drift=tuple(root * drift for root in np.sqrt(self.since)))
        # They are large, and the same under any drift.
        moved.__dict__.update((name, self.__dict__[name]) for name in WITHOUT_DRIFT if name in self.__dict__)
        return moved

    def spreading(self, spread: Floats) -> ResidualPrior:
        """This law with other standard deviations of a record's residuals in the file's cells, (cell, 1 + outcome).

        Sampling variances and errors of the prediction go with them, and errors of numbers of records do not.
        """
        file, earlier, before = len(spread), self.earlier, self.spread[: len(spread)]
        if np.array_equal(spread, before):
            return self
        raised = np.ones((len(self.size), self.coordinates)) * self.raised
        raised[:file] *= quotient_or(1.0, spread, before)
        if earlier is None:
            return replace(self, raised=raised, of_records=spread)
        earlier = earlier._replace(spread=np.concatenate([spread, earlier.spread[file:]]))
        return replace(self, raised=raised, earlier=earlier)

    def rescaled(self, factors: Floats) -> ResidualPrior:
        """This law where a record's residuals in the file have changed by these factors, (1 + outcome,).

        Sampling variances and errors of the prediction go with them.
        """
        factor, earlier, file = self.factors_of_cells.copy(), self.earlier, self.cells_of_file
        factor[:file] *= factors
        if earlier is not None:
            earlier = earlier._replace(spread=np.concatenate([earlier.spread[:file] * factors, earlier.spread[file:]]))
        of_records = None if self.of_records is None else self.of_records * factors
        return replace(self, factor=factor, earlier=earlier, of_records=of_records)

    @property
    def factors_of_cells(self) -> Floats:
        """`factor` of every cell, (cell, 1 + outcome)."""
        return np.broadcast_to(self.factor, (len(self.size), self.coordinates))

    @property
    def cells_of_file(self) -> int:
        return len(self.size) if self.earlier is None else int((self.earlier.period == self.earlier.period.max()).sum())

    @property
    def scaled_records(self) -> Floats:
        """Numbers of records times factors of their residuals, (1 + outcome, cell)."""
        return np.asarray((self.factors_of_cells * self.size[:, None]).T)

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
        if self.earlier is not None:
            return self.earlier.spread
        return self.factor * self.prediction.spread if self.of_records is None else self.of_records

    @cached_property
    def records(self) -> scipy.sparse.csr_array:
        """Numbers of records by cell and its cross, (cell, cross)."""
        cells = np.arange(len(self.size), dtype=np.int32)
        cross = cells if self.earlier is None else self.earlier.cross
        return scipy.sparse.csr_array((self.size, (cells, cross)), shape=(len(cells), len(self.sizes.count)))

    @cached_property
    def shared(self) -> tuple[Loadings, ...]:
        """The prediction's errors that cells share, in sums, of every coordinate, (cell, effect)."""
        spread, cross, records = self.prediction.spread, self.records.indices.astype(np.int64), self.scaled_records
        of_numbers = self.sizes.shared.scaled(self.prediction.means[:, 0] / self.sizes.count)
        changed = (
            None if self.changed is None else self.changed.scaled(np.broadcast_to(self.factor, self.spread.shape)[:, 0])
        )
        of_weights, *of_outcomes = (
            load.scaled(spread[:, j]).of_cells(cross).scaled(raised)
            for j, (load, raised) in enumerate(zip(self.prediction.loadings, (records.T * self.raised).T, strict=True))
        )
        of_weights = of_weights.plus(of_numbers.of_cells(cross).scaled(records[0]))
        return of_weights if changed is None else of_weights.plus(changed), *of_outcomes

    @cached_property
    def alone(self) -> tuple[scipy.sparse.csr_array, ...]:
        """Sums that the prediction's other errors add, of every coordinate, (cell, cross)."""
        cross, crosses = self.records.indices, self.records.shape
        of_residuals = (self.prediction.spread * self.prediction.alone)[cross] * self.raised
        of_numbers = (self.prediction.means[:, 0] / self.sizes.count * self.sizes.alone)[cross]
        deviations = np.column_stack([np.hypot(of_residuals[:, 0], of_numbers), of_residuals[:, 1:]])
        return tuple(
            scipy.sparse.csr_array((records * deviation, cross, self.records.indptr), crosses)
            for records, deviation in zip(self.scaled_records, deviations.T, strict=True)
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
        cells = self.cells_of_file
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

    @property
    def families_of_drift(self) -> int:
        return int(self.families.max()) + 1

    def drifts(self, rows: Rows, j: int, period: int) -> Floats:
        """Rows of a coordinate's drift of size 1 in a period, (row, term)."""
        reached = scipy.sparse.diags_array(self.reached(j, period))
        return np.asarray((rows[j] @ reached @ self.combinations @ self.terms).toarray())

    def covariance(self, left: Rows, right: Rows) -> Floats:
        """Covariance of rows without drift, (left, right)."""
        factors = self.factors(left)
        # A product with itself would round otherwise than one with equal numbers.
        covariance = factors @ (factors.copy() if right is left else self.factors(right)).T
        for j in range(self.coordinates):
            covariance += ((left[j] @ self.alone[j]) @ (right[j] @ self.alone[j]).T).toarray()
            for k in range(self.coordinates):
                covariance += (left[j] @ scipy.sparse.diags_array(self.diagonal(j, k)) @ right[k].T).toarray()
        return covariance

    @property
    def moves(self) -> list[tuple[int, int, Floats]]:
        """Period, coordinate, and sizes of drift, (term,)."""
        return [
            (period, j, sizes[self.families])
            for period, drift in enumerate(self.drift, start=1)
            for j, sizes in enumerate(drift.T)
        ]

    @property
    def since(self) -> Floats:
        """Numbers of periods since the totals before, (period,), that of the file last."""
        return np.ones(1) if self.earlier is None else self.earlier.since

    def with_drift(self, left: Rows, right: Rows) -> Floats:
        covariance = self.covariance(left, right)
        for period, j, sizes in self.moves:
            drifts = self.drifts(left, j, period)
            covariance += (drifts * sizes**2) @ (drifts if right is left else self.drifts(right, j, period)).T
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
        for period, j, sizes in self.moves:
            reached = self.reached(j, period)
            of_terms = _scaled(sizes**2, self.terms.T @ (self.combinations.T @ _scaled(reached, onto[j])))
            columns[j] = columns[j] + _scaled(reached, self.combinations @ (self.terms @ of_terms))
        return _beside(columns)

    def independent_effects(self, j: int) -> scipy.sparse.csr_array:
        """Factors of errors of the prediction that no cross shares, and of drift, in a coordinate of z, (cell, effect)."""
        blocks = [self.alone[j]]
        for period, _, sizes in (move for move in self.moves if move[1] == j):
            reached, of_terms = (scipy.sparse.diags_array(part) for part in (self.reached(j, period), sizes))
            blocks.append(reached @ self.combinations @ self.terms @ of_terms)
        return scipy.sparse.hstack(blocks).tocsr()

    def drifted(self, j: int, period: int, sizes: Floats, number: int, rng: np.random.Generator) -> Floats:
        """Draws of a coordinate's drift of these sizes (term,) in a period, (cell, draw)."""
        of_terms = sizes[:, None] * rng.standard_normal((len(sizes), number))
        return _scaled(self.reached(j, period), self.combinations @ (self.terms @ of_terms))

    def sampled(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws of z by the sample of records, given their numbers, (cell, 1 + outcome, draw)."""
        root = np.linalg.cholesky(self.prediction.correlation + 1e-9 * np.eye(self.coordinates))
        alike = np.empty((self.coordinates, len(self.size), number))
        deviations = np.sqrt(self.weight * self.size)[:, None] * self.spread
        for start in range(0, len(self.size), AT_ONCE):
            of = slice(start, start + AT_ONCE)
            standard = rng.standard_normal((len(deviations[of]), self.coordinates, number))
            alike[:, of] = np.einsum("jk,bkd->jbd", root, standard) * deviations[of].T[..., None]
        return np.asarray(alike.swapaxes(0, 1))

    def deviated(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws of z by the prediction's errors and drift, (cell, 1 + outcome, draw)."""
        columns = []
        for j in range(self.coordinates):
            value = self.alone[j] @ rng.standard_normal((len(self.sizes.count), number))
            value += self.shared[j] @ rng.standard_normal((self.shared[j].shape[1], number))
            for period, _, sizes in (move for move in self.moves if move[1] == j):
                value += self.drifted(j, period, sizes, number, rng)
            columns.append(value)
        return _beside(columns)


def _beside(columns: Sequence[Floats]) -> Floats:
    """Coordinates (cell,) or (cell, draw) as (cell, coordinate) or (cell, coordinate, draw), each contiguous in memory:
    sparse products copy what is not.
    """
    return np.stack(columns).swapaxes(0, 1)


def _scaled(by: Floats, values: Floats) -> Floats:
    return by[:, None] * values if values.ndim == 2 else by * values


def lone_variances(prior: ResidualPrior, rows: Rows) -> Floats:
    """Variances of rows before the measurement without shared errors and drift, (row,)."""
    if isinstance(rows[0], RowsOfTables):
        tables = zip(*(row.of_tables() for row in rows), strict=True)
        return np.concatenate([lone_variances(prior, list(table)) for table in tables])
    numbers = range(prior.coordinates)
    sampled = sum(rows[j].multiply(rows[k]).tocsr() @ prior.diagonal(j, k) for j in numbers for k in numbers)
    alone = sum((rows[j] @ prior.alone[j]).power(2).sum(axis=1) for j in numbers)
    return np.asarray(np.asarray(sampled) + np.asarray(alone).ravel())


def prior_variances(prior: ResidualPrior, rows: Rows) -> Floats:
    """Variances of rows before the measurement, (row,)."""
    variance: Floats = (prior.factors(rows) ** 2).sum(axis=1)
    for period, j, sizes in prior.moves:
        variance += prior.drifts(rows, j, period) ** 2 @ sizes**2
    return variance + lone_variances(prior, rows)
