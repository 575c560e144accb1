"""Posteriors, predictions and limits of many sums under `tables`: in products and blocks, against dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from test_tables import LEVELS, Population, population, system_of, unread

from dpdist.core.progress import Event
from dpdist.core.records import Floats
from dpdist.core.sharing import using_workers
from dpdist.core.this_process import single_threaded
from dpdist.job import Runtime
from dpdist.mechanisms.tables import (
    clipped_residuals,
    conjugate,
    drift_sizes,
    learned_prediction,
    main_effects,
    posterior,
    random_effects,
    residual_prior,
    residual_samples,
    table_law,
)
from dpdist.mechanisms.tables.conjugate import EXACT, OF_DRAWS, OF_LAW, solved
from dpdist.mechanisms.tables.drift_sizes import learned
from dpdist.mechanisms.tables.posterior import Posterior, root_of
from dpdist.mechanisms.tables.random_effects import Loadings
from dpdist.mechanisms.tables.residual_prior import OF_CELLS, ResidualPrior, prior_variances
from dpdist.mechanisms.tables.rows import stacked
from dpdist.mechanisms.tables.table_law import TableLaw
from dpdist.runtime.executors import executor
from dpdist.runtime.sharing import FOLDER, pieces_on
from dpdist.storage.workspace import Workspace


def posterior_of(seed: int, epsilon: float, people: Population | None = None) -> Posterior:
    """The posterior of a random population's tables, with drift of every kind, and an error that all sums share."""
    system, _ = system_of(people or population(seed, records=600, spread=(0.2, 0.6, 1.2)[seed % 3]), epsilon)
    rows, _, errors, _, clipped = unread(system).observed()
    prior, of_inequality = system.file.prior.drifting(0.02, 0.05), 0.3 * np.sqrt(errors)
    return Posterior(prior, rows, errors, clipped, of_inequality=of_inequality)


def observed(of: Posterior, rng: np.random.Generator, sides: int = 1) -> Floats:
    z = of.prior.sampled(sides, rng) + of.prior.deviated(sides, rng)
    return posterior.row_values(of.rows, z) + np.sqrt(of.noise)[:, None] * rng.standard_normal((len(of.noise), sides))


@pytest.mark.parametrize(("seed", "epsilon"), [(0, 0.1), (1, 1.0), (2, 4.0), (3, 64.0), (4, 1e4)])
def test_conjugate_gradients_have_the_dense_estimates(seed: int, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows to 1e-7 of a posterior standard deviation, which rounding takes at ε = 10,000, where many sums have no least
    noise. Control: a loose one.
    """
    monkeypatch.setattr(posterior, "LEAST_NOISE", 0.0)
    distance = distance_from(posterior_of(seed, epsilon), seed, monkeypatch)
    assert distance(1e-12) <= (1e-7 if epsilon > 100.0 else 1e-10)
    assert distance(EXACT) <= 1e-5
    assert distance(0.1) > 1e-5


def test_what_gradients_do_not_solve_is_solved_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one step, and within the number of sums for which there is memory. Control: more sums end in an error."""
    monkeypatch.setattr(posterior, "LEAST_NOISE", 0.0)
    distance = distance_from(posterior_of(3, 64.0), 3, monkeypatch)
    monkeypatch.setattr(conjugate, "MOST_STEPS", 1)
    assert distance(EXACT) <= 1e-6
    monkeypatch.setattr(posterior, "MOST_FACTORED", 0)
    with pytest.raises(ArithmeticError, match="sums was not solved"):
        distance_from(posterior_of(3, 64.0), 3, monkeypatch)(EXACT)


def test_standard_errors_need_few_digits_of_their_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard deviations of 72 draws of errors, of which 99 of 100 differ by less than 2 % from those of exact solutions.
    Control: a residual 100 times as large.
    """
    monkeypatch.setattr(posterior, "MOST_DENSE", 0)
    few, law = posterior_of(2, 4.0), posterior.NoiseErrorDraws(len(posterior_of(2, 4.0).prior.size), True)

    def deviations(tolerance: float) -> Floats:
        monkeypatch.setattr(posterior, "OF_DRAWS", tolerance)
        parts = [part for _, part in replace(few).redrawn(law, 72, np.random.default_rng(0))]
        return np.concatenate(parts, axis=2).std(axis=2)

    exact = deviations(1e-6)

    def off(tolerance: float) -> float:
        return float(np.quantile(np.abs(deviations(tolerance) / exact - 1.0), 0.99))

    assert off(OF_DRAWS) < 0.02
    assert off(100.0 * OF_DRAWS) > 0.02


def test_uneven_base_cells_and_a_table_of_all_columns_have_the_dense_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the base cells have the first level of a column, and no column nests another. Control: a loose one."""
    people = population(1, records=2_000)
    codes = people.file.codes
    few = (codes[:, 0] == 0) | (codes[:, 1:].sum(axis=1) <= 1)
    cells = np.unique(codes[few], axis=0)
    assert (cells[:, 0] == 0).mean() > 0.5
    monkeypatch.setattr("test_tables.TABLES", (tuple(range(len(LEVELS))), (0,), (1, 2)))
    uneven = people._replace(
        file=people.file._replace(**{name: values[few] for name, values in people.file._asdict().items()})
    )
    distance = distance_from(posterior_of(1, 4.0, uneven), 1, monkeypatch)
    assert distance(1e-12) <= 1e-10
    assert distance(EXACT) <= 1e-5
    assert distance(0.1) > 1e-5


def distance_from(dense: Posterior, seed: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], float]:
    """The distance of estimates by products, at a tolerance, from dense ones: the largest, in posterior errors of rows."""
    assert dense.dense
    values = observed(dense, np.random.default_rng(seed))[:, 0]
    right, errors = dense.estimate(values), np.sqrt(dense.variances(dense.rows))
    monkeypatch.setattr(posterior, "MOST_DENSE", 0)
    few = replace(dense)
    assert not few.dense

    def distance(tolerance: float) -> float:
        found = few.prior.spread_out(few.rows, few.solve(values, tolerance))
        return float((np.abs(posterior.row_values(few.rows, (found - right)[..., None])[:, 0]) / errors).max())

    return distance


