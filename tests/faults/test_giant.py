"""A giant stratum: its driver is killed in the middle of the rounds, and rounds that are finished are not run again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from campaign import Run, Server, Stamp, Survey, arguments, public_bytes, stamps

from dpdist.planning.blocks import SPAN_VALUES

JOURNAL = "confidential/journal/strata-000000"


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    records, draws = 60_000, 5_000
    assert records * draws > SPAN_VALUES
    return Survey(tmp_path_factory.mktemp("giant"), (records,), draws, log_lik="never")


@pytest.fixture(scope="module")
def whole(giant: Survey, tmp_path_factory: pytest.TempPathFactory, dpdist: Server) -> Path:
    workspace = tmp_path_factory.mktemp("whole") / "serial"
    ended = dpdist(*arguments(giant.job(), workspace), same_keys=True)
    assert ended.code == 0, ended.text
    return workspace


class Watched:
    """A run of which every file of the journal is seen as it comes and goes."""

    def __init__(self, job: Path, workspace: Path, *more: object) -> None:
        self.run, self.journal = Run(job, workspace, *more), workspace / JOURNAL
        self.seen: dict[str, set[Stamp]] = {}

    def until(self, stem: str) -> dict[str, Stamp]:
        """Kill the driver as soon as a result of this name stands; returns the journal that it leaves."""
        assert self.run.until(lambda: stem in results(self.look()))
        assert self.run.kill() == []
        return self.look()

    def end(self) -> None:
        self.run.until(lambda: bool(self.look()) and False)
        ended = self.run.end()
        assert ended.code == 0, ended.text

    def look(self) -> dict[str, Stamp]:
        now = {name: stamp for name, stamp in stamps(self.journal, "*").items() if not name.startswith(".")}
        for name, stamp in now.items():
            self.seen.setdefault(name, set()).add(stamp)
        return now

    def redone(self, before: dict[str, Stamp]) -> set[str]:
        """Files of an earlier journal that this run wrote again, but for the carry of a span that had no result yet: a
        driver may be killed between the two."""
        again = {name for name, stamp in before.items() if self.seen.get(name, {stamp}) != {stamp}}
        finished = results(before)
        return {name for name in again if "-carry" not in name or Path(name).stem.removesuffix("-carry") in finished}


def results(journal: Iterable[str]) -> set[str]:
    """Names of totals (round) and of what spans left (round-span)."""
    return {Path(name).stem for name in journal if not name.endswith(".request")}


@pytest.mark.long
def test_rounds_that_a_killed_run_finished_are_not_run_again(giant: Survey, whole: Path, tmp_path: Path) -> None:
    """Killed in round 2 when its first span is done, and again after round 4: every result that stood is kept as it was."""
    job, replay = giant.job(), ("--replay", whole / "confidential")
    for attempt in range(8):  # on a busy machine the watcher may see the first span when the round has ended
        workspace = tmp_path / f"killed-{attempt}"
        first = Watched(job, workspace, *replay).until("002-00000")
        assert {"000", "001", "002-00000"} <= results(first)
        if not {"002", "003"} & results(first):
            break
    assert not {"002", "003"} & results(first), "eight kills fell behind round 2"
    second = Watched(job, workspace, *replay)
    standing = second.until("004")
    assert second.redone(first) <= {"002.request"}, "only the round in hand is asked for again"
    assert not (workspace / "public").exists()
    third = Watched(job, workspace, *replay)
    third.end()
    assert third.redone(standing) <= {"005.request"}
    assert public_bytes(workspace) == public_bytes(whole)


@pytest.mark.slow
def test_a_run_killed_on_serial_may_be_ended_on_two_workers_with_the_same_bytes(
    giant: Survey, whole: Path, tmp_path: Path
) -> None:
    workspace, replay = tmp_path / "killed", ("--replay", whole / "confidential")
    standing = Watched(giant.job(), workspace, *replay).until("002")
    again = Watched(giant.job("dask", workers=2), workspace, *replay)
    again.end()
    assert again.redone(standing) <= {"003.request"}
    assert {"005", "005-00000", "005-00001"} <= results(again.seen)
    assert public_bytes(workspace) == public_bytes(whole)


@pytest.mark.slow
def test_workers_killed_with_their_driver_in_the_rounds_cost_the_round_in_hand(
    giant: Survey, whole: Path, tmp_path: Path
) -> None:
    job, workspace, replay = giant.job("dask", workers=2), tmp_path / "killed", ("--replay", whole / "confidential")
    standing: dict[str, Stamp] = {}
    for round in range(1, 6):
        run = Watched(job, workspace, *replay)
        left = run.until(f"{round:03d}")
        assert run.redone(standing) <= {f"{round:03d}.request"}
        standing = left
    last = Watched(job, workspace, *replay)
    last.end()
    assert last.redone(standing) <= {"006.request"}
    assert public_bytes(workspace) == public_bytes(whole)
