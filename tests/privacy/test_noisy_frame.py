"""Noisy sample counts: what follows from the measured levels, against a brute-force oracle, and what it keeps."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpdist.core.records import Crosstab, Floats
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.privacy.guarantees import neighbour_of, total_loss
from dpdist.privacy.noisy_counts import counts, layers_of, noisy_crosstab, queries_of_counts, tree

JOB = """
dataset: counted
period: "2021"
columns:
  region: {{levels: [n, s, e]}}
  field: {{levels: [arts, law]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 1000], outside: clip}}
outcome: salary
mechanism: {{name: laplace_composed, sensitivity: public}}
budget: {{epsilon: "1", adjacency: {adjacency}}}
predictors: {{protect: {{{columns}epsilon: "1/2"}}}}
survey: {{design_strata: [region]}}
tables: [{{name: one, by: [sex, field], statistics: [count]}}]
"""
GAUSSIAN = {
    "{name: laplace_composed, sensitivity: public}": "{name: sanitized_statistics, noise: gaussian}",
    "bounds: [0, 1000]": "bounds: [1, 1000]",
    "survey: {": "survey: {weight: weight, ",
    "outcome: salary": "outcome: salary\nmodel: {family: lognormal}\nreference: {path: e.parquet, provenance: simulated}",
}
"""What a job with Gaussian counts says instead."""
ANYWHERE = "substitution, exchange: anywhere"
KINDS = {
    "add_remove": ("add_remove", ""),
    "exchange": (ANYWHERE, ""),
    "exchange within a region": (ANYWHERE, "columns: [sex, field], "),
    "exchange within a sex": (ANYWHERE, "columns: [region, field], "),
}


def job_of(kind: str) -> Job:
    adjacency, columns = KINDS[kind]
    return parse_job(JOB.format(adjacency=adjacency, columns=columns))


def crosstab_of(job: Job, seed: int, mean: float) -> Crosstab:
    known = {name: job.columns[name].levels or () for name in job.categories}
    codes = np.indices([len(each) for each in known.values()]).reshape(len(known), -1).astype(np.int32)
    count = np.random.default_rng(seed).poisson(mean, codes.shape[1])
    count[0] += 1
    return Crosstab(dict(zip(known, codes, strict=True)), known, count, job.strata, job.survey.design_strata)


def measured(job: Job, crosstab: Crosstab, seed: int) -> list[Floats]:
    """Counts of every level under Laplace noise of its scale."""
    rng = np.random.default_rng(seed)
    return [
        exact + (0.0 if level.scale is None else np.rint(rng.laplace(0.0, float(level.scale), len(exact))))
        for level, exact in zip(layers_of(job), counts(job, crosstab), strict=True)
    ]


def by(crosstab: Crosstab, names: tuple[str, ...], values: Floats) -> dict[tuple[object, ...], float]:
    """Sums by the levels of some columns, added up one row at a time."""
    found: dict[tuple[object, ...], float] = {}
    for row in range(len(crosstab)):
        label = tuple(crosstab.levels[name][crosstab.codes[name][row]] for name in names)
        found[label] = found.get(label, 0) + float(values[row])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_counts_the_cross_of_its_columns(kind: str) -> None:
    job = job_of(kind)
    crosstab = crosstab_of(job, 1, 4.0)
    for level, exact in zip(layers_of(job), counts(job, crosstab), strict=True):
        known = by(crosstab, level.columns, crosstab.count)
        order = product(*(crosstab.levels[name] for name in level.columns))
        assert exact.tolist() == [known[label] for label in order]
    assert layers_of(job)[-1].columns == tree(job)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_the_frame_is_the_exact_one(kind: str) -> None:
    job = job_of(kind)
    for seed in range(5):
        crosstab = crosstab_of(job, seed, 3.0)
        made = noisy_crosstab(job, crosstab, [exact.astype(float) for exact in counts(job, crosstab)])
        assert made.count.tolist() == crosstab.count.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_whole_and_not_below_0_and_public_ones_are_kept(kind: str) -> None:
    job = job_of(kind)
    for seed in range(20):
        crosstab = crosstab_of(job, seed, 2.0)
        made = noisy_crosstab(job, crosstab, measured(job, crosstab, seed))
        assert made.count.dtype == np.int64
        assert made.count.min() >= 0
        assert made.count.sum() >= 1
        if kind != "add_remove":
            names = job.counted_columns
            assert by(crosstab, names, made.count) == by(crosstab, names, crosstab.count)
    assert made.count.tolist() != crosstab.count.tolist(), "control: there is noise"


@pytest.mark.parametrize("kind", KINDS)
def test_large_counts_are_the_weighted_least_squares_of_all_levels(kind: str) -> None:
    job = job_of(kind)
    crosstab = crosstab_of(job, 3, 5000.0)
    noisy, rows, wanted = measured(job, crosstab, 9), list[Floats](), list[float]()
    for level, values in zip(layers_of(job), noisy, strict=True):
        weight = 1e6 if level.scale is None else 1.0 / float(level.scale)
        labels = list(product(*(crosstab.levels[name] for name in level.columns)))
        own = [tuple(crosstab.levels[n][crosstab.codes[n][row]] for n in level.columns) for row in range(len(crosstab))]
        for label, value in zip(labels, values, strict=True):
            rows.append(weight * np.array([float(each == label) for each in own]))
            wanted.append(weight * value)
    oracle = np.linalg.lstsq(np.array(rows), np.array(wanted), rcond=None)[0]
    made = noisy_crosstab(job, crosstab, noisy).count
    assert np.abs(made - oracle).max() <= 1.01, "rounding by largest remainders moves a count by less than 1"
    assert np.abs(noisy[-1].sum() - made.sum()) > 1 or kind != "add_remove", "control: the leaves alone say another total"


def test_shares_of_the_budget_add_up_to_it() -> None:
    for kind in KINDS:
        job = job_of(kind)
        moved = 1 if kind == "add_remove" else 2
        spent = sum((moved / level.scale for level in layers_of(job) if level.scale is not None), Fraction(0))
        assert spent == job.epsilon.crosstab == Fraction(1, 2)


def test_shares_of_rho_add_up_to_it() -> None:
    """A neighbour changes one or two counts by 1. Rounding σ up leaves less than a thousandth."""
    for kind, (adjacency, columns) in KINDS.items():
        text = JOB.format(adjacency=f'{adjacency}, delta: "1e-6"', columns=columns)
        for laplace, gaussian in GAUSSIAN.items():
            text = text.replace(laplace, gaussian)
        job = parse_job(text)
        moved = 1 if kind == "add_remove" else 2
        scales = [level.scale for level in layers_of(job) if level.scale is not None]
        spent = sum(Fraction(moved) / (2 * scale**2) for scale in scales)
        assert job.rho.crosstab * (1 - Fraction(1, 1000)) < spent <= job.rho.crosstab
        assert total_loss(queries_of_counts(job), neighbour_of(job)) == spent


def test_small_counts_err_less_than_independent_noise_would_make_them() -> None:
    job = job_of("add_remove")
    crosstab = crosstab_of(job, 4, 0.3)
    errors = np.array(
        [noisy_crosstab(job, crosstab, measured(job, crosstab, s)).count - crosstab.count for s in range(200)]
    )
    plain = np.sqrt(2.0) / float(job.epsilon.crosstab)
    leaf = layers_of(job)[-1].scale
    assert leaf is not None
    assert np.sqrt((errors**2).mean()) < plain
    assert np.sqrt(2.0) * float(leaf) > plain, "control: a level's own noise is larger, for it has a part of the budget"
