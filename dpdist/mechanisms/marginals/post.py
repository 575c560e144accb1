"""Public half of `marginals`: distributions from noisy tables along a tree or a network.

Measured pairs, as edges between columns, form no loop. So the distribution of greatest entropy factors along a tree.
Synthetic records are weighted until they have the tables of this tree. In a network a column of a synthetic record is
drawn given its parents, and the weights of records then agree with all margins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import comb, prod
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dpdist.core.records import UNIT, Crosstab, Floats
from dpdist.job import Job
from dpdist.mechanisms.marginals.coded_tables import CodedTables, Filling
from dpdist.mechanisms.marginals.fitting import Marginal, ReferenceWeights, ValueSums, positions
from dpdist.mechanisms.marginals.sensitivity import (
    PAIRS,
    ROUNDS_PER_PAIR,
    SELECTION,
    SINGLES,
    WITHOUT_CHOICE,
    choice_scale,
    moved_counts,
    parents_scale,
    scales_of_round,
    table_scale,
)
from dpdist.mechanisms.marginals.spec import MOST_NETWORK_CELLS, CodedMarginals, candidates, forest
from dpdist.mechanisms.parts import SUM_OF_V, WIDE, Figures, Words, cells_of
from dpdist.models.protocol import Draws, ReferenceRecords, ReleaseView

SAMPLED = (
    "Estimates from the released parameters (estimator `parameters`): standard errors are simulated, with new noise on "
    "the fitted tables and new samples. A new sample has as many records as the sum of weights divided by their public "
    "bound. The variation of weights was not released, so each weight is treated as either 0 or the bound. The bias from "
    "setting negative counts to 0 is estimated from noise on the fitted tables."
)
CLIPPED = (
    "Standard errors do not include the effects of clipping, or of relations between columns whose pairs were not measured."
)
UNCLIPPED = (
    "Counts include an estimate, from the reference, of weights beyond the public bound. For this part, standard errors "
    "include the sampling error of both files and a drift with a standard deviation of a quarter of the estimate. They do "
    "not include relations between columns whose pairs were not measured."
)
SAMPLED_AS_THE_REFERENCE = (
    "Estimates from the released parameters (estimator `parameters`): standard errors are simulated, with new noise on "
    "the fitted tables and new samples. The number of records of a sample is the sum of weights divided by their public "
    "bound U, or by the reference's Σw²/Σw if that is larger. The bias from setting negative counts to 0 is estimated "
    "from noise on the fitted tables."
)
EXTENDED = (
    "The reference's weights are multiplied by one factor, so that their mean below the bound equals the file's. Every "
    "noisy count is then multiplied by the ratio of the reference's weights in its cell to the same weights clipped at "
    "the bound. Cells with few reference records borrow from all others."
)
AGREED = (
    "Noisy tables are adjusted until all counts are non-negative and all totals are equal; a column's margins are "
    "averaged over its tables. The maximum-entropy distribution with these tables is a tree of pairs: columns that no "
    "pair joins are independent given those between them."
)
LAID_OUT = (
    "Synthetic records have all columns. Their weights are scaled until their tables equal the fitted ones, except in "
    "cells without a synthetic record. The fitted tables are in marginals.parquet; their errors do not include bias."
)
WITH_VALUES = (
    "A noisy sum of values is averaged, weighted by precision, with the sum that follows from noisy counts. A column's "
    "counts are then tilted exponentially in its values until they have this sum. The rows of a pair are tilted in the "
    "same way if their sums by the other column were measured. If no table of a pair can have both its margins and its "
    "sums, the margins take precedence, and the sums are moved towards those of independent columns until a table fits."
)
UNEXPLAINED = (
    "Standard errors include neither the effects of clipping nor those of relations that the network leaves out, and they "
    "take the chosen network as given."
)
ALONG_NETWORK = (
    "Noisy tables are adjusted until all counts are non-negative and all totals are equal; a column's margins are "
    "averaged over its tables. Given its parents, a column is independent of the other columns before it.",
    "Synthetic records have all columns. Their weights are scaled until every column's margin equals the fitted one. "
    "Counts of several columns can differ from the fitted tables in marginals.parquet, whose errors do not include bias.",
)


class OfSelection(Words):
    """Texts that depend on the selection, on whether the job has a reference, and on its sums of values."""

    def errors_of(self, release: ReleaseView) -> str:
        if _along_network(release.job):
            return f"{SAMPLED} {UNEXPLAINED} {WIDE}"
        return self.errors if release.job.reference is None else f"{SAMPLED_AS_THE_REFERENCE} {UNCLIPPED} {WIDE}"

    def post_processing(self, release: ReleaseView) -> list[str]:
        if _along_network(release.job):
            return [*ALONG_NETWORK]
        extended = [] if release.job.reference is None else [EXTENDED]
        agreed, *rest = super().post_processing(release)
        values = [WITH_VALUES] if "sums" in release.job.mechanism.published(release.job) else []
        return [*extended, agreed, *values, *rest]


WORDS = OfSelection(
    density="noisy sums of {weight} in every cell of tables of {outcome}, in the observed sample",
    errors=f"{SAMPLED} {CLIPPED} {WIDE}",
    steps=(AGREED, LAID_OUT),
)
Value = tuple[int, int | None]
"""A sum of a column's values: the column, and the column whose levels divide it; None: over all records."""