def test_a_block_of_right_sides_takes_fewer_steps_than_each_of_them() -> None:
    """With 20 eigenvalues far above the others, and sides that differ in size, depend on each other, or are 0."""
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((500, 20)) * np.geomspace(1.0, 30.0, 20)
    matrix = np.diag(rng.uniform(1.0, 2.0, 500)) + factor @ factor.T
    steps = []

    def times(x: Floats) -> Floats:
        steps.append(x.shape[1])
        return np.asarray(matrix @ x)

    sides = rng.standard_normal((500, 18)) * np.geomspace(1e-6, 1e6, 18)
    sides[:, 3], sides[:, 5] = 0.0, sides[:, 6]
    right = np.linalg.solve(matrix, sides)
    found = solved(times, np.diag(matrix), sides)
    assert np.abs(found - right).max(axis=0) == pytest.approx(0.0, abs=1e-8 * np.abs(right).max())
    assert (np.abs(found - right).max(axis=0) <= 1e-8 * np.abs(right).max(axis=0)).all()
    together = len(steps)
    steps.clear()
    solved(times, np.diag(matrix), sides[:, :1])
    assert together < 0.7 * len(steps)


def test_a_search_that_begins_near_the_solution_takes_fewer_steps() -> None:
    """The solution of a system whose sums differ by a thousandth. Control: one that has nothing to do with it."""
    rng, steps = np.random.default_rng(0), list[int]()
    factor = rng.standard_normal((500, 20)) * np.geomspace(1.0, 30.0, 20)
    matrix = np.diag(rng.uniform(1.0, 2.0, 500)) + factor @ factor.T

    def found(right: Floats, start: Floats | None) -> tuple[Floats, int]:
        def times(x: Floats) -> Floats:
            steps.append(x.shape[1])
            return np.asarray(matrix @ x)

        steps.clear()
        return solved(times, np.diag(matrix), right, OF_LAW, start), len(steps)

    before, after, other = (matrix @ rng.standard_normal(500) for _ in range(3))
    after = before + 0.001 * after
    (near, few), (alone, many), (_, more) = (
        found(after, start) for start in (np.linalg.solve(matrix, before), None, other)
    )
    for solution in (near, alone):
        assert np.linalg.norm(matrix @ solution - after) <= 2.0 * OF_LAW * np.linalg.norm(after)
    assert few <= 2 < many / 2
    assert more >= many


