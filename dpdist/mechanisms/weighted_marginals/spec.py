"""Job section of `weighted_marginals`, read by `query` and `post`: which tables are measured, what columns must state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import prod
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job.contradiction import Contradiction, JobView, listed
from dpdist.job.values import Frozen
from dpdist.mechanisms.coded_tables.spec import CodedColumns, levels_of

MOST_CELLS = 1_000_000
"""Largest number of cells of a measured table."""
CLOSEST = 1e-9
"""Smallest distance of two levels of a column whose values are summed, relative to the distance of its ends."""
MOST_CHOSEN_CELLS = 100_000
"""Largest number of cells of a pair of columns that may be chosen under noise."""


class SumOf(Frozen):
    """A weighted sum of a column's values that is measured beside counts."""

    of: str = Field(description="the column whose values are summed")
    by: str | None = Field(
        default=None,
        description="the column by whose levels they are summed; its pair with `of` must stand under marginals; unset: "
        "one sum over all records",
    )


class WeightedMarginals(CodedColumns):
    """Noisy weighted counts of tables of coded columns, and records of all columns that agree with them."""

    name: Literal["weighted_marginals"] = Field(
        description="noisy weighted counts of tables of coded columns, and records of all columns that agree with them"
    )
    marginals: tuple[tuple[str, ...], ...] | None = Field(
        default=None,
        description="columns and pairs of columns whose tables are measured, as in [[sex, race], [race, degree]]; "
        "unset: each column alone, and pairs that are chosen under noise",
    )
    selection: Literal["tree", "adaptive"] | None = Field(
        default=None,
        description="how pairs are chosen: `tree`, one after another by their distance from independence, as in MST; or "
        "`adaptive`, in rounds that each choose and measure a pair, as in AIM; unset: tree",
    )
    sums: tuple[SumOf, ...] | None = Field(
        default=None,
        min_length=1,
        description="weighted sums of values that are measured beside counts, as in [{of: age}, {of: age, by: region}]; "
        "counts and records are then made to agree with them",
    )
    takes_reference: ClassVar[bool] = True

    def _of_tables(self, job: JobView) -> Iterator[Contradiction]:
        yield from self._of_sums(job)
        if self.selection is not None and not self.chooses(job):
            fault = "no pair is chosen: the job names the tables, or its pairs make no loop"
            yield Contradiction(("mechanism", "selection"), fault, "leave it out")
        if self.marginals is not None:
            yield from self._of_marginals(job, self.marginals)
        elif len(job.outcomes) > 1 and not candidates(self.sizes(job)):
            fault = f"no pair of columns has at most {MOST_CHOSEN_CELLS:,} cells, so none can be chosen"
            alone = ", ".join(f"[{name}]" for name in job.outcomes)
            yield Contradiction(
                ("mechanism", "marginals"), fault, f"write marginals: [{alone}], name pairs, or merge levels"
            )

    @property
    def adapts(self) -> bool:
        """True if pairs are chosen in rounds, each of which measures the chosen pair."""
        return self.selection == "adaptive"

    def chooses(self, job: JobView) -> bool:
        """True if pairs are chosen under noise: the job names no tables, and the candidates form a loop."""
        return self.marginals is None and loops(candidates(self.sizes(job)))

    def _of_sums(self, job: JobView) -> Iterator[Contradiction]:
        """Sums are of the job's columns, each once.
        The column that divides a sum must be in a named pair with the summed one.
        """
        pairs = [set(columns) for columns in self.marginals or ()]
        for i, total in enumerate(self.sums or ()):
            for key, name in (("of", total.of), ("by", total.by)):
                if name is not None and name not in job.outcomes:
                    fault = f"'{name}' is not among the columns that are released"
                    where = ("mechanism", "sums", i, key)
                    yield Contradiction(where, fault, "name it under outcome, or leave it out", listed(job.outcomes))
                    return
            if total.by == total.of:
                fault = f"'{total.of}' by its own levels: their counts determine these sums"
                yield Contradiction(("mechanism", "sums", i, "by"), fault, "leave by out")
            elif (close := _too_close(total.of, levels_of(job.columns[total.of]))) is not None:
                yield Contradiction(("mechanism", "sums", i, "of"), close, "give them one code, or leave the sum out")
            elif total in (self.sums or ())[:i]:
                yield Contradiction(("mechanism", "sums", i), "this sum is there already", "name it once")
            elif total.by is not None and {total.of, total.by} not in pairs:
                fault = f"the pair of '{total.by}' and '{total.of}' is not named, so it may not be measured"
                remedy = f"add [{total.by}, {total.of}] to marginals, or leave by out"
                yield Contradiction(("mechanism", "sums", i, "by"), fault, remedy)
        if self.sums and job.reference is not None:
            fault = "what sums have beyond the weights' bound is not estimated, and counts would have it"
            yield Contradiction(("mechanism", "sums"), fault, "leave the reference or the sums out")

    def _of_marginals(self, job: JobView, named: tuple[tuple[str, ...], ...]) -> Iterator[Contradiction]:
        """Tables must use columns of the job, contain all of them together, and form no loop."""
        together = {name: name for name in job.outcomes}
        for i, columns in enumerate(named):
            where = ("mechanism", "marginals", i)
            if unknown := [name for name in columns if name not in job.outcomes]:
                fault = f"'{unknown[0]}' is not among the columns that are released"
                yield Contradiction(where, fault, "name it under outcome, or leave it out", listed(job.outcomes))
                return
            if set(columns) in map(set, named[:i]):
                yield Contradiction(where, f"'{' x '.join(columns)}' is there already", "name it once")
                return
            if len(columns) not in (1, 2) or len(set(columns)) < len(columns):
                yield Contradiction(where, "not one column, or two different ones", "write [a] or [a, b]")
                return
            if (cells := prod(len(levels_of(job.columns[name])) for name in columns)) > MOST_CELLS:
                fault = f"{cells:,} cells, each with noise"
                yield Contradiction(where, fault, f"merge levels, at most {MOST_CELLS:,} cells", "")
            if len(columns) == 2:
                first, second = (_root(together, name) for name in columns)
                if first == second:
                    fault = f"'{columns[0]}' and '{columns[1]}' are joined by other marginals already"
                    yield Contradiction(where, fault, "leave one pair of the loop out")
                together[first] = second
        if left := [name for name in job.outcomes if not any(name in columns for columns in named)]:
            fault = f"no marginal has column '{left[0]}'"
            yield Contradiction(("mechanism", "marginals"), fault, f"add [{left[0]}], or a pair with it")


