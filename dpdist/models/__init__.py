"""Statistical models: one file a model; `MODELS` is what a job's `family` may name."""

from dpdist.job import Family
from dpdist.models.lognormal import Lognormal
from dpdist.models.protocol import Builder

MODELS: dict[Family, Builder] = {"lognormal": Lognormal}

__all__ = ["MODELS", "Lognormal"]
