"""Jobs of `table_package` of a chosen size: records, columns with their levels, tables, outcomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

BOUNDS, WEIGHTS = [0, 1000], [1, 500]


def sets_of_columns(columns: int, tables: int) -> list[list[str]]:
    """The first so many sets of two columns, then three, and so on."""
    names = [f"c{number}" for number in range(columns)]
    every = (list(by) for size in range(2, columns + 1) for by in combinations(names, size))
    return list(islice(every, tables))


def people(levels: Sequence[int], records: int, outcomes: int, seed: int, nested: bool = False) -> pd.DataFrame:
    """Records whose outcomes and weights depend on every column. If `nested`, a level of c1 lies in one of c0."""
    rng, world = np.random.default_rng(seed), np.random.default_rng(0)
    weight, mean, columns = np.zeros(records), np.zeros((outcomes, records)), dict[str, Any]()
    for number, size in enumerate(levels):
        code = rng.integers(0, size, records)
        if nested and number == 1:
            first = columns["c0"].codes
            code = first + levels[0] * (code // levels[0])
        weight += world.normal(0.0, 0.2, size)[code]
        mean += world.normal(0.0, 0.2, (outcomes, size))[:, code]
        columns[f"c{number}"] = pd.Categorical.from_codes(code, [f"l{level}" for level in range(size)])
    columns |= {f"y{k}": np.clip(100 * np.exp(one) * rng.gamma(4.0, 0.25, records), *BOUNDS) for k, one in enumerate(mean)}
    return pd.DataFrame(columns | {"w": np.clip(50 * np.exp(weight) * rng.gamma(4.0, 0.25, records), *WEIGHTS)})


def sized_job(
    folder: Path,
    levels: Sequence[int],
    by: Sequence[Sequence[str]],
    records: int,
    outcomes: int = 1,
    nested: bool = False,
    **keys: Any,
) -> Path:
    """Writes a current file, a reference of as many records, and a job with these tables of counts and means."""
    for seed, name in enumerate(("current", "earlier")):
        people(levels, records, outcomes, 1 + seed, nested).to_parquet(folder / f"{name}.parquet")
    names = [f"y{k}" for k in range(outcomes)]
    settings = {
        "dataset": "sized",
        "period": "2024",
        "input": {"path": str(folder / "current.parquet")},
        "columns": {f"c{k}": {"levels": [f"l{level}" for level in range(size)]} for k, size in enumerate(levels)}
        | {name: {"bounds": BOUNDS, "outside": "clip"} for name in names}
        | {"w": {"bounds": WEIGHTS, "outside": "clip"}},
        "survey": {"weight": "w"},
        "outcome": names if outcomes > 1 else names[0],
        "mechanism": {"name": "tables"},
        "budget": {"epsilon": "4", "adjacency": "substitution"},
        "public_frame": {"accepted": "simulated"},
        "publish": "always",
        "withhold_above": None,
        "reference": {"path": str(folder / "earlier.parquet"), "period": "2022"},
        "tables": [{"name": "t", "by": list(map(list, by)), "statistics": ["count", *({"mean": name} for name in names)]}],
    }
    path = folder / "job.json"
    path.write_text(json.dumps(settings | keys))
    return path
