"""Weighted marginals: what is promised, and the passes over records."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.job.marginals import WeightedMarginals as Settings
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.selection import candidates, chosen
from dpdist.mechanisms.weighted_marginals.statement import CHOSEN, ENTERED, LISTED
from dpdist.mechanisms.weighted_marginals.tree import Marginal
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Promise, Strict


@dataclass(frozen=True)
class WeightedMarginals:
    """Strict, with δ = 0 and no model: noisy weighted tables, chosen under noise where the job lists none."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        said = job.mechanism
        assert isinstance(said, Settings)
        how = CHOSEN if said.marginals is None and len(job.outcomes) > 1 else LISTED
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), ENTERED, how, *moves)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, Marginals)
        return weighted_marginals(model, float(job.epsilon_per_set), recorder)


def weighted_marginals(model: Marginals, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """The job's tables with all of ε; or each column's, then pairs chosen by what these leave unsaid, then the pairs'."""
    numbers, keys = count(1), model.listed
    if keys is not None:
        sums = yield from _measured(model, keys, numbers)
    else:
        sums = yield from _measured(model, model.singles, numbers)
        tree = model.tree(model.released(model.singles, sums))
        exact = yield Pass(Count(model.measuring(candidates(model))), "sum")
        pairs = yield from chosen(model, list(tree.margins), exact, numbers)
        of_pairs = yield from _measured(model, pairs, numbers)
        sums, keys = np.concatenate([sums, of_pairs]), (*model.singles, *pairs)
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(sums))}}))
    return Released((model.released(keys, sums),))


def _measured(model: Marginals, keys: tuple[Marginal, ...], numbers: count[int]) -> Generator[Pass | Noise, Any, Floats]:
    """Tables under noise, one after another, (cell,)."""
    if not keys:
        return np.empty(0)
    own = model.measuring(keys)
    exact = yield Pass(Count(own), "sum")
    noise = yield Noise(model.scale_of(keys[0]), len(exact), next(numbers), "laplace", digest(own), digest(exact))
    return np.asarray(exact + noise)
