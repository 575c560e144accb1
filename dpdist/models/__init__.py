"""Statistical models: one file a model; `MODELS` is what a job's `family` may name."""

from dpdist.models.lognormal import Lognormal

MODELS = {"lognormal": Lognormal}

__all__ = ["MODELS", "Lognormal"]
