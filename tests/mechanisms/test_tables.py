"""Oracles of the parts of `tables`; its laws are in test_tables_laws. NumPy noise stands for the released one here."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy
from sized_package import sized_job
from table_populations import widened

import dpdist
from dpdist.core.progress import silent
from dpdist.core.records import UNIT, Floats, Ints
from dpdist.estimation.donors import Donors, PeriodTotals
from dpdist.mechanisms.tables import limits
from dpdist.mechanisms.tables.bins import BinnedAnswers, BinnedColumns, quadrant_sums
from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.mechanisms.tables.common_factors import common_factors
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.first_year_sums import FirstYearSums, ReleasedSums
from dpdist.mechanisms.tables.learned_prediction import predict
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.measured_sums import MeasuredSums
from dpdist.mechanisms.tables.measurements import CommonFactors, ResidualMeasurements
from dpdist.mechanisms.tables.plan import PublishedFigures, TablePlan
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import cell_index
from dpdist.mechanisms.tables.rows import rows_of
from dpdist.mechanisms.tables.scores import RecordScores
from dpdist.mechanisms.tables.sensitivity import MOVED, PART_OF_QUADRANTS
from dpdist.mechanisms.tables.table_law import TableLaw
from dpdist.planning.making import make_plan
from dpdist.privacy.guarantees import NoisyQuery

LEVELS = (4, 5, 3)
BOUNDS = {"income": (0.0, 1e5), "yes or no": (0.0, 1.0), "balance": (-5e4, 5e4)}
TABLES = [(0, 1), (0, 2), (1, 2), (2,)]


class Sample(NamedTuple):
    codes: Ints
    weight: Floats
    outcome: Floats


class Population(NamedTuple):
    """A reference, a file and an independent sample of one population, with its outcome's bounds."""

    reference: Sample
    file: Sample
    other: Sample
    bounds: tuple[float, float]


def population(
    seed: int, records: int = 3_000, spread: float = 0.6, factors: tuple[float, float] = (1.0, 1.0)
) -> Population:
    """`spread` is that of log weights within cells; the reference's weights and outcomes are divided by `factors`."""
    rng = np.random.default_rng(seed)
    kind = list(BOUNDS)[seed % len(BOUNDS)]
    low, high = BOUNDS[kind]
    effects = [[rng.normal(0.0, 0.5, size) for size in LEVELS] for _ in range(2)]
    pair = rng.normal(0.0, 0.3, LEVELS[:2])
    shares = [rng.dirichlet(np.full(size, 4.0)) for size in LEVELS]

    def drawn() -> Sample:
        codes = np.column_stack([rng.choice(len(share), records, p=share) for share in shares])
        log_weight, level = (sum(effect[codes[:, k]] for k, effect in enumerate(part)) for part in effects)
        level = level + pair[codes[:, 0], codes[:, 1]]
        weight = np.exp(4.0 + 1.5 * log_weight + spread * rng.standard_normal(records))
        if kind == "income":
            outcome = np.exp(9.0 + level + rng.normal(0.0, 0.8, records)) * (rng.random(records) > 0.2)
        elif kind == "balance":
            outcome = 8_000.0 * (level + rng.standard_t(4, records))
        else:
            outcome = (rng.random(records) < scipy.special.expit(level - 1.0)).astype(float)
        return Sample(codes, weight, np.clip(outcome, low, high))

    earlier, file, other = drawn(), drawn(), drawn()
    moved = earlier._replace(weight=earlier.weight / factors[0], outcome=np.clip(earlier.outcome / factors[1], low, high))
    return Population(moved, file, other, (low, high))


class Run(NamedTuple):
    plan: TablePlan
    system: ResidualMeasurements
    posterior: Posterior
    z: Floats
    base: Ints
    totals: PeriodTotals


