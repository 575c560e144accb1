"""Which model a job's mechanism fits or sums by: of its family's likelihood, or of statistics that it adds noise to.

Publishing needs these models and nothing else of a mechanism, so that this file imports no code that sees a record.
"""

from dpdist.job import Job, Modips, Statistics
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.laplace_tables.release import NoisyTables
from dpdist.mechanisms.modips.levels import LevelCounts
from dpdist.mechanisms.modips.moments import Moments
from dpdist.mechanisms.partitions.release import PartitionCounts
from dpdist.mechanisms.perturbed_histogram.release import Histogram
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal
from dpdist.mechanisms.weight_regularisation.release import RegularisedCells
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.models import LIKELIHOODS
from dpdist.models.protocol import Builder

SUMMED: dict[Statistics, Builder] = {
    "histogram": Histogram,
    "cell_sums": CellSums,
    "regularised_cells": RegularisedCells,
    "noisy_tables": NoisyTables,
    "reference_cells": ReferenceCells,
    "partition": PartitionCounts,
    "marginals": Marginals,
}
"""Models of statistics that noise is added to, in place of a likelihood."""


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its likelihood's, or that of the statistics that noise is added to."""
    if job.mechanism.sets_are_free:
        return SanitizedLognormal
    if isinstance(job.mechanism, Modips):
        return LevelCounts if job.mechanism.counted else Moments
    statistics = job.mechanism.statistics
    return LIKELIHOODS[job.likelihood.family] if statistics is None else SUMMED[statistics]
