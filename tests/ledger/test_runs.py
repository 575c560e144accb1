"""A run and its ledger: charged before the first fit, once however often it resumes; refused with exit code 3."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import invoke, succeed
from edited_text import edited
from public_files import public_files, statement_of
from small_release import LAPLACE, LAPLACE_JOB as SMALL, survey
from typer.testing import Result

import dpdist
from dpdist.core.progress import Event, without_sizes
from dpdist.job.loading import find_job, parse_job
from dpdist.ledger import book
from dpdist.ledger.accounts import charges, total
from dpdist.ledger.book import Ledger

NOTHING_COUNTS = (
    "no ledger is set, so the privacy losses of this dataset's releases are not added up; to use one, set `ledger` in the "
    "job, or DPDIST_LEDGER"
)

JOB = SMALL + "publish: always\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A survey, and a job file whose ledger stands beside the workspaces; ε = 3 a release."""
    monkeypatch.delenv("DPDIST_LEDGER", raising=False)
    survey().head(300).to_parquet(tmp_path / "survey.parquet")
    survey().tail(500).to_parquet(tmp_path / "earlier.parquet")
    write_job(tmp_path, "{}")
    return tmp_path


def write_job(folder: Path, ledger: str | None, *edits: tuple[str, str]) -> None:
    text = JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{")
    text = edited(text, *edits)
    (folder / "job.yaml").write_text(text + ("" if ledger is None else f"ledger: {ledger}\n"))


def run(folder: Path, workspace: str, *more: str) -> Result:
    return invoke("run", f"{folder}/job.yaml", "--workspace", f"{folder}/{workspace}", *more)


CHARGED = ("reserve", "settle", "release")
"""Entries of one run."""


def kinds(folder: Path) -> list[str]:
    return [entry.kind for entry in Ledger(f"{folder}/ledger.sqlite").entries()]


def statement(folder: Path, workspace: str) -> dict[str, Any]:
    found: dict[str, Any] = statement_of(folder / workspace)
    return found


def test_without_a_ledger_a_run_says_once_that_nothing_counts(folder: Path) -> None:
    write_job(folder, None)
    done = run(folder, "one")
    assert done.exit_code == 0
    assert done.output.count(NOTHING_COUNTS) == 1
    assert statement(folder, "one")["metered"] is False
    assert not (folder / "ledger.sqlite").exists()
    assert "ledger" not in run(folder, "two", "--quiet").output, "control"


def test_what_a_ledger_says_is_shown_where_sizes_are_secret_too() -> None:
    heard: list[Event] = []
    hear = without_sizes(heard.append)
    hear(Event("note", "ledger", note="said"))
    hear(Event("note", "store records", note="of a size"))
    assert [event.note for event in heard] == ["said"]


def test_a_run_is_charged_once_and_its_statement_says_that_it_is_counted(folder: Path) -> None:
    for _ in range(3):
        done = run(folder, "one")
        assert done.exit_code == 0
        assert "ledger" not in done.stderr
    assert kinds(folder) == ["begin", *CHARGED]
    assert statement(folder, "one")["metered"] is True


def test_the_same_job_into_another_folder_is_charged_and_says_so_before_it_starts(folder: Path) -> None:
    run(folder, "one")
    heard: list[Event] = []
    dpdist.run(dpdist.load_job(folder / "job.yaml"), folder / "two", listener=heard.append)
    notes = [k for k, event in enumerate(heard) if event.stage == "ledger"]
    assert [heard[k].note for k in notes] == [
        "the ledger has a run of small 2021 already (the same job, another workspace): this run is charged in addition, ε "
        "= 3, which makes 6 for the period"
    ]
    assert notes[0] < [event.stage for event in heard].index("store records")
    assert kinds(folder) == ["begin", *CHARGED, *CHARGED]


def test_a_copied_workspace_is_the_same_run(folder: Path) -> None:
    run(folder, "one")
    shutil.copytree(folder / "one", folder / "copy")
    assert run(folder, "copy").exit_code == 0
    assert kinds(folder) == ["begin", *CHARGED]


def test_over_budget_is_exit_code_3_before_anything_is_written(folder: Path) -> None:
    write_job(folder, '{total: "6"}')
    assert [run(folder, name).exit_code for name in ("one", "two")] == [0, 0]
    before = sorted(folder.iterdir())
    done = run(folder, "three")
    assert done.exit_code == 3
    assert (
        "budget of small: this run's strict ε = 3 would bring the sum to 9 in all\n"
        "    allowed: strict ε = 6 in all, of which 6 is charged" in done.output
    )
    assert sorted(folder.iterdir()) == before
    assert run(folder, "two").exit_code == 0, "who was charged goes on"


GAUSSIAN = (
    (LAPLACE, "{name: sanitized_statistics, noise: gaussian}\nmodel: {family: lognormal, predictors: [field, sex]}"),
    ('{epsilon: "3"}', '{rho: "1/8", delta: "1e-6"}'),
    ("[0, 200000]", "[1, 200000]"),
    ("runtime:", 'reference: {path: earlier.parquet, period: "2020"}\nruntime:'),
)
WEIGHTED = (
    (LAPLACE, "{name: weighted}\nmodel: {family: lognormal, predictors: [field, sex]}"),
    ('"3"', '"20"'),
    ("[0, 200000], outside: clip", "[1, 2000000]"),
    ("  weight: {bounds: [1, 60], outside: clip}\n", ""),
)
OF_CLASSES = {
    "strict ε": (
        (),
        'limits: {strict: {total: "5"}}',
        "strict ε = 3 would bring the sum to 6 in all\n    allowed: strict ε = 5 in all",
    ),
    "zCDP ρ": (
        GAUSSIAN,
        'total: "0.2"',
        "zCDP ρ = 0.125 would bring the sum to 0.25 in all\n    allowed: zCDP ρ = 0.2 in all",
    ),
    "asymptotic ε": (WEIGHTED, 'limits: {asymptotic: {total: "30"}}', "asymptotic ε = 20 would bring the sum to 40 in all"),
}


@pytest.mark.parametrize("of", OF_CLASSES)
def test_every_class_has_limits_and_a_message_that_names_it(of: str, folder: Path) -> None:
    """The second run is refused before anything is written. Control: the first, and another class's limit."""
    edits, limits, found = OF_CLASSES[of]
    write_job(folder, f"{{{limits}}}", *edits)
    done = run(folder, "one")
    assert done.exit_code == 0, done.output
    before = sorted(folder.iterdir())
    done = run(folder, "two")
    assert (done.exit_code, f"this run's {found}" in done.output) == (3, True), done.output
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("edits", "limits", "found"),
    [
        (GAUSSIAN, 'delta: "1e-9"', "this run's zCDP ε is stated at δ = 0.000001"),
        (GAUSSIAN, 'limits: {strict: {total: "9"}}', "name only classes other than zCDP"),
        (WEIGHTED, 'delta: "1e-6"', "this run's asymptotic δ is unknown"),
        (WEIGHTED, 'limits: {zCDP: {total: "9"}}', "name only classes other than asymptotic"),
    ],
)
def test_a_delta_or_a_class_without_a_limit_refuses_the_first_run(
    edits: tuple[tuple[str, str], ...], limits: str, found: str, folder: Path
) -> None:
    write_job(folder, f"{{{limits}}}", *edits)
    done = run(folder, "one")
    assert (done.exit_code, found in done.output) == (3, True), done.output
    assert not (folder / "one").exists()


