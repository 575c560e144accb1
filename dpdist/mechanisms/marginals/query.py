"""Confidential half of `marginals`: noisy weighted tables, and pairs and parents chosen under noise."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, count
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Choice, Measurement, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.marginals.coded_tables import CodedTables
from dpdist.mechanisms.marginals.fitting import FittedTables, Marginal, ReferenceWeights, positions
from dpdist.mechanisms.marginals.post import Marginals, Network
from dpdist.mechanisms.marginals.sensitivity import (
    PAIRS,
    ROUNDS_PER_PAIR,
    SELECTION,
    SINGLES,
    WITHOUT_CHOICE,
    best_pair,
    choice_scale,
    parents,
    parents_scale,
    scales_of_round,
    table_scale,
    tables,
)
from dpdist.mechanisms.marginals.spec import CodedMarginals as Settings, candidates, forest
from dpdist.mechanisms.promises import (
    MOVES_EXCHANGED,
    MOVES_OF_TWO,
    Defined,
    NoisySums,
    Summing,
    promise_of,
    referred,
    released_sets,
)
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict, record_epsilon

ENTERED = (
    "Each record adds its weight, clipped at the public bound and divided by it (1 without weights), to one cell of "
    "every measured table. The L1 sensitivity of a table is 1 when a record is left out, and 2 when its columns and "
    "weight change. All cells have discrete Laplace noise."
)
LISTED = "The job names the tables. Each of k tables gets ε/k, so its noise has k times the scale of a single table's."
CHOSEN = (
    "A third of ε is spent on measuring the tables of single columns, a third on choosing pairs of columns, and a third "
    "on measuring the tables of these pairs. Pairs are chosen one at a time, always the pair with the largest noisy score "
    "(discrete Laplace noise). A score is the L1 distance between a pair's table and the product of its noisy margins; "
    "its sensitivity is that of the table."
)
ADAPTIVE = (
    "A third of ε is spent on measuring the tables of single columns, and the rest is spent in rounds. A round spends a "
    "quarter of its ε on choosing the pair of columns with the largest noisy score (discrete Laplace noise), and the rest "
    "on measuring the pair's table. A score is the L1 distance between a pair's table and the current fit, less the "
    "expected noise; its sensitivity is that of the table. If a table proves no more informative than its noise, later "
    "rounds spend twice as much; the last round spends the remainder."
)
OUTRIGHT = (
    "Half of ε is spent on the tables of single columns, and half on the tables of pairs. The pairs with at most 100,000 "
    "cells form no loop, so all of them are measured, without a choice."
)
OF_NETWORK = (
    "The first column in the job has its own table. Every other column shares a table with its parents, which are earlier "
    "columns. The {tables} tables share {share} of ε equally, so the noise has {tables} times the scale that it would "
    "have for a single table."
)
OF_ONE_COLUMN = "There is one table, which gets {share} of ε."
PARENTS_CHOSEN = (
    "Columns and their parents are chosen in {rounds} rounds, which share {share} of ε; each round chooses the candidate "
    "with the largest noisy score (discrete Laplace noise). A score is half the L1 distance between the table of a column "
    "with its parents and the table that independence would give. Its sensitivity is 2 units when a record is left out, "
    "and 4 when it changes."
)
REFERRED = (
    "Weights beyond the public bound are estimated from the reference's weights, after noise; no query depends on them."
)
OF_VALUES = (
    "Sums of values are measured, too: {sums}. Each record adds its weight, in units of its bound, times the position of "
    "its value, from −1 at the lowest level to 1 at the highest. The L1 sensitivity of a sum is 1 unit when a record is "
    "left out, and 2 when it changes, as for a table. Sums count as tables in the split of ε: together they get {part} of "
    "ε, and they have discrete Laplace noise with scale {scale} units."
)


@dataclass(frozen=True)
class TableSums(Summing):
    """Kernel: Σv of every cell of the model's measured tables, (cell,), in whole units of 1/UNIT.

    If the model also sums values, every sum Σvu follows: v is the weight over its bound, u the value's position in [−1, 1].
    """

    model: CodedTables

    def sums(self, records: Records) -> Floats:
        model, v = self.model, records.weight / self.model.weights[1]
        codes, units = model.codes_of(records), np.rint(UNIT * v)
        sums = [
            np.bincount(model.cell(codes, key), weights=units, minlength=prod(model.shape(key))) for key in model.measured
        ]
        if isinstance(model, Marginals) and model.summing:
            sums += [
                np.bincount(
                    codes[:, by] if by is not None else np.zeros(len(v), np.int64),
                    weights=np.rint(UNIT * v * positions(model.levels[column])[codes[:, column]]),
                    minlength=size,
                )
                for (column, by), size in zip(model.values, model.value_sizes, strict=True)
            ]
        return np.concatenate(sums) if sums else np.empty(0)


def measured(model: CodedTables, numbers: count[int]) -> Generator[Pass | Measurement, Any, Floats]:
    """The model's tables and sums of one pass, one after another, (cell,); all noise has the first table's scale."""
    if not model.measured:
        return np.empty(0)
    exact = yield Pass(TableSums(model), "sum")
    query = tables(model.tables_summed, model.scale_of(model.measured[0]))
    noisy: Floats = yield Defined.by_content(model).sums(exact, query, next(numbers))
    return noisy


def scores(model: Marginals, margins: list[Floats], exact: Floats) -> Floats:
    """The score Σ|C − M| − b K of every candidate pair, (pair,), in whole units of 1/UNIT.

    C is the pair's table and M the table under independence. K is its number of cells and b the noise scale. `margins`
    are the released tables' margins, in weights. `exact` has the candidates' exact tables.
    """
    unit, keys = UNIT / model.weights[1], model.candidates
    total, values = max(float(margins[0].sum()), 1e-300), []
    for key, table in model.split(keys, exact[None]).items():
        alone = np.rint(unit * np.outer(margins[key[0]], margins[key[1]]) / total)
        values.append(_score(table[0], alone, model.scale_of(key)))
    return np.array(values)


def choose_tree(
    model: Marginals, margins: list[Floats], exact: Floats, numbers: count[int]
) -> Generator[Choice, Any, tuple[Marginal, ...]]:
    """Chooses the pairs of a tree, and returns them in the order of columns.

    Each round takes the pair with the largest noisy score that closes no loop.
    """
    keys, values = model.candidates, scores(model, margins, exact)
    groups, pairs = list(range(len(model.columns))), list[Marginal]()
    query = best_pair(choice_scale(model.epsilon * SELECTION, model.pairs, model.adjacency))
    defined = Defined.by_content((model, [list(margin) for margin in margins], "choice"))
    for _ in range(model.pairs):
        open_ones = [k for k, (a, b) in enumerate(keys) if groups[a] != groups[b]]
        (first,) = yield defined.scores(values[None, open_ones], query, next(numbers))
        best = keys[open_ones[int(first)]]
        pairs.append(best)
        groups = merged_groups(groups, best)
    return tuple(sorted(pairs))


def merged_groups(groups: Iterable[int], pair: Marginal) -> list[int]:
    """Each column's group after the groups of the pair's two columns are joined; `groups` are those before."""
    before = list(groups)
    return [before[pair[0]] if group == before[pair[1]] else group for group in before]


class TableMeasurements(NamedTuple):
    """Results so far: tables, their noisy sums one after another, and the parts of ε of each."""

    keys: tuple[Marginal, ...]
    sums: Floats
    units: tuple[int, ...]


def in_rounds(model: Marginals, singles: Floats, numbers: count[int]) -> Generator[Pass | Choice | Measurement, Any, Draws]:
    """The parameters that are released, from the noisy tables of single columns and from rounds over pairs.

    A round takes `taken` parts of ε. It takes all remaining parts if fewer than `taken` would remain. If the measured
    table changed the fitted one by less than its noise, later rounds take twice as many parts.
    """
    exact = yield Pass(TableSums(model.measuring(model.candidates)), "sum")
    exact_tables = {key: values[0] for key, values in model.split(model.candidates, exact[None]).items()}
    so_far, groups = TableMeasurements(model.singles, singles, (0,) * len(model.singles)), list(range(len(model.columns)))
    factor, remaining = 1, model.units
    while remaining:
        units = factor if remaining >= 2 * factor else remaining
        choice, scale = model.unit_scales(units)
        fitted, defined = model.fitted(model.of_rounds(*so_far)), Defined.by_content((model, so_far, units))
        open_ones = [key for key in model.candidates if key in so_far.keys or groups[key[0]] != groups[key[1]]]
        expected = {key: expected_of(model, fitted, key) for key in open_ones}
        values = [_score(exact_tables[key], np.rint(expected[key]), scale) for key in open_ones]
        (first,) = yield defined.scores(np.array([values]), best_pair(choice), next(numbers))
        best = open_ones[int(first)]
        noisy = yield defined.sums(exact_tables[best].ravel(), tables(1, scale), next(numbers))
        so_far = TableMeasurements((*so_far.keys, best), np.concatenate([so_far.sums, noisy]), (*so_far.units, units))
        groups, remaining = merged_groups(groups, best), remaining - units
        now = expected_of(model, model.fitted(model.of_rounds(*so_far)), best)
        if np.abs(now - expected[best]).sum() <= float(scale) * prod(model.shape(best)):
            factor *= 2
    return model.of_rounds(*so_far)


def expected_of(model: Marginals, fitted: FittedTables, key: Marginal) -> Floats:
    """A pair's table under the fitted tables, in units of 1/UNIT: as measured, or under independence."""
    if key in fitted.tables:
        table = fitted.tables[key]
    else:
        table = np.outer(fitted.margins[key[0]], fitted.margins[key[1]]) / max(fitted.total, 1e-300)
    return np.asarray(table * (UNIT / model.weights[1]))


