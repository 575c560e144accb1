"""A household of five under a clamped posterior: its exact loss is at most what the release says, and attained.

Losses are computed on a finite set of parameters, where nothing is sampled. Those of noisy sums are in test_every_option.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import beta

from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import Pass, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.protocol import Clamped
from dpdist.privacy.guarantees import record_epsilon, record_rho

HOUSEHOLD = 5
BOTH = ("zero_out", "substitution")
ROUNDING = 1e-9


CLAMPED = """
dataset: audit
period: "1"
columns: {{y: {{bounds: [0, 1], outside: clip}}}}
outcome: y
model: {{family: beta}}
mechanism: {{name: censor_uw}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
{unit}
sampler: {{name: grid}}
tables: [{{name: t, statistics: [count]}}]
"""
SHAPES = np.array([[30.0, 2.0], [2.0, 30.0]])
"""Two parameters: mass near 1, and near 0."""


def posterior(job: Job, outcomes: Floats) -> Floats:
    """Log probabilities of the two parameters under the posterior that censor_uw draws from, (parameter,)."""
    file = Records.of_outcomes(outcomes)
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([len(outcomes)]), (), ()), slice(0, 1))
    rounds = MECHANISMS["censor_uw"].protect(job, model, StratumRecorder())
    gather = next(rounds)
    assert isinstance(gather, Pass)
    sample = rounds.send(gather.kernel(file, {}, StratumRecorder()))
    assert isinstance(sample, Sample)
    assert isinstance(sample.posterior, Clamped)
    rows, clamp = sample.posterior.rows, sample.posterior.clamp
    alpha, offset = rows[:, 3], rows[:, 4]
    density = beta.logpdf(rows[:, 1][:, None], *SHAPES.T)
    log = np.clip(alpha[:, None] * (density - offset[:, None]), -clamp, clamp).sum(axis=0)
    return np.asarray(log - logsumexp(log))


def clamped_loss(job: Job, adjacency: str) -> float:
    """The worst loss of a household of five at one end of [0, 1], beside 600 records at the other."""
    others = np.full(600, 0.03)
    here, there = np.full(HOUSEHOLD, 0.97), np.full(HOUSEHOLD, 0.03)
    with_it = posterior(job, np.concatenate([others, here]))
    without = posterior(job, np.concatenate([others, there]) if adjacency == "substitution" else others)
    return float(np.abs(with_it - without).max())


@pytest.mark.parametrize("adjacency", BOTH)
def test_a_household_of_five_costs_a_clamped_posterior_what_is_claimed_at_most(adjacency: str) -> None:
    """Attained where all else speaks for one parameter and the household for the other. Controls: the clamp of a record,
    and of four."""
    found = {}
    for most in (HOUSEHOLD, HOUSEHOLD - 1, None):
        unit = f"privacy_unit: {{column: household, most: {most}}}" if most is not None else ""
        job = parse_job(CLAMPED.format(epsilon="4", adjacency=adjacency, unit=unit))
        found[most] = clamped_loss(job, adjacency)
    assert found[HOUSEHOLD] <= 4.0 * (1.0 + ROUNDING)
    assert found[HOUSEHOLD] >= 0.999 * 4.0
    assert found[HOUSEHOLD - 1] > 1.2 * 4.0
    assert found[None] > 4.8 * 4.0


@pytest.mark.parametrize("most", [1, 2, 5, 7, 10_000])
def test_what_a_record_may_lose_is_exact(most: int) -> None:
    """ε/k and ρ/k², as fractions: k of them, and k² of them, are the budget again."""
    job = parse_job(CLAMPED.format(epsilon="1/3", adjacency="zero_out", unit=f"privacy_unit: {{column: h, most: {most}}}"))
    assert record_epsilon(job, job.budget.epsilon) * most == Fraction(1, 3)
    assert record_rho(job, Fraction(1, 7)) * most**2 == Fraction(1, 7)
