"""Measures of similarity between synthetic sets and a file of coded columns, which several kinds of study share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpdist.evaluation.microdata.coded import Coded
from dpdist.evaluation.microdata.marginals import total_variation
from dpdist.evaluation.microdata.propensity import propensity
from dpdist.studies.kinds.protocol import Caption

_APART = "Half the L1 distance between shares of synthetic records and of the file's, mean over marginals and sets."


def apart(what: str) -> Caption:
    """The caption of a mean total variation."""
    return Caption(f"total variation of {what}", _APART)


CAPTIONS = {"one_way": apart("single columns"), "two_way": apart("pairs of columns")}
"""Captions of the measures of `similarity`, apart from SPECKS, for which a study names the predictors."""


def over_sets(measure: Callable[[Coded], float], sets: Sequence[Coded]) -> float:
    """The mean of a measure over synthetic sets."""
    return float(np.mean([measure(each) for each in sets]))


def similarity(file: Coded, sets: Sequence[Coded]) -> Mapping[str, float]:
    """Total variation of single columns and of pairs of columns, and SPECKS, each as a mean over sets."""
    return {
        "one_way": float(np.mean([total_variation(file, each, 1) for each in sets])),
        "two_way": float(np.mean([total_variation(file, each, 2) for each in sets])),
        "specks": over_sets(lambda each: propensity(file, each).specks, sets),
    }
