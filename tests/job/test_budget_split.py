"""A budget is split exactly: its parts add up to the total, in ε and in ρ."""

from __future__ import annotations

from fractions import Fraction

import pytest
from edited_text import edited

from dpdist.job import Job
from dpdist.job.budget import Split, rho_of
from dpdist.job.loading import parse_job

JOB = """
dataset: tiny
period: "1"
columns:
  field: {levels: [arts, law]}
  pay: {bounds: [0, 100], outside: clip}
  weight: {bounds: [1, 9], outside: clip}
survey: {weight: weight}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "7/3"}
reference: {histogram: {epsilon: "1/7"}}
tables: [{name: t, by: [field], statistics: [count]}]
"""


def job(*edits: tuple[str, str]) -> Job:
    return parse_job(edited(JOB, *edits))


def parts(split: Split) -> Fraction:
    return split.gates + split.crosstab + split.histograms + split.tables


def test_parts_of_epsilon_add_up_and_a_set_has_its_share() -> None:
    own = job()
    assert own.epsilon == Split(Fraction(7, 3), Fraction(0), Fraction(0), Fraction(1, 7))
    assert (parts(own.epsilon), own.epsilon.tables) == (Fraction(7, 3), Fraction(46, 21))
    assert own.epsilon_per_set * own.synthetic_sets == own.epsilon.release == Fraction(7, 3)


def test_parts_of_rho_add_up_and_paid_parts_have_the_rho_of_their_epsilon() -> None:
    gaussian = ("name: tables", "name: tables, noise: gaussian"), ('epsilon: "7/3"', 'epsilon: "7/3", delta: "1e-6"')
    own = job(*gaussian)
    delta = Fraction("1e-6")
    assert own.rho.histograms == rho_of(Fraction(1, 7), delta)
    assert parts(own.rho) == own.rho.total == rho_of(Fraction(7, 3), delta)


def test_a_budget_without_delta_has_no_rho() -> None:
    with pytest.raises(ValueError, match="without delta"):
        _ = job().rho
