"""A release, top to bottom: validate → plan → protect → publish, then evaluate on the confidential side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from dpdist.core.files import private, write_text
from dpdist.core.keys import Key
from dpdist.core.progress import Event, Listener, silent, stage, without_sizes
from dpdist.core.public_files import HELD, MANIFEST
from dpdist.core.records import Floats
from dpdist.estimation.frame_table import frame_table
from dpdist.evaluation.acceptance import ACCEPTED, described, gate_noise, measure, refuse_unmet
from dpdist.evaluation.evaluate import evaluate
from dpdist.evaluation.verifying import refuse_unverified
from dpdist.holding import publish_approved
from dpdist.job import Job, budget_text
from dpdist.job.loading import JobLike, job_of
from dpdist.ledger.runs import Meter
from dpdist.mechanisms.reference_tables.donors import Donors
from dpdist.models.copula.reference_summary import Facts
from dpdist.opening import release_in
from dpdist.planning import Plan, make_plan, refuse_formats
from dpdist.privacy.claims import promised
from dpdist.privacy.guarantees import Strict
from dpdist.privacy.small_counts import refuse_small_counts
from dpdist.publish.folder import REPLAYED, publishing, recover, refuse_links
from dpdist.publish.folder import publish as publish_folder
from dpdist.publish.opened import Release as Opened
from dpdist.publish.released import Release, derived, of_run, public_frame, read_release, without_points
from dpdist.runtime.blocks import Blocks
from dpdist.runtime.executors import executor
from dpdist.runtime.fit_address import Fit, open_fit
from dpdist.runtime.reference import learn, learn_or_refuse, powers, refused
from dpdist.runtime.strata import create_stores, gather_strata, protect_all, protect_some
from dpdist.runtime.tasks import fit_error
from dpdist.sampling import facts, prepare
from dpdist.storage.identity import Identity
from dpdist.storage.log import confidential_log
from dpdist.storage.paths import SCRATCH
from dpdist.storage.tables import each_block, gather, write_records, write_table
from dpdist.storage.workspace import REFERENCE, Workspace
from dpdist.survey.earlier_release import ReferenceRelease
from dpdist.survey.prepare import changed_while_read, let_go, place
from dpdist.survey.reference_file import copied_columns, place_reference
from dpdist.survey.released_reference import composed
from dpdist.survey.same_file import table_content
from dpdist.survey.source import Input

POOLING = "pooling"
"""Mark of the decision to pool, kept before the pooled fit replaces the strata's stores."""


def validate(job: JobLike, input: Input = None, listener: Listener = silent) -> Plan:
    """Check the job against the data; nothing is spent or written.

    Parameters
    ----------
    job : a `Job`, a mapping as a job file has it, YAML text, or the path or name of a job file.
    input : the confidential records in place of the job's own: a file, a pandas data frame or an Arrow table.
    listener : is told of progress.

    Returns
    -------
    The plan of a run, confidential but for what it prints.

    Raises
    ------
    JobError, DataError : every problem, its place, what is allowed and the remedy.

    Example
    -------
    >>> dpdist.validate("doctorates")  # doctest: +SKIP
    """
    said = job_of(job)
    return make_plan(said, input, _guarded(said, listener))


def plan(job: JobLike, input: Input = None, listener: Listener = silent) -> Plan:
    """What a run would do and cost, after all checks; nothing is spent or written.

    Parameters, errors and result are those of `validate`.

    Example
    -------
    >>> print(dpdist.plan("doctorates"))  # doctest: +SKIP
    """
    return validate(job, input, listener)


def run(
    job: JobLike,
    workspace: str | Path,
    input: Input = None,
    replay: str | Path | None = None,
    listener: Listener = silent,
    counted: bool = True,
) -> Opened:
    """Protect, publish, evaluate. This spends the budget once: on a workspace begun before it resumes.

    Parameters
    ----------
    job : a `Job`, a mapping as a job file has it, YAML text, or the path or name of a job file.
    workspace : a folder, or the URL of a prefix in an object store.
    input : the confidential records in place of the job's own: a file, a pandas data frame or an Arrow table.
    replay : the confidential folder of a run to repeat, draw by draw, for a test or an audit.
    listener : is told of progress.
    counted : whether a ledger is charged and small sample counts are refused; not in a study, whose data are public.

    Returns
    -------
    The release. It stands for the public folder as a path, or for its URL.

    Raises
    ------
    JobError, DataError, BudgetRefused : before anything is written.
    FitError : a stratum has no release.
    WorkspaceError : the workspace is another run's, or cannot be used.

    Example
    -------
    >>> dpdist.run("doctorates", "doctorates-2017").tables["salaries"]  # doctest: +SKIP
    """
    said = job_of(job)
    with Workspace.opened(workspace) as space:
        _run(said, space, input, replay, _guarded(said, listener), counted)
        return release_in(space)


