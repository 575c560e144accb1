"""A plan holds hierarchies to public records, and says where priorities and hierarchies have no effect."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edited_text import edited
from rich.console import Console

from dpdist import validate
from dpdist.cli.plan_text import plan_text
from dpdist.core.errors import JobError
from dpdist.job.loading import parse_job
from dpdist.quality.predicted.prediction import ErrorPrediction

TEXT = """
dataset: places
period: "2021"
input: {path: FOLDER/now.parquet}
columns:
  region: {levels: [South, West]}
  state: {levels: [Ohio, Texas, Utah]}
  pay: {bounds: [0, 1000], outside: clip}
  weight: {bounds: [1, 50], outside: clip}
survey: {weight: weight}
outcome: pay
mechanism: {name: laplace_composed, sensitivity: public}
budget: {epsilon: "1", adjacency: substitution}
tables:
  - {name: t, by: [region, state], statistics: [count, {mean: pay}]}
hierarchies: {place: [region, state]}
"""
REGION = {"Ohio": "South", "Texas": "South", "Utah": "West"}
REFERENCE = "mechanism: {name: tables}\nreference: {path: FOLDER/before.parquet}"
MAP = "hierarchies: {place: {columns: [region, state], within: {state: {Ohio: South, Texas: South, Utah: South}}}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The file of this period, and an earlier one in which Utah is of the South."""
    rng = np.random.default_rng(7)
    for name, utah in (("now", "West"), ("before", "South")):
        state = rng.choice(list(REGION), 300)
        region = [{**REGION, "Utah": utah}[one] for one in state]
        columns = {"region": region, "state": state, "pay": rng.uniform(1, 999, 300), "weight": rng.uniform(2, 40, 300)}
        pd.DataFrame(columns).to_parquet(tmp_path / f"{name}.parquet")
    return tmp_path


def text(folder: Path, *edits: tuple[str, str]) -> str:
    written = edited(TEXT, *edits)
    return written.replace("FOLDER", str(folder))


def plan_of(folder: Path, *edits: tuple[str, str]) -> str:
    console = Console(width=200, file=StringIO())
    with console.capture() as printed:
        plan = validate(parse_job(text(folder, *edits)))
        console.print(plan_text(plan, ErrorPrediction(plan.job, {}, "none is made here")))
    return " ".join(printed.get().split())


def refused(folder: Path, *edits: tuple[str, str]) -> str:
    with pytest.raises(JobError) as caught:
        validate(parse_job(text(folder, *edits)))
    (problem,) = caught.value.problems
    assert problem.where == "hierarchies.place"
    return problem.fault


def test_a_plan_shows_the_map_that_public_records_give_and_that_nothing_is_measured_by_it(folder: Path) -> None:
    """Control: without a hierarchy the plan has no such line."""
    assert "place: region (2) > state (3); checked, but 'laplace_composed' does not use them" in plan_of(folder)
    assert "hierarchies" not in plan_of(folder, ("hierarchies: {place: [region, state]}\n", ""))
    assert validate(parse_job(text(folder))).nestings[0].parents[0].tolist() == [0, 0, 1]


def test_a_file_that_does_not_nest_is_refused_with_an_example(folder: Path) -> None:
    rows = pd.read_parquet(folder / "now.parquet")
    rows.loc[0, ["state", "region"]] = ["Texas", "West"]
    rows.to_parquet(folder / "now.parquet")
    assert refused(folder) == "state 'Texas' belongs to region 'South', but in public records also to 'West'"


def test_columns_in_the_wrong_order_are_named(folder: Path) -> None:
    """The remedy was to correct the map. Control: records that nest in neither order, as above."""
    finest_first = ("hierarchies: {place: [region, state]}", "hierarchies: {place: [state, region]}")
    with pytest.raises(JobError, match="the coarsest column comes first: write region before state"):
        validate(parse_job(text(folder, finest_first)))
    rows = pd.read_parquet(folder / "now.parquet")
    rows.loc[0, ["state", "region"]] = ["Texas", "West"]
    rows.to_parquet(folder / "now.parquet")
    with pytest.raises(JobError, match="correct the map, or the records"):
        validate(parse_job(text(folder, finest_first)))


def test_a_stated_map_is_held_to_the_public_records(folder: Path) -> None:
    fault = refused(folder, ("hierarchies: {place: [region, state]}", MAP))
    assert fault == "state 'Utah' belongs to region 'South' by the job, but in public records also to 'West'"


def test_protected_counts_take_the_map_that_is_stated_and_never_look_at_the_file(folder: Path) -> None:
    """The same map is refused where the file's counts are public: see above. Without a map, the job is refused."""
    edits = (("substitution}", "add_remove}\npredictors: {protect: {epsilon: '1/4'}}"),)
    stated = (*edits, ("hierarchies: {place: [region, state]}", MAP))
    assert validate(parse_job(text(folder, *stated))).nestings[0].parents[0].tolist() == [0, 0, 0]
    assert refused(folder, *edits) == "no public record shows to which region a state belongs"


def test_a_reference_that_does_not_nest_is_refused(folder: Path) -> None:
    """Control: with the file's own places it is not."""
    before = pd.read_parquet(folder / "before.parquet")
    edit = ("mechanism: {name: laplace_composed, sensitivity: public}", REFERENCE)
    alike = before.assign(region=before["state"].map(REGION))
    alike.to_parquet(folder / "before.parquet")
    assert validate(parse_job(text(folder, edit))).nestings[0].parents[0].tolist() == [0, 0, 1]
    pd.concat([alike, before]).to_parquet(folder / "before.parquet")
    assert refused(folder, edit) == "state 'Utah' belongs to region 'West', but in public records also to 'South'"


def test_priorities_without_an_effect_are_named(folder: Path) -> None:
    """Control: a plan without priorities has no such caution."""
    weighted = ("{mean: pay}]}", "{mean: pay}], error: 0.5}")
    assert "'laplace_composed' gives all tables the same accuracy, so priority and error of t have no effect" in plan_of(
        folder, weighted
    )
    assert "measures all tables alike" not in plan_of(folder)
