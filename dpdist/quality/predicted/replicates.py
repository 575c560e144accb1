"""A mechanism's runs on replicates of public records, with noise from keys; their errors, and the cache of predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy

from dpdist.confidential.records import Records
from dpdist.core.errors import FitError, installed
from dpdist.core.files import replaced, scratch
from dpdist.core.keys import Key
from dpdist.core.records import Cells, Crosstab, Floats, Ints, cell_name, quotient
from dpdist.engine.protocol import Learned, StratumRecorder, noise_of, run_rounds
from dpdist.estimation.direct import Direct, SamplingDesign
from dpdist.estimation.donors import AbsentRecords
from dpdist.job import Job, Statistic, Table
from dpdist.mechanisms.learning import learned_from
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws, Improper, Spurious, StratumModel, donors_of, facts_of, fixed_model
from dpdist.planning.blocks import block_rows
from dpdist.planning.plan import Plan
from dpdist.privacy.claims import promised
from dpdist.privacy.noisy_counts import counts, simulated_crosstab
from dpdist.privacy.weights import NotReached
from dpdist.publish.folder import grounds_of
from dpdist.publish.released import ReleasedObject, public_frame
from dpdist.publish.tables import table
from dpdist.publish.withholding import rows_with
from dpdist.quality.errors import SAME, relative_to, without_error
from dpdist.quality.verdict import NOMINAL
from dpdist.sampling import PosteriorSampler, ReferenceSampler, Unconverged, facts, sampler_of
from dpdist.survey.census import Census, design_of, place, records_as_they_came, replicates_as_they_came, take_census
from dpdist.survey.reference_file import ReferenceFile, absent_records, in_rows, records_of
from dpdist.survey.source import Source

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

    A row of the current crosstab draws from the records `order[start : start + size]`, (row,) each.
    """

    file: ReferenceFile
    records: Records
    order: Ints
    start: Ints
    size: Ints

    @classmethod
    def of(cls, job: Job, reference: ReferenceFile, crosstab: Crosstab) -> Population:
        """Rows draw from records with all their levels, else from those with the levels of their cell, else from all."""
        records, other = placed_records(job, reference), reference.census.crosstab
        start, size, order = np.zeros(len(crosstab), dtype=np.int64), np.zeros(len(crosstab), dtype=np.int64), list[Ints]()
        for names in (tuple(crosstab.codes), dict.fromkeys([*job.reference_columns, *job.cell_columns]), ()):
            both = np.vstack([crosstab.codes_of(names), other.codes_of(names)])
            key = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
            ours, theirs = key[: len(crosstab)], key[len(crosstab) :][records.row]
            sizes, first = np.bincount(theirs, minlength=int(key.max()) + 1), size == 0
            start[first] = (np.cumsum(sizes) - sizes)[ours][first] + len(records) * len(order)
            size[first] = sizes[ours][first]
            order.append(np.argsort(theirs, kind="stable"))
        return cls(reference, records, np.concatenate(order), start, size)

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
        drawn = self.records.take(first[row] + (rng.random(len(row)) * size[row]).astype(np.int64))
        return in_rows(self.file, drawn)


def placed_records(job: Job, reference: ReferenceFile) -> Records:
    """All records of the reference, in the order of its own crosstab, with unclipped weights."""
    with scratch() as folder:
        return Records.joined([records_of(job, reference, folder)])


COLUMNS = (
    *("table", "statistic", "name", "outcome", "cell", "records", "error", "relative", "given_n", "held", "alone"),
    *("bias", "direct_held", "lost"),
)
"""A row for each figure of a release.

`error`, `bias` (with its sign) and `alone`, of the reference's figure, are in direct standard errors; `given_n` is in those
for fixed cell sizes, and `relative` a share of the direct figure. `held` and `direct_held` are 1 if the published and the
direct interval contain the truth, NaN if there is none or it cannot be judged. `lost` is True for a figure that is not
published although the direct one has an error.
"""


