"""Confidential half of `laplace` and `laplace_composed`: independent noise on every figure of every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.records import UNIT, Floats, quotient
from dpdist.engine.protocol import BlockRecorder, Carry, Mechanism, Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job, StatisticName, budget_text
from dpdist.mechanisms.laplace_tables.post import NoisyTables
from dpdist.mechanisms.laplace_tables.sensitivity import query_of
from dpdist.mechanisms.promises import MOVES_TWICE, Defined, Summing, of_frame, promise_of, within_loss
from dpdist.models.protocol import StratumModel
from dpdist.privacy.cell_sums import sensitivities
from dpdist.privacy.guarantees import NoGuarantee, NoisyQuery, Promise, Strict

FINER = 2**32
"""Under local sensitivities Δ, figures are multiples of Δ/(UNIT · FINER).

These steps are no wider than float64's spacing at Δ.
"""
FINE_SCALE = Fraction(2**36)
"""Scale of the second noise, in lattice steps: 16/UNIT of Δ.
This noise hides the first lattice: it is uniform on its steps to 1e-4.
"""
LOCAL = (
    "Noise has scale Δ/ε, where Δ is a local sensitivity, computed from this file. Local sensitivities are confidential, "
    "but the noise reveals something about them: its scale would differ for another file, and there is no noise if all "
    "weights or outcomes of a table are equal. ε = {} scales the noise and is not a privacy loss."
)
FULL = (
    "Every figure spends the full ε, although a record contributes to several figures. Together, the figures therefore "
    "cost more than ε."
)
SHARED = "ε is divided by the number of figures that one record enters."
COMPOSED = (
    "Weights and outcomes are clipped to public bounds. Each record adds a weight and, where needed, a centred product of "
    "weight and outcome to each of its cells, in all tables and margins. In units of the bounds, the L1 sensitivity of a "
    "cell is at most 2 (1 for weights alone) when a record's values are left out or changed. All sums have discrete "
    "Laplace noise. Its scale is this sensitivity times the number of cells, divided by ε."
)
ANYWHERE = "An exchanged record leaves its cells and enters others, so the noise has twice the scale stated above."


@dataclass(frozen=True)
class RowSums(Summing):
    """Kernel: sums of every crosstab row, (row, 2): of `CellBounds.pairs` in whole units, or Σw and Σwy without bounds."""

    tables: NoisyTables

    def sums(self, records: Records) -> Floats:
        bounds, rows = self.tables.bounds, len(self.tables.count)
        if bounds is None:
            columns = np.column_stack([records.weight, records.weight * records.outcome])
        else:
            columns = bounds.pairs(records.weight, records.outcome)
        return np.column_stack([np.bincount(records.row, column, minlength=rows) for column in columns.T])


class LaplaceTables(Mechanism):
    """Noisy figures of whole tables; margins get noise as cells do ([T]; METHODS §7).

    `laplace` gives all of ε to every figure, and `laplace_composed` divides ε among the figures of a record. With the
    file's own sensitivities, as in [T], there is no guarantee. With public bounds, which `laplace` does not take, the
    guarantee is strict.
    """

    scope = "file"

    def promise(self, job: Job) -> Promise:
        if job.local:
            how = FULL if job.mechanism.name == "laplace" else SHARED
            none = promise_of(job, NoGuarantee(), LOCAL.format(budget_text(job.budget.epsilon)), how)
            return replace(none, composition="none: there is no guarantee that could be composed")
        same_x = Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1))
        strict = promise_of(job, same_x, COMPOSED, MOVES_TWICE)
        if job.sizes_secret:
            anywhere = (ANYWHERE,) if job.budget.exchange == "anywhere" else ()
            strict = promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), COMPOSED, *anywhere)
        composition = "sequential over all cells that a record falls into, in all tables and their margins"
        return replace(strict, composition=composition + of_frame(job))

    def listed(self, job: Job) -> tuple[NoisyQuery, ...]:
        """The query of all figures; none if nothing is promised."""
        return () if job.local else (query_of(job),)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, NoisyTables)
        rounds = noisy_tables(model, recorder, None if job.local else query_of(job))
        if job.local:
            return rounds
        return within_loss(rounds, self.listed(job))


class Unbound(NamedTuple):
    """Noise that is not bound to sums; the mechanism scales and adds it.

    A release with such noise states no guarantee. An audit cannot compare sums of two files under this request.
    """

    noise: Noise
    stated: None = None

    def under(self, noise: Floats) -> Floats:
        return noise


class CellExtremes(NamedTuple):
    """Kernel, which runs on each block of records: the largest w, −w, wy and −wy in every crosstab row, (row, 4).

    A row without a record has −∞.
    """

    rows: int

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        largest, product = np.full((self.rows, 4), -np.inf), records.weight * records.outcome
        for column, values in enumerate((records.weight, -records.weight, product, -product)):
            np.maximum.at(largest[:, column], records.row, values)
        return largest


def noisy_tables(model: NoisyTables, recorder: StratumRecorder, query: NoisyQuery | None) -> Rounds:
    """Releases every figure of every table under independent noise (METHODS §7); local sensitivities stay confidential.

    `query` states the loss of all figures together under public bounds; None: sensitivities are local.
    """
    sums = yield Pass(RowSums(model), "sum")
    local = None
    if model.bounds is None:
        high_w, low_w, high_p, low_p = (yield Pass(CellExtremes(len(sums)), "max")).T
        local = [sensitivities(sums[:, 0], (-low_w, high_w), (-low_p, high_p), table.cells) for table in model.tables]
    defined, values = Defined.by_content(model), exact(model, sums, local)
    if local is None:
        assert query is not None
        noisy = yield defined.sums(values, query, 1)
    else:
        # Sums of numbers that are not whole vary with the block size. They have no guarantee; noise is not bound to them.
        zeros = np.zeros_like(values)
        coarse = yield Unbound(defined.noise(zeros, model.scale, 1, zeros.size))
        # Multiples of Δ/UNIT alone would reveal Δ: figures that should agree would differ by such multiples.
        fine = yield Unbound(defined.noise(zeros, FINE_SCALE, 2, zeros.size))
        noisy = values + (coarse + fine / FINER).reshape(values.shape) * steps(model, local)
    none_local = {"database_bound": None, "epsilon_local": None, "epsilon_local_range": None}
    by_table = zip(model.tables, local or (), strict=False)
    largest = {f"{name} of {table.name}": value for table, by_name in by_table for name, value in by_name.items()}
    recorder.summary(Confidential({**none_local, "diagnostics": {"figures": float(model.size), **largest}}))
    return Released((model.tables_of(noisy),))


def exact(model: NoisyTables, sums: Floats, local: Sequence[Mapping[StatisticName, float]] | None) -> Floats:
    """All figures, (figure,): sums of pairs in units of 1/UNIT, or the tables' own under local sensitivities."""
    values = list[Floats]()
    for table in model.tables:
        count, total = (table.cells.membership @ sums).T
        if local is None:
            columns = [count, total][: len(table.statistics)]
        else:
            by_name = {"count": count, "mean": quotient(total, count), "total": total}
            columns = [by_name[name] for name in table.statistics]
        values.append(np.column_stack(columns).ravel())
    return np.concatenate(values)


def steps(model: NoisyTables, local: Sequence[Mapping[StatisticName, float]]) -> Floats:
    """The noise unit of every figure, (figure,), under local sensitivities; `local` has the sensitivities by table."""
    units = (
        np.broadcast_to([by_name[name] / UNIT for name in table.statistics], table.parameter.shape)
        for table, by_name in zip(model.tables, local, strict=True)
    )
    return np.concatenate([values.ravel() for values in units])


MECHANISMS: dict[str, Mechanism] = {"laplace": LaplaceTables(), "laplace_composed": LaplaceTables()}
