"""A reference's distributions by cell. Small cells borrow from similar cells.

A cell with FEWEST_UNMIXED records has its own distribution. A smaller cell has a mixture of its own records and those
of similar cells, by size and similarity (`small_area`).

If weights have few values, every class of weights has a distribution of outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.estimation.least_squares import composite
from dpdist.models.copula.marginal import Marginal

# A unit is a group of cells that share a fit. Units follow from public facts alone: the crosstab's counts, and the
# reference's share of outcomes other than 0 in each cell. A small cell is first grouped with cells that differ from it in
# the last predictor only. If together they have too few records, it is grouped with cells that differ in the last two
# predictors, and so on. So a job lists the predictors that matter most first.
UNIT = 500
"""Number of sample records below which a cell shares a fit with others, if there are others."""


@dataclass(frozen=True, eq=False)
class PredictorCells:
    """The cells of one stratum: its combinations of predictor levels.

    - `codes` (cell, predictor): levels of each cell, after a first column of zeros.
    - `pattern` (row,): the cell of each crosstab row of the stratum; `first` is the first of these rows.
    - `count` (cell,): sample records.
    - `labels`: all combinations of predictors in the crosstab.
    - `cell_numbers` (cell,): positions of this stratum's cells among `labels`.
    """

    codes: Codes
    pattern: Codes
    first: int
    count: Ints
    labels: tuple[str, ...]
    cell_numbers: Ints

    @classmethod
    def of(cls, crosstab: Crosstab, columns: Sequence[str], rows: slice) -> PredictorCells:
        codes = np.column_stack([np.zeros(len(crosstab), dtype=np.int32), *(crosstab.codes[name] for name in columns)])
        distinct, number = np.unique(codes, axis=0, return_inverse=True)
        groups, pattern = np.unique(number.reshape(-1)[rows], return_inverse=True)
        count = np.bincount(pattern, weights=crosstab.count[rows]).astype(np.int64)
        labels = tuple(
            " / ".join(str(crosstab.levels[n][c]) for n, c in zip(columns, row[1:], strict=True)) for row in distinct
        )
        return cls(
            distinct[groups], pattern.astype(np.int32), rows.start, count, tuple(name or "all" for name in labels), groups
        )

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def names(self) -> list[str]:
        """Labels of this stratum's cells."""
        return [self.labels[k] for k in self.cell_numbers.tolist()]

    def cell(self, crosstab_row: Codes) -> Codes:
        """The cell of each crosstab row, given the rows' numbers in the whole crosstab."""
        return self.pattern[crosstab_row - self.first]

    def units(self, share: Floats) -> tuple[Ints, Ints]:
        """Units of the outcome's regression, (cell,), and of the weight's law, (cell, part), of at least UNIT records each.

        A stratum with fewer records is one unit. `share` (cell,) is the reference's share of part 1, the records with an
        outcome other than 0. A small part first joins the other part of its cell.
        """
        size = self.count[:, None] * np.column_stack([1.0 - share, share])
        parts = np.tile(np.arange(2, dtype=self.codes.dtype), len(self))
        codes = np.column_stack([np.repeat(self.codes, 2, axis=0), parts])
        return grouped(self.codes, size[:, 1], UNIT), grouped(codes, size.reshape(-1), UNIT).reshape(-1, 2)

    def wider(self, columns: int) -> Ints:
        """The group of every cell, (cell,): cells that agree in all predictors except the last `columns`."""
        return np.unique(self.codes[:, : self.codes.shape[1] - columns], axis=0, return_inverse=True)[1].reshape(-1)

    @property
    def depth(self) -> int:
        """Number of predictors, all of which `wider` can leave out."""
        return int(self.codes.shape[1]) - 1


def grouped(codes: Codes, count: Ints | Floats, least: int) -> Ints:
    """The group of every cell, (cell,), so that a group has `least` records or more where possible.

    `codes` (cell, column) has one number in the first column.
    """
    # Cells are compared in all columns, then in ever fewer of the first. Those that agree and have no group form one if
    # they have `least` records. Otherwise they join the smallest group among the cells that agree, or wait for the next
    # step.
    groups_of_cells, number = np.full(len(codes), -1, dtype=np.int64), 0
    for shared in range(codes.shape[1], 0, -1):
        prefix = np.unique(codes[:, :shared], axis=0, return_inverse=True)[1].reshape(-1)
        for key in np.unique(prefix[groups_of_cells < 0]).tolist():
            inside = prefix == key
            free, inside_groups = inside & (groups_of_cells < 0), inside & (groups_of_cells >= 0)
            if count[free].sum() >= least or (shared == 1 and not inside_groups.any()):
                groups_of_cells[free], number = number, number + 1
            elif inside_groups.any():
                groups, group = np.unique(groups_of_cells[inside_groups], return_inverse=True)
                groups_of_cells[free] = groups[np.bincount(group, weights=count[inside_groups]).argmin()]
    return np.unique(groups_of_cells, return_inverse=True)[1].reshape(-1)


