"""Checks of a plug-in's model of one outcome, whose draws need no Markov chain.

Statistical checks have a two-sided normal tail of 1e-6 for each figure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab, Floats
from dpdist.job import Job
from dpdist.job.families import MODELS, Support, facts_of
from dpdist.models.protocol import Draws, supports
from dpdist.testing.members import check_member

LIMIT = 4.9
LEVELS = {"field": ("maths", "physics", "health"), "sex": ("male", "female")}
FRAME = Crosstab(
    {"field": np.repeat(np.arange(3, dtype=np.int32), 2), "sex": np.tile(np.arange(2, dtype=np.int32), 3)},
    LEVELS,
    np.array([9, 7, 6, 5, 4, 9]),
    (),
    (),
)
FEW, MANY = 40, 20_000


def built(family: str, builder: Any = None, bounds: tuple[float, float] | None = None) -> Any:
    """The model of the family, or of `builder`. Without `bounds`, no record reaches the public bounds."""
    support = facts_of(family).support
    job = Job.model_validate(
        {
            "dataset": "test",
            "period": "1",
            "columns": {
                **{name: {"levels": list(levels)} for name, levels in LEVELS.items()},
                "y": {"bounds": list(bounds or (max(support.low, 0.0), min(support.high, 60.0)))},
            },
            "survey": {},
            "strata": [],
            "outcome": "y",
            "model": {"family": family},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "3.6"},
            "tables": [{"name": "t", "by": list(LEVELS), "statistics": ["count"]}],
        }
    )
    return (builder or MODELS.named(family)).build(job, FRAME, slice(0, len(FRAME)))


def records(family: str, n: int, seed: int) -> Records:
    """Outcomes that the family takes."""
    support, rng = facts_of(family).support, np.random.default_rng(seed)
    high = min(support.high, 20.0)
    y = rng.integers(0, int(high) + 1, n).astype(float) if support.integer else rng.beta(2.0, 3.0, n) * high
    return Records.of_outcomes(y)


def draw_from(model: Any, sample: Records, alpha: float, draws: int) -> Draws:
    statistics = model.statistics(sample, np.full(len(sample), alpha))
    draw: Draws = getattr(model, "draw", None) or model.draw_on_grid
    return draw(statistics, draws, np.random.default_rng(5))  # type: ignore[operator, no-any-return]


def problems(family: str, builder: Any = None) -> list[str]:
    """The faults of a family's model, or of a broken model in its place."""
    model = built(family, builder)
    if lines := _degenerate(family, model):
        return lines
    lines = [*_prior(family, model), *_mass(family, model), *_updates(family, model), *_figures(family, model)]
    lines += [*_box(family, model), *_extremes(family, model), *_rounding(family, model)]
    if not binary(facts_of(family).support):
        lines += _bounded(family, model, builder)
    return lines


def _prior(family: str, model: Any) -> list[str]:
    data, empty = records(family, FEW, 1), records(family, 0, 1)
    with_zero, without = draw_from(model, data, 0.0, 50), draw_from(model, empty, 1.0, 50)
    same = all(np.array_equal(with_zero[parameter.name], without[parameter.name]) for parameter in model.parameters)
    return [] if same else ["records with a privacy weight of 0 change the posterior"]


