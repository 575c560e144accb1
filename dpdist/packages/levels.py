"""For `packages.posterior` and `limits`: the reference's mean weight and outcome of base cells, with joint errors.

A level is a product of main effects (a sum, where outcomes may be negative) times 1 + d. The deviations d are estimated
by empirical Bayes: d = Σ_A Z_A γ_A + δ. Every cell of every table has a shared term, and each base cell its own δ. The
variances of the tables' terms and of δ have the largest likelihood. A base cell without a reference record takes its
level from its tables' cells and its columns. So an empty combination of columns is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.packages.conjugate import TermPrecision, TermRoot, root_of_inverse
from dpdist.packages.nested import NestedTerms
from dpdist.packages.workload import WithoutCaches, Workload, indicator

PSEUDO_RECORDS = 5.0
"""Records at the overall level added to every level of a column, so that few records do not move it far."""
DIFFUSE_DEVIATION = 1.0
"""Prior standard deviation, relative to the level, of a deviation shared by all cells of a column's level."""
LEAST_LEVEL = 0.05
"""Smallest level, relative to the level by main effects."""
MAIN_EFFECT_PASSES = 30
MOST_TERMS = 6_000
"""Largest number of shared terms whose covariance is dense."""
COARSE_TERMS = 500
"""Number of terms, those of the most cells, whose part of a large system is solved exactly within every step. Four times as
many need as many steps where there are 350,000 base cells."""
CUBE_OF_ENTRY = 60_000
"""A dense covariance is also avoided where the number of terms, cubed, is over so many times the entries of the terms."""
MOST_PAIRS = 10_000_000
"""Pairs of terms in cells that are kept: they take 40 bytes each at most."""
TERMS_LEARNED = 500
"""Largest number of terms from which variances are learned together, where there are more than twice as many."""
MOST_LEVERAGE = 0.5
"""Largest part of a record in its own level that is taken away again, because leverages of many terms are probed."""
LEAST_WITHOUT = 0.5
"""Smallest level without a record, relative to that with it."""
WINSORISED = 0.9
"""Quantile at which relative weights and outcomes are winsorised before levels are estimated."""


class ReferenceRecords(NamedTuple):
    """A reference's records: base cell and weight, (record,) each; outcomes, (record, outcome), or (record,) for one.

    The reference may have crosses of columns that the file lacks. They are numbered after the file's base cells.
    """

    cell: Ints
    weight: Floats
    outcome: Floats
    absent: Ints | None = None
    """Levels of the crosses that the file lacks, (cross, column); None if there are none."""

    def inside(self, cells: int) -> Ints:
        """Positions of the records in the file's base cells."""
        return np.flatnonzero(self.cell < cells)

    def crosses(self, workload: Workload) -> Workload:
        """The file's base cells, then those of the reference alone, which have no record of the file."""
        if self.absent is None or not len(self.absent):
            return workload
        cells, number = len(workload), len(workload) + len(self.absent)
        held, weight = (np.bincount(self.cell, of, number)[cells:] for of in (None, self.weight))
        return workload.with_absent(self.absent, weight / np.maximum(held, 1))

    @property
    def outcomes(self) -> Floats:
        """Outcomes by outcome, (outcome, record)."""
        return np.ascontiguousarray(self.outcome.reshape(len(self.cell), -1).T)


