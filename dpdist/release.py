"""A release, top to bottom: validate → plan → protect → publish, then evaluate on the confidential side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpdist.errors import WorkspaceError
from dpdist.evaluation.evaluate import evaluate
from dpdist.files import write_text
from dpdist.frames import frame_table
from dpdist.job import Job
from dpdist.keys import Key
from dpdist.planning import Plan, make_plan
from dpdist.progress import Event, Listener, silent, stage
from dpdist.publish.folder import publish as publish_folder
from dpdist.publish.folder import publishing
from dpdist.publish.released import Release, promised, read_release
from dpdist.runtime.blocks import Blocks
from dpdist.runtime.executors import executor
from dpdist.runtime.fit import Fit, open_fit
from dpdist.runtime.protect import fit_error
from dpdist.runtime.reference import learn, learn_or_refuse, powers, refused
from dpdist.runtime.strata import create_stores, gather_strata, protect_all, protect_some
from dpdist.sampling import facts, prepare
from dpdist.storage.marks import finished, mark
from dpdist.storage.tables import write_records, write_table
from dpdist.storage.workspace import REFERENCE, SCRATCH, Identity, Workspace, confidential_log
from dpdist.survey.prepare import changed_while_read, place
from dpdist.survey.reference import place_reference

if TYPE_CHECKING:
    import xarray as xr

POOLING = "pooling"
"""Mark of the decision to pool, kept before the pooled fit replaces the strata's stores."""


def validate(job: Job, input: str | Path | None = None, listener: Listener = silent) -> Plan:
    """Check the job against the data; nothing is spent or written. Raises `JobError` or `DataError`."""
    return make_plan(job, input, listener)


def plan(job: Job, input: str | Path | None = None, listener: Listener = silent) -> Plan:
    """What a run would do and cost, from public facts; the checks are those of `validate`."""
    return make_plan(job, input, listener)


def run(
    job: Job,
    workspace: str | Path,
    input: str | Path | None = None,
    replay: str | Path | None = None,
    listener: Listener = silent,
) -> Path:
    """Protect, publish, evaluate; on a workspace begun before it resumes. Returns the public folder.

    Raises `JobError` or `DataError` before anything is written, `FitError` if a stratum cannot be released.
    """
    plan = make_plan(job, input, listener)
    space = Workspace(Path(workspace).absolute())
    identity = Identity(_decisive(plan), plan.source.fingerprint())
    replayed = Path(replay).absolute() if replay else None
    with space.owned(identity, replayed) as key, confidential_log(space) as log, threadpool_limits(1):
        log.info("rules: %s of %d rows", plan.census.removed or "nothing removed", plan.census.rows)
        try:
            prepare(job, plan.model, listener)
            sampled_by = facts(job)
            store_records(space, plan, identity, listener)
            store_reference(space, plan, listener)
            release = protect(space, plan, key, sampled_by, listener)
            with publishing(space.public):
                publish_folder(release, space.public, listener)
            evaluate(space, plan, key, listener)
        except Exception:
            log.exception("failed")
            raise
        log.info("finished")
    return space.public


def store_records(space: Workspace, plan: Plan, identity: Identity, listener: Listener) -> None:
    """Typed records in frame order, in blocks; with the job and the frame, all that a task reads."""
    if finished(space.marks, "records", space.confidential):
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
        write_records(space.records, records, plan.layout.span_edges)
    mark(space.marks, "records", [space.job, space.frame, space.records], space.confidential)


def store_reference(space: Workspace, plan: Plan, listener: Listener) -> None:
    """The reference's records under rows of the current frame, in blocks."""
    reference, job = plan.reference, plan.job
    if reference is None or finished(space.marks, "reference", space.confidential):
        return
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store reference", reference.source.rows) as tick,
    ):
        records = place_reference(job, reference, Path(scratch), tick)
        if reference.source.fingerprint() != reference.sha256:
            raise changed_while_read(reference.source)
        counts = np.bincount(plan.frame.stratum[records.frame], minlength=len(plan.frame.stratum_labels))
        write_records(space.reference, records, Blocks.of(counts, job.sampler.total).edges)
    mark(space.marks, "reference", [space.reference], space.confidential)


