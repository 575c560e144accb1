"""One specification a mechanism: its constants, its guarantee, its facts, what it refuses; told apart by `name`.

A new mechanism is a class here, a member of `Mechanism`, and a folder of its own under dpdist/mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from dpdist.job.contradiction import Contradiction, declared
from dpdist.job.marginals import WeightedMarginals
from dpdist.job.mechanism import Clamped, FixedWeights, MechanismSpec, Noisy
from dpdist.job.model import Prior
from dpdist.job.modips import Modips
from dpdist.job.names import LARGEST_DRIFT, Consistency, Guarantee, NoiseName, Sensitivity, StatisticName, Statistics
from dpdist.job.partitions import FlatLaplace, Steps, UniversalHistogram
from dpdist.job.running import Sampler
from dpdist.job.view import JobView
from dpdist.job.weights import RuleOrName, Weights


class Weighted(MechanismSpec):
    """A posterior with privacy weights that are tuned to the bound, on the file itself or on a reference."""

    name: Literal["weighted"] = Field(description="a posterior with tuned privacy weights")
    weights: RuleOrName = Field(
        default=Weights(rule="fixed_point"), description="privacy weights: a rule's name, or the rule with its constants"
    )
    aim: float = Field(
        default=0.6, gt=0, le=1, description="share of Δ* that weights aim at on a reference; the rest is for drift"
    )
    weighs: ClassVar[bool] = True
    tunes_weights: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "none" if self.weights.rule == "none" else "asymptotic"

    def aim_on_reference(self, target: float) -> float:
        return self.aim * target

    def published(self, job: JobView) -> dict[str, Any]:
        aimed = job.reference is not None and self.weights.rule != "none"
        return self.model_dump(mode="json", exclude=set() if aimed else {"aim"})

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.reference is not None and self.weights.rule == "none" and job.family != "scores":
            yield Contradiction(("reference",), "without privacy weights nothing is fixed on a reference", "leave it out")
        if job.reference is None and self.aim != type(self).model_fields["aim"].default:
            found = "only weights that are tuned on a reference aim below the target"
            yield Contradiction(("mechanism", "aim"), found, "leave it out")


class Unweighted(MechanismSpec):
    """The posterior itself, which promises nothing."""

    name: Literal["unweighted"] = Field(description="the posterior itself")

    def guarantee(self, job: JobView) -> Guarantee:
        return "none"


class WeightedE(FixedWeights):
    """[G]: weights by the rule's constants, 0 where a record's weighted bound passes the target."""

    name: Literal["weighted_e"] = Field(description="a posterior with fixed privacy weights, cut off at the bound")
    cuts_weights: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "asymptotic"

    def aim_on_reference(self, target: float) -> float:
        return target

    def against_weights(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().against_weights(job)
        if self.weights.reweight is not None:
            found = "'weighted_e' cuts weights off before re-weighting"
            yield Contradiction(("mechanism", "weights", "reweight"), found, "leave it out")


class CensorW(FixedWeights, Clamped):
    """[G]: a clamped likelihood with weights that are re-weighted by k = .95, which it leaves out (METHODS §4).

    Weights fixed on a reference are functions of a record; learned on the file itself, they are not.
    """

    name: Literal["censor_w"] = Field(description="a clamped likelihood with privacy weights")
    own_weights: ClassVar[dict[str, Any]] = {"c": 1.0, "reweight": 0.95}
    weights: RuleOrName = Field(
        default=Weights(rule="linear", c=1.0, reweight=0.95),
        description="privacy weights, by a rule with a constant c: its name, or the rule with its constants",
    )

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict" if job.reference is not None else "asymptotic"


class CensorUW(Clamped):
    """[G]: a clamped likelihood without privacy weights."""

    name: Literal["censor_uw"] = Field(description="a clamped likelihood without privacy weights")

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"


class Centred(Clamped):
    """A likelihood clamped about a fit of the reference."""

    name: Literal["centred"] = Field(description="a likelihood clamped about a fit of the reference")
    drift: float = Field(
        default=0.25, ge=0, le=LARGEST_DRIFT, description="the planned distance from the reference, in sd of a record"
    )
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "centres likelihoods at a fit"
    centres: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"


class PerturbedHistogram(Noisy):
    """A noisy histogram in equal bins, in every stratum."""

    name: Literal["perturbed_histogram"] = Field(description="a noisy histogram in equal bins, in every stratum")
    bins: int | None = Field(
        default=None, ge=1, le=10_000, description="how many; unset: ln n, rounded up, of the mean stratum"
    )
    statistics: ClassVar[Statistics | None] = "histogram"
    gates: ClassVar[bool] = True
    scanned: ClassVar[dict[str, tuple[int, ...]]] = {"bins": (2, 3, 5, 8, 13, 21, 34, 55, 89)}

    def clips(self, job: JobView) -> bool:
        return False  # records are counted, without their weights

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        for outcome in declared(job):
            if job.columns[outcome].whole:
                found = "a histogram is uniform within its bins"
                yield Contradiction(("columns", outcome, "whole"), found, "leave whole out")


class WholeTables(Noisy):
    """Figures of whole tables under noise: `laplace` and `laplace_composed`, which differ in how ε is shared alone."""

    sensitivity: Sensitivity = Field(
        default="local", description="the file's own, which promises nothing, or by public bounds"
    )
    consistency: Consistency = Field(default="none", description="make margins the sums of their cells, at no cost")
    statistics: ClassVar[Statistics | None] = "noisy_tables"
    tabulates: ClassVar[bool] = True
    whole_tables: ClassVar[bool] = True
    gives: ClassVar[frozenset[StatisticName]] = frozenset({"count", "mean", "total"})
    shape: ClassVar[bool] = False

    def against_noisy_frame(self, job: JobView) -> str:
        return "local sensitivities promise nothing" if self.sensitivity == "local" else ""

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", {"sensitivity": "public"}  # the file's own promises nothing

    def guarantee(self, job: JobView) -> Guarantee:
        return "none" if self.sensitivity == "local" else "strict"

    def clips(self, job: JobView) -> bool:
        return self.sensitivity == "public"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if self.sensitivity == "local" and job.budget.adjacency == "substitution":
            found = f"'{self.name}' with local sensitivities promises nothing, under no adjacency"
            yield Contradiction(("budget", "adjacency"), found, "leave it out, or take laplace_strict")
        if job.strata:
            found = f"'{self.name}' noises tables with their margins over the whole file"
            yield Contradiction(("strata",), found, "leave strata out")
        if job.synthetic_sets != 1:
            found = f"'{self.name}' releases one set of tables, on which all of ε is best spent"
            yield Contradiction(("synthetic_sets",), found, "write 1")
        if job.rake:
            found = f"'{self.name}' releases figures, and no weights that could be raked"
            yield Contradiction(("rake",), found, "leave rake out")


class Laplace(WholeTables):
    """Noisy tables in which every figure has all of ε, as in the literature."""

    name: Literal["laplace"] = Field(description="noisy tables; every figure has all of ε, which promises nothing")

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if self.sensitivity == "public":
            found = "'laplace' spends all of ε in every figure, with sensitivities of the file itself, as in the literature"
            yield Contradiction(("mechanism", "sensitivity"), found, "take laplace_composed or laplace_strict")


class LaplaceComposed(WholeTables):
    """Noisy tables among whose figures ε is divided."""

    name: Literal["laplace_composed"] = Field(description="noisy tables; ε is divided among the figures of a record")


class LaplaceStrict(Noisy):
    """Noisy sums of every base cell, clipped at public bounds."""

    name: Literal["laplace_strict"] = Field(description="noisy sums of every base cell, clipped at public bounds")
    statistics: ClassVar[Statistics | None] = "cell_sums"
    tabulates: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    shape: ClassVar[bool] = False


class ReferenceTables(Noisy):
    """Noisy sums of every base cell, clipped where a reference tells; clipping is undone by the reference's shapes."""

    name: Literal["reference_tables"] = Field(description="noisy sums of every base cell, clipped where a reference tells")
    shrinkage: bool = Field(default=True, description="move cells towards each other as noise moved them apart")
    statistics: ClassVar[Statistics | None] = "reference_cells"
    by_cell: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "clips where the records tell"
    own_histograms: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    donates: ClassVar[bool] = True
    several_outcomes: ClassVar[bool] = True

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.synthetic_sets != 1:
            found = "'reference_tables' releases one table, on which the whole budget is best spent"
            yield Contradiction(("synthetic_sets",), found, "write 1")


