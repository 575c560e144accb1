"""Runs one replicate of a simulation: simulates data, runs mechanisms in memory, draws synthetic records, measures them.

The rounds are those of a release: `run_rounds` over the same mechanisms, models and samplers. The key of all random numbers
is (seed, case, replicate). So all mechanisms and ε of a replicate have the same data and the same uniform random numbers,
and no result depends on the worker or the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Floats
from dpdist.engine.in_memory import noise_of, run_rounds
from dpdist.engine.protocol import Columns, Learned, Mechanism, Rounds
from dpdist.evaluation.utility import distances, location
from dpdist.job import Job, budget_text
from dpdist.mechanisms.models import builder_of
from dpdist.mechanisms.pseudo_posterior import tilted
from dpdist.mechanisms.pseudo_posterior.query import Weighted, WeightedE
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.clamped import Spurious
from dpdist.models.protocol import Draws, Improper, Likelihood, StratumModel, Synthesizer
from dpdist.privacy.weights import NotReached, search
from dpdist.runtime.reference import learned_from
from dpdist.sampling import Sampler, completed, reference_sampler, sampler_of
from dpdist.studies.kinds.protocol import RecordRows, Replicate, Result
from dpdist.studies.kinds.simulated_file import SimulatedFile, simulated_file
from dpdist.studies.kinds.simulation_settings import CHAINS, DATA, Arm, Case, Simulation

ANY = "1"
"""ε in the job of an arm whose results do not depend on ε."""


@dataclass
class Noted:
    """Keeps what a mechanism records about a stratum that has one block."""

    wants_log_lik: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None:
        return None

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        self.found = values.disclose_to_custodian()

    def bounds(self, columns: Confidential[Columns]) -> None:
        self.columns = columns.disclose_to_custodian()

    def log_lik(self, values: Confidential[Floats]) -> None:
        return None


class Run(NamedTuple):
    """An arm's run on one file: synthetic outcomes of every set, (record,) each, and what the mechanism recorded."""

    synthetic: list[Floats]
    noted: Noted

    @property
    def database_bound(self) -> float:
        return float(self.noted.found["database_bound"])


def replicate(study: Simulation, case: Case, number: int, records: bool = False) -> Replicate:
    """Runs all arms at every ε on simulated file `number`; with `records` it also returns record-level by-products."""
    key = study.key_of(case.name, number)
    file = simulated_file(case, key.generator("data"))
    grid, unit = study.grid, case.generator.generator().unit
    kept = [RecordRows(DATA, grid[0], {"outcome": file.outcome * unit})] if records else []
    results = [
        Result(DATA, epsilon, *found) for epsilon in grid for found in location_measures(study, [file.outcome * unit])
    ]
    runs: dict[tuple[str, str], Run | None] = {}
    for arm in study.arms_of(case):
        several, wanted = study.needs_epsilon(arm), study.grid_of(arm)
        for epsilon in wanted if several else wanted[:1]:
            reached = runs.get((arm.match, epsilon)) if arm.match else None
            run = run_arm(study, case, arm, epsilon, file, key, reached)
            stands_for = [epsilon] if several else wanted
            runs |= {(arm.key, e): run for e in stands_for}
            measured = list(measures(study, file.outcome, run, unit))
            results += [Result(arm.key, e, *found) for e in stands_for for found in measured]
            if records and run is not None:
                kept.append(RecordRows(arm.key, epsilon, record_columns(run, unit)))
    return Replicate(results, kept)


def run_arm(
    study: Simulation, case: Case, arm: Arm, epsilon: str, file: SimulatedFile, key: Key, reached: Run | None
) -> Run | None:
    """Runs one arm at one ε; None where the data do not allow it: no weights meet the bound, or there is no posterior."""
    if arm.match is not None and reached is None:
        return None
    job = job_of(study, case, arm, epsilon if study.needs_epsilon(arm) else ANY)
    frame, data = file.frame, file.records
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        sampler = sampler_of(job, Path(folder))
        model = completed(builder_of(job).build(job, frame, slice(0, len(frame))), sampler)
        noted = Noted()
        try:
            learned = learned_by(case, job, model, sampler, key) if arm.reference else None
            rounds = rounds_of(arm, job, model, noted, None if reached is None else reached.database_bound, learned)
            released = run_rounds(rounds, model, sampler, key, POOLED, [data], [noted], noise_of(key))
        except (NotReached, Improper, Spurious):
            return None
    assert isinstance(model, Synthesizer)
    synthetic = [
        model.simulate(theta, data.frame, key.generator("synthesis", set=number))[0]
        for number, theta in enumerate(released.parameters, start=1)
    ]
    return Run(synthetic, noted)


