"""Attacks a finished release's synthetic records, with a hold-out file of people who were not in the confidential file.

Results are confidential.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.audit.attacks import Points, membership, nearest, scaled, shown_by, singling_out
from dpdist.audit.auditing import refuse_unfinished
from dpdist.audit.lower_bounds import keep_audit
from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Floats, Frame
from dpdist.core.this_process import single_threaded
from dpdist.job import Job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import Strict
from dpdist.privacy.queries import record_epsilon
from dpdist.runtime.fit_address import open_fit
from dpdist.storage.tables import each_block, read_table
from dpdist.storage.workspace import Workspace
from dpdist.survey.census import take_census
from dpdist.survey.placement import place
from dpdist.survey.source import Input, open_source

ATTACKS = {
    "attack": "`nearest record`, `singling out` or `membership`",
    "measure": "what is measured",
    "value": "the figure",
    "claimed": "of a lower bound on ε: the claim; else null",
    "exceeds": "whether the bound is above the claim",
}
"""Columns of audit-attacks.parquet."""


def attack(workspace: str | Path, holdout: Input, listener: Listener = silent) -> Confidential[pd.DataFrame]:
    """Runs attacks that try to tell from synthetic records who was in the confidential file.

    `holdout` is a file or table, with the job's columns, of people from the same population who were not in the file. A
    bound on ε holds only if chance alone decided who was in the file. The attacks spend no budget.

    Returns a row for each measure of an attack: attack, measure, value, claimed, exceeds. It is also stored in
    confidential/evaluation/. Raises `WorkspaceError` if there is no finished release or it has no synthetic records, and
    `DataError` if the hold-out file does not fit the job.
    """
    with Workspace.opened(workspace) as space, private(), single_threaded():
        refuse_unfinished(space, listener)
        return _attacked(space, holdout, listener)


def refuse_shown(workspace: str | Path, audited: Confidential[pd.DataFrame]) -> None:
    """Raises `WorkspaceError`, without figures, where an attack proved a larger loss than is claimed."""
    if audited.disclose_to_custodian()["exceeds"].any():
        where = "see confidential/evaluation/audit-attacks.parquet; publish nothing more of this mechanism"
        raise WorkspaceError(str(workspace), "synthetic records tell more than is claimed", where)


def _attacked(space: Workspace, holdout: Input, listener: Listener) -> Confidential[pd.DataFrame]:
    strata = read_table(space.confidential / "strata.parquet").to_pandas()
    fit = open_fit(space, space.read_key(), strata["fit"].iloc[0])
    job = fit.job
    paths = sorted((space.newest / "synthetic").glob("set-*.parquet"))
    if not paths:
        raise WorkspaceError(space.place, "the release has no synthetic records", "audit it by --draws, which needs none")
    sets = pd.concat([pq.read_table(path).to_pandas() for path in paths], ignore_index=True)
    names = [name for name in job.categories if name in sets]
    source = open_source(job.by_record, holdout)
    census = take_census(job.by_record, source)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        others = _points(job, census.frame, [place(job.by_record, source, census, Path(folder))], names)
    members = _points(job, fit.frame, list(each_block(space.records)), names)
    made = _synthetic(job, sets, names)
    reference = np.concatenate([members.values, others.values])
    files = [Points(points.codes, scaled(points.values, reference)) for points in (made, members, others)]
    rows = list[tuple[str, str, float, float, bool]]()
    with stage(listener, "audit", 3) as tick:
        for one in (_nearest, _singled, _membership):
            rows += one(job, files, Key.from_os().generator("attack"))
            tick(1)
    results = Confidential(pd.DataFrame(rows, columns=list(ATTACKS)))
    keep_audit(space, "attacks", results)
    return results


Rows = list[tuple[str, str, float, float, bool]]


def _nearest(job: Job, files: list[Points], rng: np.random.Generator) -> Rows:
    result = nearest(files[0], files[1], files[2], rng)
    names = ("share_nearer_to_members", "chance", "distance_to_members", "distance_to_others")
    return [("nearest record", name, value, np.nan, False) for name, value in zip(names, result, strict=True)]


def _singled(job: Job, files: list[Points], rng: np.random.Generator) -> Rows:
    result = singling_out(files[0], files[1], files[2], rng)
    names = ("predicates", "single_out_members", "single_out_others", "excess")
    return [("singling out", name, float(value), np.nan, False) for name, value in zip(names, result, strict=True)]


def _membership(job: Job, files: list[Points], rng: np.random.Generator) -> Rows:
    """Runs a membership attack on pairs of records, of which exactly one was in the file.

    The result is compared with the claimed ε of an exchange of one record. It is not compared if the claim has a δ too.
    """
    result, total = membership(files[0], files[1], files[2], rng), mechanism_of(job).promise(job).total
    claimed = float(record_epsilon(job, total.substitution_epsilon)) if isinstance(total, Strict) else np.nan
    rows: Rows = [("membership", name, float(result[k]), np.nan, False) for k, name in enumerate(("pairs", "right"))]
    rows.append(("membership", "most_that_can_be_shown", shown_by(result.answered, result.answered), np.nan, False))
    return [*rows, ("membership", "at_least", result.at_least, claimed, result.at_least > claimed)]


def _points(job: Job, frame: Frame, blocks: list[Records], names: list[str]) -> Points:
    """Codes and numbers of a file's records. The numbers are outcomes, and the weight if there is one."""
    codes = [np.column_stack([np.empty((len(b), 0)), *(frame.codes[name][b.frame] for name in names)]) for b in blocks]
    return Points(np.concatenate(codes).astype(np.int64), np.concatenate([_numbers(job, b) for b in blocks]))


def _numbers(job: Job, records: Records) -> Floats:
    weight = [records.weight] if job.survey.weight is not None else []
    return np.column_stack([records.outcomes, *weight])


def _synthetic(job: Job, sets: pd.DataFrame, names: list[str]) -> Points:
    levels = {name: [str(level) for level in job.columns[name].levels or ()] for name in names}
    codes = [pd.Categorical(sets[name].astype(str), categories=levels[name]).codes for name in names]
    numbers = [*job.outcomes, *([job.survey.weight] if job.survey.weight is not None else [])]
    values = np.column_stack([sets[name].to_numpy(dtype=np.float64) for name in numbers])
    return Points(np.column_stack([np.empty((len(sets), 0)), *codes]).astype(np.int64), values)
