"""Predicted errors of a job's release at several ε, from public records alone.

If a public file is known, the mechanism runs on replicates of it (`population`), or predicts its errors itself
(`predicted_errors`). Otherwise nothing is predicted, and `why` has the reason. Unknown figures are
not replaced by others.

An error is |published − direct estimate| over the direct estimate's standard error, as in the verdict of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.confidential.records import Records
from dpdist.core.errors import DpdistError, JobError, Problem
from dpdist.core.keys import Key, digest
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import POOLED, Cells, Crosstab, Floats, rows_of_groups
from dpdist.core.this_process import single_threaded
from dpdist.estimation.donors import AbsentRecords, PeriodTotals
from dpdist.job import Job, Statistic
from dpdist.job.reference import FileReference
from dpdist.mechanisms.parts import builder_of
from dpdist.models.protocol import ErrorsOfCells, Improper, Spurious, StratumModel, supports
from dpdist.planning.plan import Plan
from dpdist.privacy.weights import NotReached
from dpdist.publish.predicted_errors import FAR, FAR_NAMED
from dpdist.quality.errors import FAR_RECORDS, Errors, of_figures
from dpdist.quality.predicted.replicates import (
    Population,
    PublicReplicate,
    known_before,
    load_or_make,
    published_cells,
    release_of,
    replicate,
    rows_of,
    tables_of,
    taught,
    truths_of,
)
from dpdist.sampling import Unconverged, sampler_of
from dpdist.survey.reference_file import ReferenceFile
from dpdist.survey.reference_file import open_reference as open_public
from dpdist.survey.released_reference import ReferenceRelease

PUBLIC = Key(bytes(32)).child("predicted errors")
"""The key of replicates. It is public, so that anyone can repeat them."""
TIMES = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""The budgets of the curve, as multiples of the job's ε."""
MOST_REPLICATES, LEAST_REPLICATES, FEW_CELLS = 4, 2, 100
"""Number of replicates at the job's ε: the first for few base cells, otherwise the second."""
DRAWS = 4
"""Number of draws from normal laws, if a mechanism predicts its errors itself."""
FALSE_ALARM = 0.05
"""Largest probability that any figure of a statistic is named although none has a predicted error above 1.

Because replicates are few, a named figure's root mean squared error must also be large for Laplace errors of standard
deviation 1. With the probability above, one of as many cells would exceed this limit. Normal errors exceed it less
often.
"""
FAR_CHANCE = 0.1
"""Probability of an error above FAR_NAMED from which a cell is named, if formulas predict it."""
SIMULATED = 200_000
"""Number of simulated cells that give this limit."""
BETTER = 0.75
"""Share of cells in which a release must be nearer to direct estimates than the reference alone."""
FAILURES = (Improper, NotReached, Unconverged, Spurious, DpdistError)


class Statistics(NamedTuple):
    """A statistic's predicted errors over a table's cells, margins included. Errors are in direct standard errors.

    - `cells` to `largest_relative`: as a verdict measures them (`verdict.Errors`).
    - `coverage`: the share of 90 % intervals that hold the population's figure.
    - `better`: the share of cells in which the release is nearer to the direct estimate than the reference alone.
    - `far`: names of cells whose predicted error is far above 1 (`named_above`), the largest first. Where formulas
      predict errors, these are cells with a chance above FAR_CHANCE of an error above FAR_NAMED.

    Unknown figures are NaN.
    """

    table: str
    statistic: str
    name: str
    outcome: str | None
    cells: int
    fixed: int
    median: float
    largest: float
    over_2: float
    over_4: float
    coverage: float
    given_n: float
    relative: float
    largest_relative: float
    reference_alone: float
    largest_alone: float
    better: float
    far: tuple[str, ...]

    @property
    def errors(self) -> Errors:
        return Errors(*(getattr(self, name) for name in Errors._fields))


