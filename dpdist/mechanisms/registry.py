"""The mechanisms that a job may name, their `query.py` loaded on first use; those of dpdist 0.2 have a claim alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dpdist.core.confidential import Confidential
from dpdist.engine.protocol import Mechanism, Rounds, StratumRecorder
from dpdist.job import SPECS, Former, Job
from dpdist.mechanisms.parts import REQUIRED, Incomplete, Parts, check
from dpdist.mechanisms.promises import NoisySums, per_set, promise_of
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import (
    Concentrated,
    Moved,
    NoisyQuery,
    Promise,
    Strict,
    neighbour_of,
    record_epsilon,
    record_rho,
)
from dpdist.privacy.proof import proof_record

CLIPPED = Moved(*map(Fraction, (1, 2, 2)))
"""Distances of sums that are clipped at limits from a reference."""
BETWEEN_BOUNDS = Moved(*map(Fraction, (1, 1, 2)))
"""Distances of sums between public bounds, where an exchange at the same x costs no more than switching a record off."""


class FormerClaim(NoisySums[Former, StratumModel]):
    """The claim of all sums of a release together, as one query."""

    spec = Former

    def queries(self, job: Job, settings: Former) -> tuple[NoisyQuery, ...]:
        distance = BETWEEN_BOUNDS if settings.name in ("laplace_strict", "weight_regularisation") else CLIPPED
        if settings.gaussian:
            return (NoisyQuery.losing_rho("sums", distance, record_rho(job, job.rho.release), neighbour_of(job)),)
        epsilon = job.epsilon_per_set * job.synthetic_sets
        return (NoisyQuery.losing("sums", distance, record_epsilon(job, epsilon), neighbour_of(job)),)

    def promised(self, job: Job, settings: Former, total: Strict | Concentrated) -> Promise:
        return promise_of(job, per_set(total, job))

    def rounds(self, job: Job, settings: Former, model: StratumModel, recorder: StratumRecorder, learned: Any) -> Rounds:
        raise NotImplementedError(f"'{settings.name}' is a mechanism of dpdist 0.2")


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
            f"plug-in {plugin}: its rounds are not checked against its queries. Derive it from NoisySums, and do not "
            "override promise and protect"
        )
    return mechanism


def proof_of(job: Job) -> dict[str, Any]:
    """The proof record of a job's release. It follows from the job alone."""
    mechanism = mechanism_of(job)
    return proof_record(job, mechanism.promise(job), mechanism.listed(job))


def number_of_queries(job: Job) -> int:
    """The number of the proof record's first queries that are the mechanism's; those of counts and gates follow."""
    listed = mechanism_of(job).listed(job)
    return len(proof_of(job)["queries"]) if listed is None else len(listed)


def _held(mechanism: Mechanism) -> bool:
    """True if the engine computes the promise from the mechanism's queries, and holds its rounds to them."""
    if not isinstance(mechanism, NoisySums):
        return False
    kind = type(mechanism)
    return (kind.promise, kind.listed, kind.protect) == (NoisySums.promise, NoisySums.listed, NoisySums.protect)
