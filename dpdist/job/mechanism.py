"""Base class of every mechanism's `spec.py`: constants, guarantee, facts for the other rooms; contradictions between keys.

The rest of dpdist asks a job's mechanism for these facts, and never for its name. This module holds what several mechanisms
share; `mechanisms` lists the specifications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from math import ceil, floor, inf
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from pydantic import Field, model_validator

from dpdist.job.budget import ReleaseBudget
from dpdist.job.data import Column, Survey
from dpdist.job.families import FamilyFacts, Model, Record, Sampler, Support, facts_of, samplers_of
from dpdist.job.reference import Reference
from dpdist.job.rules import Contradiction, broken
from dpdist.job.tables import Rake
from dpdist.job.values import LEAST_BUDGET, TOO_LITTLE, Fallback, Frozen, Guarantee, StatisticName
from dpdist.job.weights import WEIGHT_RULES, RuleOrName, Weights, rule_of


class JobView(Protocol):
    """Keys of a job, and facts that follow from them. Guarantees and refusals depend on nothing else."""

    @property
    def columns(self) -> Mapping[str, Column]: ...

    @property
    def survey(self) -> Survey: ...

    @property
    def strata(self) -> tuple[str, ...]: ...

    @property
    def outcomes(self) -> tuple[str, ...]: ...

    @property
    def likelihood(self) -> Model: ...

    @property
    def family(self) -> str: ...

    @property
    def budget(self) -> ReleaseBudget: ...

    @property
    def mechanism(self) -> Any: ...

    @property
    def synthetic_sets(self) -> int: ...

    @property
    def epsilon_per_set(self) -> Fraction: ...

    @property
    def reference(self) -> Reference | None: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def record(self) -> Record: ...

    @property
    def rake(self) -> tuple[Rake, ...]: ...

    @property
    def most_records(self) -> int: ...

    @property
    def strict(self) -> bool: ...

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]: ...


def family_facts(job: JobView) -> FamilyFacts:
    """The facts of a job's family, or of the statistics that its mechanism sums."""
    if job.mechanism.statistics is None:
        return facts_of(job.family)
    return FamilyFacts("", Support("numbers"), False if job.mechanism.counts_records else None, False)


def declared(job: JobView) -> tuple[str, ...]:
    return tuple(name for name in job.outcomes if name in job.columns)


def near_column(job: JobView, name: str) -> str | None:
    """The declared column whose name is nearest to an undeclared one; None if none is near. Case is ignored."""
    names = {column.casefold(): column for column in job.columns}
    near = get_close_matches(name.casefold(), list(names), n=1)
    return names[near[0]] if near else None


def levels_between(column: Column) -> int:
    """Number of whole numbers between the public bounds; 0 without bounds."""
    return floor(column.bounds[1]) - ceil(column.bounds[0]) + 1 if column.bounds is not None else 0


def without_distinct_levels(job: JobView, outcome: str, who: str) -> Iterator[Contradiction]:
    """Reasons why an outcome has no distinct public levels. `who` names, in the message, what needs distinct levels."""
    column = job.columns[outcome]
    codes = column.codes or {}
    text, code = next(((text, code) for text, code in codes.items() if not float(code).is_integer()), (None, 0.0))
    facts: dict[str, object] = {
        "column": column,
        "cut": not all(float(end).is_integer() for end in column.bounds or ()),
        "text": text,
        "code": float(code),
        "missing": partial(_first_gap, column),
    }
    yield from broken("distinct_levels", job, name=outcome, who=who, **facts)


def _first_gap(column: Column) -> float | None:
    """A whole number between the bounds, or between smallest and largest code, that is not the code of a text."""
    codes = set((column.codes or {}).values())
    low, high = column.bounds or (min(codes), max(codes))
    return next((float(level) for level in range(ceil(low), floor(high) + 1) if level not in codes), None)


