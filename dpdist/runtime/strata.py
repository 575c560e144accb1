"""Fits all strata of a run: creates stores, runs the tasks that are not finished, and collects the results."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpdist.core.progress import Listener, stage
from dpdist.runtime.executors import Executor
from dpdist.runtime.fit_address import Fit, stores
from dpdist.runtime.tasks import Outcome, ProtectBin, ProtectOne, protect_giant, released_by
from dpdist.storage import arrays
from dpdist.storage.completion import withdraw
from dpdist.storage.paths import GATHERED
from dpdist.storage.tables import gather, read_table, write_table


def create_stores(fit: Fit) -> None:
    """Creates a fit's stores once, with their full shape. The stores of a pooled fit replace those of the strata."""
    space, frame, unit = fit.space, fit.frame, stores(fit.address.name)
    if space.finished(unit):
        return space.take_units([unit])
    sampler = fit.job.sampler
    template = arrays.Template(
        fit.layout.axis, frame.stratum_labels, sampler.number_of_chains, sampler.draws, fit.model(0).parameters
    )
    files: list[Path] = []
    space.store.drop([space.posterior, space.log_lik])
    if not fit.job.mechanism.adds_noise:
        arrays.create_posterior(space.posterior, template)
        files += arrays.files_of(space.posterior)
    if fit.layout.log_lik:
        arrays.create_log_lik(space.log_lik, template)
        files += arrays.files_of(space.log_lik)
    return space.mark(unit, files)


def protect_all(fit: Fit, workers: Executor, listener: Listener) -> list[Outcome]:
    """Fits every unfinished stratum: giant strata first, then bins of small ones. Returns the strata that failed."""
    left = _unfinished(fit, fit.strata)
    width = workers.width
    bins = [number for number, strata in enumerate(fit.layout.bins(width)) if not left.isdisjoint(strata)]
    outcomes: list[Outcome] = []
    with stage(listener, "protect", len(fit.strata)) as tick:
        tick(len(fit.strata) - len(left))
        for stratum in fit.layout.giants:
            if stratum in left:
                outcomes.append(protect_giant(fit, stratum, workers, tick))
                tick(1)
        for found in workers.map(ProtectBin(fit.address, width), bins):
            outcomes += found
            tick(sum(outcome.stratum in left for outcome in found))
    return _failures(outcomes)


def protect_some(fit: Fit, strata: Iterable[int], workers: Executor, listener: Listener) -> list[Outcome]:
    """Fits the given strata, each in a task of its own; giant ones round by round. Returns the strata that failed."""
    wanted = list(strata)
    left = _unfinished(fit, wanted)
    outcomes: list[Outcome] = []
    with stage(listener, "protect again", len(wanted)) as tick:
        for stratum in wanted:
            if stratum in fit.layout.giants and stratum in left:
                outcomes.append(protect_giant(fit, stratum, workers, tick))
        for found in workers.map(ProtectOne(fit.address), [k for k in wanted if k not in fit.layout.giants]):
            outcomes += found
            tick(len(found))
    return _failures(outcomes)


def _unfinished(fit: Fit, strata: Iterable[int]) -> set[int]:
    """The strata that are not finished.

    They include strata with a completion record whose files are damaged or missing; the record is deleted.
    """
    left = set(strata) - fit.done(strata)
    for k in left:
        withdraw(fit.space.completions, fit.unit(k), fit.space.confidential, fit.space.store)
    return left


def gather_strata(fits: Mapping[int, Fit]) -> list[Sequence[Mapping[str, Any]]]:
    """Collects bounds.parquet and strata.parquet from the strata's parts.

    `fits[k]` is the fit that released stratum k. Returns for each stratum its released θ, one for each set.
    """
    fit = fits[0]
    space, labels = fit.space, fit.frame.stratum_labels
    gathered = space.finished(GATHERED)
    space.take_units(
        [fits[k].unit(k) for k in fit.strata],
        lambda name: name.startswith("parts/") and (not gathered or name.endswith(".json")),
    )
    said: list[dict[str, Any]] = [released_by(fits[k], k) for k in fit.strata]
    if not gathered:
        bounds, strata = space.confidential / "bounds.parquet", space.confidential / "strata.parquet"
        parts = [space.part(fits[k].address.name, k) for k in fit.strata]
        gather(bounds, (table for part, label in zip(parts, labels, strict=True) for table in _bounds(part, label)))
        facts = {"stratum": labels, "offset": fit.layout.axis.offset, "rows": fit.layout.frame.stratum_count}
        summary = {name: [one["summary"][name] for one in said] for name in said[0]["summary"]}
        write_table(strata, pa.table(facts | summary | {"fit": [fits[k].address.name for k in fit.strata]}))
        space.mark(GATHERED, [bounds, strata])
    shutil.rmtree(space.journals, ignore_errors=True)
    space.store.drop([space.journals])
    return [one["released"] for one in said]


def _failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return sorted(outcome for outcome in outcomes if outcome.failure is not None)


def _bounds(part: Path, label: str) -> Iterator[pa.Table]:
    for path in sorted(part.glob("bounds-*.parquet")):
        table = read_table(path)
        yield table.add_column(0, "stratum", pa.repeat(pa.scalar(label, pa.string()), len(table)))