def _score(table: Floats, expected: Floats, scale: Fraction) -> float:
    """Σ|C − M| − b K in whole units of 1/UNIT."""
    return float(np.abs(table - expected).sum()) - round(scale) * table.size


def next_tables(sizes: Sequence[int], inside: Sequence[int], parents: int, cells: float) -> tuple[Marginal, ...]:
    """The possible next tables: a column outside the network with each maximal set of parents inside.

    A table has at most `parents` parents. With parents it has at most `cells` cells. Its column is the last axis. A
    column without any allowed parent stands alone.
    """
    tables = list[Marginal]()
    for column in range(len(sizes)):
        if column in inside:
            continue
        maximal = list[frozenset[int]]()
        for number in range(min(parents, len(inside)), 0, -1):
            for subset in map(frozenset, combinations(sorted(inside), number)):
                fits = sizes[column] * prod(sizes[parent] for parent in subset) <= cells
                if fits and not any(subset < larger for larger in maximal):
                    maximal.append(subset)
        tables += [(*sorted(subset), column) for subset in maximal] or [(column,)]
    return tuple(tables)


def dependence(table: Floats) -> float:
    """The score ½ Σ|C − C_x C_π / T| of a table in units, as a whole number; 0 without parents. x is the last axis."""
    counts = table.reshape(-1, table.shape[-1])
    total = counts.sum()
    if table.ndim < 2 or total <= 0.0:
        return 0.0
    alone = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    return float(np.rint(0.5 * np.abs(counts - alone).sum()))


