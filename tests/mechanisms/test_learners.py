"""Learners of the public model of `tables`: gains of trees where columns interact, their residuals and errors, releases."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import table_populations
from table_populations import Population, Public, base_cells, model_of, release, tables_of
from test_keys_of_tables import MEASURED, job, people
from threadpoolctl import threadpool_limits

import dpdist
from dpdist.core.errors import JobError
from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables import drift_sizes, learners
from dpdist.mechanisms.tables.learned_prediction import deviances, learners_of, predict
from dpdist.mechanisms.tables.learners import MAIN_EFFECTS, TREES, Fitted, Learner
from dpdist.mechanisms.tables.main_effects import ReferenceCells, ReferenceSample
from dpdist.mechanisms.tables.random_effects import RandomEffects
from dpdist.opening.verifying import remade

SIZES = (8, 8, 6)
INTERACTING: dict[str, Any] = {"weights": "narrow", "kinds": ["rounded"], "sizes": SIZES, "number": 2, "sparse": False}


@dataclass(frozen=True, eq=False)
class Interacting(Population):
    """Weights and outcomes are three times as large where all columns have one of their first levels."""

    factor: float = 3.0

    def values(self, codes: Ints, noise: Floats) -> tuple[Floats, Floats]:
        weight, outcomes = super().values(codes, noise)
        inside = (2 * codes < np.array(SIZES)).all(axis=-1)
        scale = np.where(inside, self.factor, 1.0)
        return weight * scale, np.minimum(outcomes * scale[..., None], 30_000.0)


def interacting(seed: int, factor: float = 3.0, records: int = 1_500) -> Population:
    case = INTERACTING | {"records": (records, records), "drift": "none"}
    return replace(Interacting.of(seed, **case), factor=factor)


def ends(public: Public) -> tuple[Floats, Floats]:
    low, high = (np.array(one) for one in zip(public.weights, *public.bounds, strict=True))
    return low, high


@cache
def of_halves(learner: Learner, seed: int, factor: float) -> Floats:
    """Cross-fitted deviances of weights and outcomes in an interacting population's reference."""
    public, sample = (population := interacting(seed, factor)).public, population.files().reference
    number = 1 + sample.outcomes.shape[1]
    return deviances([learner] * number, ReferenceSample(*sample), public.sizes, public.tables, *ends(public), False)


def test_trees_have_less_deviance_where_columns_interact() -> None:
    """Of weights in a population: at most .95 of that of effects. Control: no less than .97 without an interaction."""

    def ratio(seed: int, factor: float) -> float:
        of_trees, of_effects = (of_halves(one, seed, factor)[0] for one in (TREES, MAIN_EFFECTS))
        return float(of_trees / of_effects)

    assert ratio(0, 3.0) <= 0.95
    assert ratio(0, 1.0) >= 0.97


def test_the_best_learner_of_each_column_is_that_of_the_least_deviance() -> None:
    population = interacting(0)
    public, sample = population.public, ReferenceSample(*population.files().reference)
    shared = sample, public.sizes, public.tables, *ends(public), False
    found, best = np.array([of_halves(one, 0, 3.0) for one in (MAIN_EFFECTS, TREES)]), learners_of("best", *shared)
    assert best == [(MAIN_EFFECTS, TREES)[k] for k in found.argmin(axis=0)]
    assert best[0] == TREES
    assert learners_of("effects", *shared) == [MAIN_EFFECTS, MAIN_EFFECTS]


@pytest.mark.parametrize("records", [2, 3, 4, 30])
def test_a_small_reference_has_a_prediction(records: int) -> None:
    """Also of a column of 400 levels, and of outcomes that are all 0."""
    rng = np.random.default_rng(records)
    codes = np.column_stack([rng.integers(0, size, records) for size in (400, 2)])
    sample = ReferenceSample(codes, rng.gamma(2.0, 1.0, records), np.zeros((records, 1)))
    shared = (400, 2), [(0, 1)], np.zeros(2), np.array([100.0, 1.0])
    for chosen in (learners_of("trees", sample, *shared, False), learners_of("best", sample, *shared, False)):
        found = predict(sample, np.unique(codes, axis=0), *shared, None, chosen)
        assert np.isfinite(found.means).all()
        assert np.isfinite(found.spread).all()


