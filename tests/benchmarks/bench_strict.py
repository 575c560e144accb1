"""The statistics pass of strict tables beside reading the file's columns, and a whole strict release of a survey's size."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpdist
from dpdist.core.progress import silent
from dpdist.engine.rounds import Unrecorded
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.query import ClippedSums
from dpdist.planning.blocks import block_rows
from dpdist.planning.making import make_plan
from dpdist.survey.placement import place

FIELDS = ("arts", "engineering", "health", "law", "sciences", "social sciences", "trades")
JOB = """
dataset: bench
period: "2"
input: {{path: {path}}}
columns:
  field: {{levels: [arts, engineering, health, law, sciences, social sciences, trades]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: reference_tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{path: {reference}}}
tables: [{{name: salaries, by: [field, sex], statistics: [count, {{mean: salary}}]}}]
runtime: {{executor: serial}}
"""


def survey(path, seed, n):
    """Whole dollars, categories as text, and three more columns that the job does not name."""
    rng = np.random.default_rng(seed)
    columns = {"field": np.array(FIELDS)[rng.choice(7, n)], "sex": np.array(["f", "m"])[rng.choice(2, n)]}
    columns["salary"] = np.minimum(np.round(np.exp(rng.normal(10.8, 0.6, n))), 150_000.0)
    columns["weight"] = np.exp(rng.normal(5.0, 0.8, n))
    columns |= {f"other{k}": rng.normal(size=n) for k in range(3)}
    pq.write_table(pa.table(columns), path)


def strict_job(tmp_path, n):
    survey(tmp_path / "now.parquet", 1, n)
    survey(tmp_path / "before.parquet", 2, 35_000)
    return dpdist.parse_job(JOB.format(path=tmp_path / "now.parquet", reference=tmp_path / "before.parquet"))


def test_the_statistics_pass_streams_at_half_the_read_rate_or_more(ratio, tmp_path):
    """10⁶ records; reading is PyArrow's, of the four columns that the job names, on one thread, batch by batch."""
    job = strict_job(tmp_path, 1_000_000)
    plan = make_plan(job, None, silent)
    records = place(job, plan.source, plan.census, tmp_path)
    model = plan.model
    assert isinstance(model, ReferenceCells)
    told = model.summarise([records.part(0, len(records))])
    kernel, size = ClippedSums(model.within(model.limited(told), model.units(told))), block_rows(job.sampler.total)
    blocks = [records.part(start, min(start + size, len(records))) for start in range(0, len(records), size)]

    def statistics():
        return sum(kernel(block, {}, Unrecorded()) for block in blocks)

    def reading():
        file = pq.ParquetFile(tmp_path / "now.parquet")
        return sum(len(b) for b in file.iter_batches(columns=["field", "sex", "salary", "weight"], use_threads=False))

    found = ratio("records per second of the statistics pass, over reading's", statistics, reading)
    assert found >= 0.5


def test_a_strict_release_of_a_survey_takes_seconds(tmp_path):
    """35,000 records, read, released, evaluated, with its pages: seconds of one process, to be read beside its parts."""
    job = strict_job(tmp_path, 35_000)
    start = perf_counter()
    dpdist.run(job, tmp_path / "ws")
    whole = perf_counter() - start
    start = perf_counter()
    dpdist.validate(job)
    print(f"\nseconds of a strict release: {whole:.2f}, of them checks of both files {perf_counter() - start:.2f}")
    assert whole < 60.0
