"""Processes that claim budget at once, in a file and on a server, and are killed: never overspent, none lost."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpdist.job import Limits
from dpdist.ledger.accounts import charges, total
from dpdist.ledger.book import Ledger


def claimed(place: str, claimants: int, kills: int) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("claimants.py")), place, str(claimants), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("claimants", "room", "kills"),
    [(24, 15, 8), *(pytest.param(64, 40, kills, marks=pytest.mark.slow) for kills in (12, 200))],
)
def test_concurrent_claims_are_all_charged_once_or_refused(
    place: str, ledger: Ledger, claimants: int, room: int, kills: int
) -> None:
    """Whoever was told that it is charged has one entry, whoever was refused has none, and the budget, which has room for
    so many runs, is spent exactly.
    """
    ledger.limit("wages", "strict", Limits(total=str(Fraction(room, 3))))
    said = claimed(place, claimants, kills)
    assert said["killed"] >= kills
    entries = ledger.entries()
    charged = [int(charge.run.removeprefix("run-")) for charge in charges(entries, "wages")]
    assert sorted(set(charged)) == sorted(charged), "never twice"
    assert set(said["charged"]) == set(charged), "none lost, none unheard of"
    assert sorted(said["charged"] + said["refused"]) == list(range(claimants))
    assert total(charges(entries, "wages")) == Fraction(room, 3)
    settled = sorted(entry.content["run"] for entry in entries if entry.kind == "settle")
    assert settled == sorted(f"run-{run}" for run in charged)


def test_control_without_one_writer_at_a_time_the_budget_would_be_overspent(
    ledger: Ledger, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who read the same state and then both write: the second finds its place in the chain taken."""
    from dataclasses import replace

    from sqlalchemy.exc import IntegrityError

    from dpdist.ledger.accounts import following
    from dpdist.ledger.book import Database, append

    last = ledger.entries()[-1]
    own = {"kind": "reserve", "dataset": "wages", "period": "2021"}
    first, second = (following(last, {**own, "run": run}) for run in ("run-1", "run-2"))
    with Database(place).writing() as link:
        append(link, first)
    with pytest.raises(IntegrityError), Database(place)._engine.begin() as link:
        append(link, replace(second))
