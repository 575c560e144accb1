"""`confidential/report.html`, a page on a release's quality for the custodian."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private, sha256, write_text
from dpdist.core.keys import Recent, digest
from dpdist.core.progress import Event, Listener
from dpdist.core.public_files import MANIFEST
from dpdist.core.records import Crosstab, Floats
from dpdist.job import Table
from dpdist.opening.results import NO_EVALUATION, Evaluations
from dpdist.publish.accuracy import design_in_words
from dpdist.publish.noisy_figures import release_key
from dpdist.publish.printed_tables import far_off_in, labels_of, printed_table
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.withholding import rows_with
from dpdist.publish.writers.dotplot import MOST_ROWS as MOST_PLOTTED, chart, height_of
from dpdist.publish.writers.page import HEAVIEST, environment
from dpdist.quality.errors import by_statistic, estimates_of, number_of_statistics, place
from dpdist.quality.report_material import BOUNDS, RecordBounds, ReportMaterial, clipped, evenly_spread
from dpdist.quality.report_parts import MOST_ROWS, Grid, ReportFigure, Section, axis, cell, error, grid, scatter, steps
from dpdist.quality.summary import (
    LOOKED,
    ROWS,
    Judgements,
    Overall,
    class_of,
    errors,
    furthest,
    missing,
    notes,
    overall,
    verdicts,
    worst,
)
from dpdist.quality.verdict import FAR_LARGEST, FAR_MEDIAN, FAR_RELATIVE, NOMINAL, SMALL_RATIO, Unpublished, Verdict
from dpdist.storage.objects import is_url
from dpdist.storage.workspace import GATHERED, MADE_AGAIN, Workspace, confidential_log

WORST = 10
NAMED = 10
"""Number of crosstab rows with a single record that are listed."""
SCALE = (
    "Errors are distances from the direct estimate, in its standard errors (SE). "
    "The direct estimate itself is about 1 SE from the truth."
)


def verdict_section(material: ReportMaterial) -> Section:
    """Shows the worst cells, the job's limits, coverage, clipped records, and crosstab rows with a single record."""
    section = Section("verdict", "Verdict")
    section.grids += [_worst(material.tables), _thresholds(material), *_clipping(material)]
    section.grids.append(_singletons(material.crosstab))
    return section


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
        ["cell", "figure", "published", "published SE", "direct", "direct SE", "size", "covered"]
    ]
    return grid(
        "Worst cells",
        far.rename(columns={"size": "SE off"}),
        notes=[SCALE, "SE: one standard error. covered: whether the published 90 % interval covers the direct estimate."],
    )


def _thresholds(material: ReportMaterial) -> Grid:
    """Lists the limits of the job and of the verdict beside the measured values; failed ones come first."""
    rows = [*limits_of_the_job(material), *rules_of_quality(material), *_verdict_rows(material)]
    rows.sort(key=lambda row: ANSWERS.index(row[-1]))
    return Grid("Thresholds", ["threshold", "limit", "found", "answer"], [[cell(value) for value in row] for row in rows])


def limits_of_the_job(material: ReportMaterial) -> Iterator[tuple[str, object, object, str]]:
    """Yields the limits that the release must keep: name, limit, measured value, met or failed.

    They are gates, and the limit of tuned privacy weights, with the largest record bound of any stratum.
    """
    for gate in material.statement.get("acceptance", {}).get("gates", ()):
        yield f"gate: {gate['gate']} (under noise)", float(gate["limit"]), float(gate["measured"]), _met(gate["accepted"])
    rows = material.strata
    if "database_bound" in rows and np.isfinite(material.release.target) and rows["database_bound"].notna().any():
        largest = float(rows["database_bound"].max())
        yield "largest record bound of a fit", material.release.target, largest, _met(largest <= material.release.target)


def rules_of_quality(material: ReportMaterial) -> Iterator[tuple[str, object, object, str]]:
    """Yields how many printed figures the job's rules of quality flag or leave out. Rules change nothing but print."""
    rules = material.job.presentation.quality
    if not rules.flags and rules.minimum is None and not rules.hide_unreliable:
        return
    for table in material.job.tables:
        rows = pq.read_table(material.space.newest / "tables" / f"{table.name}.parquet")
        form = printed_table(material.job, table, rows, far_off_in(material.statement, table.name))
        for flag in ("unreliable", "caution") if rules.flags else ():
            number = int((form.flags == flag).sum())
            yield f"{table.name}: figures flagged {flag}", 0, number, _met(number == 0)
        if rules.minimum is not None or rules.hide_unreliable:
            number = int(np.isnan(form.values).sum())
            yield f"{table.name}: figures that are not printed", 0, number, _met(number == 0)


