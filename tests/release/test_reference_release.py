"""Releases with a reference, end to end: what is fixed on it, what is said of it, and references that are refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError, FitError, JobError, WorkspaceError
from dpdist.core.files import sha256
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.storage.store import read_mark
from dpdist.storage.workspace import Workspace

REGIONS, N, SETS = ("north", "south"), 300, 2
CLASSES = {
    "centred": "strict for exact draws",
    "censor_w": "strict for exact draws",
    "weighted, aim: 0.7": "asymptotic",
    "weighted_e": "asymptotic",
}

JOB = """
dataset: shares
period: "2021"
input: {{path: {path}}}
columns:
  region: {{levels: [north, south, west]}}
  y: {{bounds: [0, 1]}}
strata: [region]
outcome: y
model: {{family: beta}}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: 2
reference: {{path: {reference}, period: "2020", provenance: public-use file of 2020}}
sampler: {{name: grid, draws: 200}}
tables:
  - {{name: shares, by: [region], statistics: [count, {{mean: y}}]}}
runtime: {{executor: {executor}, workers: 2}}
"""


def shares(seed: int, regions: tuple[str, ...] = REGIONS, size: int = N) -> pa.Table:
    rng = np.random.default_rng(seed)
    y = np.concatenate([rng.beta(1.5, 3 - k, size) for k in range(len(regions))])
    return pa.table({"region": np.repeat(np.array(regions, dtype=object), size), "y": y})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`now`, and `before` with a region that the current file does not have."""
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(shares(1), folder / "now.parquet")
    pq.write_table(shares(2, (*REGIONS, "west"), 500), folder / "before.parquet")
    return folder


def job(files: Path, mechanism: str, reference: str = "before.parquet", **said: str) -> Job:
    plain = {"epsilon": "8", "adjacency": "zero_out", "executor": "serial", "path": str(files / "now.parquet")}
    return parse_job(JOB.format(mechanism=mechanism, reference=files / reference, **{**plain, **said}))


def public_files(workspace: Path) -> dict[str, bytes]:
    public = workspace / "public"
    return {str(path.relative_to(public)): path.read_bytes() for path in public.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=CLASSES)
