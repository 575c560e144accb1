"""Batches of strata whose by-products share files: what each stratum left alone, and a killed batch that is done again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.planning.making import make_plan
from dpdist.storage.workspace import Workspace

SIZES = (40, 35, 300, 30, 45, 31, 260, 33, 38, 41)
"""Records of strata. Two of them have more than one chunk of log likelihoods."""
BATCH = 4
AREAS = [f"area {k}" for k in range(len(SIZES))]


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, area = np.random.default_rng(5), np.repeat(AREAS, SIZES)
    n = len(area)
    path = tmp_path_factory.mktemp("survey") / "survey.parquet"
    salary, weight = np.exp(rng.normal(10.0, 0.5, n)), np.exp(rng.normal(3.0, 0.4, n))
    share = rng.uniform(0.0, 1.0, n)
    pd.DataFrame({"area": area, "salary": salary, "share": share, "w": weight}).to_parquet(path)
    return path


def job(survey: Path, mechanism: str, fallback: str = "refuse", log_lik: str = "always") -> Job:
    fitted = mechanism == "weighted"
    outcome, bounds = ("salary", "[0, 1000000]") if fitted else ("share", "[0, 1], outside: clip")
    rest = (
        f"mechanism: {{name: weighted, fallback: {fallback}}}\nmodel: {{family: lognormal}}\n"
        f"sampler: {{name: exact, draws: 100}}\nrecord: {{log_lik: {log_lik}}}\nsurvey: {{weight: w}}"
        if fitted
        else "mechanism: {name: perturbed_histogram}"
    )
    return parse_job(f"""
dataset: small
period: "1"
input: {{path: {survey}}}
columns:
  area: {{levels: [{", ".join(AREAS)}]}}
  {outcome}: {{bounds: {bounds}}}
strata: [area]
outcome: {outcome}
{rest}
budget: {{epsilon: "12", adjacency: zero_out}}
synthetic_sets: 1
tables: [{{name: t, by: [area], statistics: [{{mean: {outcome}}}]}}]
runtime: {{executor: serial}}
""")


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.planning.blocks.LEAST_BATCHES", len(SIZES) // BATCH)


def files(workspace: Path, *, but: str = "NOT_FOR") -> dict[str, bytes]:
    public = workspace / "public"
    return {str(path.relative_to(public)): path.read_bytes() for path in public.rglob("*.*") if but not in path.name}


@pytest.fixture(scope="module")
def alone(survey: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release whose strata have files of their own."""
    workspace = tmp_path_factory.mktemp("alone") / "run"
    dpdist.run(job(survey, "weighted"), workspace)
    return workspace


def test_batches_leave_what_strata_leave_alone_in_fewer_files(
    survey: Path, alone: Path, tmp_path: Path, batched: None
) -> None:
    dpdist.run(job(survey, "weighted"), tmp_path / "run", replay=alone / "confidential")
    assert files(tmp_path / "run") == files(alone)
    confidential = [workspace / "confidential" for workspace in (alone, tmp_path / "run")]
    assert len({(folder / "bounds.parquet").read_bytes() for folder in confidential}) == 1
    strata = [pd.read_parquet(folder / "strata.parquet") for folder in confidential]
    pd.testing.assert_frame_equal(*(table.drop(columns="offset") for table in strata))
    left = [sum(path.is_file() for path in folder.rglob("*")) for folder in confidential]
    assert left[1] < left[0] - 60
    assert all(path.name.endswith(f"x{BATCH}") for path in (confidential[1] / "parts").iterdir())


