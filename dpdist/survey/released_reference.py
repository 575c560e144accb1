"""An earlier release as a reference: whether its cells and periods fit the job, and its records in the job's cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.cautions import Caution
from dpdist.core.errors import DataError, Problem
from dpdist.core.public_files import printable
from dpdist.core.records import Codes, Crosstab, Floats, Ints, first_rows
from dpdist.estimation.donors import CELL, AbsentRecords, History, law_of
from dpdist.job import Column, Job
from dpdist.survey.earlier_release import EarlierRelease, read_earlier
from dpdist.survey.same_file import NO_PROTECTION, table_content
from dpdist.survey.source import Source

SHOWN = 3
"""Largest number of missing cells in a message."""
MOST_SHOWN = 100
"""Largest number of characters of a value in a message."""


@dataclass(frozen=True)
class ReferenceRelease:
    """An earlier release that fits the job. A point is one released record, which represents several."""

    carried: EarlierRelease
    row: Codes
    table: pa.Table
    """One row per point: row of the current crosstab, number of the outcome, effective sample size, weight, outcome."""
    present: Records | None = None
    """Records with which the chain began, in rows of the current crosstab, of a release that states totals."""
    absent: AbsentRecords | None = None
    """Those of these records that have no such row."""
    doubts: ClassVar[tuple[Caution, ...]] = ()
    factors: ClassVar[tuple[str, ...]] = ()
    left_out: ClassVar[int] = 0

    def sized(self, crosstab: Crosstab) -> Crosstab:
        """The crosstab unchanged: a release has no sizes of its own."""
        return crosstab

    @property
    def sha256(self) -> str:
        return self.carried.sha256

    @property
    def records(self) -> int:
        """Number of records of the released file."""
        return self.carried.records

    def records_in_rows(self) -> Records:
        """The records with which the chain began, or the points of the first outcome, in the order of the crosstab."""
        if self.present is not None:
            return self.present
        points = self.table.to_pandas()
        points = points[points["variable"] == 0].sort_values("frame", kind="stable")
        row = points["frame"].to_numpy(dtype=np.int32)
        return Records.of_outcomes(points["outcome"].to_numpy(), points["weight"].to_numpy(), row)


def open_release(job: Job, source: Source, crosstab: Crosstab) -> ReferenceRelease:
    """Reads the job's earlier release, and checks it against the job and the current file.

    Raises `DataError`, naming the release's folder.
    """
    assert job.reference is not None
    assert job.reference.release_folder is not None
    carried = read_earlier(Path(job.reference.release_folder), job.reference.signer)
    if problems := list(_problems(job, source, carried)):
        raise DataError(str(carried.folder), problems)
    if job.mechanism.uses("reference.release"):
        carried = replace(carried, history=_by_columns(carried, job.cell_columns))
        sample = carried.sample if carried.sample is not None else _sample_of_points(job, carried)
        return _of_records(job, crosstab, carried, sample)
    cells = [[str(level) for level in levels] for levels in zip(*_levels(job, crosstab), strict=True)] or [[]] * len(
        crosstab
    )
    first = {tuple(label): row for row, label in reversed(list(enumerate(cells)))}
    assert carried.points is not None
    points = carried.points.to_pandas(ignore_metadata=True)
    labels = list(zip(*(points[CELL + name].astype(str) for name in job.cell_columns), strict=True)) or [()] * len(points)
    if missing := sorted(first.keys() - set(labels)):
        places = tuple(", ".join(f"{n} = {v}" for n, v in zip(job.cell_columns, c, strict=True)) for c in missing[:SHOWN])
        allowed = "every cell that the current file has"
        remedy = "merge levels in both jobs, or use a file as reference once more"
        raise DataError(
            str(carried.folder), [Problem("reference.release", "no such cell", allowed, remedy, len(missing), places)]
        )
    row = np.array([first.get(label, -1) for label in labels], dtype=np.int32)
    number = points["variable"].map({name: k for k, name in enumerate(job.outcomes)}).to_numpy(dtype=np.int32)
    columns = {"frame": row, "variable": number, **{n: points[n].to_numpy() for n in ("standing", "weight", "outcome")}}
    return ReferenceRelease(carried, row[row >= 0], pa.table({name: v[row >= 0] for name, v in columns.items()}))


def _by_columns(earlier: EarlierRelease, columns: Sequence[str]) -> History:
    """The release's totals with levels in the order of these columns, which are its own."""
    place = [earlier.job.cell_columns.index(name) for name in columns]
    return {
        label: tuple(replace(period, codes=period.codes[:, place]) for period in periods)
        for label, periods in earlier.history.items()
    }


