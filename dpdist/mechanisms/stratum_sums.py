"""Shared code of mechanisms that add noise to sums of a stratum's records: a base class, queries, and summaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import Choice, Measurement, Noise, Released, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec, NoiseName
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.guarantees import Promise

S = TypeVar("S", bound=MechanismSpec)
M = TypeVar("M", bound=StratumModel)


class NoisySums(ABC, Generic[S, M]):
    """Base class of a mechanism with one class of settings and one model of sums.

    A subclass defines `promised` and `rounds`, which get settings and model under their own types.
    """

    spec: ClassVar[type[MechanismSpec]] = MechanismSpec
    """Class of the settings that the mechanism reads; unset if it reads only settings that all mechanisms have."""
    sums: ClassVar[type[Any]]
    """The model that sums the statistics."""
    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        """The promise for a job, before data are seen."""
        return self.promised(job, self._settings(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Any = None) -> Rounds:
        """The rounds over a stratum's records: passes and queries; `learned` is the reference's summary."""
        assert isinstance(model, self.sums)
        return self.rounds(job, self._settings(job), model, recorder, learned)

    @abstractmethod
    def promised(self, job: Job, settings: S) -> Promise:
        """The promise, from the mechanism's own settings."""

    @abstractmethod
    def rounds(self, job: Job, settings: S, model: M, recorder: StratumRecorder, learned: Any) -> Rounds:
        """The rounds, with the mechanism's own settings and model."""

    def _settings(self, job: Job) -> Any:
        assert isinstance(job.mechanism, self.spec)
        return job.mechanism


class Defined(NamedTuple):
    """Queries that share one definition. Their noise is bound to checksums of the definition and of the exact figures.

    Noise that was drawn for one query is never used for another.
    """

    query: str

    @classmethod
    def by(cls, query: object) -> Defined:
        """Queries that the model, or another definition of the figures, defines."""
        return cls(digest(query))

    def sums(self, exact: Floats, scale: Fraction, number: int, law: NoiseName = "laplace") -> Measurement:
        """The `number`-th query of a stratum: these sums plus noise."""
        return Measurement(exact, self.noise(exact, scale, number, exact.size, law))

    def scores(self, exact: Floats, scale: Fraction, number: int) -> Choice:
        """The `number`-th query of a stratum: which of the scores, (row, candidate), is the largest under noise."""
        return Choice(exact, self.noise(exact, scale, number, exact.size))

    def noise(self, exact: Floats, scale: Fraction, number: int, size: int, law: NoiseName = "laplace") -> Noise:
        """The `number`-th noise of a stratum, bound to these figures."""
        return Noise(scale, size, number, law, self.query, digest(exact))


def released(recorder: StratumRecorder, sets: Sequence[Draws], epsilon: float, **diagnostics: float) -> Released:
    """The released parameters of a stratum, after their confidential summary was recorded.

    `epsilon` is the ε of one set; only the summary uses it.
    """
    local = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**local, "diagnostics": diagnostics}))
    return Released(tuple(sets))
