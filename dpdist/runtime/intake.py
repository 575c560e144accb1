"""Stores the typed records, and those of the reference, in the order of the frame and in blocks, for tasks to read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dpdist.core.files import write_text
from dpdist.core.progress import Listener, stage
from dpdist.estimation.frame_table import frame_table
from dpdist.runtime.blocks import Blocks
from dpdist.runtime.plan import Plan
from dpdist.storage.identity import Identity
from dpdist.storage.paths import SCRATCH
from dpdist.storage.tables import gather, write_records, write_table
from dpdist.storage.workspace import Workspace
from dpdist.survey.batches import changed_while_read
from dpdist.survey.earlier_release import ReferenceRelease
from dpdist.survey.placement import let_go, place
from dpdist.survey.reference_file import copied_columns, place_reference


def store_records(space: Workspace, plan: Plan, identity: Identity, listener: Listener) -> None:
    """Stores typed records in frame order and in blocks. Tasks read only these, the job and the frame."""
    if space.finished("records"):
        return
    write_text(space.job, plan.job.model_dump_json(indent=2) + "\n", mode=0o600)
    write_table(space.frame, frame_table(plan.frame))
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store records", plan.source.rows) as tick,
    ):
        records = place(plan.job, plan.source, plan.census, Path(scratch), tick)
        if plan.source.fingerprint() != identity.input:
            raise changed_while_read(plan.source)
        write_records(space.records, records, plan.layout.part_edges, lambda: let_go(vars(records).values()))
    space.mark("records", [space.job, space.frame, space.records])


def store_reference(space: Workspace, plan: Plan, listener: Listener) -> None:
    """Stores the reference's records, in rows of the current frame and in blocks."""
    reference, job = plan.reference, plan.job
    if reference is None or space.finished("reference"):
        return
    if isinstance(reference, ReferenceRelease):
        records = reference.first_outcome()
        write_table(space.earlier_points, reference.table)
        write_records(space.reference, records, [0, len(records)])
        space.mark("reference", [space.reference, space.earlier_points])
        return
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store reference", reference.source.rows) as tick,
    ):
        records = place_reference(job, reference, Path(scratch), tick)
        if job.microdata.columns:
            gather(space.copied, copied_columns(job, reference.source))
        if reference.source.fingerprint() != reference.sha256:
            raise changed_while_read(reference.source)
        counts = np.bincount(plan.frame.stratum[records.frame], minlength=len(plan.frame.stratum_labels))
        write_records(space.reference, records, Blocks.of(counts, job.sampler.total).edges)
    space.mark("reference", [space.reference, *([space.copied] if job.microdata.columns else [])])