def test_a_search_that_begins_at_a_solution_sees_what_one_of_many_sums_has_changed() -> None:
    """The change is below the tolerance of all 100,000 sums. Control: the solution from which the search begins."""
    diagonal, rng = np.ones(100_000), np.random.default_rng(0)
    factor = 0.001 * rng.standard_normal((100_000, 3))
    before = rng.standard_normal(100_000)
    after = before.copy()
    after[7] += 0.6
    assert OF_LAW * np.linalg.norm(before) > 0.6

    def times(x: Floats) -> Floats:
        return np.asarray(x + factor @ (factor.T @ x))

    start = solved(times, diagonal, before)
    found, right = solved(times, diagonal, after, OF_LAW, start), solved(times, diagonal, after)
    assert found[7] == pytest.approx(right[7], abs=0.01)
    assert abs(start[7] - right[7]) > 0.5


def test_a_system_without_a_solution_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conjugate, "MOST_STEPS", 3)
    with pytest.raises(ArithmeticError, match="not solved in 3 steps"):
        solved(lambda x: np.arange(1.0, 101.0)[:, None] * x, np.ones(100), np.ones(100))


@pytest.mark.long
def test_blocks_that_two_workers_share_have_the_bytes_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four blocks of 70 sides are four tasks, whatever is done elsewhere. Control: other blocks are other digits."""
    monkeypatch.setattr(posterior, "MOST_DENSE", 0)
    few, tasks = replace(posterior_of(1, 4.0)), list[object]()
    values = observed(few, np.random.default_rng(1), 70)

    def hear(event: Event) -> None:
        tasks.extend([event.unit["piece"]] if event.kind == "task" else [])

    with single_threaded():
        alone = few.solve(values, OF_DRAWS)
        with (
            executor(Runtime(executor="dask", workers=2), listener=hear) as two,
            pieces_on(two, Workspace(tmp_path)) as pieces,
            using_workers(pieces),
        ):
            assert few.solve(values, OF_DRAWS).tobytes() == alone.tobytes()
        assert sorted(tasks) == [0, 1, 2, 3]
        assert not (tmp_path / "confidential" / FOLDER).exists()
        monkeypatch.setattr(conjugate, "MOST_SIDES", 35)
        assert few.solve(values, OF_DRAWS).tobytes() != alone.tobytes()


def test_variances_and_draws_of_many_sums_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard errors of published rows: 12 % in the mean, where those before the measurement are off by far more.

    A row's standard error from 48 draws errs by 10 %, and less with its neighbours' draws. Draws have single precision, and
    double precision where variances are too large for it.
    """
    dense = posterior_of(2, 4.0)
    right = np.sqrt(dense.variances(dense.rows))
    z = dense.prior.sampled(30, np.random.default_rng(5))
    answers, near = dense.answers(z), 0.02 * np.abs(z).std()
    monkeypatch.setattr(posterior, "MOST_DENSE", 0)
    few = replace(dense)
    found = np.sqrt(few.variances(few.rows))
    assert np.abs(found / right - 1.0).mean() <= 0.12
    assert abs(np.log(found / right).mean()) <= 0.05
    before = np.sqrt(prior_variances(dense.prior, dense.rows))
    assert np.abs(before / right - 1.0).mean() > 0.3
    for most, precision in ((posterior.SINGLE, np.float32), (0.0, np.float64)):
        monkeypatch.setattr(posterior, "SINGLE", most)
        assert few.answers(z).dtype == precision
        assert few.answers(z) == pytest.approx(answers, abs=near)


def test_draws_that_single_precision_cannot_solve_are_solved_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posterior, "MOST_DENSE", 0)
    few = posterior_of(2, 4.0)
    z = few.prior.sampled(3, np.random.default_rng(5))
    single = few.answers(z)

    def of_double(times: Any, diagonal: Floats, right: Floats, tolerance: float, *_: None) -> Floats:
        if right.dtype == np.float32:
            raise ArithmeticError("not solved")
        return solved(times, diagonal, right, tolerance)

    monkeypatch.setattr(posterior, "solved", of_double)
    double = few.answers(z)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert double == pytest.approx(single, abs=0.02 * np.abs(z).std())


