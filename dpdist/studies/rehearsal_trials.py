"""Trials of a rehearsal: the job under every mechanism that its columns allow, on thirds, ranked by errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd

from dpdist.core.errors import JobError
from dpdist.core.keys import Key
from dpdist.core.progress import silent
from dpdist.core.this_process import single_threaded
from dpdist.job import SPECS, Family, Job, budget_text
from dpdist.job.data import with_merged
from dpdist.job.families import COUNT, FAMILIES
from dpdist.job.loading import differences, job_of
from dpdist.job.yaml_lines import dotted, flow
from dpdist.mechanisms.registry import mechanism_of
from dpdist.planning.making import make_plan
from dpdist.privacy.guarantees import NoGuarantee
from dpdist.quality.predicted.prediction import errors
from dpdist.quality.predicted.replicates import default_figures, replicate_of_files
from dpdist.quality.predicted.scores import Statistics, summaries
from dpdist.quality.verdict import NOMINAL
from dpdist.sampling import prepare
from dpdist.studies.rehearsal_thirds import FileThirds
from dpdist.survey.source import open_file

# Each job has the given job's ε. Settings that a mechanism refuses are changed by as few of `CHANGES` as possible, and
# listed.
OF_THE_RUN = ("ledger", "runtime", "record", "approval", "publish", "accept", "correction", "microdata")
"""Keys that belong to a run on the confidential file. The recommended job keeps these keys; a trial leaves them out."""
NOT_TRIED = ("calibration", "compare")
"""Keys that only the given job's mechanism uses, and no recommended job has."""
MOST_CHANGES = 5
LONGEST_SHOWN = 80
"""Longest changed value, in characters, that is displayed."""
CHAINS = "it runs Markov chains, which takes long: --chains includes it"
Terms: TypeAlias = dict[str, Any]
"""A job as nested keys and values, as in its file."""


class Candidate(NamedTuple):
    """A job to try on a third of a public file, without input.

    `recommended` is the job to write if this candidate is chosen; `changed` lists keys that differ from the given job.
    """

    label: str
    terms: Terms
    guarantee: str
    strict: bool
    recommended: Terms
    changed: tuple[str, ...]

    @property
    def on_reference(self) -> bool:
        reference = self.recommended.get("reference")
        return reference is not None and "histogram" not in reference


class RefusedCandidate(NamedTuple):
    label: str
    reason: str


def candidates(
    job: Job, reference: str, ground: Terms, chains: bool = False
) -> tuple[list[Candidate], list[RefusedCandidate]]:
    """Every registered mechanism that the job's columns allow, and the refused ones.

    `reference` is the path of the reference in a trial, `ground` the reference of a recommended job. A mechanism with
    Markov chains is tried if `chains` is true, or if it is the job's own.
    """
    runs, refused = list[Candidate](), list[RefusedCandidate]()
    for label, settings in _wanted(job, ground):
        changes = _fewest_changes(job, settings)
        if isinstance(changes, str):
            refused.append(RefusedCandidate(label, changes))
            continue
        terms, loaded = changes
        promise = mechanism_of(loaded).promise(loaded)
        of_the_job = (loaded.mechanism.name, loaded.family) == (job.mechanism.name, job.family)
        if isinstance(promise.total, NoGuarantee):
            refused.append(RefusedCandidate(label, "it promises nothing"))
        elif loaded.sampler.name == "stan" and not chains and not of_the_job:
            refused.append(RefusedCandidate(label, CHAINS))
        else:
            run = _of_a_third(terms, loaded, reference)
            runs.append(Candidate(label, run, promise.total.name, loaded.strict, terms, tuple(_changed(job, terms))))
    return runs, refused


def _terms_of(job: Job, without: set[str]) -> dict[str, Any]:
    """The keys of a job as a job file has them."""
    return with_merged(job.model_dump(mode="json", exclude_unset=True, exclude=without))


