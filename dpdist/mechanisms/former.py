"""For `registry`: what a release under a mechanism of dpdist 0.2 claims, by its job's budget; nothing runs it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpdist.engine.protocol import Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.job.former import Former
from dpdist.mechanisms.promises import per_set, promise_of
from dpdist.mechanisms.stratum_sums import NoisySums
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import Moved, NoisyQuery, neighbour_of, record_epsilon, record_rho

CLIPPED = Moved(*map(Fraction, (1, 2, 2)))
"""Distances of sums that are clipped at limits from a reference."""
BETWEEN_BOUNDS = Moved(*map(Fraction, (1, 1, 2)))
"""Distances of sums between public bounds, where an exchange at the same x costs no more than switching a record off."""


class FormerClaim(NoisySums[Former, StratumModel]):
    """The claim of all sums of a release together, as one query."""

    spec = Former

    def queries(self, job: Job, settings: Former) -> tuple[NoisyQuery, ...]:
        moved = BETWEEN_BOUNDS if settings.name in ("laplace_strict", "weight_regularisation") else CLIPPED
        if settings.gaussian:
            return (NoisyQuery.losing_rho("sums", moved, record_rho(job, job.rho.release), neighbour_of(job)),)
        epsilon = job.epsilon_per_set * job.synthetic_sets
        return (NoisyQuery.losing("sums", moved, record_epsilon(job, epsilon), neighbour_of(job)),)

    def promised(self, job: Job, settings: Former, total: Strict | Concentrated) -> Promise:
        return promise_of(job, per_set(total, job))

    def rounds(self, job: Job, settings: Former, model: StratumModel, recorder: StratumRecorder, learned: Any) -> Rounds:
        raise NotImplementedError(f"'{settings.name}' is a mechanism of dpdist 0.2")
