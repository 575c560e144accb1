"""`measurements.parquet`: what was measured under noise, one row a cell and statistic, so that others can infer from it.

Values and scales are in one unit: a record that is not clipped counts as at most 1. Tilted posteriors measure nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.records import Floats
from dpdist.estimation.weighted_points import CELL
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
from dpdist.mechanisms.sanitized_lognormal.sensitivity import REACH, SENSITIVITY_2, SHARE
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.sensitivity import moved
from dpdist.models.outcome import OutcomeModel
from dpdist.models.protocol import Draws
from dpdist.privacy.units import moves
from dpdist.publish.released import ReleasedObject

FILE = "measurements.parquet"
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "set": (pa.int32(), "number of the synthetic set, the first of nested ones; 0 where one measurement serves all sets"),
    "table": (pa.string(), "the table that the figure is of; null where it serves all tables"),
    "statistic": (pa.string(), "the sum over the cell's records that was measured; its definition stands in the metadata"),
    "measurement": (pa.int64(), "number of the noisy figure; cells of one number were measured together, as one sum"),
    "value": (pa.float64(), "the sum plus noise"),
    "law": (pa.string(), "of the noise: discrete Laplace or discrete Gaussian, on multiples of `lattice`"),
    "scale": (pa.float64(), "of the noise: b of the Laplace law, sigma of the Gaussian; null where it is confidential"),
    "lattice": (pa.float64(), "the value is a multiple of it"),
    "sensitivity": (
        pa.float64(),
        "how far one unit moves the sums that share an epsilon, in L1; under Gaussian noise in L2. Over their epsilon it "
        "is the Laplace scale; the law truncated to a domain has a larger scale, which pays for the truncation",
    ),
    "centre": (pa.float64(), "of the outcome's clipping interval"),
    "weight_cap": (pa.float64(), "the weight at which records were clipped"),
    "half_width": (pa.float64(), "of the outcome's clipping interval"),
}
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"
NO_LIMITS = (None, None, None)
DEFINITIONS = {
    "count_in_bin": "the number of records whose outcome lies between centre - half_width and centre + half_width",
    "a": "the sum of a = min(w, U) / U, with w the weight and U the weight_cap",
    "b": "the sum of b = a (clip(y, c - R, c + R) - c) / R, with y the outcome, c the centre and R the half_width",
    "1 - v": "the sum of 1 - v, v = min(w, U) / U, with w the weight and U the weight_cap",
    "vc": "the sum of v c, c = clip((y - m) / R, -1, 1), with y the outcome, m the centre and R the half_width",
    "v(1 + c)/2": "the sum of v (1 + c) / 2, in the notation of vc",
    "v(1 - c)/2": "the sum of v (1 - c) / 2, in the notation of vc",
    "p1": f"location: the share {SHARE} of the budget; p = A (log y, log w)' less the reference's mean, over {REACH:g}, "
    "shortened to length 1; A is `whitening` and the mean is `reference` in released/set-1.json",
    "p2": "as p1, of the second component",
    "1 - |p|^2": "scatter, over all cells of the stratum: the other share of the budget",
    "p1^2 - p2^2": "as 1 - |p|^2",
    "2 p1 p2": "as 1 - |p|^2",
    "v u": "the sum of v u, u = (y - m) / R, with y the outcome, m the centre and R the half_width of its public bounds, "
    "all of logarithms under a lognormal law; v as in 1 - v, and 1 without weights. By its law a noisy sum is set "
    "to the nearest end of its domain (clamped), or drawn from the law truncated to it (bounded)",
    "v (u^2 - 1/2)": "over all cells of the stratum, in the notation of v u",
    "v 1[y = k]": "the sum of v over records of the level k; its law as of v u",
    "v": "the sum of v, v = min(w, U) / U, with w the weight and U the weight_cap; 1 without weights",
    "count": "the table's own figure; its noise has the scale of confidential sensitivities",
    "mean": "as count",
    "total": "as count",
}
"""What a statistic is, for the file's metadata: its name without that of the outcome."""


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


