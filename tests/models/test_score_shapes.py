"""Distributions that a reference tells of a score model's cells: weights with few values, and cells with few records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Ints
from dpdist.estimation.least_squares import composite
from dpdist.models.copula import shapes as score_shapes
from dpdist.models.copula.marginal import BASIS, Marginal
from dpdist.models.copula.model import Scores, expectations
from dpdist.models.copula.reference_summary import Law, facts_from_table, facts_table
from dpdist.models.copula.shapes import PredictorCells
from dpdist.studies.kinds.populations import inclusion, informative_size, systematic

KEY = Key(b"places")
HIGH = 1e7
TYPES, SPREAD = 5, np.log(80.0)
WIDE = np.array([-9.0, 9.0])


def model_of(count: Ints, second: int = 1) -> Scores:
    """Cells by two predictors, the second with as many levels."""
    number = np.arange(len(count), dtype=np.int32)
    codes = np.column_stack([0 * number, number // second, number % second])
    return Scores(PredictorCells(codes, number, 0, count, tuple(map(str, number)), number), "positive", (0.0, HIGH))


def records_of(cell: Ints, weight: Floats, outcome: Floats) -> Records:
    return Records.of_outcomes(outcome, weight, cell.astype(np.int32))


def stratified(seed: int, states: int = 12, size: int = 600) -> Records:
    """One weight a state and type of five, up to 80-fold; outcomes that fall as it rises, each type by its own."""
    world, rng = np.random.default_rng(8), np.random.default_rng(seed)
    weight = np.sort(SPREAD * np.linspace(0, 1, TYPES) + world.normal(0, 0.4, (states, TYPES)), axis=1)
    share = world.dirichlet(np.full(TYPES, 8.0), states)
    level = 9.5 - 0.45 * SPREAD * np.linspace(0, 1, TYPES) + world.normal(0, 0.3, (states, TYPES))
    state = np.repeat(np.arange(states), size)
    kind = (rng.random(len(state))[:, None] > share.cumsum(axis=1)[state][:, :-1]).sum(axis=1)
    outcome = np.round(np.exp(level[state, kind] + 0.9 * rng.standard_normal(len(state))))
    return records_of(state, np.exp(weight[state, kind]), outcome)


def sums(records: Records, cells: int) -> tuple[Floats, Floats]:
    """Means of w and of wy by cell."""
    size = np.bincount(records.row, minlength=cells)
    each = (records.weight, records.weight * records.outcome)
    return tuple(np.bincount(records.row, weights=values, minlength=cells) / size for values in each)


def fitted(model: Scores, records: Records) -> tuple[Floats, Floats]:
    """E(w) and E(wy) of cells under a fit of these records."""
    weight, product = model.expect(model.centre(model.statistics(records, np.ones(len(records)))[None]))
    return weight[0], product[0]


def standing(reference: Records, cells: int) -> Scores:
    model = model_of(np.bincount(reference.row, minlength=cells))
    return model.within(model.summarise(reference, KEY))


def one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_shapes, "CLASS", 10**9)


@pytest.mark.parametrize("classes", [True, False])
def test_weights_of_few_values_and_their_outcomes_are_the_references_pairs(
    classes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the law of the reference's own scores, weights and outcomes have its sums: exactly. Control: with one
    distribution of outcomes for all weights, a straight line between scores misses the mean by a quarter and more."""
    if not classes:
        one_class(monkeypatch)
    reference = stratified(1)
    model = standing(reference, 12)
    none = (np.zeros((1, 12, 2)), np.ones((1, 12, 2)), np.zeros((1, 12, BASIS)), np.ones((1, 12)))
    weight, product = expectations(model.reference_facts, Law(np.ones((1, 12)), *none), model.kind, model.outcome_bounds)
    wanted = sums(reference, 12)
    np.testing.assert_allclose(weight[0], wanted[0], rtol=1e-9)
    if classes:
        # Atoms of a class with fewer than 50 records are two values or more, apart in the score alone.
        alone = np.array([np.unique(reference.weight[reference.row == k], return_counts=True)[1].min() for k in range(12)])
        assert (alone >= 50).sum() >= 4
        np.testing.assert_allclose(product[0][alone >= 50], wanted[1][alone >= 50], rtol=1e-9)
    else:
        assert np.abs(product[0] / wanted[1] - 1.0).min() > 0.25


