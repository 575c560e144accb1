"""Files of coded outcomes whose last record costs as much as any may, under mechanisms that measure or choose tables."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from dpdist.audit.likelihood_ratios import NeighbourQueries, compare
from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.sensitivity import CHOICE_OF_ROUND, PAIRS, PART_OF_ROUNDS, SINGLES
from dpdist.mechanisms.marginals.spec import CHOICE as PARENTS
from dpdist.mechanisms.parts import builder_of
from dpdist.sampling import sampler_of

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
budget: {epsilon: "EPSILON"}
tables: [{name: t, by: [], statistics: [count]}]
"""


def alone(n: int) -> Records:
    """n - 1 plain people, and one of the largest weight with levels that nobody else has."""
    rng = np.random.default_rng(2)
    outcomes = np.column_stack([np.zeros(n), rng.integers(0, 2, n), rng.integers(0, 2, n)]).astype(float)
    outcomes[-1] = 1.0, 2.0, 2.0
    return Records.of_outcomes(outcomes, np.append(rng.uniform(1.0, 20.0, n - 1), 200.0))


def of_full_weight(rows: list[tuple[float, ...]]) -> Records:
    return Records.of_outcomes(np.array(rows), np.full(len(rows), 200.0))


def pulls_pairs_apart() -> Records:
    """The last record makes sex and kids more dependent by 1, and the other pairs less. Their score is behind both ways:
    so they are chosen seldom, where ratios are largest."""
    base = [(1.0, 1.0, 0.0), (0.0, 0.0, 1.0)] * 20
    others = [(1.0, 0.0, 0.0), (0.0, 1.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (1.0, 0.0, 1.0)]
    return of_full_weight([*base, *others, (1.0, 1.0, 1.0)])


def opens_a_level() -> Records:
    """The last record is the first of kids' third level, whose AIC rises by nearly 2; that of sex stays."""
    base = [(float(k % 2), float(k // 2 % 2), float(k % 3)) for k in range(48)]
    return of_full_weight([*base, (0.0, 2.0, 0.0)])


def makes_two_pairs_dependent() -> Records:
    """The last record has rare levels of all columns. It makes kids depend more on sex and on age, and age less on sex.
    Scores of the former are ahead by 2 or more both ways: so age given sex is chosen seldom, where ratios are largest."""
    counts = {(1, 2, 0): 5, (0, 2, 2): 5, (0, 2, 0): 30, (1, 0, 0): 35, (0, 0, 2): 35, (0, 0, 0): 690, (1, 2, 2): 1}
    return of_full_weight([tuple(map(float, cell)) for cell, number in counts.items() for _ in range(number)])


def is_chosen_twice() -> Records:
    """The last record makes sex and kids more dependent by 1, and the other pairs less, in both rounds of a choice.

    The table that the first round measures tells little, so that the second takes what is left of ε. Found by a search.
    """
    counts = {(0, 0, 1): 11, (0, 0, 2): 1, (0, 2, 1): 2, (0, 2, 2): 2, (1, 0, 1): 2, (1, 0, 2): 1, (0, 0, 0): 9}
    return of_full_weight([tuple(map(float, cell)) for cell, number in counts.items() for _ in range(number)])


class Coded(NamedTuple):
    """A mechanism, the budget, the file whose last record is switched off, and the part of ε that sums have."""

    said: str
    epsilon: str = "1"
    file: Callable[[], Records] = lambda: alone(30)
    sums: Fraction = Fraction(1)


NETWORK = "name: marginals, select: privbayes, degree: 1"
CHOSEN, ROUNDS = "name: marginals", "name: marginals, select: adaptive"
SUMS_OF_ROUNDS = SINGLES + PART_OF_ROUNDS * (1 - CHOICE_OF_ROUND)
CASES = {
    "marginals": Coded("name: marginals, marginals: [[sex, kids], [age]]"),
    "marginals, sums of values": Coded(
        "name: marginals, marginals: [[sex, kids], [age]], sums: [{of: age}, {of: kids, by: sex}]"
    ),
    "marginals, chosen pairs": Coded(CHOSEN, "3", pulls_pairs_apart, SINGLES + PAIRS),
    "marginals, rounds": Coded(ROUNDS, "3", pulls_pairs_apart, SUMS_OF_ROUNDS),
    "marginals, a pair in two rounds": Coded(ROUNDS, "12", is_chosen_twice, SUMS_OF_ROUNDS),
    "marginals, network": Coded(NETWORK, "3", makes_two_pairs_dependent, 1 - PARENTS),
    "flat_laplace": Coded("name: flat_laplace"),
    "universal_histogram": Coded("name: universal_histogram, layers: 3, order_seed: 4"),
    "steps": Coded("name: steps, order: [sex, kids]"),
    "steps, selected": Coded("name: steps, layers: 2, selection: '1/2'", "4", opens_a_level, Fraction(1, 2)),
}


@cache
def measured(name: str) -> NeighbourQueries:
    """What a case's file is asked, with its last record and without it."""
    case = CASES[name]
    job, near = parse_job(CODED.replace("NAMED", case.said).replace("EPSILON", case.epsilon)), case.file()
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([len(near)]), (), ()), slice(0, 1))
    far = near.take(np.arange(len(near) - 1))
    (found,) = compare(job, model, None, sampler_of(job, None), near, [far])  # type: ignore[arg-type]
    return found