@pytest.mark.parametrize("seed", [0, 2])
def test_published_rows_are_operations_that_equal_their_matrix(seed: int) -> None:
    """Sums, transposed sums and lone variances to 1e-9; the control leaves out what means have of counts."""
    system, _ = system_of(population(seed, records=600), 4.0)
    rows, prior, rng = system.figures.target.rows, system.file.prior.drifting(0.02, 0.05), np.random.default_rng(seed)
    matrix = rows.matrix
    z = prior.sampled(3, rng)
    assert np.concatenate(list(rows.of(z))) == pytest.approx(posterior.row_values(matrix, z), rel=1e-9, abs=1e-9)
    signs, weight = rng.choice([-1, 1], (len(rows), 3)).astype(np.int8), rng.random(len(rows))
    onto = [row.T @ (weight[:, None] * signs) for row in matrix]
    for found, right in zip(rows.back(weight, signs), onto, strict=True):
        assert found == pytest.approx(right, rel=1e-9, abs=1e-9 * np.abs(right).max())
    right = posterior.lone_variances(prior, matrix)
    assert rows.lone_variances(prior.lone) == pytest.approx(right, rel=1e-9)
    assert rows.lone_variances(lambda j, k: prior.lone(j, k) * (j == k)) != pytest.approx(right, rel=1e-3)
    outcome = np.diff(matrix[1].indptr) > 0
    assert rows.coordinate.tolist() == outcome.astype(int).tolist()


@pytest.mark.long
def test_draws_of_many_sums_have_the_same_bytes_on_workers(tmp_path: Path) -> None:
    """Draws under other noise come block by block, each from its own seed. Here all sums are measured many times."""
    one, tasks = posterior_of(2, 4.0), list[object]()
    times = posterior.MOST_DENSE // len(one.noise) + 1
    many = Posterior(one.prior, stacked([one.rows] * times), np.tile(one.noise, times))
    assert not many.dense
    noised = posterior.NoiseErrorDraws(len(one.prior.size), laplace=True)

    def drawn() -> list[bytes]:
        return [part.tobytes() for _, part in many.redrawn(noised, 60, np.random.default_rng(3))]

    def hear(event: Event) -> None:
        tasks.extend([event.unit["piece"]] if event.kind == "task" else [])

    with single_threaded():
        alone = drawn()
        with (
            executor(Runtime(executor="dask", workers=2), listener=hear) as two,
            pieces_on(two, Workspace(tmp_path)) as pieces,
            using_workers(pieces),
        ):
            assert drawn() == alone
    assert sorted(tasks) == [0, 1, 2, 3]
    assert len(set(alone)) == 4