def test_a_limit_of_delta_is_stated_by_class_on_the_command_line(folder: Path) -> None:
    place = ["--ledger", str(folder / "ledger.sqlite"), "--dataset", "small"]
    told = invoke("ledger", "init", *place, "--class", "zCDP", "--total", "1", "--delta", "1e-9")
    assert "limits of small, zCDP: total 1, delta 1E-9" in told.output
    write_job(folder, "{}", *GAUSSIAN)
    done = run(folder, "one")
    assert (done.exit_code, "zCDP ε stated at δ = 1E-9 or less" in done.output) == (3, True), done.output
    assert invoke("ledger", "init", *place, "--delta", "2").exit_code == 2


def test_a_limit_that_the_job_does_not_know_holds_too(folder: Path) -> None:
    place = str(folder / "ledger.sqlite")
    succeed("ledger", "init", "--ledger", place, "--dataset", "small", "--per-period", "5")
    assert [run(folder, name).exit_code for name in ("one", "two")] == [0, 3]


def test_a_run_refused_later_than_it_began_leaves_no_fit(folder: Path) -> None:
    """Killed before it was charged, and meanwhile others spent the rest: exit 3, and nothing of it was fitted."""
    write_job(folder, '{total: "6"}')
    run(folder, "begun")
    for name in ("public", "confidential/ledger.json", "confidential/strata.parquet"):
        path = folder / "begun" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for left in (folder / "begun" / "confidential").iterdir():
        if left.name not in ("identity.json", "key", "marks", "records"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    for mark in (folder / "begun" / "confidential" / "marks").iterdir():
        if mark.stem != "records":
            mark.unlink()
    (folder / "ledger.sqlite").unlink()
    assert [run(folder, name).exit_code for name in ("one", "two")] == [0, 0]
    assert run(folder, "begun").exit_code == 3
    assert not (folder / "begun" / "public").exists()
    assert not list((folder / "begun" / "confidential").glob("noise/*"))


def test_a_replay_is_not_charged_and_says_what_the_run_said(folder: Path) -> None:
    run(folder, "one")
    write_job(folder, '{total: "3"}')
    done = run(folder, "again", "--replay", f"{folder}/one/confidential")
    assert done.exit_code == 0, done.output
    assert kinds(folder) == ["begin", *CHARGED]
    assert public_files(folder / "again") == public_files(folder / "one")
    assert run(folder, "again").exit_code == 0, "resumed without naming the replay"
    assert kinds(folder) == ["begin", *CHARGED]


def test_where_a_ledger_is_and_what_it_limits_is_published_nowhere(folder: Path) -> None:
    """Control: with other limits and another place a replay has the same bytes."""
    write_job(folder, '{total: "31.25"}')
    run(folder, "one")
    published = public_files(folder / "one")
    assert not any(word in said for said in published.values() for word in (b"31.25", b"ledger.sqlite"))


def test_publishing_again_costs_nothing_and_stays_counted(folder: Path) -> None:
    run(folder, "one")
    before = public_files(folder / "one")
    dpdist.publish(folder / "one")
    assert public_files(folder / "one") == before
    assert kinds(folder) == ["begin", *CHARGED]


def _once_published(patch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Lets `act` befall the ledger after a release is published and before its id is entered."""
    enter = Ledger.name_release

    def entered(ledger: Ledger, *said: str) -> None:
        kept = act()
        try:
            enter(ledger, *said)
        finally:
            if kept is not None:
                kept.close()

    patch.setattr(Ledger, "name_release", entered)


def _held_by_another(place: Path) -> sqlite3.Connection:
    held = sqlite3.connect(place, isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    return held


@pytest.mark.parametrize("quiet", [(), ("--quiet",)], ids=["", "quiet"])
def test_a_ledger_out_of_reach_when_a_release_is_finished_is_told_and_learns_of_it_later(
    quiet: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is complete and charged: exit code 0, with a note on standard error. Control: the next run is refused."""
    with monkeypatch.context() as patch:
        patch.setattr(book, "PATIENCE", 0.1)
        _once_published(patch, lambda: _held_by_another(folder / "ledger.sqlite"))
        done = run(folder, "one", *quiet)
    assert done.exit_code == 0, done.output
    assert "the release is complete, but its id was not entered" in done.stderr
    assert done.stdout == "" or not quiet
    assert kinds(folder) == ["begin", *CHARGED[:-1]]
    dpdist.publish(folder / "one")
    assert kinds(folder) == ["begin", *CHARGED]
    with monkeypatch.context() as patch:
        patch.setattr(book, "PATIENCE", 0.1)
        held = _held_by_another(folder / "ledger.sqlite")
        assert run(folder, "two").exit_code == 1
        held.close()


def _begun_anew(place: Path) -> None:
    place.unlink()
    Ledger(str(place)).begin()


def _changed(place: Path) -> None:
    with closing(sqlite3.connect(place)) as link:
        link.execute("DROP TRIGGER dpdist_ledger_update")
        link.execute("UPDATE dpdist_ledger SET entry = replace(entry, 'small', 'large') WHERE kind = 'reserve'")
        link.commit()


WITHOUT_THE_CHARGE: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "gone": (Path.unlink, "there is none", 2),
    "begun anew": (_begun_anew, "the run was never charged in it", 2),
    "changed": (_changed, "its chain is damaged", 1),
    "no database": (lambda place: place.write_bytes(b"no database " * 1000) and None, "(DatabaseError)", 1),
}


@pytest.mark.parametrize(
    ("how", "command"),
    [
        *((how, "publish") for how in WITHOUT_THE_CHARGE),
        *(pytest.param(how, "run", marks=[] if how == "gone" else pytest.mark.long) for how in WITHOUT_THE_CHARGE),
    ],
)
def test_a_ledger_without_the_charge_when_a_release_is_finished_is_an_error(
    how: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is complete, and the exit code is not 0. With the ledger's copy the same command ends well."""
    befalls, found, code = WITHOUT_THE_CHARGE[how]
    place, copy = folder / "ledger.sqlite", folder / "copy"

    def act() -> None:
        shutil.copy(place, copy)
        befalls(place)

    def again() -> Result:
        return run(folder, "one", "--quiet") if command == "run" else invoke("publish", f"{folder}/one")

    if command == "publish":
        assert run(folder, "one").exit_code == 0
    with monkeypatch.context() as patch:
        _once_published(patch, act)
        done = again()
    assert (done.exit_code, found in done.stderr) == (code, True), done.output
    assert "the release is complete, but that ledger does not show its charge" in done.stderr
    assert "restore the ledger from a copy" in done.stderr
    assert "dpdist ledger check" in done.stderr
    assert "enters it later" not in done.stderr
    assert (folder / "one" / "public" / "manifest.json").exists()
    shutil.copy(copy, place)
    assert again().exit_code == 0
    assert kinds(folder) == ["begin", *CHARGED]


def test_a_run_ends_with_the_ledger_that_it_began_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, "one")
    write_job(folder, None)
    done = run(folder, "one")
    assert (done.exit_code, "now names none" in done.output) == (2, True)
    other = Ledger(str(folder / "other.sqlite"))
    other.begin()
    monkeypatch.setenv("DPDIST_LEDGER", str(folder / "other.sqlite"))
    done = run(folder, "one")
    assert (done.exit_code, "charged in another ledger" in done.output) == (2, True)
    monkeypatch.setenv("DPDIST_LEDGER", f"sqlite:///{folder}/ledger.sqlite")
    assert run(folder, "one").exit_code == 0
    assert [entry.kind for entry in other.entries()] == ["begin"]


def test_a_mounted_secret_may_name_the_ledger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a missing nor an empty one is a way round the ledger."""
    place, secret = folder / "other.sqlite", folder / "url"
    Ledger(str(place)).begin()
    write_job(folder, None)
    monkeypatch.setenv("DPDIST_LEDGER", f"@{secret}")
    assert run(folder, "one").exit_code == 2
    secret.write_text(f"sqlite:///{place}\n")
    assert run(folder, "one").exit_code == 0
    assert statement(folder, "one")["metered"] is True
    secret.write_text("")
    done = run(folder, "two")
    assert (done.exit_code, "it is empty" in done.output) == (2, True)


def test_a_job_with_a_ledger_of_its_own_reads_no_other_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder / "other.sqlite"
    Ledger(str(place)).begin()
    write_job(folder, {"url": f"sqlite:///{place}"})
    monkeypatch.setenv("DPDIST_LEDGER", f"@{folder / 'missing'}")
    assert run(folder, "one").exit_code == 0
    assert [entry.kind for entry in Ledger(str(place)).entries()] == ["begin", *CHARGED]


def test_a_named_ledger_must_have_been_begun(folder: Path) -> None:
    """A mistyped path is no new budget."""
    write_job(folder, f"{{url: {folder}/nix.sqlite}}")
    done = run(folder, "one")
    assert (done.exit_code, "there is none" in done.output) == (2, True)
    assert not (folder / "nix.sqlite").exists()
    assert not (folder / "one").exists()


UNPROTECTED = (
    ("  weight: {bounds: [1, 60], outside: clip}\n", ""),
    (LAPLACE, "{name: laplace}"),
)


def test_a_run_without_a_guarantee_has_no_place_in_a_ledger(folder: Path) -> None:
    write_job(folder, "{}", *UNPROTECTED)
    done = run(folder, "one")
    assert done.exit_code == 3, done.output
    assert "gives no guarantee" in done.output
    write_job(folder, None, *UNPROTECTED)
    assert run(folder, "one").exit_code == 0, "control"


def test_validate_and_plan_show_what_is_left(folder: Path) -> None:
    run(folder, "one")
    write_job(folder, f'{{url: {folder}/ledger.sqlite, total: "8"}}')
    said = "budget: strict ε = 3 charged to small under zero_out; 5 left; this run takes 3"
    assert said in invoke("validate", f"{folder}/job.yaml").output
    assert "5 left" in invoke("plan", f"{folder}/job.yaml").output
    run(folder, "two")
    done = invoke("validate", f"{folder}/job.yaml")
    assert (done.exit_code, "a run into a new workspace would be refused" in done.output) == (0, True)


def test_the_pages_of_a_ledger(folder: Path) -> None:
    """show, check and export, for people and for programs."""
    run(folder, "one")
    run(folder, "two")
    place = ["--ledger", str(folder / "ledger.sqlite")]
    invoke("ledger", "init", *place, "--dataset", "small", "--total", "10", "--window", "3:9")
    shown = invoke("ledger", "show", *place).output
    assert "small: strict, zero_out" in shown
    assert "6 of 10, 4 left" in shown
    assert "6 of 9, 3 left" in shown
    (account,) = json.loads(invoke("ledger", "show", "--json", *place).output)["accounts"]
    (period,) = account["periods"]
    assert (account["charged"], account["limits"]["total"]) == ("6", "10")
    assert period == {"period": "2021", "runs": "2", "released": "2", "ε": "6", "summed": "6"}
    checked = invoke("ledger", "check", *place, folder / "one", folder / "two")
    assert (checked.exit_code, checked.output.startswith("8 entries, all intact")) == (0, True)
    (folder / "ledger.sqlite").rename(folder / "away.sqlite")
    Ledger(str(folder / "ledger.sqlite")).begin()
    checked = invoke("ledger", "check", *place, folder / "one")
    assert (checked.exit_code, checked.output) == (1, f"{folder}/one: the run was charged in another ledger\n")
    (folder / "away.sqlite").rename(folder / "ledger.sqlite")
    exported = invoke("ledger", "export", "--json", *place).output
    entries = json.loads(exported)
    assert len(entries) == len(exported.splitlines()) - 2, "one a line, between brackets"
    assert [entry["previous"] for entry in entries[1:]] == [entry["sha256"] for entry in entries[:-1]]
    table = invoke("ledger", "export", *place).output.splitlines()
    assert len(table) == 9
    assert table[2].split(",")[2:5] == ["reserve", "small", "2021"]


FIRST, *ELECTIONS = [str(year) for year in range(2012, 2026, 2)]


@pytest.mark.real_data
@pytest.mark.long
def test_six_elections_add_up_and_the_next_one_is_refused(data: Path, tmp_path: Path) -> None:
    """One template, a chain of releases that begins on a public file: the ledger's sum is the one in the last statement."""
    place = tmp_path / "ledger.sqlite"
    invoke("ledger", "init", "--ledger", place, "--dataset", "cps_vote", "--total", len(ELECTIONS))
    everybody = pd.read_parquet(data / "cps_vote.parquet", columns=["year", "state", "voted", "weight"]).dropna()
    text = find_job("vote_strict").read_text(encoding="utf-8")
    everybody[everybody["year"] == int(FIRST)].to_parquet(tmp_path / "first.parquet")
    before, codes = f"{{path: {tmp_path}/first.parquet, period: '{FIRST}'}}", []
    for period in (*ELECTIONS, "2026"):
        year = int(period) if period in ELECTIONS else 2024
        everybody[everybody["year"] == year].to_parquet(tmp_path / "current.parquet")
        own = text.replace('period: "2024"', f'period: "{period}"')
        own = own.replace("{path: cps_vote-2022.parquet, provenance: an earlier public-use file}", before)
        own = own.replace("compare: [laplace_composed, reference_only]\n", "")
        (tmp_path / "job.yaml").write_text(own + f"publish: always\nledger: {{url: {place}}}\n")
        command = ["run", f"{tmp_path}/job.yaml", "-w", f"{tmp_path}/{period}", "--input", f"{tmp_path}/current.parquet"]
        codes.append(invoke(*command).exit_code)
        before = f"{{release: {tmp_path}/{period}/public}}"
    assert codes == [0] * len(ELECTIONS) + [3]
    last = statement(tmp_path, ELECTIONS[-1])
    assert (
        total(charges(Ledger(str(place)).entries(), "cps_vote"))
        == Fraction(last["reference"]["chain_epsilon"])
        == len(ELECTIONS)
    )
    assert not (tmp_path / "2026").exists()
    assert last["metered"] is True


def test_what_a_job_says_of_its_ledger_decides_no_result() -> None:
    said = 'ledger: {url: x, total: "9", window: {periods: 2, budget: "1"}}'
    plain, counted = parse_job(JOB), parse_job(JOB + said)
    assert plain.identity == counted.identity
    assert plain.public == counted.public
