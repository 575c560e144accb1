"""Cells that are shrunk towards their mean: the variance between cells is that of moments, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.estimation.least_squares import composite, shrink

VALUES = np.array([3.0, 9.0, 4.0, 12.0, 7.0])


@pytest.mark.parametrize("noise", [0.5, 4.0, 400.0])
def test_cells_of_one_variance_keep_what_is_between_them(noise: float) -> None:
    """The variance between cells is the sample variance less the known one, and at least 0."""
    known = 1.5 + noise
    between = max(0.0, VALUES.var(ddof=1) - known)
    found = shrink(VALUES, np.full(5, 1.5), np.full(5, noise))
    assert found.drift == pytest.approx(between)
    assert found.mean == pytest.approx(VALUES.mean())
    kept = (between + 1.5) / (between + known)
    assert found.own_weight == pytest.approx(np.full(5, kept))
    assert found.values == pytest.approx(VALUES.mean() + kept * (VALUES - VALUES.mean()))


def test_variances_that_differ_weigh_by_precision() -> None:
    """Moments of DerSimonian and Laird, written out."""
    variance = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
    w = 1.0 / variance
    centre = (w * VALUES).sum() / w.sum()
    moment = (w * (VALUES - centre) ** 2).sum() - 4
    between = moment / (w.sum() - (w**2).sum() / w.sum())
    assert between > 0
    found = shrink(VALUES, np.zeros(5), variance)
    assert found.drift == pytest.approx(between)
    assert found.mean == pytest.approx(np.average(VALUES, weights=1.0 / (between + variance)))


def test_borrowing_moves_no_estimate_by_more_than_its_sampling_error() -> None:
    """A cell without records takes the borrowed estimate, with the variance between cells as its error."""
    difference, sampling = np.array([0.1, -0.4, 6.0, np.nan]), np.array([1.0, 2.0, 1.0, np.inf])
    found = composite(difference, sampling)
    moved = (1.0 - found.own_weight) * np.abs(difference)
    assert (moved[:3] <= np.sqrt(sampling[:3])).all()
    assert found.own_weight[2] == pytest.approx(1.0 - 1.0 / 36.0)
    between = shrink(difference[:3], np.zeros(3), sampling[:3]).drift
    assert (found.own_weight[3], found.error[3]) == (0.0, pytest.approx(between))
