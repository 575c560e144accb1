"""What the job's reference fixes, stratum by stratum, before any outcome of the current file is used."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from dpdist.confidential import Confidential
from dpdist.errors import DataError, Problem
from dpdist.files import replaced
from dpdist.job import CLAMPED, Job
from dpdist.keys import Key
from dpdist.mechanisms.learned import (
    CHECKED,
    Learned,
    Spurious,
    check_centre,
    evenly,
    learn_cells,
    learn_centre,
    learn_weights,
)
from dpdist.mechanisms.protocol import Columns
from dpdist.models.protocol import Improper, StratumModel
from dpdist.models.reference_cells import ReferenceCells
from dpdist.privacy.weights import NotReached
from dpdist.progress import Listener, stage
from dpdist.records import Floats, Records
from dpdist.runtime.blocks import block_rows
from dpdist.runtime.executors import Executor
from dpdist.runtime.fit import Address, Fit
from dpdist.runtime.protect import Outcome
from dpdist.runtime.rounds import run_rounds
from dpdist.sampling import Unconverged, reference_sampler
from dpdist.sampling.markov import Generated, check_clamp
from dpdist.sampling.protocol import Sampler
from dpdist.storage.marks import finished, mark

TRIED = 40
"""Reference records on which a user's program is tried: whether it clamps."""
SPURIOUS = "under the clamp another mode than its own wins on the reference's own records"


class Unrecorded:
    """A public file's by-products are nobody's concern."""

    wants_log_lik = False

    def bounds(self, columns: Confidential[Columns]) -> None:
        return None

    def log_lik(self, values: Confidential[Floats]) -> None:
        return None


def learned_from(
    job: Job, model: StratumModel, sampler: Sampler, key: Key, stratum: str, records: Records, current: int
) -> Learned:
    """What the reference's records of a stratum fix for a current stratum of `current` records.

    Weights are learned on no more records than the current stratum has: the fewer a fit has, the wider it is and the larger
    its bounds. Raises `Improper`, `NotReached`, `Unconverged` or `Spurious`.
    """
    if isinstance(model, ReferenceCells):
        return learn_cells(model, records)
    if job.frozen:
        records = evenly(records, current)
    blocks = _blocks(records, job.sampler.total)
    rounds = learn_weights(job, model) if job.frozen else learn_centre(job, model, current, len(records))
    learned, draws = run_rounds(rounds, model, sampler, key, stratum, blocks, [Unrecorded()] * len(blocks))
    if job.mechanism.name in CLAMPED and isinstance(model, Generated):
        check_clamp(model, learned.theta, draws, evenly(records, TRIED))
    if job.frozen:
        return learned
    some = evenly(records, min(current, CHECKED))
    run_rounds(check_centre(job, model, learned), model, sampler, key, stratum, [some], [Unrecorded()])
    return learned


def _blocks(records: Records, draws: int) -> list[Records]:
    size = block_rows(draws)
    return [records.part(start, min(start + size, len(records))) for start in range(0, len(records), size)]


@dataclass(frozen=True)
class LearnOne:
    """Task: what the reference fixes for one stratum, kept under a mark. Its randomness is the reference's own."""

    address: Address

    def __call__(self, stratum: int) -> Outcome:
        fit = self.address.open()
        unit, path = _unit(fit, stratum), fit.space.learned(fit.address.name, stratum)
        if finished(fit.space.marks, unit, fit.space.confidential):
            return Outcome(stratum, None)
        model, label = fit.model(stratum), fit.frame.stratum_labels[stratum]
        key, sampler = fit.reference_key, reference_sampler(fit.job, fit.sampler)
        records, current = fit.reference_records(stratum), int(fit.frame.stratum_count[stratum])
        try:
            learned = learned_from(fit.job, model, sampler, key, label, records, current)
        except (Improper, NotReached, Unconverged) as failure:
            return Outcome(stratum, str(failure))
        except Spurious:
            return Outcome(stratum, SPURIOUS)
        path.parent.mkdir(exist_ok=True)
        with replaced(path) as temporary:
            temporary.write_bytes(pickle.dumps(learned))
        mark(fit.space.marks, unit, [path], fit.space.confidential)
        return Outcome(stratum, None)


def learn(fit: Fit, strata: Iterable[int], workers: Executor, listener: Listener) -> list[Outcome]:
    """All that the job's reference fixes for these strata. Returns the failures, by stratum: they are public."""
    wanted = list(strata) if fit.job.reference is not None else []
    failures = []
    with stage(listener, "reference", len(wanted)) if wanted else nullcontext(lambda _: None) as tick:
        for outcome in workers.map(LearnOne(fit.address), wanted):
            tick(1)
            failures += [outcome] if outcome.failure is not None else []
    return sorted(failures)


def learn_or_refuse(fit: Fit, strata: Iterable[int], workers: Executor, listener: Listener) -> None:
    """The same; raises `DataError` naming the strata that the reference cannot serve."""
    if failures := learn(fit, strata, workers, listener):
        raise refused(fit, failures)


def refused(fit: Fit, failures: Iterable[Outcome]) -> DataError:
    """The typed error of a reference on which nothing can be fixed for some strata."""
    said, labels = fit.job.reference, fit.frame.stratum_labels
    allowed = "a reference that the mechanism can be fixed on"
    remedy = "raise the budget, pool strata, plan another drift, or take another reference"
    problems = [Problem(f"stratum {labels[one.stratum]}", one.failure or "failed", allowed, remedy) for one in failures]
    return DataError((said.path if said is not None else None) or "reference", problems)


def powers(fit: Fit) -> dict[str, float]:
    """The power of a centred clamp by stratum: public, as it follows from the reference and public sizes."""
    return {fit.frame.stratum_labels[k]: round(fit.learned(k).power, 12) for k in fit.strata}


def _unit(fit: Fit, stratum: int) -> str:
    return f"reference-{fit.address.name}-{stratum:06d}"
