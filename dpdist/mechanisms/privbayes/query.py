"""Confidential half of `privbayes`, for `engine`: chooses the network, adds noise to its tables (Zhang et al. 2017)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import combinations, count
from math import prod
from typing import Any

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Choice, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.query import ENTERED, TableSums, measured
from dpdist.mechanisms.coded_tables.sensitivity import table_scale, tables
from dpdist.mechanisms.privbayes.post import Network
from dpdist.mechanisms.privbayes.sensitivity import parents, score_scale
from dpdist.mechanisms.privbayes.spec import PrivBayes as Settings
from dpdist.mechanisms.promises import MOVES_OF_TWO, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released_sets
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, record_epsilon

TABLES = (
    "The job's first column has a table of its own. Every other column has one with its parents, which are columns before "
    "it. To share {share} of ε, the noise of {tables} tables has {tables} times the scale of one."
)
CHOSEN = (
    "Columns and their parents are chosen in {rounds} rounds, which share {share} of ε: each time the largest score under "
    "discrete Laplace noise. A score is half the L1 distance of a table from independence of the column and its parents. A "
    "record that is switched off moves it by at most 2 units, an exchange by at most 4."
)


def candidates(sizes: Sequence[int], met: Sequence[int], parents: int, cells: float) -> tuple[Marginal, ...]:
    """The possible next tables: a column outside the network with each maximal set of parents inside.

    A table has at most `parents` parents. With parents it has at most `cells` cells. Its column is the last axis. A
    column without any allowed parent stands alone.
    """
    tables = list[Marginal]()
    for column in range(len(sizes)):
        if column in met:
            continue
        maximal = list[frozenset[int]]()
        for number in range(min(parents, len(met)), 0, -1):
            for chosen in map(frozenset, combinations(sorted(met), number)):
                fits = sizes[column] * prod(sizes[parent] for parent in chosen) <= cells
                if fits and not any(chosen < larger for larger in maximal):
                    maximal.append(chosen)
        tables += [(*sorted(chosen), column) for chosen in maximal] or [(column,)]
    return tuple(tables)


def score(table: Floats) -> float:
    """The score ½ Σ|C − C_x C_π / T| of a table in units, as a whole number; 0 without parents. x is the last axis."""
    counts = table.reshape(-1, table.shape[-1])
    total = counts.sum()
    if table.ndim < 2 or total <= 0.0:
        return 0.0
    alone = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    return float(np.rint(0.5 * np.abs(counts - alone).sum()))


def chosen(model: Network, root: Floats, numbers: count[int]) -> Generator[Pass | Choice, Any, tuple[Marginal, ...]]:
    """Chooses the tables of all columns but the first; returns them in the order of choice.

    `root` is the first column's noisy table, whose sum limits the size of tables.
    """
    cells, met, network_tables = model.most_cells(float(root.sum()) / UNIT), [0], list[Marginal]()
    while len(met) < len(model.columns):
        keys = candidates(model.sizes, met, model.parents, cells)
        best = 0
        if len(keys) > 1:
            exact = yield Pass(TableSums(model.measuring(keys)), "sum")
            values = np.array([score(table[0]) for table in model.split(keys, exact[None]).values()])
            defined = Defined.by_content((model, keys, "scores"))
            (best,) = yield defined.scores(values[None], parents(model.score_scale), next(numbers))
        network_tables.append(keys[int(best)])
        met.append(network_tables[-1][-1])
    return tuple(network_tables)


class PrivBayes(NoisySums[Settings, Network]):
    """Noisy tables of a network that is chosen under noise: strict, with δ = 0."""

    spec, sums = Settings, Network

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        columns, part = len(job.outcomes), settings.choosing(len(job.outcomes))
        epsilon, adjacency = record_epsilon(job, job.epsilon_per_set), job.budget.adjacency
        of_tables = tables(columns, table_scale(epsilon * (1 - part), columns, adjacency))
        if not part:
            return (of_tables,)
        return of_tables, parents(score_scale(epsilon * part, columns - 1, adjacency), columns - 1)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        columns, part = len(job.outcomes), settings.choosing(len(job.outcomes))
        measured_tables = TABLES.format(tables=columns, share=1 - part)
        choice = (CHOSEN.format(rounds=columns - 1, share=part),) if part else ()
        moves = () if job.sizes_secret else (MOVES_OF_TWO[job.budget.adjacency],)
        return promise_of(job, total, ENTERED, measured_tables, *choice, *moves)

    def rounds(self, job: Job, settings: Settings, model: Network, recorder: StratumRecorder, learned: None) -> Rounds:
        return network(model, float(job.epsilon_per_set), recorder)


def network(model: Network, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """Releases the first column's table, and each other column's table with the parents that were chosen for it."""
    numbers, first = count(1), ((0,),)
    root = yield from measured(model, first, numbers)
    keys = yield from chosen(model, root, numbers)
    others = yield from measured(model, keys, numbers)
    sums = np.concatenate([root, others])
    return released_sets(recorder, [model.released((*first, *keys), sums)], epsilon, cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"privbayes": PrivBayes()}
