"""Fits of all strata, with the job's fallback where needed, and their collected results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dpdist.core.keys import Key
from dpdist.core.progress import Event, Listener, stage
from dpdist.planning.blocks import seconds
from dpdist.runtime.executors import Executor
from dpdist.runtime.reference import learn, learn_or_refuse
from dpdist.runtime.tasks import JobFit, Outcome, ProtectBin, ProtectOne, fit_error, open_fit, protect_giant, released_by
from dpdist.storage import arrays
from dpdist.storage.tables import gather, read_part, write_table
from dpdist.storage.workspace import GATHERED, Workspace


def create_stores(fit: JobFit) -> None:
    """Creates a fit's stores once, with their full shape. The stores of a pooled fit replace those of the strata."""
    space, crosstab, unit = fit.space, fit.crosstab, fit.stores
    if space.finished(unit):
        return space.take_units([unit])
    sampler = fit.job.sampler
    template = arrays.Template(
        fit.layout.axis, crosstab.stratum_labels, sampler.number_of_chains, sampler.draws, fit.model(0).parameters
    )
    files: list[Path] = []
    space.store.delete([space.posterior, space.log_lik])
    if not fit.job.mechanism.adds_noise:
        arrays.create_posterior(space.posterior, template)
        files += arrays.files_of(space.posterior)
    if fit.layout.log_lik:
        arrays.create_log_lik(space.log_lik, template)
        files += arrays.files_of(space.log_lik)
    return space.mark(unit, files)


def protect_all(fit: JobFit, workers: Executor, listener: Listener) -> list[Outcome]:
    """Fits every unfinished stratum: giant strata first, then bins of small ones. Returns the strata that failed."""
    unfinished = _unfinished(fit, fit.strata)
    width, times = workers.width, seconds(fit.layout.crosstab.stratum_count.tolist(), fit.layout.draws)
    bins = [number for number, strata in enumerate(fit.layout.bins(width)) if not unfinished.isdisjoint(strata)]
    outcomes: list[Outcome] = []
    with stage(listener, "protect", len(fit.strata), sum(times[k] for k in unfinished)) as tick:
        tick(len(fit.strata) - len(unfinished))
        for stratum in fit.layout.giants:
            if stratum in unfinished:
                outcomes.append(protect_giant(fit, stratum, workers, tick))
                tick(1, times[stratum])
        for results in workers.map(ProtectBin(fit.address, width), bins):
            outcomes += results
            finished = [outcome.stratum for outcome in results if outcome.stratum in unfinished]
            tick(len(finished), sum(times[k] for k in finished))
    return _failures(outcomes)


def protect_some(fit: JobFit, strata: Iterable[int], workers: Executor, listener: Listener) -> list[Outcome]:
    """Fits the given strata, each in a task of its own; giant ones round by round. Returns the strata that failed."""
    pending = list(strata)
    unfinished = _unfinished(fit, pending)
    outcomes: list[Outcome] = []
    with stage(listener, "protect again", len(pending)) as tick:
        for stratum in pending:
            if stratum in fit.layout.giants and stratum in unfinished:
                outcomes.append(protect_giant(fit, stratum, workers, tick))
        for results in workers.map(ProtectOne(fit.address), [k for k in pending if k not in fit.layout.giants]):
            outcomes += results
            tick(len(results))
    return _failures(outcomes)


def _unfinished(fit: JobFit, strata: Iterable[int]) -> set[int]:
    """The unfinished strata.

    A stratum with damaged or missing files counts as unfinished, and its completion record is deleted.
    """
    unfinished = set(strata) - fit.finished(strata)
    for unit in dict.fromkeys(map(fit.unit, sorted(unfinished))):
        fit.space.withdraw(unit)
    return unfinished


def gather_strata(fits: Mapping[int, JobFit]) -> list[list[str]]:
    """Collects bounds.parquet and strata.parquet from the strata's parts.

    `fits[k]` is the fit that released stratum k. Returns for each stratum its released θ as JSON, one for each set.
    """
    fit = fits[0]
    space, labels = fit.space, fit.crosstab.stratum_labels
    gathered = space.finished(GATHERED)
    space.take_units(
        dict.fromkeys(fits[k].unit(k) for k in fit.strata),
        lambda name: name.startswith("parts/") and (not gathered or name.endswith(".json")),
    )
    released, summary = list[list[str]](), dict[str, list[Any]]()
    for of_stratum in (content for batch in _batches(fits) for content in released_by(fits[batch.start], batch)):
        released.append([json.dumps(theta, ensure_ascii=False, allow_nan=False) for theta in of_stratum["released"]])
        for name, value in of_stratum["summary"].items():
            summary.setdefault(name, []).append(value)
    if not gathered:
        bounds, strata = space.confidential / "bounds.parquet", space.confidential / "strata.parquet"
        gather(bounds, (table for batch in _batches(fits) for table in _bounds(fits[batch.start], batch)))
        facts = {"stratum": labels, "offset": fit.layout.axis.offset, "rows": fit.layout.crosstab.stratum_count}
        write_table(strata, pa.table(facts | summary | {"fit": [fits[k].address.name for k in fit.strata]}))
        space.mark(GATHERED, [bounds, strata])
    shutil.rmtree(space.journals, ignore_errors=True)
    space.store.delete([space.journals])
    return released


