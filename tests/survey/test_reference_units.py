"""A reference that is too small, or in another unit than the file, is refused or doubted before anything is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke, succeed

import dpdist
from dpdist.core.errors import DataError
from dpdist.core.progress import Event
from dpdist.job.loading import parse_job

JOB = """
dataset: units
period: "2024"
input: {path: now.parquet}
columns:
  area: {levels: [north, south]}
  pay: {bounds: [0, 50000], outside: clip}
survey: {weight: w}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
reference: {path: then.parquet, period: "2022"}
tables:
  - {name: t, by: [area], statistics: [count, {mean: pay}]}
runtime: {executor: serial}
"""
BOUNDED = JOB.replace("survey:", "  w: {bounds: [1, 100], outside: clip}\nsurvey:")


def survey(seed: int, records: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    area = rng.choice(["north", "south"], records)
    return pd.DataFrame({"area": area, "pay": rng.lognormal(7.5, 0.6, records).round(), "w": rng.uniform(5, 60, records)})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    survey(1).to_parquet("now.parquet")
    return tmp_path


def with_reference(reference: pd.DataFrame, text: str = JOB) -> str:
    reference.to_parquet("then.parquet")
    Path("job.yaml").write_text(text, encoding="utf-8")
    return "job.yaml"


@pytest.mark.parametrize(
    ("column", "factor", "fault"),
    [("pay", 1e3, "reference's outcomes"), ("w", 1e-3, "reference's weights"), ("w", 1e3, "reference's weights")],
)
def test_values_that_nearly_all_lie_outside_public_bounds_are_refused(
    column: str, factor: float, fault: str, folder: Path
) -> None:
    """Control: prices that grew by a half."""
    grown = survey(2).assign(pay=lambda rows: rows["pay"] * 1.5)
    assert dpdist.validate(with_reference(grown, BOUNDED)).reference is not None
    other = survey(2).assign(**{column: lambda rows: rows[column] * factor})
    with pytest.raises(DataError, match=f"columns.{column}.bounds: nearly all of the {fault} lie outside"):
        dpdist.validate(with_reference(other, BOUNDED))


@pytest.mark.parametrize(("column", "factor"), [("pay", 1e-3), ("pay", 1e-1), ("w", 1e-3), ("w", 1e3)])
def test_a_factor_is_named_for_the_custodian_and_refuses_no_strict_run(column: str, factor: float, folder: Path) -> None:
    """Control: prices that grew by a half."""
    for by, found in ((factor, True), (1.5, False)):
        with_reference(survey(2).assign(**{column: lambda rows, by=by: rows[column] * by}))
        shown = invoke("validate", "job.yaml")
        words = f"medians of {column} differ from the file's by a factor of 10 or more (confidential"
        assert (shown.exit_code, words in " ".join(shown.output.split())) == (0, found), shown.output


def test_what_public_facts_make_doubtful_is_said_before_a_run_is_charged(folder: Path) -> None:
    """Bounds tell that the unit may be another one; 200 records are few; a constant does not show how values vary. Control:
    an earlier file of 600 has no doubt.
    """

    def cautions(*of: Any) -> str:
        with_reference(*of)
        shown = invoke("validate", "job.yaml", "--json", "--quiet")
        return "\n".join(json.loads(shown.output.splitlines()[-1])["cautions"])

    notes = list[Event]()
    assert "The reference has 200 records" in (few := cautions(survey(2, 200)))
    dpdist.run(parse_job(JOB), folder / "work", listener=notes.append)
    (note,) = (event.note for event in notes if event.note is not None and "The reference has 200" in event.note)
    assert note.rpartition(" [")[0] in few
    assert "No value of 'pay' in the reference reaches 1 %" in cautions(survey(2), JOB.replace("50000", "5000000"))
    for column, value in (("pay", 0.0), ("w", 7.0)):
        told = cautions(survey(2).assign(**{column: value}), BOUNDED)
        assert f"All 600 records of the reference have {value:g} as '{column}'" in told
    assert "The reference has" not in (usual := cautions(survey(2)))
    assert "in the reference" not in usual


def test_shares_that_are_clipped_are_for_the_custodian_and_not_said_where_sizes_are_secret(folder: Path) -> None:
    """A fifth of the file lies beyond the bounds; a reference of monthly pay is noted by its factor of 12."""
    rows = survey(1)
    high = float(np.quantile(rows["pay"], 0.8))
    text = BOUNDED.replace("50000", f"{high:g}")
    with_reference(survey(2).assign(pay=lambda rows: (rows["pay"] / 12).round(2)), text)
    shown = succeed("validate", "job.yaml")
    words = " ".join(shown.split())
    share = float((rows["pay"] > high).mean())
    sums = [float((rows["w"] * pay).sum()) for pay in (rows["pay"].clip(upper=high), rows["pay"])]
    clipped = f"clipped to bounds: pay: {100 * share:.2g} % of records, which lowers its sum by"
    assert f"{clipped} {100 * (1 - sums[0] / sums[1]):.0f} %; w: 0 % of records (confidential" in words
    assert "medians of pay differ from the file's by a factor of 10 or more (confidential" in words
    done = json.loads(invoke("validate", "job.yaml", "--json", "--quiet").output.splitlines()[-1])
    assert done["clipped"] == {"pay": pytest.approx(share), "w": 0.0}
    planned = invoke("plan", "job.yaml")
    assert clipped.partition(": ")[2] in " ".join(planned.output.split())
    secret = text.replace('epsilon: "1", adjacency: substitution', 'epsilon: "1", adjacency: add_remove')
    secret += "predictors: {protect: {}}\n"
    Path("job.yaml").write_text(secret, encoding="utf-8")
    for verb in ("validate", "plan"):
        shown = invoke(verb, "job.yaml")
        assert (shown.exit_code, "confidential; do not pass on" in shown.output) == (0, False), shown.output


def test_codes_outside_the_universe_are_no_values_in_another_unit(folder: Path) -> None:
    """In files of whole populations, 9999999 is the pay of whoever was not asked. Control: those who were asked have it."""
    text = BOUNDED.replace("columns:\n", "universe: [{column: asked, keep: [yes]}]\ncolumns:\n").replace("yes", "'yes'")
    rows = survey(2, 6000).assign(asked=np.where(np.arange(6000) % 15 == 0, "yes", "no"))
    survey(1).assign(asked="yes").to_parquet("now.parquet")
    coded = rows.assign(pay=rows["pay"].where(rows["asked"] == "yes", 9_999_999.0))
    assert dpdist.validate(with_reference(coded, text)).reference is not None
    with pytest.raises(DataError, match="nearly all of the reference's outcomes lie outside"):
        dpdist.validate(with_reference(rows.assign(pay=9_999_999.0), text))
