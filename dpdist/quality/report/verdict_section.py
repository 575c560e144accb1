"""Makes the custodian report's first section, the verdict: worst cells, limits, clipped records, lone records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.core.records import Frame
from dpdist.publish.printed_tables import printed_table
from dpdist.quality.report.clipping import clipped
from dpdist.quality.report.material import Material
from dpdist.quality.report.parts import Grid, Section, cell, grid
from dpdist.quality.summary import (
    by_statistic,
    furthest,
    verdicts,
    worst,
)
from dpdist.quality.under_design import FAR_RELATIVE, NOMINAL, SMALL_RATIO
from dpdist.quality.verdict import FAR_LARGEST, FAR_MEDIAN

WORST = 10
NAMED = 10
"""Number of frame rows that are listed: rows with a single record, and rows with the most clipped records."""
SCALE = (
    "Errors are distances from the direct estimate, in its standard errors (SE). It is about 1 SE from the truth itself."
)


def verdict_section(material: Material) -> Section:
    """Shows the worst cells, the job's limits, coverage, clipped records, and frame rows with a single record."""
    made = Section("verdict", "Verdict")
    made.grids += [_worst(material.tables), _thresholds(material), *_clipping(material)]
    made.grids.append(_singletons(material.frame))
    return made


def _worst(tables: Mapping[str, pd.DataFrame]) -> Grid:
    parts = [
        worst(group).assign(figure=f"{name}, {statistic}", size=furthest(group)["synthetic_error_in_se"].to_numpy())
        for name, rows in tables.items()
        for statistic, group in by_statistic(rows)
        if group["synthetic_error_in_se"].notna().any()
    ]
    if not parts:
        return grid("Worst cells", pd.DataFrame({"cell": []}), notes=["No cell has an error in direct standard errors."])
    far = pd.concat(parts).nlargest(WORST, "size")[
        ["cell", "figure", "published", "published SE", "direct", "direct SE", "size", "held"]
    ]
    return grid(
        "Worst cells",
        far.rename(columns={"size": "SE off"}),
        notes=[SCALE, "SE: one standard error. held: whether the published 90 % interval holds the direct estimate."],
    )


def _thresholds(material: Material) -> Grid:
    """Lists the limits of the job and of the verdict beside the measured values; failed ones come first."""
    rows = [*limits_of_the_job(material), *rules_of_quality(material), *_coverage(material)]
    rows.sort(key=lambda row: row[-1])
    return Grid(
        "Thresholds", ["threshold", "limit", "found", "failed or met"], [[cell(value) for value in row] for row in rows]
    )


def limits_of_the_job(material: Material) -> Iterator[tuple[str, object, object, str]]:
    """Yields the limits that the release must keep: name, limit, measured value, and whether it was met or failed."""
    yield from _gates(material)
    yield from _targets(material)


def _gates(material: Material) -> Iterator[tuple[str, object, object, str]]:
    for gate in material.statement.get("acceptance", {}).get("gates", ()):
        yield f"gate: {gate['gate']} (under noise)", float(gate["limit"]), float(gate["measured"]), _met(gate["accepted"])


def _targets(material: Material) -> Iterator[tuple[str, object, object, str]]:
    """Yields the limit that tuned privacy weights had to meet, with the largest record bound of any stratum."""
    rows = material.strata
    if "database_bound" in rows and np.isfinite(material.release.target) and rows["database_bound"].notna().any():
        largest = float(rows["database_bound"].max())
        yield "largest record bound of a fit", material.release.target, largest, _met(largest <= material.release.target)


def rules_of_quality(material: Material) -> Iterator[tuple[str, object, object, str]]:
    """Yields the numbers of printed figures that the job's rules of quality flag or leave out. They are rules of print."""
    rules = material.job.presentation.quality
    for table in material.job.tables:
        form = printed_table(material.job, table, pq.read_table(material.space.newest / "tables" / f"{table.name}.parquet"))
        for flag in ("unreliable", "caution") if rules.flags else ():
            number = int((form.flags == flag).sum())
            yield f"{table.name}: figures flagged {flag}", 0, number, _met(number == 0)
        if rules.minimum is not None or rules.hide_unreliable:
            number = int(np.isnan(form.values).sum())
            yield f"{table.name}: figures that are not printed", 0, number, _met(number == 0)


def _coverage(material: Material) -> Iterator[tuple[str, object, object, str]]:
    """Yields the share of direct estimates within 90 % intervals, and the sizes of errors, by statistic."""
    clustered = material.job.survey.clustered
    for name, verdict in verdicts(material.tables, clustered).items():
        if verdict is None:
            continue
        low, held = "failed" if verdict.fails else "may be chance", verdict.held
        answer = _met(True) if held >= NOMINAL else low
        yield f"{name}: direct estimates within 90 % intervals", NOMINAL, held, answer
        for what, limit, size in (
            ("median", FAR_MEDIAN, verdict.median_error),
            ("largest", FAR_LARGEST, verdict.largest_error),
        ):
            if not np.isnan(size):
                yield f"{name}: {what} error, in direct SE", limit, size, _met(size <= limit)
        if clustered and not np.isnan(verdict.width):
            small = "failed" if verdict.small else _met(True) if verdict.width >= SMALL_RATIO else "may be chance"
            yield f"{name}: published over direct standard error, in the median", SMALL_RATIO, verdict.width, small
        if verdict.fixed is not None and not np.isnan(verdict.fixed.error):
            measure = f"{name}: counts that the design fixes, largest relative error or half width"
            yield measure, FAR_RELATIVE, max(verdict.fixed.error, verdict.fixed.reach), _met(not verdict.fixed.inaccurate)
        if verdict.grand is not None:
            size, held_too = abs(verdict.grand.in_published), _met(True) if verdict.grand.held else low
            yield f"{name}: all records, in published SE (limit: their 90 % interval)", verdict.grand.reach, size, held_too


def _met(met: object) -> str:
    return "met" if met else "failed"


def _clipping(material: Material) -> Iterator[Grid]:
    """Shows the share of records that each rule clips, and the frame rows where most records are clipped."""
    frame, job = material.frame, material.job
    counts = clipped(material.space, job, frame)
    rows = []
    if material.bounds is not None:
        down = material.bounds.weighted_down
        rows.append([cell("privacy weight below 1"), cell(down), cell(down / material.bounds.rows), cell("")])
    for rule, records in counts:
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
    """Lists combinations of public columns with a single record. Whoever knows these columns knows whose record it is."""
    single = np.flatnonzero(frame.count == 1)
    sentences = [
        f"{len(single):,} of {int((frame.count > 0).sum()):,} combinations of public columns have a single record."
    ]
    sentences += [f"The first {NAMED} are named."] if len(single) > NAMED else []
    rows = [[cell(row_name(frame, int(row)))] for row in single[:NAMED]]
    return Grid("Single records in the frame", ["combination"], rows, notes=sentences)


def row_name(frame: Frame, row: int) -> str:
    """The levels of a frame row as text."""
    return ", ".join(str(frame.levels[name][codes[row]]) for name, codes in frame.codes.items()) or "all"