def _verdict_rows(material: ReportMaterial) -> Iterator[tuple[str, object, object, str]]:
    """Yields the verdict's limits by statistic: coverage, sizes of errors, standard errors, and counts that are fixed."""
    for name, verdict in material.verdicts.items():
        if isinstance(verdict, Unpublished):
            yield f"{name}: figures that are not withheld", 1, 0, "failed"
        if not isinstance(verdict, Verdict):
            continue
        otherwise, fraction = "failed" if verdict.fails else "warning" if verdict.warns else "not clear", verdict.coverage
        answer = _met(True) if verdict.least_coverage >= NOMINAL else otherwise
        yield f"{name}: direct estimates within 90 % intervals", NOMINAL, fraction, answer
        for what, limit, size in (
            ("median", FAR_MEDIAN, verdict.errors.median),
            ("largest", FAR_LARGEST, verdict.errors.largest),
        ):
            if not np.isnan(size):
                yield f"{name}: {what} error, in direct SE", limit, size, _met(size <= limit)
        if material.job.survey.clustered and not np.isnan(verdict.width):
            small = "failed" if verdict.small else _met(True) if verdict.width >= SMALL_RATIO else "not clear"
            yield f"{name}: ratio of published to direct standard errors, median", SMALL_RATIO, verdict.width, small
        if verdict.fixed is not None and not np.isnan(verdict.fixed.error):
            measure = f"{name}: counts that the design fixes, largest relative error or half width"
            yield measure, FAR_RELATIVE, max(verdict.fixed.error, verdict.fixed.reach), _met(not verdict.fixed.inaccurate)
        if verdict.grand is not None:
            size, answer = abs(verdict.grand.in_published), _met(True) if verdict.grand.covers else otherwise
            yield f"{name}: all records, in published SE (limit: their 90 % interval)", verdict.grand.reach, size, answer


ANSWERS = ("failed", "warning", "not clear", "met")
"""Answers to a threshold, as they are sorted."""


def _met(is_met: object) -> str:
    return "met" if is_met else "failed"


def _clipping(material: ReportMaterial) -> Iterator[Grid]:
    """Shows the share of records that each rule clips, and the crosstab rows where most records are clipped."""
    crosstab, job = material.crosstab, material.job
    counts = clipped(material.space, job, crosstab)
    rows = []
    if material.bounds is not None:
        down = material.bounds.weighted_down
        rows.append([cell("privacy weight below 1"), cell(down), cell(down / material.bounds.rows), cell("")])
    for rule, records in counts.items():
        share = np.asarray(records / np.maximum(crosstab.count, 1))
        top = int(np.argmax(share))
        where = f"{row_name(crosstab, top)}: {share[top]:.2f} of {int(crosstab.count[top]):,}" if records.any() else ""
        rows.append(
            [cell(rule), cell(int(records.sum())), cell(float(records.sum() / max(crosstab.count.sum(), 1))), cell(where)]
        )
    if rows:
        yield Grid("Records clipped or weighted down", ["rule", "records", "share", "largest share of a combination"], rows)


def _singletons(crosstab: Crosstab) -> Grid:
    """Lists combinations of public columns with a single record.
    Anyone who knows these columns knows whose record it is.
    """
    single = np.flatnonzero(crosstab.count == 1)
    sentences = [
        f"{len(single):,} of {int((crosstab.count > 0).sum()):,} combinations of public columns have a single record."
    ]
    sentences += [f"The first {NAMED} are named."] if len(single) > NAMED else []
    rows = [[cell(row_name(crosstab, int(row)))] for row in single[:NAMED]]
    return Grid("Combinations with a single record", ["combination"], rows, notes=sentences)


def row_name(crosstab: Crosstab, row: int) -> str:
    return ", ".join(str(crosstab.levels[name][codes[row]]) for name, codes in crosstab.codes.items()) or "all"


BEFORE, AFTER = "before: unweighted", "after: weighted"


