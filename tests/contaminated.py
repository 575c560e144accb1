"""Contaminated strata of the lognormal model: some records' outcomes, weights or both lie many standard deviations off."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.job import Job, Weights
from dpdist.mechanisms.pseudo_posterior.leave_one_out import leave_one_out
from dpdist.models.lognormal.model import Lognormal
from dpdist.privacy.weights import search

KEY = Key(b"contaminated strata")
DRAWS = 300


class Contaminated(NamedTuple):
    """A stratum of `records` in `cells` predictor cells; its first `outliers` records lie `distance` sd off, on one side.

    Logarithms of outcome and weight have standard deviation `spread` within cells, and correlation −.7.
    """

    records: int
    distance: float = 0.0
    where: Literal["outcome", "weight", "both"] = "outcome"
    outliers: int = 1
    cells: int = 1
    spread: float = 0.4
    seed: int = 0

    def model(self) -> Lognormal:
        """With the cell as its one predictor, and an improper prior."""
        levels = tuple(f"level {cell}" for cell in range(self.cells))
        said = {
            "dataset": "contaminated",
            "period": "1",
            "columns": {"y": {"bounds": [0, 1e300]}, "cell": {"levels": list(levels)}},
            "survey": {"weight": "w"},
            "outcome": "y",
            "model": {"family": "lognormal", "predictors": ["cell"], "prior": {"name": "improper"}},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "3.6"},
            "tables": [{"name": "t", "statistics": ["count"]}],
        }
        codes = np.arange(self.cells, dtype=np.int32)
        crosstab = Crosstab({"cell": codes}, {"cell": levels}, np.bincount(self._cell()), (), ())
        return Lognormal.build(Job.model_validate(said), crosstab, slice(0, self.cells))

    def sample(self) -> Records:
        rng = np.random.default_rng([self.seed, self.records, self.cells])
        outcome, other = rng.standard_normal((2, self.records))
        weight = (other - outcome) / np.sqrt(2.0)
        off = rng.choice([-1.0, 1.0]) * self.distance
        if self.where != "weight":
            outcome[: self.outliers] += off
        if self.where != "outcome":
            weight[: self.outliers] += off
        y, w = np.exp(11.0 + self.spread * outcome), np.exp(4.0 + self.spread * weight)
        return Records.of_outcomes(y, w, self._cell())

    def audited(self, rule: str, target: float = 1.8, which: tuple[int, ...] = (0,)) -> pd.DataFrame:
        """The leave-one-out audit of some records; raises `Improper` or `NotReached`."""

        def steps():
            return search(Weights(rule=rule), target)

        with threadpool_limits(1):
            found = leave_one_out(self.model(), self.sample(), steps, which, DRAWS, KEY)
        return found.disclose_to_custodian()

    def _cell(self) -> np.ndarray:
        return (np.arange(self.records) % self.cells).astype(np.int32)
