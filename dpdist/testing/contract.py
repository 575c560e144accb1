"""What every registered mechanism must hold, as checks that say what is missing: promises, refusals, noise.

A check returns sentences; a mechanism that keeps its contract has none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dpdist.job import Job
from dpdist.job.checks import contradictions
from dpdist.job.specs import SPECS
from dpdist.privacy.guarantees import Asymptotic, Concentrated, NoGuarantee, Promise, Strict

MEMBERS = ("scope", "promise", "protect")
SCOPES = ("stratum", "file")
STRICT = (Strict, Concentrated)
LAWS = {"laplace": "Laplace", "gaussian": "Gaussian"}


def problems(name: str, mechanism: object, jobs: Sequence[Job]) -> list[str]:
    """What a mechanism lacks, each once."""
    lacking = [f"{name}: it has no {member}" for member in MEMBERS if not hasattr(mechanism, member)]
    if lacking:
        return lacking
    lines = [*_registered(name, mechanism), *(line for job in jobs for line in _promised(name, mechanism, job))]
    return list(dict.fromkeys(lines))


def _registered(name: str, mechanism: Any) -> Iterator[str]:
    if name not in SPECS.every():
        yield f"{name}: no job can name it: write the place of its specification into PLACES in dpdist/job/specs.py"
    if mechanism.scope not in SCOPES:
        yield f"{name}: its scope is {mechanism.scope!r}, not one of {', '.join(SCOPES)}"


def _promised(name: str, mechanism: Any, job: Job) -> Iterator[str]:
    promise = mechanism.promise(job)
    if not isinstance(promise, Promise):
        yield f"{name}: promise returns {type(promise).__name__}, not a Promise"
        return
    kinds = {type(promise.total), type(promise.per_set)}
    if len(kinds) > 1:
        yield f"{name}: a set has another class of guarantee than the release"
    if not isinstance(promise.total, (*STRICT, Asymptotic, NoGuarantee)):
        yield f"{name}: its guarantee is {type(promise.total).__name__}, which is no class of guarantee"
    strict = isinstance(promise.total, STRICT)
    if strict != job.strict:
        what, other = ("strict", "is not") if strict else (type(promise.total).__name__, "is")
        yield f"{name}: it promises {what}, and to Job.strict the job {other} strict: make them one"
    if not isinstance(promise.total, NoGuarantee):
        yield from _of_the_budget(name, promise, job)
    if strict:
        yield from _refusals(name, job)


def _of_the_budget(name: str, promise: Promise, job: Job) -> Iterator[str]:
    assert not isinstance(promise.total, NoGuarantee)
    if promise.total.epsilon != job.budget.epsilon:
        yield f"{name}: it promises ε = {promise.total.epsilon}, and the job's budget is {job.budget.epsilon}"
    if promise.total.adjacency != job.budget.adjacency:
        yield f"{name}: it promises {promise.total.adjacency}, and the job asks for {job.budget.adjacency}"


def _refusals(name: str, job: Job) -> Iterator[str]:
    for rule, changed in record_dependent(job).items():
        if not contradictions(changed):
            yield f"{name}: it is strict, and a job with '{rule}', which depends on the records, is accepted: refuse it"


def record_dependent(job: Job) -> dict[str, Job]:
    """The job under rules whose effect depends on outcomes, by the rule."""
    outcome = job.outcomes[0]
    made = {
        f"{rule}: drop": job.model_copy(
            update={"columns": job.columns | {outcome: job.columns[outcome].model_copy(update={rule: "drop"})}}
        )
        for rule in ("missing", "zeros")
    }
    fallback = job.mechanism.model_copy(update={"fallback": "pool"})
    made["fallback: pool"] = job.model_copy(update={"mechanism": fallback})
    if job.survey.weight is not None and job.mechanism.adds_noise and not job.mechanism.by_cell:
        columns = {name: column for name, column in job.columns.items() if name != job.survey.weight}
        made["a weight without public bounds"] = job.model_copy(update={"columns": columns})
    return made


def problems_of_noise(name: str, statement: Mapping[str, Any], laws: Collection[str]) -> list[str]:
    """Where a statement names other laws of noise than were drawn; where nothing is promised it need not name any."""
    text, drawn = json.dumps(statement["assumptions"]), set(laws)
    named = {law for law, word in LAWS.items() if f"discrete {word} noise" in text}
    owed = set() if statement["guarantee"] == "none" else drawn
    lines = [f"{name}: {LAWS[law]} noise is drawn, and the statement does not name it" for law in sorted(owed - named)]
    return lines + [f"{name}: the statement names {LAWS[law]} noise, and none is drawn" for law in sorted(named - drawn)]