def bounds_section(material: ReportMaterial, bounds: RecordBounds) -> Section:
    """Shows record bounds before and after weighting, and privacy weights against outcomes and sampling weights."""
    section = Section("bounds", "Record bounds and privacy weights")
    curves, rows = {}, []
    for name, text in zip(BOUNDS, (BEFORE, AFTER), strict=True):
        values = bounds.sample[name].dropna().to_numpy(dtype=float)
        if len(values):
            curves[text] = values
            inner = [float(quantile) for quantile in np.quantile(values, [0.5, 0.9, 0.99])]
            rows.append([cell(text), *map(cell, inner), cell(float(bounds.largest[name]))])
    notes = [f"Target of the largest: {material.release.target:.4g}."] if np.isfinite(material.release.target) else []
    if len(bounds.sample) < bounds.rows:
        spread = f"Quantiles and curves use {len(bounds.sample):,} of {bounds.rows:,} records, evenly spread."
        notes += [spread, "The largest bound is that of all records."]
    section.grids.append(Grid("Record bounds", ["fit", "median", "90 %", "99 %", "largest"], rows, notes=notes))
    drawing = steps("Distribution functions of record bounds", axis("record bound", *curves.values()), _unweighted(curves))
    section.figures.append(ReportFigure("Record bounds before and after, drawn", drawing))
    records, weight = material.records, bounds.weight
    alpha = axis("privacy weight α", np.array([0.0, 1.0]))
    against = [*zip(material.job.outcomes, records.outcomes, strict=True)]
    against += [(material.job.survey.weight, records.weight)] if material.job.survey.weight else []
    for name, values in against:
        section.figures.append(
            ReportFigure(
                f"Privacy weight against {name}",
                scatter(
                    f"Privacy weight of records against {name}", axis(name, values), alpha, {"records": (values, weight)}
                ),
            )
        )
    return section


def _unweighted(curves: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats | None]]:
    return {name: (values, None) for name, values in curves.items()}


def distributions_section(material: ReportMaterial) -> Section:
    """Shows distribution functions of real and synthetic records, and their outcomes against weights, for the first set."""
    section = Section("distributions", "Records and synthetic records", ["Synthetic records are those of the first set."])
    job, records = material.job, material.records
    read = evenly_spread(material.space.newest / "synthetic" / "set-1.parquet", job.components)
    weight = read[job.survey.weight].to_numpy() if job.survey.weight else None
    weights = records.weight if job.survey.weight else None
    for name, values in zip(job.outcomes, records.outcomes, strict=True):
        copy = read[name].to_numpy().astype(float)
        across = axis(name, values, copy)
        curves = {"records": (values, weights), "synthetic records": (copy, weight)}
        section.figures.append(
            ReportFigure(f"{name}: distribution functions", steps(f"Distribution functions of {name}", across, curves))
        )
        if weight is not None and weights is not None:
            points = {"records (y, w)": (values, weights), "synthetic records (y*, w*)": (copy, weight)}
            drawing = scatter(f"{name} against weights", across, axis("weight", weights, weight), points)
            section.figures.append(ReportFigure(f"{name} against {job.survey.weight}", drawing))
    return section


LEAST_AXIS, TIMES = 3.0, 1.5
"""The error axis ends at TIMES the release's largest error, but not below LEAST_AXIS standard errors."""
TALLEST = 1_000
"""Largest height of a drawing that fits on a printed page, in units of the drawing."""


def errors_section(material: ReportMaterial, number: int, name: str, rows: pd.DataFrame) -> Section:
    """Makes a table's section: errors by statistic beside comparators with their guarantees, then errors cell by cell."""
    section = Section(f"errors-{number}", f"Errors: {name}", [SCALE])
    guarantee = str(material.statement["guarantee"])
    for statistic, group in by_statistic(rows):
        section.grids.append(
            grid(
                f"{statistic}: errors over {len(group)} cell{'s' * (len(group) != 1)}",
                errors(group, guarantee),
                1,
                missing(group),
            )
        )
        section.grids.append(_by_cell(statistic, group, guarantee))
        section.figures += _cells_drawn(statistic, group)
    section.sentences += notes(rows)
    return section


