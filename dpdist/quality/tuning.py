"""Tunes constants of a mechanism to the smallest loss: scans a grid of values, then bisects near the best one.

The grid is scanned because neither bounds nor utility are monotone in a constant: small weights widen the posterior, and
with it the bound (METHODS §3). Constants are tuned one after the other, with the others fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dpdist.job import RULE_CONSTANTS, Job, Mechanism
from dpdist.mechanisms.promises import target_of

BISECTIONS = 3
REFUSED = float("inf")
"""Loss of constants for which the mechanism refuses the file."""
TUNED_FACTORS = tuple(0.85**step for step in range(16))
"""Factors by which a constant c is tried: from 1 down to about a tenth."""


class Knob(NamedTuple):
    """A constant, by its path in the mechanism's settings, and the values to scan.

    The value None is a choice without a number; bisection leaves it out.
    """

    path: str
    grid: tuple[float | None, ...]
    whole: bool = False
    required: bool = False
    """True if the mechanism's settings leave the constant unset."""


@dataclass
class Trials:
    """Losses of mechanisms. Each is computed once."""

    loss_of: Callable[[Mechanism], float]
    tick: Callable[[int], None]
    losses: dict[str, float] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism) -> float:
        key = mechanism.model_dump_json()
        if key not in self.losses:
            self.losses[key] = self.loss_of(mechanism)
            self.tick(1)
        return self.losses[key]


def knobs_of(job: Job) -> tuple[Knob, ...]:
    """The mechanism's constants that the budget does not determine, in the order of their effect, the largest first.

    The drift that `centred` plans for is left out, because halves of one file have no drift between periods.
    """
    mechanism, weights = job.mechanism, job.mechanism.weights
    if mechanism.scanned:
        return tuple(Knob(name, grid, True, getattr(mechanism, name) is None) for name, grid in mechanism.scanned.items())
    if weights.rule == "none":
        return ()
    tuned_on_reference = job.frozen and mechanism.tunes_weights
    constant = "c" in RULE_CONSTANTS[weights.rule] and not tuned_on_reference
    start = target_of(job) if weights.rule == "inverse" else 1.0
    knobs = []
    if tuned_on_reference:
        knobs.append(Knob("aim", (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)))
    if constant:
        knobs.append(Knob("weights.c", tuple(round(start * step, 6) for step in TUNED_FACTORS), required=weights.c is None))
    if "g" in RULE_CONSTANTS[weights.rule]:
        knobs.append(Knob("weights.g", (0.0, 0.05, 0.1, 0.2, 0.3)))
    if not mechanism.cuts_weights:
        without = (None,) if mechanism.tunes_weights else ()
        knobs.append(Knob("weights.reweight", (*without, 0.8, 0.9, 0.95, 1.0)))
    return (*knobs, Knob("weights.scale", (1.0, 0.9, 0.8, 0.7)), Knob("weights.shift", (0.0, 0.05, 0.1, 0.2)))


def search(start: Mechanism, knobs: Sequence[Knob], loss: Callable[[Mechanism], float]) -> tuple[Mechanism, float]:
    """Returns the mechanism with the smallest loss, and that loss, which is infinite where all are refused."""
    best, least = start, REFUSED if any(knob.required for knob in knobs) else loss(start)
    for knob in knobs:
        tried: dict[float | None, float] = {v: loss(with_value(best, knob.path, v)) for v in knob.grid}
        for _ in range(BISECTIONS):
            for value in between(tried, knob.whole):
                tried[value] = loss(with_value(best, knob.path, value))
        if least == min(tried.values()) == REFUSED:
            return start, REFUSED
        chosen = min(tried, key=lambda value: tried[value])
        if tried[chosen] < least:
            best, least = with_value(best, knob.path, chosen), tried[chosen]
    return best, least


def between(tried: dict[float | None, float], whole: bool) -> list[float]:
    """Midpoints, not yet tried, between the best number so far and its neighbours."""
    numbers = sorted(value for value in tried if value is not None)
    best = min(numbers, key=lambda value: tried[value])
    if tried[best] == REFUSED:
        return []
    place = numbers.index(best)
    candidates = []
    for other in (numbers[place - 1 : place] if place else []) + numbers[place + 1 : place + 2]:
        middle = float((best + other) // 2) if whole else round((best + other) / 2.0, 6)
        if middle not in tried:
            candidates.append(middle)
    return candidates


def with_value(mechanism: Mechanism, path: str, value: float | None) -> Mechanism:
    """The mechanism with another value of the constant at this path."""
    settings: dict[str, Any] = mechanism.model_dump(mode="json")
    *above, name = path.split(".")
    holder = settings[above[0]] if above else settings
    holder[name] = value
    return type(mechanism).model_validate(settings)
