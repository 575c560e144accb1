"""Cells that share a histogram: limits of the least predicted error, figures as clipped, and totals that stay near."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy

import dpdist
from dpdist.core.errors import JobError
from dpdist.core.records import TOTAL, UNIT, Codes, Floats
from dpdist.job import Adjacency
from dpdist.mechanisms.reference_tables import histograms
from dpdist.mechanisms.reference_tables.sensitivity import histogram_counts
from dpdist.mechanisms.reference_tables.typical_weights import TypicalWeights
from dpdist.reference import histogram_cells
from dpdist.reference import histograms as histograms_of_groups
from dpdist.reference.clipping import Blur, Cell, condensed
from dpdist.reference.histogram_cells import Ends, Hidden, HistogramCell, beyond, with_own_tails
from dpdist.reference.histograms import FEWEST_POOLED, Bins, grouped, in_common, paired_levels, smoothed
from dpdist.reference.inversion import invert_clipping
from dpdist.reference.limits import Limits, Noise, choose

Named = Callable[[str], AbstractContextManager[None]]
STATES = [f"S{k:02d}" for k in range(24)]
JOB = """
dataset: apart
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  state: {{levels: {states}}}
  miles: {{bounds: [0, 200000], outside: clip}}
  weight: {{bounds: [1, 20000], outside: clip}}
survey: {{weight: weight}}
outcome: miles
mechanism: {{name: reference_tables}}
budget: {{epsilon: "1"}}
reference: {{histogram: {{epsilon: "0.3"}}}}
tables:
  - {{name: one, by: [state], margins: true, statistics: [count, {{mean: miles}}]}}
runtime: {{executor: serial}}
"""


def spread(apart: float, n: int = 500) -> pd.DataFrame:
    """States of one law of weights and of miles, at scales whose logarithms have deviation `apart`."""
    rng = np.random.default_rng(8)
    level, state = apart * rng.standard_normal((2, len(STATES))), np.repeat(np.arange(len(STATES)), n)
    weight = np.exp(5.0 + level[0][state] + 0.4 * rng.standard_normal(len(state)))
    miles = np.exp(8.5 + level[1][state] / 2.0 + 0.6 * rng.standard_normal(len(state)))
    return pd.DataFrame({"state": np.array(STATES)[state], "weight": weight, "miles": np.minimum(miles, 2e5)})


def errors(folder: Path, rows: pd.DataFrame, noise_of: Named) -> pd.Series:
    """Published less direct counts, in direct standard errors, of the states and of all."""
    folder.mkdir()
    rows.to_parquet(folder / "now.parquet")
    with noise_of("apart"):
        dpdist.run(dpdist.parse_job(JOB.format(folder=folder, states=STATES)), folder / "ws")
    table = pd.read_parquet(folder / "ws" / "public" / "tables" / "one.parquet")
    counts = table[(table["estimator"] == "parameters") & (table["statistic"] == "count")].set_index("state")["estimate"]
    weight = rows["weight"].groupby(rows["state"])
    direct, squares = weight.sum(), weight.apply(lambda own: float((own**2).sum()))
    direct[TOTAL], squares[TOTAL] = direct.sum(), squares.sum()
    return (counts - direct) / np.sqrt(squares - direct**2 / len(rows))


@dataclass(frozen=True)
class Inverted(Cell):
    """A cell of histograms whose clipping is turned back as that of a reference is."""

    scale_error: float = 0.0

    def of_size(self, typical: float, bounds: tuple[float, float]) -> Inverted:
        return self


def test_a_grand_total_is_not_that_of_the_mixture_of_its_cells(
    tmp_path: Path, noise_of: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: clipping turned back through the group's histogram as every cell's shape puts the total far too high."""
    found = errors(tmp_path / "new", spread(0.8), noise_of)
    monkeypatch.setattr(histograms, "HistogramCell", lambda largest_weight, hidden, in_common, **said: Inverted(**said))
    monkeypatch.setattr(TypicalWeights, "relative", lambda typical, noisy, chosen: typical.histograms)
    before = errors(tmp_path / "old", spread(0.8), noise_of)
    assert abs(found[TOTAL]) < 3.0
    assert found.abs().max() < 5.0
    assert found.abs().median() < 0.7
    assert before[TOTAL] > 10.0


