"""Sections of the custodian's report, each made of what a run left in its workspace. All of it is confidential."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.core.records import Floats, Frame, Ints
from dpdist.estimation.frame_table import frame_from_table
from dpdist.evaluation.report.clipping import clipped
from dpdist.evaluation.report.parts import MOST_ROWS, Figure, Grid, Section, cell, error, grid
from dpdist.evaluation.report.plots import axis, scatter, steps, thinned
from dpdist.evaluation.summary import (
    ROWS,
    by_statistic,
    class_of,
    errors,
    estimates_of,
    furthest,
    missing,
    notes,
    overall,
    worst,
)
from dpdist.evaluation.verdict import holds_direct, labels_of, place
from dpdist.job import Job
from dpdist.publish.printed import printed
from dpdist.publish.released import ReleasedObject
from dpdist.publish.writers.dotplot import MOST_ROWS as MOST_PLOTTED
from dpdist.publish.writers.dotplot import chart
from dpdist.storage.tables import each_block, read_table
from dpdist.storage.workspace import Workspace

WORST = 10
BEFORE, AFTER = "before: unweighted", "after: weighted"
LEAST_AXIS, TIMES = 3.0, 1.5
"""Errors are drawn up to so many SE at least, and up to this multiple of the release's largest."""
NAMED = 10
"""Rows of the frame that are named: those of one record, and those with the most clipped records."""
MOST_DRAWN = 20_000
"""Records that distribution functions are drawn of."""
SCALE = (
    "Errors are distances from the direct estimate, in its standard errors (SE). It is about 1 SE from the truth itself."
)


class Drawn(NamedTuple):
    """Records for the page's drawings, (record,) each."""

    record: Ints
    outcomes: list[Floats]
    weight: Floats


@dataclass(frozen=True)
class Material:
    """A workspace with its release and its evaluations."""

    space: Workspace
    release: ReleasedObject
    tables: Mapping[str, pd.DataFrame]
    statement: Mapping[str, Any]

    @property
    def job(self) -> Job:
        return self.release.job

    @cached_property
    def frame(self) -> Frame:
        return frame_from_table(read_table(self.space.frame))

    @cached_property
    def bounds(self) -> pd.DataFrame | None:
        """Bounds and privacy weights by record, of mechanisms that have them."""
        path = self.space.confidential / "bounds.parquet"
        if not path.is_file():
            return None
        rows: pd.DataFrame = pq.read_table(path).to_pandas()
        return rows if rows["weighted_record_bound"].notna().any() else None

    @cached_property
    def strata(self) -> pd.DataFrame:
        """One row a stratum, every diagnostic in a column of its own."""
        path = self.space.confidential / "strata.parquet"
        rows: pd.DataFrame = pq.read_table(path).to_pandas() if path.is_file() else pd.DataFrame()
        if "diagnostics" not in rows:
            return rows
        own = pd.DataFrame([each or {} for each in rows["diagnostics"]], index=rows.index).dropna(axis=1, how="all")
        return pd.concat([rows.drop(columns=["diagnostics", "offset"], errors="ignore"), own], axis=1)

    @cached_property
    def records(self) -> Drawn:
        """At most so many records that they can be drawn, evenly spread over the file."""
        which = thinned(int(self.frame.count.sum()), MOST_DRAWN)
        parts = [block.take(which) for block in each_block(self.space.records)]
        outcomes = [np.concatenate(each) for each in zip(*(part.outcomes.T for part in parts), strict=True)]
        record, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("record", "weight"))
        return Drawn(record, outcomes, weight)


def sections(material: Material) -> Iterator[Section]:
    """In the order of the page: the verdict first."""
    yield verdict_section(material)
    if material.bounds is not None:
        yield bounds_section(material, material.bounds)
    for number, (name, rows) in enumerate(material.tables.items(), start=1):
        yield errors_section(material, number, name, rows)
    if (material.space.newest / "synthetic" / "set-1.parquet").is_file():
        yield distributions_section(material)
    yield diagnostics_section(material)
    yield timings_section(material)