def system_of(told: Population, epsilon: float) -> tuple[TablePlan, Ints]:
    codes, base = np.unique(told.file.codes, axis=0, return_inverse=True)
    base = base.reshape(-1)
    tables, placed = [], []
    for by in TABLES:
        both = cell_index(np.concatenate([codes, told.reference.codes])[:, list(by)])
        of_file, of_reference = both[: len(codes)], both[len(codes) :]
        place = np.full(both.max() + 1, -1)
        place[of_file] = cell = cell_index(codes[:, list(by)])
        tables.append((by, cell))
        placed.append(place[of_reference])
    query = NoisyQuery.losing("sums", MOVED, Fraction(epsilon).limit_denominator(1000), "same_x")
    reference = ReferenceSample(told.reference.codes, told.reference.weight, told.reference.outcome[:, None])
    ends = np.array([[0.0, told.bounds[0]], [10.0 * told.reference.weight.max(), told.bounds[1]]])
    count = np.bincount(base).astype(float)
    file = ExpectedFile(codes, LEVELS, count, tuple(tables), tuple(placed), reference, *ends)
    return TablePlan(PublishedFigures(file), query), base


def answers_of(
    bins: BinnedColumns, weight: Floats, outcomes: Floats, epsilon: float, rng: np.random.Generator
) -> BinnedAnswers:
    """Noisy counts of bins and quadrant sums under this budget and exchanges."""
    part, columns = float(PART_OF_QUADRANTS), 1 + outcomes.shape[1]
    scale, quadrant_scale = 2.0 * columns / ((1.0 - part) * epsilon), 2.0 * (columns - 1) / (part * epsilon)
    counts = bins.counts(weight, outcomes)
    counts += scale * rng.laplace(size=len(counts))
    answers = BinnedAnswers(counts, scale, np.zeros(0), quadrant_scale, float(len(weight)))
    quadrants = quadrant_sums(weight, outcomes, bins.medians(answers))
    return answers._replace(quadrants=quadrants + quadrant_scale * rng.laplace(size=len(quadrants)))


def of_file(plan: TablePlan, **fields: Any) -> TablePlan:
    """The plan of a file with these fields."""
    return replace(plan, figures=replace(plan.figures, file=replace(plan.file, **fields)))


def unread(plan: TablePlan) -> MeasuredSums:
    """Sums of 0 of all measurements, after factors of weights and outcomes."""
    sums = MeasuredSums.under(plan.asked, CommonFactors(np.array([1.02, 0.97]), 0.05, plan.asked.first), ())
    return replace(sums, sums=[np.zeros((len(one.size), 2)) for one in sums.limits])


def release(told: Population, epsilon: float, seed: int = 0) -> Run:
    return released(*system_of(told, epsilon), told.file, seed)


def released(plan: TablePlan, base: Ints, file: Sample, seed: int = 0) -> Run:
    rng, system = np.random.default_rng(seed), plan.asked

    def measured(of_table: limits.TableLimits, prediction: Prediction, part: Fraction) -> Floats:
        added = of_table.contributions(base, file.weight, file.outcome[:, None], prediction) / UNIT
        cells = len(of_table.size)
        sums = np.column_stack([np.bincount(of_table.cell[base], weights=column, minlength=cells) for column in added.T])
        return sums + rng.laplace(size=sums.shape) * np.sqrt(system.variance(part) / 2.0)

    sums = MeasuredSums.of(system, [measured(system.first, system.file.informed, system.parts[0])])
    if not system.parts_of_scores:
        sums = widened(sums, base, file.weight, file.outcome[:, None], rng)
        of_tables = zip(sums.limits[1:], system.parts[1 : len(sums.limits)], strict=True)
        sums = replace(sums, sums=[*sums.sums, *(measured(one, sums.calibrated, part) for one, part in of_tables)])
    found: ReleasedSums = sums
    if system.parts_of_scores:
        contributed = RecordScores.of(system.file).contributions(file.weight, file.outcome[:, None]) / UNIT
        scores = []
        for (_, cell), part in zip(system.file.tables, system.parts_of_scores, strict=True):
            exact = np.column_stack([np.bincount(cell[base], weights=column) for column in contributed.T])
            scores.append(exact + rng.laplace(size=exact.shape) * np.sqrt(system.variance(part) / 2.0))
        again = FirstYearSums.after(sums, scores)
        of_tables = zip(again.limits, system.parts_of_tables, strict=True)
        found = replace(again, sums=[measured(one, again.by_sums.prediction, part) for one, part in of_tables])
    posterior, observed, _ = found.reading
    z = posterior.estimate(observed)[: len(system.file.count)]
    return Run(plan, sums.asked, posterior, z, base, found.totals("2020"))


