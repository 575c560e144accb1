"""What mechanisms share that add noise to sums of a stratum's records: their types, noise on sums, what they record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise, Released, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec, NoiseName
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.guarantees import Promise

S = TypeVar("S", bound=MechanismSpec)
M = TypeVar("M", bound=StratumModel)


class NoisySums(ABC, Generic[S, M]):
    """A mechanism of one specification and one model of sums, which are given to it under their own types."""

    spec: ClassVar[type[MechanismSpec]] = MechanismSpec
    """Of the settings that it reads; unset where it reads none of its own."""
    sums: ClassVar[type[Any]]
    """The model that adds statistics up."""
    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        """What the job is promised, before data are seen."""
        return self.promised(job, self._settings(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Any = None) -> Rounds:
        """Rounds over the records of a stratum; `learned` is what a reference fixed."""
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


class NoiseOn(NamedTuple):
    """What noise is asked for: checksums of exact sums, and of what was summed (`query`)."""

    query: str
    sums: str

    @classmethod
    def of(cls, query: object, sums: Floats) -> NoiseOn:
        """Of exact sums; `query`: the model, or whatever else says what they are of."""
        return cls(digest(query), digest(sums))

    def draw(self, scale: Fraction, size: int, number: int, law: NoiseName = "laplace") -> Noise:
        """A request for noise that is bound to these sums, the `number`-th of its stratum."""
        return Noise(scale, size, number, law, self.query, self.sums)


def released(recorder: StratumRecorder, sets: Sequence[Draws], epsilon: float, **diagnostics: float) -> Released:
    """What a stratum releases; its summary is recorded. `epsilon`: a set's, for the summary alone."""
    local = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**local, "diagnostics": diagnostics}))
    return Released(tuple(sets))
