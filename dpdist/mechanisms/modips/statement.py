"""Texts for the statement of a release by `modips`: noisy sufficient statistics and a posterior given them."""

from __future__ import annotations

from dpdist.mechanisms.words import WIDE, Words

MOMENTS_SANITIZED = (
    "A record enters its cell by 1 − v and vu, v its weight and u its outcome (or log outcome) in half widths of the "
    "public bounds. It enters the file by v(u² − 1/2); without weights by u and u² − 1/2. Switching it off moves these "
    "sums by at most 3/2 in L1, and other values at the same x by at most 5/2. All have discrete Laplace noise."
)
LOCATION_SANITIZED = (
    "A record enters its cell by 1 − v and vu, v its weight and u its outcome in half widths of the public bounds; without "
    "weights by u. Switching it off moves these sums by at most 1 in L1, and other values at the same x by at most 2. Both "
    "have discrete Laplace noise. The variance is the job's, and stated to be public."
)
LEVELS_SANITIZED = (
    "A record enters its cell by 1 − v and its cell's level by v, v its weight; without weights by 1. Switching it off "
    "moves these sums by at most 1 in L1, and another level at the same x by at most 2. All have discrete Laplace noise."
)
SANITIZATION = {
    "conjoint": "All sums have noise of one scale, for their L1 sensitivity and a sanitization's ε.",
    "individual": "Each kind of sum has an equal part of a sanitization's ε, and noise for its own sensitivity.",
}
TRUNCATION = {
    "clamped": "A noisy sum beyond its public domain is set to the nearest end, which is post-processing.",
    "bounded": (
        "Noisy sums follow the law truncated to their public domains. Its scale is the sensitivity over "
        "C log((1 + e^(ε/C))/2), C the number of sums that one record can move. That pays for the truncation."
    ),
    "renormalised": "",
}
NESTED = "By post-processing, {} synthetic sets follow from every sanitization."
MOVES_UNCLAIMED = (
    "A record that changes cells is not covered: public counts show it, and nothing is claimed for the noisy sums."
)
LAW_AGAIN = (
    "Estimator `parameters`: composition of the sample over cells, the spread of the posterior given the first set's "
    "sums, and other noise with another draw, simulated. Weights count there by their share of the public bound. How "
    "weights vary within a cell was not released and is not in the errors of counts. The bias of another law is in none."
)


WORDS = Words(
    density=(
        "noisy sums of bounded functions of {weight} and {outcome}, sufficient for the law that the job names, and a law "
        "drawn from its posterior given them"
    ),
    errors=f"{LAW_AGAIN} {WIDE}",
    steps=(
        "Parameters are drawn from the posterior given the noisy sums, which are set into their public ranges and then "
        "taken as exact. Synthetic outcomes follow the law of these parameters, with their cell's mean weight. The prior "
        "of an outcome with K levels is worth one record of a cell, 1/K a level.",
        "Who analyses the synthetic sets alone has T = B/m + W with (m − 1)(1 + mW/B)² degrees of freedom. With one set "
        "the noise is in no estimate of T. Of nested sets B is between the means of every sanitization's sets, and m is "
        "the number of sanitizations.",
        "Weights of the sample vary within cells and those of synthetic records do not, so that W lacks a design effect. "
        "Multiply W by the weight's public upper bound over the records' mean weight: it is then no smaller than the "
        "sample's own variance of a mean (Σw² is at most the bound times Σw).",
    ),
)
