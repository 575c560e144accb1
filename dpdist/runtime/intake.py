"""For `release`: stores what fits read: typed records, reference records, and the crosstab, noisy where protected."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dpdist.core.digests import digest
from dpdist.core.files import write_text
from dpdist.core.progress import Listener, stage
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.engine.protocol import Noise
from dpdist.estimation.crosstab_table import crosstab_table
from dpdist.estimation.donors import write_history
from dpdist.job import Job
from dpdist.planning.blocks import Blocks
from dpdist.planning.plan import Plan
from dpdist.privacy.noisy_counts import counts, layers_of, noise_name, noisy_crosstab
from dpdist.storage.noise_once import noise_once
from dpdist.storage.tables import gather, write_records, write_table
from dpdist.storage.workspace import NOISY_FRAME, SCRATCH, STORED_REFERENCE, Identity, Workspace
from dpdist.survey.census import changed_while_read, let_go, place
from dpdist.survey.reference_file import absent_records, copied_columns, in_rows, records_of
from dpdist.survey.released_reference import ReferenceRelease


def store_records(space: Workspace, plan: Plan, identity: Identity, listener: Listener) -> None:
    """Stores typed records in crosstab order and in blocks. Tasks read only these, the job and the crosstab."""
    if space.finished("records"):
        return
    write_text(space.job, plan.job.model_dump_json(indent=2) + "\n", mode=0o600)
    write_table(space.crosstab, crosstab_table(plan.crosstab))
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store records", plan.source.rows) as tick,
    ):
        records = place(plan.job, plan.source, plan.census, Path(scratch), tick)
        if plan.source.fingerprint() != identity.input:
            raise changed_while_read(plan.source)
        write_records(space.records, records, plan.layout.part_edges, lambda: let_go(vars(records).values()))
    space.mark("records", [space.job, space.crosstab, space.records])


def store_reference(space: Workspace, plan: Plan, listener: Listener) -> None:
    """Stores the reference's records, in rows of the current crosstab and in blocks."""
    reference, job = plan.reference, plan.job
    if reference is None or space.finished(STORED_REFERENCE):
        return
    if isinstance(reference, ReferenceRelease):
        records, further = reference.records_in_rows(), list[Path]()
        write_records(space.reference, records, [0, len(records)])
        if reference.absent is not None:
            write_table(space.absent, reference.absent.table(job.outcomes))
            write_history(space.history, reference.carried.history)
            further += [space.absent, space.history]
        space.mark(STORED_REFERENCE, [space.reference, *further])
        return
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store reference", reference.source.rows) as tick,
    ):
        placed = records_of(job, reference, Path(scratch), tick)
        records, further = in_rows(reference, placed), list[Path]()
        if job.mechanism.donates:
            write_table(space.absent, absent_records(job, reference, placed).table(job.outcomes))
            further.append(space.absent)
        if job.microdata.columns:
            gather(space.copied, copied_columns(job, reference.source))
            further.append(space.copied)
        if reference.source.fingerprint() != reference.sha256:
            raise changed_while_read(reference.source)
        counts = np.bincount(plan.crosstab.stratum[records.row], minlength=len(plan.crosstab.stratum_labels))
        write_records(space.reference, records, Blocks.of(counts, job.sampler.total).edges)
    space.mark(STORED_REFERENCE, [space.reference, *further])


def store_noisy_crosstab(space: Workspace, job: Job, crosstab: Crosstab) -> None:
    """Stores the crosstab of noisy counts, which fits and publication use. `crosstab` has exact counts of all combinations.

    The noise is stored too. Raises `WorkspaceError` if stored noise was drawn for other counts, columns or budget.
    """
    if not job.noisy_crosstab or space.finished(NOISY_FRAME):
        return
    measured = list[Floats]()
    for number, (level, exact) in enumerate(zip(layers_of(job), counts(job, crosstab), strict=True)):
        noise = np.zeros(len(exact)) if level.scale is None else _noise(space, job, number, crosstab, exact)
        measured.append(exact + noise)
    write_table(space.noisy_crosstab, crosstab_table(noisy_crosstab(job, crosstab, measured)))
    space.mark(NOISY_FRAME, [space.noisy_crosstab])


def _noise(space: Workspace, job: Job, number: int, crosstab: Crosstab, exact: Ints) -> Floats:
    """Returns the noise for one level of detail (a set of columns), bound to that level's exact counts."""
    level = layers_of(job)[number]
    assert level.scale is not None
    query = digest(
        {"columns": level.columns, "levels": {name: list(map(str, crosstab.levels[name])) for name in level.columns}}
    )
    request = Noise(level.scale, len(exact), number, noise_name(job), query, digest(exact))
    return noise_once(space, space.noise("frame", 0, number), request)