def test_draws_and_log_likelihoods_are_read_as_those_of_strata_alone(
    survey: Path, alone: Path, tmp_path: Path, batched: None
) -> None:
    """Zarr reads our shards: all records of a stratum from its offset on, and nothing between strata."""
    dpdist.run(job(survey, "weighted"), tmp_path / "run", replay=alone / "confidential")
    posteriors = [dpdist.open_posterior(workspace).load() for workspace in (alone, tmp_path / "run")]
    assert posteriors[0].identical(posteriors[1])
    tensors = [dpdist.open_log_lik(workspace).load() for workspace in (alone, tmp_path / "run")]
    assert tensors[0].sizes["record"] < tensors[1].sizes["record"], "batches begin at shards"
    for k, size in enumerate(SIZES):
        one, other = (
            tensor.isel(record=slice(int(tensor["offset"][k]), int(tensor["offset"][k]) + size)) for tensor in tensors
        )
        np.testing.assert_array_equal(one["log_lik"], other["log_lik"])
        np.testing.assert_array_equal(one["record"], other["record"])
    assert not np.isnan(tensors[1]["log_lik"].to_numpy()[..., tensors[1]["record"].to_numpy() >= 0]).any()
    assert int((tensors[1]["record"] >= 0).sum()) == sum(SIZES)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_killed_batch_is_done_again_and_finished_ones_are_not(
    survey: Path, alone: Path, tmp_path: Path, batched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes when all files of the second batch are written, and before its completion record."""
    space, mark = Workspace(tmp_path / "run"), Workspace.mark

    def killed(self: Workspace, unit: str, *more: object) -> None:
        if unit == f"strata-000001x{BATCH}":
            raise KeyboardInterrupt
        mark(self, unit, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "mark", killed)
        with pytest.raises(KeyboardInterrupt):
            dpdist.run(job(survey, "weighted"), tmp_path / "run", replay=alone / "confidential")
    first = space.parts / f"strata-000000x{BATCH}" / "strata.json"
    second = space.parts / f"strata-000001x{BATCH}" / "strata.json"
    before = first.stat().st_ino, second.stat().st_ino
    dpdist.run(job(survey, "weighted"), tmp_path / "run", replay=alone / "confidential")
    assert files(tmp_path / "run") == files(alone)
    assert (first.stat().st_ino == before[0], second.stat().st_ino == before[1]) == (True, False)


def test_a_damaged_shard_has_its_batch_done_again(survey: Path, alone: Path, tmp_path: Path, batched: None) -> None:
    dpdist.run(job(survey, "weighted"), tmp_path / "run", replay=alone / "confidential")
    shards = sorted((tmp_path / "run" / "confidential" / "log_lik.zarr" / "log_lik").glob("c.*"))
    before = [path.read_bytes() for path in shards]
    shards[1].write_bytes(before[1][:-1])
    dpdist.run(job(survey, "weighted"), tmp_path / "run", replay=alone / "confidential")
    assert [path.read_bytes() for path in shards] == before


def test_noise_of_a_killed_batch_is_kept(
    survey: Path, tmp_path: Path, batched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: another workspace draws other noise."""
    histogram, noise = job(survey, "perturbed_histogram"), Workspace(tmp_path / "run").noise("strata", 3, 1)
    with monkeypatch.context() as patch:
        patch.setattr("dpdist.storage.byproducts.BatchStore.close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpdist.run(histogram, tmp_path / "run")
    drawn = noise.read_bytes()
    dpdist.run(histogram, tmp_path / "run")
    assert noise.read_bytes() == drawn
    dpdist.run(histogram, tmp_path / "other")
    assert files(tmp_path / "run") != files(tmp_path / "other")
    shutil.rmtree(tmp_path / "other")
    dpdist.run(histogram, tmp_path / "other", replay=tmp_path / "run" / "confidential")
    assert files(tmp_path / "run") == files(tmp_path / "other")


def test_batches_depend_on_sizes_and_tasks_have_whole_ones(
    survey: Path, batched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stratum that may be fitted again by itself shares no file, nor do strata next to a giant one."""
    layout = make_plan(job(survey, "weighted"), None, lambda _: None).layout
    assert layout.batch_strata == BATCH
    for workers in (1, 2, 64):
        bins = layout.bins(workers)
        assert sorted(k for strata in bins for k in strata) == list(range(len(SIZES)))
        assert all(strata[0] % BATCH == 0 for strata in bins)
    assert make_plan(job(survey, "weighted", "proper_prior"), None, lambda _: None).layout.batch_strata == 1
    monkeypatch.setattr("dpdist.planning.blocks.TENSOR_BYTES", 1)
    monkeypatch.setattr("dpdist.planning.blocks.SPAN_VALUES", 1)
    giant = make_plan(job(survey, "weighted"), None, lambda _: None).layout
    assert giant.giants
    assert giant.batch_strata == 1
