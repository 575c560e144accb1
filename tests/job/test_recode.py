"""`recode`: levels of a category that become others, or count as missing, before anything else is done with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist.core.errors import JobError
from dpdist.job import Job
from dpdist.job.loading import load_job, parse_job

pytestmark = pytest.mark.quick

JOB = """\
dataset: merged
period: "2024"
columns:
  race: {levels: [White, Black, Alaska Native, Other]}
  size: {levels: [1, 2, 3, 4]}
  pay: {bounds: [0, 9], outside: clip}
recode:
  race: {Alaska Native: Other}
  size: {4: 3, 9: null}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
presentation: {columns: {race: {levels: {Alaska Native: Alaskan, Other: Others}}, size: {levels: {4: four, 3: three}}}}
tables:
  - {name: t, by: [race, size], statistics: [count, {mean: pay}]}
"""


def test_merged_levels_are_no_levels_and_their_labels_go_with_them() -> None:
    """A published job, which has the levels that are left, is the same job again."""
    job = parse_job(JOB)
    assert job.columns["race"].levels == ("White", "Black", "Other")
    assert job.columns["size"].levels == (1, 2, 3)
    assert job.presentation.columns["race"].levels == {"Other": "Others"}
    assert job.recode == {"race": {"Alaska Native": "Other"}, "size": {"4": 3, "9": None}}
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert parse_job(JOB.replace("{4: 3, 9: null}", "{4: 2, 9: null}")).identity != job.identity
    assert (
        "recode"
        not in parse_job(JOB.replace("recode:\n  race: {Alaska Native: Other}\n  size: {4: 3, 9: null}\n", "")).public
    )


@pytest.mark.parametrize(
    ("said", "instead", "line", "found"),
    [
        ("  race: {Alaska", "  rase: {Alaska", 8, "column 'rase' is not declared"),
        ("  race: {Alaska", "  pay: {Alaska", 8, "'pay' has bounds"),
        ("{Alaska Native: Other}", "{Alaska Nativ: Other}", 8, "did you mean 'Alaska Native'"),
        ("{Alaska Native: Other}", "{Martian: Other}", 8, "add it to columns.race.levels"),
        ("{Alaska Native: Other}", "{Alaska Native: Othr}", 8, "did you mean 'Other'"),
        ("{Alaska Native: Other}", "{Alaska Native: Another one}", 8, "is not a level of 'race'"),
        ("{Alaska Native: Other}", "{Alaska Native: Black, Black: Other}", 8, "'Black' is itself merged"),
        ("{Alaska Native: Other}", "{Alaska Native: Alaska Native}", 8, "'Alaska Native' is itself merged"),
        ("{4: 3, 9: null}", "{4: 9}", 9, "'9' is not a level of 'size'"),
        ("{4: 3, 9: null}", "{5: 3}", 9, "'5' is not a level of 'size'"),
        ("{4: 3, 9: null}", "{1.5: 3}", 9, "quote the levels"),
        ("{Alaska Native: Other}", "[Alaska Native, Other]", 8, "keys with values"),
        ("outcome: pay", "universe: [{column: race, keep: [Alaska Native]}]\noutcome: pay", 10, "merged by recode"),
    ],
)
def test_what_is_no_column_and_no_level_is_refused_with_its_line(said: str, instead: str, line: int, found: str) -> None:
    with pytest.raises(JobError) as refused:
        parse_job(JOB.replace(said, instead, 1))
    assert [problem.places for problem in refused.value.problems] == [(f"line {line}",)]
    assert found in str(refused.value)


DESIGNED = JOB.replace("pay: {", "w: {bounds: [1, 9], outside: clip}\n  pay: {").replace(
    "outcome: pay",
    "survey: {weight: w, design_strata: [race], design_weights: {by: [race, size], WEIGHTS}}\noutcome: pay",
)


@pytest.mark.parametrize("inline", [False, True])
def test_public_weights_of_merged_strata_are_one_weight(inline: bool, tmp_path: Path) -> None:
    """Control: other weights in the merged strata are refused."""
    cells = [(race, size) for race in ("White", "Black", "Alaska Native", "Other") for size in (1, 2, 3, 4, 9)]

    def job(alone: float) -> Job:
        weights = {cell: alone if cell == ("Alaska Native", 2) else float(cell[0] == "White") + 2.0 for cell in cells}
        rows = "".join(f"{race},{size},{weight}\n" for (race, size), weight in weights.items())
        (tmp_path / "weights.csv").write_text(f"race,size,weight\n{rows}", encoding="utf-8")
        listed = ", ".join(f"{race} / {size}: {weight}" for (race, size), weight in weights.items())
        said = f"weights: {{{listed}}}" if inline else "path: weights.csv"
        (tmp_path / "job.yaml").write_text(DESIGNED.replace("WEIGHTS", said), encoding="utf-8")
        return load_job(tmp_path / "job.yaml")

    public = job(2.0).survey.design_weights
    assert public is not None
    races = ("White", "Black", "Other")
    assert public.weights == {f"{race} / {size}": 3.0 if race == "White" else 2.0 for race in races for size in (1, 2, 3)}
    with pytest.raises(JobError, match="different weights into 'Other / 2'"):
        job(2.5)
