"""Samples of a public file for studies of tables: the file's records are the population, and their figures the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.core.errors import Problem, StudyError
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import Cells
from dpdist.studies.kinds.populations import informative_size
from dpdist.studies.kinds.repeated_samples import SIZE, sampled
from dpdist.studies.kinds.tables_settings import TableFile


def units_of(study: str, file: TableFile, data: str | None, key: Key) -> pd.DataFrame:
    """The file's records with a positive outcome: columns field, sex and salary, and a size that grows with the salary.

    Raises `StudyError` if the file is not there, or has other columns or levels.
    """
    path = Path(data or ".") / file.path
    if not path.is_file():
        raise StudyError(study, [Problem("cases", f"no file {file.path}", "a Parquet file", "name its folder by --data")])
    own = {name: getattr(file, name) for name in ("field", "sex", "salary")}
    held = pq.read_schema(path).names
    if lost := [name for name in own.values() if name not in held]:
        raise StudyError(
            study, [Problem("cases", f"no column {lost[0]} in {file.path}", ", ".join(held), "name one of them")]
        )
    rows = pd.read_parquet(path, columns=list(own.values())).rename(columns={old: new for new, old in own.items()})
    rows = rows[rows["salary"].notna() & (rows["salary"] > 0)].reset_index(drop=True)
    made = pd.DataFrame({"field": rows["field"].astype(str), "sex": rows["sex"].astype(str)})
    for name, levels in (("field", file.fields), ("sex", file.sexes)):
        if unknown := sorted(set(made[name]) - set(levels)):
            listed = ", ".join(levels)
            raise StudyError(study, [Problem("cases", f"level {unknown[0]} of {own[name]}", listed, "add the level")])
    salary = rows["salary"].to_numpy(float)
    return made.assign(salary=salary, **{SIZE: informative_size(salary, key.generator("sizes"))})


def write_sample(path: Path, units: pd.DataFrame, n: int, rng: np.random.Generator) -> None:
    """Writes a systematic sample of n units, with probability proportional to size. Weights are inverse probabilities."""
    sampled(units, n, rng).to_parquet(path)


def truth_of(units: pd.DataFrame, frame: Frame, cells: Cells) -> dict[str, Floats]:
    """The units' counts, mean salaries and totals in the table's cells."""
    by = units.groupby(["field", "sex"])["salary"].agg(["size", "sum"])
    labels = [np.asarray(frame.levels[name])[frame.codes[name]] for name in ("field", "sex")]
    known = by.reindex(pd.MultiIndex.from_arrays([each.astype(str) for each in labels])).fillna(0.0)
    count, total = (cells.membership @ known[name].to_numpy(float) for name in ("size", "sum"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"count": count, "mean": total / count, "total": total}