def network(model: Network, root: Floats, numbers: count[int]) -> Generator[Pass | Choice, Any, tuple[Marginal, ...]]:
    """Chooses the tables of all columns but the first; returns them in the order of choice.

    `root` is the first column's noisy table, whose sum limits the size of tables.
    """
    cells, inside, network_tables = model.most_cells(float(root.sum()) / UNIT), [0], list[Marginal]()
    while len(inside) < len(model.columns):
        keys = next_tables(model.sizes, inside, model.parents, cells)
        best = 0
        if len(keys) > 1:
            exact = yield Pass(TableSums(model.measuring(keys)), "sum")
            values = np.array([dependence(table[0]) for table in model.split(keys, exact[None]).values()])
            defined = Defined.by_content((model, keys, "scores"))
            (best,) = yield defined.scores(values[None], parents(model.parents_scale), next(numbers))
        network_tables.append(keys[int(best)])
        inside.append(network_tables[-1][-1])
    return tuple(network_tables)


class NoisyMarginals(NoisySums[Settings, Marginals | Network]):
    """Noisy weighted tables, chosen under noise where the job lists none: strict, with δ = 0.

    No law of the outcomes is fitted.
    """

    spec, sums = Settings, CodedTables

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        """The queries of the first pass, which has tables and sums of values; then those of pairs or of parents."""
        epsilon, adjacency = record_epsilon(job, job.epsilon_per_set), job.budget.adjacency

        def measured_with(part: Fraction, number: int) -> NoisyQuery:
            return tables(number, table_scale(epsilon * part, number, adjacency))

        if settings.selects == "privbayes":
            columns, part = len(job.outcomes), settings.choosing(len(job.outcomes))
            choices = (parents(parents_scale(epsilon * part, columns - 1, adjacency), columns - 1),) if part else ()
            return measured_with(1 - part, columns), *choices
        values, listed = len(settings.sums or ()), settings.marginals
        if listed is not None or len(job.outcomes) == 1:
            return (measured_with(Fraction(1), len(listed or (0,)) + values),)
        first, pairs = len(job.outcomes) + values, forest(candidates(settings.sizes(job)))
        if not settings.chooses(job):
            return measured_with(WITHOUT_CHOICE, first), measured_with(WITHOUT_CHOICE, pairs)
        singles = measured_with(SINGLES, first)
        if settings.adapts:
            rounds = ROUNDS_PER_PAIR * pairs
            choice, table = scales_of_round(epsilon / rounds, adjacency)
            return singles, best_pair(choice, rounds), replace(tables(1, table), times=rounds, together=True)
        choice = choice_scale(epsilon * SELECTION, pairs, adjacency)
        return singles, best_pair(choice, pairs), measured_with(PAIRS, pairs)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        if settings.selects == "privbayes":
            columns, part = len(job.outcomes), settings.choosing(len(job.outcomes))
            choice = (PARENTS_CHOSEN.format(rounds=columns - 1, share=part),) if part else ()
            moves = () if job.sizes_secret else (MOVES_OF_TWO[job.budget.adjacency],)
            network = OF_NETWORK if columns > 1 else OF_ONE_COLUMN
            network = network.format(tables=columns, share=1 - part if part else "all")
            return promise_of(job, total, ENTERED, network, *choice, *moves)
        alone = settings.marginals is not None or len(job.outcomes) == 1
        chosen_by = ADAPTIVE if settings.adapts else CHOSEN
        how = LISTED if alone else chosen_by if settings.chooses(job) else OUTRIGHT
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        referring = () if job.reference is None else (REFERRED, *referred(job))
        return promise_of(job, total, ENTERED, how, *_words_on_sums(job, settings), *referring, *moves)

    def rounds(
        self,
        job: Job,
        settings: Settings,
        model: Marginals | Network,
        recorder: StratumRecorder,
        learned: ReferenceWeights | None,
    ) -> Rounds:
        theta = yield from (along_network(model) if isinstance(model, Network) else along_tree(model))
        if learned is not None:
            theta = model.with_weights_beyond(theta, learned)
        return released_sets(recorder, [theta], float(job.epsilon_per_set), cells=float(theta["sums"].size))


