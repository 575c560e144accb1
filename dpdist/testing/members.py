"""What the checks of plug-ins share: an entry point, the faults of what it leads to, and one error that lists them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dpdist.core.plugins import Members, PluginRefused, declared


def check_member(members: Members[Any], name: str, faults: Callable[[], Iterable[str]]) -> None:
    """Raises `AssertionError` with every fault of the plug-in that has this name."""
    if lines := list(dict.fromkeys(_lines(members, name, faults))):
        raise AssertionError("\n".join(f"{name}: {line}" for line in lines))


def _lines(members: Members[Any], name: str, faults: Callable[[], Iterable[str]]) -> Iterable[str]:
    plugged = any(plugin.name == name for plugin in declared(members.group))
    try:  # of a plug-in with the name of a member of dpdist, jobs have dpdist's
        members.plugged_in(name) if plugged else members.named(name)
    except KeyError:
        return [f'no entry point has this name: add one to [project.entry-points."{members.group}"], and install']
    except PluginRefused as refusal:
        return [str(refusal)]
    found = list[str]()
    try:
        found.extend(faults())
    except Exception as error:  # code of others may fail in any way, after faults that are known
        found.append(f"it fails: {type(error).__name__}: {error}")
    return found
