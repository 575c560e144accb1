"""Kept noise in releases: it meets the sums that it was drawn for and no others, and nobody draws it a second time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_files import public_files, statement_of
from small_release import JOB as STRICT, survey as strict_survey
from strict_survey import job as tables_job, survey

import dpdist
from dpdist.core.errors import WorkspaceError
from dpdist.core.public_files import UNFIT
from dpdist.core.records import Floats, Ints
from dpdist.job import Job
from dpdist.mechanisms.tables import cells
from dpdist.mechanisms.tables.limits import TableLimits

PLAIN = ("[laplace_composed, laplace_finest, reference_only]", "[]")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("files")
    for seed, name in ((1, "now"), (2, "before")):
        survey(seed, 1500).to_parquet(folder / f"{name}.parquet")
    return tables_job(folder, edit=PLAIN)


@pytest.fixture(scope="module")
def published(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("published") / "ws"
    dpdist.run(job, workspace)
    return workspace


def sums(workspace: Path) -> Floats:
    """Released sums of the first measurement, of all records."""
    said = json.loads((workspace / "public" / "released" / "set-1.json").read_text())
    return np.array(said["strata"]["all"]["noisy"][0])


def recoded(patch: pytest.MonkeyPatch) -> None:
    """Code that clips elsewhere, as another version or an experiment may."""
    cells.PLANS.clear()
    patch.setattr("dpdist.mechanisms.tables.table_law.CANDIDATES", 3)


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """Limits of another test's code are not remembered."""
    yield
    cells.PLANS.clear()


def unbound(patch: pytest.MonkeyPatch) -> None:
    """Kept noise as it was when nothing stood beside it."""
    patch.setattr("dpdist.storage.noise_once._differences", lambda *_: [])