def verdict_section(material: Material) -> Section:
    """Worst cells by name, coverage, thresholds of the job, clipped records, rows of the frame with a single record."""
    made = Section("verdict", "Verdict", overall(material.tables).sentences)
    made.grids += [_worst(material.tables), _thresholds(material), *_clipping(material)]
    made.grids.append(_singletons(material.frame))
    return made


def _worst(tables: Mapping[str, pd.DataFrame]) -> Grid:
    found = [
        worst(group).assign(figure=f"{name}, {statistic}", size=furthest(group)["synthetic_error_in_se"].to_numpy())
        for name, rows in tables.items()
        for statistic, group in by_statistic(rows)
        if group["synthetic_error_in_se"].notna().any()
    ]
    if not found:
        return grid("Worst cells", pd.DataFrame({"cell": []}), notes=["No cell has an error in direct standard errors."])
    far = pd.concat(found).nlargest(WORST, "size")[
        ["cell", "figure", "published", "published ±", "direct", "direct ±", "size", "held"]
    ]
    return grid(
        "Worst cells",
        far.rename(columns={"size": "SE off"}),
        notes=[SCALE, "±: one standard error. held: whether the published 90 % interval holds the direct estimate."],
    )


def _thresholds(material: Material) -> Grid:
    """Limits that the job or the verdict sets, what was found, and which of them failed: those first."""
    rows = [*_gates(material), *_targets(material), *_quality(material), *_coverage(material.tables)]
    rows.sort(key=lambda row: row[-1] == "met")
    return Grid(
        "Thresholds", ["threshold", "limit", "found", "failed or met"], [[cell(each) for each in row] for row in rows]
    )


def _gates(material: Material) -> Iterator[tuple[str, object, object, str]]:
    for gate in material.statement.get("acceptance", {}).get("gates", ()):
        yield f"gate: {gate['gate']} (under noise)", float(gate["limit"]), float(gate["measured"]), _met(gate["accepted"])


def _targets(material: Material) -> Iterator[tuple[str, object, object, str]]:
    """Of weights that are tuned: the largest bound over strata."""
    rows = material.strata
    if "database_bound" in rows and np.isfinite(material.release.target) and rows["database_bound"].notna().any():
        largest = float(rows["database_bound"].max())
        yield "largest record bound of a fit", material.release.target, largest, _met(largest <= material.release.target)


def _quality(material: Material) -> Iterator[tuple[str, object, object, str]]:
    """Printed figures that the presentation's rules flag or leave out."""
    rules = material.job.presentation.quality
    for said in material.job.tables:
        form = printed(material.job, said, pq.read_table(material.space.newest / "tables" / f"{said.name}.parquet"))
        for flag in ("unreliable", "caution") if rules.flags else ():
            number = int((form.flags == flag).sum())
            yield f"{said.name}: figures flagged {flag}", 0, number, _met(number == 0)
        if rules.minimum is not None or rules.hide_unreliable:
            number = int(np.isnan(form.values).sum())
            yield f"{said.name}: figures that are not printed", 0, number, _met(number == 0)


def _coverage(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, object, object, str]]:
    """How many direct estimates, and figures of a known truth, 90 % intervals hold."""
    for name, rows in tables.items():
        for statistic, group in by_statistic(rows):
            known = group["synthetic_lower"].notna() & group["direct"].notna()
            if known.any():
                held = float(holds_direct(group[known]).mean())
                yield f"{name}, {statistic}: direct estimates within 90 % intervals", 0.9, held, _met(held >= 0.9)


def _met(met: object) -> str:
    return "met" if met else "failed"


