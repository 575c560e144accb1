"""Public half of `privbayes`, for `query` and `publish`: a distribution from noisy tables along a network.

A column of a synthetic record is drawn given its parents. The weights of records then agree with all margins.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb, prod
from typing import Any

from dpdist.core.records import UNIT
from dpdist.job import Job
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.post import DEFINITIONS, QUERIES, SAMPLED, CodedTables, figures
from dpdist.mechanisms.coded_tables.sensitivity import table_scale
from dpdist.mechanisms.coded_tables.synthetic_records import Filling
from dpdist.mechanisms.parts import WIDE, Words
from dpdist.mechanisms.privbayes.sensitivity import score_scale
from dpdist.mechanisms.privbayes.spec import MOST_CELLS, PrivBayes

__all__ = ["DEFINITIONS", "QUERIES", "WORDS", "Network", "figures", "model_of"]
UNEXPLAINED = (
    "What clipping brings, and what the network leaves out, is in no error. The errors take the network as it was chosen."
)
WORDS = Words(
    density="noisy sums of {weight} in every cell of tables of {outcome}",
    errors=f"{SAMPLED} {UNEXPLAINED} {WIDE}",
    steps=(
        "Noisy tables are put onto counts of at least 0 with one total, and margins of a column are averaged over its "
        "tables. Given its parents, a column is independent of the other columns before it.",
        "Synthetic records hold all columns. Their weights are scaled until every column's margin is the fitted one. "
        "Counts of several columns can differ from the fitted tables in marginals.parquet, in whose errors no bias is.",
    ),
)


@dataclass(frozen=True)
class Network(CodedTables):
    """One table for each column. It has the column's parents first, and the column last."""

    parents: int
    """Largest number of parents of a column."""
    useful: float | None
    """Smallest mean count of a table's cells, in noise scales; None if only the number of parents limits tables."""
    choosing: Fraction
    """The part of ε for the choice of parents."""

    @classmethod
    def settings(cls, job: Job) -> tuple[Any, ...]:
        settings = job.mechanism
        assert isinstance(settings, PrivBayes)
        return settings.parents, settings.least_useful, settings.choosing(len(job.outcomes))

    def most_cells(self, total: float) -> float:
        """Largest number of cells of a table with parents, given the noisy sum of v."""
        if self.useful is None:
            return MOST_CELLS
        return min(MOST_CELLS, max(total, 0.0) * UNIT / (self.useful * float(self.scale_of((0,)))))

    @property
    def most_sums(self) -> int:
        """A bound on the number of cells of a round's candidates, and of all measured tables.

        With k columns in the network, each other column is tried with at most C(k, p) sets of p parents. The cells of a
        table are bounded by MOST_CELLS and by the product of the largest numbers of levels.
        """
        columns, most = len(self.columns), min(MOST_CELLS, prod(sorted(self.sizes)[-self.parents - 1 :]))
        tried = [(columns - k) * max(comb(k, p) for p in range(self.parents + 1)) for k in range(1, columns)]
        return max(columns, *tried, 1) * most

    def sharing(self, key: Marginal) -> int:
        return len(self.columns)

    def scale_of(self, key: Marginal) -> Fraction:
        return table_scale(self.epsilon * (1 - self.choosing), len(self.columns), self.adjacency)

    @property
    def score_scale(self) -> Fraction:
        """Scale of the noise on scores, in units of 1/UNIT."""
        return score_scale(self.epsilon * self.choosing, len(self.columns) - 1, self.adjacency)

    @property
    def scale(self) -> Fraction:
        scale = self.scale_of((0,))
        return max(scale, self.score_scale) if self.choosing else scale

    def filling(self, keys: tuple[Marginal, ...]) -> list[Filling]:
        return [(key[-1], key if len(key) > 1 else None) for key in keys]

    def raked_to(self, keys: tuple[Marginal, ...]) -> list[Marginal]:
        """The margins of single columns. Larger tables may disagree with each other."""
        return list(self.singles)


def model_of(job: Job) -> type[Network]:
    """The model of every job under the mechanism."""
    return Network
