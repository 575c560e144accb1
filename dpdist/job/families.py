"""Lists families of likelihoods in public terms: allowed outcomes, the weight as a component, and samplers.

A new family is a name in `Family`, a line in `FAMILIES`, a file in dpdist/models and a line in dpdist/models/__init__.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats
from dpdist.job.names import SamplerName, complete

Family = Literal[
    "lognormal",
    "beta",
    "beta_regression",
    "poisson",
    "negative_binomial",
    "poisson_regression",
    "bernoulli",
    "scores",
    "user",
]


@dataclass(frozen=True)
class Support:
    """Values that an outcome can have: an interval, without its ends if `open`, whole numbers only if `whole`."""

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

    `samplers` are the ways to sample its posterior; the first is taken where a job says auto, and a clamp leaves no closed
    form. `density` says of what f_i is the density, for the statement; of statistics, the mechanism's words say it. `law`
    names the parametric law that records are taken to have, where there is one that a real file may not have.
    """

    density: str
    support: Support
    weight: bool | None
    predictors: bool
    samplers: tuple[SamplerName, ...] = ()
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


FAMILIES: dict[Family, FamilyFacts] = {
    "lognormal": FamilyFacts(
        "normal density of (log {outcome}, log {weight})",
        *(POSITIVE, True, True),
        ("exact", "stan"),
        "lognormal",
        logs=True,
        synthesis=True,
    ),
    "beta": FamilyFacts("beta density of {outcome}", UNIT, False, False, ("grid", "stan"), "beta"),
    "beta_regression": FamilyFacts("beta density of {outcome}", UNIT, False, True, ("stan",), "beta"),
    "poisson": FamilyFacts("Poisson probability of {outcome}", COUNT, False, False, ("exact", "stan"), "Poisson"),
    "negative_binomial": FamilyFacts(
        "negative binomial probability of {outcome}", COUNT, False, False, ("grid", "stan"), "negative binomial"
    ),
    "poisson_regression": FamilyFacts("Poisson probability of {outcome}", COUNT, False, True, ("stan",), "Poisson"),
    "bernoulli": FamilyFacts("probability of {outcome}", BINARY, False, False, ("exact", "stan")),
    "scores": FamilyFacts(
        "normal density of the scores of {weight} and, given it, of {outcome} under the reference's distributions, "
        "relative to the reference's own",
        *(Support("numbers"), True, True, ("exact",)),
        on_reference=True,
    ),
    "user": FamilyFacts("log_lik of the user's program", Support("numbers"), None, True, ("stan",), "user's", program=True),
}
complete("family", get_args(Family), FAMILIES, "FAMILIES in dpdist/job/families.py, with what it takes and its samplers")
SAMPLERS: dict[str, tuple[SamplerName, ...]] = {name: facts.samplers for name, facts in FAMILIES.items()}
"""How posteriors of a family can be sampled."""


class _Mechanism(Protocol):
    @property
    def statistics(self) -> str | None: ...

    @property
    def counts_records(self) -> bool: ...


class Fitted(Protocol):
    """What a job says of its family: the likelihood's, or the statistics that its mechanism sums in its place."""

    @property
    def family(self) -> str: ...

    @property
    def mechanism(self) -> _Mechanism: ...


def family_facts(job: Fitted) -> FamilyFacts:
    """The facts of a job's family, or of the statistics that its mechanism has in its place."""
    if job.mechanism.statistics is None:
        return facts_of(job.family)
    return FamilyFacts("", Support("numbers"), False if job.mechanism.counts_records else None, False)


def facts_of(family: str) -> FamilyFacts:
    """The facts of a family by its name; raises `KeyError` where there is no such family."""
    return {str(name): facts for name, facts in FAMILIES.items()}[family]


def parametric(family: str) -> bool:
    """True if the family is a parametric law with a posterior that needs no Markov chain: its fit to a file is quick."""
    return family in SAMPLERS and bool(facts_of(family).law) and any(name != "stan" for name in SAMPLERS[family])
