"""The model of weighted marginals: tables of single columns and of pairs of columns.

As edges of a graph of columns, the chosen pairs make no loop. So the distribution of greatest entropy with these tables
factors along a tree. Synthetic records are weighted until they have the tables of this tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dpdist.core.records import Floats, Frame, Records
from dpdist.job import Job
from dpdist.job.marginals import WeightedMarginals, candidates, forest
from dpdist.mechanisms.coded_tables.beyond_bound import ReferenceWeights
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.mechanisms.coded_tables.records import Filling
from dpdist.mechanisms.coded_tables.sensitivity import table_scale
from dpdist.mechanisms.weighted_marginals.order import filling
from dpdist.mechanisms.weighted_marginals.sensitivity import (
    CHOICE_OF_ROUND,
    OUTRIGHT,
    PAIRS,
    ROUNDS,
    ROUNDS_OF_PAIRS,
    SELECTION,
    SINGLES,
    choice_scale,
)
from dpdist.models.protocol import Draws


@dataclass(frozen=True)
class Marginals(CodedTables):
    """The tables that the job names. If it names none: a table for each column, and for pairs that are chosen."""

    listed: tuple[Marginal, ...] | None
    """Tables that the job names; None: pairs of columns are chosen."""
    adaptive: bool
    """Pairs are chosen and measured in rounds, a pair more than once if that is worth while."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Self:
        made = super().build(job, frame, rows, proper)
        return made.measuring(made.listed or ())

    @classmethod
    def settings(cls, job: Job) -> tuple[Any, ...]:
        said = job.mechanism
        assert isinstance(said, WeightedMarginals)
        number = {name: k for k, name in enumerate(job.outcomes)}
        listed = None if said.marginals is None else tuple(tuple(number[name] for name in key) for key in said.marginals)
        adaptive = said.adapts
        return ((0,),) if listed is None and len(number) == 1 else listed, adaptive

    @cached_property
    def candidates(self) -> tuple[Marginal, ...]:
        """Pairs that may be chosen. They follow from the public numbers of levels."""
        return candidates(self.sizes)

    @cached_property
    def pairs(self) -> int:
        """Number of pairs of columns that are measured if the job names no tables."""
        return forest(candidates(self.sizes))

    def learned(self, records: Records, copied: pa.Table | None) -> ReferenceWeights:
        """The reference's weights and positions of levels, for what lies beyond the weights' bound."""
        return ReferenceWeights(self.codes(records), records.weight)

    @property
    def chooses(self) -> bool:
        """True if pairs must be chosen, because all candidates together would make a loop."""
        return self.pairs < len(self.candidates)

    def sharing(self, key: Marginal) -> int:
        if self.listed is not None:
            return len(self.listed)
        return len(self.columns) if len(key) == 1 else 1 if self.adaptive else self.pairs

    @property
    def most_sums(self) -> int:
        return self.cells(self.listed if self.listed is not None else (*self.singles, *self.candidates))

    @property
    def units(self) -> int:
        """Number of equal parts of ε that the rounds of an adaptive choice share."""
        return ROUNDS_OF_PAIRS * self.pairs

    def unit_scales(self, units: int) -> tuple[Fraction, Fraction]:
        """Scales of the noise on scores and on the pair's table in a round that takes so many parts of ε."""
        own = self.epsilon * ROUNDS * units / self.units
        choice = choice_scale(own * CHOICE_OF_ROUND, 1, self.adjacency)
        return choice, table_scale(own * (1 - CHOICE_OF_ROUND), 1, self.adjacency)

    def scales_of(self, theta: Draws) -> tuple[Fraction, ...]:
        scales = super().scales_of(theta)
        if "units" not in theta.values:
            return scales
        taken = [int(units) for units in theta["units"][0]]
        return tuple(self.unit_scales(n)[1] if n else scale for n, scale in zip(taken, scales, strict=True))

    def of_rounds(self, keys: tuple[Marginal, ...], sums: Floats, units: Sequence[int]) -> Draws:
        """As `released`, with the parts of ε that each table took; 0 for the tables of single columns."""
        made = self.released(keys, sums)
        return Draws({**made.values, "units": np.array([units], dtype=np.float64)})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        found = dict(super().describe(theta))
        if "units" in theta.values:
            found["units"] = [int(units) for units in theta["units"][0]]
        return found

    def recall(self, described: Mapping[str, Any]) -> Draws:
        made = super().recall(described)
        if "units" not in described:
            return made
        return Draws({**made.values, "units": np.array([described["units"]], dtype=np.float64)})

    def scale_of(self, key: Marginal) -> Fraction:
        if self.listed is None and self.adaptive and len(key) > 1:
            return self.unit_scales(1)[1]
        part = Fraction(1)
        if self.listed is None:
            part = (SINGLES if len(key) == 1 else PAIRS) if self.chooses else OUTRIGHT
        return table_scale(self.epsilon * part, self.sharing(key), self.adjacency)

    @property
    def scale(self) -> Fraction:
        scales = [self.scale_of(key) for key in (*self.singles, (0, 1))]
        if self.adaptive:
            scales += self.unit_scales(1)
        elif self.listed is None and self.chooses:
            scales.append(choice_scale(self.epsilon * SELECTION, self.pairs, self.adjacency))
        return max(scales)

    @property
    def largest_score(self) -> Fraction:
        """The largest b K that is subtracted in a pair's score, in units of 1/UNIT; 0 if nothing is chosen."""
        chosen = self.candidates if self.listed is None and self.chooses else ()
        return max((self.scale_of(key) * prod(self.shape(key)) for key in chosen), default=Fraction(0))

    def filling(self, keys: tuple[Marginal, ...]) -> list[Filling]:
        return filling(len(self.columns), [key for key in keys if len(key) > 1])

    def raked_to(self, keys: tuple[Marginal, ...]) -> list[Marginal]:
        """All pairs, and the columns that are in none."""
        pairs = [key for key in keys if len(key) > 1]
        return [*pairs, *(single for single in self.singles if not any(single[0] in pair for pair in pairs))]


def model_of(job: Job) -> type[Marginals]:
    """The model of every job under the mechanism."""
    return Marginals