class Cells(NamedTuple):
    """Counts and means of a table's cells with their standard errors given numbers of records, (cell, 2) each."""

    figures: Floats
    errors: Floats
    records: Floats


def direct(sample: Sample, cell: Ints, size: Floats | None = None) -> Cells:
    """Direct figures; counts are for `size` records if another sample is asked."""
    cells = int(cell.max()) + 1
    number = np.bincount(cell, minlength=cells)
    count = np.bincount(cell, weights=sample.weight, minlength=cells)
    mean = np.bincount(cell, weights=sample.weight * sample.outcome, minlength=cells) / count
    of_weight = np.bincount(cell, weights=(sample.weight - (count / number)[cell]) ** 2, minlength=cells)
    of_mean = np.bincount(cell, weights=(sample.weight * (sample.outcome - mean[cell])) ** 2, minlength=cells)
    scale = 1.0 if size is None else size / number
    errors = np.column_stack([np.sqrt(of_weight) * scale, np.sqrt(of_mean) / count])
    return Cells(np.column_stack([count * scale, mean]), errors, number.astype(float))


def published(run: Run, cell: Ints) -> Cells:
    """Counts and means of base cells' sums, and the errors of the posterior."""
    prediction, size, cells = run.posterior.prior.prediction, run.system.file.count, int(cell.max()) + 1
    prediction = prediction.within(len(size)) if len(prediction.means) > len(size) else prediction
    weight = size * prediction.means[:, 0] + run.z[:, 0]
    total = size * prediction.means[:, 0] * prediction.means[:, 1] + prediction.means[:, 1] * run.z[:, 0] + run.z[:, 1]
    count, of_total = (np.bincount(cell, weights=part, minlength=cells) for part in (weight, total))
    mean = of_total / count
    errors = np.sqrt(run.posterior.variances(rows_of(cell, mean[:, None], prediction)))
    return Cells(np.column_stack([count, mean]), np.column_stack([errors[:cells], errors[cells:] / count]), size)


def of_tables(run: Run) -> list[tuple[tuple[int, ...], Ints]]:
    return [*run.system.file.tables, ((), np.zeros(len(run.system.file.count), dtype=np.int64))]


def errors_of(told: Population, run: Run) -> Floats:
    """|published - direct| in direct standard errors, of all cells of ten records, (cell, 2)."""
    found = []
    for _, cell in of_tables(run):
        right, made = direct(told.file, cell[run.base]), published(run, cell)
        found.append((np.abs(made.figures - right.figures) / right.errors)[right.records >= 10])
    return np.concatenate(found)


