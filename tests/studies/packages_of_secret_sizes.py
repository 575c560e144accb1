"""`table_package` and `reference_tables` where numbers of records are secret, on thirds of nhis or nscg.

    python tests/studies/packages_of_secret_sizes.py --data FOLDER [--files nhis nscg] [--tables 3] [--epsilon 1 4]
        [--splits 2] [--adjacency add_remove] [--mechanisms table_package reference_tables]

One third is released, by whole runs, and another is its reference. Errors are about the released third's own weighted
figures in cells of ten records or more, in direct standard errors whose numbers of records are random. *Held* is the
part of the third third's figures that the 90 % intervals have, widened by that third's own error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout

import numpy as np
import pandas as pd
from packages_of_files import FEWEST, FILES, NORMAL_90, File, read

from dpdist.core.errors import DpdistError
from dpdist.job.loading import parse_job
from dpdist.release import run

WEIGHTS = {"nhis": (100.0, 50_000.0), "nscg": (1.0, 5_000.0)}
"""Public bounds of weights."""


def job(
    file: File, rows: pd.DataFrame, name: str, tables: int, mechanism: str, budget: dict[str, str], folder: Path
) -> str:
    columns = dict.fromkeys(column for by in file.tables[:tables] for column in by)
    entries = [
        {"name": "-".join(by), "by": list(by), "margins": True, "statistics": ["count", {"mean": file.outcome}]}
        for by in file.tables[:tables]
    ]
    levels: dict[str, Any] = {column: {"levels": sorted(map(str, rows[column].unique()))} for column in columns}
    bounded = {file.outcome: file.bounds, file.weight: WEIGHTS[name]}
    return json.dumps(
        {
            "dataset": name,
            "period": "2",
            "input": {"path": str(folder / "part0.parquet")},
            "reference": {"path": str(folder / "part1.parquet"), "period": "1"},
            "columns": levels | {key: {"bounds": list(ends), "outside": "clip"} for key, ends in bounded.items()},
            "survey": {"weight": file.weight},
            "outcome": file.outcome,
            "mechanism": {"name": mechanism},
            "budget": budget,
            "tables": entries,
            "withhold_above": None,
            "public_frame": {"accepted": "a study"},
            "runtime": {"executor": "serial"},
        }
    )


def direct(rows: pd.DataFrame, by: tuple[str, ...], file: File) -> pd.DataFrame:
    """Counts and means of a table's cells, margins too, with standard errors: (cell), by level or Total."""
    parts = []
    for total in range(2 ** len(by)):
        cells = rows.assign(**{column: "Total" for k, column in enumerate(by) if total >> k & 1})
        weight, outcome = cells[file.weight], cells[file.outcome]
        made = cells.assign(one=1.0, w=weight, wy=weight * outcome, w2=weight**2, w2y=weight**2 * outcome)
        made["w2y2"] = made["w2y"] * outcome
        sums = made.groupby(list(by))[["one", "w", "wy", "w2", "w2y", "w2y2"]].sum()
        mean = sums["wy"] / sums["w"]
        spread = sums["w2y2"] - 2 * mean * sums["w2y"] + mean**2 * sums["w2"]
        of_count = np.sqrt(np.maximum(sums["w2"] - sums["w"] ** 2 / len(rows), 0.0))
        of_mean = np.sqrt(np.maximum(spread, 0.0)) / sums["w"]
        for name, value, error in (("count", sums["w"], of_count), ("mean", mean, of_mean)):
            parts.append(pd.DataFrame({"n": sums["one"], "value": value, "error": error, "statistic": name}))
    return pd.concat(parts).set_index("statistic", append=True)


def released(file: File, name: str, split: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    rows = read(file, options.data).astype({c: str for by in file.tables for c in by})
    rows[file.weight] = rows[file.weight].clip(*WEIGHTS[name])
    part = np.random.default_rng(split).permutation(len(rows)) % 3
    thirds = [rows[part == k].reset_index(drop=True) for k in range(3)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for k in range(2):
            thirds[k].to_parquet(folder / f"part{k}.parquet")
        for mechanism in options.mechanisms:
            for epsilon in options.epsilon:
                budget = {"epsilon": epsilon, "adjacency": options.adjacency}
                try:
                    work = folder / f"{mechanism}-{epsilon.replace('/', '_')}"
                    run(parse_job(job(file, rows, name, options.tables, mechanism, budget, folder)), work)
                except DpdistError as refused:
                    print(name, mechanism, "refused:", str(refused).splitlines()[1].strip()[:200])
                    break
                for by in file.tables[: options.tables]:
                    here, earlier, truth = (direct(third, by, file) for third in thirds)
                    table = pd.read_parquet(work / "public" / "tables" / f"{'-'.join(by)}.parquet")
                    table = table[table["estimator"] == "parameters"].astype(dict.fromkeys(by, str))
                    table["statistic"] = table["statistic"].astype(str).str.split("(").str[0].str.split(" ").str[0]
                    joined = here.join(table.set_index([*by, "statistic"])[["estimate", "standard_error"]], how="inner")
                    joined = joined.join(earlier["value"].rename("alone")).join(truth.add_suffix("_truth"))
                    kept = joined[(joined["n"] >= FEWEST) & (joined["error"] > 0)]
                    reach = NORMAL_90 * np.hypot(kept["standard_error"], kept["error_truth"])
                    facts = {
                        "statistic": kept.index.get_level_values("statistic"),
                        "error": (kept["estimate"] - kept["value"]).abs() / kept["error"],
                        "alone": (kept["alone"] - kept["value"]).abs() / kept["error"],
                        "held": (kept["estimate"] - kept["value_truth"]).abs() <= reach,
                    }
                    yield {"file": name, "mechanism": mechanism, "epsilon": epsilon, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", nargs="*", default=["nhis"])
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--epsilon", nargs="*", default=["1", "4"])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--adjacency", default="add_remove")
    parser.add_argument("--mechanisms", nargs="*", default=["table_package", "reference_tables"])
    options = parser.parse_args()
    for name in options.files:
        rows = [
            pd.DataFrame(facts) for split in range(options.splits) for facts in released(FILES[name], name, split, options)
        ]
        grouped = pd.concat(rows, ignore_index=True).groupby(["file", "mechanism", "epsilon", "statistic"])
        summary = grouped[["error", "alone"]].agg(["median", "max"]).round(2)
        summary["held"] = grouped["held"].mean().round(3)
        print(summary.to_string(), flush=True)


if __name__ == "__main__":
    main()
