"""Lower bounds on ε from outside, of every strict mechanism that adds noise: not over the claim, and over it at half noise.

Prints a row a mechanism: the bound over the claim, as it is and under halved noise.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from losses import Case
from test_lower_bounds import halved, pair

from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame, Records
from dpdist.evaluation.lower_bounds import draws, lower_bound
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.job.mechanisms import SPECS
from dpdist.mechanisms.models import builder_of
from dpdist.sampling import sampler_of

pytestmark = pytest.mark.slow
SEVERAL, FEW = 1_500, 400
"""Draws a file; few where the post-processing of one takes long. Halved noise has ε = 2, which both pass 1 for."""
LONG = ("reference_tables", "sanitized_statistics")
SUMS = {
    "reference_tables": Case("reference_tables", "zero_out"),
    "reference_tables, add_remove": Case("reference_tables", "add_remove"),
    "sanitized_statistics": Case("sanitized_statistics", "zero_out"),
    "laplace_strict": Case("laplace_strict", "zero_out"),
    "laplace_strict, substitution": Case("laplace_strict", "substitution"),
    "weight_regularisation": Case("weight_regularisation", "zero_out"),
    "laplace_composed": Case("laplace_composed", "zero_out"),
    "perturbed_histogram": Case("perturbed_histogram", "zero_out", weighted=False),
    "modips": Case("modips", "zero_out"),
}
CODED = """
dataset: coded
period: "1"
columns:
  sex: {bounds: [0, 1], whole: true, outside: clip}
  kids: {bounds: [0, 2], whole: true, outside: clip}
  age: {bounds: [0, 2], whole: true, outside: clip}
  weight: {bounds: [1, 200], outside: clip}
survey: {weight: weight}
outcome: [sex, kids, age]
mechanism: {NAMED}
budget: {epsilon: "1"}
tables: [{name: t, by: [], statistics: [count]}]
"""
OF_CODES = {
    "weighted_marginals": "name: weighted_marginals, marginals: [[sex, kids], [age]]",
    "weighted_marginals, chosen": "name: weighted_marginals",
    "flat_laplace": "name: flat_laplace",
    "universal_histogram": "name: universal_histogram, layers: 3, order_seed: 4",
    "steps": "name: steps, order: [sex, kids]",
    "steps, selected": "name: steps, layers: 3",
}
ALL = [*OF_CODES, *SUMS]


def coded(n: int) -> Records:
    """n - 1 plain people, and one of the largest weight with levels that nobody else has."""
    rng = np.random.default_rng(2)
    outcomes = np.column_stack([np.zeros(n), rng.integers(0, 2, n), rng.integers(0, 2, n)]).astype(float)
    outcomes[-1] = 1.0, 2.0, 2.0
    weight = np.append(rng.uniform(1.0, 20.0, n - 1), 200.0)
    return Records(np.arange(n), np.zeros(n, np.int32), outcomes, weight, np.full(n, -1, np.int32))


def shown(name: str, runs: int) -> float:
    """The bound, over the claim of 1."""
    if name in SUMS:
        case = SUMS[name]
        job, model, learned, files = case.job, case.model, case.learned, pair(case)
    else:
        job, whole = of_codes(name), coded(30)
        model, learned = builder_of(job).build(job, Frame({}, {}, np.array([30]), (), ()), slice(0, 1)), None
        files = whole, whole.take(np.arange(29))
    sampler = sampler_of(job, None)  # type: ignore[arg-type]
    found: list[Floats] = [draws(job, model, learned, sampler, file, runs, Key.from_os()) for file in files]
    return lower_bound(*found)


@cache
def of_codes(name: str) -> Job:
    return parse_job(CODED.replace("NAMED", OF_CODES[name]))


@pytest.mark.parametrize("name", ALL)
def test_no_bound_is_over_the_claim_and_halved_noise_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FEW if name.startswith(LONG) else SEVERAL
    at_claim = shown(name, runs)
    halved(monkeypatch)
    control = shown(name, runs)
    print(f"| {name} | {at_claim:.2f} | {control:.2f} |", flush=True)
    assert at_claim <= 1.0
    assert control > 1.0


def test_every_strict_mechanism_that_adds_noise_is_among_them() -> None:
    assert {name for name, spec in SPECS.items() if spec.adds_noise} - {"laplace"} == {name.split(",")[0] for name in ALL}
