"""How often intervals from MODIPS sets alone hold the mean under weights, T = B/m + W ([M] §3).

Without weights the study of MODIPS has it: tests/studies/test_modips_normal.py.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm, t
from test_modips import Notes

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import noise_of, run_rounds
from dpdist.estimation.estimators import combine_sets
from dpdist.job.loading import parse_job
from dpdist.mechanisms.modips.post import Moments
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.sampling.samplers import IndependentSampler

N = 100
JOB = """
dataset: coverage
period: "1"
columns:
  y: {bounds: [-4, 4], outside: clip}
  w: {bounds: [1, 40], outside: clip}
survey: {weight: w}
outcome: y
mechanism: {name: modips, law: normal}
budget: {epsilon: "400", adjacency: substitution}
synthetic_sets: 5
tables: [{name: t, by: [], statistics: [{mean: y}]}]
"""


def weighted_intervals(files: int, factor: bool) -> Floats:
    """Estimate, √T and half width of the 95 % interval of every file, (file, 3), from a sample whose weights vary.

    `factor`: W times the weight's bound over the mean weight, as the statement says.
    """
    job = parse_job(JOB)
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([N]), (), ()), slice(0, 1))
    assert isinstance(model, Moments)
    rows, found = np.zeros(N, np.int32), []
    for number in range(files):
        key = Key(bytes(31) + b"w").child(str(number))
        rng = key.generator("file")
        y, w = np.clip(rng.normal(size=N), -4.0, 4.0), np.where(rng.random(N) < 0.25, 40.0, 4.0)
        file = Records.of_outcomes(y, w, rows)
        rounds = MECHANISMS["modips"].protect(job, model, Notes(), None)
        released = run_rounds(rounds, model, IndependentSampler(1), key, "all", [file], noise=noise_of(key)).parameters
        drawn = [model.simulate(theta, rows, key.generator("sets", set=k)) for k, theta in enumerate(released)]
        means, variances = (np.array([[f(values)] for values, _ in drawn]) for f in (np.mean, np.var))
        effect = 40.0 / drawn[0][1].mean() if factor else 1.0
        total = combine_sets(means, variances * effect / N, float("inf"))
        wide = t.ppf(0.975, total.df[0]) if np.isfinite(total.df[0]) else norm.ppf(0.975)
        found.append([total.value[0], total.standard_error[0], wide * total.standard_error[0]])
    return np.array(found)


def test_sets_alone_cover_under_weights_with_the_factor_that_the_statement_names() -> None:
    """Of 95 % intervals; without the factor W has no design effect, which is 1.8 here."""
    assert covered(weighted_intervals(200, factor=True)) > 0.92
    assert covered(weighted_intervals(200, factor=False)) < 0.92


def covered(found: Floats) -> float:
    return float((np.abs(found[:, 0]) <= found[:, 2]).mean())
