"""What earlier versions made is opened, verified, referred to and charged; later formats are refused. It is published
again where its mechanism is still there.

The folders of tests/fixtures were made by the version in their name, and are never made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
import yaml
from command_line import invoke, succeed
from small_release import JOB, survey

import dpdist
from dpdist.core import files
from dpdist.core.errors import DpdistError, JobError, WorkspaceError
from dpdist.core.files import sha256
from dpdist.core.minisign import PublicKey
from dpdist.core.public_files import MANIFEST, SIGNATURE, canonical, release_id
from dpdist.job.specs import AGAIN
from dpdist.opening.verifying import problems
from dpdist.survey.earlier_release import read_earlier

FIXTURES = Path(__file__).parents[1] / "fixtures"
MADE = sorted(folder.parent for folder in FIXTURES.glob("*/*/manifest.json"))
"""Public folders of earlier versions."""
VERSIONS = sorted({folder.parent for folder in MADE})
STATEMENT = "statement.json"
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"


def named(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"


@pytest.fixture(params=MADE, ids=named)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A workspace with the public folder of an earlier version's release."""
    shutil.copytree(request.param, tmp_path / "workspace" / "public")
    return tmp_path / "workspace"


def tables(public: Path) -> dict[str, pd.DataFrame]:
    return {path.stem: pd.read_parquet(path) for path in sorted((public / "tables").glob("*.parquet"))}


def test_there_are_releases_of_an_earlier_version() -> None:
    """They take little room, and both kinds are there: with tables to refer to, and with sets to combine."""
    assert {folder.name for folder in MADE} == {"tables", "records"}
    for folder in VERSIONS:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert size <= 300_000, folder
    for folder in MADE:
        versions = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["versions"]
        assert versions["dpdist"] == folder.parent.name


def test_it_is_whole_and_opens(earlier: Path) -> None:
    """Control: with one byte more it is not."""
    release = dpdist.open_release(earlier)
    assert problems(release.folder) == []
    assert release.statement["period"] == "2021"
    assert {name: len(table) for name, table in release.tables.items()} == {
        name: len(table) for name, table in tables(release.folder).items()
    }
    with (release.folder / STATEMENT).open("a") as file:
        file.write(" ")
    with pytest.raises(WorkspaceError, match="not the file that manifest"):
        dpdist.open_release(earlier)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)
def test_its_signature_is_that_of_the_key_beside_it(version: Path) -> None:
    key = PublicKey.named("agency.key.pub", version)
    assert problems(version / "records", key) == []
    assert problems(version / "tables", key) == [f"{SIGNATURE}: no such file"]


PUBLISHED = [folder for folder in MADE if folder.name == "records"]
"""Releases whose mechanism this version has."""


def test_of_a_mechanism_that_is_no_more_it_is_not_published_again_and_says_who_can(tmp_path: Path) -> None:
    """One sentence, before anything is written; opened and verified it is still, and what was not checked is said."""
    (folder,) = [folder for folder in MADE if folder not in PUBLISHED]
    shutil.copytree(folder, tmp_path / "workspace" / "public")
    before = {path: path.read_bytes() for path in (tmp_path / "workspace").rglob("*") if path.is_file()}
    with pytest.raises(WorkspaceError, match="'reference_tables', which this version does not have") as refused:
        dpdist.publish(tmp_path / "workspace")
    assert refused.value.remedy == AGAIN
    after = {path: path.read_bytes() for path in (tmp_path / "workspace").rglob("*") if path.is_file()}
    assert {path: content for path, content in after.items() if path.suffix != ".lock"} == before
    text = succeed("verify", folder)
    assert "dpdist 0.2, which has 'reference_tables', can make them again" in " ".join(text.split())
    shown = invoke("report", tmp_path / "workspace")
    assert "reference_tables" in json.loads((folder / "released" / "job.json").read_text())["mechanism"]["name"]
    assert shown.exit_code == 0, shown.output


