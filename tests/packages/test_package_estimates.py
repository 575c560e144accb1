"""Tables of a package agree, stay within public bounds, need no reference record in a cross, and have honest errors."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import scipy
from simulated_package import (
    BOUNDS,
    PURE,
    TABLES,
    Budget,
    Survey,
    nested_workload,
    noisy,
    planned,
    reference,
    table_estimates,
    workload,
    world,
)

from dpdist.core.records import Floats, Ints
from dpdist.packages import posterior as posteriors
from dpdist.packages import sums
from dpdist.packages.error_draws import by_other, by_sample
from dpdist.packages.estimates import BaseEstimates, base_estimates, projected
from dpdist.packages.group_shapes import GroupLaw, GroupShapes
from dpdist.packages.package import Package, Predicted, Reference, best_package, package
from dpdist.packages.posterior import Posterior, learned, with_hidden
from dpdist.packages.shares import noise_of
from dpdist.packages.strategy import (
    CLEARLY,
    EXTENTS,
    STRATEGIES,
    BaseCells,
    PerTable,
    Strategy,
    TopDown,
    _extent,
    whole_shares,
)
from dpdist.packages.sums import crossed, published_sums, variances
from dpdist.packages.workload import PackageTable, Workload, indicator

N, RUNS = 3000, 1000
RUNS_OF_LEAN = 4
NORMAL_90 = 1.645


@cache
def sample() -> Survey:
    return world().draw(N, np.random.default_rng(7))


@cache
def count() -> Floats:
    return np.bincount(sample().cell, minlength=len(world().share)).astype(float)


@cache
def made(epsilon: int = 4) -> Package:
    return planned(count(), reference(8), replace(PURE, epsilon=Fraction(epsilon)))


def test_a_group_with_rare_large_outcomes_does_not_widen_what_other_groups_lack() -> None:
    """One sex earns nothing but for a few: their outcomes are thousands of times their mean, as no others' are."""

    def error(rare: bool) -> float:
        of = reference(8, 5000)
        one, first = world().codes[:, 1] == 0, np.arange(len(of.cell)) % 100 == 0
        outcome = np.where(one[of.cell], np.where(first & rare, BOUNDS[1], 0.001), of.outcome)
        package = planned(count(), of._replace(outcome=outcome), PURE)
        predicted = next(table for table in package.predicted() if table.table == "sex x age")
        return float(np.nanmedian(predicted.error.means[:, 0].reshape(3, -1)[1]))

    assert error(rare=True) < 1.25 * error(rare=False)


def _released(package: Package, budget: Budget, current: Survey, seed: int) -> tuple[Posterior, BaseEstimates]:
    x = noisy(package, budget, current, np.random.default_rng(seed))
    posterior = learned(package.posterior, x)
    return posterior, base_estimates(posterior, x, [BOUNDS])


@pytest.mark.parametrize("epsilon", [Fraction(1, 50), Fraction(4)])
def test_all_tables_agree_and_stay_within_bounds(epsilon: Fraction) -> None:
    """Margins of one column are the same in every table to 1e-9, also where noise is far larger than the cells."""
    budget = replace(PURE, epsilon=epsilon)
    package = planned(count(), reference(8), budget)
    posterior, base = _released(package, budget, sample(), 1)
    by_region = [
        table_estimates(posterior, PackageTable("margin", (0,), margins=False), base),
        *(table_estimates(posterior, each, base) for each in TABLES if each.by[0] == 0),
    ]
    for each, table in zip(by_region[1:], [t for t in TABLES if t.by[0] == 0], strict=True):
        shape = [size + 1 for size in (workload(count()).sizes[column] for column in table.by)]
        for name in ("counts", "totals"):
            whole = getattr(each, name).reshape(shape)
            margin = whole[(slice(0, -1), *([-1] * (len(shape) - 1)))]
            np.testing.assert_allclose(margin, getattr(by_region[0], name).reshape(-1), rtol=1e-9)
            np.testing.assert_allclose(whole[..., :-1].sum(axis=-1), whole[..., -1], rtol=1e-9)
        assert (each.counts >= 0).all()
        known = np.isfinite(each.means)
        assert (each.means[known] >= BOUNDS[0] - 1e-9).all()
        assert (each.means[known] <= BOUNDS[1] * (1 + 1e-9)).all()