def fitted(learner: Learner, weight: Floats, codes: Ints, number: int | None, monkeypatch: pytest.MonkeyPatch) -> Fitted:
    """The learner's fit of mean weights, with this number of trees."""
    cells = ReferenceCells.of(ReferenceSample(codes, weight, weight[:, None]), codes, SIZES, [(0, 1)])
    fold = np.arange(len(codes)) % learner.folds
    with monkeypatch.context() as patch:
        if number is not None:
            patch.setattr(learners, "np", SimpleNamespace(**{**vars(np), "argmin": lambda losses: number}))
        return learner.fit(cells, np.ones(len(codes)), weight, fold)


def test_a_fold_is_predicted_by_other_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its own weights are. Control: the mean of all fits follows them."""
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, size, 1_000) for size in SIZES])
    weight = np.exp(rng.standard_normal(1_000))
    others = np.where(np.arange(1_000) % TREES.folds == 2, 50.0 * weight[::-1], weight)
    one, other = (fitted(TREES, each, codes, 30, monkeypatch) for each in (weight, others))
    assert np.array_equal(one.of_others[2], other.of_others[2])
    assert one.crossed
    assert not np.array_equal(one.of_others[3], other.of_others[3])
    assert not np.allclose(one.means, other.means, rtol=0.01)


def test_weights_that_no_column_predicts_have_few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the choice, trees move main effects by three times as much or more."""
    rng = np.random.default_rng(1)
    codes = np.column_stack([rng.integers(0, size, 2_000) for size in SIZES])
    weight = np.exp(rng.standard_normal(2_000))
    of_effects = fitted(MAIN_EFFECTS, weight, codes, None, monkeypatch).means
    chosen, every = (np.std(np.log(fitted(TREES, weight, codes, k, monkeypatch).means / of_effects)) for k in (None, 100))
    assert 3.0 * chosen <= every


def test_trees_are_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = interacting(0).files().reference
    with threadpool_limits(2):
        two = fitted(TREES, sample.weight, sample.codes, None, monkeypatch)
    one = fitted(TREES, sample.weight, sample.codes, None, monkeypatch)
    assert np.array_equal(one.of_others, two.of_others)


def covered(learner: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Floats, Floats]:
    """Shares of the population's counts and means in 90 % intervals at ε = .5, of 6 populations, and median errors."""
    held, errors = [], []
    monkeypatch.setattr(table_populations, "model_of", lambda *rest: replace(model_of(*rest), learner=learner))
    for seed in range(6):
        population = interacting(seed)
        files = population.files(seed)
        codes, base = base_cells(files.current.codes)
        truth = population.expected(codes) * np.bincount(base)[:, None]
        one = release(population.public, files, 0.5, seed)
        compared = [one.comparison(by, truth) for by in tables_of(population.public)]
        held += [each.covered() for each in compared]
        errors += [each.off() for each in compared]
    return np.concatenate(held).mean(axis=0), np.nanmedian(np.concatenate(errors), axis=0)