def test_a_claim_of_a_mechanism_that_is_no_more_must_still_follow_from_its_job(tmp_path: Path) -> None:
    """Control: the folder as it is has no fault."""
    (folder,) = [folder for folder in MADE if folder not in PUBLISHED]
    public = tmp_path / "public"
    shutil.copytree(folder, public)
    assert problems(public) == []
    restate(public, epsilon="2")
    assert problems(public)[0].startswith('statement.json: epsilon "2"')


@pytest.mark.parametrize("folder", PUBLISHED, ids=named)
def test_it_is_published_again_with_the_same_figures(folder: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "workspace"
    shutil.copytree(folder, earlier / "public")
    before = tables(earlier / "public")
    claims = ("guarantee", "epsilon", "adjacency", "protected_by", "metered")
    old = json.loads((earlier / "public" / STATEMENT).read_text(encoding="utf-8"))
    dpdist.publish(earlier)
    after, new = tables(earlier / "public"), json.loads((earlier / "public" / STATEMENT).read_text(encoding="utf-8"))
    assert list(after) == list(before)
    for name, table in before.items():
        pd.testing.assert_frame_equal(after[name], table, rtol=1e-9)
    assert {name: new.get(name) for name in claims} == {name: old.get(name) for name in claims}
    assert new["format"] == files.STATEMENT
    assert problems(earlier / "public") == []


@pytest.fixture
def period(tmp_path: Path) -> Callable[[Path], dict[str, Any]]:
    """The job of a fixture's next period, which refers to the fixture and is charged in a copy of its ledger."""

    def of(version: Path) -> dict[str, Any]:
        job: dict[str, Any] = yaml.safe_load((version / "tables.yaml").read_text(encoding="utf-8"))
        shutil.copyfile(version / "ledger.sqlite", tmp_path / "ledger.sqlite")
        reference = {"release": str(version / "tables")}
        ledger = {"url": str(tmp_path / "ledger.sqlite"), "total": "6"}
        return job | {"period": "2022", "reference": reference, "ledger": ledger}

    return of


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)
def test_it_is_referred_to_and_its_charge_counts(
    version: Path, period: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    """The ledger of that version has 3 of 6; a second period takes the rest, and a third is refused."""
    job = period(version)
    made = dpdist.run(job, tmp_path / "second", input=survey(300))
    assert made.statement["reference"]["chain_epsilon"] == "6"
    exported = invoke("ledger", "export", "--json", "--ledger", tmp_path / "ledger.sqlite")
    entries = json.loads(exported.output)
    reserved = [entry for entry in entries if entry["kind"] == "reserve" and entry["dataset"] == "small"]
    charged = {entry["period"]: Fraction(entry["budget"]) for entry in reserved}
    assert charged == {"2021": 3, "2022": 3}
    with pytest.raises(DpdistError, match="would bring the sum to 9"):
        dpdist.run(job | {"period": "2023"}, tmp_path / "third", input=survey(300))


def test_an_earlier_job_file_means_the_same(tmp_path: Path) -> None:
    """The job of a mechanism that is still there is the one that its manifest has, published always: then the default,
    which is written now. One of a former mechanism differs in that, and in what it spends before, and says so."""
    for folder in MADE:
        job = dpdist.load_job(folder.parent / f"{folder.name}.yaml")
        stored = json.loads((folder / "released" / "job.json").read_text(encoding="utf-8"))
        stored |= {"publish": "always"}
        if folder not in PUBLISHED:
            assert [one.code for one in job.of_alias] == ["former_mechanism"]
            stored |= {"mechanism": job.public["mechanism"], "reference": job.public["reference"]}
            # Former mechanisms but packages refuse small counts, as they did, also where no minimum was stated.
            if stored.get("frame_minimum") is None and job.frame_minimum is not None:
                stored |= {"frame_minimum": job.frame_minimum}
        assert json.loads(json.dumps(job.public | {"publish": "always"})) == json.loads(json.dumps(stored))


def vouch(public: Path, **edits: object) -> None:
    """Writes the manifest of the files as they are, with other entries: as a later dpdist would."""
    manifest = json.loads((public / MANIFEST).read_text(encoding="utf-8")) | edits
    manifest["files"] = {name: sha256(public / name) for name in manifest["files"]}
    (public / MANIFEST).write_bytes(canonical(manifest | {"release": release_id(manifest)}))


def restate(public: Path, **edits: object) -> None:
    """Writes the statement with other entries, under a manifest that vouches for it."""
    path = public / STATEMENT
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | edits), encoding="utf-8")
    vouch(public)