def test_a_projection_keeps_sums_of_tables_and_changes_nothing_within_bounds() -> None:
    """Control: setting values below 0 to 0 alone raises the total."""
    rng, cells = np.random.default_rng(4), workload(count())
    values = rng.normal(3.0, 2.0, len(cells))
    kept = projected(values, cells)
    assert (kept >= 0).all()
    assert np.maximum(values, 0).sum() > 1.02 * values.sum()
    assert kept.sum() == pytest.approx(values.sum(), rel=1e-6)
    positive = np.abs(values)
    assert projected(positive, cells) is positive


def test_released_draws_of_errors_have_the_variances_of_the_formulas() -> None:
    """A release's standard errors are those of draws. A variance of 400 draws errs by .07 to .1 of itself, so that none of
    70 is beyond .5, in 1 of 10,000 runs. Control: errors by the sample alone are smaller."""
    package, rng = made(), np.random.default_rng(3)
    posterior = learned(package.posterior, noisy(package, PURE, sample(), rng))
    parts = by_sample(posterior, 400, rng), by_other(posterior, 400, rng, laplace=True)
    for table in TABLES:
        matrix = workload(count()).published(table)
        for k, functions in enumerate(published_sums(matrix, posterior.prior.levels)):
            drawn = [(part.counts if k == 0 else part.totals[..., 0]) @ matrix.T for part in parts]
            variances_of_draws = np.array([one.var(axis=0) for one in drawn])
            exact = posterior.about_population(functions)
            assert np.abs(variances_of_draws.sum(axis=0)[exact > 0] / exact[exact > 0] - 1.0).max() < 0.5
            assert np.median(variances_of_draws[0][exact > 0] / exact[exact > 0]) < 0.9


def test_a_cross_without_a_reference_record_is_estimated() -> None:
    """A whole cell of a table is without a reference record; its estimate comes from its row and column."""
    codes = world().codes
    without = np.flatnonzero((codes[:, 0] == 1) & (codes[:, 2] == 3))
    package = planned(count(), reference(8, without=without), PURE)
    posterior, base = _released(package, PURE, sample(), 2)
    table = TABLES[1]
    figures = table_estimates(posterior, table, base)
    cell = 1 * (5 + 1) + 3
    truth, weight, outcome = (np.isin(sample().cell, without), sample().weight, sample().outcome)
    count_of, mean_of = weight[truth].sum(), np.average(outcome[truth], weights=weight[truth])
    assert np.isfinite([figures.counts[cell], figures.errors_of_counts[cell], *figures.errors_of_means[cell]]).all()
    assert abs(figures.counts[cell] - count_of) < 5 * figures.errors_of_counts[cell]
    assert abs(figures.means[cell] - mean_of) < 5 * figures.errors_of_means[cell]
    full = table_estimates(*_with(planned(count(), reference(8), PURE), table))
    assert figures.errors_of_means[cell] > full.errors_of_means[cell], "what is borrowed has a larger error"


def _with(package: Package, table: PackageTable) -> tuple[Posterior, PackageTable, BaseEstimates]:
    posterior, base = _released(package, PURE, sample(), 2)
    return posterior, table, base


def _of_two(epsilon: Fraction) -> Package:
    """A package of two outcomes: the second is whether the first is above 60."""
    one = reference(8)
    both = np.column_stack([one.outcome, one.outcome > 60.0])
    law = replace(PURE, epsilon=epsilon).law
    return package(workload(count()), one._replace(outcome=both), [BOUNDS, (0.0, 1.0)], law, PerTable())


def _both(current: Survey) -> Survey:
    return current._replace(outcome=np.column_stack([current.outcome, current.outcome > 60.0]))


