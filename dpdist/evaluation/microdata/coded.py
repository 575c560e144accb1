"""The input of all similarity measures: two files of coded columns with weights."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints


class Coded(NamedTuple):
    """Records: codes from 0 (record, column), the number of levels of every column, weights (record,)."""

    codes: Ints
    sizes: tuple[int, ...]
    weight: Floats

    @classmethod
    def of_counts(cls, counts: Floats) -> Coded:
        """A file by its counts, one axis a column: every cell is a record whose weight is the count."""
        return cls(np.indices(counts.shape).reshape(counts.ndim, -1).T, counts.shape, counts.ravel())

    @property
    def unweighted(self) -> Coded:
        """The same records, each of weight 1."""
        return self._replace(weight=np.ones(len(self.weight)))

    def take(self, which: Ints) -> Coded:
        """A selection of records."""
        return Coded(self.codes[which], self.sizes, self.weight[which])

    def about(self, columns: tuple[int, ...]) -> Coded:
        """The same records with these columns alone."""
        return Coded(self.codes[:, list(columns)], tuple(self.sizes[k] for k in columns), self.weight)

    def shares(self, columns: tuple[int, ...]) -> Floats:
        """Share of the weight in every cell of a marginal, (cell,)."""
        cell = np.ravel_multi_index(tuple(self.codes[:, k] for k in columns), tuple(self.sizes[k] for k in columns))
        held = np.bincount(cell, weights=self.weight, minlength=prod(self.sizes[k] for k in columns))
        return np.asarray(held / held.sum())
