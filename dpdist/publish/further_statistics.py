"""Ratios, proportions, quantiles, shares and differences of published tables, with standard errors.

Standard errors have the components of `standard_errors`, applied to the linearised form. A quantile has Woodruff's
interval, from whose length its standard error follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from dpdist.core.records import Cells, Codes, Floats, Ints
from dpdist.estimation.estimators import Interval, Stages, combine_sets, margins_of, met_units, t_interval
from dpdist.estimation.linear import Below, StatisticFigures, Units, figures_of, variance, woodruff
from dpdist.job import Column, Statistic
from dpdist.models.protocol import Distributed, Draws, supports
from dpdist.publish.refit import Laws
from dpdist.publish.released import ReleasedObject, further_effects
from dpdist.publish.standard_errors import UNWEIGHTED, WEIGHTED, Spreads, about, normal_variance

LEVEL = 0.9
"""Confidence level of published intervals."""


Until = Callable[[Draws], Floats]
"""Shares of the weight at or below values in rows of a stratum under its parameters, (draw, pair of row and value)."""


@dataclass(frozen=True)
class Material:
    """The input of further statistics.

    It has each outcome's expectations under every set and their simulated spreads, the laws, and the folder of the
    synthetic records.
    """

    released: ReleasedObject
    expected: Sequence[Sequence[tuple[Floats, Floats]]] | None
    spreads: Sequence[Spreads] | None
    laws: Sequence[Laws | None] | None
    records: Path

    @cached_property
    def distributions(self) -> list[Distributed] | None:
        """Distribution functions of every stratum. If a model defines none, they are None, and quantiles and similar
        statistics have no estimate from parameters.
        """
        models = list[Distributed]()
        for stratum in range(len(self.released.crosstab.stratum_labels)):
            model = self.released.model(stratum)
            if supports(model, "with_donors"):
                models.append(model.distribution(self.released, stratum))
            elif supports(model, "until"):
                models.append(model)
        return models if len(models) == len(self.released.crosstab.stratum_labels) else None

    def answers(self, value: Floats, outcome: int) -> Floats:
        """Quantiles as reported values, if models know these; otherwise unchanged."""
        answers = getattr(self.distributions[0], "answers", None) if self.distributions else None
        return value if answers is None else answers(value, outcome)

    @cached_property
    def sets(self) -> Units:
        """Returns the crosstab's rows under the parameters of every set."""
        return self._of_sets(slice(None))

    @cached_property
    def each_set(self) -> list[Units]:
        """Returns the crosstab's rows for each set separately."""
        return [self._of_sets(slice(k, k + 1)) for k in range(len(self.released.sets))]

    def _of_sets(self, sets: slice) -> Units:
        assert self.expected is not None
        weight = np.array([pair[0] for pair in self.expected[0][sets]])
        products = [np.array([pair[1] for pair in pairs[sets]]) for pairs in self.expected]

        def share(stratum: int, until: Until, row: Ints) -> Floats:
            return np.concatenate([until(theta) for theta in self._thetas[stratum][sets]])

        return Units(self._n, weight, products, self._below(weight, share))

    @cached_property
    def _thetas(self) -> list[list[Draws]]:
        released, thetas = self.released, []
        for stratum in range(len(released.crosstab.stratum_labels)):
            model = released.model(stratum)
            thetas.append([released.theta(model, stratum, k) for k in range(len(released.sets))])
        return thetas

    def _below(self, weight: Floats, share: Callable[[int, Until, Ints], Floats | float]) -> Below:
        """The weight (draw, row) of rows at or below values, where `share` has its share in rows of a stratum."""
        crosstab = self.released.crosstab

        def below(outcome: int, row: Ints, value: Floats) -> Floats:
            assert self.distributions is not None
            shares = np.empty((len(weight), len(row)))
            for stratum in np.unique(crosstab.stratum[row]).tolist():
                pairs = np.flatnonzero(crosstab.stratum[row] == stratum)
                here = row[pairs] - crosstab.rows_of(stratum).start
                shares[:, pairs] = share(stratum, _until(self.distributions[stratum], here, value[pairs], outcome), here)
            return weight[:, row] * shares

        return below

    @cached_property
    def composed(self) -> Units:
        """Returns the crosstab's rows under the mean of all sets."""
        sets = self.sets

        def below(outcome: int, row: Ints, value: Floats) -> Floats:
            return np.asarray(sets.below(outcome, row, value).mean(axis=0, keepdims=True))

        weight, *products = (values.mean(axis=0, keepdims=True) for values in (sets.weight, *sets.products))
        return Units(self._n, weight, products, below)

    @cached_property
    def under_laws(self) -> list[Units]:
        """Returns the crosstab's rows under each law of the standard errors, in the order of `Spreads`."""
        assert self.spreads is not None
        units = []
        for law, spread in enumerate(self.spreads[0].laws):
            weight, products = spread.weight, [spreads.laws[law].product for spreads in self.spreads]
            units.append(Units(self._n, weight, products, self._below(weight, partial(self._under_law, law))))
        return units

    def _under_law(self, law: int, stratum: int, until: Until, row: Ints) -> Floats | float:
        if self.laws is None or (laws := self.laws[stratum]) is None:
            return np.nan
        values = until(laws.draws[law])
        if laws.shrink is None:
            return values
        centre = until(laws.draws[(WEIGHTED, UNWEIGHTED, WEIGHTED, WEIGHTED, UNWEIGHTED)[law]])
        return np.asarray(centre + (values - centre) * laws.shrink[row])

    @cached_property
    def recounted(self) -> Units | None:
        """Returns rows whose weights include sample counts under simulated noise; None if counts are exact."""
        if self.spreads is None or (again := self.spreads[0].recounts) is None:
            return None
        products = [again.counts * spreads.recounts.product for spreads in self.spreads if spreads.recounts is not None]
        weight = again.counts * again.weight

        def share(stratum: int, until: Until, row: Ints) -> Floats | float:
            laws = None if self.laws is None else self.laws[stratum]
            return np.nan if laws is None or laws.recounted is None else until(laws.recounted.theta)

        return Units(np.ones(weight.shape[1]), weight, products, self._below(weight, share))

    def synthetic(self, number: int) -> Units:
        """Returns the synthetic records of a set, numbered from 0."""
        job = self.released.job
        read = pq.read_table(self.records / f"set-{number + 1}.parquet", columns=list(job.components))
        outcomes = [read[name].to_numpy() for name in job.outcomes]
        weight = read[job.survey.weight].to_numpy() if job.survey.weight else np.ones(len(read))
        return Units.of_records(weight, outcomes)

    @cached_property
    def _n(self) -> Floats:
        return self.released.crosstab.count.astype(float)

    def variance(self, figures: StatisticFigures, units: Units, row: Ints | Codes | None = None) -> Floats:
        """Returns the sampling variance (cell,) of a figure.

        `row` is the crosstab row of every unit, by default its position.
        """
        crosstab, rake = self.released.crosstab, margins_of(self.released.job, self.released.crosstab)
        row = np.arange(len(crosstab)) if row is None else row
        margins = np.vstack([margin.membership.toarray() for margin in rake])[:, row] if rake else None
        calibrated = None if margins is None else (margins, units.weight[0])
        stratum = crosstab.design_stratum[row].astype(np.int64)
        return variance(figures.shares(units), units.times, stratum, self.released.stage, calibrated)


