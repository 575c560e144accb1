"""What a mechanism learns from a stratum's reference before it uses any current outcome."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.engine.protocol import Learned, run_rounds
from dpdist.estimation.donors import AbsentRecords
from dpdist.job import Job
from dpdist.mechanisms.pseudo_posterior.on_reference import (
    CHECKED,
    ReferenceDistributions,
    check_centre,
    evenly,
    learn_centre,
    learn_weights,
)
from dpdist.models.protocol import Draws, Improper, StratumModel, supports
from dpdist.privacy.weights import for_later_files, reference_counts
from dpdist.sampling.markov import GeneratedQuantities, check_clamp
from dpdist.sampling.samplers import PosteriorSampler

T = TypeVar("T")
TRIED = 40
"""Number of reference records on which a user's program is tested: it must clamp as the mechanism does."""


def learned_from(
    job: Job,
    model: StratumModel,
    sampler: PosteriorSampler,
    key: Key,
    stratum: str,
    records: Records,
    current: int,
    block: int,
    copied: pa.Table | None = None,
    absent: AbsentRecords | None = None,
) -> Learned:
    """Returns what the mechanism learns from the reference's records of a stratum.

    `current` is the number of records of the current stratum, and `block` that of a block. Weights are learned on at
    most `current` records: a fit to fewer records is wider and has larger bounds. For the mechanism `weighted`, weights
    are learned under even wider fits (`for_later_files`). `copied` holds these records' other columns, for synthetic
    records to copy. `absent` are further ones in crosses that the current file lacks. Raises `Improper`, `NotReached`,
    `Unconverged` or `Spurious`.
    """
    if absent is not None and supports(model, "with_donors"):
        model = model.with_absent(absent)
    if supports(model, "learned"):
        return model.learned(records, copied)
    if supports(model, "weights_corrected"):
        facts = model.within(model.summarise(records, key.child(f"places {stratum}"))).bias_corrected(records)
        if not job.frozen:
            return ReferenceDistributions(facts)
        model = model.within(facts)

    def run(rounds: Generator[Any, Any, T], of: Sequence[Records]) -> T:
        return run_rounds(rounds, model, sampler, key, stratum, of)

    if not job.frozen:
        learned, draws = run(learn_centre(job, model, current, len(records)), records.blocks(block))
        _check_program(job, model, learned.theta, draws, records)
        run(check_centre(job, model, learned), [evenly(records, min(current, CHECKED))])
        return learned
    records = evenly(records, current)
    try:
        weights, draws = run(learn_weights(job, model), records.blocks(block))
    except Improper as failure:
        if reference_counts(job.mechanism) is not for_later_files:
            raise
        third = "a reference's record counts a third at most, as far as a current file's fit may lie from its own"
        raise Improper(f"{failure}; {third}") from None
    _check_program(job, model, weights.theta, draws, records)
    if not supports(model, "weights_corrected"):
        return weights
    return weights._replace(facts=model.weights_corrected(records, weights.frozen.weigh(model, records)[1]))


def _check_program(job: Job, model: StratumModel, theta: Draws, draws: Draws, records: Records) -> None:
    """Tests on some records that a user's program has the mechanism's clamped likelihood."""
    if job.mechanism.clamps and isinstance(model, GeneratedQuantities):
        check_clamp(model, theta, draws, evenly(records, TRIED))
