"""What page and figures are made from: results by case, mechanism, ε and measure; names and colours of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.studies.kinds.chains_settings import Chaining, late
from dpdist.studies.kinds.files_settings import Filed
from dpdist.studies.kinds.strict_tables_settings import Referring
from dpdist.studies.kinds.tables_settings import STATISTICS, Tabulated, scale, sizes_of
from dpdist.studies.settings import DATA, WORST_LOSS, Guarantees, Simulation
from dpdist.studies.shown import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#6A3D9A")
"""Okabe and Ito's colours, which most colour-blind readers tell apart; the data are grey."""
GREY = "#6b7280"
TITLES: Mapping[str, str] = {
    "database_bound": "database bound Δ",
    "unweighted_database_bound": "database bound Δ of the unweighted fit",
    "epsilon_local": "local ε = 2Δ",
    "epsilon_local_range": "local ε from the range",
    "records_censored": "records censored",
    "privacy_weight": "mean privacy weight α",
    "record_bound_before": "mean record bound, unweighted fit",
    "record_bound_after": "mean record bound, final fit",
    "max_ecdf": "max-ECDF",
    "avg_ecdf": "avg-ECDF",
    "mean": "mean",
    "median": "median",
    "q15": "15th percentile",
    "q90": "90th percentile",
    "fits": "fits",
    WORST_LOSS: "worst-case loss / promised ε",
    **{f"{name}_ratio_direct": f"RMSE of {name}s over the direct estimate's" for name in STATISTICS},
    **{f"{name}_ratio_laplace": f"RMSE of {name}s over Laplace's, all of ε in every figure" for name in STATISTICS},
    **{f"{name}_ratio_laplace_composed": f"RMSE of {name}s over Laplace's, ε shared" for name in STATISTICS},
    **{f"{name}_ratio_laplace_strict": f"RMSE of {name}s over strict Laplace tables'" for name in STATISTICS},
    **{
        f"{name}_{when}{size}": f"{size.removeprefix('given_')} |error| of {name}s in direct standard errors "
        f"{scale(size)}{then}"
        for name in STATISTICS
        for when, then in (("", ""), ("last_", ", last release"), ("late_", ", last quarter of the chain"))
        for size in sizes_of(name)
    },
    **{
        late(f"{name}_coverage"): f"share of cells whose 90 % interval holds the true {name}, last quarter of the chain"
        for name in STATISTICS
    },
    **{f"{name}_grand": f"|error| of the {name} of all records in published standard errors" for name in STATISTICS},
    **{f"{name}_cell_coverage": f"share of replicates whose 90 % interval holds the true {name}" for name in STATISTICS},
    "chain_epsilon": "ε of a person in all files of the chain",
    **{f"{name}_bias_direct": f"|bias| of {name}s / direct RMSE" for name in STATISTICS},
    **{f"{name}_coverage": f"share of cells whose 90 % interval holds the true {name}" for name in STATISTICS},
    **{f"{name}_coverage_sets": f"{name}s: the same from the synthetic sets alone, T = B/m + W" for name in STATISTICS},
    **{f"{name}_coverage_margins": f"share of margins whose 90 % interval holds the true {name}" for name in STATISTICS},
}


class Material(NamedTuple):
    """What figures are drawn from: the long table of results, and record-level by-products of the first replicates."""

    study: Simulation | Guarantees | Tabulated | Referring | Filed | Chaining
    results: pd.DataFrame
    records: pd.DataFrame

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
        """Means over replicates in every period of a chain, (period,)."""
        found = self.results
        own = found[(found.case == case) & (found.mechanism == mechanism) & (found.epsilon == epsilon)]
        own = own[own.measure.str.startswith(f"{measure} in period ")]
        return np.asarray(own.groupby("measure", sort=True)["value"].mean(), dtype=float)

    def column(self, case: str, mechanism: str, epsilon: str, column: str) -> Floats:
        found = self.records[(self.records.case == case) & (self.records.mechanism == mechanism)]
        at = epsilon if epsilon in set(found.epsilon) else self.study.grid[0]
        return np.asarray(found[(found.epsilon == at) & (found.column == column)]["value"], dtype=float)

    def mechanisms(self, said: Figure, case: str, measure: str) -> list[str]:
        """Arms that have the measure in the case, in the study's order."""
        found = self.results[(self.results.case == case) & (self.results.measure == measure)]
        return [label for label in said.mechanisms or self.study.labels if label in set(found.mechanism)]

    def cases(self, said: Figure) -> list[str]:
        return list(said.cases or self.study.case_names)
