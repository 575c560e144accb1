"""Base class of mechanisms that add noise to sums of a stratum's records: kernel, queries and released sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import (
    BlockRecorder,
    Carry,
    Choice,
    Columns,
    Measurement,
    Noise,
    Pass,
    Released,
    Rounds,
    Sample,
    StratumRecorder,
)
from dpdist.job import Job, MechanismSpec, NoiseName
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.guarantees import (
    Concentrated,
    Neighbour,
    NoGuarantee,
    NoisyQuery,
    Promise,
    Strict,
    guarantee_of,
    total_loss,
)

S = TypeVar("S", bound=MechanismSpec)
M = TypeVar("M", bound=StratumModel)


class Summing(ABC):
    """Kernel, which runs on each block of records: sums statistics to which a mechanism then adds noise (METHODS §10).

    A subclass is a frozen dataclass of public values.
    """

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        recorder.bounds(Confidential(_without_bounds(records)))
        return self.sums(records)

    @abstractmethod
    def sums(self, records: Records) -> Floats:
        """Sums over the records: counts by bin, (1, bin), or sums by cell or crosstab row, (…, sum)."""


def _without_bounds(records: Records) -> Columns:
    # Noisy sums have neither bounds nor privacy weights. But bounds.parquet is a documented file, with one schema for all
    # mechanisms. So it keeps a row for every record here: NaN bounds, and a privacy weight of 1.
    none, ones = np.full(len(records), np.nan), np.ones(len(records))
    return {
        "record": records.record,
        "sampling_weight": records.weight,
        "unweighted_record_bound": none,
        "privacy_weight": ones,
        "record_bound": none,
        "weighted_record_bound": none,
    }


class NoisySums(ABC, Generic[S, M]):
    """Base class of a mechanism with one class of settings and one model of sums.

    A subclass defines `queries`, `promised` and `rounds`, which get settings and model under their own types. The
    engine computes the guarantee from the queries, and the rounds may ask for no more.
    """

    spec: ClassVar[type[Any]] = MechanismSpec
    """Class of the settings that the mechanism reads; unset if it reads only settings that all mechanisms have."""
    sums: ClassVar[type[Any]]
    """The model that sums the statistics."""
    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        """The promise for a job, before data are seen."""
        settings = self.spec.of(job)
        total = guarantee_of(job, self.listed(job))
        promise = self.promised(job, settings, total)
        if isinstance(promise.total, NoGuarantee):
            return promise
        if promise.total.epsilon > job.budget.epsilon:
            raise LossExceeded(f"its queries lose ε = {promise.total.epsilon}, and the job has {job.budget.epsilon}")
        if promise.total.epsilon < total.epsilon:
            raise LossExceeded(f"it promises ε = {promise.total.epsilon}, and its queries lose {total.epsilon}")
        return promise

    def listed(self, job: Job) -> tuple[NoisyQuery, ...]:
        """The queries from which the promise is computed."""
        return tuple(self.queries(job, self.spec.of(job)))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Any = None) -> Rounds:
        """The rounds over a stratum's records: passes and queries; `learned` is the reference's summary."""
        assert isinstance(model, self.sums)
        return within_loss(self.rounds(job, self.spec.of(job), model, recorder, learned), self.listed(job))

    @abstractmethod
    def queries(self, job: Job, settings: S) -> Sequence[NoisyQuery]:
        """All noisy queries of a stratum, for all synthetic sets; they follow from the job alone."""

    @abstractmethod
    def promised(self, job: Job, settings: S, total: Strict | Concentrated) -> Promise:
        """The promise. `total` is the guarantee of all queries together."""

    @abstractmethod
    def rounds(self, job: Job, settings: S, model: M, recorder: StratumRecorder, learned: Any) -> Rounds:
        """The rounds, with the mechanism's own settings and model."""


class LossExceeded(ValueError):
    """Raised if a mechanism asks for more than its promise allows; nothing of the stratum is then released."""


def within_loss(rounds: Rounds, listed: Sequence[NoisyQuery]) -> Rounds:
    """The same rounds. Raises `LossExceeded` for a query that states no loss, or that exceeds the remaining loss.

    Queries must stay within the listed loss under every kind of neighbour, because a statement also gives the loss of
    an exchange.
    """
    kinds: tuple[Neighbour, ...] = get_args(Neighbour)
    remaining, reply, begun = {kind: total_loss(listed, kind) for kind in kinds}, None, set[str]()
    while True:
        try:
            request = rounds.send(reply)
        except StopIteration as end:
            released: Released = end.value
            return released
        if not isinstance(request, Pass | Sample):
            query = request.stated
            if query is None or (query.scale, query.law) != (request.noise.scale, request.noise.law):
                raise LossExceeded("a query does not state what its noise loses: ask by Defined.sums or Defined.scores")
            if query.times == 0 and query.name not in begun:
                raise LossExceeded(f"a part of query '{query.name}' is asked for before the part that states its loss")
            begun.add(query.name)
            remaining = {kind: allowed - query.loss(kind) for kind, allowed in remaining.items()}
            if min(remaining.values()) < 0:
                raise LossExceeded(f"query '{query.name}' exceeds the promise: list it, and how often, in queries()")
        reply = yield request


class Defined(NamedTuple):
    """Queries that share one definition.
    Noise is bound to checksums of the definition and of the exact figures, so that it is never used for another query.
    """

    query: str

    @classmethod
    def by_content(cls, definition: object) -> Defined:
        """Queries defined by the model, or by another definition of the figures."""
        return cls(digest(definition))

    def sums(self, exact: Floats, query: NoisyQuery, number: int) -> Measurement:
        """Query `number` of a stratum: these sums plus noise of the stated law and scale."""
        return Measurement(exact, self.noise(exact, query.scale, number, exact.size, query.law), query.once)

    def scores(self, exact: Floats, query: NoisyQuery, number: int) -> Choice:
        """Query `number` of a stratum: which score of each row, (row, candidate), is the largest under noise."""
        return Choice(exact, self.noise(exact, query.scale, number, exact.size, query.law), query.once)

    def noise(self, exact: Floats, scale: Fraction, number: int, size: int, law: NoiseName = "laplace") -> Noise:
        """Noise `number` of a stratum, bound to these figures."""
        return Noise(scale, size, number, law, self.query, digest(exact))


def released_sets(recorder: StratumRecorder, sets: Sequence[Draws], epsilon: float, **diagnostics: float) -> Released:
    """Records the confidential summary of a stratum, then returns its released parameters.

    `epsilon` is the ε of one set; only the summary uses it.
    """
    local = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**local, "diagnostics": diagnostics}))
    return Released(tuple(sets))