def _failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return sorted(outcome for outcome in outcomes if outcome.failure is not None)


def _batches(fits: Mapping[int, JobFit]) -> Iterator[range]:
    """Strata whose by-products are in the same files, in order."""
    stratum = 0
    while stratum in fits:
        yield (batch := fits[stratum].layout.batch_of(stratum))
        stratum = batch.stop


def _bounds(fit: JobFit, batch: range) -> Iterator[pa.Table]:
    """The bounds of a batch's records with their stratum. A file of several strata has a batch of records for each."""
    labels = fit.crosstab.stratum_labels
    for path in sorted(fit.folder(batch.start).glob("bounds-*.arrow")):
        together = fit.layout.batch_strata > 1
        for number, table in enumerate(read_part(path, by_batch=together)):
            label = pa.scalar(labels[batch[number]], pa.string())
            yield table.add_column(0, "stratum", pa.repeat(label, len(table)))


POOLING = "pooling"
"""Name of the record that the decision to pool was made.

It is written before the pooled fit replaces the strata's stores.
"""


class FitContext(NamedTuple):
    """What making a fit needs: the workspace, the key of random numbers, workers, and the listener for progress."""

    space: Workspace
    key: Key
    workers: Executor
    listener: Listener


class FittedStrata(NamedTuple):
    """The fit of the crosstab's strata, the fit by which each stratum was released, and the strata without a release."""

    fit: JobFit
    fits: Mapping[int, JobFit]
    failed: list[Outcome]


def fitted(means: FitContext) -> FittedStrata:
    """Fits all strata. Raises `FitError` if one cannot be released, and `DataError` if the reference is insufficient."""
    pooled = means.space.finished(POOLING)
    fit = open_fit(means.space, means.key, "pooled" if pooled else "strata")
    create_stores(fit)
    nothing_to_pool = pooled or not fit.job.strata
    fallback = "refuse" if fit.job.mechanism.fallback == "pool" and nothing_to_pool else fit.job.mechanism.fallback
    result = FALLBACKS[fallback](means, fit)
    shutil.rmtree(means.space.fits, ignore_errors=True)
    if result.failed:
        raise fit_error(result.fit, result.failed[0])
    return result


def refuse(means: FitContext, fit: JobFit) -> FittedStrata:
    """Fits the strata, and tries nothing else."""
    learn_or_refuse(fit, fit.strata, means.workers, means.listener)
    return FittedStrata(fit, dict.fromkeys(fit.strata, fit), protect_all(fit, means.workers, means.listener))


def pool(means: FitContext, fit: JobFit) -> FittedStrata:
    """Fits all strata together if one cannot be fitted alone. The decision is stored before any store is replaced."""
    if not learn(fit, fit.strata, means.workers, means.listener) and not protect_all(fit, means.workers, means.listener):
        return FittedStrata(fit, dict.fromkeys(fit.strata, fit), [])
    means.listener(
        Event("note", "protect", note="a stratum cannot be fitted on its own: all strata are pooled into one fit")
    )
    means.space.mark(POOLING, [])
    pooled = open_fit(means.space, means.key, "pooled")
    create_stores(pooled)
    return refuse(means, pooled)


def proper_prior(means: FitContext, fit: JobFit) -> FittedStrata:
    failed = learn(fit, fit.strata, means.workers, means.listener)
    rest = sorted(set(fit.strata) - {outcome.stratum for outcome in failed})
    failed += (
        protect_some(fit, rest, means.workers, means.listener)
        if failed
        else protect_all(fit, means.workers, means.listener)
    )
    fits = dict.fromkeys(fit.strata, fit)
    if not failed:
        return FittedStrata(fit, fits, [])
    means.listener(Event("note", "protect", note=f"{len(failed)} strata use the proper prior"))
    again, strata = open_fit(means.space, means.key, "proper"), [outcome.stratum for outcome in failed]
    learn_or_refuse(again, strata, means.workers, means.listener)
    failed = protect_some(again, strata, means.workers, means.listener)
    return FittedStrata(fit, fits | dict.fromkeys(strata, again), failed)


FALLBACKS: Mapping[str, Callable[[FitContext, JobFit], FittedStrata]] = {
    "refuse": refuse,
    "pool": pool,
    "proper_prior": proper_prior,
}
"""Fallbacks by their name in a job, under `mechanism.fallback`."""
