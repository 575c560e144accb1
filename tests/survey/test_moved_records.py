"""A reference with the current file's records is refused, even shuffled, joined to others, and with a column moved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from dpdist.core.errors import DataError
from dpdist.job.loading import parse_job
from dpdist.survey.census import take_census
from dpdist.survey.reference_file import open_reference
from dpdist.survey.same_file import ColumnValues, column_values, moved_records
from dpdist.survey.source import open_source

pytestmark = pytest.mark.quick

JOB = """
dataset: moved
period: "2024"
columns:
  area: {levels: [north, south]}
  sex: {levels: [f, m]}
  pay: {bounds: [-1000, 1000000], outside: clip}
  w: {bounds: [0.001, 100000], outside: clip}
survey: {weight: w}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
reference: {path: reference.parquet, period: "2022"}
tables:
  - {name: t, by: [area, sex], statistics: [count, {mean: pay}]}
"""


def survey(seed: int, records: int = 600, step: float = 10.0) -> pd.DataFrame:
    """Pay in tens, as people report it."""
    rng = np.random.default_rng(seed)
    columns = {"area": rng.choice(["north", "south"], records), "sex": rng.choice(["f", "m"], records)}
    pay = np.round(rng.lognormal(7.5, 0.6, records) / step) * step
    return pd.DataFrame({**columns, "pay": pay, "w": rng.uniform(5, 60, records).round(2)})


def shuffled(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sample(frac=1.0, random_state=3)


COPIES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "shuffled": shuffled,
    "shuffled, pay + 1": lambda rows: shuffled(rows.assign(pay=rows["pay"] + 1)),
    "pay in thousands": lambda rows: shuffled(rows.assign(pay=rows["pay"] / 1000)),
    "weights + 1": lambda rows: shuffled(rows.assign(w=rows["w"] + 1)),
    "weights times 2.5": lambda rows: shuffled(rows.assign(w=rows["w"] * 2.5)),
    "both + 1": lambda rows: shuffled(rows.assign(pay=rows["pay"] + 1, w=rows["w"] + 1)),
    "pay + 1, joined to others": lambda rows: shuffled(pd.concat([rows.assign(pay=rows["pay"] + 1), survey(9, 3000)])),
    "weights times 2.5, joined": lambda rows: pd.concat([rows.assign(w=rows["w"] * 2.5), survey(9, 900, step=0.01)]),
    "a part, pay + 1": lambda rows: shuffled(rows.assign(pay=rows["pay"] + 1)).head(300),
}
OTHERS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "another year": lambda rows: survey(2),
    "another year, larger": lambda rows: survey(3, 5000),
    "the same people and weights with other pay": lambda rows: rows.assign(pay=survey(4)["pay"].to_numpy()),
    "pay that rose by a tenth for everybody": lambda rows: rows.assign(pay=rows["pay"] * 1.1),
    "a panel whose pay has risen": lambda rows: rows.assign(
        pay=(rows["pay"] * np.random.default_rng(5).uniform(0.9, 1.3, len(rows)) / 10).round() * 10
    ),
}


def opened(reference: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    job, now = parse_job(JOB), survey(1)
    source = open_source(job, now)
    monkeypatch.setattr("dpdist.survey.reference_file.open_source", lambda *_: open_source(job, reference))
    monkeypatch.setattr("pathlib.Path.exists", lambda path: True)
    open_reference(job, source, take_census(job, source).crosstab)


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_is_refused(copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="it is the current file, or contains records from it"):
        opened(COPIES[copy](survey(1)), monkeypatch)


@pytest.mark.parametrize("other", OTHERS)
def test_another_file_is_not(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(OTHERS[other](survey(1)), monkeypatch)


OFTEN = [(2, 1), (5, 3), (40, 500), (200, 1), (3000, 3)]
LAWS = [(values, weights) for values in (2, 5, 40, 200, 3000) for weights in (1, 3, 500)]
"""Numbers of values and of weights; all values, and all weights, are often tried, and the other pairs are `long`."""


@pytest.mark.parametrize(
    ("values", "weights"), [pytest.param(*law, marks=[] if law in OFTEN else [pytest.mark.long]) for law in LAWS]
)
def test_independent_samples_of_few_values_are_not_taken_for_copies(values: int, weights: int) -> None:
    """25 pairs from one law, heaped as hours and grades are. False alarms: none, where 6 in 100,000 are allowed."""
    rng, job = np.random.default_rng(values), parse_job(JOB)
    for _ in range(25):
        pair = [
            survey(int(rng.integers(10**6)), 400).assign(
                pay=rng.integers(1, values + 1, 400).astype(float), w=rng.integers(1, weights + 1, 400).astype(float)
            )
            for _ in range(2)
        ]
        now, then = (column_values(job, open_source(job, rows)) for rows in pair)
        assert not moved_records(now, then, 1)


def test_equal_weights_hide_no_copy() -> None:
    """Control: another file with equal weights, and the same outcomes beside other weights."""
    job = parse_job(JOB)
    now, moved, other, weighed = (
        column_values(job, open_source(job, rows))
        for rows in (
            survey(1).assign(w=1.0),
            shuffled(survey(1).assign(w=1.0, pay=lambda rows: rows["pay"] + 1)),
            survey(2).assign(w=1.0),
            survey(1),
        )
    )
    assert moved_records(now, moved, 1)
    assert not moved_records(now, other, 1)
    assert not moved_records(now, weighed, 1)


def test_a_large_file_is_thinned_by_what_a_move_leaves_alone() -> None:
    """Control: another file of this size."""
    job, rows = parse_job(JOB), survey(1, 4000)
    now, moved, other = (
        column_values(job, open_source(job, each), largest=500)
        for each in (rows, shuffled(rows.assign(pay=rows["pay"] + 1)), survey(2, 4000))
    )
    assert now[0].divisor > 1
    assert len(now[0].key) <= 500
    assert moved_records(now, moved, 1)
    assert not moved_records(now, other, 1)
    assert isinstance(now[0], ColumnValues)