NO_WEIGHTS = Weights(rule="none")
Weighting: TypeAlias = Literal["tuned", "cut", "fixed"]
"""Privacy weights are searched until the bound is below the target; or fixed by the rule's constants, but 0 for records
whose bound is above the target (`cut`); or fixed. On a reference, some mechanisms aim below the target
(`aim_on_reference`).
"""
Sets: TypeAlias = Literal["protected", "drawn", "copied", "none"]
"""Each set is protected separately, so that estimates combine by T = B/m + W (METHODS §6). Or sets are drawn from the
released parameters, and their number costs nothing. Or each record copies all its values, and further columns, from one
reference record or point: the distribution is the reference's, and other cells supply what an empty reference cell lacks.
Or noise is added to every figure of whole tables, margins included, and the release has no record, and no outcome's
distribution.
"""
OwnKey: TypeAlias = Literal["accept", "hierarchies", "reference", "reference.release", "survey.design_weights"]
"""`accept`: gates are proven for the noise (METHODS §7c). `hierarchies`: one plan measures all tables together on the cross
of columns, by priority, target error and hierarchies; so sample counts are published that no table asks for, and small
ones are stated, and refuse a run only where the job states `frame_minimum`. `reference.release`: a release states totals
of its measured cells, from which a later one learns. `survey.design_weights`: nothing is spent on weights that are public.
"""


