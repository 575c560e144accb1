"""Job section of `privbayes`, read by its `query` and `post`: size of tables, part of ε for choices."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import comb
from typing import Literal

from pydantic import Field

from dpdist.job.contradiction import Contradiction, JobView
from dpdist.job.values import LEAST_BUDGET, TOO_LITTLE, Budget
from dpdist.mechanisms.coded_tables.spec import CodedColumns

MOST_PARENTS = 3
MOST_CELLS = 10_000
"""Largest number of cells of a table of a column and its parents."""
MOST_CANDIDATES = 2_000
"""Largest number of tables that one round of the choice compares."""
USEFULNESS, SELECTION = 4.0, Fraction(3, 10)
"""Defaults of the paper: θ, the smallest mean count of a cell in noise scales, and β, the part of ε for choices."""


class PrivBayes(CodedColumns):
    """A network of coded columns, chosen under noise, and noisy tables of each column with its parents."""

    name: Literal["privbayes"] = Field(
        description="a network of coded columns, chosen under noise, and noisy tables of each column with its parents"
    )
    degree: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PARENTS,
        description="how many parents a column has at most; unset: as many as usefulness allows, at most 3",
    )
    usefulness: float | None = Field(
        default=None,
        gt=0.0,
        description="θ: a table has at most as many cells as leave each a mean count of θ noise scales; 4 if unset",
    )
    selection: Budget | None = Field(
        default=None, description='part of ε for the choice of parents, as in "3/10" (the default); the rest is for tables'
    )

    @property
    def parents(self) -> int:
        """Returns the largest number of parents of a column."""
        return self.degree or MOST_PARENTS

    @property
    def least_useful(self) -> float | None:
        """Returns θ; None if the degree alone limits tables."""
        return None if self.degree is not None else self.usefulness or USEFULNESS

    def choosing(self, columns: int) -> Fraction:
        """Returns the part of ε for the choice. With two columns there is only one candidate, so nothing is chosen."""
        return Fraction(0) if columns < 3 else self.selection or SELECTION

    def _of_tables(self, job: JobView) -> Iterator[Contradiction]:
        columns = len(job.outcomes)
        if self.degree is not None and self.usefulness is not None:
            fault = "the degree is fixed, or follows from the usefulness of tables"
            yield Contradiction(("mechanism", "usefulness"), fault, "give degree or usefulness, one of them")
        if self.selection is not None and columns < 3:
            yield Contradiction(("mechanism", "selection"), f"{columns} columns leave no choice of parents", "leave it out")
        part = self.choosing(columns)
        if part >= 1:
            fault, remedy = "nothing is left for the tables", 'give a part below 1, as in "3/10"'
            yield Contradiction(("mechanism", "selection"), fault, remedy)
        elif min([(1 - part) / columns, *([part / (columns - 1)] if part else [])]) * _of_a_record(job) < LEAST_BUDGET:
            fault = f"a table or a choice has less than 1e-6 of ε, and {TOO_LITTLE}"
            yield Contradiction(("mechanism", "name"), fault, "take fewer columns, or a larger epsilon")
        most = max((columns - met) * comb(met, min(self.parents, met)) for met in range(1, columns + 1))
        if most > MOST_CANDIDATES:
            fault = f"{columns} columns with up to {self.parents} parents make rounds of {most:,} candidates"
            yield Contradiction(
                ("mechanism", "degree"), fault, f"take a smaller degree, or fewer columns: at most {MOST_CANDIDATES:,}"
            )


def _of_a_record(job: JobView) -> Fraction:
    return job.epsilon_per_set / job.most_records
