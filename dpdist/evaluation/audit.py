"""Leave-one-out audit of privacy weights: the change when a record is left out and the weights are computed anew.

The bound 2Δ takes the weights as given. Where weights are learned on the file itself, a record also moves the weights of
all other records (METHODS §2, §3). For the lognormal model the posterior densities with and without a record have closed
forms, so that log ξ^α(θ | D) − log ξ^α′(θ | D∖i) is exact at every draw θ. The figures are confidential, and apply to
this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Records
from dpdist.engine.in_memory import run_rounds
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, Sample
from dpdist.mechanisms.pseudo_posterior.tilted import Fit, Weighings, fits
from dpdist.models.lognormal.model import Lognormal
from dpdist.sampling.exact import ExactSampler
from dpdist.storage.tables import write_table


class Weighting(NamedTuple):
    """The end of a weight search: α, its last fit, and the log of the posterior's normalising constant."""

    alpha: Floats
    fit: Fit
    log_evidence: float


def weighting(model: Lognormal, records: Records, steps: Weighings, draws: int, key: Key, stratum: str = "") -> Weighting:
    """Runs a weight search over records in memory, with the random numbers of a stratum.

    Raises `Improper` or `NotReached`.
    """
    return run_rounds(_searched(model, steps), model, ExactSampler(draws), key, stratum, [records])


def _searched(model: Lognormal, steps: Weighings) -> Generator[Pass | Sample, Any, Weighting]:
    kept, _ = yield from fits(model, steps)
    alpha = yield Pass(_LastWeights(), "concat")
    return Weighting(alpha, kept[-1], model.log_evidence(kept[-1].statistics))


class _LastWeights(NamedTuple):
    """Kernel that returns α of the last fit, to be concatenated."""

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
    """Computes each record's exact loss over the draws of the fit with it, and its bound, for the records of `which`.

    Columns: record, loss (largest |log ratio|), loss_at_given_weights (with the others' weights unchanged), epsilon_local
    (2Δ), epsilon_local_range, exceeds (loss over 2Δ), delta (E max(0, 1 − e^(2Δ − log ratio)): the least δ with which 2Δ
    holds for this record left out, over the draws with it).
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
    names = ["record", "loss", "loss_at_given_weights", "epsilon_local", "epsilon_local_range", "exceeds", "delta"]
    return Confidential(pd.DataFrame(rows, columns=names))


def keep_audit(folder: Path, rule: str, audit: Confidential[pd.DataFrame]) -> Path:
    """Writes audit-<rule>.parquet into the confidential folder of evaluations."""
    table = pa.Table.from_pandas(audit.disclose_to_custodian(), preserve_index=False)
    path = folder / f"audit-{rule}.parquet"
    write_table(path, table)
    return path


def delta_of(ratio: Floats, epsilon: float) -> float:
    """E max(0, 1 − e^(ε − ratio)) over draws from the numerator's law: sup over sets of P(with) − e^ε P(without)."""
    return float((1.0 - np.exp(np.minimum(0.0, epsilon - ratio))).mean())
