"""Job section of `marginals`: which tables of coded columns are measured, and what the columns must state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise
from math import ceil, comb, floor, prod
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpdist.job import LEAST_BUDGET, TOO_LITTLE, Budget, Column, Frozen, Guarantee, JobView, Noisy, OwnKey, declared
from dpdist.job.rules import Contradiction, broken

RULES = Path(__file__).with_name("rules.txt")
MOST_LEVELS = 10_000
"""Largest number of levels of a column."""
MOST_CELLS = 1_000_000
"""Largest number of cells of a measured table."""
CLOSEST = 1e-9
"""Smallest distance of two levels of a column whose values are summed, relative to the distance of its ends."""
MOST_CHOSEN_CELLS = 100_000
"""Largest number of cells of a pair of columns that may be chosen under noise."""
MOST_PARENTS = 3
MOST_NETWORK_CELLS = 10_000
"""Largest number of cells of a table of a column and its parents."""
MOST_CANDIDATES = 2_000
"""Largest number of tables that one round of the choice of parents compares."""
USEFULNESS, CHOICE = 4.0, Fraction(3, 10)
"""Defaults of PrivBayes: θ, the smallest mean count of a cell in noise scales, and β, the part of ε for choices."""
Select = Literal["given", "tree", "adaptive", "privbayes"]


class SumOf(Frozen):
    """A weighted sum of a column's values that is measured beside counts."""

    of: str = Field(description="the column whose values are summed")
    by: str | None = Field(
        default=None,
        description="the column by whose levels values are summed; it must form a named pair with `of`; unset: one sum "
        "over all records",
    )


