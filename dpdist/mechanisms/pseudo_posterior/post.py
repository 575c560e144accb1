"""The public half of pseudo and clamped posteriors: the likelihood of the job's family, and the texts of a statement."""

from __future__ import annotations

from dpdist.job import Job, WeightRule
from dpdist.mechanisms.parts import Words
from dpdist.models import LIKELIHOODS
from dpdist.models.protocol import Builder

HALF_EXCEED = "exact leave-one-out losses with the weights computed anew exceeded ε on about half of the samples tried"
EXCEEDS: dict[WeightRule, str] = {
    "linear": f"With linear privacy weights, {HALF_EXCEED}.",
    "cluster": (
        "With cluster privacy weights, 2 of 48 records left out of a simulated survey, with the weights computed anew, "
        "lost more than ε, up to 1.2 ε."
    ),
    "scalar": (
        "With scalar privacy weights one outlier moves every record's. With and without a record at 8 standard deviations, "
        "among 1,000, the log ratio of draws reached 155 at ε = 3.6. Of 48 records left out of a simulated survey 3 lost "
        "more than ε, up to 2.7 ε."
    ),
    "inverse": (
        "With inverse privacy weights one outlier can move every record's. With and without a record at 25 standard "
        "deviations, among 1,000, the log ratio of draws reached 87 at ε = 3.6; one at 8 among 100 reached 16."
    ),
    "fixed_point": (
        "This release uses fixed-point privacy weights. In tests on other, simulated files with outliers a record's exact "
        "loss exceeded the observed bound in 17 of 516 strata. It reached 6.5 times ε where a tenth of a small stratum's "
        "records lay far off."
    ),
}
"""By weight rule, the exact losses that were measured above ε. The loss of the release itself may be larger.

For `fixed_point` the text counts losses above the bound observed on the file.
"""
UNMEASURED = (
    "What exact losses {} privacy weights have, computed anew with and without a record, was not measured on other files."
)
"""Text for a rule that is missing in `EXCEEDS`. No present rule is missing there."""
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
