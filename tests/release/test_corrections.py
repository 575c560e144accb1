"""Corrections of one period: each a release of its own, charged, in order, and told apart wherever releases are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke, succeed
from public_files import statement_of
from small_release import LAPLACE_JOB as JOB, survey
from typer.testing import Result

import dpdist
from dpdist.core.errors import LedgerError

PLACES = ("first", "second", "third", "fourth")


def run(folder: Path, name: str, correction: dict[str, Any] | None = None) -> Result:
    more = "" if correction is None else f"correction: {json.dumps(correction)}\n"
    (folder / "job.yaml").write_text(JOB + "ledger: {}\n" + more)
    return invoke("run", folder / "job.yaml", "-w", folder / name, "--input", folder / "survey.parquet", "--quiet")


def release(folder: Path, name: str) -> str:
    return str(json.loads((folder / name / "public" / "manifest.json").read_text())["release"])


def said(folder: Path, version: int, of: str) -> dict[str, Any]:
    return {"version": version, "of": release(folder, of), "reason": f"what was wrong, number {version}"}


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, two corrections of it, and a correction of the second one."""
    folder = tmp_path_factory.mktemp("corrections")
    survey(300).to_parquet(folder / "survey.parquet")
    assert run(folder, "first").exit_code == 0
    for version, (name, of) in enumerate((("second", "first"), ("third", "first"), ("fourth", "third")), start=2):
        done = run(folder, name, said(folder, version, of))
        assert done.exit_code == 0, done.output
    return folder


def test_siblings_and_their_corrections_have_ids_and_versions_of_their_own(chain: Path) -> None:
    assert len({release(chain, name) for name in PLACES}) == 4
    statements = [statement_of(chain / name) for name in PLACES]
    assert [each.get("correction", {}).get("version") for each in statements] == [None, 2, 3, 4]
    assert [each["correction"]["of"] for each in statements[1:]] == [
        release(chain, name) for name in ("first", "first", "third")
    ]


@pytest.mark.parametrize("version", [2, 3, 4, 6])
def test_a_version_that_is_there_or_leaves_one_out_is_refused_before_anything_is_written(chain: Path, version: int) -> None:
    done = run(chain, "other", said(chain, version, "first"))
    assert done.exit_code == 3
    assert "the version after" in " ".join(done.output.split())
    assert not (chain / "other").exists()


def test_the_ledger_shows_them_in_order(chain: Path) -> None:
    (account,) = json.loads(invoke("ledger", "show", "--ledger", chain / "ledger.sqlite", "--json").output)["accounts"]
    assert account["charged"] == "12"
    assert account["periods"][0]["versions"] == "1, 2, 3, 4"
    assert [(each["version"], each["of"]) for each in account["corrections"]] == [
        (2, release(chain, "first")),
        (3, release(chain, "first")),
        (4, release(chain, "third")),
    ]
    shown = " ".join(invoke("ledger", "show", "--ledger", chain / "ledger.sqlite").output.split())
    assert f"2021 version 4 corrects {release(chain, 'third')[:12]}…, ε = 3" in shown
    assert f"4,{release(chain, 'third')}" in invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output


def test_diff_and_verify_tell_siblings_apart(chain: Path) -> None:
    found = json.loads(invoke("diff", chain / "second", chain / "third", "--json").output)["differences"]
    lines = {each["what"]: (each["before"], each["after"]) for each in found if each["part"] == "release"}
    assert lines["version"] == ("2", "3")
    assert "corrects" not in lines, "both correct the first"
    found = json.loads(invoke("diff", chain / "first", chain / "fourth", "--json").output)["differences"]
    lines = {each["what"]: (each["before"], each["after"]) for each in found if each["part"] == "release"}
    assert (lines["version"], lines["corrects"]) == (("1", "4"), ("none", release(chain, "third")))
    assert lines["correction"] == ("none", "what was wrong, number 4")
    assert invoke("verify", chain / "first").output.splitlines()[0] == f"complete: {chain}/first/public"
    assert f"is version 4, and corrects release {release(chain, 'third')}" in invoke("verify", chain / "fourth").output


def test_the_same_correction_started_again_is_no_other_one(chain: Path) -> None:
    before = invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output
    assert run(chain, "second", said(chain, 2, "first")).exit_code == 0
    assert invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output == before


@pytest.mark.parametrize("other", ["0" * 64, "another period's"])
def test_a_correction_of_no_charged_release_of_its_period_is_refused_before_anything_is_written(
    chain: Path, other: str
) -> None:
    """The message lists the ids that may be named. Control: `chain` corrects two of them."""
    if other != "0" * 64:
        job = (chain / "job.yaml").read_text()
        (chain / "next.yaml").write_text(job.split("correction:")[0].replace('"2021"', '"2022"'))
        assert (
            invoke("run", chain / "next.yaml", "-w", chain / "next", "--input", chain / "survey.parquet", "-q").exit_code
            == 0
        )
        other = release(chain, "next")
    done = run(chain, "other", said(chain, 5, "first") | {"of": other})
    text = "".join(done.output.split())
    assert done.exit_code == 3
    assert f"nochargedreleaseof2021hastheid{other}" in text
    assert all(release(chain, name) in text for name in PLACES)
    assert not (chain / "other").exists()


def test_a_correction_that_resumes_names_the_same_release(chain: Path) -> None:
    """Killed after its charge and started with another id: refused, and its charge stays as it was."""
    entries = invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output
    done = run(chain, "second", said(chain, 2, "third"))
    assert done.exit_code == 2, done.output
    assert "correction.of" in done.output
    assert invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output == entries


def test_what_publish_makes_anew_can_be_corrected_too(chain: Path) -> None:
    """Another title makes another id, which the ledger learns. Without the ledger it fails, and the release stands."""
    before = release(chain, "fourth")
    job = (chain / "job.yaml").read_text().split("correction:")[0]
    more = f"correction: {json.dumps(said(chain, 4, 'third'))}\npresentation: {{title: Salaries of a small survey}}\n"
    (chain / "titled.yaml").write_text(job + more)
    succeed("publish", chain / "fourth", "--job", chain / "titled.yaml")
    assert release(chain, "fourth") != before
    exported = invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output
    assert before in exported
    assert release(chain, "fourth") in exported
    (chain / "ledger.sqlite").rename(chain / "away.sqlite")
    with pytest.raises(LedgerError, match="there is none; the release is complete"):
        dpdist.publish(chain / "fourth")
    (chain / "away.sqlite").rename(chain / "ledger.sqlite")
    assert release(chain, "fourth") in invoke("ledger", "export", "--ledger", chain / "ledger.sqlite").output