class DirectFigures(NamedTuple):
    """A file's direct estimates of a statistic in a table's cells, (cell,) each.

    `given_n` is the standard error for fixed numbers of records in base cells, and `reach` half an interval with it.
    """

    table: Table
    statistic: Statistic
    cells: Cells
    records: Floats
    value: Floats
    error: Floats
    given_n: Floats
    reach: Floats

    @classmethod
    def of(cls, direct: Direct) -> Iterator[DirectFigures]:
        """Yields those of every statistic of every table."""
        crosstab = direct.crosstab
        by_cell = replace(stratified(direct), crosstab=crosstab.by_row)
        for of, statistic, cells in published_cells(direct.job, crosstab):
            value, variance = direct.estimate(cells, statistic)
            error, given_n = np.sqrt(variance), np.sqrt(by_cell.estimate(cells, statistic).variance)
            error, given_n = (np.where(without_error(value, one), 0.0, one) for one in (error, given_n))
            n, df = (
                cells.membership @ sizes for sizes in (crosstab.count.astype(float), np.maximum(crosstab.count - 1.0, 0.0))
            )
            quantile = scipy.special.stdtrit(np.where(df > 0, df, np.nan), (1.0 + NOMINAL) / 2.0)
            yield cls(of, statistic, cells, n, value, error, given_n, np.asarray(quantile * given_n))


def stratified(direct: Direct) -> Direct:
    """The records as independent draws within design strata."""
    return replace(direct.without_clusters, design=SamplingDesign(lonely="certainty"))


class ReplicateFigures(NamedTuple):
    """Direct figures of a replicate's current file, and what a release of it is compared with, (cell,) each.

    `design_error` is the standard error under the design that published errors include, `alone` the reference's figure, and
    `truth_reach` half an interval for the truth.
    """

    direct: DirectFigures
    design_error: Floats
    alone: Floats
    truth: Floats
    truth_reach: Floats | float = 0.0

    def errors_of(self, published: pd.DataFrame) -> pd.DataFrame:
        """The errors of a published table, one row for each cell, with `COLUMNS`."""
        here, truth = self.direct, self.truth
        rows = default_figures(published, here.statistic)
        estimate, low, high, se = (rows[name].to_numpy(dtype=float) for name in PUBLISHED)
        gap = estimate - here.value
        in_errors, in_given, relative = relative_to(np.abs(gap), here.value, here.error, here.given_n)
        alone = relative_to(np.abs(self.alone - here.value), here.value, here.error, here.given_n)[0]
        # Sizes of cells are the same in all replicates, so an interval is judged without its part for random sizes.
        sizes = np.nan_to_num(np.maximum(self.design_error**2 - here.given_n**2, 0.0))
        fixed = np.sqrt(np.clip(np.nan_to_num(1.0 - quotient(sizes, se**2), nan=1.0), 0.0, 1.0))
        reach = fixed * np.where(truth < estimate, estimate - low, high - estimate)
        marks = (self._holds(estimate, reach), self._holds(here.value, here.reach))
        lost = np.isnan(estimate) & np.isfinite(here.value) & (here.error > 0)
        figures = (in_errors, relative, in_given, marks[0], alone, np.copysign(in_errors, gap), marks[1], lost)
        return rows_of(here.table.name, here.statistic, here.cells, here.records, figures)

    def _holds(self, value: Floats, reach: Floats) -> Floats:
        """1 if the truth is nearer than both intervals together reach, (cell,), else 0; NaN if a part is unknown."""
        both = np.hypot(reach, self.truth_reach)
        holds = np.abs(self.truth - value) <= both + SAME * np.abs(self.truth)
        return np.where(np.isfinite(both + self.direct.reach + self.truth), holds, np.nan)


PUBLISHED = ("estimate", "lower", "upper", "standard_error")


def default_figures(published: pd.DataFrame, statistic: Statistic) -> pd.DataFrame:
    """The rows of a statistic in a published table, by its first estimator."""
    rows: pd.DataFrame = published[rows_with(published, statistic)]
    first: pd.DataFrame = rows[rows["estimator"] == rows["estimator"].iloc[0]]
    return first


