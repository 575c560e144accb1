"""Laws of `tables` where numbers of records are secret, over random populations, and whole jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy
from numpy.typing import NDArray
from public_files import statement_of
from sized_package import people, sized_job
from table_populations import widened
from test_drift_of_tables import World
from test_tables import LEVELS, TABLES, Cells, Population, Sample, population

import dpdist
import dpdist.mechanisms.tables.common_factors as factors_of_weights
from dpdist.core.errors import JobError
from dpdist.core.records import UNIT, Floats, Ints
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables.common_factors import growth_of
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.limits import TableLimits, unpaired
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.measured_sums import MeasuredSums
from dpdist.mechanisms.tables.measurements import NUMBER, CommonFactors, ResidualMeasurements
from dpdist.mechanisms.tables.plan import PublishedFigures, TablePlan
from dpdist.mechanisms.tables.posterior import Posterior, squares_of
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import cell_index
from dpdist.mechanisms.tables.redrawn_cells import RedrawnCells
from dpdist.mechanisms.tables.rows import rows_of
from dpdist.mechanisms.tables.sensitivity import MOVED
from dpdist.mechanisms.tables.sizes import Sizes
from dpdist.opening.verifying import remade
from dpdist.privacy.guarantees import Neighbour, NoisyQuery
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released
from dpdist.quality.predicted.prediction import predicted

CROSSES = np.array(list(product(*map(range, LEVELS))))
KINDS: dict[str, dict[str, str]] = {
    "off": {"adjacency": "add_remove"},
    "anywhere": {"adjacency": "substitution", "exchange": "anywhere"},
}

each_kind = pytest.mark.parametrize("kind", ["off", pytest.param("anywhere", marks=pytest.mark.long)])
"""Noise of the second one is tested below."""


class Run(NamedTuple):
    """A release's system and posterior, the estimate of z, and the base cell of every record of the file."""

    system: ResidualMeasurements
    posterior: Posterior
    z: Floats
    base: Ints
    totals: PeriodTotals


def crosses_of(codes: Ints) -> Ints:
    return np.asarray(np.ravel_multi_index(tuple(codes.T), LEVELS))


def system_of(
    told: Population, epsilon: float, kind: Neighbour = "off", history: Sequence[PeriodTotals] = ()
) -> ResidualMeasurements:
    tables, placed = [], []
    for by in TABLES:
        both = cell_index(np.concatenate([CROSSES, told.reference.codes])[:, list(by)])
        tables.append((by, both[: len(CROSSES)]))
        placed.append(both[len(CROSSES) :])
    query = NoisyQuery.losing("sums", MOVED, Fraction(epsilon).limit_denominator(1000), kind)
    reference = ReferenceSample(told.reference.codes, told.reference.weight, told.reference.outcome[:, None])
    ends = np.array([[0.0, told.bounds[0]], [10.0 * told.reference.weight.max(), told.bounds[1]]])
    columns = CROSSES, LEVELS, np.ones(len(CROSSES)), tuple(tables), tuple(placed), reference, *ends
    file = ExpectedFile(*columns, secret=True, history=tuple(history))
    return TablePlan(PublishedFigures(file), query).asked


def release(
    told: Population, epsilon: float, seed: int = 0, history: Sequence[PeriodTotals] = (), kind: Neighbour = "off"
) -> Run:
    system, base = system_of(told, epsilon, kind, history), crosses_of(told.file.codes)
    rng = np.random.default_rng(seed)

    def noise(part: Fraction, size: tuple[int, ...]) -> Floats:
        return rng.laplace(size=size) * np.sqrt(system.variance(part) / 2.0)

    def measured(of_table: TableLimits, prediction: Prediction, part: Fraction) -> Floats:
        added = of_table.contributions(base, told.file.weight, told.file.outcome[:, None], prediction) / UNIT
        cells = len(of_table.size)
        sums = np.column_stack([np.bincount(of_table.cell[base], weights=column, minlength=cells) for column in added.T])
        return unpaired(sums + noise(part, sums.shape))

    number = len(base) + float(noise(NUMBER, ()))
    informed = system.file.informed
    first = measured(system.first_limits(growth_of(system, number)[0], informed), informed, system.parts[0])
    sums = widened(MeasuredSums.of(system, [first], number), base, told.file.weight, told.file.outcome[:, None], rng)
    of_tables = zip(sums.limits[1:], system.parts[1:], strict=True)
    sums = replace(sums, sums=[first, *(measured(one, sums.calibrated, part) for one, part in of_tables)])
    found, totals = sums.reading, sums.totals(f"period {len(history)}")
    return Run(sums.asked, found.posterior, found.posterior.estimate(found.observed)[: len(CROSSES)], base, totals)


