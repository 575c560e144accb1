"""Evaluates a finished release against direct estimates, and writes evaluation/<table>.parquet for the custodian alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, stage
from dpdist.estimation.direct import totals
from dpdist.estimation.estimators import STATISTICS
from dpdist.estimation.further import Direct
from dpdist.job import Job
from dpdist.planning.plan import Plan
from dpdist.quality.compare import Yardstick, compare
from dpdist.quality.microdata.published import evaluate_microdata
from dpdist.quality.model_baselines import FITTED, Fitted, fitted
from dpdist.quality.reference_baselines import REFERRED, reference_baselines
from dpdist.storage.paths import SCRATCH
from dpdist.storage.tables import each_block, write_table
from dpdist.storage.workspace import Workspace
from dpdist.survey.census import design_of
from dpdist.survey.placement import records_as_they_came, replicate_sums, replicates_as_they_came


def evaluate(space: Workspace, plan: Plan, key: Key, listener: Listener) -> None:
    """Compares published figures with direct estimates, with comparators, and with the truth of a simulated survey."""
    job, frame, source = plan.job, plan.frame, plan.source
    fits = _fitted(space, plan, key, listener) if set(job.compare) & set(FITTED) else None
    with stage(listener, "evaluate", len(job.tables)) as tick:
        yardsticks = {}
        for j, outcome in enumerate(job.outcomes):
            blocks, clustered = (block.about(j) for block in each_block(space.records)), job.survey.psu is not None
            seen = totals(blocks, frame, clustered)
            as_it_came = seen
            if {outcome, job.survey.weight} & set(job.clipped_columns):
                as_it_came = totals(records_as_they_came(job, source, plan.census, j), frame, clustered)
            replicated = replicate_sums(job, source, frame, j)
            yardsticks[outcome] = Yardstick(as_it_came, design_of(job, plan.census), replicated, seen)
        others = None
        if set(job.compare) & set(REFERRED):
            others = reference_baselines(job, frame, each_block(space.records), each_block(space.reference), key)
        records = _records(space, plan) if _further(job) else None
        for table in job.tables:
            published = pq.read_table(space.newest / "tables" / f"{table.name}.parquet").to_pandas()
            compared = compare(job, table, frame, yardsticks, published, source.truth, key, others, fits, records)
            _keep(space, table.name, Confidential(compared))
            tick(1)
        evaluate_microdata(space, plan, key.child("microdata"))


def _further(job: Job) -> bool:
    return any(statistic.name not in STATISTICS for table in job.tables for statistic in table.statistics)


def _records(space: Workspace, plan: Plan) -> Direct:
    """Returns the records before clipping. Where the job clips, this reads the file once more.

    It is also read once more where the job has replicate weights, which only the file has.
    """
    job, numbers = plan.job, range(len(plan.job.outcomes))
    replicates = replicates_as_they_came(job, plan.source)
    if job.clipped_columns or replicates is not None:
        passes = [records_as_they_came(job, plan.source, plan.census, j) for j in numbers]
    else:
        passes = [(block.about(j) for block in each_block(space.records)) for j in numbers]
    return Direct.of(job, plan.frame, design_of(job, plan.census), passes, replicates)


def _fitted(space: Workspace, plan: Plan, key: Key, listener: Listener) -> Fitted:
    """Fits the job's comparators that are models. They have a key of their own for random numbers."""
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "fit comparators", len(plan.frame.stratum_labels)) as tick,
    ):
        return fitted(plan.job, plan.frame, space.records, key.child("compare fitted"), Path(scratch), tick)


def _keep(space: Workspace, name: str, rows: Confidential[pd.DataFrame]) -> None:
    table = pa.Table.from_pandas(rows.disclose_to_custodian(), preserve_index=False)
    with space.result(space.evaluation / f"{name}.parquet") as path:
        write_table(path, table)