def _until(model: Distributed, row: Ints, value: Floats, outcome: int) -> Until:
    return lambda theta: model.until(theta, row, value, outcome)


class FurtherEstimate(NamedTuple):
    """A figure in all cells, its total variance T, and the part of T from the sample's composition, V_x."""

    interval: Interval
    total: Floats
    composed: Floats


def further_intervals(material: Material, cells: Cells, statistic: Statistic) -> dict[str, Interval]:
    """Returns a statistic's intervals by estimator, the default estimator first."""
    figures = figures_of(statistic, cells, material.released.job.outcomes)
    defined = material.expected is not None and (not statistic.of_shape or material.distributions is not None)
    parameters = _from_parameters(material, figures) if defined else None
    intervals = {} if parameters is None else {"parameters": parameters.interval}
    intervals["records"] = _from_records(material, figures, parameters)
    return {name: _limit(material, figures, interval) for name, interval in intervals.items()}


def _from_parameters(material: Material, figures: StatisticFigures) -> FurtherEstimate:
    """Estimates from parameters; T has the same components as for counts and means (`standard_errors`)."""
    sets = material.sets
    df = np.inf if material.spreads is not None else float(len(sets.weight) - 1)
    if figures.base.level_of_quantile is None:
        total, composed = _variances(material, figures)
        return FurtherEstimate(t_interval(figures.of(sets).mean(axis=0), total, np.full(len(total), df)), total, composed)
    level = figures.base.level_of_quantile
    quantile = _quantiles(material, figures, level)
    error = np.sqrt(_variances(material, replace(figures, statistic=figures.base, cut=quantile))[0])
    ends = woodruff(lambda share: _quantiles(material, figures, share), np.full(len(error), level), error, df, LEVEL)
    linear = replace(figures, cut=quantile, slope=ends.slope)
    total, composed = _variances(material, linear)
    outcome = figures.outcomes.index(figures.base.variable or "")
    value, lower, upper = (material.answers(of, outcome) for of in (quantile, ends.lower, ends.upper))
    if figures.statistic.of is not None:
        return FurtherEstimate(t_interval(linear.less(value[None])[0], total, np.full(len(value), df)), total, composed)
    return FurtherEstimate(Interval(value, ends.error, np.full(len(value), df), lower, upper), ends.error**2, composed)


