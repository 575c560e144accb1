"""Protected predictors: what a record can change in the noisy sample counts and in the noisy sums together, exactly.

Both are metered at the same published frame, which is what the sums are computed under. Files differ in one record that is
there or not, or that is exchanged for any other, in another cell too.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from losses import CELLS, Case, metered

from dpdist.core.records import Floats, Frame
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.noisy_counts import counts, levels

CASES = [
    Case("laplace_composed", "add_remove", protect="1/4"),
    Case("laplace_composed", "substitution", protect="1/4"),
    Case("sanitized_statistics", "add_remove", protect="1/4"),
    Case("sanitized_statistics", "substitution", protect="1/4"),
    Case("modips", "add_remove", protect="1/4"),
    Case("modips", "substitution", protect="1/4"),
    Case("perturbed_histogram", "add_remove", weighted=False, protect="1/4"),
]
UNDER_ZCDP = [
    Case("sanitized_statistics", adjacency, protect="1/4", gaussian=True) for adjacency in ("add_remove", "substitution")
]


def with_counts(job: Job, frame: Frame, count: Floats) -> Frame:
    """The job's frame; one histogram has a single row."""
    if not job.categories:
        return Frame({}, {}, np.array([count.sum()], dtype=np.int64), (), ())
    return replace(frame, count=count.astype(np.int64))


def of_frame(job: Job, frame: Frame, one: Floats, other: Floats, noise: float = 1.0) -> float:
    """ε, or ρ, that noisy counts of two files lose: infinite where exact ones differ."""
    lost = 0.0
    measured = zip(
        levels(job), counts(job, with_counts(job, frame, one)), counts(job, with_counts(job, frame, other)), strict=True
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


def worst(case: Case, of_sums: float = 1.0, of_counts: float = 1.0) -> float:
    """The worst loss of neighbours under the job's adjacency over the promised one; noise may be scaled."""
    own = metered(case, most=160)
    alone, apart = own._replace(queries=own.queries / of_sums).distances(case)
    cells, base = len(case.frame), case.frame.count.astype(float)
    unit, cell = np.eye(cells), own.tried.frame
    if case.adjacency == "add_remove":
        frame = [of_frame(case.job, case.frame, base, base + unit[c], of_counts) for c in range(cells)]
        return max(float(alone[k, 0]) + frame[cell[k]] for k in range(len(cell))) / case.claimed
    moved = [
        [of_frame(case.job, case.frame, base + unit[a], base + unit[b], of_counts) for b in range(cells)]
        for a in range(cells)
    ]
    return float((apart + np.array(moved)[np.ix_(cell, cell)]).max()) / case.claimed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.adjacency}")
def test_counts_and_sums_together_lose_no_more_than_promised(case: Case) -> None:
    found = worst(case)
    assert found <= 1.0 + 1e-9
    assert found >= 0.8, "control: the promise is not idle"


@pytest.mark.parametrize("case", UNDER_ZCDP, ids=lambda case: case.adjacency)
def test_under_gaussian_noise_both_are_in_rho(case: Case) -> None:
    found = worst(case)
    assert found <= 1.0 + 1e-9
    assert found >= 0.6, "control: the promise is not idle"
    assert worst(case, 0.5, 0.5) > 2.0, "control"


@pytest.mark.parametrize("adjacency", ["add_remove", "substitution"])
def test_controls_noise_halved_on_the_counts_or_on_the_sums_is_seen(adjacency: str) -> None:
    case = Case("laplace_composed", adjacency, protect="1/4")
    assert worst(case, of_counts=0.5) == pytest.approx(1.25 if adjacency == "add_remove" else 1.125)
    assert worst(case, of_sums=0.5) > 1.4


def test_control_the_noise_of_an_exchange_within_a_cell_does_not_cover_one_of_another_cell() -> None:
    assert worst(Case("laplace_composed", "substitution", protect="1/4"), of_sums=0.5) > 1.0


def test_a_household_of_five_loses_what_is_promised_of_it() -> None:
    case = Case("laplace_composed", "add_remove", protect="1/4", unit=5)
    base = case.frame.count.astype(float)
    frame = of_frame(case.job, case.frame, base, base + 5 * np.eye(CELLS)[0])
    alone, _ = metered(case, most=160).distances(case)
    assert 5 * float(alone.max()) + frame == pytest.approx(case.claimed)
    one = replace(case, unit=None)
    assert of_frame(one.job, one.frame, base, base + 5 * np.eye(CELLS)[0]) == pytest.approx(5 / 4), "control"


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
    frame = Frame(dict(zip(known, codes, strict=True)), known, np.full(codes.shape[1], 9), job.strata, ("region",))
    base, unit, region = frame.count.astype(float), np.eye(len(frame)), frame.codes["region"]
    lost = np.array([[of_frame(job, frame, base + a, base + b) for b in unit] for a in unit])
    same = region[:, None] == region[None]
    assert lost[same].max() == pytest.approx(0.25)
    assert np.isinf(lost[~same]).all(), "control: counts by region are exact, and the statement says so"


def test_the_promise_is_of_the_whole_budget() -> None:
    for case in CASES + UNDER_ZCDP:
        total = mechanism_of(case.job).promise(case.job).total
        assert total.epsilon == case.job.budget.epsilon, case.name