def write_measurements(path: Path, release: ReleasedObject) -> bool:
    """Written where figures were released under noise; tells whether it was."""
    if not isinstance(release.model(0), tuple(MEASURED)):
        return False
    rows = list(_rows(release))
    columns = [
        name for name in (*release.job.categories, *release.job.outcomes) if any(name in row["cell"] for row in rows)
    ]
    data = {CELL + name: pa.array([row["cell"].get(name) for row in rows], pa.string()) for name in columns}
    data |= {name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in COLUMNS.items()}
    said = {"columns": {name: text for name, (_, text) in COLUMNS.items()}, "statistics": _defined(rows)}
    pq.write_table(pa.table(data).replace_schema_metadata({"dpdist.measurements": json.dumps(said)}), path)
    return True


def _defined(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What the statistics of a file are; those of several outcomes end with the outcome's name."""
    names = dict.fromkeys(str(row["statistic"]) for row in rows)
    return {
        name: next(text for known, text in _BY_LENGTH if name == known or name.startswith(f"{known} ")) for name in names
    }


_BY_LENGTH = sorted(DEFINITIONS.items(), key=lambda each: -len(each[0]))


def _rows(release: ReleasedObject) -> Iterator[dict[str, Any]]:
    """Sets of one noise are told once, under the number of the first."""
    number, once = 0, isinstance(release.model(0), ReferenceCells | SanitizedLognormal | NoisyTables)
    each = len(release.sets) // release.job.mechanism.noises(release.job)
    for stratum in range(len(release.frame.stratum_labels)):
        model = release.model(stratum)
        for k in range(0, 1 if once else len(release.sets), each):
            for figures in _figures_of(release, model, stratum, release.theta(model, stratum, k)):
                own = list(_of(release, figures, 0 if once else k + 1, number))
                yield from own
                number = max(row["measurement"] for row in own) + 1


def _of(release: ReleasedObject, figures: Figures, number_of_set: int, start: int) -> Iterator[dict[str, Any]]:
    several, units = len(figures.statistics), figures.units or range(len(figures.cells))
    for i, cell in enumerate(figures.cells):
        for j, statistic in enumerate(figures.statistics):
            scale = figures.scales[j]
            known = np.isfinite(figures.values[i, j]) and scale is not None
            yield {
                "cell": cell,
                "set": number_of_set,
                "table": figures.table,
                "statistic": statistic,
                "measurement": start + units[i] * several + j,
                "value": float(figures.values[i, j] / figures.unit) if np.isfinite(figures.values[i, j]) else None,
                "law": figures.law,
                "scale": float(scale / Fraction(figures.unit)) if known and scale is not None else None,
                "lattice": 1.0 / figures.unit if known else None,
                "sensitivity": _sensitivity(release, figures, scale) if known and scale is not None else None,
                **dict(zip(("centre", "weight_cap", "half_width"), figures.limits(i, j), strict=True)),
            }


def _sensitivity(release: ReleasedObject, figures: Figures, scale: Fraction) -> float:
    """Scale times ε, both exact; of Gaussian noise the L2 distance of neighbours."""
    job = release.job
    if figures.sensitivity is not None:
        return figures.sensitivity * job.most_records
    if figures.law == GAUSSIAN:
        return float(job.most_records * SENSITIVITY_2[job.budget.adjacency] / UNIT)
    once = job.mechanism.sets_are_free or job.mechanism.whole_tables
    epsilon = job.epsilon_of_tables / (1 if once else job.synthetic_sets)
    return float(scale * epsilon / Fraction(figures.unit))


def _cells(release: ReleasedObject, model: OutcomeModel, stratum: int) -> list[dict[str, str]]:
    """Levels of every pattern of a stratum, of the columns that do not vary within one."""
    frame, own = release.frame, release.frame.rows_of(stratum)
    pattern = model.design.pattern
    first = np.unique(pattern, return_index=True)[1]
    codes = {name: frame.codes[name][own] for name in release.job.categories}
    constant = [name for name, values in codes.items() if np.array_equal(values, values[first][pattern])]
    return [{name: str(frame.levels[name][codes[name][row]]) for name in constant} for row in first]


def _figures_of(release: ReleasedObject, model: object, stratum: int, theta: Draws) -> Iterator[Figures]:
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
    NoisyTables: _noisy_tables,
    ReferenceCells: _reference_cells,
    SanitizedLognormal: _sanitized,
    Moments: _sufficient,
    LevelCounts: _sufficient,
    PartitionCounts: _partition,
    Marginals: _marginals,
}
"""Models whose released object is noisy figures, and how these are told."""
