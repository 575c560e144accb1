"""For `packages.package` without a reference: a law of (weight, outcomes) for each group of cells, from noisy histograms.

A base cell has its typical weight times the group's relative weight, and the group's mean outcomes. How far it lies from
these is not known before it is measured: deviations of a column's levels are diffuse, and those of tables' cells have a
standard deviation that the noisy sums tell (docs/methods.md, §9c). What lies beyond the limits is the group's, with half
of it as its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.packages.conjugate import TermRoot
from dpdist.packages.levels import Deviations, Levels, OutcomeLevels, Terms
from dpdist.packages.limits import Unknown, cell_limits, shape_of
from dpdist.packages.prior import DriftPrior, Prior
from dpdist.packages.workload import Workload

DIFFUSE_LEVEL = 0.5
"""Standard deviation a priori of deviations that all cells, or those of a column's level, share."""
UNKNOWN_LEVEL = 0.3
"""Standard deviation of a published cell's level, as planned before any sum is measured."""
MISFIT = 1.0
"""Planned error of what lies beyond the limits of a published cell, as a part of it, where limits are chosen."""
TERM_MISFIT = 0.5
"""The same for every term that cells share, and for a base cell alone, in standard errors."""
AT_BOUNDS = 0.75
"""An outcome with a larger part of records at its public bounds is a yes or no."""
UNKNOWN_DRIFT = DriftPrior(
    planned=0.1, log_sd=1.0, tried=(0.01, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.22, 0.32, 0.45), cell=0.05
)
"""Deviations of tables' cells from sums of main effects, before they are measured."""


class GroupLaw(NamedTuple):
    """Points of a group, of equal probability: relative weights, (point,), and outcomes, (outcome, point)."""

    weight: Floats
    outcome: Floats

    def thinned(self, number: int) -> GroupLaw:
        """So many of the points, at even steps in the order of the first outcome."""
        steps = ((np.arange(number) + 0.5) * len(self.weight) / number).astype(int)
        places = np.argsort(self.outcome[0], kind="stable")[steps]
        return GroupLaw(self.weight[places], self.outcome[:, places])


@dataclass(frozen=True)
class GroupShapes:
    """The laws of groups of base cells, with the group and the typical weight of every cell, (cell,) each."""

    group: Ints
    typical: Floats
    laws: tuple[GroupLaw, ...]

    @property
    def _two_valued(self) -> list[bool]:
        """Whether an outcome has at most two values, by outcome."""
        return [len(np.unique(values)) <= 2 for values in np.concatenate([law.outcome for law in self.laws], axis=1)]

    def crosses(self, workload: Workload) -> Workload:
        """The file's base cells."""
        return workload

    def levels(self, workload: Workload, terms: Terms, bounds: Sequence[tuple[float, float]]) -> Levels:
        """The levels of all base cells, with diffuse deviations; `bounds` are the outcomes' public bounds."""
        shared = np.where(terms.classes < 2, DIFFUSE_LEVEL, 0.0)
        nothing, ones = np.zeros(len(workload)), np.ones(len(workload))
        diffuse, outcomes = Deviations(nothing, nothing, ones, TermRoot(np.diag(shared))), []
        for k, ((low, high), two_valued) in enumerate(zip(bounds, self._two_valued, strict=True)):
            facts = [(np.average(law.outcome[k], weights=law.weight), law.outcome[k].std()) for law in self.laws]
            mean, spread = np.array(facts)[self.group].T
            scaled = low >= 0.0 and not two_valued and bool((mean > 0.0).all())
            unit = mean if scaled else np.maximum(spread, 1e-3 * (high - low))
            outcomes.append(OutcomeLevels(mean, unit, scaled, diffuse))
        weight = np.array([law.weight.mean() for law in self.laws])[self.group]
        if workload.weight is not None:
            return Levels(workload.weight, diffuse.exact, tuple(outcomes))
        return Levels(self.typical * weight, diffuse, tuple(outcomes))

    def sizes(self, workload: Workload, terms: Terms) -> tuple[Floats, Deviations]:
        raise ValueError("numbers of records are secret, and noisy histograms do not let expect any: give a reference")

    def prior(
        self,
        workload: Workload,
        terms: Terms,
        levels: Levels,
        bounds: Sequence[tuple[float, float]],
        size: Floats,
        noise: Floats,
    ) -> Prior:
        """The prior with the limits of the least predicted error; `size` and `noise` as in `limits_of`."""
        first, two_valued = np.unique(self.group, return_index=True)[1], self._two_valued
        outcomes = np.concatenate([law.outcome for law in self.laws], axis=1)
        at_bounds = np.array([np.isin(of_one, of) for of_one, of in zip(outcomes, bounds, strict=True)]).mean(axis=1)
        # A yes or no, even under noise that made up values between, is at its bounds, and only its mean moves.
        ends = np.where((at_bounds > AT_BOUNDS)[:, None], (-np.inf, np.inf), bounds)
        shapes = [
            replace(
                shape_of(
                    law.weight / law.weight.mean(),
                    (law.outcome - levels.mean[cell][:, None]) / levels.unit[cell][:, None],
                    levels,
                ),
                ends=(ends - levels.mean[cell][:, None]) / levels.unit[cell][:, None],
            )
            for law, cell in zip(self.laws, first, strict=True)
        ]
        unknown, exactly = Unknown(UNKNOWN_LEVEL, MISFIT), np.full(len(shapes), np.inf)
        limits = cell_limits(workload, levels, self.group, shapes, exactly, bounds, size, noise, two_valued, unknown)
        limits = replace(limits, misfit=TERM_MISFIT, mixed=True)
        nothing, terms_number = np.zeros(len(workload)), terms.matrix.shape[1]
        exact = Deviations(nothing, nothing, nothing, TermRoot(np.zeros((terms_number, terms_number))))
        return Prior.of(workload, terms, levels, limits, (exact,) * (1 + len(bounds)), UNKNOWN_DRIFT)