@pytest.mark.parametrize("draws", [6, pytest.param(12, marks=pytest.mark.long)])
def test_drift_is_learned_alike_from_some_of_the_sums(draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the 50 sums of 116 in which a drift shows most, against all: 30 % in the mean of draws in 3 populations each.

    Control: what was expected.
    """
    rng, populations = np.random.default_rng(3), [posterior_of(seed, 16.0) for seed in (0, 1, 3)]
    drifts: list[list[float]] = []
    for dense, number in product(populations, range(draws)):
        true = replace(dense, prior=dense.prior.drifting((0.0005, 0.05, 0.12)[number % 3], 0.03))
        values = observed(true, rng)[:, 0]
        found = []
        for most in (10_000, 50):
            monkeypatch.setattr(drift_sizes, "MOST_OF_DRIFT", most)
            found.append(learned(dense.prior, dense.rows, values, dense.noise).prior.drift[-1][OF_CELLS, 0])
        drifts.append(found)
    every, some = np.log(np.array(drifts)).T
    assert np.abs(some - every).mean() <= 0.3
    expected = sum(np.log(size) * share for size, share in drift_sizes.DRIFTS.items())
    assert np.abs(expected - every).mean() > 0.5


@pytest.mark.parametrize("size", [0, 1, 5, 16])
def test_far_noise_is_found_from_any_start(size: int) -> None:
    """Conditions of a minimum: slopes are ±√2 where noise is far. Control: other noise costs more."""
    rng, price = np.random.default_rng(size), np.sqrt(2.0)
    for _ in range(50):
        root = rng.normal(size=(size + 3, size + 1)) * np.r_[rng.choice([1.0, 10.0]), np.ones(size)]
        product, start = root.T @ root, rng.normal(size=size) * rng.integers(0, 2, size)
        cold, warm = np.zeros(size), start.copy()
        least = drift_sizes.huber_loss(product, cold)
        assert drift_sizes.huber_loss(product, warm) == pytest.approx(least, rel=1e-12)
        slope = product[1:, 0] - product[1:, 1:] @ warm
        assert np.abs(slope).max(initial=0.0) <= price * (1.0 + 1e-6)
        assert slope[warm != 0.0] == pytest.approx(price * np.sign(warm[warm != 0.0]))
        assert least == pytest.approx(0.5 * ((root @ np.r_[1.0, -warm]) ** 2).sum() + price * np.abs(warm).sum())
        moved = warm + rng.normal(size=size)
        assert 0.5 * ((root @ np.r_[1.0, -moved]) ** 2).sum() + price * np.abs(moved).sum() > least - (size == 0)


def test_levels_and_cells_of_most_records_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = posterior_of(0, 4.0)
    expected, size, sizes = dense.prior.prediction, dense.prior.size, dense.prior.sizes
    cells = [np.arange(len(size)), np.arange(len(size)) % 3]
    assert ResidualPrior.of(expected, sizes, [], cells).terms.shape[1] == 1 + len(size) + 3
    monkeypatch.setattr(residual_prior, "MOST_TERMS", 10)
    terms = ResidualPrior.of(expected, sizes, [], cells).terms
    held = np.sort(np.concatenate([size, np.bincount(cells[1], weights=size)]))[::-1]
    assert np.sort(terms.T @ size)[::-1][:11] == pytest.approx([size.sum(), *held[:10]])
    assert terms.shape[1] < 20


@pytest.mark.parametrize("seed", range(3))
def test_a_large_family_with_a_diagonal_of_its_own_has_the_same_effects(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions and errors of all cells, of which a third have no reference record, against one dense precision.

    Products with the factors are those of the factors' own covariance. Control: without the family's overlap with others.
    """
    rng = np.random.default_rng(seed)
    codes = np.unique(np.column_stack([rng.integers(0, size, 900) for size in (150, 6, 4)]), axis=0)
    index = random_effects.families([(0, 1), (1, 2)], codes)
    rows = len(codes)
    size, mean = rng.integers(1, 9, 2 * rows // 3).astype(float), rng.normal(0.0, 1.0, 2 * rows // 3)
    variance = np.array([0.3, 0.2, 0.1, 0.05, 0.1, 0.2, 0.02])[: len(index) + 1]
    monkeypatch.setattr(random_effects, "LEAST_OF_TABLES", 10_000)
    dense = random_effects.effects_of(mean, size, index, variance, rows)
    assert not len(dense.loading.lone)
    monkeypatch.setattr(random_effects, "LEAST_OF_TABLES", 10)
    found = random_effects.effects_of(mean, size, index, variance, rows)
    assert len(found.loading.lone) > 100
    for one, other in zip(found, dense, strict=True):
        if isinstance(one, random_effects.Loadings):
            factors, right = (load @ np.eye(load.shape[1]) for load in (one, other))
            np.testing.assert_allclose(factors @ factors.T, right @ right.T, atol=1e-10)
            values, adding = rng.normal(size=(rows, 3)), scipy.sparse.csr_array(rng.integers(0, 2, (5, rows)).astype(float))
            assert one.back(values) == pytest.approx(factors.T @ values)
            assert one.rows(adding) == pytest.approx(adding @ factors)
            assert one.variance == pytest.approx((factors**2).sum(axis=1))
            both = one.plus(other.scaled(np.arange(rows) / rows))
            together = both @ np.eye(both.shape[1])
            weighted = right * (np.arange(rows) / rows)[:, None]
            np.testing.assert_allclose(together @ together.T, factors @ factors.T + weighted @ weighted.T, atol=1e-10)
            apart = replace(one, root=one.root[len(one.lone) :], lone=one.lone[:0], design=one.design[:, len(one.lone) :])
            less = apart @ np.eye(apart.shape[1])
            assert np.abs(less @ less.T - right @ right.T).max() > 1e-3
        else:
            assert one == pytest.approx(other, abs=1e-10)


def test_a_fit_of_many_levels_is_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    design = main_effects.one_hot(np.column_stack([rng.integers(0, size, 2_000) for size in (200, 30, 2)]), (200, 30, 2))
    size, total = rng.integers(1, 20, 2_000).astype(float), rng.gamma(0.5, 100.0, 2_000)
    dense = main_effects.log_linear(design, size, total)
    monkeypatch.setattr(main_effects, "MOST_LEVELS", 10)
    assert main_effects.log_linear(design, size, total) == pytest.approx(dense, abs=1e-7)


def test_families_of_effects_are_bounded_in_large_files() -> None:
    """300,000 cells: all columns, the coarsest tables, and one family beyond the bound. Few cells have all of them."""
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, size, 300_000) for size in (3_000, 20, 9, 2)])
    tables = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    sizes = [int(index.max()) + 1 for index in random_effects.families(tables, codes)]
    assert sizes == [2, 9, 20, 3_000, 18, 180]
    assert len(random_effects.families(tables, codes[:500])) == 10


