"""Finds plug-ins: members of dpdist that other installed distributions bring, by entry points.

A plug-in states `CONTRACT`, the version of dpdist's contract that it was written for. One that cannot be used is refused by
its name and its distribution's, and only where it is asked for; all else works. Entry points are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

CONTRACT = 1
"""The version of the contract between dpdist and plug-ins."""
MECHANISMS = "dpdist.mechanisms"
"""The group of entry points that name the specifications of mechanisms."""


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


class Refused(ValueError):
    """A plug-in that cannot be used. The message names it, its distribution and the reason."""


@cache
def declared(group: str) -> tuple[Plugin, ...]:
    """All plug-ins of a group that installed distributions declare, in the order of their names."""
    points = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    return tuple(
        Plugin(group, point.name, point.value, dist.name if dist else "?", dist.version if dist else "?", point.load)
        for point, dist in ((point, point.dist) for point in points)
    )


def loaded(group: str, name: str, taken: Collection[str], fault: Callable[[str, Any], str]) -> tuple[Plugin, Any]:
    """The plug-in of this name, with its object.

    `taken` has the names of dpdist's members. `fault` says why an object is no member of the group, or nothing.
    Raises `KeyError` where no plug-in has the name, and `Refused` where one cannot be used.
    """
    same = [plugin for plugin in declared(group) if plugin.name == name]
    if not same:
        raise KeyError(name)
    if name in taken:
        raise Refused(f"plug-in {same[0]} has the name of a member of dpdist: its author has to rename it")
    if len(same) > 1:
        raise Refused(f"several plug-ins have one name: {' and '.join(map(str, same))}: uninstall all but one")
    (plugin,) = same
    try:
        member = plugin.load()
    except Exception as error:  # code of others may fail in any way
        raise Refused(f"plug-in {plugin} cannot be imported ({type(error).__name__}: {error})") from error
    if (stated := getattr(member, "CONTRACT", None)) != CONTRACT:
        versions = "states no CONTRACT" if stated is None else f"is written for contract {stated}"
        raise Refused(f"plug-in {plugin} {versions}, and this dpdist has contract {CONTRACT}: install a version that fits")
    if reason := fault(name, member):
        raise Refused(f"plug-in {plugin} {reason}")
    return plugin, member


def usable(
    group: str, taken: Collection[str], fault: Callable[[str, Any], str]
) -> tuple[Mapping[str, tuple[Plugin, Any]], tuple[Refused, ...]]:
    """The plug-ins of a group that can be used, by name, and the refusals of all others."""
    members, refusals = dict[str, tuple[Plugin, Any]](), list[Refused]()
    for name in dict.fromkeys(plugin.name for plugin in declared(group)):
        try:
            members[name] = loaded(group, name, taken, fault)
        except Refused as refusal:
            refusals.append(refusal)
    return members, tuple(refusals)
