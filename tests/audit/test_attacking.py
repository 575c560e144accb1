"""`dpdist audit --holdout`: attacks on the synthetic records of finished releases, and what they must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd
import pytest
from command_line import invoke, succeed
from public_files import public_files
from small_release import JOB as STRICT, survey

import dpdist
from dpdist.audit.attacking import attack
from dpdist.core.errors import WorkspaceError

JOB = STRICT.replace('epsilon: "3"', 'epsilon: "1.5"')
"""An exchange at the same x changes a record's values, which costs twice its ε: 3."""
TABLES = JOB.replace("{name: tables", "{name: laplace_composed, sensitivity: public").replace("strata: [field]\n", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, noise_of: Callable[[str], AbstractContextManager[None]]) -> Path:
    """A release of half of a file, with the other half beside it."""
    folder = tmp_path_factory.mktemp("attacked")
    people = survey(2400).sample(frac=1.0, random_state=5)
    people.tail(1200).to_parquet(folder / "others.parquet")
    people.head(1200).to_parquet(folder / "members.parquet")
    with noise_of("attacked again"):
        dpdist.run(dpdist.parse_job(JOB), folder / "ws", people.head(1200))
    return folder


def found_in(workspace: Path) -> pd.DataFrame:
    return pd.read_parquet(workspace / "confidential" / "evaluation" / "audit-attacks.parquet")


def test_an_honest_release_shows_no_more_than_is_claimed_and_nothing_leaves_its_confidential_folder(folder: Path) -> None:
    before, command = public_files(folder / "ws"), ["audit", f"{folder}/ws", "--holdout", f"{folder}/others.parquet"]
    text = succeed(*command, "--confidential")
    assert "Attacks (confidential)" in text
    assert public_files(folder / "ws") == before
    rows = found_in(folder / "ws")
    values = rows.set_index(["attack", "measure"])["value"]
    assert values["nearest record", "chance"] > 0.01
    assert abs(values["singling out", "excess"]) < 0.3
    assert rows.set_index("measure").loc["at_least", "claimed"] == 3.0, (
        "of an exchange at the same x, by the mechanism's proof: sums of changed values move by 2"
    )
    assert values["membership", "most_that_can_be_shown"] > 3.0
    assert not rows["exceeds"].any()
    shown = succeed(*command)
    assert "at_least" not in shown


def test_control_synthetic_records_that_are_the_files_own_are_shown_and_the_command_fails(folder: Path) -> None:
    """The released set exchanged for the members themselves: all three attacks see it, and the message has no figures."""
    held = folder / "ws" / "public" / "synthetic" / "set-1.parquet"
    kept = held.read_bytes()
    try:
        members = pd.read_parquet(folder / "members.parquet")
        members[list(pd.read_parquet(held).columns)].to_parquet(held)
        done = invoke("audit", f"{folder}/ws", "--holdout", f"{folder}/others.parquet", "--quiet")
    finally:
        held.write_bytes(kept)
    assert done.exit_code == 1
    assert "synthetic records reveal more than the claimed ε allows" in " ".join(done.output.split())
    rows = found_in(folder / "ws")
    values = rows.set_index(["attack", "measure"])["value"]
    assert values["nearest record", "share_nearer_to_members"] == pytest.approx(0.917, abs=0.03), "1,000 of 1,200"
    assert values["nearest record", "chance"] <= 0.01
    assert values["singling out", "excess"] > 0.5
    assert values["membership", "at_least"] > 3.0


def test_a_release_without_synthetic_records_is_refused_by_name(tmp_path: Path) -> None:
    dpdist.run(dpdist.parse_job(TABLES), tmp_path / "ws", survey(200))
    with pytest.raises(WorkspaceError, match="no synthetic records"):
        attack(tmp_path / "ws", survey(50))
    with pytest.raises(WorkspaceError, match="no finished release"):
        attack(tmp_path / "none", survey(50))
