"""An earlier release's shapes brought up to date: what histograms over its orders cost, and where they move its points."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame
from dpdist.job.loading import parse_job
from dpdist.mechanisms.reference_tables.histograms import Refresh
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.query import HistogramCounts
from dpdist.reference.clipping import Cell
from dpdist.reference.quantile_bins import ORDERS, QuantileLevels, numbers, towards

JOB = """
dataset: fresh
period: "2021"
columns:
  field: {{levels: [arts, law]}}
  salary: {{bounds: [0, 1000], outside: clip}}
  paid: {{bounds: [0, 1], whole: true, outside: clip}}
survey: {{weight: weight}}
outcome: {outcome}
mechanism: {{name: reference_tables}}
budget: {{epsilon: "1", adjacency: {adjacency}}}
reference: {{release: before, histogram: {{epsilon: "1/4"}}}}
tables: [{{name: one, by: [field], statistics: [count]}}]
"""
BINS = len(ORDERS) + 3


def carried(seed: int = 0, n: int = 400) -> list[Cell]:
    rng = np.random.default_rng(seed)
    made = [(np.exp(rng.normal(3, 1, n)), np.round(np.exp(rng.normal(5 + k / 2, 0.6, n)), 0)) for k in range(2)]
    return [Cell.of(w, np.where(np.arange(n) < 20, 0.0, np.minimum(y, 1000.0)), (0.0, 1000.0)) for w, y in made]


def refresh(adjacency: str = "zero_out", outcome: str = "salary", count: int = 3000) -> Refresh:
    """Two cells; at 3,000 records each stands alone, at 1,000 both share their histograms."""
    job = parse_job(JOB.format(adjacency=adjacency, outcome=outcome))
    frame = Frame({"field": np.arange(2, dtype=np.int32)}, {"field": ("arts", "law")}, np.full(2, count), (), ())
    two_valued = [Cell.of(c.weight, (c.outcome > 150).astype(float), (0.0, 1.0)) for c in carried()]
    told = {"salary": carried(), "paid": two_valued}
    model = ReferenceCells.build(job, frame, slice(0, 2))
    return Refresh.build(job, model, [told[name] for name in model.outcomes])


def counted(known: Refresh, rows: tuple[tuple[int, float, float], ...]) -> Floats:
    """Counts of records (cell, weight, salary)."""
    cell, weight, salary = np.array(rows, dtype=float).reshape(-1, 3).T
    frame, none = cell.astype(np.int32), np.full(len(cell), -1, dtype=np.int32)
    return HistogramCounts(known).sums(Records(np.arange(len(cell)), frame, salary, weight, none))


GRID = list(product((0, 1), (0.1, 20.0, 1e6), (0.0, 140.0, 150.0, 999.0, 1000.0)))


def losses(known: Refresh, adjacency: str) -> list[float]:
    """Of histograms of all neighbours of at most two records, exact for discrete Laplace noise: L1 distance over scale."""
    found = []
    for rest in [(), *((one,) for one in GRID)]:
        held = [counted(known, (*rest, one)) for one in GRID]
        others = held if adjacency == "substitution" else [counted(known, rest)]
        found += [float(np.abs(a - b).sum()) / float(known.query.scale) for a, b in product(held, others)]
    return found


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
@pytest.mark.parametrize("count", [3000, 1000])
def test_histograms_over_carried_orders_cost_what_they_are_given_and_it_is_attained(adjacency: str, count: int) -> None:
    assert max(losses(refresh(adjacency, count=count), adjacency)) == pytest.approx(0.25, rel=1e-12)


def test_noise_of_one_histogram_on_two_is_caught() -> None:
    known = refresh()
    assert max(losses(replace(known, query=replace(known.query, scale=known.query.scale / 2)), "zero_out")) > 0.4


def test_edges_from_the_current_file_are_caught() -> None:
    """Control: bins at the current file's own quantiles move with one record, and half of the others change theirs."""
    found = []
    for zeros in (200, 199):
        now = np.repeat([0.0, 1.0], [zeros, 400 - zeros])
        edges = QuantileLevels.of(now, 0.0, 1.0).edges
        found.append(np.bincount(numbers(edges[None], np.zeros(400, dtype=np.int64), now), minlength=BINS))
    assert np.abs(found[0] - found[1]).sum() > 200


