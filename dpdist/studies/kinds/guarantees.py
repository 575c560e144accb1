"""Studies of guarantees: exact worst-case losses of clamped mechanisms on small finite spaces over all databases.

Losses are multiples of the promised ε, so a loss above 1 breaks the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import Field

from dpdist.core.records import Floats, Ints
from dpdist.job import Budget, Frozen, Name, budget_text
from dpdist.studies.settings import Caption, Fact, Replicate, Result, StudyOfArms, as_number

# A space has K record values z and T parameter points θ. A mechanism maps a database D to log factors u(D) of each value
# and parameter. It draws θ with probability proportional to prior(θ) exp Σ_i u(z_i, θ). Its loss between neighbours D and
# D' is max_θ |log p(θ | D) − log p(θ | D')|. For one draw from a finite set, this loss is exactly ε.
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
        tuple(np.bincount(indices, minlength=values)) if indices else (0,) * values
        for size in sizes
        for indices in combinations_with_replacement(range(values), size)
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
        in_pattern = pattern.reshape(-1) == number
        log_posterior[in_pattern] = space.log_prior + files.counts[in_pattern] @ utility(present)
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


WORST_LOSS = "worst_loss"


class FiniteCase(Frozen):
    """A finite space of record values and parameters; a random one is new in every replicate."""

    name: Name
    space: Literal["random", "two_point"]
    values: int = Field(default=4, ge=2, le=8)
    parameters: int = Field(default=5, ge=2, le=50)
    n: int = Field(ge=1, le=20, description="records of the largest file")


class FiniteArm(Frozen):
    """Log likelihoods clamped to ±M, a share of ε, and the neighbours compared."""

    label: Name
    clamp: Budget = Field(description="M/ε: 1/2 for zero_out, 1/4 for substitution")
    neighbours: Literal["zero_out", "substitution"] = "zero_out"
    centred: bool = Field(default=False, description="clamp log p(z | θ) − log p(z | first θ) in place of log p(z | θ)")
    weights: Literal["none", "reference", "current"] = Field(
        default="none", description="min-max weights: fixed in advance, or computed from the file itself"
    )


class Guarantees(StudyOfArms):
    """Exact worst-case losses of clamped mechanisms on finite spaces, as multiples of the promised ε."""

    heads: ClassVar[tuple[str, ...]] = ("Label", "Clamp M", "Weights", "Neighbours")
    comparison_title: ClassVar[str] = "Beside the promises"
    kind: Literal["guarantees"]
    cases: tuple[FiniteCase, ...] = Field(min_length=1)
    mechanisms: tuple[FiniteArm, ...] = Field(min_length=1)

    @property
    def captions(self) -> Mapping[str, Caption]:
        reading = (
            "Largest |log p(θ | D) − log p(θ | D′)| over all neighbouring files D, D′ and all θ, over the promised ε: at "
            "most 1 if the promise holds."
        )
        return {WORST_LOSS: Caption("worst-case loss / promised ε", reading)}

    def replicate(self, case: int, number: int) -> Replicate:
        """Losses by arm, on the space of this replicate."""
        finite = self.cases[case]
        rng = self.key_of(finite.name, number).generator("space")
        random = finite.space == "random"
        space = random_space(finite.values, finite.parameters, rng) if random else two_point_space()
        return Replicate(
            [
                Result(arm.label, epsilon, WORST_LOSS, loss(space, finite.n, arm, as_number(epsilon)))
                for arm in self.mechanisms
                for epsilon in self.grid
            ]
        )

    def facts(self) -> list[Fact]:
        return [
            ("Spaces", [f"{case.name}: {_space(case)}, files of up to {case.n} records" for case in self.cases]),
            ("Losses", ["exact: all files, all neighbours, all parameters; no sampling within a space"]),
            (
                "Replicates",
                [f"R = {self.replicates} random spaces of each case, seed {self.seed}; the two-point space is fixed"],
            ),
            ("ε", [", ".join(self.grid)]),
        ]

    def arms(self) -> list[tuple[str, ...]]:
        return [_arm(arm) for arm in self.mechanisms]

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        return 1.0


def loss(space: Space, n: int, arm: FiniteArm, epsilon: float) -> float:
    clamp = float(arm.clamp) * epsilon
    if arm.weights == "current":
        utility = learned(space, clamp)
    else:
        log_density = space.log_density - (space.log_density[:, :1] if arm.centred else 0.0)
        bound = abs(space.log_density).max(axis=1)
        alpha = linear(bound, bound) if arm.weights == "reference" else np.ones_like(bound)
        utility = clamped(alpha[:, None] * log_density, clamp)
    return worst_loss(space, utility, n, arm.neighbours) / epsilon


def _space(case: FiniteCase) -> str:
    if case.space == "two_point":
        return "two values, two parameters, one of them rare under the prior"
    return f"random densities of {case.values} values under {case.parameters} parameters"


def _arm(arm: FiniteArm) -> tuple[str, ...]:
    weights = {"none": "none", "reference": "min-max, fixed in advance", "current": "min-max, learned on the file at hand"}
    centred = ", of f minus its value at a fixed parameter" if arm.centred else ""
    return arm.label, f"{budget_text(arm.clamp)} ε{centred}", weights[arm.weights], arm.neighbours
