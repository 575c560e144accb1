"""The command `dpdist report`: formats a release as text for the terminal, with guarantee, tables and warnings."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from rich.console import Group, RenderableType
from rich.text import Text

from dpdist.cli.console import Escaping
from dpdist.cli.table_text import (
    PUBLISHED_TOO,
    ROWS,
    facts_text,
    least_width,
    paragraphs,
    promise,
    stated_cautions,
    table_text,
)
from dpdist.core.files import recover
from dpdist.core.public_files import HELD, MANIFEST, unfit
from dpdist.core.records import Crosstab, cell_rows
from dpdist.estimation.crosstab_table import crosstab_from_table, read_job
from dpdist.estimation.donors import DONORS as DONORS_FILE
from dpdist.job import Presentation
from dpdist.opening.verifying import refuse_unverified
from dpdist.publish.printed_tables import decimals_of, labels_of, unit_of
from dpdist.storage.workspace import Workspace

ABREAST = 2
"""Number of statistics (each with its standard error) in one row of a table, if a line of WIDTH characters is enough."""
WIDTH = 80
LEGEND = "SE is one standard error. 90 % intervals are `lower` and `upper` in the files of public/tables."
FEW = {0: "no record", 1: "one record"}
APPROVE = "dpdist approve {} {}--reason '…'"
NOT_GIVEN = "not given"
NOT_IDENTIFIED = "not identified"
LISTED = {
    "not_identified": "no estimate",
    "shrunk": "mostly the figure for all records",
    "beyond_sampling": "errors above the sampling error",
}
"""Entries of the statement that name cells, with a text on these cells for the end of a run."""


def _covered(statement: Mapping[str, Any]) -> dict[str, str]:
    """States between which files the guarantee holds, what it does not protect, and who is trusted; as in the statement."""
    lines = {
        "neighbours": statement.get("adjacency_in_words"),
        "not covered": ", ".join(statement.get("not_protected", ())),
    }
    lines |= {"small counts": statement.get("public_frame", {}).get("in_words")}
    lines |= {"unit": statement.get("privacy_unit_in_words"), "trusted": statement.get("trust_model")}
    return {name: text for name, text in lines.items() if text}


def released_line(workspace: str | Path, *, again: bool = False) -> str:
    """One line on what a run has released, or holds, or had released before if it ran `again`."""
    with Workspace.opened(workspace, reading=True) as space:
        statement, tables = _statement(space), len(list((space.newest / "tables").glob("*.parquet")))
        sets, guarantee = int(statement["synthetic_sets"]), promise(statement)["guarantee"]
        parts = [f"{tables:,} table{'s'[: tables != 1]}", f"{sets} set{'s'[: sets != 1]} of synthetic records"]
        contents = " and ".join(part for part, number in zip(parts, (tables, sets), strict=True) if number) or "nothing"
        verb = "Held" if _is_held(space) else "Already released" if again else "Released"
        return f"{verb} {statement['dataset']} {statement['period']}: {contents} ({guarantee})"


def run_text(workspace: str | Path, notes: Collection[str] = ()) -> RenderableType:
    """Formats the end of a run: which folder may be published, and which must not be. `notes` have been shown."""
    from dpdist.quality.cautions import advice

    with Workspace.opened(workspace, reading=True) as space:
        statement = _statement(space)
        job = read_job(space.newest, "released/job.json")
        advised, signed = advice(job, space.place), "" if job.held_on_a_verdict else "--key FILE "
        donated = not any(note.startswith(PUBLISHED_TOO) for note in notes)
        return facts_text(
            _stopped(statement)
            | _warned(space)
            | {
                space.newest.name: space.address(space.newest),
                "confidential": f"{space.address(space.confidential)} (guard it)",
                **promise(statement),
                **stated_cautions(statement, advised, notes),
                **_unidentified(statement),
                "tables": ", ".join(sorted(p.stem for p in (space.newest / "tables").glob("*.parquet"))),
                **({"published too": PUBLISHED_TOO} if donated and _donates(space) else {}),
                **(
                    {"publish it": f"`{APPROVE.format(space.place, signed)}`, if you decide to publish"}
                    if _is_held(space)
                    else {}
                ),
            }
        )


def _unidentified(statement: Mapping[str, Any]) -> dict[str, str]:
    """States for how many cells only limits are known, and for how many noise leaves little but the group's figure."""
    unidentified = dict[str, str]()
    for entry, label in LISTED.items():
        cells = {cell for names in statement.get(entry, {}).values() if not isinstance(names, str) for cell in names}
        number = "1 cell" if len(cells) == 1 else f"{len(cells):,} cells"
        unidentified |= {label: f"of {number}: `{entry}` in statement.json lists them"} if cells else {}
    return unidentified


