"""Variances of weighted totals under a design: strata, PSUs, finite populations, a second stage, lonely PSUs, replicates.

V = Σ_h (1 − f_h) n_h/(n_h − 1) Σ_p (t_hp − t̄_h)² over strata h, with t_hp the total of a linearised variable in PSU p and
n_h all PSUs of the stratum, those without a record of the cell too; with a second stage, plus
Σ_hp f_h (1 − f_hp) n_hp/(n_hp − 1) Σ_i (u_i − ū_hp)² over records i (Särndal, Swensson & Wretman 1992, §4.3 and §5.5).
f = 0 is sampling with replacement. Figures agree with R's `survey`, but for a lonely PSU that is "centred" in the total
of a whole stratum: there R takes the deviation from 0, here it is from the grand mean of the PSUs' totals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpstrf
from scipy.sparse import csr_array

from dpdist.core.records import Codes, Floats, Ints
from dpdist.job import Lonely

RANK_TOLERANCE = 1e-5
"""R's, of `qr`."""
CENSUS = 1e-7
"""A stratum of which all but this share was sampled has no sampling error."""


class Stage(NamedTuple):
    """Units sampled in every stratum and the share of its population that they are, arrays (stratum,)."""

    size: Floats
    fraction: Floats
    lonely: Lonely = "error"

    @classmethod
    def of(cls, size: Ints | Floats, population: Floats | None = None, lonely: Lonely = "error") -> Stage:
        """`population` holds the units of every stratum's population; None is sampling with replacement."""
        n = np.asarray(size, dtype=np.float64)
        return cls(n, np.zeros(len(n)) if population is None else n / population, lonely)

    @property
    def alone(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Strata with one unit and sampling error."""
        return np.asarray((self.size == 1) & (1.0 - self.fraction > CENSUS))


class Stages(NamedTuple):
    """A design: stratum of every PSU (psu,), the strata's PSUs, and the PSUs' records where they too were sampled."""

    stratum: Codes
    first: Stage
    second: Stage | None = None


class Variable(NamedTuple):
    """Linearised variables u = (b − R a)/D of cells: sums of a, b and their products over a row's records, (row,)."""

    a: Floats
    b: Floats
    aa: Floats
    ab: Floats
    bb: Floats

    @classmethod
    def of_records(cls, a: Floats, b: Floats) -> Variable:
        return cls(a, b, a * a, a * b, b * b)


def stratified(
    total: Floats, squares: Floats, cell: Codes | Ints, stratum: Codes | Ints, stage: Stage, cells: int
) -> Floats:
    """First-stage variance (cell,) from Σ_p t and Σ_p t² of every pair of a cell and a stratum that meet, arrays (pair,).

    A lonely PSU is an "error" (ValueError), has no variance ("certainty"), the mean of the cell's other strata
    ("average"), or the squared deviation from the mean PSU of the whole design ("centred").
    """
    n, free = stage.size[stratum], 1.0 - stage.fraction[stratum]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = n / (n - 1.0) * (squares - total**2 / n)
    part = np.where(n > 1, free * np.maximum(spread, 0.0), 0.0)
    alone = stage.alone[stratum]
    if not alone.any():
        return _sums(cell, part, cells)
    if stage.lonely == "error":
        raise ValueError("a stratum with a single PSU has no variance estimate")
    if stage.lonely == "centred":
        grand = _sums(cell, total, cells) / stage.size.sum()
        part = np.where(alone, free * (total - grand[cell]) ** 2, part)
    found = _sums(cell, part, cells)
    if stage.lonely == "average":
        with np.errstate(divide="ignore", invalid="ignore"):
            found = found * np.bincount(cell, minlength=cells) / _sums(cell, (~alone).astype(float), cells)
    return found


def linearised(
    variable: Variable, ratio: Floats, scale: Floats, membership: csr_array, psu: Codes | Ints, stages: Stages
) -> Floats:
    """Variance (cell,) of Σ (b − R a)/D over a cell's rows; R and D are (cell,), `membership` is (cell, row).

    `psu` (row,) numbers PSUs through the strata: no two strata share a number.
    """
    cells, psus = membership.shape[0], len(stages.stratum)
    met = membership.tocoo()
    pair, entry = np.unique(met.row.astype(np.int64) * psus + psu[met.col], return_inverse=True)
    cell, unit = pair // psus, pair % psus
    r, d = ratio[met.row], scale[met.row]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = _sums(entry, (variable.b[met.col] - r * variable.a[met.col]) / d, len(pair))
        between, group = np.unique(cell * len(stages.first.size) + stages.stratum[unit], return_inverse=True)
        stratum = between % len(stages.first.size)
        total = _sums(group, t, len(between))
        n = stages.first.size[stratum]
        mean = total / n
        present = np.bincount(group, minlength=len(between))
        # Σ t² as deviations from the stratum's mean: exact zeros where PSUs do not differ
        squares = _sums(group, (t - mean[group]) ** 2, len(between)) + (n - present) * mean**2 + total**2 / n
        found = stratified(total, squares, between // len(stages.first.size), stratum, stages.first, cells)
        if stages.second is not None:
            moments = variable.bb[met.col] - 2.0 * r * variable.ab[met.col] + r**2 * variable.aa[met.col]
            within = _sums(entry, moments / d**2, len(pair))
            second = Stage(stages.second.size, stages.second.fraction, "certainty")
            share = stages.first.fraction[stages.stratum[unit]]
            found = found + _sums(cell, share * _within(t, within, unit, second), cells)
    return found


def _within(total: Floats, squares: Floats, unit: Ints, stage: Stage) -> Floats:
    """Second-stage variance of every (cell, PSU) that meet, each PSU being a stratum of its records."""
    n, free = stage.size[unit], 1.0 - stage.fraction[unit]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = n / (n - 1.0) * (squares - total**2 / n)
    return np.where(n > 1, free * np.maximum(spread, 0.0), 0.0)


def met_units(membership: csr_array, psu: Codes | Ints, stages: Stages) -> Floats:
    """Degrees of freedom (cell,): PSUs minus strata among the records of the cell."""
    met = membership.tocoo()
    pair = np.unique(met.row.astype(np.int64) * len(stages.stratum) + psu[met.col])
    cell, stratum = pair // len(stages.stratum), stages.stratum[pair % len(stages.stratum)]
    strata = np.unique(cell * len(stages.first.size) + stratum) // len(stages.first.size)
    cells = membership.shape[0]
    return np.asarray(np.bincount(cell, minlength=cells) - np.bincount(strata, minlength=cells), dtype=np.float64)


class Replication(NamedTuple):
    """How replicates tell a variance: V = scale Σ_r factor_r (θ_r − θ̂)², about the estimate or the replicates' mean."""

    scale: float
    factors: Floats
    about_mean: bool = False

    def variance(self, value: Floats, replicates: Floats) -> Floats:
        """Variance (cell,) from values (cell,) and those of every replicate (replicate, cell).

        A replicate without a record of the cell has no figure (NaN) and is left out, the scale unchanged, as R's `svrVar`
        does; without any there is no variance.
        """
        there = np.isfinite(replicates)
        used = there & (self.factors > 0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(used, replicates, 0.0).sum(axis=0) / used.sum(axis=0)
        apart = np.where(used, replicates - (mean if self.about_mean else value), 0.0)
        found = self.scale * (self.factors[:, None] * apart**2).sum(axis=0)
        return np.where(used.any(axis=0), found, np.nan)


def crossed_products(replicates: Floats) -> Floats:
    """W'W of replicate weights W (record, replicate): those of blocks of records add up to `replicate_df`'s."""
    return np.asarray(replicates.T @ replicates)


def replicate_df(products: Floats) -> float:
    """Degrees of freedom that replicate weights carry: the rank of their matrix minus 1, from W'W (R's `degf`).

    A column counts if more than `RANK_TOLERANCE` of its length is left beside the others'.
    """
    length = np.sqrt(np.diag(products))
    length = np.where(length > 0, length, 1.0)
    *_, rank, _ = dpstrf(products / np.outer(length, length), tol=RANK_TOLERANCE**2)
    return float(rank) - 1.0


def df_in_cells(df: float, records: Floats) -> Floats:
    """Degrees of freedom (cell,) of replicates: weights of n records have no more than n − 1, none for no record."""
    return np.clip(records - 1.0, 0.0, df)


def _sums(group: Codes | Ints, values: Floats, groups: int) -> Floats:
    return np.asarray(np.bincount(group, weights=values, minlength=groups), dtype=np.float64)