def _clipping(material: Material) -> Iterator[Grid]:
    """Shares of records by rule, and the rows of the frame where most of the records are clipped."""
    frame, job = material.frame, material.job
    found = clipped(material.space, job, frame)
    rows = []
    if material.bounds is not None:
        down = material.bounds["privacy_weight"] < 1.0
        rows.append([cell("privacy weight below 1"), cell(int(down.sum())), cell(float(down.mean())), cell("")])
    for rule, records in found:
        share = np.asarray(records / np.maximum(frame.count, 1))
        top = int(np.argmax(share))
        where = f"{row_name(frame, top)}: {share[top]:.2f} of {int(frame.count[top]):,}" if records.any() else ""
        rows.append(
            [cell(rule), cell(int(records.sum())), cell(float(records.sum() / max(frame.count.sum(), 1))), cell(where)]
        )
    if rows:
        yield Grid(
            "Records clipped or weighted down", ["rule", "records", "share", "largest share of a row of the frame"], rows
        )


def _singletons(frame: Frame) -> Grid:
    """Combinations of public columns with one record: whoever has these columns knows the person."""
    single = np.flatnonzero(frame.count == 1)
    said = [f"{len(single):,} of {int((frame.count > 0).sum()):,} combinations of public columns have a single record."]
    said += [f"The first {NAMED} are named."] if len(single) > NAMED else []
    rows = [[cell(row_name(frame, int(row)))] for row in single[:NAMED]]
    return Grid("Single records in the frame", ["combination"], rows, notes=said)


def row_name(frame: Frame, row: int) -> str:
    """A row of the frame in words."""
    return ", ".join(str(frame.levels[name][codes[row]]) for name, codes in frame.codes.items()) or "all"


def bounds_section(material: Material, bounds: pd.DataFrame) -> Section:
    """Record bounds before and after weighting, and privacy weights against outcomes and sampling weights."""
    made = Section("bounds", "Record bounds and privacy weights")
    curves = {
        said: bounds.loc[bounds[name].notna(), name].to_numpy(dtype=float)
        for name, said in (("unweighted_record_bound", BEFORE), ("weighted_record_bound", AFTER))
    }
    curves = {said: values for said, values in curves.items() if len(values)}
    rows = [
        [cell(said), *(cell(float(each)) for each in np.quantile(values, [0.5, 0.9, 0.99, 1.0]))]
        for said, values in curves.items()
    ]
    target = [f"Target of the largest: {material.release.target:.4g}."] if np.isfinite(material.release.target) else []
    made.grids.append(Grid("Record bounds", ["fit", "median", "90 %", "99 %", "largest"], rows, notes=target))
    drawing = steps("Distribution functions of record bounds", axis("record bound", *curves.values()), _unweighted(curves))
    made.figures.append(Figure("Record bounds before and after, drawn", drawing))
    known = material.records
    weight = (
        bounds.drop_duplicates("record").set_index("record")["privacy_weight"].reindex(known.record).to_numpy(dtype=float)
    )
    alpha = axis("privacy weight α", np.array([0.0, 1.0]))
    against = [*zip(material.job.outcomes, known.outcomes, strict=True)]
    against += [(material.job.survey.weight, known.weight)] if material.job.survey.weight else []
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


def errors_section(material: Material, number: int, name: str, rows: pd.DataFrame) -> Section:
    """Errors by statistic: summed up beside comparators with their guarantee, then cell by cell."""
    made = Section(f"errors-{number}", f"Errors: {name}", [SCALE])
    guarantee = str(material.statement["guarantee"])
    for statistic, group in by_statistic(rows):
        made.grids.append(grid(f"{statistic}: errors over {len(group)} cells", errors(group, guarantee), 1, missing(group)))
        made.grids.append(_by_cell(statistic, group, guarantee))
        made.figures += _cells_drawn(statistic, group)
    made.sentences += notes(rows)
    return made


