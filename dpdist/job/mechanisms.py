"""Lists the specification of every mechanism, from which a job's key `mechanism: {name: …}` selects one.

A new mechanism is a class that is listed here, and a new folder under dpdist/mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dpdist.core import plugins
from dpdist.core.plugins import Plugin, Refused
from dpdist.job.marginals import WeightedMarginals
from dpdist.job.mechanism import MechanismSpec
from dpdist.job.modips import Modips
from dpdist.job.noisy_mechanisms import (
    Laplace,
    LaplaceComposed,
    LaplaceStrict,
    PerturbedHistogram,
    ReferenceTables,
    SanitizedStatistics,
    WeightRegularisation,
)
from dpdist.job.partitions import FlatLaplace, Steps, UniversalHistogram
from dpdist.job.posteriors import CensorUW, CensorW, Centred, Unweighted, Weighted, WeightedE
from dpdist.job.privbayes import PrivBayes

REFUSED = "plugin_refused"
"""The type of pydantic's error for a plug-in that cannot be used; its context has the reason."""


class _OrThirdParty:
    """Takes mechanisms of plug-ins in where a name is not of dpdist; a job that names dpdist's own asks for no plug-in."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_wrap_validator_function(_validated, handler(source))
        dumped = core_schema.wrap_serializer_function_ser_schema(_dumped, schema=handler(source), info_arg=True)
        return {**schema, "serialization": dumped}

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        members = [spec for _, spec in third_party()[0].values()]
        return handler(_with_dpdists(*members).core_schema) if members else handler(schema)


Mechanism = Annotated[
    Weighted
    | Unweighted
    | WeightedE
    | CensorW
    | CensorUW
    | Centred
    | PerturbedHistogram
    | Laplace
    | LaplaceComposed
    | LaplaceStrict
    | WeightRegularisation
    | ReferenceTables
    | SanitizedStatistics
    | Modips
    | FlatLaplace
    | UniversalHistogram
    | Steps
    | WeightedMarginals
    | PrivBayes,
    Field(discriminator="name"),
    _OrThirdParty(),
]
"""The mechanism of a job: one of all specifications, or of a plug-in's."""
SPECS: dict[str, type[MechanismSpec]] = {
    get_args(spec.model_fields["name"].annotation)[0]: spec for spec in get_args(get_args(Mechanism)[0])
}
"""Specifications by the name of the mechanism."""


def spec_of(settings: Mapping[str, Any]) -> type[MechanismSpec] | None:
    """The specification that a job's settings, by dotted key, name as mechanism.

    None where they name no known mechanism.
    """
    try:
        return spec_named(settings.get("mechanism.name", ""))
    except KeyError:
        return None


def spec_named(name: str) -> type[MechanismSpec]:
    """The specification of this name, dpdist's or a plug-in's.

    Raises `KeyError` for an unknown name, and `Refused` for a plug-in that cannot be used.
    """
    return SPECS[name] if name in SPECS else _third_party(name)[1]


def plugin_of(name: str) -> Plugin | None:
    """The plug-in that brings a mechanism; None for one of dpdist."""
    return None if name in SPECS else _third_party(name)[0]


def third_party() -> tuple[Mapping[str, tuple[Plugin, type[MechanismSpec]]], tuple[Refused, ...]]:
    """The mechanisms of installed plug-ins by name, and the refusals of those that cannot be used."""
    return plugins.usable(plugins.MECHANISMS, SPECS, _fault)


def _third_party(name: str) -> tuple[Plugin, type[MechanismSpec]]:
    return plugins.loaded(plugins.MECHANISMS, name, SPECS, _fault)


def _fault(name: str, member: Any) -> str:
    """Why an object is no specification of this name; empty where it is one."""
    if not (isinstance(member, type) and issubclass(member, MechanismSpec)):
        return "is no class derived from MechanismSpec"
    if get_args(member.model_fields["name"].annotation) != (name,):
        return f"has another name in its class: write name: Literal['{name}']"
    if member.package.startswith("dpdist."):
        return f"runs code of {member.package}: write package, the one with its own code"
    return ""


@cache
def _with_dpdists(*members: type[MechanismSpec]) -> TypeAdapter[MechanismSpec]:
    """Dpdist's specifications, and these of plug-ins."""
    union: Any = Annotated[reduce(or_, [*SPECS.values(), *members]), Field(discriminator="name")]
    return TypeAdapter(union)


def _validated(value: Any, of_dpdist: ValidatorFunctionWrapHandler) -> Any:
    name = value.name if isinstance(value, MechanismSpec) else value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or name in SPECS:
        return of_dpdist(value)
    try:
        spec = _third_party(name)[1]
    except Refused as refusal:
        raise PydanticCustomError(REFUSED, "{reason}", {"reason": str(refusal)}) from None
    except KeyError:
        members = [spec for _, spec in third_party()[0].values()]
        return _with_dpdists(*members).validate_python(value) if members else of_dpdist(value)
    return _with_dpdists(spec).validate_python(value)


def _dumped(value: Any, of_dpdist: SerializerFunctionWrapHandler, info: Any) -> Any:
    if value.name in SPECS:
        return of_dpdist(value)
    rules = {"exclude_none": info.exclude_none, "exclude_unset": info.exclude_unset, "round_trip": info.round_trip}
    return value.model_dump(mode=info.mode, exclude=info.exclude, include=info.include, **rules)


def those(fact: Callable[[type[MechanismSpec]], object]) -> tuple[str, ...]:
    """Names, for messages, of the mechanisms for which a fact holds."""
    return tuple(name for name, spec in SPECS.items() if fact(spec))


STATISTICS: dict[str, str] = {name: spec.statistics for name, spec in SPECS.items() if spec.statistics is not None}
"""Statistics of the mechanisms that fit no likelihood, by mechanism. Their jobs have no `model`."""
