"""Predicted errors of a job's release at several ε, from public records alone.

If a public file is known, the mechanism runs on replicates of it (`population`), or predicts its errors itself
(`predicted_errors`). Otherwise nothing is predicted, and `why` has the reason. Unknown figures are
not replaced by others.

An error is |published − direct estimate| over the direct estimate's standard error, as in the verdict of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.confidential.records import Records
from dpdist.core.errors import DpdistError, JobError
from dpdist.core.files import scratch
from dpdist.core.keys import Key, digest
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import POOLED, Crosstab, Floats
from dpdist.core.this_process import single_threaded
from dpdist.engine.protocol import Learned
from dpdist.estimation.donors import AbsentRecords, PeriodTotals
from dpdist.job import Job, Statistic
from dpdist.job.reference import FileReference
from dpdist.mechanisms.parts import builder_of
from dpdist.models.protocol import ErrorsOfCells, StratumModel, supports
from dpdist.planning.plan import Plan
from dpdist.publish.predicted_errors import FAR_NAMED
from dpdist.quality.predicted.replicates import (
    COLUMNS,
    FITS,
    Population,
    PublicReplicate,
    known_before,
    load_or_make,
    placed_records,
    published_cells,
    release_of,
    replicate,
    rows_of,
    tables_of,
    taught,
    truths_of,
)
from dpdist.quality.predicted.scores import FIGURES, PUBLIC, Statistics, number, summaries
from dpdist.sampling import sampler_of
from dpdist.survey.reference_file import ReferenceFile, absent_records, in_rows, open_reference as open_public
from dpdist.survey.released_reference import ReferenceRelease

TIMES = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""The budgets of the curve, as multiples of the job's ε."""
MOST_REPLICATES, LEAST_REPLICATES, FEW_CELLS = 4, 2, 100
"""Number of replicates at the job's ε: the first for few base cells, otherwise the second."""
DRAWS = 4
"""Number of draws from normal laws, if a mechanism predicts its errors itself."""
STORED = "statistics"
"""What is stored of a prediction; a part of its identity."""
BETTER = 0.75
"""Share of cells in which a release must be nearer to direct estimates than the reference alone."""


class AtEpsilon(NamedTuple):
    """What is predicted at one ε.

    - `statistics`: errors of every statistic.
    - `better`: the share of cells, over all statistics, whose release is nearer to direct estimates than at ε = 0.
    - `draws`: number of draws of both files.
    """

    statistics: list[Statistics]
    better: float
    draws: int

    @classmethod
    def of(cls, parts: Iterable[pd.DataFrame]) -> AtEpsilon:
        """From rows of every replicate in every published cell (`replicates.COLUMNS` and `replicate`), in parts of whole
        statistics.
        """
        statistics, nearer, known, draws = list[Statistics](), 0, 0, 0
        for rows in parts:
            statistics += summaries(rows)
            both = rows[rows["error"].notna() & rows["alone"].notna()]
            nearer, known = nearer + int((both["error"] < both["alone"]).sum()), known + len(both)
            draws = max(draws, rows["replicate"].nunique())
        return cls(statistics, nearer / known if known else np.nan, draws)


Curve = Mapping[float, AtEpsilon]
"""Predictions by ε."""


@dataclass(frozen=True)
class ErrorPrediction:
    """Predicted errors by ε; none if `why` states a reason."""

    job: Job
    curve: Curve
    why: str = ""

    @property
    def computed(self) -> bool:
        return not self.why

    @property
    def epsilons(self) -> list[float]:
        return sorted(self.curve)

    def statistics(self, epsilon: float | None = None) -> list[Statistics]:
        """Predicted errors of every statistic, at the job's ε or another ε of the curve, in one order at every ε."""
        at = self.curve.get(float(self.job.budget.epsilon) if epsilon is None else epsilon)
        return [] if at is None else at.statistics

    def better(self, epsilon: float) -> float:
        """The share of cells, over all statistics, whose release is nearer to direct estimates than at ε = 0."""
        return self.curve[epsilon].better if epsilon in self.curve else np.nan

    @property
    def least_worth(self) -> float | None:
        """The smallest ε of the curve from which on releases beat the reference alone in BETTER of the cells."""
        worth = list(takewhile(lambda epsilon: self.better(epsilon) >= BETTER, reversed(self.epsilons)))
        return worth[-1] if worth else None

    def described(self) -> list[dict[str, Any]]:
        """Entries for `plan --json`; null for unknown figures."""
        entries = [
            {"table": row.table, "statistic": row.name, "outcome": row.outcome}
            | {name: number(getattr(row, name)) for name in FIGURES}
            | {"cells": row.cells, "far": list(row.far)}
            for row in self.statistics()
        ]
        nothing = dict.fromkeys(FIGURES) | {"why": self.why or NOT_PREDICTED}
        for table, statistic in self.without:
            entries.append({"table": table, "statistic": statistic.name, "outcome": statistic.about} | nothing)
        return entries

    @property
    def without(self) -> list[tuple[str, Statistic]]:
        """Tables' statistics of which no error is predicted, each with its table's name."""
        predicted = {(row.table, row.statistic) for row in self.statistics()}
        asked_for = ((table.name, statistic) for table in self.job.tables for statistic in table.statistics)
        return [(table, statistic) for table, statistic in asked_for if (table, statistic.text) not in predicted]


