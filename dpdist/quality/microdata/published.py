"""Compares published synthetic records of coded columns with the confidential file; writes confidential/microdata.json."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow.parquet as pq

from dpdist.core.confidential import Confidential
from dpdist.core.files import write_json
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.parts import builder_of
from dpdist.models.outputs import CodedRecords
from dpdist.planning.plan import Plan
from dpdist.quality.microdata.coded import Coded
from dpdist.quality.microdata.summary import measured
from dpdist.storage.tables import each_block
from dpdist.storage.workspace import Workspace
from dpdist.survey.placement import records_as_they_came

FILE = "microdata.json"
MOST = 200_000
"""Largest number of records of each file that are compared; a larger file is sampled at random."""


def evaluate_microdata(space: Workspace, plan: Plan, key: Key) -> None:
    """Compares published records with the file's; does nothing where the mechanism releases no coded columns."""
    model = builder_of(plan.job).build(plan.job, plan.frame, plan.frame.rows_of(0))
    if isinstance(model, CodedRecords):
        measures = Confidential(_beside(space, plan, model, key.generator("microdata")))
        with space.result(space.confidential / FILE) as path:
            write_json(path, measures.disclose_to_custodian(), 0o600)


def _beside(space: Workspace, plan: Plan, model: CodedRecords, rng: np.random.Generator) -> Mapping[str, float]:
    share = min(1.0, MOST / float(plan.frame.count.sum()))
    stored = plan.job.survey.weight not in plan.job.clipped_columns
    read_again = records_as_they_came(plan.job, plan.source, plan.census, None)
    blocks = each_block(space.records) if stored else read_again
    kept = [block.take(rng.random(len(block)) < share) for block in blocks]
    codes, weight = np.concatenate([model.codes(b) for b in kept]), np.concatenate([b.weight for b in kept])
    published = pq.read_table(space.newest / "synthetic" / "set-1.parquet", columns=list(plan.job.components))
    columns = [published[name].to_numpy().astype(np.float64) for name in plan.job.outcomes]
    weights = published[plan.job.survey.weight].to_numpy() if plan.job.survey.weight else np.ones(len(published))
    return measured(_coded(model, codes, weight), _coded(model, model.coded(columns), weights, rng), rng)


def _coded(model: CodedRecords, codes: Ints, weight: Floats, rng: np.random.Generator | None = None) -> Coded:
    """The records as codes; with `rng`, at most `MOST` of them, chosen at random."""
    coded = Coded(codes, model.sizes, weight)
    return coded if rng is None or len(weight) <= MOST else coded.take(rng.permutation(len(weight))[:MOST])