class SanitizedStatistics(Noisy):
    """Noisy moments of logarithms, winsorised by a reference; synthetic sets follow from the fit to them."""

    name: Literal["sanitized_statistics"] = Field(description="noisy moments of logarithms, winsorised by a reference")
    shrinkage: bool = Field(default=True, description="move cells towards each other as noise moved them apart")
    noise: NoiseName = Field(
        default="laplace", description="discrete Laplace, for ε alone, or Gaussian, for zCDP and a delta"
    )
    by_cell: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    sets_are_free: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "clips where the records tell"

    @property
    def gaussian(self) -> bool:
        return self.noise == "gaussian"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.likelihood.family != "lognormal":
            found = f"'{self.name}' releases statistics of the lognormal law"
            yield Contradiction(("model", "family"), found, "take family: lognormal")
            return
        if job.sampler != Sampler(name="exact"):
            yield Contradiction(("sampler",), f"'{self.name}' draws from no posterior", "leave sampler out")
        if job.likelihood.prior != Prior():
            found = f"'{self.name}' has the reference in place of a prior"
            yield Contradiction(("model", "prior"), found, "leave prior out")
        for outcome in declared(job):
            if (bounds := job.columns[outcome].bounds) is not None and bounds[0] <= 0:
                found = f"'{self.name}' is strict, and whether an outcome is 0 depends on the records"
                remedy = "give bounds from above 0, to which lower values are clipped"
                yield Contradiction(("columns", outcome, "bounds"), found, remedy)


Mechanism = Annotated[
    Weighted
    | Unweighted
    | WeightedE
    | CensorW
    | CensorUW
    | Centred
    | PerturbedHistogram
    | Laplace
    | LaplaceComposed
    | LaplaceStrict
    | ReferenceTables
    | SanitizedStatistics
    | Modips
    | FlatLaplace
    | UniversalHistogram
    | Steps
    | WeightedMarginals,
    Field(discriminator="name"),
]
"""A job's mechanism."""
SPECS: dict[str, type[MechanismSpec]] = {
    get_args(spec.model_fields["name"].annotation)[0]: spec for spec in get_args(get_args(Mechanism)[0])
}
"""Every mechanism's specification, by its name."""


def spec_of(settings: Mapping[str, Any]) -> type[MechanismSpec] | None:
    """The specification of a job's mechanism, from its settings by dotted key; None where they name none that is known."""
    return SPECS.get(settings.get("mechanism.name", ""))


def those(fact: Callable[[type[MechanismSpec]], object]) -> tuple[str, ...]:
    """Names of the mechanisms of which a fact holds, for messages."""
    return tuple(name for name, spec in SPECS.items() if fact(spec))


STATISTICS: dict[str, Statistics] = {name: spec.statistics for name, spec in SPECS.items() if spec.statistics is not None}
"""Statistics of the mechanisms that fit no likelihood: their jobs have no `model`."""
