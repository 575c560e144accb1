"""Converts weights and outcomes to normal scores under a reference's distributions, and uniforms to synthetic pairs.

See METHODS §5b.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import uniforms_of
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.copula.law import Kind
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.spline import INTERVALS, basis, intervals
from dpdist.models.numerics.tiles import by_pattern


class Scored(NamedTuple):
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
    """The part of every record, (record,): 0 where the outcome is 0 and outcomes of this kind may be 0, otherwise 1."""
    return np.ones(len(outcome), dtype=np.int64) if kind == "positive" else (outcome != 0).astype(np.int64)


def scored(facts: Facts, records: Records, cell: Codes, kind: Kind) -> Scored:
    """Normal scores of records under the reference's distributions.

    At a value that many records have, a record's score also depends on a uniform, which its number and `facts.key`
    determine.
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
    return Scored(cell, part, z_w, z_y)


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
        left = located + law.residual[0, cell] * scipy.special.ndtri(uniforms[:, 2])
        z_y = facts.tie[cell] * splines[:, 1] + facts.untied[cell] * left
        for rows, number in _outcomes(facts, cell, part, weight):
            outcome[rows] = facts.marginals[number].values(z_y[rows])
    return outcome, weight


def _outcomes(facts: Facts, cell: Codes, part: Ints, weight: Floats) -> list[tuple[Ints, int]]:
    """The records of part 1 by their distribution of outcomes: positions of records, and the distribution's number.

    A record's cell and weight determine its distribution.
    """
    numbers = np.where(part == 1, facts.outcome_of(cell, weight), -1).astype(np.int32)
    return [(rows, number) for rows, number in by_pattern(numbers) if number >= 0]
