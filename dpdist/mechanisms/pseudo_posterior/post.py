"""Public half of pseudo and clamped posteriors: the family's model, and texts of the statement."""

from __future__ import annotations

from dpdist.job import MODELS, Job
from dpdist.mechanisms.parts import Words
from dpdist.models.protocol import StratumModel
from dpdist.privacy.weights import HALF_EXCEED, above_epsilon

UNMEASURED = above_epsilon("{}", "its exact loss was not measured")
"""Text for a rule without measured losses. Every rule of dpdist has them."""
REWEIGHTED_EXCEEDS = above_epsilon("re-weighted", HALF_EXCEED)
OBSERVED = "The bound is estimated from this file with {draws:,} posterior draws. It does not hold for every file."
ON_THIS_FILE = "Privacy weights are computed from the confidential file."
REFUSAL_SHOWS = (
    "A release is refused if its bound exceeds the target or a fit does not converge (fallback: refuse). Whether a "
    "release exists at all therefore depends on the records, and ε does not cover this."
)
FALLBACK_SHOWS = "Whether the declared fallback was used depends on the records and can be seen in the release."
CLAMPED = (
    "Whatever the data, each record's contribution to the log posterior density of a synthetic set is clamped to ±ε/2 "
    "(±ε/4 under substitution), where ε is the budget of that set. The paper [G] states ±ε/2 for substitution, too, but "
    "this guarantees only 2ε."
)
WEIGHTS_MOVE = (
    "With fixed privacy weights the clamp would give a strict guarantee. Here they are computed from the "
    "confidential file, so one record can change the weights of all others."
)
CENTRED = (
    "Log likelihoods are centred at the reference's fit. This fit, the power of the likelihood, the clamp and the "
    "check for a spurious mode of the posterior use the reference only."
)
FROZEN = (
    "A record's privacy weight is a fixed function of the record: the weight rule is applied to it with fits to the "
    "reference."
)
SCORED = (
    "Records' scores lie within the reference's range, but parameters have no such range, so there is no bound for "
    "every file."
)
WORDS = Words()
"""None: the texts of the likelihood and of its draws are used."""


def model_of(job: Job) -> type[StratumModel]:
    """The likelihood that the job names."""
    model: type[StratumModel] = MODELS.named(job.likelihood.family)
    return model
