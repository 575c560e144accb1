"""Earlier releases that lie are refused by name before anything is spent, though their manifest agrees with their files."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain_releases import job, job_text, survey
from spoiling import (
    FRAME,
    JOB,
    MANIFEST,
    POINTS,
    PROMISE,
    STATEMENT,
    Spoil,
    cells,
    cheaper,
    counts,
    edited,
    first,
    foldered,
    halved,
    labelled,
    linked,
    linked_folder,
    listed,
    longer,
    manifested,
    own_period,
    piped,
    retyped,
    said,
    sealed,
    spent,
    table,
    text,
    unchained,
    unvouched,
    written,
)

import dpdist
from dpdist.core.errors import DataError, WorkspaceError
from dpdist.core.minisign import SecretKey
from dpdist.core.public_files import SIGNATURE, DamagedFile, read_object
from dpdist.estimation.crosstab_table import read_job
from dpdist.opening.verifying import sign

SECONDS = 20
"""In which a release must be refused; ten times what it takes."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Releases of 2021 and 2022, the first on a public file of 2020, and a file of 2023."""
    folder = tmp_path_factory.mktemp("hostile")
    before = f"{{path: {folder}/2020.parquet}}"
    for year in (2020, 2021, 2022, 2023):
        survey(year, n=600).to_parquet(folder / f"{year}.parquet")
    for year in (2021, 2022):
        dpdist.run(job(before, period=str(year)), folder / f"ws{year}", input=folder / f"{year}.parquet")
        before = f"{{release: {folder}/ws{year}/public}}"
    return folder


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A refusal that takes longer than SECONDS is a failure."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