NOT_PREDICTED = "the mechanism does not predict an error for this statistic"


def predicted(
    plan: Plan, listener: Listener = silent, public: Path | None = None, times: tuple[Fraction, ...] = TIMES
) -> ErrorPrediction:
    """Predicts the errors of a plan's release at multiples of its ε, once for each job, public file and public sizes.

    `public` is a public file for a job without a reference. Raises `DataError` if it does not fit the job.
    """
    if why := unknown(plan, public):
        return ErrorPrediction(plan.job, {}, why)
    reference = _public_file(plan, public, listener)
    crosstab = public_sizes(plan.job, plan.crosstab, reference)
    try:
        stored = load_or_make(
            identity(plan.job, crosstab, reference, [*times, STORED]),
            lambda: _stored(_curve(plan.job, crosstab, reference, times, listener)),
        )
    except (*FITS, DpdistError) as failure:
        why = f"the mechanism cannot be run on public records: {str(failure).splitlines()[0]}"
        return ErrorPrediction(plan.job, {}, why)
    return ErrorPrediction(plan.job, _restored(stored))


def predicted_before(plan: Plan) -> ErrorPrediction | None:
    """The prediction of a plan if it is stored, otherwise None; takes no time."""
    if unknown(plan, None) or plan.reference is None:
        return None
    crosstab = public_sizes(plan.job, plan.crosstab, plan.reference)
    stored = known_before(identity(plan.job, crosstab, plan.reference, [*TIMES, STORED]))
    return None if stored is None else ErrorPrediction(plan.job, _restored(stored))


def _stored(curve: Curve) -> pd.DataFrame:
    """A row for each statistic at each ε."""
    rows = [(epsilon, at.better, at.draws, *row) for epsilon, at in curve.items() for row in at.statistics]
    return pd.DataFrame(rows, columns=["epsilon", "nearer", "draws", *Statistics._fields])


def _restored(stored: pd.DataFrame) -> Curve:
    curve = dict[float, AtEpsilon]()
    for epsilon, nearer, draws, *row in stored.itertuples(index=False, name=None):
        of = Statistics(*row)
        at = curve.setdefault(epsilon, AtEpsilon([], nearer, draws))
        at.statistics.append(of._replace(outcome=None if pd.isna(of.outcome) else of.outcome, far=tuple(of.far)))
    return curve


def unknown(plan: Plan, public: Path | None) -> str:
    """The reason why errors are not known before the run; empty if they can be predicted."""
    if not plan.job.tables:
        return "the job has no table"
    if plan.job.sampler.name == "stan":
        return (
            "every replicate would run Markov chains; dpdist rehearse --chains runs them and measures errors on a "
            "public file"
        )
    if public is not None or isinstance(plan.reference, ReferenceFile) or _of_a_chain(plan):
        return ""
    if plan.job.strata and isinstance(plan.reference, ReferenceRelease):
        return (
            "the reference is an earlier release of strata, whose errors are not predicted; name a public file with "
            "--public"
        )
    if plan.reference is not None:
        return (
            "the reference is an earlier release, which has points of each cell and no records; name a public file with "
            "--public"
        )
    return (
        "no public file shows how weights and outcomes vary. Name a similar public file with --public FILE; it costs "
        "nothing"
    )


def _of_a_chain(plan: Plan) -> bool:
    """True if an earlier release is the reference, and brings the records with which its chain began."""
    release = plan.reference
    return isinstance(release, ReferenceRelease) and release.present is not None and not (plan.job.rake or plan.job.strata)