def _by_cell(statistic: str, rows: pd.DataFrame, guarantee: str) -> Grid:
    """Errors in direct standard errors, the largest first. Column heads name each estimate's guarantee."""
    estimates = list(estimates_of(rows))
    classes = {ROWS.get(estimate, estimate): class_of(rows, estimate, guarantee) for estimate in estimates}
    heads = [f"{name} ({of_estimate})" if of_estimate else name for name, of_estimate in classes.items()]
    order = rows.sort_values("synthetic_error_in_se", ascending=False, kind="stable").head(MOST_ROWS)
    by = labels_of(rows)
    cells = [
        [
            cell(place(row, by)),
            cell(int(row["records"])),
            *(error(float(row[f"{estimate}_error_in_se"])) for estimate in estimates),
        ]
        for _, row in order.iterrows()
    ]
    more = [f"The {MOST_ROWS} furthest of {len(rows):,} cells."] if len(rows) > MOST_ROWS else []
    return Grid(f"{statistic}: errors by cell, in SE", ["cell", "records", *heads], cells, notes=more)


def _cells_drawn(statistic: str, rows: pd.DataFrame) -> Iterator[ReportFigure]:
    """Draws the errors of cells and margins as dots, if they fit on the page."""
    estimates = [estimate for estimate in estimates_of(rows) if rows[f"{estimate}_error_in_se"].notna().any()]
    if len(rows) > MOST_PLOTTED or not estimates:
        return
    sizes = rows[[f"{estimate}_error_in_se" for estimate in estimates]].to_numpy(dtype=float)
    of_release = sizes[:, 0] if estimates[0].startswith("synthetic") else np.full(len(rows), np.nan)
    most = max(LEAST_AXIS, TIMES * float(np.nanmax(of_release)) if np.isfinite(of_release).any() else 0.0)
    beyond = int((sizes > most).sum())
    sizes, none, by = np.where(sizes > most, np.nan, sizes), np.full_like(sizes, np.nan), labels_of(rows)
    labels = [place(row, by) for _, row in rows.iterrows()]
    note = f" ({beyond} beyond {most:.3g} SE left out)" if beyond else ""
    size = max(1, TALLEST // height_of(len(estimates)))
    for first in range(0, len(rows), size):
        chunk = slice(first, first + size)
        part = f", cells {first + 1} to {min(first + size, len(rows))}" if len(rows) > size else ""
        name, legend = f"{statistic}: errors by cell{part}", [ROWS.get(estimate, estimate) for estimate in estimates]
        drawing = chart(name, labels[chunk], legend, sizes[chunk], none[chunk], none[chunk], 2)
        yield ReportFigure(f"{statistic}: errors by cell, in SE, drawn{part}{note}", drawing)


def sections(material: ReportMaterial) -> Iterator[Section]:
    """Yields all sections in the order of the page, the verdict first."""
    yield verdict_section(material)
    if material.bounds is not None:
        yield bounds_section(material, material.bounds)
    for number, (name, rows) in enumerate(material.tables.items(), start=1):
        yield errors_section(material, number, name, rows)
    if (material.space.newest / "synthetic" / "set-1.parquet").is_file():
        yield distributions_section(material)
    yield diagnostics_section(material)
    yield timings_section(material)


def diagnostics_section(material: ReportMaterial) -> Section:
    """Shows the diagnostics of every stratum's fit."""
    section, rows = Section("diagnostics", "Diagnostics"), material.strata
    if not len(rows):
        section.sentences.append("The mechanism does not fit strata one by one, so there are no diagnostics.")
        return section
    rows = rows.assign(
        **{
            name: rows[name].map(_pair)
            for name in rows.columns
            if rows[name].map(lambda v: isinstance(v, list | np.ndarray)).any()
        }
    )
    by = "epsilon_local" if "epsilon_local" in rows and rows["epsilon_local"].notna().any() else "rows"
    section.grids.append(grid("Strata", rows.dropna(axis=1, how="all").sort_values(by, ascending=False, kind="stable")))
    return section


def _pair(value: object) -> str:
    return "" if value is None else ", ".join(f"{float(number):.4g}" for number in np.atleast_1d(np.asarray(value)))


def timings_section(material: ReportMaterial) -> Section:
    """Shows the seconds that each stage took, from the status of a finished run."""
    section, path = Section("timings", "Timings"), material.space.status
    log = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if log.get("state") != "finished":
        section.sentences.append(
            "Timings are known once a run has ended. To add them to this page: `dpdist report DIR --open`."
        )
        return section
    rows = [[cell(name), cell(entry["done"]), cell(float(entry["seconds"]))] for name, entry in log["stages"].items()]
    section.grids.append(Grid("Stages of the run", ["stage", "units", "seconds"], rows))
    return section


@dataclass(frozen=True, eq=False)
class EvaluatedTables(Mapping[str, pd.DataFrame]):
    """Evaluations of these published tables by name. Each is read when it is asked for: all of a large release are more
    than memory should hold.
    """

    evaluations: Evaluations
    published: Mapping[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]
    """Whether each row of an evaluation is published, (row,), by table."""

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self.evaluations[name][self.published[name]].reset_index(drop=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self.published)

    def __len__(self) -> int:
        return len(self.published)


class JudgedTables(NamedTuple):
    """What evaluations show: `published` of `EvaluatedTables`; tables or statistics that were published later and so have
    no evaluation; and the verdict on each statistic of each table, by name.
    """

    published: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]
    unjudged: list[str]
    verdicts: Judgements


