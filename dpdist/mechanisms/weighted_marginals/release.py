"""The model of weighted marginals: tables of single columns and of pairs of columns.

As edges of a graph of columns, the chosen pairs make no loop. So the distribution of greatest entropy with these tables
factors along a tree. Synthetic records are weighted until they have the tables of this tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

from dpdist.core.records import Frame
from dpdist.job import Job
from dpdist.job.marginals import WeightedMarginals, candidates, forest
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.mechanisms.coded_tables.records import Filling
from dpdist.mechanisms.coded_tables.sensitivity import table_scale
from dpdist.mechanisms.weighted_marginals.order import filling
from dpdist.mechanisms.weighted_marginals.sensitivity import OUTRIGHT, PAIRS, SELECTION, SINGLES, choice_scale


@dataclass(frozen=True)
class Marginals(CodedTables):
    """The tables that the job names. If it names none: a table for each column, and for pairs that are chosen."""

    listed: tuple[Marginal, ...] | None
    """Tables that the job names; None: pairs of columns are chosen."""

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
        return (((0,),) if listed is None and len(number) == 1 else listed,)

    @cached_property
    def candidates(self) -> tuple[Marginal, ...]:
        """Pairs that may be chosen. They follow from the public numbers of levels."""
        return candidates(self.sizes)

    @cached_property
    def pairs(self) -> int:
        """Number of pairs of columns that are measured if the job names no tables."""
        return forest(candidates(self.sizes))

    @property
    def chooses(self) -> bool:
        """True if pairs must be chosen, because all candidates together would make a loop."""
        return self.pairs < len(self.candidates)

    def sharing(self, key: Marginal) -> int:
        if self.listed is not None:
            return len(self.listed)
        return len(self.columns) if len(key) == 1 else self.pairs

    def scale_of(self, key: Marginal) -> Fraction:
        part = Fraction(1)
        if self.listed is None:
            part = (SINGLES if len(key) == 1 else PAIRS) if self.chooses else OUTRIGHT
        return table_scale(self.epsilon * part, self.sharing(key), self.adjacency)

    @property
    def scale(self) -> Fraction:
        scales = [self.scale_of(key) for key in (*self.singles, (0, 1))]
        if self.listed is None and self.chooses:
            scales.append(choice_scale(self.epsilon * SELECTION, self.pairs, self.adjacency))
        return max(scales)

    def filling(self, keys: tuple[Marginal, ...]) -> list[Filling]:
        return filling(len(self.columns), [key for key in keys if len(key) > 1])

    def raked_to(self, keys: tuple[Marginal, ...]) -> list[Marginal]:
        """All pairs, and the columns that are in none."""
        pairs = [key for key in keys if len(key) > 1]
        return [*pairs, *(single for single in self.singles if not any(single[0] in pair for pair in pairs))]


def model_of(job: Job) -> type[Marginals]:
    """The model of every job under the mechanism."""
    return Marginals