FEWEST_UNMIXED = 100
"""Number of reference records below which a cell's distributions are mixed with those of other cells."""
CLASS = 50
"""Smallest number of reference records in a class of weights."""
STRAIGHT = 0.9
"""Largest absolute correlation of two scores. At .9, the residual of the outcome's score has a standard deviation of .44.
"""
LOST = 3.0
"""The inverse hyperbolic tangent of a correlation of n records has the variance 1/(n − LOST) (Fisher)."""
LITTLE = 1e-9
"""A number close to 0 that keeps divisors above 0."""
FEW_VALUES = 10
"""Weights are treated as atoms if there are at least this many records for each distinct value, on average."""


class Shapes(NamedTuple):
    """Distributions of cells, (cell,) each: a position in a list, the weight of own records, and the effective number
    of records.
    """

    position: Ints
    own_share: Floats
    effective: Floats

    @classmethod
    def empty(cls, cells: int) -> Shapes:
        return cls(np.zeros(cells, dtype=np.int64), np.ones(cells), np.zeros(cells))


def weight_outcome_ties(cell: Ints, weight: Floats, outcome: Floats, unit: Ints) -> Floats:
    """Correlation of the scores of weight and outcome, (cell,), where several cells share a unit; 0 elsewhere.

    The correlations of a cell and of its unit are mixed by size and similarity, as inverse hyperbolic tangents.
    """
    size = np.bincount(cell, minlength=len(unit)).astype(np.float64)
    products = [_means(values, cell, size) for values in (weight, outcome, weight**2, outcome**2, weight * outcome)]
    correlation = np.zeros(len(unit))
    for number in np.flatnonzero(np.bincount(unit) > 1).tolist():
        cells = unit == number
        overall = _correlation([np.average(values[cells], weights=size[cells] + LITTLE) for values in products])
        in_cell = _correlation([values[cells] for values in products])
        with np.errstate(divide="ignore"):
            sampling = np.where(size[cells] > LOST, 1.0 / np.maximum(size[cells] - LOST, LITTLE), np.inf)
        mixed = composite(np.arctanh(in_cell) - np.arctanh(overall), sampling)
        correlation[cells] = np.tanh(np.arctanh(overall) + mixed.own_weight * (np.arctanh(in_cell) - np.arctanh(overall)))
    return correlation


def _correlation(means: Sequence[Floats]) -> Floats:
    """Correlation of two variables, limited to ±STRAIGHT; 0 if one of them is constant.

    `means` are the means of both variables, of their squares and of their product.
    """
    x, y, x_squared, y_squared, product = means
    scale = np.sqrt(np.maximum(x_squared - x**2, 0.0) * np.maximum(y_squared - y**2, 0.0))
    correlation = np.divide(product - x * y, scale, out=np.zeros_like(scale), where=scale > LITTLE)
    return np.asarray(np.clip(correlation, -STRAIGHT, STRAIGHT))


def of_outcomes(values: Floats) -> Marginal:
    return Marginal.of(values, continuous=False)


def discrete(values: Floats) -> bool:
    return FEW_VALUES * len(np.unique(values)) <= len(values)


def cell_distributions(
    cells: PredictorCells, cell: Codes, values: Floats, weights: bool, marginals: list[Marginal]
) -> Shapes:
    """Estimates the distributions of all cells, and adds them to `marginals`.

    `values` (record,) are weights if `weights` is true, otherwise outcomes. `cell` (record,) is the cell of each record.
    """
    size = np.bincount(cell, minlength=len(cells))
    position, own_share, effective = np.arange(len(cells)) + len(marginals), np.ones(len(cells)), size.astype(np.float64)
    small = np.flatnonzero(size < FEWEST_UNMIXED)
    left_out = _wider(cells, size, small)
    for columns in np.unique(left_out[left_out > 0]).tolist():
        group = cells.wider(columns)
        for number in np.unique(group[small[left_out == columns]]).tolist():
            mixed = np.intersect1d(small[left_out == columns], np.flatnonzero(group == number))
            inside = group[cell] == number
            own_share[mixed], effective[mixed] = _by_likeness(cell[inside], values[inside], mixed)
    for k in range(len(cells)):
        own_values, rest = values[cell == k], np.empty(0)
        if k in small and left_out[small == k] > 0:
            group = cells.wider(int(left_out[small == k][0]))
            rest = values[(group[cell] == group[k]) & (cell != k)]
        continuous = weights and not discrete(np.concatenate([own_values, rest]))
        marginals.append(Marginal.mixed(own_values, rest, float(own_share[k]), continuous))
    return Shapes(position, own_share, effective)


def _wider(cells: PredictorCells, size: Ints, small: Ints) -> Ints:
    """Number of predictors that each small cell ignores to find similar cells, (small cell,).

    It is the smallest number that gives FEWEST_UNMIXED records of other cells, or all of them. It is 0 if no other
    cell has a record.
    """
    left_out = np.zeros(len(small), dtype=np.int64)
    for columns in range(1, cells.depth + 1):
        group = cells.wider(columns)
        rest = np.bincount(group, weights=size)[group[small]] - size[small]
        left_out[(left_out == 0) & ((rest >= FEWEST_UNMIXED) | ((columns == cells.depth) & (rest > 0)))] = columns
    return left_out