def release(request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    workspace = tmp_path_factory.mktemp(request.param.split(",")[0]) / "work"
    dpdist.run(job(files, request.param), workspace)
    return request.param, workspace


def test_a_reference_makes_censored_mechanisms_strict_and_is_named_by_its_checksum(
    release: tuple[str, Path], files: Path
) -> None:
    mechanism, workspace = release
    said = statement_of(workspace)
    assert (said["guarantee"], said["epsilon_per_set"]) == (CLASSES[mechanism], "4")
    assert said["reference"]["sha256"] == sha256(files / "before.parquet")
    assert (said["reference"]["records"], said["reference"]["period"]) == (1500, "2020")
    assert any("public-use file of 2020" in assumption for assumption in said["assumptions"])
    constants = {"centred": {"drift"}, "weighted, aim: 0.7": {"weights", "aim"}}.get(mechanism, {"weights"})
    assert set(said["mechanism"]) == {"name", "fallback"} | constants
    assert set(said["reference"].get("power", ())) == (set(REGIONS) if mechanism == "centred" else set())
    manifest = json.loads((workspace / "public" / "manifest.json").read_text())
    assert manifest["reference"]["sha256"] == said["reference"]["sha256"]
    assert "path" not in manifest["job"]["reference"]
    assert not any(str(files).encode() in content for content in public_files(workspace).values())


def test_without_a_reference_the_same_mechanism_is_asymptotic(files: Path) -> None:
    text = JOB.format(
        mechanism="censor_w", reference="none", epsilon="8", adjacency="zero_out", executor="serial", path="x"
    )
    without = parse_job("\n".join(line for line in text.splitlines() if not line.startswith("reference")))
    assert (without.strict, job(files, "censor_w").strict) == (False, True)
    with pytest.raises(JobError, match=r"'centred' centres likelihoods at a fit of the reference, and the job names none"):
        parse_job("\n".join(line for line in text.replace("censor_w", "centred").splitlines() if "reference" not in line))


@pytest.mark.parametrize(("adjacency", "clamp"), [("zero_out", 2.0), ("substitution", 1.0)])
def test_the_clamp_follows_the_adjacency(files: Path, tmp_path: Path, adjacency: str, clamp: float) -> None:
    dpdist.run(job(files, "censor_w", adjacency=adjacency), tmp_path / "work")
    strata = pd.read_parquet(tmp_path / "work" / "confidential" / "strata.parquet")
    assert 0.8 * clamp < strata["database_bound"].max() <= clamp


def test_weights_are_the_rules_value_under_fits_of_the_reference(release: tuple[str, Path], files: Path) -> None:
    """Recomputed: an unweighted fit of the reference by another generator gives the same weights but for draws' chance."""
    mechanism, workspace = release
    bounds = pd.read_parquet(workspace / "confidential" / "bounds.parquet")
    alpha = bounds["privacy_weight"]
    if mechanism == "centred":
        power = statement_of(workspace)["reference"]["power"]
        np.testing.assert_allclose(alpha, bounds["stratum"].map(power), rtol=1e-9)
        assert all(0.3 < value <= 1.0 for value in power.values())
        return
    ours = bounds["unweighted_record_bound"]
    largest = bounds.groupby("stratum")[["unweighted_record_bound", "privacy_weight"]].max()
    assert np.isfinite(ours).all()
    assert alpha.between(0, 1).all()
    assert (largest["privacy_weight"] > 0.5).all()
    if mechanism.startswith("weighted"):
        assert (bounds["weighted_record_bound"] <= 2.0).all()


def test_another_current_file_does_not_move_the_weight_of_a_record(files: Path, tmp_path: Path) -> None:
    """α of the records that two files share is the same to the last bit; without a reference it is not."""
    table = pq.read_table(files / "now.parquet")
    y = table.column("y").to_numpy().copy()
    y[0] = 1e-12
    pq.write_table(table.set_column(1, "y", pa.array(y)), tmp_path / "other.parquet")
    text = JOB.format(mechanism="censor_w", reference=files / "before.parquet", epsilon="8", adjacency="zero_out",
                      executor="serial", path=files / "now.parquet")  # fmt: skip
    without = parse_job("\n".join(line for line in text.splitlines() if not line.startswith("reference")))
    found = {}
    for name, said in (("with", parse_job(text)), ("without", without)):
        for number, path in enumerate((files / "now.parquet", tmp_path / "other.parquet")):
            workspace = tmp_path / f"{name}-{number}"
            dpdist.run(said, workspace, input=path)
            bounds = pd.read_parquet(workspace / "confidential" / "bounds.parquet").set_index("record")
            found[name, number] = bounds["privacy_weight"].sort_index().to_numpy()[1:N]
    assert np.array_equal(found["with", 0], found["with", 1])
    assert not np.allclose(found["without", 0], found["without", 1], atol=0.01)


def test_what_a_reference_fixes_is_the_same_in_every_run(release: tuple[str, Path], files: Path, tmp_path: Path) -> None:
    mechanism, workspace = release
    dpdist.run(job(files, mechanism), tmp_path / "again")
    first, again = (
        pd.read_parquet(w / "confidential" / "bounds.parquet")["privacy_weight"] for w in (workspace, tmp_path / "again")
    )
    assert np.array_equal(first, again)
    assert public_files(workspace)["released/set-1.json"] != public_files(tmp_path / "again")["released/set-1.json"]


FORM = re.compile(r"(-\d{6})-\d+$")
"""The form of what was learned, at the end of a name; names of earlier versions have none."""


def test_what_an_earlier_version_learned_is_learned_again(release: tuple[str, Path], files: Path, tmp_path: Path) -> None:
    """Its marks and files are whole, in a form that nobody reads any more, under the names that they had."""
    mechanism, workspace = release
    copy = tmp_path / "work"
    shutil.copytree(workspace, copy)
    shutil.rmtree(copy / "public")
    confidential = copy / "confidential"
    for mark in (confidential / "marks").glob("result-*"):
        mark.unlink()
    for mark in sorted((confidential / "marks").glob("reference-*")):
        (path,) = (confidential / name for name in read_mark(mark) or ())
        path.unlink()
        mark.unlink()
        former = path.with_stem(FORM.sub(r"\1", path.stem))
        former.write_bytes(b"cnowhere.gone\nReferenceSummary\n.")
        Workspace(copy).mark(FORM.sub(r"\1", mark.stem), [former])
    dpdist.run(job(files, mechanism), copy)
    assert public_files(copy) == public_files(workspace)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_the_public_bytes_are_those_of_an_undisturbed_serial_run(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys_of: Callable[[str], AbstractContextManager[None]],
) -> None:
    with keys_of("whole"):
        dpdist.run(job(files, "censor_w"), tmp_path / "whole")
    with keys_of("whole"):
        dpdist.run(job(files, "censor_w", executor="dask"), tmp_path / "dask")
    with keys_of("whole"), monkeypatch.context() as patch:
        patch.setattr("dpdist.storage.byproducts.StratumStore.close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpdist.run(job(files, "censor_w"), tmp_path / "killed")
    learned = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "confidential" / "reference").iterdir()}
    dpdist.run(job(files, "censor_w"), tmp_path / "killed")
    assert len(learned) == len(REGIONS)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in learned.items())
    assert public_files(tmp_path / "whole") == public_files(tmp_path / "dask") == public_files(tmp_path / "killed")


