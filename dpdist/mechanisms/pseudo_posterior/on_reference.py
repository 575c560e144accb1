"""Constants that a stratum's reference fixes: the centre θ_ref of a clamp, or privacy weights.

Passes here visit the reference's records alone (METHODS §2, §4b). f is a record's log likelihood and α its privacy
weight. A weight rule can compute a privacy weight from the record and the reference's fits alone. This weight does not
depend on other records of the current file. So the clamped likelihood has a bound for every file.

The mechanism `centred` clamps a(f − f at θ_ref) to ±M. a is the power of the likelihood. A drift is the change of a
parameter since the reference.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, Sample
from dpdist.job import Job
from dpdist.mechanisms.promises import target_of
from dpdist.mechanisms.pseudo_posterior.spec import Centred
from dpdist.mechanisms.pseudo_posterior.tilted import FixedPrivacyWeights, Gather, Weigh, fits
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import Clamped, Draws, Spurious, StratumModel
from dpdist.models.user import User
from dpdist.privacy.weights import Constant, Ones, Reweight, reference_counts, reference_search

FAR = 3.0
"""Standard deviations of a posterior draw within which the clamped log likelihood ratio must be a parabola."""
KAPPA, STEADY = 1.5, 0.25
"""κ, the smallest allowed ratio of M to a, for a planned drift of at most STEADY standard deviations of a record.

With a smaller ratio, most of the clamped posterior's mass may lie at a spurious mode.
"""
DRIFTING_KAPPA = 2.0
"""κ for a larger planned drift, up to `job.LARGEST_DRIFT`."""
ALLOWANCE = 3.0
"""Allowed mean loss of log likelihood, beside 1.5 for each dimension (see `spurious`)."""


def kappa_of(drift: float) -> float:
    """κ, the smallest ratio of M to a, for a planned drift, which is in standard deviations of a record."""
    return KAPPA if drift <= STEADY else DRIFTING_KAPPA


def power(clamp: float, dimensions: int, records: int, reference_records: int, drift: float, kappa: float = KAPPA) -> float:
    """a = min(1, M/κ, a_local): the power of the likelihood at which a typical record is not clamped.

    M is `clamp`, d is `dimensions`, n is `records` and n_ref is `reference_records`. a_local solves z²(a²(τ² + d/n) + a
    d/n) = M² with z = 3 and τ² = drift² + d/n_ref. The left side is the variance of a(f(θ) − f(θ_ref)) over records,
    times z², for draws θ of power a. `drift` is in standard deviations of a record. All arguments are public.
    """
    spread = drift**2 + dimensions / reference_records
    square, linear = spread + dimensions / records, dimensions / records
    local = (-linear + np.sqrt(linear**2 + 4.0 * square * (clamp / FAR) ** 2)) / (2.0 * square)
    return float(min(1.0, clamp / kappa, local))


def spurious(loss: Floats, dimensions: int) -> bool:
    """True if draws of a clamped posterior are not near θ_ref.

    `loss` (draw,) is a Σ f(θ_ref) − f(θ_s) over records. About its own mode, a posterior of power a has the loss
    χ²_d/2, with mean d/2. With 200 records, where prior and clamp matter, tests showed up to .9 d. At a spurious mode
    the loss grows with the number of records: with 2,000 records it is a hundred times d/2.
    """
    return not float(loss.mean()) <= 1.5 * dimensions + ALLOWANCE


CHECKED = 4000
"""Number of reference records, over all strata, that are searched for a spurious mode."""


class Centre(NamedTuple):
    """A parameter θ_ref, as one draw, and the power a of the likelihood."""

    theta: Draws
    power: float


class RecordWeights(NamedTuple):
    """Privacy weights as a fixed function of a record.

    `theta` is the centre of the reference's fit with α = 1, as one draw.
    """

    theta: Draws
    frozen: FixedPrivacyWeights
    facts: Facts | None = None
    """The reference's distributions, for a score model."""


class ReferenceDistributions(NamedTuple):
    """The reference's distributions for a score model, without privacy weights."""

    facts: Facts


