"""A release as text: what a plan promises, what a run left, and (for the custodian) how good it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpdist.confidential import Confidential
from dpdist.errors import WorkspaceError
from dpdist.job import budget_text
from dpdist.models.merging import fewest
from dpdist.planning import Plan
from dpdist.privacy.guarantees import large_delta
from dpdist.privacy.reference_cells import noise_scales
from dpdist.publish.folder import recover
from dpdist.runtime.blocks import log_lik_bytes
from dpdist.storage.bucket import MANIFEST
from dpdist.storage.workspace import Workspace
from dpdist.survey.earlier_release import ReferenceRelease
from dpdist.survey.reference import ReferenceFile

ROWS = 40
ABREAST = 2
"""Statistics, with their standard errors, that a line of 80 columns holds beside a cell's levels."""


def plan_text(plan: Plan) -> RenderableType:
    """What a run would do and cost."""
    job, frame, layout = plan.job, plan.frame, plan.layout
    count = frame.stratum_count
    needed, given = layout.largest_task_bytes / 2**20, int(job.runtime.memory_per_worker) / 2**20
    store = f"{log_lik_bytes(frame, layout.draws) / 2**20:,.0f} MiB before compression"
    facts = {
        "input": plan.source.name,
        "records": f"{int(frame.count.sum()):,} after universe and rules",
        **({"reference": _reference(plan, plan.reference)} if plan.reference is not None else {}),
        "strata": f"{len(count):,} (from {int(count.min()):,} to {int(count.max()):,} records)",
        "blocks": f"{len(layout.blocks):,}",
        "memory per task": f"{needed:,.0f} MiB at most, of {given:,.0f} MiB a worker",
        "log-likelihood store": store if layout.log_lik else "not kept",
        "guarantee": plan.promise.total.name,
        "cost": f"ε = {job.model_dump(mode='json')['budget']['epsilon']} for the release, {job.budget.adjacency}",
        "composition": plan.promise.composition,
    }
    if job.budget.delta is not None:
        told = f"at δ = {budget_text(job.budget.delta)}: ρ = {budget_text(job.budget.concentrated)}, {job.budget.adjacency}"
        facts["cost"] = f"ε = {budget_text(job.budget.epsilon)} for the release, {told}"
    if note := large_delta(job, int(count.sum())):
        facts["caution"] = note
    if plan.promise.total.name == "none":
        facts["cost"] = "nothing is promised: for comparison only"
    return facts_text(facts)


def _reference(plan: Plan, found: ReferenceFile | ReferenceRelease) -> str:
    """Its size, and for tables of its cells how many of them are too small to have noise of their own."""
    job, said = plan.job, f"{found.records:,} records"
    if not isinstance(found, ReferenceFile) or job.mechanism.name != "reference_tables":
        return said
    cell = plan.frame.group(job.cell_columns)[0]
    records = np.bincount(cell, weights=found.counts(plan.frame)).astype(int)
    few = fewest(noise_scales(job.epsilon_of_tables, job.budget.adjacency, len(job.model.outcomes)))
    said += f", {records.min():,} to {records.max():,} in each of {len(records):,} cells"
    small = int((records < few).sum())
    return said + (f"; {small:,} of fewer than {few:,.0f}, which noise would drown, have sums together" if small else "")


def run_text(workspace: str | Path) -> RenderableType:
    """The end of a run: what may be published and what must not."""
    with Workspace.opened(workspace, soon=True) as space:
        said = _statement(space)
        return facts_text(
            {
                "public": space.shown(space.public),
                "confidential": f"{space.shown(space.confidential)} (guard it)",
                "guarantee": _guarantee(said),
                "tables": ", ".join(sorted(p.stem for p in (space.public / "tables").glob("*.csv"))),
                "synthetic sets": str(said["synthetic_sets"]),
            }
        )


def report_text(workspace: str | Path, confidential: bool) -> RenderableType:
    """Guarantee and tables of a release; with `confidential`, errors against direct estimates, comparators and truth."""
    with Workspace.opened(workspace, soon=True) as space:
        return _report_text(space, confidential)


