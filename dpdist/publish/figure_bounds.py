"""Sets printed figures into their public bounds, one by one, where a model's expectations may leave them (`Unbiased`).

Margins are sums of released sums, and never of figures that were set into bounds. So a margin has no bias unless noise
carries the margin itself beyond its bounds. Then the bias is at most .4 of its error by noise: E max(0, Z) = 1/√(2π) for a
normal Z, and less for a figure that is further inside.

A mean is a ratio. If noise cannot tell its count from 0, the ratio can have any value, and the mean is withheld: it has the
limits of its outcome and no estimate (Fieller 1954). All of this is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import NORMAL_90, STATISTICS, Interval
from dpdist.models.protocol import Unbiased
from dpdist.publish.refit import Expected
from dpdist.publish.released import ReleasedObject


class FigureBounds(NamedTuple):
    """Lowest and highest possible counts, means and totals of the sample's records in every cell, (cell,) each."""

    low: tuple[Floats, Floats, Floats]
    high: tuple[Floats, Floats, Floats]
    only_noise: bool

    @classmethod
    def of(cls, release: ReleasedObject, cells: Cells, outcome: int) -> FigureBounds | None:
        """The bounds of a release whose expectations may leave them; None for other releases, and for raked weights.

        Bounds of weights and outcomes, and sample counts, are public. Where sample counts are noisy, a count is only known
        to be no less than 0.
        """
        models = [release.model(stratum) for stratum in range(len(release.frame.stratum_labels))]
        if not isinstance(models[0], Unbiased) or release.job.rake:  # a raked weight is within no bounds of weights
            return None
        ends = [np.empty(len(release.frame)) for _ in range(2)]
        for stratum, model in enumerate(models):
            assert isinstance(model, Unbiased)
            drawn = [model.weight_ends(release.theta(model, stratum, k)) for k in range(len(release.sets))]
            for end, own in zip(ends, np.mean(drawn, axis=0), strict=True):
                end[release.frame.rows_of(stratum)] = own
        low_y, high_y = release.job.columns[release.job.outcomes[outcome]].bounds or (0.0, 1.0)
        if release.job.sizes_secret:
            least, most = np.zeros(len(cells)), np.full(len(cells), np.inf)
        else:
            least, most = (np.asarray(cells.membership @ (release.frame.count * each)) for each in ends)
        with np.errstate(invalid="ignore"):
            low = np.fmin(least * low_y, most * low_y if low_y else least * 0.0)
            high = np.fmax(least * high_y, most * high_y if high_y else least * 0.0)
        means = np.full(len(cells), low_y), np.full(len(cells), high_y)
        return cls((least, means[0], low), (most, means[1], high), models[0].only_noise)

    def within(self, points: Sequence[Floats]) -> list[Floats]:
        """Counts, means and totals, each set into its own bounds."""
        return [np.clip(*each) for each in zip(points, self.low, self.high, strict=True)]

    def noise_variances(self, variances: Sequence[Floats]) -> list[Floats]:
        """Variances by noise, none larger than the square of what bounds leave open: no figure errs by more.

        Counts and totals under moved weights may err by more, because their bounds are those of moved weights.
        """
        known = (self.only_noise, True, self.only_noise)
        ranges = [high - low if holds else np.inf for low, high, holds in zip(self.low, self.high, known, strict=True)]
        return [np.fmin(own, most**2) for own, most in zip(variances, ranges, strict=True)]


def without_drowned_means(
    estimates: Mapping[str, Sequence[Interval]], raw_count: Floats, count_error: Floats
) -> dict[str, list[Interval]]:
    """Withholds means whose count noise cannot tell from 0: a 90 % interval by noise alone reaches 0.

    `raw_count` and its standard error by noise alone are (cell,).
    """
    drowned = raw_count <= NORMAL_90 * count_error
    ends = {"value": np.nan, "standard_error": np.nan, "df": np.nan, "lower": -np.inf, "upper": np.inf}
    found = {}
    for name, intervals in estimates.items():
        own = dict(zip(STATISTICS, intervals, strict=True))
        parts = {part: np.where(drowned, end, getattr(own["mean"], part)) for part, end in ends.items()}
        found[name] = list((own | {"mean": Interval(**parts)}).values())
    return found


def bounded_expectations(release: ReleasedObject, expected: Sequence[Expected]) -> Sequence[Expected]:
    """Expectations of every set within public bounds, as synthetic records have them; others as they are.

    Noise makes unbounded expectations of small cells differ far more than cells do.
    """
    if not isinstance(release.model(0), Unbiased) or release.job.rake:
        return expected
    rows = len(release.frame)
    found = [(np.empty(rows), np.empty(rows)) for _ in release.sets]
    for stratum in range(len(release.frame.stratum_labels)):
        model, own = release.model(stratum), release.frame.rows_of(stratum)
        assert isinstance(model, Unbiased)
        for k, (weight, product) in enumerate(found):
            drawn = model.bounded(release.theta(model, stratum, k))
            weight[own], product[own] = drawn[0][0], drawn[1][0]
    return found