def rows_of(
    table: str, statistic: Statistic, cells: Cells, records: Floats, figures: Sequence[Floats | float]
) -> pd.DataFrame:
    """One row for each cell, with `COLUMNS`; `figures` are those from `error` on."""
    names = [cell_name(label) for label in cells.labels]
    rows = pd.DataFrame({"cell": names, "records": records} | dict(zip(COLUMNS[6:], figures, strict=True)))
    rows = rows.assign(table=table, statistic=statistic.text, name=statistic.name, outcome=statistic.about)
    return rows[list(COLUMNS)]


def replicate(
    job: Job, crosstab: Crosstab, population: Population, truths: list[Floats], rng: np.random.Generator
) -> PublicReplicate:
    """Draws both files with replacement, and computes what does not depend on ε."""
    current = population.current(crosstab, rng)
    reference = population.reference(rng) if job.has_reference else None
    alone = None if reference is None else direct_of(job, crosstab, _at_sizes(job, crosstab, reference))
    figures = []
    for direct, truth in zip(DirectFigures.of(direct_of(job, crosstab, current)), truths, strict=True):
        of_reference = (
            np.full(len(truth), np.nan) if alone is None else alone.estimate(direct.cells, direct.statistic).value
        )
        figures.append(ReplicateFigures(direct, direct.error, of_reference, truth))
    return PublicReplicate(current, reference, figures)


def replicate_of_files(plan: Plan, truth: Source) -> PublicReplicate:
    """The replicate whose files are the input and reference of a plan, and a third file of the same population.

    Errors are in direct standard errors under the job's design, as in a verdict. Raises `DataError`.
    """
    job, source, reference, absent = plan.job, plan.source, None, None
    with scratch() as folder:
        current = Records.joined([place(job, source, plan.census, folder)])
    if isinstance(plan.reference, ReferenceFile):
        placed = placed_records(job, plan.reference)
        reference = in_rows(plan.reference, placed)
        absent = absent_records(job, plan.reference, placed) if job.mechanism.sets == "copied" else None
    here = _of_file(job, source, plan.census, design_of(job, plan.census), replicates_as_they_came(job, source))
    strata, figures = stratified(here), []
    others = list(DirectFigures.of(stratified(_of_file(job, truth, take_census(job, truth), SamplingDesign()))))
    for direct, other in zip(DirectFigures.of(here), others, strict=True):
        error = direct.error
        if job.survey.design_effect is None:  # published errors include no clusters
            error = np.fmin(error, np.sqrt(strata.estimate(direct.cells, direct.statistic).variance))
        cell = {label: number for number, label in enumerate(other.cells.labels)}
        there = np.array([cell.get(label, -1) for label in direct.cells.labels])
        value, reach = (np.append(of_truth, np.nan)[there] for of_truth in (other.value, other.reach))
        figures.append(ReplicateFigures(direct, error, np.full(len(error), np.nan), value, reach))
    design = None if plan.design is None else {"design_effects": plan.design.described()}
    return PublicReplicate(current, reference, figures, absent, design)


def _of_file(job: Job, source: Source, census: Census, design: SamplingDesign, replicates: Floats | None = None) -> Direct:
    """A file's records before clipping."""
    passes = [records_as_they_came(job, source, census, number) for number in range(len(job.outcomes))]
    return Direct.of(job, census.crosstab, design, passes, replicates)


class PublicReplicate(NamedTuple):
    """A current file and a reference, with all that does not depend on ε: direct estimates, and the reference's figures.

    `absent` are reference records without a row of the crosstab, and `design` is what the statement says of it.
    """

    current: Records
    reference: Records | None
    figures: Sequence[ReplicateFigures] = ()
    absent: AbsentRecords | None = None
    design: Mapping[str, Any] | None = None

    def stratum(self, crosstab: Crosstab, rows: slice) -> PublicReplicate:
        """The records of a stratum's rows."""
        reference, absent = self.reference, self.absent
        if absent is not None:
            absent = absent.within({name: int(crosstab.codes[name][rows.start]) for name in crosstab.strata})
        reference = None if reference is None else in_stratum(reference, rows)
        return self._replace(current=in_stratum(self.current, rows), reference=reference, absent=absent)


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
    return stratified(Direct.of(job, crosstab, SamplingDesign(), passes))


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
            outcomes[:, number] = np.clip(outcomes[:, number], *job.columns[name].ends)
    if job.survey.weight in job.clipped_columns:
        weight = np.clip(weight, *job.columns[str(job.survey.weight)].ends)
    return replace(records, outcomes=outcomes, weight=weight)