def direct(sample: Sample, cell: Ints) -> Cells:
    """Direct figures by cell; standard errors have that of the numbers of records."""
    of_record, cells = cell[crosses_of(sample.codes)], int(cell.max()) + 1
    number = np.bincount(of_record, minlength=cells)

    def added(values: Floats) -> Floats:
        return np.bincount(of_record, weights=values, minlength=cells)

    with np.errstate(invalid="ignore", divide="ignore"):
        count, mean = added(sample.weight), added(sample.weight * sample.outcome) / added(sample.weight)
        of_count = np.sqrt(np.maximum(added(sample.weight**2) - count**2 / len(of_record), 0.0))
        of_mean = np.sqrt(added((sample.weight * (sample.outcome - mean[of_record])) ** 2)) / count
    return Cells(np.column_stack([count, mean]), np.column_stack([of_count, of_mean]), number.astype(float))


def published(run: Run, cell: Ints) -> Cells:
    prediction, size, cells = run.system.file.prediction, run.system.file.numbers.count, int(cell.max()) + 1
    weight = size * prediction.means[:, 0] + run.z[:, 0]
    total = prediction.means[:, 1] * weight + run.z[:, 1]
    count, of_total = (np.bincount(cell, weights=part, minlength=cells) for part in (weight, total))
    mean = of_total / count
    errors = np.sqrt(run.posterior.variances(rows_of(cell, mean[:, None], prediction)))
    return Cells(np.column_stack([count, mean]), np.column_stack([errors[:cells], errors[cells:] / count]), count)


def errors_of(told: Population, run: Run) -> Floats:
    """|published - direct| in direct standard errors, of cells of ten records, (cell, 2)."""
    found = []
    for _, cell in run.system.file.tables:
        right, made = direct(told.file, cell), published(run, cell)
        few = right.records >= 10
        found.append(np.abs(made.figures - right.figures)[few] / right.errors[few])
    return np.concatenate(found)


def part_of(sample: Sample, records: int, factor: float = 1.0) -> Sample:
    few = np.random.default_rng(0).permutation(len(sample.weight))[:records]
    return Sample(sample.codes[few], factor * sample.weight[few], sample.outcome[few])