TABLE = "tables/salaries.csv"
EXACT = "an exact number in quotes is expected"
DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "no records of the chain's first reference": (table(POINTS, lambda t: t.slice(0, 0)), "donors.parquet"),
    "text for weights": (retyped(POINTS, "weight", pa.string()), "donors.parquet"),
    "negative weights": (cells("weight", -1.0), "donors.parquet: values outside their domains"),
    "infinite weights": (cells("weight", np.inf), "donors.parquet: values outside their domains"),
    "not Parquet": (text(POINTS, b"PAR1 nothing"), "donors.parquet: no records of the released cells"),
    "half of it": (halved, "donors.parquet: no records of the released cells"),
    "negative numbers of records": (counts([-700]), "frame.parquet: 1 negative numbers of records"),
    "more records than float64 counts": (counts([2**62, 2**62]), "more than 9007199254740992 records"),
    "a combination twice": (
        table(FRAME, lambda t: pa.concat_tables([t.slice(0, 5), t.slice(0, 1)])),
        "a combination appears twice",
    ),
    "more combinations than levels": (table(FRAME, lambda t: pa.concat_tables([t, t])), "frame.parquet: 12 rows"),
    "numbers of records as text": (retyped(FRAME, "count", pa.string()), "count of type string"),
    "levels of its own": (labelled(said(["f", "m", "x"], "levels", "sex")), "other levels or strata than the job's"),
    "no levels": (labelled(lambda held: held.pop("levels")), "other levels, or no list of them"),
    "strata of its own": (labelled(said(["sex"], "strata")), "other levels or strata than the job's"),
    "a statement of less": (
        edited(said("0.1", "epsilon"), STATEMENT),
        "statement.json: epsilon differs from that in released/",
    ),
    "a guarantee of less": (spent("0.1", "epsilon"), "job.json: epsilon differs from that in promise.json"),
    "a job of less": (edited(said("0.1", "budget", "epsilon"), JOB), "job.json: epsilon differs from that in promise.json"),
    "less in all three": (cheaper, "chain_epsilon 2, where its releases add up to 11/10"),
    "a negative ε": (spent("-1", "epsilon"), "epsilon differs from that in promise.json"),
    "half the price of an exchange": (spent("1", "substitution_epsilon"), "promise.json: substitution_epsilon 1"),
    "an exchange for less than its ε": (spent("0.9", "substitution_epsilon"), "must be from 1 to 2 epsilon"),
    "an exchange for more than two": (spent("2.1", "substitution_epsilon"), "must be from 1 to 2 epsilon"),
    "another δ": (
        spent("1e-6", "delta"),
        "promise.json: the whole: Value error, rho and substitution_rho belong to a delta",
    ),
    "another class of guarantee": (spent("none", "guarantee"), "promise.json: guarantee"),
    "another adjacency": (spent("substitution", "adjacency"), "job.json: adjacency differs from that in promise.json"),
    "a sum of less": (spent("1", "reference", "chain_epsilon"), "chain_epsilon 1, where its releases add up to 2"),
    "a link of less": (spent("0.1", *first("epsilon")), "substitution_epsilon must be from 1 to 2 epsilon"),
    "a link of nothing": (spent("0", *first("epsilon")), "a budget must be greater than 0"),
    "a link of less than nothing": (spent("-5", *first("epsilon")), EXACT),
    "an ε that takes hours to write down": (
        spent("1e99999999", *first("epsilon")),
        EXACT,
    ),
    "and one of as many digits": (spent("1" * 5000, *first("epsilon")), EXACT),
    "a ratio to 0": (spent("1/0", *first("epsilon")), "a number in quotes is expected"),
    "a sum that takes hours": (spent("1e99999999", "reference", "chain_epsilon"), EXACT),
    "an own ε that takes hours": (spent("1e99999999", "epsilon"), "epsilon differs from that in promise.json"),
    "an ε that is no text": (spent(0.1, *first("epsilon")), EXACT),
    "no ε": (spent(None, *first("epsilon")), EXACT),
    "a link of another adjacency": (spent("add_remove", *first("adjacency")), "its chain has several adjacencies"),
    "a link of its own period": (own_period, "its chain has one period twice"),
    "a period that drives a terminal": (spent("\x1b]0;x\x07", *first("period")), "reference.chain.0.period"),
    "another release before it": (spent("0" * 64, *first("manifest")), "the chain's last release is not the one"),
    "a hash that is none": (spent("c34", *first("manifest")), "reference.chain.0.manifest"),
    "a chain that is no list": (spent({"0": "1"}, "reference", "chain"), "promise.json: reference.chain"),
    "a chain of numbers": (spent([1, 2], "reference", "chain"), "reference.chain.0"),
    "an empty chain": (spent([], "reference", "chain"), "reference.chain"),
    "no chain, but its sum": (unchained, "a sum or a root without a chain"),
    "a chain of more than its sum": (longer, "chain_epsilon 2, where its releases add up to 3"),
    "a chain without end": (
        edited(said([{}] * 100_000, "reference", "chain"), PROMISE, STATEMENT),
        "reference.chain",
    ),
    "no root": (spent(None, "reference", "root"), "a chain without a root"),
    "a root of numbers": (spent([1], "reference", "root"), "reference.root"),
    "no reference": (spent(None, "reference"), "promise.json: reference"),
    "records without number": (spent(10**400, "reference", "records"), "reference.records"),
    "a guarantee that is null": (text(PROMISE, "null"), "promise.json: a JSON NoneType"),
    "a guarantee that is a list": (text(PROMISE, "[]"), "promise.json: a JSON list"),
    "a guarantee without end": (text(PROMISE, f'{{"reference": {DEEP}}}'), "promise.json: values nested too deeply"),
    "a number of a million digits": (text(PROMISE, f'{{"epsilon": {"9" * 10**6}}}'), "promise.json: not valid JSON"),
    "a guarantee with NaN": (text(PROMISE, '{"epsilon": NaN}'), "NaN is not a finite number"),
    "a key twice": (text(PROMISE, '{"epsilon": "1", "epsilon": "0.1"}'), "a key appears twice"),
    "half a guarantee": (text(PROMISE, '{"epsilon": '), "promise.json: not valid JSON"),
    "bytes that are no text": (text(PROMISE, b"\xff\xfe\x00"), "promise.json: not valid JSON"),
    "a statement of nothing": (text(STATEMENT, "{}"), "differs from that in released/"),
    "a job without end": (text(JOB, f'{{"dataset": {DEEP}}}'), "job.json: .*(nested too deeply|recursion limit)"),
    "half a job": (edited(lambda held: held.pop("tables"), JOB), "job.json: tables"),
    "a job with a key of its own": (edited(said(1, "\x1b[2J"), JOB), r'job.json: "\\u001b\[2J"'),
    "a manifest that is a list": (text(MANIFEST, "[]"), "manifest.json: a JSON list"),
    "a manifest without files": (text(MANIFEST, '{"files": 3}'), "manifest.json: no list of files"),
    "a manifest without end": (text(MANIFEST, DEEP), "manifest.json: values nested too deeply"),
    "a way out of the folder": (listed(said("0" * 64, "released/../../secret")), "the file name 'released/../../secret'"),
    "a way out from the start": (listed(said("0" * 64, "../secret")), "the file name '../secret'"),
    "an absolute name": (listed(said("0" * 64, "/etc/passwd")), "the file name '/etc/passwd'"),
    "an empty name": (listed(said("0" * 64, "")), "the file name ''"),
    "a name of Windows": (listed(said("0" * 64, "released\\..\\x")), "the file name"),
    "a name that drives a terminal": (listed(said("0" * 64, "released/\x1b[2J")), r"released/\\u001b\[2J"),
    "a hash that is no hash": (listed(said(7, "tables/salaries.csv")), "no SHA-256 of tables/salaries.csv"),
    "a file that nobody vouches for": (listed(lambda files: files.pop(POINTS)), "carries no reference|does not list it"),
    "a statement that nobody vouches for": (
        listed(lambda files: files.pop(STATEMENT)),
        "statement.json: manifest.json does not list it",
    ),
    "one file more": (unvouched, "released/extra.json"),
    "one file less": (lambda p: (p / FRAME).unlink(), "released/frame.parquet: no such file"),
    "a symbolic link": (linked, "donors.parquet: a symbolic link"),
    "a linked folder": (linked_folder, "a symbolic link"),
    "a folder in place of a file": (foldered, "no regular file"),
    "a pipe": (piped, "manifest.json: no regular file"),
    "a manifest of another format": (manifested(said(0, "format")), "manifest.json: format 0"),
    "a manifest without a format": (manifested(lambda held: held.pop("format")), "manifest.json: no format"),
    "a manifest under another id": (written(said("0" * 64, "release")), "manifest.json: it is not the file that was"),
    "a pipe among the tables": (lambda p: os.mkfifo(p / "tables" / "more.csv"), "tables/more.csv: manifest.json does not"),
    "another table": (lambda p: (p / TABLE).write_text("1"), "tables/salaries.csv: it is not the file that manifest.json"),
}