FITS = (Improper, NotReached, Unconverged, Spurious)
"""Errors of a mechanism that cannot be fitted to a stratum."""


def release_of(job: Job, crosstab: Crosstab, files: PublicReplicate, key: Key) -> ReleasedObject:
    """A release of a replicate's current file, which is public, with the job's fallback. The noise is known.

    Raises `FitError` if the mechanism cannot be fitted to a stratum.
    """
    public_crosstab, fits = _seen(job, crosstab, key), dict[str, tuple[Sequence[Mapping[str, Any]], Learned]]()
    clipped, fallback = files._replace(current=clip_records(job, files.current)), job.mechanism.fallback
    with scratch() as folder:
        sampler = sampler_of(job, folder)

        def fit(label: str, rows: slice, proper: bool) -> tuple[Sequence[Mapping[str, Any]], Learned]:
            model = sampler.complete(builder_of(job).build(job, public_crosstab, rows, proper=proper))
            part, learned = clipped.stratum(crosstab, rows), None
            if part.reference is not None:
                learned = taught(job, model, sampler, label, part.reference, len(part.current), key, part.absent)
            model, sets = released_by(job, model, sampler, label, part.current, learned, key.child(f"stratum {label}"))
            return [model.describe(theta) for theta in sets], learned

        for stratum, label in enumerate(crosstab.stratum_labels):
            for proper in (False, True):
                try:
                    fits[label] = fit(label, crosstab.rows_of(stratum), proper)
                    break
                except FITS as failure:
                    if fallback == "pool" and crosstab.strata:
                        return release_of(job, crosstab.pooled(), files, key)
                    if fallback != "proper_prior" or proper:
                        raise FitError(label, str(failure), "raise the budget, or pool strata") from None
    sets = tuple({label: described[k] for label, (described, _) in fits.items()} for k in range(job.synthetic_sets))
    scores = {label: of_scores for label, (_, learned) in fits.items() if (of_scores := facts_of(learned)) is not None}
    donors = {label: records for label, (_, learned) in fits.items() if (records := donors_of(learned)) is not None}
    claim = promised(mechanism_of(job).promise(job), facts(job), files.design)
    frame = public_frame(job, public_crosstab, sets)
    return ReleasedObject(job, claim, frame, sets, key.child("publish"), None, scores, donors)


def released_by(
    job: Job, model: StratumModel, sampler: PosteriorSampler, label: str, records: Records, learned: Learned, key: Key
) -> tuple[StratumModel, Sequence[Draws]]:
    """The mechanism's release of a stratum in memory, with noise from the key: the model it used, and θ of every set."""
    model = fixed_model(model, learned)
    rounds = mechanism_of(job).protect(job, model, StratumRecorder(), learned)
    return model, run_rounds(rounds, model, sampler, key, label, [records], noise=noise_of(key)).parameters


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
    of_reference, block = (
        (ReferenceSampler(job.sampler.total, sampler), key.child("reference")),
        block_rows(job.sampler.total),
    )
    return learned_from(job, model, *of_reference, label, reference, current, block, absent=absent)


def in_stratum(records: Records, rows: slice) -> Records:
    """The records of a stratum's rows; records are in the order of the crosstab."""
    start, stop = np.searchsorted(records.row, [rows.start, rows.stop])
    return records.part(int(start), int(stop))


def _seen(job: Job, crosstab: Crosstab, key: Key) -> Crosstab:
    """The published crosstab, with noisy counts if predictors are protected."""
    if not job.noisy_crosstab:
        return crosstab
    return simulated_crosstab(job, crosstab, counts(job, crosstab), key.generator("sample counts"))


def tables_of(released: ReleasedObject) -> dict[str, pd.DataFrame]:
    """The tables of a release, by name, as they are published."""
    with scratch() as folder:
        grounds, material = grounds_of(released, folder, records=not released.job.plain)
        return {spec.name: table(released, spec, grounds, material).to_pandas() for spec in released.job.tables}