def learned_by(case: Case, job: Job, model: StratumModel, sampler: Sampler, key: Key) -> Learned:
    """What the mechanism learns from a reference, which is another simulated file of the same law and size."""
    earlier = simulated_file(case, key.generator("reference")).records
    taught = reference_sampler(job, sampler)
    return learned_from(job, model, taught, key.child("reference"), POOLED, earlier, case.n)


def rounds_of(arm: Arm, job: Job, model: StratumModel, noted: Noted, bound: float | None, learned: Learned) -> Rounds:
    """The mechanism's rounds; or, where another arm's bound is to be matched, a weighted posterior under that bound."""
    if bound is not None:
        assert isinstance(model, Likelihood)
        return tilted.protect(model, search(job.mechanism.weights, bound), bound, job.synthetic_sets, noted)
    return mechanism_of(arm).protect(job, model, noted, learned)


def mechanism_of(arm: Arm) -> Mechanism:
    if arm.enforced:
        return MECHANISMS[arm.name]
    return WeightedE(enforced=False) if arm.cuts_weights else Weighted(enforced=False)


def job_of(study: Simulation, case: Case, arm: Arm, epsilon: str) -> Job:
    """Job for the release that an arm simulates. The study's ε is for one set, so the job's is that times the sets."""
    law = case.generator.generator()
    low, high = law.bounds
    predictors = law.levels if case.has_predictors else {}
    sampler: dict[str, Any] = {"name": case.sampler, "draws": study.draws}
    if case.sampler == "stan":
        sampler |= {"chains": CHAINS, "draws": study.draws // CHAINS, "warmup": study.draws // CHAINS}
    return Job.model_validate(
        {
            "dataset": study.study,
            "period": "simulated",
            "columns": {"y": {"bounds": [low, high], "outside": "clip"}}
            | {name: {"levels": list(levels)} for name, levels in predictors.items()},
            "outcome": "y",
            "model": {"family": case.family, "predictors": list(predictors)} if arm.statistics is None else None,
            "mechanism": arm.model_dump(
                exclude={"label", "enforced", "match", "reference", "cases", "epsilons", "adjacency"}
            ),
            "budget": {
                "epsilon": budget_text(study.synthetic_sets * Fraction(epsilon)),
                "adjacency": arm.adjacency or study.adjacency,
            },
            "synthetic_sets": study.synthetic_sets,
            **({} if arm.adds_noise else {"sampler": sampler}),
            "tables": [{"name": "all", "statistics": ["count"]}],
            **({"reference": {"path": "another simulated file"}} if arm.reference else {}),
        }
    )


def measures(study: Simulation, y: Floats, run: Run | None, unit: float = 1.0) -> Iterator[tuple[str, float]]:
    """Measures that the study file asks for; for an arm that could not run, the only measure is `refused` = 1."""
    if run is None:
        yield "refused", 1.0
        return
    wanted, noted = set(study.measures), run.noted
    diagnostics = noted.found.get("diagnostics", {})
    for name in ("database_bound", "epsilon_local", "epsilon_local_range"):
        if name in wanted and noted.found.get(name) is not None:
            yield name, float(noted.found[name])
    for name in ("unweighted_database_bound", "records_censored", "fits"):
        if name in wanted and name in diagnostics:
            yield name, float(diagnostics[name])
    if noted.columns:
        before = {"record_bound_before": "unweighted_record_bound", "record_bound_after": "weighted_record_bound"}
        for name, column in (before | {"privacy_weight": "privacy_weight"}).items():
            if name in wanted and column in noted.columns:
                yield name, float(np.mean(noted.columns[column]))
    apart = [distances(y, synthetic) for synthetic in run.synthetic]
    for name in ("max_ecdf", "avg_ecdf"):
        if name in wanted:
            yield name, float(np.mean([getattr(distance, name) for distance in apart]))
    yield from location_measures(study, [sample * unit for sample in run.synthetic])


def location_measures(study: Simulation, sets: list[Floats]) -> Iterator[tuple[str, float]]:
    """Mean, median and quantiles with the ends of their intervals, averaged over sets."""
    found = [location(sample) for sample in sets]
    for name in ("mean", "median", "q15", "q90"):
        if name in study.measures:
            for end, suffix in (("estimate", ""), ("lower", "_lower"), ("upper", "_upper")):
                yield name + suffix, float(np.mean([getattr(intervals[name], end) for intervals in found]))


def record_columns(run: Run, unit: float) -> dict[str, Floats]:
    """The synthetic outcomes of set 1, and the bounds and weight of each record."""
    names = ("unweighted_record_bound", "weighted_record_bound", "privacy_weight")
    recorded = {name: np.asarray(run.noted.columns[name], dtype=float) for name in names if name in run.noted.columns}
    return {"outcome": run.synthetic[0] * unit, **recorded}