def test_unbound_noise_under_changed_code_would_tell_exact_sums(
    job: Job, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two public folders differ by what noise was to hide, to the last bit: sums without noise give the same difference."""
    with monkeypatch.context() as patch:
        recoded(patch)
        unbound(patch)
        dpdist.run(job, tmp_path / "replayed", replay=published / "confidential")
    exact = {}
    for name, code in (("as released", lambda _: None), ("recoded", recoded)):
        with monkeypatch.context() as patch:
            cells.PLANS.clear()
            code(patch)
            patch.setattr("dpdist.privacy.noise.whole_laplace", lambda _, size: np.zeros(size))
            dpdist.run(job, tmp_path / name)
            exact[name] = sums(tmp_path / name)
    told, secret = sums(tmp_path / "replayed") - sums(published), exact["recoded"] - exact["as released"]
    assert np.array_equal(told, secret)
    assert np.abs(secret).max() > 2**20, "more than a record"
    assert np.abs(sums(published) - exact["as released"]).max() > 2**18, "each folder alone hides its sums"


def test_a_replay_under_changed_code_is_refused(
    job: Job, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: under the code that drew the noise it gives the same public bytes."""
    with monkeypatch.context() as patch:
        recoded(patch)
        with pytest.raises(WorkspaceError, match=r"limits, units or bins\); the exact sums(?s:.*)code that drew it"):
            dpdist.run(job, tmp_path / "ws", replay=published / "confidential")
    assert not (tmp_path / "ws" / "public").exists()
    cells.PLANS.clear()
    dpdist.run(job, tmp_path / "again", replay=published / "confidential")
    assert public_files(tmp_path / "again") == public_files(published)


def test_a_resume_under_changed_code_is_refused(
    job: Job, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was killed when its noise was drawn; its limits are learned again."""
    shutil.copytree(published, tmp_path / "ws")
    for name in ("public", "confidential/reference", "confidential/parts"):
        shutil.rmtree(tmp_path / "ws" / name)
    with monkeypatch.context() as patch:
        recoded(patch)
        with pytest.raises(WorkspaceError, match="drawn for something else"):
            dpdist.run(job, tmp_path / "ws")
    assert not (tmp_path / "ws" / "public").exists()


def test_sums_that_changed_alone_are_refused(
    job: Job, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are the same; a record is rounded otherwise."""
    right = TableLimits.contributions

    def other(limits: TableLimits, base: Ints, *values: Any) -> Floats:
        return right(limits, base, *values) + (np.arange(len(base)) == 7)[:, None]

    monkeypatch.setattr(TableLimits, "contributions", other)
    with pytest.raises(WorkspaceError, match="something else: the exact sums\n"):
        dpdist.run(job, tmp_path / "ws", replay=published / "confidential")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """Two strata with noise of their own, published; and their job."""
    folder = tmp_path_factory.mktemp("strict")
    strict_survey().to_parquet(folder / "survey.parquet")
    said = dpdist.parse_job(STRICT.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{"))
    dpdist.run(said, folder / "ws")
    return said, folder / "ws"


def lost(confidential: Path) -> None:
    shutil.rmtree(confidential / "noise")


def flipped(confidential: Path) -> None:
    for path in (confidential / "noise").iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def truncated(confidential: Path) -> None:
    for path in (confidential / "noise").iterdir():
        path.write_bytes(path.read_bytes()[:-40])


def marks_lost(confidential: Path) -> None:
    lost(confidential)
    shutil.rmtree(confidential / "marks")


def strata_lost(confidential: Path) -> None:
    """All but the mark of gathering, which names none of it."""
    lost(confidential)
    for path in (confidential / "marks").glob("*strata-*"):
        path.unlink()


Damage = Callable[[Path], None]


@pytest.mark.parametrize("damage", [lost, flipped, truncated, marks_lost, strata_lost])
def test_a_published_release_is_never_made_again_under_other_noise(
    strict: tuple[Job, Path], tmp_path: Path, damage: Damage
) -> None:
    """Noise and one byte of a part are damaged: the same command refuses, by name. Control: with its noise it resumes."""
    said, published = strict
    shutil.copytree(published, tmp_path / "ws")
    confidential = tmp_path / "ws" / "confidential"
    part = confidential / "parts" / "strata-000001" / "stratum.json"
    part.write_text(part.read_text().replace("1", "2", 1))
    before = public_files(tmp_path / "ws")
    damage(confidential)
    for _ in range(2):
        with pytest.raises(WorkspaceError, match=r"noise/strata-00000\d-00\d.npz is (missing|damaged)") as told:
            dpdist.run(said, tmp_path / "ws")
        assert told.value.exit_code == 2
        assert "restore it from a copy" in told.value.remedy
        assert public_files(tmp_path / "ws") == before
    shutil.copytree(published / "confidential" / "noise", confidential / "noise", dirs_exist_ok=True)
    dpdist.run(said, tmp_path / "ws")
    assert public_files(tmp_path / "ws") == before


@pytest.mark.parametrize("left", ["in the swap", "taken away"])
def test_a_release_whose_public_folder_is_elsewhere_is_not_made_again_under_other_noise(
    strict: tuple[Job, Path], tmp_path: Path, left: str
) -> None:
    """All marks and the noise are lost; the folder stands as a kill in the swap leaves it, or what was gathered alone."""
    said, published = strict
    shutil.copytree(published, tmp_path / "ws")
    marks_lost(tmp_path / "ws" / "confidential")
    if left == "in the swap":
        (tmp_path / "ws" / "public").rename(tmp_path / "ws" / ".public.old")
        (tmp_path / "ws" / "confidential" / "strata.parquet").unlink()
    else:
        shutil.rmtree(tmp_path / "ws" / "public")
    with pytest.raises(WorkspaceError, match=r"confidential/noise/strata-00000\d-00\d.npz is missing"):
        dpdist.run(said, tmp_path / "ws")


def test_the_damage_alone_shows_what_the_refusal_is_for(
    strict: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without marks of noise and of its end, the same command publishes another table at the same ε."""
    said, published = strict
    shutil.copytree(published, tmp_path / "ws")
    strata_lost(tmp_path / "ws" / "confidential")
    monkeypatch.setattr("dpdist.storage.workspace.Workspace.sealed", False)
    dpdist.run(said, tmp_path / "ws")
    one, other = (statement_of(space) for space in (published, tmp_path / "ws"))
    assert one == other
    assert public_files(tmp_path / "ws") != public_files(published)


def test_noise_of_another_version_is_refused_with_the_version_that_resumes_it(
    strict: tuple[Job, Path], tmp_path: Path
) -> None:
    said, published = strict
    shutil.copytree(published, tmp_path / "ws")
    path = tmp_path / "ws" / "confidential" / "identity.json"
    path.write_text(path.read_text().replace('"version": "', '"version": "9.'))
    for how in ({}, {"replay": tmp_path / "ws" / "confidential"}):
        space = tmp_path / ("again" if how else "ws")
        with pytest.raises(WorkspaceError, match=r"version of dpdist \(9\.\S+ then(?s:.*)install dpdist 9\."):
            dpdist.run(said, space, **how)


@pytest.mark.parametrize("rewritten", [True, False])
def test_a_job_that_was_put_in_the_place_of_the_runs_own_draws_no_noise(
    strict: tuple[Job, Path], tmp_path: Path, rewritten: bool
) -> None:
    """A run that was killed before its noise, then ε = 100 in the job that tasks read, and in the mark its checksum.
    Control: without that the job is written again."""
    said, published = strict
    shutil.copytree(published, tmp_path / "ws")
    confidential = tmp_path / "ws" / "confidential"
    shutil.rmtree(tmp_path / "ws" / "public")
    strata_lost(confidential)
    (confidential / "marks" / "gathered.json").unlink()
    (confidential / "strata.parquet").unlink()
    path, mark = confidential / "job.json", confidential / "marks" / "records.json"
    path.write_text(path.read_text().replace('"epsilon": "3"', '"epsilon": "100"'))
    if not rewritten:
        dpdist.run(said, tmp_path / "ws")
        assert '"epsilon": "3"' in path.read_text()
        return
    marked = json.loads(mark.read_text())
    mark.write_text(json.dumps(marked | {"job.json": hashlib.sha256(path.read_bytes()).hexdigest()}))
    with pytest.raises(WorkspaceError, match=r"job\.json is not the job that the run began with"):
        dpdist.run(said, tmp_path / "ws")
    assert not (confidential / "noise").exists()


def test_a_replay_is_marked_unfit_for_publication_and_stays_so(
    strict: tuple[Job, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file of its own beside the same public bytes, first in every report, also after it is published again, and when
    a replay that was killed is resumed without the option. Control: the run itself."""
    said, published = strict
    dpdist.run(said, tmp_path / "ws", replay=published / "confidential")
    for again in (lambda: None, lambda: dpdist.publish(tmp_path / "ws"), lambda: dpdist.run(said, tmp_path / "ws")):
        again()
        assert "made with --replay" in (tmp_path / "ws" / "public" / UNFIT).read_text()
        assert public_files(tmp_path / "ws") == public_files(published)
        assert "not for publication" in dpdist.report(tmp_path / "ws").splitlines()[1]
    shutil.rmtree(tmp_path / "ws" / "public")
    dpdist.run(said, tmp_path / "ws")
    assert (tmp_path / "ws" / "public" / UNFIT).exists()
    assert not (published / "public" / UNFIT).exists()
    assert "not for publication" not in dpdist.report(published)


def test_a_replay_draws_no_noise(strict: tuple[Job, Path], tmp_path: Path) -> None:
    """What its source has lost is not drawn in its place, nor when the replay is resumed without the option."""
    said, published = strict
    shutil.copytree(published, tmp_path / "source")
    (tmp_path / "source" / "confidential" / "noise" / "strata-000001-001.npz").unlink()
    for how in ({"replay": tmp_path / "source" / "confidential"}, {}):
        with pytest.raises(WorkspaceError, match=r"strata-000001-001.npz is missing(?s:.*)give the same --replay again"):
            dpdist.run(said, tmp_path / "ws", **how)
    dpdist.run(said, tmp_path / "ws", replay=published / "confidential")
    assert public_files(tmp_path / "ws") == public_files(published)


def test_statement_and_manifest_name_the_library_that_drew(strict: tuple[Job, Path]) -> None:
    from importlib.metadata import version

    said, manifest = (json.loads((strict[1] / "public" / f"{name}.json").read_text()) for name in ("statement", "manifest"))
    assert said["sampler"]["noise_library"] == f"OpenDP {version('opendp')}"
    assert manifest["versions"]["opendp"] == version("opendp")