@pytest.mark.parametrize("seed", range(6))
def test_without_noise_the_published_figures_are_the_direct_ones(seed: int) -> None:
    """At ε = 10,000, also where the file is ten times as large as the reference, a third of it, or has crosses that the
    reference lacks."""
    told = population(seed, spread=(0.2, 0.6, 1.2)[seed // 2], factors=(1.1, 1.15) if seed % 2 else (1.0, 1.0))
    if seed in (1, 2):
        told = told._replace(reference=part_of(told.reference, 300))
    if seed == 3:
        told = told._replace(file=part_of(told.file, 1_000))
    if seed == 4:
        apart = crosses_of(told.reference.codes) % 4 > 0
        reference = Sample(*(values[apart] for values in told.reference))
        told = told._replace(reference=reference)
    errors = errors_of(told, release(told, 1e4, seed))
    assert (np.median(errors, axis=0) <= (0.02, 0.025)).all()
    assert errors.max() <= 0.25


def test_control_limits_that_do_not_widen_with_the_budget_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = population(0, spread=1.2)
    strict = system_of(told, 0.5)
    fixed = strict.limits(CommonFactors(np.ones(2), 0.0, strict.first))[1]
    monkeypatch.setattr(ResidualMeasurements, "limits", lambda self, _: (self.file.prediction, fixed))
    assert errors_of(told, release(told, 1e4)).max() > 0.5


@pytest.mark.long
def test_figures_are_no_worse_than_public_ones_and_intervals_hold_the_population() -> None:
    """8 populations × ε = .1, 1, 4: pooled medians of counts and means are at most those of the reference's cells, and
    90 % intervals hold .86 to .95 of an independent sample's figures.

    Under the right coverage of .9 a pooled share of 400 figures in 8 independent files lies outside by chance in fewer than
    1 of 100 seeds (its standard deviation is .02); seeds are fixed. At ε ≤ 1 they hold more: the joint error has all of
    the file's own, of which the estimate takes up little. Control: without errors of posterior and file they hold less than
    .86.
    """
    for epsilon in (0.1, 1.0, 4.0):
        errors, references, inside, control = (list[Floats]() for _ in range(4))
        for seed in range(8):
            told = population(100 + seed)
            run = release(told, epsilon, seed)
            for cell in [*(cell for _, cell in run.system.file.tables), np.zeros(len(CROSSES), dtype=np.int64)]:
                right, public, other = (direct(sample, cell) for sample in (told.file, told.reference, told.other))
                made, few = published(run, cell), (right.records >= 10) & (other.records >= 10)
                errors.append(np.abs(made.figures - right.figures)[few] / right.errors[few])
                references.append(np.abs(public.figures - right.figures)[few] / right.errors[few])
                far = np.abs(made.figures - other.figures)
                own = right.errors * (epsilon >= 1.0)
                inside.append((far <= 1.645 * np.sqrt(made.errors**2 + own**2 + other.errors**2))[few])
                control.append((far <= 1.645 * other.errors)[few])
        pooled, alone = (np.median(np.concatenate(part), axis=0) for part in (errors, references))
        held = np.concatenate(inside).mean(axis=0)
        assert (pooled <= alone).all(), (epsilon, pooled, alone)
        assert (held >= 0.86).all(), (epsilon, held)
        assert (held <= (0.995 if epsilon <= 1.0 else 0.95)).all(), (epsilon, held)
        assert (np.concatenate(control).mean(axis=0) < 0.86).all()


@pytest.mark.parametrize("draws", [3, pytest.param(10, marks=pytest.mark.long)])
def test_all_records_are_near_their_direct_figures(draws: int) -> None:
    """10,000 records, ε = 4: the total count and the overall mean, in the median over draws, in direct errors whose numbers
    of records are random. Their lean is at most .4: what limits clip of the file is a sample, too."""
    told, whole = population(7, records=10_000), np.zeros(len(CROSSES), dtype=np.int64)
    right = direct(told.file, whole)
    errors = [
        (published(release(told, 4.0, seed), whole).figures - right.figures)[0] / right.errors[0] for seed in range(draws)
    ]
    assert (np.median(np.abs(errors), axis=0) <= 0.5).all()
    assert (np.abs(np.median(errors, axis=0)) <= 0.4).all()


@pytest.mark.long
@pytest.mark.parametrize("control", [False, True])
def test_the_count_of_all_records_errs_as_stated(control: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three populations × both kinds × ε = .5, .5, 1, 1, 4: 90 % intervals hold the file's count in 22 of 30 releases, and
    its root mean square error is at most 1.4 times the stated one.

    If errors are as stated, fewer intervals hold it by chance in 1 of 500 seeds, and the error is as large in 1 of 750;
    seeds are fixed. Control: weights are taken to have changed by the ratio of the first sum to the noisy number, and
    without error.
    """
    if control:
        monkeypatch.setattr(factors_of_weights, "LEAST_DRIFT", 10.0)
        monkeypatch.setattr(ResidualMeasurements, "clipped_by_weights", _without_errors)
    whole, ratios = np.zeros(len(CROSSES), dtype=np.int64), list[float]()
    for number, spread in enumerate((0.2, 0.5, 0.9)):
        told = population(50 + number, spread=spread)
        kinds: tuple[Neighbour, ...] = ("off", "anywhere")
        for seed, (kind, epsilon) in enumerate(product(kinds, (0.5, 0.5, 1.0, 1.0, 4.0))):
            made = published(release(told, epsilon, seed, kind=kind), whole)
            ratios.append(float(made.figures[0, 0] - told.file.weight.sum()) / made.errors[0, 0])
    held = int((np.abs(ratios) <= 1.645).sum()), np.sqrt(np.mean(np.square(ratios)))
    assert (held[0] >= 22 and held[1] <= 1.4) is not control, held


def _without_errors(
    asked: ResidualMeasurements, calibration: CommonFactors, calibrated: Prediction, limits: Sequence[TableLimits]
) -> list[Floats]:
    return [np.zeros_like(table.scale) for table in limits]


@pytest.mark.parametrize(("times", "growth"), [(1.0, 1.0), (5.0, 5.0)], ids=["of its size", "a sample of the file"])
def test_totals_that_are_handed_on_are_those_of_the_file(times: float, growth: float) -> None:
    """At ε = 10,000, though limits clip: sums of weights and of centred totals within 4 of their stated errors, and in the
    median within 1 of them; numbers of records times the factor of weights within 10 %.
    """
    told = population(2, spread=0.6)
    told = told._replace(reference=part_of(told.reference, int(3_000 / growth), times))
    run, ratios = release(told, 1e4), list[Floats]()
    totals = run.totals
    assert totals.count.sum() == pytest.approx(len(run.base) / times, rel=0.1)
    for row in totals.row:
        weight, outcome = told.file.weight, told.file.outcome
        of_record = row[run.base]
        rho = weight * (outcome - totals.about[of_record, 0])
        direct = [np.bincount(of_record, weights=one, minlength=len(totals.total)) for one in (weight, rho)]
        used = np.unique(row)
        off = np.abs(totals.total[used] - np.column_stack(direct)[used])
        ratios.append(off / (np.sqrt(totals.variance[used]) + 1e-4 * weight.max()))
    assert np.concatenate(ratios).max() <= 4.0
    assert np.median(np.concatenate(ratios)) <= 1.0


def secret_chain(
    seed: int, epsilon: float, records: Sequence[int], changed: Callable[[PeriodTotals], PeriodTotals] = lambda one: one
) -> Iterator[NDArray[np.bool_]]:
    """Whether joint 90 % intervals hold another sample's figures, (cell, 2), by period of a chain of so many records.

    Outcomes grow by 4 % a period, and effects walk by .03. `changed` is what is handed on in place of a release's totals.
    """
    world, history = World(seed, 0.04, 0.03), list[PeriodTotals]()
    reference = world.sample(records[0])
    for period, number in enumerate(records):
        world.step()
        told = Population(reference, world.sample(number), world.sample(number), world.bounds)
        run = release(told, epsilon, 100 * seed + period, history)
        history.append(changed(run.totals))
        held = list[NDArray[np.bool_]]()
        for cell in [*(cell for _, cell in run.system.file.tables), np.zeros(len(CROSSES), dtype=np.int64)]:
            right, other, made = direct(told.file, cell), direct(told.other, cell), published(run, cell)
            joint = np.sqrt(made.errors**2 + right.errors**2 + other.errors**2)
            few = (right.records >= 10) & (other.records >= 10)
            held.append((np.abs(made.figures - other.figures) <= 1.645 * joint)[few])
        yield np.concatenate(held)


@pytest.mark.long
def test_intervals_hold_in_every_period_of_a_chain() -> None:
    """4 chains at ε = 1, of 1,000 to 3,000 records a period: coverage of counts and means .86 and more in every period.

    Under a coverage of .9 a share of some 110 figures is below .82 by chance in less than 1 of 100 periods. Joint intervals
    have all of the file's own error, of which the estimate takes up little, and so hold more. Control: totals that err by
    three standard errors and state none.
    """
    numbers = 2_000, 3_000, 1_000, 2_500
    periods = zip(*(secret_chain(seed, 1.0, numbers) for seed in range(4)), strict=True)
    shares = np.array([np.concatenate(period).mean(axis=0) for period in periods])
    assert (shares >= 0.86).all(), shares

    def wrong(one: PeriodTotals) -> PeriodTotals:
        error = 3.0 * np.sqrt(one.variance) * np.random.default_rng(0).standard_normal(one.total.shape)
        return replace(one, total=one.total + error, variance=1e-6 * one.variance)

    last = [list(secret_chain(seed, 1.0, numbers, wrong))[-1] for seed in range(4)]
    assert np.concatenate(last).mean(axis=0).min() < 0.86


@pytest.mark.parametrize(
    ("times", "populations"),
    [(5.0, 3), *(pytest.param(times, 6, marks=pytest.mark.long) for times in (5.0, 1.0))],
    ids=["a sample of the file", "a sample of more files", "of its size"],
)
def test_a_reference_that_is_a_sample_of_the_file_gives_as_good_limits(times: float, populations: int) -> None:
    """Its weights are five times as large, and its records a fifth. At ε = 4, over populations: counts err by at most .5
    direct errors in the median, as under a reference of the file's size, and 90 % intervals hold .85 of another sample's
    figures and more (over 6 by chance fewer in less than 1 of 1,000 runs).
    """
    errors, inside = list[Floats](), list[Floats]()
    for seed in range(populations):
        told = population(100 + seed)
        told = told._replace(reference=part_of(told.reference, int(3_000 / times), times))
        run = release(told, 4.0, seed)
        assert run.posterior.prior.weight == pytest.approx(1.0 / times, rel=0.8)
        errors.append(errors_of(told, run))
        for _, cell in run.system.file.tables:
            right, other, made = direct(told.file, cell), direct(told.other, cell), published(run, cell)
            few = (right.records >= 10) & (other.records >= 10)
            joint = np.sqrt(made.errors**2 + right.errors**2 + other.errors**2)
            inside.append((np.abs(made.figures - other.figures) <= 1.645 * joint)[few])
    assert np.median(np.concatenate(errors)[:, 0]) <= 0.5
    assert (np.concatenate(inside).mean(axis=0) >= 0.85).all()


def test_shared_errors_of_clipped_records_are_a_part_of_all_errors() -> None:
    """Whatever the noisy number and totals of all records are: errors are of limits for that number of records.

    Control: limits for the reference's number would share more than there is.
    """
    system = system_of(population(4), 1.0)
    records, more = system.file.numbers.count.sum(), list[bool]()
    for number, total in product((-1e6, 0.1 * records, 1e6), (-1e7, 1e7)):
        sums = MeasuredSums.of(system, [np.array([[total, total]])], number)
        observed = replace(sums, sums=[np.zeros((len(one.size), 2)) for one in sums.limits]).observed()
        errors = observed.errors * (1.0 + 1e-9)
        assert (squares_of(observed.clipped) <= errors).all()
        more.append(bool((squares_of(system.clipped((system.first, *sums.limits[1:]))) > errors).any()))
    assert any(more), "control"


@pytest.mark.parametrize("outcomes", [1, 3])
def test_a_record_adds_at_most_1_and_its_exchange_attains_2(outcomes: int) -> None:
    """Over weights and outcomes up to 1e308; a record of weight 0 adds nothing. Records of two cells are one pair, and
    records of one cell with all outcomes above and all below another. Rounding takes a unit of each sum at most."""
    told, rng = population(3), np.random.default_rng(1)
    system = system_of(told, 1.0)
    limits = system.limits(CommonFactors(np.ones(2), 0.0, system.first))[1][0]
    prediction = system.file.prediction
    limits = replace(
        limits,
        mean=np.repeat(limits.mean, outcomes, axis=1),
        outcome=np.repeat(limits.outcome, outcomes, axis=1),
    )
    prediction = replace(prediction, means=prediction.means[:, [0, *[1] * outcomes]])
    base = rng.integers(0, len(CROSSES), 4_000)
    values = 10.0 ** rng.uniform(-3.0, 308.0, (4_000, 1 + outcomes)) * rng.choice([-1.0, 1.0], (4_000, 1 + outcomes))
    added = limits.contributions(base, np.abs(values[:, 0]), values[:, 1:], prediction)
    assert added.shape == (4_000, 2 * outcomes)
    assert (added == np.rint(added)).all()
    assert UNIT - 2 * outcomes <= np.abs(added).sum(axis=1).max() <= UNIT
    assert not limits.contributions(base, np.zeros(4_000), values[:, 1:], prediction).any()
    cell, least = limits.cell[base], UNIT - 2 * outcomes
    heavy = limits.contributions(base, 2.0 * limits.weight[cell], limits.mean[cell], prediction)
    assert (np.abs(heavy).sum(axis=1) >= least).all(), "added, removed, or moved to another cell, which moves two sums"
    weight = limits.weight[cell]
    ends = [limits.mean[cell] + sign * limits.outcome[cell] / weight[:, None] / outcomes for sign in (1.0, -1.0)]
    above, below = (limits.contributions(base, weight, end, prediction) for end in ends)
    assert (np.abs(above - below).sum(axis=1) >= 2 * least).all()
    sums = unpaired(heavy / UNIT)
    assert sums == pytest.approx(np.column_stack([np.ones(4_000), np.zeros((4_000, outcomes))]), abs=1e-5)


def test_expected_numbers_are_as_far_from_another_samples_as_they_state() -> None:
    """Squared deviations over stated variances, of cells of tables and of crosses, over 10 populations: .8 to 1.25 in
    the mean of all. Control: those of the reference's own numbers without its error are over 1.6.

    The standard deviation of a mean of 300 squares and more is at most .08; populations' own add .05.
    """
    stated, control = list[Floats](), list[Floats]()
    for seed in range(10):
        told = population(seed, records=2_000)
        sizes = Sizes.predicted(CROSSES, LEVELS, TABLES, told.reference.codes)
        assert sizes.count.sum() == pytest.approx(2_000.0)
        assert sizes.count.min() > 0.0
        other, own = (np.bincount(crosses_of(s.codes), minlength=len(CROSSES)) for s in (told.other, told.reference))
        for by in [*TABLES, (0, 1, 2)]:
            cell = cell_index(CROSSES[:, list(by)])
            adding = scipy.sparse.csr_array((cell == np.arange(cell.max() + 1)[:, None]).astype(float))
            expected, variance = (
                adding @ sizes.count,
                (sizes.shared.rows(adding) ** 2).sum(axis=1) + adding @ sizes.alone**2,
            )
            stated.append((adding @ other - expected) ** 2 / (variance + expected))
            control.append((adding @ (other - own)) ** 2 / np.maximum(adding @ own, 1.0))
    assert 0.8 <= np.concatenate(stated).mean() <= 1.25
    assert np.concatenate(control).mean() > 1.6


def secret_job(folder: Path, kind: str, epsilon: str = "4", outcomes: int = 2, **keys: Any) -> Path:
    budget = {"epsilon": epsilon, **KINDS[kind], **keys.pop("budget", {})}
    by = [["c0", "c1"], ["c1", "c2"], ["c0"]]
    mechanism = {"name": "tables", **keys.pop("mechanism", {})}
    return sized_job(folder, (3, 4, 2), by, 2_000, outcomes, mechanism=mechanism, budget=budget, publish="always", **keys)


@each_kind
def test_a_release_of_a_large_budget_has_the_direct_figures(kind: str, tmp_path: Path) -> None:
    """The whole way of a job. Synthetic records agree with the tables, and tables made again are the same."""
    dpdist.run(secret_job(tmp_path, kind, "10000"), tmp_path / "work")
    public, file = tmp_path / "work" / "public", people((3, 4, 2), 2_000, 2, 1)
    errors = list[float]()
    for path in sorted((public / "tables").glob("*.parquet")):
        table = pd.read_parquet(path)
        columns = [name for name in table.columns if name in file]
        wide = table.pivot_table(
            index=[*columns, "statistic", "variable"], columns="estimator", values="estimate", dropna=False
        )
        wide = wide.dropna()
        np.testing.assert_allclose(wide["records"], wide["parameters"], rtol=1e-6)
        for _, row in table[table["estimator"] == "parameters"].iterrows():
            inside = file[np.all([(row[c] == "Total") | (file[c].astype(str) == row[c]) for c in columns], axis=0)]
            weight, whole = inside["w"], len(inside) == len(file)
            if row["statistic"] == "count":
                error = np.sqrt((weight**2).sum() - (weight.sum() ** 2 / len(file) if not whole else 0.0))
                errors.append(abs(row["estimate"] - weight.sum()) / error)
            else:
                mean = np.average(inside[row["variable"]], weights=weight)
                error = np.sqrt((weight**2 * (inside[row["variable"]] - mean) ** 2).sum()) / weight.sum()
                errors.append(abs(row["estimate"] - mean) / error)
    assert np.median(errors) <= 0.02
    assert max(errors) <= 0.2
    publish(read_released(public / "released"), tmp_path / "again")
    for path in sorted((public / "tables").glob("*.parquet")):
        pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(tmp_path / "again" / "tables" / path.name))


@each_kind
def test_a_release_continues_from_another_at_the_sum_of_their_losses(kind: str, tmp_path: Path) -> None:
    """Both are published again with the same bytes; the second has totals of both, about the numbers of records of each."""
    path = secret_job(tmp_path, kind)
    dpdist.run(path, tmp_path / "first")
    people((3, 4, 2), 1_200, 2, 7).to_parquet(tmp_path / "next.parquet")
    further = {"period": "2025", "input": {"path": str(tmp_path / "next.parquet")}}
    said = json.loads(path.read_text()) | further | {"reference": {"release": str(tmp_path / "first" / "public")}}
    (tmp_path / "next.json").write_text(json.dumps(said))
    dpdist.run(tmp_path / "next.json", tmp_path / "second")
    public = tmp_path / "second" / "public"
    assert statement_of(public)["reference"]["chain_epsilon"] == "8"
    for name in ("first", "second"):
        assert not remade(tmp_path / name / "public").faults
    (periods,) = json.loads((public / "released" / "history.json").read_text())["strata"].values()
    assert [one["period"] for one in periods] == ["2024", "2025"]
    assert [sum(one["count"]) for one in periods] == pytest.approx([2_000, 1_200], rel=0.25)


def test_noise_is_twice_as_large_for_a_record_that_may_move_anywhere(
    tmp_path: Path, noise_of: Callable[[str], AbstractContextManager[None]]
) -> None:
    scales = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        with noise_of(kind):
            dpdist.run(secret_job(tmp_path / kind, kind, outcomes=1), tmp_path / kind / "work")
        public = tmp_path / kind / "work" / "public"
        (query,) = json.loads((public / "released" / "proof.json").read_text())["queries"]
        assert Fraction(query["distance"][kind]) / Fraction(query["scale"]) == 4
        scales[kind] = Fraction(query["scale"])
        statement = statement_of(public)
        assert "the number of records, in total and in every cell" in statement["protected"]
        assert any("adds its weight" in text for text in statement["assumptions"])
        measured = pd.read_parquet(public / "measurements.parquet")
        assert set(measured["statistic"]) == {"records", "above", "below"}
        assert (measured["sensitivity"] == (1.0 if kind == "off" else 2.0)).all()
        frame = pd.read_parquet(public / "released" / "frame.parquet")
        near = measured.loc[measured["statistic"] == "records", "value"].item()
        assert near != 2_000
        assert frame["count"].sum() == pytest.approx(2_000, rel=0.1)
    assert scales["anywhere"] == 2 * scales["off"]


@pytest.mark.parametrize("control", [False, True])
def test_errors_of_counts_hold_where_most_crosses_have_no_record(
    control: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 records in 1,200 crosses, each of which has a record or more in the release: published errors of counts over
    direct ones are .9 to 1.1 in the median. Control: without errors of numbers that the release lacks they are below."""
    if control:
        monkeypatch.setattr(RedrawnCells, "_numbers_drawn", lambda self, weight, draws, rng: np.zeros((len(weight), draws)))
    levels, by = (6, 5, 5, 4, 2), [["c0"], ["c1"], ["c2", "c3"], ["c4"]]
    budget = {"epsilon": "10000", **KINDS["off"]}
    path = sized_job(tmp_path, levels, by, 600, 1, mechanism={"name": "tables"}, budget=budget, publish="always")
    dpdist.run(path, tmp_path / "work")
    table = pd.read_parquet(tmp_path / "work" / "public" / "tables" / "t-c2-c3.parquet")
    table = table[(table["estimator"] == "parameters") & (table["statistic"] == "count")]
    file, ratios = people(levels, 600, 1, 1), list[float]()
    for _, row in table[(table["c2"] != "Total") & (table["c3"] != "Total")].iterrows():
        weight = file["w"] * ((file["c2"].astype(str) == row["c2"]) & (file["c3"].astype(str) == row["c3"]))
        ratios.append(row["standard_error"] / np.sqrt((weight**2).sum() - weight.sum() ** 2 / len(file)))
    assert (0.9 <= np.median(ratios) <= 1.1) is not control


@pytest.mark.parametrize("kind", KINDS)
def test_zcdp_and_households_are_released_at_their_loss(kind: str, tmp_path: Path) -> None:
    """σ² is D²/2ρ for one record, and four times as large for a household of two. Control: the plain release."""
    variances = {}
    for name, unit in (("record", {}), ("household", {"privacy_unit": {"column": "home", "most": 2}})):
        folder = tmp_path / name
        folder.mkdir()
        budget, noise = {"delta": "1e-6"}, {"noise": "gaussian"}
        path = secret_job(folder, kind, outcomes=1, budget=budget, mechanism=noise, **unit)
        records = pd.read_parquet(folder / "current.parquet")
        records.assign(home=[f"h{number // 2}" for number in range(len(records))]).to_parquet(folder / "current.parquet")
        dpdist.run(path, folder / "work")
        public = folder / "work" / "public"
        (query,) = json.loads((public / "released" / "proof.json").read_text())["queries"]
        variances[name] = float(Fraction(query["scale"]) ** 2 / Fraction(query["squared_distance"][kind]))
        statement = statement_of(public)
        assert statement["guarantee"] == "strict zCDP"
        table = pd.read_parquet(public / "tables" / "t-c0-c1.parquet")
        assert np.isfinite(table[["estimate", "standard_error"]].to_numpy()).all()
    assert variances["household"] == pytest.approx(4.0 * variances["record"], rel=1e-3)


def test_a_plan_predicts_errors_that_fall_with_the_budget_and_does_not_depend_on_the_file(tmp_path: Path) -> None:
    """Control: under public numbers of records the prediction depends on them, and errors are smaller."""
    middle = {}
    for kind, adjacency in (("secret", "add_remove"), ("public", "zero_out")):
        folder = tmp_path / kind
        folder.mkdir()
        path = secret_job(folder, "off", outcomes=1)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"budget": {"epsilon": "4", "adjacency": adjacency}}))
        prediction = predicted(dpdist.plan(dpdist.load_job(path)))
        curve = [[one.median for one in prediction.statistics(epsilon)] for epsilon in prediction.epsilons]
        assert (np.diff(curve, axis=0) < 0.0).all()
        middle[kind] = curve[len(curve) // 2]
        pd.read_parquet(folder / "current.parquet").iloc[:700].to_parquet(folder / "current.parquet")
        again = predicted(dpdist.plan(dpdist.load_job(path)))
        assert (again.described() == prediction.described()) == (kind == "secret")
    assert (np.array(middle["secret"]) > middle["public"]).all()


@pytest.mark.parametrize(
    ("keys", "where", "text"),
    [
        ({"survey": {}}, "survey.weight", "name a weight column"),
        ({"predictors": {"protect": {"epsilon": "1"}}}, "predictors.protect.epsilon", "leave epsilon out"),
        ({"predictors": {"protect": {"columns": ["c0"]}}}, "predictors.protect.columns", "keeps the counts"),
        ({"survey": {"weight": "w", "design_strata": ["c0"]}}, "survey.design_strata", "leave it out"),
    ],
)
def test_what_secret_sizes_do_not_combine_with_is_refused_when_the_job_is_read(
    keys: dict[str, Any], where: str, text: str, tmp_path: Path
) -> None:
    path = secret_job(tmp_path, "anywhere", outcomes=1, **keys)
    with pytest.raises(JobError) as refused:
        dpdist.load_job(path)
    assert [one for one in refused.value.problems if one.where == where and text in f"{one.fault} {one.remedy}"], (
        refused.value
    )
