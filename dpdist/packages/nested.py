"""For `packages.levels`, `conjugate` and `large`: products with base cells' terms, by way of terms that identify others.

A base cell has one term of every set of columns. A term of county by age identifies those of county, of age, and of state
by age. So terms are added up to those that no other term identifies, and only these to base cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints


@dataclass(frozen=True)
class NestedTerms:
    """Terms Z, (cell, term), as the product of `finest`, (cell, finest term), and `identified`, (finest term, term)."""

    finest: scipy.sparse.csr_array
    identified: scipy.sparse.csr_array

    @classmethod
    def of(cls, matrix: scipy.sparse.csr_array) -> NestedTerms:
        """The terms of a matrix of 0 and 1 that has one term of every set in each row, set after set."""
        cells, number = matrix.shape
        if not cells:
            return cls(matrix, scipy.sparse.csr_array(scipy.sparse.eye_array(number, format="csr")))
        by_set = matrix.indices.reshape(cells, -1).T.astype(np.int64)  # (set, cell)
        sizes = [len(np.unique(of_set)) for of_set in by_set]
        finest, identified = list[int](), list[tuple[Ints, Ints]]()
        for k in np.argsort(-np.array(sizes), kind="stable").tolist():
            for other in reversed(finest):  # the smallest first: it takes the fewest sums
                by_other = np.full(number, -1)
                by_other[by_set[other]] = by_set[k]
                if np.array_equal(by_other[by_set[other]], by_set[k]):
                    kept = np.flatnonzero(by_other >= 0)
                    identified.append((kept, by_other[kept]))
                    break
            else:
                finest.append(k)
                kept = np.unique(by_set[k])
                identified.append((kept, kept))
        # Rows of `identified` are numbered as terms at first: those of the finest alone are kept.
        rows, columns = (np.concatenate(side) for side in zip(*identified, strict=True))
        used, row = np.unique(rows, return_inverse=True)
        of_finest = np.sort(np.searchsorted(used, by_set[finest]), axis=0).T.reshape(-1)
        starts = np.arange(cells + 1) * len(finest)
        return cls(
            scipy.sparse.csr_array((np.ones(len(of_finest)), of_finest, starts), shape=(cells, len(used))),
            scipy.sparse.csr_array((np.ones(len(row)), (row.reshape(-1), columns)), shape=(len(used), number)),
        )

    @property
    def matrix(self) -> scipy.sparse.csr_array:
        """Z."""
        return scipy.sparse.csr_array(self.finest @ self.identified)

    @cached_property
    def _transposed(self) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
        return scipy.sparse.csr_array(self.identified.T), scipy.sparse.csr_array(self.finest.T)

    def __matmul__(self, values: Floats) -> Floats:
        """Z times (term,) or (term, side)."""
        return np.asarray(self.finest @ (self.identified @ values))

    def back(self, values: Floats) -> Floats:
        """Z' times (cell,) or (cell, side)."""
        identified, finest = self._transposed
        return np.asarray(identified @ (finest @ values))

    def few(self, few: Ints) -> NestedTerms:
        """A few of the terms."""
        return NestedTerms(self.finest, scipy.sparse.csr_array(self.identified[:, few]))

    def columns(self, few: Ints) -> scipy.sparse.csr_array:
        """Z of a few terms, (cell, few)."""
        return self.few(few).matrix