@dataclass(frozen=True)
class ErrorPrediction:
    """Errors of every replicate in every published cell, by ε; none if `why` states a reason."""

    job: Job
    rows: pd.DataFrame
    why: str = ""

    @property
    def computed(self) -> bool:
        return not self.why

    @property
    def epsilons(self) -> list[float]:
        return sorted(self.rows["epsilon"].unique().tolist()) if self.computed else []

    def statistics(self, epsilon: float | None = None) -> list[Statistics]:
        """Predicted errors of every statistic, at the job's ε or another ε of the curve, in one order at every ε."""
        if not self.computed:
            return []
        return self._by_epsilon.get(float(self.job.budget.epsilon) if epsilon is None else epsilon, [])

    @cached_property
    def _by_epsilon(self) -> dict[float, list[Statistics]]:
        # Groups of arrays: a data frame for each of thousands takes longer than its figures.
        columns = {str(name): self.rows[name].to_numpy() for name in self.rows}
        group = self.rows.groupby(["epsilon", "table", "statistic"], sort=False).ngroup().to_numpy().astype(np.int64)
        by_epsilon: dict[float, list[Statistics]] = {epsilon: [] for epsilon in self.epsilons}
        for places in rows_of_groups(group, int(group.max(initial=-1)) + 1):
            by_epsilon[float(columns["epsilon"][places[0]])].append(
                _summed({name: of[places] for name, of in columns.items()})
            )
        return by_epsilon

    def better(self, epsilon: float) -> float:
        """The share of cells, over all statistics, whose release is nearer to direct estimates than at ε = 0."""
        rows = self.rows[(self.rows["epsilon"] == epsilon) & self.rows["error"].notna() & self.rows["alone"].notna()]
        return float((rows["error"] < rows["alone"]).mean()) if len(rows) else np.nan

    @property
    def least_worth(self) -> float | None:
        """The smallest ε of the curve from which on releases beat the reference alone in BETTER of the cells."""
        worth = list(takewhile(lambda epsilon: self.better(epsilon) >= BETTER, reversed(self.epsilons)))
        return worth[-1] if worth else None

    def described(self) -> list[dict[str, Any]]:
        """Entries for `plan --json`; null for unknown figures."""
        without = [
            {"table": table, "statistic": statistic.name, "outcome": statistic.about}
            | dict.fromkeys(FIGURES)
            | {"why": self.why or NOT_PREDICTED}
            for table, statistic in self.without
        ]
        return [
            *(
                {"table": row.table, "statistic": row.name, "outcome": row.outcome}
                | {name: number(getattr(row, name)) for name in FIGURES}
                | {"cells": row.cells, "far": list(row.far)}
                for row in self.statistics()
            ),
            *without,
        ]

    @property
    def without(self) -> list[tuple[str, Statistic]]:
        """Tables' statistics of which no error is predicted, each with its table's name."""
        predicted = {(row.table, row.statistic) for row in self.statistics()}
        asked_for = ((table.name, statistic) for table in self.job.tables for statistic in table.statistics)
        return [(table, statistic) for table, statistic in asked_for if (table, statistic.text) not in predicted]


NOT_PREDICTED = "the mechanism does not predict an error for this statistic"
FIGURES = (
    "median",
    "largest",
    "over_2",
    "over_4",
    "coverage",
    "reference_alone",
    "largest_alone",
    "better",
    "given_n",
    "relative",
    "largest_relative",
)


