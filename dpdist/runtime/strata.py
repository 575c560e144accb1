"""All strata of a fit: stores from templates, a task per unfinished stratum, and what the strata left, gathered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpdist.job import Job
from dpdist.keys import Key
from dpdist.models.design import predictor_names
from dpdist.models.lognormal import frame_strata_as_predictors
from dpdist.progress import Listener, stage
from dpdist.runtime.blocks import Layout
from dpdist.runtime.executors import Executor
from dpdist.runtime.protect import Outcome, ProtectStratum
from dpdist.storage import arrays
from dpdist.storage.marks import finished, mark
from dpdist.storage.tables import gather, read_table, write_table
from dpdist.storage.workspace import Workspace


@dataclass(frozen=True)
class Strata:
    """The strata of one fit of a job in a workspace."""

    space: Workspace
    job: Job
    layout: Layout
    key: Key

    @property
    def every(self) -> range:
        return range(len(self.layout.frame.stratum_labels))

    def create_stores(self, fit: str) -> None:
        """Stores from templates, once a fit; those of a pooled fit replace those of the strata."""
        if finished(self.space.marks, f"stores-{fit}", self.space.confidential):
            return
        frame = self.layout.frame
        predictors = (*frame_strata_as_predictors(self.job, frame), *self.job.model.predictors)
        components = (self.job.model.outcome, self.job.survey.weight)
        names = predictor_names(frame, predictors)
        template = arrays.Template(self.layout.axis, frame.stratum_labels, self.layout.draws, names, components)
        arrays.create_posterior(self.space.posterior, template)
        if self.layout.log_lik:
            arrays.create_log_lik(self.space.log_lik, template)
        mark(self.space.marks, f"stores-{fit}", [], self.space.confidential)

    def protect(self, fit: str, strata: Iterable[int], workers: Executor, listener: Listener) -> list[Outcome]:
        """Run the strata that are not finished, largest first; returns the failures, by stratum."""
        wanted, space = list(strata), self.space
        left = [k for k in wanted if not finished(space.marks, space.part(fit, k).name, space.confidential)]
        left.sort(key=lambda k: -int(self.layout.frame.stratum_count[k]))
        task = ProtectStratum(space.root, self.key.child("run").hex()[:16], fit, self.layout.log_lik)
        failed = []
        with stage(listener, "protect", len(wanted)) as tick:
            tick(len(wanted) - len(left))
            for outcome in workers.map(task, left):
                tick(1)
                if outcome.failure is not None:
                    failed.append(outcome)
        return sorted(failed)

    def gather(self, fits: Mapping[int, str]) -> list[Sequence[Mapping[str, Any]]]:
        """bounds.parquet and strata.parquet from the strata's parts; returns what each stratum releases, one θ a set."""
        space, labels = self.space, self.layout.frame.stratum_labels
        parts = [space.part(fits[k], k) for k in self.every]
        said = [json.loads((part / "stratum.json").read_text(encoding="utf-8")) for part in parts]
        if not finished(space.marks, "gathered", space.confidential):
            bounds, strata = space.confidential / "bounds.parquet", space.confidential / "strata.parquet"
            gather(bounds, (_labelled(read_table(part / "bounds.parquet"), labels[k]) for k, part in enumerate(parts)))
            facts = {"stratum": labels, "offset": self.layout.axis.offset, "rows": self.layout.frame.stratum_count}
            summary = {name: [one["summary"][name] for one in said] for name in said[0]["summary"]}
            write_table(strata, pa.table(facts | summary | {"fit": [fits[k] for k in self.every]}))
            mark(space.marks, "gathered", [bounds, strata], space.confidential)
        return [one["released"] for one in said]


def _labelled(table: pa.Table, label: str) -> pa.Table:
    return table.add_column(0, "stratum", pa.array(np.full(len(table), label, dtype=object), type=pa.string()))
