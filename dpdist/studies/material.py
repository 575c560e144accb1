"""For `studies.run` and `figures`: results by case, mechanism, ε and measure, with names and colours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.studies.file import kind_of
from dpdist.studies.kinds.protocol import Caption
from dpdist.studies.kinds.simulation_settings import DATA
from dpdist.studies.settings import Figure, Study

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#6A3D9A")
"""Okabe and Ito's colours, which most colour-blind readers can distinguish. The data themselves are drawn in grey."""
GREY = "#6b7280"


class Material(NamedTuple):
    """A study, the long table of its results, and by-products of the first replicates for every record."""

    study: Study
    results: pd.DataFrame
    records: pd.DataFrame

    def caption(self, measure: str) -> Caption:
        return kind_of(self.study).captions.get(measure, Caption(measure))

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        """Value of a figure's dashed line, if any."""
        return kind_of(self.study).target(self.study, case, epsilon, measure)

    @property
    def arms(self) -> list[str]:
        return [label for label in self.study.labels if label != DATA]

    def colour(self, label: str) -> str:
        return GREY if label == DATA else PALETTE[self.arms.index(label) % len(PALETTE)]

    def values(self, case: str, mechanism: str, epsilon: str, measure: str) -> Floats:
        table = self.results
        rows = (table.case == case) & (table.mechanism == mechanism) & (table.epsilon == epsilon)
        return np.asarray(table[rows & (table.measure == measure)]["value"], dtype=float)

    def column(self, case: str, mechanism: str, epsilon: str, column: str) -> Floats:
        rows = self.records[(self.records.case == case) & (self.records.mechanism == mechanism)]
        shown = epsilon if epsilon in set(rows.epsilon) else self.study.grid[0]
        return np.asarray(rows[(rows.epsilon == shown) & (rows.column == column)]["value"], dtype=float)

    def mechanisms(self, figure: Figure, case: str, measure: str) -> list[str]:
        """The mechanisms that have the measure, in the study's order."""
        rows = self.results[(self.results.case == case) & (self.results.measure == measure)]
        return [label for label in figure.mechanisms or self.study.labels if label in set(rows.mechanism)]

    def cases(self, figure: Figure) -> list[str]:
        return list(figure.cases or self.study.case_names)


def number(value: float) -> str:
    """Three significant digits; from 1,000 on all whole digits, with commas."""
    size = abs(value)
    if not np.isfinite(value):
        return "∞" if value > 0 else "–"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= 0.01:
        return f"{value:.3f}"
    return f"{value:.2g}" if size else "0"
