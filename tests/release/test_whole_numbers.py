"""Outcomes that a job declares whole are whole in synthetic records of every mechanism and family."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_jobs import CURRENT, EARLIER, Said, contradictions, crossed, rooted, unchecked

import dpdist
from dpdist.job import SPECS, Job
from dpdist.job.families import FAMILIES, UNIT
from dpdist.job.loading import find_job, parse_job
from dpdist.publish import synthesis
from dpdist.testing.mechanisms import survey

WITHOUT_RECORDS = {"laplace", "laplace_composed"}


def whole(job: Said, family: str) -> Said:
    """The small job with a whole outcome: salaries, visits, or yes and no. A partition has two outcomes."""
    named = job["outcome"] if isinstance(job["outcome"], list) else [job["outcome"]]
    outcomes = {"partition": ["voted", "visits"], "marginals": ["visits"], "histogram": ["visits"]}.get(family, named)
    bounds = {"salary": [1000, 1_000_000], "visits": [0, 60], "voted": [0, 1]}
    columns = {name: column for name, column in job["columns"].items() if name not in named}
    columns |= {name: {"bounds": bounds[name], "whole": True, "outside": "clip"} for name in outcomes}
    (table,) = job["tables"]
    constants = {key: value for key, value in job["mechanism"].items() if key != "bins"}
    constants |= {"bins": {"visits": 8}} if constants["name"] == "steps" else {}  # the others count every level
    tables = [table | {"statistics": ["count", {"mean": outcomes[0]}]}]
    outcome = outcomes if len(outcomes) > 1 else outcomes[0]
    return job | {"columns": columns, "outcome": outcome, "mechanism": constants, "tables": tables, "publish": "always"}


def jobs() -> dict[str, tuple[Said, Job]]:
    """The first job of every mechanism and family that can be named, under any adjacency."""
    made: dict[str, tuple[Said, Job]] = {}
    for name, job in crossed():
        mechanism, _, family = name.split("-")
        if mechanism in WITHOUT_RECORDS or f"{mechanism}-{family}" in made:
            continue
        if not (family in FAMILIES and FAMILIES[family].support == UNIT):  # no whole number lies within
            said = whole(job, family)
            if not contradictions(unchecked(said)):
                made[f"{mechanism}-{family}"] = said, unchecked(said)
    return made


JOBS = jobs()
CHAINS = {name for name, (_, job) in JOBS.items() if job.sampler.name == "stan"}
"""Jobs whose posterior needs a Markov chain, and so a compiler."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for seed, name in ((1, CURRENT), (2, EARLIER)):
        rows = survey(seed).assign(salary=lambda rows: rows["salary"].round(), voted=lambda rows: rows["voted"] == "yes")
        rows.assign(voted=rows["voted"].astype(int)).to_parquet(folder / name)
    return folder


def records(name: str, inputs: Path, folder: Path) -> pd.DataFrame:
    """The outcomes of all synthetic records."""
    said, job = JOBS[name]
    programs = find_job("doctorates_pooling").parent
    dpdist.run(parse_job(json.dumps(rooted(said, inputs)), folder=programs), folder / "ws", counted=False)
    sets = sorted((folder / "ws" / "public" / "synthetic").glob("set-*.parquet"))
    assert sets
    return pd.concat([pd.read_parquet(file) for file in sets])[list(job.outcomes)]


COMPILED = [pytest.mark.system, pytest.mark.slow]
"""Marks of jobs that compile a program of their own, most of a minute each."""
CASES = [pytest.param(name, marks=COMPILED) if name in CHAINS else name for name in JOBS]


@pytest.mark.parametrize("name", CASES)
def test_synthetic_outcomes_are_whole_and_within_the_jobs_rules(name: str, inputs: Path, tmp_path: Path) -> None:
    for outcome, values in records(name, inputs, tmp_path).items():
        low, high = JOBS[name][1].columns[str(outcome)].bounds or (0.0, 0.0)
        assert (values == np.floor(values)).all()
        assert values.between(low, high).all()
        assert values.nunique() > 1


def test_every_mechanism_with_synthetic_records_takes_whole_outcomes() -> None:
    assert {job.mechanism.name for _, job in JOBS.values()} == set(SPECS) - WITHOUT_RECORDS


def test_the_check_sees_values_between(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without rounding, salaries of a lognormal law are not whole."""
    monkeypatch.setattr(synthesis, "whole_numbers", lambda job, outcome, rng: outcome)
    values = records("weighted-lognormal", inputs, tmp_path)["salary"]
    assert not (values == np.floor(values)).any()


def test_rounding_keeps_expected_values_and_leaves_values_outside_the_support() -> None:
    """Means of 100,000 rounded numbers are within five standard errors, at most .5 / √n each: missed by chance in one of
    a million runs, and the seed is fixed. Values below 1 stay above 0, which a lognormal outcome cannot be.
    """
    _, job = JOBS["weighted-lognormal"]
    rng = np.random.default_rng(1)
    few = job.model_copy(
        update={"columns": {**job.columns, "salary": job.outcome_column.model_copy(update={"bounds": (0, 9)})}}
    )
    for value in (1.2, 2.5, 6.9):
        assert synthesis.whole_numbers(few, np.full(100_000, value), rng).mean() == pytest.approx(value, abs=2.5 / 316)
    assert synthesis.whole_numbers(few, np.array([0.1, 0.4, 8.999, 9.4, 3.0]), rng).tolist() == [1, 1, 9, 9, 3]
