"""Makes the custodian report's sections on records: bounds and privacy weights, and real beside synthetic records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.core.records import Floats
from dpdist.quality.report.material import BOUNDS, Material, RecordBounds, evenly_spread
from dpdist.quality.report.parts import Figure, Grid, Section, cell
from dpdist.quality.report.plots import axis, scatter, steps

BEFORE, AFTER = "before: unweighted", "after: weighted"


def bounds_section(material: Material, bounds: RecordBounds) -> Section:
    """Shows record bounds before and after weighting, and privacy weights against outcomes and sampling weights."""
    made = Section("bounds", "Record bounds and privacy weights")
    curves, rows = {}, []
    for name, text in zip(BOUNDS, (BEFORE, AFTER), strict=True):
        values = bounds.drawn[name].dropna().to_numpy(dtype=float)
        if len(values):
            curves[text] = values
            inner = [float(quantile) for quantile in np.quantile(values, [0.5, 0.9, 0.99])]
            rows.append([cell(text), *map(cell, inner), cell(float(bounds.largest[name]))])
    notes = [f"Target of the largest: {material.release.target:.4g}."] if np.isfinite(material.release.target) else []
    if len(bounds.drawn) < bounds.rows:
        spread = f"Quantiles and curves are of {len(bounds.drawn):,} of {bounds.rows:,} records, evenly spread."
        notes += [spread, "The largest is of all."]
    made.grids.append(Grid("Record bounds", ["fit", "median", "90 %", "99 %", "largest"], rows, notes=notes))
    drawing = steps("Distribution functions of record bounds", axis("record bound", *curves.values()), _unweighted(curves))
    made.figures.append(Figure("Record bounds before and after, drawn", drawing))
    records, weight = material.records, bounds.weight
    alpha = axis("privacy weight α", np.array([0.0, 1.0]))
    against = [*zip(material.job.outcomes, records.outcomes, strict=True)]
    against += [(material.job.survey.weight, records.weight)] if material.job.survey.weight else []
    for name, values in against:
        made.figures.append(
            Figure(
                f"Privacy weight against {name}",
                scatter(
                    f"Privacy weight of records against {name}", axis(name, values), alpha, {"records": (values, weight)}
                ),
            )
        )
    return made


def _unweighted(curves: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats | None]]:
    return {name: (values, None) for name, values in curves.items()}


def distributions_section(material: Material) -> Section:
    """Shows distribution functions of real and synthetic records, and their outcomes against weights, for the first set."""
    made = Section("distributions", "Records and synthetic records", ["Synthetic records are those of the first set."])
    job, records = material.job, material.records
    read = evenly_spread(material.space.newest / "synthetic" / "set-1.parquet", job.components)
    weight = read[job.survey.weight].to_numpy() if job.survey.weight else None
    given = records.weight if job.survey.weight else None
    for name, values in zip(job.outcomes, records.outcomes, strict=True):
        copy = read[name].to_numpy().astype(float)
        across = axis(name, values, copy)
        curves = {"records": (values, given), "synthetic records": (copy, weight)}
        made.figures.append(
            Figure(f"{name}: distribution functions", steps(f"Distribution functions of {name}", across, curves))
        )
        if weight is not None and given is not None:
            points = {"records (y, w)": (values, given), "synthetic records (y*, w*)": (copy, weight)}
            drawing = scatter(f"{name} against weights", across, axis("weight", given, weight), points)
            made.figures.append(Figure(f"{name} against {job.survey.weight}", drawing))
    return made
