"""Simulated errors of a statistic's cells and margins that are right: how many intervals hold direct figures by chance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Floats, Ints
from dpdist.estimation.estimators import NORMAL_90

# Published standard errors of margins show how far cells err together. Let cell k have the standard deviation s_k, and
# v_k = s_k for counts and totals, or n_k s_k for means of n_k records. A margin f has the variance M_f, and A_f = 1 for
# counts and totals, or the number of its records. Then
#
#     M_f A_f² = Σ v_k² + Σ_{k≠l} c_kl v_k v_l,    c_kl = Σ_S γ_S over the sets S of columns in which k and l agree.
#
# So cells of one region share the error of the region, and all cells share one error. The γ_S ≥ 0 are fitted to the margins
# of every set of columns by least squares. Errors are taken as normal. Negative correlations count as none.
PUBLIC = Key(bytes(32)).child("shared errors")
"""The key of simulated errors. It is public, so that anyone can repeat a verdict."""
ENTRIES, FEWEST_DRAWS, MOST_DRAWS = 2_000_000, 400, 2_000
"""Number of simulated errors, and limits of the number of draws of a table."""


class Counts(NamedTuple):
    """Numbers of cells with a property in simulated tables, (draw,), of the given number of cells."""

    counts: Floats
    cells: int

    def plus(self, other: Counts) -> Counts:
        return Counts(self.counts + other.counts, self.cells + other.cells)


class SimulatedTables(NamedTuple):
    """Simulated tables whose published errors are right.

    - `base_held`, `margins_held`: numbers of base cells, and of margins, whose 90 % interval holds the direct figure.
    - `above`: numbers of base cells above the direct figure.
    - `margin`: true for the rows that are margins of base cells, (row,).
    """

    base_held: Counts
    margins_held: Counts
    above: Counts
    margin: np.ndarray[tuple[int], np.dtype[np.bool_]]


class _Margins(NamedTuple):
    """Margins that keep some columns: each base cell's group, each group's first cell, and each row's group, or −1 for rows
    of other sets.
    """

    group: Ints
    first: Ints
    row: Ints

    def squares_within(self, other: _Margins, v: Floats) -> Floats:
        """Sums of squared sums of v over the parts of each group that `other` divides it into, (group,)."""
        squares = np.asarray(np.bincount(other.group, v), dtype=np.float64) ** 2
        return np.asarray(np.bincount(self.group[other.first], squares), dtype=np.float64)


def shared_errors(rows: pd.DataFrame, deviation: Floats, by: Sequence[str]) -> SimulatedTables:
    """Simulates errors of a statistic's rows, from the standard deviations of their errors, (row,)."""
    labels, deviation = rows[list(by)].astype(str), np.nan_to_num(deviation, posinf=0.0)
    codes = np.column_stack([np.zeros((len(rows), 0), dtype=np.int64), *(pd.factorize(labels[name])[0] for name in by)])
    at_level = (labels != TOTAL).to_numpy()
    base = np.asarray(at_level.all(axis=1))
    n = int(base.sum())
    additive = rows["statistic"].isin(["count", "total"]).all()
    records = np.ones(n) if additive else rows["records"].to_numpy(dtype=float)[base]
    v = records * deviation[base]
    columns = range(len(by))
    sets = {
        frozenset(names): _margins(list(names), codes, at_level, base)
        for k in (range(len(by) + 1) if n else ())
        for names in combinations(columns, k)
    }
    shared = [names for names, margins in sets.items() if len(names) < len(by) and (margins.row >= 0).any()]
    margin_sets = [sets[names] for names in shared]
    joined = [[sets[one | other] for other in shared] for one in shared]
    gamma = _common(margin_sets, joined, v, None if additive else records, deviation)
    rng = PUBLIC.generator(f"{n} cells, {len(rows)} rows")
    scaled = [_scaled(margins, v, gamma, unions) for margins, unions in zip(margin_sets, joined, strict=True)]
    pairs_held, above, held_margins = list[Ints](), list[Ints](), list[Ints]()
    for draws in _parts(len(rows)):
        z = np.sqrt(_unshared(gamma)) * rng.standard_normal((n, draws))
        for common, margins in zip(gamma, margin_sets, strict=True):
            if common > 0.0:
                z += np.sqrt(common) * rng.standard_normal((int(margins.group.max()) + 1, draws))[margins.group]
        within = [np.count_nonzero(np.abs(sums @ z) <= NORMAL_90, axis=0) for sums in scaled]
        held_margins.append(np.sum(within, axis=0) if within else np.zeros(draws, dtype=np.int64))
        pairs_held.append(np.count_nonzero(np.abs(z) <= NORMAL_90, axis=0))
        above.append(np.count_nonzero(z > 0.0, axis=0))
    margin = np.logical_or.reduce([np.zeros(len(rows), dtype=bool), *(margins.row >= 0 for margins in margin_sets)])
    simulated = [np.concatenate(numbers).astype(float) for numbers in (pairs_held, held_margins, above)]
    return SimulatedTables(
        Counts(simulated[0], n), Counts(simulated[1], int(margin.sum())), Counts(simulated[2], n), margin
    )


