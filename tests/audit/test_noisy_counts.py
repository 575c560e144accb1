"""Protected predictors: what a record, or a unit, can change in the noisy sample counts, exactly.

Files differ in one unit that is there or not, or that is exchanged for any other, in another cell too.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from options import HOUSEHOLD, Option, crosstab_of, option

from dpdist.core.records import Crosstab, Floats
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.noisy_counts import counts, layers_of

SECRET = ("add_remove", "anywhere")
COUNTED = [option(name, kind) for name in ("laplace_composed", "sanitized_statistics", "modips") for kind in SECRET]
COUNTED += [option("perturbed_histogram", "add_remove")]
ZCDP = [option("sanitized_statistics", kind, mechanism={"noise": "gaussian"}) for kind in SECRET]
HOUSEHOLDS = [option("laplace_composed", "add_remove", **HOUSEHOLD), option("modips", "anywhere", **HOUSEHOLD)]


def with_counts(job: Job, crosstab: Crosstab, count: Floats) -> Crosstab:
    """The job's frame; one histogram has a single row."""
    if not job.categories:
        return Crosstab({}, {}, np.array([count.sum()], dtype=np.int64), (), ())
    return replace(crosstab, count=count.astype(np.int64))


def of_frame(job: Job, crosstab: Crosstab, one: Floats, other: Floats, noise: float = 1.0) -> float:
    """ε, or ρ, that noisy counts of two files lose: infinite where exact ones differ."""
    lost = 0.0
    measured = zip(
        layers_of(job),
        counts(job, with_counts(job, crosstab, one)),
        counts(job, with_counts(job, crosstab, other)),
        strict=True,
    )
    for level, here, there in measured:
        moved = np.abs(here - there)
        if level.scale is None:
            lost += np.inf if moved.any() else 0.0
        elif job.mechanism.gaussian:
            lost += float((moved**2).sum() / (2.0 * (noise * float(level.scale)) ** 2))
        else:
            lost += float(Fraction(int(moved.sum())) / level.scale) / noise
    return lost


def worst(case: Option, records: int | None = None, noise: float = 1.0) -> float:
    """The worst loss of neighbours by noisy counts, over their part of the budget; a unit has so many records."""
    job, crosstab = case.job, crosstab_of(case.job)
    base, unit = crosstab.count.astype(float), np.eye(len(crosstab)) * (records or job.most_records)
    pairs = [(base + a, base) for a in unit] if case.kind == "add_remove" else list(product(base + unit, repeat=2))
    part = float(job.rho.crosstab if job.mechanism.gaussian else job.epsilon.crosstab)
    return max(of_frame(job, crosstab, *pair, noise) for pair in pairs) / part


@pytest.mark.parametrize(
    "case", [*COUNTED, *ZCDP, *HOUSEHOLDS], ids=lambda case: f"{case.mechanism}, {case.kind}, {case.said}"
)
def test_counts_lose_their_part_of_the_budget(case: Option) -> None:
    """Sums have the rest of it (test_every_option). σ is rounded up. Control: half the noise loses twice as much, or four
    times."""
    assert worst(case) == pytest.approx(1.0, rel=1e-3)
    assert worst(case) <= 1.0 + 1e-9
    assert worst(case, noise=0.5) == pytest.approx(4.0 if case in ZCDP else 2.0, rel=1e-3)
    assert mechanism_of(case.job).promise(case.job).total.epsilon == case.job.budget.epsilon


def test_control_the_noise_of_three_records_does_not_cover_five() -> None:
    assert worst(HOUSEHOLDS[0], records=5) == pytest.approx(5 / 3)


PARTLY = """
dataset: audit
period: "2021"
columns:
  field: {levels: [arts, law, music]}
  sex: {levels: [f, m]}
  region: {levels: [n, s]}
  salary: {bounds: [0, 1000], outside: clip}
outcome: salary
mechanism: {name: laplace_composed, sensitivity: public}
budget: {epsilon: "1", adjacency: substitution, exchange: anywhere}
predictors: {protect: {columns: [sex, field], epsilon: "1/4"}}
survey: {design_strata: [region]}
tables: [{name: one, by: [field, sex], statistics: [count]}]
"""


def test_an_exchange_among_records_of_the_same_public_columns_is_covered_and_no_other() -> None:
    job = parse_job(PARTLY)
    sizes = [len(job.columns[name].levels or ()) for name in job.categories]
    codes = np.indices(sizes).reshape(len(sizes), -1).astype(np.int32)
    known = {name: job.columns[name].levels or () for name in job.categories}
    crosstab = Crosstab(dict(zip(known, codes, strict=True)), known, np.full(codes.shape[1], 9), job.strata, ("region",))
    base, unit, region = crosstab.count.astype(float), np.eye(len(crosstab)), crosstab.codes["region"]
    lost = np.array([[of_frame(job, crosstab, base + a, base + b) for b in unit] for a in unit])
    same = region[:, None] == region[None]
    assert lost[same].max() == pytest.approx(0.25)
    assert np.isinf(lost[~same]).all(), "control: counts by region are exact, and the statement says so"