@pytest.mark.parametrize("epsilon", [Fraction(1, 50), Fraction(4)])
def test_several_outcomes_have_one_count_and_stay_within_their_bounds(epsilon: Fraction) -> None:
    """Also where noise is far larger than the cells. Control: the outcomes alone have counts that differ there."""
    made, budget = _of_two(epsilon), replace(PURE, epsilon=epsilon)
    x = noisy(made, budget, _both(sample()), np.random.default_rng(1))
    posterior = learned(made.posterior, x)
    base = base_estimates(posterior, x, [BOUNDS, (0.0, 1.0)])
    low, high = np.array([BOUNDS, (0.0, 1.0)]).T
    room = 1e-9 * high * base.counts.max()
    assert (base.counts >= 0.0).all()
    assert (base.totals >= low * base.counts[:, None] - room).all()
    assert (base.totals <= high * base.counts[:, None] + room).all()
    z, levels = posterior.estimated(x), posterior.prior.levels
    totals = levels.weight[:, None] * (levels.mean * z[:, :1] + levels.unit * z[:, 1:3])
    wanted = np.clip(totals.sum(axis=0), low * base.counts.sum(), high * base.counts.sum())
    np.testing.assert_allclose(base.totals.sum(axis=0), wanted, rtol=0.02)
    alone = [
        projected(part, posterior.prior.workload)
        for part in (high[1] * levels.weight * z[:, 0] - totals[:, 1], totals[:, 1])
    ]
    assert np.abs(sum(alone) - base.counts).max() > 1e-3 * base.counts.max()


@pytest.mark.parametrize("outcomes", [1, 2])
def test_planned_errors_are_the_spread_over_runs(outcomes: int) -> None:
    """Levels, drift, records and noise are drawn 1,000 times from the prior; both errors are the spread of the estimates.

    Over 1,000 runs a spread has a standard error of 2.2 %. All 84 spreads, or 126 of two outcomes, are within four of these
    but for a chance of a percent. Control: the errors about the file's figures are not those about the population's.
    """
    package = made() if outcomes == 1 else _of_two(Fraction(4))
    posterior, rng = package.posterior, np.random.default_rng(12)
    prior = posterior.prior
    values, vectors = np.linalg.eigh(prior.sampling)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    matrix = workload(count()).published(TABLES[0])
    published = published_sums(matrix, prior.levels)
    terms, files, means = prior.terms.matrix, [], []
    for _ in range(RUNS):
        d = rng.standard_normal(prior.alone.shape) * np.sqrt(prior.alone)
        for k, (level, drift) in enumerate(zip(prior.levels.errors, posterior.drift, strict=True)):
            d[:, k] += level.shared * (terms @ (level.terms.root @ rng.standard_normal(terms.shape[1])))
            d[:, k] += terms @ (prior.sizes(drift) * rng.standard_normal(terms.shape[1]))
        population = prior.mean + np.einsum("cij,cj->ci", prior.sloped, d)
        for k, (tail, moved) in enumerate(zip(prior.tails, prior.limits.tail_drift.T, strict=True)):
            t = rng.standard_normal(len(count())) * np.sqrt(tail.alone + moved**2)
            t += tail.shared * (terms @ (tail.terms.root @ rng.standard_normal(terms.shape[1])))
            population[:, k] += count() * (t + moved * (terms @ rng.standard_normal(terms.shape[1])))
        z = population + np.einsum("cij,cj->ci", root, rng.standard_normal(prior.mean.shape))
        x = posterior.measured.of(z) + posterior.constant + rng.normal(0.0, np.sqrt(posterior.noise))
        estimated = posterior.estimated(x)
        files.append(np.concatenate([sums.of(estimated - z) for sums in published]))
        means.append(np.concatenate([sums.of(estimated - population) for sums in published]))
    of_file = np.concatenate([posterior.errors(sums).file for sums in published])
    of_means = np.concatenate([posterior.about_population(sums) for sums in published])
    for drawn, stated in ((files, of_file), (means, of_means)):
        ratio = np.std(drawn, axis=0) / np.sqrt(stated)
        assert np.abs(ratio - 1.0).max() < 4 * 0.0224, ratio
    unsampled = np.sqrt(of_file)
    assert np.abs(np.std(means, axis=0) / unsampled - 1.0).max() > 0.2