def _guarded(job: Job, listener: Listener) -> Listener:
    """Whoever listens may be outside: progress tells no size that the job keeps secret."""
    return without_sizes(listener) if job.sizes_secret else listener


def _run(job: Job, space: Workspace, input: Input, replay: str | Path | None, listener: Listener, counted: bool) -> None:
    refuse_links(space.public)
    refuse_links(space.held)
    plan = make_plan(job, input, listener)
    if counted:
        refuse_small_counts(job, plan.frame)
    identity = Identity(_decisive(plan), plan.source.fingerprint())
    meter = Meter.of(job, plan.promise.total, space, uncharged=not counted or replay is not None or space.replayed)
    meter.check(listener)
    if others := space.others():
        listener(
            Event("note", "workspace", note=f"the folder holds other files too, {others[0]} first: they are left alone")
        )
    with space.owned(identity, replay) as key, confidential_log(space) as log, threadpool_limits(1):
        log.info("rules: %s of %d rows", plan.census.removed or "nothing removed", plan.census.rows)
        try:
            prepare(job, plan.model, listener)
            sampled_by = facts(job)
            with private():
                store_records(space, plan, identity, listener)
                store_reference(space, plan, listener)
                metered = meter.reserve(key)
                noise = gate_noise(space, job) if job.accept is not None else None
                release = of_run(protect(space, plan, key, sampled_by, listener), space.date, metered)
                meter.settle(key)
            release = release if noise is None else _accepted(space, plan, release, noise, listener)
            _publish(space, release, listener)
            with private():
                evaluate(space, plan, key, listener)
        except Exception:
            log.exception("failed")
            raise
        log.info("finished")


def _accepted(space: Workspace, plan: Plan, release: Release, noise: Floats, listener: Listener) -> Release:
    """The release with its gates' noisy values. Raises `NotAccepted` where one is not met, and then nothing is public."""
    published = dict[str, pd.DataFrame]()
    with private(), tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch:
        if not space.finished(ACCEPTED):
            publish_folder(release, made := Path(scratch) / "public", listener)
            published = {said.name: pd.read_parquet(made / "tables" / f"{said.name}.parquet") for said in plan.job.tables}
        measured = measure(space, plan.job, plan.frame, each_block(space.records), published, noise)
    refuse_unmet(measured)
    return replace(release, promise={**release.promise, "acceptance": described(plan.job, measured)})


def store_records(space: Workspace, plan: Plan, identity: Identity, listener: Listener) -> None:
    """Typed records in frame order, in blocks; with the job and the frame, all that a task reads."""
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
        write_records(space.records, records, plan.layout.span_edges, lambda: let_go(vars(records).values()))
    space.mark("records", [space.job, space.frame, space.records])


def store_reference(space: Workspace, plan: Plan, listener: Listener) -> None:
    """The reference's records under rows of the current frame, in blocks."""
    reference, job = plan.reference, plan.job
    if reference is None or space.finished("reference"):
        return
    if isinstance(reference, ReferenceRelease):
        records = reference.first_outcome()
        write_table(space.carried, reference.table)
        write_records(space.reference, records, [0, len(records)])
        space.mark("reference", [space.reference, space.carried])
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


def _decisive(plan: Plan) -> dict[str, Any]:
    """What decides a result beside the input: the job, and the reference's content."""
    reference = plan.reference
    return plan.job.identity | ({REFERENCE: reference.sha256} if reference is not None else {})


def protect(space: Workspace, plan: Plan, key: Key, sampled_by: Mapping[str, Any], listener: Listener) -> Release:
    """Fit every stratum under the mechanism; where one cannot be released, the job's declared fallback is taken."""
    job, fallback = plan.job, plan.job.mechanism.fallback
    pooled = space.finished(POOLING)
    fit = open_fit(space, key, "pooled" if pooled else "strata")
    with executor(job.runtime, job.sampler.name == "stan", space.shared, listener) as workers:
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
            space.mark(POOLING, [])
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
    warned = () if plan.goodness is None else tuple(plan.goodness.cautions(job))
    promise = replace(plan.promise, cautions=(*plan.promise.cautions, *warned))
    said = promised(promise, sampled_by, _referred(plan, fit))
    left, points = without_points(job, fit.frame, sets)
    facts, donors = _of_the_reference(job, fits)
    return Release(job, said, public_frame(job, fit.frame, left), left, key.child("publish"), points, facts, donors)


