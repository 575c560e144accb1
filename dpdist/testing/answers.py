"""For `testing.mechanisms`: checks that all that a mechanism releases follows from its noisy answers.

Each synthetic set has answers of its own. The noise that a release states is the noise that was drawn.

A check returns sentences on what is wrong; it returns none for a mechanism that keeps its contract.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from dpdist.engine.protocol import Measurement, Query, noise_of
from dpdist.mechanisms.figures import GAUSSIAN, LAPLACE, Figures, measured_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.testing.losses import KEY, Answered, Captured, answered, neighbours

TRIED = 4
"""Number of neighbouring files over which a release is compared."""
MOVED = 5.0
"""Sizes, in noise scales, by which one answer is moved in either direction, to see which sets depend on it."""
SLIGHT = 1000
"""Noise, in whole units, that makes all answers different and keeps each within its domain."""
LAWS = {"laplace": LAPLACE, "gaussian": GAUSSIAN}
_SCALE = re.compile(r"(?:scale|and) (\d+(?:/\d+)?)")
_STATED = (
    re.compile(r"noise of scale (?P<d>\d+)/ε of a set"),
    re.compile(r"noise of scale (?P<d>\d+)/\((?P<part>\d+(?:/\d+)?) ε\)"),
    re.compile(r"noise of scale (?P<d>\d+) over (?P<part>\d+/\d+) of ε"),
)
"""Patterns by which assumptions state a scale: a distance D, over ε or over a part of it."""


def problems_of_answers(name: str, case: Captured, mechanism: Any = None) -> list[str]:
    """Faults: a release that follows from exact sums, sets that share an answer, noise without effect."""
    try:
        base = answered(case, case.records, _noisy, mechanism)
    except ValueError as error:
        return [f"{name}: {error}"]
    of_sums = list(_of_exact_sums(name, case, base, mechanism))
    return list(dict.fromkeys([*of_sums, *_of_sets(name, case, base, mechanism)]))


def _noisy(number: int, query: Query) -> Any:
    return query.under(noise_of(KEY.child(str(number)))(query.noise))


def _imposed(base: Answered, moved: int = -1, by: float = 0.0, uneven: bool = False) -> Callable[[int, Query], Any]:
    """The answers of `base` with one of them moved; the queries' own answers after adaptive paths part.

    Uneven figures are moved in both directions in turn, because a mechanism may subtract their mean.
    """

    def answer(number: int, query: Query) -> Any:
        if number >= len(base.answers) or not _alike(query, base.queries[number]):
            return _noisy(number, query)
        if number != moved:
            return base.answers[number]
        signs = (-1.0) ** np.arange(query.noise.size).reshape(np.shape(base.answers[number])) if uneven else 1.0
        return base.answers[number] + by * float(query.noise.scale) * signs

    return answer


def _asks_otherwise(other: Answered, base: Answered, after: int) -> bool:
    """True if a later query concerns other figures, because an answer may only decide a choice."""
    pairs = zip(other.queries[after + 1 :], base.queries[after + 1 :], strict=False)
    return any(query.noise != as_before.noise for query, as_before in pairs)


def _alike(one: Query, other: Query) -> bool:
    return type(one) is type(other) and one.noise.size == other.noise.size


def _differing(one: Answered, other: Answered) -> list[tuple[int, str]]:
    """Sets and parameters that differ between two releases."""
    pairs = zip(one.released.parameters, other.released.parameters, strict=True)
    return [
        (number, name)
        for number, (mine, theirs) in enumerate(pairs, 1)
        for name in mine.values
        if not np.array_equal(mine[name], theirs[name], equal_nan=True)
    ]


def _of_exact_sums(name: str, case: Captured, base: Answered, mechanism: Any) -> Iterator[str]:
    files = neighbours(case.job, case.records)[0]
    for file in files[:: max(1, len(files) // TRIED)]:
        other = answered(case, file, _imposed(base), mechanism)
        for number, parameter in _differing(base, other):
            yield (
                f"{name}: under the same noisy answers '{parameter}' of set {number} differs between neighbouring files: "
                "it takes exact sums. Release what the queries answer, and nothing else"
            )


def _of_sets(name: str, case: Captured, base: Answered, mechanism: Any) -> Iterator[str]:
    sets = len(base.released.parameters)
    noises = case.job.mechanism.noises(case.job)
    per_noise, reached = sets // noises, set[int]()
    for number, query in enumerate(base.queries):
        if not isinstance(query, Measurement):
            continue
        moves = ((MOVED, False), (-MOVED, False), (MOVED, True))
        moved = [answered(case, case.records, _imposed(base, number, *move), mechanism) for move in moves]
        touched = sorted({set_number for other in moved for set_number, _ in _differing(base, other)})
        reached |= set(touched)
        if not touched and not any(_asks_otherwise(other, base, number) for other in moved):
            yield f"{name}: query {number + 1} changes nothing that is released: is its answer used?"
        if len({(set_number - 1) // per_noise for set_number in touched}) > 1:
            yield (
                f"{name}: one noisy answer is in sets {', '.join(map(str, touched))}, and its specification says that "
                f"records were protected {noises} times (noises): ask for noise of its own for each"
            )
    for set_number in sorted(set(range(1, sets + 1)) - reached):
        yield f"{name}: no noisy answer changes set {set_number}: it is released without noise"


def problems_of_stated_noise(name: str, case: Captured, mechanism: Any = None) -> list[str]:
    """Faults: `measurements.parquet`, the released object or the statement has other noise than was drawn."""
    rng = np.random.default_rng(3)
    once = answered(
        case, case.records, lambda _, query: query.under(np.rint(rng.uniform(0.0, SLIGHT, query.noise.size))), mechanism
    )
    drawn: dict[float, set[tuple[str, Fraction]]] = {}
    for query, answer in zip(once.queries, once.answers, strict=True):
        for value in np.ravel(answer).tolist():
            drawn.setdefault(value, set()).add((query.noise.law, query.noise.scale))
    scales = {query.noise.scale for query in once.queries}
    lines, units = list[str](), set[float]()
    for theta in once.released.parameters:
        for figures in _figures(case, theta):
            units.add(figures.unit)
            lines += _of_figures(name, figures, drawn)
        lines += _described(name, case, theta, scales)
    promise = (mechanism or mechanism_of(case.job)).promise(case.job)
    return list(dict.fromkeys([*lines, *_assumed(name, case, promise.assumptions, units, scales)]))


def _figures(case: Captured, theta: Draws) -> Iterator[Figures]:
    release = SimpleNamespace(job=case.job, crosstab=case.fit.crosstab, theta=lambda *_: theta, model=lambda _: case.model)
    return measured_of(case.job).figures(release, case.model, case.stratum, theta)


def _of_figures(name: str, figures: Figures, drawn: dict[float, set[tuple[str, Fraction]]]) -> Iterator[str]:
    for column, (statistic, scale) in enumerate(zip(figures.statistics, figures.scales, strict=True)):
        values = np.asarray(figures.values)[:, column]
        for value in values[np.isfinite(values)].tolist() if scale is not None else ():
            if value not in drawn:
                yield f"{name}: measurements.parquet lists '{statistic}', and not as a query answered it"
            elif not any(scale_drawn == scale and figures.law.endswith(LAWS[law]) for law, scale_drawn in drawn[value]):
                had = " or ".join(sorted(f"{LAWS[law]} of scale {scale_drawn}" for law, scale_drawn in drawn[value]))
                stated = f"{figures.law} of scale {scale} on '{statistic}'"
                yield f"{name}: measurements.parquet states {stated}, and the noise was {had}"


def _described(name: str, case: Captured, theta: Draws, scales: set[Fraction]) -> Iterator[str]:
    described = str(case.model.describe(theta).get("noise", ""))
    for text in _SCALE.findall(described):
        if Fraction(text) not in scales:
            yield f"{name}: the released object says '{described}', and no noise of the scale {text} was asked for"


def _assumed(
    name: str, case: Captured, assumptions: Sequence[str], units: set[float], scales: set[Fraction]
) -> Iterator[str]:
    for text in assumptions:
        for stated in (match for pattern in _STATED for match in pattern.finditer(text)):
            epsilon = case.job.epsilon_per_set * Fraction(stated.groupdict().get("part") or 1)
            wanted = {Fraction(stated["d"]) * Fraction(unit) / epsilon for unit in units}
            if not wanted & scales:
                yield f"{name}: the statement says '{stated[0]}', and no noise of that scale was asked for"
