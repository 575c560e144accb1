"""The task of one stratum: read its records, run the mechanism's rounds, leave by-products and a completion mark.

Tasks carry the workspace's path and a stratum number, never data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dpdist.errors import FitError
from dpdist.frames import frame_from_table
from dpdist.job import Job
from dpdist.keys import Key
from dpdist.mechanisms.presets import MECHANISMS
from dpdist.models import MODELS
from dpdist.models.protocol import Improper
from dpdist.privacy.weights import NotReached
from dpdist.records import Frame
from dpdist.runtime.blocks import Layout
from dpdist.runtime.rounds import run_rounds
from dpdist.storage.recorder import StratumStore
from dpdist.storage.tables import read_rows, read_table
from dpdist.storage.workspace import Workspace


class Outcome(NamedTuple):
    """What a task tells the driver: the stratum, and why it has no release if it has none."""

    stratum: int
    failure: str | None


class Context(NamedTuple):
    job: Job
    frame: Frame
    key: Key


@lru_cache(maxsize=4)
def _context(root: Path, run: str) -> Context:
    """Job, frame and key of a run, read once a process."""
    space = Workspace(root)
    job = Job.model_validate_json(space.job.read_text(encoding="utf-8"))
    return Context(job, frame_from_table(read_table(space.frame)), Key.from_hex(space.key.read_text(encoding="ascii")))


@dataclass(frozen=True)
class ProtectStratum:
    """Callable on a stratum number; `fit` names the attempt: `strata`, `proper` (weak proper prior) or `pooled`."""

    root: Path
    run: str
    """Tells runs apart that use the same folder one after the other."""
    fit: str
    log_lik: bool

    def __call__(self, stratum: int) -> Outcome:
        space, (job, frame, key) = Workspace(self.root), _context(self.root, self.run)
        if self.fit == "pooled":
            frame = frame.pooled()
        layout = Layout(frame, job.sampler.draws, 0, self.log_lik)
        model = MODELS[job.model.family].build(job, frame, frame.rows_of(stratum), proper=self.fit == "proper")
        numbers = layout.blocks.of_stratum(stratum)
        edges = layout.blocks.edges
        first = edges[numbers.start]
        records = read_rows(space.records, first, edges[numbers.stop])
        blocks = [records.part(edges[n] - first, edges[n + 1] - first) for n in numbers]
        store = StratumStore(space, self.fit, stratum, layout.axis, self.log_lik)
        recorders = [store.block(n, edges[n] - first) for n in numbers]
        rounds = MECHANISMS[job.mechanism.name].protect(job, model, store)
        label = frame.stratum_labels[stratum]
        try:
            released = run_rounds(rounds, model, key.child(self.fit), label, blocks, recorders)
        except (Improper, NotReached) as failure:
            return Outcome(stratum, str(failure))
        store.close([model.describe(theta) for theta in released.parameters])
        return Outcome(stratum, None)


def fit_error(job: Job, frame: Frame, outcome: Outcome) -> FitError:
    """The typed error of a stratum without a release: names it, its size, p, the reason and the remedies."""
    k = outcome.stratum
    p = MODELS[job.model.family].build(job, frame, frame.rows_of(k)).parameters
    return FitError(
        f"{frame.stratum_labels[k]} (n = {int(frame.stratum_count[k])}, p = {p})",
        outcome.failure or "failed",
        "pool strata (strata: [] or mechanism.fallback: pool), drop predictors, take a proper prior "
        "(mechanism.fallback: proper_prior or model.prior: {name: proper}), or raise the budget",
    )
