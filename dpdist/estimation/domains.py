"""Counts, means, ratios and quantiles of a sample in many domains at once, with design-based standard errors.

Variances are computed from linearised statistics (`variance`). If the sample has replicate weights, the statistic is
computed again under each of them. A quantile is the smallest value with at least the share p of the weight at or below
it. Its standard error is Woodruff's: the 95 % interval of the share at or below the quantile is mapped to values, and
the mapped width is divided by twice the t quantile. So does R's `svyquantile` with its defaults (survey 4.1), under
replicate weights, too: these give the error of the share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.estimators import (
    Interval,
    Replication,
    Stage,
    Stages,
    Variable,
    crossed_products,
    df_in_cells,
    linearised_variance,
    met_units,
    of_sums,
    replicate_df,
    t_interval,
)
from dpdist.estimation.linear import OF_RECORDS, quantiles_of, woodruff
from dpdist.job import Lonely, ReplicateWeights


class Estimates(NamedTuple):
    """Estimates of every domain, arrays (domain,); NaN if a domain has no estimate."""

    value: Floats
    standard_error: Floats
    df: Floats

    @property
    def cv(self) -> Floats:
        """Coefficient of variation, |SE / estimate|."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.abs(self.standard_error / self.value)

    def margin(self, level: float = 0.9) -> Floats:
        """Margin of error: half the width of a t interval."""
        return (self.interval(level).upper - self.interval(level).lower) / 2.0

    def interval(self, level: float = 0.9) -> Interval:
        return t_interval(self.value, self.standard_error**2, np.where(self.df > 0, self.df, np.nan), level)


@dataclass(frozen=True)
class DesignSample:
    """Records with their design; arrays are (record,), and `replicates` is (record, replicate)."""

    weight: Floats
    psu: Codes
    stages: Stages
    replicates: Floats | None = None
    replication: Replication | None = None
    replicate_df: float = np.inf

    @classmethod
    def of(
        cls,
        weight: Floats,
        stratum: Ints | Codes | None = None,
        psu: Ints | Codes | None = None,
        population: Floats | None = None,
        psu_population: Floats | None = None,
        lonely: Lonely = "error",
    ) -> DesignSample:
        """Makes a sample from codes of strata and PSUs; PSUs are numbered anew within strata.

        Population sizes are given for every record, (record,). `population` counts the PSUs in a record's stratum, and
        `psu_population` the records in its PSU.
        """
        n = len(weight)
        stratum = np.zeros(n, dtype=np.int64) if stratum is None else np.unique(stratum, return_inverse=True)[1]
        unit = np.arange(n) if psu is None else np.unique(psu, return_inverse=True)[1]
        _, first, code = np.unique(stratum * n + unit, return_index=True, return_inverse=True)
        of_psu = stratum[first].astype(np.int32)
        leaders = first[np.unique(of_psu, return_index=True)[1]]
        size = np.bincount(of_psu)
        first_stage = Stage.of(size, None if population is None else population[leaders], lonely)
        second_stage = None if psu_population is None else Stage.of(np.bincount(code), psu_population[first])
        return cls(weight, code.astype(np.int32), Stages(of_psu, first_stage, second_stage))

    @classmethod
    def replicated(cls, weight: Floats, replicates: Floats, method: ReplicateWeights) -> DesignSample:
        """Makes a sample with replicate weights, which stand for the design; `replicates` is (record, replicate)."""
        n = len(weight)
        stages = Stages(np.zeros(n, dtype=np.int32), Stage.of(np.array([n])))
        df = method.df or replicate_df(crossed_products(replicates))
        return cls(weight, np.arange(n, dtype=np.int32), stages, replicates, replication(method), df)

    def part(self, rows: Ints | Codes) -> DesignSample:
        """The records of a domain, under the design of the whole sample."""
        replicates = None if self.replicates is None else self.replicates[rows]
        return replace(self, weight=self.weight[rows], psu=self.psu[rows], replicates=replicates)

    def df(self, domains: scipy.sparse.csr_array) -> Floats:
        if self.replicates is not None:
            return df_in_cells(self.replicate_df, np.diff(domains.indptr).astype(np.float64))
        return met_units(domains, self.psu, self.stages)


