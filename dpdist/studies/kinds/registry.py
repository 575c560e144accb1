"""Lists the kinds of study by the name that a study file states as its `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdist.studies.kinds.chains import Chains
from dpdist.studies.kinds.coded_files import CodedFiles
from dpdist.studies.kinds.files import Files
from dpdist.studies.kinds.guarantees import GuaranteesKind
from dpdist.studies.kinds.mechanisms import MechanismsKind
from dpdist.studies.kinds.modips import ModipsKind
from dpdist.studies.kinds.partitions import PartitionsKind
from dpdist.studies.kinds.protocol import StudyKind
from dpdist.studies.kinds.simulation import SimulationKind
from dpdist.studies.kinds.strict_tables import StrictTables
from dpdist.studies.kinds.tables import Tables
from dpdist.studies.settings import Study

KINDS: Mapping[str, StudyKind[Any]] = {
    "simulation": SimulationKind(),
    "guarantees": GuaranteesKind(),
    "tables": Tables(),
    "strict_tables": StrictTables(),
    "files": Files(),
    "chain": Chains(),
    "modips": ModipsKind(),
    "partitions": PartitionsKind(),
    "mechanisms": MechanismsKind(),
    "coded_files": CodedFiles(),
}
DEFAULT = "simulation"
"""The kind of a study file without the key `kind`."""


def kind_of(study: Study) -> StudyKind[Any]:
    return KINDS[study.kind]
