"""Gives a study's page and figures their input: results by case, mechanism, ε and measure, with names and colours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.studies.kinds.protocol import Caption
from dpdist.studies.kinds.registry import kind_of
from dpdist.studies.kinds.simulation_settings import DATA
from dpdist.studies.settings import Study
from dpdist.studies.shown import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#6A3D9A")
"""Okabe and Ito's colours, which most colour-blind readers can distinguish. The data themselves are drawn in grey."""
GREY = "#6b7280"


class Material(NamedTuple):
    """A study, the long table of its results, and record-level by-products of the first replicates."""

    study: Study
    results: pd.DataFrame
    records: pd.DataFrame

    def caption(self, measure: str) -> Caption:
        return kind_of(self.study).captions.get(measure, Caption(measure))

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        """The value at which a figure shows its dashed line, if there is one."""
        return kind_of(self.study).target(self.study, case, epsilon, measure)

    @property
    def arms(self) -> list[str]:
        return [label for label in self.study.labels if label != DATA]

    def colour(self, label: str) -> str:
        return GREY if label == DATA else PALETTE[self.arms.index(label) % len(PALETTE)]

    def values(self, case: str, mechanism: str, epsilon: str, measure: str) -> Floats:
        found = self.results
        rows = (found.case == case) & (found.mechanism == mechanism) & (found.epsilon == epsilon)
        return np.asarray(found[rows & (found.measure == measure)]["value"], dtype=float)

    def by_period(self, case: str, mechanism: str, epsilon: str, measure: str) -> Floats:
        """Means over replicates in each period of a chain, (period,)."""
        found = self.results
        own = found[(found.case == case) & (found.mechanism == mechanism) & (found.epsilon == epsilon)]
        own = own[own.measure.str.startswith(f"{measure} in period ")]
        return np.asarray(own.groupby("measure", sort=True)["value"].mean(), dtype=float)

    def column(self, case: str, mechanism: str, epsilon: str, column: str) -> Floats:
        found = self.records[(self.records.case == case) & (self.records.mechanism == mechanism)]
        at = epsilon if epsilon in set(found.epsilon) else self.study.grid[0]
        return np.asarray(found[(found.epsilon == at) & (found.column == column)]["value"], dtype=float)

    def mechanisms(self, figure: Figure, case: str, measure: str) -> list[str]:
        """Arms that have the measure in the case, in the study's order."""
        found = self.results[(self.results.case == case) & (self.results.measure == measure)]
        return [label for label in figure.mechanisms or self.study.labels if label in set(found.mechanism)]

    def cases(self, figure: Figure) -> list[str]:
        return list(figure.cases or self.study.case_names)