def replication(method: ReplicateWeights) -> Replication:
    factors = np.ones(method.number) if method.factors is None else np.array(method.factors)
    return Replication(method.overall, factors, method.centre == "mean")


def count(sample: DesignSample, domains: scipy.sparse.csr_array) -> Estimates:
    """Estimates Σ w; in all functions here `domains` is the 0/1 matrix (domain, record)."""
    return total(sample, domains, np.ones(len(sample.weight)))


def total(sample: DesignSample, domains: scipy.sparse.csr_array, outcome: Floats) -> Estimates:
    """Estimates Σ w y."""
    ones, zeros = np.ones(domains.shape[0]), np.zeros(domains.shape[0])
    value = domains @ (sample.weight * outcome)
    if sample.replicates is not None and sample.replication is not None:
        replicates = (domains @ (sample.replicates * outcome[:, None])).T
        return _estimates(sample, domains, value, sample.replication.variance(value, replicates))
    variable = Variable.of_records(np.zeros(len(outcome)), sample.weight * outcome)
    return _estimates(
        sample, domains, value, linearised_variance(variable, zeros, ones, domains, sample.psu, sample.stages)
    )


def mean(sample: DesignSample, domains: scipy.sparse.csr_array, outcome: Floats) -> Estimates:
    """Estimates Σ w y / Σ w."""
    return ratio(sample, domains, outcome, np.ones(len(outcome)))


def proportion(
    sample: DesignSample, domains: scipy.sparse.csr_array, holds: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Estimates:
    return mean(sample, domains, holds.astype(np.float64))


def ratio(sample: DesignSample, domains: scipy.sparse.csr_array, numerator: Floats, denominator: Floats) -> Estimates:
    top, bottom = domains @ (sample.weight * numerator), domains @ (sample.weight * denominator)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top / bottom
        if sample.replicates is not None and sample.replication is not None:
            parts = (domains @ (sample.replicates * values[:, None]) for values in (numerator, denominator))
            replicates = (next(parts) / next(parts)).T
            return _estimates(sample, domains, value, sample.replication.variance(value, replicates))
    variable = Variable.of_records(sample.weight * denominator, sample.weight * numerator)
    return _estimates(
        sample, domains, value, linearised_variance(variable, value, bottom, domains, sample.psu, sample.stages)
    )


def quantile(sample: DesignSample, domains: scipy.sparse.csr_array, outcome: Floats, share: float) -> Estimates:
    """Estimates quantiles by Woodruff's method; the standard error is NaN if the share's interval leaves [0, 1]."""
    quantiles, df = quantiles_of(domains, outcome, sample.weight), sample.df(domains)
    value = quantiles(np.full(domains.shape[0], share))
    reached, error = share_below(sample, domains, outcome, value)
    return Estimates(value, woodruff(quantiles, reached, error, df, OF_RECORDS).error, df)


def share_below(
    sample: DesignSample, domains: scipy.sparse.csr_array, outcome: Floats, cut: Floats
) -> tuple[Floats, Floats]:
    """The share of a domain's weight at or below its `cut`, and its standard error, (domain,) each."""
    below = domains.copy()
    below.data = (outcome[domains.indices] <= np.repeat(cut, np.diff(domains.indptr))).astype(np.float64)
    total = domains @ sample.weight
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (below @ sample.weight) / total
        if sample.replicates is not None and sample.replication is not None:
            replicates = ((below @ sample.replicates) / (domains @ sample.replicates)).T
            return share, np.sqrt(sample.replication.variance(share, replicates))
        below.data = sample.weight[domains.indices] * (below.data - np.repeat(share, np.diff(domains.indptr)))
        parts = scipy.sparse.csr_array(scipy.sparse.diags_array(np.nan_to_num(1.0 / total)) @ below)
    return share, np.sqrt(of_sums(parts, sample.psu, sample.stages))


def _estimates(sample: DesignSample, domains: scipy.sparse.csr_array, value: Floats, variance: Floats) -> Estimates:
    return Estimates(value, np.sqrt(np.where(np.isfinite(value), variance, np.nan)), sample.df(domains))