_last_judged = Recent[JudgedTables]()
"""Of the last release and its evaluation."""


def _judged(evaluations: Evaluations, release: ReleasedObject) -> JudgedTables:
    shown, unjudged, number = dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]](), list[str](), 0
    for table in sorted(release.job.tables, key=lambda listed: listed.name):
        columns = pq.read_schema(evaluations.path(table.name)).names if table.name in evaluations else ["statistic"]
        if table.name not in evaluations or columns[: columns.index("statistic")] != list(table.by):
            unjudged.append(table.name)
            continue
        rows = pd.read_parquet(evaluations.path(table.name), columns=[*table.by, "statistic", "variable"])
        shown[table.name], missing = _published(table, table.labels(release.crosstab), rows)
        unjudged += [f"{table.name}, {text}" for text in missing]
        number += number_of_statistics(rows[shown[table.name]])
    judged = verdicts(EvaluatedTables(evaluations, shown), release.job.survey.clustered, number)
    return JudgedTables(shown, unjudged, judged)


def _published(
    table: Table, labels: Sequence[tuple[str, ...]], rows: pd.DataFrame
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], list[str]]:
    """Whether each row's figure is published, (row,); and published parts without an evaluation."""
    index = pd.MultiIndex.from_tuples(labels) if table.by else None
    cell = np.zeros(len(rows), dtype=np.int64)
    if index is not None:
        cell = np.asarray(index.get_indexer(pd.MultiIndex.from_frame(rows[list(table.by)].astype(str))), dtype=np.int64)
    rows_of = {statistic.text: rows_with(rows, statistic) for statistic in table.statistics}
    missing = [text for text, selection in rows_of.items() if not selection.any()]
    if len(np.unique(cell[cell >= 0])) < len(labels):
        missing.append("margins")
    return np.logical_or.reduce([*rows_of.values()]) & (cell >= 0), missing


MARKING = "CONFIDENTIAL: for the custodian alone. This page depends on the records, and nothing on it may be published."
UNJUDGED = (
    "Figures that are not judged were added when the release was published again. They have no direct estimates, because "
    "only `dpdist run` reads the records."
)


def write_report(material: ReportMaterial) -> Path:
    """Writes the page, which only its owner can read. The same workspace always gives the same bytes."""
    space = material.space
    parts, verdict = list(sections(material)), overall_verdict(material)
    looked = [] if "acceptance" in material.statement else [LOOKED]
    parts[0].sentences[:0] = [*verdict.sentences, *looked]
    html = _render(material, parts, verdict)
    while (excess := len(html.encode()) - HEAVIEST) >= 0 and _lighter(parts, excess):
        html = _render(material, parts, verdict)
    with private():
        write_text(space.report, html)
    return space.report


def write_report_again(space: Workspace, listener: Listener) -> None:
    """Writes an existing page again, from what is published now.

    The release does not depend on the page, so a failure gives only a note. The error's message may quote a record, so
    only confidential/log has it.
    """
    if is_url(space.place) or not space.report.exists() or not Evaluations(space):
        return
    with confidential_log(space) as log:
        try:
            write_report(material_of(space))
        except Exception as error:
            log.exception("report.html")
            remedy = f"`dpdist report {space.place} --open` writes it again"
            message = (
                f"confidential/report.html was not written ({type(error).__name__}). The release is complete. {remedy}"
            )
            listener(Event("note", "publish", note=message))


