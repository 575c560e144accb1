"""Laws of `tables` over random populations, each with a control that breaks it. Errors are in direct standard errors.

NumPy noise stands for the released one. Seeds are fixed, so that a verdict does not change from run to run; a slow test
asks some of them of more populations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from table_populations import (
    WEIGHTS,
    Comparison,
    Files,
    Population,
    Public,
    Release,
    Sample,
    base_cells,
    cells_of,
    direct,
    model_of,
    release,
    tables_of,
)

from dpdist.core.records import UNIT, Floats, Ints
from dpdist.mechanisms.tables import (
    cells as of_cells,
    clipped_residuals,
    followed_limits,
    learned_prediction as predicting,
    measured_sums,
    measurements,
    posterior,
    random_effects,
    table_law,
)
from dpdist.mechanisms.tables.bounds import within_bounds
from dpdist.mechanisms.tables.cells import PLANS
from dpdist.mechanisms.tables.learned_prediction import predict
from dpdist.mechanisms.tables.learners import Fitted, MainEffects
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.measurements import ResidualMeasurements
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import corrected
from dpdist.mechanisms.tables.sizes import NumberChanges
from dpdist.mechanisms.tables.table_law import TableLaw

NEAR: list[dict[str, Any]] = [
    {"weights": "narrow", "kinds": ["income"], "records": (2_000, 2_000), "sizes": (6, 5, 4), "number": 3},
    {"weights": "wide", "kinds": ["yes or no"], "records": (1_500, 3_000), "sizes": (20, 3), "number": 2},
    {"weights": "by columns", "kinds": ["rounded", "balance"], "records": (3_000, 1_500), "sizes": (9, 3), "number": 2},
    {"weights": "wide", "kinds": ["constant in a level"], "records": (2_000, 2_000), "sizes": (4, 6, 3), "number": 3},
]
"""Populations whose direct figures have intervals that cover."""
FAR: list[dict[str, Any]] = [
    {"weights": "wide", "kinds": ["heavy"], "drift": "none"},
    {"weights": "narrow", "kinds": ["pareto", "rare amount"], "drift": "common"},
    {"weights": "two sizes", "kinds": ["rare yes"], "drift": "by level"},
]
"""Heavy tails, rare outcomes and drift."""
INCOMES: dict[str, Any] = {"weights": "narrow", "kinds": ["income"]}
SPARSE: list[dict[str, Any]] = [
    {**INCOMES, "records": (1_000, 1_000), "sizes": (30, 25), "number": 1},
    {**INCOMES, "kinds": ["rounded"], "records": (1_000, 1_000), "sizes": (20, 12, 8), "number": 4},
    {**INCOMES, "records": (500, 500), "sizes": (16, 12), "number": 3},
]
"""Most cells have from 1 to 3 records, and others none."""
THIRTY: dict[str, Any] = {**INCOMES, "records": (3_000, 3_000), "sizes": (5, 4, 3, 3, 2, 2), "number": 30}
FEWER: dict[str, Any] = {**THIRTY, "records": (1_500, 1_500), "sizes": (4, 3, 2, 2, 2, 2)}
RHO = (0.5, 8.0, 5e7)
"""Losses under Gaussian noise: the last is that of ε = 10,000."""
LARGE = [{**one, "records": (3_000, 3_000), "sizes": (6, 4), "number": 2} for one in FAR]
BUDGETS = (0.1, 1.0, 4.0, 1e4)


class Runs(NamedTuple):
    """Comparisons by budget and population, of all tables and all records."""

    compared: dict[float, list[list[Comparison]]]
    released: dict[float, list[Release]]

    def off(self, epsilon: float, of: str = "published") -> Floats:
        """Pooled errors of counts and of the first outcome's means, (cell, 2), of published or other figures."""
        found = []
        for population in self.compared[epsilon]:
            for one in population:
                values = {"published": None, "reference": one.reference.values, "predicted": one.predicted}[of]
                found.append(one.off(values)[:, :2])
        return np.concatenate(found)


def runs(
    told: list[dict[str, Any]],
    budgets: tuple[float, ...],
    seeds: int = 1,
    louder: float = 1.0,
    gaussian: bool = False,
    **rest: Any,
) -> Runs:
    """Budgets are losses ρ if noise is Gaussian. Populations are of so many seeds."""
    compared: dict[float, list[list[Comparison]]] = {epsilon: [] for epsilon in budgets}
    released: dict[float, list[Release]] = {epsilon: [] for epsilon in budgets}
    for number, case in enumerate(told):
        for seed in range(seeds):
            population = Population.of(100 * seed + number, **{"drift": "none", **rest, **case})
            files, prediction = population.files(seed), None
            codes, base = base_cells(files.current.codes)
            truth = population.expected(codes) * np.bincount(base)[:, None] if population.drift == "none" else None
            for epsilon in budgets:
                found = release(population.public, files, epsilon, seed, gaussian, prediction, louder)
                prediction = found.system.file.prediction
                compared[epsilon].append([found.comparison(by, truth) for by in tables_of(population.public)])
                released[epsilon].append(found)
    return Runs(compared, released)


@pytest.fixture(scope="module")
def near() -> Runs:
    return runs(NEAR, BUDGETS)


@pytest.fixture(scope="module")
def far() -> Runs:
    return runs(LARGE, (1.0, 1e4))


def exact(found: Runs, epsilon: float) -> list[tuple[Floats, float]]:
    """Medians of counts and of means, and the largest error, by population."""
    pooled = [np.concatenate([one.off() for one in population]) for population in found.compared[epsilon]]
    return [(np.nanmedian(errors, axis=0), float(np.nanmax(errors))) for errors in pooled]


def test_without_noise_figures_are_the_direct_ones(near: Runs, far: Runs) -> None:
    """At ε = 10,000, where limits widen by counts of records beyond them: medians of .02, and .2 at most."""
    for median, largest in (*exact(near, 1e4), *exact(far, 1e4)):
        assert (median <= 0.02).all()
        assert largest <= 0.2


def test_control_limits_that_no_count_widens_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableLimits, "widened", lambda self, counts: self)
    assert max(largest for _, largest in exact(runs(NEAR[1:2], (1e4,)), 1e4)) > 0.2


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("outcomes", [1, 2])
def test_counts_of_records_beyond_limits_have_the_stated_sensitivity(secret: bool, outcomes: int) -> None:
    """What a record adds has an L1 norm of at most UNIT, attained by one beyond all limits; two such of other sizes differ
    by twice that. Control: whole counts of every coordinate are beyond it. Limits widened by exact counts clip nothing.
    """
    rng = np.random.default_rng(outcomes)
    case: dict[str, Any] = {"weights": "wide", "kinds": ["income", "heavy"][:outcomes], "records": (500, 500)}
    population = Population.of(1, **case, sizes=(4, 3), number=2, drift="none")
    model = model_of(population.public, population.files(), 1e4)
    prediction = replace(model.plan.file.prediction, adds_weight=secret)
    cells = model.plan.file.tables[0][1]
    scale = np.full((int(cells.max()) + 1, 1 + outcomes), 5.0)
    none = np.zeros_like(scale)
    parts = none[:, 0] + 1.0, none[:, 1:], none[:, 0], scale[:, 0], scale[:, 1:]
    limits = TableLimits(cells, *parts, none, none, none, none)
    base = rng.integers(0, len(cells), 2_000)
    weight, values = np.exp(rng.normal(3.0, 4.0, 2_000)), np.exp(rng.normal(2.0, 6.0, (2_000, outcomes)))

    def added(weight: float, value: float) -> Floats:
        return limits.counts_beyond(base[:1], np.array([weight]), np.full((1, outcomes), value), prediction)

    alone = [
        limits.counts_beyond(*one, prediction) for one in zip(base[:, None], weight[:, None], values[:, None], strict=True)
    ]
    assert max(np.abs(one).sum() for one in alone) <= UNIT
    assert np.abs(added(1e5, 1e5)).sum() == pytest.approx(UNIT, rel=1e-5)
    assert np.abs(added(1e3, 1e3) - added(1e5, 1e5)).sum() == pytest.approx(2 * UNIT, rel=1e-5)
    assert max(np.abs(one).sum() for one in alone) * (1 + outcomes) > UNIT
    wide = limits.widened(limits.counts_beyond(base, weight, values, prediction))
    inside = wide.contributions(base, weight, values, prediction)
    assert np.abs(inside).sum(axis=1).max() < UNIT
    assert np.abs(limits.contributions(base, weight, values, prediction)).sum(axis=1).max() >= UNIT - outcomes - 1


def test_ten_tables_under_a_large_budget_are_near_the_direct_ones() -> None:
    """At ε = 64: medians of .1 for counts and .3 for means."""
    case = {"weights": "narrow", "kinds": ["income"], "records": (3_000, 3_000), "sizes": (5, 4, 3, 2), "number": 10}
    ((median, _),) = exact(runs([case], (64.0,)), 64.0)
    assert (median <= (0.1, 0.3)).all()


