"""Direct survey-weighted estimates from the confidential records, streamed block by block (confidential side only)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.cells import Cells
from dpdist.estimates import Estimate, Sums, clustered_counts_and_means, counts_and_means, record_sums
from dpdist.records import Floats, Frame, Records


class Totals(NamedTuple):
    """Sums and extremes per frame row, arrays (row,), and PSU totals (frame, psu, w, wy) where PSUs are declared."""

    sums: Sums
    weight: tuple[Floats, Floats]
    product: tuple[Floats, Floats]
    psu: pd.DataFrame | None


def totals(blocks: Iterable[Records], frame: Frame, clustered: bool) -> Totals:
    """One pass over the records."""
    rows = len(frame)
    sums = Sums(*(np.zeros(rows) for _ in range(5)))
    low_w, high_w, low_p, high_p = (np.full(rows, v) for v in (np.inf, -np.inf, np.inf, -np.inf))
    clusters: list[pd.DataFrame] = []
    for block in blocks:
        product = block.weight * block.outcome
        sums = sums.plus(record_sums(block.frame, block.weight, block.outcome, rows))
        np.minimum.at(low_w, block.frame, block.weight)
        np.maximum.at(high_w, block.frame, block.weight)
        np.minimum.at(low_p, block.frame, product)
        np.maximum.at(high_p, block.frame, product)
        if clustered:
            part = pd.DataFrame({"frame": block.frame, "psu": block.psu, "w": block.weight, "wy": product})
            clusters.append(part.groupby(["frame", "psu"], as_index=False).sum())
    psu = pd.concat(clusters).groupby(["frame", "psu"], as_index=False).sum() if clustered else None
    return Totals(sums, (low_w, high_w), (low_p, high_p), psu)


def direct(found: Totals, frame: Frame, cells: Cells) -> tuple[Estimate, Estimate]:
    """Weighted counts and means per cell with linearised variances."""
    if found.psu is None:
        return counts_and_means(found.sums, frame, cells)
    rows = found.psu["frame"].to_numpy()
    stratum = frame.design_stratum[rows]
    labels, code = np.unique(np.column_stack([stratum, found.psu["psu"].to_numpy()]), axis=0, return_inverse=True)
    per_stratum = np.bincount(labels[:, 0], minlength=int(frame.design_stratum.max()) + 1).astype(np.int64)
    return clustered_counts_and_means(
        rows,
        code.reshape(-1).astype(np.int32),
        found.psu["w"].to_numpy(),
        found.psu["wy"].to_numpy(),
        per_stratum,
        frame,
        cells,
    )
