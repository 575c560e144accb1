"""Noisy figures of every mechanism that releases some: their cells, statistics, values, scales and clipping limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import Modips
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.laplace_tables.release import NoisyTables
from dpdist.mechanisms.modips.levels import LevelCounts
from dpdist.mechanisms.modips.moments import Moments
from dpdist.mechanisms.modips.release import Sanitized, sums_of
from dpdist.mechanisms.modips.sensitivity import groups, together
from dpdist.mechanisms.partitions.release import PartitionCounts
from dpdist.mechanisms.perturbed_histogram.release import Histogram
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.mechanisms.reference_tables.sensitivity import UNIT
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal
from dpdist.mechanisms.weight_regularisation.release import ASKED, RegularisedCells
from dpdist.mechanisms.weight_regularisation.sensitivity import MOVED_BY
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.sensitivity import moved
from dpdist.models.outcome import OutcomeModel
from dpdist.models.protocol import Draws
from dpdist.privacy.units import moves
from dpdist.publish.released import ReleasedObject

LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"
NO_LIMITS = (None, None, None)


class Figures(NamedTuple):
    """Noisy figures of one kind: `cells` are levels by column; values and `limits` are by (cell, statistic)."""

    cells: Sequence[dict[str, str]]
    statistics: Sequence[str]
    values: Floats
    scales: Sequence[Fraction | None]
    limits: Callable[[int, int], tuple[float | None, float | None, float | None]]
    unit: float = UNIT
    law: str = LAPLACE
    table: str | None = None
    units: Sequence[int] | None = None
    """Number of the sum that a cell is part of; unset: every cell has its own."""
    sensitivity: float | None = None
    """Unset: scale times ε."""


def _cells(release: ReleasedObject, model: OutcomeModel, stratum: int) -> list[dict[str, str]]:
    """Levels of every pattern of a stratum, of the columns that do not vary within one."""
    frame, own = release.frame, release.frame.rows_of(stratum)
    pattern = model.design.pattern
    first = np.unique(pattern, return_index=True)[1]
    codes = {name: frame.codes[name][own] for name in release.job.categories}
    constant = [name for name, values in codes.items() if np.array_equal(values, values[first][pattern])]
    return [{name: str(frame.levels[name][codes[name][row]]) for name in constant} for row in first]


def figures_of(release: ReleasedObject, model: object, stratum: int, theta: Draws) -> Iterator[Figures]:
    for kind, figures in MEASURED.items():
        if isinstance(model, kind):
            yield from figures(release, model, stratum, theta)


def _histogram(release: ReleasedObject, model: Histogram, stratum: int, theta: Draws) -> Iterator[Figures]:
    (cell,) = _cells(release, model, stratum)[:1]
    low, high = model.edges[:-1], model.edges[1:]
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    for bin, value in enumerate(theta["counts"][0]):
        limits = (float(middle[bin]), None, float(half[bin]))
        yield Figures([cell], ["count_in_bin"], np.array([[value]]), [model.scale], lambda *_, own=limits: own, 1)


def _cell_sums(release: ReleasedObject, model: CellSums, stratum: int, theta: Draws) -> Iterator[Figures]:
    limits = (model.bounds.centre, model.bounds.weight, model.bounds.half_width)
    cells = _cells(release, model, stratum)
    yield Figures(cells, ["a", "b"], theta["sums"][0], [model.scale] * 2, lambda *_: limits)


def _regularised(release: ReleasedObject, model: RegularisedCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """First what was asked of the whole stratum, then the sums of cells; what the job itself says was not asked."""
    cells, bounds, twice = _cells(release, model, stratum), model.under(theta).bounds, moves(release.job)
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    scales = (model.mean_scale, model.choice_scale, model.choice_scale)
    for name, value, scale, moved_by in zip(ASKED, theta["asked"][0], scales, MOVED_BY, strict=True):
        limits = (None, model.plain.bounds.weight, None)
        if np.isfinite(value):
            one = np.array([[value]])
            yield Figures([whole], [name], one, [scale], lambda *_, own=limits: own, sensitivity=float(moved_by * twice))
    own = (bounds.centre, bounds.weight, bounds.half_width)
    yield Figures(cells, ["a_r", "b_r"], theta["sums"][0], [model.scale] * 2, lambda *_: own, sensitivity=2.0 * twice)


def _noisy_tables(release: ReleasedObject, model: NoisyTables, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Cells without a sample record are known to be empty and were not measured."""
    for table in model.tables:
        kept = np.flatnonzero(table.occupied)
        cells = [dict(zip(table.cells.by, table.cells.labels[k], strict=True)) for k in kept]
        values = theta[table.parameter.name][0][kept]
        if model.bounds is None:
            scales: list[Fraction | None] = [None] * len(table.statistics)
            yield Figures(cells, table.statistics, values, scales, lambda *_: NO_LIMITS, 1, table=table.name)
        else:
            bounds = model.bounds
            limits = (bounds.centre, bounds.weight, bounds.half_width)
            statistics, scales = ["a", "b"][: values.shape[1]], [model.scale] * values.shape[1]
            yield Figures(cells, statistics, values, scales, lambda *_, own=limits: own, table=table.name)


