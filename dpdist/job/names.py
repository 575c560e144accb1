"""Names that a job may use: literals, which a test compares with the registries, and what groups of mechanisms share."""

from __future__ import annotations

from typing import Literal

Family = Literal[
    "lognormal",
    "beta",
    "beta_regression",
    "poisson",
    "negative_binomial",
    "poisson_regression",
    "bernoulli",
    "scores",
    "user",
]
Statistics = Literal["histogram", "cell_sums", "noisy_tables", "reference_cells"]
"""What mechanisms without a likelihood sum and add noise to."""
Synthesis = Literal["fbs", "fbp"]
MechanismName = Literal[
    "weighted",
    "unweighted",
    "weighted_e",
    "censor_w",
    "censor_uw",
    "centred",
    "perturbed_histogram",
    "laplace",
    "laplace_composed",
    "laplace_strict",
    "reference_tables",
    "sanitized_statistics",
]
WeightRule = Literal["none", "linear", "inverse", "scalar", "fixed_point", "cluster"]
Fallback = Literal["refuse", "pool", "proper_prior"]
Adjacency = Literal["zero_out", "add_remove", "substitution"]
Exchange = Literal["same_x", "anywhere"]
Comparator = Literal["laplace", "laplace_composed", "laplace_consistent", "laplace_finest", "reference_only", "fbs", "fbp"]
SamplerName = Literal["auto", "exact", "grid", "stan"]
Toolchain = Literal["auto", "cmdstan", "embedded"]
ExecutorName = Literal["serial", "dask"]
StatisticName = Literal["count", "mean", "total"]
Sensitivity = Literal["local", "public"]
NoiseName = Literal["laplace", "gaussian"]
Consistency = Literal["none", "least_squares"]
Measure = Literal["max_ecdf", "avg_ecdf", "mean", "median"]
Rule = Literal["error", "drop"]
Lonely = Literal["error", "certainty", "average", "centred"]
ReplicateKind = Literal["brr", "fay", "jackknife", "bootstrap", "successive_difference"]

FIXED_WEIGHTS: tuple[MechanismName, ...] = ("weighted_e", "censor_w")
"""Mechanisms whose weights follow from the rule's own constants: what they leave over the target is cut off ([G])."""
CLAMPED: tuple[MechanismName, ...] = ("censor_w", "censor_uw", "centred")
"""Mechanisms that draw from ∏ exp(clamp(α(f − g), ±M))."""
LAPLACE: tuple[MechanismName, ...] = ("laplace", "laplace_composed")
"""Mechanisms that noise the figures of whole tables, margins as cells."""
CELLWISE: tuple[MechanismName, ...] = ("reference_tables", "sanitized_statistics")
"""Mechanisms that release noisy sums of the tables' finest cells, whose limits a reference fixes."""
NOISY: tuple[MechanismName, ...] = ("perturbed_histogram", *LAPLACE, "laplace_strict", *CELLWISE)
"""Mechanisms that release sums under noise: they have no posterior, no draws and no sampler."""
NEEDING: tuple[MechanismName, ...] = ("centred", "reference_tables", "sanitized_statistics")
"""Mechanisms that cannot do without a reference."""
REFERRING: tuple[MechanismName, ...] = (*NEEDING, "censor_w", "weighted", "weighted_e")
"""Mechanisms for which a reference fixes something."""
STATISTICS: dict[MechanismName, Statistics] = {
    "perturbed_histogram": "histogram",
    "laplace": "noisy_tables",
    "laplace_composed": "noisy_tables",
    "laplace_strict": "cell_sums",
    "reference_tables": "reference_cells",
}
"""Statistics of the mechanisms that fit no likelihood: their jobs have no `model`."""
SAMPLERS: dict[Family | Statistics, tuple[SamplerName, ...]] = {
    "lognormal": ("exact", "stan"),
    "beta": ("grid", "stan"),
    "beta_regression": ("stan",),
    "poisson": ("exact", "stan"),
    "negative_binomial": ("grid", "stan"),
    "poisson_regression": ("stan",),
    "bernoulli": ("exact", "stan"),
    "scores": ("exact",),
    "user": ("stan",),
}
"""How posteriors of a family can be sampled, the first is taken where a job says auto; a clamp leaves no closed form."""
LARGEST_DRIFT = 0.66
"""Of the current file's law from the reference's, in sd of a record: beyond it no κ serves (METHODS §4b)."""
