"""Compares published errors with those under the survey's design, and judges counts that the design fixes. Confidential.

- `error_ratio`: the median ratio of published to direct standard errors, over a table's base cells with a positive
  direct one. Below SMALL_RATIO a 90 % interval would contain the population's figure in fewer than LEAST_COVERED of
  samples. Then published errors leave out a part of the design, such as clusters. `too_small` is true where chance does
  not explain such a ratio.
- `fixed`: counts that have no direct error, because replicate weights were calibrated to them, or strata fix them. Their
  errors cannot be stated in direct standard errors. So their relative errors are judged, with the limit FAR_RELATIVE.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_90

NOMINAL = 0.9
REACH = NORMAL_90
"""Half width of a 90 % interval in standard errors."""
SAME = 1e-9
"""Relative difference below which two figures count as equal; a smaller relative standard error counts as 0."""
LEAST_COVERED = 0.7
SMALL_RATIO = NormalDist().inv_cdf((1.0 + LEAST_COVERED) / 2.0) / REACH
"""Ratio of a standard error to the right one at which 90 % intervals cover LEAST_COVERED."""
FAR_RELATIVE = 0.1
"""Relative error, or relative half width of an interval, above which a count that the design fixes is called inaccurate."""


class Fixed(NamedTuple):
    """Counts that the design fixes: their number, and largest relative error and half width among large enough cells."""

    cells: int
    error: float
    reach: float

    @property
    def inaccurate(self) -> bool:
        return self.error > FAR_RELATIVE or self.reach > FAR_RELATIVE


def without_error(estimate: Floats, error: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True where a standard error is 0 but for rounding, (row,); False where it is unknown."""
    return np.asarray(error <= SAME * np.abs(estimate))


def error_ratio(base: pd.DataFrame) -> float:
    """The median of published over direct standard errors; NaN if no cell has a positive direct one."""
    rows = _with_direct_error(base)
    return float((rows["synthetic_se"] / rows["direct_se"]).median()) if len(rows) else np.nan


def too_small(base: pd.DataFrame, level: float) -> bool:
    """True where the median ratio is below SMALL_RATIO, and chance gives so small a ratio with a probability below `level`.

    A direct variance over the correct one is taken as χ²(df)/df. With correct errors, a cell's ratio is at most r with the
    probability P(χ²(df) ≥ df/r²). By Markov's inequality, at least half of the cells have such a
    ratio with at most twice the mean of these probabilities, however the cells depend on each other.
    """
    ratio, df = error_ratio(base), _with_direct_error(base)["direct_df"].to_numpy(dtype=float)
    if not ratio < SMALL_RATIO:
        return False
    df = np.clip(np.nan_to_num(df, nan=1.0), 1.0, 1e6)
    return ratio == 0.0 or bool(2.0 * np.mean(scipy.special.chdtrc(df, df / ratio**2)) < level)


def fixed(rows: pd.DataFrame, fewest: int) -> Fixed | None:
    """Counts without a direct error; None if there are none. Cells of fewer than `fewest` records are not measured."""
    direct = rows["direct"].to_numpy(dtype=float)
    without = without_error(direct, rows["direct_se"].to_numpy(dtype=float)) & (direct > 0)
    counts = rows[without & (rows["statistic"] == "count").to_numpy()]
    if counts.empty:
        return None
    large = counts[counts["records"] >= fewest]
    error = (large["synthetic"] - large["direct"]).abs() / large["direct"]
    reach = (large["synthetic_upper"] - large["synthetic_lower"]) / 2.0 / large["direct"]
    return Fixed(len(counts), float(error.max()), float(reach.max()))


def _with_direct_error(rows: pd.DataFrame) -> pd.DataFrame:
    error = rows["direct_se"].to_numpy(dtype=float)
    kept: pd.DataFrame = rows[np.isfinite(error) & ~without_error(rows["direct"].to_numpy(dtype=float), error)]
    return kept