def test_cells_that_are_alike_stay_near_their_direct_counts(tmp_path: Path, noise_of: Named) -> None:
    found = errors(tmp_path / "alike", spread(0.0), noise_of)
    assert found.abs().median() < 0.3
    assert found.abs().max() < 2.0


def test_errors_hold_half_of_what_the_shape_tells_beyond_the_limits() -> None:
    """Exactly; nothing where limits hold every value. A cell at three times its group's scale has more beyond them."""
    cell = made([1.0, 2.0, 9.0], [10.0, 20.0, 70.0])
    mean, observed = (1 * 10 + 2 * 20 + 9 * 70) / 12, (1 * 10 + 2 * 20 + 9 * 40) / 12
    of_weight, of_outcome = cell.misfit((0.0, 0.0), (20.0, 3.0, 20.0))
    assert of_weight == pytest.approx(0.5 * (1.0 - (1 + 2 + 3) / 12))
    assert of_outcome == pytest.approx(0.5 * (mean - observed))
    assert (cell.misfit((0.0, 0.0), (50.0, 9.0, 50.0)) == 0.0).all()
    heavy = cell.misfit((np.log(3.0), 0.0), (20.0, 3.0, 20.0))[0]
    assert heavy == pytest.approx(0.5 * (1.0 - (3 + 3 + 3) / 36))
    assert cell.misfit((-np.log(3.0), 0.0), (20.0, 3.0, 20.0))[0] == of_weight


def test_tails_below_and_above_a_window_do_not_make_up_for_each_other() -> None:
    """A window cuts 15 off either end of the outcomes: their mean stays, and its error does not. Control: one end alone."""
    cell = made([1.0, 1.0, 1.0], [0.0, 40.0, 80.0])
    both = cell.misfit((0.0, 0.0), (40.0, 1.0, 25.0))[1]
    assert both == pytest.approx(0.5 * np.hypot(15.0 / 3.0, 15.0 / 3.0))
    assert cell.misfit((0.0, 0.0), (52.5, 1.0, 37.5))[1] == pytest.approx(0.5 * 15.0 / 3.0)


def test_rounding_leaves_no_variance_below_zero() -> None:
    """A covariance that rounding makes a little negative: an error of nothing, not NaN."""
    cell = made([1.0, 2.0, 9.0], [10.0, 20.0, 70.0])
    assert cell.blur is not None
    less = -1e-18 * np.eye(3)
    blurred = replace(cell, blur=cell.blur._replace(of_weight=less, of_outcome=less)).blurred((20.0, 3.0, 20.0))
    assert (blurred == 0.0).all()


def test_half_of_a_misfits_variance_is_a_cells_own() -> None:
    """So that differences within a group hold it; the other half is the group's."""
    cells, limits = (
        [made([1.0, 2.0, 9.0], [10.0, 20.0, 70.0])] * 3,
        Limits(np.full(3, 20.0), np.full(3, 3.0), np.full(3, 20.0)),
    )
    count = np.full(3, 1e9)
    sums = np.column_stack([(1.0 - 2.0 / 3.0) * count, 0.1 * count]) * UNIT
    found = invert_clipping(cells, limits, sums, count, Noise(1.0, 1.0), False)
    s, g = found.scale[0].tolist()
    misfit = cells[0].misfit((s, g), (20.0, 3.0, 20.0))
    np.testing.assert_allclose(found.tail[0] ** 2, 0.5 * misfit**2, rtol=1e-9)
    np.testing.assert_allclose(np.diag(found.noise[0]), 0.5 * misfit**2, rtol=1e-3)
    assert not found.common.any()


def made(weight: list[float], outcome: list[float], within: int = 0) -> HistogramCell:
    """A cell of histograms without noise."""
    places = np.array(weight), np.zeros((len(weight),) * 2), np.array(outcome), np.zeros((len(outcome),) * 2)
    shape = np.array(weight), np.array(outcome), 0.0, 100.0, True, 1000
    return HistogramCell(*shape, blur=Blur(*places), shrunk_within=within, largest_weight=50.0)