@pytest.mark.parametrize(("heavier", "richer"), [pytest.param(1.0, 1.0, marks=pytest.mark.long), (1.15, 1.1)])
def test_intervals_cover_the_population_also_under_drift(heavier: float, richer: float) -> None:
    """Nominal .90, over other references, records and noise. Under drift weights are 15 % heavier, outcomes 10 % larger.

    Control: at a third of the errors intervals cover far less.
    """
    errors, stated = list[Floats](), list[Floats]()
    matrix = workload(count()).published(TABLES[0])
    wanted = matrix @ (count() * heavier * world().weight)
    mean = matrix @ (count() * heavier * world().weight * richer * world().mean) / wanted
    for run in range(8):
        rng = np.random.default_rng([run, 11])
        package = planned(count(), reference(1000 + run), PURE)
        x = noisy(package, PURE, world().at(sample().cell, rng, heavier, richer), rng)
        posterior = learned(package.posterior, x)
        figures = table_estimates(posterior, TABLES[0], base_estimates(posterior, x, [BOUNDS]))
        errors.append(np.concatenate([figures.counts - wanted, figures.means[:, 0] - mean]))
        stated.append(np.concatenate([figures.errors_of_counts, figures.errors_of_means[:, 0]]))
    missed = np.abs(np.array(errors)) / np.array(stated)
    assert 0.83 <= (missed <= 1.645).mean() <= 0.99, (missed <= 1.645).mean()
    assert (missed <= 1.645 / 3).mean() < 0.65


def _of_weights(cell: Ints, rng: np.random.Generator, spread: float, heavier: float = 1.0) -> Survey:
    """Records of these base cells, with log-weights of this standard deviation; their means do not depend on it."""
    drawn, log_weight = world().at(cell, rng), rng.normal(-(spread**2) / 2.0, spread, len(cell))
    return Survey(cell, heavier * world().weight[cell] * np.exp(log_weight), drawn.outcome)


def _with_spread(run: int, spread: float, heavier: float, records: int) -> tuple[Posterior, Floats]:
    """The posterior of weights that are spread and heavier, where the reference's log-weights vary by .3; measurements."""
    rng = np.random.default_rng([run, 61])
    package = planned(count(), Reference(*_of_weights(world().draw(records, rng).cell, rng, 0.3)), PURE)
    x = noisy(package, PURE, _of_weights(sample().cell, rng, spread, heavier), rng)
    return learned(package.posterior, x), x


def test_intervals_hold_counts_where_weights_have_spread() -> None:
    """Log-weights vary by .3 in the reference and by 1 now. Draws are fixed.

    Control: without what limits hide, intervals miss nearly every count.
    """
    matrix, held, before = workload(count()).published(TABLES[0]), list[Floats](), list[Floats]()
    wanted = matrix @ (count() * world().weight)
    for run in range(2):
        still, x = _with_spread(run, 1.0, 1.0, N)
        base = base_estimates(still, x, [BOUNDS])
        for one, kept in ((with_hidden(still), held), (still, before)):
            figures = table_estimates(one, TABLES[0], base)
            kept.append(np.abs(figures.counts - wanted) <= NORMAL_90 * figures.errors_of_counts)
    assert np.mean(held) >= 0.86, np.mean(held)
    assert np.mean(before) < 0.2, np.mean(before)


@pytest.mark.parametrize(("heavier", "records"), [(1.0, N), (1.3, N), (1.0, 2 * N)])
def test_errors_stay_where_weights_have_not_spread(heavier: float, records: int) -> None:
    """Neither weights that are all larger, nor a reference with more records of the same weights, widen an interval.

    Draws are fixed. Over others, 1 run in 700 would widen, by 3 standard errors.
    """
    still, _ = _with_spread(0, 0.3, heavier, records)
    assert with_hidden(still) is still


