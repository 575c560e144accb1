"""Every registered family keeps the contract of a likelihood, whatever its name; broken ones are found out.

Families of an outcome alone with draws that need no Markov chain. Statistical limits: two-sided normal tail 1e-6 a figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import EVERYWHERE, job_of
from scipy.stats import beta, expon, lognorm, poisson

from dpdist.core.records import Floats, Records
from dpdist.job.families import COUNT, FAMILIES, POSITIVE, SAMPLERS, UNIT, Support
from dpdist.models import FIGURES, LIKELIHOODS, lacking
from dpdist.models.poisson import Poisson
from dpdist.models.protocol import Distributed, Draws
from dpdist.privacy.weight_search import weigh

pytestmark = pytest.mark.quick

LIMIT = 4.9
OUTCOME_ALONE = [
    name
    for name, facts in FAMILIES.items()
    if facts.weight is False and not facts.predictors and {"exact", "grid"} & set(SAMPLERS[name])
]
FEW, MANY = 40, 20_000


def built(family: str, model: Any = None) -> Any:
    support = FAMILIES[family].support
    low, high = max(support.low, 0.0), min(support.high, 60.0)
    return (model or LIKELIHOODS[family]).build(job_of(family, bounds=(low, high)), EVERYWHERE, slice(0, len(EVERYWHERE)))


def records(family: str, n: int, seed: int) -> Records:
    """Outcomes that the family takes."""
    support, rng = FAMILIES[family].support, np.random.default_rng(seed)
    high = min(support.high, 20.0)
    y = rng.integers(0, int(high) + 1, n).astype(float) if support.whole else rng.beta(2.0, 3.0, n) * high
    return Records(np.arange(n), np.zeros(n, np.int32), y, np.ones(n), np.full(n, -1, np.int32))


def drawn(model: Any, found: Records, alpha: float, draws: int) -> Draws:
    statistics = model.statistics(found, np.full(len(found), alpha))
    made: Draws = getattr(model, "draw", None) or model.draw_on_grid
    return made(statistics, draws, np.random.default_rng(5))  # type: ignore[operator, no-any-return]


def problems(family: str, model: Any) -> list[str]:
    return [*_prior(family, model), *_mass(family, model), *_updates(family, model), *_figures(family, model)]


def _prior(family: str, model: Any) -> list[str]:
    given, empty = records(family, FEW, 1), records(family, 0, 1)
    with_zero, without = drawn(model, given, 0.0, 50), drawn(model, empty, 1.0, 50)
    same = all(np.array_equal(with_zero[each.name], without[each.name]) for each in model.parameters)
    return [] if same else [f"{family}: records with a privacy weight of 0 change the posterior"]


def points(support: Support) -> tuple[Floats, Floats]:
    """Outcomes and their weights in a sum over a support, by Gauss-Legendre's rule in 400 points."""
    if support.whole:
        y = np.arange(0.0, min(support.high, 5_000.0) + 1.0)
        return y, np.ones(len(y))
    assert support.low == 0.0
    nodes, steps = np.polynomial.legendre.leggauss(400)
    y, steps = (nodes + 1.0) / 2.0, steps / 2.0
    if support.high == np.inf:
        return 20.0 * y / (1.0 - y), 20.0 * steps / (1.0 - y) ** 2
    return support.high * y, support.high * steps


@pytest.mark.parametrize(
    ("support", "law"),
    [(POSITIVE, lognorm(0.8, scale=8.0)), (POSITIVE, expon(scale=30.0)), (UNIT, beta(2.0, 3.0)), (COUNT, poisson(7.0))],
)
def test_the_points_of_a_support_give_a_known_law_its_mass(support: Support, law: Any) -> None:
    """Control: the points of the unit interval miss what lies beyond it."""
    y, steps = points(support)
    density = law.pmf if support.whole else law.pdf
    assert density(y) @ steps == pytest.approx(1.0, abs=1e-6)
    if support is POSITIVE:
        y, steps = points(UNIT)
        assert density(y) @ steps < 0.5


def _mass(family: str, model: Any) -> list[str]:
    """The density over all outcomes."""
    theta, (y, steps) = drawn(model, records(family, FEW, 1), 1.0, 5), points(FAMILIES[family].support)
    n = len(y)
    grid = Records(np.arange(n), np.zeros(n, np.int32), y, np.ones(n), np.full(n, -1, np.int32))
    mass = np.exp(model.log_lik(theta, grid)) @ steps
    return [] if np.allclose(mass, 1.0, atol=1e-6) else [f"{family}: its density has the mass {mass.min():.4g}, not 1"]


def _updates(family: str, model: Any) -> list[str]:
    """Draws reweighted by the density of further records are draws given all of them."""
    given, more = records(family, FEW, 1), records(family, 3, 2)
    both = Records(*(np.concatenate([getattr(a, name) for a in (given, more)]) for name in COLUMNS))
    before, after = drawn(model, given, 1.0, MANY), drawn(model, both, 1.0, MANY)
    weight = np.exp(model.log_lik(before, more).sum(axis=1))
    weight /= weight.sum()
    name = model.parameters[0].name
    old, new = (np.log(np.abs(each[name].reshape(MANY, -1)[:, 0])) for each in (before, after))
    mean = weight @ old
    error = np.sqrt((weight**2) @ (old - mean) ** 2 + new.var() / MANY)
    return [] if abs(mean - new.mean()) < LIMIT * error else [f"{family}: draws do not follow its density"]


COLUMNS = ("record", "frame", "outcomes", "weight", "psu")


def _figures(family: str, model: Any) -> list[str]:
    """Simulated records have the mean of `expect` and the distribution of `until`."""
    theta = drawn(model, records(family, FEW, 1), 1.0, 1)
    y, _ = model.simulate(theta, np.zeros(MANY, np.int32), np.random.default_rng(3))
    found = list[str]()
    if abs(y.mean() - model.expect(theta)[1][0, 0]) > LIMIT * y.std() / np.sqrt(MANY):
        found.append(f"{family}: simulate has another mean than expect")
    if isinstance(model, Distributed):
        value = float(np.median(y))
        share = float(model.until(theta, np.array([0]), np.array([value]))[0, 0])
        if abs((y <= value).mean() - share) > LIMIT * 0.5 / np.sqrt(MANY):
            found.append(f"{family}: simulate has another distribution than until")
    return found


@pytest.mark.parametrize("family", OUTCOME_ALONE)
def test_a_family_keeps_its_contract(family: str) -> None:
    assert problems(family, built(family)) == []


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

    def simulate(self, theta: Any, frame_row: Any, rng: Any) -> Any:
        y, weight = super().simulate(theta, frame_row, rng)
        return y + 1.0, weight


BROKEN = {
    Heavy: ["poisson: its density has the mass 2, not 1"],
    Haunted: ["poisson: records with a privacy weight of 0 change the posterior"],
    Doubled: ["poisson: draws do not follow its density"],
    Shifted: ["poisson: simulate has another mean than expect", "poisson: simulate has another distribution than until"],
}


@pytest.mark.parametrize("model", BROKEN)
def test_a_broken_family_is_found_out(model: Any) -> None:
    assert problems("poisson", built("poisson", model)) == BROKEN[model]


@dataclass
class Silent:
    """A model without figures."""


def test_a_family_without_figures_cannot_be_imported() -> None:
    lines = lacking("poisson", Silent)
    assert [line.partition(" has no ")[2].partition(",")[0] for line in lines] == list(FIGURES)
    assert all(line.endswith("or list it under WITHOUT in dpdist/models/__init__.py") for line in lines)


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
