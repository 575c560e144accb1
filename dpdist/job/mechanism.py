"""The mechanism, its privacy weights, and the budget."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from dpdist.job.mechanisms import FACTS, Facts, those
from dpdist.job.names import (
    LARGEST_DRIFT,
    Adjacency,
    Consistency,
    Exchange,
    Fallback,
    Law,
    MechanismName,
    NoiseName,
    Sanitization,
    Sensitivity,
    Truncation,
    WeightRule,
)
from dpdist.job.values import Budget, Delta, Frozen, budget_text
from dpdist.job.zcdp import epsilon_of, rho_of


class Weights(Frozen):
    """A weight rule and its constants; `c` unset means: tuned until the bound meets the target."""

    rule: WeightRule = Field(description="how a record's privacy weight follows from its bound; see the glossary")
    c: float | None = Field(default=None, gt=0, description="the rule's slope or cap; unset: tuned until the bound is met")
    g: float = Field(default=0.0, ge=0, le=1, description="of linear and cluster: what is added to every weight")
    reweight: float | None = Field(default=None, gt=0, le=1, description="k of the re-weighting step")
    scale: float = Field(default=1.0, gt=0, description="c1: every weight is multiplied by it at the end")
    shift: float = Field(default=0.0, description="c2: what is added after that; weights stay between 0 and 1")
    radius: float = Field(default=0.2, gt=0, lt=1, description="of cluster, as a share of the outcome")


def _rule(value: Any) -> Any:
    return {"rule": value} if isinstance(value, str) else value


RuleOrName = Annotated[Weights, BeforeValidator(_rule)]


class Mechanism(Frozen):
    """A mechanism and its constants; what is left out of `weights` is the mechanism's own."""

    name: MechanismName = Field(description="how records are protected")
    weights: RuleOrName = Field(
        default=Weights(rule="none"), description="privacy weights: a rule's name, or the rule with its constants"
    )
    fallback: Fallback = Field(
        default="refuse",
        description="where a stratum cannot be released: refuse the run, pool all strata, or take a proper prior",
    )
    bins: int | None = Field(
        default=None, ge=1, le=10_000, description="of a perturbed histogram; unset: ln n, rounded up, of the mean stratum"
    )
    sensitivity: Sensitivity = Field(
        default="local", description="of laplace_composed: the file's own, which promises nothing, or by public bounds"
    )
    consistency: Consistency = Field(
        default="none", description="of laplace and laplace_composed: make margins the sums of their cells, at no cost"
    )
    drift: float = Field(
        default=0.25,
        ge=0,
        le=LARGEST_DRIFT,
        description="of centred: the planned distance from the reference, in sd of a record",
    )
    shrinkage: bool = Field(
        default=True,
        description="of reference_tables and sanitized_statistics: move cells towards each other as noise moved them apart",
    )
    noise: NoiseName = Field(
        default="laplace",
        description="of sanitized_statistics: discrete Laplace, for ε alone, or Gaussian, for zCDP and a delta",
    )
    law: Law | None = Field(default=None, description="of modips, which needs it: the outcome's law within a cell")
    location: Literal["cells", "main_effects"] = Field(
        default="cells",
        description="of modips with a normal or lognormal law: a mean for every cell, or a regression on table columns",
    )
    variance: float | None = Field(
        default=None,
        gt=0,
        description="of modips with a normal law: its variance, where that is public; only means cost then",
    )
    sanitization: Sanitization = Field(
        default="conjoint",
        description="of modips: noise of one scale on all statistics, or an equal part of ε for each kind",
    )
    truncation: Truncation = Field(
        default="clamped",
        description="of modips: sums beyond their domain are set to its end (clamped), or drawn from the truncated law at "
        "the scale that it needs (bounded); renormalised is refused: it costs more than ε",
    )
    nested: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=1, description="of modips: synthetic sets for every sanitization, which share its part of ε"
    )
    aim: float = Field(
        default=0.6,
        gt=0,
        le=1,
        description="share of Δ* that weights aim at on a reference; the rest is for drift",
    )

    @property
    def facts(self) -> Facts:
        """What the mechanism is."""
        return FACTS[self.name]

    @model_validator(mode="before")
    @classmethod
    def _own_weights(cls, said: Any) -> Any:
        """[G] weights by LW with c = 1; in Censor_w they are re-weighted by k = .95, which it leaves out (METHODS §4)."""
        if not isinstance(said, dict) or not isinstance(name := said.get("name"), str):
            return said
        weights = _rule(said.get("weights", _DEFAULT_RULES.get(name, "none")))
        if name in those(lambda each: each.fixed_weights) and isinstance(weights, dict):
            own = {"c": 1.0, "reweight": 0.95} if name == "censor_w" else {"c": 1.0}
            weights = own | {key: value for key, value in weights.items() if key != "c" or value is not None}
        return said | {"weights": weights}


_DEFAULT_RULES = {"weighted": "fixed_point", "weighted_e": "linear", "censor_w": "linear"}


class ReleaseBudget(Frozen):
    """The whole release's budget: epsilon is what all synthetic sets together may cost.

    Under Gaussian noise it holds with a delta, and is stated itself or by rho, from which it follows.
    """

    epsilon: Budget = Field(description="of the whole release, all synthetic sets together; exact, write it in quotes")
    adjacency: Adjacency = Field(
        default="zero_out",
        description="what neighbouring files differ in: zero_out, one record's outcome and weight, there or switched off; "
        "substitution, one record's outcome and weight, exchanged at the same x; add_remove, a whole record, there or not",
    )
    exchange: Exchange = Field(
        default="same_x",
        description="of substitution: same_x, outcome and weight alone; anywhere, table columns too, of reference_tables",
    )
    delta: Delta | None = Field(default=None, description="of Gaussian noise: the δ at which epsilon holds")
    rho: Budget | None = Field(default=None, description="of Gaussian noise, in place of epsilon: of zCDP")

    @model_validator(mode="before")
    @classmethod
    def _told_by_rho(cls, said: Any) -> Any:
        if not isinstance(said, dict) or said.get("rho") is None:
            return said
        if said.get("delta") is None:
            raise ValueError("rho needs a delta, at which epsilon is told: add delta, below one over the records")
        known = {name: TypeAdapter(kind).validate_python(said[name]) for name, kind in (("rho", Budget), ("delta", Delta))}
        epsilon = epsilon_of(known["rho"], known["delta"])
        if said.get("epsilon") not in (None, epsilon, budget_text(epsilon)):
            raise ValueError("epsilon follows from rho and delta: leave it out, or state epsilon and delta alone")
        return said | {"epsilon": epsilon}

    @property
    def concentrated(self) -> Fraction:
        """ρ of a budget with a delta: as stated, or the largest with which epsilon holds at delta."""
        if self.delta is None:
            raise ValueError("a budget without delta has no rho")
        return self.rho if self.rho is not None else rho_of(self.epsilon, self.delta)