def spoiled(chain: Path, tmp_path: Path, spoil: Spoil) -> Path:
    shutil.copytree(chain / "ws2022", tmp_path / "ws2022", ignore=shutil.ignore_patterns("confidential"))
    public = tmp_path / "ws2022" / "public"
    spoil(public)
    return public


def counted(told: str, chain: Path) -> str:
    """What a message says, with the number of points that the release has: it depends on the noise."""
    points = pq.read_metadata(chain / "ws2022" / "public" / POINTS).num_rows
    return told.replace("{points}", str(points)).replace("{twice}", str(2 * points))


@pytest.mark.parametrize("what", HOSTILE)
def test_a_release_that_lies_is_refused_by_name_before_anything_is_spent(what: str, chain: Path, tmp_path: Path) -> None:
    spoil, told = HOSTILE[what][0], counted(HOSTILE[what][1], chain)
    public = spoiled(chain, tmp_path, spoil)
    with pytest.raises(DataError, match=told) as refused:
        dpdist.run(job(f"{{release: {public}}}", period="2023"), tmp_path / "ws", input=chain / "2023.parquet")
    assert not (tmp_path / "ws" / "confidential").exists()
    (problem,) = refused.value.problems
    assert problem.where == "reference.release"
    assert problem.allowed
    assert "restore it from a copy" in problem.remedy
    assert str(refused.value).replace("\n", "").isprintable()
    assert len(str(refused.value)) < 1500


def test_the_same_release_unspoiled_is_taken(chain: Path, tmp_path: Path) -> None:
    """Control, under a manifest that was written as the spoiled ones are; the chain counts all three releases."""
    public = spoiled(chain, tmp_path, sealed)
    dpdist.run(job(f"{{release: {public}}}", period="2023"), tmp_path / "ws", input=chain / "2023.parquet")
    statement = json.loads((tmp_path / "ws" / "public" / STATEMENT).read_text())["reference"]
    assert (statement["chain_epsilon"], statement["chain_substitution_epsilon"]) == ("3", "6")


def test_what_a_release_says_beside_its_chain_is_not_handed_on(chain: Path, tmp_path: Path) -> None:
    public = spoiled(chain, tmp_path, spent("<script>", *first("note")))
    dpdist.run(job(f"{{release: {public}}}", period="2023"), tmp_path / "ws", input=chain / "2023.parquet")
    assert "script" not in (tmp_path / "ws" / "public" / STATEMENT).read_text()


@pytest.fixture(scope="module")
def agency() -> SecretKey:
    return SecretKey.from_os()


def other_release(public: Path, key: SecretKey) -> None:
    (public / SIGNATURE).write_text(key.sign(b"another manifest", "another"))


def written_anew(public: Path, key: SecretKey) -> None:
    """What a forger can do who has a signed release: another statement, and a manifest that tells of it."""
    sign(public, key)
    edited(said("a forger's", "title"), STATEMENT)(public)


