"""Packages of ten tables beside `reference_tables` over the same base cells: whole jobs on thirds of a file.

    python tests/studies/packages_beside_base_cells.py --data FOLDER [--files nhis …] [--epsilon 1 4] [--split 0]

`reference_tables` needs a reference record in every base cell. So records without one are dropped from the released
third, and their part is printed. Errors are about the figures of the records left, in direct standard errors given
numbers, in cells of 10 records or more. The noise is that of releases.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pandas as pd
from packages_of_files import FEWEST, FILES, SMALLEST, File, read

import dpdist
from dpdist.core.records import TOTAL

WEIGHTS = {"nscg": (0.1, 2e4), "ses": (0.01, 2e3), "nhis": (100.0, 4e4), "vote": (1.0, 3e4), "tax": (0.01, 5e4)}
"""Public bounds of weights."""


def thirds(file: File, rows: pd.DataFrame, split: int) -> tuple[pd.DataFrame, pd.DataFrame, float]:
    """The released third and its reference, in base cells of both, and the part of records that this drops."""
    columns = list(dict.fromkeys(chain(*file.tables)))
    rows = rows.astype(dict.fromkeys(columns, str))
    part = np.random.default_rng(split).permutation(len(rows)) % 3
    current, reference = rows[part == 0], rows[part == 1]
    both = pd.merge(current[columns].drop_duplicates(), reference[columns].drop_duplicates())
    kept = [records.merge(both) for records in (current, reference)]
    return kept[0], kept[1], 1.0 - len(kept[0]) / len(current)


def direct(file: File, records: pd.DataFrame, table: tuple[str, ...]) -> pd.DataFrame:
    """Counts and means of a table's cells and margins, with numbers of records and standard errors given them."""
    w, y, made = records[file.weight], records[file.outcome], []
    powers = pd.DataFrame({"n": 1.0, "w": w, "ww": w**2, "wy": w * y, "wwy": w**2 * y, "wwyy": (w * y) ** 2})
    for by in (by for size in range(len(table) + 1) for by in combinations(table, size)):
        keys = [records[column] if column in by else pd.Series(TOTAL, records.index, name=column) for column in table]
        made.append(powers.groupby(keys).sum())
    sums = pd.concat(made)
    mean, n = sums["wy"] / sums["w"], sums["n"]
    of_mean = np.sqrt(np.maximum(sums["wwyy"] - 2 * mean * sums["wwy"] + mean**2 * sums["ww"], 0.0)) / sums["w"]
    within = np.maximum(sums["ww"] - sums["w"] ** 2 / n, 0.0) * n / np.maximum(n - 1, 1)
    of_count = np.sqrt(within.where(within > SMALLEST * sums["ww"]))
    return pd.DataFrame({"n": n, "count": sums["w"], "mean": mean, "of_count": of_count, "of_mean": of_mean})


def job_of(name: str, file: File, records: pd.DataFrame, folder: Path, mechanism: str, epsilon: str) -> dpdist.Job:
    columns = {column: {"levels": sorted(set(records[column]))} for column in dict.fromkeys(chain(*file.tables))}
    bounded = {file.outcome: file.bounds, file.weight: WEIGHTS[name]}
    statistics = ["count", {"mean": file.outcome}]
    settings = {
        "dataset": name,
        "period": "1",
        "input": {"path": f"{folder}/current.parquet"},
        "reference": {"path": f"{folder}/reference.parquet"},
        "columns": columns | {column: {"bounds": list(bounds), "outside": "clip"} for column, bounds in bounded.items()},
        "survey": {"weight": file.weight},
        "outcome": file.outcome,
        "mechanism": {"name": mechanism},
        "budget": {"epsilon": epsilon, "adjacency": "substitution"},
        "public_frame": {"accepted": "the file is public"},
        "tables": [{"name": "_x_".join(by), "by": list(by), "statistics": statistics} for by in file.tables],
        "runtime": {"executor": "serial"},
    }
    return dpdist.parse_job(json.dumps(settings))


def errors(file: File, current: pd.DataFrame, reference: pd.DataFrame, workspace: Path) -> pd.DataFrame:
    """Errors of a release, and of the reference alone, by statistic and cell."""
    made = []
    for by in file.tables:
        published = pd.read_parquet(workspace / "confidential" / "evaluation" / f"{'_x_'.join(by)}.parquet")
        here, earlier = direct(file, current, by), direct(file, reference, by)
        alone = earlier.assign(count=earlier["count"] / earlier["n"] * here["n"])
        for statistic in ("count", "mean"):
            values = published[published["statistic"] == statistic].set_index(list(by))["synthetic"]
            unit = here[f"of_{statistic}"].where((here["n"] >= FEWEST) & (here[f"of_{statistic}"] > 0))
            off = {"error": values, "alone": alone[statistic]}
            one = {name: (figures - here[statistic]).abs() / unit for name, figures in off.items()}
            made.append(pd.DataFrame(one).dropna().assign(statistic=statistic))
    return pd.concat(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", nargs="*", default=list(WEIGHTS))
    parser.add_argument("--epsilon", nargs="*", default=["1", "4"])
    parser.add_argument("--split", type=int, default=0)
    taken = parser.parse_args()
    for name in taken.files:
        file = FILES[name]
        current, reference, dropped = thirds(file, read(file, taken.data), taken.split)
        print(f"{name}: {len(current):,} records, {100 * dropped:.1f} % dropped", flush=True)
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            current.to_parquet(folder / "current.parquet")
            reference.to_parquet(folder / "reference.parquet")
            for epsilon in taken.epsilon:
                for mechanism in ("table_package", "reference_tables"):
                    begun, workspace = time.process_time(), folder / f"{mechanism} {epsilon}"
                    dpdist.run(job_of(name, file, current, folder, mechanism, epsilon), workspace)
                    spent = time.process_time() - begun
                    for statistic, rows in errors(file, current, reference, workspace).groupby("statistic"):
                        parts = (f"{key} {rows[key].median():.2f} ({rows[key].max():.1f})" for key in ("error", "alone"))
                        far = f"{(rows['error'] > 4).sum()} of {len(rows)} over 4"
                        print(
                            f"  ε = {epsilon} {mechanism} {statistic}: {', '.join(parts)}, {far}, {spent:.0f} s", flush=True
                        )


if __name__ == "__main__":
    main()
