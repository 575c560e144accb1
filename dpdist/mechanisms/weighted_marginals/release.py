"""The model of weighted marginals: tables of single columns and of pairs of columns.

As edges of a graph of columns, the chosen pairs make no loop. So the distribution of greatest entropy with these tables
factors along a tree. Synthetic records are weighted until they have the tables of this tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame
from dpdist.job import Job
from dpdist.mechanisms.coded_tables.beyond_bound import ReferenceWeights
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.mechanisms.coded_tables.records import Filling
from dpdist.mechanisms.coded_tables.sensitivity import UNIT, table_scale
from dpdist.mechanisms.coded_tables.value_sums import ValueSums, positions
from dpdist.mechanisms.weighted_marginals.order import filling
from dpdist.mechanisms.weighted_marginals.sensitivity import (
    OUTRIGHT,
    PAIRS,
    ROUNDS_OF_PAIRS,
    SELECTION,
    SINGLES,
    choice_scale,
    scales_of_round,
)
from dpdist.mechanisms.weighted_marginals.spec import WeightedMarginals, candidates, forest
from dpdist.models.protocol import Draws

Value = tuple[int, int | None]
"""A sum of a column's values: the column, and the column by whose levels it is taken; None: over all records."""


@dataclass(frozen=True)
class Marginals(CodedTables):
    """The tables that the job names. If it names none: a table for each column, and for pairs that are chosen."""

    listed: tuple[Marginal, ...] | None
    """Tables that the job names; None: pairs of columns are chosen."""
    adaptive: bool
    """Pairs are chosen and measured in rounds, a pair more than once if that is worth while."""
    values: tuple[Value, ...]
    """The sums of values that the job names, each by the numbers of its column and of the column by which it is taken."""
    summing: bool = False
    """A pass sums values, too."""

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
        values = tuple((number[each.of], None if each.by is None else number[each.by]) for each in said.sums or ())
        return ((0,),) if listed is None and len(number) == 1 else listed, said.adapts, values

    def with_values(self, keys: tuple[Marginal, ...]) -> Self:
        """The same model, with these tables and all sums of values to be summed in a pass."""
        return replace(self, measured=keys, summing=True)

    @property
    def tables_summed(self) -> int:
        """As of the base class, with sums of values: a record moves each of them as far as a table."""
        return super().tables_summed + len(self.values) * self.summing

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        """As of the base class; then Σvu of every sum of values, in the same units."""
        found = super().statistics(records, alpha)
        if not self.summing:
            return found
        codes, v = self.codes(records), alpha * records.weight / self.weights[1]
        of_values = [
            np.bincount(
                codes[:, by] if by is not None else np.zeros(len(v), np.int64),
                weights=np.rint(UNIT * v * positions(self.levels[column])[codes[:, column]]),
                minlength=size,
            )
            for (column, by), size in zip(self.values, self.value_sizes, strict=True)
        ]
        return np.concatenate([found, *of_values])

    @property
    def value_sizes(self) -> tuple[int, ...]:
        """Number of cells of every sum of values."""
        return tuple(1 if by is None else self.sizes[by] for _, by in self.values)

    @property
    def value_scale(self) -> Fraction:
        """Scale of the noise on sums of values, in units of 1/UNIT: that of the tables with which they share ε."""
        return self.scale_of((self.listed or self.singles)[0])

    def value_sums(self, theta: Draws) -> list[ValueSums]:
        if "values" not in theta.values:
            return []
        unit = self.weights[1] / UNIT
        parts = np.split(theta["values"] * unit, np.cumsum(self.value_sizes)[:-1], axis=1)
        return [
            ValueSums(column, by, positions(self.levels[column]), part, float(self.value_scale) * unit)
            for (column, by), part in zip(self.values, parts, strict=True)
        ]

    def with_noisy_values(self, theta: Draws, sums: Floats) -> Draws:
        """The released parameters with noisy sums of values (cell,), if there are any."""
        return Draws({**theta.values, "values": sums[None]}) if sums.size else theta

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
            return len(self.listed) + len(self.values)
        return len(self.columns) + len(self.values) if len(key) == 1 else 1 if self.adaptive else self.pairs

    @property
    def most_sums(self) -> int:
        tables = self.listed if self.listed is not None else (*self.singles, *self.candidates)
        return self.cells(tables) + sum(self.value_sizes)

    @property
    def units(self) -> int:
        """Number of equal parts of ε that the rounds of an adaptive choice share."""
        return ROUNDS_OF_PAIRS * self.pairs

    def unit_scales(self, units: int) -> tuple[Fraction, Fraction]:
        """Scales of the noise on scores and on the pair's table in a round that takes so many parts of ε."""
        return scales_of_round(self.epsilon * units / self.units, self.adjacency)

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
        if "values" in theta.values:
            named = [(self.columns[c], None if by is None else self.columns[by]) for c, by in self.values]
            parts = np.split(theta["values"][0], np.cumsum(self.value_sizes)[:-1])
            found["values"] = [
                {"of": of, "by": by, "scale": str(self.value_scale), "sums": part.tolist()}
                for (of, by), part in zip(named, parts, strict=True)
            ]
        return found

    def recall(self, described: Mapping[str, Any]) -> Draws:
        made = dict(super().recall(described).values)
        if "units" in described:
            made["units"] = np.array([described["units"]], dtype=np.float64)
        if "values" in described:
            made["values"] = np.concatenate([np.array(each["sums"], float) for each in described["values"]])[None]
        return Draws(made)

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