def _report_text(space: Workspace, confidential: bool) -> RenderableType:
    said = _statement(space)
    parts: list[RenderableType] = [
        Text(f"{said['dataset']} {said['period']}", style="bold"),
        facts_text({"guarantee": _guarantee(said), "composition": said["composition"]}),
    ]
    for path in sorted((space.public / "tables").glob("*.parquet")):
        parts += [_table(path.stem, rows) for rows in _wide(pd.read_parquet(path))]
    parts += [Text(line, style="red") for line in _not_identified(said)]
    if confidential:
        parts.append(
            Text("\nCONFIDENTIAL: errors in direct standard errors (median and largest over cells)", style="bold red")
        )
        space.store.take_folder(space.evaluation)
        for path in sorted(space.evaluation.glob("*.parquet")):
            rows = pd.read_parquet(path)
            columns = [c for c in map(str, rows.columns) if c.endswith("_error_in_se")]
            summary = rows.groupby("statistic")[columns].agg(["median", "max"]).T.reset_index()
            summary.columns = pd.Index(["estimate", "over cells", *summary.columns[2:]])
            summary["estimate"] = summary["estimate"].str.removesuffix("_error_in_se")
            parts += [_table(path.stem, summary), *(Text(note, style="dim") for note in _notes(rows))]
    return Group(*parts)


def report(workspace: str | Path, confidential: bool = False) -> str:
    """`report_text` as plain text, 100 columns wide."""
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(report_text(workspace, confidential))
    return captured.get()


def _notes(rows: pd.DataFrame) -> list[str]:
    """What the evaluation says of comparators: their guarantee, and of how many figures why they are missing."""
    found = []
    for column in [name for name in map(str, rows.columns) if name.endswith("_note")]:
        how = column.removesuffix("_note")
        for note, number in rows[column].value_counts().items():
            found.append(f"{how}: {note}" + (f" ({number} of {len(rows)} figures)" if number < len(rows) else ""))
    return found


def audit_text(found: Confidential[pd.DataFrame]) -> RenderableType:
    """What an audit found, for the custodian's eyes."""
    said = "exceeded: records whose exact loss, with all weights computed anew, is over 2Δ; largest_share: of 2Δ, at most"
    return Group(_table("Leave-one-out audit (confidential)", found.disclose_to_custodian()), Text(said, style="dim"))


def _statement(space: Workspace) -> dict[str, Any]:
    recover(space.public)
    if space.store.take(space.public / MANIFEST):
        space.store.take_folder(space.public)
    path = space.public / "statement.json"
    if not path.exists():
        raise WorkspaceError(space.place, "no public folder", "run `dpdist run` on this workspace first")
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return said


def _not_identified(said: dict[str, Any]) -> list[str]:
    """What a release says of cells that its sums do not identify."""
    found = said.get("not_identified", {})
    if not found:
        return []
    lines = [f"not identified, {what}: {', '.join(cells)}" for what, cells in found.items() if what != "in_words"]
    return [*lines, f"({found['in_words']})"]


def _guarantee(said: dict[str, Any]) -> str:
    if said["guarantee"] == "none":
        return "none: for comparison only, not for publication"
    cost = f"ε = {said['epsilon']} ({said['epsilon_per_set']} a set)"
    if "rho" in said:
        cost = f"ρ = {said['rho']}, ε = {said['epsilon']} at δ = {said['delta']}"
    text = f"{said['guarantee']}, {cost}, {said['adjacency']}"
    return (
        text if said["adjacency"] == "substitution" else f"{text}; against substitution ε = {said['substitution_epsilon']}"
    )


def facts_text(facts: dict[str, str]) -> Table:
    """Facts under their headings, a line each."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def _table(title: str, rows: pd.DataFrame) -> RenderableType:
    shown = Table(title=Text(title), title_justify="left")
    for column, kind in zip(rows.columns, rows.dtypes, strict=True):
        figure = pd.api.types.is_float_dtype(kind)
        shown.add_column(Text(str(column)), justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in rows.head(ROWS).itertuples(index=False):
        shown.add_row(*[Text(_text(value)) for value in row])
    if len(rows) <= ROWS:
        return shown
    return Group(shown, Text(f"… {len(rows) - ROWS:,} more rows in the public folder", style="dim"))


def _wide(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """One row a cell: the default estimator of every statistic with its standard error, ABREAST statistics at a time."""
    default = "parameters" if (rows["estimator"] == "parameters").any() else "records"
    mine = rows[rows["estimator"] == default]
    by = list(rows.columns[: rows.columns.get_loc("statistic")])
    parts = []
    for (statistic, variable), group in mine.groupby(["statistic", "variable"], sort=False, dropna=False):
        name = statistic if variable is None or variable != variable else f"{statistic} of {variable}"
        part = group[[*by, "estimate", "standard_error"]].reset_index(drop=True)
        parts.append(part.set_axis([*by, name, "±"], axis=1))
    groups = [parts[k : k + ABREAST] for k in range(0, len(parts), ABREAST)]
    return [pd.concat([first, *(part.drop(columns=by) for part in more)], axis=1) for first, *more in groups]


def _text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.4g}" if abs(value) < 1e3 else f"{value:,.0f}"
