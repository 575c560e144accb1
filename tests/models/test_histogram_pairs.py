"""Weights that depend on outcomes, which histograms took apart: noisy sums tell how strongly, and means lose their bias."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.core.records import Floats
from dpdist.reference.clipping import Blur
from dpdist.reference.histogram_cells import HistogramCell
from dpdist.reference.histogram_pairs import paired
from dpdist.reference.limits import Limits, Noise

LIMITS = Limits(np.full(4, 60.0), np.full(4, 30.0), np.full(4, 60.0))
NOTHING = Noise(1e-12, 1e-12)


def records(dependence: float, n: int = 20_000) -> tuple[Floats, Floats]:
    """Weights and outcomes, lognormal, with this correlation of logarithms."""
    z, e = np.random.default_rng(1).standard_normal((2, n))
    outcome = np.minimum(np.exp(4.0 + 0.8 * z), 1000.0)
    return np.exp(3.0 + 0.6 * (dependence * z + (1.0 - dependence**2) ** 0.5 * e)), outcome


def apart(weight: Floats, outcome: Floats, points: int = 1024) -> HistogramCell:
    """Both histograms without noise: their points paired at random."""
    at = (np.arange(points) + 0.5) / points
    own = np.random.default_rng(2).permutation(np.quantile(weight, at)), np.quantile(outcome, at)
    nothing = np.zeros((points, points))
    blur = Blur(own[0], nothing, own[1], nothing)
    return HistogramCell(*own, 0.0, 1000.0, True, points, blur=blur, largest_weight=1000.0)


def sums(weight: Floats, outcome: Floats) -> tuple[Floats, Floats]:
    """Σ(1 − v) and Σvc of four cells, quarters of the records."""
    zero = np.zeros(len(weight), dtype=np.int32)
    v, c = LIMITS.clipped(zero, weight, outcome)
    return np.column_stack([(1.0 - v).reshape(4, -1).sum(axis=1), (v * c).reshape(4, -1).sum(axis=1)]), np.full(
        4, len(weight) / 4.0
    )


@pytest.mark.parametrize(("dependence", "control"), [(-0.7, 3.0), (-0.3, 1.5), (0.5, 3.0)])
def test_pairs_have_the_dependence_that_the_sums_show_and_means_lose_their_bias(dependence: float, control: float) -> None:
    """A cap at the .75 quantile of weights and a window to the .83 quantile of outcomes. Control: paired at random, the
    mean is off by several times as much."""
    weight, outcome = records(dependence)
    cell, (given, count) = apart(weight, outcome), sums(weight, outcome)
    (found, *rest) = paired([cell] * 4, LIMITS, given, count, NOTHING)
    assert np.corrcoef(np.log(found.weight), np.log(found.outcome))[0, 1] == pytest.approx(dependence, abs=0.03)
    assert np.sort(found.weight).tolist() == np.sort(cell.weight).tolist()
    assert found.outcome.tolist() == cell.outcome.tolist()
    assert all((each.weight == found.weight).all() for each in rest)
    v, q = 1.0 - given[:, 0].sum() / count.sum(), given[:, 1].sum() / count.sum()
    limits = (60.0, 30.0, 60.0)
    true = np.average(outcome, weights=weight)
    errors = [abs(each.mean_at(each.solve(v, q, limits)[1]) / true - 1.0) for each in (found, cell)]
    assert errors[0] < 0.03
    assert errors[1] > control * errors[0]


def test_what_noise_may_have_made_is_no_dependence() -> None:
    """The same sums under noise as large as the difference leave pairs as they are, and so does a cell of no histograms."""
    weight, outcome = records(-0.1)
    cell, (given, count) = apart(weight, outcome), sums(weight, outcome)
    told = paired([cell] * 4, LIMITS, given, count, NOTHING)[0]
    assert np.corrcoef(np.log(told.weight), np.log(told.outcome))[0, 1] < -0.05
    assert (paired([cell] * 4, LIMITS, given, count, Noise(1e6, 1e6))[0].weight == cell.weight).all()
    assert paired([cell.shape] * 4, LIMITS, given, count, NOTHING)[0].weight is cell.weight
