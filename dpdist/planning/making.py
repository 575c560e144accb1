"""Construction of a plan, with checks that data, model and machine suit the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np

from dpdist.core.errors import DataError, JobError, Problem, install, installed
from dpdist.core.progress import Event, Listener, stage
from dpdist.core.records import POOLED, Crosstab, Floats
from dpdist.core.this_process import container_memory, machine_memory
from dpdist.estimation.estimators import stratum_sizes
from dpdist.job import Job, broken, family_facts, refuse_formats
from dpdist.job.families import parametric
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.lognormal.conjugate import SINGULAR
from dpdist.models.protocol import StratumModel
from dpdist.models.public_model import Design
from dpdist.planning.blocks import BYTES_PER_RECORD, GATHERED_BYTES, Layout
from dpdist.planning.goodness_of_fit import GoodnessOfFit, goodness_of_fit, refuse_misfit
from dpdist.planning.plan import Plan, ReferenceDesign, reference_design, shown_records
from dpdist.privacy.guarantees import NoisyQuery, large_delta
from dpdist.privacy.noise import LARGEST_SCALE, LARGEST_SCORE
from dpdist.sampling import check
from dpdist.survey.census import Census, take_census
from dpdist.survey.checks import rake_problems
from dpdist.survey.reference_file import ReferenceFile, open_reference
from dpdist.survey.released_reference import ReferenceRelease, open_release
from dpdist.survey.same_file import content
from dpdist.survey.source import Input, Source, open_source

FEWEST_OVER_SCALE = 8.0
"""Number of records over the scale of noise on their counts by bins below which figures follow the noise: without a
reference, counts and means of fewer records are mostly half of what they should be, or less."""


def make_plan(job: Job, input: Input, listener: Listener) -> Plan:
    """Checks every record and the model's needs; spends and writes nothing. Raises `JobError` or `DataError`."""
    _check_likelihood(job)
    refuse_formats(job.dataset, job.presentation)
    _check_library(job)
    source = open_source(job, input)
    with stage(listener, "check records", source.rows) as tick:
        census = take_census(job, source, tick)
    if job.sizes_secret:
        census = replace(census, crosstab=census.crosstab.crossed())
    problems = _design_problems(job, census) + _fit_problems(job, census) + rake_problems(job, census.crosstab)
    if problems:
        raise DataError(source.name, problems)
    promise = mechanism_of(job).promise(job)
    _check_labels(job, census.crosstab)
    layout = Layout.of(job, census.crosstab)
    _check_memory(job, layout)
    if job.mechanism.fallback == "pool":
        _check_memory(job, Layout.of(job, census.crosstab.pooled()))
    _check_calibration(job, source)
    reference: ReferenceFile | ReferenceRelease | None = None
    goodness = design = None
    if job.carries:
        reference = open_release(job, source, census.crosstab)
        design = ReferenceDesign(reference.carried.design_effects) if job.survey.effects_of_reference else None
    elif job.has_reference:
        with stage(listener, "check reference", None) as tick:
            reference = open_reference(job, source, census.crosstab, tick)
        _check_reference(job, layout, reference)
        goodness = _check_fit(job, reference, listener)
        design = reference_design(job, reference) if job.survey.effects_of_reference else None
    for caution in large_delta(job, shown_records(job, layout.crosstab)):
        listener(Event("note", "plan", note=str(caution), caution=caution))
    nestings = job.nestings(_public_nestings(job, layout.crosstab, reference))
    plan = Plan(job, source, census, promise, layout, reference, goodness, design, nestings)
    _check_scale(job, plan.model)
    _check_counts_of_bins(job, layout.crosstab, plan.model)
    _check_machine(plan)
    check(job, plan.model)
    return plan


def _check_library(job: Job) -> None:
    if (module := job.mechanism.library) is not None and not installed(module):
        fault = f"it needs {module}, which is not installed"
        raise JobError.of(job.dataset, "mechanism", fault, "the main install's mechanisms", install(module))


def _public_nestings(
    job: Job, crosstab: Crosstab, reference: ReferenceFile | ReferenceRelease | None
) -> Iterator[Crosstab]:
    """Crosstabs that show publicly which levels occur together: the reference's, and the file's public counts."""
    if job.public_counts is not None:
        yield replace(crosstab, codes={name: crosstab.codes[name] for name in job.public_counts})
    if isinstance(reference, ReferenceFile):
        yield reference.census.crosstab


