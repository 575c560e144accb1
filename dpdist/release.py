"""The verbs on a release: validate, plan, protect, publish, and evaluate for the custodian."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from dpdist.approval.acceptance import (
    ACCEPTED,
    bounded_sums,
    cautions as of_gates,
    described as gates_described,
    gate_noise,
    measure,
    refuse_unmet,
    refuse_unreachable,
)
from dpdist.approval.holding import publish_approved, publish_unless_refused
from dpdist.core.cautions import Caution
from dpdist.core.files import private, publishing, recover, refuse_links
from dpdist.core.keys import Key
from dpdist.core.progress import Event, Listener, silent, without_sizes
from dpdist.core.public_files import HELD, MANIFEST
from dpdist.core.records import Floats
from dpdist.core.sharing import using_workers
from dpdist.core.this_process import (
    LARGEST_OF_DRIVER,
    refuse_nested_start,
    return_memory,
    reuse_memory,
    single_threaded,
    write_no_core,
)
from dpdist.job import Job, refuse_formats
from dpdist.job.loading import JobLike, job_of
from dpdist.ledger.runs import ChargedRun, Meter
from dpdist.opening.results import release_in
from dpdist.opening.verifying import refuse_unverified
from dpdist.planning.making import make_plan
from dpdist.planning.plan import Plan, read_by, readers_in_identity
from dpdist.privacy.claims import promised
from dpdist.privacy.noisy_counts import refuse_small_counts
from dpdist.publish.accuracy import design_left_out
from dpdist.publish.folder import REPLAYED, SIMULATED, publish as publish_folder
from dpdist.publish.noisy_figures import NoiseErrors
from dpdist.publish.opened import Release
from dpdist.publish.released import (
    ByBatch,
    Parameters,
    ReleasedObject,
    derive,
    of_run,
    public_frame,
    read_released,
    run_here,
    with_totals,
)
from dpdist.quality.cautions import cautions as of_plan
from dpdist.quality.evaluate import evaluate
from dpdist.quality.predicted.prediction import ErrorPrediction
from dpdist.quality.report_page import write_report_again
from dpdist.runtime.driver_memory import remembered_memory
from dpdist.runtime.executors import Executor, executor
from dpdist.runtime.reference import described, store_noisy_crosstab, store_records, store_reference, summaries
from dpdist.runtime.sharing import Publication, StoredRelease, pieces_on
from dpdist.runtime.strata import FitContext, fitted, gather_strata
from dpdist.sampling import facts, prepare
from dpdist.storage.ownership import owned, refuse_another
from dpdist.storage.tables import each_block
from dpdist.storage.workspace import REFERENCE, SCRATCH, Identity, Workspace, confidential_log
from dpdist.survey.source import Input


def validate(job: JobLike, input: Input = None, listener: Listener = silent) -> Plan:
    """Checks the job against the data; spends and writes nothing.

    Parameters
    ----------
    job : a `Job`, a mapping as a job file has it, YAML text, or the path or name of a job file.
    input : the confidential records in place of the job's own: a file, a pandas data frame or an Arrow table.
    listener : is called with progress events.

    Returns
    -------
    The plan of a run. It is confidential, except for what it prints.

    Raises
    ------
    JobError, DataError : every problem with its place, what is allowed, and the remedy.

    Example
    -------
    >>> dpdist.validate("small.yaml").job.dataset
    'doctorates'
    """
    frozen = job_of(job)
    found_plan = make_plan(frozen, input, guarded(frozen, listener))
    refuse_unreachable(frozen, found_plan.crosstab)
    return found_plan


def plan(job: JobLike, input: Input = None, listener: Listener = silent) -> Plan:
    """Says what a run would do and cost, after all checks; spends and writes nothing.

    Parameters
    ----------
    job, input, listener : as of `validate`.

    Returns
    -------
    The plan, which prints in ten lines or fewer.

    Raises
    ------
    JobError, DataError : every problem with its place, what is allowed, and the remedy.

    Example
    -------
    >>> len(str(dpdist.plan("small.yaml")).splitlines()) <= 10
    True
    """
    return validate(job, input, listener)


def cautions(plan: Plan, prediction: ErrorPrediction | None = None, workspace: str = "WORKSPACE") -> list[Caution]:
    """Every caution of a plan, which `validate`, `plan` and `run` show alike. None refuses a job.

    Without a prediction, alarms are those of an earlier one. `workspace` is what remedies call the run's folder.
    """
    return [*of_gates(plan.job), *of_plan(plan, prediction, workspace)]


def guarded(job: Job, listener: Listener) -> Listener:
    """Wraps the listener so that progress shows no size that the job keeps secret. The listener may be a user's."""
    return without_sizes(listener) if job.sizes_secret else listener


