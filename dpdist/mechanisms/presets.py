"""Named mechanisms: what a job may name."""

from __future__ import annotations

from dpdist.job import MechanismName
from dpdist.mechanisms.noisy import LaplaceStrict, LaplaceTables, PerturbedHistogram, ReferenceTables, SanitizedStatistics
from dpdist.mechanisms.posteriors import CensorUW, CensorW, Centred, Weighted, WeightedE
from dpdist.mechanisms.protocol import Mechanism

MECHANISMS: dict[MechanismName, Mechanism] = {
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
    "reference_tables": ReferenceTables(),
    "sanitized_statistics": SanitizedStatistics(),
}