def test_drawn_errors_have_what_limits_hide() -> None:
    """Counts of all draws by other causes: their variance is that of the posterior, within 4 of its standard errors.

    False alarms: 1 in 15,000, and the draws are fixed. Control: without the hidden part it is far less.
    """
    hidden = replace(made().posterior, prior=replace(made().prior, hidden=0.2))
    (of_all,), draws = workload(count()).published(PackageTable("all", ())).toarray(), 400
    counts, _ = by_other(hidden, draws, np.random.default_rng(3), laplace=False)
    whole = np.var(counts @ of_all)
    (stated,) = hidden.about_population(published_sums(scipy.sparse.csr_array(of_all[None]), hidden.prior.levels)[0])
    assert abs(whole / stated - 1.0) < 4 * (2.0 / draws) ** 0.5, whole / stated
    without, _ = by_other(made().posterior, draws, np.random.default_rng(3), laplace=False)
    assert np.var(without @ of_all) < 0.1 * whole


def test_intervals_cover_the_population_without_a_reference() -> None:
    """Nominal .90, over records and noise. All base cells begin at one level, from which they differ by a third and more.

    Control: at a third of the errors intervals cover far less.
    """
    held, nearer = list[Floats](), list[Floats]()
    for run in range(6):
        rng = np.random.default_rng([run, 14])
        other = world().draw(1024, rng)
        law = GroupLaw(rng.permutation(other.weight), other.outcome[None])
        shapes = GroupShapes(np.zeros(len(count()), dtype=np.int64), np.ones(len(count())), (law,))
        package = planned(count(), shapes, PURE)
        x = noisy(package, PURE, world().at(sample().cell, rng), rng)
        posterior = learned(package.posterior, x)
        base = base_estimates(posterior, x, [BOUNDS])
        for table in TABLES[:3]:
            matrix = workload(count()).published(table)
            wanted = matrix @ (count() * world().weight)
            mean = matrix @ (count() * world().weight * world().mean) / wanted
            estimates = table_estimates(posterior, table, base)
            for missed in (
                np.abs(estimates.counts - wanted) / estimates.errors_of_counts,
                np.abs(estimates.means[:, 0] - mean) / estimates.errors_of_means[:, 0],
            ):
                held.append(missed <= NORMAL_90)
                nearer.append(missed <= NORMAL_90 / 3)
    assert 0.83 <= np.concatenate(held).mean() <= 0.98, np.concatenate(held).mean()
    assert np.concatenate(nearer).mean() < 0.65


@pytest.mark.long
def test_figures_lean_little_where_groups_mix_cells_of_unlike_levels() -> None:
    """Weights of regions differ up to tenfold, and a quarter of outcomes are at the public bound. The mean errors of counts
    and of means over RUNS_OF_LEAN files, in direct standard errors.

    Their deviations are .33 and .39, so that −1.8 and −2.1 are passed in fewer than 1 of 10,000 sets of files, if leans
    are −.5 and −.7, as found. Controls: where a group's law is taken as that of each of its cells, both are 2.2 errors too
    large or more. Where levels move records beyond the bound, means are larger by 1.3.
    """
    regions, top = np.exp(np.array([-1.2, -0.6, -0.1, 0.3, 0.8, 1.3]))[world().codes[:, 0]], (0.0, 90.0)
    matrix, leans = workload(count()).published(TABLES[0]), list[list[Floats]]()

    def summed(now: Survey, weight: Floats) -> Floats:
        return matrix @ np.bincount(now.cell, weight, len(regions))

    for run in range(RUNS_OF_LEAN):
        rng = np.random.default_rng([run, 15])
        other, now = world().draw(1024, rng), world().at(sample().cell, rng)
        now = Survey(now.cell, now.weight * regions[now.cell], np.minimum(now.outcome, top[1]))
        law = GroupLaw(rng.permutation(other.weight * regions[other.cell]), np.minimum(other.outcome, top[1])[None])
        shapes = GroupShapes(np.zeros(len(count()), dtype=np.int64), np.ones(len(count())), (law,))
        made = package(workload(count()), shapes, [top], PURE.law, PerTable())
        x, w, one = noisy(made, PURE, now, rng), now.weight, []
        n, total, square, product = (summed(now, of) for of in (np.ones_like(w), w, w**2, w * now.outcome))
        mean = product / total
        spread = summed(now, (w * now.outcome) ** 2) - 2 * mean * summed(now, w**2 * now.outcome) + mean**2 * square
        limits = made.prior.limits
        endless = tuple(replace(shape, ends=None) for shape in limits.shapes)
        for tried in (limits, replace(limits, mixed=False), replace(limits, shapes=endless)):
            posterior = learned(replace(made.posterior, prior=replace(made.prior, limits=tried)), x)
            figures = table_estimates(posterior, TABLES[0], base_estimates(posterior, x, [top]))
            of_count = np.mean((figures.counts - total) / np.sqrt(square - total**2 / n))
            one.append(np.array([of_count, np.mean((figures.means[:, 0] - mean) / np.sqrt(spread) * total)]))
        leans.append(one)
    ours, alike, beyond = np.mean(leans, axis=0)
    assert (np.abs(ours) < (1.8, 2.1)).all(), ours
    assert (alike > (1.8, 2.1)).all(), alike
    assert beyond[1] > ours[1] + 0.6, beyond


