"""Texts for the statement of a release by `sanitized_statistics`: noisy winsorised moments of logarithms."""

from __future__ import annotations

from dpdist.mechanisms.words import Words

SANITIZED = (
    "A record enters one base cell by its logarithms' distance from the cell's reference mean, whitened and winsorised "
    "by the reference. It enters the pooled second moments by the square of this distance. The L1 norm of both, in their "
    "shares of the budget, is at most 1. So switching a record off moves all sums by at most 1, and other values at the "
    "same x by at most 2. All have discrete Laplace noise of that scale over ε."
)
SANITIZED_GAUSSIAN = (
    "A record enters one base cell by its logarithms' distance from the cell's reference mean, whitened and winsorised "
    "by the reference. It enters the pooled second moments by the square of this distance. The L2 norm of both, in their "
    "shares of ρ, is at most 1. So switching a record off moves all sums by at most 1, and other values at the same x by "
    "at most 7/4. All have discrete Gaussian noise of σ = that over √(2ρ)."
)
LOGNORMAL_SHAPE = (
    "Whitening and what winsorising loses come from the reference alone. Within cells logarithms are taken as normal: the "
    "bias of another law is in no standard error."
)
SETS_ARE_FREE = "one noisy statistic, from which every synthetic set follows by post-processing"
FIT_AGAIN = (
    "Estimator `parameters`: composition of the sample over cells, and the law of the fit's errors. These are sampling "
    "error of the winsorised moments, noise, the reference's own error where a cell was shrunk towards the others, and "
    "its tails. The bias of a law that is not lognormal is not in it."
)
SETS_DRAWN = (
    "Estimator `records`: V + (V + W)/m. V is the variance of the fit's estimate, as often as sets were drawn from it, "
    "and W that by linearisation within a set."
)


INVERTED = (
    "Winsorising is undone by the cells' shifts and the common stretch of logarithms under which the reference has the "
    "noisy moments. Cells {}. The stretch is kept between a half and twice the reference's in every direction. Tables "
    "from parameters are the fit's; synthetic sets follow draws from the law of its errors."
)
SHRUNK = {True: "are shrunk to their common shift as far as noise moved them", False: "are not shrunk"}
WORDS = Words(
    errors=FIT_AGAIN,
    errors_of_records=SETS_DRAWN,
    settings={"shrinkage": {shrunk: INVERTED.format(how) for shrunk, how in SHRUNK.items()}},
)
