"""Laws of `tables` under drift: a catalogue of single drifts since the reference, and chains of five periods.

NumPy noise stands for the released one. Seeds are fixed: a law fails only if the code changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
import table_populations as of_columns
from test_tables import (
    BOUNDS,
    LEVELS,
    Population,
    Run,
    Sample,
    answers_of,
    direct,
    of_file,
    of_tables,
    published,
    released,
    system_of,
)

from dpdist.core.records import Floats, Ints
from dpdist.estimation import donors
from dpdist.estimation.donors import PeriodTotals, remembered
from dpdist.mechanisms.tables import clipped_residuals, drift_sizes
from dpdist.mechanisms.tables.bins import BinnedAnswers, BinnedColumns
from dpdist.mechanisms.tables.cells import PLANS
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.plan import TablePlan
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import cell_index
from dpdist.mechanisms.tables.residual_prior import OF_CELLS, ResidualPrior
from dpdist.mechanisms.tables.spec import Tables

RECORDS, TRUE = 3_000, 60_000
"""Records of a file, and of the sample that stands for the population."""
PERIODS = 5
NOMINAL = 1.645
SHARE = float(Tables.histogram_share)
"""Part of the budget of a first release without a reference that counts bins."""


class World:
    """A population whose levels walk, and whose weights and outcomes grow from period to period."""

    def __init__(self, seed: int, growth: float = 0.04, walk: float = 0.03) -> None:
        self.rng, self.growth, self.walk, self.grown = np.random.default_rng(seed), growth, walk, 0.0
        self.kind = list(BOUNDS)[seed % len(BOUNDS)]
        self.bounds = BOUNDS[self.kind]
        self.effects = [[self.rng.normal(0.0, 0.5, size) for size in LEVELS] for _ in range(2)]
        self.pair = self.rng.normal(0.0, 0.3, LEVELS[:2])
        self.shares = [self.rng.dirichlet(np.full(size, 4.0)) for size in LEVELS]

    def step(self) -> None:
        self.grown += self.growth
        self.effects = [[e + self.rng.normal(0.0, self.walk, len(e)) for e in part] for part in self.effects]
        self.pair = self.pair + self.rng.normal(0.0, self.walk, self.pair.shape)

    def sample(self, records: int) -> Sample:
        rng = self.rng
        codes = np.column_stack([rng.choice(len(share), records, p=share) for share in self.shares])
        log_weight, level = (sum(e[codes[:, k]] for k, e in enumerate(part)) for part in self.effects)
        level = level + self.pair[codes[:, 0], codes[:, 1]] + self.grown
        weight = np.exp(4.0 + 1.5 * log_weight + self.grown / 2.0 + 0.6 * rng.standard_normal(records))
        if self.kind == "income":
            outcome = np.exp(9.0 + level + rng.normal(0.0, 0.8, records)) * (rng.random(records) > 0.2)
        elif self.kind == "balance":
            outcome = 8_000.0 * (level + rng.standard_t(4, records))
        else:
            outcome = (rng.random(records) < scipy.special.expit(level - 1.0)).astype(float)
        return Sample(codes, weight, np.clip(outcome, *self.bounds))


def raised(sample: Sample, by: float, bounds: tuple[float, float], inside: Floats | None = None) -> Sample:
    """Outcomes times a factor, within bounds; a share grows by records that turn from 0 to 1."""
    inside = np.ones(len(sample.weight), dtype=bool) if inside is None else inside
    outcome = np.clip(sample.outcome * np.where(inside, by, 1.0), *bounds)
    if bounds == BOUNDS["yes or no"]:
        share = sample.outcome.mean()
        turned = np.random.default_rng(1).random(len(outcome)) < (by - 1.0) * share / (1.0 - share)
        outcome = np.where(inside & turned, 1.0, sample.outcome)
    return sample._replace(outcome=outcome)


def means_in_a_third(sample: Sample, bounds: tuple[float, float]) -> Sample:
    return raised(sample, 1.25, bounds, np.isin(sample.codes[:, 1], [0, 1]))


def weights_in_a_fifth(sample: Sample, bounds: tuple[float, float]) -> Sample:
    return sample._replace(weight=sample.weight * np.where(sample.codes[:, 1] == 2, 1.3, 1.0))


def everywhere(sample: Sample, bounds: tuple[float, float]) -> Sample:
    return raised(sample._replace(weight=1.1 * sample.weight), 1.15, bounds)


def spread_weights(sample: Sample, bounds: tuple[float, float]) -> Sample:
    deviation = 0.5 * np.random.default_rng(2).standard_normal(len(sample.weight))
    return sample._replace(weight=sample.weight * np.exp(deviation - 0.125))


def population_in_a_cell(sample: Sample, bounds: tuple[float, float]) -> Sample:
    inside = (sample.codes[:, 0] == 1) & (sample.codes[:, 1] == 1)
    other = 1.0 - sample.outcome if bounds == BOUNDS["yes or no"] else np.clip(2.5 * sample.outcome, *bounds)
    weight = sample.weight * np.where(inside, 2.0, 1.0)
    return sample._replace(weight=weight, outcome=np.where(inside, other, sample.outcome))


CATALOGUE: tuple[Callable[[Sample, tuple[float, float]], Sample], ...] = (
    means_in_a_third,
    weights_in_a_fifth,
    everywhere,
    spread_weights,
    population_in_a_cell,
)


class Errors(NamedTuple):
    """By cell of ten records and statistic: |published − direct| and |reference − direct| in direct standard errors, and
    whether a 90 % interval holds the population's figure, (cell, 2); the last row is of all records.
    """

    release: Floats
    reference: Floats
    held: Floats
    all_records: Floats
    """Of all records (published − population's) / standard error, and (published − direct) relative to size and spread."""


def errors_of(run: Run, file: Sample, population: Sample, reference: Sample) -> Errors:
    errors, alone, held, of_all = list[Floats](), list[Floats](), list[Floats](), np.zeros((2, 2))
    for by, cell in of_tables(run):
        both = cell_index(np.concatenate([run.system.file.codes, population.codes, reference.codes])[:, list(by)])
        parts = np.split(both, np.cumsum([len(cell), len(population.codes)]))
        if any(len(np.unique(part)) < both.max() + 1 for part in parts):
            continue
        size = np.bincount(parts[0], weights=run.system.file.count)
        right, made = direct(file, parts[0][run.base]), published(run, parts[0])
        true, public = direct(population, parts[1], size), direct(reference, parts[2], size)
        few, error = right.records >= 10, np.hypot(made.errors, right.errors)
        errors.append((np.abs(made.figures - right.figures) / right.errors)[few])
        alone.append((np.abs(public.figures - right.figures) / right.errors)[few])
        held.append((np.abs(made.figures - true.figures) <= NOMINAL * error)[few])
        unit = np.hypot(right.figures, right.errors * np.sqrt(right.records)[:, None])
        of_all = np.stack([((made.figures - true.figures) / error)[0], ((made.figures - right.figures) / unit)[0]])
    return Errors(np.concatenate(errors), np.concatenate(alone), np.concatenate(held), of_all)


def drifted(seed: int, drift: Callable[[Sample, tuple[float, float]], Sample], epsilon: float) -> Errors:
    world = World(seed)
    reference, bounds = world.sample(RECORDS), world.bounds
    file, population = (drift(world.sample(records), bounds) for records in (RECORDS, TRUE))
    system, base = system_of(Population(reference, file, file, bounds), epsilon)
    return errors_of(released(system, base, file, seed), file, population, reference)


def pooled(found: list[Errors]) -> tuple[Floats, Floats, Floats]:
    """Median errors of the release and of the reference, and coverage, each of counts and means."""
    release, reference, held = (np.concatenate([getattr(one, name) for one in found]) for name in Errors._fields[:3])
    return np.median(release, axis=0), np.median(reference, axis=0), held.mean(axis=0)


def assert_lawful(found: list[Errors], most: float = 1.0) -> None:
    release, reference, held = pooled(found)
    assert (held >= 0.86).all(), held
    assert (release < most * reference).all(), (release, reference)


def test_intervals_hold_and_errors_are_below_the_references_under_drift() -> None:
    """A population of each drift at ε = 1: coverage of 90 % intervals is at least .86, and medians of all drifts are below
    those of the reference alone. One population of a drift may have medians a tenth above them.
    """
    found = [[drifted(number % 2, drift, 1.0)] for number, drift in enumerate(CATALOGUE)]
    for of_drift in found:
        assert_lawful(of_drift, most=1.1)
    assert_lawful([errors for of_drift in found for errors in of_drift])


@pytest.mark.long
@pytest.mark.parametrize("drift", CATALOGUE)
def test_intervals_hold_and_errors_are_below_the_references_under_every_drift(drift: object) -> None:
    """8 populations at ε = 1: coverage of 90 % intervals at least .86, and medians below those of the reference alone."""
    assert callable(drift)
    assert_lawful([drifted(seed, drift, 1.0) for seed in range(8)])


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("drift", CATALOGUE)
def test_the_catalogue_holds_over_populations_and_budgets(drift: object, epsilon: float) -> None:
    """24 populations each."""
    assert callable(drift)
    assert_lawful([drifted(seed, drift, epsilon) for seed in range(24)])


@pytest.mark.parametrize(
    ("drift", "populations"),
    [(everywhere, 2), *(pytest.param(drift, 3, marks=pytest.mark.long) for drift in (weights_in_a_fifth, everywhere))],
)
def test_intervals_hold_under_drift_that_noise_may_hide(drift: object, populations: int) -> None:
    """At ε = .3: coverage of 90 % intervals at least .86."""
    assert callable(drift)
    assert (pooled([drifted(seed, drift, 0.3) for seed in range(populations)])[2] >= 0.86).all()


def after_drift_of_a_column(seeds: range) -> tuple[float, float, float]:
    """At ε = 1, for counts of six tables, where weights of 40 levels of one column have drifted by 25 %: coverage, and
    median errors of releases and of their references.
    """
    covered, errors, before = list[Floats](), list[Floats](), list[Floats]()
    told: dict[str, Any] = {"weights": "narrow", "kinds": ["income"], "sizes": (40, 4, 3), "number": 6, "sparse": False}
    for seed in seeds:
        population = of_columns.Population.of(seed, records=(3_000, 3_000), drift="none", **told)
        factors = np.exp(np.random.default_rng([seed, 9]).normal(0.0, 0.25, 40)), np.ones(40)
        population = replace(population, drift="by level", factors=factors)
        files = population.files(seed)
        codes, base = of_columns.base_cells(files.current.codes)
        truth = population.expected(codes) * np.bincount(base)[:, None]
        release_of = of_columns.release(population.public, files, 1.0, seed)
        for by in of_columns.tables_of(population.public):
            comparison = release_of.comparison(by, truth)
            covered.append(comparison.covered()[:, 0])
            errors.append(comparison.off()[:, 0])
            before.append(comparison.off(comparison.reference.values)[:, 0])
    return tuple(float(f(np.concatenate(v))) for f, v in ((np.mean, covered), (np.median, errors), (np.nanmedian, before)))  # type: ignore[return-value]


def of_a_tripled_level(seeds: range, epsilon: float, least: float) -> tuple[Floats, Floats]:
    """Whether 90 % intervals of means hold the direct ones where incomes of one level of three have tripled, and those of
    another have fallen by a fifth: of cells of this level, and of all others. The public lower bound of incomes is `least`.
    """
    tripled, others = list[Floats](), list[Floats]()
    case: dict[str, Any] = {"weights": "narrow", "kinds": ["income"], "records": (5_000, 5_000), "sizes": (3, 12)}
    for seed in seeds:
        population = of_columns.Population.of(seed, **case, drift="by level", number=3, sparse=False)
        public = population.public._replace(bounds=((least, 1e6),))
        population = replace(population, factors=(np.ones(3), np.array([1.0, 3.0, 0.8])), public=public)
        release = of_columns.release(public, population.files(seed), epsilon, seed)
        for by in public.tables:
            found = release.comparison(by)
            off = np.abs(found.published.values - found.direct)[:, 1] <= NOMINAL * found.published.errors[:, 1]
            level = np.zeros(len(off))
            level[of_columns.cells_of(release.model.codes, [], by)[0]] = release.model.codes[:, 0] if 0 in by else -1
            tripled.append(off[found.large & (level == 1)])
            others.append(off[found.large & (level != 1)])
    return np.concatenate(tripled), np.concatenate(others)


@pytest.mark.parametrize("populations", [1, pytest.param(9, marks=pytest.mark.long)])
def test_intervals_hold_where_a_level_has_tripled(populations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where public bounds allow losses that do not occur: in cells of this level .65 of direct means are held at ε = 1
    and .8 at ε = 4, and .86 in others. Controls, of a third: spreads that do not rise, and values that do not change in
    proportion, in populations whose plans no other test keeps.
    """
    for epsilon, least, wanted in ((1.0, -1e6, 0.65), (4.0, -1e6, 0.8), (4.0, 0.0, 0.8)):
        tripled, others = of_a_tripled_level(range(1, 1 + populations), epsilon, least)
        assert tripled.mean() >= wanted, (epsilon, least)
        assert others.mean() >= 0.86, (epsilon, least)
    with monkeypatch.context() as only:
        only.setattr(Prediction, "with_new_records", lambda self, law, spread: spread)
        assert of_a_tripled_level(range(1, 1 + max(populations // 3, 1)), 4.0, -1e6)[0].mean() < 0.7
    none = property(lambda self: np.zeros(self.outcomes.shape[1], dtype=bool))
    monkeypatch.setattr(ReferenceSample, "proportional", none)
    assert of_a_tripled_level(range(20, 20 + max(populations // 3, 1)), 1.0, -1e6)[0].mean() < 0.4


def test_a_chain_learns_how_records_of_a_tripled_level_vary() -> None:
    """At ε = 16 their spread is twice to four times the reference's. Control: that of others is at most 1.3 times it."""
    case: dict[str, Any] = {"weights": "narrow", "kinds": ["income"], "records": (5_000, 5_000), "sizes": (3, 12)}
    population = of_columns.Population.of(1, **case, drift="by level", number=3, sparse=False)
    population = replace(population, factors=(np.ones(3), np.array([1.0, 3.0, 0.8])))
    release = of_columns.release(population.public, population.files(1), 16.0, 1)
    handed_on, level = release.measured.totals("2024"), release.model.codes[:, 0]
    ratio = (handed_on.scatter / release.system.file.prediction.spread)[:, 1]
    assert 2.0 <= np.median(ratio[level == 1]) <= 4.0
    assert np.median(ratio[level != 1]) <= 1.3


@pytest.mark.long
def test_drift_of_one_column_is_learned_from_its_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 populations. Control, of 2 of them: one size of drift for the levels of all columns and tables' cells, and limits
    that are chosen for what sums tell of their own cells alone.
    """
    coverage, error, before = after_drift_of_a_column(range(12))
    assert coverage >= 0.75
    assert error < 0.55 * before
    law_of = ResidualPrior.of

    def of_one_size(*public: Any) -> ResidualPrior:
        law = law_of(*public)
        return replace(law, families=np.minimum(law.families, OF_CELLS))

    monkeypatch.setattr(ResidualPrior, "of", of_one_size)
    monkeypatch.setattr(clipped_residuals, "COMMON_DRIFT", 0.0)
    PLANS.clear()  # plans of the same populations, without these changes
    coverage, error, before = after_drift_of_a_column(range(2, 4))
    assert coverage < 0.5
    assert error > 0.7 * before


def test_control_a_law_without_drift_has_intervals_that_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for law in ("DRIFTS", "LEVEL_DRIFTS", "COMMON_DRIFTS"):
        monkeypatch.setattr(drift_sizes, law, {0.0005: 1.0})
    found = [drifted(seed, everywhere, 0.1) for seed in range(2)]
    assert pooled(found)[2].min() < 0.86


def chain(
    seed: int,
    epsilon: float,
    changed: Callable[[PeriodTotals], PeriodTotals] = lambda one: one,
    drift: tuple[float, float] = (0.04, 0.03),
    most: int = PERIODS,
    begun: bool = True,
) -> list[Errors]:
    """Five releases; the first has a public file as reference, and every other one the release before it.

    `changed` is what is handed on in place of a release's totals; at `most` so many periods are handed on. Unless the chain
    was `begun` with the public file, noisy bin counts stand in for it in the first release.
    """
    world, totals, found = World(seed, *drift), list[PeriodTotals](), list[Errors]()
    reference = world.sample(RECORDS)
    for period in range(PERIODS):
        world.step()
        file, population = world.sample(RECORDS), world.sample(TRUE)
        part = 1.0 if begun or period else 1.0 - SHARE
        system, base = system_of(Population(reference, file, file, world.bounds), epsilon * part)
        system = of_file(system, history=remembered(totals[:most]))
        if not begun:
            weights = (0.0, 10.0 * float(reference.weight.max()))
            bins = BinnedColumns.of(weights, [world.bounds])
            if not period:
                noise = np.random.default_rng([seed, 1])
                answers = answers_of(bins, file.weight, file.outcome[:, None], epsilon * SHARE, noise)
            system = by_counts(system, bins, answers, np.array([weights, world.bounds]).T)
        run = released(system, base, file, 100 * seed + period)
        own = run.totals
        if not (begun or period):
            counts, scale, quadrants, quadrant_scale, _ = answers
            own = replace(own, counts=counts, scale=scale, quadrants=quadrants, quadrant_scale=quadrant_scale)
        totals.append(changed(own))
        found.append(errors_of(run, file, population, reference))
    return found


def by_counts(plan: TablePlan, bins: BinnedColumns, answers: BinnedAnswers, ends: Floats) -> TablePlan:
    """The plan with a law by noisy counts in place of its reference."""
    law, *laws = (bins.sample(answers, RECORDS, draw) for draw in range(9))
    nowhere = tuple(np.full(len(law.weight), -1) for _ in plan.file.placed)
    return of_file(plan, reference=law, placed=nowhere, lowest=ends[0], highest=ends[1], laws=tuple(laws), alike=True)


def assert_lawful_chains(chains: list[list[Errors]], begun: bool = True) -> None:
    periods = [pooled(list(period)) for period in zip(*chains, strict=True)]
    for release, reference, held in periods:
        assert (held >= 0.86).all(), held
        assert (release < reference).all() or not begun, (release, reference)
    assert begun or all((release < periods[0][0]).all() for release, *_ in periods[1:])
    of_all = np.array([[one.all_records for one in periods] for periods in chains])
    assert (np.abs(of_all[:, :, 0, 1]) <= 2.0).mean() >= 0.9
    lean = of_all[:, :, 1].mean(axis=0)
    slope = np.polynomial.polynomial.polyfit(np.arange(PERIODS), lean, 1)[1]
    assert (np.abs(lean) <= 0.05).all(), lean
    assert (np.abs(slope) <= 0.01).all(), slope


@pytest.mark.long
def test_intervals_hold_in_every_period_of_a_chain() -> None:
    """4 chains at ε = 1, in which outcomes grow by 20 %: coverage of 90 % intervals at least .86 in every period. Errors
    are below the first reference's. The mean of all records is within 2 standard errors in 90 % of releases. Figures of
    all records lean from direct ones by at most 5 % in the mean, and by at most 1 % a period.
    """
    assert_lawful_chains([chain(seed, 1.0) for seed in range(4)])


@pytest.mark.long
def test_intervals_hold_in_every_period_of_a_chain_without_a_reference() -> None:
    """24 chains at ε = 1. Errors of every period are below those of the first, which had noisy counts alone.

    36 had median errors of 2.8 ‖ 2.1 direct standard errors in the first period, and of 1.3 ‖ 1.2 in the fifth. Counts
    of all records changed by −.6 % a period with a standard error of .3 %, so that fewer chains may pass −1 % by chance.
    """
    assert_lawful_chains([chain(seed, 1.0, begun=False) for seed in range(12, 36)], begun=False)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_chains_hold_over_populations(epsilon: float, begun: bool) -> None:
    """24 chains each."""
    assert_lawful_chains([chain(seed, epsilon, begun=begun) for seed in range(24)], begun)


@pytest.mark.slow
def test_control_totals_that_state_no_error_have_intervals_that_do_not_hold() -> None:
    """Noisy totals that are handed on as exact ones."""

    def exact(one: PeriodTotals) -> PeriodTotals:
        return replace(one, variance=1e-6 * one.variance)

    found = [chain(seed, 0.3, changed=exact)[-1] for seed in range(4)]
    assert pooled(found)[2].min() < 0.86


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_what_earlier_periods_measured_makes_a_release_better(epsilon: float) -> None:
    """Over 16 chains of files that do not drift: the last of five releases errs less than without history."""
    with_history, without = (
        [chain(seed, epsilon, drift=(0.0, 0.0), most=most)[-1] for seed in range(16)] for most in (5, 0)
    )
    assert (pooled(with_history)[0] < pooled(without)[0]).all()


def test_a_long_history_keeps_the_last_periods_and_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donors, "MOST_TOTALS", 10)
    arrays = {"codes": np.zeros((1, 1), dtype=np.int64), "count": np.ones(1), "row": np.zeros((1, 1), dtype=np.int64)}
    arrays |= {name: np.ones((2, 2)) for name in ("total", "variance")} | {"about": np.zeros((2, 1))}
    arrays |= {"weight": np.ones(1), "scatter": np.ones((1, 2)), "counts": np.zeros(0)}
    every = [PeriodTotals(str(period), **arrays) for period in range(4)]
    first, last = remembered(every)
    assert (first.period, last.period) == ("2", "3")
    assert (first.since, last.since) == (3, 1)
    alone: list[Ints] = [one.codes for one in remembered(every[:1])]
    assert len(alone) == 1