def _decisive(plan: Plan) -> dict[str, Any]:
    """What decides a result beside the input: the job, and the reference's content."""
    reference = plan.reference
    return plan.job.identity | ({REFERENCE: reference.sha256} if reference is not None else {})


def protect(space: Workspace, plan: Plan, key: Key, sampled_by: Mapping[str, Any], listener: Listener) -> Release:
    """Fit every stratum under the mechanism; where one cannot be released, the job's declared fallback is taken."""
    job, fallback = plan.job, plan.job.mechanism.fallback
    pooled = finished(space.marks, POOLING, space.confidential)
    fit = open_fit(space, key, "pooled" if pooled else "strata")
    with executor(job.runtime, job.sampler.name == "stan", space.confidential, listener) as workers:
        create_stores(fit)
        unlearned = learn(fit, fit.strata, workers, listener)
        if unlearned and (fallback == "refuse" or (fallback == "pool" and (pooled or not job.strata))):
            raise refused(fit, unlearned)
        if unlearned:
            others = sorted(set(fit.strata) - {outcome.stratum for outcome in unlearned})
            failed = unlearned + (protect_some(fit, others, workers, listener) if fallback == "proper_prior" else [])
        else:
            failed = protect_all(fit, workers, listener)
        fits = dict.fromkeys(fit.strata, fit)
        if failed and fallback == "proper_prior":
            listener(Event("note", "protect", note=f"{len(failed)} strata take the proper prior"))
            again = open_fit(space, key, "proper")
            learn_or_refuse(again, [outcome.stratum for outcome in failed], workers, listener)
            fits |= dict.fromkeys([outcome.stratum for outcome in failed], again)
            failed = protect_some(again, [outcome.stratum for outcome in failed], workers, listener)
        elif failed and fallback == "pool" and job.strata and not pooled:
            listener(Event("note", "protect", note="a stratum cannot stand alone: all strata are pooled into one fit"))
            mark(space.marks, POOLING, [], space.confidential)
            fit = open_fit(space, key, "pooled")
            create_stores(fit)
            learn_or_refuse(fit, fit.strata, workers, listener)
            failed = protect_all(fit, workers, listener)
            fits = dict.fromkeys(fit.strata, fit)
    shutil.rmtree(space.fits, ignore_errors=True)
    if failed:
        raise fit_error(fit, failed[0])
    released = dict(zip(fit.frame.stratum_labels, gather_strata(fits), strict=True))
    sets = tuple({label: thetas[k] for label, thetas in released.items()} for k in range(job.synthetic_sets))
    promise = promised(plan.promise, sampled_by, _referred(plan, fit))
    return Release(job, promise, fit.frame, sets, key.child("publish"))


def _referred(plan: Plan, fit: Fit) -> dict[str, Any] | None:
    """What is published of the reference: its content's checksum, and what it fixed in public terms."""
    said, found = plan.job.reference, plan.reference
    if said is None or found is None:
        return None
    facts = {"sha256": found.sha256, "records": found.records, "period": said.period, "provenance": said.provenance}
    return facts | ({"power": powers(fit)} if plan.job.mechanism.name == "centred" else {})


def publish(workspace: str | Path, listener: Listener = silent) -> Path:
    """Tables, microdata and statement again from `public/released`, at no cost and without the confidential folder."""
    space = Workspace(Path(workspace).absolute())
    with publishing(space.public), threadpool_limits(1):
        publish_folder(read_release(space.public / "released"), space.public, listener)
    return space.public


def open_log_lik(workspace: str | Path) -> xr.Dataset:
    """log_lik.zarr of a run: coordinates loaded, the tensor lazy (dims chain, draw, record)."""
    import xarray as xr

    path = Workspace(Path(workspace)).log_lik
    if not path.exists():
        remedy = "run the job, with record: {log_lik: always}"
        raise WorkspaceError(str(workspace), "it keeps no log-likelihood tensor", remedy)
    store: xr.Dataset = xr.open_zarr(path, consolidated=False)
    return store.assign_coords({name: store[name].load() for name in (*store.coords, "offset", "length")})
