"""Comparators without a model, for `quality.compare` and `studies`: Laplace tables, and strict tables with a reference.

Nothing is released. `guarantee_of` states what comparators would promise if they were released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Cells, Codes, Crosstab, Floats
from dpdist.estimation.direct import Totals
from dpdist.estimation.estimators import group_sums
from dpdist.estimation.least_squares import consistent_table
from dpdist.job import Comparator, Job, StatisticName, budget_text
from dpdist.privacy.cell_sums import CellBounds, noise_scale, sensitivities
from dpdist.privacy.guarantees import NoGuarantee, record_epsilon

UNPROTECTED = "an unprotected yardstick that promises nothing"


def guarantee_of(job: Job, how: Comparator) -> str:
    """Guarantee and cost of a comparator that fits no model. The class stands before the first comma or colon."""
    if how == "laplace_finest":
        budget = f"ε = {budget_text(job.budget.epsilon)}, {job.budget.adjacency}"
        return f"strict, {budget}: noisy sums of base cells at public bounds"
    if how == "reference_only" and not job.sizes_secret:
        return "strict, ε = 0: of the current file it uses only the public sample sizes"
    why = "the file's own sensitivities scale the noise"
    if how == "laplace":
        why = f"every figure is given the whole ε, and {why}"
    elif how == "reference_only":
        why = "it has the file's sample sizes, which this release keeps secret"
    return f"{NoGuarantee.name}, {UNPROTECTED}: {why}"


# Computes tables with Laplace noise as in the slides [T]: a comparator that guarantees nothing (METHODS §7).
#
# Noise is Laplace(Δ/ε), where the sensitivities Δ are computed on the file itself (`sensitivities`). With
# `laplace`, every cell and statistic has the whole ε, as in the slides. With `laplace_composed`, ε is divided by the number
# of figures that one record enters. `laplace_consistent` also makes counts and totals add up, by least squares and at no
# cost. Its means are totals over counts, where the table has both.
def noised(
    estimates: Mapping[StatisticName, Floats],
    sums: Totals,
    cells: Cells,
    epsilon: float,
    how: Comparator,
    key: Key,
    table: str,
    figures: int,
) -> dict[StatisticName, Floats]:
    """Returns direct estimates with Laplace noise; `estimates` holds counts, means and totals, (cell,) each.

    `figures` is the number of figures that one record enters in the whole release.
    """
    share = 1.0 if how == "laplace" else float(figures)
    scale = sensitivities(sums.sums.a, sums.weight, sums.product, cells)
    rng = key.generator(f"compare {'laplace_composed' if how == 'laplace_consistent' else how}", table)
    noisy = {
        name: values + rng.laplace(0.0, share * scale[name] / epsilon, len(values)) if scale[name] > 0 else values
        for name, values in estimates.items()
    }
    return consistent_table(noisy, cells) if how == "laplace_consistent" else noisy


# - `laplace_finest`: noisy sums of base cells. Weights are clipped at a high quantile of the
#   reference's weights, outcomes at their public bounds.
# - `reference_only`: the current file's public sizes times the reference's means in base cells. Records of base cells that
#   the reference lacks have the means of the others in the table's cell. Where it has none of these, there is no figure.
QUANTILE = 0.99
REFERRED = ("laplace_finest", "reference_only")
ABSENT = "missing: the reference has no record in this cell"


class ReferenceBaselines(NamedTuple):
    """Σw and Σwy of every base cell under each comparator, (cell, 2). `row` is a crosstab row of each cell.

    `size` has each cell's current records. `reference` is 0 in cells of which the reference has no record: `absent`.
    """

    row: Codes
    size: Floats
    absent: NDArray[np.bool_]
    finest: Floats
    reference: Floats

    def figures(self, how: str, cells: Cells) -> dict[StatisticName, Floats]:
        sums = self.finest if how == "laplace_finest" else self.reference
        inside = self._inside(cells)
        count, total = (inside @ sums[:, k] for k in range(2))
        with np.errstate(divide="ignore", invalid="ignore"):
            if how == "reference_only":
                size, overlap = inside @ self.size, inside @ np.where(self.absent, 0.0, self.size)
                grown = np.where(size == overlap, 1.0, np.where(overlap > 0, size / overlap, np.nan))
                count, total = grown * count, grown * total
            return {"count": count, "mean": total / count, "total": total}

    def notes(self, how: str, cells: Cells, guarantee: str) -> list[str]:
        """The guarantee, or the reason why a cell has no figure."""
        without = ~np.isfinite(self.figures(how, cells)["count"]) if how == "reference_only" else np.zeros(len(cells), bool)
        return [ABSENT if missing else guarantee for missing in without]

    def _inside(self, cells: Cells) -> scipy.sparse.csc_array:
        return cells.membership.tocsc()[:, self.row]


def reference_baselines(
    job: Job, crosstab: Crosstab, current: Iterable[Records], reference: Iterable[Records], key: Key
) -> ReferenceBaselines:
    """Computes both comparators. The records of both files have rows of the same crosstab."""
    group, labels = crosstab.group(job.cell_columns)
    cells, row = len(labels), np.unique(group, return_index=True)[1].astype(np.int32)
    totals, weights = np.zeros((cells, 3)), []
    for records in reference:
        columns = (np.ones(len(records)), records.weight, records.weight * records.outcome)
        totals += np.column_stack([group_sums(group[records.row], column, cells) for column in columns])
        weights.append(records.weight)
    size = group_sums(group, crosstab.count.astype(np.float64), cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.nan_to_num((size / totals[:, 0])[:, None] * totals[:, 1:], posinf=0.0)
    bounds = CellBounds(float(np.quantile(np.concatenate(weights), QUANTILE)), *(job.outcome_column.bounds or (0.0, 1.0)))
    pairs = np.zeros((cells, 2))
    for records in current:
        units = bounds.pairs(np.minimum(records.weight, bounds.weight), records.outcome)
        pairs += np.column_stack([group_sums(group[records.row], column, cells) for column in units.T])
    noise = key.generator("compare laplace_finest", "all").laplace(
        0.0, float(noise_scale(record_epsilon(job, job.budget.epsilon))), pairs.shape
    )
    return ReferenceBaselines(row, size, totals[:, 0] == 0, bounds.sums(pairs + noise), scaled)
