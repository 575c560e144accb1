"""Chooses the network, adds noise to its tables, and states the guarantee (Zhang et al. 2017)."""

from __future__ import annotations

from itertools import count

import numpy as np

from dpdist.engine.protocol import Mechanism, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.job.privbayes import PrivBayes as Settings
from dpdist.mechanisms.coded_tables.rounds import measured
from dpdist.mechanisms.coded_tables.statement import ENTERED
from dpdist.mechanisms.privbayes.network import chosen
from dpdist.mechanisms.privbayes.release import Network
from dpdist.mechanisms.privbayes.statement import CHOSEN, TABLES
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.stratum_sums import NoisySums, released
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.privacy.guarantees import Promise, Strict


class PrivBayes(NoisySums[Settings, Network]):
    """Noisy tables of a network that is chosen under noise: strict, with δ = 0."""

    spec, sums = Settings, Network

    def promised(self, job: Job, settings: Settings) -> Promise:
        columns, part = len(job.outcomes), settings.choosing(len(job.outcomes))
        tables = TABLES.format(tables=columns, share=1 - part)
        choice = (CHOSEN.format(rounds=columns - 1, share=part),) if part else ()
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), ENTERED, tables, *choice, *moves)

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
