"""NaN in a numeric column of PSUs is missing, as a null and an empty field are; it is no PSU of that name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.core.errors import DataError
from dpdist.job.loading import parse_job
from dpdist.survey.census import take_census
from dpdist.survey.source import open_source

JOB = """
dataset: psunan
period: "2024"
columns:
  region: {levels: [n, s]}
  income: {bounds: [0, 20000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight, psu: psu}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "1000", adjacency: substitution}
tables:
  - {name: pay, by: [region], statistics: [count, {mean: income}]}
"""


def people(nan: bool) -> tuple[pa.Table, int]:
    """By the generator of the case: a quarter of the records has no PSU."""
    rng = np.random.default_rng(24)
    psu = rng.integers(1, 21, 400).astype(float)
    region, income = rng.choice(["n", "s"], 400), (rng.gamma(2, 900, 400) + psu * 60).round(-1)
    weight = rng.uniform(5, 50, 400).round(2)
    if nan:
        psu[rng.random(400) < 0.25] = np.nan
    table = pa.table({"region": region.tolist(), "income": income, "weight": weight, "psu": pa.array(psu)})
    return table, int(np.isnan(psu).sum())


@pytest.mark.parametrize("form", ["nan.parquet", "null.parquet", "data.csv", "table"])
def test_a_record_without_a_psu_is_refused(form: str, tmp_path: Path) -> None:
    """The 111 records were one PSU, 'nan'. Control: the same file with every PSU."""
    table, missing = people(nan=True)
    path, job = tmp_path / form, parse_job(JOB)
    if form.endswith("csv"):
        table.to_pandas().to_csv(path, index=False)
    elif form.startswith("null"):
        table.to_pandas().to_parquet(path)
    elif form != "table":
        pq.write_table(table, path)
    assert table["psu"].null_count == 0
    with pytest.raises(DataError) as refused:
        take_census(job, open_source(job, table if form == "table" else path))
    (problem,) = refused.value.problems
    assert (problem.where, problem.fault, problem.count) == ("psu", "missing values", missing)
    assert missing == 111
    assert len(take_census(job, open_source(job, people(nan=False)[0])).psu_levels) == 20