@dataclass(frozen=True)
class Deviations:
    """Estimated deviations of a level, (cell,), with their errors.

    An error has a variance of each cell, `alone` (cell,), and a shared part: Z scaled by `shared` (cell,), times the
    errors of the terms.
    """

    value: Floats
    alone: Floats
    shared: Floats
    terms: TermRoot | TermPrecision
    precision: Floats | None = None
    """The precision of the residuals behind them given the terms, (cell,): 0 without a record. Relative ones have none."""

    def leverage(self, z: NestedTerms) -> Floats:
        """By how much a cell's value moves with its own residual, (cell,), if `z` are the terms, (cell, term)."""
        assert self.precision is not None
        return np.asarray(1.0 - self.shared * (1.0 - self.precision * self.terms.variances(z)))

    def relative_to(self, level: Floats) -> Deviations:
        """The same errors relative to other levels, which are given as multiples of the first."""
        return Deviations(self.value, self.alone / level**2, self.shared / level, self.terms)

    def first(self, cells: int) -> Deviations:
        """Those of the first cells."""
        precision = None if self.precision is None else self.precision[:cells]
        return Deviations(self.value[:cells], self.alone[:cells], self.shared[:cells], self.terms, precision)

    @property
    def exact(self) -> Deviations:
        """Deviations of the same cells that are 0 without errors."""
        nothing = np.zeros_like(self.value)
        return Deviations(nothing, nothing, nothing, self.terms)


@dataclass(frozen=True)
class Terms(WithoutCaches):
    """Shared terms Z, (cell, term), and the class of every term: 0 all cells, 1 a column's level, 2 a table's cell."""

    matrix: scipy.sparse.csr_array
    classes: Ints
    codes: Ints
    """Levels of the base cells, (cell, column)."""

    @cached_property
    def nested(self) -> NestedTerms:
        """The terms, for products."""
        return NestedTerms.of(self.matrix)

    @property
    def large(self) -> bool:
        """Whether the terms' covariance is too large to be dense."""
        return self.matrix.shape[1] > MOST_TERMS

    @property
    def sparse(self) -> bool:
        """Whether products with the terms take less time than a dense covariance of them."""
        return self.large or (self.learned_from_a_part and self.matrix.shape[1] ** 3 > CUBE_OF_ENTRY * self.matrix.nnz)

    def first(self, cells: int) -> Terms:
        """All terms, in the first cells."""
        return Terms(scipy.sparse.csr_array(self.matrix[:cells]), self.classes, self.codes[:cells])

    @cached_property
    def coarse(self) -> Ints:
        """Terms of all cells, of a column's level, and of the most cells."""
        most = np.argsort(-self.nested.back(np.ones(self.matrix.shape[0])), kind="stable")[:COARSE_TERMS]
        return np.union1d(np.flatnonzero(self.classes != 2), most)

    @property
    def learned_from_a_part(self) -> bool:
        """Whether their variances are learned from a part of the base cells."""
        return self.large or self.matrix.shape[1] > 2 * TERMS_LEARNED

    def part(self, cells: Ints) -> Ints:
        """Those of some base cells that together have at most `TERMS_LEARNED` terms: every k-th level of the columns with
        most levels. Terms are whole in them, where the tables have these columns."""
        sizes, kept = self.codes.max(axis=0) + 1, cells
        for column in np.argsort(-sizes, kind="stable"):
            step = 1
            while step < sizes[column]:
                if np.diff(self.matrix[kept].tocsc().indptr).astype(bool).sum() <= TERMS_LEARNED:
                    return kept
                step *= 2
                kept = cells[self.codes[cells, column] % step == 0]
            cells = kept
        return kept

    @classmethod
    def of(cls, workload: Workload) -> Terms:
        """The terms of a workload: overall, every column's levels, and the cells of every measured table."""
        sets = [(), *((column,) for column in range(len(workload.sizes))), *workload.measured]
        distinct = dict.fromkeys(tuple(columns) for columns in sets)
        parts = [workload.summing(columns).T for columns in distinct]
        classes = [np.full(part.shape[1], min(len(by), 2)) for by, part in zip(distinct, parts, strict=True)]
        return cls(
            scipy.sparse.csr_array(scipy.sparse.hstack(parts, format="csr")), np.concatenate(classes), workload.codes
        )


@dataclass(frozen=True)
class OutcomeLevels:
    """Levels of an outcome in all base cells, (cell,) each, and errors of their relative deviations.

    A record's outcome is `mean` + `unit` · r, where r has the weighted mean 0. A change of level multiplies a `scaled`
    outcome; it is added to others.
    """

    mean: Floats
    unit: Floats
    scaled: bool
    errors: Deviations

    def first(self, cells: int) -> OutcomeLevels:
        """Those of the first cells."""
        return OutcomeLevels(self.mean[:cells], self.unit[:cells], self.scaled, self.errors.first(cells))


