"""Studies on data simulated from known laws; a release's rounds run in memory.

The key of all random numbers is (seed, case, replicate). So all mechanisms and ε of a replicate share data and uniform
random numbers, whatever the worker or the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union

import numpy as np
from pydantic import Field, create_model, model_validator

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.errors import suggestion
from dpdist.core.files import scratch
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Codes, Crosstab, Floats
from dpdist.engine.protocol import (
    BlockRecorder,
    Columns,
    Learned,
    Mechanism,
    Rounds,
    StratumRecorder,
    noise_of,
    run_rounds,
)
from dpdist.job import (
    FAMILIES,
    SAMPLERS,
    SPECS,
    Adjacency,
    Budget,
    Contradiction,
    Family,
    Frozen,
    Job,
    MechanismSpec,
    Name,
    SamplerName,
    budget_text,
    those,
)
from dpdist.job.checks import contradictions
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.pseudo_posterior import tilted
from dpdist.mechanisms.pseudo_posterior.query import WeightedMechanism
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.protocol import Improper, Spurious, StratumModel
from dpdist.privacy.weights import NotReached, search
from dpdist.quality.microdata import distances, location
from dpdist.quality.predicted.replicates import taught
from dpdist.sampling import sampler_of
from dpdist.studies.generators import GENERATORS, Generator, GeneratorName
from dpdist.studies.settings import (
    Caption,
    Fact,
    RecordRows,
    Replicate,
    Result,
    Study,
    as_number,
    known_or_refused,
)

CHAINS = 4
"""Number of Markov chains of a fit by Stan, which together give the study's draws."""
DATA = "data"
"""Label, in results, of the confidential data's own figures."""
Measure = Literal[
    "database_bound",
    "unweighted_database_bound",
    "epsilon_local",
    "epsilon_local_range",
    "records_censored",
    "privacy_weight",
    "record_bound_before",
    "record_bound_after",
    "max_ecdf",
    "avg_ecdf",
    "mean",
    "median",
    "q15",
    "q90",
    "fits",
]


class SimulationLaw(Frozen):
    name: GeneratorName
    parameters: dict[str, float]

    @model_validator(mode="after")
    def _parameters_of_the_law(self) -> Self:
        names = list(signature(GENERATORS[self.name]).parameters)
        for name in self.parameters:
            if name not in names:
                near = suggestion(name, names, "use one of these")
                raise ValueError(f"'{name}' is not a parameter of {self.name} ({', '.join(names)}): {near}")
        if missing := [name for name in names if name not in self.parameters]:
            raise ValueError(f"{self.name} needs {', '.join(missing)}")
        self.generator()
        return self

    def generator(self) -> Generator:
        return GENERATORS[self.name](**self.parameters)


class Case(Frozen):
    """A law of files, their size, and the model fitted to them."""

    name: Name
    generator: SimulationLaw
    n: int = Field(ge=1, description="records of a simulated file")
    family: Family

    @model_validator(mode="after")
    def _of_one_outcome(self) -> Self:
        families = [name for name, facts in FAMILIES.items() if facts.weight is False]
        if self.family not in families:
            raise ValueError(f"a study simulates one outcome: its model is one of {', '.join(families)}")
        if self.has_predictors and not self.generator.generator().levels:
            raise ValueError(f"{self.family} has predictors, and {self.generator.name} has none: use another law or family")
        return self

    @property
    def has_predictors(self) -> bool:
        return FAMILIES[self.family].predictors

    @property
    def sampler(self) -> SamplerName:
        """The first of the family's samplers, which are ordered with Markov chains last."""
        return SAMPLERS[self.family][0]


class Arm(MechanismSpec):
    """A mechanism under study; `label` distinguishes arms with the same mechanism.

    `enforced: false` accepts a bound above ε/2, as the papers do. `match` tunes weights to the bound of another arm on the
    same data. `reference: true` fixes constants on another simulated file of the same law and size.
    """

    label: Name | None = None
    enforced: bool = True
    match: str | None = None
    reference: bool = False
    cases: tuple[str, ...] | None = Field(default=None, description="cases to run on; unset: all")
    epsilons: tuple[Budget, ...] | None = Field(default=None, description="ε to run at, of the study's; unset: all")
    adjacency: Adjacency | None = Field(default=None, description="unset: the study's")

    @property
    def key(self) -> str:
        return self.label or self.name

    @model_validator(mode="after")
    def _what_can_be_let_pass_or_matched(self) -> Self:
        if self.needs_reference and not self.reference:
            raise ValueError(f"{self.name} is fixed on a reference: add reference: true")
        if self.reference and (not self.uses("reference") or not self.enforced or self.match is not None):
            allowed = ", ".join(those(lambda spec: spec.uses("reference")))
            raise ValueError(f"reference: true is for {allowed}, enforced and not matched: leave it out")
        if not self.enforced and not self.bounded_by_weights():
            allowed = " and ".join(those(lambda spec: spec.bounded_by_weights()))
            raise ValueError(f"enforced: false is for {allowed}: {self.name} has no bound that could be exceeded")
        if self.match is not None and (self.weighting != "tuned" or not self.enforced):
            raise ValueError("match is for weighted mechanisms whose bound is enforced")
        return self


