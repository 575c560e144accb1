"""A mechanism's runs on replicates of public records, with noise from keys; their errors, and the cache of predictions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.errors import installed
from dpdist.core.files import replaced
from dpdist.core.keys import Key
from dpdist.core.records import Cells, Codes, Crosstab, Floats, Ints, cell_name
from dpdist.engine.protocol import Learned, Unwatched, noise_of, run_rounds
from dpdist.estimation.direct import Direct, SamplingDesign
from dpdist.estimation.donors import AbsentRecords, Donors
from dpdist.job import Job, Statistic, Table
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import StratumModel, donors_of, facts_of, fixed_model
from dpdist.privacy.claims import promised
from dpdist.privacy.noise import simulated_noise
from dpdist.privacy.noisy_counts import counts, layers_of, noise_name, noisy_crosstab
from dpdist.publish.folder import grounds_of
from dpdist.publish.printed_tables import rows_with
from dpdist.publish.released import ReleasedObject, public_frame
from dpdist.publish.tables import table
from dpdist.quality.errors import relative_to
from dpdist.runtime.reference import learned_from
from dpdist.sampling import PosteriorSampler, facts, reference_sampler, sampler_of
from dpdist.survey.reference_file import ReferenceFile, absent_records, records_of

MOST_KEPT = 200
"""Largest number of stored predictions; the oldest are removed."""


def folder() -> Path | None:
    """The folder `predictions` in $DPDIST_CACHE or in the user's cache folder; None if neither can be written."""
    if configured := os.environ.get("DPDIST_CACHE"):
        return Path(configured).absolute() / "predictions"
    if not installed("platformdirs"):
        return None
    from platformdirs import user_cache_path

    return Path(user_cache_path("dpdist")) / "predictions"


def known_before(identity: str, where: Path | None = None) -> pd.DataFrame | None:
    """The stored rows of this identity; None if there are none, or if the file is damaged."""
    path = _path(identity, where)
    if path is None or not path.exists():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException):
        return None


def load_or_make(identity: str, make: Callable[[], pd.DataFrame], where: Path | None = None) -> pd.DataFrame:
    """The stored rows of this identity, or new rows, which are then stored. A damaged file is made again.

    They are stored in the folder `where`, or among the latest predictions in the user's cache.
    """
    if (before := known_before(identity, where)) is not None:
        return before
    rows = make()
    if (path := _path(identity, where)) is not None:
        with suppress(OSError):  # a cache that cannot be written costs time alone
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path, durable=False) as temporary:
                rows.to_parquet(temporary)
            by_age = sorted(path.parent.glob("*.parquet"), key=lambda file: file.stat().st_mtime)
            for old in by_age[:-MOST_KEPT] if where is None else ():
                old.unlink(missing_ok=True)
    return rows


def _path(identity: str, where: Path | None) -> Path | None:
    stored = where or folder()
    return None if stored is None else stored / f"{identity[:32]}-{version('dpdist')}.parquet"