class MechanismSpec(Frozen):
    """How records are protected: a mechanism with its constants. Facts about it are class attributes."""

    name: str = Field(description="which mechanism")
    weights: RuleOrName = Field(
        default=NO_WEIGHTS, description="privacy weights: a rule's name, or the rule with its constants"
    )
    fallback: Fallback = Field(
        default="refuse",
        description="what to do if a stratum cannot be released: refuse the run, pool all strata, or use a proper prior",
    )

    package: ClassVar[str]
    """The package with the mechanism's code, which is imported at its first use.
    If unset, it is the package of `spec.py`.
    """
    statistics: ClassVar[str | None] = None
    """Name of the statistics that the mechanism sums if it fits no likelihood. Its jobs then have no `model`."""
    adds_noise: ClassVar[bool] = False
    """True if the mechanism releases sums under noise. It then has no posterior, no draws and no sampler."""
    counts_records: ClassVar[bool] = False
    """True if the mechanism counts records without their weights. A job then names no weight."""
    clamps: ClassVar[bool] = False
    """True if the mechanism draws from ∏ exp(clamp(α(f − g), ±M)), with log likelihood f and its centre g, or 0."""
    weighting: ClassVar[Weighting | None] = None
    """How privacy weights are found; None if the mechanism has none."""
    tabulates: ClassVar[bool] = False
    """True if the mechanism releases figures of the tables' cells, and no model of the records."""
    by_cell: ClassVar[bool] = False
    """True if the mechanism releases noisy sums of base cells, with weights clipped at limits that a reference fixes."""
    sums_weights: ClassVar[bool] = False
    """True if noisy sums are linear in the weights: they estimate secret numbers of records, and a weight may be 0."""
    sets: ClassVar[Sets] = "protected"
    """How synthetic sets are made."""
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset()
    """Keys of a job that only some mechanisms use, and this one does."""
    needs_reference: ClassVar[str] = ""
    """The reason why the mechanism needs a reference, as the middle of a sentence; empty if it needs none."""
    histogram_share: ClassVar[Fraction | None] = None
    """Share of a release's ε for noisy histograms of the current file, which may replace a reference, as they do if a job
    names none; None if they cannot.
    """
    gives: ClassVar[frozenset[StatisticName] | None] = None
    """Statistics that tables may have under the mechanism. If unset, tables may have all, those of plug-ins too."""
    several_outcomes: ClassVar[bool] = False
    """True if the mechanism adds noise to statistics of several outcomes together."""
    scanned: ClassVar[dict[str, tuple[int, ...]]] = {}
    """Whole-number constants that no budget determines, with the values that a calibration tries first."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Checks at import that a named specification states its guarantee and finds its package."""
        super().__pydantic_init_subclass__(**settings)
        name = cls.model_fields["name"].annotation
        if name is not str and cls.guarantee is MechanismSpec.guarantee:
            raise TypeError(f"{cls.__name__} does not state its guarantee: write guarantee(job) in its class")
        bases = (base for base in cls.__bases__ if issubclass(base, MechanismSpec))
        name_types: list[Any] = [base.model_fields["name"].annotation for base in bases]
        if name not in name_types and "package" not in vars(cls):
            cls.package = cls.__module__.rpartition(".")[0]

    @classmethod
    def of(cls, job: JobView) -> Self:
        """The mechanism of a job, which is of this class."""
        assert isinstance(job.mechanism, cls)
        return job.mechanism

    def __str__(self) -> str:
        """The mechanism's name, for messages."""
        return self.name

    def guarantee(self, job: JobView) -> Guarantee:
        """The class of the guarantee. Every specification states it, and promises are checked against it."""
        raise NotImplementedError(f"{type(self).__name__} does not state its guarantee")

    @classmethod
    def of_former(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """The section that means the same as one with the name of a mechanism of an earlier version (`specs.FORMER`)."""
        return dict(section)

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        """Variants that a rehearsal tries if the job has another mechanism, each a name and constants."""
        yield "", {}

    @classmethod
    def has_statistic(cls, name: StatisticName) -> bool:
        """True if tables may have the statistic under the mechanism."""
        return cls.gives is None or name in cls.gives

    def clips(self, job: JobView) -> bool:
        """True if weights and outcomes are clipped to public bounds before they are summed."""
        return False

    def noises(self, job: JobView) -> int:
        """Number of times that records were protected. Sets under one noise differ only by later draws."""
        return 1 if self.sets == "drawn" else job.synthetic_sets

    @classmethod
    def uses(cls, key: OwnKey) -> bool:
        """True if a key that only some mechanisms use has an effect under this one."""
        return key in cls.own_keys

    @property
    def centres(self) -> bool:
        """True if the likelihood is clamped about a fit to the reference, with an allowance for drift from it."""
        return self.clamps and bool(self.needs_reference)

    @property
    def spends(self) -> bool:
        """True if ε has an effect: by a clamp, by noise, or by weights that the bound tunes or cuts off."""
        tuned = self.weighting == "tuned" and self.weights.rule != "none"
        return self.adds_noise or self.clamps or self.weighting == "cut" or tuned

    @classmethod
    def bounded_by_weights(cls) -> bool:
        """True if only privacy weights, computed on the file itself, keep the bound below the target."""
        return cls.weighting in ("tuned", "cut")

    @property
    def gaussian(self) -> bool:
        """True if the noise is Gaussian. The budget then has a δ."""
        return False

    @property
    def draws_within_domain(self) -> bool:
        """True if noisy sums are drawn within a domain that assumes the weight's public bounds."""
        return False

    def aim_on_reference(self, target: float) -> float:
        """Largest bound of weights on a reference, so that later files meet the bound `target`; inf allows any."""
        return inf

    @property
    def library(self) -> str | None:
        """The module of an extra that a run needs; None if the main install suffices."""
        return None

    def against_noisy_crosstab(self, job: JobView) -> str:
        """The reason why noisy sample counts cannot replace public ones; empty if they can."""
        return "" if self.adds_noise else "nothing is proven about fits if the number of records is noisy"

    def published(self, job: JobView) -> dict[str, Any]:
        """The part of the specification that a statement publishes: constants that have an effect."""
        weights = {"weights": self.weights.settings} if self.weighting else {}
        settings = self.model_dump(mode="json", exclude_none=True, exclude={"weights"})
        return {"name": self.name, **weights, **settings}

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        """Lists the settings of a job that the mechanism refuses."""
        yield from self.against_weights(job)
        if job.strict:
            yield from self._against_dependence(job)

    def against_weights(self, job: JobView) -> Iterator[Contradiction]:
        """The weight rule must suit the mechanism, without another rule's constants."""
        weights, constants = self.weights, self.weights.facts.constants
        options = {"c": weights.c is not None, "radius": weights.radius != NO_WEIGHTS.radius, "g": bool(weights.g)}
        for name, value in options.items():
            if value and name not in constants:
                constant = "radius" if name == "radius" else f"constant {name}"
                yield from broken("rule_constant", job, mechanism=self, name=name, constant=constant)
        adjusted = weights.reweight is not None or (weights.scale, weights.shift) != (1.0, 0.0)
        yield from broken("weights", job, mechanism=self, adjusted=adjusted)

    def _against_dependence(self, job: JobView) -> Iterator[Contradiction]:
        """Yields settings that would make a strict guarantee depend on the records."""
        yield from broken("strict", job, mechanism=self)
        for rule in job.outcome_dependent_rules if len(declared(job)) == len(job.outcomes) else ():
            yield from broken("dependent_rule", job, mechanism=self, column=rule.partition(":")[0], rule=rule)


class FixedWeights(MechanismSpec):
    """Weights by the rule's constants alone, as in [G]: by default LW, the linear rule with c = 1."""

    weighting: ClassVar[Weighting | None] = "fixed"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"reference"})
    own_weights: ClassVar[dict[str, Any]] = {"c": 1.0}
    """Constants of the rule if a job states none."""
    weights: RuleOrName = Field(
        default=Weights(rule="linear", c=1.0),
        description="privacy weights, by a rule with a constant c: its name, or the rule with its constants",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_own_weights(cls, section: Any) -> Any:
        weights = rule_of(section.get("weights", "linear")) if isinstance(section, dict) else None
        if not isinstance(weights, dict):
            return section
        options = {key: value for key, value in weights.items() if key != "c" or value is not None}
        return section | {"weights": cls.own_weights | options}

    def against_weights(self, job: JobView) -> Iterator[Contradiction]:
        if "c" in self.weights.facts.constants:
            yield from super().against_weights(job)
        else:
            choices = sorted(name for name, rule in WEIGHT_RULES.with_plugins().items() if "c" in rule.constants)
            yield from broken("without_c", job, mechanism=self, choices=", ".join(choices))


class ClampedSpec(MechanismSpec):
    """Draws from a clamped likelihood.

    It has no closed form, needs a proper prior, and a program must implement the clamp.
    """

    clamps: ClassVar[bool] = True

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        samplers = samplers_of(job.family)
        choices = " or ".join(sampler for sampler in samplers if sampler != "exact")
        yield from broken("clamped", job, mechanism=self, closed_form=samplers == ("exact",), samplers=choices)


class Noisy(MechanismSpec):
    """Releases sums under noise. Each subclass states its own guarantee."""

    adds_noise: ClassVar[bool] = True

    def clips(self, job: JobView) -> bool:
        """True if weights are terms of the sums, so that values must be clipped at public bounds; subclasses may
        differ.
        """
        return not (self.by_cell or self.counts_records)

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.strict:
            yield from self._against_bounds(job)
        each = job.epsilon_per_set
        of_sets, of_records = each < LEAST_BUDGET, each / job.most_records < LEAST_BUDGET
        little = {"little_each_set": of_sets, "little_each_record": of_records, "too_little": TOO_LITTLE}
        yield from broken("noisy", job, mechanism=self, **little)

    def _against_bounds(self, job: JobView) -> Iterator[Contradiction]:
        """Requires clipping at public bounds, because records decide whether a value lies outside."""
        weight = job.survey.weight
        column = job.columns.get(weight) if weight is not None else None
        unbounded = self.clips(job) and (column is None or column.bounds is None or column.bounds[0] < 0)
        unclipped = (self.clips(job) or self.by_cell) and column is not None and column.outside != "clip"
        yield from broken("clipped_weight", job, mechanism=self, unbounded=unbounded, unclipped=unclipped)
        for outcome in declared(job):
            yield from broken("clipped_outcome", job, mechanism=self, name=outcome, column=job.columns[outcome])
