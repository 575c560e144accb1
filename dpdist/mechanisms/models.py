"""Which model a job's mechanism fits or sums by: of its family's likelihood, or of statistics that it adds noise to.

Publishing needs these models and nothing else of a mechanism, so that this file imports no code that sees a record.
"""

from dpdist.job import Family, Job
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.laplace_tables.release import NoisyTables
from dpdist.mechanisms.perturbed_histogram.release import Histogram
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal
from dpdist.models import LIKELIHOODS
from dpdist.models.protocol import Builder

MODELS: dict[Family, Builder] = LIKELIHOODS | {
    "histogram": Histogram,
    "cell_sums": CellSums,
    "noisy_tables": NoisyTables,
    "reference_cells": ReferenceCells,
}


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its family's, or that of noisy statistics of it."""
    return SanitizedLognormal if job.mechanism.name == "sanitized_statistics" else MODELS[job.model.family]
