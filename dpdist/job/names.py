"""Names that a job may use, but for mechanisms' own: literals, which a test compares with the registries."""

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
Statistics = Literal[
    "histogram",
    "cell_sums",
    "regularised_cells",
    "noisy_tables",
    "reference_cells",
    "sufficient",
    "partition",
    "marginals",
]
"""What mechanisms without a likelihood sum and add noise to."""
Synthesis = Literal["fbs", "fbp"]
Guarantee = Literal["strict", "asymptotic", "none"]
"""Whether what is promised holds for every file, for the file at hand, or nothing is promised."""
Law = Literal["normal", "lognormal", "bernoulli", "multinomial"]
"""Laws whose sufficient statistics `modips` sanitises."""
Sanitization = Literal["conjoint", "individual"]
Truncation = Literal["clamped", "bounded", "renormalised"]
WeightRule = Literal["none", "linear", "inverse", "scalar", "fixed_point", "cluster"]
Fallback = Literal["refuse", "pool", "proper_prior"]
Adjacency = Literal["zero_out", "add_remove", "substitution"]
Exchange = Literal["same_x", "anywhere"]
Comparator = Literal["laplace", "laplace_composed", "laplace_consistent", "laplace_finest", "reference_only", "fbs", "fbp"]
SamplerName = Literal["auto", "exact", "grid", "stan"]
Toolchain = Literal["auto", "cmdstan", "embedded"]
ExecutorName = Literal["serial", "dask"]
StatisticName = Literal["count", "mean", "total", "ratio", "proportion", "median", "quantile", "share", "difference"]
Sensitivity = Literal["local", "public"]
NoiseName = Literal["laplace", "gaussian"]
Consistency = Literal["none", "least_squares"]
Measure = Literal["max_ecdf", "avg_ecdf", "mean", "median"]
Rule = Literal["error", "drop"]
MissingRule = Literal["error", "drop", "category"]
Lonely = Literal["error", "certainty", "average", "centred"]
ReplicateKind = Literal["brr", "fay", "jackknife", "bootstrap", "successive_difference"]

RULE_CONSTANTS: dict[WeightRule, frozenset[str]] = {
    "none": frozenset(),
    "linear": frozenset({"c", "g"}),
    "inverse": frozenset({"c"}),
    "scalar": frozenset(),
    "fixed_point": frozenset(),
    "cluster": frozenset({"c", "g", "radius"}),
}
"""Constants of a weight rule that a job may give; `c` is tuned where it is left out."""
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