def _of_the_reference(job: Job, fits: Mapping[int, Fit]) -> tuple[dict[str, Facts], dict[str, Donors]]:
    """What of the reference is published, by stratum: distributions of a score model; donors of records beside tables."""
    facts, donors = dict[str, Facts](), dict[str, Donors]()
    for stratum, fit in fits.items() if job.refers else ():
        learned, label = fit.learned(stratum), fit.frame.stratum_labels[stratum]
        facts |= {label: learned.facts} if learned.facts is not None else {}
        donors |= {label: learned.donors} if learned.donors is not None else {}
    return facts, donors


def _referred(plan: Plan, fit: Fit) -> dict[str, Any] | None:
    """What is published of the reference: its content's checksum, and what it fixed in public terms."""
    said, found = plan.job.reference, plan.reference
    if said is None:
        return None
    if found is None:
        return _refreshed(plan.job) | {"provenance": said.provenance}
    if isinstance(found, ReferenceRelease):
        return _chained(plan, found) | {"provenance": said.provenance}
    facts = {"sha256": found.sha256, "records": found.records, "period": said.period, "provenance": said.provenance}
    if plan.job.mechanism.statistics == "reference_cells":
        facts["content"] = table_content(plan.job, found.source)
    if plan.goodness is not None:
        facts["fit"] = plan.goodness.described()
    return facts | ({"power": powers(fit)} if plan.job.mechanism.centres else {})


def _chained(plan: Plan, found: ReferenceRelease) -> dict[str, Any]:
    """The chain that this release continues, and what a person in all its files loses with it."""
    guarantee, chain = plan.promise.total, found.carried.chain
    assert isinstance(guarantee, Strict)
    exchanged = budget_text(guarantee.substitution_epsilon)
    own = {"epsilon": budget_text(guarantee.epsilon), "substitution_epsilon": exchanged}
    totals = {f"chain_{name}": composed([*chain, own], name) for name in own}
    facts = {"sha256": found.sha256, "records": found.records, "period": chain[-1]["period"]}
    return {**_refreshed(plan.job), **facts, **totals, "chain": chain, "root": dict(found.carried.root)}


def _refreshed(job: Job) -> dict[str, Any]:
    """What the current file's histograms take of the budget, where there are any."""
    said = job.reference.histogram if job.reference is not None else None
    return {"histogram": {"epsilon": budget_text(said.epsilon)}} if said is not None else {}


def publish(workspace: str | Path, listener: Listener = silent, job: JobLike | None = None) -> Opened:
    """Tables, microdata and statement again from `public/released`, at no cost and without the confidential folder.

    Parameters
    ----------
    workspace : of a finished run.
    listener : is told of progress.
    job : one with other labels or tables, of which these are taken.

    Returns
    -------
    The release, as from `run`.

    Raises
    ------
    JobError : a table does not follow from what was released, or the job says something else anew.
    WorkspaceError : there is no release, or it is not as it was released.

    Example
    -------
    >>> dpdist.publish("doctorates-2017", job="more-tables.yaml")  # doctest: +SKIP
    """
    with Workspace.opened(workspace) as space, space.publishing(), threadpool_limits(1):
        with publishing(space.public):
            recover(space.held)
            made = space.newest
            if (made / MANIFEST).exists():
                refuse_unverified(made, made_again=True)
            release = read_release(made / "released")
            release = release if job is None else derived(release, job_of(job))
            refuse_formats(release.job)
        _publish(space, release, listener)
        return release_in(space)


def _publish(space: Workspace, release: Release, listener: Listener) -> None:
    """The public folder; where the job wants approval it is held aside until, and unless, somebody has approved it."""
    held = release.job.approval is not None
    folder = space.held if held else space.public
    with publishing(folder):
        publish_folder(release, folder, listener, REPLAYED if space.replayed else HELD if held else "")
        space.store.show(folder)
    if held and not space.replayed:
        publish_approved(space)