def _check_scale(job: Job, model: StratumModel) -> None:
    """Raises `JobError` if the noise of a statistic is so large that sums or scores with it would be rounded."""
    scales = [*getattr(model, "scales", ()), *filter(None, [getattr(model, "scale", None)])]
    if job.mechanism.adds_noise and scales and max(scales) > LARGEST_SCALE:
        fault = f"noise with a scale of {float(max(scales)):.3g} units, at which sums are no longer exact"
        remedy = "raise epsilon, or publish fewer figures or sets"
        raise JobError.of(job.dataset, "budget.epsilon", fault, "a scale of at most 2^46 units", remedy)
    if fault := getattr(model, "too_large", ""):
        remedy = "drop or coarsen columns of the largest tables"
        raise JobError.of(job.dataset, "tables", fault, "fewer cells with records", remedy)
    if (total := getattr(model, "largest_sum", 0)) > LARGEST_SCORE:
        fault = f"a sum of up to {float(total):.3g} units, which is not exact"
        remedy = "release parts of the file, each as its own dataset"
        raise JobError.of(job.dataset, "tables", fault, "sums of at most 2^52 units", remedy)
    if (score := getattr(model, "largest_score", 0)) > LARGEST_SCORE:
        fault = f"a score of {float(score):.3g} units, which is not exact"
        remedy = "raise epsilon, merge levels, or name the pairs"
        raise JobError.of(job.dataset, "budget.epsilon", fault, "a score of at most 2^52 units", remedy)


def _check_counts_of_bins(job: Job, crosstab: Crosstab, model: StratumModel) -> None:
    """Raises `JobError` if noise on counts by bins hides how the records of a stratum are distributed."""
    query = getattr(model, "of_counts", None)
    if not isinstance(query, NoisyQuery):
        return
    scale, strata = query.scale_as_laplace, crosstab.stratum_labels
    records = np.bincount(crosstab.stratum, weights=crosstab.count, minlength=len(strata))
    smallest, least = int(records.argmin()), ceil(FEWEST_OVER_SCALE * scale)
    if records[smallest] < least:
        among = f" in stratum {strata[smallest]}" if crosstab.strata else ""
        fault = f"{records[smallest]:,.0f} records{among}, whose counts by bins have noise of scale {scale:.3g}"
        pooled = ", or pool strata" if crosstab.strata else ""
        remedy = f"name a public file under reference, or raise budget.epsilon or reference.histogram.epsilon{pooled}"
        raise JobError.of(job.dataset, "reference.histogram", fault, f"at least {least:,} records", remedy)


def _check_likelihood(job: Job) -> None:
    """Raises `JobError` if a job that was made in Python states no likelihood, though its mechanism needs one."""
    if against := list(broken("likelihood", job)):
        raise JobError(
            job.dataset, [Problem(".".join(map(str, fault.where)), fault.fault, "", fault.remedy) for fault in against]
        )


def _check_labels(job: Job, crosstab: Crosstab) -> None:
    """Raises `JobError` if two strata have one label, because labels select a stratum's random numbers."""
    occurrences = Counter(crosstab.stratum_labels)
    twice = [label for label, number in occurrences.items() if number > 1 or (crosstab.strata and label == POOLED)]
    if twice:
        fault = f"two strata would be named '{twice[0]}', or one would have the name of the pooled fit"
        raise JobError.of(job.dataset, "strata", fault, "distinct labels", "rename a level in columns and data")


def _check_calibration(job: Job, source: Source) -> None:
    """Raises `DataError` if constants were tuned on the current file, even in another format or order of rows."""
    if job.calibration is None:
        return
    tuned_on = job.calibration.reference
    if tuned_on.get("sha256") == source.fingerprint() or tuned_on.get("content") == content(job, source):
        fault, remedy = "its constants were tuned on the current file", "tune on an earlier period's file"
        raise DataError.of(source.name, "calibration", fault, "another period's file", remedy)


def _check_memory(job: Job, layout: Layout) -> None:
    remedy = "fit finer strata, use fewer draws, or record: {log_lik: never}"
    if 2 * layout.sums > layout.largest_task_bytes - layout.process:
        remedy = "merge levels, leave columns out, or use a smaller degree: all tables that are compared are kept in memory"
    _refuse_beyond(job, "the largest stratum's task", layout.largest_task_bytes, remedy)


