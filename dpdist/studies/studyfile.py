"""Reading a study: YAML with line numbers, unknown keys refused with the nearest known name."""

from __future__ import annotations

from pathlib import Path

from dpdist.errors import Problem, StudyError
from dpdist.jobfile import find_shipped, mapping, read_yaml, validated
from dpdist.studies.settings import Guarantees, Simulation

NOT_A_MAPPING = Problem("study", "not a mapping of keys", "study:, seed:, cases:, …", "see jobs/studies for examples")


def load_study(name: str | Path) -> Simulation | Guarantees:
    """Read and validate a study file; a name without a folder is also looked up among the studies shipped with dpdist."""
    path = find_shipped(name, "studies", StudyError)
    return parse_study(read_yaml(path, StudyError), str(path))


def parse_study(text: str, source: str = "study") -> Simulation | Guarantees:
    """Validate a study given as YAML text. Raises `StudyError` with line, path, what is allowed and the remedy."""
    said, lines = mapping(text, source, StudyError, NOT_A_MAPPING)
    if said.get("kind") == "guarantees":
        return validated(Guarantees, said, source, lines, StudyError)
    return validated(Simulation, said, source, lines, StudyError)