def material_of(space: Workspace) -> ReportMaterial:
    """Collects the input of the verdict and of the page.

    A page that follows a verdict on the same files uses it, and does not judge again. Raises `WorkspaceError` if the run
    has no evaluation, or if a file of the page is damaged.
    """
    space.refuse_damaged(["records", GATHERED], MADE_AGAIN)
    release = read_released(space.newest / "released")
    statement = json.loads((space.newest / "statement.json").read_text(encoding="utf-8"))
    evaluations = Evaluations(space)
    files = [(name, sha256(evaluations.path(name))) for name in evaluations]
    of_tables = [evaluations.path(table.name) for table in release.job.tables if table.name in evaluations]
    if any("synthetic_noise_se" not in pq.read_schema(path).names for path in of_tables):
        raise WorkspaceError(space.place, "an older version made its evaluation, without errors by noise", MADE_AGAIN)
    judged = _last_judged(digest((release_key(release), files)), lambda: _judged(evaluations, release))
    if not judged.published:
        raise WorkspaceError(space.place, NO_EVALUATION, MADE_AGAIN)
    tables = EvaluatedTables(evaluations, judged.published)
    return ReportMaterial(space, release, tables, statement, judged.unjudged, judged.verdicts)


def _lighter(parts: list[Section], excess: int) -> bool:
    """Removes the last figures, so many that their bytes exceed the excess, and says so; False if there is none."""
    removed = 0
    for section in reversed(parts):
        while section.figures and removed <= excess:
            figure = section.figures.pop()
            removed += len(str(figure.svg).encode())
            section.sentences.append(f"Left out, because the page would be too large: {figure.caption}.")
    return removed > 0


def _render(material: ReportMaterial, parts: list[Section], verdict: Overall) -> str:
    job, template = (
        material.job,
        environment("dpdist.quality", "dpdist.publish.writers").get_template("report.html"),
    )
    return template.render(
        marking=MARKING,
        title=job.presentation.title or f"{job.dataset}, {job.period}",
        facts=list(_facts(material)),
        overall=verdict,
        sections=parts,
    )


def overall_verdict(material: ReportMaterial) -> Overall:
    """Returns the verdict on the intervals. If these pass but limits of the job do not, the limits come first.

    It names the parts that a later `publish` added, which are not judged. Figures that rules of quality flag or leave
    out in print are named after the verdict's sentences.
    """
    verdict = overall(material.verdicts)
    failed = [row[0] for row in limits_of_the_job(material) if row[-1] == "failed"]
    if not verdict.fails and failed:
        verdict = verdict._replace(head=f"limits of the job exceeded: {'; '.join(failed)}; {verdict.head}", fails=True)
    if flagged := [f"{row[0]}: {row[2]}" for row in rules_of_quality(material) if row[-1] == "failed"]:
        verdict = verdict._replace(sentences=[*verdict.sentences, f"By the job's rules of quality, {'; '.join(flagged)}."])
    if design := design_in_words(material.job, material.release.design_effects):
        direct = "Direct standard errors are those of the sample's design."
        verdict = verdict._replace(sentences=[*verdict.sentences, " ".join([direct, *design])])
    if material.unjudged:
        head = f"{verdict.head}; not judged: {'; '.join(material.unjudged)}"
        verdict = verdict._replace(head=head, sentences=[*verdict.sentences, UNJUDGED])
    return verdict


def _facts(material: ReportMaterial) -> Iterator[tuple[str, str]]:
    statement = material.statement
    yield "Release", f"{statement['dataset']}, {statement['period']}"
    yield "Published as", f"manifest.json with SHA-256 {sha256(material.space.newest / MANIFEST)}"
    yield "Mechanism", material.job.mechanism.name
    yield (
        "Guarantee",
        f"{statement['guarantee']}, ε = {statement['epsilon']}" if statement["guarantee"] != "none" else "none",
    )
    strata = len(material.crosstab.stratum_labels)
    yield "Records", f"{int(material.crosstab.count.sum()):,} in {strata:,} {'stratum' if strata == 1 else 'strata'}"