class AsNew(NamedTuple):
    """The reference's records by levels of all others: e, (record,), and r, (outcome, record).

    `weight`, (record,), and `unit`, (outcome, record), are these levels and units in those with the record.
    """

    e: Floats
    r: Floats
    weight: Floats
    unit: Floats


@dataclass(frozen=True)
class Levels:
    """Levels of all base cells, with errors of their relative deviations.

    A record's weight is `weight` · e, where e has the mean 1; every outcome has an r.
    """

    weight: Floats
    of_weight: Deviations
    outcomes: tuple[OutcomeLevels, ...]
    of_size: Deviations | None = None
    """Errors of the expected numbers of records, if the file's are secret."""
    of_others: AsNew | None = None
    """The reference's records by levels from all other records, if terms are many."""

    @property
    def errors(self) -> tuple[Deviations, ...]:
        """Errors of the level of weights, of that of every outcome, and of sizes if these are secret."""
        of_size = () if self.of_size is None else (self.of_size,)
        return self.of_weight, *(outcome.errors for outcome in self.outcomes), *of_size

    @property
    def mean(self) -> Floats:
        """Means, (cell, outcome)."""
        return np.column_stack([outcome.mean for outcome in self.outcomes])

    @property
    def unit(self) -> Floats:
        """Units, (cell, outcome)."""
        return np.column_stack([outcome.unit for outcome in self.outcomes])

    def first(self, cells: int) -> Levels:
        """The levels of the first cells."""
        outcomes = tuple(outcome.first(cells) for outcome in self.outcomes)
        of_size = None if self.of_size is None else self.of_size.first(cells)
        return Levels(self.weight[:cells], self.of_weight.first(cells), outcomes, of_size, self.of_others)

    def standardised(self, records: ReferenceRecords) -> tuple[Floats, Floats]:
        """e of every record, (record,), and r, (outcome, record)."""
        cell = records.cell
        outcomes = zip(records.outcomes, self.outcomes, strict=True)
        return records.weight / self.weight[cell], np.stack([(y - of.mean[cell]) / of.unit[cell] for y, of in outcomes])

    def about(self, kept: Ints) -> Levels:
        """These levels, for some of the reference's records."""
        if self.of_others is None:
            return self
        return replace(self, of_others=AsNew(*(values[..., kept] for values in self.of_others)))

    def as_new(self, records: ReferenceRecords) -> AsNew:
        """The reference's records as other records would be: no record is in its own level.

        Levels follow the records that they are estimated from. So these have less spread about them than others. With few
        terms both are the same but for less than a percent.
        """
        if self.of_others is not None:
            return self.of_others
        e, r = self.standardised(records)
        return AsNew(e, r, np.ones_like(e), np.ones_like(r))


def levels_of(workload: Workload, terms: Terms, records: ReferenceRecords, bounds: Sequence[tuple[float, float]]) -> Levels:
    """The levels of all base cells from the reference's records; `bounds` are the outcomes' public bounds.

    Raises `ValueError` for a reference without records or without weight.
    """
    if not len(records.cell) or records.weight.sum() <= 0.0:
        raise ValueError("the reference has no record with a weight above 0 in the cells of the tables")
    if np.quantile(records.weight, WINSORISED) <= 0.0:
        weighted = f"{(records.weight > 0.0).sum():,} of {len(records.weight):,}"
        raise ValueError(
            f"{weighted} reference records have a weight above 0: a tenth must have one, so leave out those without"
        )
    cells, ones = len(workload), np.ones(len(records.cell))
    number, total = (
        np.bincount(records.cell, weights=values, minlength=cells).astype(np.float64) for values in (ones, records.weight)
    )
    main = _products(workload, number, total) if workload.weight is None else workload.weight
    e = records.weight / main[records.cell]
    outcomes = zip(records.outcomes, bounds, strict=True)
    made = (_levels_of_outcome(workload, terms, records, e, y, total, limits) for y, limits in outcomes)
    of_outcomes, r, unit = zip(*made, strict=True)
    if workload.weight is not None:
        public = AsNew(e, np.stack(r), np.ones_like(e), np.stack(unit)) if terms.learned_from_a_part else None
        return Levels(main, of_outcomes[0].errors.exact, of_outcomes, of_others=public)
    ratios = _relative_weights(e)
    of_weight = deviations(terms, *cell_means(records.cell, ratios, ones, cells))
    by_others = _left_out(of_weight, terms, records.cell, ratios, ones)
    grown = np.maximum(1.0 + of_weight.value, LEAST_LEVEL)
    of_others = None
    if terms.learned_from_a_part:
        without = np.maximum(1.0 + by_others, LEAST_LEVEL)
        of_others = AsNew(e / without, np.stack(r), without / grown[records.cell], np.stack(unit))
    return Levels(main * grown, of_weight.relative_to(grown), of_outcomes, of_others=of_others)