class ReferenceLoss(NamedTuple):
    """Kernel, which runs on each block of records: Σ f(θ_ref) − f(θ_s) over the records, (draw,), to be added up."""

    model: StratumModel
    theta: Draws
    draws: Draws

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        loss = self.model.log_lik(self.theta, records) - self.model.log_lik(self.draws, records)
        return np.asarray(loss.sum(axis=1))


def learn_centre(
    job: Job, model: StratumModel, records: int, reference: int
) -> Generator[Pass | Sample, Any, tuple[Centre, Draws]]:
    """Computes θ_ref and the power a from `reference` records, for a current stratum of `records`.

    Also returns the draws of the reference's fit with α = 1.
    """
    statistics = yield Pass(Weigh(model, Ones()), model.combine)
    draws = yield Sample(statistics, "reference")
    theta = centre_of(model, draws)
    clamp = target_of(job)
    drift = Centred.of(job).drift
    return Centre(theta, power(clamp, dimensions(theta), records, reference, drift, kappa_of(drift))), draws


def check_centre(job: Job, model: StratumModel, learned: Centre) -> Generator[Pass | Sample, Any, None]:
    """Draws from the mechanism's own posterior on the reference; raises `Spurious` if draws are not near θ_ref."""
    clamp = target_of(job)
    rows = yield Pass(Gather(model, Constant(learned.power), learned.theta), "concat")
    draws = yield Sample(Clamped(rows, clamp), "check")
    loss = yield Pass(ReferenceLoss(model, learned.theta, draws), "sum")
    if spurious(learned.power * loss, dimensions(learned.theta)):
        raise Spurious


def learn_weights(job: Job, model: StratumModel) -> Generator[Pass | Sample, Any, tuple[RecordWeights, Draws]]:
    """The reference's final privacy weights under the job's rule, and draws of the reference's fit with α = 1.

    Weights that were tuned are adjusted for later files (`FixedPrivacyWeights`, `reference_search`). Raises `NotReached`.
    """
    mechanism, target = job.mechanism, target_of(job)
    searched, _ = yield from fits(model, reference_search(mechanism, target), reference_counts(mechanism))
    steps = [
        (fit.step, before.draws) for before, fit in pairwise(searched) if not isinstance(fit.step, FixedPrivacyWeights)
    ]
    steps = steps[-2:] if steps and isinstance(steps[-1][0], Reweight) else steps[-1:]
    if mechanism.name == "censor_w" and mechanism.weights.reweight is not None:
        steps = [*steps, (Reweight(mechanism.weights.reweight, searched[-1].summary.database_bound), searched[-1].draws)]
    first = searched[0].draws
    return RecordWeights(centre_of(model, first), FixedPrivacyWeights(first, tuple(steps))), first


def centre_of(model: StratumModel, draws: Draws) -> Draws:
    """One parameter for all draws: their mean, which is valid in a convex parameter space, such as those of dpdist's
    models.

    A user's model may have a parameter space that is not convex; then the draw nearest to the mean is taken.
    """
    mean = {name: values.mean(axis=0, keepdims=True) for name, values in draws.values.items()}
    if not isinstance(model, User):
        return Draws(mean)
    distance = np.zeros(len(draws))
    for name, values in draws.values.items():
        scale = values.std(axis=0)
        scaled = (values - mean[name]) / np.where(scale > 0, scale, 1.0)
        distance += np.square(scaled).reshape(len(draws), -1).sum(axis=1)
    return draws.at(int(distance.argmin()))


def dimensions(theta: Draws) -> int:
    """Number of free parameters that the stratum identifies; a symmetric matrix counts by one triangle."""
    total = 0
    for values in theta.values.values():
        first = values[0]
        symmetric = first.ndim == 2 and first.shape[0] == first.shape[1] and np.array_equal(first, first.T)
        total += len(first) * (len(first) + 1) // 2 if symmetric else int(np.isfinite(first).sum())
    return total


def evenly(records: Records, number: int) -> Records:
    """At most `number` records, evenly spaced."""
    if len(records) <= number:
        return records
    return records.take(np.linspace(0, len(records) - 1, number).astype(np.int64))
