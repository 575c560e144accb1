"""Stored inputs of fits: records, the crosstab (noisy where protected), constants learned from the reference."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.core.errors import DataError, Problem
from dpdist.core.files import replaced, write_text
from dpdist.core.keys import digest
from dpdist.core.progress import Listener, stage
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.engine.protocol import Noise
from dpdist.estimation.crosstab_table import crosstab_table
from dpdist.estimation.donors import Donors, write_history
from dpdist.job import Job, budget_text
from dpdist.mechanisms.learning import learned_from
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import Improper, Spurious, donors_of, facts_of, power_of, supports
from dpdist.planning.blocks import Blocks, block_rows
from dpdist.planning.plan import Plan, chain_losses
from dpdist.privacy.guarantees import Concentrated, Strict
from dpdist.privacy.noisy_counts import counts, layers_of, noise_name, noisy_crosstab
from dpdist.privacy.weights import NotReached
from dpdist.runtime.executors import Executor
from dpdist.runtime.tasks import Address, JobFit, Outcome
from dpdist.sampling import ReferenceSampler, Unconverged
from dpdist.storage.noise_once import noise_once
from dpdist.storage.tables import gather, write_records, write_table
from dpdist.storage.workspace import LEARNED_FORM, NOISY_FRAME, SCRATCH, STORED_REFERENCE, Identity, Workspace
from dpdist.survey.census import changed_while_read, let_go, place
from dpdist.survey.reference_file import absent_records, copied_columns, in_rows, records_of
from dpdist.survey.released_reference import ReferenceRelease
from dpdist.survey.same_file import table_content

SPURIOUS = "under the clamp, a spurious mode dominates the posterior on the reference's own records"


@dataclass(frozen=True)
class LearnOne:
    """Task that learns from the reference for one stratum, and stores the result.

    Its random numbers come from the reference's key.
    """

    address: Address

    def __call__(self, stratum: int) -> Outcome:
        fit = self.address.open()
        unit, path = _unit(fit, stratum), fit.space.learned(fit.address.name, stratum)
        if fit.space.finished(unit):
            return Outcome(stratum, None)
        model, label = fit.model(stratum), fit.crosstab.stratum_labels[stratum]
        key, sampler = fit.reference_key, ReferenceSampler(fit.job.sampler.total, fit.sampler)
        current = int(fit.crosstab.stratum_count[stratum])
        try:
            if supports(model, "with_donors"):
                model = model.with_history(fit.history(stratum))
            records = fit.reference_records(stratum)
            of_stratum = label, records, current, block_rows(fit.job.sampler.total)
            learned = learned_from(fit.job, model, sampler, key, *of_stratum, fit.copied(records), fit.absent(stratum))
        except (Improper, NotReached, Unconverged) as failure:
            return Outcome(stratum, str(failure))
        except Spurious:
            return Outcome(stratum, SPURIOUS)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary, temporary.open("wb") as file:
            pickle.dump(learned, file)
        fit.space.mark(unit, [path])
        return Outcome(stratum, None)


def learn(fit: JobFit, strata: Iterable[int], workers: Executor, listener: Listener) -> list[Outcome]:
    """Learns from the job's reference for these strata.

    Returns the strata for which the reference is insufficient. These strata are public, as the reference is.
    """
    pending = list(strata) if fit.job.has_reference else []
    failures = []
    with stage(listener, "reference", len(pending)) if pending else nullcontext(lambda _: None) as tick:
        for outcome in workers.map(LearnOne(fit.address), pending):
            tick(1)
            failures += [outcome] if outcome.failure is not None else []
    return sorted(failures)


def learn_or_refuse(fit: JobFit, strata: Iterable[int], workers: Executor, listener: Listener) -> None:
    """As `learn`, but raises `DataError` with the strata for which the reference is insufficient."""
    if failures := learn(fit, strata, workers, listener):
        raise refused(fit, failures)


def refused(fit: JobFit, failures: Iterable[Outcome]) -> DataError:
    reference, labels = fit.job.reference, fit.crosstab.stratum_labels
    allowed = "a reference on which the mechanism can be fixed"
    remedy = "raise the budget, pool strata, change the planned drift, or use another reference"
    if fit.job.carries:
        remedy = (
            "a stratum that is missing in one period has no totals afterwards: begin again with a public file, or pool "
            "strata"
        )
    problems = [
        Problem(f"stratum {labels[failure.stratum]}", failure.failure or "failed", allowed, remedy) for failure in failures
    ]
    return DataError((reference.location if reference is not None else None) or "reference", problems)


def powers(fit: JobFit) -> dict[str, float]:
    """Returns the power a of the likelihood under a centred clamp, by stratum.

    It follows from the reference and public sizes, so it is public.
    """
    return {
        fit.crosstab.stratum_labels[k]: round(power, 12)
        for k in fit.strata
        if (power := power_of(fit.learned(k))) is not None
    }


def _unit(fit: JobFit, stratum: int) -> str:
    return f"reference-{fit.address.name}-{stratum:06d}-{LEARNED_FORM}"


def summaries(job: Job, fits: Mapping[int, JobFit]) -> tuple[dict[str, Facts], dict[str, Donors]]:
    """Returns what is published from the reference, by stratum: distributions of a score model, or donor records."""
    facts, donors = dict[str, Facts](), dict[str, Donors]()
    for stratum, fit in fits.items() if job.has_reference else ():
        learned, label = fit.learned(stratum), fit.crosstab.stratum_labels[stratum]
        if (of_scores := facts_of(learned)) is not None:
            facts[label] = of_scores
        if (of_stratum := donors_of(learned)) is not None:
            donors[label] = of_stratum
    return facts, donors


def described(plan: Plan, fit: JobFit) -> dict[str, Any] | None:
    spec, reference = plan.job.reference, plan.reference
    if spec is None:
        return None
    if reference is None:
        return _histograms(plan.job) | {"provenance": spec.provenance}
    effects = {} if plan.design is None else {"design_effects": plan.design.described()}
    if isinstance(reference, ReferenceRelease):
        return _chained(plan, reference) | {"provenance": spec.provenance} | effects
    facts = {
        "sha256": reference.sha256,
        "records": reference.records,
        "period": spec.period,
        "provenance": spec.provenance,
    }
    if plan.job.mechanism.sets == "copied":  # a later release may take this one for its reference, and compares its root
        facts["content"] = table_content(plan.job, reference.source)
    if plan.goodness is not None:
        facts["fit"] = plan.goodness.described()
    return facts | effects | ({"power": powers(fit)} if plan.job.mechanism.centres else {})


def _chained(plan: Plan, earlier: ReferenceRelease) -> dict[str, Any]:
    guarantee, chain = plan.promise.total, earlier.carried.chain
    assert isinstance(guarantee, Strict | Concentrated)
    totals = {f"chain_{name}": budget_text(total) for name, total in chain_losses(earlier, guarantee).items()}
    facts = {"sha256": earlier.sha256, "records": earlier.records, "period": chain[-1]["period"]}
    return {**_histograms(plan.job), **facts, **totals, "chain": chain, "root": dict(earlier.carried.root)}


def _histograms(job: Job) -> dict[str, Any]:
    cost = job.epsilon.histograms
    return {"histogram": {"epsilon": budget_text(cost)}} if cost else {}


def store_records(space: Workspace, plan: Plan, identity: Identity, listener: Listener) -> None:
    """Stores typed records in crosstab order and in blocks. Tasks read only these, the job and the crosstab."""
    if space.finished("records"):
        return
    write_text(space.job, plan.job.model_dump_json(indent=2) + "\n", mode=0o600)
    write_table(space.crosstab, crosstab_table(plan.crosstab))
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store records", plan.source.rows) as tick,
    ):
        records = place(plan.job, plan.source, plan.census, Path(scratch), tick)
        if plan.source.fingerprint() != identity.input:
            raise changed_while_read(plan.source)
        write_records(space.records, records, plan.layout.part_edges, lambda: let_go(vars(records).values()))
    space.mark("records", [space.job, space.crosstab, space.records])


def store_reference(space: Workspace, plan: Plan, listener: Listener) -> None:
    """Stores the reference's records, in rows of the current crosstab and in blocks."""
    reference, job = plan.reference, plan.job
    if reference is None or space.finished(STORED_REFERENCE):
        return
    if isinstance(reference, ReferenceRelease):
        records, further = reference.records_in_rows(), list[Path]()
        write_records(space.reference, records, [0, len(records)])
        if reference.absent is not None:
            write_table(space.absent, reference.absent.table(job.outcomes))
            write_history(space.history, reference.carried.history)
            further += [space.absent, space.history]
        space.mark(STORED_REFERENCE, [space.reference, *further])
        return
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "store reference", reference.source.rows) as tick,
    ):
        placed = records_of(job, reference, Path(scratch), tick)
        records, further = in_rows(reference, placed), list[Path]()
        if job.mechanism.sets == "copied":
            write_table(space.absent, absent_records(job, reference, placed).table(job.outcomes))
            further.append(space.absent)
        if job.microdata.columns:
            gather(space.copied, copied_columns(job, reference.source))
            further.append(space.copied)
        if reference.source.fingerprint() != reference.sha256:
            raise changed_while_read(reference.source)
        counts = np.bincount(plan.crosstab.stratum[records.row], minlength=len(plan.crosstab.stratum_labels))
        write_records(space.reference, records, Blocks.of(counts, job.sampler.total).edges)
    space.mark(STORED_REFERENCE, [space.reference, *further])


