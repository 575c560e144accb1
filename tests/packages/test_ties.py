"""Without a measurement, a table's cell with many reference records has the reference's own figures."""

from __future__ import annotations

import numpy as np
from simulated_package import PURE, TABLES, planned, reference, workload, world

from dpdist.core.records import Floats
from dpdist.packages.levels import ReferenceRecords
from dpdist.packages.posterior import Prior, published_sums

MANY = 200
"""Reference records of a cell that has its own sums."""


def _off(prior: Prior, records: ReferenceRecords) -> Floats:
    """Relative distances of prior counts and totals from the reference's own, in cells of many records."""
    matrices = [workload(prior.workload.count).published(table) for table in TABLES]
    apart = []
    for matrix in matrices:
        many = matrix @ prior.workload.count >= MANY
        for sums, value in zip(published_sums(matrix, prior.levels), (1.0, records.outcome), strict=True):
            exact = matrix @ np.bincount(records.cell, weights=records.weight * value, minlength=len(prior.workload))
            apart.append((sums.of(prior.mean) / exact - 1.0)[many])
    return np.abs(np.concatenate(apart))


def test_the_prior_has_the_reference_s_own_margins() -> None:
    """The file has the reference's sizes. Control: without ties smooth levels leave more of a cell's own figures."""
    records = reference(8, n=20_000)
    count = np.bincount(records.cell, minlength=len(world().share)).astype(float)
    tied = planned(count, records, PURE).prior
    untied = Prior.of(tied.workload, tied.terms, tied.levels, tied.limits, tied.tails)
    with_ties, without = (float(np.median(_off(prior, records))) for prior in (tied, untied))
    assert with_ties < 0.0035
    assert without > 1.5 * with_ties
