"""Statistical models: one file a model; `MODELS` is what a job's `family` may name."""

from dpdist.job import Family
from dpdist.models.bernoulli import Bernoulli
from dpdist.models.beta import Beta
from dpdist.models.beta_regression import BetaRegression
from dpdist.models.cell_sums import CellSums
from dpdist.models.histogram import Histogram
from dpdist.models.lognormal import Lognormal
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.poisson import Poisson
from dpdist.models.poisson_regression import PoissonRegression
from dpdist.models.protocol import Builder
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.user import User

MODELS: dict[Family, Builder] = {
    "lognormal": Lognormal,
    "beta": Beta,
    "beta_regression": BetaRegression,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "poisson_regression": PoissonRegression,
    "bernoulli": Bernoulli,
    "histogram": Histogram,
    "cell_sums": CellSums,
    "reference_cells": ReferenceCells,
    "user": User,
}

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
    "User",
]
