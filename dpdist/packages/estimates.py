"""Published figures of a package: all tables are sums of one estimate of the base cells, so that they agree.

Counts are at least 0, and means are within the outcome's public bounds [l, h]. Base cells are W ≥ 0 and l W ≤ Y ≤ h W, as
u = Y − l W ≥ 0 and o = h W − Y ≥ 0. Where the posterior mean leaves these, both are set to at least 0 and raked to what
the measured tables' cells had, where that was above 0. So a bound pushes no total up. Standard errors are those of the
posterior means, before this projection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.packages.posterior import Posterior, Sums, published_sums
from dpdist.packages.workload import PackageTable, Workload

RAKING_PASSES = 50
"""Number of times that all measured tables are raked in turn."""


class BaseEstimates(NamedTuple):
    """Weighted counts and totals of the base cells, (cell,) each."""

    counts: Floats
    totals: Floats


class TableEstimates(NamedTuple):
    """Figures of a table's cells with standard errors about the population's, (cell,) each; NaN for a mean of nothing."""

    counts: Floats
    means: Floats
    totals: Floats
    errors_of_counts: Floats
    errors_of_means: Floats
    errors_of_totals: Floats


def base_estimates(posterior: Posterior, noisy: Floats, bounds: tuple[float, float]) -> BaseEstimates:
    """Projected estimates of the base cells from noisy measurements in records, (row,)."""
    levels, z = posterior.prior.levels, posterior.estimated(noisy)
    count = levels.weight * z[:, 0]
    total = levels.weight * (levels.mean * z[:, 0] + levels.unit * z[:, 1])
    low, high = bounds
    above, below = (projected(sums, posterior.prior.workload) for sums in (total - low * count, high * count - total))
    whole = (above + below) / (high - low)
    return BaseEstimates(whole, above + low * whole)


def projected(values: Floats, workload: Workload) -> Floats:
    """Values of base cells set to at least 0, with the sums over measured tables' cells that they had, if at least 0."""
    if (values >= 0.0).all():
        return values
    scaled = np.maximum(values, 0.0)
    tables = [workload.groups(by) for by in workload.measured]
    wanted = [np.maximum(np.bincount(group, weights=values), 0.0) for group in tables]
    for _ in range(RAKING_PASSES):
        for group, target in zip(tables, wanted, strict=True):
            held = np.bincount(group, weights=scaled)
            scaled = scaled * np.divide(target, held, out=np.zeros_like(held), where=held > 0.0)[group]
    return np.asarray(scaled)


def table_estimates(posterior: Posterior, table: PackageTable, base: BaseEstimates) -> TableEstimates:
    """A table's figures and standard errors, from the projected base cells."""
    matrix = posterior.prior.workload.published(table)
    counts, totals = published_sums(matrix, posterior.prior.levels)
    count, total = matrix @ base.counts, matrix @ base.totals
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(count > 0.0, total / count, np.nan)
    errors = (
        np.sqrt(posterior.errors(sums).population) for sums in (counts, mean_sums(counts, totals, count, mean), totals)
    )
    of_count, of_mean, of_total = errors
    return TableEstimates(count, mean, total, of_count, np.where(np.isfinite(mean), of_mean, np.nan), of_total)


def mean_sums(counts: Sums, totals: Sums, count: Floats, mean: Floats) -> Sums:
    """Means linearised at counts and means, (row,), as functions of the base cells' sums; 0 where there is no count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale, slope = (np.where(count > 0.0, factor, 0.0) for factor in (1.0 / count, mean / count))
    pairs = zip(totals.parts, counts.parts, strict=True)
    parts = [
        scipy.sparse.csr_array(scipy.sparse.diags_array(scale) @ up - scipy.sparse.diags_array(slope) @ low)
        for up, low in pairs
    ]
    return Sums((parts[0], parts[1], parts[2], parts[3]))