def _by_likeness(cell: Codes, values: Floats, targets: Ints) -> tuple[Floats, Floats]:
    """Weights of own records, and effective numbers of records, (target,), of the `targets` cells of a group.

    Three figures of a cell are compared with the others: mean and variance of its scores under the group's
    distribution, and mean value.
    """
    present, number = np.unique(np.concatenate([targets, cell]), return_inverse=True)
    number = number[len(targets) :]
    size = np.bincount(number, minlength=len(present)).astype(np.float64)
    # A few records in a heavy tail can dominate a mean, so scores are compared too.
    z = of_outcomes(values).scores(values, np.full(len(values), 0.5))
    squared = _squared_distances(z, number, size)
    pooled = [np.full(len(size), _within(moment, number, size)) for moment in (z, squared)]
    variances = [*pooled, _means(_squared_distances(values, number, size), number, size)]
    alike = [_alike(m, v, number, size) for m, v in zip((z, squared, values), variances, strict=True)]
    own_share, records = (
        np.column_stack(columns)[np.searchsorted(present, targets)] for columns in zip(*alike, strict=True)
    )
    unlike = own_share.argmax(axis=1)
    return own_share[np.arange(len(targets)), unlike], records[np.arange(len(targets)), unlike]


def _means(values: Floats, number: Ints, size: Floats) -> Floats:
    return np.asarray(np.bincount(number, values, len(size)) / np.maximum(size, 1.0))


def _squared_distances(values: Floats, number: Ints, size: Floats) -> Floats:
    """Squared distances from the means of cells, (record,), scaled so that their means are unbiased variances."""
    return np.asarray((values - _means(values, number, size)[number]) ** 2 * (size / np.maximum(size - 1.0, 1.0))[number])


def _within(values: Floats, number: Ints, size: Floats) -> float:
    """Variance of values within cells."""
    away = values - _means(values, number, size)[number]
    return float((away**2).sum()) / max(1.0, len(values) - float((size > 0).sum()))


def _alike(values: Floats, variance: Floats, number: Ints, size: Floats) -> tuple[Floats, Floats]:
    """Weights of own records in a composite mean, and effective numbers of records, (cell,) each.

    Both follow from distances of cells' means from the mean of all other cells. `variance` (cell,) is the variance of a
    value within a cell.
    """
    number_of_rest = np.maximum(len(values) - size, 1.0)
    mean, rest = _means(values, number, size), (values.sum() - np.bincount(number, values, len(size))) / number_of_rest
    with np.errstate(divide="ignore", invalid="ignore"):
        sampling = np.where(size > 1, variance / size + np.mean(variance) / number_of_rest, np.inf)
    mixed = composite(mean - rest, sampling)
    least = variance / len(values)
    records = np.divide(variance, np.maximum(mixed.error, least), out=size.copy(), where=variance > 0)
    return mixed.own_weight, np.asarray(np.minimum(records, len(values)))


def by_class(
    position: Ints, cell: Codes, weight: Floats, outcome: Floats, marginals: list[Marginal]
) -> tuple[Ints, Floats]:
    """Gives every class of weights a distribution of outcomes, if weights have few values.

    Returns positions (cell, class) of the distributions in `marginals`, and edges (cell, class − 1) between classes.
    The first class's distribution replaces the cell's distribution; those of further classes are added. A cell with
    fewer classes than others repeats its last one.
    """
    edges = [_edges(weight[cell == k]) for k in range(len(position))]
    most = max(len(cell_edges) for cell_edges in edges)
    padded = np.array([[*inner, *(inner[-1:] or [0.0]) * (most - len(inner))] for inner in edges]).reshape(
        len(position), most
    )
    positions = np.repeat(position[:, None], most + 1, axis=1)
    for k in (k for k, cell_edges in enumerate(edges) if cell_edges):
        inside = cell == k
        number = (weight[inside][:, None] >= np.array(edges[k])).sum(axis=1)
        for class_number in range(len(edges[k]) + 1):
            if class_number:
                positions[k, class_number:] = len(marginals)
                marginals.append(of_outcomes(outcome[inside][number == class_number]))
            else:
                marginals[position[k]] = of_outcomes(outcome[inside][number == 0])
    return positions, padded


def _edges(weight: Floats) -> list[float]:
    """Edges midway between weights, so that a class has at least CLASS records; none unless weights are atoms."""
    distinct, count = np.unique(weight, return_counts=True)
    edges, mass, remaining = [], 0, len(weight)
    for k in range(len(distinct) - 1 if len(weight) and discrete(weight) else 0):
        mass, remaining = mass + int(count[k]), remaining - int(count[k])
        if mass >= CLASS and remaining >= CLASS:
            edges.append(float((distinct[k] + distinct[k + 1]) / 2.0))
            mass = 0
    return edges
