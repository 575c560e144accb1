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

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.job.families import COUNT, FAMILIES, POSITIVE, SAMPLERS, UNIT, Support
from dpdist.models import FIGURES, LIKELIHOODS, lacking
from dpdist.models.beta import PRECISION_TAIL, Beta
from dpdist.models.negative_binomial import LOG_MEAN_SD, NegativeBinomial
from dpdist.models.poisson import Poisson
from dpdist.models.protocol import Boxed, Distributed, Draws
from dpdist.privacy.weights import weigh

pytestmark = pytest.mark.quick

LIMIT = 4.9
OUTCOME_ALONE = [
    name
    for name, facts in FAMILIES.items()
    if facts.weight is False and not facts.predictors and {"exact", "grid"} & set(SAMPLERS[name])
]
FEW, MANY = 40, 20_000


def built(family: str, model: Any = None, bounds: tuple[float, float] | None = None) -> Any:
    """The family's model, or a broken one, with bounds that no record reaches unless others are given."""
    support = FAMILIES[family].support
    wide = max(support.low, 0.0), min(support.high, 60.0)
    job = job_of(family, bounds=bounds or wide)
    return (model or LIKELIHOODS[family]).build(job, EVERYWHERE, slice(0, len(EVERYWHERE)))


def records(family: str, n: int, seed: int) -> Records:
    """Outcomes that the family takes."""
    support, rng = FAMILIES[family].support, np.random.default_rng(seed)
    high = min(support.high, 20.0)
    y = rng.integers(0, int(high) + 1, n).astype(float) if support.whole else rng.beta(2.0, 3.0, n) * high
    return records_of(y)


def records_of(y: Floats) -> Records:
    """Records of one row with these outcomes."""
    n = len(y)
    return Records(np.arange(n), np.zeros(n, np.int32), y, np.ones(n), np.full(n, -1, np.int32))


def drawn(model: Any, found: Records, alpha: float, draws: int) -> Draws:
    statistics = model.statistics(found, np.full(len(found), alpha))
    made: Draws = getattr(model, "draw", None) or model.draw_on_grid
    return made(statistics, draws, np.random.default_rng(5))  # type: ignore[operator, no-any-return]


def problems(family: str, builder: Any = None) -> list[str]:
    model = built(family, builder)
    found = [*_prior(family, model), *_mass(family, model), *_updates(family, model), *_figures(family, model)]
    found += [*_box(family, model), *_rounding(family, model)]
    if not binary(FAMILIES[family].support):
        found += _bounded(family, model, builder)
    return found


def _prior(family: str, model: Any) -> list[str]:
    given, empty = records(family, FEW, 1), records(family, 0, 1)
    with_zero, without = drawn(model, given, 0.0, 50), drawn(model, empty, 1.0, 50)
    same = all(np.array_equal(with_zero[each.name], without[each.name]) for each in model.parameters)
    return [] if same else [f"{family}: records with a privacy weight of 0 change the posterior"]


def binary(support: Support) -> bool:
    """Outcomes 0 and 1, whose bounds cannot cut any."""
    return support.whole and support.high == 1.0


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
    mass = np.exp(model.log_lik(theta, records_of(y))) @ steps
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


def _bounded(family: str, wide: Any, builder: Any) -> list[str]:
    """The same with public bounds that a quarter of the records reach, on either side."""
    theta = drawn(wide, records(family, FEW, 1), 1.0, 1)
    y, _ = wide.simulate(theta, np.zeros(MANY, np.int32), np.random.default_rng(4))
    low, top = np.quantile(y, [0.25, 0.75]).tolist()
    model = built(family, builder, (low, top))
    y, _ = model.simulate(theta, np.zeros(MANY, np.int32), np.random.default_rng(3))
    found = [f"{line} within bounds" for line in _figures(family, model)]
    if y.min() < low or y.max() > top:
        found.append(f"{family}: simulate leaves the public bounds")
    if isinstance(model, Distributed):
        below, at_top = model.until(theta, np.zeros(2, int), np.array([np.nextafter(low, -np.inf), top]))[0]
        if (below, at_top) != (0.0, 1.0):
            found.append(f"{family}: until has records outside of the public bounds")
    return found


