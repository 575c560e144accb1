"""A folder with files of somebody else's is remarked, and what spends the budget again says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpdist
from dpdist.core.errors import WorkspaceError
from dpdist.core.progress import Event
from dpdist.job.loading import parse_job
from dpdist.storage.ownership import owned
from dpdist.storage.workspace import Identity, Workspace

JOB = """
dataset: tiny
period: "1"
input: {simulate: {kind: doctorates, population: 2000, sample: 300, seed: 1}}
columns:
  sex: {levels: [male, female]}
  salary: {bounds: [0, 1000000]}
survey: {weight: weight}
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: unweighted}
budget: {epsilon: "1"}
sampler: {draws: 100}
tables: [{name: t, by: [sex], statistics: [count]}]
"""


def notes(workspace: Path) -> list[str]:
    heard: list[Event] = []
    dpdist.run(parse_job(JOB), workspace, listener=heard.append)
    return [event.note for event in heard if event.stage == "workspace"]


def test_other_files_in_the_folder_are_remarked_once_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "file.txt").write_text("mine", encoding="utf-8")
    assert notes(tmp_path / "ws") == ["the folder also contains other files, such as file.txt, which are not changed"]
    assert notes(tmp_path / "ws") == []
    assert (tmp_path / "ws" / "file.txt").read_text(encoding="utf-8") == "mine"


def test_a_new_or_an_empty_folder_has_no_remark(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (notes(tmp_path / "empty"), notes(tmp_path / "new")) == ([], [])


@pytest.mark.parametrize("damaged", ["identity.json", "key"])
def test_a_remedy_that_spends_the_budget_again_says_so(damaged: str, tmp_path: Path) -> None:
    identity = Identity({"budget.epsilon": "1"}, "input")
    with owned(Workspace.of_place(tmp_path / "ws"), identity, None):
        pass
    with (
        pytest.raises(WorkspaceError) as refused,
        owned(Workspace.of_place(tmp_path / "ws"), Identity({"a": "2"}, "input"), None),
    ):
        pass
    assert "spends additional budget" in refused.value.remedy
    (tmp_path / "ws" / "confidential" / damaged).write_text("damaged", encoding="utf-8")
    with pytest.raises(WorkspaceError) as refused, owned(Workspace.of_place(tmp_path / "ws"), identity, None):
        pass
    assert "a new folder spends the budget again" in refused.value.remedy
