"""Records' variances about cells' means: cells that never vary are told from cells whose few records agree by chance."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.random_effects import own_variances

CELLS, RECORDS = 80, 15
PLACE = np.repeat(np.arange(CELLS), RECORDS)


def variances(values: Floats) -> Floats:
    mean = np.bincount(PLACE, weights=values) / RECORDS
    residuals = (values - mean[PLACE]) * np.sqrt(RECORDS / (RECORDS - 1.0))
    return own_variances(residuals, np.ones(len(PLACE)), PLACE, [np.arange(CELLS)], CELLS)


@pytest.mark.parametrize("alike", [False, True])
def test_cells_whose_few_records_all_say_no_still_vary(alike: bool) -> None:
    """Shares of yes are beta(3, 12) or .15. Cells of 15 records that all say no get .4 to 1.4 of their true variance.

    By sizes about means of all 15 records they got less than .1, and their means of 0 were almost exact.
    """
    found, expected = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        share = np.full(CELLS, 0.15) if alike else rng.beta(3.0, 12.0, CELLS)
        yes = (rng.random(len(PLACE)) < share[PLACE]).astype(float)
        none = np.bincount(PLACE, weights=yes) == 0.0
        found.append(variances(yes)[none].sum())
        expected.append((share * (1.0 - share))[none].sum())
    assert 0.4 < np.sum(found) / np.sum(expected) < 1.4


def test_cells_that_never_vary_have_almost_no_variance() -> None:
    """Control: a quarter of the cells are constant, and variances that all cells share would be above .6."""
    for seed in range(10):
        found = variances(np.where(PLACE < CELLS // 4, 0.0, np.random.default_rng(seed).normal(size=len(PLACE))))
        assert found[: CELLS // 4].max() < 0.03
        assert abs(found[CELLS // 4 :].mean() - 1.0) < 0.4
