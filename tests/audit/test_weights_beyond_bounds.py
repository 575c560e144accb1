"""A weight beyond its public bounds, from the file to what is released: it moves no support, under any mechanism.

`modips` draws bounded sums from a law on a public domain. The domain follows from the weight's public bounds. If a lighter
weight entered as it is, the sum could lie above its domain, and so could what is drawn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Unwatched, fresh_noise, run_rounds
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.modips.post import Sanitized
from dpdist.mechanisms.modips.query import OutsideDomain
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.sampling.samplers import ExactSampler
from dpdist.survey.census import place, take_census
from dpdist.survey.source import open_source

RUNS = 400
CELLS = ("arts", "law")
JOB = """
dataset: audit
period: "2021"
columns:
  field: {levels: [arts, law]}
  y: {bounds: [0, 1], outside: clip}
  weight: {bounds: [100, 200], outside: clip}
survey: {weight: weight}
outcome: y
mechanism: {name: modips, law: normal, truncation: bounded}
budget: {epsilon: "1", adjacency: zero_out}
tables: [{name: t, by: [field], statistics: [count]}]
"""


def file(light: bool) -> pd.DataFrame:
    """50 records a cell of weight 100; one of the first cell may have weight .001."""
    weight = np.full(100, 100.0)
    weight[0] = 0.001 if light else 100.0
    return pd.DataFrame({"field": np.repeat(CELLS, 50), "y": np.linspace(0.0, 1.0, 100), "weight": weight})


def read(job: Job, rows: pd.DataFrame, folder: Path) -> tuple[Sanitized, Records]:
    """The model, and the records as a run stores them."""
    rows.to_parquet(folder / "file.parquet")
    source = open_source(job, folder / "file.parquet")
    census = take_census(job, source)
    model = builder_of(job).build(job, census.crosstab, census.crosstab.rows_of(0))
    assert isinstance(model, Sanitized)
    return model, place(job, source, census, folder)


def beyond_domain(model: Sanitized, job: Job, records: Records) -> int:
    return beyond(model, job, records, *model.domain)


def beyond(model: Sanitized, job: Job, records: Records, low: Floats, high: Floats) -> int:
    """Number of RUNS releases with a sum that is not in [low, high]."""
    found = 0
    for _ in range(RUNS):
        rounds = mechanism_of(job).protect(job, model, Unwatched())
        released = run_rounds(rounds, model, ExactSampler(1), Key(b"audit"), "all", [records], noise=fresh_noise)
        (sums,) = released.parameters[0]["sums"]
        found += bool(((sums < low) | (sums > high)).any())
    return found


@pytest.mark.parametrize("light", [False, True], ids=["without it", "with it"])
def test_one_light_weight_does_not_move_the_support_of_what_is_published(light: bool, tmp_path: Path) -> None:
    """0 of 400 releases have a sum beyond its public domain, with the record and without. No release can have one, so there
    is no false alarm. Before weights were clipped from below, one in seven had one with the record."""
    job = parse_job(JOB)
    model, records = read(job, file(light), tmp_path)
    assert beyond_domain(model, job, records) == 0


def test_control_without_the_clip_the_sum_is_beyond_its_domain_and_refused(tmp_path: Path) -> None:
    """The message names no value."""
    job = parse_job(JOB)
    model, records = read(job, file(True), tmp_path)
    records.weight[records.weight == 100.0] = np.where(np.arange(100) == 0, 0.001, 100.0)
    with pytest.raises(OutsideDomain) as refused:
        beyond_domain(model, job, records)
    assert not any(character.isdigit() for character in str(refused.value))


def test_control_sums_beyond_a_domain_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws have a wider domain than the public one here: with a probability below 1e-9, none of 400 would leave it."""
    job = parse_job(JOB)
    model, records = read(job, file(False), tmp_path)
    low, high = model.domain
    monkeypatch.setattr(type(model), "domain", property(lambda own: (low, high + 10.0 * UNIT)))
    assert beyond(model, job, records, low, high) > 0