def store_noisy_crosstab(space: Workspace, job: Job, crosstab: Crosstab) -> None:
    """Stores the crosstab of noisy counts, which fits and publication use. `crosstab` has exact counts of all combinations.

    The noise is stored too. Raises `WorkspaceError` if stored noise was drawn for other counts, columns or budget.
    """
    if not job.noisy_crosstab or space.finished(NOISY_FRAME):
        return
    noisy_counts = list[Floats]()
    for number, (level, exact) in enumerate(zip(layers_of(job), counts(job, crosstab), strict=True)):
        noise = np.zeros(len(exact)) if level.scale is None else _noise(space, job, number, crosstab, exact)
        noisy_counts.append(exact + noise)
    write_table(space.noisy_crosstab, crosstab_table(noisy_crosstab(job, crosstab, noisy_counts)))
    space.mark(NOISY_FRAME, [space.noisy_crosstab])


def _noise(space: Workspace, job: Job, number: int, crosstab: Crosstab, exact: Ints) -> Floats:
    """Returns the noise for one level of detail (a set of columns), bound to that level's exact counts."""
    level = layers_of(job)[number]
    assert level.scale is not None
    query = digest(
        {"columns": level.columns, "levels": {name: list(map(str, crosstab.levels[name])) for name in level.columns}}
    )
    request = Noise(level.scale, len(exact), number, noise_name(job), query, digest(exact))
    return noise_once(space, space.noise("frame", 0, number), request)