FORGED: dict[str, tuple[Callable[[Path, SecretKey], object], str]] = {
    "no signature": (lambda public, key: None, "no such file"),
    "a signature by another key": (lambda public, key: sign(public, SecretKey.from_os()), "signed by another key"),
    "a signature of another release": (other_release, "the signature belongs to another file"),
    "a release written anew beside its signature": (written_anew, "the signature belongs to another file"),
    "a signature that is none": (lambda public, key: (public / SIGNATURE).write_text("yes"), "not a minisign signature"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_release_that_must_be_signed_and_is_not_is_refused_before_anything_is_spent(
    what: str, chain: Path, agency: SecretKey, tmp_path: Path
) -> None:
    """The same folder passes where the job asks for no key."""
    forge, told = FORGED[what]
    public = spoiled(chain, tmp_path, lambda public: forge(public, agency))
    with pytest.raises(DataError, match=f"manifest.json.minisig: .*{told}") as refused:
        dpdist.run(
            job(f"{{release: {public}, key: {agency.public.line}}}", period="2023"),
            tmp_path / "ws",
            input=chain / "2023.parquet",
        )
    assert not (tmp_path / "ws" / "confidential").exists()
    (problem,) = refused.value.problems
    assert (problem.where, agency.public.name in problem.allowed) == ("reference.release", True)
    dpdist.validate(job(f"{{release: {public}}}", period="2023"), input=chain / "2023.parquet")


@pytest.mark.parametrize("by_file", [True, False])
def test_a_release_signed_as_the_job_asks_is_taken(by_file: bool, chain: Path, agency: SecretKey, tmp_path: Path) -> None:
    """A key beside the job file stands for itself, so that a run does not change with the file; no path is published."""
    public = spoiled(chain, tmp_path, lambda public: sign(public, agency))
    (tmp_path / "agency.pub").write_text(agency.public.text)
    key = "agency.pub" if by_file else agency.public.line
    (tmp_path / "job.yaml").write_text(job_text(f"{{release: {public}, key: {key}}}", period="2023"))
    loaded = dpdist.load_job(tmp_path / "job.yaml")
    assert loaded.reference is not None
    assert loaded.reference.signer == agency.public.line
    dpdist.run(loaded, tmp_path / "ws", input=chain / "2023.parquet")
    published = json.loads((tmp_path / "ws" / "public" / JOB).read_text())["reference"]
    assert not {"key", "release"} & set(published)
    assert dpdist.open_release(tmp_path / "ws")


PUBLISHED = [
    *("negative numbers of records", "a combination twice", "levels of its own", "no levels"),
    *("a guarantee that is null", "a guarantee that is a list", "a guarantee without end", "half a guarantee"),
    *(
        "a number of a million digits",
        "a job without end",
        "half a job",
        "a manifest that is a list",
        "a way out of the folder",
    ),
    *("one file more", "one file less", "a symbolic link", "a folder in place of a file"),
]


@pytest.mark.parametrize("what", PUBLISHED)
def test_publishing_again_refuses_the_same_damage_and_leaves_the_folder(what: str, chain: Path, tmp_path: Path) -> None:
    spoil, told = HOSTILE[what][0], counted(HOSTILE[what][1], chain)
    public = spoiled(chain, tmp_path, spoil)
    before = sorted(str(path) for path in public.rglob("*"))
    with pytest.raises(WorkspaceError, match=told):
        dpdist.publish(tmp_path / "ws2022")
    assert sorted(str(path) for path in public.rglob("*")) == before


GUARANTEES: dict[str, tuple[Spoil, str]] = {
    "no class": (edited(said("", "guarantee"), PROMISE), 'promise.json: guarantee "", allowed: "strict"'),
    "a class of its own": (
        edited(said("perfect", "guarantee"), PROMISE),
        'promise.json: guarantee "perfect", allowed: "strict"',
    ),
    "an ε that is a number": (edited(said(1, "epsilon"), PROMISE), 'promise.json: epsilon 1, allowed: "1"'),
    "no δ": (edited(lambda held: held.pop("delta"), PROMISE), 'promise.json: delta null, allowed: "0"'),
    "no assumptions": (edited(said(None, "assumptions"), PROMISE), "promise.json: no assumptions"),
    "a reference that is a list": (edited(said([], "reference"), PROMISE), "promise.json: no valid reference"),
}


@pytest.mark.parametrize("what", GUARANTEES)
def test_publishing_again_refuses_a_guarantee_that_is_none(what: str, chain: Path, tmp_path: Path) -> None:
    spoil, told = GUARANTEES[what]
    spoiled(chain, tmp_path, spoil)
    with pytest.raises(WorkspaceError, match=told):
        dpdist.publish(tmp_path / "ws2022")


def test_publishing_again_takes_the_unspoiled_folder(chain: Path, tmp_path: Path) -> None:
    """Control."""
    public = spoiled(chain, tmp_path, sealed)
    dpdist.publish(tmp_path / "ws2022")
    table = "tables/salaries.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(public / table), pd.read_parquet(chain / "ws2022" / "public" / table))


@pytest.mark.parametrize("read", [read_job, read_object])
def test_a_file_of_a_terabyte_is_refused_unread(read: Callable[[Path, str], object], tmp_path: Path) -> None:
    """The file is empty space: whoever read it would run out of memory."""
    (tmp_path / "job.json").touch()
    os.truncate(tmp_path / "job.json", 2**40)
    with pytest.raises(DamagedFile, match=r"job\.json: more than 67108864 bytes"):
        read(tmp_path, "job.json")