def _variances(material: Material, figures: StatisticFigures) -> tuple[Floats, Floats]:
    """T and V_x of a figure, (cell,) each; `standard_errors` defines them."""
    job, sets = material.released.job, len(material.released.sets)
    effect = further_effects(material.released.design_effects, figures.cells, figures.statistic)
    noises = 1 if job.mechanism.sets == "drawn" else sets
    composed = material.variance(figures, material.composed)
    if material.spreads is None:
        between = figures.of(material.sets).var(axis=0, ddof=1) if sets > 1 else np.full(len(composed), np.nan)
        return effect * composed + (effect + 1.0 / sets) * between, composed
    centres, plain, draws, weighted, unweighted = (figures.of(units) for units in material.under_laws)
    sampling = composed + np.maximum(normal_variance(centres), normal_variance(plain))
    counted = 0.0 if material.recounted is None else about(figures.of(material.recounted), weighted[0])
    with np.errstate(invalid="ignore"):  # ratios to 0
        of_weights = (weighted - unweighted)[0] ** 2
    return effect * sampling + normal_variance(draws) / noises + of_weights + counted, composed


def _quantiles(material: Material, figures: StatisticFigures, level: Floats | float) -> Floats:
    column = _column(material, figures)
    assert column is not None
    by_set = [figures.quantiles(units, level, column.ends, column.whole) for units in material.each_set]
    return np.asarray(np.mean(by_set, axis=0))


def _from_records(material: Material, figures: StatisticFigures, parameters: FurtherEstimate | None) -> Interval:
    """Estimates from synthetic records.

    Their variance is T of `tables._records_of` if the parameters' variance is known, otherwise T = B/m + W.
    """
    released = material.released
    job, crosstab, row = released.job, released.crosstab, released.crosstab.expand()
    effect, sets = further_effects(released.design_effects, figures.cells, figures.statistic), len(released.sets)
    restricted = replace(figures.cells, membership=figures.cells.membership.tocsc()[:, row].tocsr())
    pairs = [_of_set(material, replace(figures, cells=restricted), k, row) for k in range(sets)]
    values, within = (np.array([pair[i] for pair in pairs]) for i in range(2))
    df = float(crosstab.count.sum() - len(np.unique(crosstab.design_stratum)))
    combined = combine_sets(values, effect * within, df)
    if parameters is None:
        return combined
    if material.spreads is None:
        if job.likelihood.synthesis != "fbp" and job.likelihood.synthetic_weights != "expected":
            return combined
        least = np.fmax(combined.standard_error, np.sqrt(parameters.total))
        return t_interval(combined.value, least**2, np.full(len(least), np.inf))
    mean, free_sets = within.mean(axis=0), job.mechanism.sets == "drawn"
    added = parameters.total + effect * mean if free_sets else np.maximum(mean - parameters.composed, 0.0)
    added = np.zeros_like(added) if job.mechanism.sets == "copied" else added
    total = parameters.total + added / sets
    finite = np.isfinite(total)
    return t_interval(
        combined.value, np.where(finite, total, combined.standard_error**2), np.where(finite, np.inf, combined.df)
    )


def _of_set(material: Material, figures: StatisticFigures, number: int, row: Codes) -> tuple[Floats, Floats]:
    """Returns a figure in one set and its variance within the set, (cell,) each."""
    units, column = material.synthetic(number), _column(material, figures)
    domain = None if column is None else (column.ends, column.whole)
    stages = Stages(material.released.crosstab.design_stratum[row], material.released.stage)
    df = met_units(figures.cells.membership, np.arange(len(row)), stages)
    return figures.of_records(units, domain, lambda linear: material.variance(linear, units, row), df)


def _column(material: Material, figures: StatisticFigures) -> Column | None:
    return material.released.job.outcome_columns.get(figures.base.variable or "")


def _limit(material: Material, figures: StatisticFigures, interval: Interval) -> Interval:
    """Cuts limits to the figure's possible range. Limits of whole-number quantiles are rounded outwards.

    A quantile that more records have than its interval's shares allow for has limits of this one value. Their distance
    of 0 is no standard error.
    """
    released, base = material.released, figures.base
    columns = released.job.outcome_columns
    low, top = base.kind.possible(base, lambda outcome: columns[outcome].ends)
    if base.level_of_quantile is not None:
        interval = interval._replace(standard_error=np.where(interval.standard_error > 0, interval.standard_error, np.nan))
    if figures.statistic.of is not None:
        low, top = low - top, top - low
    if base.level_of_quantile is not None and columns[base.variable or ""].whole:
        interval = interval._replace(lower=np.floor(interval.lower), upper=np.ceil(interval.upper))
    return interval._replace(lower=np.clip(interval.lower, low, top), upper=np.clip(interval.upper, low, top))
