"""Studies of chains: yearly releases of `reference_tables`, each with the previous release as its reference.

The survey changes from year to year, and the study shows how errors grow. All arms share the samples, and in each
period the uniform random numbers behind the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Floats
from dpdist.estimation.direct import Design, direct, errors_given_sizes
from dpdist.estimation.estimators import STATISTICS as FIGURES
from dpdist.job import Budget, Frozen, Job, Name, StatisticName, budget_text
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.reference_tables.cells import ReferenceSummary, summary_of
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.models.protocol import StratumModel
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import spreads
from dpdist.publish.tables import from_parameters
from dpdist.quality.comparators import noised
from dpdist.studies.kinds.populations import BOUNDS, EARLIER, OfSurveys, Survey, SurveyCase, simulated
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, SimulatedKind, randomness
from dpdist.studies.kinds.strict_tables import learned_of, records_of, released
from dpdist.studies.kinds.table_errors import COVERAGE_TITLE, STATISTICS, chain_epsilon, errors_in_direct_se, sizes_of
from dpdist.survey.simulate import FIELDS, SEXES

UNCHAINED = ("direct", "laplace_composed")
"""Labels of every case beside the study's arms."""


class ChainCase(SurveyCase):
    """A survey in every period; period 0 is public, the reference of the first release.

    The law's shape changes by equal steps; `growth` is the relative growth of salaries and population in one period.
    """

    periods: int = Field(default=16, ge=2, le=99)

    def survey(self, period: int) -> dict[str, Any]:
        """Arguments that simulate a period's survey, without a seed."""
        part, grown = period / self.periods, (1.0 + self.growth) ** period
        shape = {name: first + part * (getattr(self, name) - first) for name, first in EARLIER.items()}
        size = {"population": round(self.population * grown), "sample": self.sample}
        return {"kind": "doctorates", **size, "law": self.law, "growth": grown - 1.0, **shape}


class ChainArm(Frozen):
    """Every `refresh`-th release spends a `share` of its ε on new histograms for its reference.

    With `renewed`, each reference is the previous period's file, treated as public.
    """

    label: Name
    refresh: int | None = Field(default=None, ge=1)
    share: Budget = Fraction(3, 10)
    renewed: bool = False
    adjacency: Literal["zero_out", "substitution"] = "zero_out"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.share >= 1:
            raise ValueError("share is a share, below 1, of a refreshed release's ε")
        if self.renewed and self.refresh is not None:
            raise ValueError("releases fixed on files have nothing to refresh: leave refresh out")
        return self

    def histogram(self, period: int, epsilon: str) -> dict[str, Any]:
        """Settings of a reference's histograms; empty in periods without histograms."""
        if self.refresh is None or period % self.refresh:
            return {}
        return {"histogram": {"epsilon": budget_text(self.share * Fraction(epsilon))}}


class ChainStudy(OfSurveys):
    """|Error| in direct standard errors, median and maximum over 27 cells, and coverage of 90 % intervals.

    By period, for the whole chain, and for its last quarter. Errors of counts are also computed for fixed cell sizes.
    """

    kind: Literal["chain"]
    cases: tuple[ChainCase, ...] = Field(min_length=1)
    mechanisms: tuple[ChainArm, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNCHAINED, *(arm.label for arm in self.mechanisms))

    @property
    def all_measures(self) -> tuple[str, ...]:
        names = [f"{name}_{what}" for name in STATISTICS for what in (*sizes_of(name), "coverage")]
        return (*(name for one in names for name in (one, late(one))), "chain_epsilon")


def late(measure: str) -> str:
    """Name of the mean over the last quarter of a chain."""
    statistic, what = measure.split("_", 1)
    return f"{statistic}_late_{what}"


def in_period(measure: str, period: int) -> str:
    return f"{measure} in period {period:02d}"


BESIDE = (
    ("direct", "nothing: the population's own figures, whose distance from the direct estimates is chance", "–", "–"),
    (
        "laplace_composed",
        "direct + Laplace noise of the sample's own sensitivity, ε shared by a record's 8 figures",
        "–",
        "none",
    ),
)