def _check_machine(plan: Plan) -> None:
    """Raises `JobError` if a worker, which is ended beyond its memory, or this machine without workers, cannot hold the
    task of all tables.
    """
    if plan.cost is None:
        return
    remedy = "drop or coarsen columns of the largest tables"
    if plan.job.runtime.executor != "serial":
        _refuse_beyond(plan.job, "the task that estimates all tables", plan.cost.bytes, remedy)
    elif plan.driver_bytes > (machine := container_memory() or machine_memory()):
        fault = f"the run needs {_amount(plan.job, plan.driver_bytes)}, this machine has {machine / 2**20:,.0f} MiB"
        problem = Problem("tables", fault, "the memory of this machine", f"run on a larger machine, or {remedy}")
        raise JobError(plan.job.dataset, [problem])


def _refuse_beyond(job: Job, task: str, needed: int, remedy: str) -> None:
    """Raises `JobError` if a task needs more bytes than a worker has."""
    available = int(job.runtime.memory_per_worker)
    if needed > available:
        fault = f"{task} needs {_amount(job, needed)}, a worker has {available / 2**20:,.0f} MiB"
        problem = Problem("runtime.memory_per_worker", fault, "at least that", f"set runtime.memory_per_worker, {remedy}")
        raise JobError(job.dataset, [problem])


def _amount(job: Job, needed: int) -> str:
    """Memory as text, which leaves the amount out where sizes are secret."""
    return "more" if job.sizes_secret else f"{ceil(needed / 2**20):,} MiB"


def _check_reference(job: Job, layout: Layout, reference: ReferenceFile) -> None:
    """Checks that every stratum has enough reference records for a fit, and that a worker can hold the largest stratum."""
    crosstab, problems = layout.crosstab, []
    counts = np.bincount(
        crosstab.stratum, weights=reference.counts(crosstab), minlength=len(crosstab.stratum_labels)
    ).astype(int)
    for stratum, (label, n) in enumerate(zip(crosstab.stratum_labels, counts.tolist(), strict=True)):
        p = builder_of(job).build(job, crosstab, crosstab.rows_of(stratum)).identified
        least = len(job.outcomes)
        what = "cells" if job.mechanism.by_cell else "predictors"
        if n <= p + least:
            fault, allowed = f"{n} records, too few for p = {p} {what}", f"n > p + {least} = {p + least}"
            problems.append(Problem(f"stratum {label}", fault, allowed, "pool strata, or use a larger reference"))
        elif job.mechanism.sets == "drawn" and label in reference.census.constant:
            fault, allowed = "outcome or weight is the same for all records", f"{' and '.join(job.components)} that vary"
            problems.append(Problem(f"stratum {label}", fault, allowed, "pool strata, or use another reference"))
    if family_facts(job).on_reference:
        problems += [_constant(job, label) for label in crosstab.stratum_labels if label in reference.census.constant]
    if problems:
        raise DataError(reference.source.name, problems)
    needed = layout.process + (BYTES_PER_RECORD + GATHERED_BYTES) * int(counts.max())
    _refuse_beyond(job, "the task of the reference's largest stratum", needed, "or fit finer strata")


def _check_fit(job: Job, reference: ReferenceFile, listener: Listener) -> GoodnessOfFit | None:
    """Tests how well a parametric family fits the reference. Raises `JobError` if the job demands a better fit."""
    if not parametric(job.family):
        return None
    with stage(listener, "fit to reference", reference.source.rows) as tick:
        goodness = goodness_of_fit(job, reference, tick)
    refuse_misfit(job, goodness)
    return goodness


def _design_problems(job: Job, census: Census) -> list[Problem]:
    """Lists design strata with one record or PSU: their sampling variance cannot be estimated.

    Where sizes are secret, no file is refused.
    """
    crosstab = census.crosstab
    size = stratum_sizes(crosstab)
    unit = ("record", "records")
    if len(census.psus):
        size, unit = census.psus.astype(np.float64), ("PSU", "PSUs")
    labels = [" / ".join(map(str, levels)) or POOLED for levels in crosstab.group(crosstab.design_strata)[1]]
    problems = _population_problems(job, census, size, labels, unit[1])
    sampled = np.ones(len(size)) if census.populations is None else size / census.populations.strata
    alone = [labels[k] for k in np.flatnonzero((size < 2) & ((census.populations is None) | (sampled < 1)))]
    improper = builder_of(job).build(job, crosstab, crosstab.rows_of(0)).improper
    told_by_the_fit = crosstab.count.sum() < 2 and improper
    needed = job.survey.lonely_psu == "error" and job.survey.replicate_weights is None
    if not alone or not needed or job.sizes_secret or told_by_the_fit:
        return problems
    merge = "merge design strata, or state survey.lonely_psu: certainty, average or centred"
    remedy = merge if crosstab.design_strata else "give more records"
    fault, allowed = f"a single {unit[0]}", f"two {unit[1]} or more in each"
    return [*problems, Problem("survey.design_strata", fault, allowed, remedy, len(alone), tuple(alone[:3]))]


