"""Distances of exact sums between neighbouring files, over the noise's scale.

A small job is run up to its first stratum, to get its model, its records and what its reference fixed. The mechanism's
own rounds are then run in memory on neighbouring files, with the same answers for both. The costs of all queries of a
release are added over sets and stages, and must not exceed the job's budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from dpdist.audit.likelihood_ratios import AnsweredQueries, answered as answered_rounds, exactly, loss
from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import Query, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import StratumModel
from dpdist.release import run
from dpdist.runtime import tasks
from dpdist.runtime.tasks import JobFit
from dpdist.survey.batch import Findings
from dpdist.survey.checks import check
from dpdist.survey.schema import needed_columns


def taken_in(job: Job, records: Records) -> Records:
    """The records with outcomes and weights as a run stores them; the run must accept their file."""
    findings = Findings()
    columns = dict(_columns(job, records))
    checked = check(job, pa.RecordBatch.from_pydict(columns), 0, findings, text_only=False)
    assert not findings.problems, findings.problems
    assert len(checked.row) == len(records)
    outcomes = np.column_stack(checked.outcomes).reshape(records.outcomes.shape)
    return replace(records, outcomes=outcomes, weight=checked.weight)


def _columns(job: Job, records: Records) -> Iterator[tuple[str, list[object]]]:
    """Columns of a file: those that no record determines have one value, and codes are those of the nearest texts."""
    values = records.outcomes.reshape(len(records), -1).T
    for name in needed_columns(job):
        column = job.columns.get(name)
        if name in job.outcomes:
            number: Floats = values[job.outcomes.index(name)]
            codes = column.codes if column is not None else None
            yield name, [value if codes is None else _nearest(codes, value) for value in number.tolist()]
        elif name == job.survey.weight:
            yield name, records.weight.tolist()
        else:
            level: object = column.levels[0] if column is not None and column.levels else "1"
            yield name, [level] * len(records)


def _nearest(codes: Mapping[str, float], number: float) -> str:
    return min(codes, key=lambda text: abs(codes[text] - number))


KEY = Key(b"\x0c" * 32)
"""The key of all random draws here, so that repeated checks agree."""

ROUNDING = 1e-6
"""Relative allowance of a cost for rounding sums to whole units."""
LEAST_SEEN = 0.5
"""Least part of ε that neighbours of a small file must cost.
Below it, a mechanism adds too much noise, or these records do not reach its sums.
"""


@dataclass
class CapturedStratum:
    """A stratum of a small job, before it is protected."""

    fit: JobFit
    stratum: int
    records: Records

    @property
    def job(self) -> Job:
        return self.fit.job

    @cached_property
    def model(self) -> StratumModel:
        return self.fit.fitted(self.stratum)


class Seen(Exception):
    """Raised in place of the rest of a release, once its first stratum is known."""


def capture(job: Job, workspace: Path) -> CapturedStratum:
    """Runs a small job up to its first stratum, and keeps the inputs of its mechanism."""
    cases = list[CapturedStratum]()

    def protect(fit: JobFit, stratum: int) -> None:
        cases.append(CapturedStratum(fit, stratum, Records.joined(fit.records(fit.layout.blocks.of_stratum(stratum)))))
        raise Seen

    with patch.object(tasks, "protect_small", protect), suppress(Seen):
        run(job, workspace)
    return cases[0]


def answered(
    case: CapturedStratum, records: Records, answer: Callable[[int, Query], Any], mechanism: Any = None
) -> AnsweredQueries:
    """Drives a mechanism over a file; `answer` takes the number of each query, and the query."""
    fit, protection = case.fit, mechanism or mechanism_of(case.job)
    learned = fit.learned(case.stratum) if case.job.has_reference else None
    rounds = protection.protect(case.job, case.model, StratumRecorder(), learned)
    return answered_rounds(rounds, case.model, fit.sampler, records, answer, KEY)


def neighbours(job: Job, records: Records) -> tuple[list[Records], list[tuple[int, int]]]:
    """Files that differ only in the first record, and the pairs of them that are neighbours.
    Its values lie at, between and beyond public bounds, or it is absent.
    """
    bounds = [job.columns[name].ends for name in job.outcomes]
    ends = [list(values) for values in zip(*((low, high, (low + high) / 2.0) for low, high in bounds), strict=True)]
    column, weights = job.columns.get(job.survey.weight or ""), [1.0]
    if column is not None:
        low, high = column.bounds or (1.0, float(records.weight.max()))
        weights = [low, high] + [4.0 * high, low / 1000.0] * (column.outside == "clip")
    files = [_with_first(job, records, outcomes, weight) for outcomes, weight in product(ends, weights)]
    number = len(files)
    if job.budget.adjacency != "substitution":
        without = records.take(slice(1, None))
        return [*files, without], [(k, number) for k in range(number)]
    pairs = [(left, right) for left in range(number) for right in range(left)]
    elsewhere = np.flatnonzero(records.row != records.row[0])[:1] if job.budget.exchange == "anywhere" else ()
    moves = [_with_row(file, int(records.row[k])) for k in elsewhere for file in files]
    return [*files, *moves], pairs + [(left, number + right) for left in range(number) for right in range(len(moves))]


def _with_first(job: Job, records: Records, outcomes: Sequence[float], weight: float) -> Records:
    """The file with these values in its first record, after the check of every run."""
    values, weights = np.array(records.outcomes), np.array(records.weight)
    first = replace(records.part(0, 1), outcomes=np.array([outcomes]), weight=np.array([weight]))
    columns_of = taken_in(job, first)
    values[0], weights[0] = columns_of.outcomes[0], columns_of.weight[0]
    return replace(records, outcomes=values, weight=weights)


def _with_row(records: Records, row: int) -> Records:
    crosstab = np.array(records.row)
    crosstab[0] = row
    return replace(records, row=crosstab)


def loss_between(left: Sequence[Query], right: Sequence[Query]) -> float:
    """The cost of two files' queries until adaptive paths part: ε under Laplace noise, ρ under Gaussian noise."""
    pairs = zip(left, right, strict=False)
    return loss(takewhile(lambda pair: len({(query.noise.query, query.noise.scale) for query in pair}) == 1, pairs))


def problems_of_scale(name: str, case: CapturedStratum, mechanism: Any = None, least: float = LEAST_SEEN) -> list[str]:
    """A fault if the noise is less than the job's budget requires, or so much that neighbours cost less than this part."""
    job = case.job
    base = answered(case, case.records, exactly(), mechanism)
    if not base.queries:
        return [f"{name}: it asks for no noise: yield Defined.by_content(model).sums(sums, scale, number)"]
    files, pairs = neighbours(job, case.records)
    queries = [answered(case, file, exactly(base), mechanism).queries for file in files]
    largest = max(loss_between(queries[left], queries[right]) for left, right in pairs)
    if base.queries[0].noise.law == "gaussian":
        unit, budget = "rho", float(job.rho.release)
    else:
        unit, budget = "epsilon", float(job.budget.epsilon - job.epsilon.crosstab)
    if largest < budget * least:
        return [f"{name}: no neighbouring files cost more than {largest:.3g} of {unit} = {budget:.4g}: is a share lost?"]
    if largest <= budget * (1.0 + ROUNDING):
        return []
    remedy = "compare the scale with the sensitivity, the clipping, and what every set and stage is given"
    return [f"{name}: two neighbouring files cost {largest:.4g}, and the job's {unit} is {budget:.4g}: {remedy}"]
