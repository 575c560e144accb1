"""Named mechanisms: what a job may name."""

from __future__ import annotations

from dpdist.engine.protocol import Mechanism
from dpdist.job import Job
from dpdist.mechanisms.laplace_cells.protect import LaplaceStrict
from dpdist.mechanisms.laplace_tables.protect import LaplaceTables
from dpdist.mechanisms.modips.protect import Modips
from dpdist.mechanisms.partitions.protect import Partitions
from dpdist.mechanisms.perturbed_histogram.protect import PerturbedHistogram
from dpdist.mechanisms.pseudo_posterior.presets import CensorUW, CensorW, Centred, Weighted, WeightedE
from dpdist.mechanisms.reference_tables.protect import ReferenceTables
from dpdist.mechanisms.sanitized_lognormal.protect import SanitizedStatistics
from dpdist.mechanisms.weight_regularisation.protect import WeightRegularisation
from dpdist.mechanisms.weighted_marginals.protect import WeightedMarginals

MECHANISMS: dict[str, Mechanism] = {
    "weighted": Weighted(),
    "unweighted": Weighted(),
    "weighted_e": WeightedE(),
    "censor_w": CensorW(),
    "censor_uw": CensorUW(),
    "centred": Centred(),
    "perturbed_histogram": PerturbedHistogram(),
    "laplace": LaplaceTables(),
    "laplace_composed": LaplaceTables(),
    "laplace_strict": LaplaceStrict(),
    "weight_regularisation": WeightRegularisation(),
    "reference_tables": ReferenceTables(),
    "sanitized_statistics": SanitizedStatistics(),
    "modips": Modips(),
    "flat_laplace": Partitions(),
    "universal_histogram": Partitions(),
    "steps": Partitions(),
    "weighted_marginals": WeightedMarginals(),
}


def mechanism_of(job: Job) -> Mechanism:
    """The mechanism that a job names."""
    return MECHANISMS[job.mechanism.name]
