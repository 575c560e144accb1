"""Calibration on a reference period, its file, and the later job that names it; and calibrations that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import invoke, succeed
from edited_text import edited
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError, FitError, JobError
from dpdist.core.files import sha256
from dpdist.engine.protocol import StratumRecorder, noise_of, run_rounds
from dpdist.job import Job
from dpdist.job.loading import load_calibration, parse_job
from dpdist.mechanisms.learning import learned_from
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.planning.blocks import block_rows
from dpdist.quality.calibrate import PUBLIC, stratum
from dpdist.sampling import ReferenceSampler, sampler_of
from dpdist.survey.census import place, take_census
from dpdist.survey.source import open_source

N = 200
JOB = """
dataset: shares
period: "{period}"
input: {{path: {folder}/now.parquet}}
columns:
  region: {{levels: [north, south]}}
  y: {{bounds: [0, {high}], outside: clip}}
outcome: y
model: {model}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "{epsilon}"}}
{reference}
{calibration}
{sampler}
tables:
  - {{name: shares, statistics: [count, {{mean: y}}]}}
"""
CALIBRATED = "calibration: {path: calibration.yaml}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate")
    for seed, name in ((1, "now"), (2, "before")):
        y = np.random.default_rng(seed).beta(0.5, 3, N)
        region = np.where(np.arange(N) % 2, "north", "south").astype(object)
        pq.write_table(pa.table({"region": region, "y": np.clip(y, 1e-9, 1 - 1e-9)}), folder / f"{name}.parquet")
    return folder


def text(files: Path, mechanism: str, reference: bool | str = True, **said: str) -> str:
    plain = {"period": "2021", "model": "{family: beta}", "epsilon": "4", "calibration": "", "high": "1"}
    plain["sampler"] = "" if mechanism.startswith("perturbed") else "sampler: {name: grid, draws: 100}"
    before = f'reference: {{path: {files}/before.parquet, period: "2020"}}'
    plain["reference"] = reference if isinstance(reference, str) else before if reference else ""
    return JOB.format(**{**plain, **said, "mechanism": mechanism, "folder": files})


@pytest.fixture(scope="module")
def calibrated(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """censor_w with a reference: its file, in a folder of its own."""
    folder = tmp_path_factory.mktemp("calibrated")
    dpdist.calibrate(parse_job(text(files, "censor_w")), folder / "calibration.yaml", replicates=1)
    return folder


def test_a_calibration_says_what_was_tuned_on_what(calibrated: Path, files: Path) -> None:
    said = yaml.safe_load((calibrated / "calibration.yaml").read_text())
    assert (said["dataset"], said["period"], said["bound"], said["measure"]) == ("shares", "2020", 2.0, "max_ecdf")
    assert said["reference"]["sha256"] == sha256(files / "before.parquet")
    assert said["reference"]["records"] == N
    assert 0 < said["loss"] < 0.2
    assert said["tried"] > 20
    assert said["mechanism"]["weights"] != parse_job(text(files, "censor_w")).mechanism.weights.model_dump()
    assert set(said["mechanism"]["weights"]) == {"rule", "c", "g", "reweight", "scale", "shift", "radius"}


def test_the_same_calibration_is_found_again(files: Path, tmp_path: Path) -> None:
    """All random numbers are public; another number of replicates is another loss."""
    job = parse_job(text(files, "perturbed_histogram", reference=False, model="null"))
    for name, replicates in (("one", 4), ("again", 4), ("other", 5)):
        dpdist.calibrate(job, tmp_path / name, files / "before.parquet", replicates=replicates, period="2020")
    one, again, other = ((tmp_path / name).read_bytes() for name in ("one", "again", "other"))
    assert one == again != other


def test_a_later_job_runs_with_the_constants_and_says_so(calibrated: Path, files: Path, tmp_path: Path) -> None:
    before = (calibrated / "calibration.yaml").read_bytes()
    job = parse_job(text(files, "censor_w", calibration=CALIBRATED), folder=calibrated)
    found = load_calibration(calibrated / "calibration.yaml")
    assert job.mechanism == found.mechanism
    dpdist.run(job, tmp_path / "work")
    said = statement_of(tmp_path / "work")
    assert said["calibration"]["sha256"] == sha256(calibrated / "calibration.yaml")
    assert said["mechanism"]["weights"]["c"] == found.mechanism.weights.c
    assert any("tuned on the file of period 2020" in assumption for assumption in said["assumptions"])
    assert (calibrated / "calibration.yaml").read_bytes() == before
    dpdist.publish(tmp_path / "work")


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "dataset": ({"dataset: shares": "dataset: others"}, "made for another dataset"),
    "columns": ({"[0, 1]": "[0, 0.9999999999]"}, "made for another columns"),
    "model": ({"family: beta": "family: negative_binomial", "[0, 1]": "[0, 100]"}, "made for another model"),
    "mechanism": ({"censor_w": "weighted_e"}, "made for another mechanism"),
    "rule": ({"name: censor_w": "name: censor_w, weights: inverse"}, "made for another mechanism or weight rule"),
    "budget": ({'"4"': '"5"'}, "made for another budget"),
    "period": ({'period: "2021"': 'period: "2020"'}, "the job's own"),
    "constant": ({"name: censor_w": "name: censor_w, weights: {rule: linear, c: 0.5}"}, "as well as a calibration"),
    "no file": ({"calibration.yaml": "nowhere.yaml"}, "cannot be read"),
    "no path": ({"{path: calibration.yaml}": "{file: calibration.yaml}"}, "the path is missing"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_calibration_of_something_else_is_refused(name: str, calibrated: Path, files: Path) -> None:
    said, (changes, found) = text(files, "censor_w", calibration=CALIBRATED), OTHERS[name]
    said = edited(said, *changes.items())
    with pytest.raises(JobError, match=found):
        parse_job(said, folder=calibrated)


def test_a_calibration_with_a_reference_serves_no_job_without_one(calibrated: Path, files: Path) -> None:
    with pytest.raises(JobError, match="made with a reference"):
        parse_job(text(files, "censor_w", reference=False, calibration=CALIBRATED), folder=calibrated)


@pytest.mark.parametrize("name", ["now.parquet", "now.csv"])
def test_a_calibration_on_the_current_file_is_refused_before_anything_is_written(
    name: str, files: Path, tmp_path: Path
) -> None:
    """The same bytes, or the same records in another format and order; other tables do not make it another file."""
    table = pq.read_table(files / "now.parquet")
    pa_csv.write_csv(table.take(np.random.default_rng(0).permutation(N)), files / "now.csv")
    said = text(files, "perturbed_histogram", reference=False, model="null")
    job = parse_job(said.replace("{name: shares, ", "{name: others, "))
    made = dpdist.calibrate(job, tmp_path / "calibration.yaml", files / name, period="2020")
    assert made.mechanism.bins is not None
    later = text(files, "perturbed_histogram", reference=False, model="null", calibration=CALIBRATED)
    with pytest.raises(DataError, match="tuned on the current file"):
        dpdist.run(parse_job(later, folder=tmp_path), tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("mechanism", [pytest.param("weighted, weights: linear", marks=pytest.mark.slow), "weighted_e"])
def test_constants_of_weights_meet_the_target_on_another_sample(mechanism: str, files: Path, tmp_path: Path) -> None:
    """Without a reference in the job: c leaves headroom, and the current file's own bound is under Δ*."""
    said = text(files, mechanism, reference=False, epsilon="6")
    made = dpdist.calibrate(
        parse_job(said), tmp_path / "calibration.yaml", files / "before.parquet", replicates=1, period="2020"
    )
    assert made.mechanism.weights.c is not None
    later = text(files, mechanism, reference=False, epsilon="6", calibration=CALIBRATED)
    dpdist.run(parse_job(later, folder=tmp_path), tmp_path / "work")
    assert (tmp_path / "work" / "public" / "manifest.json").exists()