def test_an_outcome_of_two_values_has_no_histogram() -> None:
    known = refresh(outcome="[salary, paid]")
    assert (known.shaped, len(known.orders), known.query.scale) == ((0,), 2, Fraction(8))
    both = known.summarise(np.random.default_rng(2).uniform(50, 250, (2, 2 * BINS)))
    assert set(both[1][0].outcome) == {0.0, 1.0}
    assert both[1][0].weight == pytest.approx(both[0][0].weight)
    assert not np.allclose(both[0][0].weight, carried()[0].weight)


def test_cells_of_a_group_share_one_histogram_in_orders_of_their_own() -> None:
    known = refresh(count=1000)
    assert known.group.tolist() == [0, 0]
    middles = [[(k, w, y) for w, y in zip(cell.weight, cell.outcome, strict=True)] for k, cell in enumerate(carried())]
    each = [counted(known, tuple(rows))[0] for rows in middles]
    assert np.abs(each[0][:BINS] - each[1][:BINS]).max() <= 1, "whatever the scales of two cells, their orders are alike"


@pytest.mark.parametrize("count", [3000, 1000])
def test_a_file_of_the_carried_shape_leaves_its_points_where_they_are(count: int) -> None:
    """Exact: counts are the carried shares times the public sizes."""
    known = refresh(count=count)
    shares = np.array([np.concatenate([orders[k].share for orders in known.orders]) for k in range(2)])
    exact = shares * count if count == 3000 else shares.sum(axis=0, keepdims=True) * count
    for before, after in zip(known.carried[0], known.summarise(exact)[0], strict=True):
        assert after.weight == pytest.approx(before.weight, rel=1e-9)
        assert after.outcome == pytest.approx(before.outcome, rel=1e-9)


def test_where_noise_is_small_points_have_the_current_shares() -> None:
    """At counts of a million the carried shape is worth nothing: the points' shares are the file's, to one point in 400."""
    known = refresh(count=1_000_000)
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.full(BINS, 2.0), (2, 2))
    shares[:, 1, [0, -1]] = 0.0  # no salary lies beyond the public bounds, which the points reach
    shares /= shares.sum(axis=2, keepdims=True)
    for k, after in enumerate(known.summarise(shares.reshape(2, -1) * 1e6)[0]):
        for orders, own, values in zip(known.orders, shares[k], (after.weight, after.outcome), strict=True):
            upper = np.cumsum(own)[:-1]
            told = [(values <= edge).mean() for edge in orders[k].edges]
            steps = np.diff(orders[k].edges, prepend=-np.inf) > 0
            assert np.array(told)[steps] == pytest.approx(upper[steps], abs=0.004)


def test_ranks_stay() -> None:
    known = refresh()
    noisy = np.random.default_rng(4).uniform(50, 250, (2, 2 * BINS))
    for before, after in zip(known.carried[0], known.summarise(noisy)[0], strict=True):
        order = np.argsort(before.weight, kind="stable")
        assert (np.diff(after.weight[order]) >= 0).all()
        assert before.low <= after.outcome.min() <= after.outcome.max() <= before.top


