"""Kinds of study by name, each a section with its replicates and texts for its page; and study files of any kind.

Every error in a study file has a line number. For an unknown key it suggests the nearest known key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpdist.core.errors import Problem, StudyError, suggestion
from dpdist.job.loading import find_shipped
from dpdist.job.validation import validate_content
from dpdist.job.yaml_lines import mapping, read_yaml
from dpdist.studies.kinds.coded_files import CodedStudy
from dpdist.studies.kinds.modips import ModipsStudy
from dpdist.studies.kinds.partitions import PartitionStudy
from dpdist.studies.kinds.simulation import Simulation
from dpdist.studies.kinds.tables import TablesStudy
from dpdist.studies.settings import Study

KINDS: Mapping[str, type[Study]] = {
    "simulation": Simulation,
    "tables": TablesStudy,
    "modips": ModipsStudy,
    "partitions": PartitionStudy,
    "coded_files": CodedStudy,
}
DEFAULT = "simulation"
"""The kind of a study file without the key `kind`."""
NOT_A_MAPPING = Problem("study", "not a mapping of keys", "study:, seed:, cases:, …", "see jobs/studies for examples")


def load_study(name: str | Path) -> Study:
    """Reads and validates a study file.

    Parameters
    ----------
    name : a study file, or the name of a shipped study.

    Returns
    -------
    The study, frozen.

    Raises
    ------
    StudyError : every problem with its line, what is allowed and the remedy.

    Example
    -------
    >>> dpdist.load_study("modips_normal").kind
    'modips'
    """
    path = find_shipped(name, "studies", StudyError)
    return parse_study(read_yaml(path, StudyError), str(path))


def parse_study(text: str, source: str = "study") -> Study:
    """Validates a study that is given as YAML text.

    Parameters
    ----------
    text : the content of a study file.
    source : what messages call it.

    Returns
    -------
    The study, frozen.

    Raises
    ------
    StudyError : every problem with its line, what is allowed and the remedy.

    Example
    -------
    >>> dpdist.parse_study(Path("study.yaml").read_text()).replicates
    2
    """
    keys, lines = mapping(text, source, StudyError, NOT_A_MAPPING)
    if (name := keys.get("kind", DEFAULT)) not in KINDS:
        remedy = suggestion(name, KINDS, "use one of them")
        problem = Problem("kind", f"no kind of study '{name}'", ", ".join(KINDS), remedy, 1, (lines[("kind",)],))
        raise StudyError(source, [problem])
    study: Study = validate_content(KINDS[name], keys, source, lines, StudyError)
    if problems := [against.problem(lines) for against in study.refusals()]:
        raise StudyError(source, problems)
    return study
