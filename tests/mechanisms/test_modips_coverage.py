"""How often intervals from MODIPS sets alone hold the mean, T = B/m + W: section 3 of [M], with figures of METHODS §8.

100 records of N(0, 1) within [−4, 4], the variance public, ε = 1 by substitution, ε/m for each set.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, t
from test_modips import Notes, records

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import noise_of, run_rounds
from dpdist.estimation.estimators import combine_sets
from dpdist.job.loading import parse_job
from dpdist.mechanisms.modips.post import Moments
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.sampling.samplers import ExactSampler

N = 100
EXPECTED = {1: 0.67, 3: 0.94, 5: 0.96}
"""By number of sets."""
SPREAD = float(np.sqrt(0.03 + 2 * 0.08**2))
"""Of one set's mean: the sample, the posterior and the records have variance 1/100 each, the noise a scale of 8/100."""
JOB = """
dataset: coverage
period: "1"
columns:
  y: {{bounds: [-4, 4], outside: clip}}
outcome: y
mechanism: {{name: modips, law: normal, variance: 1, truncation: {truncation}}}
budget: {{epsilon: "1", adjacency: substitution}}
synthetic_sets: {sets}
tables: [{{name: t, by: [], statistics: [{{mean: y}}]}}]
"""


def intervals(files: int, sets: int, truncation: str = "clamped", seed: int = 1) -> Floats:
    """Estimate, √T and half width of the 95 % interval of every file, (file, 3); files are the same for all arms."""
    job = parse_job(JOB.format(sets=sets, truncation=truncation))
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([N]), (), ()), slice(0, 1))
    assert isinstance(model, Moments)
    rows, found = np.zeros(N, np.int32), []
    for number in range(files):
        key = Key(seed.to_bytes(32, "big")).child(str(number))
        file = records(rows, np.clip(key.generator("file").normal(size=N), -4.0, 4.0), np.ones(N))
        rounds, own = MECHANISMS["modips"].protect(job, model, Notes(), None), key.child(f"{sets} {truncation}")
        released = run_rounds(rounds, model, ExactSampler(1), own, "all", [file], noise=noise_of(own))
        drawn = [
            model.simulate(theta, rows, own.generator("synthesis", set=k))[0] for k, theta in enumerate(released.parameters)
        ]
        total = combine_sets(
            np.array([[y.mean()] for y in drawn]), np.array([[y.var(ddof=1) / N] for y in drawn]), float("inf")
        )
        wide = t.ppf(0.975, total.df[0]) if np.isfinite(total.df[0]) else norm.ppf(0.975)
        found.append([total.value[0], total.standard_error[0], wide * total.standard_error[0]])
    return np.array(found)


WEIGHTED = JOB.replace("outcome:", "  w: {{bounds: [1, 40], outside: clip}}\nsurvey: {{weight: w}}\noutcome:").replace(
    "law: normal, variance: 1", "law: normal"
)


def weighted_intervals(files: int, factor: bool) -> Floats:
    """As `intervals` of five sets at a large ε, from a sample whose weights vary within its cell; `factor`: W times the
    weight's bound over the mean weight, as the statement says."""
    job = parse_job(WEIGHTED.format(sets=5, truncation="clamped").replace('"1", adj', '"400", adj'))
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([N]), (), ()), slice(0, 1))
    assert isinstance(model, Moments)
    rows, found = np.zeros(N, np.int32), []
    for number in range(files):
        key = Key(bytes(31) + b"w").child(str(number))
        rng = key.generator("file")
        y, w = np.clip(rng.normal(size=N), -4.0, 4.0), np.where(rng.random(N) < 0.25, 40.0, 4.0)
        file = Records(np.arange(N), rows, y, w, np.full(N, -1, np.int32))
        rounds = MECHANISMS["modips"].protect(job, model, Notes(), None)
        released = run_rounds(rounds, model, ExactSampler(1), key, "all", [file], noise=noise_of(key)).parameters
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


def test_one_set_covers_too_little_and_five_sets_cover() -> None:
    one, five = intervals(120, 1), intervals(120, 5)
    assert covered(one) < 0.82
    assert covered(five) > 0.88
    assert one[:, 0].std() == pytest.approx(SPREAD, rel=0.25)
    assert one[:, 1].mean() == pytest.approx(0.1, rel=0.05)
    assert abs(one[:, 0].mean()) < 4 * SPREAD / np.sqrt(120)
    assert five[:, 0].std() > one[:, 0].std()


def test_coverage_of_one_set_follows_from_its_spread() -> None:
    """What simulations are held against: noise is Laplace, all else normal. Control: without noise it is more."""
    rng = np.random.default_rng(1)
    normal = np.sqrt(0.03) * rng.standard_normal(400_000)
    error = normal + rng.laplace(0.0, 0.08, len(normal))
    assert (np.abs(error) < norm.ppf(0.975) * 0.1).mean() == pytest.approx(EXPECTED[1], abs=0.01)
    assert (np.abs(normal) < norm.ppf(0.975) * 0.1).mean() > EXPECTED[1] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("sets", EXPECTED)
def test_coverage_is_that_of_the_design_within_monte_carlo_error(sets: int) -> None:
    """2,000 files, three standard errors; the figures are rounded to .01."""
    found, expected = covered(intervals(2000, sets)), EXPECTED[sets]
    assert abs(found - expected) < 3 * np.sqrt(expected * (1 - expected) / 2000) + 0.005


@pytest.mark.slow
def test_the_truncated_law_covers_as_well_and_errs_more() -> None:
    """Its scale is up to twice as large."""
    clamped, truncated = intervals(500, 3), intervals(500, 3, "bounded")
    assert covered(truncated) > 0.9
    assert truncated[:, 0].std() > 1.2 * clamped[:, 0].std()