if TYPE_CHECKING:
    AnyArm = Arm
else:
    _ARMS = tuple(create_model(spec.__name__, __base__=(spec, Arm), __doc__=spec.__doc__) for spec in SPECS.values())
    AnyArm = Annotated[Union[_ARMS], Field(discriminator="name")]  # noqa: UP007
    """A mechanism's constants together with the settings of an arm."""


class Simulation(Study):
    """Mechanisms on data simulated from known laws."""

    heads: ClassVar[tuple[str, ...]] = ("Label", "Mechanism", "Weights", "Guarantee class, or target")
    kind: Literal["simulation"] = "simulation"
    cases: tuple[Case, ...] = Field(min_length=1)
    adjacency: Adjacency = "zero_out"
    draws: int = Field(default=1000, ge=100, description="S: draws that bounds are taken over")
    mechanisms: tuple[AnyArm, ...] = Field(min_length=1)
    measures: tuple[Measure, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _arms_can_run(self) -> Self:
        if self.draws < 100 * CHAINS and any(case.sampler == "stan" for case in self.cases):
            raise ValueError(
                f"draws: {self.draws} is too few for a fit by {CHAINS} Markov chains: give {100 * CHAINS} or more"
            )
        keys = [arm.key for arm in self.mechanisms]
        for place, arm in enumerate(self.mechanisms):
            if arm.match is not None and arm.match not in keys[:place]:
                raise ValueError(f"mechanism '{arm.key}' matches '{arm.match}', which is not one listed before it")
            if not self.epsilons and self.needs_epsilon(arm):
                raise ValueError(f"mechanism '{arm.key}' needs a grid of epsilons (or enforced: false)")
            known_or_refused(f"mechanism '{arm.key}'", arm.cases, self.case_names)
            known_or_refused(f"mechanism '{arm.key}'", [budget_text(e) for e in arm.epsilons or ()], self.grid)
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        return (DATA, *(arm.key for arm in self.mechanisms))

    @property
    def all_measures(self) -> tuple[str, ...]:
        return self.measures

    def arm(self, label: str) -> Arm:
        return next(arm for arm in self.mechanisms if arm.key == label)

    def needs_epsilon(self, arm: Arm) -> bool:
        """True if results depend on ε; otherwise one run serves all ε."""
        if arm.match is not None:
            return self.needs_epsilon(self.arm(arm.match))
        return arm.spends and (arm.enforced or arm.weighting != "tuned")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return CAPTIONS

    def refusals(self) -> Iterator[Contradiction]:
        for place, arm in enumerate(self.mechanisms):
            refused: dict[tuple[str, str], str] = {}
            for case in self.cases:
                if arm.cases is None or case.name in arm.cases:
                    job = job_of(self, case, arm, self.grid[0] or ANY)
                    refused |= {(against.fault, against.remedy): case.name for against in contradictions(job)}
            for (what, remedy), name in refused.items():
                yield Contradiction(("mechanisms", place), f"{arm.key} on {name}: {what}", remedy, OF_A_RELEASE)

    def replicate(self, case: int, number: int) -> Replicate:
        return replicate(self, self.cases[case], number, records=number == 1)

    def facts(self) -> list[Fact]:
        cases = [f"{c.name}: {c.n:,} records of {c.generator.generator().text}, {c.family} model" for c in self.cases]
        drawn = {"stan": f"{CHAINS} Markov chains together"}
        samplers = sorted({case.sampler for case in self.cases})
        texts = [f"{drawn.get(name, 'independent, no Markov chains')} ({name})" for name in samplers]
        grid = ", ".join(self.grid) + f" per synthetic set, {self.adjacency}"
        return [
            ("Data", ["simulated", *cases]),
            ("Replicates", [f"R = {self.replicates}, each with a file of its own in every case"]),
            ("ε", [grid if self.epsilons else "no grid: ε follows from the fit"]),
            ("Posterior draws", [f"S = {self.draws:,}, {text}" for text in texts]),
            ("Synthetic sets", ["1 per run, n records each"]),
            self.randomness,
        ]

    def arms(self) -> list[tuple[str, ...]]:
        return [_arm(self, arm) for arm in self.mechanisms]

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        laws = {defined.name: defined.generator.generator() for defined in self.cases}
        if case in laws and measure in (truth := laws[case].truth()):
            return truth[measure]
        if epsilon and measure == "database_bound":
            return as_number(epsilon) / 2.0
        return as_number(epsilon) if epsilon and measure.startswith("epsilon_local") else None


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
        "Largest max_s α_i f_i − min_s α_i f_i: the cost of leaving out one record, with weights fixed.",
    ),
    "records_censored": Caption(
        "records censored",
        "Records with |α_i f_i| over the clamp in any draw (censor_w, censor_uw); records whose weight was "
        "set to 0 (weighted_e).",
    ),
    "privacy_weight": Caption(
        "mean privacy weight α",
        "Mean of α over records: the share of the likelihood that remains.",
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


def _arm(study: Simulation, arm: Arm) -> tuple[str, ...]:
    if arm.adds_noise:
        bins = ", ".join(f"{getattr(arm, name) or '⌈ln n⌉'} {name}" for name in arm.scanned)
        scale = "2/ε" if (arm.adjacency or study.adjacency) == "substitution" else "1/ε"
        return arm.key, arm.name, f"{bins}, noise of scale {scale}", f"strict, {arm.adjacency or study.adjacency}"
    weights = arm.weights.model_dump(exclude_defaults=True)
    weights.setdefault("rule", arm.weights.rule)
    if "radius" in arm.weights.facts.constants:
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


OF_A_RELEASE = "what a release of this family may say"
ANY = "1"
"""ε in the job of an arm whose results do not depend on ε."""


@dataclass
class StudyRecorder(BlockRecorder, StratumRecorder):
    """What a mechanism records about a stratum with one block."""

    figures: dict[str, Any] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        self.figures = values.disclose_to_custodian()

    def bounds(self, columns: Confidential[Columns]) -> None:
        self.columns = columns.disclose_to_custodian()


class Run(NamedTuple):
    """Synthetic outcomes of every set, (record,) each, and what the mechanism recorded."""

    synthetic: list[Floats]
    noted: StudyRecorder

    @property
    def database_bound(self) -> float:
        return float(self.noted.figures["database_bound"])


def replicate(study: Simulation, case: Case, number: int, records: bool = False) -> Replicate:
    """Runs all arms at every ε on file `number`; if `records` is true, it keeps the columns of records, too."""
    key = study.key_of(case.name, number)
    file = simulated_file(case, key.generator("data"))
    grid, unit = study.grid, case.generator.generator().unit
    rows = [RecordRows(DATA, grid[0], {"outcome": file.outcome * unit})] if records else []
    results = [
        Result(DATA, epsilon, *figure) for epsilon in grid for figure in location_measures(study, [file.outcome * unit])
    ]
    runs: dict[tuple[str, str], Run | None] = {}
    for arm in study.mechanisms:
        if arm.cases is not None and case.name not in arm.cases:
            continue
        several = study.needs_epsilon(arm)
        epsilons = study.grid if arm.epsilons is None else tuple(map(budget_text, arm.epsilons))
        for epsilon in epsilons if several else epsilons[:1]:
            reached = runs.get((arm.match, epsilon)) if arm.match else None
            run = run_arm(study, case, arm, epsilon, file, key, reached)
            stands_for = [epsilon] if several else epsilons
            runs |= {(arm.key, e): run for e in stands_for}
            values = list(measures(study, file.outcome, run, unit))
            results += [Result(arm.key, e, *figure) for e in stands_for for figure in values]
            if records and run is not None:
                rows.append(RecordRows(arm.key, epsilon, record_columns(run, unit)))
    return Replicate(results, rows)


def run_arm(
    study: Simulation, case: Case, arm: Arm, epsilon: str, file: SimulatedFile, key: Key, reached: Run | None
) -> Run | None:
    """None if the data do not allow it: no weights meet the bound, or no posterior exists."""
    if arm.match is not None and reached is None:
        return None
    job = job_of(study, case, arm, epsilon if study.needs_epsilon(arm) else ANY)
    crosstab, data = file.crosstab, file.records
    with scratch() as folder:
        sampler = sampler_of(job, folder)
        model = sampler.complete(builder_of(job).build(job, crosstab, slice(0, len(crosstab))))
        noted = StudyRecorder()
        try:
            learned = None
            if arm.reference:  # another simulated file of the same law and size
                earlier = simulated_file(case, key.generator("reference")).records
                learned = taught(job, model, sampler, POOLED, earlier, case.n, key)
            rounds = rounds_of(arm, job, model, noted, None if reached is None else reached.database_bound, learned)
            released = run_rounds(rounds, model, sampler, key, POOLED, [data], [noted], noise_of(key))
        except (NotReached, Improper, Spurious):
            return None
    synthetic = [
        model.simulate(theta, data.row, key.generator("synthesis", set=number))[0]
        for number, theta in enumerate(released.parameters, start=1)
    ]
    return Run(synthetic, noted)


def rounds_of(
    arm: Arm, job: Job, model: StratumModel, noted: StudyRecorder, bound: float | None, learned: Learned
) -> Rounds:
    """The mechanism's rounds, or those of a weighted posterior under the bound that another arm reached."""
    if bound is not None:
        return tilted.protect(model, search(job.mechanism.weights, bound), bound, job.synthetic_sets, noted)
    return mechanism_of(arm).protect(job, model, noted, learned)


def mechanism_of(arm: Arm) -> Mechanism:
    return MECHANISMS[arm.name] if arm.enforced else WeightedMechanism(enforced=False)


def job_of(study: Simulation, case: Case, arm: Arm, epsilon: str) -> Job:
    """The release of one set that an arm simulates."""
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
                "epsilon": epsilon,
                "adjacency": arm.adjacency or study.adjacency,
            },
            "synthetic_sets": 1,
            **({} if arm.adds_noise else {"sampler": sampler}),
            "tables": [{"name": "all", "statistics": ["count"]}],
            **({"reference": {"path": "another simulated file"}} if arm.reference else {}),
        }
    )


