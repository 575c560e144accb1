"""Design matrices of public predictors with treatment coding, and the base class of mechanisms' models in `post.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import scipy

from dpdist.core.records import Codes, Crosstab, Floats
from dpdist.job import Job
from dpdist.models.protocol import Draws, Parameter, StratumModel

# A column that is a linear combination of earlier columns is dropped, as in R's lm.
INTERCEPT = "(Intercept)"


@dataclass(frozen=True)
class Design:
    """Predictors of the crosstab rows of one stratum, by pattern: a distinct combination of predictor levels.

    `columns` are positions of the predictors that the stratum identifies. `matrix` (pattern, column) has the distinct
    rows, and `pattern` (row,) the pattern of each crosstab row. `first` is the first of the stratum's crosstab rows.
    """

    names: tuple[str, ...]
    columns: tuple[int, ...]
    matrix: Floats
    pattern: Codes
    first: int


def predictor_names(crosstab: Crosstab, predictors: Sequence[str]) -> tuple[str, ...]:
    """The intercept, and one indicator for each level of a predictor except its first."""
    indicators = [f"{name}[{level}]" for name in predictors for level in crosstab.levels[name][1:]]
    return (INTERCEPT, *indicators)


def design(crosstab: Crosstab, predictors: Sequence[str], rows: slice) -> Design:
    names = predictor_names(crosstab, predictors)
    codes = np.column_stack(
        [np.zeros(rows.stop - rows.start, dtype=np.int32)] + [crosstab.codes[p][rows] for p in predictors]
    )
    sizes = tuple(len(crosstab.levels[name]) for name in predictors)
    columns, matrix, pattern = _of_codes(codes.astype(np.int32).tobytes(), sizes)
    return Design(names, columns, matrix, pattern, rows.start)


@lru_cache(maxsize=64)
def _of_codes(codes: bytes, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], Floats, Codes]:
    """Kept predictors, matrix and pattern of rows with these codes (row, 1 + predictor). Most strata have the same rows."""
    table = np.frombuffer(codes, dtype=np.int32).reshape(-1, 1 + len(sizes))
    distinct, pattern = np.unique(table, axis=0, return_inverse=True)
    columns = [np.ones(len(distinct))]
    for position, size in enumerate(sizes, start=1):
        columns += [(distinct[:, position] == level).astype(float) for level in range(1, size)]
    full = np.column_stack(columns)
    independent = _independent(full)
    matrix, of_row = full[:, independent], pattern.reshape(-1).astype(np.int32)
    matrix.flags.writeable = of_row.flags.writeable = False
    return independent, matrix, of_row


def patterns(crosstab: Crosstab, columns: Sequence[str], rows: slice) -> Design:
    """Combinations of columns in the crosstab rows of one stratum, as the patterns of a design, in order of levels.

    `names` are the combinations. `matrix` is empty, because each combination is a predictor.
    """
    distinct, pattern = np.unique(crosstab.codes_of(columns, rows), axis=0, return_inverse=True)
    texts = np.full(len(distinct), "", dtype=object)
    for k, name in enumerate(columns):  # by column: there are many more combinations than levels
        of_levels = np.array([" / " * (k > 0) + str(level) for level in crosstab.levels[name]], dtype=object)
        texts = texts + of_levels[distinct[:, k]]
    names = tuple(text or "all" for text in texts.tolist())
    return Design(
        names, tuple(range(len(names))), np.empty((len(names), 0)), pattern.reshape(-1).astype(np.int32), rows.start
    )


def cell_counts(crosstab: Crosstab, rows: slice, cells: Design) -> Floats:
    """Number of sample records of every pattern as published, (pattern,).

    It is at least 1, because it serves as a divisor.
    """
    return np.maximum(np.bincount(cells.pattern, weights=crosstab.count[rows]), 1.0)


def counted_again(cells: Design, counts: Floats) -> Floats:
    """Number of sample records of every pattern, (draw, pattern), from other counts; at least 1.

    The counts are (draw, row) for the crosstab rows of the stratum.
    """
    rows = np.arange(len(cells.pattern))
    incidence = scipy.sparse.csr_array((np.ones(len(rows)), (cells.pattern, rows)))
    summed: Floats = np.asarray((incidence @ counts.T).T)
    return np.maximum(summed, 1.0)


def strata_as_predictors(job: Job, crosstab: Crosstab) -> tuple[str, ...]:
    return () if crosstab.strata else job.strata


def _independent(matrix: Floats) -> tuple[int, ...]:
    """Positions of columns that are no linear combination of the kept columns before them (Gram–Schmidt)."""
    columns: list[int] = []
    basis = np.empty((len(matrix), 0))
    for j, column in enumerate(matrix.T):
        residual = column - basis @ (basis.T @ column)
        residual -= basis @ (basis.T @ residual)
        norm = float(np.linalg.norm(residual))
        if norm > 1e-8 * max(1.0, float(np.linalg.norm(column))):
            columns.append(j)
            basis = np.column_stack([basis, residual / norm])
    return tuple(columns)


@dataclass(frozen=True)
class PublicModel(StratumModel):
    """The public part of a stratum's model.

    A pattern is a distinct combination of predictor levels. Without predictors there is one pattern.
    """

    design: Design
    outcome_bounds: tuple[float, float]

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Self:
        return cls(design(crosstab, cls.predictors(job, crosstab), rows), job.outcome_column.ends)

    @staticmethod
    def predictors(job: Job, crosstab: Crosstab) -> tuple[str, ...]:
        return ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        raise NotImplementedError

    @property
    def identified(self) -> int:
        return len(self.design.columns)

    def pattern(self, crosstab_row: Codes) -> Codes:
        return self.design.pattern[crosstab_row - self.design.first]

    def per_row(self, mean: Floats) -> tuple[Floats, Floats]:
        """E(w | x) = 1 and E(w y | x) = E(y | x) of every crosstab row, (draw, row), from `mean`, E(y | x) by pattern."""
        product = mean[:, self.design.pattern]
        return np.ones_like(product), product

    def within_bounds(self, share: Floats, value: Floats) -> Floats:
        """P(outcome ≤ value), (draw, pair), after the outcome is limited to its public bounds; `share` is without
        limits.
        """
        low, top = self.outcome_bounds
        return np.where(value >= top, 1.0, np.where(value < low, 0.0, share))


@dataclass(frozen=True)
class LinearModel(PublicModel):
    """A public model whose expectations are linear in its parameters."""

    def averaged(self, draws: Draws) -> Draws:
        """The mean of the parameters over simulated noise, in the form of one draw."""
        return Draws({name: values.mean(axis=0, keepdims=True) for name, values in draws.values.items()})
