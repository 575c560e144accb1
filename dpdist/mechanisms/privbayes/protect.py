"""Chooses the network, adds noise to its tables, and states the guarantee (Zhang et al. 2017)."""

from __future__ import annotations

from itertools import count

import numpy as np

from dpdist.engine.protocol import Mechanism, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.coded_tables.rounds import measured
from dpdist.mechanisms.coded_tables.sensitivity import table_scale, tables
from dpdist.mechanisms.coded_tables.statement import ENTERED
from dpdist.mechanisms.privbayes.network import chosen
from dpdist.mechanisms.privbayes.release import Network
from dpdist.mechanisms.privbayes.sensitivity import parents, score_scale
from dpdist.mechanisms.privbayes.spec import PrivBayes as Settings
from dpdist.mechanisms.privbayes.statement import CHOSEN, TABLES
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.stratum_sums import NoisySums, released
from dpdist.mechanisms.wording import MOVES_OF_TWO
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, record_epsilon


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
    return released(recorder, [model.released((*first, *keys), sums)], epsilon, cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"privbayes": PrivBayes()}