def test_drift_is_learned_from_the_noisy_sums_alone() -> None:
    """Under drift the estimates follow the file, where the reference alone is 15 % off."""
    package = made()
    drifted = world().at(sample().cell, np.random.default_rng(5), 1.15, 1.1)
    x = noisy(package, PURE, drifted, np.random.default_rng(6))
    posterior = learned(package.posterior, x)
    matrix = workload(count()).published(PackageTable("all", (), margins=False))
    counts, _ = published_sums(matrix, package.prior.levels)
    truth = drifted.weight.sum()
    alone, estimated = counts.of(package.prior.mean)[0], counts.of(posterior.estimated(x))[0]
    assert abs(alone / truth - 1) > 0.08
    assert abs(estimated / truth - 1) < 0.03


def test_errors_fall_with_the_budget_and_are_never_above_the_references() -> None:
    """Predicted for every table at three budgets; the reference alone is that without a measurement."""
    predicted = [made(epsilon).predicted() for epsilon in (1, 4, 100)]
    for one, four, hundred in zip(*predicted, strict=True):
        for name in ("counts", "means"):
            files = [np.nanmedian(getattr(each.error, name)) for each in (one, four, hundred)]
            assert files[2] < files[1] < 1.02 * files[0]
            assert files[2] < 0.75 * np.nanmedian(getattr(hundred.reference_alone, name))


def test_shares_lower_the_objective() -> None:
    """Control: equal shares, and shares turned round, predict larger errors."""
    package = made()
    law, equal = PURE.law, whole_shares([1.0] * len(package.shares))
    turned = tuple(
        package.shares[k]
        for k in np.argsort([float(x) for x in package.shares])[::-1][
            np.argsort(np.argsort([float(x) for x in package.shares]))
        ]
    )
    values = [
        replace(package, posterior=replace(package.posterior, noise=noise_of(package.measurements, shares, law))).objective
        for shares in (package.shares, equal, turned)
    ]
    assert values[0] <= values[1] * 1.001
    assert values[0] < values[2]


@pytest.mark.parametrize(
    ("strategy", "seed", "part"),
    [
        (PerTable(), 5, 0.97),
        pytest.param(BaseCells(), 1, 1.0, marks=pytest.mark.long),
        pytest.param(TopDown(), 5, 1.0, marks=pytest.mark.long),
    ],
)
def test_the_largest_error_is_the_objective_where_it_is_named(strategy: Strategy, seed: int, part: float) -> None:
    """On random packages the largest predicted error is below this part of the default's.

    Control: a table's priority counts. With 25, its own largest error falls.
    """
    rng = np.random.default_rng(seed)
    drawn = world().draw(int(rng.integers(500, 6000)), rng).cell
    wanted = nested_workload(np.bincount(drawn, minlength=len(world().share)).astype(float))
    source, law = reference(seed, int(rng.integers(800, 6000))), replace(PURE, epsilon=Fraction(3, 2)).law
    mean, largest = (package(replace(wanted, largest=one), source, [BOUNDS], law, strategy) for one in (False, True))
    worst = [max(map(_worst, made.predicted())) for made in (mean, largest)]
    assert worst[1] < part * worst[0]
    assert mean.wanted is not None
    of_mean = mean.wanted._replace(largest=True).risk(mean.posterior)
    np.testing.assert_allclose([of_mean, largest.objective], np.square(worst), rtol=1e-9)
    assert sum(largest.shares) == 1
    if strategy.name == "per_table":
        tables = (*wanted.tables[:-1], replace(wanted.tables[-1], priority=25.0))
        first = package(replace(wanted, tables=tables, largest=True), source, [BOUNDS], law, strategy)
        assert _worst(first.predicted()[-1]) < _worst(largest.predicted()[-1])