def _population_problems(job: Job, census: Census, size: Floats, labels: list[str], units: str) -> list[Problem]:
    """Lists populations (for the FPC) that are smaller than their samples."""
    populations = census.populations
    if populations is None:
        return []
    small = [labels[k] for k in np.flatnonzero(populations.strata < size)]
    problems, remedy = [], "correct the column: it holds the size of the population, not of the sample"
    if small:
        fault, allowed = f"fewer {units} in a stratum's population than in the sample", f"at least the {units} of the file"
        problems.append(Problem(job.survey.fpc[0], fault, allowed, remedy, len(small), tuple(small[:3])))
    psus = populations.psus
    small_psus = 0 if psus is None else int((psus["second"] < psus["records"]).sum())
    if small_psus:
        fault, allowed = (
            "fewer records in a PSU's population than in the sample",
            "at least the number of records in the file",
        )
        problems.append(Problem(job.survey.fpc[1], fault, allowed, remedy, small_psus))
    lone = 0 if psus is None else int(((psus["records"] == 1) & (psus["second"] > 1)).sum())
    if lone and job.survey.lonely_psu == "error":
        fault, allowed = "a single record sampled from a larger PSU", "two records, or the whole PSU"
        remedy = "leave the second column out, or state survey.lonely_psu: such a PSU then adds nothing to the second stage"
        problems.append(Problem(job.survey.fpc[1], fault, allowed, remedy, lone))
    return problems


def _constant(job: Job, label: str) -> Problem:
    """The problem of a stratum in which an outcome or weight is constant, so that a score model cannot be fitted."""
    allowed = f"{' and '.join(job.components)} that vary"
    remedy = "pool strata (strata: []), or use a mechanism that needs no variation, such as tables"
    return Problem(f"stratum {label}", "outcome or weight is the same for all records", allowed, remedy)


def _fit_problems(job: Job, census: Census) -> list[Problem]:
    """Lists strata that are too small, or too constant, for the model to be fitted under an improper prior."""
    crosstab, problems = census.crosstab, []
    remedy = "pool strata (strata: []), drop predictors, or use model.prior: {name: proper}"
    for stratum, label in enumerate(crosstab.stratum_labels):
        n = int(crosstab.stratum_count[stratum])
        model = builder_of(job).build(job, crosstab, crosstab.rows_of(stratum))
        p = model.identified
        if family_facts(job).on_reference and label in census.constant:
            problems.append(_constant(job, label))
        if not model.improper:
            continue
        least = len(job.outcomes)
        if n <= p + least:
            fault = f"{'records' if job.sizes_secret else f'{n} records'}, too few for p = {p} predictors"
            problems.append(Problem(f"stratum {label}", fault, f"n > p + {least} = {p + least}", remedy))
        elif label in census.constant:
            allowed = f"{' and '.join(job.components)} that vary"
            problems.append(Problem(f"stratum {label}", "outcome or weight is the same for all records", allowed, remedy))
        elif _follows_from_predictors(job, model, census, crosstab.rows_of(stratum)):
            allowed = f"{' and '.join(job.components)} that vary within groups of predictors"
            fault = "outcome or weight has no variation left within the predictors' groups"
            problems.append(Problem(f"stratum {label}", fault, allowed, remedy))
    return problems


def _follows_from_predictors(job: Job, model: StratumModel, census: Census, rows: slice) -> bool:
    """True if a lognormal model would fit an outcome, or the weight, without an error: its fit would fail."""
    design: Design | None = getattr(model, "design", None)
    if not family_facts(job).logs or design is None or not design.matrix.size:
        return False
    x, n = design.matrix[design.pattern], census.crosstab.count[rows].astype(np.float64)
    for values in census.single.values():
        y = values[rows]
        if np.isnan(y).any():
            continue
        root = np.sqrt(n)
        residual = y - x @ np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
        if n @ residual**2 <= SINGULAR * (n @ y**2):
            return True
    return False