@pytest.mark.parametrize("classes", [True, False])
def test_means_are_not_biased_where_weights_have_few_values(classes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of two files of a population, over six files and twelve states: a mean bias below 1.5 %. Control: above 4 %."""
    if not classes:
        one_class(monkeypatch)
    off = []
    for seed in (1, 3, 5):
        for first, second in ((seed, seed + 1), (seed + 1, seed)):
            current = stratified(second)
            weight, product = fitted(standing(stratified(first), 12), current)
            wanted = sums(current, 12)
            off.append(product / weight / (wanted[1] / wanted[0]) - 1.0)
    assert (abs(np.mean(off)) < 0.015) if classes else (np.mean(off) > 0.04)


@pytest.mark.parametrize("by", [1.0, 1.03, 0.97, 1.1])
def test_weights_between_the_references_values_follow_a_change_of_scale(by: float) -> None:
    """Counts of files whose weights are a little larger or smaller are off by less than 8 %. Placed at the border of two
    values, all records would have a score of the one above: counts were 55 to 65 % too large, and 28 % too small."""
    current = stratified(2)
    model, wanted = standing(stratified(1), 12), sums(current, 12)[0] * by
    weight, _ = fitted(model, replace(current, weight=current.weight * by))
    assert abs(np.mean(weight / wanted - 1.0)) < 0.08
    weight, _ = fitted(model, current)
    assert abs(np.mean(weight / sums(current, 12)[0] - 1.0)) < 0.01, "control: no change"


def test_f_is_a_fixed_function_of_the_record_and_its_uniforms() -> None:
    """Classes and places follow from the record, its number and the reference: no other record moves its score."""
    model, current = standing(stratified(1), 12), stratified(2)
    theta = model.draw(model.statistics(current, np.ones(len(current))), 5, np.random.default_rng(1))
    some = np.random.default_rng(2).permutation(len(current))[:300]
    whole = model.log_lik(theta, current)[:, some]
    np.testing.assert_allclose(model.log_lik(theta, current.take(some)), whole, rtol=1e-12, atol=1e-12)
    rest = ~np.isin(np.arange(len(current)), some)
    other = replace(current, weight=np.where(rest, 1.5, current.weight), outcomes=np.where(rest, 7.0, current.outcome))
    np.testing.assert_allclose(model.log_lik(theta, other)[:, some], whole, rtol=1e-12, atol=1e-12)
    keyed = model.within(replace(model.reference_facts, key=Key(b"other places")))
    assert (np.abs(keyed.log_lik(theta, current)[:, some] - whole) > 1e-6).mean() > 0.5, "control"


def test_classes_survive_the_round_trip_through_a_table_and_older_releases_have_one() -> None:
    model, current = standing(stratified(1), 12), stratified(2)
    back = facts_from_table(facts_table({"one": model.reference_facts}))["one"]
    assert back.edges.shape[1] >= 3
    np.testing.assert_array_equal(model.within(back).scored(current).outcome, model.scored(current).outcome)
    np.testing.assert_array_equal(back.own_share, model.reference_facts.own_share)
    np.testing.assert_array_equal(back.tie, model.reference_facts.tie)
    said = {k: v for k, v in model.reference_facts.describe().items() if k not in ("edges", "own", "effective", "tie")}
    said["of_outcome"] = model.reference_facts.of_outcome[:, 0].tolist()
    old = type(back).recall(said, model.reference_facts.nodes)
    assert (old.of_outcome.shape, old.edges.shape) == ((12, 1), (12, 0))
    assert (old.effective == old.records).all()
    assert (old.tie == 0.0).all()


def test_a_mixture_has_the_mean_that_its_shares_give_it() -> None:
    rng = np.random.default_rng(1)
    own, others = rng.gamma(2.0, size=40), np.round(10.0 * rng.gamma(2.0, size=700))
    for share in (0.0, 0.3, 0.9, 1.0):
        for continuous in (True, False):
            found = Marginal.mixed(own, others, share, continuous)
            expected = share * own.mean() + (1.0 - share) * others.mean()
            assert found.averages(WIDE)[0] == pytest.approx(expected, rel=2e-3 if 0 < share < 1 else 1e-9)
    assert Marginal.mixed(own, np.empty(0), 0.3, True).averages(WIDE)[0] == pytest.approx(own.mean(), rel=1e-9)


def test_own_records_count_by_size_and_likeness() -> None:
    """1 − V/max(V + τ², d²): a cell farther away than its like by its own distance, one without records not at all."""
    rng = np.random.default_rng(2)
    sampling = np.array([0.01] * 30 + [0.2, np.inf])
    apart = np.concatenate([rng.normal(0.0, np.sqrt(0.01 + 0.04), 30), [0.1, np.nan]])
    found = composite(apart, sampling)
    plain = 0.04 / 0.05
    assert np.median(found.own_weight[:30]) == pytest.approx(plain, abs=0.1)
    assert found.own_weight[30] == pytest.approx(0.04 / 0.24, abs=0.1)
    assert (found.own_weight[31], found.error[31]) == (0.0, pytest.approx(0.04, abs=0.02))
    far = composite(np.append(apart[:31], 3.0), np.append(sampling[:31], 0.01))
    assert far.own_weight[31] > 0.99
    assert (np.abs((1.0 - far.own_weight) * np.append(apart[:31], 3.0)) <= np.sqrt(far.error.max() + sampling.max())).all()
    alike = composite(np.zeros(30), sampling[:30])
    assert (alike.own_weight == 0.0).all(), "control: nothing tells them apart"


SIZES = np.array([45, 700, 900, 800, 60, 90, 600, 40, 900, 70])
LEVEL = 10.5 + np.array([-1.1, 0.0, 0.1, 0.2, 0.15, -0.9, 0.0, 0.1, 0.1, 0.6])
LOG_WEIGHT = 4.0 + np.array([0.6, 0.0, 0.0, 0.1, 0.0, 0.5, 0.0, 0.1, 0.0, -0.3])
MEAN = np.exp(LEVEL + 0.49 / 2.0 + 0.16 / 2.0 - 0.32)
UNLIKE, LIKE = [0, 5, 9], [4, 7]


def small_cells(seed: int) -> Records:
    """Two groups of five cells. Three of the small ones have a third, four tenths and twice of their groups' outcomes."""
    rng, cell = np.random.default_rng(seed), np.repeat(np.arange(10), SIZES)
    z = rng.standard_normal(len(cell))
    outcome = np.exp(LEVEL[cell] - 0.4 * z + 0.7 * rng.standard_normal(len(cell)))
    return records_of(cell, np.exp(LOG_WEIGHT[cell] + 0.8 * z), outcome)


def test_a_small_cell_is_not_replaced_by_another_population() -> None:
    """Eight pairs of files: estimates of small cells err no more than direct ones do. Taken from their groups, the unlike
    were off by 47 to 200 %, which is 6 direct errors and more."""
    estimates, direct, own = [], [], []
    for seed in range(8):
        reference, current = small_cells(2 * seed), small_cells(2 * seed + 1)
        model = model_of(SIZES, second=5)
        model = model.within(model.summarise(reference, KEY))
        model = model.within(model.bias_corrected(reference))
        weight, product = fitted(model, current)
        found = sums(current, 10)
        estimates.append(product / weight / MEAN - 1.0)
        direct.append(found[1] / found[0] / MEAN - 1.0)
        own.append(model.reference_facts.own_share[:, 2])
    error, expected = (np.sqrt(np.mean(np.square(each), axis=0)) for each in (estimates, direct))
    assert (error[UNLIKE + LIKE] <= 2.0 * expected[UNLIKE + LIKE]).all()
    assert error[UNLIKE + LIKE].mean() <= 1.1 * expected[UNLIKE + LIKE].mean()
    assert np.mean(error[LIKE]) < 0.9 * np.mean(expected[LIKE]), "what is alike gains"
    assert np.mean(own, axis=0)[UNLIKE].min() > 0.9
    assert np.mean(own, axis=0)[LIKE].max() < 0.95, "control: these borrow"
    pooled = np.array([np.average(LEVEL[k : k + 5], weights=SIZES[k : k + 5]) for k in (0, 0, 0, 0, 0, 5, 5, 5, 5, 5)])
    assert (np.abs(pooled - LEVEL)[UNLIKE] > 3.0 * expected[UNLIKE]).all(), "control: the groups' own level"


def without_ties(model: Scores, reference: Records) -> Scores:
    """The model with one correlation for all cells that share a fit, and the reference's own fit as its prior."""
    own = model.within(
        replace(model.reference_facts, tie=0.0 * model.reference_facts.tie, undone=Law.nothing(len(model.cells)))
    )
    return own.within(own.fitted_to(reference))


def population(rng: np.random.Generator) -> pd.DataFrame:
    """200,000 units in 18 cells, 28-fold apart in size; one in six has much smaller outcomes, one in three a wider law."""
    share = np.repeat([2500.0, 300.0, 90.0], 6)
    cell = rng.choice(18, 200_000, p=share / share.sum())
    y = np.exp(
        10.0 + 0.3 * (cell % 5) - 2.0 * (cell % 6 == 5) + np.where(cell % 3 == 0, 1.1, 0.5) * rng.standard_normal(len(cell))
    )
    return pd.DataFrame({"cell": cell, "y": np.minimum(y, 1e6)})


def unlike(number: int) -> tuple[Records, Floats]:
    """An informative sample of a population whose cells differ in size, level and spread, and so in how weights go with
    outcomes; its true means."""
    rows = population(np.random.default_rng(1))
    chance = inclusion(informative_size(rows["y"].to_numpy(), np.random.default_rng(2)), 5000)
    taken = systematic(chance, np.random.default_rng(100 + number))
    own = rows.iloc[taken].assign(weight=1.0 / chance[taken]).sort_values("cell", kind="stable")
    cell = pd.Categorical(own["cell"]).codes.astype(np.int64)
    return records_of(cell, own["weight"].to_numpy(), own["y"].to_numpy()), rows.groupby("cell")["y"].mean().to_numpy()


def test_cells_that_share_a_fit_are_not_replaced_by_one_another() -> None:
    """Over three pairs of samples the median cell errs by no more than the samples of both files explain, and none has the
    mean of another, which is up to ten times as large. Control: with one correlation of weight and outcome for all cells
    that share a fit, fits of the reference itself miss cells with wide outcomes by a quarter and more."""
    wide, errors, expected, alone = [6, 9, 12, 15], [], [], []
    for number in range(3):
        reference, (current, true) = unlike(2 * number)[0], unlike(2 * number + 1)
        model = model_of(np.bincount(reference.row, minlength=18))
        model = model.within(model.summarise(reference, KEY))
        model = model.within(model.bias_corrected(reference))
        found, plain = (np.divide(*part[::-1]) for part in (fitted(model, current), sums(current, 18)))
        errors.append(found / true - 1.0)
        expected.append(plain / true - 1.0)
        one = without_ties(model, reference)
        alone.append(np.divide(*fitted(one, reference)[::-1]) / np.divide(*sums(reference, 18)[::-1]) - 1.0)
        assert (model.reference_facts.tie[[0, 1, 2, 3, 4]] == 0.0).all(), "these have a fit of their own"
    root = [np.sqrt(np.mean(np.square(each), axis=0)) for each in (errors, expected)]
    assert np.median(root[0] / root[1]) < np.sqrt(2.0)
    assert np.abs(np.mean(errors, axis=0)).max() < 0.25
    assert np.mean(alone, axis=0)[wide].min() > 0.25, "control"


def test_a_cell_has_its_own_correlation_as_far_as_its_records_tell_of_it() -> None:
    """Two cells of many records keep theirs, one of four takes its unit's, one that is alone has none."""
    rng, size = np.random.default_rng(3), [4000, 4000, 4, 4000]
    cell = np.repeat(np.arange(4), size)
    correlation = np.array([-0.8, 0.4, 0.0, 0.7])[cell]
    one, other = rng.standard_normal((2, len(cell)))
    outcome = correlation * one + np.sqrt(1.0 - correlation**2) * other
    found = score_shapes.weight_outcome_ties(cell, one, outcome, np.array([0, 0, 0, 1]))
    assert found[:2] == pytest.approx([-0.8, 0.4], abs=0.03)
    whole = np.corrcoef(one[cell < 3], outcome[cell < 3])[0, 1]
    assert found[2] == pytest.approx(whole, abs=0.6)
    assert found[3] == 0.0
    straight = score_shapes.weight_outcome_ties(cell, one, one, np.array([0, 0, 0, 1]))
    assert np.abs(straight).max() == pytest.approx(score_shapes.STRAIGHT), "no record comes far off"
