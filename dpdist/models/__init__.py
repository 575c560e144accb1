"""Statistical models: one file a model; `MODELS` is what a job's `family` may name."""

from dpdist.job import Family
from dpdist.models.lognormal import Lognormal
from dpdist.models.protocol import Builder
from dpdist.models.user import User

MODELS: dict[Family, Builder] = {"lognormal": Lognormal, "user": User}

__all__ = ["MODELS", "Lognormal"]
