"""For `copula.model` and `fits`: normal scores of weights and outcomes, their density, and synthetic pairs.

See METHODS §5b. z_w and z_y are the normal scores of a record's weight and outcome. A log density is a table of
coefficients for them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import uniforms_of
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.spline import CONSTANT, INTERVALS, REACH, SLOPE, basis, intervals
from dpdist.models.numerics.tiles import Table, by_pattern

Kind = Literal["positive", "hurdle", "binary"]
"""`positive`: no outcome is 0. `hurdle`: an outcome may be 0. `binary`: an outcome is 0 or 1."""
PARTS: dict[Kind, tuple[str, ...]] = {"positive": ("all",), "hurdle": ("zero", "not zero"), "binary": ("0", "1")}
"""Names of the parts of a cell, by kind of outcome."""


def law_of(facts: Facts) -> Law:
    """The reference's fit, as a `Law` with a leading axis of one draw."""
    mean, sd = facts.weight.location[..., 0], np.sqrt(facts.weight.variance)
    moments = (facts.share, mean, sd, facts.outcome.location, np.sqrt(facts.outcome.variance))
    return Law(*(values[None] for values in moments))


def relative(law: Law, reference: Law, cell: int, place: int, kind: Kind) -> Table:
    """Coefficients of f, the log density under `law` minus the log density under `reference` (see `table_of`)."""
    current, other = (table_of(law_or_reference, cell, place, kind) for law_or_reference in (law, reference))
    return Table(current.values - other.values, current.magnitude + other.magnitude)


def table_of(law: Law, cell: int, place: int, kind: Kind) -> Table:
    """Coefficients of (1, z_y, z_w, z_y², z_y z_w, z_w²) in a log density, (6, draw), and the sizes of their terms, (6,).

    `place` 0 is a cell's part 0. Another `place` is part 1 with z_w in interval `place` − 1, where the regression is a
    line: b(z_w)'β = s + t z_w. Up to constants, the log density is

        log p − log τ − (z_w − μ)²/2τ² − log σ − (z_y − s − t z_w)²/2σ².
    """
    # The terms with σ exist only where a record has a z_y. A term's size is taken before any terms cancel; the rounding
    # error is proportional to it.
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


class ScoredRecords(NamedTuple):
    """Cell, part and normal scores of records, (record,) each. `weight` is z_w, and `outcome` is z_y.

    z_y is 0 for a record without a score of its outcome. In a cell with a correlation ρ (`Facts.tie`), z_y is a residual:
    (z − ρ v)/√(1 − ρ²), where z is the outcome's score and v is z_w clipped to ±2.5.
    """

    cell: Codes
    part: Ints
    weight: Floats
    outcome: Floats

    @property
    def pattern(self) -> Ints:
        """Cell, part and interval of z_w of every record, as one number; part 0 has no intervals."""
        return self.cell * np.int64(1 + INTERVALS) + np.where(self.part == 0, 0, 1 + intervals(self.weight))


def part_of(outcome: Floats, kind: Kind) -> Ints:
    """The part of every record, (record,): 0 if the outcome is 0 and outcomes of this kind may be 0, otherwise 1."""
    return np.ones(len(outcome), dtype=np.int64) if kind == "positive" else (outcome != 0).astype(np.int64)


def scored(facts: Facts, records: Records, cell: Codes, kind: Kind) -> ScoredRecords:
    """Normal scores of records under the reference's distributions.

    At a value that many records have, a score also depends on a uniform, which the record's number and `facts.key` give.
    """
    part = part_of(records.outcome, kind)
    z_w, z_y = np.zeros(len(records)), np.zeros(len(records))
    places = uniforms_of(facts.key, "weight", records.record)
    for rows, number in by_pattern(facts.of_weight[cell, part].astype(np.int32)):
        z_w[rows] = facts.marginals[number].scores(records.weight[rows], places[rows])
    if kind != "binary":
        places = uniforms_of(facts.key, "outcome", records.record)
        for rows, number in _outcomes(facts, cell, part, records.weight):
            z_y[rows] = facts.marginals[number].scores(records.outcome[rows], places[rows])
        z_y = np.where(part == 1, (z_y - facts.tie[cell] * basis(z_w)[:, 1]) / facts.untied[cell], 0.0)
    return ScoredRecords(cell, part, z_w, z_y)


def placed(facts: Facts, law: Law, cell: Codes, kind: Kind, uniforms: Floats) -> tuple[Floats, Floats]:
    """Makes pairs (outcome, weight) under the law of the first posterior draw, within the reference's range.

    `uniforms` (record, 3) are for the part, the weight and the outcome.
    """
    part = (uniforms[:, 0] > 1.0 - law.share[0, cell]).astype(np.int64)
    z_w = law.mean[0, cell, part] + law.sd[0, cell, part] * scipy.special.ndtri(uniforms[:, 1])
    weight, outcome = np.empty(len(cell)), part.astype(np.float64)
    for rows, number in by_pattern(facts.of_weight[cell, part].astype(np.int32)):
        weight[rows] = facts.marginals[number].values(z_w[rows])
    if kind != "binary":
        splines = basis(z_w)
        located = (splines * law.slopes[0, cell]).sum(axis=1)
        residual = located + law.residual[0, cell] * scipy.special.ndtri(uniforms[:, 2])
        z_y = facts.tie[cell] * splines[:, 1] + facts.untied[cell] * residual
        for rows, number in _outcomes(facts, cell, part, weight):
            outcome[rows] = facts.marginals[number].values(z_y[rows])
    return outcome, weight


def _outcomes(facts: Facts, cell: Codes, part: Ints, weight: Floats) -> list[tuple[Ints, int]]:
    """The records of part 1 by their distribution of outcomes: positions of records, and the distribution's number.

    A record's cell and weight determine its distribution.
    """
    numbers = np.where(part == 1, facts.outcome_of(cell, weight), -1).astype(np.int32)
    return [(rows, number) for rows, number in by_pattern(numbers) if number >= 0]