def _wanted(job: Job, ground: Terms) -> Iterator[tuple[str, Terms]]:
    base = _terms_of(job, {"extends", "input", "reference", *NOT_TRIED})
    for name, spec in SPECS.items():
        mechanisms = [("", base["mechanism"])]
        if name != job.mechanism.name:
            mechanisms = [(variant, {"name": name} | constants) for variant, constants in spec.rehearsed(job)]
        families: list[Family | None] = [None] if spec.statistics is not None else _families(job)
        for (variant, mechanism), family in ((pair, choice) for pair in mechanisms for choice in families):
            details = ", ".join(filter(None, [variant, family]))
            label = f"{name} ({details})" if details else name
            terms = base | {"mechanism": mechanism, "model": None if family is None else _model(job, family)}
            yield label, terms | {"reference": ground if spec.uses("reference") else None}
            if spec.uses("reference") and not spec.needs_reference:
                yield f"{label}, no reference", terms | {"reference": None}
            if (part := spec.histogram_share) is not None:
                share = budget_text(part * job.budget.epsilon)
                yield f"{label}, histograms", terms | {"reference": {"histogram": {"epsilon": share}}}


def _families(job: Job) -> list[Family | None]:
    weighted, coded = job.survey.weight is not None, job.outcome_column.codes is not None
    allowed = [
        name for name in get_args(Family) if not FAMILIES[name].program and FAMILIES[name].weight in (None, weighted)
    ]
    return [name for name in allowed if not (coded and FAMILIES[name].support is COUNT)]


def _model(job: Job, family: Family) -> Terms:
    """The job's own model if it has this family, else one with the tables' columns as predictors."""
    if job.model is not None and job.model.family == family:
        return job.model.model_dump(mode="json", exclude_unset=True)
    return {"family": family} | _predictors(job, family, job.strata)


def _predictors(job: Job, family: Family, strata: tuple[str, ...]) -> Terms:
    return {"predictors": [name for name in job.cell_columns if name not in strata]} if FAMILIES[family].predictors else {}


Change: TypeAlias = Callable[[Job, Terms], Terms]


def _one_fit(job: Job, terms: Terms) -> Terms:
    return _of_model(lambda model: model | _predictors(job, model["family"], ()))(job, terms | {"strata": []})


def _fit_by_cell(job: Job, terms: Terms) -> Terms:
    strata = {"strata": list(job.cell_columns)}
    return _of_model(lambda model: {"family": model["family"]})(job, terms | strata)


def _of_model(changed: Callable[[Terms], Terms]) -> Change:
    return lambda job, terms: terms | {"model": terms["model"] and changed(terms["model"])}


def _without(*keys: str) -> Change:
    return lambda job, terms: {key: value for key, value in terms.items() if key not in keys}


def _clipped(job: Job, terms: Terms) -> Terms:
    columns = {
        name: column | {"outside": "clip"} if name in job.components and column.get("bounds") else column
        for name, column in terms["columns"].items()
    }
    return terms | {"columns": columns}


def _weight_as_it_came(job: Job, terms: Terms) -> Terms:
    columns = {name: dict(column) for name, column in terms["columns"].items()}
    if (weight := job.survey.weight) in columns:
        columns[str(weight)].pop("outside", None)
    return terms | {"columns": columns}


_plain_model = _of_model(lambda model: {key: value for key, value in model.items() if key in ("family", "predictors")})
_proper_prior = _of_model(lambda model: model | {"prior": {"name": "proper"}})
CHANGES: tuple[Change, ...] = (
    *(_without("sampler", "diagnostics"), _without("record"), _without("fit"), _without("synthetic_sets")),
    *(_one_fit, _fit_by_cell, _without("microdata"), _clipped, _weight_as_it_came, _plain_model, _proper_prior),
)
"""Changes to a job that may make a mechanism accept it, in the order of trial."""


def _fewest_changes(job: Job, terms: Terms) -> tuple[Terms, Job] | str:
    """The job with the fewest changes that make it valid, or the reason why no changes do."""
    effective = [change for change in CHANGES if change(job, terms) != terms]
    causes = list[list[str]]()
    for number in range(min(len(effective), MOST_CHANGES) + 1):
        for subset in combinations(effective, number):
            tried = terms
            for change in subset:
                tried = change(job, tried)
            tried = {key: value for key, value in tried.items() if value is not None and value != []}
            try:
                return tried, job_of(tried)
            except JobError as error:
                causes.append([f"{problem.where}: {problem.fault} ({problem.remedy})" for problem in error.problems])
    return "; ".join(min(causes, key=len)[:2])


def _of_a_third(terms: Terms, job: Job, reference: str) -> Terms:
    """The job of a trial: without keys of a run, with the ε that gates leave, and another third as reference."""
    run = {key: value for key, value in terms.items() if key not in OF_THE_RUN}
    if job.gates:
        run["budget"] = run["budget"] | {"epsilon": budget_text(job.budget.epsilon - job.epsilon.gates)}
    if job.has_reference:
        run["reference"] = {"path": reference, "provenance": "a third of a public file"}
    return run


