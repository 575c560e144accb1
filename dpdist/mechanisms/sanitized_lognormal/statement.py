"""What statements say of winsorised moments of logarithms."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.job.mechanisms import SanitizedStatistics
from dpdist.mechanisms.words import ReleaseView, Words

SANITIZED = (
    "a record enters one finest cell by its logarithms' distance from the cell's reference mean, whitened and winsorised "
    "by the reference, and the pooled second moments by its square; the L1 norm of both, in their shares of the budget, "
    "is at most 1, so switching a record off moves all sums by at most 1, and other values at the same x by at most 2; all "
    "have discrete Laplace noise of that scale over ε"
)
SANITIZED_GAUSSIAN = (
    "a record enters one finest cell by its logarithms' distance from the cell's reference mean, whitened and winsorised "
    "by the reference, and the pooled second moments by its square; the L2 norm of both, in their shares of ρ, is at most "
    "1, so switching a record off moves all sums by at most 1, and other values at the same x by at most 7/4; all have "
    "discrete Gaussian noise of σ = that over √(2ρ)"
)
LOGNORMAL_SHAPE = (
    "whitening and what winsorising loses come from the reference alone, and within cells logarithms are taken as normal: "
    "the bias of another law is in no standard error"
)
SETS_ARE_FREE = "all {} synthetic sets follow from one noisy statistic, by post-processing"
FIT_AGAIN = (
    "estimator `parameters`: composition of the sample over cells, and the law of the fit's errors: sampling error of the "
    "winsorised moments, noise, the reference's own error where a cell was shrunk towards the others, and its tails; the "
    "bias of a law that is not lognormal is not in it"
)
SETS_DRAWN = (
    "estimator `records`: V + (V + W)/m, V the variance of the fit's estimate, as often as sets were drawn from it, W by "
    "linearisation within a set"
)


@dataclass(frozen=True)
class SanitizedWords(Words):
    """Of winsorising undone by the cells' shifts."""

    def post_processing(self, release: ReleaseView) -> list[str]:
        assert isinstance(release.job.mechanism, SanitizedStatistics)
        moved = "are shrunk to their common shift as far as noise moved them"
        how = moved if release.job.mechanism.shrinkage else "are not shrunk"
        return [
            "winsorising is undone by the cells' shifts and the common stretch of logarithms under which the reference has "
            f"the noisy moments; cells {how}; the stretch is kept between a half and twice the reference's in every "
            "direction; tables from parameters are the fit's, synthetic sets follow draws from the law of its errors"
        ]


WORDS = SanitizedWords(errors=FIT_AGAIN, errors_of_records=SETS_DRAWN)