def _left_out(of: Deviations, terms: Terms, cell: Ints, ratios: Floats, weights: Floats) -> Floats:
    """The deviations of records' cells without the records, (record,), from their ratios and weights in cell means.

    Deviations are linear in the ratios. With h a record's part in its own, they are (d − h ratio) / (1 − h). With few
    terms, they are those with the records.
    """
    if not terms.learned_from_a_part:
        return of.value[cell]
    part = weights / np.maximum(np.bincount(cell, weights, len(of.value)), 1e-300)[cell]
    h = np.clip(of.leverage(terms.nested)[cell] * part, 0.0, MOST_LEVERAGE)
    least = LEAST_WITHOUT * (1.0 + of.value[cell]) - 1.0
    return np.maximum((of.value[cell] - h * ratios) / (1.0 - h), least)


def sizes_of(workload: Workload, terms: Terms, records: ReferenceRecords) -> tuple[Floats, Deviations]:
    """Numbers of records that the reference lets expect in all base cells, (cell,), and errors of their deviations."""
    number = np.bincount(records.cell, minlength=len(workload)).astype(np.float64)
    main = _products(workload, np.ones(len(workload)), number, PSEUDO_RECORDS)
    deviation = deviations(terms, number / main - 1.0, 1.0 / main)
    grown = np.maximum(1.0 + deviation.value, LEAST_LEVEL)
    return main * grown, deviation.relative_to(grown)


def _levels_of_outcome(
    workload: Workload,
    terms: Terms,
    records: ReferenceRecords,
    e: Floats,
    outcome: Floats,
    total: Floats,
    bounds: tuple[float, float],
) -> tuple[OutcomeLevels, Floats, Floats]:
    """Levels of one outcome, and its r and units by levels of all other records, as in `AsNew`, (record,) each.

    `e` are weights over main effects, and `total` weights by cell.
    """
    cells, cell = len(workload), records.cell
    product = np.bincount(records.cell, weights=records.weight * outcome, minlength=cells).astype(np.float64)
    two_valued = len(np.unique(outcome)) <= 2
    scaled = bounds[0] >= 0.0 and not two_valued and product.sum() > 0.0
    fit = _products(workload, total, product) if scaled else _sums(workload, records, product, total)
    spread = float(np.sqrt(np.average((outcome - fit[records.cell]) ** 2, weights=records.weight)))
    unit = fit if scaled else np.full(cells, max(spread, 1e-9 * (bounds[1] - bounds[0])))
    residual = (outcome - fit[records.cell]) / unit[records.cell]
    ratios, weights = _mean_ratios(np.minimum(e, np.quantile(e, WINSORISED)), residual, scaled, two_valued)
    of_mean = deviations(terms, *cell_means(cell, ratios, weights, cells))
    by_others = _left_out(of_mean, terms, cell, ratios, weights)

    def mean_of(fit: Floats, unit: Floats, deviation: Floats) -> Floats:
        return fit * np.maximum(1.0 + deviation, LEAST_LEVEL) if scaled else np.clip(fit + unit * deviation, *bounds)

    moved = np.maximum(1.0 + of_mean.value, LEAST_LEVEL) if scaled else np.ones(cells)
    mean = mean_of(fit, unit, of_mean.value)
    without = mean_of(fit[cell], unit[cell], by_others)
    r = (outcome - without) / (without if scaled else unit[cell])
    of_unit = without / mean[cell] if scaled else np.ones_like(r)
    return OutcomeLevels(mean, mean if scaled else unit, scaled, of_mean.relative_to(moved)), r, of_unit


