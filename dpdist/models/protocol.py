"""What a model can do, in small capabilities; a member implements what it has.

`model` objects are frozen, picklable and public: built from the job and the frame, never from records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from dpdist.records import Codes, Floats, Records


@dataclass(frozen=True)
class Draws:
    """Posterior draws of a matrix-normal location B and a covariance Σ.

    `coefficients` (draw, predictor, component), `covariance` (draw, component, component); a coefficient aliased with
    earlier ones is NaN.
    """

    coefficients: Floats
    covariance: Floats

    def __len__(self) -> int:
        return len(self.covariance)

    def one(self, draw: int) -> Draws:
        return Draws(self.coefficients[draw : draw + 1], self.covariance[draw : draw + 1])


class Extremes(NamedTuple):
    """Largest and smallest log likelihood of each record over draws, shape (record,), rounded outward."""

    highest: Floats
    lowest: Floats

    @property
    def bound(self) -> Floats:
        """max_s |f_i(θ_s)|."""
        return np.maximum(self.highest, -self.lowest)

    @property
    def range(self) -> Floats:
        """max_s f_i(θ_s) − min_s f_i(θ_s)."""
        return self.highest - self.lowest


@runtime_checkable
class Density(Protocol):
    """A record-level log density log p(record | θ), natural logarithm."""

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood, shape (draw, record)."""
        ...

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        """Extremes over draws in one pass that never holds (draw, record)."""
        ...


@runtime_checkable
class Additive(Protocol):
    """Sufficient statistics that add over record blocks."""

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        """Statistics of the pseudo likelihood ∏ p(record)^α; sums over records."""
        ...

    def weight_total(self, statistics: Floats) -> float:
        """Σα."""
        ...


@runtime_checkable
class Exact(Protocol):
    """A posterior with a closed form, sampled without Markov chains."""

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Independent posterior draws; raises `Improper` where the posterior does not exist."""
        ...


@runtime_checkable
class Synthesizer(Protocol):
    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcome and weight of one synthetic record per entry of frame_row, under the first draw of θ."""
        ...


@runtime_checkable
class Expectation(Protocol):
    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w | x) and E(w y | x) of every frame row of the stratum, each of shape (draw, row)."""
        ...


@runtime_checkable
class Described(Protocol):
    """How released parameters are written down."""

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        """One draw as a JSON-ready mapping."""
        ...

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """The inverse of `describe`."""
        ...


class StratumModel(Density, Additive, Exact, Synthesizer, Expectation, Described, Protocol):
    """A model that has everything the tilted posterior with exact draws needs."""

    @property
    def parameters(self) -> int:
        """Coefficients per component that the stratum's predictors identify."""
        ...


class Improper(Exception):
    """The posterior does not exist for these statistics; says why in public terms."""
