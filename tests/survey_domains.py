"""Design-based estimates in many domains from records held whole: an independent path to the product's direct estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.direct import replication
from dpdist.estimation.estimators import (
    PsuSums,
    Replication,
    Stage,
    Stages,
    crossed_products,
    df_in_cells,
    linearised_variance,
    met_units,
    of_sums,
    replicate_df,
)
from dpdist.estimation.linear import OF_RECORDS, quantiles_of, woodruff
from dpdist.job import Lonely, ReplicateWeights

Domains = scipy.sparse.csr_array
"""The 0/1 matrix (domain, record)."""


class Estimates(NamedTuple):
    """Estimates of every domain, (domain,) each."""

    value: Floats
    standard_error: Floats
    df: Floats


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
        stratum: Ints | None = None,
        psu: Ints | None = None,
        population: Floats | None = None,
        psu_population: Floats | None = None,
        lonely: Lonely = "error",
    ) -> DesignSample:
        """A sample from codes of strata and PSUs. `population` has the number of PSUs in a record's stratum, and
        `psu_population` the number of records in its PSU."""
        n = len(weight)
        stratum = np.zeros(n, dtype=np.int64) if stratum is None else np.unique(stratum, return_inverse=True)[1]
        unit = np.arange(n) if psu is None else np.unique(psu, return_inverse=True)[1]
        _, first, code = np.unique(stratum * n + unit, return_index=True, return_inverse=True)
        of_psu = stratum[first].astype(np.int32)
        leaders = first[np.unique(of_psu, return_index=True)[1]]
        first_stage = Stage.of(np.bincount(of_psu), None if population is None else population[leaders], lonely)
        second = None if psu_population is None else Stage.of(np.bincount(code), psu_population[first])
        return cls(weight, code.astype(np.int32), Stages(of_psu, first_stage, second))

    @classmethod
    def replicated(cls, weight: Floats, replicates: Floats, method: ReplicateWeights) -> DesignSample:
        records, df = DesignSample.of(weight), method.df or replicate_df(crossed_products(replicates))
        return cls(weight, records.psu, records.stages, replicates, replication(method), df)

    def estimates(
        self, domains: Domains, of: Callable[[Floats], Floats], variance: Callable[[Floats], Floats]
    ) -> Estimates:
        """Estimates from a function of weights, with a linearised variance of its values, or that of replicate weights."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = of(self.weight)
            if self.replicates is None or self.replication is None:
                error, df = np.sqrt(variance(value)), met_units(domains, self.psu, self.stages)
            else:
                error = np.sqrt(self.replication.variance(value, np.array([of(weight) for weight in self.replicates.T])))
                df = df_in_cells(self.replicate_df, np.diff(domains.indptr).astype(np.float64))
        return Estimates(value, np.where(np.isfinite(value), error, np.nan), df)


def count(sample: DesignSample, domains: Domains) -> Estimates:
    return total(sample, domains, np.ones(len(sample.weight)))


def total(sample: DesignSample, domains: Domains, outcome: Floats) -> Estimates:
    def variance(value: Floats) -> Floats:
        sums = _sums(np.zeros(len(outcome)), sample.weight * outcome)
        return linearised_variance(sums, np.zeros(len(value)), np.ones(len(value)), domains, sample.psu, sample.stages)

    return sample.estimates(domains, lambda weight: domains @ (weight * outcome), variance)


def mean(sample: DesignSample, domains: Domains, outcome: Floats) -> Estimates:
    return ratio(sample, domains, outcome, np.ones(len(outcome)))


def ratio(sample: DesignSample, domains: Domains, numerator: Floats, denominator: Floats) -> Estimates:
    def variance(value: Floats) -> Floats:
        sums, bottom = (
            _sums(sample.weight * denominator, sample.weight * numerator),
            domains @ (sample.weight * denominator),
        )
        return linearised_variance(sums, value, bottom, domains, sample.psu, sample.stages)

    return sample.estimates(
        domains, lambda weight: (domains @ (weight * numerator)) / (domains @ (weight * denominator)), variance
    )


def quantile(sample: DesignSample, domains: Domains, outcome: Floats, level: float) -> Estimates:
    """Quantiles by Woodruff's method, from the share of a domain's weight at or below them."""
    quantiles = quantiles_of(domains, outcome, sample.weight)
    value, sizes = quantiles(np.full(domains.shape[0], level)), np.diff(domains.indptr)
    below = domains.copy()
    below.data = (outcome[domains.indices] <= np.repeat(value, sizes)).astype(np.float64)

    def variance(share: Floats) -> Floats:
        parts = below.copy()
        parts.data = sample.weight[domains.indices] * (below.data - np.repeat(share, sizes))
        inverse = scipy.sparse.diags_array(np.nan_to_num(1.0 / (domains @ sample.weight)))
        return of_sums(scipy.sparse.csr_array(inverse @ parts), sample.psu, sample.stages)

    shares = sample.estimates(domains, lambda weight: (below @ weight) / (domains @ weight), variance)
    return Estimates(
        value, woodruff(quantiles, shares.value, shares.standard_error, shares.df, OF_RECORDS).error, shares.df
    )


def _sums(a: Floats, b: Floats) -> PsuSums:
    return PsuSums(a, b, a * a, a * b, b * b)