@pytest.mark.parametrize("whole", [False, True])
def test_limits_are_computed_for_some_cells_at_a_time(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 1, 3 and all cells have the same limits, to the last digit."""
    told = population(2)
    system, _ = system_of(told, 1.0)
    file = system.file
    expected = replace(file.prediction, adds_weight=whole)

    def chosen(at_once: int) -> list[Floats]:
        monkeypatch.setattr(residual_samples, "AT_ONCE", at_once)
        law = TableLaw(file.tables[0][1], file.placed[0], file.count, expected, file.highest, file.lowest)
        one = law.limits(40.0)
        return [one.centre, one.weight, one.outcome, one.loss, one.beyond]

    every = chosen(256)
    for at_once in (1, 3):
        assert all((part == right).all() for part, right in zip(chosen(at_once), every, strict=True))


def test_moments_of_what_limits_clip_are_those_of_its_definition() -> None:
    """Variances of what is clipped and kept, from residuals themselves, for public and secret numbers of records."""
    rng = np.random.default_rng(0)
    seen, places = table_law.OWN + table_law.POOLED, table_law.OWN + table_law.POOLED + 15
    sample, share = rng.standard_t(3, (7, places, 2)), rng.dirichlet(np.ones(places), 7)
    scale, number, records = rng.uniform(0.5, 2.0, (7, 2)), rng.uniform(1.0, 50.0, 7), np.full(7, 40.0)
    for whole in (False, True):
        centre = rng.normal(0.0, 1.0, 7) * (1.0 - whole)
        sample[..., 0] = np.abs(sample[..., 0]) if whole else sample[..., 0]
        of_limits = table_law.ClippedResiduals.of(sample, share, centre, number, records, whole)
        ratios = of_limits.ratios(scale)
        clipped, kept = of_limits.variances(scale, clipped_residuals.ClippedShare.at(of_limits.norm(ratios)))
        moved = sample - np.stack([centre, np.zeros(7)], axis=1)[:, None]
        sizes = np.abs(moved) / scale[:, None]
        norm = sizes.max(axis=2) if whole else sizes.sum(axis=2)
        lost = moved * (1.0 - 1.0 / np.maximum(norm, 1.0))[..., None]
        some, mean = share[:, :seen, None], (share[:, :seen, None] * lost[:, :seen]).sum(axis=1)
        if whole:
            weight = (some[..., 0] * sample[:, :seen, 0]).sum(axis=1)
            uncertain = (some * (lost[:, :seen] - (mean / weight[:, None])[:, None] * sample[:, :seen, :1]) ** 2).sum(
                axis=1
            )
        else:
            uncertain = (some * lost[:, :seen] ** 2).sum(axis=1) - mean**2
        ahead = (share[:, seen:, None] * lost[:, seen:] ** 2).sum(axis=1)
        right = uncertain * (number + number**2 / records)[:, None] + ahead * number[:, None]
        assert clipped == pytest.approx(right, rel=1e-9)
        assert kept == pytest.approx((share[..., None] * (sample - lost) ** 2).sum(axis=1) * number[:, None], rel=1e-9)


def test_one_centre_besides_0_is_nearly_as_good_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Risks of cells under little noise: 5 % above in the mean, and less than those of 0 alone."""
    told = population(3, spread=1.2)
    file = system_of(told, 4.0)[0].file
    law = TableLaw(file.tables[0][1], file.placed[0], file.count, file.prediction, file.highest, file.lowest)
    risks = []
    best = table_law._best

    def judged(
        about: list[table_law.ClippedResiduals], noise: float, direct: Floats, ends: Floats, one_more: bool, unknown: Floats
    ) -> object:
        for few, one in ((about, False), (about, True), (about[:1], False)):
            centre, scale = best(few, noise, direct, ends, one, unknown)
            which = np.argmin([np.abs(part.centre - centre) for part in about], axis=0)
            chosen = table_law.ClippedResiduals.chosen(about, which)
            assert (chosen.centre == centre).all()
            risks.append(chosen.risk(chosen.ratios(scale), scale, noise, direct, unknown))
        return best(about, noise, direct, ends, one_more, unknown)

    monkeypatch.setattr(table_law, "_best", judged)
    law.limits(0.1)
    every, one_more, alone = risks
    assert (one_more / every).mean() <= 1.05
    assert (one_more <= alone).all()
    assert (alone / every).mean() > (one_more / every).mean() > 0.999


@pytest.mark.parametrize("references", [30, pytest.param(60, marks=pytest.mark.long)])
def test_a_level_of_few_records_errs_by_what_they_leave(references: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 levels of 5 to 600 records, over references: squared relative errors of predicted weights are those that are
    stated, to 40 %, in the rare half and in the other. Control: without the law of levels, the rare half errs by more than
    twice the stated squares.
    """
    size, rng = np.geomspace(5, 600, 12).astype(int), np.random.default_rng(0)
    codes = np.column_stack([np.repeat(np.arange(12), size), rng.integers(0, 3, size.sum())])
    cells = np.array([(a, b) for a in range(12) for b in range(3)])
    effect = rng.normal(0.0, 0.5, 12)

    def ratios(references: int) -> Floats:
        found = []
        for seed in range(references):
            draw = np.random.default_rng(seed)
            weight = 50.0 * np.exp(effect[codes[:, 0]]) * draw.gamma(4.0, 0.25, len(codes))
            sample = learned_prediction.ReferenceSample(codes, weight, np.zeros((len(codes), 1)))
            told = learned_prediction.predict(sample, cells, (12, 3), [(0, 1)], np.zeros(2), np.array([1e4, 1.0]))
            error = (told.means[:, 0] / (50.0 * np.exp(effect[cells[:, 0]])) - 1.0) ** 2
            stated = (told.spread[:, 0] / told.means[:, 0]) ** 2 * (told.loadings[0].variance + told.alone[:, 0] ** 2)
            found.append([error, stated])
        squares = np.array(found).mean(axis=0).reshape(2, 2, 18).mean(axis=2)
        return np.asarray(squares[0] / squares[1])

    assert ratios(references) == pytest.approx(np.ones(2), abs=0.4)
    monkeypatch.setattr(learned_prediction, "RIDGE", 1e4)
    assert ratios(references // 3)[0] > 2.0


def test_a_covariance_that_rounding_makes_singular_has_a_root() -> None:
    """Sums that are equal, as rounding may leave them. Control: NumPy finds none."""
    covariance = np.ones((3, 3)) - 1e-14 * np.eye(3)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(covariance)
    root = root_of(covariance)
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-9)


def test_errors_of_numbers_of_records_do_not_rise_with_the_records_spread() -> None:
    """Where records spread three times as far. Control: errors of the prediction do."""
    prior = system_of(population(0), 4.0)[0].file.prior
    cells = len(prior.size)
    changed = Loadings(scipy.sparse.eye_array(cells).tocsr(), np.zeros(0), np.eye(cells), np.ones(cells))

    def of_weights(prior: ResidualPrior) -> Floats:
        return np.asarray(prior.shared[0] @ prior.shared[0].back(np.eye(cells)))

    def raised(prior: ResidualPrior) -> ResidualPrior:
        return prior.spreading(3.0 * prior.spread)

    np.testing.assert_allclose(of_weights(raised(prior)), 9.0 * of_weights(prior))
    for of in (raised, lambda prior: prior):
        both, alone = of_weights(of(replace(prior, changed=changed))), of_weights(of(replace(prior, changed=None)))
        np.testing.assert_allclose(both - alone, np.eye(cells), atol=1e-9 * alone.max())
    np.testing.assert_allclose(raised(prior).alone[1].toarray(), 3.0 * prior.alone[1].toarray())
