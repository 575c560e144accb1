"""Checks hierarchies of columns: what they name is declared, their maps are whole, and something public shows the map."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dpdist.job import Hierarchy, Job
from dpdist.job.contradiction import Contradiction, listed
from dpdist.job.yaml_lines import Where


def hierarchies(job: Job) -> Iterator[Contradiction]:
    for name, hierarchy in job.hierarchies.items():
        path: Where = ("hierarchies", name)
        for i, column in enumerate(hierarchy.columns):
            if column in job.columns and column not in job.categories:
                fault = f"no table has '{column}', so that its levels are not in the public frame"
                yield Contradiction((*path, "columns", i), fault, "leave it out, or add a table by it")
        yield from _maps(job, hierarchy, (*path, "within"))
        for fine, coarse in hierarchy.steps:
            if fine not in hierarchy.within and not _public(job, (fine, coarse)):
                fault = f"no public record tells in which {coarse} a {fine} lies"
                remedy = f"state within: {{{fine}: {{level: level of {coarse}, …}}}}, or name a public file as reference"
                yield Contradiction(path, fault, remedy)


def _public(job: Job, columns: tuple[str, str]) -> bool:
    return job.nested_by_file(columns) or (job.reference is not None and job.reference.holds_records)


def _maps(job: Job, hierarchy: Hierarchy, path: Where) -> Iterator[Contradiction]:
    steps = dict(hierarchy.steps)
    for fine, levels in hierarchy.within.items():
        if fine not in steps:
            fault = f"'{fine}' lies in no column of the hierarchy"
            yield Contradiction((*path, fine), fault, "name a column, but not the first", listed(tuple(steps)))
            continue
        declared = [_texts(job, column) for column in (fine, steps[fine])]
        if not all(declared):
            continue
        for given, column, allowed in zip((levels, levels.values()), (fine, steps[fine]), declared, strict=True):
            if unknown := [level for level in given if level not in allowed]:
                near = get_close_matches(unknown[0], allowed, n=1)
                hint = f"did you mean '{near[0]}'?" if near else "name its levels as columns has them"
                yield Contradiction((*path, fine), f"'{unknown[0]}' is no level of '{column}'", hint, listed(allowed))
        if lacking := [level for level in declared[0] if level not in levels]:
            fault = f"{len(lacking)} of {len(declared[0])} levels of '{fine}' have no {steps[fine]}, first '{lacking[0]}'"
            yield Contradiction((*path, fine), fault, f"write the {steps[fine]} of every level")


def _texts(job: Job, column: str) -> list[str]:
    return [str(level) for level in (job.columns[column].levels or ())] if column in job.columns else []