def measures(study: Simulation, y: Floats, run: Run | None, unit: float = 1.0) -> Iterator[tuple[str, float]]:
    if run is None:
        yield "refused", 1.0
        return
    measure_names, noted = set(study.measures), run.noted
    diagnostics = noted.figures.get("diagnostics", {})
    for name in ("database_bound", "epsilon_local", "epsilon_local_range"):
        if name in measure_names and noted.figures.get(name) is not None:
            yield name, float(noted.figures[name])
    for name in ("unweighted_database_bound", "records_censored", "fits"):
        if name in measure_names and name in diagnostics:
            yield name, float(diagnostics[name])
    if noted.columns:
        before = {"record_bound_before": "unweighted_record_bound", "record_bound_after": "weighted_record_bound"}
        for name, column in (before | {"privacy_weight": "privacy_weight"}).items():
            if name in measure_names and column in noted.columns:
                yield name, float(np.mean(noted.columns[column]))
    gaps = [distances(y, synthetic) for synthetic in run.synthetic]
    for name in ("max_ecdf", "avg_ecdf"):
        if name in measure_names:
            yield name, float(np.mean([getattr(distance, name) for distance in gaps]))
    yield from location_measures(study, [sample * unit for sample in run.synthetic])


def location_measures(study: Simulation, sets: list[Floats]) -> Iterator[tuple[str, float]]:
    """Means over sets, with the ends of intervals."""
    figures = [location(sample) for sample in sets]
    for name in ("mean", "median", "q15", "q90"):
        if name in study.measures:
            for end, suffix in (("estimate", ""), ("lower", "_lower"), ("upper", "_upper")):
                yield name + suffix, float(np.mean([getattr(intervals[name], end) for intervals in figures]))