def deviations(terms: Terms, residual: Floats, variance: Floats) -> Deviations:
    """Deviations from residuals, (cell,), with a sampling variance that is infinite in cells without a record.

    Where terms are many, variances are learned from a part of the base cells.
    """
    seen = np.isfinite(variance)
    z, r, v = terms.matrix[seen], residual[seen], variance[seen]
    table = terms.classes == 2

    def solved(
        log_sd: Floats, squares: Callable[[Floats], Floats], z: Any, r: Floats, v: Floats, table: Any
    ) -> tuple[float, Floats, Floats, Floats]:
        of_table, of_cell = np.exp(2.0 * log_sd)
        prior = np.where(table, of_table, DIFFUSE_DEVIATION**2)
        spread = of_cell + v
        precision = squares(1.0 / spread) + np.diag(1.0 / prior)
        root, pulled = scipy.linalg.cho_factor(precision, lower=True), z.T @ (r / spread)
        gamma = scipy.linalg.cho_solve(root, pulled)
        log_det = 2.0 * np.log(np.diag(root[0])).sum() + np.log(prior).sum() + np.log(spread).sum()
        return float(log_det + r**2 @ (1.0 / spread) - pulled @ gamma), gamma, precision, spread

    of_part = (z, r, v, table)
    if terms.learned_from_a_part:
        few = terms.part(np.flatnonzero(seen))
        used = np.flatnonzero(np.diff(terms.matrix[few].tocsc().indptr))
        of_part = (terms.matrix[few][:, used], residual[few], variance[few], table[used])
    squares = squares_of(of_part[0])

    def with_prior(log_sd: Floats) -> float:
        return solved(np.clip(log_sd, -7.0, 1.0), squares, *of_part)[0] + float(((log_sd + 3.0) ** 2).sum() / 4.0)

    # Where a table has all columns the two are exchangeable: from equal starts, the last digit would decide the way.
    best = scipy.optimize.minimize(
        with_prior, np.array([-2.4, -2.7]), method="Nelder-Mead", options={"xatol": 0.05, "fatol": 0.05}
    )
    log_sd = np.clip(best.x, -7.0, 1.0)
    errors: TermRoot | TermPrecision
    of_table, of_cell = np.exp(2.0 * log_sd)
    a_priori, spread = 1.0 / np.where(table, of_table, DIFFUSE_DEVIATION**2), of_cell + v
    of_residuals = np.zeros(len(residual))
    of_residuals[seen] = 1.0 / spread
    if terms.sparse:
        errors = TermPrecision(terms.nested, of_residuals, a_priori, terms.coarse)
        gamma = errors.spread(terms.nested.back(of_residuals * np.where(seen, residual, 0.0)))
    else:
        every = partial(_symmetric_squares, z)
        _, gamma, precision, _ = solved(log_sd, every, z, r, v, table)
        errors = TermRoot(root_of_inverse(precision), of_residuals, a_priori)
    between, gain = float(of_cell), np.zeros(len(residual))
    gain[seen] = between / spread
    fitted = terms.matrix @ gamma
    value = fitted + gain * np.where(seen, residual - fitted, 0.0)
    return Deviations(value, between * (1.0 - gain), 1.0 - gain, errors, of_residuals)