def test_a_clipped_weight_gets_its_groups_tail_and_no_more() -> None:
    """Exactly; a cell with five times another's clipped mean has five times its weight. Control: inverted, it has more."""
    cell, limits = made([1.0, 2.0, 9.0], [10.0, 20.0, 70.0]), (20.0, 3.0, 20.0)
    s, _ = cell.solve((1 + 2 + 3) / 3 / 3.0, 0.0, limits)
    assert cell.mean_weight * np.exp(s) == pytest.approx(cell.mean_weight)
    light, heavy = (cell.solve(v, 0.0, limits)[0] for v in (0.18, 0.9))
    assert heavy - light == pytest.approx(np.log(5.0))
    assert Cell.solve(cell.shape, 0.9, 0.0, limits)[0] - Cell.solve(cell.shape, 0.18, 0.0, limits)[0] > np.log(6.0)


def test_a_mean_outcome_is_found_at_its_scale_whatever_the_weights_are() -> None:
    """Control: taken with the weight's scale in place of its clipped mean, it is another."""
    y = np.array([10.0, 20.0, 70.0])
    cell, limits = made([4.0, 4.0, 4.0], y.tolist()), (30.0, 3.0, 30.0)
    for v in (0.2, 0.7, 1.0):
        product = v * np.clip((1.2 * y - 30.0) / 30.0, -1.0, 1.0).mean()
        assert cell.mean_at(cell.solve(v, product, limits)[1]) == pytest.approx(1.2 * y.mean(), rel=1e-9)
    assert abs(cell.mean_at(cell.solve(0.5, product, limits)[1]) - 1.2 * y.mean()) > 5.0


