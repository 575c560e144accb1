"""Adds noise to whitened, winsorised sums of logarithms, and states the guarantee, in one pass (METHODS §8)."""

from __future__ import annotations

from dataclasses import replace

from dpdist.engine.protocol import Mechanism, Pass, Rounds, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import of_frame, parallel, promise_of, referred, with_frame
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal, scale_of
from dpdist.mechanisms.sanitized_lognormal.sensitivity import EXCHANGE, whitened_sums
from dpdist.mechanisms.sanitized_lognormal.spec import SanitizedStatistics as Settings
from dpdist.mechanisms.sanitized_lognormal.statement import LOGNORMAL_SHAPE, SANITIZED, SANITIZED_GAUSSIAN, SETS_ARE_FREE
from dpdist.mechanisms.sanitized_lognormal.winsorising_inversion import Whitened
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery


class SanitizedStatistics(NoisySums[Settings, SanitizedLognormal]):
    """Noisy sums of whitened, winsorised records and of their squares (METHODS §8): strict, with δ = 0.

    All synthetic sets follow from the same noisy sums, and so have one common cost. Under Gaussian noise the guarantee is
    strict zCDP, from which an ε with a δ follows.
    """

    spec, sums = Settings, SanitizedLognormal

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        return (whitened_sums(scale_of(job, settings.noise), settings.noise),)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        once = replace(total, exchange=EXCHANGE) if settings.gaussian else total
        shown = SANITIZED_GAUSSIAN if settings.gaussian else SANITIZED
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        promise = promise_of(job, once, shown, *moves, LOGNORMAL_SHAPE, *referred(job))
        composition = SETS_ARE_FREE + parallel(job) + of_frame(job)
        return replace(promise, total=with_frame(job, once), composition=composition)

    def rounds(
        self,
        job: Job,
        settings: Settings,
        model: SanitizedLognormal,
        recorder: StratumRecorder,
        learned: Whitened | None,
    ) -> Rounds:
        assert learned is not None
        return sanitized_statistics(model, learned, float(job.epsilon_of_tables), job.synthetic_sets, recorder)


def sanitized_statistics(
    model: SanitizedLognormal, whitened: Whitened, epsilon: float, sets: int, recorder: StratumRecorder
) -> Rounds:
    """Releases whitened, winsorised sums under noise; fit and synthetic sets are post-processing (METHODS §8)."""
    model = model.within(whitened)
    statistics = yield Pass(Count(model), "sum")
    noisy = yield Defined.by(model).sums(model.released(statistics), whitened_sums(model.scale, model.noise), 1)
    drawn = []
    for number in range(1, sets + 1):
        theta = yield Sample(noisy, "release", number, model)
        drawn.append(theta)
    return released(recorder, drawn, epsilon, cells=float(len(statistics)))


MECHANISMS: dict[str, Mechanism] = {"sanitized_statistics": SanitizedStatistics()}
