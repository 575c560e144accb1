"""Variances of weighted totals, for all of `estimation`: strata, PSUs, finite populations, two stages, replicates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.job import Lonely

RANK_TOLERANCE = 1e-5
"""Tolerance of a matrix's rank, as in R's `qr`."""
CENSUS = 1e-7
"""A stratum counts as a census, without sampling error, if at most this share of it was not sampled."""


# Over strata h and their PSUs p, V = Σ_h (1 − f_h) n_h/(n_h − 1) Σ_p (t_hp − t̄_h)².
#
# - t_hp is the total of a linearised variable in PSU p, and t̄_h the mean of these totals.
# - f_h is the sampling fraction; sampling with replacement has f = 0.
# - n_h is the number of all PSUs of the stratum, with or without a record of the cell. A universe is a domain: PSUs and
#   records outside it are in n_h, too. With n_h = ∞ the sample's size in the stratum is Poisson, and V_h is Σ_p t_hp².
#
# A second stage, of n_hp records sampled with the fraction f_hp in PSU p, adds Σ_hp f_h (1 − f_hp) n_hp/(n_hp − 1) Σ_i (u_i
# − ū_hp)². The last sum is over records i with the linearised variable u_i (Särndal, Swensson & Wretman 1992, §4.3 and
# §5.5).
#
# Figures agree with R's `survey`, with one exception: the total of a whole stratum under the option "centred" for a lonely
# PSU, one that is alone in its stratum. There R uses the squared deviation from 0. This code uses the deviation from the
# grand mean, the mean of all PSUs' totals.
class Stage(NamedTuple):
    """One stage of sampling, arrays (stratum,): the number of units sampled, and their share of the population."""

    size: Floats
    fraction: Floats
    lonely: Lonely = "error"
    elsewhere: float = 0.0
    """Number of units sampled in strata that no estimate is about."""

    @classmethod
    def of(
        cls, size: Ints | Floats, population: Floats | None = None, lonely: Lonely = "error", elsewhere: float = 0.0
    ) -> Stage:
        """Makes a stage; `population` (stratum,) is the number of units in every stratum's population.

        None means sampling with replacement.
        """
        n = np.asarray(size, dtype=np.float64)
        return cls(n, np.zeros(len(n)) if population is None else n / population, lonely, elsewhere)

    @property
    def alone(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray((self.size == 1) & (1.0 - self.fraction > CENSUS))


class Stages(NamedTuple):
    """A sampling design: every PSU's stratum (psu,), and the stages that draw PSUs and records within PSUs.

    Without a second stage all records of a drawn PSU are in the sample.
    """

    stratum: Codes
    first: Stage
    second: Stage | None = None


class Variable(NamedTuple):
    """Sums of a, b and their products over the records of each row, (row,), for the linearised variable u = (b − R a)/D.

    R and D are constants of a cell.
    """

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
    """First-stage variance (cell,) from Σ_p t and Σ_p t² of every pair of a cell and a stratum that share records, (pair,).

    The options for a lonely PSU, one that is alone in its stratum:

    - "error" raises ValueError.
    - "certainty" adds no variance.
    - "average" adds the mean variance of the cell's other strata.
    - "centred" adds the squared deviation from the mean PSU of the whole design.
    """
    n, free = stage.size[stratum], 1.0 - stage.fraction[stratum]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(np.isinf(n), 1.0, n / (n - 1.0)) * (squares - total**2 / n)
    part = np.where(n > 1, free * np.maximum(spread, 0.0), 0.0)
    alone = stage.alone[stratum]
    if not alone.any():
        return _sums(cell, part, cells)
    if stage.lonely == "error":
        raise ValueError("a stratum with a single PSU has no variance estimate")
    if stage.lonely == "centred":
        grand = _sums(cell, total, cells) / (stage.size.sum() + stage.elsewhere)
        part = np.where(alone, free * (total - grand[cell]) ** 2, part)
    by_cell = _sums(cell, part, cells)
    if stage.lonely == "average":
        with np.errstate(divide="ignore", invalid="ignore"):
            by_cell = by_cell * np.bincount(cell, minlength=cells) / _sums(cell, (~alone).astype(float), cells)
    return by_cell


def linearised(
    variable: Variable, ratio: Floats, scale: Floats, membership: scipy.sparse.csr_array, psu: Codes | Ints, stages: Stages
) -> Floats:
    """Variance (cell,) of Σ (b − R a)/D over a cell's rows; `ratio` is R and `scale` is D, (cell,) each.

    `membership` is (cell, row). `psu` (row,) numbers PSUs across strata without repetition.
    """
    met = membership.tocoo()
    r, d = ratio[met.row], scale[met.row]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = (variable.b[met.col] - r * variable.a[met.col]) / d
        squares = (variable.bb[met.col] - 2.0 * r * variable.ab[met.col] + r**2 * variable.aa[met.col]) / d**2
    return _of_parts(met, parts, squares, psu, stages)


def of_sums(parts: scipy.sparse.csr_array, psu: Codes | Ints, stages: Stages) -> Floats:
    """Variance (cell,) of sums over records, whose parts of the sums are (cell, record)."""
    met = parts.tocoo()
    return _of_parts(met, met.data, met.data**2, psu, stages)


def _of_parts(met: scipy.sparse.coo_array, parts: Floats, squares: Floats, psu: Codes | Ints, stages: Stages) -> Floats:
    cells, psus = met.shape[0], len(stages.stratum)
    pair, entry = np.unique(met.row.astype(np.int64) * psus + psu[met.col], return_inverse=True)
    cell, unit = pair // psus, pair % psus
    with np.errstate(divide="ignore", invalid="ignore"):
        t = _sums(entry, parts, len(pair))
        between, group = np.unique(cell * len(stages.first.size) + stages.stratum[unit], return_inverse=True)
        stratum = between % len(stages.first.size)
        total = _sums(group, t, len(between))
        n = stages.first.size[stratum]
        mean = total / n
        present = np.bincount(group, minlength=len(between))
        # Σ t² is summed as deviations from the stratum's mean, so that it is exactly 0 where PSUs do not differ.
        between_squares = _sums(group, (t - mean[group]) ** 2, len(between)) + (n - present) * mean**2 + total**2 / n
        by_cell = stratified(total, between_squares, between // len(stages.first.size), stratum, stages.first, cells)
        if stages.second is not None:
            second = Stage(stages.second.size, stages.second.fraction, "certainty")
            share = stages.first.fraction[stages.stratum[unit]]
            within = _within(t, _sums(entry, squares, len(pair)), unit, second)
            by_cell = by_cell + _sums(cell, share * within, cells)
    return by_cell


def _within(total: Floats, squares: Floats, unit: Ints, stage: Stage) -> Floats:
    """Second-stage variance, (pair,), of every pair of a cell and a PSU with common records.

    Each PSU is treated as a stratum of its records.
    """
    n, free = stage.size[unit], 1.0 - stage.fraction[unit]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = n / (n - 1.0) * (squares - total**2 / n)
    return np.where(n > 1, free * np.maximum(spread, 0.0), 0.0)


def met_units(membership: scipy.sparse.csr_array, psu: Codes | Ints, stages: Stages) -> Floats:
    """Degrees of freedom (cell,): PSUs minus strata among the records of the cell."""
    met = membership.tocoo()
    pair = np.unique(met.row.astype(np.int64) * len(stages.stratum) + psu[met.col])
    cell, stratum = pair // len(stages.stratum), stages.stratum[pair % len(stages.stratum)]
    strata = np.unique(cell * len(stages.first.size) + stratum) // len(stages.first.size)
    cells = membership.shape[0]
    return np.asarray(np.bincount(cell, minlength=cells) - np.bincount(strata, minlength=cells), dtype=np.float64)


class Replication(NamedTuple):
    """Variance from replicate weights: V = scale Σ_r factor_r (θ_r − θ̂)², with θ_r the estimate under replicate r.

    θ̂ is the estimate, or the replicates' mean if `about_mean`.
    """

    scale: float
    factors: Floats
    about_mean: bool = False

    def variance(self, value: Floats, replicates: Floats) -> Floats:
        """Variance (cell,) from the estimates (cell,) and the estimates under every replicate (replicate, cell).

        A replicate without a record of the cell has no estimate (NaN) and is left out; the scale stays, as in R's
        `svrVar`. If no replicate has a record of the cell, the variance is NaN.
        """
        there = np.isfinite(replicates)
        used = there & (self.factors > 0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(used, replicates, 0.0).sum(axis=0) / used.sum(axis=0)
        deviation = np.where(used, replicates - (mean if self.about_mean else value), 0.0)
        by_cell = self.scale * (self.factors[:, None] * deviation**2).sum(axis=0)
        return np.where(used.any(axis=0), by_cell, np.nan)


def crossed_products(replicates: Floats) -> Floats:
    """The matrix W'W of replicate weights W (record, replicate).

    Sums over blocks of records give the argument of `replicate_df`.
    """
    return np.asarray(replicates.T @ replicates)


def replicate_df(products: Floats) -> float:
    """Degrees of freedom of replicate weights W: the rank of W minus 1, from W'W (R's `degf`).

    A column counts if projection on the other columns leaves more than `RANK_TOLERANCE` of its length.
    """
    length = np.sqrt(np.diag(products))
    length = np.where(length > 0, length, 1.0)
    *_, rank, _ = scipy.linalg.lapack.dpstrf(products / np.outer(length, length), tol=RANK_TOLERANCE**2)
    return float(rank) - 1.0


def df_in_cells(df: float, records: Floats) -> Floats:
    """Degrees of freedom (cell,) under replicate weights: at most n − 1 for n records, and none without records."""
    return np.clip(records - 1.0, 0.0, df)


def _sums(group: Codes | Ints, values: Floats, groups: int) -> Floats:
    return np.asarray(np.bincount(group, weights=values, minlength=groups), dtype=np.float64)
