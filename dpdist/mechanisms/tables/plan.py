"""Parts of the budget of the least predicted error, and predicted errors, before the current file is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.common_factors import expected_factors
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.measured_sums import MeasuredSums
from dpdist.mechanisms.tables.measurements import ResidualMeasurements
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.predicted import PredictedCells, PredictedErrors
from dpdist.mechanisms.tables.rows import FigureRows
from dpdist.mechanisms.tables.shares import PublishedTable, Target, best_parts
from dpdist.mechanisms.tables.workload import AddedCells
from dpdist.privacy.guarantees import NoisyQuery

PLANNED = (0.005, 0.015)
"""Relative drift in predicted errors, of levels and cells, and of all cells together: what the posterior allows for where
the file has not drifted, because noise hides it."""


@dataclass(frozen=True, eq=False)
class PublishedFigures:
    """Counts and means that tables show, as they are predicted."""

    file: ExpectedFile
    published: tuple[PublishedTable, ...] = ()
    """What the tables show, with their priorities; if empty, the measured cells."""
    largest: bool = False
    """True if the largest error of a figure shall be least, and not the mean squared one."""

    @cached_property
    def tables(self) -> tuple[PredictedCells, ...]:
        tables = [table.cells for table in self.published] or [
            AddedCells.of(scipy.sparse.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell))))))
            for _, cell in self.file.tables
        ]
        return tuple(PredictedCells.of(cells, self.file.numbers.count, self.file.informed) for cells in tables)

    @cached_property
    def target(self) -> Target:
        """Counts and means of all published cells."""
        coordinates, weights = len(self.file.lowest), list[Floats]()
        worths = [table.worth for table in self.published] or [np.ones(coordinates)] * len(self.file.tables)
        for figures, worth in zip(self.tables, worths, strict=True):
            relative = np.column_stack([np.ones(len(figures.total_weight)), figures.mean**2])
            positive = figures.unit > 1e-9 * figures.total_weight[:, None] ** 2 * relative
            weight = worth * np.where(positive, 1.0 / np.where(positive, figures.unit, 1.0), 0.0)
            weights.append((weight if self.largest else weight / np.maximum(positive.sum(axis=0), 1)).T.ravel())
        rows = self._rows((figures.cells, figures.mean) for figures in self.tables)
        return Target(rows, np.concatenate(weights), self.largest)

    @cached_property
    def rows_of_totals(self) -> FigureRows:
        """Rows of counts and totals of all published cells."""
        return self._rows((figures.cells, np.zeros_like(figures.mean)) for figures in self.tables)

    def _rows(self, tables: Iterable[tuple[AddedCells, Floats]]) -> FigureRows:
        """Rows of residuals about the reference's prediction."""
        return FigureRows(tuple(tables), self.file.prediction.means, len(self.file.prior_of_periods.size))


class Planned(NamedTuple):
    """A posterior before the current file is read, and variances of noise by measurement."""

    posterior: Posterior
    noise: list[Floats]


@dataclass(frozen=True, eq=False)
class TablePlan:
    """Published figures, and the budget of their measurements."""

    figures: PublishedFigures
    joint: NoisyQuery
    """The query for all measurements together, in units of 1/UNIT."""
    stated: tuple[Fraction, ...] = ()
    """Parts of the budget, if they are not those of the least predicted error."""
    before: Posterior | None = None
    """The planned posterior under another budget, if it is known."""

    @property
    def file(self) -> ExpectedFile:
        return self.figures.file

    def under(self, joint: NoisyQuery) -> Self:
        """This plan for another budget: what does not depend on noise stays."""
        known = self.__dict__
        before = known["at_equal"].posterior if "at_equal" in known else None
        other = replace(self, joint=joint, stated=(), before=before)
        # Best parts of many sums take long, and are nearly the same under other budgets.
        same = before is not None and not before.dense and sum(self._equally.parts) == sum(other._equally.parts)
        return replace(other, stated=self.asked.parts) if same and "asked" in known else other

    @cached_property
    def _equally(self) -> ResidualMeasurements:
        return ResidualMeasurements(self.file, self.joint).under_equal_parts

    @cached_property
    def asked(self) -> ResidualMeasurements:
        """The measurements under their parts of the budget."""
        equal = self._equally
        if self.stated:
            return replace(equal, parts=self.stated)
        if self.file.first_year:
            return equal.after_scores
        if not self.file.tables:
            return equal
        at_equal = self.at_equal
        parts = best_parts(at_equal.posterior, self.figures.target, equal.parts, at_equal.noise, equal.power)
        return replace(equal, parts=parts)

    @property
    def settled(self) -> Self:
        """This plan with its parts of the budget, and without published figures: it has no errors, and no other budget."""
        return replace(self, figures=PublishedFigures(self.file), stated=self.asked.parts, before=None)

    @cached_property
    def at_equal(self) -> Planned:
        """The law before the current file is read, under the planned drift and equal parts."""
        asked, coordinates = self._equally, len(self.file.lowest)
        calibration = expected_factors(asked)
        nothing = MeasuredSums.under(asked, calibration, ())
        nothing = replace(nothing, sums=[np.zeros((len(table.size), coordinates)) for table in nothing.limits])
        rows, _, errors, of_inequality, clipped = nothing.observed()
        prior = self.file.prior.drifting(*PLANNED)
        posterior = Posterior(prior, rows, errors, clipped, of_inequality=of_inequality)
        # Rows depend on limits only where numbers of records are secret.
        if self.before is not None:
            posterior = self.before.under(errors, clipped, rows, of_inequality)
        return Planned(posterior, asked.noises(nothing.limits))

    @cached_property
    def planned(self) -> Posterior:
        """The posterior before the current file is read. Limits are those of equal parts, which differ little in error."""
        posterior, noise = self.at_equal
        of_noise, equal = np.concatenate(noise), np.array(self._equally.parts, dtype=float)
        owner = np.repeat(np.arange(len(equal)), list(map(len, noise)))
        more = of_noise * ((equal / np.array(self.asked.parts, dtype=float))[owner] ** self.asked.power - 1.0)
        return posterior.under(posterior.noise + np.pad(more, (0, len(posterior.noise) - len(more))))

    @cached_property
    def errors(self) -> tuple[PredictedErrors, ...]:
        """Predicted errors of published cells, by table."""
        tables, file, coordinates = self.figures.tables, self.file, len(self.file.lowest)
        ends, count = np.cumsum([len(figures.total_weight) * coordinates for figures in tables])[:-1], file.numbers.count
        of_means, of_totals = (
            [part.reshape(coordinates, -1).T for part in np.split(self.planned.variances(rows), ends)]
            for rows in (self.figures.target.rows, self.figures.rows_of_totals)
        )
        places = file.informed.places[file.informed.places >= 0]
        of_reference = np.bincount(places, minlength=len(count)).astype(float)
        errors = list[PredictedErrors]()
        for figures, means, totals in zip(tables, of_means, of_totals, strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                records = figures.cells @ of_reference
                ratio = np.where(records > 0.0, figures.cells @ count / records, np.nan)
            errors.append(PredictedErrors(figures, means, totals, ratio))
        return tuple(errors)
