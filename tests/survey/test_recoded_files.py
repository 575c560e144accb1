"""A file whose levels the job merges is read as the same file merged by hand, by every reader and in every type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import pytest
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError
from dpdist.job.loading import parse_job
from dpdist.survey.census import take_census
from dpdist.survey.source import Input, open_source

JOB = """
dataset: merged
period: "2024"
columns:
  race: {levels: [White, Black, Alaska Native, Other]}
  size: {levels: [1, 2, 3, 4], missing: drop}
  region: {levels: [north, south]}
  pay: {bounds: [0, 9], outside: clip}
  w: {bounds: [1, 9], outside: clip}
recode:
  race: {Alaska Native: Other}
  size: {4: 3, 9: null}
universe: [{column: race, keep: [White, Other]}]
survey: {weight: w, design_strata: [region]}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1000", adjacency: substitution}
hierarchies: {}
tables:
  - {name: t, by: [race, size], statistics: [count, {mean: pay}]}
runtime: {executor: serial}
"""


def survey(seed: int = 5) -> pd.DataFrame:
    """One record is of the level that is merged; sizes of 9 are missing codes."""
    rng = np.random.default_rng(seed)
    race = rng.choice(["White", "Black", "Other"], 300).astype(object)
    race[seed] = "Alaska Native"
    numbers = {"pay": rng.integers(0, 10, 300).astype(float), "w": rng.uniform(1, 9, 300).round(2)}
    return pd.DataFrame({"race": race, "size": rng.choice([1, 2, 3, 4, 9], 300), "region": "north", **numbers})


def merged(records: pd.DataFrame) -> pd.DataFrame:
    """The file as a person would merge it by hand."""
    return records.assign(race=records["race"].replace("Alaska Native", "Other"), size=records["size"].replace(4, 3))[
        records["size"] != 9
    ]


def _written(write: Callable[[pd.DataFrame, Path], object], suffix: str) -> Callable[[pd.DataFrame, Path], Input]:
    def written(records: pd.DataFrame, folder: Path) -> Input:
        write(records, folder / f"file{suffix}")
        return folder / f"file{suffix}"

    return written


def _arrow(kinds: dict[str, Any]) -> Callable[[pd.DataFrame, Path], Input]:
    def table(records: pd.DataFrame, folder: Path) -> Input:
        made = pa.Table.from_pandas(records, preserve_index=False)
        return made.cast(pa.schema([(name, kinds.get(name, made.schema.field(name).type)) for name in made.column_names]))

    return table


READERS: dict[str, Callable[[pd.DataFrame, Path], Input]] = {
    "csv": _written(lambda records, path: records.to_csv(path, index=False), ".csv"),
    "csv with 4.0": _written(lambda records, path: records.astype({"size": float}).to_csv(path, index=False), ".csv"),
    "parquet": _written(lambda records, path: records.to_parquet(path), ".parquet"),
    "dictionaries": _written(
        lambda records, path: pq.write_table(pa.Table.from_pandas(records.astype({"race": "category"})), path), ".parquet"
    ),
    "stata": _written(lambda records, path: pyreadstat.write_dta(records, str(path)), ".dta"),
    "spss": _written(lambda records, path: pyreadstat.write_sav(records, str(path)), ".sav"),
    "frame": lambda records, folder: records.astype({"race": "category", "size": "Int64"}),
    "large texts": _arrow({"race": pa.large_string(), "size": pa.float64()}),
    "small numbers": _arrow({"size": pa.int8()}),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_merges_before_levels_strata_and_universe(reader: str, tmp_path: Path) -> None:
    """Control: without the recode the file is refused for what is no level."""
    job, records = parse_job(JOB), survey()
    frame = take_census(job, open_source(job, READERS[reader](records, tmp_path))).crosstab
    (tmp_path / "by_hand").mkdir()
    by_hand = take_census(job, open_source(job, READERS[reader](merged(records), tmp_path / "by_hand"))).crosstab
    assert np.array_equal(frame.count, by_hand.count)
    assert all(np.array_equal(frame.codes[name], by_hand.codes[name]) for name in frame.codes)
    assert frame.levels["race"] == ("White", "Black", "Other")
    assert frame.count.sum() == (merged(records)["race"] != "Black").sum()
    without = parse_job(JOB.replace("recode:\n  race: {Alaska Native: Other}\n  size: {4: 3, 9: null}\n", ""))
    with pytest.raises(DataError, match="not among the declared levels"):
        take_census(without, open_source(without, READERS[reader](records, tmp_path)))


def test_a_release_and_its_reference_have_merged_levels_and_say_so(tmp_path: Path) -> None:
    """Statement and codebook tell what was merged; the reference is read by the same rule."""
    survey(7).to_parquet(tmp_path / "earlier.parquet")
    (said,) = [JOB]
    reference = {"path": str(tmp_path / "earlier.parquet"), "period": "2022"}
    dpdist.run(parse_job(said + f"reference: {json.dumps(reference)}\n"), tmp_path / "work", input=survey())
    public = tmp_path / "work" / "public"
    assert set(pd.read_csv(public / "tables" / "t.csv")["race"]) == {"White", "Black", "Other", "Total"}
    statement = statement_of(public)
    assert "the recode of race when a file is read: 'Alaska Native' becomes 'Other'" in statement["public"]
    assert "the recode of size when a file is read: '4' becomes '3', '9' counts as missing" in statement["public"]
    (race,) = [note for note in json.loads((public / "codebook.json").read_text())["notes"] if note["column"] == "race"]
    assert race["recode"] == [{"level": "Alaska Native", "becomes": "Other"}]
    direct = pd.read_parquet(tmp_path / "work" / "confidential" / "evaluation" / "t.parquet")
    counts = direct[direct["statistic"] == "count"].set_index(["race", "size"])["direct"]
    by_hand = merged(survey()).groupby(["race", "size"])["w"].sum()
    assert counts["Other", "3"] == pytest.approx(by_hand["Other", 3])
