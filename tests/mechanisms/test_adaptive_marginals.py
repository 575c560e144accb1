"""Adaptive choice of weighted marginals: what its rounds cost on any path, what they choose, and how repeats combine."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from coded_survey import KEY, quiet, records, released, survey
from test_weighted_marginals import job, text

from dpdist.core.errors import JobError
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Noise, noise_of
from dpdist.job import Adjacency
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.fitting import averaged_tables
from dpdist.mechanisms.marginals.post import Marginals
from dpdist.mechanisms.marginals.sensitivity import CHOICE_OF_ROUND, PART_OF_ROUNDS, SINGLES, moved_counts
from dpdist.mechanisms.promises import LossExceeded
from dpdist.mechanisms.registry import MECHANISMS

ADAPTIVE = ", select: adaptive"
CELLS = {6, 8, 12}
"""Cells of the pairs' tables; the tables of single columns have 9 together, and scores are of two or three pairs."""


def costs(adjacency: Adjacency, key: int) -> list[Fraction]:
    """Each query's cost on one path of answers: what a record moves over the noise's scale, as a part of ε = 4."""
    said, own = job(said=ADAPTIVE, adjacency=adjacency, epsilon="4"), survey(2, 60 * 4**key)
    asked = list[Noise]()

    def noise(request: Noise) -> Floats:
        asked.append(request)
        return noise_of(KEY.child(str(key)))(request)

    released(said, own, noise)
    delta = Fraction(moved_counts(adjacency) * UNIT)
    assert asked[0].size == 9
    return [delta * (3 if each.size == 9 else 1 if each.size in CELLS else 2) / each.scale / 4 for each in asked]


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_rounds_cost_epsilon_together_on_every_path(adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over paths of files of 60 to 4,000 records, which have other rounds. Control: half the noise in rounds."""
    paths = [costs(adjacency, key) for key in range(4)]
    assert {sum(path) for path in paths} == {Fraction(1)}
    assert {path[0] for path in paths} == {SINGLES}
    assert len({len(path) for path in paths}) > 1, "budgets grow on some paths alone"
    choices, tables = sum(paths[0][1::2]), sum(paths[0][2::2])
    assert choices == PART_OF_ROUNDS * CHOICE_OF_ROUND
    assert tables == PART_OF_ROUNDS - choices
    real = Marginals.unit_scales
    monkeypatch.setattr(Marginals, "unit_scales", lambda *asked: tuple(scale / 2 for scale in real(*asked)))
    with pytest.raises(LossExceeded, match="exceeds the promise"):
        costs(adjacency, 0)


def test_without_noise_the_pairs_that_depend_are_measured_and_then_again() -> None:
    """Sex and children depend only through the degree. What is left of ε goes to tables that are measured already."""
    model, theta = released(job(said=ADAPTIVE), survey(2), quiet)
    keys = model.keys_of(theta)
    assert set(keys[3:]) == {(0, 1), (1, 2)}
    assert sum(theta["units"][0]) == model.units == 4


def test_a_table_that_tells_nothing_doubles_the_budget() -> None:
    """Independent columns: answers without noise are as expected, and rounds take 1 and 3 parts of four.

    Control: dependent columns take the first two one by one.
    """
    rng, taken = np.random.default_rng(1), []
    plain = np.column_stack([rng.integers(0, 2, 4000), rng.integers(1, 4, 4000), rng.integers(0, 4, 4000)])
    for epsilon, own in (("0.1", records(plain, np.full(4000, 50.0))), ("9", survey(2))):
        _, theta = released(job(said=ADAPTIVE, epsilon=epsilon), own, quiet)
        taken.append(theta["units"][0][3:].tolist())
    assert taken[0] == [1.0, 3.0]
    assert taken[1][:2] == [1.0, 1.0]


def test_repeated_tables_are_averaged_by_precision() -> None:
    """Scales 1 and 2: weights 4/5 and 1/5, and the scale of the mean. Control: a plain mean."""
    tables, scales = averaged_tables((2,), ((0,), (0,)), [np.array([5.0, 0.0]), np.array([0.0, 5.0])], (1.0, 2.0))
    assert tables[(0,)].tolist() == pytest.approx([4.0, 1.0])
    assert scales[(0,)] == pytest.approx(0.8**0.5)
    assert tables[(0,)].tolist() != [2.5, 2.5]


def test_the_statement_says_how_rounds_are_paid() -> None:
    said = " ".join(MECHANISMS["marginals"].promise(job(said=ADAPTIVE)).assumptions)
    assert "the rest is spent in rounds" in said
    assert "the last round spends the remainder" in said


@pytest.mark.parametrize(
    "other", [{"said": ", marginals: [[sex, degree], [kids]], select: adaptive"}, {"outcome": "sex, degree"}]
)
def test_a_choice_of_nothing_is_refused(other: dict[str, str]) -> None:
    with pytest.raises(JobError, match="no pair is chosen"):
        parse_job(text(**({"said": ADAPTIVE} | other)).replace(", {mean: kids}", ""))
