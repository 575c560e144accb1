"""The verdict on a release: do published intervals contain the same sample's direct estimates often enough?

Confidential.

A published figure is the sample's figure plus noise and the mechanism's bias. Its interval allows for sampling error
and noise. The direct figure has the same sampling error. So a correct 90 % interval contains the direct figure in at
least 90 % of cells.

Even a release whose intervals pass may have large errors. The median and the largest error in direct standard errors
show these (FAR_MEDIAN, FAR_LARGEST).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.core.records import TOTAL, Floats
from dpdist.estimation.estimators import NORMAL_90
from dpdist.publish.predicted_errors import EXACT, FAR_NAMED
from dpdist.publish.printed_tables import labels_of
from dpdist.quality.errors import (
    FAR_RECORDS,
    FEWEST_OF_OWN,
    Errors,
    by_chance,
    errors_of,
    held,
    holds_direct,
    noise_error,
    place,
    without_error,
)
from dpdist.quality.shared_errors import at_most, shared_errors

# - `error_ratio`: the median ratio of published to direct standard errors, over a table's base cells with a positive
#   direct one. Below SMALL_RATIO a 90 % interval would contain the population's figure in fewer than LEAST_COVERED of
#   samples. Then published errors leave out a part of the design, such as clusters. `too_small` is true where chance does
#   not explain such a ratio.
# - `fixed`: counts that have no direct error, because replicate weights were calibrated to them, or strata fix them. Their
#   errors cannot be stated in direct standard errors. So their relative errors are judged, with the limit FAR_RELATIVE.
NOMINAL = 0.9
REACH = NORMAL_90
"""Half width of a 90 % interval in standard errors."""
LEAST_COVERED = 0.7
SMALL_RATIO = NormalDist().inv_cdf((1.0 + LEAST_COVERED) / 2.0) / REACH
"""Ratio of a standard error to the right one at which 90 % intervals cover LEAST_COVERED."""
FAR_RELATIVE = 0.1
"""Relative error, or relative half width, above which a count that the design fixes is called inaccurate."""


class FixedCounts(NamedTuple):
    """Counts that the design fixes: their number, and largest relative error and half width among cells that are large
    enough.
    """

    cells: int
    error: float
    reach: float

    @property
    def inaccurate(self) -> bool:
        return self.error > FAR_RELATIVE or self.reach > FAR_RELATIVE


def error_ratio(base: pd.DataFrame) -> float:
    """The median ratio of published to direct standard errors; NaN if no cell has a positive direct one."""
    rows = _with_direct_error(base)
    return float((rows["synthetic_se"] / rows["direct_se"]).median()) if len(rows) else np.nan


def too_small(base: pd.DataFrame, level: float) -> bool:
    """True if the median ratio is below SMALL_RATIO, and chance explains this only with a probability below `level`."""
    # A direct variance over the correct one is taken as χ²(df)/df. With correct errors, a cell's ratio is at most r with
    # the probability P(χ²(df) ≥ df/r²). By Markov's inequality, at least half of the cells have such a ratio with at most
    # twice the mean of these probabilities, however the cells depend on each other.
    ratio, df = error_ratio(base), _with_direct_error(base)["direct_df"].to_numpy(dtype=float)
    if not ratio < SMALL_RATIO:
        return False
    df = np.clip(np.nan_to_num(df, nan=1.0), 1.0, 1e6)
    return ratio == 0.0 or bool(2.0 * np.mean(scipy.special.chdtrc(df, df / ratio**2)) < level)


def fixed_counts(rows: pd.DataFrame, fewest: int) -> FixedCounts | None:
    """Counts without a direct error; None if there are none. Cells of fewer than `fewest` records are not measured."""
    direct = rows["direct"].to_numpy(dtype=float)
    without = without_error(direct, rows["direct_se"].to_numpy(dtype=float)) & (direct > 0)
    counts = rows[without & (rows["statistic"] == "count").to_numpy()]
    if counts.empty:
        return None
    large = counts[counts["records"] >= fewest]
    error = (large["synthetic"] - large["direct"]).abs() / large["direct"]
    reach = (large["synthetic_upper"] - large["synthetic_lower"]) / 2.0 / large["direct"]
    return FixedCounts(len(counts), float(error.max()), float(reach.max()))


def _with_direct_error(rows: pd.DataFrame) -> pd.DataFrame:
    error = rows["direct_se"].to_numpy(dtype=float)
    judgeable: pd.DataFrame = rows[np.isfinite(error) & ~without_error(rows["direct"].to_numpy(dtype=float), error)]
    return judgeable


# Every statistic of every table has five tests:
#
# - grand figure (all records): published and direct figure differ by more than chance, and the interval misses the direct
#   one.
# - coverage of base cells, and of margins: intervals miss more direct figures than right ones do. Intervals of base cells
#   that hold ENOUGH are no fault.
# - side: more base cells lie above, or below, their direct figures than chance makes likely; and the median distance is
#   more than LEAN.
# - furthest cell, margins included: its distance is unlikely under a t law and under a Laplace law.
#
# Distances are in published standard errors. They are in standard deviations of the difference by chance, where these are
# larger, for the furthest cell, and for sides of cells of few records: of a skewed outcome most of these have direct
# estimates on one side.
#
# Where the job states PSUs or replicate weights, there is a sixth test: published standard errors are far smaller than
# direct ones (`error_ratio`). The other tests do not detect this fault, because both figures come from one sample.
#
# A correct release fails with probability at most FALSE_ALARM, under any dependence between statistics (Bonferroni), if
# direct errors are right. Those of few records of a skewed outcome are not: 11 of 200 simulated releases failed there. The
# constants GRAND to SMALL are the tests' shares of this probability. Cells share errors, and margins have those of their
# cells: `shared_errors` has the model. The noise of a grand figure is taken as normal. If it is a single draw of Laplace
# noise, the grand figures' part of the false-alarm probability is at most 2.7 times as large.
#
# Counts that the design fixes have no direct error, so their relative errors and the widths of their intervals are shown
# instead. Large errors are no fault of the intervals, and have no part in false alarms.
#
# Cells of fewer than two records, figures without standard errors, and totals that a public figure fixes are not judged. A
# release that passes has shown no fault in the judged cells. It may have faults elsewhere.
FALSE_ALARM = 0.05
GRAND, BASE, MARGINS, SIDE, FURTHEST, SMALL = 0.4, 0.2, 0.15, 0.1, 0.1, 0.05
"""Shares of FALSE_ALARM."""
SELDOM = 0.2
"""If correct intervals cover so few direct figures in fewer releases than this, the verdict warns."""
LEAN = 0.5
"""Distance of the median cell, in published standard errors, above which it counts as a bias.

