"""`dpdist cluster manifests`: what it prints for a job is a set that passes every check of the shipped manifests."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import invoke
from every_check import CHECKS, LEAST
from rendering import DEPLOY, Objects

from dpdist.cli import manifests
from dpdist.cli.manifests import NANNY_BYTES, job_in_cluster, pick, tasks, worker_memory, worker_patch
from dpdist.job.loading import SourcedKeys, load_job
from dpdist.release import validate

IMAGE = f"registry.example/dpdist@sha256:{'a' * 64}"
SHIPPED = DEPLOY / "overlays" / "release" / "job.yaml"
BUCKET = ("--workspace", "s3://releases/2017", "--store", "192.0.2.0/24", "--region", "eu-central-1")


def asked(job: Path | str, *options: str, code: int = 0) -> str:
    said = ("cluster", "manifests", str(job), "--namespace", "wages", "--image", IMAGE, *options)
    done = invoke(*said)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def objects_of(text: str) -> Objects:
    return list(yaml.safe_load_all(text))


@pytest.fixture
def with_files(survey_file: Path, tmp_path: Path) -> Path:
    """A job that extends another and reads a file, which lies elsewhere."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    said = yaml.safe_load(SHIPPED.read_text())
    (folder / "base.yaml").write_text(yaml.safe_dump(said))
    (folder / "job.yaml").write_text(
        f"extends: base.yaml\ninput: {{path: {survey_file}, simulate: null}}\nperiod: '2018'\n"
    )
    return folder / "job.yaml"


@pytest.fixture
def survey_file(tmp_path: Path) -> Path:
    rng, fields = np.random.default_rng(3), yaml.safe_load(SHIPPED.read_text())["columns"]["field"]["levels"]
    rows = pd.DataFrame({"field": np.repeat(fields, 40), "sex": np.tile(["male", "female"], 20 * len(fields))})
    rows = rows.assign(salary=np.exp(rng.normal(11, 0.5, len(rows))).clip(1, 1e6), weight=rng.uniform(5, 15, len(rows)))
    rows.to_parquet(tmp_path / "survey.parquet")
    return tmp_path / "survey.parquet"


CASES: dict[str, Callable[[Path], tuple[Path, tuple[str, ...]]]] = {
    "simulated": lambda _: (SHIPPED, ()),
    "a file": lambda job: (job, ()),
    "a bucket": lambda job: (job, (*BUCKET, "--endpoint", "https://store.example")),
    "a ledger": lambda job: (job, ("--ledger", "192.0.2.7/32:5432", "--storage-class", "nfs")),
    "a bucket and a ledger": lambda job: (job, (*BUCKET, "--ledger", "192.0.2.7/32:5432")),
}


@pytest.mark.parametrize("case", CASES)
def test_the_set_is_valid_by_schema_and_nothing_is_wrong_by_meaning(case: str, with_files: Path) -> None:
    job, options = CASES[case](with_files)
    objects = objects_of(asked(job, *options))
    if case in ("a file", "a bucket and a ledger"):
        for found in objects:
            kubernetes_validate.validate(found, LEAST, strict=True)
    assert {name: wrong for name, check in CHECKS.items() if (wrong := list(check(objects)))} == {}


def test_everything_is_in_the_namespace_and_of_the_image_that_was_asked_for() -> None:
    objects = objects_of(asked(SHIPPED))
    assert {o["metadata"].get("namespace", o["metadata"]["name"]) for o in objects} == {"wages"}
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "Job")]
    assert [one["containers"][0]["image"] for one in pods] == [IMAGE] * 3


def test_the_job_in_the_set_is_the_job_with_its_files_where_the_driver_sees_them(with_files: Path, tmp_path: Path) -> None:
    data = pick(objects_of(asked(with_files)), "ConfigMap", "dpdist-job")["data"]
    (tmp_path / "inside").mkdir()
    for name, text in data.items():
        (tmp_path / "inside" / name).write_text(text)
    inside, outside = load_job(tmp_path / "inside" / "job.yaml"), load_job(with_files)
    left = {key: value for key, value in outside.identity.items() if not key.startswith("extends")}
    assert {key: value for key, value in inside.identity.items() if key != "extends"} == left
    assert inside.input.path == "/input/survey.parquet"
    assert inside.runtime.executor == "dask"
    assert str(tmp_path) not in json.dumps(data), "no path of the machine that it was written on"


