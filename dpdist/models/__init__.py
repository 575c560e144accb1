"""Statistical models: one file a model; `MODELS` is what a job's `family` may name."""

from dpdist.job import Family
from dpdist.models.bernoulli import Bernoulli
from dpdist.models.beta import Beta
from dpdist.models.beta_regression import BetaRegression
from dpdist.models.lognormal import Lognormal
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.poisson import Poisson
from dpdist.models.poisson_regression import PoissonRegression
from dpdist.models.protocol import Builder
from dpdist.models.user import User

MODELS: dict[Family, Builder] = {
    "lognormal": Lognormal,
    "beta": Beta,
    "beta_regression": BetaRegression,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "poisson_regression": PoissonRegression,
    "bernoulli": Bernoulli,
    "user": User,
}

__all__ = [
    "MODELS",
    "Bernoulli",
    "Beta",
    "BetaRegression",
    "Lognormal",
    "NegativeBinomial",
    "Poisson",
    "PoissonRegression",
    "User",
]
