"""A charged run that is killed, anywhere from its first file to its last: never charged twice, never released uncharged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from campaign import Ended, Server, public_bytes
from postgres_server import PostgresServer

from dpdist.core.errors import LedgerError
from dpdist.ledger.book import Ledger

SEED = 1_414_213
# Under this budget no noise is so large that a release is held, which has another exit code.
JOB = """
dataset: units
period: "2020"
input: {path: INPUT}
columns:
  unit: {levels: [u0, u1, u2]}
  salary: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
strata: [unit]
outcome: salary
mechanism: {name: tables}
budget: {epsilon: "30"}
tables:
  - {name: counts, by: [unit], statistics: [count, {mean: salary}]}
ledger: {total: "30"}
"""
STAGES = ("ledger.json", "noise/strata-000001", "marks/strata-000002", ".public.new", "public/manifest.json", "evaluation")
"""Paths at which a run is killed: after it is charged and before it says so, among its fits, after it is settled and
before it has published, when it has."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_release import survey

    folder = tmp_path_factory.mktemp("ledger")
    frame = survey(300).rename(columns={"field": "unit"})
    frame["unit"] = np.array(["u0", "u1", "u2"])[np.arange(300) % 3]
    frame.to_parquet(folder / "survey.parquet")
    path = folder / "job.yaml"
    path.write_text(JOB.replace("INPUT", f"{folder}/survey.parquet"))
    return path


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


def place_of(folder: Path) -> str:
    """The ledger of a campaign: the one that its job names, or the file beside its workspace."""
    named = folder / "ledger.url"
    return named.read_text() if named.exists() else str(folder / "ledger.sqlite")


def kinds(folder: Path) -> list[str]:
    """Entries after the first; none where nobody has begun the ledger."""
    try:
        return [entry.kind for entry in Ledger(place_of(folder)).entries()][1:]
    except LedgerError:
        return []


def wrong(folder: Path) -> list[str]:
    """What must not be, at any moment."""
    said, space = kinds(folder), folder / "ws"
    drawn = list((space / "confidential").glob("noise/*.npz")) if space.exists() else []
    found = ["charged, settled or named twice"] if len(set(said)) < len(said) else []
    found += ["noise drawn uncharged"] if drawn and "reserve" not in said else []
    published = any((space / name / "manifest.json").exists() for name in ("public", ".public.new", ".public.old"))
    return found + (["released unsettled"] if published and said[:2] != ["reserve", "settle"] else [])


def campaign(dpdist: Server | Counted, job: Path, folder: Path, deaths: list[int | str], url: str = "") -> list[str]:
    """What was wrong with a run that was killed so often, after every kill and at the end; `url`: of a server's ledger."""
    folder.mkdir()
    if url:
        Ledger(url).begin()
        (folder / "ledger.url").write_text(url)
        (folder / "job.yaml").write_text(job.read_text().replace("ledger: {", f'ledger: {{url: "{url}", '))
        job = folder / "job.yaml"
    command = ["run", str(job), "--workspace", str(folder / "ws"), "--quiet"]
    found, published = [], {}
    for death in deaths:
        ended = dpdist(*command, die_at=death)
        found += [f"{death}: {ended.code} {ended.text}"] if ended.code not in (0, -9) else []
        found += [f"{death}: {said}" for said in wrong(folder)]
        now = public_bytes(folder / "ws") if (folder / "ws" / "public" / "manifest.json").exists() else {}
        found += [f"{death}: another release under one charge"] if published and now and now != published else []
        published = now or published
    ended = dpdist(*command)
    found += [f"at the end: {ended.code} {ended.text}"] if ended.code != 0 else []
    found += [f"at the end: {kinds(folder)}"] if kinds(folder) != ["reserve", "settle", "release"] else []
    return found + wrong(folder)


class Counted:
    """A server that counts the commands that really were killed."""

    def __init__(self, server: Server) -> None:
        self.server, self.kills = server, 0

    def __call__(self, *command: object, die_at: int | str | None = None) -> Ended:
        ended = self.server(*command, die_at=die_at)
        self.kills += ended.code == -9
        return ended


@pytest.mark.long
def test_killed_between_reserve_fit_settle_and_publish(dpdist: Server, job: Path, tmp_path: Path) -> None:
    """At each of the stages once; its budget has room for one charge only, so a second would be refused."""
    assert campaign(dpdist, job, tmp_path / "campaign", list(STAGES)) == []


@pytest.mark.long
def test_killed_at_seeded_changes_to_the_file_system(dpdist: Server, job: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    assert campaign(dpdist, job, tmp_path / "campaign", rng.integers(1, 60, 6).tolist()) == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_killed_a_hundred_times(
    where: str, dpdist: Server, job: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Twenty runs, each killed at five or more changes in turn, spread over the whole run."""
    server = request.getfixturevalue("postgres") if where == "postgresql" else None
    rng, found, counted = np.random.default_rng(SEED + 1), list[str](), Counted(dpdist)
    for number in range(20):
        deaths = [*sorted(rng.integers(1, 80, 5).tolist()), STAGES[number % len(STAGES)]]
        found += campaign(counted, job, tmp_path / str(number), deaths, "" if server is None else server.url())
    print(f"| {where} | runs killed: {counted.kills} | charged twice or released uncharged: {len(found)} |", flush=True)
    assert found == []
    assert counted.kills >= 100


@pytest.mark.long
def test_control_a_run_that_forgets_its_charge_is_found_out(dpdist: Server, job: Path, tmp_path: Path) -> None:
    """The ledger taken away after the release: what is looked for above is seen."""
    folder = tmp_path / "campaign"
    assert campaign(dpdist, job, folder, []) == []
    (folder / "ledger.sqlite").unlink()
    assert wrong(folder) == ["noise drawn uncharged", "released unsettled"]
