"""For `packages.package`: direct standard errors of published means as a reference's records of the same cells show them.

A group's law gives every cell the group's spread. But cells of few wage earners, or of heaped answers, have another one.
A direct variance s² is estimated from records. Its degrees of freedom are those of χ²_ν/ν with the same variance. With m₂
and m₄ the means of w²(y − m)² and of its square, n records have ν = 2n/(m₄/m₂² − 1). So one record that decides s² leaves
few of them. The group's law counts as `FREEDOM_OF_LAW`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.packages.levels import ReferenceRecords

FREEDOM_OF_LAW = 4.0
"""Degrees of freedom that a group's law has beside a cell's own records."""
LEAST_LEFT = 0.05
"""Least part of a predicted variance that is left where a cell's records vary less than its group's law says."""
LEAST_CURVATURE = 2.0
"""Least m₄/m₂² − 1: that of a normal law."""


class DirectErrors(NamedTuple):
    """Expected direct standard errors of cells' means, and degrees of freedom of a file's direct variances, (cell,).

    An error over the file's direct standard error has Student's t law with these, if the error is normal.
    """

    error: Floats
    freedom: Floats


def moments(records: ReferenceRecords, cells: int) -> list[Floats]:
    """Sums of powers of weights and outcomes by base cell, (cell, power), for every outcome. `of_means` takes them."""
    w, powers = records.weight, [(0, 0), (1, 0), (1, 1), *((2, k) for k in range(3)), *((4, k) for k in range(5))]
    made = list[Floats]()
    for y in records.outcomes:
        about = y - np.average(y, weights=w)  # squares of w(y − m), and their squares, follow for every m
        made.append(np.column_stack([np.bincount(records.cell, w**a * about**b, cells).astype(float) for a, b in powers]))
    return made


def of_means(matrix: scipy.sparse.csr_array, powers: Floats, count: Floats, by_law: Floats) -> DirectErrors:
    """Direct errors of a table's means, from the `moments` of an outcome.

    The file has `count` records, (base cell,), and the groups' laws have the direct errors `by_law`, (cell,).
    """
    n, weight, total, *squares = (matrix @ powers).T
    size, several = matrix @ count, (n > 1) & (weight > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        m = total / weight
        square = np.maximum(squares[2] - 2.0 * m * squares[1] + m**2 * squares[0], 0.0)
        fourth = squares[7] - 4.0 * m * squares[6] + 6.0 * m**2 * squares[5] - 4.0 * m**3 * squares[4] + m**4 * squares[3]
        most = np.maximum(n, LEAST_CURVATURE)  # n m₄ ≤ (n m₂)²; sums of powers of nearly equal outcomes are rounded
        # A cell whose records are all alike tells as little as one in which one record decides.
        curvature = np.where(square > 0.0, np.clip(n * fourth / square**2 - 1.0, LEAST_CURVATURE, most), n)
        of_reference = np.where(several, 2.0 * n / curvature, 0.0)
        variance = np.where(several, square / weight**2 * n / size, 0.0)
        both = (FREEDOM_OF_LAW * by_law**2 + of_reference * variance) / (FREEDOM_OF_LAW + of_reference)
        of_file = 2.0 * size / np.where(several, curvature, LEAST_CURVATURE)
        freedom = np.where(size > 0.0, 1.0 / (1.0 / of_file + 1.0 / (FREEDOM_OF_LAW + of_reference)), np.inf)
    return DirectErrors(np.sqrt(both), freedom)


def predicted_at(file: Floats, alone: Floats, by_law: Floats, shown: Floats) -> tuple[Floats, Floats]:
    """Predicted variances of a release's means and of the reference's, (cell,), at the direct errors that records show.

    `alone` is the variance of the file's mean about the reference's, and an estimate leaves the part file/alone of this
    distance. So a direct variance that is lower by g lowers the first by (file/alone)² g, and the second by g.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.minimum(file / alone, 1.0) ** 2
    gained = shown**2 - by_law**2
    return np.maximum(file + left * gained, LEAST_LEFT * file), np.maximum(alone + gained, LEAST_LEFT * alone)