def squares_of(z: scipy.sparse.csr_array) -> Callable[[Floats], Floats]:
    """The lower triangle of Z' diag(weights) Z, (term, term), as a function of weights, (cell,).

    A cell has one term of every set, so that its pairs of terms are found once, if they take little room. Every sum has the
    order of the cells.
    """
    cells, number = z.shape
    of_cell = np.sort(z.indices.reshape(cells, -1).astype(np.int64), axis=1)
    later, earlier = np.tril_indices(of_cell.shape[1])
    if cells * len(later) > MOST_PAIRS:
        return partial(_symmetric_squares, z)
    places = of_cell[:, later] * number + of_cell[:, earlier]
    starts = np.arange(cells + 1) * len(later)
    pairs = scipy.sparse.csc_array((np.ones(places.size), places.reshape(-1), starts), shape=(number**2, cells))
    return lambda weights: np.asarray(pairs @ weights).reshape(number, number)


def _symmetric_squares(z: scipy.sparse.csr_array, weights: Floats) -> Floats:
    return np.asarray((z.T @ scipy.sparse.diags_array(weights) @ z).toarray())


def cell_means(cell: Ints, value: Floats, weight: Floats, cells: int) -> tuple[Floats, Floats]:
    """Weighted means by base cell with their sampling variance, from a variance pooled within cells, (cell,) each."""
    total, square = (np.bincount(cell, weights=factor, minlength=cells) for factor in (weight, weight**2))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(total > 0, np.bincount(cell, weights=weight * value, minlength=cells) / total, 0.0)
        free = len(cell) - int((total > 0).sum())
        pooled = float(weight @ (value - mean[cell]) ** 2) / max(float(weight.mean()), 1e-12) / max(free, 1)
        return mean, np.where(total > 0, max(pooled, 1e-8) * square / total**2, np.inf)


def _relative_weights(e: Floats) -> Floats:
    """Winsorised weights over the main effects as relative deviations, (record,)."""
    most = float(np.quantile(e, WINSORISED))
    clipped = np.minimum(e, most)
    slope = max(float((e * (e < most)).mean()), 0.1 * float(clipped.mean()))
    return np.asarray((clipped - clipped.mean()) / slope)


def _mean_ratios(e: Floats, r: Floats, scaled: bool, two_valued: bool) -> tuple[Floats, Floats]:
    """Winsorised residuals of outcomes as deviations, and their weights in means, (record,) each."""
    low, most = np.quantile(r, [1.0 - WINSORISED, WINSORISED])
    if two_valued:
        low, most = -np.inf, np.inf
    clipped, inside = np.clip(r, low, most), (r >= low) & (r <= most)
    rate = 1.0 + r if scaled else np.ones_like(r)
    slope = max(float(np.average(rate * inside, weights=e)), 0.1)
    return np.asarray((clipped - np.average(clipped, weights=e)) / slope), e


def _products(workload: Workload, base: Floats, total: Floats, added: float | None = None) -> Floats:
    """Products of main effects, (cell,): times `base`, they have the sums of `total` over every column's levels.

    `added` is what every level has more of both, so that few records do not move it far.
    """
    overall = float(total.sum() / base.sum())
    level = np.full(len(base), overall)
    added = PSEUDO_RECORDS * overall * float(base.sum() / max((base > 0).sum(), 1)) if added is None else added
    adding = [workload.groups((column,)) for column in range(len(workload.sizes))]
    for _ in range(MAIN_EFFECT_PASSES):
        for group in adding:
            held, wanted = (np.bincount(group, weights=factor) for factor in (base * level, total))
            level = level * ((wanted + added) / (held + added))[group]
    return level


def _sums(workload: Workload, records: ReferenceRecords, product: Floats, total: Floats) -> Floats:
    """Sums of main effects on the weighted mean outcome, (cell,)."""
    level = np.full(len(total), float(product.sum() / total.sum()))
    added = PSEUDO_RECORDS * float(records.weight.mean())
    for _ in range(MAIN_EFFECT_PASSES):
        for column in range(len(workload.sizes)):
            adding = indicator(workload.groups((column,)))
            effect = (adding @ (product - total * level)) / (adding @ total + added)
            level = level + adding.T @ effect
    return np.asarray(level)
