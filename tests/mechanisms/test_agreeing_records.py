"""Records beside a strict table: tables made from them are the published ones, and they have the reference's shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_reference_tables import job, survey

import dpdist
from dpdist.records import TOTAL

CELL = ["field", "sex"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreeing")
    survey(1, drift=1.1).to_parquet(folder / "now.parquet")
    survey(2).to_parquet(folder / "before.parquet")
    return folder


@pytest.fixture(scope="module")
def public(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreeing") / "ws"
    return dpdist.run(job(files), folder)


def recomputed(records: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """Counts and weighted means of every cell and margin."""
    copies = [records, records.assign(field=TOTAL), records.assign(sex=TOTAL), records.assign(field=TOTAL, sex=TOTAL)]
    found = pd.concat([copy.astype({"field": str, "sex": str}) for copy in copies])
    found = found.assign(product=found["weight"] * found[outcome]).groupby(CELL)[["weight", "product"]].sum()
    return pd.DataFrame({"count": found["weight"], "mean": found["product"] / found["weight"]})


def published(public: Path, statistic: str, variable: str | None = None) -> pd.Series:
    table = pd.read_parquet(public / "tables" / "salaries.parquet")
    own = (table["estimator"] == "parameters") & (table["statistic"] == statistic)
    own &= (table["variable"] == variable) if variable else table["variable"].isna()
    return table[own].set_index(CELL)["estimate"].sort_index()


def test_tables_made_from_the_records_are_the_published_ones(public: Path) -> None:
    found = recomputed(pd.read_parquet(public / "synthetic" / "set-1.parquet"), "salary").sort_index()
    for statistic, variable in (("count", None), ("mean", "salary")):
        np.testing.assert_allclose(found[statistic], published(public, statistic, variable), rtol=1e-9)


def test_records_have_the_references_shape_and_not_their_cells_means(public: Path, files: Path) -> None:
    """Over 60 releases quantiles are off by .073 ± .008 at most: all limits are ten standard deviations away, or more."""
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    now = pd.read_parquet(files / "now.parquet")
    assert len(made) == len(now)
    for name in ("weight", "salary"):
        assert np.log1p(made[name]).std() == pytest.approx(np.log1p(now[name]).std(), rel=0.15)
        quantiles = [frame[frame["salary"] > 0][name].quantile([0.1, 0.5, 0.9]).to_numpy() for frame in (made, now)]
        np.testing.assert_allclose(quantiles[0], quantiles[1], rtol=0.15)
    assert (made["salary"] == 0).mean() == pytest.approx(0.03, abs=0.015)
    assert set(made["salary"]) <= set(pd.read_parquet(files / "before.parquet")["salary"])


def test_publishing_again_gives_the_same_records(public: Path) -> None:
    path = public / "synthetic" / "set-1.parquet"
    before = path.read_bytes()
    dpdist.publish(public.parent)
    assert path.read_bytes() == before


@pytest.mark.parametrize("epsilon", ["0.001", "0.05"])
def test_however_large_the_noise_the_records_agree(epsilon: str, files: Path, tmp_path: Path) -> None:
    """A strict mechanism may not fail on what it released."""
    public = dpdist.run(job(files, epsilon=epsilon), tmp_path / "ws")
    found = recomputed(pd.read_parquet(public / "synthetic" / "set-1.parquet"), "salary").sort_index()
    np.testing.assert_allclose(found["count"], published(public, "count"), rtol=1e-9)
    np.testing.assert_allclose(found["mean"], published(public, "mean", "salary"), rtol=1e-9)


def test_several_outcomes_agree_in_one_file_of_records(tmp_path: Path) -> None:
    for name, seed in (("now", 1), ("before", 2)):
        rows = survey(seed)
        hours = np.random.default_rng(seed + 5).normal(40, 8, len(rows)).round().clip(1, 80)
        rows.assign(hours=hours).to_parquet(tmp_path / f"{name}.parquet")
    said = job(tmp_path).model_dump(mode="json")
    said["columns"]["hours"] = {"bounds": [1, 80], "outside": "clip"}
    said["model"]["outcome"] = ["salary", "hours"]
    said["tables"][0]["statistics"] = ["count", {"mean": "salary"}, {"mean": "hours"}]
    said["compare"] = []
    public = dpdist.run(dpdist.Job.model_validate(said), tmp_path / "ws")
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    for outcome in ("salary", "hours"):
        found = recomputed(made, outcome).sort_index()
        np.testing.assert_allclose(found["mean"], published(public, "mean", outcome), rtol=1e-9)
    np.testing.assert_allclose(found["count"], published(public, "count"), rtol=1e-9)