def _words_on_sums(job: Job, settings: Settings) -> tuple[str, ...]:
    """The promise's text on sums of values; empty without such sums."""
    if not settings.sums:
        return ()
    is_given = settings.marginals is not None or len(job.outcomes) == 1
    part = Fraction(1) if is_given else SINGLES if settings.chooses(job) else WITHOUT_CHOICE
    tables = len(settings.marginals or job.outcomes) + len(settings.sums)
    scale = table_scale(record_epsilon(job, job.epsilon_per_set) * part, tables, job.budget.adjacency) / UNIT
    sums = "; ".join(f"{value.of} by {value.by}" if value.by else f"{value.of} over all records" for value in settings.sums)
    return (OF_VALUES.format(sums=sums, part=part * len(settings.sums) / tables, scale=f"{float(scale):.6g}"),)


def along_tree(model: Marginals) -> Generator[Pass | Choice | Measurement, Any, Draws]:
    """Measures the job's tables with all of ε, or each column's table and then tables of pairs.

    If the candidate pairs make no loop, all of them are measured, and no budget is spent on a choice. Sums of values share
    the ε of the tables that are measured first.
    """
    numbers, keys, first = count(1), model.listed, model.listed or model.singles
    summed = model.with_values(first) if model.values else model.measuring(first)
    noisy = yield from measured(summed, numbers)
    sums, values = np.split(noisy, [model.cells(first)])
    if keys is None:
        if model.adaptive:
            return model.with_noisy_values((yield from in_rounds(model, sums, numbers)), values)
        fitted = model.fitted(model.released(first, sums))
        pairs = model.candidates
        if model.chooses:
            exact = yield Pass(TableSums(model.measuring(pairs)), "sum")
            pairs = yield from choose_tree(model, list(fitted.margins), exact, numbers)
        of_pairs = yield from measured(model.measuring(pairs), numbers)
        sums, keys = np.concatenate([sums, of_pairs]), (*first, *pairs)
    return model.with_noisy_values(model.released(keys, sums), values)


def along_network(model: Network) -> Generator[Pass | Choice | Measurement, Any, Draws]:
    """Measures the first column's table, and each other column's table with the parents that were chosen for it."""
    numbers, first = count(1), ((0,),)
    root = yield from measured(model.measuring(first), numbers)
    keys = yield from network(model, root, numbers)
    rest = yield from measured(model.measuring(keys), numbers)
    return model.released((*first, *keys), np.concatenate([root, rest]))


MECHANISMS: dict[str, Mechanism] = {"marginals": NoisyMarginals()}