Pair = tuple[int, int]


def candidates(sizes: Sequence[int]) -> tuple[Pair, ...]:
    """Pairs of columns, by number, that may be chosen."""
    pairs = combinations(range(len(sizes)), 2)
    return tuple(pair for pair in pairs if sizes[pair[0]] * sizes[pair[1]] <= MOST_CHOSEN_CELLS)


def forest(pairs: Sequence[Pair]) -> int:
    """Largest number of these pairs that form no loop."""
    groups, taken = {column: column for pair in pairs for column in pair}, 0
    for one, other in pairs:
        old, new = groups[other], groups[one]
        taken += old != new
        groups = {column: new if group == old else group for column, group in groups.items()}
    return taken


def loops(pairs: Sequence[Pair]) -> bool:
    """True if the pairs form a loop, so that a choice is needed."""
    return forest(pairs) < len(pairs)


def _too_close(name: str, levels: Sequence[float]) -> str | None:
    """The fault of a column's levels, in order, if sums cannot distinguish two of them; empty if none."""
    widest = levels[-1] - levels[0]
    if all(after - before > CLOSEST * widest for before, after in pairwise(levels)):
        return None
    return f"'{name}' has levels that are less than {CLOSEST:g} of its range apart"


def _root(together: dict[str, str], name: str) -> str:
    """The column that represents all columns connected with this one by pairs."""
    while together[name] != name:
        name = together[name]
    return name
