"""Association consistency: χ² as SciPy has it, combined tests by hand, same conclusions of a file and itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpdist.quality.microdata import RecordCodes, consistency, p_value, statistics


def coded(seed: int, together: float, n: int = 2000) -> RecordCodes:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 3, n)
    second = np.where(rng.random(n) < together, first, rng.integers(0, 3, n))
    third = rng.integers(0, 2, n)
    return RecordCodes(np.column_stack([first, second, third]), (3, 3, 2), np.ones(n))


def test_statistics_are_those_of_scipy_and_empty_levels_have_no_degree_of_freedom() -> None:
    file = coded(1, 0.3)
    values, degrees = statistics(file, [(0, 1)])
    table = file.shares((0, 1)).reshape(3, 3) * 2000
    expected = stats.chi2_contingency(table, correction=False)
    assert (values[0], degrees[0]) == (pytest.approx(expected.statistic), expected.dof)
    assert p_value(values, float(degrees[0])) == pytest.approx(expected.pvalue)
    wider = RecordCodes(file.codes, (5, 3, 2), file.weight)
    assert statistics(wider, [(0, 1)])[1][0] == expected.dof
    assert statistics(RecordCodes(file.codes * 0, (3, 3, 2), file.weight), [(0, 1)])[1][0] == 0


def test_equal_sets_are_tested_as_one_mean_square() -> None:
    """Without variance between sets D = χ²/k and the second degrees of freedom are without bound."""
    assert p_value(np.array([9.0, 9.0, 9.0]), 4.0) == pytest.approx(stats.chi2.sf(9.0, 4.0), rel=1e-6)
    assert p_value(np.array([3.0, 9.0, 30.0]), 4.0) > p_value(np.array([14.0, 14.0, 14.0]), 4.0)


def test_a_file_agrees_with_itself_and_not_with_one_that_lost_its_association() -> None:
    """Control: of three pairs the one that is associated differs; the others' tests err with probability .05 each."""
    file = coded(1, 0.5)
    assert consistency(file, [file]) == 1.0
    assert consistency(file, [coded(k, 0.5) for k in (2, 3, 4)]) >= 2 / 3
    assert consistency(file, [coded(2, 0.0)], level=1e-4) == pytest.approx(2 / 3)
