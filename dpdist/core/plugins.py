"""Registries of members by name: mechanisms, families, weight rules, statistics, readers; dpdist's, and plug-ins'.

A plug-in is a member that another installed distribution brings, by an entry point. It states `CONTRACT`, the version
of dpdist's contract that it was written for. An unusable plug-in is refused with its name and distribution, and only if
a job names it. Entry points are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from traceback import walk_tb
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

REFUSED = "plugin_refused"
"""Type of pydantic's error for an unusable plug-in; its context has the kind of member and the reason."""


@dataclass(frozen=True)
class MemberName:
    """Annotation of a field that names a member. A plug-in is imported when it is named, or when all names are listed."""

    kind: str
    members: Members[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = core_schema.literal_schema(list(self.members))
        return core_schema.no_info_wrap_validator_function(self._validated, names)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core_schema.literal_schema(self._all()))

    def _all(self) -> list[Any]:
        return [*self.members, *self.members.usable()[0]]

    def _validated(self, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, str) or value in self.members:
            return handler(value)
        try:
            self.members.plugged_in(value)
        except PluginRefused as refusal:
            raise PydanticCustomError(REFUSED, "{reason}", {"kind": self.kind, "reason": str(refusal)}) from None
        except KeyError:
            return SchemaValidator(core_schema.literal_schema(self._all())).validate_python(value)
        return value


CONTRACT = 2
"""The version of the contract between dpdist and plug-ins."""
MECHANISMS = "dpdist.mechanisms"
"""The group of entry points that name the specifications of mechanisms."""
FAMILIES = "dpdist.families"
"""The group of entry points that name families of likelihoods."""
WEIGHT_RULES = "dpdist.weight_rules"
"""The group of entry points that name weight rules."""
STATISTICS = "dpdist.statistics"
"""The group of entry points that name statistics of tables."""
READERS = "dpdist.readers"
"""The group of entry points that name readers of files, each by the suffix of its files."""
GROUPS = (MECHANISMS, FAMILIES, WEIGHT_RULES, STATISTICS, READERS)
T = TypeVar("T")


class Plugin(NamedTuple):
    """A plug-in as its distribution declares it: nothing of it is imported yet."""

    group: str
    name: str
    place: str
    """The module and the object in it, as `module:object`."""
    distribution: str
    version: str
    load: Callable[[], Any]

    def __str__(self) -> str:
        return f"'{self.name}' of {self.distribution} {self.version} ({self.place})"

    @property
    def origin(self) -> dict[str, str]:
        """The distribution and its version, for statements and manifests."""
        return {"distribution": self.distribution, "version": self.version}


class PluginRefused(ValueError):
    """A plug-in that cannot be used. The message names it, its distribution and the reason."""


@cache
def declared(group: str) -> tuple[Plugin, ...]:
    """All plug-ins of a group that installed distributions declare, in the order of their names."""
    points = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    return tuple(
        Plugin(group, point.name, point.value, dist.name if dist else "?", dist.version if dist else "?", point.load)
        for point, dist in ((point, point.dist) for point in points)
    )


def plugin_of(error: BaseException) -> Plugin | None:
    """A plug-in of the distribution through whose code the error passed last; None if it passed through none."""
    packages = {plugin.place.partition(":")[0].partition(".")[0]: plugin for group in GROUPS for plugin in declared(group)}
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    passed = (packages.get(name.partition(".")[0]) for name in reversed(modules))
    return next((plugin for plugin in passed if plugin is not None), None)


class Members(Mapping[str, T], Generic[T]):
    """Dpdist's members of one kind by name. Methods lead to plug-ins, too.

    `group` is the group of entry points of plug-ins. `places` has the places of dpdist's members, as entry points write
    them: `module:object`. `fault` returns the reason why an object is not a member, or nothing.
    """

    def __init__(self, group: str, places: Mapping[str, str], fault: Callable[[str, Any], str]) -> None:
        self.group, self._fault = group, fault
        self._points = {name: EntryPoint(name, place, group) for name, place in places.items()}
        self._imported = dict[str, T]()

    def __getitem__(self, name: str) -> T:
        if name not in self._imported:
            member = self._points[name].load()
            if reason := self._fault(name, member):
                raise TypeError(f"'{name}' ({self._points[name].value}) {reason}")
            self._imported[name] = member
        return self._imported[name]

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def named(self, name: str) -> T:
        """The member of this name, dpdist's or a plug-in's. Raises as `plugged_in` does."""
        return self[name] if name in self else self.plugged_in(name)[1]

    def plugged_in(self, name: str) -> tuple[Plugin, T]:
        """The plug-in of this name, with its object.

        Raises `KeyError` if no plug-in has the name, and `PluginRefused` if one cannot be used.
        """
        same = [plugin for plugin in declared(self.group) if plugin.name == name]
        if not same:
            raise KeyError(name)
        if name in self:
            raise PluginRefused(f"plug-in {same[0]} has the name of a member of dpdist: its author has to rename it")
        if len(same) > 1:
            raise PluginRefused(
                f"several plug-ins have the same name: {' and '.join(map(str, same))}: uninstall all but one"
            )
        (plugin,) = same
        try:
            member = plugin.load()
        except Exception as error:  # code of others may fail in any way
            raise PluginRefused(f"plug-in {plugin} cannot be imported ({type(error).__name__}: {error})") from error
        if (contract := getattr(member, "CONTRACT", None)) != CONTRACT:
            versions = "states no CONTRACT" if contract is None else f"is written for contract {contract}"
            raise PluginRefused(
                f"plug-in {plugin} {versions}, and this dpdist has contract {CONTRACT}: install a version for this contract"
            )
        if reason := self._fault(name, member):
            raise PluginRefused(f"plug-in {plugin} {reason}")
        return plugin, member

    def origin(self, name: str) -> dict[str, str]:
        """The distribution and its version where the member is a plug-in's; empty if it is of dpdist."""
        return {} if name in self else self.plugged_in(name)[0].origin

    def with_plugins(self) -> dict[str, T]:
        """All members by name: dpdist's, and those of plug-ins that can be used."""
        return {**self, **{name: member for name, (_, member) in self.usable()[0].items()}}

    def usable(self) -> tuple[Mapping[str, tuple[Plugin, T]], tuple[PluginRefused, ...]]:
        """The plug-ins that can be used, by name, and the refusals of all others."""
        members, refusals = dict[str, tuple[Plugin, T]](), list[PluginRefused]()
        for name in dict.fromkeys(plugin.name for plugin in declared(self.group)):
            try:
                members[name] = self.plugged_in(name)
            except PluginRefused as refusal:
                refusals.append(refusal)
        return members, tuple(refusals)