@pytest.mark.parametrize(("drift", "noise"), [(0.0, 3.0), (0.02, 10.0), (0.5, 20.0)])
def test_shares_err_by_what_is_said_and_less_than_either_source(drift: float, noise: float) -> None:
    """4,000 bins of 50 records, so that chance is small: error about the population's shares over them, within a tenth."""
    rng, bins, standing = np.random.default_rng(5), 4000, 2e5
    n, before = 50.0 * bins, rng.poisson(standing / bins, bins) / standing
    truth = rng.gamma(1.0 / drift, drift / bins, bins) if drift else np.full(bins, 1.0 / bins)
    noisy = rng.poisson(n * truth) + rng.laplace(0.0, noise, bins)
    found = towards(before / before.sum(), noisy, n, 2.0 * noise**2)
    errors = [float(((shares - truth) ** 2).sum()) for shares in (found.after, before, noisy / n)]
    assert errors[0] < 1.02 * min(errors[1:])
    assert 1.0 / found.records(standing) == pytest.approx(errors[0], rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_another_scale_and_spread_move_tails_with_the_rest(seed: int) -> None:
    """Weights half as spread again and a tenth larger: two numbers are found to .03, and the largest point to a tenth.

    Control: under the shares of bins alone the largest point would grow by nothing that is larger than its last bin.
    """
    known = refresh(count=100_000)
    noise = np.random.default_rng(seed).laplace(0.0, float(known.query.scale), (2, 2 * BINS))
    counts = []
    for weight, salary in zip(*known.orders, strict=True):
        shares = (weight.under(0.1, np.log(1.5)).share, salary.share)
        counts.append(100_000 * np.concatenate(shares))
    for k, after in enumerate(known.summarise(np.array(counts) + noise)[0]):
        exact = known.orders[0][k].moved(known.carried[0][k].weight, 0.1, np.log(1.5))
        assert np.log(after.weight / exact).std() < 0.03
        assert after.weight.max() == pytest.approx(exact.max(), rel=0.1)
        assert exact.max() > 2.0 * known.orders[0][k].points[-1]
        assert np.average(after.outcome) == pytest.approx(np.average(known.carried[0][k].outcome), rel=0.03)


def test_a_file_without_drift_keeps_nearly_all_of_the_carried_shape() -> None:
    """Noise and sampling alone: over 50 files the shape's own error grows by less than half. Control: noisy shares' own."""
    rng, n = np.random.default_rng(6), 3000
    before = rng.multinomial(n, np.full(BINS, 1.0 / BINS)) / n
    noisy = rng.multinomial(n, np.full(BINS, 1.0 / BINS), 50) + rng.laplace(0.0, 16.0, (50, BINS))
    kept = [((towards(before, row, n, 512.0).after - 1.0 / BINS) ** 2).sum() for row in noisy]
    raw = [((row / n - 1.0 / BINS) ** 2).sum() for row in noisy]
    own = ((before - 1.0 / BINS) ** 2).sum()
    assert np.mean(kept) < 1.5 * own < np.mean(raw)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.lists(st.floats(-2e3, 2e3), min_size=1, max_size=20))
def test_every_value_has_one_bin_and_own_shares_move_nothing(points: list[float], values: list[float]) -> None:
    known = QuantileLevels.of(np.array(points), -1e4, 1e4)
    number = numbers(known.edges[None], np.zeros(len(values), dtype=np.int64), np.array(values))
    edges = np.concatenate([[-np.inf], known.edges, [np.inf]])
    assert ((edges[number] < values) & (values <= edges[number + 1])).all()
    assert known.share.sum() == pytest.approx(1.0)
    assert known.share[[0, -1]].tolist() == [0.0, 0.0]
    assert known.transported(np.array(points), known.share) == pytest.approx(np.array(points), abs=1e-6)


def test_values_that_may_be_negative_are_shifted_and_spread() -> None:
    known = QuantileLevels.of(np.linspace(-30.0, 30.0, 61), -50.0, 50.0)
    moved = known.under(0.5, np.log(1.2))
    assert moved.points == pytest.approx(np.clip(15.0 + 1.2 * np.linspace(-30.0, 30.0, 61), -50.0, 50.0))
    assert moved.share[-1] == pytest.approx((moved.points > 30.0).mean())


def test_zeros_and_values_at_the_upper_bound_stay() -> None:
    known = QuantileLevels.of(np.array([0.0, 1.0, 4.0, 16.0, 100.0]), 0.0, 100.0)
    assert known.under(np.log(2.0), np.log(2.0)).points == pytest.approx([0.0, 0.2, 3.2, 51.2, 100.0])