def _degenerate(family: str, model: Any) -> list[str]:
    """A fault of the prior: no law, single points, or unchanged by hundreds of records with distant outcomes."""
    prior = draw_from(model, records(family, 0, 1), 1.0, FEW)
    columns = {parameter.name: prior[parameter.name].reshape(FEW, -1) for parameter in model.parameters}
    if not all(np.isfinite(values).all() for values in columns.values()):
        return ["its prior has draws that are not finite: without records there must be a posterior"]
    if any(len(np.unique(column)) < FEW / 2 for values in columns.values() for column in values.T):
        return ["its prior is of single points: records that are weighted down leave them as they are"]
    y = np.sort(records(family, 10 * FEW, 1).outcome)
    low, high = (
        draw_from(model, Records.of_outcomes(np.repeat(value, len(y))), 1.0, FEW)
        for value in y[[len(y) // 10, -len(y) // 10]]
    )
    moves = any(_apart(low[parameter.name], high[parameter.name]) for parameter in model.parameters)
    return [] if moves else [f"its draws hardly follow its records: {len(y)} small and large outcomes give the same"]


def _apart(left: Floats, right: Floats) -> bool:
    """True if an entry of a parameter has no overlap between the draws of the two samples."""
    pairs = zip(left.reshape(len(left), -1).T, right.reshape(len(right), -1).T, strict=True)
    return any(a.max() < b.min() or b.max() < a.min() for a, b in pairs)


def binary(support: Support) -> bool:
    """Outcomes 0 and 1, which bounds cannot cut."""
    return support.integer and support.high == 1.0


def points(support: Support) -> tuple[Floats, Floats]:
    """Outcomes and their weights in a sum over a support, by Gauss-Legendre's rule with 400 points."""
    if support.integer:
        y = np.arange(0.0, min(support.high, 5_000.0) + 1.0)
        return y, np.ones(len(y))
    assert support.low == 0.0
    nodes, steps = np.polynomial.legendre.leggauss(400)
    y, steps = (nodes + 1.0) / 2.0, steps / 2.0
    if support.high == np.inf:
        return 20.0 * y / (1.0 - y), 20.0 * steps / (1.0 - y) ** 2
    return support.high * y, support.high * steps


def _mass(family: str, model: Any) -> list[str]:
    theta, (y, steps) = draw_from(model, records(family, FEW, 1), 1.0, 5), points(facts_of(family).support)
    mass = np.exp(model.log_lik(theta, Records.of_outcomes(y))) @ steps
    return [] if np.allclose(mass, 1.0, atol=1e-6) else [f"its density has the mass {mass.min():.4g}, not 1"]


def _updates(family: str, model: Any) -> list[str]:
    """Draws reweighted by the density of further records equal draws given all records."""
    data, more = records(family, FEW, 1), records(family, 3, 2)
    before, after = (draw_from(model, of, 1.0, MANY) for of in (data, Records.joined([data, more])))
    weight = np.exp(model.log_lik(before, more).sum(axis=1))
    weight /= weight.sum()
    name = model.parameters[0].name
    old, new = (np.log(np.abs(draws[name].reshape(MANY, -1)[:, 0])) for draws in (before, after))
    mean = weight @ old
    error = np.sqrt((weight**2) @ (old - mean) ** 2 + new.var() / MANY)
    return [] if abs(mean - new.mean()) < LIMIT * error else ["draws do not follow its density"]


def _figures(family: str, model: Any) -> list[str]:
    theta = draw_from(model, records(family, FEW, 1), 1.0, 1)
    y, _ = model.simulate(theta, np.zeros(MANY, np.int32), np.random.default_rng(3))
    lines = list[str]()
    if abs(y.mean() - model.expect(theta)[1][0, 0]) > LIMIT * y.std() / np.sqrt(MANY):
        lines.append("the mean of simulate differs from expect")
    if supports(model, "until"):
        value = float(np.median(y))
        share = float(model.until(theta, np.array([0]), np.array([value]))[0, 0])
        if abs((y <= value).mean() - share) > LIMIT * 0.5 / np.sqrt(MANY):
            lines.append("the distribution of simulate differs from until")
    return lines


def _bounded(family: str, wide: Any, builder: Any) -> list[str]:
    """`_updates` with public bounds that a quarter of the records reach, on either side."""
    theta = draw_from(wide, records(family, FEW, 1), 1.0, 1)
    y, _ = wide.simulate(theta, np.zeros(MANY, np.int32), np.random.default_rng(4))
    low, top = np.quantile(y, [0.25, 0.75]).tolist()
    model = built(family, builder, (low, top))
    y, _ = model.simulate(theta, np.zeros(MANY, np.int32), np.random.default_rng(3))
    lines = [f"{line} within bounds" for line in _figures(family, model)]
    if y.min() < low or y.max() > top:
        lines.append("simulate leaves the public bounds")
    if supports(model, "until"):
        below, at_top = model.until(theta, np.zeros(2, int), np.array([np.nextafter(low, -np.inf), top]))[0]
        if (below, at_top) != (0.0, 1.0):
            lines.append("until has records outside of the public bounds")
    return lines


def _box(family: str, model: Any) -> list[str]:
    """On the box of a clamped posterior, `draws_at`, `log_prior` and the density give the posterior of the draws.

    Figures are means and mean squares of log parameters, given no record and given three.
    """
    if not supports(model, "draws_at"):
        return []
    density: Any = model
    middles, lines = [low + (high - low) * (np.arange(400) + 0.5) / 400 for low, high in model.box], list[str]()
    coordinates = np.stack(np.meshgrid(*middles, indexing="ij"), axis=-1).reshape(-1, 2)
    theta = model.draws_at(coordinates)
    for n in (0, 3):
        data = records(family, n, 1)
        log_posterior = model.log_prior(coordinates) + density.log_lik(theta, data).sum(axis=1)
        weight = np.exp(log_posterior - log_posterior.max())
        weight /= weight.sum()
        draws = draw_from(model, data, 1.0, MANY)
        for parameter in density.parameters:
            on_grid, sampled = np.log(theta[parameter.name]), np.log(draws[parameter.name])
            for power in (1, 2):
                powers = sampled**power
                if abs(powers.mean() - weight @ on_grid**power) > LIMIT * powers.std() / np.sqrt(MANY):
                    lines.append(f"draws_at and log_prior give {parameter.name} another posterior than draws have")
    return list(dict.fromkeys(lines))


def _extremes(family: str, model: Any) -> list[str]:
    """Extremes bound the density of every record under each of many draws, as a record bound does."""
    sample = records(family, FEW, 1)
    theta = draw_from(model, sample, 1.0, 50)
    values, extremes = model.log_lik(theta, sample), model.extremes(theta, sample)
    room = EVALUATION * (1.0 + np.abs(values).max(axis=0))
    inside = (values.max(axis=0) <= extremes.highest + room) & (values.min(axis=0) >= extremes.lowest - room)
    return [] if inside.all() else ["its density leaves its extremes: take them over all draws"]


EVALUATION = 1e-12
"""Relative rounding error between two evaluations of a density in different orders."""
ULP_STEPS = np.arange(-16, 17)
"""Steps of 2⁻⁴⁴ of a parameter. Over so few steps a density is a straight line, and its deviations are rounding."""


def _rounding(family: str, model: Any) -> list[str]:
    """Extremes exceed the density by its rounding error, as privacy bounds need.

    Outcomes lie close together and far from 0, so that terms of the density cancel each other.
    """
    support, sample = facts_of(family).support, records(family, FEW, 1)
    if not binary(support):
        middle = 0.3 * min(support.high, 1e6)
        y = middle * (1.0 + 1e-3 * np.random.default_rng(6).standard_normal(FEW))
        sample = Records.of_outcomes(np.rint(y) if support.integer else y)
    theta = draw_from(model, sample, 1.0, 1)
    extremes, line = model.extremes(theta, sample), np.column_stack([np.ones(len(ULP_STEPS)), ULP_STEPS])
    slack = (extremes.highest - extremes.lowest) / 2.0
    for parameter in model.parameters:
        values_by_name = {name: np.repeat(values, len(ULP_STEPS), axis=0) for name, values in theta.values.items()}
        values_of = values_by_name[parameter.name]
        values_by_name[parameter.name] = values_of * (1.0 + ULP_STEPS * 2.0**-44).reshape(-1, *[1] * (values_of.ndim - 1))
        values = model.log_lik(Draws(values_by_name), sample)
        values = values - values[len(ULP_STEPS) // 2]
        error = np.abs(values - line @ np.linalg.lstsq(line, values, rcond=None)[0]).max(axis=0)
        if (error > slack).any() or not (slack > 0.0).all():
            return ["extremes are not wider than the rounding error"]
    return []


def check_family(family: str) -> None:
    """Checks a family of one outcome by the name that a job states; its distribution must be installed.

    The prior is a law that records change, unless their weight is 0. The density has mass 1 and gives the draws.
    `expect` and `until` agree with `simulate` within public bounds. Extremes bound the density of many draws, with its
    rounding error. Raises `AssertionError` with all that is wrong.
    """
    check_member(MODELS, family, lambda: problems(family))