def number(value: float) -> float | None:
    """The figure with four digits for JSON; None if unknown."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _summed(rows: Mapping[str, Any]) -> Statistics:
    """One statistic at one ε, from columns, (row,); every replicate has the same cells, in one order."""
    replicates = len(np.unique(rows["replicate"]))
    columns = ("error", "given_n", "relative", "records", "alone")
    by_replicate = (rows[name].astype(float).reshape(replicates, -1) for name in columns)
    error, given_n, relative, records, alone = by_replicate
    errors = [Errors.of(*part) for part in zip(error, given_n, relative, records, strict=True)]
    middle, mean = partial(of_figures, np.median), partial(of_figures, np.mean)
    averaged = dict.fromkeys(("median", "over_2", "over_4", "given_n", "relative"), mean)
    averaged |= dict.fromkeys(("largest", "largest_relative"), middle)
    root = np.sqrt([mean(of_cell**2) for of_cell in error.T])
    limit, both = named_above(replicates, int(np.isfinite(root).sum())), ~np.isnan(error) & ~np.isnan(alone)
    if "chance" in rows:
        root, limit = rows["chance"].astype(float)[: len(root)], FAR_CHANCE
    far = [cell for cell in np.argsort(-root, kind="stable") if root[cell] > limit]
    pairs = list(zip(alone, records, strict=True))
    return Statistics(
        table=str(rows["table"][0]),
        statistic=str(rows["statistic"][0]),
        name=str(rows["name"][0]),
        outcome=None if pd.isna(rows["outcome"][0]) else str(rows["outcome"][0]),
        cells=max(part.cells for part in errors),
        fixed=max(part.fixed for part in errors),
        **{name: average(np.array([getattr(part, name) for part in errors])) for name, average in averaged.items()},
        coverage=mean(rows["held"].astype(float)),
        reference_alone=mean(np.array([middle(values) for values, _ in pairs])),
        largest_alone=middle(np.array([of_figures(np.max, values[size >= FAR_RECORDS]) for values, size in pairs])),
        better=float((error < alone)[both].mean()) if both.any() else np.nan,
        far=tuple(str(rows["cell"][cell]) for cell in far),
    )


@cache
def named_above(replicates: int, cells: int) -> float:
    """The root mean squared error over replicates, in direct standard errors, above which a figure is named."""
    noise = PUBLIC.generator("alarms").laplace(0.0, np.sqrt(0.5), (SIMULATED, replicates))
    level = max(FALSE_ALARM / max(cells, 1), 10.0 / SIMULATED)
    return max(FAR, float(np.quantile(np.sqrt((noise**2).mean(axis=1)), 1.0 - level)))


def predicted(
    plan: Plan, listener: Listener = silent, public: Path | None = None, times: tuple[Fraction, ...] = TIMES
) -> ErrorPrediction:
    """Predicts the errors of a plan's release at multiples of its ε, once for each job, public file and public sizes.

    `public` is a public file for a job without a reference. Raises `DataError` if it does not fit the job.
    """
    if why := unknown(plan, public):
        return ErrorPrediction(plan.job, pd.DataFrame(), why)
    reference = _public_file(plan, public, listener)
    crosstab = public_sizes(plan.job, plan.crosstab, reference)
    try:
        rows = load_or_make(
            identity(plan.job, crosstab, reference, times), lambda: _rows(plan.job, crosstab, reference, times, listener)
        )
    except FAILURES as failure:
        why = f"the mechanism cannot be run on public records: {str(failure).splitlines()[0]}"
        return ErrorPrediction(plan.job, pd.DataFrame(), why)
    return ErrorPrediction(plan.job, rows)


def predicted_before(plan: Plan) -> ErrorPrediction | None:
    """The prediction of a plan if it is stored, otherwise None; takes no time."""
    if unknown(plan, None):
        return None
    assert plan.reference is not None
    crosstab = public_sizes(plan.job, plan.crosstab, plan.reference)
    rows = known_before(identity(plan.job, crosstab, plan.reference, TIMES))
    return None if rows is None else ErrorPrediction(plan.job, rows)


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
        raise JobError(plan.job.dataset, [Problem("--public", fault, "a job without a reference", remedy)])
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
    if not job.sizes_secret or isinstance(reference, ReferenceRelease):
        return crosstab
    return replace(crosstab, count=reference.counts(crosstab), sampled=reference.census.crosstab.sampled)


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


def _rows(
    job: Job,
    crosstab: Crosstab,
    reference: ReferenceFile | ReferenceRelease,
    times: tuple[Fraction, ...],
    listener: Listener,
) -> pd.DataFrame:
    first = builder_of(job).build(job, crosstab, crosstab.rows_of(0))
    budgets = [with_epsilon(job, job.budget.epsilon * factor) for factor in times]
    if isinstance(reference, ReferenceRelease) or by_formulas(first, job):
        return _of_formulas(job, crosstab, reference, budgets, listener)
    return _of_replicates(job, crosstab, reference, budgets, listener)


def _public_records(
    job: Job, crosstab: Crosstab, reference: ReferenceFile | ReferenceRelease
) -> tuple[Records, AbsentRecords | None, tuple[PeriodTotals, ...]]:
    """Public records in rows of the crosstab, those in none, and totals of earlier periods."""
    if isinstance(reference, ReferenceRelease):
        assert reference.present is not None
        return reference.present, reference.absent, reference.carried.history.get(POOLED, ())
    population = Population.of(job, reference, crosstab)
    return population.as_it_is(), population.absent, ()


def _of_formulas(
    job: Job, crosstab: Crosstab, reference: ReferenceFile | ReferenceRelease, budgets: list[Job], listener: Listener
) -> pd.DataFrame:
    """Errors of normal laws with the mechanism's predicted standard deviations, over drawn direct standard errors.

    `chance` is the probability that an error is above FAR_NAMED.
    """
    frames = []
    with single_threaded(), stage(listener, "predict errors", len(budgets)) as tick, TemporaryDirectory() as folder:
        records, absent, history = _public_records(job, crosstab, reference)
        cells = {(table.name, statistic): by for table, statistic, by in published_cells(job, crosstab)}
        first = next((tried for tried in budgets if tried.budget.epsilon == job.budget.epsilon), budgets[0])
        learned, rows = None, None
        for tried in sorted(budgets, key=lambda item: item is not first):
            model = builder_of(tried).build(tried, crosstab, crosstab.rows_of(0))
            if learned is not None and supports(model, "with_donors"):
                of_tables = model.predicted_errors(model.relearned(learned))
            else:
                if supports(model, "with_donors"):
                    model = model.with_history(history)
                sampler, current = sampler_of(tried, Path(folder)), int(crosstab.count.sum())
                learned = taught(tried, model, sampler, POOLED, records, current, PUBLIC, absent)
                of_tables = model.predicted_errors(learned)
            if rows is None:
                rows = _named_rows(
                    [(item, cells[item.table, item.statistic]) for item in of_tables], crosstab.count.astype(float)
                )
            rows["chance"] = np.concatenate([_chance(item) for item in of_tables])
            for k in range(DRAWS):
                rng, draws = PUBLIC.child(str(k)).generator("errors"), list[Floats]()
                for item in of_tables:
                    both = np.abs(rng.standard_normal((2, len(item.error)))) * [item.error, item.alone]
                    draws.append(
                        both / _units(item.freedom, PUBLIC.child(f"{k} {item.table}").generator(item.statistic.text))
                    )
                error, alone = np.concatenate(draws, axis=1)
                frames.append(rows.assign(error=error, alone=alone, replicate=k, epsilon=float(tried.budget.epsilon)))
            tick(1)
    return pd.concat(frames, ignore_index=True)


def _units(freedom: Floats, rng: np.random.Generator) -> Floats:
    """Draws of direct standard errors over the expected ones, (cell,)."""
    varying, units = np.isfinite(freedom), np.ones(len(freedom))
    units[varying] = np.sqrt(rng.chisquare(freedom[varying]) / freedom[varying])
    return units


def _chance(errors_of: ErrorsOfCells) -> Floats:
    """Probabilities of an error above FAR_NAMED, (cell,), by Student's law; 0 if an error is unknown."""
    error = np.where(errors_of.error > 1e-9, errors_of.error, 1e-9)
    return np.asarray(2.0 * scipy.special.stdtr(errors_of.freedom, -FAR_NAMED / error))


