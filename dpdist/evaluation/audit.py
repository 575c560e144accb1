"""Audits privacy weights by leaving out one record at a time, and compares the change of the posterior with the bound 2Δ.

The bound 2Δ takes the weights as given. Where weights are computed from the file itself, a record also moves the weights of
all other records (METHODS §2, §3). The audit computes them anew. In the lognormal model the posterior densities with and
without record i have closed forms. So the log ratio log ξ^α(θ | D) − log ξ^α′(θ | D∖i) is exact at every draw θ, where D is
the file and α, α′ are the two sets of weights. The figures are confidential, and hold for this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Records
from dpdist.engine.in_memory import run_rounds
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, Sample
from dpdist.evaluation.columns import LOSSES
from dpdist.mechanisms.pseudo_posterior.tilted import Fit, Weighings, fits
from dpdist.models.lognormal.model import Lognormal
from dpdist.sampling.exact import ExactSampler
from dpdist.storage.tables import write_table
from dpdist.storage.workspace import Workspace


class Weighting(NamedTuple):
    """The end of a weight search: weights α, the last fit, and the log of the posterior's normalising constant."""

    alpha: Floats
    fit: Fit
    log_evidence: float


def weighting(model: Lognormal, records: Records, steps: Weighings, draws: int, key: Key, stratum: str = "") -> Weighting:
    """Searches the weights of records in memory, with a stratum's random numbers.

    Raises `Improper` or `NotReached`.
    """
    return run_rounds(_searched(model, steps), model, ExactSampler(draws), key, stratum, [records])


def _searched(model: Lognormal, steps: Weighings) -> Generator[Pass | Sample, Any, Weighting]:
    kept, _ = yield from fits(model, steps)
    alpha = yield Pass(_LastWeights(), "concat")
    return Weighting(alpha, kept[-1], model.log_evidence(kept[-1].statistics))


class _LastWeights(NamedTuple):
    """Kernel that returns the weights α of the last fit; blocks are concatenated."""

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        return carry["alpha"]


def leave_one_out(
    model: Lognormal,
    records: Records,
    search: Callable[[], Weighings],
    which: Sequence[int],
    draws: int,
    key: Key,
    stratum: str = "",
) -> Confidential[pd.DataFrame]:
    """Computes the exact loss of each record in `which`, over the draws of the fit with that record, and its bound.

    Columns are those of `columns.LOSSES`, without the stratum; delta is E max(0, 1 − e^(2Δ − log ratio)).
    """
    whole = weighting(model, records, search(), draws, key, stratum)
    f = model.log_lik(whole.fit.draws, records)
    bound = 2.0 * whole.fit.summary.database_bound
    rows = []
    for i in which:
        others = np.arange(len(records)) != i
        left = records.take(others)
        again = weighting(model, left, search(), draws, key, stratum)
        kept = model.log_evidence(model.statistics(left, whole.alpha[others]))
        ratio = f @ whole.alpha - f[:, others] @ again.alpha - (whole.log_evidence - again.log_evidence)
        given = f[:, i] * whole.alpha[i] - (whole.log_evidence - kept)
        loss, at_given = float(np.abs(ratio).max()), float(np.abs(given).max())
        number, ranged = int(records.record[i]), whole.fit.range_bound
        rows.append((number, loss, at_given, bound, ranged, loss > bound, delta_of(ratio, bound)))
    return Confidential(pd.DataFrame(rows, columns=[name for name in LOSSES if name != "stratum"]))


def keep_audit(space: Workspace, rule: str, audit: Confidential[pd.DataFrame]) -> None:
    """Stores audit-<rule>.parquet in the confidential folder of evaluations."""
    table = pa.Table.from_pandas(audit.disclose_to_custodian(), preserve_index=False)
    with space.result(space.evaluation / f"audit-{rule}.parquet") as path:
        write_table(path, table)


def delta_of(ratio: Floats, epsilon: float) -> float:
    """E max(0, 1 − e^(ε − ratio)) over draws with the record: the supremum over sets of P(with) − e^ε P(without)."""
    return float((1.0 - np.exp(np.minimum(0.0, epsilon - ratio))).mean())
