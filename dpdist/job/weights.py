"""Section `weights` of a mechanism: the rule that turns record bounds into privacy weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, core_schema

from dpdist.core.plugins import WEIGHT_RULES as GROUP, MemberName, Members, PluginRefused
from dpdist.job.values import Frozen

PLACES = {
    "none": "dpdist.privacy.weights:NoRule",
    "linear": "dpdist.privacy.weights:LinearRule",
    "inverse": "dpdist.privacy.weights:InverseRule",
    "scalar": "dpdist.privacy.weights:ScalarRule",
    "fixed_point": "dpdist.privacy.weights:FixedPointRule",
    "cluster": "dpdist.privacy.weights:ClusterRule",
}
"""Places of dpdist's weight rules by name. Those of plug-ins are entry points."""


def _fault(name: str, member: Any) -> str:
    if not (isinstance(member, type) and issubclass(member, RuleFacts)) or not hasattr(member, "search"):
        return "is not a class derived from WeightRule of dpdist.privacy.weights"
    if not (isinstance(member.section, type) and issubclass(member.section, Weights)):
        return "has a section that is not derived from Weights: derive it, or leave section out"
    if unknown := sorted(set(member.constants) - member.section.model_fields.keys()):
        return f"has the constants {', '.join(unknown)}, and no section with these keys: add them to its section"
    if not isinstance(member.exceeds, str):
        return "its `exceeds` is not a string: name the losses that were measured, or leave it out"
    return ""


WEIGHT_RULES: Members[Any] = Members(GROUP, PLACES, _fault)
"""Classes of weight rules by name."""


class Weights(Frozen):
    """A weight rule and its constants. If `c` is unset, it is tuned until the bound meets the target."""

    rule: Annotated[str, MemberName("weight rule", WEIGHT_RULES)] = Field(
        description="how a record's privacy weight follows from its bound"
    )
    c: float | None = Field(
        default=None, gt=0, description="slope or cap of the rule; unset: tuned until the bound meets the target"
    )
    g: float = Field(default=0.0, ge=0, le=1, description="constant added to every weight by linear and cluster")
    reweight: float | None = Field(default=None, gt=0, le=1, description="k of the re-weighting step")
    scale: float = Field(default=1.0, gt=0, description="c1: factor by which every weight is finally multiplied")
    shift: float = Field(default=0.0, description="c2: constant that is then added; weights stay between 0 and 1")
    radius: float = Field(default=0.2, gt=0, lt=1, description="radius of cluster, as a share of the outcome")

    @property
    def facts(self) -> type[RuleFacts]:
        rule: type[RuleFacts] = WEIGHT_RULES.named(self.rule)
        return rule

    @property
    def settings(self) -> dict[str, Any]:
        """The rule with the constants that have an effect, and stated changes of all weights."""
        changes = {"reweight": self.reweight, "scale": self.scale, "shift": self.shift}
        changed = {name for name, number in changes.items() if number != type(self).model_fields[name].default}
        return self.model_dump(mode="json", include={"rule", *self.facts.constants, *changed}, exclude_none=True)


class RuleFacts:
    """What a job, its checks and its statement ask of a weight rule."""

    constants: ClassVar[frozenset[str]] = frozenset()
    """Constants that a job may give to the rule. If `c` is one of them and a job omits it, c is tuned."""
    section: ClassVar[type[Weights]] = Weights
    """The keys of the rule in a job. A rule with further constants derives a class from `Weights`."""
    uniform: ClassVar[bool] = False
    """True if all records have one weight, which the worst record determines."""
    uses_outcomes: ClassVar[bool] = False
    """True if weights also depend on the outcomes of all records of the stratum; the job then has one outcome."""
    exceeds: ClassVar[str] = ""
    """A sentence for the statement on exact losses above ε that were measured under the rule; empty if none were."""


def rule_of(value: Any) -> Any:
    return {"rule": value} if isinstance(value, str) else value


def sections() -> list[type[Weights]]:
    """The sections of all usable rules, `Weights` first."""
    rules: list[type[RuleFacts]] = [rule for _, rule in WEIGHT_RULES.usable()[0].values()]
    return list(dict.fromkeys([Weights, *(rule.section for rule in rules)]))


class _OfItsRule:
    """Makes a field of the section that the key `rule` needs: `Weights`, or one that a plug-in's rule derives from it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            _validate, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schemas = [section.__pydantic_core_schema__ for section in sections()]
        return handler(core_schema.union_schema([*schemas]) if len(schemas) > 1 else schema)


def _validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    rule = value.rule if isinstance(value, Weights) else value.get("rule") if isinstance(value, Mapping) else None
    section = Weights
    if isinstance(rule, str) and rule not in WEIGHT_RULES:
        with suppress(KeyError, PluginRefused):  # of which the check of the key `rule` tells
            section = WEIGHT_RULES.named(rule).section
    if section is Weights or isinstance(value, section):
        return handler(value)
    return section.model_validate(value.model_dump() if isinstance(value, Weights) else value)


RuleOrName = Annotated[Weights, _OfItsRule(), BeforeValidator(rule_of)]
