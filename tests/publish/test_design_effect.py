"""A public design effect: it multiplies sampling variances, never the noise of protection, and is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from simulated_doctorates import simulated

import dpdist
from dpdist.core.errors import JobError
from dpdist.publish.folder import publish
from dpdist.publish.released import ReleasedObject, read_release

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
    return read_release(dpdist.run(dpdist.parse_job(JOB), workspace) / "released")


def under(release: ReleasedObject, effect: float | None, folder: Path) -> pd.DataFrame:
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
    said = json.loads((tmp_path / "said" / "statement.json").read_text())["standard_errors"]
    assert any("public design effect 1.7 that the job states" in line for line in said)


@pytest.mark.parametrize(("effect", "told"), [("0.8", "below 1"), ("1000", "from 1 to 100"), (".nan", "finite")])
def test_an_effect_that_is_no_effect_is_refused(effect: str, told: str) -> None:
    with pytest.raises(JobError, match=told):
        dpdist.parse_job(JOB.replace("{weight: weight,", f"{{weight: weight, design_effect: {effect},"))