def _of_records(job: Job, crosstab: Crosstab, earlier: EarlierRelease, sample: AbsentRecords) -> ReferenceRelease:
    """A release that states totals, with the records from which it began by rows of the current crosstab."""
    row = first_rows(crosstab.codes_of(sample.columns), sample.codes)
    order = np.argsort(row, kind="stable")
    present, missing = order[(row[order] >= 0)], order[(row[order] < 0)]
    records = Records.of_outcomes(sample.outcomes[present], sample.weight[present], row[present])
    absent = AbsentRecords(sample.columns, sample.codes[missing], sample.weight[missing], sample.outcomes[missing])
    return ReferenceRelease(earlier, row[present], pa.table({}), records, absent)


def _sample_of_points(job: Job, earlier: EarlierRelease) -> AbsentRecords:
    """Points of a release of dpdist 0.2 as records, as many in a cell as have its released standard errors.

    Points have the released figures, and so their errors: a cell of n records would have its figures' sampling errors.
    Points of several outcomes are paired by the order of their weights.
    """
    assert earlier.points is not None
    points, errors = earlier.points.to_pandas(ignore_metadata=True), _released_errors(earlier)
    names, by = job.cell_columns, [CELL + name for name in job.cell_columns]
    codes, weights, outcomes = list[Ints](), list[Floats](), list[Floats]()
    for label, cell in points.groupby(by, sort=True) if by else [((), points)]:
        levels = tuple(str(level) for level in (label if isinstance(label, tuple) else (label,)))
        variables = [cell[cell["variable"] == name].sort_values(["weight", "outcome"]) for name in job.outcomes]
        number = min(float(cell["standing"].iloc[0]), *map(len, variables))
        for variable, name in zip(variables, job.outcomes, strict=True):
            number = min(number, _records_with(variable, errors.get((*levels, "count")), errors.get((*levels, name))))
        size = max(round(number), 2)
        places = [((np.arange(size) + 0.5) * len(block) / size).astype(np.int64) for block in variables]
        weights.append(variables[0]["weight"].to_numpy()[places[0]])
        of_cell = [block["outcome"].to_numpy()[place] for block, place in zip(variables, places, strict=True)]
        outcomes.append(np.column_stack(of_cell))
        place = [
            list(map(str, job.columns[name].levels or ())).index(level) for name, level in zip(names, levels, strict=True)
        ]
        codes.append(np.tile(np.array(place, dtype=np.int64), (size, 1)))
    return AbsentRecords(names, np.concatenate(codes).astype(np.int32), np.concatenate(weights), np.concatenate(outcomes))


def _records_with(points: pd.DataFrame, of_count: float | None, of_mean: float | None) -> float:
    """Number of records whose count and mean would have these standard errors: relative ones, and of the mean itself."""
    weight, outcome = points["weight"].to_numpy(), points["outcome"].to_numpy()
    # A count's published error is that of its number of records, too.
    spread = float(np.hypot(1.0, weight.std() / weight.mean()))
    residual = weight * (outcome - np.average(outcome, weights=weight)) / weight.mean()
    pairs = ((spread, of_count), (float(residual.std()), of_mean))
    return min([np.inf, *((deviation / error) ** 2 for deviation, error in pairs if error and deviation > 0.0)])


