"""Tuning of a mechanism's constants on an earlier period's public file, to a target ε."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError, JobError, Problem
from dpdist.core.files import scratch, write_text
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Crosstab, Floats
from dpdist.core.this_process import single_threaded
from dpdist.job import Calibration, Job, Measure, Mechanism
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.promises import target_of
from dpdist.models.protocol import Draws, StratumModel, supports
from dpdist.privacy.weights import Summary, rule_of
from dpdist.quality.microdata import distances
from dpdist.quality.predicted.replicates import FITS, in_stratum, released_by, taught
from dpdist.sampling import PosteriorSampler, check, prepare, sampler_of
from dpdist.survey.census import place, take_census
from dpdist.survey.same_file import content
from dpdist.survey.source import open_source

# The grid is scanned because neither bounds nor utility are monotone in a constant: small weights widen the posterior, and
# with it the bound (METHODS §3). Constants are tuned one after the other, with the others fixed.
BISECTIONS = 3
REFUSED = float("inf")
"""Loss of constants for which the mechanism refuses the file."""
TUNED_FACTORS = tuple(0.85**step for step in range(16))
"""Factors by which a constant c is tried: from 1 down to about a tenth."""
BOUNDS_OF_1 = Summary(1.0, 1.0, 1.0)
"""A stand-in for a fit that has not been made, when a rule states the start of its scan."""


# This is the papers' advice for periodic releases ([G]). Tuning on the confidential file would cost privacy that no ε
# counts. Tuning on a public file costs nothing (METHODS §2). The mechanism is run on the public file as on a current one.
# Where it learns from a reference, it learns from one half of the file and is run on the other half. All candidate values
# use the same random numbers, which are public.
class Knob(NamedTuple):
    """A constant, by its path in the mechanism's settings, and the values to scan.

    None is a choice without a number, which bisection leaves out.
    """

    path: str
    grid: tuple[float | None, ...]
    integer: bool = False
    required: bool = False
    """True if the mechanism's settings leave the constant unset."""


@dataclass
class Trials:
    """Losses of mechanisms, each computed once."""

    loss_of: Callable[[Mechanism], float]
    tick: Callable[[int], None]
    losses: dict[str, float] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism) -> float:
        key = mechanism.model_dump_json()
        if key not in self.losses:
            self.losses[key] = self.loss_of(mechanism)
            self.tick(1)
        return self.losses[key]


def knobs_of(job: Job) -> tuple[Knob, ...]:
    """The mechanism's constants that the budget does not determine, in the order of their effect, the largest first.

    The drift of `centred` is not tuned, because halves of one file have no drift between periods.
    """
    mechanism, weights = job.mechanism, job.mechanism.weights
    if mechanism.scanned:
        return tuple(Knob(name, grid, True, getattr(mechanism, name) is None) for name, grid in mechanism.scanned.items())
    if weights.rule == "none":
        return ()
    tuned_on_reference = job.frozen and mechanism.weighting == "tuned"
    constants = rule_of(weights).constants
    start = rule_of(weights).start(target_of(job), BOUNDS_OF_1)
    knobs = []
    if tuned_on_reference:
        knobs.append(Knob("aim", (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)))
    if "c" in constants and not tuned_on_reference:
        knobs.append(Knob("weights.c", tuple(round(start * step, 6) for step in TUNED_FACTORS), required=weights.c is None))
    if "g" in constants:
        knobs.append(Knob("weights.g", (0.0, 0.05, 0.1, 0.2, 0.3)))
    if mechanism.weighting != "cut":
        without = (None,) if mechanism.weighting == "tuned" else ()
        knobs.append(Knob("weights.reweight", (*without, 0.8, 0.9, 0.95, 1.0)))
    return (*knobs, Knob("weights.scale", (1.0, 0.9, 0.8, 0.7)), Knob("weights.shift", (0.0, 0.05, 0.1, 0.2)))


def search(start: Mechanism, knobs: Sequence[Knob], loss: Callable[[Mechanism], float]) -> tuple[Mechanism, float]:
    """Returns the mechanism with the smallest loss, and this loss, which is infinite if all are refused."""
    best, least = start, REFUSED if any(knob.required for knob in knobs) else loss(start)
    for knob in knobs:
        tried: dict[float | None, float] = {v: loss(with_value(best, knob.path, v)) for v in knob.grid}
        for _ in range(BISECTIONS):
            for value in between(tried, knob.integer):
                tried[value] = loss(with_value(best, knob.path, value))
        if least == min(tried.values()) == REFUSED:
            return start, REFUSED
        chosen = min(tried, key=lambda value: tried[value])
        if tried[chosen] < least:
            best, least = with_value(best, knob.path, chosen), tried[chosen]
    return best, least