@pytest.mark.parametrize("outcomes", [1, 3])
def test_a_record_adds_at_most_1_in_whole_units_whatever_its_values(outcomes: int) -> None:
    """Over values up to 1e308. Control: without the scaling into the ball it adds more."""
    told = population(3)
    rng = np.random.default_rng(1)
    reference = ReferenceSample(
        told.reference.codes, told.reference.weight, np.repeat(told.reference.outcome[:, None], outcomes, axis=1)
    )
    codes = np.unique(told.file.codes, axis=0)
    ends = np.array([[0.0, *[told.bounds[0]] * outcomes], [1e6, *[told.bounds[1]] * outcomes]])
    prediction = predict(reference, codes, LEVELS, TABLES, *ends)
    cell, placed = cell_index(codes[:, :2]), np.zeros(len(reference.weight), dtype=np.int64)
    chosen = TableLaw(cell, placed, np.full(len(codes), 9.0), prediction, ends[1], ends[0]).limits(50.0)
    base = rng.integers(0, len(codes), 4_000)
    size = 10.0 ** rng.uniform(-3.0, 308.0, (4_000, 1 + outcomes))
    values = np.where(rng.random(size.shape) < 0.5, size, prediction.means[base] * rng.uniform(0.0, 3.0, size.shape))
    outcome = values[:, 1:] * rng.choice([-1.0, 1.0], values[:, 1:].shape)
    added = chosen.contributions(base, values[:, 0], outcome, prediction)
    assert (added == np.rint(added)).all()
    norm = np.abs(added).sum(axis=1)
    assert norm.max() == UNIT
    heavy = chosen.contributions(base, np.full(4_000, 1e6), np.repeat(ends[1][1:][None], 4_000, axis=0), prediction)
    light = chosen.contributions(base, np.zeros(4_000), np.repeat(ends[0][1:][None], 4_000, axis=0), prediction)
    assert np.abs(heavy - light).sum(axis=1).max() <= 2 * UNIT
    wide = replace(chosen, weight=chosen.weight * 1e-9)
    assert np.abs(wide.contributions(base, values[:, 0], outcome, prediction)).sum(axis=1).max() == UNIT
    r = (values[:, 0] - prediction.means[base, 0] - chosen.centre[cell[base]]) / chosen.weight[cell[base]]
    assert np.abs(r).max() > 1.0


def test_other_values_at_the_same_x_attain_the_distance() -> None:
    told = population(0)
    system, base = system_of(told, 1.0)
    first = system.asked.first
    r = np.array([[-1.0], [1.0]])
    weight = (system.file.prediction.means[base[0], 0] + first.centre[0] + r[:, 0] * first.weight[0] * 1.01).clip(0.0)
    about = first.mean[0, 0]
    predicted = system.file.prediction.means[base[0]]
    # Outcomes whose residual is 0 leave the whole ball to weights.
    outcome = about + predicted[0] * (predicted[1] - about) / np.maximum(weight, 1e-9)
    u = first.contributions(np.repeat(base[:1], 2), weight, outcome[:, None], system.file.prediction)
    far = np.abs(u[0] - u[1]).sum()
    assert far <= 2 * UNIT
    assert far >= UNIT
    wide = 1e3 * first.outcome[0, 0] / np.maximum(predicted[0], 1e-9)
    ends = about + np.array([-wide, wide])
    v = first.contributions(np.repeat(base[:1], 2), np.full(2, predicted[0]), ends[:, None], system.file.prediction)
    assert np.abs(v[0] - v[1]).sum() >= 2 * UNIT * (1.0 - 1e-2)


@pytest.fixture(scope="module")
def small() -> tuple[Posterior, list[scipy.sparse.csr_array]]:
    told = population(4, records=400)
    system, _ = system_of(told, 2.0)
    rows, _, errors, _, _ = unread(system).observed()
    drift = np.random.default_rng(1).uniform(0.01, 0.05, (system.file.prior.families_of_drift, 2))
    prior = system.file.prior.moving(drift)
    identity = scipy.sparse.eye_array(len(system.file.count)).tocsr()
    none = scipy.sparse.csr_array(identity.shape)
    every = [scipy.sparse.vstack(pair).tocsr() for pair in ((identity, none), (none, identity))]
    return Posterior(prior, rows, errors), every


def test_the_posterior_is_the_conditional_law_of_a_gaussian(small: tuple[Posterior, list[scipy.sparse.csr_array]]) -> None:
    """Against dense matrices: means to 1e-8 of their size, and variances of base cells."""
    posterior, every = small
    covariance = posterior.prior.with_drift(every, every)
    matrix = np.hstack([row.toarray() for row in posterior.rows])
    observed = np.random.default_rng(0).normal(0.0, np.sqrt(np.diag(matrix @ covariance @ matrix.T) + posterior.noise))
    gain = covariance @ matrix.T @ np.linalg.inv(matrix @ covariance @ matrix.T + np.diag(posterior.noise))
    exact = (gain @ observed).reshape(2, -1).T
    assert posterior.estimate(observed) == pytest.approx(exact, rel=1e-6, abs=1e-8 * np.abs(exact).max())
    remaining = np.diag(covariance - gain @ matrix @ covariance)
    assert posterior.variances(every) == pytest.approx(remaining, rel=1e-6, abs=1e-9 * remaining.max())
    assert np.linalg.eigvalsh(covariance).min() >= -1e-9 * np.abs(covariance).max()


