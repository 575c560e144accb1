"""Runs one replicate of a study of chains: simulates a survey for each period, releases each, measures errors by period.

Rounds, models, estimators, intervals and references are the same as in a release; noise comes from NumPy generators with
keys. All arms (a mechanism with its settings) share the samples. In each period they also share the uniform random numbers
from which noise is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Floats
from dpdist.estimation.direct import Design, direct, errors_given_sizes
from dpdist.estimation.estimators import STATISTICS as FIGURES
from dpdist.evaluation.laplace import noised
from dpdist.job import Job, StatisticName
from dpdist.mechanisms.models import builder_of
from dpdist.mechanisms.reference_tables.cells import ReferenceSummary, summary_of
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.models.protocol import StratumModel
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import spreads
from dpdist.publish.tables import from_parameters
from dpdist.studies.kinds.chains_settings import ChainArm, ChainCase, ChainStudy, in_period, late
from dpdist.studies.kinds.protocol import Replicate, Result
from dpdist.studies.kinds.strict_tables_replicates import BOUNDS, learned_of, records_of, released
from dpdist.studies.kinds.tables_replicates import Survey, simulated
from dpdist.studies.kinds.tables_settings import STATISTICS, sizes_of
from dpdist.survey.simulate import FIELDS, SEXES

Found = dict[str, float]
"""Measures of one period, by name."""


def chain(study: ChainStudy, case: ChainCase, number: int) -> Replicate:
    """Runs the chain of every arm at every ε."""
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
    """Job for the release of a period, with one fit for all cells."""
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
    """Measures of the release in every period. Raises `DataError` where a reference lacks a cell."""
    before: ReleasedObject | None = None
    for period, survey in enumerate(surveys[1:], start=1):
        own = key.child(f"period {period}")
        if before is None or arm.renewed:
            reference: dict[str, Any] = {"simulate": _simulated(case, key, period - 1)}
            job = job_of(study, case, key, period, arm, epsilon, reference)
            learned = learned_of(job, survey, records_of(job, survey), own)
        else:
            reference = {"release": "before", **arm.histogram(period, epsilon)}
            job = job_of(study, case, key, period, arm, epsilon, reference)
            learned = _learned_before(before, builder_of(job).build(job, survey.frame, slice(0, len(survey.frame))))
        before = released(job, survey, learned, own)
        yield _published(before, survey)


def _learned_before(before: ReleasedObject, model: StratumModel) -> ReferenceSummary:
    """The summary of the previous release that serves as a reference. Both releases have the same cells."""
    assert isinstance(model, ReferenceCells)
    (own,) = (before.model(stratum) for stratum in range(len(before.frame.stratum_labels)))
    assert isinstance(own, ReferenceCells)
    assert own.labels == model.labels
    said, reference = before.sets[0][POOLED], []
    for points in said["points"]:
        sizes = [len(each) for each in points]
        values, frame = np.concatenate([np.array(each) for each in points]), np.repeat(model.first, sizes).astype(np.int32)
        none = np.full(len(frame), -1, dtype=np.int32)
        reference.append(Records(np.arange(len(frame)), frame, values[:, 1].copy(), values[:, 0].copy(), none))
    return summary_of(model, reference, np.array(said["standing"]))


def _published(release: ReleasedObject, survey: Survey) -> Found:
    expected, spread = expectations(release), spreads(release, lambda _: None)
    assert expected is not None
    assert spread is not None
    intervals = dict(zip(FIGURES, from_parameters(release, survey.cells, expected, spread[0]), strict=True))
    found = _errors({name: intervals[name].value for name in STATISTICS}, survey)
    for name in STATISTICS:
        truth = survey.truth[name]
        covered = (intervals[name].lower <= truth) & (truth <= intervals[name].upper)
        found[f"{name}_coverage"] = float(covered.mean())
    return found


def _direct(survey: Survey) -> Found:
    """Errors of the population's own figures, which differ from the direct estimates by chance alone."""
    return _errors({name: survey.truth[name] for name in STATISTICS}, survey)


def _composed(survey: Survey, epsilon: str, key: Key) -> Found:
    """Errors of direct estimates with Laplace noise of the sample's own sensitivity. A record's figures share ε."""
    values = {name: e.value for name, e in zip(STATISTICS, direct(survey.found, survey.frame, survey.cells), strict=False)}
    figures = survey.cells.per_record * len(STATISTICS)
    noise_key, total = key.child(epsilon), float(Fraction(epsilon))
    return _errors(noised(values, survey.found, survey.cells, total, "laplace_composed", noise_key, "all", figures), survey)


def _errors(values: Mapping[StatisticName, Floats], survey: Survey) -> Found:
    """|error| in direct standard errors: for counts both under the design and given the cells' sizes.

    Each is summarised by its median and maximum over cells with a positive standard error.
    """
    given = errors_given_sizes(survey.found, survey.frame, survey.cells, Design())
    sizes: list[float] = []
    for k, (name, estimate) in enumerate(zip(STATISTICS, direct(survey.found, survey.frame, survey.cells), strict=False)):
        for error in (np.sqrt(estimate.variance), *([given[k]] if name == "count" else [])):
            size = np.abs(values[name] - estimate.value)[error > 0] / error[error > 0]
            sizes += [float(np.median(size)), float(size.max())]
    return dict(zip((f"{name}_{what}" for name in STATISTICS for what in sizes_of(name)), sizes, strict=True))


def _by_period(label: str, epsilon: str, periods: list[Found]) -> Iterator[Result]:
    """Measures in each period, their means over all periods, and their means over the last quarter of periods."""
    for measure in periods[0]:
        values = np.array([each[measure] for each in periods])
        yield Result(label, epsilon, measure, float(values.mean()))
        yield Result(label, epsilon, late(measure), float(values[-max(1, len(values) // 4) :].mean()))
        for period, value in enumerate(values.tolist(), start=1):
            yield Result(label, epsilon, in_period(measure, period), value)
