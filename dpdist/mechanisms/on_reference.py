"""What a stratum's reference fixes before the current file is seen: θ_ref and its power, or privacy weights for good.

Rounds over the reference's records alone (METHODS §2, §4b). A privacy weight that is a rule's value at a record under the
reference's own fits depends on no other record: clamped, the likelihood then has a bound for every file.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.records import Floats, Records
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, Sample
from dpdist.job import Job
from dpdist.job.mechanisms import Centred
from dpdist.mechanisms.pseudo_posterior.centring import kappa_of, power, spurious
from dpdist.mechanisms.pseudo_posterior.clamped import Gather
from dpdist.mechanisms.pseudo_posterior.tilted import Frozen, Weigh, fits
from dpdist.mechanisms.reference_tables.donors import Donors
from dpdist.mechanisms.reference_tables.release import ReferenceCells, Told
from dpdist.mechanisms.reference_tables.sensitivity import Limits
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal
from dpdist.mechanisms.sanitized_lognormal.winsorising_inversion import Whitened
from dpdist.models.copula.model import Scores
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.models.user import User
from dpdist.privacy.guarantees import bound_target
from dpdist.privacy.weight_search import reference_counts, reference_search
from dpdist.privacy.weights import Constant, Ones, Reweight

CHECKED = 4000
"""Reference records, of all strata alike, on which a spurious mode is looked for."""

Learning = Generator[Pass | Sample, Any, "tuple[Learned, Draws]"]
"""What was learned, and draws of the reference's fit with α = 1; tuned weights count `for_later_files`."""


class Spurious(Exception):
    """Under the clamp another mode than the reference's own wins, on the reference's own records."""


class Learned(NamedTuple):
    """θ_ref (one draw) with the power a of the likelihood; or a record's privacy weight as a fixed function of it; or the
    cells of a table with the limits that they are clipped at; or how records are whitened; or the distributions of a score
    model; or the donors of records beside a table."""

    theta: Draws
    power: float
    frozen: Frozen | None = None
    told: Told | None = None
    limits: Limits | None = None
    whitened: Whitened | None = None
    facts: Facts | None = None
    donors: Donors | None = None


def fixed_model(model: StratumModel, learned: Learned | None) -> StratumModel:
    """The model with what it takes from the reference."""
    if isinstance(model, Scores) and learned is not None and learned.facts is not None:
        return model.within(learned.facts)
    return model


class Loss(NamedTuple):
    """Kernel: Σ f(θ_ref) − f(θ_s) over records, to be added up. Partial: (draw,)."""

    model: StratumModel
    theta: Draws
    draws: Draws

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        lost = self.model.log_lik(self.theta, records) - self.model.log_lik(self.draws, records)
        return np.asarray(lost.sum(axis=1))


def learn_centre(job: Job, model: StratumModel, records: int, reference: int) -> Learning:
    """θ_ref and a for a centred clamp, from `reference` records, for a current stratum of `records`."""
    statistics = yield Pass(Weigh(model, Ones()), model.combine)
    draws = yield Sample(statistics, "reference")
    theta = centre_of(model, draws)
    clamp = bound_target(job.epsilon_per_set, job.budget.adjacency)
    assert isinstance(job.mechanism, Centred)
    drift = job.mechanism.drift
    return Learned(theta, power(clamp, dimensions(theta), records, reference, drift, kappa_of(drift))), draws


def learn_cells(model: ReferenceCells, reference: Sequence[Records], sizes: Floats | None = None) -> Learned:
    """Cells and limits from the reference's records by outcome (`sizes`: how many they stand for) and public sizes."""
    told = model.summarise(reference, sizes)
    return Learned(Draws({}), 1.0, None, told, model.limited(told))


def learn_whitening(model: SanitizedLognormal, records: Records) -> Learned:
    """How records are whitened, from the reference's records. Raises `Improper`."""
    return Learned(Draws({}), 1.0, whitened=model.learned(records))


def check_centre(job: Job, model: StratumModel, learned: Learned) -> Generator[Pass | Sample, Any, None]:
    """The mechanism's own posterior on records of the reference: raises `Spurious` where it is not about θ_ref."""
    clamp = bound_target(job.epsilon_per_set, job.budget.adjacency)
    rows = yield Pass(Gather(model, Constant(learned.power), learned.theta), "concat")
    draws = yield Sample(Clamped(rows, clamp), "check")
    lost = yield Pass(Loss(model, learned.theta, draws), "sum")
    if spurious(learned.power * lost, dimensions(learned.theta)):
        raise Spurious


def learn_weights(job: Job, model: StratumModel) -> Learning:
    """The weights that the job's rule ends with on the reference, as a function of a record. Raises `NotReached`."""
    mechanism, target = job.mechanism, bound_target(job.epsilon_per_set, job.budget.adjacency)
    kept, _ = yield from fits(model, reference_search(mechanism, target), reference_counts(mechanism))
    steps = [(fit.step, before.draws) for before, fit in pairwise(kept) if not isinstance(fit.step, Frozen)]
    steps = steps[-2:] if steps and isinstance(steps[-1][0], Reweight) else steps[-1:]
    if mechanism.name == "censor_w" and mechanism.weights.reweight is not None:
        steps = [*steps, (Reweight(mechanism.weights.reweight, kept[-1].summary.database_bound), kept[-1].draws)]
    first = kept[0].draws
    return Learned(centre_of(model, first), 1.0, Frozen(first, tuple(steps))), first


def centre_of(model: StratumModel, draws: Draws) -> Draws:
    """One parameter for all draws: their mean, which our models' convex parameter spaces hold.

    A user's space may be curved: there it is the draw that is nearest to the mean, in standard deviations.
    """
    mean = {name: values.mean(axis=0, keepdims=True) for name, values in draws.values.items()}
    if not isinstance(model, User):
        return Draws(mean)
    distance = np.zeros(len(draws))
    for name, values in draws.values.items():
        scale = values.std(axis=0)
        scaled = (values - mean[name]) / np.where(scale > 0, scale, 1.0)
        distance += np.square(scaled).reshape(len(draws), -1).sum(axis=1)
    return draws.one(int(distance.argmin()))


def dimensions(theta: Draws) -> int:
    """Free parameters: those that the stratum identifies, a symmetric matrix by its triangle."""
    total = 0
    for values in theta.values.values():
        one = values[0]
        symmetric = one.ndim == 2 and one.shape[0] == one.shape[1] and np.array_equal(one, one.T)
        total += len(one) * (len(one) + 1) // 2 if symmetric else int(np.isfinite(one).sum())
    return total


def evenly(records: Records, number: int) -> Records:
    """At most `number` records, evenly spaced."""
    if len(records) <= number:
        return records
    return records.take(np.linspace(0, len(records) - 1, number).astype(np.int64))
