"""Computes distribution functions of outcomes from released parameters, for every row of the frame.

A model may define none. Then quantiles and the like have no estimate from parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.estimation.unit_sums import Below
from dpdist.models.outputs import DistributedByPoints
from dpdist.models.protocol import Distributed, Draws
from dpdist.publish.refit import Laws
from dpdist.publish.released import ReleasedObject


class Distributions:
    """Distribution functions in every stratum, under the released sets and under the laws that give standard errors."""

    def __init__(self, release: ReleasedObject, laws: Sequence[Laws | None] | None):
        self._release, self._laws = release, laws

    @cached_property
    def _models(self) -> list[Distributed] | None:
        found = list[Distributed]()
        for stratum in range(len(self._release.frame.stratum_labels)):
            model = self._release.model(stratum)
            if isinstance(model, DistributedByPoints):
                found.append(model.distribution(self._release, stratum))
            elif isinstance(model, Distributed):
                found.append(model)
        return found if len(found) == len(self._release.frame.stratum_labels) else None

    @property
    def known(self) -> bool:
        """True if the model of every stratum defines distributions."""
        return self._models is not None

    def of_sets(self, weight: Floats) -> Below:
        """Returns a function of (row, value) pairs: the row's weight at or below the value in every set, (set, pair).

        `weight` is the weight of every row in every set, (set, row).
        """

        def share(stratum: int, model: Distributed, row: Ints, value: Floats, outcome: int) -> Floats:
            return np.concatenate([model.until(theta, row, value, outcome) for theta in self._thetas[stratum]])

        return self._below(weight, share)

    def of_set(self, number: int, weight: Floats) -> Below:
        """As `of_sets`, for the one set with this number, from 0: (1, pair)."""

        def share(stratum: int, model: Distributed, row: Ints, value: Floats, outcome: int) -> Floats:
            return model.until(self._thetas[stratum][number], row, value, outcome)

        return self._below(weight, share)

    def of_law(self, law: int, weight: Floats) -> Below:
        """As `of_sets`, under one of the five laws in `refit.Laws.draws`, given by its position.

        Values are NaN in strata without laws.
        """

        def share(stratum: int, model: Distributed, row: Ints, value: Floats, outcome: int) -> Floats:
            laws = None if self._laws is None else self._laws[stratum]
            if laws is None:
                return np.full((len(weight), len(row)), np.nan)
            if laws.shrink is None:
                return model.until(laws.draws[law], row, value, outcome)
            about = laws.draws[(3, 4, 3, 3, 4)[law]]
            centre = model.until(about, row, value, outcome)
            return np.asarray(centre + (model.until(laws.draws[law], row, value, outcome) - centre) * laws.shrink[row])

        return self._below(weight, share)

    def recounted(self, weight: Floats) -> Below:
        """As `of_sets`, with sample counts under simulated noise; `weight` is (draw, row)."""

        def share(stratum: int, model: Distributed, row: Ints, value: Floats, outcome: int) -> Floats:
            laws = None if self._laws is None else self._laws[stratum]
            if laws is None or laws.recounted is None:
                return np.full((len(weight), len(row)), np.nan)
            return model.until(laws.recounted.theta, row, value, outcome)

        return self._below(weight, share)

    @cached_property
    def _thetas(self) -> list[list[Draws]]:
        """Released parameters, by stratum and then by set."""
        release, found = self._release, []
        for stratum in range(len(release.frame.stratum_labels)):
            model = release.model(stratum)
            found.append([release.theta(model, stratum, k) for k in range(len(release.sets))])
        return found

    def _below(self, weight: Floats, share: Callable[[int, Distributed, Ints, Floats, int], Floats]) -> Below:
        frame = self._release.frame

        def below(outcome: int, row: Ints, value: Floats) -> Floats:
            assert self._models is not None
            found = np.empty((len(weight), len(row)))
            for stratum in np.unique(frame.stratum[row]).tolist():
                own = np.flatnonzero(frame.stratum[row] == stratum)
                first = frame.rows_of(stratum).start
                found[:, own] = share(stratum, self._models[stratum], row[own] - first, value[own], outcome)
            return weight[:, row] * found

        return below
