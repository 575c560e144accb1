"""Published standard errors: what trimming hides is undone, records add their own noise, nothing is below the least."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from simulated_doctorates import simulated

import dpdist
from dpdist.core.records import cross
from dpdist.models.lognormal.conjugate import draws_of
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.protocol import redrawing
from dpdist.publish.refit import _fit_twice, _subsample
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.standard_errors import composition, simulate_errors
from dpdist.publish.synthesis import expectations, synthesize
from dpdist.publish.tables import Grounds, estimates

JOB = (
    simulated(30000, 1200, 12)
    + """\
survey: {weight: weight, design_strata: [field]}
outcome: salary
model: {family: lognormal, predictors: [field, sex]}
mechanism: {name: weighted, weights: fixed_point}
budget: {epsilon: "6"}
synthetic_sets: 2
sampler: {draws: 300}
tables:
  - {name: salaries, by: [sex], statistics: [count, {mean: salary}, {total: salary}]}
"""
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precision") / "ws"
    dpdist.run(dpdist.parse_job(JOB), folder)
    return folder


@pytest.fixture(scope="module")
def release(workspace: Path) -> ReleasedObject:
    return read_released(workspace / "public" / "released")


def test_the_law_that_undoes_the_trimming_gives_back_the_released_parameters(release: ReleasedObject) -> None:
    """A search on a sample from θ makes Σ smaller still; on one from the untrimmed law it comes out near θ's own Σ."""
    model, theta = release.model(0), release.theta(release.model(0), 0, 0)
    assert isinstance(model, Lognormal)
    rows, _ = _subsample(release, slice(0, len(release.crosstab)))
    key = release.seed.child("precision all")
    redraw = redrawing(model, 200, lambda: key.child("search").generator("posterior"))
    size = np.sqrt(np.diag(theta["covariance"][0]))

    def distance(fits) -> float:
        """Of the weighted fit's Σ from θ's, less what the sample itself adds: the unweighted fit's from its law's."""
        return float(np.abs(np.log(np.sqrt(np.diag(fits.weighted["covariance"][0])) / size)).max())

    first = _fit_twice(release, model, theta, rows, key, redraw)
    law = model.untrimmed(theta, first.weighted, first.unweighted)
    assert (np.diag(law["covariance"][0]) > np.diag(theta["covariance"][0])).all(), "tails that were trimmed come back"
    second = _fit_twice(release, model, law, rows, key, redraw)
    assert distance(first) > 0.05
    assert distance(second) < 0.5 * distance(first)
    alike = model.untrimmed(theta, first.unweighted, first.unweighted)
    for name in ("coefficients", "covariance"):
        np.testing.assert_allclose(alike[name], theta[name], rtol=1e-9)


def test_a_ratio_of_any_size_moves_no_sd_by_more_than_two(release: ReleasedObject) -> None:
    model, theta = release.model(0), release.theta(release.model(0), 0, 0)
    wild = draws_of(theta["coefficients"], theta["covariance"] * 1e6)
    for one, other in ((wild, theta), (theta, wild)):
        ratio = np.diag(model.untrimmed(theta, one, other)["covariance"][0]) / np.diag(theta["covariance"][0])
        assert np.allclose(ratio, 4.0) or np.allclose(ratio, 0.25)


@pytest.mark.parametrize("sets", [1, 2])
def test_records_add_their_own_noise_to_the_error_of_the_parameters(
    release: ReleasedObject, tmp_path: Path, sets: int
) -> None:
    """T = T of the parameters + S/m by hand; W alone, which leaves the parameters' error out, is less: the control."""
    release = replace(release, sets=release.sets[:sets])
    cells = cross(release.crosstab, ["sex"], True)
    sums, expected = synthesize(release, tmp_path / "synthetic", lambda _: None).sums[0], expectations(release)
    assert expected is not None
    spreads = simulate_errors(release, lambda _: None, by_row=True).spreads
    found = estimates(release, cells, Grounds(expected, sums, spreads[0]))
    known = composition(release, cells, expected)
    records = [pd.read_parquet(tmp_path / "synthetic" / f"set-{k + 1}.parquet") for k in range(sets)]
    within = np.mean([by_hand(each) for each in records], axis=0)
    for i in range(3):
        own = np.maximum(within[i] - known[i].variance[-1], 0.0) / sets
        total = found["parameters"][i].standard_error[-1] ** 2 + own
        assert found["records"][i].standard_error[-1] ** 2 == pytest.approx(total, rel=1e-6)
    assert found["records"][0].standard_error[-1] ** 2 > within[0]


def by_hand(records: pd.DataFrame) -> np.ndarray:
    """Variances of the whole file's count, mean and total: stratified by field, with replacement."""
    w, y = records["weight"], records["salary"]
    mean = (w * y).sum() / w.sum()
    found = []
    for u in (w, w * (y - mean) / w.sum(), w * y):
        by = u.groupby(records["field"].astype(str))
        n = by.size()
        found.append(float((n / (n - 1) * by.apply(lambda part: ((part - part.mean()) ** 2).sum())).sum()))
    return np.array(found)


def test_counts_have_intervals_on_the_log_scale_and_means_have_not(workspace: Path) -> None:
    table = pd.read_parquet(workspace / "public" / "tables" / "salaries.parquet")
    counts = table[table["statistic"] == "count"]
    np.testing.assert_allclose(counts["upper"] * counts["lower"], counts["estimate"] ** 2, rtol=1e-9)
    others = table[table["statistic"] != "count"]
    np.testing.assert_allclose(others["upper"] + others["lower"], 2.0 * others["estimate"], rtol=1e-9)
