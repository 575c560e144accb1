"""Public half of pseudo and clamped posteriors, for `publish`: the family's model from `models`, statement texts."""

from __future__ import annotations

from dpdist.job import Job
from dpdist.mechanisms.parts import Words
from dpdist.models import LIKELIHOODS
from dpdist.models.protocol import Builder
from dpdist.privacy.weight_rules import HALF_EXCEED

UNMEASURED = (
    "What exact losses {} privacy weights have, computed anew with and without a record, was not measured on other files."
)
"""Text for a rule without measured losses. Every rule of dpdist has them."""
REWEIGHTED_EXCEEDS = f"With re-weighted privacy weights, {HALF_EXCEED}."
OBSERVED = "The bound is the one observed on this file over S posterior draws; it is not a bound over every file."
ON_THIS_FILE = "Privacy weights are computed from the confidential file."
REFUSAL_SHOWS = (
    "A release is refused if its bound is above the target or a fit does not converge (fallback: refuse). So it depends on "
    "the records that this release was made at all. No ε covers that."
)
FALLBACK_SHOWS = "Whether the declared fallback was taken depends on the records and can be seen in the release."
CLAMPED = (
    "Each record multiplies a set's posterior by a factor. Its logarithm is clamped to ±ε/2, where ε is that of one set. "
    "Under substitution it is clamped to ±ε/4. This holds for any data. [G] states ±ε/2 for substitution too, but that "
    "guarantees only 2ε."
)
WEIGHTS_MOVE = (
    "With fixed privacy weights, the clamp would give a strict guarantee. These privacy weights are computed from the "
    "confidential file, so one record can change the weights of all others."
)
CENTRED = (
    "Log likelihoods are centred at the reference's fit. This fit, the power of the likelihood and the clamp were fixed on "
    "the reference alone, before the current file's outcomes were used. The check for a spurious mode of the posterior "
    "also used the reference alone."
)
FROZEN = (
    "A record's privacy weight is a fixed function of the record: the weight rule's value under fits of the reference "
    "alone."
)
SCORED = (
    "Every record's scores lie within the reference's range. Parameters have no such range, so no bound over every file "
    "follows."
)
WORDS = Words()
"""None: the texts of the likelihood and of its draws are used."""


def model_of(job: Job) -> Builder:
    """The likelihood that the job names."""
    return LIKELIHOODS.named(job.likelihood.family)