class CodedMarginals(Noisy):
    """Noisy weighted counts of coded columns, and one set of records with all columns that agrees with these counts."""

    statistics: ClassVar[str | None] = "marginals"
    several_outcomes: ClassVar[bool] = True
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"reference"})
    name: Literal["marginals"] = Field(
        description="noisy weighted counts of tables of coded columns, and records of all columns that agree with them"
    )
    select: Select | None = Field(
        default=None,
        description="measured tables: those under `marginals` (given); each column and a tree of pairs, chosen in one step "
        "as in MST (tree) or in rounds as in AIM (adaptive); or each column with its parents (privbayes); unset: given "
        "if there are `marginals`, else tree",
    )
    marginals: tuple[tuple[str, ...], ...] | None = Field(
        default=None,
        description="columns and pairs of columns whose tables are measured, as in [[sex, race], [race, degree]]",
    )
    sums: tuple[SumOf, ...] | None = Field(
        default=None,
        min_length=1,
        description="weighted sums of values to measure, as in [{of: age}, {of: age, by: region}]; counts and records "
        "agree with them; not with select: privbayes",
    )
    degree: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PARENTS,
        description="with select: privbayes: largest number of parents of a column; unset: as many as `usefulness` "
        "permits, at most 3",
    )
    usefulness: float | None = Field(
        default=None,
        gt=0.0,
        description="with select: privbayes: smallest mean count per cell of a table, in noise scales; 4 if unset",
    )
    choice: Budget | None = Field(
        default=None,
        description='with select: privbayes: part of ε for the choice of parents; "3/10" if unset',
    )

    @classmethod
    def of_former(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """The section of a job that names `weighted_marginals` or `privbayes`, which `marginals` replaced."""
        key = "choice" if section["name"] == "privbayes" else "select"
        renamed = {key if name == "selection" else name: value for name, value in section.items()}
        return renamed | ({"select": "privbayes"} if key == "choice" else {}) | {"name": "marginals"}

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", {}
        yield "privbayes", {"select": "privbayes"}

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def clips(self, job: JobView) -> bool:
        return True

    @property
    def selects(self) -> Select:
        return self.select or ("tree" if self.marginals is None else "given")

    @property
    def adapts(self) -> bool:
        """True if pairs are chosen in rounds, each of which measures the chosen pair."""
        return self.selects == "adaptive"

    @property
    def parents(self) -> int:
        """The largest number of parents of a column."""
        return self.degree or MOST_PARENTS

    @property
    def least_useful(self) -> float | None:
        """θ; None if the degree alone limits tables."""
        return None if self.degree is not None else self.usefulness or USEFULNESS

    def choosing(self, columns: int) -> Fraction:
        """The part of ε for the choice of parents. With two columns there is only one candidate: nothing is chosen."""
        return Fraction(0) if columns < 3 else self.choice or CHOICE

    def sizes(self, job: JobView) -> tuple[int, ...]:
        """Number of levels of every column."""
        return tuple(len(levels_of(job.columns[name])) for name in job.outcomes)

    def chooses(self, job: JobView) -> bool:
        """True if pairs are chosen under noise: the job names no tables, and the candidates form a loop."""
        return self.marginals is None and loops(candidates(self.sizes(job)))

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        yield from broken("marginals", job, RULES)
        refused = [fault for name in declared(job) for fault in _of_levels(job, name, job.columns[name])]
        yield from refused
        yield from self._of_selection(job)
        if not refused and len(declared(job)) == len(job.outcomes):  # a refused column may have any number of levels
            yield from self._of_network(job) if self.selects == "privbayes" else self._of_tables(job)

    def _of_selection(self, job: JobView) -> Iterator[Contradiction]:
        """Keys that belong to another selection."""
        unused_keys: tuple[str, ...] = ("degree", "usefulness", "choice") if self.selects != "privbayes" else ("sums",)
        unused_keys += ("marginals",) if self.selects != "given" else ()
        for key in unused_keys:
            yield from broken("unused", job, RULES, key=key, stated=getattr(self, key) is not None)

    def _of_tables(self, job: JobView) -> Iterator[Contradiction]:
        yield from self._of_sums(job)
        facts = {
            "outright": self.select in ("tree", "adaptive") and not self.chooses(job),
            "no_pair": self.marginals is None and len(job.outcomes) > 1 and not candidates(self.sizes(job)),
            "most": f"{MOST_CHOSEN_CELLS:,}",
            "alone": ", ".join(f"[{name}]" for name in job.outcomes),
        }
        yield from broken("pairs", job, RULES, **facts)
        if self.marginals is not None:
            yield from self._of_marginals(job, self.marginals)

    def _of_sums(self, job: JobView) -> Iterator[Contradiction]:
        """Sums are of the job's columns, each once.
        The column that divides a sum must be in a named pair with the summed one.
        """
        pairs = [set(columns) for columns in self.marginals or ()]
        for i, total in enumerate(self.sums or ()):
            for key, name in (("of", total.of), ("by", total.by)):
                if name is not None and name not in job.outcomes:
                    yield from broken("unreleased", job, RULES, path=("sums", i, key), name=name)
                    return
            facts = {
                "close": partial(_too_close, total.of, job.columns[total.of]),
                "again": total in (self.sums or ())[:i],
                "alone": total.by is not None and {total.of, total.by} not in pairs,
            }
            yield from broken("sum", job, RULES, i=i, sum=total, **facts)
        yield from broken("sums", job, RULES)

    def _of_marginals(self, job: JobView, marginals: tuple[tuple[str, ...], ...]) -> Iterator[Contradiction]:
        """Tables must use columns of the job, contain all of them together, and form no loop."""
        together = {name: name for name in job.outcomes}
        for i, columns in enumerate(marginals):
            if unknown := [name for name in columns if name not in job.outcomes]:
                yield from broken("unreleased", job, RULES, path=("marginals", i), name=unknown[0])
                return
            again = set(columns) in map(set, marginals[:i])
            several = len(columns) not in (1, 2) or len(set(columns)) < len(columns)
            yield from broken("marginal", job, RULES, i=i, name=" x ".join(columns), again=again, several=several)
            if again or several:
                return
            cells = prod(len(levels_of(job.columns[name])) for name in columns)
            first, second = (_root(together, name) for name in (columns[0], columns[-1]))
            facts = {"cells": f"{cells:,}", "large": cells > MOST_CELLS, "most": f"{MOST_CELLS:,}"}
            pair = {"looped": len(columns) == 2 and first == second, "first": columns[0], "second": columns[-1]}
            yield from broken("marginal_cells", job, RULES, i=i, **facts, **pair)
            together[first] = second
        unmeasured = next((name for name in job.outcomes if not any(name in columns for columns in marginals)), None)
        yield from broken("unmeasured", job, RULES, name=unmeasured)

    def _of_network(self, job: JobView) -> Iterator[Contradiction]:
        columns = len(job.outcomes)
        part, each = self.choosing(columns), job.epsilon_per_set / job.most_records
        shares = [(1 - part) / columns, *([part / (columns - 1)] if part else [])]
        most = max((columns - size) * comb(size, min(self.parents, size)) for size in range(1, columns + 1))
        facts = {"part": part, "little": min(shares) * each < LEAST_BUDGET, "too_little": TOO_LITTLE}
        numbers = {"candidates": f"{most:,}", "too_many": most > MOST_CANDIDATES, "most": f"{MOST_CANDIDATES:,}"}
        yield from broken("network", job, RULES, **facts, **numbers)


Pair = tuple[int, int]


def candidates(sizes: Sequence[int]) -> tuple[Pair, ...]:
    """Pairs of columns, by number, that may be chosen."""
    pairs = combinations(range(len(sizes)), 2)
    return tuple(pair for pair in pairs if sizes[pair[0]] * sizes[pair[1]] <= MOST_CHOSEN_CELLS)


def forest(pairs: Sequence[Pair]) -> int:
    """Largest number of these pairs that form no loop."""
    groups, links = {column: column for pair in pairs for column in pair}, 0
    for left, right in pairs:
        old, new = groups[right], groups[left]
        links += old != new
        groups = {column: new if group == old else group for column, group in groups.items()}
    return links


def loops(pairs: Sequence[Pair]) -> bool:
    """True if the pairs form a loop, so that a choice is needed."""
    return forest(pairs) < len(pairs)


def _too_close(name: str, column: Column) -> str | None:
    """The fault of a column's levels, if sums cannot distinguish two of them; None if they can."""
    levels = levels_of(column)
    widest = levels[-1] - levels[0]
    if all(after - before > CLOSEST * widest for before, after in pairwise(levels)):
        return None
    return f"'{name}' has levels that are less than {CLOSEST:g} of its range apart"


def _root(together: dict[str, str], name: str) -> str:
    """The column that represents all columns connected with this one by pairs."""
    while together[name] != name:
        name = together[name]
    return name


def levels_of(column: Column) -> tuple[float, ...]:
    """Every value that a coded column may have: its codes, or the whole numbers within its bounds."""
    if column.codes is not None:
        return tuple(sorted(set(column.codes.values())))
    low, high = column.bounds or (0.0, 0.0)
    return tuple(float(value) for value in range(ceil(low), floor(high) + 1))


def texts_of(column: Column, levels: tuple[float, ...]) -> tuple[str, ...]:
    """Levels as they are printed: the file's texts; texts with the same code are joined."""
    texts = column.codes or {}
    texts_by_level = [" or ".join(text for text, code in texts.items() if code == level) for level in levels]
    return tuple(text or f"{level:.10g}" for text, level in zip(texts_by_level, levels, strict=True))


def _of_levels(job: JobView, name: str, column: Column) -> Iterator[Contradiction]:
    """A column needs a public list of levels, with at most `MOST_LEVELS`."""
    low, high = column.bounds or (0.0, 0.0)
    several = len(set(column.codes.values())) if column.codes is not None else floor(high) - ceil(low) + 1
    facts = {"number": f"{several:,}", "several": several, "too_many": several > MOST_LEVELS, "most": f"{MOST_LEVELS:,}"}
    yield from broken("coded_column", job, RULES, name=name, column=column, **facts)