def _unshared(gamma: Floats) -> float:
    """The variance that a cell shares with no other. Shares that were scaled to 1 may sum to one digit more."""
    return max(1.0 - float(gamma.sum()), 0.0)


def _parts(rows: int) -> list[int]:
    """Numbers of draws that are simulated at once, so that tables of any size take little memory."""
    draws = int(np.clip(ENTRIES // max(rows, 1), FEWEST_DRAWS, MOST_DRAWS))
    most = int(np.clip(ENTRIES // max(rows, 1), 1, draws))
    return [min(most, draws - start) for start in range(0, draws, most)]


def _scaled(margins: _Margins, v: Floats, gamma: Floats, unions: Sequence[_Margins]) -> scipy.sparse.csr_array:
    """Errors of margins, in their standard deviations, from those of base cells, (margin, cell).

    `unions` keep the columns of `margins` and of each set in turn.
    """
    variance = _unshared(gamma) * np.bincount(margins.group, v**2)
    for common, union in zip(gamma, unions, strict=True):
        variance = variance + common * margins.squares_within(union, v)
    inside = scipy.sparse.csr_array((v, (margins.group, np.arange(len(v)))))
    places = margins.row[margins.row >= 0]
    deviations = np.sqrt(np.maximum(variance[places], np.finfo(float).tiny))
    return scipy.sparse.csr_array(scipy.sparse.diags_array(1.0 / deviations) @ inside[places])


def at_most(number: int, simulated: Counts, probability: float) -> float:
    """The probability of at most `number` cells with a property that each has with the given probability.

    The law is beta-binomial, with the variance of the simulated numbers; for independent cells it is binomial.
    """
    n = simulated.cells
    if n == 0:
        return 1.0
    binomial = n * probability * (1.0 - probability)
    variance = float(((simulated.counts - n * probability) ** 2).mean())
    common = (variance / binomial - 1.0) / (n - 1) if n > 1 else 0.0
    if common <= 1e-9:
        return float(scipy.special.bdtr(number, n, probability))
    scale = max(1.0 / common - 1.0, 1e-6)
    a, b, k = scale * probability, scale * (1.0 - probability), np.arange(number + 1)
    choices = scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1)
    shares = scipy.special.betaln(k + a, n - k + b) - scipy.special.betaln(a, b)
    return float(min(np.exp(choices + shares).sum(), 1.0))


def _margins(
    names: Sequence[int],
    codes: Ints,
    at_level: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    base: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> _Margins:
    """Margins that keep the columns with these numbers; `at_level` (row, column) is false at the word for all levels."""
    key = np.zeros(len(codes), dtype=np.int64)
    for name in names:
        key = np.unique(key * (int(codes[:, name].max()) + 1) + codes[:, name], return_inverse=True)[1]
    keys, first, group = np.unique(key[base], return_index=True, return_inverse=True)
    place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    of_set = (at_level.sum(axis=1) == len(names)) & at_level[:, list(names)].all(axis=1) & (keys[place] == key)
    return _Margins(group, first, np.where(of_set, place, -1))


def _common(
    margin_sets: Sequence[_Margins],
    joined: Sequence[Sequence[_Margins]],
    v: Floats,
    records: Floats | None,
    deviation: Floats,
) -> Floats:
    """The γ of every set of columns: variances of errors that cells which agree in these columns share.

    `joined` has the margins that keep the columns of two sets.
    """
    if not margin_sets:
        return np.zeros(0)
    pairs, excess = np.zeros((len(margin_sets), len(margin_sets))), np.zeros(len(margin_sets))
    for i, margins in enumerate(margin_sets):
        rows = np.flatnonzero(margins.row >= 0)
        places = margins.row[rows]
        size = 1.0 if records is None else np.bincount(margins.group, records)[places]
        squares = np.bincount(margins.group, v**2)
        excess[i] = float(((deviation[rows] * size) ** 2 - squares[places]).sum())
        pairs[i] = [float((margins.squares_within(union, v) - squares)[places].sum()) for union in joined[i]]
    scale = np.where(np.diag(pairs) > 0.0, np.diag(pairs), np.inf)
    gamma = scipy.optimize.nnls(pairs / scale[:, None], excess / scale, maxiter=100 * len(margin_sets))[0]
    return np.asarray(gamma / max(gamma.sum(), 1.0))
