"""For `predicted.prediction`: runs a job's mechanism on public records in memory, with noise from keys."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Frame
from dpdist.engine.protocol import Learned
from dpdist.engine.rounds import Unwatched, noise_of, run_rounds
from dpdist.estimation.donors import AbsentRecords, Donors
from dpdist.job import Job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.on_reference import KnowsDonors, facts_of, fixed_model
from dpdist.models.protocol import StratumModel
from dpdist.privacy.claims import promised
from dpdist.privacy.noise import simulated_noise
from dpdist.privacy.noisy_counts import counts, levels, noise_name, noisy_frame
from dpdist.publish.folder import grounds_of
from dpdist.publish.released import ReleasedObject, public_frame
from dpdist.publish.tables import table
from dpdist.runtime.reference import learned_from
from dpdist.sampling import Sampler, facts, reference_sampler, sampler_of


def clipped(job: Job, records: Records) -> Records:
    """The records as a release reads them, with outcomes and weights clipped if the job clips them."""
    outcomes, weight = records.outcomes, records.weight
    for number, name in enumerate(job.outcomes):
        if name in job.clipped_columns:
            outcomes = outcomes.copy(order="F")
            outcomes[:, number] = np.clip(outcomes[:, number], *(job.columns[name].bounds or (-np.inf, np.inf)))
    if job.survey.weight in job.clipped_columns:
        weight = np.clip(weight, *(job.columns[str(job.survey.weight)].bounds or (-np.inf, np.inf)))
    return replace(records, outcomes=outcomes, weight=weight)


def release_of(job: Job, frame: Frame, current: Records, reference: Records | None, key: Key) -> ReleasedObject:
    """A release of the current records. Raises the errors of a run if the mechanism cannot be fitted to a stratum."""
    current, seen, mechanism = clipped(job, current), _seen(job, frame, key), mechanism_of(job)
    sets: list[dict[str, Mapping[str, Any]]] = [{} for _ in range(job.synthetic_sets)]
    of_scores, donors = dict[str, Facts](), dict[str, Donors]()
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        sampler = sampler_of(job, Path(folder))
        for stratum, label in enumerate(frame.stratum_labels):
            rows, drawn = frame.rows_of(stratum), key.child(f"stratum {label}")
            ours, model = _of_rows(current, rows), builder_of(job).build(job, seen, rows)
            learned: Learned = None
            if reference is not None:
                learned = taught(job, model, sampler, label, _of_rows(reference, rows), len(ours), key)
                model = fixed_model(model, learned)
            rounds = mechanism.protect(job, model, Unwatched(), learned)
            ended = run_rounds(rounds, model, sampler, drawn, label, [ours], noise=noise_of(drawn))
            for of_set, theta in zip(sets, ended.parameters, strict=True):
                of_set[label] = model.describe(theta)
            if (facts_here := facts_of(learned)) is not None:
                of_scores[label] = facts_here
            if isinstance(learned, KnowsDonors) and learned.donors is not None:
                donors[label] = learned.donors
    described = tuple(sets)
    claim = promised(mechanism.promise(job), facts(job))
    return ReleasedObject(
        job, claim, public_frame(job, seen, described), described, key.child("publish"), None, of_scores, donors
    )


def taught(
    job: Job,
    model: StratumModel,
    sampler: Sampler,
    label: str,
    reference: Records,
    current: int,
    key: Key,
    absent: AbsentRecords | None = None,
) -> Learned:
    """What the mechanism learns from a stratum's reference records, without copied columns; `absent` have no row."""
    of_reference = reference_sampler(job, sampler), key.child("reference")
    return learned_from(job, model, *of_reference, label, reference, current, absent=absent)


def _of_rows(records: Records, rows: slice) -> Records:
    """The records of a stratum's rows; records are in the order of the frame."""
    start, stop = np.searchsorted(records.frame, [rows.start, rows.stop])
    return records.part(int(start), int(stop))


def _seen(job: Job, frame: Frame, key: Key) -> Frame:
    """The published frame, with noisy counts if predictors are protected."""
    if not job.noisy_frame:
        return frame
    rng, law = key.generator("sample counts"), noise_name(job)
    measured = [
        exact + (np.zeros(1) if level.scale is None else simulated_noise(law, level.scale, len(exact), rng))
        for level, exact in zip(levels(job), counts(job, frame), strict=True)
    ]
    return noisy_frame(job, frame, measured)


def tables_of(released: ReleasedObject) -> dict[str, pd.DataFrame]:
    """The tables of a release, by name, as they are published."""
    plain = all(statistic.plain for spec in released.job.tables for statistic in spec.statistics)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        grounds, material = grounds_of(released, Path(folder), records=not plain)
        return {spec.name: table(released, spec, grounds, material).to_pandas() for spec in released.job.tables}