AGAIN = (
    "Nothing new was released: this workspace already contains a release, made on {date}, and no further budget was "
    "spent. A new period needs its own workspace, such as --workspace 'releases/{{{{period}}}}'."
)


def run(
    job: JobLike,
    workspace: str | Path,
    input: Input = None,
    replay: str | Path | None = None,
    listener: Listener = silent,
    counted: bool = True,
    study: Key | None = None,
) -> Release:
    """Protects, publishes and evaluates. The budget is spent once: in a workspace that a run began, it resumes that run.

    Parameters
    ----------
    job : a `Job`, a mapping as a job file has it, YAML text, or the path or name of a job file.
    workspace : a folder, or the URL of a prefix in an object store. It holds all files of the run.
    input : the confidential records in place of the job's own: a file, a pandas data frame or an Arrow table.
    replay : the confidential folder of a run whose draws and noise are repeated, for a test or an audit.
    listener : is called with progress events.
    counted : whether a ledger is charged, small sample counts are refused and a verdict holds the release. False in
        audits of two files, whose releases are not published.
    study : the key of a study, from which all draws follow. It is not counted, and its folder is not for publication.

    Returns
    -------
    The release. As a path it is its public folder, or that folder's URL. If the release is held, its `held` is True.

    Raises
    ------
    JobError, DataError, BudgetRefused : nothing is written, or nothing of what was written stays.
    FitError : a stratum cannot be released.
    WorkspaceError : the workspace belongs to another run, or cannot be used.

    Example
    -------
    >>> release = dpdist.run("small.yaml", "trial")
    >>> list(release.tables)
    ['salaries']
    """
    refuse_nested_start()
    write_no_core()
    reuse_memory(LARGEST_OF_DRIVER)
    parsed = job_of(job)
    if not counted and study is None and parsed.held_on_a_verdict:
        # A trial that left out the releases with large errors would report small ones. A study's are never held.
        parsed = parsed.model_copy(update={"publish": "always"})
    with Workspace.opened(workspace) as space:
        _run(parsed, space, input, replay, guarded(parsed, listener), counted and study is None, study)
        return release_in(space)


