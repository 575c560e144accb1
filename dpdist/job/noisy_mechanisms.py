"""Specifications of mechanisms that add noise to sums or figures of cells, or to the counts of a histogram."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpdist.job.contradiction import Contradiction, JobView, declared
from dpdist.job.mechanism import Noisy
from dpdist.job.model import Prior
from dpdist.job.names import Consistency, Guarantee, NoiseName, Sensitivity, StatisticName
from dpdist.job.runtime import Sampler


class PerturbedHistogram(Noisy):
    """A noisy histogram of the outcome with equal bins, in every stratum."""

    name: Literal["perturbed_histogram"] = Field(description="a noisy histogram in equal bins, in every stratum")
    bins: int | None = Field(
        default=None, ge=1, le=10_000, description="how many; unset: ln n, rounded up, of the mean stratum"
    )
    package: ClassVar[str] = "dpdist.mechanisms.perturbed_histogram"
    statistics: ClassVar[str | None] = "histogram"
    counts_records: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    scanned: ClassVar[dict[str, tuple[int, ...]]] = {"bins": (2, 3, 5, 8, 13, 21, 34, 55, 89)}

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        for outcome in declared(job):
            if job.columns[outcome].whole:
                found = "a histogram is uniform within its bins"
                yield Contradiction(("columns", outcome, "whole"), found, "leave whole out")


class WholeTables(Noisy):
    """Figures of whole tables under noise.

    Its two forms, `laplace` and `laplace_composed`, differ only in how ε is shared.
    """

    sensitivity: Sensitivity = Field(
        default="local", description="the file's own, which promises nothing, or by public bounds"
    )
    consistency: Consistency = Field(default="none", description="make margins the sums of their cells, at no cost")
    package: ClassVar[str] = "dpdist.mechanisms.laplace_tables"
    statistics: ClassVar[str | None] = "noisy_tables"
    tabulates: ClassVar[bool] = True
    whole_tables: ClassVar[bool] = True
    gives: ClassVar[frozenset[StatisticName]] = frozenset({"count", "mean", "total"})
    shape: ClassVar[bool] = False

    def against_noisy_frame(self, job: JobView) -> str:
        return "local sensitivities promise nothing" if self.sensitivity == "local" else ""

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", {"sensitivity": "public"}  # sensitivities of the file itself promise nothing

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
    """Noisy tables in which every figure has all of ε, as in the literature; this promises nothing."""

    name: Literal["laplace"] = Field(description="noisy tables; every figure has all of ε, which promises nothing")

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if self.sensitivity == "public":
            found = "'laplace' spends all of ε in every figure, with sensitivities of the file itself, as in the literature"
            yield Contradiction(("mechanism", "sensitivity"), found, "take laplace_composed or laplace_strict")


class LaplaceComposed(WholeTables):
    """Noisy tables in which a record's figures share ε."""

    name: Literal["laplace_composed"] = Field(description="noisy tables; ε is divided among the figures of a record")


class LaplaceStrict(Noisy):
    """Noisy sums of every base cell, with values clipped at public bounds."""

    name: Literal["laplace_strict"] = Field(description="noisy sums of every base cell, clipped at public bounds")
    package: ClassVar[str] = "dpdist.mechanisms.laplace_cells"
    statistics: ClassVar[str | None] = "cell_sums"
    tabulates: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    shape: ClassVar[bool] = False

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"


class WeightRegularisation(Noisy):
    """Noisy sums of every base cell. Weights are moved towards a common one first, so that less noise is needed."""

    name: Literal["weight_regularisation"] = Field(
        description="noisy sums of every base cell, under weights moved towards a common one"
    )
    towards: float | None = Field(
        default=None, gt=0, description="the common weight; unset: the mean weight, under noise, for 1/20 of ε"
    )
    regularisation: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="how far weights are moved, from 0 to 1; unset: the least predicted error, for 1/10 of ε",
    )
    package: ClassVar[str] = "dpdist.mechanisms.weight_regularisation"
    statistics: ClassVar[str | None] = "regularised_cells"
    tabulates: ClassVar[bool] = True
    shape: ClassVar[bool] = False

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        weight = job.survey.weight
        bounds = job.columns[weight].bounds if weight is not None and weight in job.columns else None
        if weight is None:
            found = f"'{self.name}' moves weights towards a common one, and the job names no weight"
            yield Contradiction(("survey", "weight"), found, "name the weight, or take laplace_strict")
        elif self.towards is not None and bounds is not None and not bounds[0] <= self.towards <= bounds[1]:
            found = f"{self.towards:g} is outside of the weight's public bounds"
            yield Contradiction(("mechanism", "towards"), found, f"take a weight from {bounds[0]:g} to {bounds[1]:g}")
        if job.synthetic_sets != 1:
            found = f"'{self.name}' releases one table, on which the whole budget is best spent"
            yield Contradiction(("synthetic_sets",), found, "write 1")


class ReferenceTables(Noisy):
    """Noisy sums of every base cell, clipped at limits from a reference, by whose shapes the clipping is then inverted."""

    name: Literal["reference_tables"] = Field(description="noisy sums of every base cell, clipped where a reference tells")
    shrinkage: bool = Field(default=True, description="move cells towards each other as noise moved them apart")
    package: ClassVar[str] = "dpdist.mechanisms.reference_tables"
    statistics: ClassVar[str | None] = "reference_cells"
    by_cell: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "has clipping limits that are fixed on the records"
    own_histograms: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    donates: ClassVar[bool] = True
    several_outcomes: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.synthetic_sets != 1:
            found = "'reference_tables' releases one table, on which the whole budget is best spent"
            yield Contradiction(("synthetic_sets",), found, "write 1")


class SanitizedStatistics(Noisy):
    """Noisy moments of logarithms, winsorised at limits from a reference. Synthetic sets follow from the fit to them."""

    name: Literal["sanitized_statistics"] = Field(description="noisy moments of logarithms, winsorised by a reference")
    shrinkage: bool = Field(default=True, description="move cells towards each other as noise moved them apart")
    noise: NoiseName = Field(
        default="laplace", description="discrete Laplace, for ε alone, or Gaussian, for zCDP and a delta"
    )
    package: ClassVar[str] = "dpdist.mechanisms.sanitized_lognormal"
    by_cell: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    sets_are_free: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "has clipping limits that are fixed on the records"

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

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
