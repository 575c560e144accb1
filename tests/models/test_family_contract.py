"""Every registered family keeps the contract of a likelihood, whatever its name; broken ones are found out.

Families of an outcome alone with draws that need no Markov chain. Statistical limits: two-sided normal tail 1e-6 a figure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, expon, lognorm, poisson

from dpdist.job.families import COUNT, FAMILIES, MODELS, POSITIVE, SAMPLERS, UNIT, Support
from dpdist.models.beta import PRECISION_TAIL, Beta
from dpdist.models.negative_binomial import LOG_MEAN_SD, NegativeBinomial, Poisson
from dpdist.models.protocol import Extremes
from dpdist.privacy.weights import weigh
from dpdist.testing import check_family
from dpdist.testing.families import points, problems

pytestmark = pytest.mark.quick

OUTCOME_ALONE = [
    name
    for name, facts in FAMILIES.items()
    if facts.weight is False and not facts.predictors and {"exact", "grid"} & set(SAMPLERS[name])
]


@pytest.mark.parametrize(
    ("support", "law"),
    [(POSITIVE, lognorm(0.8, scale=8.0)), (POSITIVE, expon(scale=30.0)), (UNIT, beta(2.0, 3.0)), (COUNT, poisson(7.0))],
)
def test_the_points_of_a_support_give_a_known_law_its_mass(support: Support, law: Any) -> None:
    """Control: the points of the unit interval miss what lies beyond it."""
    y, steps = points(support)
    density = law.pmf if support.integer else law.pdf
    assert density(y) @ steps == pytest.approx(1.0, abs=1e-6)
    if support is POSITIVE:
        y, steps = points(UNIT)
        assert density(y) @ steps < 0.5


@pytest.mark.parametrize("family", OUTCOME_ALONE)
def test_a_family_keeps_its_contract(family: str) -> None:
    check_family(family)


class Heavy(Poisson):
    """A density of mass 2."""

    def log_lik(self, draws: Any, found: Any) -> Any:
        return super().log_lik(draws, found) + np.log(2.0)


class Haunted(Poisson):
    """Records with a privacy weight of 0 leave a trace."""

    def statistics(self, found: Any, alpha: Any) -> Any:
        return super().statistics(found, np.maximum(alpha, 0.01))


class Doubled(Poisson):
    """Draws as if every record counted twice."""

    def draw(self, statistics: Any, draws: int, rng: Any) -> Any:
        return super().draw(2.0 * statistics, draws, rng)


class Shifted(Poisson):
    """Records one above what is expected."""

    def simulate(self, theta: Any, crosstab_row: Any, rng: Any) -> Any:
        y, weight = super().simulate(theta, crosstab_row, rng)
        return y + 1.0, weight


class Unlimited(Poisson):
    """Figures of outcomes without public bounds."""

    def expect(self, theta: Any) -> Any:
        return self.per_row(theta["rate"][:, None])


class Unclipped(Poisson):
    """Records outside of public bounds."""

    def simulate(self, theta: Any, crosstab_row: Any, rng: Any) -> Any:
        return rng.poisson(theta["rate"][0], len(crosstab_row)).astype(float), np.ones(len(crosstab_row))


class Endless(Poisson):
    """A distribution function of outcomes without public bounds."""

    def within_bounds(self, share: Any, value: Any) -> Any:
        return share


class Swapped(Beta):
    """Coordinates in the other order."""

    def draws_at(self, coordinates: Any) -> Any:
        return super().draws_at(coordinates[:, ::-1])


class Flat(Beta):
    """A prior on another scale: without the density of the logit."""

    def log_prior(self, coordinates: Any) -> Any:
        return -PRECISION_TAIL * coordinates[:, 1]


class Narrow(NegativeBinomial):
    """A prior of half the width."""

    def log_prior(self, coordinates: Any) -> Any:
        return super().log_prior(coordinates) - 3.0 * coordinates[:, 0] ** 2 / (2.0 * LOG_MEAN_SD**2)


class Exactly(Poisson):
    """A density that claims to be without rounding error."""

    def tiles(self, draws: Any, found: Any) -> Any:
        return (tile._replace(magnitude=np.zeros(len(tile.rows))) for tile in super().tiles(draws, found))


class Summed(Poisson):
    """A rounding error by the size of the sum, whose terms cancel."""

    def tiles(self, draws: Any, found: Any) -> Any:
        for tile in super().tiles(draws, found):
            yield tile._replace(magnitude=np.abs(tile.values).max(axis=1))


class Halved(Poisson):
    """Extremes of half the size, so that a record's bound is too small."""

    def extremes(self, draws: Any, found: Any) -> Any:
        return Extremes(*(values / 2.0 for values in super().extremes(draws, found)))