def test_what_the_command_line_sets_goes_with_the_job(survey_file: Path) -> None:
    objects = objects_of(asked(SHIPPED, "--set", "synthetic_sets=2", "--input", str(survey_file)))
    said = yaml.safe_load(pick(objects, "ConfigMap", "dpdist-job")["data"]["job.yaml"])
    assert said["synthetic_sets"] == 2
    assert said["input"]["path"] == "/input/survey.parquet"
    assert said["input"].get("simulate") is None


def test_files_beside_a_job_go_with_it_and_references_have_a_folder_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "mine.stan").write_text("parameters { real mu; }")
    (tmp_path / "tuned.yaml").write_text("period: '2017'")
    said = {
        "input": {"path": str(tmp_path / "survey.parquet")},
        "reference": {"path": "/public/survey.parquet"},
        "calibration": {"path": "tuned.yaml"},
        "model": {"family": "user", "program": "programs/mine.stan"},
        "runtime": {"scheduler": "tls://elsewhere:8786", "tls": "certificates", "stall_timeout": 60},
    }
    job, files = job_in_cluster(SourcedKeys(said, folder=tmp_path))
    assert files == {"mine.stan": "parameters { real mu; }", "tuned.yaml": "period: '2017'"}
    assert (job["model"]["program"], job["calibration"]["path"]) == ("mine.stan", "tuned.yaml")
    assert (job["input"]["path"], job["reference"]["path"]) == ("/input/survey.parquet", "/input/reference/survey.parquet")
    assert job["runtime"] == {"stall_timeout": 60, "executor": "dask"}


def test_a_set_of_a_simulated_survey_waits_for_no_volume_of_input(with_files: Path) -> None:
    simulated, read = (objects_of(asked(job)) for job in (SHIPPED, with_files))
    claims = [
        [o["metadata"]["name"] for o in objects if o["kind"] == "PersistentVolumeClaim"] for objects in (simulated, read)
    ]
    assert claims == [["dpdist-workspace"], ["dpdist-workspace", "dpdist-input"]]


