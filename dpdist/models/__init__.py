"""The likelihood model of every family, by name.

A family is the law that a job names for its outcome, such as `lognormal`. Each has one file or folder here. In docstrings
METHODS is docs/methods.md, and letters in brackets, such as [G], name papers of docs/bibliography.md.
"""

from typing import Any, cast

from dpdist.core.plugins import Members
from dpdist.job import MODELS, Family
from dpdist.models.beta import Bernoulli, Beta, BetaRegression
from dpdist.models.copula.model import Scores
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.negative_binomial import NegativeBinomial, NegativeBinomialMixture, Poisson, PoissonRegression
from dpdist.models.protocol import StratumModel
from dpdist.models.user import User

LIKELIHOODS: Members[type[StratumModel]] = MODELS
"""Classes of models by the family's name. Its methods lead to plug-ins, too."""
WITHOUT: dict[Family, frozenset[str]] = {
    **dict.fromkeys(("beta_regression", "poisson_regression", "bernoulli", "scores"), frozenset({"until"})),
    "user": frozenset({"simulate", "expect", "until"}),
}
"""Methods that a family's model may lack; a release then has none of the figures that `FIGURES` names for the method."""
FIGURES = {
    "simulate": "synthetic records",
    "expect": "figures from parameters",
    "until": "medians, quantiles and proportions from parameters",
}
"""What a release makes by each method."""


def lacking(family: Family, model: Any) -> list[str]:
    """Sentences on the methods that a family's model lacks although `WITHOUT` does not list them."""
    return [
        f"family {family}: {model.__name__} has no {method}, so its releases would have no {figures}: write it, or list "
        "the family under WITHOUT in dpdist/models/__init__.py"
        for method, figures in FIGURES.items()
        if not hasattr(model, method) and method not in WITHOUT.get(family, ())
    ]


for _family, _model in LIKELIHOODS.items():
    if _lines := lacking(cast(Family, _family), _model):
        raise TypeError("; ".join(_lines))

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Beta",
    "BetaRegression",
    "Lognormal",
    "NegativeBinomial",
    "NegativeBinomialMixture",
    "Poisson",
    "PoissonRegression",
    "Scores",
    "User",
]