def _public_file(plan: Plan, public: Path | None, listener: Listener) -> ReferenceFile | ReferenceRelease:
    if public is None:
        assert plan.reference is not None
        return plan.reference
    if plan.job.has_reference:
        fault, remedy = "the job has a reference already, whose records predict its errors", "leave --public out"
        raise JobError.of(plan.job.dataset, "--public", fault, "a job without a reference", remedy)
    source = FileReference(path=str(public), encoding=plan.job.input.encoding, separator=plan.job.input.separator)
    with stage(listener, "check reference", None) as tick:
        return open_public(plan.job.model_copy(update={"reference": source}), plan.source, plan.crosstab, tick)


def identity(
    job: Job, crosstab: Crosstab, reference: ReferenceFile | ReferenceRelease, times: Sequence[Fraction | str]
) -> str:
    """A checksum of all that a prediction depends on; `times` may be what else is computed."""
    left_out = {"presentation", "runtime", "input", "ledger", "compare", "reference"}
    settings = job.model_dump_json(exclude=left_out), str(job.reference and job.reference.histograms)
    facts = {
        "job": settings,
        "sizes": crosstab.count,
        "codes": dict(crosstab.codes),
        "times": [str(factor) for factor in times],
    }
    sample_sizes = None if crosstab.sampled is None else [[list(label), n] for label, n in crosstab.sampled.items()]
    return digest(facts | {"public": reference.sha256, "drawn": sample_sizes})


def public_sizes(job: Job, crosstab: Crosstab, reference: ReferenceFile | ReferenceRelease) -> Crosstab:
    """The crosstab with the sizes of replicates: the current file's, or the reference's if the job keeps sizes secret."""
    return reference.sized(crosstab) if job.sizes_secret else crosstab


def with_epsilon(job: Job, epsilon: Fraction) -> Job:
    """The job with another ε; gates and sample counts keep their ε, and histograms their share."""
    budget, reference = job.budget.model_copy(update={"epsilon": epsilon, "rho": None}), job.reference
    if reference is not None and reference.histograms is not None:
        histogram = reference.histograms
        scaled = histogram.model_copy(update={"epsilon": histogram.epsilon * epsilon / job.budget.epsilon})
        reference = reference.model_copy(update={"histogram": scaled})
    microdata = job.microdata.model_copy(update={"columns": ()})
    return job.model_copy(update={"budget": budget, "reference": reference, "compare": (), "microdata": microdata})


def by_formulas(model: StratumModel, job: Job) -> bool:
    """True if errors follow from formulas of one model, and not from releases of replicates."""
    # Formulas know no design: its strata may fix counts.
    designed = job.strata or job.rake or job.survey.design_strata
    return supports(model, "predicted_errors") and job.has_reference and not designed


def _curve(
    job: Job,
    crosstab: Crosstab,
    reference: ReferenceFile | ReferenceRelease,
    times: tuple[Fraction, ...],
    listener: Listener,
) -> Curve:
    first = builder_of(job).build(job, crosstab, crosstab.rows_of(0))
    budgets = [with_epsilon(job, job.budget.epsilon * factor) for factor in times]
    if isinstance(reference, ReferenceRelease) or by_formulas(first, job):
        return _of_formulas(job, crosstab, reference, budgets, listener)
    return _of_replicates(job, crosstab, reference, budgets, listener)


class PublicRecords(NamedTuple):
    """Public records in rows of the current crosstab, those in none, and totals of earlier periods."""

    present: Records
    absent: AbsentRecords | None
    history: tuple[PeriodTotals, ...] = ()

    @classmethod
    def of(cls, job: Job, reference: ReferenceFile | ReferenceRelease) -> PublicRecords:
        if isinstance(reference, ReferenceRelease):
            assert reference.present is not None
            return cls(reference.present, reference.absent, reference.carried.history.get(POOLED, ()))
        placed = placed_records(job, reference)
        return cls(in_rows(reference, placed), absent_records(job, reference, placed))

    def errors(
        self, job: Job, crosstab: Crosstab, model: StratumModel | None = None, before: Learned = None
    ) -> tuple[Sequence[ErrorsOfCells], Learned]:
        """Errors that a model predicts for itself, and what it learned; `before` was learned under another budget."""
        model = builder_of(job).build(job, crosstab, crosstab.rows_of(0)) if model is None else model
        if supports(model, "with_donors"):
            if before is not None:
                return model.predicted_errors(model.relearned(before)), before
            model = model.with_history(self.history)
        with scratch() as folder:
            sampler, current = sampler_of(job, folder), int(crosstab.count.sum())
            learned = taught(job, model, sampler, POOLED, self.present, current, PUBLIC, self.absent)
        return model.predicted_errors(learned), learned