def test_workers_are_those_of_the_plan(with_files: Path) -> None:
    plan = validate(load_job(with_files))
    worker = pick(objects_of(asked(with_files)), "Deployment", "dpdist-worker")["spec"]
    assert (
        worker["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == f"{worker_memory(plan) // 2**20}Mi"
    )
    assert worker["replicas"] == tasks(plan, 32)


SECRET = """
dataset: sizes
period: "2021"
input: {path: now.parquet}
columns:
  unit: {levels: [a, b]}
  salary: {bounds: [0, 150000], outside: clip}
survey: {weight: weight}
outcome: salary
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: add_remove}
reference: {path: before.parquet, period: "2020", provenance: public-use file of 2020}
tables: [{name: salaries, by: [unit], statistics: [count, {mean: salary}]}]
runtime: {memory_per_worker: 8GiB}
"""
"""A job under which the number of records is confidential."""


def secret(folder: Path, records: int) -> Path:
    rng = np.random.default_rng(1)
    folder.mkdir()
    for name, size in (("now", records), ("before", 3000)):
        rows = {"unit": np.tile(["a", "b"], size // 2), "salary": rng.uniform(1e4, 1e5, size)}
        pd.DataFrame({**rows, "weight": rng.uniform(1.0, 3.0, size)}).to_parquet(folder / f"{name}.parquet")
    (folder / "job.yaml").write_text(SECRET)
    return folder / "job.yaml"


def test_where_sizes_are_confidential_no_figure_of_the_set_follows_from_them(tmp_path: Path) -> None:
    few, many = secret(tmp_path / "few", 2_000), secret(tmp_path / "many", 600_000)
    text = asked(few, "--workers", "500")
    assert text == asked(many, "--workers", "500")
    objects, plan = objects_of(text), validate(load_job(many))
    assert tasks(plan, 500) > 1, "control: tasks are cut by records, and would tell"
    assert worker_patch(plan, 500)["spec"]["replicas"] == 500
    assert worker_memory(plan) == 8 * 2**30 + NANNY_BYTES, "what the job allows a worker"
    assert pick(objects, "Deployment", "dpdist-worker")["spec"]["replicas"] == 500
    assert int(pick(objects, "ResourceQuota", "dpdist")["spec"]["hard"]["pods"]) >= 625 + 2, "and those that replace others"


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "no name of a namespace": (("--namespace", "Wages_2018"), "--namespace: 'Wages_2018'"),
    "latest": (("--image", "registry.example/dpdist:latest"), "--image: 'registry.example/dpdist:latest'"),
    "no tag": (("--image", "registry.example/dpdist"), "--image: 'registry.example/dpdist'"),
    "half a digest": (("--image", "registry.example/dpdist@sha256:abc"), "--image"),
    "beside the volume": (("--workspace", "/tmp/release"), "--workspace: '/tmp/release'"),
    "another kind of store": (("--workspace", "gs://releases/2017"), "--workspace: 'gs://releases/2017'"),
    "an address that is no URL": ((*BUCKET, "--endpoint", "store.example:9000"), "--endpoint: 'store.example:9000'"),
    "a store nowhere": (BUCKET[:2], "--store: not given"),
    "a store everywhere": ((*BUCKET, "--store", "0.0.0.0/0"), "--store: '0.0.0.0/0'"),
    "a ledger without a port": (("--ledger", "192.0.2.7/32"), "--ledger: '192.0.2.7/32'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_place_that_cannot_be_is_refused_by_name(case: str) -> None:
    options, said = WRONG[case]
    assert said in asked(SHIPPED, *options, code=2)


def test_the_head_names_what_has_to_be_there_first(with_files: Path) -> None:
    head = [line for line in asked(with_files, *BUCKET).splitlines() if line.startswith("#")]
    assert "dpdist-store" in head[1]
    assert head[2:] == ["# - in the claim dpdist-input, survey.parquet"]
    assert "ReadWriteMany" in asked(with_files).split("apiVersion")[0]


def test_an_installed_dpdist_brings_the_manifests_along() -> None:
    said: dict[str, Any] = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    brought = said["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for part in ("common", "base", "overlays/release", "overlays/bucket"):
        assert brought[f"deploy/{part}"] == f"dpdist/deploy/{part}"


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [(None, 443), ("https://store.example", 443), ("https://store.example:9000", 9000), ("http://192.0.2.7", 80)],
)
def test_the_way_to_the_store_is_open_at_its_port(endpoint: str | None, port: int) -> None:
    objects = objects_of(asked(SHIPPED, *BUCKET, *(("--endpoint", endpoint) if endpoint else ())))
    (way,) = pick(objects, "NetworkPolicy", "store")["spec"]["egress"]
    assert way["ports"] == [{"protocol": "TCP", "port": port}]


def test_a_job_beyond_what_kubernetes_takes_is_refused_or_says_how_it_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--server-side" not in asked(SHIPPED)
    monkeypatch.setattr(manifests, "MOST_APPLIED", 500)
    assert "500 bytes: use `kubectl apply --server-side -f`" in asked(SHIPPED)
    monkeypatch.setattr(manifests, "MOST_OF_CONFIG_MAP", 500)
    assert "Kubernetes takes no larger ConfigMap" in asked(SHIPPED, code=2)


def test_a_job_in_the_claim_has_any_number_of_levels(
    with_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads it beside the input, and workers read the workspace. Control: a ConfigMap takes no such job."""
    monkeypatch.setattr(manifests, "MOST_OF_CONFIG_MAP", 500)
    assert "give --job-file" in asked(with_files, code=2)
    objects = objects_of(text := asked(with_files, "--job-file", str(tmp_path / "for-claim.yaml")))
    assert "in the claim dpdist-input, job.yaml, which is the file for-claim.yaml" in text
    assert str(tmp_path) not in text
    assert {name: wrong for name, check in CHECKS.items() if (wrong := list(check(objects)))} == {}
    assert not [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "dpdist-job"]
    driver = pick(objects, "Job", "dpdist-release")["spec"]["template"]["spec"]["containers"][0]
    assert driver["args"][:2] == ["run", "/input/job.yaml"]
    assert load_job(tmp_path / "for-claim.yaml").input.path == "/input/survey.parquet"


def test_files_of_a_job_in_the_claim_are_named_where_the_driver_sees_them(tmp_path: Path) -> None:
    (tmp_path / "mine.stan").write_text("parameters { real mu; }")
    resolved = SourcedKeys({"model": {"program": "mine.stan"}}, {}, "job.yaml", tmp_path, None, ())
    job, files = job_in_cluster(resolved, "/etc/dpdist/job/")
    assert job["model"]["program"] == "/etc/dpdist/job/mine.stan"
    assert list(files) == ["mine.stan"]