def test_figures_are_no_worse_than_public_ones(near: Runs) -> None:
    """Pooled medians of counts and means: 1.03 times those of the prediction and of the reference at ε = 1 and 4, and 1.07
    at ε = .1, where cells of a constant outcome are predicted exactly and move by the drift that is possible. Control:
    noise ten times as large as stated.
    """

    def ratio(found: Runs, epsilon: float, of: str) -> float:
        medians = [np.nanmedian(found.off(epsilon, of), axis=0) for of in ("published", of)]
        return float((medians[0] / medians[1]).max())

    for epsilon, most in ((0.1, 1.07), (1.0, 1.03), (4.0, 1.03)):
        assert ratio(near, epsilon, "predicted") <= most, epsilon
        assert ratio(near, epsilon, "reference") <= most, epsilon
    assert ratio(runs(NEAR[:1], (1.0,), louder=10.0), 1.0, "predicted") > 1.03


def test_errors_fall_as_the_budget_grows(near: Runs) -> None:
    """Means hardly gain from ε = .1 to 1."""
    medians = np.array([np.nanmedian(near.off(epsilon), axis=0) for epsilon in BUDGETS])
    assert (np.diff(medians, axis=0) <= 0.02 * medians[:-1]).all()
    assert (medians[-1] < 0.1 * medians[0]).all()


def share_covered(found: Runs, epsilon: float, factor: float = 1.0) -> float:
    inside = [one.covered(factor) for population in found.compared[epsilon] for one in population]
    return float(np.concatenate([part.ravel() for part in inside]).mean())


def test_intervals_hold_the_population(near: Runs) -> None:
    """90 % intervals about the population's expected figures, pooled, with published standard errors. Control: these times
    .6. At ε = .1 the slow test has its bound.
    """
    shares = {epsilon: share_covered(near, epsilon) for epsilon in (1.0, 4.0)}
    assert all(0.86 <= share <= 0.94 for share in shares.values()), shares
    assert all(share_covered(near, epsilon, 0.6) < 0.86 for epsilon in shares)


def covered_after_growth(seed: int, weights: str, kind: str, records: int, factor: float, epsilon: float) -> Floats:
    """Shares of intervals by published standard errors that hold counts and means, (figure, 2), where all weights and
    outcomes are `factor` times the reference's.
    """
    case: dict[str, Any] = {"weights": weights, "kinds": [kind], "records": (records, records), "drift": "none"}
    usual = Population.of(seed, **case, sizes=(6, 5, 4), number=3)
    population = replace(usual, factors=(np.full(6, factor), np.full(6, factor)))
    files = population.files(seed % 1_000)
    codes, base = base_cells(files.current.codes)
    truth = population.expected(codes) * np.bincount(base)[:, None]
    found = release(population.public, files, epsilon, seed % 1_000)
    return np.concatenate([found.comparison(by, truth).covered() for by in tables_of(population.public)])


def share_covered_after_growth(seeds: int) -> Floats:
    """Coverage of counts and means at ε = .3, after growth of 2.5 % of both, (2,)."""
    kinds = [("narrow", "income"), ("wide", "income"), ("narrow", "yes or no"), ("constant", "income")]
    inside = [
        covered_after_growth(1_000 + seed, *kinds[seed % 4], 1_000 if seed % 2 else 2_000, 1.025, 0.3)
        for seed in range(seeds)
    ]
    return np.asarray(np.concatenate(inside).mean(axis=0))


@pytest.mark.slow
def test_intervals_hold_after_growth_that_noise_may_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 populations: coverage of at least .84; they had .88 of counts and .91 of means. In the 15 of constant weights, one
    noise decides on all counts. Control: errors that have the drift by which estimates are shrunk, and no other.
    """
    assert (share_covered_after_growth(60) >= 0.84).all()
    monkeypatch.setattr(Posterior, "further_drift", lambda self, rows, gain: 0.0)
    assert share_covered_after_growth(60).min() < 0.84


def test_weights_that_leave_a_reference_of_one_weight_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights of the reference are 40, and one field of six has 100 now. Of 6 releases at ε = 1, its count errs by 2 %
    at most in the median and by 6 % in none, and 4 intervals of 90 % or more hold the direct count (5.4 expected; 1
    time in 60 fewer). Control: limits as if every record drifted on its own, and clipped parts of the reference's law.
    """

    def relative(seed: int) -> tuple[float, float]:
        rng = np.random.default_rng(seed)
        codes, income = rng.integers(0, 6, (12_000, 1)), np.exp(rng.normal(10.0, 0.6, (12_000, 1)))
        weight = np.where((codes[:, 0] == 2) & (np.arange(12_000) >= 6_000), 100.0, 40.0)
        files = Files(*(Sample(codes[part], weight[part], income[part]) for part in (slice(6_000), slice(6_000, 12_000))))
        found = release(Public((6,), ((0,),), (0.5, 1e3), ((0.0, 1e6),)), files, 1.0, seed).comparison((0,))
        off = abs(float(found.published.values[2, 0] / found.direct[2, 0]) - 1.0)
        return off, float(found.published.errors[2, 0] / found.direct[2, 0])

    off, error = np.transpose([relative(seed) for seed in range(6)])
    assert np.median(off) <= 0.02
    assert max(off) <= 0.06
    assert (off <= 1.645 * error).sum() >= 4
    monkeypatch.setattr("dpdist.mechanisms.tables.measured_sums.STEPS", 0)
    alone(monkeypatch)
    assert min(relative(seed)[0] for seed in range(2)) > 0.08


@pytest.mark.parametrize("seed", [3, 4, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 9))])
def test_records_of_a_level_that_has_become_rare_tell_little_of_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level falls from .9 to .02 of all records, and another rises as much: figures of levels are within 2.5 of their
    errors. Control: where reference records stand for the same number each, what limits clip of all records is that of the
    level that has gone, and figures are off by more than 5 of their errors.
    """
    rng = np.random.default_rng(seed)

    def sample(records: int, shares: Sequence[float]) -> Sample:
        level, other = rng.choice(3, records, p=shares), rng.integers(4, size=records)
        gains = (1_000.0 * rng.standard_t(3, (records, 1))).clip(-4e4, 4e4)
        weight = np.exp(4.0 + 0.5 * np.cos(level) + rng.normal(0.0, 0.5, records))
        return Sample(np.column_stack([level, other]), weight, gains)

    public = Public((3, 4), ((0, 1), (0,)), (1.0, 2_000.0), ((-4e4, 4e4),))
    files = Files(sample(3_000, [0.02, 0.08, 0.9]), sample(1_500, [0.9, 0.08, 0.02]))

    def off() -> float:
        found = release(public, files, 16.0, seed).comparison((0,))
        return float((np.abs(found.published.values - found.direct) / found.published.errors).max())

    assert off() <= 2.5
    as_now = NumberChanges.of
    monkeypatch.setattr(NumberChanges, "of", lambda *of: replace(as_now(*of), of_numbers=np.ones(len(of[3]))))
    PLANS.clear()  # the plan of the same population, without this change
    assert off() > 5.0, "control"


def test_answers_of_records_with_one_weight_near_its_bound_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of 1 to 5, and all weights 37.5 of at most 38. Of a third of the file, the reference has one record. At
    ε = 64, means err by .05 direct standard errors in the median, and by .2 at most; at ε = 1, by 6 at most. Control: where
    limits are no wider than the range of one coordinate, they clip records at the end of both, by more than .5.
    """
    rng = np.random.default_rng(1)

    def sample(level: Ints) -> Sample:
        records = len(level)
        codes, answers = np.column_stack([level, rng.integers(5, size=records)]), rng.integers(1, 6, (records, 1))
        return Sample(codes, np.full(records, 37.5), answers.astype(np.float64))

    before, now = sample(rng.integers(2, size=3_000)), sample(rng.integers(3, size=5_000))
    one = Sample(np.array([[2, 0]]), before.weight[:1], np.ones((1, 1)))
    files = Files(Sample(*map(np.concatenate, zip(before, one, strict=True))), now)

    def off(epsilon: float) -> Floats:
        return release(Public((3, 5), ((0, 1),), (0.0, 38.0), ((1.0, 5.0),)), files, epsilon).comparison((0, 1)).off()[:, 1]

    assert np.median(off(64.0)) <= 0.05
    assert off(64.0).max() <= 0.2
    assert off(1.0).max() <= 6.0
    monkeypatch.setattr(table_law, "even_parts", lambda prediction: np.ones(2))
    assert off(63.0).max() > 0.5, "control"


