"""Counts over a partition: layers that agree, what a record moves scores by, what is selected ([S]; METHODS §9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of
from test_clamped import KEY

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import DataError, JobError
from dpdist.core.records import UNIT, Floats
from dpdist.estimation.least_squares import nearest_on_simplex, nearest_on_simplices
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.partitions.post import PartitionCounts, Tree, consistent, ordered, selected_tree
from dpdist.mechanisms.partitions.query import CellCounts, aic, scores
from dpdist.studies.kinds import one_stratum
from dpdist.studies.kinds.one_stratum import model_of

JOB = """
dataset: votes
withhold_above: null
publish: always
period: "2020"
columns:
  voted: {{bounds: [0, 1], codes: {{"no": 0, "yes": 1}}}}
  race: {{bounds: [0, 2], whole: true, outside: clip}}
  age: {{bounds: [18, {oldest}], whole: true, outside: clip}}
  pay: {{bounds: [0, 100], outside: clip}}
  weight: {{bounds: [1, 50], outside: clip}}
survey: {{{survey}}}
outcome: {outcome}
mechanism: {{{said}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: {sets}
tables:
  - {{name: one, by: [], statistics: [count, {{mean: {first}}}]}}
"""
ALL, CODED = "[voted, race, age, pay]", "[voted, race, age]"
BINS = ", bins: {pay: 5}"
FLAT, UNIVERSAL = "name: flat_laplace", "name: universal_histogram, layers: 3, order_seed: 4"
ORDERED, SELECTED = "name: steps, order: [voted, race]", "name: steps, layers: 3"


def text(said: str = SELECTED, **other: object) -> str:
    plain = {"survey": "weight: weight", "outcome": CODED, "epsilon": "1", "adjacency": "zero_out", "sets": 1, "oldest": 20}
    both = plain | other
    first = str(both["outcome"]).strip("[]").split(",")[0]
    return JOB.format(said=said, first=first, **both)


def job(said: str = SELECTED, **other: object) -> Job:
    return parse_job(text(said, **other))


def records(outcomes: Any, weight: Any) -> Records:
    return Records.of_outcomes(np.asarray(outcomes, float).reshape(len(weight), -1), np.asarray(weight, float))


# Layers that agree


def trees() -> list[Tree]:
    """Unequal numbers of children, and branches that other attributes split."""
    selected = (np.array([1]), np.array([0, 2, 2]))
    return [
        ordered([], [6]),
        ordered([[2], [0]], [2, 3, 4]),
        ordered([[0, 1]], [2, 3, 4]),
        selected_tree(selected, [2, 3, 4]),
    ]


@pytest.mark.parametrize("tree", trees())
@pytest.mark.parametrize("known", [True, False])
def test_counts_that_agree_are_the_least_squares_ones(tree: Tree, known: bool) -> None:
    """Against a dense fit of all noisy counts, the known root with an enormous weight. Control: cells as noised."""
    rng = np.random.default_rng(1)
    noisy, root = [rng.normal(5.0, 3.0, size) for size in tree.sizes], 70.0
    found = consistent(tree, noisy, root, known, None)
    design = np.concatenate([np.eye(size)[layer].T for layer, size in zip(tree.nodes, tree.sizes, strict=True)])
    heavy = 1e6 if known else 1.0
    design, values = np.vstack([design, np.full(len(found), heavy)]), np.concatenate([*noisy, [heavy * root]])
    assert found == pytest.approx(np.linalg.lstsq(design, values)[0], abs=1e-6)
    assert np.abs(found - noisy[-1]).max() > 0.1
    assert not known or found.sum() == pytest.approx(root, rel=1e-12)


@pytest.mark.parametrize("tree", trees())
def test_counts_that_agree_and_are_not_negative_sum_to_their_parents(tree: Tree) -> None:
    rng = np.random.default_rng(2)
    found = consistent(tree, [rng.normal(1.0, 4.0, size) for size in tree.sizes], 30.0, True, (30.0, 30.0))
    assert (found >= 0).all()
    assert (found == 0).any()
    layers = tree.sums(found)
    for parent, above, below in zip(tree.parents()[1:], layers, layers[1:], strict=False):
        assert np.bincount(parent, weights=below) == pytest.approx(above, abs=1e-9)
    assert layers[0].sum() == pytest.approx(30.0)


def of_the_paper(noisy: list[Floats], b: int) -> list[Floats]:
    """Eq. (2) and (3) of [S] on a tree with b children a node, layers from the root on."""
    layers, z = len(noisy), [noisy[-1]]
    for height in range(2, layers + 1):
        whole, sums = b**height - 1, z[-1].reshape(-1, b).sum(axis=1)
        own, below = (b**height - b ** (height - 1)) / whole, (b ** (height - 1) - 1) / whole
        z.append(own * noisy[layers - height] + below * sums)
    found = [z[-1]]
    for each in z[-2::-1]:
        lacking = found[-1] - each.reshape(-1, b).sum(axis=1)
        found.append(each + np.repeat(lacking / b, b))
    return found


def test_equal_branches_have_the_paper_s_counts() -> None:
    """Height counted from the leaves, as in Hay et al."""
    rng = np.random.default_rng(3)
    noisy = [rng.normal(10.0, 3.0, 3**k) for k in range(4)]
    tree = ordered([[0], [1]], [3, 3, 3])
    assert consistent(tree, noisy[1:], float(noisy[0][0]), False, None) == pytest.approx(of_the_paper(noisy, 3)[-1])


def test_phantom_categories_that_stay_at_0_leave_the_paper_s_counts_in_disagreement() -> None:
    """Two real children of three: eq. (3) gives each a third of what is missing. Ours give all of it."""
    noisy = [np.array([100.0]), np.array([40.0, 50.0, 0.0])]
    root, children = of_the_paper(noisy, 3)
    children[2] = 0.0
    assert abs(children.sum() - root[0]) > 1.0
    ours = consistent(ordered([], [2]), [noisy[1][:2]], 100.0, True, None)
    assert ours == pytest.approx([45.0, 55.0])


def test_groups_are_projected_as_each_alone() -> None:
    rng = np.random.default_rng(4)
    values, group, total = rng.normal(0.0, 2.0, 60), np.sort(rng.integers(0, 6, 60)), rng.uniform(0.0, 5.0, 6)
    total[2] = 0.0
    found = nearest_on_simplices(values, group, total)
    for each in range(6):
        own = group == each
        assert found[own] == pytest.approx(nearest_on_simplex(values[own], total[each]), abs=1e-12)
        assert found[own].sum() == pytest.approx(total[each], abs=1e-9)


# What a record moves


def neighbours(rng: np.random.Generator, number: int, levels: int) -> tuple[Floats, Floats]:
    """Counts by level and what one record adds: of weight up to 1, mostly in small files."""
    counts = np.where(rng.random((number, levels)) < 0.4, 0.0, rng.gamma(0.5, 6.0, (number, levels)))
    added = np.zeros_like(counts)
    added[np.arange(number), rng.integers(0, levels, number)] = np.where(rng.random(number) < 0.5, 1.0, rng.random(number))
    return counts, added


@pytest.mark.parametrize("levels", [2, 3, 14])
def test_a_record_raises_aic_by_0_to_2(levels: int) -> None:
    counts, added = neighbours(np.random.default_rng(5), 20_000, levels)
    rise = aic(counts + added) - aic(counts)
    assert rise.min() >= -1e-9
    assert rise.max() <= 2.0 + 1e-9
    crowd = np.zeros((2, levels))
    crowd[:, 0], crowd[1, 1] = 1e6, 1.0
    assert np.diff(aic(crowd))[0] > 1.99


# Rounds and what follows


def survey(n: int = 2000, seed: int = 1) -> Records:
    rng = np.random.default_rng(seed)
    race = rng.choice(3, n, p=[0.7, 0.2, 0.1])
    voted = rng.random(n) < 0.3 + 0.2 * race
    return records(np.column_stack([voted, race, rng.integers(18, 21, n)]), np.clip(rng.gamma(2.0, 8.0, n), 1, 50))


def released(said: Job, file: Records) -> tuple[PartitionCounts, Any]:
    model = model_of(said, len(file))
    return model, one_stratum.released(said, model, file, KEY)


@pytest.mark.parametrize("said", [FLAT, UNIVERSAL, ORDERED, SELECTED])
@pytest.mark.parametrize("weight", ["weight: weight", ""])
def test_with_little_noise_shares_and_weights_are_the_survey_s(said: str, weight: str) -> None:
    file = survey()
    model, (theta,) = released(job(said, epsilon="1000", survey=weight), file)
    w = file.weight if weight else np.ones(len(file))
    assert theta["weight"][0] == pytest.approx(w.mean(), rel=0.01)
    for k, own in enumerate(file.outcomes.T):
        assert model.expect(theta, k)[1][0, 0] == pytest.approx((w * own).mean(), rel=0.01)
        assert model.until(theta, np.zeros(1, int), np.array([1.0]), k)[0, 0] == pytest.approx(
            (w * (own <= 1)).sum() / w.sum(), abs=0.01
        )
    recalled = model.recall(json.loads(json.dumps(model.describe(theta))))
    assert all((recalled[name] == theta[name]).all() for name in theta.values)


def test_selection_prefers_the_least_aic_and_no_attribute_splits_a_branch_twice() -> None:
    file = survey()
    model, (theta,) = released(job(epsilon="5000"), file)
    first, second = model._selected(theta)
    cells = CellCounts(model).sums(file)[1:]
    assert first[0] == scores(cells, (), model.shape)[0].argmin()
    assert (second != first[0]).all()
    best = scores(cells, (first,), model.shape)
    assert np.isinf(best[:, first[0]]).all()
    assert (second == best.argmin(axis=1)).all()


def test_the_order_of_outcomes_in_the_job_decides_nothing() -> None:
    """Named layers have the same counts in whatever order the job names outcomes; the paper claims it of its tree."""
    file = survey(300)
    swapped = records(file.outcomes[:, [2, 0, 1]], file.weight)
    one, other = job(ORDERED), job(ORDERED, outcome="[age, voted, race]")
    sums = [
        model.layered(model.tree(), CellCounts(model).sums(own))
        for model, own in ((model_of(one, 300), file), (model_of(other, 300), swapped))
    ]
    sizes = [1, *model_of(one, 40).tree().sizes]
    for a, b in zip(*(np.split(each, np.cumsum(sizes)[:-1]) for each in sums), strict=True):
        assert sorted(a) == sorted(b)


def test_values_of_a_bin_lie_within_it_and_cover_it() -> None:
    said = job(FLAT + BINS, outcome="pay", survey="")
    file = records(np.full(1000, 50.0), np.ones(1000))
    model = model_of(said, 1000)
    theta = model.recall({"selected": [], "sums": [0, 0, 1000 * UNIT, 0, 0]})
    y, w = model.simulate(theta, np.zeros(1000, np.int32), np.random.default_rng(1))
    assert (CellCounts(model).sums(file) == np.array([0, 0, 1000 * UNIT, 0, 0])).all()
    assert (w == 1.0).all()
    assert 40.0 <= y.min() < 42.0
    assert 58.0 < y.max() <= 60.0


# From the file to the tables


def release(folder: Path, said: str, rows: pd.DataFrame, epsilon: str = "4", **other: Any) -> Path:
    rows.to_parquet(folder / "file.parquet")
    made = parse_job(text(said, outcome=ALL, epsilon=epsilon, **other) + "public_frame: {accepted: simulated records}\n")
    dpdist.run(made, folder / "ws", input=folder / "file.parquet")
    return folder / "ws" / "public"


def people(n: int = 1500, seed: int = 2) -> pd.DataFrame:
    file, rng = survey(n, seed), np.random.default_rng(seed)
    voted, race, age = file.outcomes.T
    answers = {"voted": np.where(voted > 0, "yes", "no"), "race": race.astype(int), "age": age.astype(int)}
    return pd.DataFrame(answers | {"pay": rng.gamma(3.0, 10.0, n).clip(0, 100), "weight": file.weight})


@pytest.mark.parametrize("said", [FLAT, UNIVERSAL, ORDERED, SELECTED])
def test_a_release_has_microdata_of_all_outcomes_that_agree_with_its_table(said: str, tmp_path: Path) -> None:
    rows = people()
    folder = release(tmp_path, said + BINS, rows)
    table = pd.read_parquet(folder / "tables" / "one.parquet").set_index(["statistic", "estimator"])
    direct = np.average(rows.voted == "yes", weights=rows.weight)
    for estimator in ("parameters", "records"):
        assert table.estimate["count", estimator] == pytest.approx(rows.weight.sum(), rel=0.02)
        assert abs(table.estimate["mean", estimator] - direct) < 4 * table.standard_error["mean", estimator]
    made = pd.read_parquet(folder / "synthetic" / "set-1.parquet")
    assert len(made) == len(rows)
    assert set(made.race) <= {0.0, 1.0, 2.0}
    assert made.pay.between(0, 100).all()
    assert made.weight.sum() == pytest.approx(table.estimate["count", "records"])
    measured = pd.read_parquet(folder / "measurements.parquet")
    assert (measured.statistic == "1 - v").sum() == 1
    assert measured.sensitivity.unique() == pytest.approx([1.0])
    layers = {FLAT: 1, UNIVERSAL: 3, ORDERED: 3, SELECTED: 3}[said]
    assert measured.scale.unique() == pytest.approx([layers / (4 * (0.9 if said == SELECTED else 1.0))])
    told = statement_of(folder)
    assert told["guarantee"] == "strict"
    assert any("selected node by node" in each for each in told["assumptions"]) == (said == SELECTED)


def test_a_file_of_one_record_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a single record"):
        release(tmp_path, SELECTED + BINS, people(1), "1")


@pytest.mark.parametrize("case", ["two records", "constant", "heavy"])
def test_odd_files_have_a_release(tmp_path: Path, case: str) -> None:
    rows = people(2 if case == "two records" else 60)
    rows = rows.assign(voted="yes", race=2, age=18, pay=7.0) if case == "constant" else rows
    rows = rows.assign(weight=1e6) if case == "heavy" else rows
    table = pd.read_parquet(release(tmp_path, SELECTED + BINS, rows, "1") / "tables" / "one.parquet")
    assert np.isfinite(table.estimate).all()
    assert table[table.statistic == "mean"].estimate.between(0, 1.0 + 1e-9).all()
    assert table[table.statistic == "count"].estimate.max() <= 50.0 * len(rows) * (1.0 + 1e-9)


def test_ten_thousand_levels_are_no_trouble() -> None:
    said = job(FLAT, outcome="age", oldest=10_017, survey="")
    model, (theta,) = released(said, records(np.full(300, 5000.0), np.ones(300)))
    assert model.cells == 10_000
    assert model.expect(theta)[0] == pytest.approx(1.0)
    assert np.isfinite(model.expect(theta)[1]).all()


# Jobs that are refused


def test_codes_with_a_gap_are_refused_for_a_level_would_be_made_up() -> None:
    """Control: the same codes without a gap."""
    job(FLAT)
    with pytest.raises(JobError, match="no text is coded 1, but 'flat_laplace' has a level at every whole number"):
        parse_job(text(FLAT).replace('bounds: [0, 1], codes: {"no": 0, "yes": 1}', "bounds: [0, 2], codes: {a: 0, b: 2}"))


@pytest.mark.parametrize(
    ("said", "other", "told"),
    [
        ("name: steps", {}, "order or layers"),
        ("name: steps, order: [voted], layers: 2", {}, "order or layers"),
        ("name: steps, order: [sex]", {}, "'sex' is not an outcome"),
        ("name: steps, order: [voted, voted]", {}, "'voted' is named twice"),
        ("name: steps, order: [[voted, race, age]]", {}, "use flat_laplace"),
        ("name: steps, layers: 1", {}, "1 layers of 3"),
        ("name: steps, layers: 4", {}, "4 layers of 3"),
        ('name: steps, layers: 2, selection: "1"', {}, "nothing is left for counts"),
        ('name: steps, order: [voted], selection: "1/2"', {}, "nothing is selected"),
        ("name: universal_histogram, layers: 1", {}, "1 layers of 3"),
        (FLAT, {"outcome": "[voted, pay]"}, "'pay' has none"),
        (FLAT + ", bins: {pay: 3}", {}, "'pay' is not an outcome"),
        (FLAT, {"oldest": 500_000}, "combinations, each with a noisy count"),
        (FLAT, {"oldest": 20.5}, "write whole bounds"),
        (FLAT, {"adjacency": "add_remove"}, "add_remove"),
        ("name: steps, layers: 2", {"epsilon": "1.5e-6"}, "an ε below 1e-6"),
        ("name: flat_laplace, layers: 2", {}, "layers"),
    ],
)
def test_a_job_that_cannot_be_promised_is_refused_with_its_reason(said: str, other: dict[str, Any], told: str) -> None:
    with pytest.raises(JobError, match=told):
        job(said, **other)