def test_draws_have_the_variances_of_the_law(small: tuple[Posterior, list[scipy.sparse.csr_array]]) -> None:
    """4,000 draws of every row's sum: all variances within 12 % (5 standard deviations). Control: half the drift."""
    posterior, _ = small
    prior, rows = posterior.prior, posterior.rows
    rng = np.random.default_rng(5)
    z = prior.sampled(4_000, rng) + prior.deviated(4_000, rng)
    drawn = sum(rows[j] @ z[:, j] for j in range(2)).var(axis=1)
    right = np.diag(prior.with_drift(rows, rows))
    assert drawn == pytest.approx(right, rel=0.12)
    less = np.diag(replace(prior, drift=()).with_drift(rows, rows))
    assert (np.abs(drawn / less - 1.0) > 0.12).any()


def test_figures_are_the_identity_of_residual_sums() -> None:
    """Counts and means from exact residual sums, whatever the prediction: N = Σm + Σr and Y = μ + (… + Σρ)/N."""
    told = population(2)
    system, base = system_of(told, 1.0)
    prediction = system.file.prediction
    z = np.column_stack(
        [
            np.bincount(base, weights=told.file.weight - prediction.means[base, 0]),
            np.bincount(base, weights=told.file.weight * (told.file.outcome - prediction.means[base, 1])),
        ]
    )
    for _, cell in system.file.tables:
        cells = int(cell.max()) + 1
        mean = limits.predicted_means(cell, system.file.count, prediction)
        rows = rows_of(cell, mean, prediction)
        sums = sum(rows[j] @ z[:, j] for j in range(2))
        weight = np.bincount(cell, weights=system.file.count * prediction.means[:, 0])
        about = system.file.count * prediction.means[:, 0] * (prediction.means[:, 1] - mean[cell, 0])
        count = weight + sums[:cells]
        found = np.column_stack([count, mean[:, 0] + (np.bincount(cell, weights=about) + sums[cells:]) / count])
        assert found == pytest.approx(direct(told.file, cell[base]).figures, rel=1e-9)


def test_a_prediction_keeps_totals_and_lies_between_main_effects_and_cells() -> None:
    """With many records of a cell the prediction is the cell's own; with few it is near main effects."""
    told = population(1, records=20_000)
    codes, base = np.unique(told.reference.codes, axis=0, return_inverse=True)
    reference = ReferenceSample(told.reference.codes, told.reference.weight, told.reference.outcome[:, None])
    ends = np.array([[0.0, told.bounds[0]], [1e6, told.bounds[1]]])
    prediction = predict(reference, codes, LEVELS, list(combinations(range(3), 2)), *ends)
    size = np.bincount(base.reshape(-1))
    total = float(size @ prediction.means[:, 0])
    assert total == pytest.approx(told.reference.weight.sum(), rel=0.01)
    own = np.bincount(base.reshape(-1), weights=told.reference.weight) / size
    spread = prediction.spread[:, 0] / np.sqrt(size)
    assert np.median(np.abs(prediction.means[:, 0] - own) / spread) < 1.0
    residuals = prediction.residuals.values
    assert np.abs(residuals.mean(axis=0)).max() < 0.03
    assert residuals.std(axis=0) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    ("outcome", "by"),
    [(0.0, ["c0", "c1"]), (1000.0, ["c0", "c1"]), (100.0, ["c0", "c1"]), (None, []), (0.0, [])],
    ids=["all at the lower bound", "all at the upper bound", "constant", "no columns", "no columns, all at the bound"],
)
def test_degenerate_outcomes_and_tables_are_released(tmp_path: Path, outcome: float | None, by: list[str]) -> None:
    job = sized_job(tmp_path, (3, 4) if by else (), [by], 400, 1, mechanism={"name": "tables"}, publish="always")
    for name in ("current", "earlier"):
        records = pd.read_parquet(tmp_path / f"{name}.parquet")
        if outcome is not None:
            records.assign(y0=outcome).to_parquet(tmp_path / f"{name}.parquet")
    dpdist.run(job, tmp_path / "work")
    (path,) = (tmp_path / "work" / "public" / "tables").glob("*.parquet")
    table = pd.read_parquet(path)
    means = table[(table["estimator"] == "parameters") & (table["statistic"] == "mean")]["estimate"]
    assert means.between(-1e-9, 1000.0 + 1e-9).all()
    if outcome is not None:
        assert means.to_numpy() == pytest.approx(outcome, rel=0.05, abs=1e-6)