def _by_cell(statistic: str, rows: pd.DataFrame, guarantee: str) -> Grid:
    """Errors in direct standard errors, the largest of the release first; heads name an estimate's guarantee."""
    hows = list(estimates_of(rows))
    of = {
        how: guarantee if how.startswith("synthetic") else "" if how == "clipping" else class_of(rows, how) for how in hows
    }
    heads = [f"{ROWS.get(how, how)} ({of[how]})" if of[how] else ROWS.get(how, how) for how in hows]
    order = rows.sort_values("synthetic_error_in_se", ascending=False, kind="stable").head(MOST_ROWS)
    by = labels_of(rows)
    cells = [
        [cell(place(row, by)), cell(int(row["records"])), *(error(float(row[f"{how}_error_in_se"])) for how in hows)]
        for _, row in order.iterrows()
    ]
    more = [f"The {MOST_ROWS} furthest of {len(rows):,} cells."] if len(rows) > MOST_ROWS else []
    return Grid(f"{statistic}: errors by cell, in SE", ["cell", "records", *heads], cells, notes=more)


def _cells_drawn(statistic: str, rows: pd.DataFrame) -> Iterator[Figure]:
    """The distances of base cells and margins as dots, if the page can hold them."""
    hows = [how for how in estimates_of(rows) if rows[f"{how}_error_in_se"].notna().any()]
    if len(rows) > MOST_PLOTTED or not hows:
        return
    sizes = rows[[f"{how}_error_in_se" for how in hows]].to_numpy(dtype=float)
    most = max(LEAST_AXIS, TIMES * float(np.nanmax(sizes[:, 0])) if np.isfinite(sizes[:, 0]).any() else 0.0)
    beyond = int((sizes > most).sum())
    sizes, none, by = np.where(sizes > most, np.nan, sizes), np.full_like(sizes, np.nan), labels_of(rows)
    labels = [place(row, by) for _, row in rows.iterrows()]
    drawing = chart(f"{statistic}: errors by cell", labels, [ROWS.get(how, how) for how in hows], sizes, none, none, 2)
    left = f" ({beyond} beyond {most:.3g} SE left out)" if beyond else ""
    yield Figure(f"{statistic}: errors by cell, in SE, drawn{left}", drawing)


def distributions_section(material: Material) -> Section:
    """Records and synthetic records of the first set: distribution functions, and outcomes against weights."""
    made = Section("distributions", "Records and synthetic records", ["Synthetic records are those of the first set."])
    job, known = material.job, material.records
    read = pq.read_table(material.space.newest / "synthetic" / "set-1.parquet", columns=list(job.components))
    weight = read[job.survey.weight].to_numpy() if job.survey.weight else None
    given = known.weight if job.survey.weight else None
    for name, values in zip(job.outcomes, known.outcomes, strict=True):
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


def diagnostics_section(material: Material) -> Section:
    """What every stratum's fit left."""
    made, rows = Section("diagnostics", "Diagnostics"), material.strata
    if not len(rows):
        made.sentences.append("The mechanism fits no strata: there is nothing to diagnose.")
        return made
    rows = rows.assign(
        **{
            name: rows[name].map(_pair)
            for name in rows.columns
            if rows[name].map(lambda v: isinstance(v, list | np.ndarray)).any()
        }
    )
    by = "epsilon_local" if "epsilon_local" in rows and rows["epsilon_local"].notna().any() else "rows"
    made.grids.append(grid("Strata", rows.dropna(axis=1, how="all").sort_values(by, ascending=False, kind="stable")))
    return made


def _pair(value: object) -> str:
    return "" if value is None else ", ".join(f"{float(each):.4g}" for each in np.atleast_1d(np.asarray(value)))


def timings_section(material: Material) -> Section:
    """Seconds of every stage, as the status of a finished run has them."""
    made, path = Section("timings", "Timings"), material.space.status
    said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if said.get("state") != "finished":
        made.sentences.append(
            "The status of a run has them once it has ended: `dpdist report DIR --open` writes this page again."
        )
        return made
    rows = [[cell(name), cell(each["done"]), cell(float(each["seconds"]))] for name, each in said["stages"].items()]
    made.grids.append(Grid("Stages of the run", ["stage", "units", "seconds"], rows))
    return made
