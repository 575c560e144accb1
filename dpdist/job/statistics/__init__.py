"""Statistics of tables by name: a file each in this folder, which is read whole, and plug-ins of other distributions."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import Any

from dpdist.core.plugins import STATISTICS, Members
from dpdist.job.statistics.kind import CONSTANTS, RESERVED, Kind


def _places() -> dict[str, str]:
    places = dict[str, str]()
    for module in iter_modules(__path__):
        for member in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(member, type) and issubclass(member, Kind) and "name" in vars(member):
                if member.name in places:
                    raise TypeError(f"two statistics have the name '{member.name}': rename one, in {member.__module__}")
                places[member.name] = f"{member.__module__}:{member.__qualname__}"
    return places


def _fault(name: str, member: Any) -> str:
    if not (isinstance(member, type) and issubclass(member, Kind)):
        return "is not a class derived from Kind of dpdist.job.statistics.kind"
    if getattr(member, "name", None) != name or not isinstance(getattr(member, "written", None), str):
        return f"has a different name in its class, or no text on how a job writes it: write name = '{name}' and written"
    if name in RESERVED:
        return "has the name of a key of statistics: rename it"
    if isabstract(member):
        return "has no sums: write sums(constants, cells) in its class"
    if unknown := sorted((member.needs | member.takes) - CONSTANTS):
        return f"needs or takes {', '.join(unknown)}: a statistic has constants among {', '.join(sorted(CONSTANTS))}"
    if member.plain and name not in KINDS:
        return "is `plain`, which only a count, a mean and a total are: leave plain out"
    return ""


KINDS: Members[type[Kind]] = Members(STATISTICS, _places(), _fault)
"""Classes of statistics by the name that a job writes."""
