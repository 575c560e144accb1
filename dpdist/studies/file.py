"""Reading a study: YAML with line numbers, unknown keys refused with the nearest known name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dpdist.core.errors import Problem, StudyError
from dpdist.job.checks import contradictions
from dpdist.job.loading import find_shipped
from dpdist.job.validation import validated
from dpdist.job.yaml_lines import mapping, read_yaml
from dpdist.studies.kinds.chains_settings import Chaining
from dpdist.studies.kinds.files_settings import Filed
from dpdist.studies.kinds.simulation import ANY, job_of
from dpdist.studies.kinds.strict_tables_settings import Referring
from dpdist.studies.kinds.tables_settings import Tabulated
from dpdist.studies.settings import Guarantees, Simulation

NOT_A_MAPPING = Problem("study", "not a mapping of keys", "study:, seed:, cases:, …", "see jobs/studies for examples")


def load_study(name: str | Path) -> Simulation | Guarantees | Tabulated | Referring | Filed | Chaining:
    """Read and validate a study file; a name without a folder is also looked up among the studies shipped with dpdist."""
    path = find_shipped(name, "studies", StudyError)
    return parse_study(read_yaml(path, StudyError), str(path))


def parse_study(text: str, source: str = "study") -> Simulation | Guarantees | Tabulated | Referring | Filed | Chaining:
    """Validate a study given as YAML text. Raises `StudyError` with line, path, what is allowed and the remedy."""
    said, lines = mapping(text, source, StudyError, NOT_A_MAPPING)
    if said.get("kind") == "guarantees":
        return validated(Guarantees, said, source, lines, StudyError)
    if said.get("kind") == "tables":
        return validated(Tabulated, said, source, lines, StudyError)
    if said.get("kind") == "files":
        return validated(Filed, said, source, lines, StudyError)
    if said.get("kind") == "strict_tables":
        return validated(Referring, said, source, lines, StudyError)
    if said.get("kind") == "chain":
        return validated(Chaining, said, source, lines, StudyError)
    study = validated(Simulation, said, source, lines, StudyError)
    problems = [
        Problem(f"mechanisms.{place}", found, "what a release of this family may say", remedy, 1, (at,))
        for place, found, remedy in _refused(study)
        if (at := lines.get(("mechanisms", place), "line 1"))
    ]
    if problems:
        raise StudyError(source, problems)
    return study


def _refused(study: Simulation) -> Iterator[tuple[int, str, str]]:
    """Arms that no release could be: place, what contradicts, remedy."""
    for place, arm in enumerate(study.mechanisms):
        found: dict[tuple[str, str], str] = {}
        for case in study.cases:
            if arm.cases is None or case.name in arm.cases:
                job = job_of(study, case, arm, study.grid[0] or ANY)
                found |= {(said.found, said.remedy): case.name for said in contradictions(job)}
        for (what, remedy), name in found.items():
            yield place, f"{arm.key} on {name}: {what}", remedy