@dataclass(frozen=True)
class Marginals(CodedTables):
    """The tables that the job names. Without named tables: a table for each column, and tables of chosen pairs."""

    listed: tuple[Marginal, ...] | None
    """Tables that the job names; None: pairs of columns are chosen."""
    adaptive: bool
    """Pairs are chosen and measured in rounds, and may be measured again."""
    values: tuple[Value, ...]
    """The sums of values that the job names, each by the numbers of its two columns."""
    summing: bool = False
    """True if a pass also sums values."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Self:
        model = super().build(job, crosstab, rows, proper)
        return model.measuring(model.listed or ())

    @classmethod
    def settings(cls, job: Job) -> tuple[Any, ...]:
        settings = CodedMarginals.of(job)
        number, tables = {name: k for k, name in enumerate(job.outcomes)}, settings.marginals
        listed = None if tables is None else tuple(tuple(number[name] for name in key) for key in tables)
        values = tuple((number[value.of], None if value.by is None else number[value.by]) for value in settings.sums or ())
        return ((0,),) if listed is None and len(number) == 1 else listed, settings.adapts, values

    def with_values(self, keys: tuple[Marginal, ...]) -> Self:
        """The same model, with these tables and all sums of values summed in a pass."""
        return replace(self, measured=keys, summing=True)

    @property
    def tables_summed(self) -> int:
        """Number of tables and sums of values; a record moves each of them equally far."""
        return super().tables_summed + len(self.values) * self.summing

    @property
    def value_sizes(self) -> tuple[int, ...]:
        """Number of cells of every sum of values."""
        return tuple(1 if by is None else self.sizes[by] for _, by in self.values)

    @property
    def value_scale(self) -> Fraction:
        """Scale of the noise on sums of values, in units of 1/UNIT; it equals that of the tables with which they share
        ε.
        """
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

    def learned(self, records: ReferenceRecords, copied: pa.Table | None) -> ReferenceWeights:
        """The reference's weights and positions of levels, for what lies beyond the weights' bound."""
        return ReferenceWeights(self.codes_of(records), records.weight)

    @property
    def chooses(self) -> bool:
        """True if candidates form a loop, so that pairs must be chosen."""
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
        return ROUNDS_PER_PAIR * self.pairs

    def unit_scales(self, units: int) -> tuple[Fraction, Fraction]:
        """Noise scales, on scores and on the pair's table, of a round that takes `taken` parts of ε."""
        return scales_of_round(self.epsilon * units / self.units, self.adjacency)

    def scales_of(self, theta: Draws) -> tuple[Fraction, ...]:
        scales = super().scales_of(theta)
        if "units" not in theta.values:
            return scales
        of_round = [int(units) for units in theta["units"][0]]
        return tuple(self.unit_scales(n)[1] if n else scale for n, scale in zip(of_round, scales, strict=True))

    def of_rounds(self, keys: tuple[Marginal, ...], sums: Floats, units: Sequence[int]) -> Draws:
        """The result of `released`, with the parts of ε of each table; 0 for tables of single columns."""
        fitted = self.released(keys, sums)
        return Draws({**fitted.values, "units": np.array([units], dtype=np.float64)})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        described = dict(super().describe(theta))
        if "units" in theta.values:
            described["units"] = [int(units) for units in theta["units"][0]]
        if "values" in theta.values:
            column_pairs = [(self.columns[c], None if by is None else self.columns[by]) for c, by in self.values]
            parts = np.split(theta["values"][0], np.cumsum(self.value_sizes)[:-1])
            described["values"] = [
                {"of": of, "by": by, "scale": str(self.value_scale), "sums": part.tolist()}
                for (of, by), part in zip(column_pairs, parts, strict=True)
            ]
        return described

    def recall(self, described: Mapping[str, Any]) -> Draws:
        parameters = dict(super().recall(described).values)
        if "units" in described:
            parameters["units"] = np.array([described["units"]], dtype=np.float64)
        if "values" in described:
            parameters["values"] = np.concatenate([np.array(value["sums"], float) for value in described["values"]])[None]
        return Draws(parameters)

    def scale_of(self, key: Marginal) -> Fraction:
        if self.listed is None and self.adaptive and len(key) > 1:
            return self.unit_scales(1)[1]
        part = Fraction(1)
        if self.listed is None:
            part = (SINGLES if len(key) == 1 else PAIRS) if self.chooses else WITHOUT_CHOICE
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
        """The largest term b K of a pair's score, in units of 1/UNIT; 0 if nothing is chosen."""
        tables = self.candidates if self.listed is None and self.chooses else ()
        return max((self.scale_of(key) * prod(self.shape(key)) for key in tables), default=Fraction(0))

    def filling(self, keys: tuple[Marginal, ...]) -> list[Filling]:
        return filling(len(self.columns), [key for key in keys if len(key) > 1])

    def raked_to(self, keys: tuple[Marginal, ...]) -> list[Marginal]:
        """All pairs, and the columns that are in none."""
        pairs = [key for key in keys if len(key) > 1]
        return [*pairs, *(single for single in self.singles if not any(single[0] in pair for pair in pairs))]


