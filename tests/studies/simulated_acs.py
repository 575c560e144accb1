"""For `packages_of_files`: people as in the American Community Survey, with 51 states in 4 regions, weights and incomes.

    python tests/studies/simulated_acs.py FOLDER [--records 3000000] [--workers 2] [--counties 540 --tables 100]

writes a file, a reference of as many records, and a job, for `dpdist run FOLDER/job.json`. The job has ten tables, or the
first ones of those that cross a county, a state, a region or the whole with one, two, three or more other columns.

Shares of states are those of a few large and many small ones. Ages, education, race and tenure differ by state, and income
by all columns and by state and education together. Weights are lognormal within state and race. So tables have cells from
under ten to tens of thousands of records, and no column is independent of the others. Counties lie in states by a map that
the job states. Their shares of a state are lognormal, and their levels of income and weight differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import combinations, islice
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout

from dpdist.core.records import Floats, Ints

STATES, REGIONS = 51, 4
LEVELS = {"age": 8, "sex": 2, "education": 5, "race": 5, "tenure": 2}
"""Levels of the columns beside state and region."""
MOST_INCOME = 500_000.0
TABLES = (
    ("state", "age", "sex"),
    ("state", "sex", "education"),
    ("state", "race"),
    ("state", "tenure"),
    ("region", "age", "education"),
    ("region", "race", "education"),
    ("age", "education"),
    ("region", "race", "tenure"),
    ("region", "age"),
    ("region",),
)
"""Tables of the job, if no number is given."""


def crossings(counties: int) -> Iterator[tuple[str, ...]]:
    """Every area with one other column, then with two, and so on; no table has two areas."""
    areas = (*(("county",),) * (counties > 0), ("state",), ("region",), ())
    for size in range(1, len(LEVELS) + 1):
        for area in areas:
            yield from ((*area, *by) for by in combinations(LEVELS, size))


def acs(records: int, seed: int = 0) -> pd.DataFrame:
    """Records with columns state, region, those of `LEVELS`, income and weight."""
    world, rng = np.random.default_rng(51), np.random.default_rng([51, seed])  # one world for all samples
    size = 1.0 / np.arange(2, STATES + 2) ** 0.8
    state = rng.choice(STATES, records, p=size / size.sum())
    columns: dict[str, Ints] = {"state": state, "region": state % REGIONS}
    for name, levels in LEVELS.items():
        share = np.exp(world.normal(0.0, 0.5, levels) + world.normal(0.0, 0.35, (STATES, levels)))
        below = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)
        columns[name] = (rng.random(records)[:, None] > below[state]).sum(axis=1).clip(0, levels - 1)
    income, weight = (np.full(records, middle) for middle in (np.log(32_000.0), np.log(90.0)))
    for codes in columns.values():
        for log, spread in ((income, 0.2), (weight, 0.15)):
            log += world.normal(0.0, spread, int(codes.max()) + 1)[codes]
    income += world.normal(0.0, 0.08, (STATES, LEVELS["education"]))[state, columns["education"]]
    weight += world.normal(0.0, 0.15, (STATES, LEVELS["race"]))[state, columns["race"]]
    earning = rng.random(records) < 0.85
    drawn: dict[str, Floats] = {
        "income": np.where(earning, np.exp(income + rng.normal(0.0, 0.7, records)), 0.0).clip(0.0, MOST_INCOME),
        "weight": np.exp(weight + rng.normal(0.0, 0.5, records)),
    }
    return pd.DataFrame(columns | drawn)


def states_of(counties: int) -> Ints:
    """The state of every county, (county,): every state has one, and a large state has many."""
    world, further = np.random.default_rng([51, counties]), np.arange(2, STATES + 2) ** -0.8
    return np.sort(np.append(np.arange(STATES), world.choice(STATES, counties - STATES, p=further / further.sum())))


def with_counties(frame: pd.DataFrame, counties: int, seed: int) -> pd.DataFrame:
    """The records of `acs` with a column county, whose levels of income and weight differ."""
    world, rng, state = np.random.default_rng([52, counties]), np.random.default_rng([53, seed]), states_of(counties)
    size, (income, weight) = world.lognormal(0.0, 1.0, counties), np.exp(world.normal(0.0, 0.1, (2, counties)))
    county = np.empty(len(frame), dtype=np.int64)
    for number, records in frame.groupby("state").indices.items():
        inside = np.flatnonzero(state == number)
        county[records] = rng.choice(inside, len(records), p=size[inside] / size[inside].sum())
    moved = {
        "income": (frame["income"] * income[county]).clip(upper=MOST_INCOME),
        "weight": frame["weight"] * weight[county],
    }
    return frame.assign(county=county, **moved)


def write_job(folder: Path, records: int, workers: int, counties: int = 0, tables: int = 0) -> Path:
    """Writes both files and a job of their tables; 0 workers: in one process. 0 tables: `TABLES`."""
    sizes = ({"county": counties} if counties else {}) | {"state": STATES, "region": REGIONS} | LEVELS
    levels = {name: [f"{name} {number}" for number in range(size)] for name, size in sizes.items()}
    by = list(islice(crossings(counties), tables)) if tables else TABLES
    if len(by) < tables:
        raise ValueError(f"{tables} tables of {len(sizes)} columns: there are {len(by)}, and more with counties")
    for seed, name in ((1, "current"), (2, "earlier")):
        frame = acs(records, seed)
        if counties:
            frame = with_counties(frame, counties, seed)
        coded = {column: pd.Categorical.from_codes(frame[column].to_numpy(), pd.Index(of)) for column, of in levels.items()}
        frame.assign(**coded).to_parquet(folder / f"{name}.parquet")
    bounds = {"income": [0, MOST_INCOME], "weight": [0.1, 5000]}
    geography: object = ["region", "state"]
    if counties:
        within = {
            "state": {of: levels["region"][number % REGIONS] for number, of in enumerate(levels["state"])},
            "county": dict(zip(levels["county"], (levels["state"][number] for number in states_of(counties)), strict=True)),
        }
        geography = {"columns": ["region", "state", "county"], "within": within}
    job = {
        "dataset": "acs",
        "period": "2024",
        "input": {"path": "current.parquet"},
        "columns": {name: {"levels": of} for name, of in levels.items()}
        | {name: {"bounds": ends, "outside": "clip"} for name, ends in bounds.items()},
        "survey": {"weight": "weight"},
        "outcome": "income",
        "mechanism": {"name": "tables"},
        "budget": {"epsilon": "4", "adjacency": "substitution"},
        "public_frame": {"accepted": "simulated"},
        "withhold_above": None,
        "hierarchies": {"geography": geography},
        "reference": {"path": "earlier.parquet", "period": "2022"},
        "tables": [{"name": "t", "by": by, "statistics": ["count", {"mean": "income"}]}],
        **({"runtime": {"executor": "dask", "workers": workers, "memory_per_worker": "6GiB"}} if workers else {}),
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--counties", type=int, default=0, help="0, or 51 or more")
    parser.add_argument("--tables", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(write_job(given.folder, given.records, given.workers, given.counties, given.tables))
