"""Job sections of mechanisms that draw from a posterior with privacy weights or a clamped likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, JobView, RuleOrName, Weights, broken
from dpdist.job.mechanism import ClampedSpec, FixedWeights, MechanismSpec, OwnKey, Weighting
from dpdist.job.values import LARGEST_DRIFT, Guarantee

RULES = Path(__file__).with_name("rules.txt")


class Weighted(MechanismSpec):
    """A posterior with privacy weights, which are tuned to the bound on the file itself or on a reference."""

    name: Literal["weighted"] = Field(description="a posterior with tuned privacy weights")
    weights: RuleOrName = Field(
        default=Weights(rule="fixed_point"), description="privacy weights: a rule's name, or the rule with its constants"
    )
    aim: float = Field(
        default=0.6,
        gt=0,
        le=1,
        description="share of the target Δ* for weights that are tuned on a reference; the rest is reserved for drift",
    )
    weighting: ClassVar[Weighting | None] = "tuned"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"reference"})

    def guarantee(self, job: JobView) -> Guarantee:
        return "none" if self.weights.rule == "none" else "asymptotic"

    def aim_on_reference(self, target: float) -> float:
        return self.aim * target

    def published(self, job: JobView) -> dict[str, Any]:
        aimed = job.reference is not None and self.weights.rule != "none"
        return {name: value for name, value in super().published(job).items() if aimed or name != "aim"}

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        usual = type(self).model_fields["aim"].default
        yield from broken("weighted", job, RULES, usual_aim=usual)


class Unweighted(MechanismSpec):
    """The posterior without any protection, which promises nothing."""

    name: Literal["unweighted"] = Field(description="the posterior itself")

    def guarantee(self, job: JobView) -> Guarantee:
        return "none"


class WeightedE(FixedWeights):
    """Weighted-e [G]: weights by the rule's constants alone, but 0 if a record's weighted bound exceeds the target."""

    name: Literal["weighted_e"] = Field(
        description="a posterior with fixed privacy weights; weights of records above the bound are 0"
    )
    weighting: ClassVar[Weighting | None] = "cut"

    def guarantee(self, job: JobView) -> Guarantee:
        return "asymptotic"

    def aim_on_reference(self, target: float) -> float:
        return target

    def against_weights(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().against_weights(job)
        yield from broken("weighted_e", job, RULES, mechanism=self)


class CensorW(FixedWeights, ClampedSpec):
    """Censor_w [G]: a clamped likelihood whose privacy weights are re-weighted with k = .95.

    Weights fixed on a reference are functions of a record; weights learned on the file depend on other records too.
    """

    name: Literal["censor_w"] = Field(description="a clamped likelihood with privacy weights")
    own_weights: ClassVar[dict[str, Any]] = {"c": 1.0, "reweight": 0.95}
    weights: RuleOrName = Field(
        default=Weights(rule="linear", c=1.0, reweight=0.95),
        description="privacy weights, by a rule with a constant c: its name, or the rule with its constants",
    )

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict" if job.reference is not None else "asymptotic"


class CensorUW(ClampedSpec):
    """Censor_uw [G]: a clamped likelihood without privacy weights."""

    name: Literal["censor_uw"] = Field(description="a clamped likelihood without privacy weights")

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"


class Centred(ClampedSpec):
    """A likelihood that is clamped around a fit to the reference."""

    name: Literal["centred"] = Field(description="a likelihood clamped about a fit of the reference")
    drift: float = Field(
        default=0.25,
        ge=0,
        le=LARGEST_DRIFT,
        description="planned distance from the reference, in standard deviations of a record",
    )
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"reference"})
    needs_reference: ClassVar[str] = "centres likelihoods at a fit of the reference"

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"
