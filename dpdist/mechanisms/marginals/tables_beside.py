"""Tables of released counts and means, with errors, at no privacy cost (METHODS §9b).

Without a reference, a count's standard error is an upper bound: it adds noise and the largest sampling variance, U Σw.
With a reference, the error also includes that of the weight beyond the bound (`beyond_bound`). No error includes
clipping without a reference, or setting negative counts to 0.

A mean is c + R S/C, with the fitted sum S of positions u and the fitted count C. The levels have centre c and half
width R. Its error is an upper bound from noise, (2b² + (S/C)² 2a²)/C², and sampling, U Var(u)/C. The noise scales are b
for the averaged sum and a for the count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_90
from dpdist.job import Job
from dpdist.mechanisms.marginals.beyond_bound import variance_per_weight
from dpdist.mechanisms.marginals.fitting import Fitted, Marginal, ValueSums, pair_of, rows_of, sums_in
from dpdist.models.outputs import DesignEffectOf, ModelTable
from dpdist.models.protocol import Draws

ERRORS = ("standard_error", "lower", "upper")
OF_COUNTS, OF_SUMS = ("count", "share", *ERRORS), ("sum", "mean", *ERRORS)
"""Names of the figures of a table of counts, and of one of sums."""


class Released(Protocol):
    """A model of noisy tables."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def levels(self) -> tuple[tuple[float, ...], ...]: ...

    @property
    def weights(self) -> tuple[float, float]: ...

    def shape(self, key: Marginal) -> tuple[int, ...]: ...

    def fitted(self, theta: Draws) -> Fitted: ...

    def noise_of(self, theta: Draws) -> dict[Marginal, float]: ...

    def errors_beyond(self, theta: Draws, key: Marginal) -> tuple[Floats, Floats]: ...

    def value_sums(self, theta: Draws) -> list[ValueSums]: ...

    def labelled(self, job: Job, key: Marginal) -> Sequence[dict[str, str]]: ...


class Means(NamedTuple):
    """Weighted sums of a column, its means, and their standard errors, by cell."""

    total: Floats
    mean: Floats
    error: Floats


def tables_beside(model: Released, job: Job, theta: Draws, effect: DesignEffectOf) -> Mapping[str, ModelTable]:
    """Counts of every measured table as "marginals", and measured sums and means as "sums" where there are any."""
    counts = {"marginals": ModelTable("marginal", OF_COUNTS, list(_counts(model, job, theta, effect)))}
    sums = list(_sums(model, job, theta, effect))
    return counts | ({"sums": ModelTable("of", OF_SUMS, sums)} if sums else {})


def _counts(model: Released, job: Job, theta: Draws, effect: DesignEffectOf) -> Iterator[dict[str, Any]]:
    """Rows of the cells, table after table."""
    fitted = model.fitted(theta)
    for key in model.noise_of(theta):
        columns = [model.columns[column] for column in key]
        errors = errors_of_counts(model, theta, key, effect(frozenset(columns), "count", None))
        cells = zip(model.labelled(job, key), fitted.table(key).ravel().tolist(), errors.tolist(), strict=True)
        for cell, value, error in cells:
            share = value / fitted.total if fitted.total > 0.0 else None
            ends = max(0.0, value - NORMAL_90 * error), value + NORMAL_90 * error
            figures = dict(zip(OF_COUNTS, (value, share, error, *ends), strict=True))
            yield {"marginal": " x ".join(columns), "cell": cell, **figures}


def errors_of_counts(model: Released, theta: Draws, key: Marginal, effect: float = 1.0) -> Floats:
    """Standard errors of a table's fitted counts, (cell,), under a design effect on the sampling variance."""
    counts = model.fitted(theta).table(key).ravel()
    beyond = np.hypot(*model.errors_beyond(theta, key)).ravel()
    sampling = effect * variance_per_weight(theta, model.weights[1]) * counts
    return np.asarray(np.sqrt(2.0 * model.noise_of(theta)[key] ** 2 + sampling + (beyond * counts) ** 2))


def _sums(model: Released, job: Job, theta: Draws, effect: DesignEffectOf) -> Iterator[dict[str, Any]]:
    """Rows of the cells, one sum after another."""
    for measured in model.value_sums(theta):
        name, levels = model.columns[measured.column], model.levels[measured.column]
        by = () if measured.by is None else (measured.by,)
        cells = model.labelled(job, by) if by else [dict[str, str]()]
        crossed = frozenset(model.columns[column] for column in by)
        means = means_of(model, theta, measured, effect(crossed, "mean", name))
        for cell, total, mean, error in zip(cells, *(column.tolist() for column in means), strict=True):
            ends = max(min(levels), mean - NORMAL_90 * error), min(max(levels), mean + NORMAL_90 * error)
            figures = (total, mean, error, *ends) if np.isfinite(mean) else (total, None, None, None, None)
            yield {"of": name, "cell": cell, **dict(zip(OF_SUMS, figures, strict=True))}


def means_of(model: Released, theta: Draws, measured: ValueSums, effect: float = 1.0) -> Means:
    """Weighted sums and means of the fitted tables, under a design effect on the sampling variance.

    A mean is NaN if the fitted count is 0.
    """
    fitted, noise, levels = model.fitted(theta), model.noise_of(theta), model.levels[measured.column]
    middle, half = (min(levels) + max(levels)) / 2.0, (max(levels) - min(levels)) / 2.0
    precision = measured.scale**-2
    if (pair := pair_of(measured, fitted.tables)) is not None:
        precision += float(noise[pair] ** -2 / (measured.u @ measured.u))
    rows = rows_of(fitted, measured)
    count = rows.sum(axis=1)
    holding = [key for key in noise if measured.by is None or measured.by in key]
    of_count = 1.0 / sum(len(count) / (np.prod(model.shape(key)) * noise[key] ** 2) for key in holding)
    position = np.divide(sums_in(fitted, measured).values[0], count, out=np.full(len(count), np.nan), where=count > 0.0)
    variance = np.maximum(rows @ measured.u**2 / np.maximum(count, 1e-300) - position**2, 0.0)
    noisy = 2.0 * (1.0 / precision + position**2 * of_count) / np.maximum(count, 1e-300) ** 2
    sampled = effect * model.weights[1] * variance / np.maximum(count, 1e-300)
    mean = middle + half * position
    return Means(np.where(count > 0.0, mean, 0.0) * count, mean, half * np.sqrt(noisy + sampled))