def donates(workspace: str | Path) -> bool:
    """Whether a part of the reference's records is published with the newest release."""
    with Workspace.opened(workspace, reading=True) as space:
        return _donates(space)


def _donates(space: Workspace) -> bool:
    return space.store.download(space.newest / "released" / DONORS_FILE)


def report_text(workspace: str | Path, confidential: bool) -> RenderableType:
    """Formats guarantee and tables of a release.

    With `confidential`, it adds true errors beside those of other methods, and a verdict.
    """
    with Workspace.opened(workspace, reading=True) as space:
        return _report_text(space, confidential)


def _report_text(space: Workspace, confidential: bool) -> RenderableType:
    statement = _statement(space)
    verdict, evaluation = _evaluation(space, statement) if confidential else ([], [])
    parts: list[RenderableType] = [
        *verdict,
        Text(f"{statement['dataset']} {statement['period']}", style="bold"),
        facts_text(
            {
                **_stopped(statement),
                **_warned(space),
                **promise(statement),
                **_covered(statement),
                "composition": statement["composition"],
                **stated_cautions(statement),
            }
        ),
    ]
    sizes = crosstab_from_table(pq.read_table(space.newest / "released" / "frame.parquet"))
    unknown, text = False, read_job(space.newest, "released/job.json").presentation
    for path in sorted((space.newest / "tables").glob("*.parquet")):
        rows = pd.read_parquet(path)
        parts += [table_text(path.stem, *table) for table in _wide(rows, sizes, text)]
        unknown |= bool((rows["estimate"].notna() & rows["standard_error"].isna()).any())
    parts.append(paragraphs([LEGEND, *([f"{NOT_GIVEN}: {statement['standard_errors'][0]}"] if unknown else [])], "dim"))
    parts += [Text(line, style="red") for line in _listed(statement, "not_identified", "not identified")]
    parts += [Text(line, style="yellow") for line in _listed(statement, "drift", "drifted from the reference")]
    return Group(*parts, *evaluation)


def _evaluation(space: Workspace, statement: Mapping[str, Any]) -> tuple[list[RenderableType], list[RenderableType]]:
    from dpdist.cli.custodian import evaluation_text, verdict_head
    from dpdist.quality.report_page import material_of, overall_verdict

    material = material_of(space)
    judgement = overall_verdict(material)
    text = evaluation_text(material.tables, judgement, statement["guarantee"], "acceptance" in statement)
    return [verdict_head(judgement)], [text]


def report(workspace: str | Path, confidential: bool = False) -> str:
    """What `dpdist report` prints, as plain text, 100 columns wide.

    Parameters
    ----------
    workspace : the folder or URL of a finished run.
    confidential : True adds true errors beside those of other methods, for the custodian alone.

    Returns
    -------
    The guarantee and the tables.

    Raises
    ------
    WorkspaceError : there is no release, or it is not as it was released.

    Example
    -------
    >>> "salaries" in dpdist.report("doctorates-2017")
    True
    """
    console = Escaping(width=100, no_color=True)
    with console.capture() as captured:
        console.print(report_text(workspace, confidential))
    return captured.get()


