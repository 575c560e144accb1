"""Writes the measured sums of values of coded columns, and the means that follow from them; they cost nothing more.

A mean is c + R S/C, with S the fitted sum of positions u, C the fitted count, and c and R the centre and half width of the
column's levels. Its published error has two parts, which are upper bounds. Noise: (2b² + (S/C)² 2a²)/C², with b the scale
of the averaged sum and a that of the averaged count. Sampling of a weighted mean: Σw²(u − S/C)²/C² ≤ U Var(u)/C if all w ≤
U, the public bound. What clipped weights bring is in no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_90
from dpdist.mechanisms.coded_tables.fitting import pair_of, rows_of, sums_in
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.mechanisms.coded_tables.value_sums import ValueSums
from dpdist.models.protocol import Draws
from dpdist.publish.design_effects import effect_of
from dpdist.publish.marginals import write_cells
from dpdist.publish.released import ReleasedObject

FILE = "sums"
NUMBERS = ("sum", "mean", "standard_error", "lower", "upper")


class Means(NamedTuple):
    """Weighted sums of a column, its means, and their standard errors, by cell."""

    total: Floats
    mean: Floats
    error: Floats


def write_value_sums(folder: Path, release: ReleasedObject) -> bool:
    """Writes sums.parquet and .csv with weighted sums and means by stratum and cell; returns whether there are any."""
    rows = [row for stratum in range(len(release.frame.stratum_labels)) for row in _rows(release, stratum)]
    if not rows:
        return False
    write_cells(folder / FILE, release, "of", rows, NUMBERS)
    return True


def _rows(release: ReleasedObject, stratum: int) -> Iterator[dict[str, Any]]:
    """Rows of a stratum's cells, one sum after another."""
    model, frame = release.model(stratum), release.frame
    if not isinstance(model, CodedTables):
        return
    first = frame.rows_of(stratum).start
    whole = {name: str(frame.levels[name][frame.codes[name][first]]) for name in frame.strata}
    theta = release.theta(model, stratum, 0)
    for told in model.value_sums(theta):
        name, levels = model.columns[told.column], model.levels[told.column]
        cells = model.labelled(release.job, (told.by,)) if told.by is not None else [dict[str, str]()]
        crossed = frozenset((*frame.strata, *(model.columns[each] for each in (told.by,) if each is not None)))
        found = means_of(model, theta, told, effect_of(release.design_effects, crossed, "mean", name))
        for cell, total, mean, error in zip(cells, *(each.tolist() for each in found), strict=True):
            known = np.isfinite(mean)
            ends = max(min(levels), mean - NORMAL_90 * error), min(max(levels), mean + NORMAL_90 * error)
            figures = (total, mean, error, *ends) if known else (total, None, None, None, None)
            yield {"of": name, "cell": whole | cell, **dict(zip(NUMBERS, figures, strict=True))}


def means_of(model: CodedTables, theta: Draws, measured: ValueSums, effect: float = 1.0) -> Means:
    """Weighted sums and means of the fitted tables, under a design effect on the sampling variance.

    A mean is NaN where the fitted count is 0.
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
