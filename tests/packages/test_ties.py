"""Without a measurement, a table's cell with many reference records has the reference's own figures."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_package import PURE, TABLES, planned, reference, workload, world

from dpdist.core.records import Floats
from dpdist.packages.levels import ReferenceRecords
from dpdist.packages.prior import Prior
from dpdist.packages.sums import published_sums
from dpdist.packages.ties import TIE_RECORDS, tied

MANY = 200
"""Reference records of a cell that has its own sums."""
AGE = 2
"""Column of the tables by age."""


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


def _off_by_age(prior: Prior, records: ReferenceRecords) -> Floats:
    """Distances of prior means from the reference's own, in direct standard errors, in tables' cells by age."""
    w, y, apart = records.weight, records.outcome, []
    for table in TABLES:
        if AGE not in table.by:
            continue
        matrix = prior.workload.summing(table.by)
        weight, product, square, first, second = (
            matrix @ np.bincount(records.cell, weights=values, minlength=len(prior.workload))
            for values in (w, w * y, w**2, w**2 * y, w**2 * y**2)
        )
        mean = product / weight
        error = np.sqrt(second - 2.0 * mean * first + mean**2 * square) / weight
        count, total = (sums.of(prior.mean) for sums in published_sums(matrix, prior.levels))
        apart.append((np.abs(total / count - mean) / error)[matrix @ prior.workload.count >= MANY])
    return np.concatenate(apart)


def test_the_prior_has_the_reference_s_own_margins() -> None:
    """The file has the reference's sizes. Control: without ties smooth levels leave more of a cell's own figures."""
    records = reference(8, n=20_000)
    count = np.bincount(records.cell, minlength=len(world().share)).astype(float)
    tied = planned(count, records, PURE).prior
    untied = Prior.of(tied.workload, tied.terms, tied.levels, tied.limits, tied.tails)
    with_ties, without = (float(np.median(_off(prior, records))) for prior in (tied, untied))
    assert with_ties < 0.0035
    assert without > 1.5 * with_ties


def test_means_of_an_outcome_that_a_column_nearly_determines_are_the_reference_s_own() -> None:
    """A year of age within an age group: errors of counts must not move such means. Control: without ties they differ."""
    drawn = reference(8, n=20_000)
    age = 25.0 + 10.0 * world().codes[drawn.cell, AGE] + np.random.default_rng(3).uniform(0.0, 5.0, len(drawn.cell))
    records = drawn._replace(outcome=age)
    count = np.bincount(records.cell, minlength=len(world().share)).astype(float)
    tied_prior = planned(count, records, PURE).prior
    untied = Prior.of(tied_prior.workload, tied_prior.terms, tied_prior.levels, tied_prior.limits, tied_prior.tails)
    with_ties, without = (float(np.median(_off_by_age(prior, records))) for prior in (tied_prior, untied))
    assert with_ties < 0.17
    assert without > 1.5 * with_ties


@pytest.mark.parametrize("cells", [1, 50])
def test_so_many_reference_records_tie_a_cell_half_of_the_way(cells: int) -> None:
    """However many base cells, and whatever a record contributes, there are."""
    groups, unit = np.arange(cells) // 50, 700.0
    held = np.full(cells, TIE_RECORDS / cells * unit)
    missing = np.bincount(groups, weights=0.3 * held)
    np.testing.assert_allclose(tied([missing], held, [groups], unit), 0.15, rtol=1e-9)
