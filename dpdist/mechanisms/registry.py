"""The mechanisms that a job may name, for `runtime`, `planning`, `audit`; loads a mechanism's `query.py` on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpdist.core.confidential import Confidential
from dpdist.engine.protocol import ListsQueries, Mechanism
from dpdist.job import SPECS, Job
from dpdist.job.former import Former
from dpdist.mechanisms.former import FormerClaim
from dpdist.mechanisms.parts import REQUIRED, Incomplete, Parts, check
from dpdist.mechanisms.stratum_sums import NoisySums
from dpdist.privacy.proof import proof_record

MECHANISMS: Parts[Mechanism] = Parts("MECHANISMS", *REQUIRED["MECHANISMS"])
AUDITS: Parts[Callable[..., Confidential[Any]]] = Parts(
    "audit", "leave_one_out", "the losses of records that are left out one at a time"
)
"""Data frames. Only mechanisms that compute privacy weights on the file itself have this part."""


def mechanism_of(job: Job) -> Mechanism:
    """The mechanism that a job names; raises `Incomplete` if one of its parts is missing."""
    if isinstance(job.mechanism, Former):
        return FormerClaim()
    check(job.mechanism.name)
    mechanism = MECHANISMS[job.mechanism.name]
    if SPECS.origin(job.mechanism.name) and not _held(mechanism):
        plugin, _ = SPECS.plugged_in(job.mechanism.name)
        raise Incomplete(
            f"plug-in {plugin}: its rounds are not held to its queries. Derive it from NoisySums, and leave promise and "
            "protect as they are there"
        )
    return mechanism


def proof_of(job: Job) -> dict[str, Any]:
    """The proof record of a job's release. It follows from the job alone."""
    mechanism = mechanism_of(job)
    queries = mechanism.listed(job) if isinstance(mechanism, ListsQueries) else None
    return proof_record(job, mechanism.promise(job), queries)


def number_of_queries(job: Job) -> int:
    """The number of the proof record's first queries that are the mechanism's; those of counts and gates follow."""
    mechanism = mechanism_of(job)
    return len(mechanism.listed(job)) if isinstance(mechanism, ListsQueries) else len(proof_of(job)["queries"])


def _held(mechanism: Mechanism) -> bool:
    """True if the engine computes the promise from the mechanism's queries, and holds its rounds to them."""
    if not isinstance(mechanism, NoisySums):
        return False
    kind = type(mechanism)
    return (kind.promise, kind.listed, kind.protect) == (NoisySums.promise, NoisySums.listed, NoisySums.protect)
