"""Covariances of published figures of two releases that share a reference, for `publish.differences`.

A published variance is T = V + N (`standard_errors`): V by the sample, N by noise and by errors of the reference. Both
releases are simulated together, with the variances S and S' of these errors and D of their difference. So the variance
of a change is T − N + T' − N' + D, the variances of both figures are T − N + S and T' − N' + S', and their
covariance is (S + S' − D)/2. S exceeds N where noise hides how far a period has drifted. Where the later release learned
from the earlier one, the earlier N and S have the variance by its sample, too.

Statistics other than counts, means and totals, releases with strata, and releases without a common reference are taken for
independent. Shared errors move both periods alike, so this overstates the error of a change, but where noise hides drift
from both of them it understates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpdist.core.errors import WorkspaceError
from dpdist.core.records import Floats
from dpdist.estimation.estimators import STATISTICS
from dpdist.estimation.raking import margins_of
from dpdist.job import Table
from dpdist.models.protocol import DRAWS, DrawnTogether, Draws, LearnsFromRecords, expected_of
from dpdist.publish.opened import Release
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.standard_errors import (
    LawSpread,
    Spreads,
    cell_estimates,
    noise_variances,
    normal_variance,
    raked,
    simulated,
)

MOST_DRAWS, ENTRIES = 4 * DRAWS, 10_000_000
"""Number of draws of two releases; fewer where they had more entries, but no fewer than `DRAWS`."""

Key = tuple[tuple[str, ...], str, str | None]
"""Levels of a cell, a statistic's label, and its variable."""


class SharedVariance(NamedTuple):
    """What the variances of the figures before and after exceed the published ones by, and their covariance."""

    before: float
    after: float
    covariance: float


@dataclass(frozen=True, eq=False)
class SharedErrors:
    """Two releases under the same errors of their reference."""

    later: ReleasedObject
    earlier: ReleasedObject
    drawn: DrawnTogether
    spreads: tuple[list[Spreads], list[Spreads]]
    """Of the later and of the earlier release, by outcome, as each was published."""
    reversed: bool
    """True if the figures before are those of the later release."""

    def variances(self, name: str) -> Mapping[Key, SharedVariance]:
        """Of a table's counts, means and totals, by cell and statistic. Both releases have the table."""
        by_key = dict[Key, SharedVariance]()
        for outcome, variable in enumerate(self.later.job.outcomes):
            sides = [self._side(k, name, outcome) for k in range(2)]
            first, second = sides
            places = {label: place for place, label in enumerate(second.labels)}
            both = [(k, places[label]) for k, label in enumerate(first.labels) if label in places]
            here, there = np.array(both, dtype=np.int64).reshape(-1, 2).T
            for k, statistic in enumerate(STATISTICS):
                one, other = first.drawn[k][:, here], second.drawn[k][:, there]
                later, earlier, apart = (normal_variance(drawn) for drawn in (one, other, one - other))
                more = later - first.variance[k][here], earlier - second.variance[k][there]
                before, after = more if self.reversed else more[::-1]
                parts = np.column_stack([before, after, (later + earlier - apart) / 2.0])
                for place, values in zip(here, parts.tolist(), strict=True):
                    for label, about in _named(self._table(self.later, name), statistic, variable, outcome):
                        by_key[first.labels[place], label, about] = SharedVariance(*values)
        return by_key

    def _side(self, k: int, name: str, outcome: int) -> _Side:
        released = (self.later, self.earlier)[k]
        cells, spread = released.cells(self._table(released, name)), self.spreads[k][outcome]
        variance = noise_variances(released, cells, spread)
        if k and self.drawn.sampled:
            centres = spread.figures(cells, released.crosstab.count.astype(float))[0]
            variance = [noise + normal_variance(centre) for noise, centre in zip(variance, centres, strict=True)]
        drawn = _drawn(released, (self.drawn.later, self.drawn.earlier)[k], outcome)
        figures = cell_estimates(cells, released.crosstab.count.astype(float), *drawn)
        return _Side([tuple(map(str, label)) for label in cells.labels], figures, variance)

    @staticmethod
    def _table(released: ReleasedObject, name: str) -> Table:
        return next(table for table in released.job.tables if table.name == name)


@dataclass(frozen=True, eq=False)
class _Side:
    labels: list[tuple[str, ...]]
    drawn: tuple[Floats, Floats, Floats]
    """Counts, means and totals, (draw, cell) each."""
    variance: list[Floats]
    """What part of their variances the draws stand for, (cell,) each."""


def _named(table: Table, statistic: str, variable: str, outcome: int) -> list[tuple[str, str | None]]:
    """Labels and variables under which a table has this statistic of this outcome."""
    plain = [stat for stat in table.statistics if stat.plain and stat.name == statistic]
    return [
        (stat.label, stat.about) for stat in plain if stat.variable == variable or (stat.variable is None and not outcome)
    ]


def _drawn(released: ReleasedObject, drawn: Draws, outcome: int) -> LawSpread:
    spread, rake = LawSpread(*expected_of(released.model(0), drawn, outcome)), margins_of(released.job, released.crosstab)
    return raked(spread, released, rake) if rake else spread


def shared_errors(before: Release, after: Release) -> SharedErrors | None:
    """The errors that two releases share; None if none is known. Either of them may have learned from the other."""
    try:
        pair = [read_released(release.folder / "released") for release in (after, before)]
    except WorkspaceError:  # a release of another version, whose errors cannot be simulated again
        return None
    if any(len(each.crosstab.stratum_labels) != 1 or each.job.strata for each in pair):
        return None
    models = [each.model(0) for each in pair]
    if not all(isinstance(model, LearnsFromRecords) for model in models):
        return None
    for later, earlier in ((0, 1), (1, 0)):
        drawn = _together(pair[later], pair[earlier])
        if drawn is not None:
            break
    else:
        return None
    spreads = [simulated(pair[k], lambda _: None).spreads for k in (later, earlier)]
    if spreads[0] is None or spreads[1] is None:
        return None
    return SharedErrors(pair[later], pair[earlier], drawn, (spreads[0], spreads[1]), reversed=later == 1)


def _together(later: ReleasedObject, earlier: ReleasedObject) -> DrawnTogether | None:
    model, other = later.model(0), earlier.model(0)
    assert isinstance(model, LearnsFromRecords)
    rng = later.seed.child("errors of two periods").generator(earlier.job.period)
    thetas = later.theta(model, 0, 0), earlier.theta(other, 0, 0)
    draws = int(np.clip(ENTRIES // max(len(later.crosstab), len(earlier.crosstab)), DRAWS, MOST_DRAWS))
    return model.drawn_with(thetas[0], other, thetas[1], draws, rng)
