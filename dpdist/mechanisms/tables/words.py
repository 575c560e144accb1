"""Texts of `tables`, for its `post`: of the statement, and definitions of measurements."""

from __future__ import annotations

from dpdist.estimation.donors import DONORS, FEWEST
from dpdist.mechanisms.parts import Words

OF_WEIGHT = (
    "the sum of (w - p - c) / L, with w the weight, p its prediction, c the cell's centre and L its weight_cap; both "
    "residuals of a record are scaled until their sizes sum to at most 1"
)
OF_OUTCOME = (
    "the sum of (w (y - m) - p (q - m)) / H, with y the outcome, q its prediction, m the cell's predicted mean, and H the "
    "half_width; w, p and the scaling as in the sum of weight residuals"
)
DEFINITIONS = {"weight residuals": OF_WEIGHT, "outcome residuals": OF_OUTCOME}
"""Definitions of the measured sums by statistic, for the metadata of measurements.parquet."""

WORDS = Words(
    density=(
        "noisy sums, by cell of every table, of what a prediction from the reference leaves of {weight}, and of {weight} "
        "times {outcome}"
    ),
    errors=(
        "Estimator `parameters`: composition of the sample over base cells, its sampling error within them, noise, errors "
        "of the prediction, and drift since the reference. Draws come from the posterior that made the tables."
    ),
    errors_of_records=(
        "Estimator `records`: synthetic records agree with the table from parameters and have its error; synthesis adds "
        "none."
    ),
    steps=(
        "All figures are sums of one estimate of the base cells, so that all tables agree. It is the posterior mean of the "
        "residual sums given all noisy sums, added to the prediction.",
        "Base cells are set within public bounds. Then they are raked to the sums that the measured cells had.",
        f"A synthetic record takes its weight and outcome from one donor, a record of the reference (released/{DONORS}).",
        f"A donor is of the record's own base cell, or of those most like it where that has fewer than {FEWEST}.",
        "Weights in a base cell are tilted until it has its estimates. Where weights cannot do it, outcomes move.",
        "Synthetic records agree with all tables. What else they tell of a column is the reference's, not measured.",
    ),
)