With such a bias, 90 % intervals still contain .87.
"""
ENOUGH = 0.85
"""Coverage from which on intervals are not called too narrow, however many cells show that it is below NOMINAL."""
FAR_TOO_LOW = 0.75
"""If coverage fails its test and is below this, the release is not for publication."""
FAR_MEDIAN, FAR_LARGEST = 1.5, 8.0
"""Errors, in direct standard errors, above which the median cell, or a single cell, is called inaccurate."""


class GrandFigure(NamedTuple):
    """The published figure of all records, and the direct one. Distances are in standard errors, NaN if unknown."""

    published: float
    direct: float
    in_published: float
    in_noise: float
    in_chance: float
    """Distance in standard deviations of the difference by chance (`by_chance`)."""
    df: float
    covers: bool
    reach: float
    """Half width of the published interval on the side of the direct figure, in published standard errors."""
    clipped: float = np.nan
    """The direct figure of records whose values are clipped to public bounds."""

    @property
    def clipping(self) -> float:
        """What clipping to public bounds does to the direct figure, as a share of it; 0 if unknown."""
        return self.clipped / self.direct - 1.0 if self.direct and np.isfinite(self.clipped) else 0.0

    @property
    def off_by_bounds(self) -> bool:
        """True if clipping to public bounds explains half of the distance or more, in its direction."""
        return (self.clipped - self.direct) / (self.published - self.direct) >= 0.5 if self.relative else False

    @property
    def relative(self) -> float:
        """The published figure over the direct one, less 1."""
        return self.published / self.direct - 1.0 if self.direct else np.nan


@dataclass(frozen=True)
class Unpublished:
    """A statistic most of whose figures are withheld, or have intervals to an end of the range that those of all withheld
    figures share, while direct figures have standard errors below their sizes.

    `withheld` of `cells` figures are. `direct`, `lower` and `upper` are the direct figure and the published limits of all
    records, NaN without that row. `end` is the value at which all intervals of withheld figures begin, or all end: an end
    of the range; NaN if there is none.
    """

    withheld: int
    cells: int
    direct: float
    lower: float
    upper: float
    end: float
    fails: ClassVar[bool] = True
    stops: ClassVar[bool] = True


@dataclass(frozen=True)
class Verdict:
    """How many direct estimates lie in published intervals, and what follows.

    - `coverage`: the share of judged cells whose interval contains the direct estimate. `coverage_with_both`: the same with
      intervals widened where chance alone moves the difference by more than the published error. `covered`: the latter over
      base cells.
    - `width`: median ratio of published to direct standard errors over base cells. `small`: it is far too small under the
      survey's design.
    - `chance`: the probability that right intervals hold as few direct figures of base cells and margins, or fewer.
    - `margins`: how many intervals of margins hold, and of how many. `few_margins`: chance does not explain it.
    - `above`: share of base cells above their direct estimates. `lean`: their median distance from these, in published
      standard errors; in cells of few records, in standard deviations of the difference by chance if these are larger.
    - `far`: the furthest cell, if it is too far.
    - `errors`: distances from direct estimates, as a plan predicts them.
    - `fixed`: counts that the design fixes, if there are any.
    - `beyond`: the published cells, margins too, whose error is above FAR_NAMED, the largest error first.
    """

    cells: int
    coverage: float
    coverage_with_both: float
    covered: float
    width: float
    above: float
    lean: float
    grand: GrandFigure | None
    too_few: bool
    one_sided: bool
    off: bool
    far: str | None
    errors: Errors
    small: bool = False
    fixed: FixedCounts | None = None
    beyond: tuple[tuple[str, ...], ...] = ()
    chance: float = 1.0
    margins: tuple[int, int] = (0, 0)
    few_margins: bool = False

    @property
    def least_coverage(self) -> float:
        """The smaller coverage with both errors: of all cells, or of base cells."""
        return min(self.coverage_with_both, self.covered)

    @property
    def far_off(self) -> bool:
        """True if figures are far from direct ones, in direct standard errors."""
        return self.errors.median > FAR_MEDIAN or self.errors.largest > FAR_LARGEST

    @property
    def inaccurate(self) -> bool:
        """True if figures are far from direct ones, even if intervals contain these."""
        return self.far_off or (self.fixed is not None and self.fixed.inaccurate)

    @property
    def fails(self) -> bool:
        faults = self.too_few or self.few_margins or self.one_sided or self.off or self.small
        return faults or self.far is not None

    @property
    def unclear(self) -> bool:
        """True if intervals miss too many direct estimates, or the grand one, and no test fails."""
        return not self.fails and (self.least_coverage < NOMINAL or (self.grand is not None and not self.grand.covers))

    @property
    def warns(self) -> bool:
        """True if an unclear release is seldom a correct one, or covers so few that chance is no answer for a reader."""
        return self.unclear and (self.chance < SELDOM or self.least_coverage < LEAST_COVERED)

    @property
    def stops(self) -> bool:
        """True if the release must not be published."""
        covered, margins = self.margins
        margins_low = self.few_margins and covered < FAR_TOO_LOW * margins
        return self.off or self.far is not None or margins_low or (self.too_few and self.covered < FAR_TOO_LOW)


def unpublished_of(rows: pd.DataFrame) -> Unpublished | None:
    """What is known of a statistic most of whose figures are withheld; None if most direct ones would be, too."""
    withheld = rows["synthetic"].isna() & rows["synthetic_lower"].notna()
    precise = (rows["records"] > 1) & (rows["direct_se"] < rows["direct"].abs())
    limits = rows[["synthetic_lower", "synthetic_upper"]]
    ends = [values for _, values in limits[withheld].items() if len(values) > 1 and values.nunique() == 1]
    shared = [float(values.iloc[0]) for values in ends]
    withheld |= limits.isin(shared).any(axis=1)
    if not (withheld[precise].mean() > 0.5 and precise[rows["records"] > 1].mean() > 0.5):
        return None
    totals = rows[(rows[labels_of(rows)] == TOTAL).all(axis=1) & rows["synthetic"].isna()]
    of_all = totals.iloc[0][["direct", "synthetic_lower", "synthetic_upper"]] if len(totals) == 1 else [np.nan] * 3
    known, lower, upper = map(float, of_all)
    return Unpublished(int(withheld.sum()), len(rows), known, lower, upper, shared[0] if shared else np.nan)


def judge(rows: pd.DataFrame, statistics: int = 1, clustered: bool = False) -> Verdict | Unpublished | None:
    """Judges a statistic by its rows of an evaluation; None if nothing can be judged.

    `statistics` is the number of statistics that are judged together and share the false-alarm rate. `clustered` is
    true if direct errors are those of PSUs or replicate weights.
    """
    alarm, grand, errors = FALSE_ALARM / statistics, _grand(rows), errors_of(rows)
    judgeable = (rows["records"] > 1) & (rows["synthetic_se"] > EXACT * rows["synthetic"].abs())
    judgeable &= rows[["direct", "direct_se", "synthetic_lower"]].notna().all(axis=1)
    if (unpublished := unpublished_of(rows)) is not None:
        return unpublished
    if not judgeable.any():
        return None
    rows = rows[judgeable]
    by, gap = labels_of(rows), (rows["synthetic"] - rows["direct"]).to_numpy(dtype=float)
    error, chance = rows["synthetic_se"].to_numpy(dtype=float), by_chance(rows)
    base = (rows[by] != TOTAL).all(axis=1).to_numpy()
    covers, wide = holds_direct(rows), np.maximum(chance / error, 1.0)
    few = (rows["records"] < FEWEST_OF_OWN).to_numpy()
    distances, off = (gap / (error * np.where(few, wide, 1.0)))[base], grand is not None and _too_far(grand, alarm * GRAND)
    number, above = int(base.sum()), int((distances > 0).sum())
    lean = float(np.median(distances)) if number else np.nan
    shared = shared_errors(rows, chance, by)
    hold, of_margins = held(rows, wide), shared.margin
    judged = base | of_margins
    sides = 2.0 * at_most(min(above, number - above), shared.above, 0.5)
    margins = int(hold[of_margins].sum()), int(of_margins.sum())
    distance = np.abs(gap) / (error * wide)
    tail = np.maximum(2.0 * scipy.special.stdtr(_df(rows), -distance), np.exp(-np.sqrt(2.0) * distance))
    furthest = int(np.nanargmin(tail))
    direct_error = rows["direct_se"].to_numpy(dtype=float)
    known_error = ~without_error(rows["direct"].to_numpy(dtype=float), direct_error)
    sizes = np.abs(gap)[known_error] / direct_error[known_error]
    return Verdict(
        cells=len(rows),
        coverage=float(covers.mean()),
        coverage_with_both=float(hold.mean()),
        covered=float(hold[base].mean()) if number else float(hold.mean()),
        width=error_ratio(rows[base]),
        above=above / number if number else np.nan,
        lean=lean,
        grand=grand,
        too_few=bool(hold[base].sum() < ENOUGH * number)
        and at_most(int(hold[base].sum()), shared.base_held, NOMINAL) < alarm * BASE,
        one_sided=sides < alarm * SIDE and abs(lean) > LEAN,
        off=off,
        far=place(rows.iloc[furthest], by) if tail[furthest] * len(rows) < alarm * FURTHEST else None,
        errors=errors,
        small=clustered and too_small(rows[base], alarm * SMALL),
        fixed=fixed_counts(rows, FAR_RECORDS),
        beyond=_beyond(rows[known_error], sizes),
        chance=at_most(int(hold[judged].sum()), shared.base_held.plus(shared.margins_held), NOMINAL),
        margins=margins,
        few_margins=at_most(margins[0], shared.margins_held, NOMINAL) < alarm * MARGINS,
    )


def _beyond(rows: pd.DataFrame, sizes: Floats) -> tuple[tuple[str, ...], ...]:
    """Labels of the published cells whose errors, (row,) in direct standard errors, are above FAR_NAMED."""
    order = np.argsort(-sizes, kind="stable")
    named = rows.iloc[order[sizes[order] > FAR_NAMED]]
    return tuple(named[labels_of(rows)].astype(str).itertuples(index=False, name=None))


def _df(rows: pd.DataFrame) -> Floats:
    """Degrees of freedom of a difference: the smaller number of the two figures."""
    return np.where(rows["direct_se"] > 0, np.fmin(rows["synthetic_df"], rows["direct_df"]), rows["synthetic_df"])


def _too_far(grand: GrandFigure, level: float) -> bool:
    """True if chance does not explain the grand figure's distance, and its interval misses the direct figure."""
    return bool(not grand.covers and 2.0 * scipy.special.stdtr(grand.df, -abs(grand.in_chance)) < level)


