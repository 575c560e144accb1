"""Statistics of tables, one file each; every module of this folder is read, so that a new one needs no other line."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dpdist.job.statistics.kind import Kind


def _kinds() -> dict[str, Kind]:
    found = dict[str, Kind]()
    for module in iter_modules(__path__):
        for member in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(member, type) and issubclass(member, Kind) and "name" in vars(member):
                if member.name in found:
                    raise TypeError(f"two statistics have the name '{member.name}': rename one, in {member.__module__}")
                found[member.name] = member()
    return found


KINDS = _kinds()
"""By the name that a job writes."""
