"""Public reference records by cell, and what a release passes on to a later one: noisy totals of earlier periods.

A donor is a whole tuple (weight, outcomes), as in a hot deck. Donors are public because the reference is.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from dpdist.core.files import write_json
from dpdist.core.public_files import DamagedFile, printable, read_columns, read_object
from dpdist.core.records import Codes, Floats, Ints, Level, rows_of_groups
from dpdist.job import Job

MOST = 10_000
"""Largest number of donors of a cell. More donors are thinned to this many, evenly by outcome."""
DONORS = "donors.parquet"
"""Name of the file of donors, which are records of the reference, in the folder `released/`."""
FEWEST = 20
"""A cell with fewer donors uses the donors of a wider group."""
MOST_AMOUNTS = 64
"""Largest number of donors with an amount that stand for those of a group whose other donors have none."""
OUTCOME = "outcome "
"""Prefix of the names of the outcomes' columns."""
COPIED = "copied "
"""Prefix of the names of columns that the job copies."""
LEVEL = "level "
"""Prefix of the names of columns with the levels of records in crosses that the file lacks, as positions in it."""


@dataclass(frozen=True, eq=False)
class AbsentRecords:
    """A reference's records in crosses of columns that the current file lacks. No synthetic record is taken from them.

    `codes` (record, column) are levels of `columns`; `weight` is (record,), and `outcomes` (record, outcome).
    """

    columns: tuple[str, ...]
    codes: Codes
    weight: Floats
    outcomes: Floats

    def by(self, columns: Sequence[str]) -> AbsentRecords | None:
        """Those with a weight above 0 by these columns alone, in order of levels, outcomes and weight; None without any."""
        codes = self.codes[:, [self.columns.index(name) for name in columns]]
        order = np.lexsort((self.weight, *self.outcomes.T[::-1], *codes.T[::-1]))
        order = order[self.weight[order] > 0]
        return AbsentRecords(tuple(columns), codes[order], self.weight[order], self.outcomes[order]) if len(order) else None

    def within(self, levels: Mapping[str, int]) -> AbsentRecords:
        """Those with these levels of some columns."""
        selection = np.ones(len(self.weight), dtype=np.bool_)
        for name, level in levels.items():
            selection &= self.codes[:, self.columns.index(name)] == level
        return AbsentRecords(self.columns, self.codes[selection], self.weight[selection], self.outcomes[selection])

    def table(self, outcomes: Sequence[str]) -> pa.Table:
        """One row for every record."""
        levels = {LEVEL + name: pa.array(self.codes[:, k].copy()) for k, name in enumerate(self.columns)}
        values = {OUTCOME + name: pa.array(self.outcomes[:, k].copy()) for k, name in enumerate(outcomes)}
        return pa.table({"weight": pa.array(self.weight), **values, **levels})

    @classmethod
    def from_table(cls, table: pa.Table, outcomes: Sequence[str]) -> Self:
        """The inverse of `table`."""
        columns = tuple(name.removeprefix(LEVEL) for name in table.column_names if name.startswith(LEVEL))
        codes = [np.zeros((len(table), 0), dtype=np.int32), *(table.column(LEVEL + name).to_numpy() for name in columns)]
        values = np.column_stack([table.column(OUTCOME + name).to_numpy() for name in outcomes])
        return cls(columns, np.column_stack(codes).astype(np.int32), table.column("weight").to_numpy(), values)