def _statement(space: Workspace) -> dict[str, Any]:
    recover(space.public)
    recover(space.held_release)
    folder = space.newest
    if space.store.download(folder / MANIFEST):
        space.store.download_folder(folder)
    space.refuse_absent()
    refuse_unverified(folder)
    statement: dict[str, Any] = json.loads((folder / "statement.json").read_text(encoding="utf-8"))
    return statement


def _stopped(statement: Mapping[str, Any]) -> dict[str, str]:
    return {"do not publish": why} if (why := statement.get("do_not_publish")) else {}


def _warned(space: Workspace) -> dict[str, str]:
    return {"not for publication": why} if (why := unfit(space.newest)) is not None else {}


def _is_held(space: Workspace) -> bool:
    return unfit(space.newest) == HELD.splitlines()[0]


def _listed(statement: dict[str, Any], name: str, heading: str) -> list[str]:
    """Lists the statement's cells under `name`, by variable, and their meaning; empty if there are none."""
    if name not in statement:
        return []
    lines = [f"{heading}, {what}: {', '.join(cells)}" for what, cells in statement[name].items() if what != "in_words"]
    return [*lines, f"({statement[name]['in_words']})"]


def _wide(rows: pd.DataFrame, sizes: Crosstab, text: Presentation) -> list[tuple[pd.DataFrame, list[str]]]:
    """Makes tables with one row per cell, and at most ABREAST statistics with their standard errors in each table.

    Columns and levels have the labels that the job gives them. Large figures stand in millions or billions; those of a
    column end where its smallest error does. Estimates are those of the default estimator. Also returns, for each of the
    first cells, which are shown, why a figure may be missing.
    """
    modelled = (
        (rows["estimator"] == "parameters").groupby([rows["statistic"], rows["variable"].fillna("")]).transform("any")
    )
    mine = rows[(rows["estimator"] == "parameters") | ~modelled]
    by, parts = labels_of(rows), []
    heads = [text.label(column) for column in by]
    heads = heads if len({*heads}) == len(heads) else by
    for (statistic, variable), group in mine.groupby(["statistic", "variable"], sort=False, dropna=False):
        name = statistic if variable is None or variable != variable else f"{statistic} of {text.label(str(variable))}"
        part = group[[*by, "estimate", "standard_error"]].reset_index(drop=True)
        value, error = (part[name].to_numpy(dtype=float) for name in ("estimate", "standard_error"))
        decimals = decimals_of(value, error, whole=statistic == "count")
        unit = unit_of(value, decimals)
        part["estimate"], part["standard_error"] = (
            np.round(column / unit.size, decimals + unit.zeros) for column in (value, error)
        )
        parts.append(part.set_axis([*by, f"{name}{unit.suffix}", "SE"], axis=1))
    absent = np.any([part.iloc[:ROWS, -2:].isna().to_numpy() for part in parts], axis=0)  # (row, estimate and its error)
    labels, records = parts[0][by][:ROWS].to_numpy().tolist(), dict[tuple[str, ...], int]()
    if absent.any():
        records = {label: int(sizes.count[inside].sum()) for label, inside in cell_rows(sizes, by).items()}
    why = [
        FEW.get(records.get(tuple(label), -1), NOT_IDENTIFIED if unidentified else NOT_GIVEN)
        for label, (unidentified, _) in zip(labels, absent, strict=True)
    ]
    for column in by:
        named = {level: text.level(column, level) for level in parts[0][column].unique()}
        for part in parts:
            part[column] = part[column].map(named)
    parts = [part.set_axis([*heads, *part.columns[len(by) :]], axis=1) for part in parts]
    abreast = [_abreast(parts[k : k + ABREAST], heads) for k in range(0, len(parts), ABREAST)]
    if any(least_width(table) > WIDTH for table in abreast):
        abreast = parts
    return [(table, why) for table in abreast]


def _abreast(parts: list[pd.DataFrame], by: list[str]) -> pd.DataFrame:
    first, *more = parts
    return pd.concat([first, *(part.drop(columns=by) for part in more)], axis=1)