def filling(columns: int, pairs: Collection[Marginal]) -> list[Filling]:
    """The columns, each with the pair that joins it to its parent; None for the first column of a tree."""
    order: list[Filling] = []
    visited = set[int]()
    for root in range(columns):
        if root in visited:
            continue
        visited.add(root)
        order.append((root, None))
        waiting = [root]
        while waiting:
            parent = waiting.pop(0)
            children = sorted({*(b for a, b in pairs if a == parent), *(a for a, b in pairs if b == parent)} - visited)
            visited.update(children)
            waiting += children
            order += [(child, (parent, child) if (parent, child) in pairs else (child, parent)) for child in children]
    return order


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
        settings = CodedMarginals.of(job)
        return settings.parents, settings.least_useful, settings.choosing(len(job.outcomes))

    def most_cells(self, total: float) -> float:
        """Largest number of cells of a table with parents, given the noisy sum of v."""
        if self.useful is None:
            return MOST_NETWORK_CELLS
        return min(MOST_NETWORK_CELLS, max(total, 0.0) * UNIT / (self.useful * float(self.scale_of((0,)))))

    @property
    def most_sums(self) -> int:
        """A bound on the number of cells of a round's candidates, and of all measured tables.

        With k columns in the network, each other column is tried with at most C(k, p) sets of p parents. The cells of a
        table are bounded by MOST_NETWORK_CELLS and by the product of the largest numbers of levels.
        """
        columns, most = len(self.columns), min(MOST_NETWORK_CELLS, prod(sorted(self.sizes)[-self.parents - 1 :]))
        candidates = [(columns - k) * max(comb(k, p) for p in range(self.parents + 1)) for k in range(1, columns)]
        return max(columns, *candidates, 1) * most

    def sharing(self, key: Marginal) -> int:
        return len(self.columns)

    def scale_of(self, key: Marginal) -> Fraction:
        return table_scale(self.epsilon * (1 - self.choosing), len(self.columns), self.adjacency)

    @property
    def parents_scale(self) -> Fraction:
        """Scale of the noise on scores, in units of 1/UNIT."""
        return parents_scale(self.epsilon * self.choosing, len(self.columns) - 1, self.adjacency)

    @property
    def scale(self) -> Fraction:
        scale = self.scale_of((0,))
        return max(scale, self.parents_scale) if self.choosing else scale

    def filling(self, keys: tuple[Marginal, ...]) -> list[Filling]:
        return [(key[-1], key if len(key) > 1 else None) for key in keys]

    def raked_to(self, keys: tuple[Marginal, ...]) -> list[Marginal]:
        """The margins of single columns. Larger tables may disagree with each other."""
        return list(self.singles)