@pytest.mark.slow
def test_a_few_sums_that_have_not_settled_move_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 1 sum in 100 need not settle, ten times the part of releases, rounds are fewer and figures differ from those of
    all rounds by at most .05 standard errors, in two populations. Control: after one round one differs by more than .1.
    """
    sizes = {"records": (4_000, 4_000), "sizes": (20, 16, 12), "number": 3}
    parts, rounds = (0.0, 10 * measured_sums.UNSETTLED, 1.0), Counter[float]()
    follow = measured_sums.followed_limits

    def counted(*of: Any) -> Any:
        rounds[measured_sums.UNSETTLED] += 1
        return follow(*of)

    monkeypatch.setattr(measured_sums, "followed_limits", counted)
    moved = list[list[float]]()
    for seed in (5, 6):
        population, figures = (
            Population.of(seed, weights="narrow", kinds=["heavy"], **sizes, drift="common"),
            list[Floats](),
        )
        for part in parts:
            monkeypatch.setattr(measured_sums, "UNSETTLED", part)
            made = release(population.public, population.files(), 1.0, 0)
            found = [made.comparison(by).published for by in tables_of(population.public)]
            figures.append(np.concatenate([one.values.ravel() for one in found]))
        errors = np.concatenate([one.errors.ravel() for one in found])
        moved.append([float(np.nanmax(np.abs(one - figures[0]) / errors)) for one in figures[1:]])
    of_few, of_one_round = np.max(moved, axis=0)
    assert rounds[parts[0]] > rounds[parts[1]] > rounds[parts[2]]
    assert of_few <= 0.05
    assert of_one_round > 0.1


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are chosen as if every record drifted on its own, and no cell shared its drift with others."""

    def none(drift: Floats, prediction: Prediction, *_: Any) -> list[Floats]:
        return [np.zeros_like(prediction.spread)]

    def on_its_own(*args: Any, **rest: Any) -> TableLaw:
        return replace(TableLaw(*args, **rest), together=False)

    monkeypatch.setattr(table_law, "common_drifts", none)
    monkeypatch.setattr(measurements, "TableLaw", on_its_own)
    monkeypatch.setattr(clipped_residuals, "COMMON_DRIFT", 0.0)


def test_the_first_sums_show_a_drift_of_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """At ε = 1 and where all weights have grown by a fifth, noise and clipping of the first sum hide less than that, and at
    most half of it unless weights vary widely. Control: limits chosen as if every record drifted on its own leave noise
    above it.
    """

    def hidden(seed: int, weights: str) -> float:
        case: dict[str, Any] = {**INCOMES, "weights": weights, "records": (2_000, 2_000), "sizes": (6, 5, 4), "number": 3}
        population = Population.of(seed, drift="none", **case)
        reference = population.files(seed).reference
        system = model_of(population.public, Files(reference, reference), 1.0).plan.asked
        base, first, prediction = base_cells(reference.codes)[1], system.first, system.file.prediction

        def shown(weight: Floats) -> float:
            u = first.contributions(base, weight, reference.outcomes, prediction)
            return float(u[:, 0].sum() / UNIT * first.weight[0])

        drift = 0.2 * float(reference.weight.sum())
        lost = 1.0 - (shown(1.2 * reference.weight) - shown(reference.weight)) / drift
        return float(np.hypot(lost, np.sqrt(system.noise(system.parts[0])[0]) * first.weight[0] / drift))

    every = {weights: hidden(2, weights) for weights in WEIGHTS}
    assert max(every.values()) < 1.0
    assert max(every[weights] for weights in ("constant", "by columns", "narrow")) <= 0.5
    alone(monkeypatch)
    assert hidden(4, "wide") > 2.0


