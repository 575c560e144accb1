"""Holds a file of coded columns with weights, the input of all similarity measures."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints


class Coded(NamedTuple):
    """Records as codes from 0, (record, column), with the number of levels of every column, and weights, (record,)."""

    codes: Ints
    sizes: tuple[int, ...]
    weight: Floats

    @classmethod
    def of_counts(cls, counts: Floats) -> Coded:
        """Makes a file from a table of counts with one axis per column: each cell is a record weighted by its count."""
        return cls(np.indices(counts.shape).reshape(counts.ndim, -1).T, counts.shape, counts.ravel())

    @property
    def unweighted(self) -> Coded:
        """The same records, each with weight 1."""
        return self._replace(weight=np.ones(len(self.weight)))

    def take(self, which: Ints) -> Coded:
        """A selection of records."""
        return Coded(self.codes[which], self.sizes, self.weight[which])

    def about(self, columns: tuple[int, ...]) -> Coded:
        """The same records with only these columns."""
        return Coded(self.codes[:, list(columns)], tuple(self.sizes[k] for k in columns), self.weight)

    def shares(self, columns: tuple[int, ...]) -> Floats:
        """The share of weight in every cell of the table by these columns, (cell,)."""
        cell = np.ravel_multi_index(tuple(self.codes[:, k] for k in columns), tuple(self.sizes[k] for k in columns))
        held = np.bincount(cell, weights=self.weight, minlength=prod(self.sizes[k] for k in columns))
        return np.asarray(held / held.sum())