def _changed(job: Job, terms: Terms) -> Iterator[str]:
    before = _terms_of(job, {"extends", "input"})
    for where in differences(before, dict(terms), ()):
        yield f"{dotted(where)}: {_shown(before, where) or 'not there'} → {_shown(terms, where) or 'left out'}"


def _shown(terms: Terms, where: tuple[str | int, ...]) -> str:
    value: Any = terms
    for key in where:
        if not isinstance(value, Mapping) or key not in value:
            return ""
        value = value[key]
    text = flow(value)
    return text if len(text) <= LONGEST_SHOWN else "…"


GOOD_COVERAGE, GOOD_ERROR, GOOD_LARGEST, GOOD_BIAS = 0.85, 1.0, 4.0, 0.5
DRAWS = 4
"""Number of releases, each under new noise, of a candidate that may turn out best."""
OUT_OF_REACH = 2.0
"""Factor on the best score beyond which a candidate is not drawn again."""
NEAR = 0.1
"""A score counts as equal to the best if it is worse by at most this share."""
RULE = (
    "Every statistic of a table has four figures over draws of the noise. Three are in direct standard errors: the median "
    "error, the largest error, and the mean error with its sign (bias). The largest error is a median over draws, and the "
    "others are means. The fourth is the share of true figures that 90 % intervals miss, less what direct intervals miss "
    f"beyond {1 - NOMINAL:.2g}. The truth is another third of the file, with its own error. Each is divided by its limit: "
    f"{GOOD_ERROR:g}, {GOOD_LARGEST:g}, {GOOD_BIAS:g} and {1 - GOOD_COVERAGE:.2g}. The score of a mechanism is the "
    "largest of these. It is good enough if the score is at most 1, on both thirds. If its score on the second third is "
    "above 1, the next mechanism is tried. Of the mechanisms that are good enough, strict ones come first, and among them "
    f"the one with the smallest score. Scores count as equal if they differ by less than {100 * NEAR:.0f} %, or by less "
    "than two standard errors over draws. Among mechanisms whose scores equal the best, one with a public reference comes "
    "first, then the job with the fewest changes. An unpublished figure counts as infinitely far off, and as missed by "
    "its interval."
)
COLUMNS = {
    **dict.fromkeys(("mechanism", "guarantee", "table", "statistic", "cell")),
    "error_in_direct_se": "error",
    "covered": "held",
    "draw": "replicate",
}
"""Columns of rehearsal.csv, with the columns of errors that have another name there."""


