"""Public design effects: they multiply sampling variances, never the noise of protection, and are said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of
from simulated_doctorates import simulated

import dpdist
from dpdist.core.errors import JobError
from dpdist.job import DesignEffect
from dpdist.publish.folder import publish
from dpdist.publish.released import ReleasedObject, read_released

JOB = (
    simulated(20000, 1500, 11)
    + """\
survey: {weight: weight, design_strata: [field]}
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: weighted}
budget: {epsilon: "4"}
sampler: {draws: 200}
tables:
  - {name: salaries, by: [sex], statistics: [count, {mean: salary}]}
"""
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> ReleasedObject:
    workspace = tmp_path_factory.mktemp("effect") / "ws"
    return read_released(dpdist.run(dpdist.parse_job(JOB), workspace) / "released")


def under(release: ReleasedObject, effect: float | tuple[DesignEffect, ...] | None, folder: Path) -> pd.DataFrame:
    survey = release.job.survey.model_copy(update={"design_effect": effect})
    publish(replace(release, job=release.job.model_copy(update={"survey": survey})), folder)
    return pd.read_parquet(folder / "tables" / "salaries.parquet")


def test_sampling_variances_are_multiplied_and_the_noise_is_not(release: ReleasedObject, tmp_path: Path) -> None:
    """T = effect · V + N with N > 0, the same V and N whatever the effect: three effects lie on a line."""
    errors = {}
    for effect in (None, 1.0, 2.0, 4.0):
        rows = under(release, effect, tmp_path / str(effect))
        errors[effect] = rows[rows["estimator"] == "parameters"]["standard_error"].to_numpy() ** 2
    np.testing.assert_array_equal(errors[None], errors[1.0])
    sampling = errors[2.0] - errors[1.0]
    assert (sampling > 0).all()
    np.testing.assert_allclose(errors[4.0], errors[1.0] + 3.0 * sampling, rtol=1e-9)
    assert (errors[1.0] - sampling > 0.01 * errors[1.0]).all(), "what the draw's power costs stays as it is"


def test_the_statement_says_the_figure_and_whose_it_is(release: ReleasedObject, tmp_path: Path) -> None:
    under(release, 1.7, tmp_path / "said")
    said = statement_of(tmp_path / "said")["standard_errors"]
    assert any("public design effect 1.7 that is given in the job" in line for line in said)


TRUTHS = [
    (f"{before}{said}{after}", "a number from 1 to 100, not true or false")
    for said in ("true", "false")
    for before, after in (("", ""), ("[{effect: ", "}]"))
]


@pytest.mark.parametrize(("effect", "told"), [("0.8", "below 1"), ("1000", "from 1 to 100"), (".nan", "finite"), *TRUTHS])
def test_an_effect_that_is_no_effect_is_refused(effect: str, told: str) -> None:
    with pytest.raises(JobError, match=told):
        dpdist.parse_job(JOB.replace("{weight: weight,", f"{{weight: weight, design_effect: {effect},"))


def test_every_figure_takes_the_first_effect_that_is_of_its_statistic_and_its_columns(
    release: ReleasedObject, tmp_path: Path
) -> None:
    """By hand: T(effect) = T(1) + (effect − 1) (T(2) − T(1)), cell by cell. A figure that no entry fits keeps T(1)."""
    listed = [
        {"effect": 3.0, "statistics": ["count"], "by": ["sex"]},
        {"effect": 9.0, "statistics": ["count"], "by": ["sex"]},
        {"effect": 5.0, "by": []},
        {"effect": 1.5, "statistics": ["total"], "outcome": "salary"},
    ]
    tables = {
        name: under(release, effect, tmp_path / name).query("estimator == 'parameters'")
        for name, effect in {"one": 1.0, "two": 2.0, "list": tuple(map(DesignEffect.model_validate, listed))}.items()
    }
    one, two, found = (tables[name]["standard_error"].to_numpy() ** 2 for name in ("one", "two", "list"))
    counts, whole = (tables["one"]["statistic"] == "count").to_numpy(), (tables["one"]["sex"] == "Total").to_numpy()
    effect = np.where(whole, 5.0, np.where(counts, 3.0, 1.0))
    np.testing.assert_allclose(found, one + (effect - 1.0) * (two - one), rtol=1e-9)
    said = statement_of(tmp_path / "list")["standard_errors"]
    assert any("public design effects, which are given in the job" in line and "3 (count, by sex)" in line for line in said)
    assert any("No design effect is known for mean of salary in some of salaries" in line for line in said)


@pytest.mark.parametrize(
    ("effect", "told"),
    [
        ("reference", "no clusters are stated"),
        ("[{effect: 2, by: [field, age]}]", "no table has the column 'age'"),
        ("[{effect: 2, outcome: wage}]", "'wage' is not an outcome"),
        ("[{effect: 2, statistics: [cuont]}]", "did you mean 'count'"),
        ("refrence", "did you mean 'reference'"),
    ],
)
def test_an_effect_without_a_source_or_a_figure_is_refused(effect: str, told: str) -> None:
    with pytest.raises(JobError, match=re.escape(told)):
        dpdist.parse_job(JOB.replace("{weight: weight,", f"{{weight: weight, design_effect: {effect},"))
