"""Chooses and measures pairs of columns in rounds, with a budget that grows when tables tell little (McKenna et al. 2022).

This is AIM under bounded weights, restricted to pairs that make no loop. Then the fitted distribution has a closed form.
The sensitivity of scores is in `sensitivity`.
"""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from itertools import count
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Choice, Measurement, Pass
from dpdist.mechanisms.coded_tables.fitting import Fitted, Marginal
from dpdist.mechanisms.coded_tables.sensitivity import UNIT, tables
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.stratum_sums import Defined
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.selection import joined
from dpdist.mechanisms.weighted_marginals.sensitivity import best_pair
from dpdist.models.protocol import Draws


class Measured(NamedTuple):
    """What was measured so far: tables, their noisy sums one after another, and the parts of ε that each took."""

    keys: tuple[Marginal, ...]
    sums: Floats
    units: tuple[int, ...]


def in_rounds(model: Marginals, singles: Floats, numbers: count[int]) -> Generator[Pass | Choice | Measurement, Any, Draws]:
    """The parameters that are released, from the noisy tables of single columns and from rounds over pairs.

    A round takes `taken` parts of ε, or all that are left if less would remain than it takes. Where the table that it
    measured changed the fitted one by less than its noise, later rounds take twice as many.
    """
    exact = yield Pass(Count(model.measuring(model.candidates)), "sum")
    exact_tables = {key: values[0] for key, values in model.split(model.candidates, exact[None]).items()}
    known, groups = Measured(model.singles, singles, (0,) * len(model.singles)), list(range(len(model.columns)))
    taken, left = 1, model.units
    while left:
        units = taken if left >= 2 * taken else left
        choice, scale = model.unit_scales(units)
        fitted, own = model.fitted(model.of_rounds(*known)), Defined.by((model, known, units))
        open_ones = [key for key in model.candidates if key in known.keys or groups[key[0]] != groups[key[1]]]
        expected = {key: expected_of(model, fitted, key) for key in open_ones}
        values = [_score(exact_tables[key], np.rint(expected[key]), scale) for key in open_ones]
        (first,) = yield own.scores(np.array([values]), best_pair(choice), next(numbers))
        best = open_ones[int(first)]
        noisy = yield own.sums(exact_tables[best].ravel(), tables(1, scale), next(numbers))
        known = Measured((*known.keys, best), np.concatenate([known.sums, noisy]), (*known.units, units))
        groups, left = joined(groups, best), left - units
        now = expected_of(model, model.fitted(model.of_rounds(*known)), best)
        if np.abs(now - expected[best]).sum() <= float(scale) * prod(model.shape(best)):
            taken *= 2
    return model.of_rounds(*known)


def expected_of(model: Marginals, fitted: Fitted, key: Marginal) -> Floats:
    """A pair's table as it follows from the fitted tables, in units of 1/UNIT: as measured, or under independence."""
    if key in fitted.tables:
        table = fitted.tables[key]
    else:
        table = np.outer(fitted.margins[key[0]], fitted.margins[key[1]]) / max(fitted.total, 1e-300)
    return np.asarray(table * (UNIT / model.weights[1]))


def _score(table: Floats, expected: Floats, scale: Fraction) -> float:
    """Σ|C − M| − b K in whole units of 1/UNIT."""
    return float(np.abs(table - expected).sum()) - round(scale) * table.size
