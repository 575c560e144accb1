"""Exact losses of records left out one at a time, compared with the bound 2Δ.

The bound 2Δ holds for fixed weights. Where weights are computed from the file itself, a record also moves the weights
of all other records (METHODS §2, §3). So the audit computes the weights anew without the record. In the lognormal
model, posterior densities with and without a record have closed forms. So the log ratio log ξ^α(θ | D) − log ξ^α′(θ |
D∖i) is exact at every draw θ. Here D is the file, and α and α′ are the weights with and without record i. The figures
are confidential, and hold for this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Learned, Pass, Sample, run_rounds
from dpdist.job import Job, Weights
from dpdist.mechanisms.promises import target_of
from dpdist.mechanisms.pseudo_posterior.on_reference import RecordWeights
from dpdist.mechanisms.pseudo_posterior.tilted import StepFit, Weighings, fits, fixed_on_reference
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.protocol import StratumModel
from dpdist.privacy.weights import search, search_of
from dpdist.sampling.samplers import IndependentSampler


class Loss(NamedTuple):
    """Losses of a file's posterior if one record is left out, as logarithms over draws with the record."""

    record: int
    loss: float
    loss_at_given_weights: float
    epsilon_local: float
    epsilon_local_range: float
    exceeds: bool
    delta: float


def audit(
    job: Job,
    model: StratumModel,
    records: Records,
    learned: Learned,
    rule: str,
    which: Sequence[int],
    draws: int,
    key: Key,
    stratum: str,
) -> Confidential[pd.DataFrame]:
    """The losses of these records of a stratum, under the weight rule of the release or another one.

    Raises `Improper` or `NotReached`.
    """
    assert isinstance(model, Lognormal)
    return leave_one_out(model, records, search_for(job, learned, rule), which, draws, key, stratum)


def search_for(job: Job, learned: Learned, rule: str) -> Callable[[], Weighings]:
    """Returns the weight search with which a stratum was released, or a search by another rule for the same target."""
    if rule == job.mechanism.weights.rule:
        if isinstance(learned, RecordWeights):
            return lambda: fixed_on_reference(learned.frozen)
        return lambda: search_of(job.mechanism, target_of(job))
    return lambda: search(Weights(rule=rule), target_of(job))


class Weighting(NamedTuple):
    """The end of a weight search: weights α, the last fit, and the posterior's log normalising constant."""

    alpha: Floats
    fit: StepFit
    log_evidence: float


def weighting(model: Lognormal, records: Records, steps: Weighings, draws: int, key: Key, stratum: str = "") -> Weighting:
    """Searches the weights of records in memory, with a stratum's random numbers.

    Raises `Improper` or `NotReached`.
    """
    return run_rounds(_search(model, steps), model, IndependentSampler(draws), key, stratum, [records])


def _search(model: Lognormal, steps: Weighings) -> Generator[Pass | Sample, Any, Weighting]:
    steps_done, _ = yield from fits(model, steps)
    alpha = yield Pass(_LastWeights(), "concat")
    return Weighting(alpha, steps_done[-1], model.log_evidence(steps_done[-1].statistics))


class _LastWeights(NamedTuple):
    """Kernel that returns the weights α of the last fit; blocks are concatenated."""

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        return carry["alpha"]


def leave_one_out(
    model: Lognormal,
    records: Records,
    search: Callable[[], Weighings],
    which: Sequence[int],
    draws: int,
    key: Key,
    stratum: str = "",
) -> Confidential[pd.DataFrame]:
    """Computes the exact loss of each record in `which`, over the draws of the fit with that record, and its bound.

    Columns are those of `Loss`; delta is E max(0, 1 − e^(2Δ − log ratio)).
    """
    weighted = weighting(model, records, search(), draws, key, stratum)
    f = model.log_lik(weighted.fit.draws, records)
    bound = 2.0 * weighted.fit.summary.database_bound
    rows = []
    for i in which:
        mask = np.arange(len(records)) != i
        remaining = records.take(mask)
        without_record = weighting(model, remaining, search(), draws, key, stratum)
        evidence = model.log_evidence(model.statistics(remaining, weighted.alpha[mask]))
        ratio = (
            f @ weighted.alpha - f[:, mask] @ without_record.alpha - (weighted.log_evidence - without_record.log_evidence)
        )
        log_ratio = f[:, i] * weighted.alpha[i] - (weighted.log_evidence - evidence)
        loss, at_given = float(np.abs(ratio).max()), float(np.abs(log_ratio).max())
        number, ranged = int(records.record[i]), weighted.fit.range_bound
        rows.append(Loss(number, loss, at_given, bound, ranged, loss > bound, delta_of(ratio, bound)))
    return Confidential(pd.DataFrame(rows, columns=list(Loss._fields)))


def delta_of(ratio: Floats, epsilon: float) -> float:
    """E max(0, 1 − e^(ε − ratio)) over draws with the record: the supremum over sets of P(with) − e^ε P(without)."""
    return float((1.0 - np.exp(np.minimum(0.0, epsilon - ratio))).mean())