@dataclass(frozen=True)
class Population:
    """The reference's records in the order of its own crosstab, with unclipped weights.

    `row` is each record's row of the current crosstab, −1 for none, (record,). A row of the current crosstab draws from the
    records `order[start : start + size]`, (row,) each.
    """

    records: Records
    row: Ints
    order: Ints
    start: Ints
    size: Ints
    absent: AbsentRecords
    """The records without a row of the current crosstab."""

    @classmethod
    def of(cls, job: Job, reference: ReferenceFile, crosstab: Crosstab) -> Population:
        with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
            placed = records_of(job, reference, Path(folder))
            fields = (np.array(getattr(placed, name)) for name in ("record", "row", "outcomes", "weight", "psu"))
            records, absent = Records(*fields), absent_records(job, reference, placed)
        other, keys = reference.census.crosstab, (tuple(crosstab.codes), _cell_columns(job), ())
        pools = [_by_key(names, crosstab, other, records.row) for names in keys]
        start, size, order = np.zeros(len(crosstab), dtype=np.int64), np.zeros(len(crosstab), dtype=np.int64), list[Ints]()
        for pool in pools:
            first = size == 0
            start[first], size[first] = pool.start[first] + len(records) * len(order), pool.size[first]
            order.append(pool.order)
        return cls(records, reference.row[records.row], np.concatenate(order), start, size, absent)

    def current(self, crosstab: Crosstab, rng: np.random.Generator) -> Records:
        """A current file with the crosstab's sizes, in its order, before clipping."""
        row = crosstab.expand()
        place_in_pool = (rng.random(len(row)) * self.size[row]).astype(np.int64)
        records = self.records.take(self.order[self.start[row] + place_in_pool])
        return replace(records, record=np.arange(len(row)), row=row)

    def all_records(self, crosstab: Crosstab) -> Records:
        """The records behind all rows, weighted to each row's number of records."""
        row = np.repeat(np.arange(len(crosstab), dtype=np.int32), self.size)
        within = np.arange(len(row)) - np.repeat(np.cumsum(self.size) - self.size, self.size)
        records = self.records.take(self.order[self.start[row] + within])
        return replace(records, row=row, weight=records.weight * (crosstab.count / np.maximum(self.size, 1))[row])

    def reference(self, rng: np.random.Generator) -> Records:
        """A reference with the sizes of this one, in rows of the current crosstab."""
        row = self.records.row
        size = np.bincount(row)
        first = np.concatenate([[0], np.cumsum(size)])
        return self._placed(self.records.take(first[row] + (rng.random(len(row)) * size[row]).astype(np.int64)))

    def as_it_is(self) -> Records:
        """The reference itself, in rows of the current crosstab."""
        return self._placed(self.records)

    def _placed(self, records: Records) -> Records:
        order = np.argsort(self.row, kind="stable")
        order = order[np.searchsorted(self.row[order], 0) :]
        return replace(records.take(order), row=self.row[order].astype(np.int32))


class _Pool(NamedTuple):
    order: Ints
    start: Ints
    size: Ints


def _cell_columns(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*job.reference_columns, *job.cell_columns]))


