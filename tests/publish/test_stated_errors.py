"""What is stated beside noisy figures: sensitivities, design effects, the weights' variation, limits of empty cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_release import JOB, survey

import dpdist
from dpdist.core.errors import JobError
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.post import Marginals
from dpdist.mechanisms.marginals.sensitivity import SELECTION, choice_scale
from dpdist.mechanisms.partitions.post import PartitionCounts
from dpdist.mechanisms.parts import builder_of
from dpdist.privacy.noise import LARGEST_SCALE

MODIPS = (
    JOB.replace("strata: [field]\n", "")
    .replace("{name: tables", "{name: modips, law: normal")
    .replace('{epsilon: "3"}', '{epsilon: "3", adjacency: ADJACENCY}\nPREDICTORS')
)
PROTECT = 'predictors: {protect: {epsilon: "1"}}'


def measured(folder: Path, adjacency: str, protect: str) -> pd.DataFrame:
    job = parse_job(MODIPS.replace("ADJACENCY", adjacency).replace("PREDICTORS", protect))
    public = Path(dpdist.run(job, folder / adjacency[:5] / str(bool(protect)), survey(400), counted=False))
    return pd.read_parquet(public / "measurements.parquet")


def test_a_sums_sensitivity_over_its_scale_is_the_epsilon_that_it_costs(tmp_path: Path) -> None:
    """Under `exchange: anywhere` a record moves out of one cell and into another: twice what one move costs. Control: at
    the same x the sensitivity is that of an exchange, 5/2, and no more."""
    anywhere = measured(tmp_path, "substitution, exchange: anywhere", PROTECT)
    assert (anywhere["sensitivity"] == 2 * 1.5).all()
    np.testing.assert_allclose(anywhere["sensitivity"] / anywhere["scale"], 2.0, rtol=1e-9)
    within = measured(tmp_path, "substitution", "")
    assert (within["sensitivity"] == 2.5).all()
    np.testing.assert_allclose(within["sensitivity"] / within["scale"], 3.0, rtol=1e-9)


CODED = """
dataset: coded
period: "2021"
columns:
  sex: {bounds: [0, 1], whole: true, outside: clip}
  kids: {bounds: [0, 2], whole: true, outside: clip}
  age: {bounds: [0, 3], whole: true, outside: clip}
  weight: {bounds: [1, 40], outside: clip}
survey: {weight: weightEFFECT}
outcome: [sex, kids, age]
mechanism: {name: marginalsNAMED}
budget: {epsilon: "EPSILON"}
tables: [{name: t, by: [], statistics: [count]}]
"""


def coded(**said: Any) -> str:
    plain = {"EFFECT": "", "NAMED": "", "EPSILON": "2"} | said
    text = CODED
    for name, value in plain.items():
        text = text.replace(name, value)
    return text


def test_errors_of_marginals_have_the_design_effect_once(tmp_path: Path) -> None:
    """Squared errors are noise + d U Σw, with the public d that the job states. Control: without one d is 1."""
    rng = np.random.default_rng(1)
    people = pd.DataFrame({"sex": rng.integers(0, 2, 300), "kids": rng.integers(0, 3, 300), "age": rng.integers(0, 4, 300)})
    people["weight"] = rng.uniform(1, 40, 300)
    for effect, said in ((2.5, ", design_effect: 2.5"), (1.0, "")):
        job = parse_job(coded(EFFECT=said, NAMED=", marginals: [[sex, kids], [age]]"))
        public = Path(dpdist.run(job, tmp_path / str(effect), people))
        rows = pd.read_parquet(public / "marginals.parquet")
        sampled = rows["standard_error"] ** 2 - 2.0 * (2.0 / 2.0 * 40.0) ** 2
        np.testing.assert_allclose(sampled, effect * 40.0 * rows["count"], rtol=1e-9, atol=1e-6)


MANY = [f"c{k}" for k in range(13)]


def test_a_choice_whose_noise_is_too_large_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """Tables of 13 columns alone would pass: noise on the choice has 24/13 of their scale. Control: twice the budget."""
    people = pd.DataFrame({name: [0, 1] for name in MANY}).assign(weight=[1.0, 2.0])
    columns = "".join(f"  {name}: {{bounds: [0, 1], whole: true, outside: clip}}\n" for name in MANY)
    text = coded().replace("columns:\n", "columns:\n" + columns).replace("[sex, kids, age]", f"[{', '.join(MANY)}]")
    for epsilon, fits in (("0.000001", False), ("0.000002", True)):
        job = parse_job(text.replace('epsilon: "2"', f'epsilon: "{epsilon}"'))
        model = builder_of(job).build(job, Crosstab({}, {}, np.array([2]), (), ()), slice(0, 1))
        assert isinstance(model, Marginals)
        assert max(model.scale_of(key) for key in (*model.singles, *model.candidates)) <= LARGEST_SCALE
        assert (choice_scale(model.epsilon * SELECTION, 12, "zero_out") <= LARGEST_SCALE) is fits
        if fits:
            dpdist.validate(job, people)
            continue
        with pytest.raises(JobError, match="at which sums are no longer exact"):
            dpdist.run(job, tmp_path / "work", people)
        assert not (tmp_path / "work" / "public").exists()


@pytest.mark.parametrize("selection", ["tree", "adaptive"])
def test_a_choice_whose_scores_are_not_exact_is_refused_before_anything_is_spent(selection: str, tmp_path: Path) -> None:
    """Pairs of 99,856 cells, with noise that alone would pass. Controls: ten times the budget, and named tables."""
    people = pd.DataFrame({"sex": [0, 1], "kids": [0, 1], "age": [0, 1], "weight": [1.0, 2.0]})

    def wide(epsilon: str, said: str) -> Job:
        text = coded(EPSILON=epsilon, NAMED=said)
        return parse_job(text.replace("bounds: [0, 2]", "bounds: [0, 315]").replace("bounds: [0, 3]", "bounds: [0, 315]"))

    refused = wide("0.0001", f", select: {selection}")
    with pytest.raises(JobError, match="units, which is not exact"):
        dpdist.run(refused, tmp_path / "work", people)
    assert not (tmp_path / "work" / "public").exists()
    dpdist.validate(wide("0.001", f", select: {selection}"), people)
    dpdist.validate(wide("0.0001", ", marginals: [[kids, age], [sex]]"), people)


@pytest.mark.parametrize("weighted", [True, False])
def test_weights_of_a_partition_vary_as_much_as_they_can(weighted: bool) -> None:
    """Σw of n records with mean m < U varies most where weights are 0 or U: its relative variance is (1 - m/U)/(n m/U).
    Control: without weights it does not vary."""
    text = coded().replace("marginals", "flat_laplace")
    job = parse_job(text if weighted else text.replace("survey: {weight: weight}\n", ""))
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([500]), (), ()), slice(0, 1))
    assert isinstance(model, PartitionCounts)
    cells = np.full(24, 200.0 / 24.0 if weighted else 500.0 / 24.0) * 2**20
    theta = model.released((), np.concatenate([[300.0 * 2**20], cells]) if weighted else cells)
    drawn = model.resampled(theta, 500, 3_000, np.random.default_rng(1))["weight"]
    part = 200.0 / 500.0
    assert theta["weight"][0] == pytest.approx(40.0 * part if weighted else 1.0)
    assert (drawn / drawn.mean()).std() == pytest.approx(np.sqrt((1.0 - part) / 200.0) if weighted else 0.0, rel=0.06)