def _box(family: str, model: Any) -> list[str]:
    """On a clamped posterior's box, `draws_at`, `log_prior` and the density give the posterior that is drawn from.

    Figures are means and mean squares of log parameters, given no record and given three.
    """
    if not isinstance(model, Boxed):
        return []
    middles, found = [low + (high - low) * (np.arange(400) + 0.5) / 400 for low, high in model.box], list[str]()
    coordinates = np.stack(np.meshgrid(*middles, indexing="ij"), axis=-1).reshape(-1, 2)
    theta = model.draws_at(coordinates)
    for n in (0, 3):
        given = records(family, n, 1)
        log_posterior = model.log_prior(coordinates) + model.log_lik(theta, given).sum(axis=1)
        weight = np.exp(log_posterior - log_posterior.max())
        weight /= weight.sum()
        draws = drawn(model, given, 1.0, MANY)
        for parameter in model.parameters:
            on_grid, sampled = np.log(theta[parameter.name]), np.log(draws[parameter.name])
            for power in (1, 2):
                own = sampled**power
                if abs(own.mean() - weight @ on_grid**power) > LIMIT * own.std() / np.sqrt(MANY):
                    found.append(f"{family}: at and log_prior give {parameter.name} another posterior than draws have")
    return list(dict.fromkeys(found))


STEPS = np.arange(-16, 17)
"""Steps of 2⁻⁴⁴ of a parameter. Over so few, a density is a straight line, and what departs from it is rounding."""


def _rounding(family: str, model: Any) -> list[str]:
    """Extremes are wider than the density by its rounding error, as privacy bounds need it.

    Outcomes lie close together and far from 0, so that terms of the density cancel.
    """
    support, found = FAMILIES[family].support, records(family, FEW, 1)
    if not binary(support):
        middle = 0.3 * min(support.high, 1e6)
        y = middle * (1.0 + 1e-3 * np.random.default_rng(6).standard_normal(FEW))
        found = records_of(np.rint(y) if support.whole else y)
    theta = drawn(model, found, 1.0, 1)
    extremes, line = model.extremes(theta, found), np.column_stack([np.ones(len(STEPS)), STEPS])
    slack = (extremes.highest - extremes.lowest) / 2.0
    for parameter in model.parameters:
        moved = {name: np.repeat(values, len(STEPS), axis=0) for name, values in theta.values.items()}
        own = moved[parameter.name]
        moved[parameter.name] = own * (1.0 + STEPS * 2.0**-44).reshape(-1, *[1] * (own.ndim - 1))
        values = model.log_lik(Draws(moved), found)
        values = values - values[len(STEPS) // 2]
        error = np.abs(values - line @ np.linalg.lstsq(line, values, rcond=None)[0]).max(axis=0)
        if (error > slack).any() or not (slack > 0.0).all():
            return [f"{family}: extremes are not wider than the rounding error"]
    return []


@pytest.mark.parametrize("family", OUTCOME_ALONE)
def test_a_family_keeps_its_contract(family: str) -> None:
    assert problems(family) == []


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


class Unlimited(Poisson):
    """Figures of outcomes without public bounds."""

    def expect(self, theta: Any) -> Any:
        return self.per_row(theta["rate"][:, None])


class Unclipped(Poisson):
    """Records outside of public bounds."""

    def simulate(self, theta: Any, frame_row: Any, rng: Any) -> Any:
        return rng.poisson(theta["rate"][0], len(frame_row)).astype(float), np.ones(len(frame_row))


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


IN_ALL = "beta: at and log_prior give {} another posterior than draws have"
BROKEN = {
    Heavy: ["poisson: its density has the mass 2, not 1"],
    Haunted: ["poisson: records with a privacy weight of 0 change the posterior"],
    Doubled: ["poisson: draws do not follow its density"],
    Shifted: [
        "poisson: simulate has another mean than expect",
        "poisson: simulate has another distribution than until",
        "poisson: simulate has another mean than expect within bounds",
        "poisson: simulate has another distribution than until within bounds",
        "poisson: simulate leaves the public bounds",
    ],
    Unlimited: ["poisson: simulate has another mean than expect within bounds"],
    Unclipped: [
        "poisson: simulate has another mean than expect within bounds",
        "poisson: simulate leaves the public bounds",
    ],
    Endless: ["poisson: until has records outside of the public bounds"],
    Swapped: [IN_ALL.format("mean"), IN_ALL.format("precision")],
    Flat: [IN_ALL.format("mean"), IN_ALL.format("precision")],
    Narrow: ["negative_binomial: at and log_prior give mean another posterior than draws have"],
    Exactly: ["poisson: extremes are not wider than the rounding error"],
    Summed: ["poisson: extremes are not wider than the rounding error"],
}
"""What the contract says of a broken family, and all of it: every draw of these tests follows from a fixed seed."""


@pytest.mark.parametrize("model", BROKEN)
def test_a_broken_family_is_found_out(model: Any) -> None:
    assert problems(BROKEN[model][0].partition(":")[0], model) == BROKEN[model]


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