def _by_key(names: tuple[str, ...], crosstab: Crosstab, other: Crosstab, row: Codes) -> _Pool:
    """The records of every row of the current crosstab by these columns; `row` is each record's row of the other one."""
    tables = [
        np.column_stack([np.zeros(len(part), dtype=np.int32), *(part.codes[name] for name in names)])
        for part in (crosstab, other)
    ]
    key = np.unique(np.vstack(tables), axis=0, return_inverse=True)[1].reshape(-1)
    ours, theirs = key[: len(crosstab)], key[len(crosstab) :][row]
    sizes = np.bincount(theirs, minlength=int(key.max()) + 1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return _Pool(np.argsort(theirs, kind="stable"), starts[ours], sizes[ours])


COLUMNS = ("table", "statistic", "name", "outcome", "cell", "records", "error", "relative", "given_n", "held", "alone")


class PublicReplicate(NamedTuple):
    """A current file and a reference, with all that does not depend on ε: direct estimates, and the reference's
    figures.
    """

    current: Records
    reference: Records | None
    figures: list[ReplicateFigures]


@dataclass(frozen=True)
class ReplicateFigures:
    """A statistic of a table, (cell,) each: direct estimate, its standard errors, the reference's figure, and the truth.

    `given_n` is the direct standard error for fixed numbers of records in base cells.
    """

    table: Table
    statistic: Statistic
    cells: Cells
    records: Floats
    value: Floats
    error: Floats
    given_n: Floats
    alone: Floats
    truth: Floats

    def errors_of(self, published: pd.DataFrame) -> pd.DataFrame:
        """The errors of a published table, one row for each cell; `held` is 1 if the interval contains the truth."""
        rows = published[rows_with(published, self.statistic)]
        rows = rows[rows["estimator"] == rows["estimator"].iloc[0]]
        estimate, low, high = (rows[name].to_numpy(dtype=float) for name in ("estimate", "lower", "upper"))
        gap = np.abs(estimate - self.value)
        in_errors, in_given, relative = relative_to(gap, self.value, self.error, self.given_n)
        alone = relative_to(np.abs(self.alone - self.value), self.value, self.error, self.given_n)[0]
        judged = np.isfinite(low) & np.isfinite(high) & np.isfinite(self.truth)
        covers = np.where(judged, (low <= self.truth) & (self.truth <= high), np.nan)
        figures = (in_errors, relative, in_given, covers, alone)
        return rows_of(self.table.name, self.statistic, self.cells, self.records, figures)


def rows_of(
    table: str, statistic: Statistic, cells: Cells, records: Floats, figures: Sequence[Floats | float]
) -> pd.DataFrame:
    """One row for each cell, with `COLUMNS`; `figures` are the last five."""
    names = [cell_name(label) for label in cells.labels]
    rows = pd.DataFrame({"cell": names, "records": records} | dict(zip(COLUMNS[6:], figures, strict=True)))
    rows = rows.assign(table=table, statistic=statistic.text, name=statistic.name, outcome=statistic.about)
    return rows[list(COLUMNS)]


def replicate(
    job: Job, crosstab: Crosstab, population: Population, truths: list[Floats], rng: np.random.Generator
) -> PublicReplicate:
    """Draws both files, and computes what does not depend on ε."""
    current = population.current(crosstab, rng)
    reference = population.reference(rng) if job.has_reference else None
    estimates = direct_of(job, crosstab, current)
    alone = None if reference is None else direct_of(job, crosstab, _at_sizes(job, crosstab, reference))
    by_cell = replace(estimates, crosstab=crosstab.stratified(tuple(crosstab.codes)))
    figures = []
    for (of, statistic, cells), truth in zip(published_cells(job, crosstab), truths, strict=True):
        value, variance = estimates.estimate(cells, statistic)
        of_sizes = np.sqrt(by_cell.estimate(cells, statistic).variance)
        of_reference = np.full(len(cells), np.nan) if alone is None else alone.estimate(cells, statistic).value
        n = cells.membership @ crosstab.count.astype(float)
        figures.append(ReplicateFigures(of, statistic, cells, n, value, np.sqrt(variance), of_sizes, of_reference, truth))
    return PublicReplicate(current, reference, figures)


def published_cells(job: Job, crosstab: Crosstab) -> list[tuple[Table, Statistic, Cells]]:
    """Every statistic of every table, with the table's cells."""
    tables = [(table, table.cells(crosstab)) for table in job.tables]
    return [(table, statistic, cells) for table, cells in tables for statistic in table.statistics]


def truths_of(job: Job, crosstab: Crosstab, population: Population) -> list[Floats]:
    """The population's figures at the crosstab's sizes, (cell,) each, in the order of `published_cells`."""
    population_values = direct_of(job, crosstab, population.all_records(crosstab))
    return [population_values.estimate(cells, statistic).value for _, statistic, cells in published_cells(job, crosstab)]


def direct_of(job: Job, crosstab: Crosstab, records: Records) -> Direct:
    """The records for direct estimates within design strata, each record a PSU."""
    passes = [iter([records.about(number)]) for number in range(len(job.outcomes))]
    return Direct.of(job, crosstab, SamplingDesign(lonely="certainty"), passes).without_clusters


def _at_sizes(job: Job, crosstab: Crosstab, reference: Records) -> Records:
    """The reference's records, weighted to the current number of records in every base cell."""
    cell = crosstab.group(job.cell_columns)[0]
    here, there = np.bincount(cell, weights=crosstab.count), np.bincount(cell[reference.row], minlength=int(cell.max()) + 1)
    scale = here / np.maximum(there, 1)
    return replace(reference, weight=reference.weight * scale[cell[reference.row]])


def clip_records(job: Job, records: Records) -> Records:
    """The records as a release reads them, with outcomes and weights clipped if the job clips them."""
    outcomes, weight = records.outcomes, records.weight
    for number, name in enumerate(job.outcomes):
        if name in job.clipped_columns:
            outcomes = outcomes.copy(order="F")
            outcomes[:, number] = np.clip(outcomes[:, number], *(job.columns[name].bounds or (-np.inf, np.inf)))
    if job.survey.weight in job.clipped_columns:
        weight = np.clip(weight, *(job.columns[str(job.survey.weight)].bounds or (-np.inf, np.inf)))
    return replace(records, outcomes=outcomes, weight=weight)


def release_of(job: Job, crosstab: Crosstab, current: Records, reference: Records | None, key: Key) -> ReleasedObject:
    """A release of the current records. Raises the errors of a run if the mechanism cannot be fitted to a stratum."""
    current, public_crosstab, mechanism = clip_records(job, current), _seen(job, crosstab, key), mechanism_of(job)
    sets: list[dict[str, Mapping[str, Any]]] = [{} for _ in range(job.synthetic_sets)]
    of_scores, donors = dict[str, Facts](), dict[str, Donors]()
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        sampler = sampler_of(job, Path(folder))
        for stratum, label in enumerate(crosstab.stratum_labels):
            rows, stratum_key = crosstab.rows_of(stratum), key.child(f"stratum {label}")
            ours, model = _of_rows(current, rows), builder_of(job).build(job, public_crosstab, rows)
            learned: Learned = None
            if reference is not None:
                learned = taught(job, model, sampler, label, _of_rows(reference, rows), len(ours), key)
                model = fixed_model(model, learned)
            rounds = mechanism.protect(job, model, Unwatched(), learned)
            ended = run_rounds(rounds, model, sampler, stratum_key, label, [ours], noise=noise_of(stratum_key))
            for of_set, theta in zip(sets, ended.parameters, strict=True):
                of_set[label] = model.describe(theta)
            if (facts_here := facts_of(learned)) is not None:
                of_scores[label] = facts_here
            if (donors_here := donors_of(learned)) is not None:
                donors[label] = donors_here
    described = tuple(sets)
    claim = promised(mechanism.promise(job), facts(job))
    return ReleasedObject(
        job, claim, public_frame(job, public_crosstab, described), described, key.child("publish"), None, of_scores, donors
    )


def taught(
    job: Job,
    model: StratumModel,
    sampler: PosteriorSampler,
    label: str,
    reference: Records,
    current: int,
    key: Key,
    absent: AbsentRecords | None = None,
) -> Learned:
    """What the mechanism learns from a stratum's reference records, without copied columns; `absent` have no row."""
    of_reference = reference_sampler(job, sampler), key.child("reference")
    return learned_from(job, model, *of_reference, label, reference, current, absent=absent)


def _of_rows(records: Records, rows: slice) -> Records:
    """The records of a stratum's rows; records are in the order of the crosstab."""
    start, stop = np.searchsorted(records.row, [rows.start, rows.stop])
    return records.part(int(start), int(stop))


def _seen(job: Job, crosstab: Crosstab, key: Key) -> Crosstab:
    """The published crosstab, with noisy counts if predictors are protected."""
    if not job.noisy_crosstab:
        return crosstab
    rng, law = key.generator("sample counts"), noise_name(job)
    rows = [
        exact + (np.zeros(1) if level.scale is None else simulated_noise(law, level.scale, len(exact), rng))
        for level, exact in zip(layers_of(job), counts(job, crosstab), strict=True)
    ]
    return noisy_crosstab(job, crosstab, rows)


def tables_of(released: ReleasedObject) -> dict[str, pd.DataFrame]:
    """The tables of a release, by name, as they are published."""
    all_plain = all(statistic.plain for spec in released.job.tables for statistic in spec.statistics)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        grounds, material = grounds_of(released, Path(folder), records=not all_plain)
        return {spec.name: table(released, spec, grounds, material).to_pandas() for spec in released.job.tables}