@dataclass(frozen=True, eq=False)
class Donors:
    """Donors in order of their cell, and within a cell in order of outcomes and weight.

    `cell` (record,) is a cell's number in the stratum; `weight` (record,) is above 0; `outcomes` is (record, outcome).
    `copied` has the donors' values in further columns, which the job lists. `absent` are no donors: the package learns
    levels from them. `history` are totals of earlier periods since the reference.
    """

    cell: Ints
    weight: Floats
    outcomes: Floats
    copied: pa.Table | None = None
    absent: AbsentRecords | None = None
    history: tuple[PeriodTotals, ...] = ()

    @classmethod
    def of(cls, cell: Codes, weight: Floats, outcomes: Floats, copied: pa.Table | None = None) -> Self:
        """Donors from a reference's records with a weight above 0, at most MOST in a cell."""
        order = np.lexsort((weight, *outcomes.T[::-1], cell))
        order = order[weight[order] > 0]
        _, start, size = np.unique(cell[order], return_index=True, return_counts=True)
        positions = [begin + _evenly(0.5, min(n, MOST), n) for begin, n in zip(start, size, strict=True)]
        order = order[np.concatenate(positions)] if positions else order
        copies = None if copied is None else copied.take(pa.array(order))
        return cls(cell[order].astype(np.int64), weight[order], outcomes[order], copies)

    @classmethod
    def none(cls, outcomes: int) -> Self:
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, outcomes)))

    def __len__(self) -> int:
        return len(self.cell)

    def by_levels(self, columns: Sequence[str], codes: Codes | Ints) -> AbsentRecords:
        """All records, those in crosses that the file lacks too, by levels. `codes` (cell, column) are those of cells."""
        if (self.cell < 0).any():
            raise IndexError("a cell below 0")
        present = AbsentRecords(tuple(columns), codes[self.cell].astype(np.int32), self.weight, self.outcomes)
        if (absent := self.absent) is None:
            return present
        if absent.columns != present.columns:
            raise ValueError("other columns")
        pairs = ((getattr(records, name) for records in (present, absent)) for name in ("codes", "weight", "outcomes"))
        return AbsentRecords(present.columns, *(np.concatenate(list(pair)) for pair in pairs))

    def by_cell(self, codes: Codes) -> DonorsByCell:
        """The donors of every cell; `codes` (cell, column) are the levels of the table's columns."""
        return DonorsByCell(self, codes)