def _worst(predicted: Predicted) -> float:
    return float(max(np.nanmax(errors) for errors in predicted.error[:2]))


def test_every_strategy_keeps_the_protocol_and_auto_takes_the_least_predicted() -> None:
    """Control: `top_down` is not tried without a hierarchy."""
    packages = best_package(nested_workload(count()), reference(8), [BOUNDS], PURE.law)
    assert {each.strategy for each in packages} == {each.name for each in STRATEGIES}
    gains = {strategy.name: strategy.least_gain for strategy in STRATEGIES}
    values = [each.objective / (1.0 - gains[each.strategy]) for each in packages]
    assert values == sorted(values)
    assert [one.name for one in STRATEGIES if one.suits(workload(count()))] == ["base_cells", "per_table"]
    for each in packages:
        assert sum(each.shares) == 1
        assert all((a.matrix.sum(axis=0) == 1).all() for a in each.aggregations)


def test_levels_of_a_hierarchy_are_measured_where_they_pay_and_add_up() -> None:
    """Sets above the tables are measured, some sets are not, and the rest has the whole budget.

    Predicted errors are lower than without these sets, and zones are the sums of their regions. Control: without the
    hierarchy no zone is measured that no table has.
    """
    nested, law = nested_workload(count()), replace(PURE, epsilon=Fraction(1, 4)).law
    assert (1, 4) in nested.above
    assert (1, 4) not in replace(nested, nested=()).above
    top = package(nested, reference(8), [BOUNDS], law, TopDown())
    names = {one.name for one in top.aggregations}
    assert names - {nested.named(by) for by in nested.measured} - {"all cells"}
    assert 0 in top.parts.shares
    assert sum(top.shares) == 1
    assert len(top.shares) == len(top.measurements) == len(top.aggregations)
    assert top.objective < package(nested, reference(8), [BOUNDS], law, PerTable()).objective
    _, base = _released(top, PURE, sample(), 1)
    by_zone, by_region = (nested.summing(by) @ np.column_stack(base) for by in ((4, 2), (0, 2)))
    np.testing.assert_allclose(by_region.reshape(2, 3, 5, 2).sum(axis=1).reshape(10, 2), by_zone, rtol=1e-9)


def test_tables_that_others_contain_are_not_measured() -> None:
    assert workload(count()).measured == ((0, 1), (0, 2), (1, 2), (2, 3))
    alone = Workload(world().codes, (6, 2, 5, 4), count(), (PackageTable("all", ()),))
    assert alone.measured == ((),)


def test_many_base_cells_are_measured_where_tables_have_more_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """240 base cells: the tables of two columns have 72 cells, and those of three columns 268."""
    monkeypatch.setattr("dpdist.packages.strategy.MOST_BASE_CELLS", 100)
    few = workload(count())
    triples = tuple(PackageTable(str(by), by) for by in combinations(range(4), 3))
    many = replace(few, tables=triples)
    whole = replace(few, tables=(PackageTable("all", (0, 1, 2, 3)),))
    assert [BaseCells().suits(one) for one in (few, many, whole)] == [False, True, False]
    packages = best_package(many, reference(8), [BOUNDS], PURE.law)
    assert packages[0].strategy == "base_cells"
    assert packages[0].objective < 0.9 * packages[1].objective


