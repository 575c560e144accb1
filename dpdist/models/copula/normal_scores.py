"""Converts values to scores under a reference's distributions, and uniforms to values (METHODS §5b)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpdist.core.keys import uniforms_of
from dpdist.core.records import Codes, Floats, Ints, Records
from dpdist.models.copula.law import Kind
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.spline import INTERVALS, basis, intervals
from dpdist.models.numerics.tiles import by_pattern


class Scored(NamedTuple):
    """Cell, part and scores of records, (record,) each; z_y is 0 where a record has no outcome score.

    In a tied cell, z_y is the residual (z_y − ρ z_w)/√(1 − ρ²) of the outcome's score.
    """

    cell: Codes
    part: Ints
    weight: Floats
    outcome: Floats

    @property
    def pattern(self) -> Ints:
        """Cell, part and interval in one number."""
        return self.cell * np.int64(1 + INTERVALS) + np.where(self.part == 0, 0, 1 + intervals(self.weight))


def part_of(outcome: Floats, kind: Kind) -> Ints:
    """Part of every record: 0 where the outcome is 0 and the kind of outcome has a part for zeros."""
    return np.ones(len(outcome), dtype=np.int64) if kind == "positive" else (outcome != 0).astype(np.int64)


def scored(facts: Facts, records: Records, cell: Codes, kind: Kind) -> Scored:
    """Scores of records under the reference's distributions."""
    part = part_of(records.outcome, kind)
    z_w, z_y = np.zeros(len(records)), np.zeros(len(records))
    places = uniforms_of(facts.key, "weight", records.record)
    for own, number in by_pattern(facts.of_weight[cell, part].astype(np.int32)):
        z_w[own] = facts.marginals[number].scores(records.weight[own], places[own])
    if kind != "binary":
        places = uniforms_of(facts.key, "outcome", records.record)
        for own, number in _outcomes(facts, cell, part, records.weight):
            z_y[own] = facts.marginals[number].scores(records.outcome[own], places[own])
        z_y = np.where(part == 1, (z_y - facts.tie[cell] * basis(z_w)[:, 1]) / facts.untied[cell], 0.0)
    return Scored(cell, part, z_w, z_y)


def placed(facts: Facts, law: Law, cell: Codes, kind: Kind, uniforms: Floats) -> tuple[Floats, Floats]:
    """Pairs (y*, w*) from uniforms of part, weight and outcome, (record, 3), within the reference's range."""
    part = (uniforms[:, 0] > 1.0 - law.share[0, cell]).astype(np.int64)
    z_w = law.mean[0, cell, part] + law.sd[0, cell, part] * ndtri(uniforms[:, 1])
    weight, outcome = np.empty(len(cell)), part.astype(np.float64)
    for own, number in by_pattern(facts.of_weight[cell, part].astype(np.int32)):
        weight[own] = facts.marginals[number].values(z_w[own])
    if kind != "binary":
        splines = basis(z_w)
        located = (splines * law.slopes[0, cell]).sum(axis=1)
        left = located + law.residual[0, cell] * ndtri(uniforms[:, 2])
        z_y = facts.tie[cell] * splines[:, 1] + facts.untied[cell] * left
        for own, number in _outcomes(facts, cell, part, weight):
            outcome[own] = facts.marginals[number].values(z_y[own])
    return outcome, weight


def _outcomes(facts: Facts, cell: Codes, part: Ints, weight: Floats) -> list[tuple[Ints, int]]:
    """Yields the records of part 1 by their distribution of outcomes, given their weights."""
    numbers = np.where(part == 1, facts.outcome_of(cell, weight), -1).astype(np.int32)
    return [(own, number) for own, number in by_pattern(numbers) if number >= 0]
