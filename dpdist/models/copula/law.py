"""The density of the score model: a record's log density as a table of coefficients for its scores (METHODS §5b).

z_w and z_y are the normal scores of a record's weight and outcome.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.spline import CONSTANT, REACH, SLOPE
from dpdist.models.numerics.tiles import Table

Kind = Literal["positive", "hurdle", "binary"]
"""`positive`: no outcome is 0. `hurdle`: an outcome may be 0. `binary`: an outcome is 0 or 1."""
PARTS: dict[Kind, tuple[str, ...]] = {"positive": ("all",), "hurdle": ("zero", "not zero"), "binary": ("0", "1")}
"""Names of the parts of a cell, by kind of outcome."""


def law_of(facts: Facts) -> Law:
    """The reference's own fit, as a law with one draw."""
    mean, sd = facts.weight.location[..., 0], np.sqrt(facts.weight.variance)
    one = (facts.share, mean, sd, facts.outcome.location, np.sqrt(facts.outcome.variance))
    return Law(*(values[None] for values in one))


def relative(law: Law, reference: Law, cell: int, place: int, kind: Kind) -> Table:
    """Coefficients of f, the log density under `law` minus the log density under `reference` (see `table_of`)."""
    current, other = (table_of(one, cell, place, kind) for one in (law, reference))
    return Table(current.values - other.values, current.magnitude + other.magnitude)


def table_of(law: Law, cell: int, place: int, kind: Kind) -> Table:
    """Coefficients of (1, z_y, z_w, z_y², z_y z_w, z_w²) in a log density, (6, draw), and the sizes of their terms, (6,).

    `place` 0 is a cell's part 0. Another `place` is part 1 with z_w in interval `place` − 1, where the regression is a
    line: b(z_w)'β = s + t z_w. Up to constants, the log density is

        log p − log τ − (z_w − μ)²/2τ² − log σ − (z_y − s − t z_w)²/2σ².

    Here p is the part's probability, μ and τ are the mean and standard deviation of z_w, and σ is the standard deviation
    of z_y given z_w. The terms with σ exist only where a record has a z_y. A term's size is taken before any terms
    cancel; the rounding error is proportional to it.
    """
    part = int(place > 0)
    mean, sd = law.mean[:, cell, part], law.sd[:, cell, part]
    values, sizes = np.zeros((6, len(sd))), np.zeros((6, len(sd)))
    location = mean / sd**2

    def add(term: int, *parts: Floats) -> None:
        values[term] += sum(parts)
        sizes[term] += sum(np.abs(part) for part in parts)

    add(0, -np.log(sd), -0.5 * mean * location)
    add(2, location)
    add(5, -0.5 / sd**2)
    if kind != "positive":
        add(0, np.log(law.share[:, cell] if part else 1.0 - law.share[:, cell]))
    if part and kind != "binary":
        slopes, sigma = law.slopes[:, cell], law.residual[:, cell]
        precision, s, t = 1.0 / sigma**2, slopes @ CONSTANT[place - 1], slopes @ SLOPE[place - 1]
        add(0, -np.log(sigma), -0.5 * s**2 * precision)
        add(1, s * precision)
        add(2, -s * t * precision)
        add(3, -0.5 * precision)
        add(4, t * precision)
        add(5, -0.5 * t**2 * precision)
        widest = np.abs(slopes).sum(axis=1) * REACH
        sizes[:3] += precision * np.array([widest**2, widest, widest**2])
        sizes[4:] += precision * np.array([widest, widest**2])
    return Table(values, sizes.max(axis=1))
