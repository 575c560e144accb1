"""Describes studies of simulated data for their page: measures, facts, rows of mechanisms and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpdist.job.checks import contradictions
from dpdist.studies.kinds.protocol import Caption, Fact, Refusal, Replicate, SimulatedKind, randomness
from dpdist.studies.kinds.simulation_replicates import ANY, job_of, mechanism_of, replicate
from dpdist.studies.kinds.simulation_settings import CHAINS, Arm, Simulation
from dpdist.studies.results import as_number

CAPTIONS: Mapping[str, Caption] = {
    "database_bound": Caption(
        "database bound Δ",
        "Δ, the largest weighted record bound max |α_i f_i(θ_s)| over records and draws of the final fit; "
        "for clamped mechanisms the largest clamped value. ε = 2Δ is local to the file unless the mechanism is strict.",
    ),
    "unweighted_database_bound": Caption(
        "database bound Δ of the unweighted fit",
        "Δ of the fit without weights, where each weight search starts.",
    ),
    "epsilon_local": Caption(
        "local ε = 2Δ",
        "2Δ, for neighbouring files in which one record's factor in the likelihood is left out (zero_out).",
    ),
    "epsilon_local_range": Caption(
        "local ε from the range",
        "Largest max_s α_i f_i − min_s α_i f_i: the cost of switching one record off, weights frozen.",
    ),
    "records_censored": Caption(
        "records censored",
        "Records with |α_i f_i| over the clamp in any draw (censor_w, censor_uw); records whose weight was "
        "set to 0 (weighted_e).",
    ),
    "privacy_weight": Caption(
        "mean privacy weight α",
        "Mean of α over records: the share of the likelihood that is left.",
    ),
    "record_bound_before": Caption(
        "mean record bound, unweighted fit",
        "Mean over records of F, the record bound under the unweighted fit.",
    ),
    "record_bound_after": Caption(
        "mean record bound, final fit",
        "Mean over records of the weighted record bound under the final fit.",
    ),
    "max_ecdf": Caption(
        "max-ECDF",
        "Largest absolute difference between the distribution functions of data and synthetic records, over the "
        "pooled 2n points. Two samples from one law differ by about 1.2/√n on average (.027 at n = 2000).",
    ),
    "avg_ecdf": Caption(
        "avg-ECDF",
        "Mean squared difference over the pooled 2n points.",
    ),
    "mean": Caption(
        "mean",
        "Mean of the synthetic records; its 95 % interval is mean ± 1.96 s/√n within a set.",
    ),
    "median": Caption(
        "median",
        "Median (interpolated order statistics); its interval is a pair of order statistics, see below.",
    ),
    "q15": Caption(
        "15th percentile",
        "15th percentile; interval as for the median.",
    ),
    "q90": Caption(
        "90th percentile",
        "90th percentile; interval as for the median.",
    ),
    "fits": Caption(
        "fits",
        "Posterior fits that a run took, the unweighted one included.",
    ),
}


class SimulationKind(SimulatedKind):
    settings = Simulation
    heads = ("Label", "Mechanism", "Weights", "Guarantee class, or target")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return CAPTIONS

    def refusals(self, study: Simulation) -> Iterator[Refusal]:
        for place, arm in enumerate(study.mechanisms):
            refused: dict[tuple[str, str], str] = {}
            for case in study.cases:
                if arm.cases is None or case.name in arm.cases:
                    job = job_of(study, case, arm, study.grid[0] or ANY)
                    refused |= {(against.fault, against.remedy): case.name for against in contradictions(job)}
            for (what, remedy), name in refused.items():
                yield Refusal(place, f"{arm.key} on {name}: {what}", remedy)

    def replicate(self, study: Simulation, case: int, number: int) -> Replicate:
        return replicate(study, study.cases[case], number, records=number == 1)

    def facts(self, study: Simulation) -> list[Fact]:
        cases = [f"{c.name}: {c.n:,} records of {c.generator.generator().text}, {c.family} model" for c in study.cases]
        samplers = sorted({case.sampler for case in study.cases})
        grid = ", ".join(study.grid) + f" per synthetic set, {study.adjacency}"
        return [
            ("Data", ["simulated", *cases]),
            ("Replicates", [f"R = {study.replicates}, each with a file of its own in every case"]),
            ("ε", [grid if study.epsilons else "no grid: ε follows from the fit"]),
            ("Posterior draws", [f"S = {study.draws:,}, {_drawn_by(name)} ({name})" for name in samplers]),
            ("Synthetic sets", [f"{study.synthetic_sets} per run, n records each"]),
            randomness(study),
        ]

    def arms(self, study: Simulation) -> list[tuple[str, ...]]:
        return [_arm(study, arm) for arm in study.mechanisms]

    def target(self, study: Simulation, case: str, epsilon: str, measure: str) -> float | None:
        """The law's true value for a mean or quantile, ε/2 for the database bound, ε for the local ε; otherwise None."""
        laws = {each.name: each.generator.generator() for each in study.cases}
        if case in laws and measure in (truth := laws[case].truth()):
            return truth[measure]
        if epsilon and measure == "database_bound":
            return as_number(epsilon) / 2.0
        return as_number(epsilon) if epsilon and measure.startswith("epsilon_local") else None


def _drawn_by(sampler: str) -> str:
    return f"{CHAINS} Markov chains together" if sampler == "stan" else "independent, no Markov chains"


def _arm(study: Simulation, arm: Arm) -> tuple[str, ...]:
    """A row of the page on an arm: its settings, and its class of guarantee or its target."""
    if arm.adds_noise:
        bins = ", ".join(f"{getattr(arm, name) or '⌈ln n⌉'} {name}" for name in arm.scanned)
        scale = "2/ε" if (arm.adjacency or study.adjacency) == "substitution" else "1/ε"
        return arm.key, arm.name, f"{bins}, noise of scale {scale}", f"strict, {arm.adjacency or study.adjacency}"
    weights = arm.weights.model_dump(exclude_defaults=True)
    weights.setdefault("rule", arm.weights.rule)
    if arm.weights.rule == "cluster":
        weights["radius"] = arm.weights.radius
    settings = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in weights.items()
    )
    if arm.match is not None:
        promise = f"tuned to the bound that {arm.match} reached on the same file"
    else:
        job = job_of(study, study.cases[0], arm, study.grid[0] or ANY)
        promise = mechanism_of(arm).promise(job).per_set.name
        if not arm.enforced:
            promise += " (the bound follows from the fit; it is not held to ε/2)"
    return arm.key, arm.name, settings, promise
