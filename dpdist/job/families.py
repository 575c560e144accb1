"""Families of models in public terms: what outcomes they take, whether they model the weight."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats
from dpdist.job import SAMPLERS, Family, Job, Statistics


@dataclass(frozen=True)
class Support:
    """Values that an outcome can take: an interval, its ends left out if `open`, whole numbers only if `whole`."""

    text: str
    low: float = -np.inf
    high: float = np.inf
    open: bool = False
    whole: bool = False

    def inside(self, values: Floats) -> NDArray[np.bool_]:
        """True where a value lies in the interval, shape (record,)."""
        if self.open:
            return (values > self.low) & (values < self.high)
        return (values >= self.low) & (values <= self.high)


@dataclass(frozen=True)
class FamilyFacts:
    """`weight`: whether the model has the sampling weight as a component, always, never or if the job names one.

    `density` says of what f_i is the density, for the statement; of statistics, the mechanism's words say it. `law` names
    the parametric law that records are taken to have, where there is one that a real file may not have.
    """

    density: str
    support: Support
    weight: bool | None
    predictors: bool
    law: str = ""
    logs: bool = False
    """It models logarithms."""
    synthesis: bool = False
    """A job chooses the law of its synthetic records: the sample's (fbs), or the population's (fbp)."""
    on_reference: bool = False
    """It stands on the reference's distributions."""
    program: bool = False
    """It is a user's Stan program."""


POSITIVE = Support("values above 0", low=0.0, open=True)
UNIT = Support("values above 0 and below 1", low=0.0, high=1.0, open=True)
COUNT = Support("whole numbers of at least 0", low=0.0, whole=True)
BINARY = Support("0 or 1", low=0.0, high=1.0, whole=True)


def families_for(values: Collection[float]) -> str:
    """Families that can take these values, as a text: those for few values first."""
    known = {name: FAMILIES[name].support for name in get_args(Family)}
    fit = [(name, support) for name, support in known.items() if all(support.inside(np.array(list(values))))]
    return ", ".join(name for name, _ in sorted(fit, key=lambda each: not np.isfinite(each[1].high)))


FAMILIES: dict[Family | Statistics, FamilyFacts] = {
    "lognormal": FamilyFacts(
        "normal density of (log {outcome}, log {weight})", POSITIVE, True, True, "lognormal", logs=True, synthesis=True
    ),
    "beta": FamilyFacts("beta density of {outcome}", UNIT, False, False, "beta"),
    "beta_regression": FamilyFacts("beta density of {outcome}", UNIT, False, True, "beta"),
    "poisson": FamilyFacts("Poisson probability of {outcome}", COUNT, False, False, "Poisson"),
    "negative_binomial": FamilyFacts(
        "negative binomial probability of {outcome}", COUNT, False, False, "negative binomial"
    ),
    "poisson_regression": FamilyFacts("Poisson probability of {outcome}", COUNT, False, True, "Poisson"),
    "bernoulli": FamilyFacts("probability of {outcome}", BINARY, False, False),
    "scores": FamilyFacts(
        "normal density of the scores of {weight} and, given it, of {outcome} under the reference's distributions, "
        "relative to the reference's own",
        *(Support("numbers"), True, True),
        on_reference=True,
    ),
    "histogram": FamilyFacts("", Support("numbers"), False, False),
    "cell_sums": FamilyFacts("", Support("numbers"), None, False),
    "regularised_cells": FamilyFacts("", Support("numbers"), None, False),
    "noisy_tables": FamilyFacts("", Support("numbers"), None, False),
    "reference_cells": FamilyFacts("", Support("numbers"), None, False),
    "sufficient": FamilyFacts("", Support("numbers"), None, False),
    "partition": FamilyFacts("", Support("numbers"), None, False),
    "marginals": FamilyFacts("", Support("numbers"), None, False),
    "user": FamilyFacts("log_lik of the user's program", Support("numbers"), None, True, "user's", program=True),
}


def family_facts(job: Job) -> FamilyFacts:
    """Of the family of a job, or of the statistics that its mechanism has in its place."""
    return FAMILIES[job.family]


def parametric(family: Family | Statistics) -> bool:
    """True if the family is a parametric law with a posterior that needs no Markov chain: its fit to a file is quick."""
    return bool(FAMILIES[family].law) and any(name != "stan" for name in SAMPLERS[family])
