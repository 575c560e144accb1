"""Benchmarks print ratios: both sides alternate in one process, and the median of the pairwise ratios is reported.

python -m pytest experiments/bench_*.py -s
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.progress import silent
from dpdist.job import Job
from dpdist.models.lognormal.model import Lognormal
from dpdist.planning.making import make_plan
from dpdist.survey.census import place

JOB = """
dataset: bench
period: "1"
input: {{simulate: {{kind: doctorates, population: {population}, sample: {n}, seed: 1}}}}
columns:
  field: {{levels: [biology, computing, mathematics, physical_sciences, psychology, social_sciences, engineering, health]}}
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 10000000]}}
survey: {{weight: weight, design_strata: [field]}}
outcome: salary
model: {{family: lognormal, predictors: [sex]}}
mechanism: {{name: weighted}}
budget: {{epsilon: "3.6"}}
tables: [{{name: t, statistics: [count]}}]
record: {{log_lik: never}}
"""


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture
def ratio(benchmark: Any, request: pytest.FixtureRequest) -> Callable[..., float]:
    """`ratio(name, a, b)`: median of time(b)/time(a), how many times as fast a is; a is also what the table times."""

    def measure(name: str, a: Callable[[], object], b: Callable[[], object], pairs: int = 9) -> float:
        def seconds(call: Callable[[], object]) -> float:
            start = perf_counter()
            call()
            return perf_counter() - start

        a(), b()
        found = median(seconds(b) / seconds(a) for _ in range(pairs))
        benchmark.extra_info[name] = found
        benchmark.pedantic(a, rounds=3)
        print(f"\n{name}: {found:.3g}")
        return found

    return measure


def simulated(n: int, folder: Path) -> tuple[Job, Lognormal, Records]:
    """A pooled stratum of n simulated records, its job and its model."""
    job = dpdist.parse_job(JOB.format(population=3 * n, n=n))
    plan = make_plan(job, None, silent)
    records = place(job, plan.source, plan.census, folder)
    return job, Lognormal.build(job, plan.crosstab, slice(0, len(plan.crosstab))), records
