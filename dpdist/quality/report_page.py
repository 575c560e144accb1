"""For `cli.report` and `release`: writes `confidential/report.html`, a page on a release's quality for the custodian."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private, sha256, write_text
from dpdist.core.progress import Event, Listener
from dpdist.core.public_files import MANIFEST
from dpdist.core.records import Cells, Floats
from dpdist.job import Table
from dpdist.opening.results import NO_EVALUATION, Evaluations
from dpdist.publish.accuracy import design_in_words
from dpdist.publish.noisy_figures import NoiseErrors
from dpdist.publish.printed_tables import rows_with
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.writers.page import environment
from dpdist.quality.report_material import ReportMaterial
from dpdist.quality.report_parts import Section
from dpdist.quality.report_sections import limits_of_the_job, rules_of_quality, sections
from dpdist.quality.summary import LOOKED, Overall, overall_of
from dpdist.storage.objects import is_url
from dpdist.storage.paths import GATHERED
from dpdist.storage.workspace import MADE_AGAIN, Workspace, confidential_log


class Judged(NamedTuple):
    """Evaluations by table, with a column `synthetic_noise_se`, NaN if this error is unknown.

    `unjudged` lists parts without an evaluation: tables or statistics published later.
    """

    tables: dict[str, pd.DataFrame]
    unjudged: list[str]


def judged(space: Workspace, release: ReleasedObject) -> Judged:
    """Reads the evaluations of the published tables.

    Raises `WorkspaceError` if no folder has an evaluation.
    """
    noise, evaluations = NoiseErrors.of(release), Evaluations(space)
    tables, unjudged = dict[str, pd.DataFrame](), list[str]()
    for table in sorted(release.job.tables, key=lambda listed: listed.name):
        rows = evaluations.get(table.name)
        if rows is None or list(rows.columns[: rows.columns.get_loc("statistic")]) != list(table.by):
            unjudged.append(table.name)
            continue
        cells = table.cells(release.crosstab)
        published, missing = _published(table, cells, rows)
        unjudged += [f"{table.name}, {text}" for text in missing]
        tables[table.name] = published.assign(synthetic_noise_se=_errors(noise, table, cells, published))
    if not tables:
        raise WorkspaceError(space.place, NO_EVALUATION, MADE_AGAIN)
    return Judged(tables, unjudged)


def _published(table: Table, cells: Cells, rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    labels = set(cells.labels)
    inside = [tuple(label) in labels for label in rows[list(table.by)].astype(str).to_numpy().tolist()]
    about = [variable if isinstance(variable, str) else None for variable in rows["variable"]]
    have = list(zip(rows["statistic"], about, strict=True))
    wanted = {(statistic.label, statistic.about): statistic.text for statistic in table.statistics}
    chosen_rows = rows[np.array(inside) & np.array([statistic in wanted for statistic in have])].reset_index(drop=True)
    missing = [text for statistic, text in wanted.items() if statistic not in have]
    if len({tuple(label) for label in rows[list(table.by)].astype(str).to_numpy().tolist()} & labels) < len(labels):
        missing.append("margins")
    return chosen_rows, missing


def _errors(noise: NoiseErrors, table: Table, cells: Cells, rows: pd.DataFrame) -> Floats:
    values = np.full(len(rows), np.nan)
    place = {label: number for number, label in enumerate(cells.labels)}
    positions = [place[tuple(label)] for label in rows[list(table.by)].astype(str).to_numpy().tolist()]
    for statistic in table.statistics:
        if statistic.plain:
            outcome = statistic.variable or noise.released.job.outcomes[0]
            mine = rows_with(rows, statistic)
            values[mine] = noise.errors(table, cells, outcome)[statistic.name][np.array(positions)[mine]]
    return values


MARKING = (
    "CONFIDENTIAL: for the custodian alone. What is on this page depends on the records, and none of it may be published."
)
UNJUDGED = (
    "What is not judged was added when the release was published again. No direct estimate of it was made: `dpdist run` "
    "alone sees the records."
)
HEAVIEST = 1_000_000
"""Largest size of the page in bytes. A larger page loses its figures, the last one first."""


def write_report(material: ReportMaterial) -> Path:
    """Writes the page, which only its owner can read. The same workspace always gives the same bytes."""
    space = material.space
    parts, verdict = list(sections(material)), overall_verdict(material)
    looked = [] if "acceptance" in material.statement else [LOOKED]
    parts[0].sentences[:0] = [*verdict.sentences, *looked]
    html = _rendered(material, parts, verdict)
    while (excess := len(html.encode()) - HEAVIEST) >= 0 and _lighter(parts, excess):
        html = _rendered(material, parts, verdict)
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
            message = f"confidential/report.html was not written ({type(error).__name__}). The release stands. {remedy}"
            listener(Event("note", "publish", note=message))


def material_of(space: Workspace) -> ReportMaterial:
    """Collects the input of the verdict and of the page.

    Raises `WorkspaceError` if the run has no evaluation, or if a file of the page is damaged.
    """
    space.refuse_damaged(["records", GATHERED], MADE_AGAIN)
    release = read_released(space.newest / "released")
    statement = json.loads((space.newest / "statement.json").read_text(encoding="utf-8"))
    judged_tables = judged(space, release)
    return ReportMaterial(space, release, judged_tables.tables, statement, judged_tables.unjudged)


def _lighter(parts: list[Section], excess: int) -> bool:
    """Removes the last figures, so many that their bytes exceed the excess, and says so; False if there is none."""
    removed = 0
    for section in reversed(parts):
        while section.figures and removed <= excess:
            figure = section.figures.pop()
            removed += len(str(figure.svg).encode())
            section.sentences.append(f"Left out, as the page would be too heavy: {figure.caption}.")
    return removed > 0


def _rendered(material: ReportMaterial, parts: list[Section], verdict: Overall) -> str:
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
    """Returns the verdict on the intervals, after the limits of the job that failed where intervals pass.

    It names the parts that a later `publish` added, which are not judged. Figures that rules of quality flag or leave
    out in print are named after the verdict's sentences.
    """
    verdict = overall_of(material.verdicts)
    failed = [row[0] for row in limits_of_the_job(material) if row[-1] == "failed"]
    if not verdict.fails and failed:
        verdict = verdict._replace(head=f"limits of the job failed: {'; '.join(failed)}; {verdict.head}", fails=True)
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
