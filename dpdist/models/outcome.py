"""Base classes of families without a weight, with and without predictors.

Their priors are proper, and their synthetic records have the weight 1. In sums, α is a record's privacy weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.job import Job
from dpdist.models.numerics.tiles import Tile, extremes_of, log_lik_of
from dpdist.models.protocol import Draws, Extremes, Parameter
from dpdist.models.public_model import PublicModel, strata_as_predictors


def no_records(*columns: str) -> dict[str, Any]:
    """Stan data of a fit without a clamp, which uses sums only; `columns` names further data of records."""
    return {"N": 0, "alpha": [], "reference": [], "clamp": 0.0, **{column: [] for column in columns}}


def clamped_records(
    alpha: Floats, reference: Floats, clamp: float, columns: Mapping[str, Floats | Codes]
) -> dict[str, Any]:
    """Stan data of records (record,) that enter one by one, by exp(clamp(α(f − reference), ±clamp)) ([G]; METHODS §4b).

    f is a record's log likelihood and α its privacy weight. Stan counts patterns from 1.
    """
    one_based = {name: np.asarray(v) + 1 if name == "pattern" else v for name, v in columns.items()}
    entries = {"alpha": alpha, "reference": reference, **one_based}
    return {"N": len(alpha), "clamp": float(clamp), **{name: np.asarray(v).tolist() for name, v in entries.items()}}


@dataclass(frozen=True)
class OutcomeModel(PublicModel):
    """A model of the outcome y given predictors x, for one stratum; its figures limit y to its public bounds."""

    of_program: ClassVar[Mapping[str, str]] = {}
    """Names of the Stan program's parameters by those of the model's."""
    of_counts: ClassVar[bool] = False
    """True for whole outcomes."""

    def sums(self, records: Records, alpha: Floats, *columns: Floats) -> Floats:
        """Σα and Σα·column by pattern, (pattern, 1 + column); records with α = 0 do not change them."""
        on, patterns = alpha > 0, len(self.design.matrix)
        pattern, weight = self.pattern(records.row)[on], alpha[on]
        terms = (weight, *(weight * column[on] for column in columns))
        return np.column_stack([np.bincount(pattern, weights=t, minlength=patterns) for t in terms])

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        """Σα and Σαy by pattern."""
        return self.sums(records, alpha, records.outcome)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        limits = integer_bounds(self.outcome_bounds) if self.of_counts else self.outcome_bounds
        return np.clip(self.outcomes(theta, crosstab_row, rng), *limits), np.ones(len(crosstab_row))

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        """Simulated outcomes without limits, (record,), under the first draw of θ."""
        raise NotImplementedError

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {name: draws[source] for name, source in self.of_program.items()}

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood (draw, record)."""
        first, inverse = self._distinct(records)
        values = log_lik_of(self.tiles(draws, records.take(first)), len(draws), len(first))
        return values if len(first) == len(records) else values[:, inverse]

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        first, inverse = self._distinct(records)
        distinct = extremes_of(self.tiles(draws, records.take(first)), len(first))
        return Extremes(distinct.highest[inverse], distinct.lowest[inverse])

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        """Log likelihood tile by tile."""
        raise NotImplementedError

    def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
        return clamped_records(alpha, reference, clamp, {"y": records.outcome})

    def _distinct(self, records: Records) -> tuple[Ints, Ints]:
        """Positions of records with distinct (x, y), and for every record the number of its distinct record.

        If few records are equal, all count as distinct.
        """
        values, code = np.unique(records.outcome, return_inverse=True)
        key = self.pattern(records.row) * np.int64(len(values)) + code
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        if 2 * len(first) > len(records):
            return np.arange(len(records)), np.arange(len(records))
        return first, inverse


class ConjugateModel(OutcomeModel):
    """A model with one pattern and statistics Σα(1, y), whose fits to redrawn samples have a closed form."""

    def as_sampled(self) -> Self:
        return self

    def scatter(self, records: Records, alpha: Floats) -> Floats:
        terms = alpha[:, None] * np.column_stack([np.ones(len(records)), records.outcome])
        centred = terms - terms.mean(axis=0)
        return np.asarray(centred.T @ centred * (len(records) / max(1, len(records) - 1)))[None]


class RegressionModel(OutcomeModel):
    """A model whose location is x'coefficients; in a pooled fit the strata are main effects."""

    @staticmethod
    def predictors(job: Job, crosstab: Crosstab) -> tuple[str, ...]:
        return (*strata_as_predictors(job, crosstab), *job.likelihood_predictors)

    @property
    def coefficients(self) -> Parameter:
        return Parameter("coefficients", (("predictor", self.design.names),))

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Coefficients (draw, predictor) are of all predictors; NaN for those that the stratum does not identify."""
        parameters = super().from_stan(draws)
        full = np.full((len(parameters["coefficients"]), len(self.design.names)), np.nan)
        full[:, self.design.columns] = parameters["coefficients"]
        return {**parameters, "coefficients": full}

    def location(self, draws: Draws) -> Floats:
        """x'coefficients of every pattern, (draw, pattern)."""
        return np.asarray(draws["coefficients"][:, self.design.columns] @ self.design.matrix.T)

    def summed(self, draws: Draws) -> float:
        """1 plus the largest Σ|coefficient| over draws; the rounding error of a location is proportional to it."""
        return float(1.0 + np.abs(draws["coefficients"][:, self.design.columns]).sum(axis=1).max())

    def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
        columns: dict[str, Floats | Codes] = {"pattern": self.pattern(records.row), "y": records.outcome}
        return clamped_records(alpha, reference, clamp, columns)

    def design_data(self) -> dict[str, Any]:
        """A Stan program's data of the patterns."""
        patterns, columns = self.design.matrix.shape
        return {"P": patterns, "K": columns, "X": self.design.matrix.tolist()}


def integer_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """The smallest and the largest whole number within bounds."""
    return float(np.ceil(bounds[0])), float(np.floor(bounds[1]))