def _of_formulas(
    job: Job, crosstab: Crosstab, reference: ReferenceFile | ReferenceRelease, budgets: list[Job], listener: Listener
) -> Curve:
    """Errors of normal laws with the mechanism's predicted standard deviations, over drawn direct standard errors.

    `chance` is the probability that an error is above FAR_NAMED.
    """
    curve, learned, parts = dict[float, AtEpsilon](), None, list[pd.DataFrame]()
    with single_threaded(), stage(listener, "predict errors", len(budgets)) as tick:
        records = PublicRecords.of(job, reference)
        cells = {(table.name, statistic): by for table, statistic, by in published_cells(job, crosstab)}
        sizes = crosstab.count.astype(float)
        for tried in sorted(budgets, key=lambda item: item.budget.epsilon != job.budget.epsilon):
            of_tables, learned = records.errors(tried, crosstab, before=learned)
            if not parts:
                unknown = [np.nan] * (len(COLUMNS) - COLUMNS.index("error"))
                named = [(item, cells[item.table, item.statistic]) for item in of_tables]
                parts = [rows_of(item.table, item.statistic, by, by.membership @ sizes, unknown) for item, by in named]
            curve[float(tried.budget.epsilon)] = AtEpsilon.of(_drawn(parts, of_tables))
            tick(1)
    return curve


def _drawn(parts: Sequence[pd.DataFrame], of_tables: Sequence[ErrorsOfCells]) -> Iterator[pd.DataFrame]:
    """Yields rows of all draws, by statistic."""
    generators = [PUBLIC.child(str(k)).generator("errors") for k in range(DRAWS)]
    for rows, item in zip(parts, of_tables, strict=True):
        chance, draws = _chance(item), list[pd.DataFrame]()
        for k, rng in enumerate(generators):
            both = np.abs(rng.standard_normal((2, len(item.error)))) * [item.error, item.alone]
            units = _units(item.freedom, PUBLIC.child(f"{k} {item.table}").generator(item.statistic.text))
            error, alone = both / units
            draws.append(rows.assign(error=error, alone=alone, chance=chance, replicate=k))
        yield pd.concat(draws, ignore_index=True)


def _units(freedom: Floats, rng: np.random.Generator) -> Floats:
    """Draws of direct standard errors over the expected ones, (cell,)."""
    varying, units = np.isfinite(freedom), np.ones(len(freedom))
    units[varying] = np.sqrt(rng.chisquare(freedom[varying]) / freedom[varying])
    return units


def _chance(errors_of: ErrorsOfCells) -> Floats:
    """Probabilities of an error above FAR_NAMED, (cell,), by Student's law; 0 if an error is unknown."""
    error = np.where(errors_of.error > 1e-9, errors_of.error, 1e-9)
    return np.asarray(2.0 * scipy.special.stdtr(errors_of.freedom, -FAR_NAMED / error))


def _of_replicates(job: Job, crosstab: Crosstab, reference: ReferenceFile, budgets: list[Job], listener: Listener) -> Curve:
    """Errors of releases of replicates: several at the job's ε, and the first one at all other ε, under the same noise."""
    cells = len(crosstab.group(job.cell_columns)[1])
    number = MOST_REPLICATES if cells <= FEW_CELLS else LEAST_REPLICATES
    runs = [(k, tried) for k in range(number) for tried in budgets if k == 0 or tried.budget.epsilon == job.budget.epsilon]
    frames, by_number = dict[float, list[pd.DataFrame]](), dict[int, PublicReplicate]()
    with single_threaded(), stage(listener, "predict errors", len(runs)) as tick:
        population = Population.of(job, reference, crosstab)
        truths = truths_of(job, crosstab, population)
        for k, tried in runs:
            key = PUBLIC.child(str(k))
            if k not in by_number:
                by_number = {k: replicate(job, crosstab, population, truths, key.generator("files"))}
            of_release = errors(tried, crosstab, by_number[k], key)[0].assign(replicate=k)
            frames.setdefault(float(tried.budget.epsilon), []).append(of_release)
            tick(1)
    return {epsilon: AtEpsilon.of([pd.concat(parts, ignore_index=True)]) for epsilon, parts in frames.items()}


def errors(job: Job, crosstab: Crosstab, files: PublicReplicate, key: Key) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The errors of one release of a replicate's current file, in every published cell, and the release's tables."""
    tables = tables_of(release_of(job, crosstab, files, key))
    rows = [figures.errors_of(tables[figures.direct.table.name]) for figures in files.figures]
    return pd.concat(rows, ignore_index=True), tables
