"""What a statement says of privacy unit, gates, corrections and approval follows from its job; a forged figure is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke
from named_draws import named
from public_files import statement_of
from small_release import JOB, survey
from test_verify import edit, vouch

import dpdist
from dpdist.core.public_files import MANIFEST
from dpdist.opening.verifying import problems

EARLIER = "ab" * 32
MORE = f"""
privacy_unit: {{column: household, most: 5}}
accept:
  epsilon: "1"
  tables: [counts]
  gates:
    - {{measure: median, of: count, limit: 0.9}}
    - {{measure: coverage, of: count, limit: 0.5}}
correction: {{version: 2, of: "{EARLIER}", reason: weights of the law stratum were a year old}}
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("claims")
    with named("claims"):
        dpdist.run(JOB + MORE, folder / "ws", survey(4000).assign(household=np.arange(4000) // 3))
    return folder / "ws" / "public"


@pytest.fixture
def public(released: Path, tmp_path: Path) -> Path:
    shutil.copytree(released, tmp_path / "public")
    return tmp_path / "public"


def forged(public: Path, name: str, **edits: object) -> list[str]:
    """What `verify` finds when a file says something else, and the manifest was written again for it."""
    edit(public / name, **edits)
    vouch(public)
    return problems(public)


def test_control_the_release_as_it_was_made_is_whole(public: Path) -> None:
    assert problems(public) == []
    assert forged(public, "statement.json") == [], "written again with the same values"


@pytest.mark.parametrize(
    ("figure", "value", "due"),
    [
        ("privacy_unit", "record", '"household"'),
        ("privacy_unit_most", 3, "5"),
        ("record_share_of_budget", "1/3", '"1/5"'),
        ("correction", {"version": 3, "of": EARLIER, "reason": "another"}, "version"),
        ("correction", None, "version"),
        ("epsilon", "2", '"3"'),
    ],
)
def test_a_forged_figure_of_the_unit_or_the_correction_is_named(public: Path, figure: str, value: object, due: str) -> None:
    found = forged(public, "statement.json", **{figure: value})
    assert len(found) == 1
    assert found[0].startswith(f"statement.json: {figure} ")
    with pytest.raises(dpdist.core.errors.WorkspaceError, match=f"{re.escape(due)}.*which follows from its job"):
        dpdist.open_release(public)


@pytest.mark.parametrize("name", ["privacy_unit_in_words", "adjacency_in_words"])
def test_another_number_and_other_words_in_a_sentence_are_named(public: Path, name: str) -> None:
    text = statement_of(public)[name]
    assert "most 5" in text
    assert forged(public, "statement.json", **{name: text.replace("records", "rows")}) == [
        f"statement.json: differs from what follows from released/: {name}"
    ]
    assert forged(public, "statement.json", **{name: text.replace("most 5", "most 2")}) == [
        f'statement.json: {name} with the numbers ["2"]'
    ]
    assert forged(public, "statement.json", **{name: None}) == [f"statement.json: {name} with the numbers []"]


def gates(**edits: object) -> dict[str, Any]:
    """The first gate with other values."""
    return {"gate": "median of count", "measured": 0.1, "noise_sd": 0.01, "limit": 0.9, "accepted": True} | edits


@pytest.mark.parametrize(
    ("edits", "figure"),
    [
        pytest.param({}, "", id="control"),
        ({"epsilon": "0.5"}, "acceptance.epsilon"),
        ({"tables": ["counts", "others"]}, "acceptance.tables"),
        ({"tables": []}, "acceptance.tables"),
        ({"gates": []}, "acceptance.gates"),
        ({"first": gates(limit=2.0)}, "acceptance.gates"),
        ({"first": gates(gate="largest of count")}, "acceptance.gates"),
        ({"first": gates(measured=0.95)}, "acceptance.gates"),
        ({"first": gates(accepted=False)}, "acceptance.gates"),
        ({"first": gates(noise_sd=0.0)}, "acceptance.gates"),
        ({"first": gates(measured=None)}, "acceptance.gates"),
    ],
)
@pytest.mark.parametrize("name", ["statement.json", "released/promise.json"])
def test_a_forged_gate_is_named(public: Path, name: str, edits: dict[str, Any], figure: str) -> None:
    """The control has the values as they are."""
    said = json.loads((public / name).read_text())["acceptance"]
    if not edits:
        assert forged(public, name, acceptance=said) == []
        return
    if "first" in edits:
        edits = {"gates": [edits["first"], said["gates"][1]]}
    (found,) = forged(public, name, acceptance=said | edits)
    assert found.startswith(f"{name}: {figure} ")


def test_gates_that_no_job_asked_for_and_gates_left_out_are_named(public: Path) -> None:
    assert forged(public, "statement.json", acceptance=None)[0].startswith("statement.json: acceptance null")
    for name in ("statement.json", "released/promise.json"):
        forged(public, name, acceptance={"gates": []})
    job = json.loads((public / "released" / "job.json").read_text())
    (public / "released" / "job.json").write_text(json.dumps({key: job[key] for key in job if key != "accept"}))
    assert any(line.startswith("statement.json: acceptance ") for line in forged(public, "released/job.json"))


def test_verify_says_which_release_a_correction_corrects(public: Path) -> None:
    release = json.loads((public / MANIFEST).read_text())["release"]
    done = invoke("verify", public)
    assert done.output.splitlines()[1] == f"release {release} is version 2, and corrects release {EARLIER}"
    said = json.loads(invoke("verify", public, "--json").output)
    assert (said["release"], said["version"], said["corrects"]) == (release, 2, EARLIER)
    page = (public / "index.html").read_text()
    assert "This is version 2 of 2021." in page
    assert EARLIER in page
