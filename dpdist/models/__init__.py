"""Likelihoods of a record: `LIKELIHOODS` holds the models of the families that have one, one file or folder a family."""

from dpdist.job import Family
from dpdist.models.bernoulli import Bernoulli
from dpdist.models.beta import Beta
from dpdist.models.beta_regression import BetaRegression
from dpdist.models.copula.model import Scores
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.poisson import Poisson
from dpdist.models.poisson_regression import PoissonRegression
from dpdist.models.protocol import Builder
from dpdist.models.user import User

LIKELIHOODS: dict[Family, Builder] = {
    "lognormal": Lognormal,
    "beta": Beta,
    "beta_regression": BetaRegression,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "poisson_regression": PoissonRegression,
    "bernoulli": Bernoulli,
    "scores": Scores,
    "user": User,
}

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Beta",
    "BetaRegression",
    "Lognormal",
    "NegativeBinomial",
    "Poisson",
    "PoissonRegression",
    "Scores",
    "User",
]