@dataclass(frozen=True)
class Trial:
    """A candidate's releases of a third, compared with direct estimates and another third."""

    candidate: Candidate
    cells: pd.DataFrame
    """Errors of every draw of the noise: `replicates.COLUMNS`, `mechanism`, `guarantee`, and `replicate`, the draw."""
    suppressed: int
    seconds: float

    @cached_property
    def by_statistic(self) -> pd.DataFrame:
        """Figures of every statistic over draws (`scores.Statistics`), and its `score`."""
        return _scored(self.cells)

    @property
    def draws(self) -> int:
        return int(self.cells["replicate"].nunique())

    @property
    def error(self) -> float:
        """The largest median error of any statistic; infinite if there is none."""
        worst = float(self.by_statistic["median"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def coverage(self) -> float:
        """The smallest coverage of any statistic; NaN if none is judged."""
        return float(self.by_statistic["coverage"].min())

    @property
    def score(self) -> float:
        """The figure that `RULE` defines; infinite where nothing can be judged."""
        worst = float(self.by_statistic["score"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def score_error(self) -> float:
        """Standard error over draws; infinite for a single one."""
        by_draw = [_scored(rows)["score"].max() for _, rows in self.cells.groupby("replicate")]
        return float(np.std(by_draw, ddof=1) / np.sqrt(len(by_draw))) if len(by_draw) > 1 else np.inf

    @property
    def good(self) -> bool:
        return self.score <= 1.0


def _scored(cells: pd.DataFrame) -> pd.DataFrame:
    """Figures by statistic, each with the largest of four over their limits: its score.

    The excess by which direct intervals miss is subtracted, because chance or irreparable cells cause it.
    """
    rows = pd.DataFrame(summaries(cells, least=0), columns=list(Statistics._fields))
    beyond = (NOMINAL - rows["direct"]).clip(lower=0.0)
    missed = (1.0 - rows["coverage"] - beyond) / (1.0 - GOOD_COVERAGE)
    parts = [rows["median"] / GOOD_ERROR, rows["largest"] / GOOD_LARGEST, rows["bias"].abs() / GOOD_BIAS, missed]
    return rows.assign(score=pd.concat(parts, axis=1).max(axis=1))


def tied(trial: Trial, best: Trial) -> bool:
    """True if the score ties with the best one by `RULE`."""
    behind = trial.score - best.score
    if not np.isfinite(behind):
        return trial is best
    noise = np.hypot(trial.score_error, best.score_error)
    return bool(behind <= NEAR * best.score or (np.isfinite(noise) and behind <= 2.0 * noise))


def with_repetitions(first: Trial, again: Sequence[Trial]) -> Trial:
    """One trial with the draws of several."""
    cells, number = [], 0
    for part in (first, *again):
        cells.append(part.cells.assign(replicate=part.cells["replicate"] + number))
        number += part.draws
    return Trial(first.candidate, pd.concat(cells, ignore_index=True), first.suppressed, first.seconds)


def trial(candidate: Candidate, parts: FileThirds, key: Key) -> Trial:
    """One release of the current part, in memory, with noise from the key. Raises `DpdistError`."""
    quiet = {"record": {"log_lik": "never"}, "runtime": {"executor": "serial"}, "input": {"path": str(parts.current)}}
    if "path" in candidate.terms.get("reference", {}):
        quiet["reference"] = candidate.terms["reference"] | {"path": str(parts.earlier)}
    plan = make_plan(job_of({**candidate.terms, **quiet}), None, silent)
    with single_threaded():
        files = replicate_of_files(plan, open_file(parts.truth, plan.job.input))
        prepare(plan.job, plan.model, silent)
        began = time.perf_counter()
        rows, tables = errors(plan.job, plan.crosstab, files, key)
        took = time.perf_counter() - began
    first = (default_figures(tables[figures.direct.table.name], figures.direct.statistic) for figures in files.figures)
    suppressed = sum(int(published["suppressed"].sum()) for published in first)
    return Trial(candidate, of_candidate(candidate, rows), suppressed, took)


def of_candidate(candidate: Candidate, rows: pd.DataFrame) -> pd.DataFrame:
    """The errors of one draw, as `Trial.cells`. A missing figure is infinitely far off, and its interval misses."""
    error, missed = (
        rows["error"].where(~rows["lost"].astype(bool), np.inf),
        rows["held"].isna() & rows["direct_held"].notna(),
    )
    rows = rows.assign(error=error, held=rows["held"].mask(missed, 0.0))
    return rows.assign(mechanism=candidate.label, guarantee=candidate.guarantee, replicate=0)


Confirmed = dict[str, Trial | None]
"""Trials on the other third, by label; None for a candidate that could not be run."""


def confirmed(trials: Sequence[Trial], again: Callable[[Candidate], Trial | None]) -> tuple[list[Trial], bool, Confirmed]:
    """Trials in the order of `RULE`, whether the first is good enough, and trials on the other third.

    `again` runs a candidate on that third: the first, then the next, until one is good enough.
    """
    other: Confirmed = {}

    def good(tried: Trial) -> bool:
        second = other.get(tried.candidate.label, tried)
        return tried.good and second is not None and second.good

    while True:
        ordered = in_order(trials, good)
        first = ordered[0]
        if first.candidate.label in other:
            return ordered, good(first), other
        other[first.candidate.label] = again(first.candidate)


def in_order(trials: Sequence[Trial], good: Callable[[Trial], bool]) -> list[Trial]:
    """Orders trials by `RULE`: good ones, then strict ones, then by score.

    Ties with the first are ordered by having a reference, then by number of changes, then by score.
    """

    def group(tried: Trial) -> tuple[bool, bool]:
        return not good(tried), not tried.candidate.strict

    ordered = sorted(trials, key=lambda tried: (*group(tried), tried.score))
    level = [tried for tried in ordered if group(tried) == group(ordered[0]) and tied(tried, ordered[0])]
    level.sort(key=lambda tried: (not tried.candidate.on_reference, len(tried.candidate.changed), tried.score))
    return [*level, *(tried for tried in ordered if all(tried is not first_trial for first_trial in level))]


class Rehearsal(NamedTuple):
    """A rehearsal's job, public file and results: trials in the order of `RULE`, the first recommended.

    `good` is True if it is good enough on both thirds. `caution` is the reason why a run on a similar file would refuse,
    and `unjudged` what the split cannot judge.
    """

    job: Job
    source: str
    records: int
    trials: list[Trial]
    good: bool
    confirmations: Confirmed
    refused: list[RefusedCandidate]
    caution: str = ""
    unjudged: str = ""

    @property
    def verdict(self) -> str:
        return "Recommended" if self.good else "None is good enough; the best is"

    @property
    def best(self) -> Trial:
        """The recommended mechanism, or the least bad one."""
        return self.trials[0]

    @property
    def confirmed(self) -> Trial | None:
        """The best mechanism's trial on the other third; None if it could not be run."""
        return self.confirmations[self.best.candidate.label]


FEW = 10
"""Below this number of records of a cell in one third, its direct standard error is itself uncertain."""
NAMED = 8
"""Largest number of cells that are named."""
COARSEN = (
    "Publish coarser cells: merge levels in `columns`, leave a column out of the table, or make two tables with fewer "
    "columns. The whole file has three times as many records as a third"
)
LARGER = (
    "These cells have enough records: raise the budget, state narrower public bounds, or put skewed cells into strata of "
    "their own"
)
NOISY = "Most cells are too noisy: raise the budget (`dpdist plan --for-error 0.5` computes it), or publish fewer figures"
SHIFTED = "Figures are biased, by clipping or by distributions from other cells. Raise the budget, or merge small cells"
MISSED = (
    "Intervals miss the truth more often than direct ones do: quote them with care, merge small cells, or use another "
    "mechanism"
)


def advice(rehearsal: Rehearsal) -> list[str]:
    """Sentences on figures beyond their limits, and remedies; none if a mechanism is good enough."""
    if rehearsal.good:
        return []
    thirds = {"the first third": rehearsal.best, "the other third": rehearsal.confirmed}
    return list(
        dict.fromkeys(line for name, tried in thirds.items() if tried is not None for line in _of_trial(name, tried))
    )


def _of_trial(third: str, trial: Trial) -> Iterator[str]:
    rows = trial.by_statistic
    far = rows[rows["largest"] > GOOD_LARGEST]
    for row in far.to_dict("records"):
        cells = _far_cells(trial, row["table"], row["statistic"])
        small = cells[cells["records"] < FEW]
        yield (
            f"{third}, {row['table']}, {row['statistic']}: {len(cells)} of {row['cells']} cells are more than "
            f"{GOOD_LARGEST:g} direct standard errors off, {len(small)} of them with fewer than {FEW} records in the "
            f"third: {_listed(cells)}"
        )
        if len(small):
            yield COARSEN
        if len(small) < len(cells):
            yield LARGER
    limits = {"median": (GOOD_ERROR, NOISY), "bias": (GOOD_BIAS, SHIFTED)}
    for figure, (limit, remedy) in limits.items():
        for row in rows[rows[figure].abs() > limit].to_dict("records"):
            yield f"{third}, {row['table']}, {row['statistic']}: {figure} error {row[figure]:.2f}, limit {limit:g}"
            yield remedy
    beyond = (NOMINAL - rows["direct"]).clip(lower=0.0)
    for row in rows[rows["coverage"] + beyond < GOOD_COVERAGE].to_dict("records"):
        yield (
            f"{third}, {row['table']}, {row['statistic']}: intervals cover {row['coverage']:.2f} of the truth, direct ones "
            f"{row['direct']:.2f}; the limit is {GOOD_COVERAGE - max(NOMINAL - row['direct'], 0.0):.2f}"
        )
        yield MISSED


def _far_cells(trial: Trial, table: str, statistic: str) -> pd.DataFrame:
    """Cells beyond the limit in any draw, largest errors first."""
    rows = trial.cells[(trial.cells["table"] == table) & (trial.cells["statistic"] == statistic)]
    cells = rows.groupby("cell", sort=False).agg(error=("error", "max"), records=("records", "first"))
    return cells[cells["error"] > GOOD_LARGEST].sort_values("error", ascending=False)


def _listed(cells: pd.DataFrame) -> str:
    lines = [f"{name} ({int(row['records'])} records)" for name, row in cells.head(NAMED).iterrows()]
    return ", ".join(lines) + (f", and {len(cells) - NAMED} more" if len(cells) > NAMED else "")
