"""Adds independent noise to every figure of every table, and states the guarantee (METHODS §7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats, Records
from dpdist.engine.protocol import BlockRecorder, Carry, Mechanism, Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job, budget_text
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.laplace_tables.release import FINE_SCALE, FINER, NoisyTables
from dpdist.mechanisms.laplace_tables.sensitivity import sensitivities
from dpdist.mechanisms.laplace_tables.statement import ANYWHERE, COMPOSED, FULL, LOCAL, SHARED
from dpdist.mechanisms.promises import of_frame, promise_of
from dpdist.mechanisms.wording import MOVES_TWICE
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import NoGuarantee, Promise, Strict


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
        return noisy_tables(model, recorder)


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
    # Exact sums of numbers that are not whole change with the block size. No checksum binds noise to them: no guarantee.
    query, exact = digest(model), digest(sums) if local is None else ""
    noise = yield Noise(model.scale, model.size, 1, "laplace", query, exact)
    if local is not None:
        # Multiples of Δ/UNIT alone would reveal Δ: figures that should agree would differ by such multiples.
        fine = yield Noise(FINE_SCALE, model.size, 2, "laplace", query, exact)
        noise = noise + fine / FINER
    told = {"database_bound": None, "epsilon_local": None, "epsilon_local_range": None}
    found = {f"{name} of {t.name}": each[name] for t, each in zip(model.tables, local or (), strict=False) for name in each}
    recorder.summary(Confidential({**told, "diagnostics": {"figures": float(model.size), **found}}))
    return Released((model.noisy(sums, noise, local),))


MECHANISMS: dict[str, Mechanism] = {"laplace": LaplaceTables(), "laplace_composed": LaplaceTables()}
