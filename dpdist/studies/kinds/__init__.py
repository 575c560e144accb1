"""The kinds of study by name: each is a section with its replicates, and with texts for its page."""

from collections.abc import Mapping

from dpdist.studies.kinds.coded_files import CodedStudy
from dpdist.studies.kinds.guarantees import Guarantees
from dpdist.studies.kinds.modips import ModipsStudy
from dpdist.studies.kinds.partitions import PartitionStudy
from dpdist.studies.kinds.simulation import Simulation
from dpdist.studies.kinds.tables import TablesStudy
from dpdist.studies.settings import Study

KINDS: Mapping[str, type[Study]] = {
    "simulation": Simulation,
    "guarantees": Guarantees,
    "tables": TablesStudy,
    "modips": ModipsStudy,
    "partitions": PartitionStudy,
    "coded_files": CodedStudy,
}
