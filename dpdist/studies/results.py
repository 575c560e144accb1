"""Results of a study: replicates as Parquet files, their table and summary."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.files import replaced, write_text
from dpdist.studies.settings import RecordRows, Result

COLUMNS = ("mechanism", "epsilon", "measure", "mean", "sd", "replicates")


def part_path(folder: Path, case: str, number: int) -> Path:
    return folder / "parts" / f"{case}-{number:05d}.parquet"


def records_path(folder: Path, case: str) -> Path:
    return folder / "parts" / f"{case}-records.parquet"


def write_results(path: Path, case: str, number: int, results: Sequence[Result]) -> None:
    """Writes a replicate's part atomically: case, mechanism, epsilon (exact text), replicate, measure, value."""
    columns = {
        "case": [case] * len(results),
        "mechanism": [r.mechanism for r in results],
        "epsilon": [r.epsilon for r in results],
        "replicate": pa.array([number] * len(results), pa.int32()),
        "measure": [r.measure for r in results],
        "value": [r.value for r in results],
    }
    with replaced(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def write_records(path: Path, case: str, rows: Sequence[RecordRows]) -> None:
    """Writes by-products atomically: case, mechanism, epsilon, record, column, value."""
    empty = {"record": [0], "value": [0.0], "case": "", "mechanism": "", "epsilon": "", "column": ""}
    frames = [pd.DataFrame(empty).iloc[:0]]
    frames += [
        pd.DataFrame({"record": range(len(values)), "value": values}).assign(
            case=case, mechanism=row.mechanism, epsilon=row.epsilon, column=name
        )
        for row in rows
        for name, values in row.columns.items()
    ]
    with replaced(path) as temporary:
        pd.concat(frames).to_parquet(temporary, index=False)


def read_part(path: Path) -> pd.DataFrame | None:
    """None if the file is missing or damaged."""
    try:
        return pd.read_parquet(path)
    except (OSError, pa.ArrowInvalid):
        return None


def tidy(parts: Sequence[pd.DataFrame], cases: int) -> pd.DataFrame:
    """All parts as one table: mechanism, epsilon, replicate, measure, value; `case` first if there are several."""
    table = pd.concat(parts, ignore_index=True)
    table["epsilon"] = pd.to_numeric(table["epsilon"].map(as_number))
    return table if cases > 1 else table.drop(columns="case")


def as_number(epsilon: str) -> float:
    """NaN if there is no ε."""
    numerator, _, denominator = epsilon.partition("/")
    return float(numerator) / float(denominator or 1) if epsilon else float("nan")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard deviation (n − 1) and number of replicates of every measure, in order."""
    by = [name for name in ("mechanism", "epsilon", "measure", "case") if name in table]
    grouped = table.groupby(by, sort=False, dropna=False)["value"]
    summary = grouped.agg(mean="mean", sd="std", replicates="count").reset_index()
    return summary[[*COLUMNS, *(["case"] if "case" in table else [])]]


def write_table(folder: Path, table: pd.DataFrame, summary: pd.DataFrame) -> None:
    with replaced(folder / "replicates.parquet") as temporary:
        table.to_parquet(temporary, index=False)
    write_text(folder / "summary.csv", summary.to_csv(index=False, float_format="%.10g"))


def versions() -> Mapping[str, str]:
    """Packages on which figures may depend, with their versions."""
    packages = ("dpdist", "numpy", "scipy", "randomgen", "numba")
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"
