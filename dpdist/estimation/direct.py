"""Direct survey-weighted estimates in many domains at once, with design-based errors. Results are confidential."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.confidential.records import Records
from dpdist.core.records import Cells, Codes, Crosstab, Floats, Ints, quotient, quotient_or
from dpdist.estimation.estimators import (
    STATISTICS,
    Estimate,
    Figures,
    Interval,
    PsuSums,
    Replication,
    Stage,
    Stages,
    clustered_counts_and_means,
    counts_and_means,
    crossed_products,
    df_in_cells,
    group_sums,
    linearised_variance,
    met_units,
    of_sums,
    record_sums,
    replicate_df,
    stratum_sizes,
    summable,
    t_interval,
)
from dpdist.estimation.linear import OF_RECORDS, StatisticFigures, Units, figures_of, quantiles_of, woodruff
from dpdist.job import Job, Lonely, ReplicateWeights, Statistic


# Variances are computed from linearised statistics (`variance`). If the sample has replicate weights, the statistic is
# computed again under each of them. A quantile is the smallest value with at least the share p of the weight at or below
# it. Its standard error is Woodruff's: the 95 % interval of the share at or below the quantile is mapped to values, and
# the mapped width is divided by twice the t quantile. So does R's `svyquantile` with its defaults (survey 4.1), under
# replicate weights, too: these give the error of the share.
class Estimates(NamedTuple):
    """Estimates of every domain, arrays (domain,); NaN if a domain has no estimate."""

    value: Floats
    standard_error: Floats
    df: Floats

    @property
    def cv(self) -> Floats:
        """Coefficient of variation, |SE / estimate|."""
        return np.abs(quotient(self.standard_error, self.value))

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
    variable = PsuSums.of_records(np.zeros(len(outcome)), sample.weight * outcome)
    return _estimates(
        sample, domains, value, linearised_variance(variable, zeros, ones, domains, sample.psu, sample.stages)
    )


def mean(sample: DesignSample, domains: scipy.sparse.csr_array, outcome: Floats) -> Estimates:
    """Estimates Σ w y / Σ w."""
    return ratio(sample, domains, outcome, np.ones(len(outcome)))


def ratio(sample: DesignSample, domains: scipy.sparse.csr_array, numerator: Floats, denominator: Floats) -> Estimates:
    top, bottom = domains @ (sample.weight * numerator), domains @ (sample.weight * denominator)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top / bottom
        if sample.replicates is not None and sample.replication is not None:
            parts = (domains @ (sample.replicates * values[:, None]) for values in (numerator, denominator))
            replicates = (next(parts) / next(parts)).T
            return _estimates(sample, domains, value, sample.replication.variance(value, replicates))
    variable = PsuSums.of_records(sample.weight * denominator, sample.weight * numerator)
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


UNIT_ROUNDOFF = np.finfo(np.float64).eps / 2.0


class SamplingDesign(NamedTuple):
    """What the file states about the sampling design, apart from the crosstab; arrays are empty for what is not declared.

    `lonely` is the rule for a stratum with a single PSU. `population` (design stratum,) is the number of units in each
    stratum's population. `psu_population` is the number of records in each PSU's population, and `psu_records` the number
    drawn from it, by (design stratum, PSU code).
    """

    lonely: Lonely = "error"
    population: Floats = np.empty(0)
    psu_population: pd.Series[float] | None = None
    psus: Floats = np.empty(0)
    """Number of PSUs sampled in every design stratum; if empty, PSUs of the present records are counted."""
    psus_elsewhere: int = 0
    """Number of PSUs sampled in design strata without a record of the universe."""
    psu_records: pd.Series[float] | None = None

    def stage_of_records(self, crosstab: Crosstab) -> Stage:
        """The stage that draws records, each of them a PSU."""
        return self._stage(stratum_sizes(crosstab), crosstab.sampled_elsewhere)

    def stage_of_psus(self, present: Floats) -> Stage:
        """The stage that draws PSUs; `present` has the numbers of PSUs with a record, (stratum,)."""
        return self._stage(self.psus if len(self.psus) else present, self.psus_elsewhere)

    def _stage(self, size: Floats, elsewhere: int) -> Stage:
        return Stage.of(size, self.population if len(self.population) else None, self.lonely, float(elsewhere))


class ReplicateSums(NamedTuple):
    """Sums of replicate weights, and of their products with the outcome, by crosstab row, (row, replicate) each."""

    a: Floats
    b: Floats
    rule: Replication
    df: float


class Totals(NamedTuple):
    """Sums and extremes by crosstab row, (row,) each; with declared PSUs also the totals of PSUs.

    `weight` and `product` are the smallest and largest w and wy. `psu` has the columns frame, psu, records, a, b, aa, ab,
    bb.
    """

    sums: PsuSums
    weight: tuple[Floats, Floats]
    product: tuple[Floats, Floats]
    psu: pd.DataFrame | None


def totals(blocks: Iterable[Records], crosstab: Crosstab, clustered: bool) -> Totals:
    rows = len(crosstab)
    sums = PsuSums(*(np.zeros(rows) for _ in range(5)))
    low_w, high_w, low_p, high_p = (np.full(rows, v) for v in (np.inf, -np.inf, np.inf, -np.inf))
    clusters: list[pd.DataFrame] = []
    for block in blocks:
        weight, outcome = summable(block.weight), summable(block.outcome)
        product = weight * outcome
        first, end = int(block.row.min(initial=rows)), int(block.row.max(initial=-1)) + 1  # so many strata cost no square
        if first < end:
            for whole, added in zip(sums, record_sums(block.row - first, weight, outcome, end - first), strict=True):
                whole[first:end] += added
        np.minimum.at(low_w, block.row, weight)
        np.maximum.at(high_w, block.row, weight)
        np.minimum.at(low_p, block.row, product)
        np.maximum.at(high_p, block.row, product)
        if clustered:
            part = pd.DataFrame({"frame": block.row, "psu": block.psu, "records": 1, "a": weight, "b": product})
            part = part.assign(aa=part.a**2, ab=part.a * part.b, bb=part.b**2)
            clusters.append(part.groupby(["frame", "psu"], as_index=False).sum())
    psu = pd.concat(clusters).groupby(["frame", "psu"], as_index=False).sum() if clustered else None
    return Totals(sums, (low_w, high_w), (low_p, high_p), psu)


def direct(
    sums: Totals,
    crosstab: Crosstab,
    cells: Cells,
    design: SamplingDesign | None = None,
    replicated: ReplicateSums | None = None,
) -> Figures:
    """Weighted counts, means and totals of cells, with linearised variances or replicate variances.

    A variance no larger than rounding error is set to 0.
    """
    figures = _figures(sums, crosstab, cells, SamplingDesign() if design is None else design, replicated)
    noise = _rounding(sums.sums, crosstab, cells, figures[1].value)
    count, mean, total = (
        estimate._replace(variance=np.where(estimate.variance <= most, 0.0, estimate.variance))
        for estimate, most in zip(figures, noise, strict=True)
    )
    return count, mean, total


def errors_given_sizes(sums: Totals, crosstab: Crosstab, cells: Cells, design: SamplingDesign) -> Floats:
    """Standard errors (statistic, cell) of counts, means and totals, for fixed numbers of records in base cells.

    A base cell of a single record shows no variance, and counts with the mean variance per record of the cell's others. The
    result is NaN where a cell has no others. It is NaN if the design has PSUs, too, as numbers of records vary with them.
    """
    # They are public, so a release need not estimate them. Base cells (crosstab rows) are treated as strata. They lie
    # within design strata and keep their sampling fractions. A mean's variance is quadratic in it, so that those of rows
    # are computed once for all cells.
    if sums.psu is not None:
        return np.full((len(STATISTICS), len(cells)), np.nan)
    a, b, aa, ab, bb = sums.sums
    n, fraction = crosstab.count, design.stage_of_records(crosstab).fraction[crosstab.design_stratum]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_rows = [np.maximum(aa - a * a / n, 0.0), ab - a * b / n, np.maximum(bb - b * b / n, 0.0)]
        factor = (1.0 - fraction) * n / (n - 1.0)
        of_rows = [np.where(n > 1, factor * part, 0.0) for part in of_rows]
        count, total, of_count, of_both, of_total = (cells.membership @ np.column_stack([a, b, *of_rows])).T
        mean = total / count
        of_mean = np.maximum(of_total - 2.0 * mean * of_both + mean**2 * of_count, 0.0) / count**2
    most = _rounding(sums.sums, crosstab, cells, mean)
    variances = of_count, np.where(count > 0, of_mean, np.nan), of_total
    variance = [np.where(value <= rounding, 0.0, value) for value, rounding in zip(variances, most, strict=True)]
    single = cells.membership @ (crosstab.count == 1).astype(np.float64)
    others = cells.membership @ crosstab.count - single
    factor = 1.0 + np.where(single > 0, quotient_or(np.nan, single, others), 0.0)
    return np.asarray(np.sqrt(factor * np.array(variance)))


def _rounding(sums: PsuSums, crosstab: Crosstab, cells: Cells, mean: Floats) -> tuple[Floats, Floats, Floats]:
    """The largest variance that rounding alone can cause, for counts, means and totals, (cell,) each."""
    # A variance is a difference of squares, Σt² − (Σt)²/n. Let u be the unit roundoff. A sum of n terms has a relative
    # error of at most n·u (Higham 2002, §4.2). Products, quotients and factors of at most 2 add a few u more. So the
    # difference errs by at most 8(n + 7)u Σt². For a mean R, t² ≤ (|b| + |R|a)²/W², with a = w, b = wy and W the cell's
    # count. PSU totals and replicates round less than that.
    a, aa, bb = (cells.membership @ values for values in (sums.a, sums.aa, sums.bb))
    share = 8.0 * UNIT_ROUNDOFF * (cells.membership @ crosstab.count.astype(np.float64) + 7.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (np.sqrt(bb) + np.abs(mean) * np.sqrt(aa)) / a
    return share * aa, share * spread**2, share * bb


def _figures(
    totals: Totals, crosstab: Crosstab, cells: Cells, design: SamplingDesign, replicated: ReplicateSums | None
) -> Figures:
    if replicated is not None:
        return _replicated(totals.sums, replicated, cells)
    if totals.psu is None:
        return counts_and_means(totals.sums, crosstab, cells, design.stage_of_records(crosstab))
    psu, stages = stages_of(totals.psu, crosstab, design)
    sums = PsuSums(*(totals.psu[name].to_numpy(dtype=float) for name in PsuSums._fields))
    return clustered_counts_and_means(totals.psu["frame"].to_numpy(), psu, sums, stages, cells)


def degrees_of_freedom(
    sums: Totals, crosstab: Crosstab, cells: Cells, design: SamplingDesign, replicated: ReplicateSums | None = None
) -> Floats:
    """Degrees of freedom of every cell, (cell,): PSUs minus strata among its records, or those of the replicate
    weights.
    """
    records = cells.membership @ crosstab.count.astype(float)
    if replicated is not None:
        return df_in_cells(replicated.df, records)
    if sums.psu is not None:
        psu, stages = stages_of(sums.psu, crosstab, design)
        return met_units(scipy.sparse.csr_array(cells.membership.tocsc()[:, sums.psu["frame"].to_numpy()]), psu, stages)
    coo = cells.membership.tocoo()
    strata = np.unique(coo.row.astype(np.int64) * len(crosstab) + crosstab.design_stratum[coo.col]) // max(len(crosstab), 1)
    return np.asarray(records - np.bincount(strata, minlength=len(cells)))


def stages_of(psu: pd.DataFrame, crosstab: Crosstab, design: SamplingDesign) -> tuple[Codes, Stages]:
    """The PSU of each row of `psu`, numbered across strata, and the design; `psu` has the columns frame, psu, records."""
    stratum = crosstab.design_stratum[psu["frame"].to_numpy()]
    labels, code = np.unique(np.column_stack([stratum, psu["psu"].to_numpy()]), axis=0, return_inverse=True)
    numbers: Codes = np.asarray(code.reshape(-1), dtype=np.int32)
    here = group_sums(labels[:, 0], np.ones(len(labels)), int(labels[:, 0].max()) + 1)
    first = design.stage_of_psus(here)
    second = None
    if design.psu_population is not None and design.psu_records is not None:
        units = list(map(tuple, labels))
        records, sizes = (np.asarray(of.loc[units], float) for of in (design.psu_records, design.psu_population))
        second = Stage.of(records, sizes)
    return numbers, Stages(labels[:, 0].astype(np.int32), first, second)


def _replicated(sums: PsuSums, replicated: ReplicateSums, cells: Cells) -> Figures:
    a, b = (cells.membership @ values for values in (sums.a, sums.b))
    again_a, again_b = ((cells.membership @ values).T for values in (replicated.a, replicated.b))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, replicates = b / a, again_b / again_a
        variance = replicated.rule.variance
        return (
            Estimate(a, variance(a, again_a)),
            Estimate(mean, variance(mean, replicates)),
            Estimate(b, variance(b, again_b)),
        )


# Results are confidential, unless the records are those of a public reference.
@dataclass(frozen=True)
class Direct:
    """The records of a file: crosstab rows, PSUs (−1 where the job declares none), weights, and outcomes by number.

    `replicates` (record, replicate) are the replicate weights, if the job has them. If there are any, they describe the
    design.
    """

    job: Job
    crosstab: Crosstab
    design: SamplingDesign
    row: Codes
    psu: Codes
    weight: Floats
    outcomes: Sequence[Floats]
    replicates: Floats | None = None

    @classmethod
    def of(
        cls,
        job: Job,
        crosstab: Crosstab,
        design: SamplingDesign,
        by_outcome: Sequence[Iterator[Records]],
        replicates: Floats | None = None,
    ) -> Direct:
        """Collects blocks of records. Every outcome's blocks are read once, in one common order."""
        first, outcomes = list[Records](), list[Floats]()
        for number, blocks in enumerate(by_outcome):
            read = list(blocks)
            first = read if number == 0 else first
            outcomes.append(np.concatenate([block.outcome for block in read]))
        row, psu, weight = (np.concatenate([getattr(block, name) for block in first]) for name in ("row", "psu", "weight"))
        return cls(job, crosstab, design, row, psu, weight, outcomes, replicates)

    @property
    def without_clusters(self) -> Direct:
        survey = self.job.survey.model_copy(update={"psu": None, "replicate_weights": None})
        design = SamplingDesign(self.design.lonely)
        return replace(self, job=self.job.model_copy(update={"survey": survey}), design=design, replicates=None)

    def estimate(self, cells: Cells, statistic: Statistic) -> Estimate:
        """Returns value and variance by cell, as `domains` and R's `survey` do; quantiles as `svyquantile`."""
        cells_of_records = replace(cells, membership=scipy.sparse.csr_array(cells.membership.tocsc()[:, self.row].tocsr()))
        figures, level = (
            figures_of(statistic, cells_of_records, self.job.outcomes),
            (statistic.of or statistic).level_of_quantile,
        )
        if level is None:
            value = figures.of(Units.of_records(self.weight, self.outcomes))[0]
            return Estimate(value, np.where(np.isnan(value), np.nan, self._variance(figures)))
        outcome = self.outcomes[self.job.outcomes.index((statistic.of or statistic).variable or "")]
        estimates = quantile(self.sample, cells_of_records.membership, outcome, level)
        of_share = share_below(self.sample, cells_of_records.membership, outcome, estimates.value)[1]
        return Estimate(*figures.quantile_from(estimates.value, of_share, estimates.standard_error, self._variance))

    @cached_property
    def sample(self) -> DesignSample:
        """The records with the design that the job states."""
        weights = self.job.survey.replicate_weights
        if weights is not None:
            assert self.replicates is not None
            return DesignSample.replicated(self.weight, self.replicates, weights)
        if self.job.survey.psu is None:
            stages = Stages(self.crosstab.design_stratum[self.row], self.design.stage_of_records(self.crosstab))
            return DesignSample(self.weight, np.arange(len(self.row), dtype=np.int32), stages)
        records = pd.DataFrame({"frame": self.row, "psu": self.psu, "records": 1})
        return DesignSample(self.weight, *stages_of(records, self.crosstab, self.design))

    def _variance(self, figures: StatisticFigures) -> Floats:
        """Returns the variance under replicate weights, or of PSUs within design strata."""
        units, sample = Units.of_records(self.weight, self.outcomes), self.sample
        if sample.replicates is None or sample.replication is None:
            return of_sums(figures.shares(units), sample.psu, sample.stages)
        replicates = np.concatenate([figures.of(Units.of_records(weight, self.outcomes)) for weight in sample.replicates.T])
        return sample.replication.variance(figures.of(units)[0], replicates)
