"""For all sections in `job`: names that a job may use, such as those of adjacencies and samplers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Literal

from dpdist.core.plugins import OneOf
from dpdist.job.statistics import KINDS

Synthesis = Literal["fbs", "fbp"]
Guarantee = Literal["strict", "asymptotic", "none"]
"""Whether a promise holds for every file, or for the file at hand, or nothing is promised."""
Fallback = Literal["refuse", "pool", "proper_prior"]
Adjacency = Literal["zero_out", "add_remove", "substitution"]
Exchange = Literal["same_x", "anywhere"]
Comparator = Literal["laplace", "laplace_composed", "laplace_consistent", "laplace_finest", "reference_only", "fbs", "fbp"]
SamplerName = Literal["auto", "exact", "grid", "stan"]
Toolchain = Literal["auto", "cmdstan", "embedded"]
ExecutorName = Literal["serial", "dask"]
Sensitivity = Literal["local", "public"]
NoiseName = Literal["laplace", "gaussian"]
Consistency = Literal["none", "least_squares"]
Measure = Literal["max_ecdf", "avg_ecdf", "mean", "median"]
Rule = Literal["error", "drop"]
MissingRule = Literal["error", "drop", "category"]
Lonely = Literal["error", "certainty", "average", "centred"]
ReplicateKind = Literal["brr", "fay", "jackknife", "bootstrap", "successive_difference"]

StatisticName = Annotated[str, OneOf("statistic", KINDS)]
"""The name of a statistic of dpdist, or of a plug-in."""

LARGEST_DRIFT = 0.66
"""Largest drift that `centred` may plan for, in standard deviations of a record: beyond it no κ serves (METHODS §4b)."""


def complete(what: str, names: Iterable[str], registered: Collection[str], where: str) -> None:
    """Checks that every name that a job may state is registered, and no other name.

    Raises `TypeError`, when the module is imported, with the names that are missing and where to add them.
    """
    wanted = list(names)
    if lacking := [name for name in wanted if name not in registered]:
        raise TypeError(f"{what} {', '.join(lacking)}: missing in {where}")
    if unknown := [name for name in registered if name not in wanted]:
        raise TypeError(f"{what} {', '.join(unknown)}: in {where}, and no job can state it")
