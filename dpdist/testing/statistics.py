"""Checks of a plug-in's statistic: its form in a job, its text, its values and linearised form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from dpdist.core.records import Cells, Crosstab, Floats, Ints, cross
from dpdist.estimation.linear import Units, figures_of
from dpdist.job import Statistic
from dpdist.job.statistics import KINDS
from dpdist.job.tables import Statistics
from dpdist.testing.members import check_member

COLUMNS, OUTCOMES, RECORDS = ("field", "sex"), ("pay", "hours"), 400
"""Columns of the cells and outcomes of the made-up file, which a statistic may name."""
STEP, TOLERANCE = 1e-6, 1e-4
"""A change of one record's weight, and the allowance for its effect, relative to the largest effect of a record."""
ROUNDING = 1e-12
"""Allowance of a value for rounding."""
LOWEST, HIGHEST = 1.0, 20.0
"""Public bounds of both outcomes."""
MOVES = (0.0, -10.0)
"""Numbers that are added to all outcomes, and to their bounds, to see whether values stay in `possible`."""


def check_statistic(statistic: str, written: Any) -> None:
    """Checks a statistic by its name; its distribution must be installed.

    `written` is the statistic as a job writes it, of columns `field` and `sex` and outcomes `pay` and `hours`. It must be
    written as it is read, have a text, lie within its limits and within what is possible given the outcomes' bounds, and
    have a linearised form: for a ratio of sums, the effect of a record's weight. Raises `AssertionError` with every fault.
    """
    check_member(KINDS, statistic, lambda: _faults(statistic, written))


def _faults(statistic: str, written: Any) -> Iterator[str]:
    try:
        (parsed,) = TypeAdapter(Statistics).validate_python([written])
    except ValidationError as error:
        yield from (f"a job cannot write it as {written}: {fault['msg']}" for fault in error.errors())
        return
    yield from _lines(statistic, written, parsed)


def _lines(name: str, written: Any, parsed: Statistic) -> Iterator[str]:
    if parsed.name != name:
        yield f"{written} is read as {parsed.name}"
    if TypeAdapter(Statistics).validate_python([parsed.written])[0] != parsed:
        yield f"it is written as {parsed.written}, which is read as another statistic"
    if not parsed.label.strip():
        yield "it has no text: return one in label"
    cells, weight, outcomes = _file()
    figures = figures_of(parsed, cells, OUTCOMES)
    if parsed.level_of_quantile is None:
        units = _units(weight, outcomes)
        values = figures.of(units)[0]
        low, high = parsed.kind.limits
        if not np.isfinite(values).all():
            yield "a cell of many records has no value"
        elif (values < low - ROUNDING).any() or (values > high + ROUNDING).any():
            yield f"a value is outside of its limits, {low:g} to {high:g}"
        shares = figures.shares(units).toarray()
        for record in range(0, RECORDS, 20):
            changed = weight.copy()
            changed[record] *= 1.0 + STEP
            effect = (figures.of(_units(changed, outcomes))[0] - values) / STEP
            if np.abs(effect - shares[:, record]).max() > TOLERANCE * np.abs(shares).max():
                yield "its value does not move with a record's weight as its sums do: `sums` and `of` must agree"
                break
        for move in MOVES:
            bounds = LOWEST + move, HIGHEST + move
            yield from _impossible(parsed, figures.of(_units(weight, outcomes + move))[0], bounds)


def _impossible(parsed: Statistic, values: Floats, bounds: tuple[float, float]) -> Iterator[str]:
    low, high = parsed.kind.possible(parsed, lambda _: bounds)
    if (values < low - ROUNDING).any() or (values > high + ROUNDING).any():
        of = f"outcomes from {bounds[0]:g} to {bounds[1]:g}"
        yield f"a value is outside of what `possible` gives for {of}: it gives {low:g} to {high:g}"


def _file() -> tuple[Cells, Floats, Floats]:
    """Cells by both columns with margins, weights (record,) and outcomes (outcome, record), all within their bounds."""
    rng = np.random.default_rng(1)
    codes = {name: (np.arange(RECORDS) // (1 + 2 * k) % (3 - k)).astype(np.int32) for k, name in enumerate(COLUMNS)}
    levels = {"field": ("arts", "law", "physics"), "sex": ("f", "m")}
    crosstab = Crosstab(codes, levels, np.ones(RECORDS, np.int64), (), ())
    return cross(crosstab, COLUMNS, True), rng.uniform(1.0, 3.0, RECORDS), rng.uniform(LOWEST, HIGHEST, (2, RECORDS))


def _units(weight: Floats, outcomes: Floats) -> Units:
    def below(outcome: int, record: Ints, value: Floats) -> Floats:
        return np.asarray((weight[record] * (outcomes[outcome][record] <= value))[None])

    return Units(np.ones(RECORDS), weight[None], [(weight * values)[None] for values in outcomes], below, list(outcomes))
