"""Comparators that use a reference: `reference_only` has a figure wherever the reference has a record of the cell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from small_release import JOB, survey

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, cross
from dpdist.quality.evaluate import ABSENT, reference_baselines

FRAME = Crosstab(
    {"field": np.array([0, 0, 1, 1], dtype=np.int32), "sex": np.array([0, 1, 0, 1], dtype=np.int32)},
    {"field": ("arts", "law"), "sex": ("f", "m")},
    np.array([10, 20, 30, 40]),
    (),
    (),
)


def records(rows: list[int], weight: list[float], outcome: list[float]) -> Records:
    number = np.arange(len(rows))
    columns = np.array(rows, dtype=np.int32), np.array(outcome), np.array(weight), number.astype(np.int32)
    return Records(number, *columns)


def test_records_of_base_cells_that_the_reference_lacks_have_the_means_of_the_table_cell() -> None:
    """Arts has both base cells; law lacks its men, so 70 records have the means of women; without law no figure."""
    job = dpdist.parse_job(JOB.replace("strata: [field]\n", ""))
    reference = records([0, 0, 1, 2], [2.0, 4.0, 5.0, 6.0], [10.0, 20.0, 30.0, 40.0])
    both = reference_baselines(job, FRAME, [reference], [reference], Key(bytes(32)))
    cells = cross(FRAME, ("field",), True, ())
    figures = both.figures("reference_only", cells)
    arts, law = 10 * 3.0 + 20 * 5.0, 70 * 6.0
    known = (10 * 3.0 + 20 * 5.0 + 30 * 6.0) / 60 * 100
    np.testing.assert_allclose(figures["count"], [arts, law, known])
    means = [(10 * 50.0 + 20 * 150.0) / arts, 40.0, (10 * 50.0 + 20 * 150.0 + 30 * 240.0) / 60 * 100 / known]
    np.testing.assert_allclose(figures["mean"], means)
    assert both.notes("reference_only", cells, "strict") == ["strict"] * 3
    by_both = cross(FRAME, ("field", "sex"), False, ())
    assert np.isnan(both.figures("reference_only", by_both)["count"]).tolist() == [False, False, False, True]
    assert both.notes("reference_only", by_both, "strict") == ["strict"] * 3 + [ABSENT]


def test_an_evaluation_says_why_a_figure_is_blank(tmp_path: Path) -> None:
    """The earlier file has no man in law; the table's margins have figures, and the blank cell a reason."""
    earlier = survey(500)
    earlier = earlier[(earlier["field"] != "law") | (earlier["sex"] != "m")]
    earlier.to_parquet(tmp_path / "earlier.parquet")
    job = json.dumps({"path": str(tmp_path / "earlier.parquet"), "period": "2020", "provenance": "earlier survey"})
    text = JOB.replace("strata: [field]\n", "") + f"reference: {job}\n"
    text += "compare: [reference_only]\npublish: always\n"
    (tmp_path / "job.yaml").write_text(text)
    dpdist.run(tmp_path / "job.yaml", tmp_path / "ws", survey(800))
    rows = pd.read_parquet(tmp_path / "ws" / "confidential" / "evaluation" / "counts.parquet")
    blank = rows["reference_only"].isna()
    assert rows.loc[blank, ["field", "sex"]].drop_duplicates().to_numpy().tolist() == [["law", "m"]]
    assert set(rows.loc[blank, "reference_only_note"]) == {ABSENT}
