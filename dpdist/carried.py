"""What a release of reference_tables carries to the next: its reference's points, moved to what was released; the chain.

All of it is public. A later release that is fixed on it composes adaptively: for every value of what was released before,
it costs its own ε, so that a person in all files of a chain loses at most the sum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.errors import DataError, Problem
from dpdist.files import sha256
from dpdist.job import Job, budget_text

REFERENCE_FILE = "reference.parquet"
CELL = "cell "
"""Beginning of the names of a cell's columns."""


@dataclass(frozen=True)
class Carried:
    """An earlier release as its public folder tells of it."""

    folder: Path
    sha256: str
    """Of its manifest, which vouches for all other files."""
    job: Job
    promise: Mapping[str, Any]
    points: pd.DataFrame
    """One row a point: the cell's levels, variable, standing, weight, outcome."""
    records: int
    """Of the release's own file, as published: noisy where sizes are secret."""

    @property
    def chain(self) -> list[dict[str, Any]]:
        """Every release of the chain, the earliest first, this one last."""
        before: list[dict[str, Any]] = (self.promise.get("reference") or {}).get("chain", [])
        names = ("adjacency", "epsilon", "substitution_epsilon", "delta")
        own = {"dataset": self.job.dataset, "period": self.job.period, **{name: self.promise[name] for name in names}}
        fresh = {"histogram": said["histogram"]} if "histogram" in (said := self.promise.get("reference") or {}) else {}
        return [*before, own | fresh | {"manifest": self.sha256}]

    @property
    def root(self) -> Mapping[str, Any]:
        """What the chain's first release was fixed on, as it says."""
        said: Mapping[str, Any] = self.promise.get("reference") or {}
        root: Mapping[str, Any] = said.get("root", {k: v for k, v in said.items() if k != "chain"})
        return root


def composed(chain: Sequence[Mapping[str, Any]], name: str = "epsilon") -> str:
    """What a person in all files of the chain loses, as exact text."""
    return budget_text(sum((Fraction(one[name]) for one in chain), Fraction(0)))


def points_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The points of all cells; every row a cell and variable: levels under `cell`, variable, standing, points."""
    sizes = [len(row["points"]) for row in rows]
    columns: dict[str, pa.Array] = {}
    for name in rows[0]["cell"]:
        columns[CELL + name] = pa.array(np.repeat(np.array([row["cell"][name] for row in rows], dtype=object), sizes))
    columns["variable"] = pa.array(np.repeat(np.array([row["variable"] for row in rows], dtype=object), sizes), pa.string())
    columns["standing"] = pa.array(np.repeat([float(row["standing"]) for row in rows], sizes))
    values = np.concatenate([np.asarray(row["points"], dtype=np.float64).reshape(-1, 2) for row in rows])
    columns |= {"weight": pa.array(values[:, 0].copy()), "outcome": pa.array(values[:, 1].copy())}
    return pa.table(columns)


def read_carried(folder: Path) -> Carried:
    """An earlier release. Raises `DataError` where there is none that is complete and as its manifest says."""
    manifest, released = folder / "manifest.json", folder / "released"
    try:
        files: dict[str, str] = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        own = {name: digest for name, digest in files.items() if name.startswith("released/") or name == "statement.json"}
        wrong = [name for name, digest in own.items() if not (folder / name).is_file() or sha256(folder / name) != digest]
        if wrong:
            raise _refused(folder, f"{wrong[0]} is not the file that manifest.json tells of", "restore it from a copy")
        job = Job.model_validate_json((released / "job.json").read_text(encoding="utf-8"))
        promise = json.loads((released / "promise.json").read_text(encoding="utf-8"))
        if f"released/{REFERENCE_FILE}" not in own:
            remedy = "name the public folder of an earlier run of mechanism reference_tables"
            raise _refused(folder, f"a release of '{job.mechanism.name}' that carries no reference", remedy)
        points = pq.read_table(released / REFERENCE_FILE).to_pandas()
        records = int(pq.read_table(released / "frame.parquet", columns=["count"]).column("count").to_numpy().sum())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "name the folder `public` of an earlier run, with manifest.json and released/"
        raise _refused(folder, f"no complete release ({type(error).__name__})", remedy) from None
    return Carried(folder, sha256(manifest), job, promise, points, records)


def _refused(folder: Path, found: str, remedy: str) -> DataError:
    return DataError(str(folder), [Problem("reference.release", found, "a complete earlier release", remedy)])
