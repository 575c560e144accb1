"""Statistical models: one file a model; `MODELS` is what a job's `family` may name."""

from dpdist.job import Family, Job
from dpdist.models.bernoulli import Bernoulli
from dpdist.models.beta import Beta
from dpdist.models.beta_regression import BetaRegression
from dpdist.models.cell_sums import CellSums
from dpdist.models.histogram import Histogram
from dpdist.models.lognormal import Lognormal
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.noisy_tables import NoisyTables
from dpdist.models.poisson import Poisson
from dpdist.models.poisson_regression import PoissonRegression
from dpdist.models.protocol import Builder
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.sanitized import SanitizedLognormal
from dpdist.models.scores import Scores
from dpdist.models.user import User

MODELS: dict[Family, Builder] = {
    "lognormal": Lognormal,
    "beta": Beta,
    "beta_regression": BetaRegression,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "poisson_regression": PoissonRegression,
    "bernoulli": Bernoulli,
    "scores": Scores,
    "histogram": Histogram,
    "cell_sums": CellSums,
    "noisy_tables": NoisyTables,
    "reference_cells": ReferenceCells,
    "user": User,
}


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its family's, or that of noisy statistics of it."""
    return SanitizedLognormal if job.mechanism.name == "sanitized_statistics" else MODELS[job.model.family]


__all__ = [
    "MODELS",
    "Bernoulli",
    "Beta",
    "BetaRegression",
    "Histogram",
    "Lognormal",
    "NegativeBinomial",
    "Poisson",
    "PoissonRegression",
    "ReferenceCells",
    "SanitizedLognormal",
    "Scores",
    "User",
    "builder_of",
]