class First(Poisson):
    """Extremes of the first draw alone."""

    def extremes(self, draws: Any, found: Any) -> Any:
        return super().extremes(draws.at(0), found)


IN_ALL = "beta: draws_at and log_prior give {} another posterior than draws have"
BROKEN = {
    Heavy: [
        "poisson: its density has the mass 2, not 1",
        "poisson: its density leaves its extremes: take them over all draws",
    ],
    Haunted: ["poisson: records with a privacy weight of 0 change the posterior"],
    Doubled: ["poisson: draws do not follow its density"],
    Shifted: [
        "poisson: the mean of simulate differs from expect",
        "poisson: the distribution of simulate differs from until",
        "poisson: the mean of simulate differs from expect within bounds",
        "poisson: the distribution of simulate differs from until within bounds",
        "poisson: simulate leaves the public bounds",
    ],
    Unlimited: ["poisson: the mean of simulate differs from expect within bounds"],
    Unclipped: [
        "poisson: the mean of simulate differs from expect within bounds",
        "poisson: simulate leaves the public bounds",
    ],
    Endless: ["poisson: until has records outside of the public bounds"],
    Swapped: [IN_ALL.format("mean"), IN_ALL.format("precision")],
    Flat: [IN_ALL.format("mean"), IN_ALL.format("precision")],
    Narrow: ["negative_binomial: draws_at and log_prior give mean another posterior than draws have"],
    Exactly: ["poisson: extremes are not wider than the rounding error"],
    Summed: ["poisson: extremes are not wider than the rounding error"],
    Halved: ["poisson: its density leaves its extremes: take them over all draws"],
    First: ["poisson: its density leaves its extremes: take them over all draws"],
}
"""What the contract says of a broken family, and all of it: every draw of these tests follows from a fixed seed."""


@pytest.mark.parametrize("model", BROKEN)
def test_a_broken_family_is_found_out(model: Any) -> None:
    family = BROKEN[model][0].partition(":")[0]
    assert [f"{family}: {line}" for line in problems(family, model)] == BROKEN[model]


def test_families_have_synthetic_records_and_figures_but_for_those_that_are_named_here() -> None:
    without = {name: {"until"} for name in ("beta_regression", "poisson_regression", "bernoulli", "scores")}
    without["user"] = {"simulate", "expect", "until"}
    for family, model in MODELS.items():
        lacking = {method for method in ("simulate", "expect", "until") if not hasattr(model, method)}
        assert lacking == without.get(family, set()), family


def test_privacy_weights_above_one_are_refused() -> None:
    """Control: one is not."""

    class Half:
        def __init__(self, alpha: float) -> None:
            self.alpha = alpha

        def __call__(self, unweighted: Any, alpha: Any, bound: Any) -> Any:
            return np.full(len(alpha), self.alpha)

    carry = {name: np.ones(3) for name in ("alpha", "unweighted", "bound")}
    assert list(weigh(Half(1.0), np.zeros((3, 1)), carry)) == [1.0] * 3
    with pytest.raises(ValueError, match=r"Half: privacy weights must lie in \[0, 1\]"):
        weigh(Half(1.5), np.zeros((3, 1)), carry)