class Chains(SimulatedKind):
    settings = ChainStudy
    heads = ("Label", "What is released", "Fixed on", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        reading = (
            "Nominal .90, with the standard errors that the release publishes: proportion of the 27 cells whose interval "
            "holds the population's figure, mean over the {}."
        )
        covered = {
            measure: Caption(COVERAGE_TITLE.format(name) + title, reading.format(when))
            for name in STATISTICS
            for measure, title, when in (
                (f"{name}_coverage", "", "chain"),
                (late(f"{name}_coverage"), ", last quarter of the chain", "chain's last quarter"),
            )
        }
        return {**errors_in_direct_se(), **covered, **chain_epsilon()}

    def replicate(self, study: ChainStudy, case: int, number: int) -> Replicate:
        return chain(study, study.cases[case], number)

    def facts(self, study: ChainStudy) -> list[Fact]:
        numbers = sorted({study.replicates_of(k) for k in range(len(study.cases))})
        return [
            (
                "Data",
                [
                    "simulated doctorates, a population and a sample of its own in every period; counts and mean salaries "
                    "by field × sex with margins, 27 cells"
                ],
            ),
            ("Cases", [f"{case.name}: {case.periods} periods, {case.described(' a period')}" for case in study.cases]),
            ("Replicates", [f"R = {' or '.join(map(str, numbers))} chains"]),
            ("ε", [", ".join(study.grid) + " of every release, histograms included: all chains cost the same in all"]),
            randomness(study),
        ]

    def arms(self, study: ChainStudy) -> list[tuple[str, ...]]:
        return [*BESIDE, *map(_arm, study.mechanisms)]


def _arm(arm: ChainArm) -> tuple[str, ...]:
    what, fixed = "reference_tables", "the release before; the first on period 0's file, which is public"
    if arm.renewed:
        fixed = "the file of the period before, as if it were public"
    if arm.refresh is not None:
        every = "every release" if arm.refresh == 1 else f"every {arm.refresh}th release"
        what += (
            f"; {every} spends {100 * float(arm.share):g} % of its ε on histograms that bring the carried shapes up to date"
        )
    return arm.label, what, fixed, f"strict, {arm.adjacency}"


Found = dict[str, float]
"""Measures of one period, by name."""


def chain(study: ChainStudy, case: ChainCase, number: int) -> Replicate:
    key = study.key_of(case.name, number)
    surveys = [simulated(job_of(study, case, key, period)) for period in range(case.periods + 1)]
    results: list[Result] = []
    for epsilon in study.grid:
        results += _by_period("direct", epsilon, [_direct(survey) for survey in surveys[1:]])
        composed = [_composed(survey, epsilon, key.child(f"period {t}")) for t, survey in enumerate(surveys) if t]
        results += _by_period("laplace_composed", epsilon, composed)
        for arm in study.mechanisms:
            try:
                results += _by_period(arm.label, epsilon, list(_releases(study, case, arm, epsilon, surveys, key)))
            except DataError:  # A small cell has no record in this sample.
                results.append(Result(arm.label, epsilon, "refused", 1.0))
                continue
            results.append(Result(arm.label, epsilon, "chain_epsilon", float(Fraction(epsilon) * case.periods)))
    return Replicate(results, [])


def job_of(
    study: ChainStudy,
    case: ChainCase,
    key: Key,
    period: int,
    arm: ChainArm | None = None,
    epsilon: str = "1",
    reference: Mapping[str, Any] | None = None,
) -> Job:
    """The release of a period, with one fit for all cells."""
    return Job.model_validate(
        {
            "dataset": study.study,
            "period": str(period),
            "input": {"simulate": _simulated(case, key, period)},
            "columns": {
                "field": {"levels": FIELDS},
                "sex": {"levels": SEXES},
                "salary": {"bounds": BOUNDS[case.law], "outside": "clip"},
            },
            "survey": {"weight": "weight", "design_strata": ["field"], "lonely_psu": "certainty"},
            "outcome": "salary",
            "mechanism": {"name": "reference_tables"},
            "budget": {"epsilon": epsilon, "adjacency": arm.adjacency if arm is not None else "zero_out"},
            "reference": reference,
            "tables": [{"name": "salaries", "by": ["field", "sex"], "statistics": ["count", {"mean": "salary"}]}],
        }
    )


def _simulated(case: ChainCase, key: Key, period: int) -> dict[str, Any]:
    return case.survey(period) | {"seed": int(key.child(f"survey {period}").hex()[:12], 16)}


def _releases(
    study: ChainStudy, case: ChainCase, arm: ChainArm, epsilon: str, surveys: list[Survey], key: Key
) -> Iterator[Found]:
    """Measures by period. Raises `DataError` if a reference lacks a cell."""
    before: ReleasedObject | None = None
    for period, survey in enumerate(surveys[1:], start=1):
        noise_key = key.child(f"period {period}")
        if before is None or arm.renewed:
            reference: dict[str, Any] = {"simulate": _simulated(case, key, period - 1)}
            job = job_of(study, case, key, period, arm, epsilon, reference)
            learned = learned_of(job, survey, records_of(job, survey), noise_key)
        else:
            reference = {"release": "before", **arm.histogram(period, epsilon)}
            job = job_of(study, case, key, period, arm, epsilon, reference)
            learned = _learned_before(before, builder_of(job).build(job, survey.frame, slice(0, len(survey.frame))))
        before = released(job, survey, learned, noise_key)
        yield _published(before, survey)


def _learned_before(before: ReleasedObject, model: StratumModel) -> ReferenceSummary:
    assert isinstance(model, ReferenceCells)
    (earlier,) = (before.model(stratum) for stratum in range(len(before.frame.stratum_labels)))
    assert isinstance(earlier, ReferenceCells)
    assert earlier.labels == model.labels
    parameters, reference = before.sets[0][POOLED], []
    for points in parameters["points"]:
        sizes = [len(pairs) for pairs in points]
        values, frame = (
            np.concatenate([np.array(pairs) for pairs in points]),
            np.repeat(model.first, sizes).astype(np.int32),
        )
        none = np.full(len(frame), -1, dtype=np.int32)
        reference.append(Records(np.arange(len(frame)), frame, values[:, 1].copy(), values[:, 0].copy(), none))
    return summary_of(model, reference, np.array(parameters["standing"]))


def _published(release: ReleasedObject, survey: Survey) -> Found:
    expected, spread = expectations(release), spreads(release, lambda _: None)
    assert expected is not None
    assert spread is not None
    intervals = dict(zip(FIGURES, from_parameters(release, survey.cells, expected, spread[0]), strict=True))
    measures = _errors({name: intervals[name].value for name in STATISTICS}, survey)
    for name in STATISTICS:
        truth = survey.truth[name]
        covered = (intervals[name].lower <= truth) & (truth <= intervals[name].upper)
        measures[f"{name}_coverage"] = float(covered.mean())
    return measures


def _direct(survey: Survey) -> Found:
    """Errors of the population's own figures, which differ from direct estimates only by chance."""
    return _errors({name: survey.truth[name] for name in STATISTICS}, survey)


def _composed(survey: Survey, epsilon: str, key: Key) -> Found:
    """Errors of direct estimates under Laplace noise of the sample's own sensitivity, with ε shared by a record's
    figures.
    """
    values = {name: e.value for name, e in zip(STATISTICS, direct(survey.totals, survey.frame, survey.cells), strict=False)}
    figures = survey.cells.per_record * len(STATISTICS)
    noise_key, total = key.child(epsilon), float(Fraction(epsilon))
    return _errors(
        noised(values, survey.totals, survey.cells, total, "laplace_composed", noise_key, "all", figures), survey
    )


def _errors(values: Mapping[StatisticName, Floats], survey: Survey) -> Found:
    """Median and maximum of |error| over cells, in direct standard errors; for counts also for fixed cell sizes."""
    given = errors_given_sizes(survey.totals, survey.frame, survey.cells, Design())
    sizes: list[float] = []
    for k, (name, estimate) in enumerate(zip(STATISTICS, direct(survey.totals, survey.frame, survey.cells), strict=False)):
        for error in (np.sqrt(estimate.variance), *([given[k]] if name == "count" else [])):
            size = np.abs(values[name] - estimate.value)[error > 0] / error[error > 0]
            sizes += [float(np.median(size)), float(size.max())]
    return dict(zip((f"{name}_{what}" for name in STATISTICS for what in sizes_of(name)), sizes, strict=True))


def _by_period(label: str, epsilon: str, periods: list[Found]) -> Iterator[Result]:
    for measure in periods[0]:
        values = np.array([measures[measure] for measures in periods])
        yield Result(label, epsilon, measure, float(values.mean()))
        yield Result(label, epsilon, late(measure), float(values[-max(1, len(values) // 4) :].mean()))
        for period, value in enumerate(values.tolist(), start=1):
            yield Result(label, epsilon, in_period(measure, period), value)