@pytest.mark.long
def test_intervals_hold_where_all_weights_and_outcomes_have_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """18 populations of six kinds at ε = 1: coverage of 90 % intervals is at least .86 (about .91 ‖ .88) where all weights
    and outcomes are a tenth above the reference's, and of counts at least .8 (about .88) where they are by two fifths, and
    .6 (about .65) where they have doubled. Control (.44 there): limits as if every record drifted on its own.
    """
    kinds = [("narrow", "income"), ("wide", "income"), ("narrow", "yes or no")]
    kinds += [("constant", "income"), ("two sizes", "rounded"), ("by columns", "balance")]

    def coverage(factor: float) -> Floats:
        inside = [
            covered_after_growth(5_000 + seed, *kinds[seed % 6], (1_000, 3_000)[seed // 6 % 2], factor, 1.0)
            for seed in range(18)
        ]
        return np.asarray(np.concatenate(inside).mean(axis=0))

    assert (coverage(1.1) >= 0.86).all()
    assert coverage(1.4)[0] >= 0.8
    assert coverage(2.0)[0] >= 0.6
    alone(monkeypatch)
    assert coverage(2.0)[0] < 0.52


@pytest.mark.long
def test_far_laplace_noise_is_not_taken_for_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of one cell of 18 is 5 standard deviations, as in 1 of 1,200 sums, at ε = .1. In at most 6 of 12 populations
    without drift its figure moves from the prediction by more than 5 direct standard errors, and in some by 50. Under the
    normal law of the control it does in 8.
    """

    def moved(seed: int) -> float:
        population = Population.of(seed, **INCOMES, records=(4_000, 4_000), sizes=(6, 3), number=1, drift="none")
        found = release(population.public, population.files(), 0.1, seed)
        cell = 1 + int(found.system.file.tables[0][1][0])
        noisy = found.noisy.copy()
        noisy[cell, 0] = 5.0 * np.sqrt(found.system.variance(found.system.parts[1])) * UNIT
        sums = replace(found.measured, sums=found.model.by_measurement(noisy))
        one = replace(found, noisy=noisy, measured=sums).comparison(population.public.tables[0])
        return float(np.abs((one.published.values - one.predicted) / one.units)[cell - 1, 0])

    assert sum(moved(seed) > 5.0 for seed in range(12)) <= 6
    monkeypatch.setattr(ResidualMeasurements, "laplace", False)
    assert sum(moved(seed) > 5.0 for seed in range(12)) >= 8


def test_figures_do_not_depend_on_the_origin_of_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year and the years since 1900 have the same errors, actual and stated, to a tenth. Control: if drift is relative to
    the distance from 0, those of the year are a quarter larger, and stated ones five times as large, at least."""

    def of_means(kind: str) -> Floats:
        found = runs([{**NEAR[0], "kinds": [kind]}], (1.0,), seeds=2)
        cells = [one for population in found.compared[1.0] for one in population]
        errors = [np.abs(one.published.values - one.direct)[one.large, 1] for one in cells]
        return np.median(
            [np.concatenate(errors), np.concatenate([one.published.errors[one.large, 1] for one in cells])], axis=1
        )

    of_ages = of_means("age")
    np.testing.assert_allclose(of_means("year"), of_ages, rtol=0.1)
    monkeypatch.setattr(predicting, "FROM_ORIGIN", np.inf)
    PLANS.clear()  # plans of the same populations, without this change
    assert (of_means("year") > [1.25, 5.0] * of_ages).all(), "control"


@pytest.mark.parametrize(
    ("changed", "seeds"), [(50, 1), *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 2), (50, 2)))]
)
def test_outcomes_that_hardly_vary_may_drift_by_more_than_they_vary(
    changed: int, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of `changed` records of the reference has 7,010 and others 7,000; the file has 5 % more. Intervals hold direct
    means. Control: where drift is relative to what records vary, they do not."""
    population = Population.of(0, drift="none", **{**NEAR[0], "kinds": ["income"]})
    held = {}
    for part in (predicting.OF_RANGE, 0.0):
        monkeypatch.setattr(predicting, "OF_RANGE", part)
        covered = []
        for seed in range(seeds):
            files = population.files(seed + 10 * (part == 0.0))  # of other files: predictions of the last ones are kept
            before, now = (
                sample._replace(outcomes=grown * (7_000.0 + 10.0 * (np.arange(len(sample.weight)) % changed == 0))[:, None])
                for sample, grown in zip(files, (1.0, 1.05), strict=True)
            )
            made = release(population.public, Files(before, now), 1.0, seed)
            for by in tables_of(population.public):
                one = made.comparison(by)
                error = np.abs(one.published.values - one.direct)[one.large, 1]
                covered.append(error <= 1.645 * one.published.errors[one.large, 1])
        held[part] = np.concatenate(covered).mean()
    print(held)
    assert held[0.25] > 0.9
    assert held[0.0] < 0.6, "control"


@pytest.mark.parametrize(
    ("kind", "level", "files"),
    [
        ("yes or no", 0.0, 1),
        pytest.param("yes or no", 0.0, 2, marks=pytest.mark.long),
        *(pytest.param("income", level, 2, marks=pytest.mark.long) for level in (0.0, 500.0)),
    ],
)
def test_a_level_whose_reference_records_are_alike_may_have_others(
    kind: str, level: float, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All reference records of a level have one value, which hardly any of the file has. At ε = 16, intervals hold at least
    .7 of its direct means. Control: without room for others, less than .5 (n = 13 each of a file).
    """

    def held(seeds: range) -> float:
        covered = []
        for seed in seeds:
            population = Population.of(seed % 5, drift="none", **{**NEAR[0], "kinds": [kind]})
            before, now = population.files(seed)
            alike = np.where(before.codes[:, :1] == 0, level, before.outcomes)
            made = release(population.public, Files(before._replace(outcomes=alike), now), 16.0, seed)
            for by in (by for by in tables_of(population.public) if 0 in by):
                one = made.comparison(by)
                error = np.abs(one.published.values - one.direct)[:, 1] <= 1.645 * one.published.errors[:, 1]
                of_level = cells_of(made.model.codes, [], by)[0][made.model.codes[:, 0] == 0]
                covered.append(error[np.unique(of_level[one.large[of_level]])])
        return float(np.concatenate(covered).mean())

    share = held(range(3, 3 + files))
    monkeypatch.setattr(Prediction, "with_room", lambda self, part=0.0: self)
    control = held(range(8, 8 + files))  # of other files: predictions of the last ones are kept
    assert share >= 0.7
    assert control < 0.5, "control"


@pytest.mark.parametrize("populations", [1, pytest.param(2, marks=pytest.mark.long)])
def test_levels_of_very_different_size_are_as_accurate_as_others(populations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of a level are five times those of the next one. At ε = 4, root mean square errors of means are at most
    1.1 direct standard errors. Control: where the error of all cells' level is the same amount in small cells, more than
    1.8.
    """

    def error(seeds: range) -> float:
        errors = []
        for seed in seeds:
            population = Population.of(seed, drift="none", **{**NEAR[0], "kinds": ["income"]})
            scaled = [
                sample._replace(outcomes=sample.outcomes / 5.0 ** sample.codes[:, :1]) for sample in population.files(seed)
            ]
            made = release(population.public, Files(*scaled), 4.0, seed)
            errors += [made.comparison(by).off()[:, 1] for by in tables_of(population.public)]
        return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))

    assert error(range(populations)) < 1.1
    monkeypatch.setattr(predicting, "_over_their_mean", lambda means, weights: np.ones_like(means))
    assert error(range(3, 4)) > 1.8, "control"  # of other files: predictions of the last ones are kept


@pytest.mark.long
def test_a_rare_yes_that_few_reference_records_show_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of .04 in every cell of 60 levels and 4, a reference of 1,000 records that has no yes in most of them, ε = 1:
    intervals hold the true share in .75 of the cells, and at most .03 of figures are farther than 4 standard errors from
    it. Control: where a fit is taken to leave of others what it leaves of its own records, more than .2 are.
    """
    public, share = Public((60, 4, 3), ((0,), (0, 1), (1, 2)), (1.0, 1e4), ((0.0, 1.0),)), 0.04

    def sparse(seed: int, number: int) -> Sample:
        rng = np.random.default_rng(seed)
        codes = np.column_stack([rng.integers(levels, size=number) for levels in public.sizes])
        weight = 50.0 * np.exp(0.3 * rng.standard_normal(number))
        return Sample(codes, weight, (rng.random((number, 1)) < share).astype(float))

    def distances(seeds: range) -> Floats:
        found = list[Floats]()
        for seed in seeds:
            made = release(public, Files(sparse(2 * seed, 1_000), sparse(2 * seed + 1, 5_000)), 1.0, seed)
            for by in tables_of(public):
                of_table = made.comparison(by)
                errors = np.abs(of_table.published.values[:, 1] - share) / of_table.published.errors[:, 1]
                found.append(errors[of_table.large])
        return np.concatenate(found)

    off = distances(range(5))
    assert (off <= 1.645).mean() >= 0.75
    assert (off > 4.0).mean() <= 0.03
    fit = MainEffects.fit

    def of_its_own(learner: MainEffects, *arguments: Any) -> Fitted:
        fitted = fit(learner, *arguments)
        return fitted._replace(of_others=np.tile(fitted.means, (learner.folds, 1)))

    monkeypatch.setattr(MainEffects, "fit", of_its_own)
    assert (distances(range(5, 7)) > 4.0).mean() > 0.2, "control"


@pytest.mark.parametrize("files", [2, pytest.param(3, marks=pytest.mark.long)])
def test_means_of_firms_are_better_than_those_of_an_earlier_year(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payrolls of five sizes of firms, each seven times those of the next smaller one, weights from 1 to 120, at ε = 1:
    median errors are less than .9 of the reference's, and the published error of the smallest firms' mean is less than 1.6
    direct ones. Control: where bins of predictions are mixed with the mean square of all records, it is more than 2.2.
    """
    public = Public((5, 6), ((0,), (1,), (0, 1)), (0.5, 500.0), ((0.0, 5e6),))

    def firms(seed: int, number: int = 2_200) -> Sample:
        rng = np.random.default_rng(seed)
        size, industry = rng.choice(5, number, p=[0.6, 0.2, 0.1, 0.06, 0.04]), rng.integers(6, size=number)
        weight = np.array([120.0, 40.0, 12.0, 4.0, 1.2])[size] * np.exp(rng.normal(0.0, 0.25, number))
        payroll = np.exp(rng.normal(3.5 + 1.9 * size + 0.2 * industry, 0.9)) * (rng.random(number) > 0.05)
        return Sample(np.column_stack([size, industry]), np.clip(weight, 0.5, 500.0), payroll.clip(0.0, 5e6)[:, None])

    def errors(seeds: range) -> tuple[float, float]:
        errors, of_reference, of_smallest = list[Floats](), list[Floats](), list[float]()
        for seed in seeds:
            made = release(public, Files(firms(2 * seed), firms(2 * seed + 1)), 1.0, seed)
            comparisons = [made.comparison(by) for by in public.tables]
            errors += [comparison.off()[:, 1] for comparison in comparisons]
            of_reference += [comparison.off(comparison.reference.values)[:, 1] for comparison in comparisons]
            of_smallest.append(float((comparisons[0].published.errors / comparisons[0].units)[0, 1]))
        error, before = (float(np.median(np.concatenate(parts))) for parts in (errors, of_reference))
        return error / before, float(np.median(of_smallest))

    error, of_smallest = errors(range(files))
    assert error < 0.9
    assert of_smallest < 1.6
    monkeypatch.setattr(predicting, "POWERS", np.zeros(1))
    assert errors(range(3, 4))[1] > 2.2, "control"


@pytest.mark.parametrize("files", [1, pytest.param(2, marks=pytest.mark.long)])
def test_profits_and_losses_go_with_the_size_of_firms(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six sizes of firms, each three times the next smaller one, with profits and losses, ε = 1: median and root mean
    square errors of means are at most .74 of those of a reference half as large. Control: if effects multiply what is
    above the lowest value, they are larger.
    """
    public = Public((6, 5, 4), ((0, 1), (0, 2), (1, 2), (0, 1, 2)), (1.0, 1e4), ((-1e7, 1e7),))

    def firms(seed: int, number: int) -> Sample:
        rng = np.random.default_rng(seed)
        shares = [np.arange(levels, 0.0, -1.0) / (levels * (levels + 1) / 2) for levels in public.sizes]
        codes = np.column_stack([rng.choice(len(share), number, p=share) for share in shares])
        weight = 50.0 * np.exp(0.3 * rng.standard_normal(number))
        amount = 1e3 * np.exp(1.14 * codes[:, 0] + 0.8 * rng.standard_normal(number))
        profit = amount * (0.15 * (codes[:, 1] - 1) + 0.5 * rng.standard_t(4, number))
        return Sample(codes, weight, profit.clip(-1e7, 1e7)[:, None])

    def errors(seeds: range) -> tuple[float, float]:
        off = list[Floats]()
        for seed in seeds:
            made = release(public, Files(firms(2 * seed, 1_500), firms(2 * seed + 1, 3_000)), 1.0, seed)
            compared = [made.comparison(by) for by in public.tables]
            off += [np.array([one.off(), one.off(one.reference.values)])[:, :, 1] for one in compared]
        both = np.concatenate(off, axis=1)
        both = np.abs(both[:, np.isfinite(both).all(axis=0)])
        return float(np.divide(*np.median(both, axis=1))), float(np.sqrt(np.divide(*np.square(both).mean(axis=1))))

    assert max(errors(range(files))) < 0.74
    monkeypatch.setattr(predicting._Fit, "less", lambda fit, losses: fit._replace(of_others=1e6 * fit.of_others))
    assert min(errors(range(12, 13))) > 0.74, "control"


@pytest.mark.parametrize("value", [0.0, 7_000.0])
def test_a_reference_of_one_value_ends_in_the_direct_figures(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At ε = 10,000, to a tenth of a direct standard error. Control: under limits that no count
    widens, not."""

    def largest(seed: int) -> float:
        population = Population.of(seed, drift="none", **{**NEAR[0], "kinds": ["income"]})
        before, now = population.files(seed)
        constant = before._replace(outcomes=np.full_like(before.outcomes, value))
        made = release(population.public, Files(constant, now), 1e4, seed)
        return max(float(made.comparison(by).off().max()) for by in tables_of(population.public))

    assert largest(0) < 0.1
    monkeypatch.setattr(TableLimits, "widened", lambda self, counts: self)
    assert largest(1) > 1.0, "control"


def test_standard_errors_do_not_rise_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """From ε = 1,000 on, their medians are those at 64, to a fifth. Control: where limits that no count has widened stand
    for records, they are half as large again, at least.
    """

    def medians(*budgets: float) -> list[Floats]:
        every = [[one for cells in of for one in cells] for of in runs([NEAR[0]], budgets).compared.values()]
        errors = [np.concatenate([(one.published.errors / one.units)[one.large] for one in cells]) for cells in every]
        return [np.median(of_budget, axis=0) for of_budget in errors]

    usual, *larger = medians(64.0, 1e3, 1e4, 1e5)
    for of_budget in larger:
        np.testing.assert_allclose(of_budget, usual, rtol=0.2)
    widened = TableLimits.widened

    def as_counted(self: TableLimits, counts: Floats) -> TableLimits:
        limits = widened(self, counts)
        return replace(limits, counted=True)

    monkeypatch.setattr(TableLimits, "widened", as_counted)
    assert (medians(1e5)[0] > 1.5 * usual).all(), "control"


def test_an_outcome_and_its_negative_have_mirrored_figures() -> None:
    """Under a common drift that the first sums show. Control: they move."""
    population = Population.of(0, **{**NEAR[0], "kinds": ["age"], "drift": "common"})
    files = population.files()
    mirrored = Files(*(sample._replace(outcomes=-sample.outcomes) for sample in files))
    public = population.public._replace(bounds=((-110.0, 110.0),))
    made = [release(public, each, 1e4, 0) for each in (files, mirrored)]
    ages, negative = (each.measured.calibration.factors[1] for each in made)
    assert ages == pytest.approx(negative, abs=1e-3)
    assert abs(ages - 1.0) > 0.05, "control"


def test_figures_lie_between_their_sources_and_within_bounds(near: Runs, far: Runs) -> None:
    """1 of 1,000 is farther from both direct and reference figures than 3 standard errors. Control: means times 1.5."""
    distances = []
    for found, budgets in ((near, BUDGETS), (far, (1.0,))):
        for epsilon in budgets:
            distances += [one.between().ravel() for population in found.compared[epsilon] for one in population]
    pooled = np.concatenate(distances)
    assert np.mean(pooled > 3.0) <= 1e-3
    moved = [
        one._replace(published=one.published._replace(values=1.5 * one.published.values)).between().ravel()
        for population in near.compared[4.0]
        for one in population
    ]
    assert np.mean(np.concatenate(moved) > 3.0) > 1e-3
    for found in (near, far):
        for releases in found.released.values():
            for one in releases:
                assert_within_bounds(one)


@pytest.mark.parametrize("kind", ["income", "yes or no", pytest.param("balance", marks=pytest.mark.long)])
def test_all_of_the_reference_is_expected_to_have_what_its_records_clip(kind: str) -> None:
    """Over 480 cells of 6 records, expected clipped parts times numbers of reference records are the clipped residuals of
    these. Cell by cell they are not: cells of few records have those of others. Control.
    """
    case: dict[str, Any] = {"weights": "narrow", "records": (3_000, 3_000), "sizes": (12, 8, 5), "drift": "none"}
    population = Population.of(1, **case, kinds=[kind], number=1)
    files = population.files()
    asked = model_of(population.public._replace(tables=((0, 1, 2),)), files, 4.0).plan.asked
    (_, cells), law, placed = asked.file.tables[0], asked.file.informed, asked.file.placed_records(0)
    chosen = asked.limits_of(cells, placed, law, asked.parts[1])
    inside, reference = np.flatnonzero(placed >= 0), asked.file.reference
    cell, (about, _) = placed[inside], law.of_records(inside).transpose(1, 0, 2)
    weight, outcome = reference.weight[inside], reference.outcomes[inside, 0]
    rho = weight * (outcome - chosen.mean[cell, 0]) - about[:, 0] * (about[:, 1] - chosen.mean[cell, 0])
    residual = np.column_stack([weight - about[:, 0] - chosen.centre[cell], rho])
    norm = np.abs(residual / chosen.scale[cell]).sum(axis=1)
    clipped = residual * (1.0 - 1.0 / np.maximum(norm, 1.0))[:, None]
    number = np.bincount(cell, minlength=len(chosen.size))[:, None]
    of_cells = np.column_stack([np.bincount(cell, weights=part, minlength=len(number)) for part in clipped.T])
    expected = number * chosen.beyond
    assert expected.sum(axis=0) == pytest.approx(of_cells.sum(axis=0), rel=1e-6)
    assert (np.abs(expected - of_cells).sum(axis=0) > 0.1 * np.abs(of_cells).sum(axis=0)).all()


def test_a_yes_or_no_drifts_by_its_probability() -> None:
    """Where all means are times .8 or 1.2, each reference record is expected to have kept its answer or to give the other
    one, so that all of them clip what they do on average over answers. Control: answers that drift as amounts do, to
    values between yes and no, clip less by a tenth.
    """
    case: dict[str, Any] = {"weights": "narrow", "records": (3_000, 3_000), "sizes": (12, 8, 5), "drift": "none"}
    populations = [Population.of(seed, **case, kinds=["yes or no"], number=1) for seed in range(1, 6)]
    models = [model_of(one.public._replace(tables=((0, 1),)), one.files(), 1.0) for one in populations]
    every = [model.plan.asked for model in models]
    for factor in (0.8, 1.2):
        predicted, found = np.mean([_slope_of_yes(asked, factor) for asked in every], axis=0)
        assert predicted == pytest.approx(found, abs=0.02)


def _slope_of_yes(asked: ResidualMeasurements, factor: float) -> tuple[float, float]:
    """The part of a change of answers that is clipped, predicted and found, where means are times `factor`."""
    file, (_, cells), law, placed = asked.file, asked.file.tables[0], asked.file.informed, asked.file.placed_records(0)
    chosen, moved = asked.limits_of(cells, placed, law, asked.parts[1]), law.rescaled(np.array([1.0, factor]))
    inside = np.flatnonzero(placed >= 0)
    cell, (about, _) = placed[inside], law.of_records(inside).transpose(1, 0, 2)
    weight, answer = file.reference.weight[inside], file.reference.outcomes[inside, 0]

    def clipped(answer: Floats) -> Floats:
        rho = weight * (answer - chosen.mean[cell, 0]) - about[:, 0] * (about[:, 1] - chosen.mean[cell, 0])
        residual = np.column_stack([weight - about[:, 0] - chosen.centre[cell], rho])
        norm = np.abs(residual / chosen.scale[cell]).sum(axis=1)
        return np.asarray(residual * (1.0 - 1.0 / np.maximum(norm, 1.0))[:, None])

    room = 1.0 - about[:, 1]
    odds = np.where(room > 0.0, np.minimum((factor - 1.0) * about[:, 1] / np.maximum(room, 1e-300), 1.0), 0.0)
    yes = np.where(answer == 1.0, min(factor, 1.0), np.maximum(odds, 0.0))[:, None]
    worth = np.ones(len(cell)) if law.worth is None else law.worth[inside]
    of_all = worth @ (yes * clipped(np.ones(len(cell))) + (1.0 - yes) * clipped(np.zeros(len(cell))))
    number = np.bincount(cell, worth, minlength=len(chosen.size))

    def followed(moved: Prediction) -> TableLimits:
        return TableLaw(cells, placed, file.count, moved, file.highest, file.lowest, origin=law).under(chosen)

    def expected(moved: Prediction) -> Floats:
        return np.asarray(number @ followed(moved).beyond)

    changed = np.bincount(cell, weights=worth * weight * (moved.values[inside, 0] - answer), minlength=len(number))
    assert expected(moved) == pytest.approx(of_all, rel=1e-6)
    assert expected(replace(moved, ends=np.full((2, 1), np.nan)))[1] < 0.9 * of_all[1]
    slope = followed(law).slope[:, 1] @ changed / changed.sum()
    return float(slope), float((expected(moved) - expected(law))[1] / changed.sum())


def test_falling_shares_fall_by_as_much_in_the_reference() -> None:
    """Where a rare yes is as probable as .8 times before in every base cell, totals of reference records that have moved
    with their cells fall by a fifth: 3 %. Control: by means without the record's own answer, those of a yes are too small.
    """
    case: dict[str, Any] = {"weights": "two sizes", "records": (6_000, 6_000), "sizes": (12, 8, 5), "drift": "none"}
    population = Population.of(2, **case, kinds=["rare yes"], number=1)
    file = model_of(population.public, population.files(), 4.0).plan.asked.file
    before, (_, cells), placed = file.prediction, file.tables[0], file.placed_records(0)
    fall = np.column_stack([np.zeros(len(file.count)), -0.2 * before.means[:, 0] * before.means[:, 1]])
    law = before.shifted(fall, file.lowest, file.highest)
    then, now = (share * (1.0 - share) for share in (before.means[:, 1], 0.8 * before.means[:, 1]))
    np.testing.assert_allclose(law.spread[:, 1] ** 2 * then, before.spread[:, 1] ** 2 * now, rtol=1e-9)
    inside = (before.places >= 0) | (placed >= 0)
    weight = file.reference.weight[inside]
    yes = weight @ before.values[inside, 0]
    after = followed_limits.following(law, before, cells, placed, file.count)
    assert weight @ after.values[inside, 0] == pytest.approx(0.8 * yes, rel=0.03)
    without = before.with_values(*(of.of_records(np.arange(len(of.places)))[:, 0] for of in (before, after)))
    assert weight @ without.values[inside, 0] < 0.7 * yes


@pytest.mark.parametrize("epsilon", [16.0, 300.0])
def test_no_sum_of_weights_is_expected_to_have_less_than_nothing_clipped(epsilon: float) -> None:
    """Where records add their whole weights, of a secret number of records. Control: about a centre, something may be."""
    case: dict[str, Any] = {"weights": "wide", "kinds": ["heavy"], "records": (3_000, 3_000), "drift": "none"}
    population = Population.of(1, **case, sizes=(12, 4), number=1)
    asked = model_of(population.public, population.files(), epsilon).plan.asked
    file, law, placed = asked.file, asked.file.informed, asked.file.placed_records(0)
    public, noise = (
        TableLaw(file.tables[0][1], placed, file.count, law, file.highest, file.lowest),
        asked.noise(asked.parts[1]),
    )
    secret = replace(public, prediction=replace(law, adds_weight=True))
    assert (secret.limits(noise).beyond[:, 0] >= -1e-12).all()
    assert (public.limits(noise).beyond[:, 0] < 0.0).any()


@pytest.mark.long
def test_shares_are_covered_where_little_is_left_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A yes/no outcome, 20,000 records, ε = 1, four populations: 90 % intervals of tables' means hold .88 of the
    population's, and those of all records are within .3 direct standard errors on average. Control: where answers drift as
    amounts do, those of all records of 2 of them are more than 1 off.
    """

    def found(seeds: range) -> tuple[float, float]:
        inside, off = list[Floats](), list[float]()
        for seed in seeds:
            case: dict[str, Any] = {"weights": "narrow", "kinds": ["yes or no"], "drift": "none", "sparse": False}
            population = Population.of(seed, **case, records=(20_000, 20_000), sizes=(12, 6, 4), number=6)
            one = release(population.public, population.files(seed), 1.0, seed)
            truth = one.model.count[:, None] * population.expected(one.model.codes)
            inside += [one.comparison(by, truth).covered()[:, 1] for by in population.public.tables]
            every = one.comparison(())
            off.append(float(((every.published.values - every.direct) / every.units)[0, 1]))
        return float(np.concatenate(inside).mean()), abs(float(np.mean(off)))

    covered, off = found(range(4))
    assert covered >= 0.88
    assert off <= 0.3
    none = np.full((2, 1), np.nan), np.zeros((0, 0))
    monkeypatch.setattr(predicting, "_of_two_values", lambda outcomes, lowest, highest: none)
    PLANS.clear()  # plans of the same populations, without this change
    assert found(range(2, 4))[1] > 1.0


def test_all_records_are_near_their_direct_figures() -> None:
    """10,000 records, 2 tables, ε = 4, 4 draws of all: half a standard error in the median. The count does not lean: .2.

    Means lean by .17 (30 draws; .01 at ε = 10,000): spreads, and with them limits, are learned from the records that say
    what is clipped. Control: noise ten times as large as stated.
    """
    case: dict[str, Any] = {"weights": "narrow", "kinds": ["income"], "records": (10_000, 10_000)}
    population = Population.of(3, **case, sizes=(6, 4), number=2, drift="none")

    def off(seed: int, louder: float = 1.0) -> Floats:
        one = release(population.public, population.files(seed), 4.0, seed, louder=louder).comparison(())
        return np.asarray(((one.published.values - one.direct) / one.units)[0])

    found = [off(seed) for seed in range(4)]
    assert (np.median(np.abs(found), axis=0) <= 0.5).all()
    assert (np.abs(np.median(found, axis=0)) <= (0.2, 0.3)).all()
    assert (np.abs(off(0, 10.0)) > 0.5).any()


@pytest.mark.long
def test_a_large_reference_is_no_better_than_what_is_learned_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 records in cells of 330, whose means differ by 5.5 %, in a file of so many base cells that only crosses that
    show effects have any: errors of predicted means are at most 1.03 times those of the reference's own. Control: effects
    that 20,000 records show.
    """
    rng, sizes = np.random.default_rng(3), (50, 12, 8, 6, 2)
    codes = np.column_stack([rng.integers(0, size, 200_000) for size in sizes])
    level = 1_000.0 * np.exp(rng.normal(0.0, 0.055, sizes[:2]))
    weight, outcome = rng.gamma(4.0, 25.0, len(codes)), level[codes[:, 0], codes[:, 1]] * rng.gamma(2.0, 0.5, len(codes))
    crosses, of_record = np.unique(codes, axis=0, return_inverse=True)
    sample = ReferenceSample(crosses, weight, outcome[:, None], of_record.reshape(-1).astype(np.int32))
    cell, place = crosses[:, 0] * sizes[1] + crosses[:, 1], codes[:, 0] * sizes[1] + codes[:, 1]
    own = np.bincount(place, weights=weight * outcome) / np.bincount(place, weights=weight)
    monkeypatch.setattr(random_effects, "ENTRIES", 100_000)
    monkeypatch.setattr(random_effects, "LEAST_FAMILIES", len(sizes))

    def ratio() -> float:
        found = predicting.predict(sample, crosses, sizes, [(0, 1)], np.array([1.0, 0.0]), np.array([2_000.0, 1e5])).means
        means = np.bincount(cell, weights=found[:, 0] * found[:, 1]) / np.bincount(cell, weights=found[:, 0])
        predicted, alone = (float(np.sqrt(np.mean((of - level.ravel()) ** 2))) for of in (means, own))
        return predicted / alone

    assert ratio() <= 1.03
    monkeypatch.setattr(random_effects, "MOST_CHOOSING", 20_000)
    assert ratio() > 1.03


@pytest.mark.slow
def test_ten_tables_are_better_than_ten_separate_releases() -> None:
    """At ε = 4 in all, in the median over tables of two populations of ratios of medians: .8. One of them alone has .80 for
    counts and .82 for means. Control: releases with the whole ε each.
    """
    case: dict[str, Any] = {"weights": "narrow", "kinds": ["income"], "records": (6_000, 6_000)}

    def ratios(epsilon: float, tables: int) -> Floats:
        found = []
        for seed in (6, 16):
            population = Population.of(seed, **case, sizes=(6, 5, 4, 3), number=10, drift="none")
            public, files = population.public, population.files()
            together = release(public, files, 4.0)
            for by in public.tables[:tables]:
                alone = release(public._replace(tables=(by,)), files, epsilon).comparison(by).off()
                found.append(np.nanmedian(together.comparison(by).off(), axis=0) / np.nanmedian(alone, axis=0))
        return np.asarray(np.median(found, axis=0))

    assert (ratios(0.4, 10) <= 0.8).all()
    assert (ratios(4.0, 3) > 0.8).all()


@pytest.mark.slow
def test_laws_of_more_populations() -> None:
    """20 populations: no worse than the prediction by 3 %, and than the reference by 6 %; 90 % intervals hold .86 to .94.

    Also at ε = .1, where a release is nearly its prediction. Control: errors times .7.
    """
    found = runs(NEAR, (0.1, 1.0, 4.0), seeds=5)
    for epsilon in (0.1, 1.0, 4.0):
        medians = {of: np.nanmedian(found.off(epsilon, of), axis=0) for of in ("published", "predicted", "reference")}
        shown = {of: part.round(2).tolist() for of, part in medians.items()}
        print(f"\nε = {epsilon}: {shown}, covered {share_covered(found, epsilon):.3f}", flush=True)
        assert (medians["published"] <= (1.04 if epsilon < 1.0 else 1.03) * medians["predicted"]).all(), epsilon
        assert (medians["published"] <= 1.06 * medians["reference"]).all(), epsilon
        assert 0.86 <= share_covered(found, epsilon) <= 0.94
        assert share_covered(found, epsilon, 0.7) < 0.86


def assert_laws(found: Runs, budgets: tuple[float, ...], covered: tuple[float, float], worse: float = 1.03) -> None:
    """Figures are the direct ones at the last budget, and at no other. Before, they are no worse than the prediction and
    the reference by 3 %, or as the last argument says; 1 of 1,000 at most is beyond both sources, and 90 % intervals hold
    the population's figures of all cells, also of those of one record. Half of these intervals do not.
    """
    *some, last = budgets
    for median, largest in exact(found, last):
        assert (median <= 0.02).all()
        assert largest <= 0.2
    for budget in some:
        every = [comparison for population in found.compared[budget] for comparison in population]
        medians = {of: np.nanmedian(found.off(budget, of), axis=0) for of in ("published", "predicted", "reference")}
        assert (medians["published"] <= worse * np.minimum(medians["predicted"], medians["reference"])).all(), medians
        assert max(largest for _, largest in exact(found, budget)) > 0.2
        assert np.mean(np.concatenate([comparison.between().ravel() for comparison in every]) > 3.0) <= 1e-3
        cells = [comparison._replace(large=np.isfinite(comparison.direct[:, 1])) for comparison in every]
        share, half = (np.concatenate([one.covered(part).ravel() for one in cells]).mean() for part in (1.0, 0.5))
        assert covered[0] <= share <= covered[1], (budget, share)
        assert half < covered[0]


def test_laws_hold_under_zcdp() -> None:
    """Shares of so few cells' intervals vary by some per cent; the slow test has more populations."""
    assert_laws(runs(NEAR[:1], RHO, seeds=2, gaussian=True), RHO, (0.84, 0.97))


@pytest.mark.parametrize(
    ("gaussian", "seeds"), [(True, 1), *(pytest.param(law, 2, marks=pytest.mark.long) for law in (False, True))]
)
def test_laws_hold_where_most_crosses_have_one_record_or_none(gaussian: bool, seeds: int) -> None:
    """Populations of 192 crosses and 500 records."""
    budgets = (8.0, 5e7) if gaussian else (4.0, 1e4)
    assert_laws(runs(SPARSE[2:], budgets, seeds, gaussian=gaussian), budgets, (0.8, 0.97))


@pytest.mark.long
def test_laws_hold_for_thirty_tables() -> None:
    """Their cells overlap, so that few of their figures are independent. It takes some seconds to estimate so many."""
    assert_laws(runs([FEWER], RHO[1:], gaussian=True), RHO[1:], (0.8, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize(
    ("cases", "covered", "worse"),
    [(NEAR, (0.85, 0.97), 1.03), (SPARSE, (0.8, 0.97), 1.03), ([THIRTY], (0.85, 0.97), 1.07)],
    ids=["usual", "sparse", "thirty tables"],
)
def test_laws_of_more_populations_under_both_laws_of_noise(
    cases: list[dict[str, Any]], covered: tuple[float, float], worse: float, gaussian: bool
) -> None:
    """Four of each case. Shares are .84 where most crosses have one record, at ε = 1. Counts of thirty tables are 6 % worse
    there than the prediction, in the median: their noise lets the drift that is possible through.
    """
    budgets = RHO if gaussian else (1.0, 4.0, 1e4)
    assert_laws(runs(cases, budgets, seeds=4, gaussian=gaussian), budgets, covered, worse)


def test_residuals_of_the_reference_are_those_of_other_records() -> None:
    """Of heavy weights in crosses of one record, in the median over 4 populations: the mean is within .3 standard errors of
    0, and the deviation within 15 % of that in another sample. Control: with the record's own influence in the scale, the
    mean is beyond .3, and what limits hide would be overstated by as much.
    """
    means, ratios, controls = [], [], []
    for seed in range(4):
        case: dict[str, Any] = {"weights": "wide", "kinds": ["income"], "records": (3_000, 3_000), "sparse": False}
        population = Population.of(seed, **case, sizes=(15, 9, 6, 6, 4, 3), number=6, drift="none")
        files = population.files()
        prediction = model_of(population.public, files, 1.0).plan.file.prediction
        base = base_cells(files.current.codes)[1]
        shown = prediction.residuals.values[:, 0] * prediction.of_records(np.arange(len(prediction.places)))[:, 1, 0]
        new = files.current.weight - prediction.means[base, 0]
        unit = files.reference.weight.std() / np.sqrt(len(shown))
        means.append(shown.mean() / unit)
        ratios.append(shown.std() / new.std())
        inside = prediction.places >= 0
        own = prediction.residuals.values[inside, 0] * prediction.spread[prediction.places[inside], 0]
        controls.append(own.mean() / unit)
    assert abs(np.median(means)) <= 0.3
    assert abs(np.median(ratios) - 1.0) <= 0.15
    assert abs(np.median(controls)) > 0.3


def test_standard_errors_of_a_yes_or_no_that_is_rare_in_some_levels_are_direct_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At ε = 64, of means in all cells: over direct errors .8 to 1.25 in the median of each of 2 populations, whose levels
    have a yes of 1 to 30 %. Control: sizes of residuals, few and large where a yes is rare, taken for their spread.
    """

    def ratio(seed: int) -> float:
        rng = np.random.default_rng(seed)
        codes = np.column_stack([rng.integers(0, size, 6_000) for size in (4, 4, 2)])
        share = np.array([0.01, 0.08, 0.3, 0.15])[codes[:, 1]] * np.array([1.0, 0.9])[codes[:, 2]]
        weight = np.exp(10.0 + 0.3 * codes[:, 0] + 0.6 * rng.standard_normal(6_000))
        yes = (rng.random(6_000) < share).astype(float)[:, None]
        files = Files(*(Sample(codes[part], weight[part], yes[part]) for part in (slice(3_000), slice(3_000, 6_000))))
        public = Public((4, 4, 2), ((0, 1), (0, 2), (1, 2)), (0.0, 1e6), ((0.0, 1.0),))
        made = release(public, files, 64.0, seed)
        found = [made.comparison(by) for by in public.tables]
        return float(np.median(np.concatenate([(one.published.errors / one.units)[:, 1] for one in found])))

    assert all(0.8 <= ratio(seed) <= 1.25 for seed in range(2))
    monkeypatch.setattr(
        predicting,
        "corrected",
        lambda effects, z, ratio, size, usual, *rest: corrected(effects, z, ratio, size, np.ones(len(z)), *rest),
    )
    assert any(ratio(seed) > 1.25 for seed in (2, 1, 0))


@pytest.mark.long
def test_predictions_of_a_table_of_few_cells_are_no_worse_than_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of 2 × 2 cells whose crossing moves log outcomes by 0 or .042, that is by 0 or 2 standard errors of the
    reference's means: over 20 populations each, root mean square errors are at most 1.06 of the reference's. Sets of 10 had
    .77 to 1.07, so that about 1 set of 20 in 100 fails by chance. Control: variances as moments show them.
    """

    def ratio(effect: float) -> float:
        squares = np.zeros(2)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            codes = np.column_stack([rng.integers(0, size, 4_000) for size in (6, 2, 2)])
            logs = 8.0 + codes @ (0.1, 0.3, -0.2) + np.where(codes[:, 1] == codes[:, 2], effect, -effect)
            weight = np.exp(4.0 + 0.06 * codes[:, 0] + 0.1 * rng.standard_normal(4_000))
            outcome = np.exp(logs + 0.5 * rng.standard_normal(4_000))[:, None]
            files = Files(*(Sample(codes[part], weight[part], outcome[part]) for part in np.split(np.arange(4_000), 2)))
            model = model_of(Public((6, 2, 2), ((0, 1), (0, 2), (1, 2)), (0.0, 1e5), ((0.0, 1e7),)), files, 1.0)
            cell, base = model.codes[:, 1] * 2 + model.codes[:, 2], model.plan.file.prediction.means
            logs = 8.125 + model.codes @ (0.1, 0.3, -0.2) + np.where(cell % 3 == 0, effect, -effect)
            expected = np.exp(4.0 + 0.06 * model.codes[:, 0]) * model.count

            def averaged(weight: Floats, values: Floats, cell: Ints = cell) -> Floats:
                return np.asarray(np.bincount(cell, weights=weight * values) / np.bincount(cell, weights=weight))

            truth = averaged(expected, np.exp(logs))
            predicted = averaged(model.count * base[:, 0], base[:, 1])
            reference = direct(files.reference, files.reference.codes[:, 1] * 2 + files.reference.codes[:, 2], 4)
            off = np.array([predicted, reference.values[:, 1]]) - truth
            squares += ((off / reference.errors[:, 1]) ** 2).sum(axis=1)
        return float(np.sqrt(squares[0] / squares[1]))

    assert max(ratio(0.0), ratio(0.042)) <= 1.06
    monkeypatch.setattr(predicting, "least_components", lambda mean, size, index, columns, variance: variance)
    assert ratio(0.042) >= 1.15


@pytest.mark.parametrize("tables", [((0, 1), (1, 2), (0, 2)), ((0, 2), (1,))])
def test_cells_of_equal_weights_are_predicted_by_their_own_records(
    monkeypatch: pytest.MonkeyPatch, tables: tuple[tuple[int, ...], ...]
) -> None:
    """Where weights are equal within a cell, its predicted count errs by 2.5 % at most in the median over such cells of 3
    populations; weights of other cells vary by a factor of 4. Cells are those of a table, or of columns that no table
    crosses. Control: one variance of records for all cells errs by more.
    """

    def errors(seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        codes = np.column_stack([rng.integers(0, size, 6_000) for size in (6, 8, 5)])
        equal, level = rng.random((6, 8)) < 0.5, 50.0 * np.exp(rng.normal(0.0, 0.8, (6, 8)))
        cell = codes[:, 0], codes[:, 1]
        weight = level[cell] * np.where(equal[cell], 1.0, np.exp(1.4 * rng.standard_normal(6_000) - 0.98))
        outcome = np.exp(rng.standard_normal((6_000, 1)))
        files = Files(*(Sample(codes[part], weight[part], outcome[part]) for part in (slice(3_000), slice(3_000, 6_000))))
        public = Public((6, 8, 5), tables, (0.0, 1e5), ((0.0, 1e3),))
        model = model_of(public, files, 1.0)
        mean, found = model.plan.file.prediction.means[:, 0], list[float]()
        for pair in np.argwhere(equal):
            inside = (model.codes[:, :2] == pair).all(axis=1)
            found.append(abs(float(np.average(mean[inside], weights=model.count[inside])) / level[tuple(pair)] - 1.0))
        return found

    assert np.median([off for seed in range(3) for off in errors(seed)]) <= 0.025
    monkeypatch.setattr("dpdist.mechanisms.tables.random_effects._between", lambda one, other: 0.0)
    assert np.median([off for seed in range(3) for off in errors(seed)]) > 0.025


def test_base_cells_within_bounds_keep_the_sums_of_tables() -> None:
    """Two tables' cells over noisy rare outcomes. Control: base cells cut at their bounds lose sums. Sizes that may move
    have their own sums, too, whatever outcomes are: in two cells of 200, one of which has a total of -30.
    """
    rng = np.random.default_rng(0)
    rows, columns = (part.ravel() for part in np.indices((12, 15)))
    size = rng.uniform(1.0, 50.0, len(rows))
    truth = size * (rng.random(len(rows)) < 0.2) * 0.3
    tables = [rows, columns]
    noise = rng.normal(0.0, 2.0, len(rows))
    # Noise that no table's cell shows, so that bounds allow all sums.
    noise -= (noise.reshape(12, 15).mean(axis=1)[rows] + noise.reshape(12, 15).mean(axis=0)[columns]) - noise.mean()
    values, predicted = truth + noise, 0.06 * size
    inside, kept = within_bounds(values, size, (0.0, 1.0), predicted, tables, known=True)
    assert (kept == size).all()
    assert (inside >= 0.0).all()
    assert (inside <= size * (1.0 + 1e-12)).all()

    def lost(found: Floats) -> float:
        sums = [np.bincount(cell, weights=found) - np.bincount(cell, weights=values) for cell in tables]
        return float(max(np.abs(one).max() for one in sums))

    assert lost(inside) <= 0.02 * truth.sum() / 12
    assert lost(np.clip(values, 0.0, size)) > 0.2 * truth.sum() / 12
    for sums, sizes, cells in (
        (values, size, tables),
        (np.array([-50.0, 20, 30, 40]), np.full(4, 100.0), [np.arange(4) // 2]),
    ):
        _, moved = within_bounds(sums, sizes, (0.0, 1.0), 0.06 * sizes, cells, known=False)
        assert np.abs(moved - sizes).max() > 0.5
        for cell in cells:
            assert np.bincount(cell, weights=moved) == pytest.approx(np.bincount(cell, weights=sizes), rel=1e-9)


def test_base_cells_make_room_for_heavy_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record in ten weighs 40 times as much as the others, and few answer yes. At ε = 10,000, means of all records err
    by at most .05 direct standard errors, in two populations. Control: if base cells kept their counts, these may have
    no room for a heavy record's yes, and a mean would err by more than .2.
    """
    case: dict[str, Any] = {"weights": "two sizes", "kinds": ["rare yes"], "drift": "none", "records": (573, 573)}
    populations = [(seed, Population.of(seed, **case, sizes=(6, 15, 60), number=4)) for seed in (104, 106)]

    def errors() -> list[float]:
        found = [release(one.public, one.files(seed), 1e4, seed) for seed, one in populations]
        return [float(of.comparison(()).off()[0, 1]) for of in found]

    assert max(errors()) < 0.05
    monkeypatch.setattr(of_cells, "within_bounds", lambda *told, **_: within_bounds(*told[:5], known=True))
    assert max(errors()) > 0.2, "control"


def assert_within_bounds(found: Release) -> None:
    """Base cells within public bounds, and sums of a table's cells that add up to those of all records."""
    sums, (least, most) = found.sums, found.model.public_weights
    assert np.isfinite(sums).all()
    count, size = sums[:, 0], found.model.count
    assert (count >= least * size * (1.0 - 1e-9)).all()
    assert (count <= most * size * (1.0 + 1e-9)).all()
    for total, (low, high) in zip(sums[:, 1:].T, found.model.bounds, strict=True):
        slack = 1e-9 * np.maximum(abs(low), abs(high)) * count
        assert (total >= low * count - slack).all()
        assert (total <= high * count + slack).all()
    for by in found.model.measured:
        cell = found.model.workload.groups(by)
        of_cells = np.column_stack([np.bincount(cell, weights=part) for part in sums.T]).sum(axis=0)
        assert of_cells == pytest.approx(sums.sum(axis=0), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "case",
    [
        {"records": (30, 400)},
        {"records": (400, 1)},
        {"records": (2, 40), "sizes": (1,), "number": 1},
        {"records": (300, 300), "weights": "constant", "kinds": ["rare yes"]},
        {"records": (300, 300), "sizes": (200, 2), "number": 1},
        {"records": (20, 900), "sizes": (60, 3), "number": 2, "sparse": True},
        {"records": (500, 500), "kinds": ["rare amount", "balance"], "weights": "two sizes"},
    ],
    ids=["small reference", "one record", "two records of reference", "constant", "200 levels", "levels unseen", "rare"],
)
def test_odd_populations_are_released_within_bounds(case: dict[str, Any]) -> None:
    population = Population.of(1, **{"sizes": (4, 3), "number": 2, "drift": "none", **case})
    found = release(population.public, population.files(), 1.0)
    assert_within_bounds(found)
    for by in tables_of(population.public):
        compared = found.comparison(by)
        assert np.isfinite(compared.published.values).all()
        assert np.isfinite(compared.published.errors).all()


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.long)])
def test_last_digits_of_weights_change_no_more_than_last_digits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine has to choose the limits of a release again. Control: where cells of a rare yes have the same mean
    sizes of residuals, what rounding leaves between them changed means and spreads by whole per cents.
    """

    population = Population.of(seed, records=(800, 1000), kinds=["rare yes"])
    file = model_of(population.public, population.files(), 1.0).plan.asked.file
    public = file.codes, file.sizes, file.columns_of_tables, file.lowest, file.highest
    eps = np.finfo(float).eps * np.random.default_rng(seed).integers(-1, 2, (3, len(file.reference.weight)))
    others = [file.reference._replace(weight=file.reference.weight * (1.0 + digits)) for digits in eps]

    def change() -> float:
        """The largest of three: what rounding leaves differs by machine."""
        one, *found = (predict(reference, *public) for reference in (file.reference, *others))
        pairs = [pair for other in found for pair in ((one.means, other.means), (one.spread, other.spread))]
        return max(float((np.abs(a - b).max(axis=0) / np.abs(a).max(axis=0)).max()) for a, b in pairs)

    assert change() < 1e-9
    monkeypatch.setattr(random_effects, "ROUNDING", 0.0)
    assert change() > 1e-2, "control"


@pytest.mark.long
def test_many_sums_without_noise_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,044 sums of ten tables that depend on each other, at ε = 10,000: figures err by .01 direct standard errors in the
    median, and .1 at most. Control: without a least part of noise, conjugate gradients do not end, and more sums than a
    dense covariance can have would have no figures.
    """
    population = Population.of(9, **INCOMES, drift="none", records=(2_000, 2_000), sizes=(9, 15, 60, 15), number=10)
    found = release(population.public, population.files(), 1e4, seed=9)
    assert not found.posterior.dense
    off = list[Floats]()
    for by in tables_of(population.public):
        cell = cells_of(found.model.codes, [], by)[0]
        own = direct(found.files.current, cell[found.base], int(cell.max()) + 1)
        units, large = np.maximum(own.errors, 2.5e-3 * np.abs(own.values)), own.records >= 10
        off.append(np.abs(found.figures(cell, +found.sums).values - own.values)[large] / units[large])
    assert (np.median(np.concatenate(off), axis=0) <= 0.01).all()
    assert np.concatenate(off).max() <= 0.1
    monkeypatch.setattr(posterior, "LEAST_NOISE", 0.0)
    monkeypatch.setattr(posterior, "MOST_FACTORED", 0)
    again = release(population.public, population.files(), 1e4, seed=9)
    with pytest.raises(ArithmeticError):
        _ = again.sums


def test_unprotected_samples_are_those_of_estimates_for_many_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals of all records under other samples, as records have them and as they are estimated. Control: other samples."""
    population = Population.of(2, records=(800, 1000))
    one = release(population.public, population.files(), 1e4, seed=2)
    theta, model = one.model.estimated(one.measured, one.noisy), one.model
    monkeypatch.setattr(posterior, "MOST_DENSE", 10)
    drawn = [
        model.resampled(theta, 1_000, 36, np.random.default_rng(1)),
        *(model.unprotected(theta, 36, np.random.default_rng(seed)) for seed in (1, 2)),
    ]
    drawn = [draws["weights"] @ model.count for draws in drawn]
    assert np.corrcoef(drawn[0], drawn[1])[0, 1] > 0.99
    assert np.corrcoef(drawn[0], drawn[2])[0, 1] < 0.6