def _named_rows(errors: Sequence[tuple[ErrorsOfCells, Cells]], count: Floats) -> pd.DataFrame:
    """The rows of all tables' cells, with their numbers of records and without errors."""
    nothing = np.nan, np.nan, np.nan, np.nan, np.nan
    frames = [rows_of(predicted.table, predicted.statistic, by, by.membership @ count, nothing) for predicted, by in errors]
    return pd.concat(frames, ignore_index=True)


def _of_replicates(
    job: Job, crosstab: Crosstab, reference: ReferenceFile, budgets: list[Job], listener: Listener
) -> pd.DataFrame:
    """Errors of releases of replicates: several at the job's ε, and the first one at all other ε, under the same noise."""
    cells = len(crosstab.group(job.cell_columns)[1])
    number = MOST_REPLICATES if cells <= FEW_CELLS else LEAST_REPLICATES
    runs = [(k, tried) for k in range(number) for tried in budgets if k == 0 or tried.budget.epsilon == job.budget.epsilon]
    frames, by_number = [], dict[int, PublicReplicate]()
    with single_threaded(), stage(listener, "predict errors", len(runs)) as tick:
        population = Population.of(job, reference, crosstab)
        truths = truths_of(job, crosstab, population)
        for k, tried in runs:
            key = PUBLIC.child(str(k))
            if k not in by_number:
                by_number = {k: replicate(job, crosstab, population, truths, key.generator("files"))}
            frames.append(
                errors(tried, crosstab, by_number[k], key).assign(replicate=k, epsilon=float(tried.budget.epsilon))
            )
            tick(1)
    return pd.concat(frames, ignore_index=True)


def errors(job: Job, crosstab: Crosstab, files: PublicReplicate, key: Key) -> pd.DataFrame:
    """The errors of one release of a replicate's current file, in every published cell."""
    tables = tables_of(release_of(job, crosstab, files.current, files.reference, key))
    return pd.concat([figures.errors_of(tables[figures.table.name]) for figures in files.figures], ignore_index=True)