def between(tried: dict[float | None, float], integers: bool) -> list[float]:
    """Midpoints, not yet tried, between the best number so far and its neighbours."""
    numbers = sorted(value for value in tried if value is not None)
    best = min(numbers, key=lambda value: tried[value])
    if tried[best] == REFUSED:
        return []
    place = numbers.index(best)
    candidates = []
    for other in (numbers[place - 1 : place] if place else []) + numbers[place + 1 : place + 2]:
        middle = float((best + other) // 2) if integers else round((best + other) / 2.0, 6)
        if middle not in tried:
            candidates.append(middle)
    return candidates


def with_value(mechanism: Mechanism, path: str, value: float | None) -> Mechanism:
    settings: dict[str, Any] = mechanism.model_dump(mode="json")
    *above, name = path.split(".")
    holder = settings[above[0]] if above else settings
    holder[name] = value
    return type(mechanism).model_validate(settings)


HEADROOM = Fraction(9, 10)
"""Share of Δ*, the largest allowed bound, that a bound on the public file may use.

The rest is a reserve for later files.
"""
PUBLIC = Key(b"dpdist calibrate: public numbers")


@dataclass(frozen=True)
class Stratum:
    """A stratum's label and model, the records on which the mechanism is run, and the records from which it learns."""

    label: str
    model: StratumModel
    records: Records
    earlier: Records


def calibrate(
    job: Job,
    out: str | Path,
    reference: str | Path | None = None,
    measure: Measure = "max_ecdf",
    replicates: int = 4,
    listener: Listener = silent,
    period: str | None = None,
) -> Calibration:
    """Tunes the job's mechanism on its reference, and writes what was found. The job's input is never opened.

    Parameters
    ----------
    job : the job whose mechanism is tuned.
    out : the file to write; later jobs name it under `calibration`.
    reference : a public file in place of the job's reference.
    measure : the measure of utility that is minimised.
    replicates : number of runs of the mechanism for each candidate value and stratum.
    listener : is called with progress events.
    period : the reference's period, where the job does not state it.

    Returns
    -------
    The tuned constants and how they were found, as in the file.

    Raises
    ------
    JobError : there is nothing to tune, or no candidate meets the target.
    DataError : the reference does not fit the job.

    Example
    -------
    >>> job = dpdist.load_job("histogram.yaml")
    >>> dpdist.calibrate(job, "tuned.yaml", "earlier.parquet", period="2015").period
    '2015'
    """
    knobs = knobs_of(job)
    if len(job.outcomes) > 1:
        fault = f"utility is measured on one outcome, and {len(job.outcomes)} are named"
        raise JobError.of(job.dataset, "outcome", fault, "one outcome", "calibrate a job with one outcome")
    if not knobs:
        fault = f"'{job.mechanism}' has no constants that could be tuned"
        if job.mechanism.centres:
            fault = "'centred' plans for drift between periods, and there is none between halves of one file"
        allowed = "weighted with a weight rule, weighted_e, censor_w or perturbed_histogram"
        raise JobError.of(job.dataset, "mechanism", fault, allowed, "run the job as it is")
    period, path = _reference(job, reference, period)
    _check_out(job, Path(out))
    source = open_source(job, path, job.reference.text_format if job.reference is not None else None)
    with scratch() as folder, single_threaded():
        with stage(listener, "check records", source.rows) as tick:
            census = take_census(job.by_record, source, tick)
        with stage(listener, "store records", source.rows) as tick:
            records = place(job.by_record, source, census, folder, tick)
        sampler = sampler_of(job, folder)
        crosstab = census.crosstab
        model = builder_of(job).build(job, crosstab, crosstab.rows_of(0))
        check(job, model)
        prepare(job, model, listener)
        strata = [stratum(job, crosstab, records, k, sampler) for k in range(len(crosstab.stratum_labels))]
        with stage(listener, "calibrate", None) as tick:
            trials = Trials(
                lambda m: loss(job.model_copy(update={"mechanism": m}), strata, sampler, measure, replicates), tick
            )
            best, least = search(job.mechanism, knobs, trials)
    if not least < REFUSED:
        fault = "no constants bring the bound below the target in every stratum of the reference"
        allowed = f"a bound of at most {target_of(with_headroom(job)):g}"
        remedy = "raise the budget, pool strata, or use another mechanism or weight rule"
        raise JobError.of(job.dataset, "mechanism", fault, allowed, remedy)
    facts = {"sha256": source.fingerprint(), "content": content(job, source), "records": int(crosstab.count.sum())}
    provenance = job.reference.provenance if job.reference is not None else None
    settings = {name: getattr(job, name) for name in Calibration.model_fields if name in Job.model_fields}
    calibration = Calibration.model_validate(
        settings
        | {"period": period, "mechanism": best, "referring": job.reference is not None, "bound": target_of(job)}
        | {"measure": measure, "loss": round(least, 6), "tried": len(trials.losses)}
        | {"reference": facts | {"provenance": provenance}}
    )
    write_text(Path(out), calibration.text)
    return calibration


def _reference(job: Job, path: str | Path | None, period: str | None) -> tuple[str, str | Path]:
    """Period and path of the reference. Raises `JobError` if there is none, or if it is of the period of the job."""
    reference = job.reference
    file = path if path is not None else reference.file if reference is not None else None
    remedy = "give reference: {path: …, period: …} in the job, or --reference FILE --period PERIOD"
    if file is None:
        raise JobError.of(job.dataset, "reference", "no reference", "a public file of an earlier period", remedy)
    period = period or (reference.period if reference is not None else None)
    if period is None or period == job.period:
        fault = "the reference's period is not stated" if period is None else "the reference is of the job's own period"
        raise JobError.of(job.dataset, "reference.period", fault, f"a period other than {job.period}", remedy)
    return period, file


def _check_out(job: Job, out: Path) -> None:
    """Raises `JobError` if the result could not be written; called before the tuning, which takes long."""
    if out.is_dir() or not out.parent.is_dir():
        fault = "it is a folder" if out.is_dir() else "its folder does not exist"
        raise JobError.of(job.dataset, f"--out {out}", fault, "a file in a folder that exists", "name another")


def stratum(job: Job, crosstab: Crosstab, records: Records, number: int, sampler: PosteriorSampler) -> Stratum:
    """The records of a stratum. If the mechanism learns from a reference, one half is the reference for the other half."""
    rows = crosstab.rows_of(number)
    members = in_stratum(records, rows)
    ran, earlier = members, members
    if job.reference is not None:
        ran, earlier = (members.take(np.arange(half, len(members), 2)) for half in (0, 1))
    model = builder_of(job).build(job, crosstab, rows)
    if min(len(ran), len(earlier)) <= model.identified + 1:
        fault, allowed = f"{len(members)} records, too few for p = {model.identified} predictors", "more, in both halves"
        problem = Problem(
            f"stratum {crosstab.stratum_labels[number]}", fault, allowed, "pool strata, or use a larger reference"
        )
        raise DataError("reference", [problem])
    return Stratum(crosstab.stratum_labels[number], sampler.complete(model), ran, earlier)


def with_headroom(job: Job) -> Job:
    """The job with a reduced ε for tuning.

    Bounds of later files then exceed Δ*, the bound for privacy weights, less often by chance.

    Only mechanisms with searched weights need this, because their bound is only observed.
    """
    if not job.mechanism.bounded_by_weights():
        return job
    budget = job.budget.model_copy(update={"epsilon": HEADROOM * job.budget.epsilon})
    return job.model_copy(update={"budget": budget})


def loss(job: Job, strata: list[Stratum], sampler: PosteriorSampler, measure: Measure, replicates: int) -> float:
    """The mean loss of utility over strata (by records), replicates and sets; infinity where a stratum is refused.

    A mechanism with a reference learns from one half as in a run, with the whole Δ*. The bound on the other half must
    be below a reduced Δ* (`HEADROOM`).
    """
    losses_by_set, tried = [], with_headroom(job)
    for part in strata:
        key = PUBLIC.child(part.label)
        try:
            learned = None
            if job.reference is not None:
                learned = taught(job, part.model, sampler, part.label, part.earlier, len(part.records), key)
            for replicate in range(replicates):
                replicate_key = key.child(str(replicate))
                model, sets = released_by(tried, part.model, sampler, part.label, part.records, learned, replicate_key)
                for number, theta in enumerate(sets, start=1):
                    records_of_set = synthetic(model, theta, part.records, replicate_key.generator("synthesis", set=number))
                    losses_by_set.append((len(part.records), MEASURES[measure](part.records, *records_of_set)))
        except FITS:
            return REFUSED
    records, losses = np.array(losses_by_set, dtype=float).T
    return float(np.average(losses, weights=records))


def synthetic(model: StratumModel, theta: Draws, records: Records, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Outcomes and weights of synthetic records."""
    if supports(model, "presampled"):
        return model.presampled(theta)
    return model.simulate(theta, records.row, rng)


def _mean(outcome: Floats, weight: Floats) -> float:
    return float(np.average(outcome, weights=weight))


def _relative(estimate: float, truth: float) -> float:
    return abs(estimate - truth) / abs(truth) if truth else abs(estimate)


MEASURES: dict[Measure, Callable[[Records, Floats, Floats], float]] = {
    "max_ecdf": lambda records, outcome, weight: distances(records.outcome, outcome).max_ecdf,
    "avg_ecdf": lambda records, outcome, weight: distances(records.outcome, outcome).avg_ecdf,
    "mean": lambda records, outcome, weight: _relative(_mean(outcome, weight), _mean(records.outcome, records.weight)),
    "median": lambda records, outcome, weight: _relative(float(np.median(outcome)), float(np.median(records.outcome))),
}
"""Losses that a calibration may minimise: distance of distribution functions, relative error of weighted mean or median."""
