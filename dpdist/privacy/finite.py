"""For `studies.kinds.guarantees`: exact privacy losses on small finite spaces, over all databases (METHODS §2).

A space has K record values z and T parameter points θ. A mechanism maps a database D to log factors u(D) of each value
and parameter. It draws θ with probability proportional to prior(θ) exp Σ_i u(z_i, θ). Its loss between neighbours D and
D' is max_θ |log p(θ | D) − log p(θ | D')|. For one draw from a finite set, this loss is exactly ε.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints

Neighbours = Literal["zero_out", "substitution"]
Present = NDArray[np.bool_]
Utility = Callable[[Present], Floats]
"""Gives log factors (value, θ), given which values the file contains, (value,)."""


class Space(NamedTuple):
    """A finite space: log densities log p(z | θ), (value, θ), and the log prior, (θ,)."""

    log_density: Floats
    log_prior: Floats


class Databases(NamedTuple):
    """Multisets of records, as counts (database, value), and pairs of neighbours among them, (pair, 2).

    Under `zero_out` they have at most n records, and under `substitution` exactly n.
    """

    counts: Ints
    pairs: Ints


@lru_cache(maxsize=64)
def databases(values: int, n: int, neighbours: Neighbours) -> Databases:
    """Lists all databases and neighbours."""
    sizes = range(n + 1) if neighbours == "zero_out" else range(n, n + 1)
    counts = [
        tuple(np.bincount(chosen, minlength=values)) if chosen else (0,) * values
        for size in sizes
        for chosen in combinations_with_replacement(range(values), size)
    ]
    number = {count: place for place, count in enumerate(counts)}
    pairs = []
    for place, count in enumerate(counts):
        for out in np.flatnonzero(count):
            fewer = [c - (z == out) for z, c in enumerate(count)]
            if neighbours == "zero_out":
                pairs.append((place, number[tuple(fewer)]))
                continue
            for into in range(out + 1, values):
                pairs.append((place, number[tuple(c + (z == into) for z, c in enumerate(fewer))]))
    return Databases(np.array(counts, dtype=np.int64), np.array(pairs, dtype=np.int64).reshape(-1, 2))


def worst_loss(space: Space, utility: Utility, n: int, neighbours: Neighbours) -> float:
    """The largest loss between neighbours, over all databases of at most n records (for substitution, of n records)."""
    files = databases(len(space.log_density), n, neighbours)
    log_posterior = np.empty((len(files.counts), len(space.log_prior)))
    patterns, pattern = np.unique(files.counts > 0, axis=0, return_inverse=True)
    for number, present in enumerate(patterns):
        chosen = pattern.reshape(-1) == number
        log_posterior[chosen] = space.log_prior + files.counts[chosen] @ utility(present)
    log_posterior -= scipy.special.logsumexp(log_posterior, axis=1, keepdims=True)
    return float(np.abs(log_posterior[files.pairs[:, 0]] - log_posterior[files.pairs[:, 1]]).max(initial=0.0))


def clamped(values: Floats, clamp: float) -> Utility:
    """The log factors `values` (value, θ), clamped to ±M, where M is `clamp`.

    They are α(f − g), the same for every file: the log likelihood f, g and α depend on the record alone.
    """
    factors = np.clip(values, -clamp, clamp)
    return lambda present: factors


def learned(space: Space, clamp: float) -> Utility:
    """A clamp with min-max weights learned on the file ([V]'s `linear`, c = 1), which depend on other records."""
    bound = np.abs(space.log_density).max(axis=1)

    def utility(present: Present) -> Floats:
        alpha = linear(bound, bound[present])
        return np.asarray(np.clip(alpha[:, None] * space.log_density, -clamp, clamp))

    return utility


def linear(bound: Floats, present: Floats) -> Floats:
    """Min-max weights from records' bounds on |log density|; `present` has those of values in the file."""
    if not len(present) or present.max() == present.min():
        return np.ones_like(bound)
    return np.asarray(np.clip(1.0 - (bound - present.min()) / (present.max() - present.min()), 0.0, 1.0))


def random_space(values: int, parameters: int, rng: np.random.Generator) -> Space:
    """A space with random densities and a random prior.

    Densities are divided by a random base measure, because logs of probabilities would all be negative.
    """
    probability = np.maximum(rng.dirichlet(np.full(values, 0.3), size=parameters).T, 1e-12)
    base = np.maximum(rng.dirichlet(np.full(values, 0.3)), 1e-12)
    prior = np.maximum(rng.dirichlet(np.full(parameters, 0.3)), 1e-12)
    return Space(np.log(probability) - np.log(base)[:, None], np.log(prior))


def two_point_space() -> Space:
    """A space with two values and two parameters, with sharp densities; one parameter is rare under the prior.

    Under a clamp to ±M, a record that favours the rare parameter loses almost 2M against the empty file.
    """
    sharp, rare = 20.0, 1e-9
    return Space(np.array([[-sharp, sharp], [sharp, -sharp]]), np.log(np.array([1.0 - rare, rare])))