def test_a_plan_names_the_reference(files: Path) -> None:
    assert dpdist.plan(job(files, "centred")).reference.records == 1500


def test_a_workspace_belongs_to_one_reference(release: tuple[str, Path], files: Path) -> None:
    mechanism, workspace = release
    pq.write_table(shares(3), files / "other.parquet")
    with pytest.raises(WorkspaceError, match=r"reference\.sha256"):
        dpdist.run(job(files, mechanism, "other.parquet"), workspace)


def write(files: Path, name: str, table: pa.Table) -> str:
    if name.endswith(".csv"):
        pa_csv.write_csv(table, files / name)
    else:
        pq.write_table(table, files / name)
    return name


def shuffled(table: pa.Table) -> pa.Table:
    return table.take(np.random.default_rng(0).permutation(len(table)))


REFUSED: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "same.parquet": (lambda now: now, "it is the current file"),
    "shuffled.parquet": (shuffled, "it is the current file"),
    "text.csv": (shuffled, "it is the current file"),
    "most.parquet": (lambda now: pa.concat_tables([now.slice(0, 400), shares(5)]), "it is the current file"),
    "column.parquet": (lambda now: shares(6).drop_columns(["region"]), "missing column"),
    "stratum.parquet": (lambda now: shares(6, ("north",)), "region = south"),
    "few.parquet": (lambda now: pa.concat_tables([shares(6, ("north",)), shares(7, ("south",), 2)]), "too few"),
    "level.parquet": (lambda now: shares(6, ("north", "south", "east")), "not among the declared levels"),
    "bounds.parquet": (lambda now: shares(6).set_column(1, "y", pa.array(np.full(600, 1.5))), "too large"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_reference_that_will_not_do_is_refused_before_anything_is_written(name: str, files: Path, tmp_path: Path) -> None:
    make, found = REFUSED[name]
    write(files, name, make(pq.read_table(files / "now.parquet")))
    with pytest.raises(DataError, match=found) as told:
        dpdist.run(job(files, "centred", name), tmp_path / "work")
    assert name in str(told.value)
    assert not (tmp_path / "work").exists()


def test_a_reference_that_is_not_there_is_named(files: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        dpdist.validate(job(files, "centred", "nowhere.parquet"))


WRONG = [
    ("censor_uw", "does not use a reference"),
    ("unweighted", "does not use a reference"),
    ("weighted, weights: none", "nothing is tuned on a reference"),
    ("censor_w, drift: 0.1", "has no drift"),
    ("censor_w, aim: 0.5", "has no aim"),
    ("centred, drift: 0.7", "a number of at most 0.66"),
]


@pytest.mark.parametrize(("mechanism", "found"), WRONG)
def test_contradictions_are_named(mechanism: str, found: str, files: Path) -> None:
    with pytest.raises(JobError, match=found):
        job(files, mechanism)


def test_a_spurious_mode_is_found_on_the_reference_before_anything_is_released(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without κ (a = 1 under a narrow clamp) the check refuses; with the rule's a the same job has a release."""
    said = job(files, "centred", epsilon="1")
    with monkeypatch.context() as patch:
        patch.setattr("dpdist.mechanisms.pseudo_posterior.on_reference.power", lambda *_: 1.0)
        with pytest.raises(DataError, match="a spurious mode dominates") as told:
            dpdist.run(said, tmp_path / "without")
    assert [problem.where for problem in told.value.problems] == ["stratum north", "stratum south"]
    assert not (tmp_path / "without" / "public").exists()
    dpdist.run(said, tmp_path / "with")
    assert (tmp_path / "with" / "public" / "statement.json").exists()


LOGNORMAL = """
dataset: salaries
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  region: {{levels: [north, south]}}
  y: {{bounds: [0, 1000000]}}
survey: {{weight: w}}
strata: [region]
outcome: y
model: {{family: lognormal}}
mechanism: {{name: weighted, weights: fixed_point, aim: 0.5, fallback: {fallback}}}
budget: {{epsilon: "6"}}
reference: {{path: {folder}/before.parquet}}
sampler: {{name: exact, draws: 200}}
tables:
  - {{name: t, by: [region], statistics: [count, {{mean: y}}]}}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Salaries with a stratum of five records, on which no weights meet the target under the improper prior."""
    folder = tmp_path_factory.mktemp("small")
    for seed, name in ((1, "now"), (2, "before")):
        rng = np.random.default_rng(seed)
        y, w = np.exp(rng.normal(11, 0.4, 405)), np.exp(rng.normal(3, 0.3, 405))
        region = np.array(["north"] * 400 + ["south"] * 5, dtype=object)
        pq.write_table(pa.table({"region": region, "y": y, "w": w}), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize("fallback", ["refuse", "pool", "proper_prior"])
def test_a_stratum_that_the_reference_cannot_serve_takes_the_declared_fallback(
    fallback: str, small: Path, tmp_path: Path
) -> None:
    said = parse_job(LOGNORMAL.format(folder=small, fallback=fallback))
    if fallback == "refuse":
        with pytest.raises(
            DataError, match=r"south.*p \+ 1 = 2, so the posterior is improper; a reference's record counts"
        ):
            dpdist.run(said, tmp_path / "work")
        return
    dpdist.run(said, tmp_path / "work")
    strata = pd.read_parquet(tmp_path / "work" / "confidential" / "strata.parquet").set_index("stratum")
    assert strata["fit"].to_dict() == ({"all": "pooled"} if fallback == "pool" else {"north": "strata", "south": "proper"})
    assert (strata["database_bound"] <= 3.0).all()
    assert any("search on a synthetic sample" in text for text in statement_of(tmp_path / "work")["standard_errors"])
    dpdist.run(said, tmp_path / "work")


@pytest.mark.parametrize("fallback", ["refuse", "pool"])
def test_a_reference_that_serves_no_fit_is_bad_input_whatever_the_fallback(
    fallback: str, small: Path, tmp_path: Path
) -> None:
    """Without strata there is nothing to pool, and nothing was fitted to the current file."""
    pq.write_table(pq.read_table(small / "before.parquet").slice(0, 5), small / "five.parquet")
    text = (
        LOGNORMAL.format(folder=small, fallback=fallback)
        .replace("strata: [region]", "strata: []")
        .replace("by: [region], ", "")
    )
    with pytest.raises(DataError, match="stratum all") as told:
        dpdist.run(parse_job(text.replace("before", "five")), tmp_path / "work")
    assert told.value.exit_code == 2


@pytest.mark.parametrize(
    ("fallback", "strata", "ways"),
    [
        ("refuse", "[region]", ("lower mechanism.aim", "fallback: pool", "fallback: proper_prior", "raise the budget")),
        ("pool", "[region]", ("lower mechanism.aim", "fallback: proper_prior", "raise the budget")),
        ("pool", "[]", ("lower mechanism.aim", "fallback: proper_prior", "raise the budget")),
        ("proper_prior", "[region]", ("lower mechanism.aim", "fallback: pool", "raise the budget")),
    ],
)
def test_an_error_proposes_no_fallback_that_the_job_has(
    fallback: str, strata: str, ways: tuple[str, ...], small: Path, tmp_path: Path
) -> None:
    """Records far from the reference's: under weights that it fixed the bound is over the target in every fit."""
    table = pq.read_table(small / "now.parquet").slice(0, 400)
    region = np.where(np.arange(400) % 2, "north", "south").astype(object)
    for name, shift in (("halves", 0.0), ("far", 4.0)):
        y = np.exp(np.log(table.column("y").to_numpy()) * (1 + shift / 50) + np.random.default_rng(9).normal(0, 1e-3, 400))
        pq.write_table(table.set_column(0, "region", pa.array(region)).set_column(1, "y", pa.array(y)),
                       small / f"{name}.parquet")  # fmt: skip
    text = LOGNORMAL.format(folder=small, fallback=fallback).replace("strata: [region]", f"strata: {strata}")
    text = text.replace("by: [region], ", "")
    said = parse_job(text.replace("before", "halves").replace("now", "far").replace("aim: 0.5", "aim: 1.0"))
    with pytest.raises(FitError) as told:
        dpdist.run(said, tmp_path / "work")
    known = ("lower mechanism.aim", "fallback: pool", "fallback: proper_prior", "raise the budget")
    assert tuple(way for way in known if way in str(told.value)) == ways
