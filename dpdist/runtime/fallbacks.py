"""Fits every stratum under the mechanism. Where one cannot be released, it takes the fallback that the job declares."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dpdist.core.keys import Key
from dpdist.core.progress import Event, Listener
from dpdist.runtime.executors import Executor
from dpdist.runtime.fit_address import Fit, open_fit
from dpdist.runtime.reference import learn, learn_or_refuse
from dpdist.runtime.strata import create_stores, protect_all, protect_some
from dpdist.runtime.tasks import Outcome, fit_error
from dpdist.storage.workspace import Workspace

POOLING = "pooling"
"""Name of the record that the decision to pool was made.

It is written before the pooled fit replaces the strata's stores.
"""


class Means(NamedTuple):
    """What making a fit needs: the workspace, the key of random numbers, workers, and the listener for progress."""

    space: Workspace
    key: Key
    workers: Executor
    listener: Listener


class Fitted(NamedTuple):
    """The fit of the frame's strata, the fit by which each stratum was released, and the strata without a release."""

    fit: Fit
    fits: Mapping[int, Fit]
    failed: list[Outcome]


def fitted(means: Means) -> Fitted:
    """Fits all strata. Raises `FitError` if one cannot be released, and `DataError` if the reference is insufficient."""
    pooled = means.space.finished(POOLING)
    fit = open_fit(means.space, means.key, "pooled" if pooled else "strata")
    create_stores(fit)
    nothing_to_pool = pooled or not fit.job.strata
    fallback = "refuse" if fit.job.mechanism.fallback == "pool" and nothing_to_pool else fit.job.mechanism.fallback
    found = FALLBACKS[fallback](means, fit)
    shutil.rmtree(means.space.fits, ignore_errors=True)
    if found.failed:
        raise fit_error(found.fit, found.failed[0])
    return found


def refuse(means: Means, fit: Fit) -> Fitted:
    """Fits the strata, and tries nothing else."""
    learn_or_refuse(fit, fit.strata, means.workers, means.listener)
    return Fitted(fit, dict.fromkeys(fit.strata, fit), protect_all(fit, means.workers, means.listener))


def pool(means: Means, fit: Fit) -> Fitted:
    """Fits all strata together if one cannot be fitted alone. The decision is stored before any store is replaced."""
    if not learn(fit, fit.strata, means.workers, means.listener) and not protect_all(fit, means.workers, means.listener):
        return Fitted(fit, dict.fromkeys(fit.strata, fit), [])
    means.listener(Event("note", "protect", note="a stratum cannot stand alone: all strata are pooled into one fit"))
    means.space.mark(POOLING, [])
    pooled = open_fit(means.space, means.key, "pooled")
    create_stores(pooled)
    return refuse(means, pooled)


def proper_prior(means: Means, fit: Fit) -> Fitted:
    """Fits strata that failed once more, under the model's proper prior."""
    failed = learn(fit, fit.strata, means.workers, means.listener)
    others = sorted(set(fit.strata) - {outcome.stratum for outcome in failed})
    failed += (
        protect_some(fit, others, means.workers, means.listener)
        if failed
        else protect_all(fit, means.workers, means.listener)
    )
    fits = dict.fromkeys(fit.strata, fit)
    if not failed:
        return Fitted(fit, fits, [])
    means.listener(Event("note", "protect", note=f"{len(failed)} strata take the proper prior"))
    again, strata = open_fit(means.space, means.key, "proper"), [outcome.stratum for outcome in failed]
    learn_or_refuse(again, strata, means.workers, means.listener)
    failed = protect_some(again, strata, means.workers, means.listener)
    return Fitted(fit, fits | dict.fromkeys(strata, again), failed)


FALLBACKS: Mapping[str, Callable[[Means, Fit], Fitted]] = {"refuse": refuse, "pool": pool, "proper_prior": proper_prior}
"""Fallbacks by their name in a job, under `mechanism.fallback`."""