@dataclass(frozen=True, eq=False)
class DonorsByCell:
    """The donors of every cell, in order of outcomes and weight.

    A cell with fewer than FEWEST donors uses the donors of all cells with the same levels in the columns that explain
    most of outcomes' variance. As many of these columns are used as leave enough donors.
    """

    records: Donors
    codes: Codes

    @cached_property
    def ordered(self) -> Codes:
        """Levels of cells, (cell, column), the column that explains most of outcomes first: by the share of the variance of
        outcomes' ranks that its levels explain, beyond what chance explains, in the mean over outcomes.
        """
        told, records = np.zeros(self.codes.shape[1]), len(self.records)
        for values in self.records.outcomes.T:
            rank = scipy.stats.rankdata(values)
            variance = rank.var(ddof=1) if records > 1 else 0.0
            for k, column in enumerate(self.codes.T if variance > 0.0 else ()):
                level = column[self.records.cell]
                size = np.bincount(level)
                free = records - np.count_nonzero(size)
                means = np.bincount(level, weights=rank) / np.maximum(size, 1)
                told[k] += 1.0 - ((rank - means[level]) ** 2).sum() / free / variance if free > 0 else 0.0
        return self.codes[:, np.argsort(-np.round(told, 6), kind="stable")]

    @cached_property
    def _shared(self) -> Ints:
        """The number of first `ordered` columns in which a cell's donors have its levels, (cell,)."""
        columns = self.codes.shape[1]
        shared = np.zeros(len(self.codes), dtype=np.int64)
        for number in range(1, columns + 1):
            group = self._groups(number)
            donors_of_group = np.bincount(group[self.records.cell], minlength=int(group.max(initial=0)) + 1)
            shared[donors_of_group[group] >= FEWEST] = number
        return shared

    def _groups(self, shared: int) -> Ints:
        """The group of every cell by its levels in the first `ordered` columns, (cell,); by all columns it is alone."""
        if shared == self.codes.shape[1]:
            return np.arange(len(self.codes))
        return np.unique(self.ordered[:, :shared], axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def group(self) -> Ints:
        """Numbers of the cells' groups, (cell,). Cells of one group use the same donors."""
        number = np.zeros(len(self.codes), dtype=np.int64)
        for shared in np.unique(self._shared).tolist():
            cells = self._shared == shared
            number[cells] = int(number.max(initial=0)) + 1 + self._groups(shared)[cells]
        return np.asarray(np.unique(number, return_inverse=True)[1].reshape(-1), dtype=np.int64)

    @cached_property
    def _known_groups(self) -> dict[int, tuple[Ints, Ints, Ints]]:
        return {}

    def _in_groups(self, shared: int) -> tuple[Ints, Ints, Ints]:
        """By this number of shared columns: positions in order of groups, the groups of cells, where each group begins."""
        if shared not in self._known_groups:
            group = self._groups(shared)
            of_donor = group[self.records.cell]
            order = np.lexsort((self.records.weight, *self.records.outcomes.T[::-1], of_donor))
            begins = np.searchsorted(of_donor[order], np.arange(int(group.max(initial=0)) + 2))
            self._known_groups[shared] = order, group, begins
        return self._known_groups[shared]

    def of_cell(self, cell: int) -> Ints:
        """Positions of a cell's donors."""
        order, group, begins = self._in_groups(int(self._shared[cell]))
        return np.asarray(order[begins[group[cell]] : begins[group[cell] + 1]])

    def amounts_near(self, outcome: int, cells: Ints) -> list[Ints]:
        """Positions of donors in which an outcome is not 0, at most MOST_AMOUNTS, by cell: of the nearest group that has
        some. There are none if no donor has an amount.
        """
        amounts = np.flatnonzero(self.records.outcomes[:, outcome])
        amounts = amounts[np.argsort(self.records.outcomes[amounts, outcome], kind="stable")]
        found, left = {int(cell): amounts[:0] for cell in cells}, cells if len(amounts) else cells[:0]
        for shared in range(self.codes.shape[1] - 1, -1, -1):
            group = self._groups(shared)
            number = np.bincount(group[self.records.cell[amounts]], minlength=int(group.max(initial=0)) + 1)
            here = left[(number[group[left]] > 0) & (shared <= self._shared[left])]
            left = np.setdiff1d(left, here)
            of_groups = rows_of_groups(group[self.records.cell[amounts]], len(number))
            thinned = {
                one: amounts[of_groups[one]][_evenly(0.5, min(number[one], MOST_AMOUNTS), number[one])]
                for one in np.unique(group[here]).tolist()
            }
            found |= {int(cell): thinned[int(group[cell])] for cell in here}
        return list(found.values())

    def draw(self, cell: int, count: int, rng: np.random.Generator) -> Ints:
        """Positions of `count` donors for a cell: a systematic sample in order of the first outcome, from a random start.

        Its distribution function is within one record of the donors' own, at any value. The positions are returned in
        random order.
        """
        positions = self.of_cell(cell)
        return np.asarray(rng.permutation(positions[_evenly(rng.random(), count, len(positions))]))


def _evenly(start: float, count: int, size: int) -> Ints:
    return np.asarray(np.minimum((start + np.arange(count)) * size / count, size - 1), dtype=np.int64)


def donors_table(donors: Mapping[str, Donors], outcomes: Sequence[str]) -> pa.Table:
    """A table of every stratum's donors, one row each; a cell's number is its position in the released parameters.

    Records in crosses that the file lacks follow, without a cell.
    """

    def strata(sizes: Sequence[int]) -> pa.DictionaryArray:
        labels = np.repeat(np.arange(len(donors), dtype=np.int32), sizes)
        return pa.DictionaryArray.from_arrays(pa.array(labels), pa.array(list(donors), pa.string()))

    stratum = strata([len(stratum_donors) for stratum_donors in donors.values()])
    cell, weight = (
        np.concatenate([getattr(stratum_donors, name) for stratum_donors in donors.values()]) for name in ("cell", "weight")
    )
    values = np.concatenate([stratum_donors.outcomes for stratum_donors in donors.values()])
    columns = {OUTCOME + name: pa.array(values[:, k].copy()) for k, name in enumerate(outcomes)}
    further = [stratum_donors.copied for stratum_donors in donors.values() if stratum_donors.copied is not None]
    copied = pa.concat_tables(further) if further else pa.table({})
    columns |= {COPIED + name: column for name, column in zip(copied.column_names, copied.columns, strict=True)}
    table = pa.table({"stratum": stratum, "cell": cell, "weight": weight, **columns})
    by_stratum = [stratum_donors.absent for stratum_donors in donors.values()]
    absent = [None if records is None else records.table(outcomes) for records in by_stratum]
    if not (tables := [part for part in absent if part is not None]):
        return table
    sizes = [0 if part is None else len(part) for part in absent]
    further = pa.concat_tables(tables).append_column("stratum", strata(sizes))
    return pa.concat_tables([table, further], promote_options="default").combine_chunks()


def donors_from_table(table: pa.Table, outcomes: Sequence[str], copied: Sequence[str] = ()) -> dict[str, Donors]:
    """The inverse of `donors_table`; `copied` names the columns that the job copies."""
    rest = table.filter(pc.is_null(table.column("cell")))
    table = table.filter(pc.is_valid(table.column("cell"))) if len(rest) else table
    stratum, of_rest = (part.column("stratum").combine_chunks() for part in (table, rest))
    labels, codes = stratum.dictionary.to_pylist(), stratum.indices.to_numpy()
    cell, weight = (table.column(name).to_numpy() for name in ("cell", "weight"))
    values = np.column_stack([table.column(OUTCOME + name).to_numpy() for name in outcomes])
    masks: list[NDArray[np.bool_]] = [codes == k for k in range(len(labels))]
    further = table.select([COPIED + name for name in copied]).rename_columns(list(copied)) if copied else None
    donors_by_stratum = {
        label: Donors(cell[rows], weight[rows], values[rows], None if further is None else further.filter(pa.array(rows)))
        for label, rows in zip(labels, masks, strict=True)
    }
    for label in of_rest.unique().to_pylist():
        absent = AbsentRecords.from_table(rest.filter(pc.equal(of_rest.cast(pa.string()), label)), outcomes)
        donors_by_stratum[label] = replace(donors_by_stratum[label], absent=absent)
    return donors_by_stratum


REFERENCE_FILE = "reference.parquet"
"""Name of the file with points of histograms or of an earlier release, in the folder `released/`."""
CELL = "cell "
"""Prefix of the names of columns that identify a cell."""
MOST_POINTS = 400
"""Largest number of points for each cell and outcome."""
LEAST_WEIGHT, LARGEST_WEIGHT = 2.0**-53, 2.0**53
"""Range of accepted weights and numbers of records, which keeps sums within float64."""


def read_points(folder: Path, name: str, job: Job) -> pa.Table:
    """Reads the points of a release and checks them against the public domains of a job; raises `DamagedFile`.

    Clipping limits are computed from the points, so weights must be positive, outcomes within bounds, and numbers
    finite.
    """
    levels: dict[str, list[Level]] = {CELL + column: list(job.columns[column].levels or ()) for column in job.cell_columns}
    types = {column: pa.infer_type(allowed_levels) for column, allowed_levels in levels.items()}
    types |= {"variable": pa.string(), **dict.fromkeys(("standing", "weight", "outcome"), pa.float64())}
    most = prod(len(allowed_levels) for allowed_levels in levels.values()) * len(job.outcomes) * MOST_POINTS
    table = read_columns(folder, name, types, most)
    if not len(table):
        raise DamagedFile(name, "no points", "points of every cell")
    known_values = levels | {"variable": list(job.outcomes)}
    for column, allowed_values in known_values.items():
        for value in pc.unique(table.column(column)).to_pylist():
            if value not in allowed_values:
                allowed = f"one of {', '.join(str(value_allowed) for value_allowed in allowed_values)}"
                raise DamagedFile(name, f"the {printable(column)} '{printable(value)}'", printable(allowed, 200))
    for column in ("weight", "standing"):
        _check_within(name, column, table.column(column).to_numpy(), LEAST_WEIGHT, LARGEST_WEIGHT)
    variable, outcome = table.column("variable").to_numpy(), table.column("outcome").to_numpy()
    for name_of_outcome, domain in job.outcome_columns.items():
        _check_within(
            name, f"outcome of {name_of_outcome}", outcome[variable == name_of_outcome], *(domain.bounds or (0.0, 1.0))
        )
    _check_cells(name, table, list(levels), len(job.outcomes))
    return table


def _check_within(name: str, what: str, values: Floats, low: float, top: float) -> None:
    if wrong := int((~((values >= low) & (values <= top))).sum()):
        raise DamagedFile(
            name, f"{wrong} values of {what} outside its domain", f"finite numbers from {low:,.10g} to {top:,.10g}"
        )


def _check_cells(name: str, table: pa.Table, cells: list[str], outcomes: int) -> None:
    rows = pd.DataFrame({column: table.column(column).to_numpy(zero_copy_only=False) for column in table.column_names})
    sizes = rows.groupby([*cells, "variable"]).size()
    if sizes.max() > MOST_POINTS:
        raise DamagedFile(name, f"{sizes.max()} points of one cell and outcome", f"at most {MOST_POINTS}")
    variables = rows.groupby(cells)["variable"].nunique() if cells else pd.Series([rows["variable"].nunique()])
    if missing := int((variables < outcomes).sum()):
        raise DamagedFile(name, f"{missing} cells without points of some outcome", "points of every outcome in every cell")
    if (rows.groupby([*cells, "variable"])["standing"].nunique() > 1).any():
        raise DamagedFile(
            name, "several values of `standing` in one cell", "the same number of records for all points of a cell"
        )


# Every release states the totals of its measured cells with the variances of their errors. Nothing in them depends on what
# had been predicted, and no figure of an earlier release is used.
HISTORY = "history.json"
"""Name of the file of earlier periods' totals, in the folder `released/`."""
MOST_PERIODS = 10_000
"""Largest number of periods between two totals."""
MOST_LISTED = 300_000
"""Largest number of numbers that an array of totals lists one by one; more are packed."""
MOST_TOTALS = 2_000
"""Largest number of totals of earlier periods that a release learns from; the last period's are all kept."""


@dataclass(frozen=True, eq=False)
class PeriodTotals:
    """Totals of one period's measured cells.

    `codes` (cell, column) and `count` (cell,) are levels of base cells and their numbers of records, public or estimated.
    `row` (table, cell) is the measured cell that a base cell belongs to.
    """

    period: str
    codes: Ints
    count: Floats
    row: Codes
    about: Floats
    """What outcomes are measured from, (row, outcome)."""
    total: Floats
    """Noisy sums of w, and of w(y − `about`), (row, 1 + outcome)."""
    variance: Floats
    """Variances of the errors of `total`, (row, 1 + outcome); 0 for public weights."""
    weight: Floats
    """Predicted or public mean weights, (cell,)."""
    scatter: Floats
    """Standard deviations of residuals of a record's w and wy, (cell, 1 + outcome)."""
    counts: Floats
    """Noisy counts of bins by public bounds, (bin,), of the first period of a chain without a reference; otherwise none."""
    scale: float = 0.0
    """Scale of their noise, as of a Laplace law."""
    since: int = 1
    """Number of periods since the totals before, or since the reference."""
    quadrants: Floats = field(default_factory=lambda: np.zeros(0))
    """Noisy quadrant sums of weight and outcomes, (outcome,), where there are `counts` and weights are measured."""
    quadrant_scale: float = 0.0
    """Scale of their noise, as of a Laplace law."""

    def described(self) -> dict[str, Any]:
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        numbers = {name: getattr(self, name) for name in ("period", "since", "scale", "quadrant_scale")}
        if not self.quadrants.size:
            del arrays["quadrants"], numbers["quadrant_scale"]
        return numbers | {
            name: _packed(array) if array.size > MOST_LISTED else array.tolist() for name, array in arrays.items()
        }

    @classmethod
    def recalled(cls, described: Mapping[str, Any]) -> Self:
        """The inverse of `described`. Raises `ValueError`, `KeyError` or `TypeError` if arrays do not fit each other."""
        names = ("count", "about", "total", "variance", "weight", "scatter", "counts")
        numbers = [np.array(_unpacked(described[name]), dtype=np.float64) for name in names]
        count, about, total, variance, weight, scatter, counts = numbers
        codes, row = (_whole(_unpacked(described[name])) for name in ("codes", "row"))
        cells, rows, outcomes = len(count), len(total), total.shape[-1]
        codes, about = codes.reshape(cells, -1), about.reshape(rows, -1)
        of_rows = {array.shape for array in (total, variance)} == {(rows, outcomes)}
        shapes = row.shape[1:], about.shape[1] + 1, weight.shape, scatter.shape
        if not of_rows or shapes != ((cells,), outcomes, (cells,), (cells, outcomes)):
            raise ValueError("arrays of different lengths")
        if not all(np.isfinite(array).all() for array in numbers):
            raise ValueError("numbers that are not finite")
        negative = any((array < 0).any() for array in (codes, count, row, variance, weight, scatter))
        if negative or (row >= rows).any() or (variance[:, 1:] <= 0).any() or (count <= 0).any():
            raise ValueError("numbers outside their ranges")
        since, scale = described["since"], float(described["scale"])
        if counts.ndim != 1 or not np.isfinite(scale) or (scale > 0.0) != (counts.size > 0):
            raise ValueError("counts without the scale of their noise")
        if not isinstance(since, int) or not 1 <= since <= MOST_PERIODS:
            raise ValueError("no number of periods")
        # Releases before version 0.3 have no quadrant sums.
        quadrants = np.array(_unpacked(described.get("quadrants", [])), dtype=np.float64)
        quadrant_scale = float(described.get("quadrant_scale", 0.0))
        of_outcomes = quadrants.shape == (outcomes - 1,) and bool(counts.size) and quadrant_scale > 0.0
        if not (np.isfinite([*quadrants.ravel(), quadrant_scale]).all() and (of_outcomes or not quadrants.size)):
            raise ValueError("quadrant sums that do not fit")
        arrays = total, variance, weight, scatter, counts, scale, since, quadrants, quadrant_scale
        return cls(str(described["period"]), codes.astype(np.int64), count, row, about, *arrays)


def _whole(values: Any) -> Codes:
    """Whole numbers of 32 bits. Raises `ValueError` if some are not."""
    array = np.asarray(values)
    if array.dtype != np.int32:
        array = np.array(values, dtype=np.float64)
        if not (np.abs(array) < 2**31).all() or (array != np.rint(array)).any():
            raise ValueError("numbers that are not whole, or too large")
    return array.astype(np.int32)


def _packed(array: Ints | Codes | Floats) -> dict[str, Any]:
    """The array as a text: base64 of its numbers, compressed by zlib."""
    kind = np.dtype("<i4" if array.dtype.kind == "i" else "<f8")
    text = base64.b64encode(zlib.compress(array.astype(kind).tobytes(), 1)).decode("ascii")
    return {"type": kind.str, "shape": list(array.shape), "zlib": text}


def _unpacked(described: Any) -> Any:
    """A list of numbers, or the array that `_packed` has made a text. Raises `ValueError`, `KeyError` or `TypeError`."""
    if not isinstance(described, Mapping):
        return described
    try:
        numbers = zlib.decompress(base64.b64decode(described["zlib"], validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return np.frombuffer(numbers, np.dtype(described["type"])).reshape(described["shape"])


def remembered(history: Sequence[PeriodTotals]) -> tuple[PeriodTotals, ...]:
    """The last periods that have at most MOST_TOTALS totals. `since` of the first includes the periods that were left out.

    The first period of a chain without a reference is among them.
    """
    if law_of(history) is not None:
        return (history[0], *remembered(history[1:]))
    totals, periods = 0, 0
    for period in reversed(history):
        totals += period.total.size
        if periods and totals > MOST_TOTALS:
            break
        periods += 1
    before, last = history[: len(history) - periods], history[len(history) - periods :]
    if not before:
        return tuple(last)
    return (replace(last[0], since=sum(period.since for period in (*before, last[0]))), *last[1:])


def law_of(history: Sequence[PeriodTotals]) -> PeriodTotals | None:
    """The first period of a chain without a reference, whose counts of bins give the law of all cells."""
    return history[0] if history and history[0].counts.size else None


History = Mapping[str, tuple[PeriodTotals, ...]]
"""Totals of every period, the earliest first, by stratum."""


def write_history(path: Path, history: History) -> None:
    strata = {label: [period.described() for period in periods] for label, periods in history.items()}
    write_json(path, {"strata": strata})


def read_history(folder: Path, name: str, columns: int, outcomes: int) -> History:
    """The inverse of `write_history`. Raises `DamagedFile` if totals are incomplete, or of other columns or outcomes."""
    try:
        by_stratum = read_object(folder, name)["strata"]
        history = {str(label): tuple(map(PeriodTotals.recalled, periods)) for label, periods in by_stratum.items()}
        all_periods = [period for periods in history.values() for period in periods]
        if not all((period.codes.shape[1], period.about.shape[1]) == (columns, outcomes) for period in all_periods):
            raise ValueError("other columns or outcomes")
        if not all(history.values()):
            raise ValueError("a stratum without totals")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise DamagedFile(name, "inconsistent totals", "totals as a release of mechanism tables states them") from None
    return history
