"""The jobs of a rehearsal: the job under every registered mechanism that its columns allow, at its own ε."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from dpdist.core.errors import JobError
from dpdist.job import SAMPLERS, Family, Job, budget_text
from dpdist.job.families import FAMILIES
from dpdist.job.loading import job_of
from dpdist.job.mechanisms import SPECS
from dpdist.job.reference import HISTOGRAM_SHARE
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import NoGuarantee

OF_THE_RUN = ("compare", "ledger", "runtime", "record", "approval", "accept", "correction")
"""Keys that belong to a run of the confidential file: the recommended job has them again."""
NOT_ASKED = ("extends", "input", "reference", "calibration", "sampler", *OF_THE_RUN)
"""Keys that a rehearsal sets itself or leaves out."""


class Candidate(NamedTuple):
    """A job in a file's terms, without input, to be run on one half of a public file."""

    label: str
    terms: Mapping[str, Any]
    guarantee: str
    strict: bool


class Refused(NamedTuple):
    """A mechanism that is not rehearsed, and why."""

    label: str
    reason: str


def candidates(job: Job, reference: str) -> tuple[list[Candidate], list[Refused]]:
    """Every mechanism of the registry as far as the job's columns allow it; `reference` is the path of a public file."""
    runs, refused = list[Candidate](), list[Refused]()
    for label, variants in _wanted(job, reference):
        causes = list[list[str]]()
        for terms in variants:
            try:
                made = job_of(terms)
            except JobError as error:
                causes.append([f"{each.where}: {each.found}" for each in error.problems])
                continue
            promise = mechanism_of(made).promise(made)
            if isinstance(promise.total, NoGuarantee):
                refused.append(Refused(label, "it promises nothing"))
            else:
                runs.append(Candidate(label, terms, promise.total.name, made.strict))
            break
        else:
            refused.append(Refused(label, "; ".join(min(causes, key=len)[:2])))
    return runs, refused


def _wanted(job: Job, reference: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Label and variants, the nearest to the job first: columns as they are, then plain."""
    base = job.model_dump(mode="json", exclude_unset=True, exclude=set(NOT_ASKED))
    share = budget_text(HISTOGRAM_SHARE * job.budget.epsilon)
    given: dict[str, Any] = {"path": reference, "provenance": "a half of a public file"}
    for name, spec in SPECS.items():
        mechanism = base["mechanism"] if name == job.mechanism.name else {"name": name}
        if name != job.mechanism.name and "sensitivity" in spec.model_fields:  # the file's own promises nothing
            mechanism |= {"sensitivity": "public"}
        for family in [None] if spec.statistics is not None else _families(job):
            terms = base | {"mechanism": mechanism, "model": None if family is None else _model(job, family)}
            label = name if family is None else f"{name} ({family})"
            grounds = [given] if spec.takes_reference else [None]
            for ground in [*grounds, *([{"histogram": {"epsilon": share}}] if spec.needs_reference else [])]:
                shown = f"{label}, histograms" if ground is not None and "histogram" in ground else label
                yield shown, _variants(job, terms | {"reference": ground}, family)


def _families(job: Job) -> list[Family]:
    """Families that need no compiler and model a weight as the job has one; users' programs are their own affair."""
    weighted = job.survey.weight is not None
    return [
        name
        for name in get_args(Family)
        if not FAMILIES[name].program and SAMPLERS[name][0] != "stan" and FAMILIES[name].weight in (None, weighted)
    ]


def _model(job: Job, family: Family) -> dict[str, Any]:
    """The job's own model, or one of the family by the tables' columns."""
    if job.model is not None and job.model.family == family:
        return job.model.model_dump(mode="json", exclude_unset=True)
    predictors = [name for name in job.cell_columns if name not in job.strata] if FAMILIES[family].predictors else []
    return {"family": family, "predictors": predictors}


def _variants(job: Job, terms: dict[str, Any], family: Family | None) -> list[dict[str, Any]]:
    """As it is; without what other mechanisms alone have; and with one fit of everything."""
    columns = {name: dict(each) for name, each in terms["columns"].items()}
    if (weight := job.survey.weight) in columns:
        columns[str(weight)].pop("outside", None)
    plain = {key: each for key, each in terms.items() if key != "microdata"} | {"columns": columns}
    single = plain | {"strata": [], "synthetic_sets": 1}
    if family is not None:
        predictors = list(job.cell_columns) if FAMILIES[family].predictors else []
        single |= {"model": {"family": family, "predictors": predictors}}
    bare = single | {"model": {"family": family}} if family is not None else single
    return [terms, plain, single, bare]