def _grand(rows: pd.DataFrame) -> GrandFigure | None:
    """The figure of all records. Without this row, counts and totals are summed over base cells, as if independent."""
    by = labels_of(rows)
    totals = rows[(rows[by] == TOTAL).all(axis=1)]
    base = rows[(rows[by] != TOTAL).all(axis=1)]
    if totals.empty and len(base) and base["statistic"].isin(["count", "total"]).all():
        totals = _summed(base)
    if len(totals) != 1 or not totals[["synthetic", "direct", "synthetic_se", "direct_se"]].notna().all(axis=None):
        return None
    row = totals.iloc[0]
    if not (row["synthetic_se"] > EXACT * abs(row["synthetic"]) and row["records"] > 1):
        return None
    gap, covers = float(row["synthetic"] - row["direct"]), bool(holds_direct(totals)[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = row["synthetic_se"], noise_error(totals)[0], by_chance(totals)[0]
        published, noise, chance = (float(np.float64(gap) / spread) for spread in errors)
    end = row["synthetic_upper"] - row["synthetic"] if gap < 0 else row["synthetic"] - row["synthetic_lower"]
    reach = float(end / row["synthetic_se"])
    return GrandFigure(
        float(row["synthetic"]),
        float(row["direct"]),
        published,
        noise,
        chance,
        float(_df(totals)[0]),
        covers,
        reach,
        float(row.get("direct_clipped", np.nan)),
    )


def _summed(base: pd.DataFrame) -> pd.DataFrame:
    """One row with the sums of the cells' figures; standard errors are added in squares."""
    filled = base[base["records"] > 0]
    errors = [name for name in ("synthetic_se", "direct_se", "direct_se_given_n", "synthetic_noise_se") if name in filled]
    sums = [name for name in ("synthetic", "direct", "records", "direct_clipped") if name in filled]
    row = filled.iloc[:1].assign(**{name: filled[name].sum(skipna=False) for name in sums})
    row = row.assign(**{name: np.sqrt((filled[name] ** 2).sum(skipna=False)) for name in errors})
    reach = REACH * row["synthetic_se"]
    return row.assign(synthetic_lower=row["synthetic"] - reach, synthetic_upper=row["synthetic"] + reach)