LATER = {
    "manifest": (lambda public, number: vouch(public, format=number), files.RELEASE, MANIFEST),
    "statement": (lambda public, number: restate(public, format=number), files.STATEMENT, STATEMENT),
}


@pytest.mark.parametrize(("write", "number", "file"), LATER.values(), ids=LATER)
def test_a_release_of_a_later_format_is_refused_by_name(
    write: Callable[[Path, int], None], number: int, file: str, tmp_path: Path
) -> None:
    """To open, publish again and refer to; `verify` names it. Control: the same edit with today's number."""
    workspace, public = tmp_path / "workspace", tmp_path / "workspace" / "public"
    shutil.copytree(FIXTURES / "0.1.1" / "tables", public)
    write(public, number)
    assert problems(public) == []
    dpdist.open_release(workspace)
    assert read_earlier(public).records == 160
    write(public, number + 1)
    fault = f"{file}: format {number + 1}, which a dpdist later than"
    assert [line.startswith(fault) for line in problems(public)] == [True]
    for act in (dpdist.open_release, dpdist.publish, lambda folder: read_earlier(folder / "public")):
        with pytest.raises(DpdistError) as refused:
            act(workspace)
        assert fault in str(refused.value)
        assert "remedy:  install a later dpdist: pip install --upgrade dpdist" in str(refused.value)


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (files.JOB + 1, "which a dpdist later than"),
        (0, "which no version of dpdist writes"),
        ('"one"', "which no version of dpdist writes"),
    ],
)
def test_a_job_of_another_format_is_refused_alone(number: object, fault: str) -> None:
    """Its other keys are not judged: a later dpdist may know them. Control: today's number changes nothing."""
    assert dpdist.parse_job(JOB + f"format: {files.JOB}\n") == dpdist.parse_job(JOB)
    assert dpdist.parse_job(JOB + f"format: {files.JOB}\n").public == dpdist.parse_job(JOB).public
    with pytest.raises(JobError, match=fault) as refused:
        dpdist.parse_job(JOB + f"format: {number}\na_later_key: 1\n")
    assert [problem.where for problem in refused.value.problems] == ["format"]


def test_a_workspace_of_a_later_format_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """Control: with today's number the same command finds the release that it made."""
    survey(300).to_parquet(tmp_path / "survey.parquet")
    job = dpdist.parse_job(JOB)
    dpdist.run(job, tmp_path / "ws", input=tmp_path / "survey.parquet")
    dpdist.run(job, tmp_path / "ws", input=tmp_path / "survey.parquet")
    path = tmp_path / "ws" / "confidential" / "identity.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["format"] == files.WORKSPACE
    path.write_text(json.dumps(content | {"format": files.WORKSPACE + 1}), encoding="utf-8")
    with pytest.raises(WorkspaceError, match=f"of format {files.WORKSPACE + 1}, which a dpdist later") as refused:
        dpdist.run(job, tmp_path / "ws", input=tmp_path / "survey.parquet")
    assert "install a later dpdist" in str(refused.value)


def test_public_files_follow_their_schemas(earlier: Path) -> None:
    """As made, and published again. Control: a statement without a guarantee, and a manifest without its files."""
    for _ in range(2):
        for name, page, needed in ((STATEMENT, "statement-1.json", "guarantee"), (MANIFEST, "manifest-1.json", "files")):
            schema = json.loads((SCHEMAS / page).read_text(encoding="utf-8"))
            content = json.loads((earlier / "public" / name).read_text(encoding="utf-8"))
            jsonschema.validate(content, schema, jsonschema.Draft202012Validator)
            with pytest.raises(jsonschema.ValidationError, match=needed):
                jsonschema.validate({key: value for key, value in content.items() if key != needed}, schema)
        if json.loads((earlier / "public" / STATEMENT).read_text())["mechanism"]["name"] != "weighted":
            break
        dpdist.publish(earlier)
