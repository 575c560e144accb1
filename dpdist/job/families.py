"""Lists the families of likelihoods, each with the outcomes that it allows, its use of the weight, and its samplers.

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
    "negative_binomial_mixture",
    "poisson_regression",
    "bernoulli",
    "scores",
    "user",
]


@dataclass(frozen=True)
class Support:
    """Values that an outcome can have: an interval, without its ends if `open`, and only whole numbers if `whole`."""

    text: str
    low: float = -np.inf
    high: float = np.inf
    open: bool = False
    whole: bool = False

    def inside(self, values: Floats) -> NDArray[np.bool_]:
        """True where a value lies in the interval, (record,)."""
        if self.open:
            return (values > self.low) & (values < self.high)
        return (values >= self.low) & (values <= self.high)


@dataclass(frozen=True)
class FamilyFacts:
    """Facts about a family.

    `weight` says whether it models the sampling weight: always, never, or (None) if the job names one.

    `samplers` are the ways to sample its posterior. `auto` takes the first that is possible: a clamped posterior has no
    closed form, so `exact` is not. `density` is a text for the statement: of what the likelihood is a density. `law` names
    a parametric law that a real file may not follow; it is empty where there is none.
    """

    density: str
    support: Support
    weight: bool | None
    predictors: bool
    samplers: tuple[SamplerName, ...] = ()
    law: str = ""
    logs: bool = False
    """True if the family models logarithms."""
    synthesis: bool = False
    """True if a job can choose the law of its synthetic records: the sample's (fbs) or the population's (fbp)."""
    on_reference: bool = False
    """True if the family uses the reference's distributions."""
    program: bool = False
    """True for a user's Stan program."""


POSITIVE = Support("values above 0", low=0.0, open=True)
UNIT = Support("values above 0 and below 1", low=0.0, high=1.0, open=True)
COUNT = Support("whole numbers of at least 0", low=0.0, whole=True)
BINARY = Support("0 or 1", low=0.0, high=1.0, whole=True)


def families_for(values: Collection[float]) -> str:
    """Names of the families that allow these values, as text; those for few values come first."""
    supports = {name: FAMILIES[name].support for name in get_args(Family)}
    fit = [(name, support) for name, support in supports.items() if all(support.inside(np.array(list(values))))]
    return ", ".join(name for name, _ in sorted(fit, key=lambda member: not np.isfinite(member[1].high)))


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
    "negative_binomial_mixture": FamilyFacts(
        "probability of {outcome} under a mixture of two negative binomial laws with one mean",
        *(COUNT, False, False),
        ("stan",),
        "mixed negative binomial",
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
"""The samplers for each family's posterior."""


class _Mechanism(Protocol):
    @property
    def statistics(self) -> str | None: ...

    @property
    def counts_records(self) -> bool: ...


class Fitted(Protocol):
    """What `family_facts` needs of a job: its family, and the statistics of a mechanism that fits none."""

    @property
    def family(self) -> str: ...

    @property
    def mechanism(self) -> _Mechanism: ...


def family_facts(job: Fitted) -> FamilyFacts:
    """The facts of a job's family, or of the statistics that its mechanism sums instead."""
    if job.mechanism.statistics is None:
        return facts_of(job.family)
    return FamilyFacts("", Support("numbers"), False if job.mechanism.counts_records else None, False)


def facts_of(family: str) -> FamilyFacts:
    """The facts of a family by name. Raises `KeyError` for an unknown name."""
    return {str(name): facts for name, facts in FAMILIES.items()}[family]


def parametric(family: str) -> bool:
    """True if the family is a parametric law whose posterior needs no Markov chains, so that a fit takes little time."""
    return family in SAMPLERS and bool(facts_of(family).law) and any(name != "stan" for name in SAMPLERS[family])
