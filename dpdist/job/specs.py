"""Lists the `spec.py` of every mechanism for `job.validation`; the key `mechanism: {name: …}` selects one.

A specification is the file `spec.py` of the mechanism's folder. It is imported where a job names the mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dpdist.core.plugins import MECHANISMS, REFUSED, Members, Refused
from dpdist.job.former import NAMES, Former
from dpdist.job.mechanism import MechanismSpec

STORED = "stored"
"""Context of validation of a job that an earlier run stored: it may name a mechanism of an earlier version."""
PLACES = {
    "weighted": "dpdist.mechanisms.pseudo_posterior.spec:Weighted",
    "unweighted": "dpdist.mechanisms.pseudo_posterior.spec:Unweighted",
    "weighted_e": "dpdist.mechanisms.pseudo_posterior.spec:WeightedE",
    "censor_w": "dpdist.mechanisms.pseudo_posterior.spec:CensorW",
    "censor_uw": "dpdist.mechanisms.pseudo_posterior.spec:CensorUW",
    "centred": "dpdist.mechanisms.pseudo_posterior.spec:Centred",
    "perturbed_histogram": "dpdist.mechanisms.perturbed_histogram.spec:PerturbedHistogram",
    "laplace": "dpdist.mechanisms.laplace_tables.spec:Laplace",
    "laplace_composed": "dpdist.mechanisms.laplace_tables.spec:LaplaceComposed",
    "tables": "dpdist.mechanisms.tables.spec:Tables",
    "sanitized_statistics": "dpdist.mechanisms.sanitized_lognormal.spec:SanitizedStatistics",
    "modips": "dpdist.mechanisms.modips.spec:Modips",
    "flat_laplace": "dpdist.mechanisms.partitions.spec:FlatLaplace",
    "universal_histogram": "dpdist.mechanisms.partitions.spec:UniversalHistogram",
    "steps": "dpdist.mechanisms.partitions.spec:Steps",
    "marginals": "dpdist.mechanisms.marginals.spec:CodedMarginals",
}
"""Places of dpdist's specifications by mechanism; a plug-in's place is its entry point."""
FORMER = {"weighted_marginals": "marginals", "privbayes": "marginals"}
"""Names of earlier versions, in stored jobs too, and the mechanism that reads their sections: `of_former` of its class."""


def _fault(name: str, member: Any) -> str:
    if not (isinstance(member, type) and issubclass(member, MechanismSpec)):
        return "is no class derived from MechanismSpec"
    if get_args(member.model_fields["name"].annotation) != (name,):
        return f"has another name in its class: write name: Literal['{name}']"
    if member.package.startswith("dpdist.") and name not in PLACES:
        return f"runs code of {member.package}: write package, the one with its own code"
    return ""


SPECS: Members[type[MechanismSpec]] = Members(MECHANISMS, PLACES, _fault)
"""Specifications by the name of the mechanism."""


class _ByName:
    """Makes a field of the union of all specifications, which the key `name` distinguishes.

    The specification named by the value validates it; no other specification is imported.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            _validated, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(_union(*SPECS.every().values()).core_schema)


Mechanism = Annotated[MechanismSpec, _ByName()]
"""The mechanism of a job: one of dpdist's specifications, or a plug-in's."""


def _validated(value: Any, info: ValidationInfo) -> MechanismSpec:
    if isinstance(value, Mapping) and (former := value.get("name")) in FORMER:
        value = SPECS[FORMER[former]].of_former(value)
    name = value.name if isinstance(value, MechanismSpec) else value.get("name") if isinstance(value, Mapping) else None
    if name in NAMES and info.context == STORED:
        return Former.model_validate(value)
    try:
        specs = [SPECS.named(name)] if isinstance(name, str) else [*SPECS.every().values()]
    except Refused as refusal:
        raise PydanticCustomError(REFUSED, "{reason}", {"kind": "mechanism", "reason": str(refusal)}) from None
    except KeyError:
        specs = [*SPECS.every().values()]
    spec = _union(*specs).validate_python(value)
    if spec.name != name or (name not in SPECS and type(spec) is not SPECS.named(name)):
        reason = f"plug-in {SPECS.plugged_in(str(name))[0]} makes a section of another mechanism: leave validators out"
        raise PydanticCustomError(REFUSED, "{reason}", {"kind": "mechanism", "reason": reason})
    return spec


@dataclass(frozen=True)
class _Union:
    specs: tuple[type[MechanismSpec], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = [get_args(spec.model_fields["name"].annotation)[0] for spec in self.specs]
        schemas = map(handler.generate_schema, self.specs)
        return core_schema.tagged_union_schema(dict(zip(names, schemas, strict=True)), discriminator="name")


@cache
def _union(*specs: type[MechanismSpec]) -> TypeAdapter[MechanismSpec]:
    return TypeAdapter(Annotated[Any, _Union(specs)])


def spec_of(settings: Mapping[str, Any]) -> type[MechanismSpec] | None:
    """The specification of the mechanism in a job's settings, by dotted key; None if the mechanism is unknown."""
    name = settings.get("mechanism.name", "")
    try:
        return SPECS.named(FORMER.get(name, name))
    except KeyError:
        return None


def those(fact: Callable[[type[MechanismSpec]], object]) -> tuple[str, ...]:
    return tuple(name for name, spec in SPECS.items() if fact(spec))