def _run(
    job: Job, space: Workspace, input: Input, replay: str | Path | None, listener: Listener, counted: bool, seed: Key | None
) -> None:
    refuse_links(space.public)
    refuse_links(space.held_release)
    plan = make_plan(job, input, listener)
    refuse_unreachable(job, plan.crosstab)
    if counted:
        refuse_small_counts(job, plan.crosstab, plan.small_counts)
        for caution in cautions(plan, workspace=space.place):
            listener(Event("note", "plan", note=f"{caution} [{caution.code}]", caution=caution))
    reference = {} if plan.reference is None else {REFERENCE: plan.reference.sha256}
    identity = Identity(job.identity | reference | readers_in_identity(plan), plan.source.fingerprint())
    meter = Meter.of(job, plan.promise.total, space, uncharged=not counted or replay is not None or space.replayed)
    refuse_another(space, identity)  # before the ledger, which would say that this run names another
    meter.check(listener)
    if space.date is not None and not space.replayed and space.released:
        listener(Event("again", "release", note=AGAIN.format(date=space.date), unit={"date": space.date}, always=True))
    if files := space.other_files():
        listener(
            Event(
                "note", "workspace", note=f"the folder also contains other files, such as {files[0]}, which are not changed"
            )
        )
    with (
        owned(space, identity, replay, seed) as key,
        confidential_log(space) as log,
        remembered_memory(space),
        single_threaded(),
    ):
        log.info("rules: %s of %d rows", plan.census.removed or "nothing removed", plan.census.rows)
        try:
            prepare(job, plan.model, listener)
            sampled_by = facts(job)
            with private():
                store_records(space, plan, identity, listener)
                store_reference(space, plan, listener)
            with _executor(space, plan, listener) as workers:
                with private():
                    metered = meter.reserve(key)
                    store_noisy_crosstab(space, job, plan.crosstab)
                    gates = _gates(space, plan) if job.gates else None
                    released = of_run(protect(space, plan, key, workers, sampled_by, listener), space.date, metered)
                    meter.settle(key)
                with _publishing(workers, space, released) as on_batches:
                    released = released if gates is None else _accepted(space, plan, released, *gates, listener, on_batches)
                    waits = _held_at_first(space, job)
                    published = _publish(space, released, listener, waits, on_batches)
                    meter.name_release(key, listener)
                    with private():
                        evaluate(space, plan, NoiseErrors.of(published), key, listener)
                    if job.held_on_a_verdict and not space.replayed:
                        publish_unless_refused(space)
        except Exception:
            log.exception("failed")
            raise
        log.info("finished")


def _gates(space: Workspace, plan: Plan) -> tuple[dict[str, Floats], Floats]:
    """Computes the sums that gates measure, and draws their noise."""
    sums = bounded_sums(plan.job, plan.crosstab, each_block(space.records))
    return sums, gate_noise(space, plan.job, sums)


def _accepted(
    space: Workspace,
    plan: Plan,
    released: ReleasedObject,
    sums: dict[str, Floats],
    noise: Floats,
    listener: Listener,
    on_batches: ByBatch,
) -> ReleasedObject:
    """Measures the gates and adds their noisy values to the release.

    Raises `NotAccepted` if a gate is not met; then nothing is published.
    """
    published = dict[str, pd.DataFrame]()
    with private(), tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch:
        if not space.finished(ACCEPTED):
            publish_folder(released, folder := Path(scratch) / "public", listener, by_batch=on_batches)
            published = {
                table.name: pd.read_parquet(folder / "tables" / f"{table.name}.parquet") for table in plan.job.tables
            }
        results = measure(space, plan.job, plan.crosstab, sums, published, noise)
    refuse_unmet(results)
    return replace(released, promise={**released.promise, "acceptance": gates_described(plan.job, results)})


def _executor(space: Workspace, plan: Plan, listener: Listener) -> AbstractContextManager[Executor]:
    """The run's executor. It is made before the run is charged, so that workers without memory for it are refused."""
    job, memory = plan.job, 0 if plan.job.sizes_secret else plan.largest_task_bytes
    return executor(job.runtime, job.sampler.name == "stan", space.shared, listener, memory)


@contextmanager
def _publishing(workers: Executor, space: Workspace, released: ReleasedObject) -> Iterator[ByBatch]:
    """Who does publication's work on batches of strata: an executor's workers, or this process.

    Within the block, the workers share other pieces of work, too.
    """
    batches = released.crosstab.batches()
    return_memory()
    with pieces_on(workers, space) as pieces, using_workers(pieces):
        if pieces is None or len(batches) == 1:
            yield run_here
        else:
            publication = Publication(batches, released.crosstab.stratum_labels, released.texts)
            yield StoredRelease.of(pieces, space, publication, ReleasedObject.with_texts)


