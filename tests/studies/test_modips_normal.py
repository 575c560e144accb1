"""The study of MODIPS: coverage by number of sets, against figures worked out for the same design (METHODS §8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import ks_2samp, norm

from dpdist.core.keys import Key
from dpdist.job.loading import find_job
from dpdist.studies.kinds import load_study, parse_study
from dpdist.studies.kinds.modips import exact_sums, release_of, released_laws, simulated_file
from dpdist.studies.kinds.one_stratum import released
from dpdist.studies.run import run

EXPECTED = {"m1": 0.67, "m3": 0.94, "m5": 0.96}
"""Coverage of nominal 95 % intervals of the mean of 100 records of N(0, 1) within [−4, 4], at ε = 1."""
SPREAD = np.sqrt(0.01 + 2 * 0.08**2 + 0.01 + 0.01)
"""Of one set's mean: the sample, the posterior and the records have variance 1/100 each, the noise a scale of 8/100."""


def small(files: int, arms: tuple[str, ...], replicates: int) -> Any:
    said = yaml.safe_load((find_job("doctorates").parent / "studies" / "modips_normal.yaml").read_text(encoding="utf-8"))
    kept = {key: said[key] for key in ("kind", "study", "title", "seed")}
    mechanisms = [arm for arm in said["mechanisms"] if arm["label"] in arms]
    more = {"files": files, "replicates": replicates, "epsilons": ["1"], "cases": said["cases"][:1]}
    return parse_study(yaml.safe_dump(kept | more | {"mechanisms": mechanisms}))


def measured(folder: Path) -> pd.Series:
    return pd.read_csv(folder / "summary.csv").set_index(["mechanism", "measure"])["mean"]


def test_one_set_covers_too_little_and_five_sets_cover(tmp_path: Path) -> None:
    found = measured(run(small(60, ("m1", "m5"), 2), tmp_path / "out"))
    assert found["m1", "coverage"] < 0.82
    assert found["m5", "coverage"] > 0.87
    assert found["m1", "root_mean_squared_error"] == pytest.approx(SPREAD, rel=0.25)
    assert abs(found["m1", "bias"]) < 4 * SPREAD / np.sqrt(120)
    assert found["m1", "standard_error"] == pytest.approx(0.1, rel=0.05)


def test_coverage_of_one_set_follows_from_its_spread() -> None:
    """The figure that the study is held against: noise is Laplace, all else normal. Control: without noise it is more."""
    rng = np.random.default_rng(1)
    normal = np.sqrt(0.03) * rng.standard_normal(400_000)
    error = normal + rng.laplace(0.0, 0.08, len(normal))
    assert (np.abs(error) < norm.ppf(0.975) * 0.1).mean() == pytest.approx(EXPECTED["m1"], abs=0.01)
    assert (np.abs(normal) < norm.ppf(0.975) * 0.1).mean() > EXPECTED["m1"] + 0.05


@pytest.mark.parametrize("arm", ["m1", "m1_truncated", "m5_variance"])
def test_files_answered_at_once_have_the_law_of_the_engine(arm: str) -> None:
    """500 files each way: two samples of one law differ in 1 of 1,000 of these tests. Control: at another ε they do."""
    study = small(500, (arm,), 1)
    case, chosen = study.cases[0], study.mechanisms[0]
    job, model = release_of(study.adjacency, case, chosen, "1")
    files = [simulated_file(case, Key(bytes(32)).child(str(k))) for k in range(study.files)]
    one_by_one = [released(job, model, file, Key(bytes(32)).child(f"engine {k}")) for k, file in enumerate(files)]
    engine = np.array([[float(theta["mean"][0, 0]), float(theta["standard_deviation"][0])] for (theta, *_) in one_by_one])
    at_once = released_laws(model, exact_sums(model, files), 1, Key(bytes(32)).child("at once"))
    of_other = release_of(study.adjacency, case, chosen, "1/4")[1]
    control = released_laws(of_other, exact_sums(of_other, files), 1, Key(bytes(32)).child("at once"))
    parameters = [0, 1] if chosen.variance == "sanitised" else [0]
    for k in parameters:
        assert ks_2samp(engine[:, k], at_once[k][0]).pvalue > 0.001 / len(parameters) / 3
    assert ks_2samp(engine[:, 0], control[0][0]).pvalue < 1e-6


@pytest.mark.slow
def test_coverage_is_that_of_the_design_within_monte_carlo_error(tmp_path: Path) -> None:
    """2,000 files: three standard errors are .032 at .67, and .016 at .94; figures are rounded to .01."""
    found = measured(run(small(500, tuple(EXPECTED), 4), tmp_path / "out"))
    for label, expected in EXPECTED.items():
        margin = 3 * np.sqrt(expected * (1 - expected) / 2000) + 0.005
        assert abs(found[label, "coverage"] - expected) < margin


def test_the_shipped_study_is_read() -> None:
    study = load_study("modips_normal")
    assert set(EXPECTED) <= set(study.labels)
    assert study.all_measures[0] == "coverage"
