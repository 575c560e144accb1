"""Exact worst-case losses of clamped likelihoods on small finite spaces, as multiples of the promised ε.

    python experiments/finite_spaces.py --spaces 100

A space has K record values z and T parameter points θ. A mechanism maps a file D to log factors u(D) of each value and
parameter, and draws θ with probability proportional to prior(θ) exp Σ_i u(z_i, θ). Its loss between neighbours D and D'
is max_θ |log p(θ | D) − log p(θ | D')|, over all files and all neighbours. Clamping to ±ε/2 keeps ε where one record's
factor is switched off (zero_out), and costs 2ε where one record is exchanged for another (substitution). It keeps nothing
where weights are learned on the file at hand, because one record can then change every other record's weight.
"""

from __future__ import annotations

import argparse
from functools import cache
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp


class Space(NamedTuple):
    """Log densities log p(z | θ), (value, θ), and the log prior, (θ,)."""

    log_density: np.ndarray
    log_prior: np.ndarray


class Arm(NamedTuple):
    """Log likelihoods clamped to a share of ±ε, and what their min-max weights are computed from."""

    clamp: float
    neighbours: str = "zero_out"
    weights: str = "none"
    centred: bool = False


ARMS = {
    "unweighted, ±ε/2": Arm(1 / 2),
    "weights fixed in advance, ±ε/2": Arm(1 / 2, weights="reference"),
    "centred, ±ε/2": Arm(1 / 2, centred=True),
    "substitution, ±ε/4": Arm(1 / 4, "substitution"),
    "substitution, ±ε/2": Arm(1 / 2, "substitution"),
    "weights learned on the file, ±ε/2": Arm(1 / 2, weights="current"),
    "a clamp that is 10 % too wide": Arm(11 / 20),
}


@cache
def files(values: int, n: int, neighbours: str) -> tuple[np.ndarray, np.ndarray]:
    """Multisets of at most n records, for substitution of n, as counts (file, value); pairs of neighbours, (pair, 2)."""
    sizes = range(n + 1) if neighbours == "zero_out" else [n]
    counts = [
        tuple(np.bincount(np.array(members, dtype=int), minlength=values))
        for size in sizes
        for members in combinations_with_replacement(range(values), size)
    ]
    number, pairs = {count: place for place, count in enumerate(counts)}, []
    for place, count in enumerate(counts):
        for out in np.flatnonzero(count):
            fewer = np.array(count) - (np.arange(values) == out)
            others = [fewer] if neighbours == "zero_out" else [fewer + row for row in np.eye(values, dtype=int)[out + 1 :]]
            pairs += [(place, number[tuple(other)]) for other in others]
    return np.array(counts), np.array(pairs).reshape(-1, 2)


def linear(bound: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Min-max weights by bounds on |log density|; `present` has those of values in the file."""
    if not len(present) or present.max() == present.min():
        return np.ones_like(bound)
    return np.clip(1.0 - (bound - present.min()) / (present.max() - present.min()), 0.0, 1.0)


def loss(space: Space, n: int, arm: Arm, epsilon: float) -> float:
    """The largest loss between neighbours of at most n records, over ε."""
    counts, pairs = files(len(space.log_density), n, arm.neighbours)
    log_density = space.log_density - (space.log_density[:, :1] if arm.centred else 0.0)
    bound, log_posterior = np.abs(space.log_density).max(axis=1), np.empty((len(counts), len(space.log_prior)))
    for place, count in enumerate(counts):
        present = bound[count > 0] if arm.weights == "current" else bound
        alpha = np.ones_like(bound) if arm.weights == "none" else linear(bound, present)
        factors = np.clip(alpha[:, None] * log_density, -arm.clamp * epsilon, arm.clamp * epsilon)
        log_posterior[place] = space.log_prior + count @ factors
    log_posterior -= logsumexp(log_posterior, axis=1, keepdims=True)
    return float(np.abs(log_posterior[pairs[:, 0]] - log_posterior[pairs[:, 1]]).max()) / epsilon


def random_space(values: int, parameters: int, rng: np.random.Generator) -> Space:
    """Random densities over a random base measure, because logs of probabilities would all be negative."""
    probability = np.maximum(rng.dirichlet(np.full(values, 0.3), size=parameters).T, 1e-12)
    base, prior = (np.maximum(rng.dirichlet(np.full(size, 0.3)), 1e-12) for size in (values, parameters))
    return Space(np.log(probability / base[:, None]), np.log(prior))


TWO_POINTS = Space(np.array([[-20.0, 20.0], [20.0, -20.0]]), np.log([1.0 - 1e-9, 1e-9]))
"""Sharp densities and a rare parameter: a record that favours it loses almost 2M against the empty file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=100, help="number of random spaces")
    parser.add_argument("--epsilon", type=float, default=1.0)
    settings = parser.parse_args()
    rng = np.random.default_rng(2024)
    spaces = [random_space(4, 5, rng) for _ in range(settings.spaces)]
    print("largest loss over ε: random spaces, files of up to 4, 8 and 12 records; the two-point space, up to 4")
    for name, arm in ARMS.items():
        worst = [max(loss(space, n, arm, settings.epsilon) for space in spaces) for n in (4, 8, 12)]
        worst.append(loss(TWO_POINTS, 4, arm, settings.epsilon))
        print(f"{name:35}", *(f"{size:8.4f}" for size in worst))


if __name__ == "__main__":
    main()