def _reference_cells(release: ReleasedObject, model: ReferenceCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Limits are (centres, cap, half-widths) by cell; sums after the first go round the outcomes."""
    named = {parameter.name: parameter.dims[1][1] for parameter in model.parameters if parameter.name == "sums"}
    several, limits = len(model.outcomes), theta["limits"][0]

    def of(i: int, j: int) -> tuple[float | None, float | None, float | None]:
        k = (j - 1) % several
        own = (None, None) if j == 0 else (float(limits[i, k]), float(limits[i, several + 1 + k]))
        return own[0], float(limits[i, several]), own[1]

    values, unit = theta["sums"][0], theta["unit"][0].astype(int).tolist()
    scales = [model.scales[0], *[model.scales[1]] * (values.shape[1] - 1)]
    yield Figures(_cells(release, model, stratum), named["sums"], values, scales, of, units=unit)


def _sanitized(release: ReleasedObject, model: SanitizedLognormal, stratum: int, theta: Draws) -> Iterator[Figures]:
    law = GAUSSIAN if model.noise == "gaussian" else LAPLACE
    cells, (sums, scatter) = _cells(release, model, stratum), (p.dims[-1][1] for p in model.parameters[:2])
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    yield Figures(cells, sums, theta["sums"][0], [model.scale] * 2, lambda *_: NO_LIMITS, law=law)
    yield Figures([whole], scatter, theta["scatter"][0][None], [model.scale] * 3, lambda *_: NO_LIMITS, law=law)


def _sufficient(release: ReleasedObject, model: Sanitized, stratum: int, theta: Draws) -> Iterator[Figures]:
    """By group: sums of 1 − v, of vu or of v 1[y = k] in every cell, and of v(u² − 1/2) over all cells."""
    cells, said = _cells(release, model, stratum), release.job.mechanism
    assert isinstance(said, Modips)
    given = sums_of(release.job)
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    law = f"{model.truncation}_{LAPLACE}"
    for group, (start, stop), scale in zip(groups(*given), model.parts, model.scales, strict=True):
        values = theta["sums"][0, start:stop]
        own = cells if (stop - start) % len(cells) == 0 and group.name != "v (u^2 - 1/2)" else [whole]
        several = (stop - start) // len(own)
        names = [group.name] if several == 1 else [f"v 1[y = k] {level:g}" for level in getattr(model, "levels", ())]
        moved = moves(release.job) * (group.sensitivity if said.sanitization == "individual" else together(*given))
        yield Figures(
            own,
            names,
            values.reshape(len(own), several),
            [scale] * several,
            lambda *_: _of_bounds(model),
            law=law,
            sensitivity=float(moved),
        )


def _partition(release: ReleasedObject, model: PartitionCounts, stratum: int, theta: Draws) -> Iterator[Figures]:
    """With weights the sum of 1 − v, then the counts of every layer; a node's cell has the levels that all of it shares."""
    whole, cap = _cells(release, model, stratum)[0], None if model.weights is None else model.weights[1]
    tree, absent, counts = model.measured(theta)
    moved = 2.0 if release.job.budget.adjacency == "substitution" else 1.0
    summed = [("1 - v", [dict[str, str]()], absent)] if len(absent) else []
    layers = [("v", cells, values) for cells, values in zip(model.named(tree), counts, strict=True)]
    for statistic, cells, values in (*summed, *layers):
        yield Figures(
            [{**whole, **cell} for cell in cells],
            [statistic],
            values[:, None],
            [model.scale],
            lambda *_: (None, cap, None),
            sensitivity=moved,
        )


def _of_bounds(model: Sanitized) -> tuple[float | None, float | None, float | None]:
    """Centre and half width of the public bounds, of logarithms under a lognormal law; the weight's upper bound."""
    cap = None if model.weights is None else model.weights[1]
    return (model.middle[0], cap, model.middle[1]) if isinstance(model, Moments) else (None, cap, None)


def _marginals(release: ReleasedObject, model: Marginals, stratum: int, theta: Draws) -> Iterator[Figures]:
    """A table after another; cells are levels of its columns, beside those of the stratum."""
    whole = {name: level for name, level in _cells(release, model, stratum)[0].items() if name in release.frame.strata}
    cap = model.weights[1] if release.job.survey.weight is not None else None
    keys = model.keys_of(theta)
    for key, values in model.split(keys, theta["sums"]).items():
        cells = [whole | levels for levels in model.labelled(release.job, key)]
        number = sum(len(each) == len(key) for each in keys) if model.listed is None else len(keys)
        yield Figures(
            cells,
            ["v"],
            values[0].reshape(-1, 1),
            [model.scale_of(key)],
            lambda *_: (None, cap, None),
            table=" x ".join(model.columns[column] for column in key),
            sensitivity=float(moved(model.adjacency) * number),
        )


MEASURED: dict[type, Callable[[ReleasedObject, Any, int, Draws], Iterator[Figures]]] = {
    Histogram: _histogram,
    CellSums: _cell_sums,
    RegularisedCells: _regularised,
    NoisyTables: _noisy_tables,
    ReferenceCells: _reference_cells,
    SanitizedLognormal: _sanitized,
    Moments: _sufficient,
    LevelCounts: _sufficient,
    PartitionCounts: _partition,
    Marginals: _marginals,
}
"""Models whose released object is noisy figures, and how these are told."""