def protect(
    space: Workspace, plan: Plan, key: Key, workers: Executor, sampled_by: Mapping[str, Any], listener: Listener
) -> ReleasedObject:
    """Fits every stratum under the mechanism, or by the job's fallback, and collects the released parameters."""
    job = plan.job
    fit, fits, _ = fitted(FitContext(space, key, workers, listener))
    released = dict(zip(fit.crosstab.stratum_labels, gather_strata(fits), strict=True))
    sets = tuple(Parameters({label: thetas[k] for label, thetas in released.items()}) for k in range(job.synthetic_sets))
    misfits = () if plan.goodness is None else tuple(plan.goodness.cautions(job))
    texts = (caution.text for caution in (*job.of_alias, *design_left_out(job), *misfits))
    promise = replace(plan.promise, cautions=(*plan.promise.cautions, *texts))
    promise = replace(promise, assumptions=(*promise.assumptions, *read_by(plan)))
    statement = promised(promise, sampled_by, described(plan, fit)) | ({"readers": plan.readers} if plan.readers else {})
    crosstab, seed = public_frame(job, fit.crosstab, sets), key.child("publish")
    return with_totals(ReleasedObject(job, statement, crosstab, sets, seed, None, *summaries(job, fits), proof=plan.proof))


def publish(
    workspace: str | Path, listener: Listener = silent, job: JobLike | None = None, *, page: bool = True
) -> Release:
    """Writes tables, microdata and statement anew from `public/released`. It costs nothing and reads no record.

    All that it publishes follows from public files. The custodian's page also needs the confidential evaluation, which
    is read only if `page` is True.

    Parameters
    ----------
    workspace : the workspace of a finished run.
    listener : is called with progress events.
    job : a job whose labels and tables are used, and whose `runtime` does the work. All else must be as in the released
        job.
    page : False leaves the custodian's report page as it is; True writes it again if the run has an evaluation.

    Returns
    -------
    The release, as from `run`.

    Raises
    ------
    JobError : a table does not follow from what was released, or another part of the job differs.
    WorkspaceError : there is no release, or its files were changed.

    Example
    -------
    >>> dpdist.publish("doctorates-2017").statement["epsilon"]
    '8'
    """
    reuse_memory(LARGEST_OF_DRIVER)
    with Workspace.opened(workspace) as space, space.publishing(), single_threaded():
        with publishing(space.public):
            recover(space.held_release)
            space.refuse_absent()
            folder = space.newest
            if (folder / MANIFEST).exists():
                refuse_unverified(folder, made_again=True)
            released = read_released(folder / "released")
            released = released if job is None else derive(released, job_of(job))
            refuse_formats(released.job.dataset, released.job.presentation)
        charged = ChargedRun.of(space)
        on_a_verdict = (
            released.job.held_on_a_verdict and folder == space.held_release
        )  # which was given when the records were there
        waits = on_a_verdict or released.job.approval is not None
        with (
            executor(released.job.runtime, shared=space.shared, listener=listener) as workers,
            _publishing(workers, space, released) as on_batches,
        ):
            _publish(space, released, listener, waits, on_batches)
        if charged is not None:
            charged.name_again(listener)
        if page:
            write_report_again(space, listener)
        return release_in(space)


def _held_at_first(space: Workspace, job: Job) -> bool:
    """True if a run holds its release, until it is approved or has a verdict.
    A replay is not published, and so never held.
    """
    return job.approval is not None or (job.held_on_a_verdict and not space.replayed)


def _publish(
    space: Workspace, released: ReleasedObject, listener: Listener, waits: bool, on_batches: ByBatch
) -> ReleasedObject:
    """Writes the public folder; or, where the release is held, `held/`, which only its owner can read. Returns what is
    published.

    A held release that was approved before is published.
    """
    folder = space.held_release if waits else space.public
    if space.keyed:
        cautions = [SIMULATED.replace("\n", " ").strip(), *released.promise["cautions"]]
        unfiltered = released.job.model_copy(
            update={"withhold_above": None}
        )  # a study judges what a release would withhold
        released = replace(
            released, job=unfiltered, promise={**released.promise, "cautions": list(dict.fromkeys(cautions))}
        )
    with publishing(folder):
        with private() if waits or space.keyed else nullcontext():
            unfit = SIMULATED if space.keyed else REPLAYED if space.replayed else HELD if waits else ""
            publish_folder(released, folder, listener, unfit, on_batches)
        space.store.publish(folder)
        if waits and not space.replayed:
            publish_approved(space)
    return released