def record_columns(run: Run, unit: float) -> dict[str, Floats]:
    """Outcomes of set 1, and every record's bounds and weight."""
    names = ("unweighted_record_bound", "weighted_record_bound", "privacy_weight")
    recorded = {name: np.asarray(run.noted.columns[name], dtype=float) for name in names if name in run.noted.columns}
    return {"outcome": run.synthetic[0] * unit, **recorded}


class SimulatedFile(NamedTuple):
    """Records with weight 1, and the crosstab of their predictors."""

    crosstab: Crosstab
    records: Records

    @property
    def outcome(self) -> Floats:
        return self.records.outcome


def simulated_file(case: Case, rng: np.random.Generator) -> SimulatedFile:
    """A file of the case's law, without predictors if the model has none."""
    law = case.generator.generator()
    sampled, levels = law.sample(case.n, rng), law.levels if case.has_predictors else {}
    sizes = tuple(len(texts) for texts in levels.values())
    rows = np.zeros(case.n, dtype=np.int32)
    codes: dict[str, Codes] = {}
    if sizes:
        cells, row = np.unique(
            np.ravel_multi_index(tuple(sampled.codes[name] for name in levels), sizes), return_inverse=True
        )
        rows = row.astype(np.int32)
        codes = {name: column.astype(np.int32) for name, column in zip(levels, np.unravel_index(cells, sizes), strict=True)}
    crosstab = Crosstab(codes, levels, np.bincount(rows), (), ())
    none = np.zeros(case.n, dtype=np.int32)
    return SimulatedFile(crosstab, Records(np.arange(case.n), rows, sampled.outcome, np.ones(case.n), none))
