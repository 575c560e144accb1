"""Calibration: a mechanism's constants tuned on a public reference period, to a target ε and a measure of utility.

The papers' advice for periodic releases ([G] §5): what is tuned on the confidential file is not paid for, what was tuned on
an earlier, public period and frozen costs nothing (METHODS §2). The mechanism is run on the reference as on a current file;
where the job fixes weights on a reference, it is learned on one half and run on the other. Constants are sought one after
the other: a public grid is scanned, as neither the bound nor utility is monotone in them (METHODS §3), and the intervals
beside its best point are bisected. All candidates see the same random numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from dpdist.errors import JobError, Problem
from dpdist.evaluation.utility import distances
from dpdist.files import write_text
from dpdist.job import NOISY, Calibration, Job, Measure, Mechanism
from dpdist.jobfile import calibration_text
from dpdist.keys import Key
from dpdist.mechanisms.learned import Spurious
from dpdist.mechanisms.presets import MECHANISMS, target_of
from dpdist.models import MODELS
from dpdist.models.protocol import Draws, Improper, Presampled, StratumModel, Synthesizer
from dpdist.privacy.guarantees import bound_target
from dpdist.privacy.weights import NotReached
from dpdist.progress import Listener, silent, stage
from dpdist.records import Floats, Frame, Records
from dpdist.runtime.reference import Unrecorded, learned_from
from dpdist.runtime.rounds import run_rounds
from dpdist.sampling import Sampler, Unconverged, completed, prepare, reference_sampler, sampler_of
from dpdist.survey.prepare import place, take_census
from dpdist.survey.source import open_source

BISECTIONS = 3
HEADROOM = 0.9
"""Weights of a constant c must leave the bound this far below Δ* on the reference: a later period is another sample."""
SEED = Key(b"dpdist calibrate: public random numbers")
INFEASIBLE = float("inf")


class Knob(NamedTuple):
    """A constant: how it is set, and the points that are scanned; None is a choice without neighbours."""

    name: str
    grid: tuple[float | None, ...]
    whole: bool = False


@dataclass
class Trials:
    """Losses of mechanisms on the reference, each tried once."""

    loss_of: Callable[[Mechanism], float]
    tick: Callable[[int], None]
    known: dict[str, float] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism) -> float:
        key = mechanism.model_dump_json()
        if key not in self.known:
            self.known[key] = self.loss_of(mechanism)
            self.tick(1)
        return self.known[key]


def calibrate(
    job: Job,
    out: str | Path,
    reference: str | Path | None = None,
    measure: Measure = "max_ecdf",
    replicates: int = 4,
    listener: Listener = silent,
) -> Calibration:
    """Tune the job's mechanism on its reference, or on another file, and write what was found. The input is never opened.

    Raises `JobError` where nothing can be tuned or nothing meets the target, `DataError` for a reference that does not fit.
    """
    period = _period(job)
    knobs = knobs_of(job)
    if not knobs:
        found = f"'{job.mechanism.name}' has no constants that could be tuned"
        raise JobError(job.dataset, [Problem("mechanism", found, _tunable(), "run the job as it is")])
    prepared = _strata(job, reference, listener)
    with (
        tempfile.TemporaryDirectory(prefix="dpdist-") as folder,
        threadpool_limits(1),
        stage(listener, "calibrate", None) as tick,
    ):
        sampler = sampler_of(job, Path(folder))
        prepare(job, prepared.strata[0].model, listener)
        trials = Trials(lambda mechanism: _loss(_with(job, mechanism), prepared, sampler, measure, replicates), tick)
        best, loss = search(job.mechanism, knobs, trials, keep=not _must_be_found(job))
    if not loss < INFEASIBLE:
        found = "no constants bring every stratum of the reference under the target"
        remedy = "raise the budget, pool strata, or take another mechanism or weight rule"
        raise JobError(job.dataset, [Problem("mechanism", found, f"a bound of at most {target_of(job):g}", remedy)])
    said = {name: getattr(job, name) for name in Calibration.model_fields if name in Job.model_fields}
    provenance = job.reference.provenance if job.reference is not None else None
    made = Calibration(
        **said
        | {
            "period": period,
            "mechanism": best,
            "referring": job.reference is not None and job.frozen,
            "bound": target_of(job),
            "measure": measure,
            "loss": round(loss, 6),
            "tried": len(trials.known),
            "reference": {"sha256": prepared.sha256, "records": prepared.records, "provenance": provenance},
        }
    )
    write_text(Path(out), calibration_text(made))
    return made