def test_shares_are_whole_and_none_is_nought() -> None:
    shares = whole_shares([1e-12, 1.0, 3.0])
    assert sum(shares) == 1
    assert min(shares) > 0
    with pytest.raises(ValueError, match="can share a budget"):
        whole_shares([1.0] * 5000)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_noise_does_not_pass_for_drift(strategy: Strategy) -> None:
    """Where nothing has drifted, the drift that is planned for lets no table's count err over 1.15 of the reference alone.

    File and reference are large, so that the planned drift is far larger than the reference's error. Noise in the sum of
    240 base cells is as large: without a measurement of all cells together, totals err 1.3 times as much. The error of the
    estimates, whose gain was made for drift, is exact for files without it.
    """
    rng = np.random.default_rng(3)
    count = np.bincount(world().draw(20_000, rng).cell, minlength=len(world().share)).astype(float)
    law = replace(PURE, epsilon=Fraction(1, 4)).law
    posterior = package(workload(count), reference(8, 20_000), [BOUNDS], law, strategy).posterior
    still = replace(posterior, drift=(0.0, 0.0))
    for table in TABLES:
        counts, _ = published_sums(workload(count).published(table), posterior.prior.levels)
        gain = posterior.solver(posterior.covariance(counts).T).T
        alone = still.errors(counts).prior
        moved = gain @ (still.without_noise + np.diag(still.noise)) - 2.0 * still.covariance(counts)
        ratio = np.sqrt((alone + (moved * gain).sum(axis=1)) / alone)
        assert ratio.max() < 1.15, (table.name, ratio.max())


def test_errors_need_no_memory_for_all_published_figures_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are those of one batch to 1e-9, in less than half of the memory. Control: one batch of all has its peak."""
    posterior = made().posterior
    counts, _ = published_sums(workload(count()).published(PackageTable("all", (0, 1, 2, 3))), posterior.prior.levels)
    weight = np.random.default_rng(5).random(len(counts))
    results, peaks = [], []
    for rows in (len(counts), 40):
        monkeypatch.setattr(sums, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(posteriors, "MOST_KEPT", 0)
        posterior.errors(counts)
        tracemalloc.start()
        results.append((*posterior.errors(counts), posterior.squared(counts, weight)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    for whole, few in zip(*results, strict=True):
        np.testing.assert_allclose(few, whole, rtol=1e-9, atol=1e-9 * np.abs(whole).max())
    c = posterior.covariance(counts)
    np.testing.assert_allclose(results[1][-1], (c.T * weight) @ c, rtol=1e-9, atol=1e-9 * float(c.max()) ** 2)
    block = posterior.prior.block()
    np.testing.assert_allclose(variances(counts, block), np.diag(crossed(counts, counts, block)), rtol=1e-12)
    assert peaks[1] < peaks[0] / 2


def test_a_stored_posterior_has_its_fields_alone_and_the_same_errors() -> None:
    posterior = made().posterior
    counts, _ = published_sums(workload(count()).published(PackageTable("all", (0, 1, 2, 3))), posterior.prior.levels)
    errors = posterior.errors(counts)
    assert len(pickle.dumps(posterior.__dict__)) > 1.5 * len(pickle.dumps(posterior)), "control: there are caches"
    again = pickle.loads(pickle.dumps(posterior))
    np.testing.assert_array_equal(again.errors(counts), errors)


def test_extents_have_the_bits_of_products_with_the_groups_matrix() -> None:
    rng = np.random.default_rng(3)
    matrix = indicator(rng.integers(0, 7, 200))
    limit, variance, noise = rng.uniform(0.1, 30.0, 200), rng.uniform(0.1, 2.0, 200), 40.0
    largest = np.array([limit[matrix[[k]].indices].max() for k in range(matrix.shape[0])])
    best, most = largest, np.zeros(len(largest))
    for part in EXTENTS:
        factor = np.minimum(limit / (matrix.T @ (part * largest)), 1.0)
        squared = (matrix @ (limit * factor * variance)) ** 2 / (matrix @ (factor**2 * variance) + noise)
        clearly = squared > (1.0 + CLEARLY) * most
        best, most = np.where(clearly, part * largest, best), np.where(clearly, squared, most)
    np.testing.assert_array_equal(_extent(matrix, limit, variance, noise), best)
    assert (best < largest).any()
