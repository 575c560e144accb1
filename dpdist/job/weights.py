"""Settings of the rule by which privacy weights follow from record bounds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dpdist.job.names import RULE_CONSTANTS, WeightRule
from dpdist.job.values import Frozen


class Weights(Frozen):
    """A weight rule and its constants. If `c` is unset, it is tuned until the bound meets the target."""

    rule: WeightRule = Field(description="how a record's privacy weight follows from its bound; see the glossary")
    c: float | None = Field(default=None, gt=0, description="the rule's slope or cap; unset: tuned until the bound is met")
    g: float = Field(default=0.0, ge=0, le=1, description="of linear and cluster: what is added to every weight")
    reweight: float | None = Field(default=None, gt=0, le=1, description="k of the re-weighting step")
    scale: float = Field(default=1.0, gt=0, description="c1: every weight is multiplied by it at the end")
    shift: float = Field(default=0.0, description="c2: what is added after that; weights stay between 0 and 1")
    radius: float = Field(default=0.2, gt=0, lt=1, description="of cluster, as a share of the outcome")

    @property
    def used(self) -> dict[str, Any]:
        """The rule with the constants that have an effect: those of the rule, and stated changes of all weights."""
        changes = {"reweight": self.reweight, "scale": self.scale, "shift": self.shift}
        stated = {name for name, number in changes.items() if number != type(self).model_fields[name].default}
        return self.model_dump(mode="json", include={"rule", *RULE_CONSTANTS[self.rule], *stated}, exclude_none=True)


def rule_of(value: Any) -> Any:
    """Turns the name of a rule into a mapping; leaves anything else unchanged."""
    return {"rule": value} if isinstance(value, str) else value


RuleOrName = Annotated[Weights, BeforeValidator(rule_of)]