class Bounds(StratumRecorder):
    """Keeps a stratum's bound."""

    def summary(self, values: Any) -> None:
        self.bound = values.disclose_to_custodian()["database_bound"]


@pytest.fixture(scope="module")
def aimed(files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A job with weights that aim below the target on a reference, and the folder of its calibration."""
    folder = tmp_path_factory.mktemp("aimed")
    job = parse_job(text(files, "weighted"))
    dpdist.calibrate(job, folder / "calibration.yaml", replicates=1)
    return job, folder


@pytest.mark.long
def test_weights_that_were_tuned_with_a_reference_leave_headroom_on_its_other_half(aimed: tuple[Job, Path]) -> None:
    """Δ ≤ .9 Δ* = 1.8; learned at the whole Δ*, as a run does."""
    job, folder = aimed
    tuned = job.model_copy(update={"mechanism": load_calibration(folder / "calibration.yaml").mechanism})
    source = open_source(tuned, tuned.reference.path if tuned.reference else None)
    census = take_census(tuned, source)
    sampler = sampler_of(tuned, folder)
    own = stratum(tuned, census.crosstab, place(tuned, source, census, folder), 0, sampler)
    key, watched = PUBLIC.child(own.label), Bounds()
    taught = ReferenceSampler(tuned.sampler.total, sampler)
    sizes = len(own.records), block_rows(tuned.sampler.total)
    learned = learned_from(tuned, own.model, taught, key.child("reference"), own.label, own.earlier, *sizes)
    rounds = MECHANISMS["weighted"].protect(tuned, own.model, watched, learned)
    drawn = key.child("0")
    run_rounds(rounds, own.model, sampler, drawn, own.label, [own.records], noise=noise_of(drawn))
    assert 0.5 < watched.bound <= 1.8


@pytest.mark.long
def test_a_bound_over_the_target_beside_a_calibration_has_a_remedy_that_is_allowed(
    aimed: tuple[Job, Path], files: Path, tmp_path: Path
) -> None:
    """Records far from the reference's; the aim cannot be lowered beside a calibration."""
    y = np.where(np.arange(N) % 2, 1e-9, 1 - 1e-9)
    pq.write_table(pq.read_table(files / "now.parquet").set_column(1, "y", pa.array(y)), tmp_path / "far.parquet")
    job = parse_job(text(files, "weighted", calibration=CALIBRATED), folder=aimed[1])
    with pytest.raises(FitError, match=r"leave calibration out and state its .* with a lower mechanism\.aim") as told:
        dpdist.run(job, tmp_path / "work", input=tmp_path / "far.parquet")
    assert not any(nothing in str(told.value) for nothing in ("pool strata", "proper prior", "drop predictors"))


@pytest.mark.parametrize("out", ["nowhere/calibration.yaml", "."])
def test_a_calibration_that_cannot_be_written_is_refused_before_it_is_tuned(
    out: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdist.quality.calibrate.Trials.__call__", lambda *_: pytest.fail("it was tuned"))
    job = parse_job(text(files, "perturbed_histogram", reference=False, model="null"))
    with pytest.raises(JobError, match="--out"):
        dpdist.calibrate(job, tmp_path / out, files / "before.parquet", period="2020")


NOTHING = [
    ("censor_uw", {"reference": ""}, "has no constants that could be tuned"),
    ("centred", {}, "there is none between halves of one file"),
    ("censor_w", {"reference": ""}, "no reference"),
    ("censor_w", {"reference": "reference: {path: before.parquet}"}, "period is not stated"),
    (
        "weighted, weights: linear",
        {"epsilon": "0.000001", "reference": ""},
        "no constants bring the bound below the target",
    ),
]


@pytest.mark.parametrize(("mechanism", "said", "found"), NOTHING)
def test_what_cannot_be_tuned_is_said(
    mechanism: str, said: dict[str, str], found: str, files: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.parquet"
    pq.write_table(pq.read_table(files / "before.parquet").slice(0, 30), small)
    tuned = "epsilon" in said
    chosen = None if "reference" in said and not tuned else small
    with pytest.raises(JobError, match=found):
        dpdist.calibrate(
            parse_job(text(files, mechanism, **said)),
            tmp_path / "calibration.yaml",
            chosen,
            replicates=1,
            period="2020" if tuned else None,
        )
    assert not (tmp_path / "calibration.yaml").exists()


def test_a_reference_of_the_jobs_own_period_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="the job's own"):
        parse_job(text(files, "censor_w", period="2020"))
    job = parse_job(text(files, "perturbed_histogram", reference=False, model="null"))
    with pytest.raises(JobError, match="of the job's own period"):
        dpdist.calibrate(job, tmp_path / "calibration.yaml", files / "before.parquet", period="2021")


def test_one_record_is_too_few_to_tune_on(files: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(files / "before.parquet").slice(0, 1), tmp_path / "one.parquet")
    with pytest.raises(DataError, match="1 records, too few"):
        dpdist.calibrate(parse_job(text(files, "censor_w")), tmp_path / "calibration.yaml", tmp_path / "one.parquet")


def test_the_command_writes_the_file_and_names_unknown_measures(files: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text(files, "perturbed_histogram", reference=False, model="null"))
    options = ["--out", str(tmp_path / "calibration.yaml"), "--reference", str(files / "before.parquet")]
    command = ["calibrate", str(tmp_path / "job.yaml"), *options, "--period", "2020"]
    done = succeed(*command)
    assert "Calibrated in" in done
    assert isinstance(load_calibration(tmp_path / "calibration.yaml").mechanism.bins, int)
    refused = invoke(*command, "--measure", "taste")
    assert refused.exit_code == 2
    assert "'taste' is not a measure" in refused.output


def test_a_measure_of_its_own_finds_other_constants(files: Path, tmp_path: Path) -> None:
    job: Job = parse_job(text(files, "perturbed_histogram", reference=False, model="null"))
    losses = [
        dpdist.calibrate(job, tmp_path / "c.yaml", files / "before.parquet", measure, period="2020").loss
        for measure in ("max_ecdf", "avg_ecdf", "mean", "median")
    ]
    assert len(set(losses)) == 4
    assert all(0 <= loss < 1 for loss in losses)