def test_an_outcome_whose_mean_is_0_leaves_limits_of_weights_alone() -> None:
    """Balances about 0 have no relative drift. Deviations are then those of factors of weights, and not the widest."""
    told = population(2)
    balance = told.reference.outcome - np.average(told.reference.outcome, weights=told.reference.weight)
    moved = told._replace(reference=told.reference._replace(outcome=balance))
    system, _ = system_of(moved, 10.0)
    assert common_factors(system.asked, np.zeros(2)).deviation < 0.1


def test_predicted_errors_are_in_the_direct_errors_of_a_verdict() -> None:
    """Counts and totals under sampling with replacement, by cell of 30 records: 25 % in the median."""
    told = population(0)
    system, base = system_of(told, 4.0)
    _, cell = system.file.tables[0]
    errors = system.errors[0]
    inside = cell[base] == np.arange(int(cell.max()) + 1)[:, None]
    few = inside.sum(axis=1) >= 30
    for unit, values in (
        (errors.means(0)[2], told.file.weight),
        (errors.totals(1)[2], told.file.weight * told.file.outcome),
    ):
        right = np.sqrt(len(base)) * (inside * values).std(axis=1, ddof=1)
        assert np.median(np.abs(unit / right - 1.0)[few]) <= 0.25


def test_jobs_that_differ_in_bounds_of_weights_or_levels_alone_have_systems_of_their_own(tmp_path: Path) -> None:
    """In one process, as systems are kept. Control: the same job has its system again."""
    job = dpdist.load_job(sized_job(tmp_path, (3, 4), [["c0", "c1"]], 400, 1, mechanism={"name": "tables"}))
    model = make_plan(job, None, silent).model
    assert isinstance(model, ResidualCells)
    rng = np.random.default_rng(0)
    donors = Donors.of(rng.integers(0, 12, 300), rng.uniform(20.0, 90.0, 300), rng.uniform(0.0, 900.0, (300, 1)))
    model = model.with_donors(donors)
    narrow = replace(model, public_weights=(1.0, 100.0))
    longer = replace(model, levels=(*model.levels[:-1], (*model.levels[-1], "l4")))
    assert [one.plan.file.highest[0] for one in (model, narrow)] == [500.0, 100.0]
    assert longer.plan.file.sizes != model.plan.file.sizes
    assert replace(model).plan is model.plan


def test_totals_state_the_spread_that_counts_of_records_beyond_limits_show() -> None:
    """At ε = 10,000, of a file with one record of 500 times its weight. Control: at ε = 1, without such counts, they state
    that of the reference; and so they do at ε = 10,000 of a file without this record.
    """
    told = population(4)
    heavy = told._replace(file=told.file._replace(weight=told.file.weight * np.where(np.arange(3_000) == 7, 500.0, 1.0)))
    wide, narrow, usual = release(heavy, 1e4), release(heavy, 1.0), release(told, 1e4)
    assert wide.system.part_beyond > 0 == narrow.system.part_beyond
    each = wide, narrow, usual
    plain = (one.system.limits(common_factors(one.system, np.zeros(2)))[0].spread for one in each)
    larger = [one.totals.scatter / spread for one, spread in zip(each, plain, strict=True)]
    assert larger[0].max() > 1.5
    assert larger[2].max() < 1.5
    assert larger[1].max() < 1.5