SHAPES = [[0.0, 0.0, 0.4, 100.0], [10.0, 20.0, 70.0, 90.0], [0.0, 0.0, 0.0, 100.0], [99.0, 100.0, 100.0, 100.0]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mean_within_the_public_bounds_follows_from_the_noisy_sums_alone(shape: list[float]) -> None:
    """Σwy/Σw of records, whatever the histogram's shape says. Control: that shape's own scale leads elsewhere."""
    rng = np.random.default_rng(3)
    weight, outcome = rng.uniform(1.0, 9.0, 500), 100.0 * (rng.random(500) < 0.24)
    cell, limits = made([1.0, 2.0, 9.0, 4.0], shape), (50.0, 9.0, 50.0)
    v, c = weight / 9.0, (outcome - 50.0) / 50.0
    found = cell.mean_at(cell.solve(float(v.mean()), float((v * c).mean()), limits)[1])
    assert found == pytest.approx(np.average(outcome, weights=weight), rel=1e-9)


def test_scaling_a_shape_of_yes_and_no_raises_no_mean() -> None:
    """The control of the one before: a shape of 0, a little above it and 1, turned back by its scale, stays far below."""
    shape = made([1.0, 1.0, 1.0, 1.0], SHAPES[0]).shape
    assert shape.mean_at(shape.solve(1.0, 0.8, (50.0, 1.0, 50.0))[1]) < 60.0


def test_noise_may_hide_records_between_the_last_that_are_sure_and_the_public_bound() -> None:
    """The mean excess over a limit of values whose density falls, against their average; none beyond the public bound."""
    values = np.geomspace(20.0, 100.0, 200_001)
    for limit, power in itertools.product((5.0, 20.0, 40.0, 100.0), (0.0, 0.5, 1.0, 6.0)):
        excess = np.average(np.maximum(values - limit, 0.0), weights=values**-power)
        assert beyond(limit, Ends(20.0, 100.0, power)) == pytest.approx(excess, rel=1e-3, abs=1e-9)
    ends = Ends(9.0, 50.0), Ends(0.0, 0.0), Ends(70.0, 100.0)
    cell = replace(made([1.0, 2.0, 9.0], [10.0, 20.0, 70.0]), hidden=Hidden(0.01, *ends))
    whole = cell.misfit((0.0, 0.0), (50.0, 50.0, 50.0))
    assert (whole == 0.0).all()
    assert cell.misfit((0.0, 0.0), (40.0, 9.0, 40.0))[1] == pytest.approx(0.01 * beyond(80.0, ends[2]))
    assert cell.misfit((0.0, 0.0), (50.0, 9.0, 50.0))[0] == pytest.approx(0.01 * beyond(9.0, ends[0]) / 4.0)


def test_points_that_are_passed_on_keep_quantiles_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes stood at 20 ranks, and quantiles above them. Control: such points have quantiles a tenth off."""
    weight, outcome = (np.exp(0.8 * scipy.special.ndtri(order)) for order in paired_levels(2))
    cell, levels = made(weight.tolist(), (10.0 * outcome).tolist()), np.arange(0.05, 0.96, 0.05)

    def quantiles(weight: Floats, outcome: Floats) -> Floats:
        order = np.argsort(outcome)
        return np.asarray(outcome[order][np.searchsorted(np.cumsum(weight[order]) / weight.sum(), levels)])

    exact, points = quantiles(cell.weight, cell.outcome), cell.transported(cell.mean_weight, cell.mean, 400)
    assert np.abs(quantiles(*points) / exact - 1.0).max() < 0.03
    assert abs(quantiles(*points) / exact - 1.0).mean() < 0.01
    assert points[0].std() == pytest.approx(cell.weight.std(), rel=0.08)
    assert len(points[0]) == len(cell.transported(cell.mean_weight, cell.mean, 403)[0]) - 3
    monkeypatch.setattr(histogram_cells, "_fewer", condensed)
    control = quantiles(*cell.transported(cell.mean_weight, cell.mean, 400))
    assert np.abs(control / exact - 1.0).max() > 0.06


def test_limits_are_the_public_bounds_where_noise_is_small_and_narrow_where_it_is_not() -> None:
    rng = np.random.default_rng(5)
    weight, outcome = np.exp(rng.normal(1.0, 1.0, 400)).clip(1, 50).tolist(), np.exp(rng.normal(2, 1, 400)).clip(0, 100)
    cell = made(weight, outcome.tolist())
    wide, narrow = (choose([cell], 1000, Noise(variance, variance)) for variance in (1e-9, 1e4))
    assert wide.cap >= max(weight)
    assert wide.centre[0] + wide.reach[0] >= outcome.max()
    assert narrow.cap < 0.5 * max(weight)
    assert narrow.reach[0] < 0.5 * wide.reach[0]
    tried = [cell.error_of_count(cap, 1000, 1e4) for cap in (narrow.cap, 50.0)]
    assert tried[0] < tried[1]


def predicted(codes: Codes, count: Floats, margins: list[tuple[int, ...]], own: Floats, common: float) -> float:
    """Sum over published cells of their squared errors in direct variances, one a record: of cells' own errors and of one
    that all have alike, cell by published cell."""
    total = 0.0
    for margin in margins:
        for levels in {tuple(row[list(margin)]) for row in codes}:
            part = count * [tuple(row[list(margin)]) == levels for row in codes] / 1.0
            share = part / part.sum()
            total += float(share**2 @ own**2 + (share.sum() * common) ** 2) * float(part.sum())
    return total


@pytest.mark.parametrize(
    ("margins", "expected"), [([(0, 1)], 1.0), ([(0, 1), (0,), (1,), ()], 4.0 / ((1 + 1 / 3) * (1 + 1 / 4))), ([()], 12.0)]
)
def test_an_error_in_common_counts_as_often_as_the_published_tables_say(
    margins: list[tuple[int, ...]], expected: float
) -> None:
    """Of 3 × 4 equal cells exactly; of unequal ones it is the ratio of both parts of the sum over published cells."""
    codes = np.array([[a, b] for a in range(3) for b in range(4)], dtype=np.int32)
    one = np.zeros(12, dtype=np.int32)
    assert in_common(codes, np.full(12, 50.0), one, margins) == pytest.approx(expected)
    count = np.random.default_rng(1).uniform(5.0, 900.0, 12)
    of_all = predicted(codes, count, margins, np.zeros(12), 1.0) / predicted(codes, count, margins, count**-0.5, 0.0)
    apart = in_common(codes, count, np.arange(12, dtype=np.int32), margins)
    assert np.average(apart, weights=1.0 / apart) == pytest.approx(float(in_common(codes, count, one, margins)[0]))
    assert of_all == pytest.approx(count.sum() * len(margins) / (12.0 / apart).sum() * 12.0 / len(margins))


def test_limits_are_wider_where_more_is_published_of_many_cells() -> None:
    """The tail's error is then a larger part of what is published. Control: noise moves limits the other way."""
    rng = np.random.default_rng(5)
    weight, outcome = np.exp(rng.normal(1.0, 1.0, 400)).clip(1, 50).tolist(), np.exp(rng.normal(2, 1, 400)).clip(0, 100)
    few, many = (replace(made(weight, outcome.tolist()), in_common=times) for times in (1.0, 1e3))
    narrow, wide, noisier = (choose([cell], 1000, Noise(v, v)) for cell, v in ((few, 1e4), (many, 1e4), (many, 1e7)))
    assert narrow.cap < wide.cap
    assert narrow.reach[0] < wide.reach[0]
    assert noisier.reach[0] < wide.reach[0]


def found_weights(cells: Sequence[Cell], v: Floats, cap: float) -> Floats:
    """Mean weights that noisy means v tell."""
    found = [cell.solve(each, 0.0, (50.0, cap, 50.0))[0] for cell, each in zip(cells, v.tolist(), strict=True)]
    return np.array([cell.mean_weight for cell in cells]) * np.exp(found)


def of_scales(apart: float, noise: float, seed: int = 2) -> tuple[Floats, Floats, Floats, Floats]:
    """Twenty cells of 400 records, of one law at log scales of this deviation, in one group without noise in its histogram,
    clipped at its .85 quantile: true mean weights; by the group's tail alike in all cells; by cells' own; clipped ones."""
    rng = np.random.default_rng(seed)
    log_scale = apart * rng.standard_normal(20)
    weight = np.exp(2.0 + log_scale[:, None] + 0.5 * rng.standard_normal((20, 400)))
    cell = made(np.quantile(weight, (np.arange(1000) + 0.5) / 1000).tolist(), [50.0] * 1000)
    cap, n = float(np.quantile(weight, 0.85)), np.full(20, 400.0)
    v = np.minimum(weight, cap).mean(axis=1) / cap + np.sqrt(noise / 2.0) * rng.laplace(size=20) / 400.0
    cells = with_own_tails([cell] * 20, np.full(20, cap), v, n, noise)
    found = [
        np.array(
            [
                own.mean_weight * np.exp(own.solve(each, 0.0, (50.0, cap, 50.0))[0])
                for own, each in zip(part, v, strict=True)
            ]
        )
        for part in ([cell] * 20, cells)
    ]
    return weight.mean(axis=1), found[0], found[1], v * cap


def test_a_cell_beyond_its_groups_scale_has_more_beyond_the_cap() -> None:
    """Cells whose log scales have a deviation of .5: errors fall to a half, and the group's total stays. Control: where
    cells are alike nothing changes beyond what chance makes of their sums."""
    true, alike, own, _ = of_scales(0.5, 4.0)
    assert own.sum() == pytest.approx(alike.sum(), rel=1e-9)
    errors = [np.abs(np.log(found / true)).max() for found in (alike, own)]
    assert errors[1] < 0.5 * errors[0]
    _, alike, own, _ = of_scales(0.0, 4.0)
    np.testing.assert_allclose(own, alike, rtol=0.02)


def test_a_cell_without_weights_beyond_the_cap_gets_no_part_of_the_groups_tail() -> None:
    """Nine cells of weight 1 and one of 20, under a cap of 10. Control: were tails alike, the light ones would have it."""
    cell = made([1.0] * 9 + [20.0], [50.0] * 10)
    v = np.array([0.1] * 9 + [1.0])
    cells = with_own_tails([cell] * 10, np.full(10, 10.0), v, np.full(10, 1e6), 1.0)
    means = np.array(
        [c.mean_weight * np.exp(c.solve(e, 0.0, (50.0, 10.0, 50.0))[0]) for c, e in zip(cells, v, strict=True)]
    )
    np.testing.assert_allclose(means[:9], 1.0, rtol=0.02)
    assert means[9] == pytest.approx(20.0, rel=0.02)
    assert cell.mean_weight * np.exp(cell.solve(0.1, 0.0, (50.0, 10.0, 50.0))[0]) > 1.4, "control"


@pytest.mark.parametrize(
    ("weights", "heaviest", "alike"), [([1.0] * 9 + [20.0], 1.0, False), (np.geomspace(1.0, 9.0, 50).tolist(), 0.45, True)]
)
def test_variances_within_and_between_cells_add_up_to_the_histograms(
    weights: list[float], heaviest: float, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """κ² Var(log w) + A = Var(log w). By moments alone A is above Var(log w) if one cell in ten has 20 times the weights.
    Control: nearly alike cells leave most of the variance within cells, and A is what the moments say."""
    cell, seen = made(weights, [50.0] * len(weights)), list[tuple[float, float]]()
    v = np.array([np.minimum(weights, 10.0).mean() / 10.0 if alike else 0.1] * 9 + [heaviest])

    def kept(own: HistogramCell, v: float, error: float, cap: float, between: float) -> float:
        seen.append((own.within_cells, between))
        return 0.0

    monkeypatch.setattr(HistogramCell, "tail_of", kept)
    with_own_tails([cell] * 10, np.full(10, 10.0), v, np.full(10, 1e6), 1.0)
    variance = float(np.log(cell.weight).var())
    assert len(seen) == 10
    for own, between in seen:
        assert own**2 * variance + between == pytest.approx(variance)
        assert (own > 0.9) == alike


@pytest.mark.parametrize("cells", [1, 2])
def test_few_cells_keep_their_groups_tail(cells: int) -> None:
    given = [made([1.0, 2.0, 9.0], [10.0, 20.0, 70.0])] * cells
    found = with_own_tails(given, np.full(cells, 3.0), np.full(cells, 0.6), np.full(cells, 100.0), 4.0)
    assert all(one is other for one, other in zip(found, given, strict=True))


@pytest.mark.parametrize("v", [[0.0] * 10, [-1e6] * 10, [1.0, -1.0] * 5, [1e6] * 10, [0.1] * 10])
@pytest.mark.parametrize("cap", [3.0, 10.0, 1e9])
def test_every_noisy_mean_gives_each_cell_a_tail(v: list[float], cap: float) -> None:
    """Also where a group's histogram has nothing beyond the cap, by which a cell's tail is then not scaled."""
    for weights in (np.geomspace(1.0, 9.0, 50).tolist(), [0.1, 0.7], [1e-3 / 3.0] * 7):
        cell = made(weights, [50.0] * len(weights))
        found = with_own_tails([cell] * 10, np.full(10, cap), np.array(v), np.full(10, 50.0), 8.0)
        tails = np.array([own.tail for own in found if isinstance(own, HistogramCell)])
        assert np.isfinite(tails).all()
        if cap > max(weights):
            np.testing.assert_allclose(tails, 0.0, atol=1e-9)


GROUP_SIZES: list[tuple[str, Adjacency, float, list[int]]] = [
    ("3/10", "zero_out", 2000.0, [0, 0, 1, 2, 2]),
    ("3", "zero_out", 200.0, [0, 1, 2, 3, 4]),
    ("3/10", "substitution", 4000.0, [0, 0, 0, 0, 0]),
]


@pytest.mark.parametrize(("epsilon", "adjacency", "fewest", "expected"), GROUP_SIZES)
def test_groups_are_as_large_as_the_noise_on_a_count_asks(
    epsilon: str, adjacency: Adjacency, fewest: float, expected: list[int]
) -> None:
    """FEWEST_POOLED scales of the noise: 300 · 2/.3 = 2,000 records under zero_out, twice as many under substitution, and a
    tenth at ten times ε. Cells of fewer are pooled with those that share the first column; what is left, with the smallest
    group. Control: an added record makes a cell of 1,999 a group of its own."""
    codes = np.array([[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]], dtype=np.int32)
    least = FEWEST_POOLED * histogram_counts(2, Fraction(epsilon), adjacency).scale_as_laplace
    assert least == pytest.approx(fewest)
    count = np.array([1200.0, 900.0, 2500.0, 1000.0, 1100.0])
    assert grouped(codes, count, least).tolist() == expected
    size = np.bincount(grouped(codes, count, least), weights=count)
    assert size.min() >= least or len(size) == 1
    for records, groups in ((1999.0, 1), (2000.0, 2)):
        two = np.array([[0, 0], [1, 0]], dtype=np.int32)
        assert grouped(two, np.array([5000.0, records]), 2000.0).max() + 1 == groups


def test_cells_are_shrunk_within_their_group_alone() -> None:
    """Six cells alike, and six cells of another group, one far lighter. Control: in one group it is drawn to the rest."""

    def lightest(apart: bool) -> float:
        cells = [made([5.0, 10.0, 20.0], [10.0, 20.0, 70.0], int(apart and k > 5)) for k in range(12)]
        limits = Limits(np.full(12, 50.0), np.full(12, 20.0), np.full(12, 50.0))
        means, count = np.array([0.583] * 6 + [0.583, 0.3, 0.9, 0.2, 0.7, 0.07]), np.array([1e5] * 6 + [100.0] * 6)
        sums = np.column_stack([(1.0 - means) * count, np.zeros(12)]) * UNIT
        return float(invert_clipping(cells, limits, sums, count, Noise(16.0, 16.0), True).estimate[-1, 0])

    own = 20.0 * 0.07
    assert abs(np.log(lightest(True) / own)) < 0.5 * abs(np.log(lightest(False) / own))


UNNAMED = JOB.replace('reference: {{histogram: {{epsilon: "0.3"}}}}\n', "")


def test_a_job_that_names_no_reference_pays_a_third_for_histograms(tmp_path: Path) -> None:
    job = dpdist.parse_job(UNNAMED.format(folder=tmp_path, states=STATES))
    said = dpdist.parse_job(UNNAMED.format(folder=tmp_path, states=STATES) + 'reference: {histogram: {epsilon: "1/3"}}\n')
    assert job == said
    assert job.identity == said.identity
    spread(0.4).to_parquet(tmp_path / "now.parquet")
    public = dpdist.run(job, tmp_path / "ws")
    told = json.loads((public / "statement.json").read_text(encoding="utf-8"))
    assert "ε₀ = 1/3 for the histograms that fix the limits, ε₁ = 2/3 for the table" in told["composition"]
    assert any("Public bounds alone limit 0 of 24 cells" in step for step in told["post_processing"])
    assert "noisy histograms take 1/3 of epsilon and leave 2/3" in str(dpdist.plan(job))


@pytest.mark.parametrize("adjacency", ["add_remove", "substitution, exchange: anywhere"])
def test_where_sizes_are_secret_a_reference_must_be_named(adjacency: str) -> None:
    text = UNNAMED.replace('epsilon: "1"}}', 'epsilon: "1", adjacency: ' + adjacency + "}}", 1)
    with pytest.raises(JobError, match="add reference"):
        dpdist.validate(dpdist.parse_job(text.format(folder="nowhere", states=STATES)))


TOP, TAIL_SCALE, DRAWS = 5e6, 16.0, 12


def histogram_means(size: int) -> Floats:
    """Mean incomes of smoothed noisy histograms over those of records. Half are zeros, and others have a Pareto tail."""
    rng, bins, ratios = np.random.default_rng(1), Bins.within(0.0, TOP), []
    values = bins.value_at(np.arange(len(bins.left)), np.full(len(bins.left), 0.5))
    for _ in range(DRAWS):
        incomes = np.minimum(20_000.0 * rng.pareto(1.6, size) * (rng.random(size) < 0.5), TOP)
        count = np.bincount(bins.number(incomes), minlength=len(bins.left))
        first, second = rng.geometric(-np.expm1(-1.0 / TAIL_SCALE), (2, len(count)))
        share, _ = smoothed(count + first - second, size, 2.0 * TAIL_SCALE**2, bins)
        ratios.append(share @ values / (count @ values / size))
    return np.array(ratios)


def test_noise_puts_few_records_into_the_upper_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed seeds. Controls: the search begins at noisy counts, and no tail is concave."""
    means = histogram_means(12_000)
    assert abs(means.mean() - 1.0) < 0.1
    assert means.max() < 1.3
    assert histogram_means(3_000).max() < 4.0
    with monkeypatch.context() as patch:
        patch.setattr(histograms_of_groups, "NO_START", 0.0)
        assert histogram_means(3_000).max() > 8.0
    monkeypatch.setattr(histograms_of_groups, "_tail", lambda noisy, variance, bins: np.zeros((0, len(noisy))))
    assert histogram_means(12_000).max() > 1.6
