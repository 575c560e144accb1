"""Lists all similarity measures between a published file of coded columns and the confidential file. It is confidential."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.quality.microdata.coded import Coded
from dpdist.quality.microdata.marginals import equivalent_share, k_marginal_score, subsample_scores, total_variation
from dpdist.quality.microdata.propensity import propensity
from dpdist.quality.microdata.regression import fitted, overlap

ORDERS = (1, 2, 3)
MOST_LEVELS = 50
"""Largest number of levels of a column that a regression uses."""


def measured(confidential: Coded, synthetic: Coded, rng: np.random.Generator, outcome: int = 0) -> Mapping[str, float]:
    """Measures by name, with weights and without.

    `outcome` is the column whose second level a logistic regression predicts.
    """
    measures: dict[str, float] = {}
    orders = [
        order
        for order in ORDERS
        if order <= len(confidential.sizes) and len(total_variation(confidential, confidential, order))
    ]
    for name, one, other in (
        ("weighted", confidential, synthetic),
        ("unweighted", confidential.unweighted, synthetic.unweighted),
    ):
        for order in orders:
            measures[f"{name} total_variation_{order}"] = float(total_variation(one, other, order).mean())
        score = k_marginal_score(one, other, orders[-1])
        measures[f"{name} k_marginal_score"] = score
        measures[f"{name} subsample_share"] = equivalent_share(score, subsample_scores(one, orders[-1], rng))
        few = tuple(k for k, size in enumerate(confidential.sizes) if size <= MOST_LEVELS)
        measures[f"{name} pmse"], measures[f"{name} specks"] = propensity(one.about(few), other.about(few))
        predictors = tuple(k for k in few if k != outcome)
        fits = [fitted(records, outcome, 1, predictors) for records in (one, other)]
        if predictors:
            measures[f"{name} regression_overlap"] = float(overlap(*fits)[1:].mean())
    return measures
