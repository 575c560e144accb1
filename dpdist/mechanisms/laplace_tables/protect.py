"""Adds independent noise to every figure of every table, and states the guarantee (METHODS §7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Mechanism, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job, budget_text
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.laplace_tables.release import FINE_SCALE, FINER, NoisyTables
from dpdist.mechanisms.laplace_tables.statement import ANYWHERE, COMPOSED, FULL, LOCAL, SHARED
from dpdist.mechanisms.laplace_tables.unbound import Unbound
from dpdist.mechanisms.promises import of_frame, promise_of
from dpdist.mechanisms.stratum_sums import Defined, within_loss
from dpdist.mechanisms.wording import MOVES_TWICE
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import NoGuarantee, Promise, Strict
from dpdist.privacy.local_sensitivity import sensitivities
from dpdist.privacy.queries import neighbour_of, record_epsilon


@dataclass(frozen=True)
class LaplaceTables:
    """Noisy figures of whole tables; margins get noise as cells do ([T]; METHODS §7).

    `laplace` gives all of ε to every figure, and `laplace_composed` divides ε among the figures of a record. With the
    file's own sensitivities, as in [T], there is no guarantee. With public bounds, which `laplace` does not take, the
    guarantee is strict.
    """

    scope: Literal["file"] = "file"

    def promise(self, job: Job) -> Promise:
        if job.local:
            how = FULL if job.mechanism.name == "laplace" else SHARED
            none = promise_of(job, NoGuarantee(), LOCAL.format(budget_text(job.budget.epsilon)), how)
            return replace(none, composition="none: nothing is promised that could compose")
        same_x = Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1))
        strict = promise_of(job, same_x, COMPOSED, MOVES_TWICE)
        if job.sizes_secret:
            anywhere = (ANYWHERE,) if job.budget.exchange == "anywhere" else ()
            strict = promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), COMPOSED, *anywhere)
        composition = "sequential over the cells, of all tables and margins, that a record falls into"
        return replace(strict, composition=composition + of_frame(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, NoisyTables)
        rounds = noisy_tables(model, recorder)
        if job.local:
            return rounds
        return within_loss(rounds, record_epsilon(job, job.epsilon_of_tables), neighbour_of(job))


class Extremes(NamedTuple):
    """Kernel, which runs on each block of records: the largest w, −w, wy and −wy in every frame row, (row, 4).

    A row without a record has −∞.
    """

    rows: int

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        found, product = np.full((self.rows, 4), -np.inf), records.weight * records.outcome
        for column, values in enumerate((records.weight, -records.weight, product, -product)):
            np.maximum.at(found[:, column], records.frame, values)
        return found


def noisy_tables(model: NoisyTables, recorder: StratumRecorder) -> Rounds:
    """Releases every figure of every table under independent noise (METHODS §7); local sensitivities stay confidential."""
    sums = yield Pass(Count(model), "sum")
    local = None
    if model.bounds is None:
        high_w, low_w, high_p, low_p = (yield Pass(Extremes(len(sums)), "max")).T
        local = [sensitivities(sums[:, 0], (-low_w, high_w), (-low_p, high_p), table.cells) for table in model.tables]
    own, figures = Defined.by(model), model.exact(sums, local)
    if local is None:
        noisy = yield own.sums(figures, model.query, 1)
    else:
        # Sums of numbers that are not whole vary with the block size. They have no guarantee; noise is not bound to them.
        none = np.zeros_like(figures)
        coarse = yield Unbound(own.noise(none, model.scale, 1, none.size))
        # Multiples of Δ/UNIT alone would reveal Δ: figures that should agree would differ by such multiples.
        fine = yield Unbound(own.noise(none, FINE_SCALE, 2, none.size))
        noisy = figures + (coarse + fine / FINER).reshape(figures.shape) * model.steps(local)
    told = {"database_bound": None, "epsilon_local": None, "epsilon_local_range": None}
    found = {f"{name} of {t.name}": each[name] for t, each in zip(model.tables, local or (), strict=False) for name in each}
    recorder.summary(Confidential({**told, "diagnostics": {"figures": float(model.size), **found}}))
    return Released((model.tables_of(noisy),))


MECHANISMS: dict[str, Mechanism] = {"laplace": LaplaceTables(), "laplace_composed": LaplaceTables()}