@pytest.mark.long
def test_intervals_of_trees_cover_and_counts_err_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """90 % intervals cover from .84 to .97 of 368 counts and of means, where .84 has a false-alarm rate below .001 if cells
    are independent; and counts err by at most .95 times as much as those of effects. Control: if what fits to other folds
    follow were no error, and drift did not make room for it, counts would have less than .84.
    """
    (held, errors), (_, of_effects) = covered("trees", monkeypatch), covered("effects", monkeypatch)
    assert (held >= 0.84).all(), held
    assert (held <= 0.97).all(), held
    assert errors[0] <= 0.95 * of_effects[0]
    for law in ("DRIFTS", "LEVEL_DRIFTS", "COMMON_DRIFTS"):
        monkeypatch.setattr(drift_sizes, law, {0.0005: 1.0})
    assert (covered("trees", monkeypatch)[0] >= [0.84, 0.81]).all()
    monkeypatch.setattr(RandomEffects, "erring", lambda self, *rest: self)
    assert covered("trees", monkeypatch)[0][0] < 0.84


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with trees, and one that continues from it."""
    folder = tmp_path_factory.mktemp("trees")
    first = job(folder, MEASURED, 0.4, mechanism={"name": "tables", "prediction": "trees"})
    dpdist.run(first, folder / "first")
    people(3, 0.4).to_parquet(folder / "next.parquet")
    rows = {"input": {"path": str(folder / "next.parquet")}, "period": "2"}
    chained = {"reference": {"release": str(folder / "first" / "public")}, "mechanism": first.public["mechanism"]}
    dpdist.run(job(folder, MEASURED, 0.4, **rows, **chained), folder / "second")
    return folder


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_release_needs_no_library_that_grew_its_trees(
    made: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published again with the same bytes. Control: other predictions of trees give other files, or none."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    shutil.copytree(made / name, tmp_path / "again")
    stated = (tmp_path / "again" / "public" / "manifest.json").read_bytes()
    dpdist.publish(tmp_path / "again")
    assert (tmp_path / "again" / "public" / "manifest.json").read_bytes() == stated
    assert not remade(tmp_path / "again" / "public").faults
    path = tmp_path / "again" / "public" / "released" / "set-1.json"
    text = json.loads(path.read_text())
    trees = np.array(text["strata"]["all"]["trees"])
    for others in (1.3 * trees, trees[..., 1:]):
        text["strata"]["all"]["trees"] = others.tolist()
        path.write_text(json.dumps(text))
        assert remade(tmp_path / "again" / "public").faults


def test_a_job_names_the_extra_that_grows_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: effects need none."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in ("trees", "best"):
        with pytest.raises(JobError, match=r"sklearn.*\n.*\n.*dpdist\[trees\]"):
            dpdist.validate(job(tmp_path, MEASURED, 0.4, mechanism={"name": "tables", "prediction": name}))
    dpdist.validate(job(tmp_path, MEASURED, 0.4))


@pytest.mark.parametrize("reference", [None, {"histogram": {"epsilon": "100"}}])
def test_trees_without_records_are_refused(tmp_path: Path, reference: Any) -> None:
    with pytest.raises(JobError, match=r"mechanism\.prediction.*learns from the records of a reference"):
        job(tmp_path, MEASURED, 0.4, mechanism={"name": "tables", "prediction": "best"}, reference=reference)


def test_a_learner_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"mechanism\.prediction"):
        job(tmp_path, MEASURED, 0.4, mechanism={"name": "tables", "prediction": "forest"})


def test_predicted_means_do_not_depend_on_the_unit_of_weights() -> None:
    """Levels of few records, most without a yes. A ridge in units of weight moved their predictions by factors of 100."""
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, 40, 600), rng.integers(0, 4, 600)]).astype(np.int32)
    weight, yes = np.exp(rng.normal(4.0, 0.3, 600)), (rng.random((600, 1)) < 0.04).astype(float)
    cells = np.unique(codes, axis=0).astype(np.int64)
    bounds = np.array([0.0, 0.0]), np.array([1e9, 1.0])

    def predicted(unit: float) -> Floats:
        return predict(ReferenceSample(codes, unit * weight, yes), cells, (40, 4), [(0,), (0, 1)], *bounds).means[:, 1]

    usual = predicted(1.0)
    for unit in (1e-3, 1e3):
        np.testing.assert_allclose(predicted(unit), usual, rtol=1e-2, atol=1e-5)
