"""For `studies.rehearsal`: the given job under every registered mechanism that its columns allow.

Each job has the given job's ε. Settings that a mechanism refuses are changed by as few of `CHANGES` as possible, and
listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias, get_args

from dpdist.core.errors import JobError
from dpdist.job import Family, Job, budget_text
from dpdist.job.families import COUNT, FAMILIES
from dpdist.job.loading import differences, job_of
from dpdist.job.specs import SPECS
from dpdist.job.yaml_lines import dotted, flow
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import NoGuarantee

OF_THE_RUN = ("ledger", "runtime", "record", "approval", "publish", "accept", "correction")
"""Keys that belong to a run on the confidential file. The recommended job keeps these keys; a trial leaves them out."""
NOT_TRIED = ("calibration", "compare")
"""Keys that only the given job's mechanism uses, and no recommended job has."""
MOST_CHANGES = 5
LONGEST_SHOWN = 80
"""Longest changed value, in characters, that is displayed."""
CHAINS = "it draws by Markov chains, which takes long: --chains tries it"
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
    for label, wanted in _wanted(job, ground):
        chosen = _fewest_changes(job, wanted)
        if isinstance(chosen, str):
            refused.append(RefusedCandidate(label, chosen))
            continue
        terms, loaded = chosen
        promise = mechanism_of(loaded).promise(loaded)
        if isinstance(promise.total, NoGuarantee):
            refused.append(RefusedCandidate(label, "it promises nothing"))
        elif loaded.sampler.name == "stan" and not chains and not _of_the_job(job, loaded):
            refused.append(RefusedCandidate(label, CHAINS))
        else:
            run = _of_a_third(terms, loaded, reference)
            runs.append(Candidate(label, run, promise.total.name, loaded.strict, terms, tuple(_changed(job, terms))))
    return runs, refused


def _of_the_job(job: Job, other: Job) -> bool:
    return (other.mechanism.name, other.family) == (job.mechanism.name, job.family)


def _wanted(job: Job, ground: Terms) -> Iterator[tuple[str, Terms]]:
    base = job.model_dump(mode="json", exclude_unset=True, exclude={"extends", "input", "reference", *NOT_TRIED})
    for name, spec in SPECS.items():
        mechanisms = [("", base["mechanism"])]
        if name != job.mechanism.name:
            mechanisms = [(variant, {"name": name} | constants) for variant, constants in spec.rehearsed(job)]
        families: list[Family | None] = [None] if spec.statistics is not None else _families(job)
        for (variant, mechanism), family in ((pair, choice) for pair in mechanisms for choice in families):
            shown = ", ".join(filter(None, [variant, family]))
            label = f"{name} ({shown})" if shown else name
            terms = base | {"mechanism": mechanism, "model": None if family is None else _model(job, family)}
            yield label, terms | {"reference": ground if spec.takes_reference else None}
            if spec.takes_reference and not spec.needs_reference:
                yield f"{label}, no reference", terms | {"reference": None}
            if spec.own_histograms:
                share = budget_text(spec.histogram_share * job.budget.epsilon)
                yield f"{label}, histograms", terms | {"reference": {"histogram": {"epsilon": share}}}


def _families(job: Job) -> list[Family | None]:
    weighted, coded = job.survey.weight is not None, job.outcome_column.codes is not None
    allowed = [
        name for name in get_args(Family) if not FAMILIES[name].program and FAMILIES[name].weight in (None, weighted)
    ]
    return [name for name in allowed if not (coded and FAMILIES[name].support is COUNT)]


def _model(job: Job, family: Family) -> Terms:
    """The job's own model if it has this family, else one with the tables' columns as predictors."""
    if job.model is not None and job.model.is_of(family):
        return job.model.model_dump(mode="json", exclude_unset=True)
    return {"family": family} | _predictors(job, family, job.strata)


def _predictors(job: Job, family: Family, strata: tuple[str, ...]) -> Terms:
    return {"predictors": [name for name in job.cell_columns if name not in strata]} if FAMILIES[family].predictors else {}


def _one_fit(job: Job, terms: Terms) -> Terms:
    model = terms["model"]
    return terms | {"strata": [], "model": model and model | _predictors(job, model["family"], ())}


def _fit_by_cell(job: Job, terms: Terms) -> Terms:
    model = terms["model"]
    return terms | {"strata": list(job.cell_columns), "model": model and {"family": model["family"]}}


def _without(*keys: str) -> Callable[[Job, Terms], Terms]:
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


def _proper_prior(job: Job, terms: Terms) -> Terms:
    model = terms["model"]
    return terms | {"model": model and model | {"prior": {"name": "proper"}}}


def _plain_model(job: Job, terms: Terms) -> Terms:
    model = terms["model"]
    return terms | {"model": model and {key: value for key, value in model.items() if key in ("family", "predictors")}}


CHANGES: tuple[Callable[[Job, Terms], Terms], ...] = (
    *(_without("sampler", "diagnostics"), _without("record"), _without("fit"), _without("synthetic_sets")),
    *(_one_fit, _fit_by_cell, _without("microdata"), _clipped, _weight_as_it_came, _plain_model, _proper_prior),
)
"""Changes to a job that may make a mechanism accept it, in the order of trial."""


def _fewest_changes(job: Job, terms: Terms) -> tuple[Terms, Job] | str:
    """The job with the fewest changes that make it valid, or the reason why no changes do."""
    effective = [change for change in CHANGES if change(job, terms) != terms]
    causes = list[list[str]]()
    for number in range(min(len(effective), MOST_CHANGES) + 1):
        for chosen in combinations(effective, number):
            tried = terms
            for change in chosen:
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
    if job.accept is not None:
        run["budget"] = run["budget"] | {"epsilon": budget_text(job.budget.epsilon - job.accept.epsilon)}
    if job.has_reference:
        run["reference"] = {"path": reference, "provenance": "a third of a public file"}
    return run


def _changed(job: Job, terms: Terms) -> Iterator[str]:
    before = job.model_dump(mode="json", exclude_unset=True, exclude={"extends", "input"})
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
