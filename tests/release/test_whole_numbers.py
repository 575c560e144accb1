"""Outcomes that a job declares whole are whole in synthetic records of every mechanism and family; codes stay codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

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


def often() -> set[str]:
    """Jobs whose mechanism, or whose family, no job before them has; the others are `long`."""
    met, found = set[str](), set[str]()
    for name in (name for name in JOBS if name not in CHAINS):
        if not met.issuperset(parts := name.split("-")):
            found.add(name)
        met.update(parts)
    return found


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return COMPILED if name in CHAINS else [] if name in often() else [pytest.mark.long]


CASES = [pytest.param(name, marks=marks_of(name)) for name in JOBS]


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


def test_values_between_codes_are_rounded_to_codes_and_keep_their_expected_value() -> None:
    """Also where codes have gaps, or are no whole numbers. Control: codes stay as they are."""
    codes, rng = np.array([0.0, 1.0, 3.0, 4.5]), np.random.default_rng(3)
    for value in (0.5278, 1.5, 4.2):
        alone = np.concatenate([synthesis._to_codes(np.array([value]), codes, rng) for _ in range(10_000)])
        assert np.isin(alone, codes).all()
        assert alone.mean() == pytest.approx(value, abs=5.0 / 100), "five standard errors"
        together = synthesis._to_codes(np.full(1_000, value), codes, rng)
        assert together.sum() == pytest.approx(1_000 * value, abs=2.0), "one step between codes"
    assert synthesis._to_codes(np.array([-1.0, 9.0, 3.0]), codes, rng).tolist() == [0.0, 4.5, 3.0]
    assert synthesis._to_codes(codes, codes, rng) is codes


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public folder of a release with cells of one or two records, whose released shares no code has."""
    folder = tmp_path_factory.mktemp("coded")
    places = [*(f"p{k}" for k in range(40)), *(f"p{k}" for k in range(0, 40, 2)), *["p0"] * 200]

    def sample(seed: int) -> pd.DataFrame:
        rng, n = np.random.default_rng(seed), len(places)
        works, pay = rng.choice(["no", "yes"], n), rng.uniform(1e4, 9e4, n)
        return pd.DataFrame({"place": places, "works": works, "pay": pay, "weight": rng.uniform(10.0, 90.0, n)})

    sample(5).to_parquet(folder / "reference.parquet")
    said = {
        "dataset": "few",
        "period": "2024",
        "columns": {
            "place": {"levels": [f"p{k}" for k in range(40)]},
            "works": {"bounds": [0, 1], "codes": {"no": 0, "yes": 1}},
            "pay": {"bounds": [0, 100000], "outside": "clip"},
            "weight": {"bounds": [5, 100], "outside": "clip"},
        },
        "survey": {"weight": "weight"},
        "outcome": ["pay", "works"],
        "mechanism": {"name": "tables"},
        "budget": {"epsilon": "2", "adjacency": "substitution"},
        "reference": {"path": str(folder / "reference.parquet"), "period": "2023", "provenance": "simulated"},
        "publish": "always",
        "presentation": {"formats": ["ddi"]},
        "tables": [{"name": "t", "by": ["place"], "statistics": ["count", {"mean": "works"}, {"mean": "pay"}]}],
        "runtime": {"executor": "serial"},
    }
    return dpdist.run(parse_job(json.dumps(said)), folder / "ws", sample(6), counted=False).folder


def test_an_outcome_with_codes_has_only_codes_in_the_smallest_cells(coded: Path) -> None:
    works = pd.read_parquet(coded / "synthetic" / "set-1.parquet")["works"]
    assert works.isin([0, 1]).all(), works[~works.isin([0, 1])].tolist()


def test_codebooks_say_what_codes_mean(coded: Path) -> None:
    columns = {column["column"]: column for column in json.loads((coded / "codebook.json").read_text())["notes"]}
    assert columns["works"]["codes"] == [{"code": 0.0, "text": "no"}, {"code": 1.0, "text": "yes"}]
    assert "codes" not in columns["pay"]
    assert "<bdi>0</bdi>: <bdi>no</bdi><br><bdi>1</bdi>: <bdi>yes</bdi>" in (coded / "index.html").read_text()
    (variable,) = ElementTree.parse(coded / "codebook.xml").findall(".//{ddi:codebook:2_5}var[@name='works']")
    texts = [[part.text for part in category] for category in variable.findall("{ddi:codebook:2_5}catgry")]
    assert texts == [["0", "no"], ["1", "yes"]]


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