def _released_errors(earlier: EarlierRelease) -> dict[tuple[str, ...], float]:
    """Standard errors by cell: of counts relative to them, and of outcomes' means; of a table of all columns, if any."""
    columns = earlier.job.cell_columns
    errors = dict[tuple[str, ...], float]()
    for table in earlier.job.tables:
        path = earlier.folder / "tables" / f"{table.name}.parquet"
        if set(table.by) != set(columns) or table.universe or not path.exists():
            continue
        rows = pd.read_parquet(path)
        rows = rows[(rows["estimator"] == "parameters") & (rows["standard_error"] > 0) & (rows["estimate"] != 0)]
        for row in rows.to_dict("records"):
            label = tuple(str(row[name]) for name in columns)
            if row["statistic"] == "count":
                errors[(*label, "count")] = abs(row["standard_error"] / row["estimate"])
            elif row["statistic"] == "mean":
                errors[(*label, str(row.get("variable") or earlier.job.outcomes[0]))] = float(row["standard_error"])
    return errors


def _levels(job: Job, crosstab: Crosstab) -> Iterator[list[object]]:
    for name in job.cell_columns:
        yield [crosstab.levels[name][code] for code in crosstab.codes[name]]


def _stated(theirs: object, ours: object) -> str:
    """What the earlier release stated, as a text in brackets: of a column, the keys that differ."""
    if not isinstance(theirs, Column) or not isinstance(ours, Column):
        return ""
    other, own = theirs.model_dump(mode="json"), ours.model_dump(mode="json")
    keys = [f"{name}: {printable(value, MOST_SHOWN)}" for name, value in other.items() if value != own[name]]
    return f" ({', '.join(keys)})"


def _problems(job: Job, source: Source, earlier: EarlierRelease) -> Iterator[Problem]:
    where, other = "reference.release", earlier.job
    columns = dict.fromkeys([*job.strata, *job.cell_columns, *job.outcomes])
    if other.mechanism.uses("reference.release") and not job.mechanism.uses("reference.release"):
        fault = f"it is a release of '{other.mechanism.name}', which '{job.mechanism.name}' cannot use"
        yield Problem(where, fault, "a release of the same mechanism", "name another release, or a public file")
    if job.strata and earlier.points is not None:
        fault = "its points are for the whole file, and the job has strata"
        yield Problem(where, fault, "a release of mechanism tables, or a job without strata", "name a public file")
    same = {
        "outcome": (job.outcomes, other.outcomes),
        "columns of the tables": (set(job.cell_columns), set(other.cell_columns)),
        "strata": (job.strata, other.strata),
        "survey.weight": (job.survey.weight, other.survey.weight),
        "universe": (job.universe, other.universe),
        "budget.adjacency": (job.budget.adjacency, other.budget.adjacency),
        "privacy_unit": (job.privacy_unit, other.privacy_unit),
        "budget.exchange": (job.budget.exchange, other.budget.exchange),
        **{f"columns.{name}": (job.columns[name], other.columns.get(name)) for name in columns},
    }
    weight = job.survey.measured_weight
    if weight is not None and any(law_of(periods) is not None for periods in earlier.history.values()):
        # Its bins follow from these bounds.
        same[f"columns.{weight}"] = (job.columns.get(weight), other.columns.get(weight))
    for name, (ours, theirs) in same.items():
        if ours != theirs:
            fault = f"the earlier release used other settings for {name}{_stated(theirs, ours)}"
            remedy = "use the same settings in both jobs, or begin a new chain, with a public file as its reference"
            yield Problem(where, fault, "", remedy)
    if job.survey.effects_of_reference and not earlier.design_effects:
        fault = "it states no design effects from a reference, and survey.design_effect: reference needs them"
        remedy = "state survey.design_effect as a number or a list, or leave it out"
        yield Problem(where, fault, "a release under design_effect: reference", remedy)
    periods = [link.period for link in earlier.links]
    if job.period in periods:
        fault = f"its chain has a release of period {job.period}, the job's own"
        yield Problem(where, fault, "releases of earlier periods", "use the last release before this period")
    if _is_root(job, source, earlier):
        fault = "its chain begins with the current file, which an earlier job declared public"
        yield Problem(where, fault, "", f"name another release, or an earlier public file. {NO_PROTECTION}")


def _is_root(job: Job, source: Source, earlier: EarlierRelease) -> bool:
    """True if the chain's first release had the current file as its public reference, in any order or format.

    The reference must be another file. Releases of old versions only have a checksum of the file's bytes.
    """
    root = earlier.root
    if root.get("sha256") == source.fingerprint():
        return True
    return "content" in root and root["content"] == table_content(job, source)
