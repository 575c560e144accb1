"""Public facts on families of likelihoods: outcomes that they allow, use of the weight, samplers.

A new family is a name in `Family`, a line in `FAMILIES` and in `PLACES`, and a file in dpdist/models. A plug-in's
family is an entry point.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from dpdist.core.plugins import FAMILIES as GROUP
from dpdist.core.plugins import MemberName, Members
from dpdist.core.records import Floats
from dpdist.job.values import SamplerName, complete

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
    """Values that an outcome can have: an interval, without its ends if `open`, and only whole numbers if `integer`."""

    text: str
    low: float = -np.inf
    high: float = np.inf
    open: bool = False
    integer: bool = False

    def inside(self, values: Floats) -> NDArray[np.bool_]:
        """True if a value lies in the interval, (record,)."""
        if self.open:
            return (values > self.low) & (values < self.high)
        return (values >= self.low) & (values <= self.high)

    def takes(self, values: Floats) -> NDArray[np.bool_]:
        """True if a value lies in the interval and is whole where it must be, (record,)."""
        return self.inside(values) & (not self.integer or values == np.rint(values))


@dataclass(frozen=True)
class FamilyFacts:
    """Facts about a family.

    `weight` says whether it models the sampling weight. True: always; False: never; None: if the job has a weight.

    `samplers` are the ways to sample its posterior. `auto` takes the first possible one: a clamped posterior excludes
    `exact`, because it has no closed form. `density` is a text for the statement on what the likelihood is a density
    of. `law` names a parametric law that real files may violate; empty if there is none.
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
COUNT = Support("whole numbers of at least 0", low=0.0, integer=True)
BINARY = Support("0 or 1", low=0.0, high=1.0, integer=True)


def families_for(values: Collection[float]) -> str:
    """Names of the families that allow these values, as text; bounded supports come first."""
    supports = {name: FAMILIES[name].support for name in get_args(Family)}
    fit = [(name, support) for name, support in supports.items() if all(support.takes(np.array(list(values), dtype=float)))]
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
PLACES = {
    "lognormal": "dpdist.models.lognormal.model:Lognormal",
    "beta": "dpdist.models.beta:Beta",
    "beta_regression": "dpdist.models.beta:BetaRegression",
    "poisson": "dpdist.models.poisson:Poisson",
    "negative_binomial": "dpdist.models.negative_binomial:NegativeBinomial",
    "negative_binomial_mixture": "dpdist.models.negative_binomial:NegativeBinomialMixture",
    "poisson_regression": "dpdist.models.poisson:PoissonRegression",
    "bernoulli": "dpdist.models.bernoulli:Bernoulli",
    "scores": "dpdist.models.copula.model:Scores",
    "user": "dpdist.models.user:User",
}
"""Places of dpdist's model classes by family; a plug-in's place is its entry point."""
complete("family", get_args(Family), PLACES, "PLACES in dpdist/job/families.py, with the place of its model")
METHODS = ("build", "parameters", "statistics", "log_lik", "extremes", "simulate", "expect", "until")
"""What the model of a plug-in's family must have, beside the method of its sampler."""
DRAWING = {"exact": "draw", "grid": "draw_on_grid"}
"""The method that each allowed sampler of a plug-in's family needs."""


def _fault(name: str, member: Any) -> str:
    if name in PLACES:
        return ""
    facts = getattr(member, "facts", None)
    if not isinstance(member, type) or not isinstance(facts, FamilyFacts):
        return "is not a class with facts: write facts: ClassVar[FamilyFacts]"
    if not facts.samplers or not set(facts.samplers) <= DRAWING.keys():
        return f"has other samplers than a plug-in can have: state one or more of {', '.join(DRAWING)} in its facts"
    if facts.weight or facts.predictors or facts.logs or facts.synthesis or facts.on_reference or facts.program:
        return "models more than an outcome alone, which a plug-in cannot: state weight=False, predictors=False"
    methods = (*METHODS, *(DRAWING[sampler] for sampler in facts.samplers))
    if lacking := [method for method in methods if not hasattr(member, method)]:
        return f"has no {', '.join(lacking)}: write what is missing in {member.__name__}"
    return ""


MODELS: Members[Any] = Members(GROUP, PLACES, _fault)
"""Classes of models by the family's name."""
FamilyName = Annotated[str, MemberName("family", MODELS)]
"""The family of a job: one of `Family`, or a plug-in's."""


class _Mechanism(Protocol):
    @property
    def statistics(self) -> str | None: ...

    @property
    def counts_records(self) -> bool: ...


class FamilyOfJob(Protocol):
    """What `family_facts` needs of a job: its family, or the statistics of a mechanism without likelihood."""

    @property
    def family(self) -> str: ...

    @property
    def mechanism(self) -> _Mechanism: ...


def family_facts(job: FamilyOfJob) -> FamilyFacts:
    """The facts of a job's family, or of the statistics that its mechanism sums."""
    if job.mechanism.statistics is None:
        return facts_of(job.family)
    return FamilyFacts("", Support("numbers"), False if job.mechanism.counts_records else None, False)


def facts_of(family: str) -> FamilyFacts:
    """The facts of a family by name, dpdist's or a plug-in's. Raises `KeyError` for an unknown name."""
    if family in PLACES:
        return {str(name): facts for name, facts in FAMILIES.items()}[family]
    facts: FamilyFacts = MODELS.plugged_in(family)[1].facts
    return facts


def samplers_of(family: str) -> tuple[SamplerName, ...]:
    """The samplers of a family's posterior; empty for a mechanism's statistics."""
    try:
        return facts_of(family).samplers
    except KeyError:
        return ()


def parametric(family: str) -> bool:
    """True for a parametric law whose posterior needs no Markov chains, so that fitting is fast."""
    samplers = samplers_of(family)
    return bool(samplers) and bool(facts_of(family).law) and any(name != "stan" for name in samplers)