def _along_network(job: Job) -> bool:
    return CodedMarginals.of(job).selects == "privbayes"


def model_of(job: Job) -> type[CodedTables]:
    """The model of a job: a network, or a tree of pairs."""
    return Network if _along_network(job) else Marginals


def _figures_of_tables(release: ReleaseView, model: CodedTables, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The figures of each table; a cell has the levels of the table's columns and of the stratum's columns."""
    of_stratum = {
        name: level for name, level in cells_of(release, model, stratum)[0].items() if name in release.crosstab.strata
    }
    cap = model.weights[1] if release.job.survey.weight is not None else None
    keys, repetitions = model.keys_of(theta), Counter[Marginal]()
    for key, scale, values in zip(keys, model.scales_of(theta), model.parts(keys, theta["sums"]), strict=True):
        cells = [of_stratum | levels for levels in model.labelled(release.job, key)]
        repetitions[key] += 1
        again = f", measurement {repetitions[key]}" if repetitions[key] > 1 else ""
        yield Figures(
            cells,
            ["v"],
            values[0].reshape(-1, 1),
            [scale],
            lambda *_: (None, cap, None),
            table=" x ".join(model.columns[column] for column in key) + again,
            sensitivity=float(moved_counts(model.adjacency) * model.sharing(key)),
        )


SUM_OF_VALUES = (
    "the sum of v (y - c) / R, v = min(w, U) / U, with w the weight and U the weight_cap, 1 without weights; y the "
    "column's level, c the centre and R the half_width of its levels"
)
DEFINITIONS = {"v": SUM_OF_V, "vu": SUM_OF_VALUES}
"""Definitions of the statistics by name, for the metadata of the file."""
QUERIES = {"v": "weighted tables", "vu": "weighted tables"}
"""The query that every statistic answers, by the names of both."""


def figures(release: ReleaseView, model: CodedTables, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The figures of one table after another, then of sums of values."""
    yield from _figures_of_tables(release, model, stratum, theta)
    of_stratum = {
        name: level for name, level in cells_of(release, model, stratum)[0].items() if name in release.crosstab.strata
    }
    cap = model.weights[1] if release.job.survey.weight is not None else None
    if not isinstance(model, Marginals):
        return
    for value in model.value_sums(theta):
        levels, name = model.levels[value.column], model.columns[value.column]
        limits = (min(levels) + max(levels)) / 2.0, cap, (max(levels) - min(levels)) / 2.0
        cells = (
            [of_stratum] if value.by is None else [of_stratum | cell for cell in model.labelled(release.job, (value.by,))]
        )
        yield Figures(
            cells,
            ["vu"],
            value.values[0].reshape(-1, 1) * (UNIT / model.weights[1]),
            [model.value_scale],
            lambda *_, ends=limits: ends,
            table=name if value.by is None else f"{name} by {model.columns[value.by]}",
            sensitivity=float(moved_counts(model.adjacency) * model.sharing((model.listed or model.singles)[0])),
        )
