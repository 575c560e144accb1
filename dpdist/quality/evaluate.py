"""For `release`: evaluates a release against direct estimates, in evaluation/<table>.parquet for the custodian."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.confidential import Confidential
from dpdist.core.files import write_json
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, stage
from dpdist.core.records import Floats, Ints
from dpdist.estimation.direct import Direct, totals
from dpdist.job import Job
from dpdist.mechanisms.parts import builder_of
from dpdist.models.protocol import CodedRecords
from dpdist.planning.plan import Plan
from dpdist.quality.compare import REFERRED, Yardstick, compare, reference_baselines
from dpdist.quality.microdata import RecordCodes, microdata_measures
from dpdist.quality.model_baselines import FITTED, BaselineSums, fit_comparators
from dpdist.storage.tables import each_block, write_table
from dpdist.storage.workspace import SCRATCH, Workspace
from dpdist.survey.census import design_of, records_as_they_came, replicate_sums, replicates_as_they_came

FILE = "microdata.json"
MOST = 200_000
"""Largest number of records of each file that are compared; a larger file is sampled at random."""


def evaluate_microdata(space: Workspace, plan: Plan, key: Key) -> None:
    """Compares published records with the file's, if the mechanism releases coded columns."""
    model = builder_of(plan.job).build(plan.job, plan.crosstab, plan.crosstab.rows_of(0))
    if isinstance(model, CodedRecords):
        measures = Confidential(_beside(space, plan, model, key.generator("microdata")))
        with space.result(space.confidential / FILE) as path:
            write_json(path, measures.disclose_to_custodian(), 0o600)


def _beside(space: Workspace, plan: Plan, model: CodedRecords, rng: np.random.Generator) -> Mapping[str, float]:
    share = min(1.0, MOST / float(plan.crosstab.count.sum()))
    stored = plan.job.survey.weight not in plan.job.clipped_columns
    read_again = records_as_they_came(plan.job, plan.source, plan.census, None)
    blocks = each_block(space.records) if stored else read_again
    sampled = [block.take(rng.random(len(block)) < share) for block in blocks]
    codes, weight = np.concatenate([model.codes(b) for b in sampled]), np.concatenate([b.weight for b in sampled])
    published = pq.read_table(space.newest / "synthetic" / "set-1.parquet", columns=list(plan.job.components))
    columns = [published[name].to_numpy().astype(np.float64) for name in plan.job.outcomes]
    weights = published[plan.job.survey.weight].to_numpy() if plan.job.survey.weight else np.ones(len(published))
    return microdata_measures(_coded(model, codes, weight), _coded(model, model.coded(columns), weights, rng), rng)


def _coded(model: CodedRecords, codes: Ints, weight: Floats, rng: np.random.Generator | None = None) -> RecordCodes:
    coded = RecordCodes(codes, model.sizes, weight)
    return coded if rng is None or len(weight) <= MOST else coded.take(rng.permutation(len(weight))[:MOST])


def evaluate(space: Workspace, plan: Plan, key: Key, listener: Listener) -> None:
    """Compares published figures with direct estimates, with comparators, and with the truth of a simulated survey."""
    job, crosstab, source = plan.job, plan.crosstab, plan.source
    fits = _fitted(space, plan, key, listener) if set(job.compare) & set(FITTED) else None
    with stage(listener, "evaluate", len(job.tables)) as tick:
        yardsticks = {}
        for j, outcome in enumerate(job.outcomes):
            blocks, clustered = (block.about(j) for block in each_block(space.records)), job.survey.psu is not None
            seen = totals(blocks, crosstab, clustered)
            as_it_came = seen
            if {outcome, job.survey.weight} & set(job.clipped_columns):
                as_it_came = totals(records_as_they_came(job, source, plan.census, j), crosstab, clustered)
            replicated = replicate_sums(job, source, crosstab, j)
            yardsticks[outcome] = Yardstick(as_it_came, design_of(job, plan.census), replicated, seen)
        others = None
        if set(job.compare) & set(REFERRED):
            others = reference_baselines(job, crosstab, each_block(space.records), each_block(space.reference), key)
        records = _records(space, plan) if _further(job) else None
        for table in job.tables:
            published = pq.read_table(space.newest / "tables" / f"{table.name}.parquet").to_pandas()
            compared = compare(job, table, crosstab, yardsticks, published, source.truth, key, others, fits, records)
            _keep(space, table.name, Confidential(compared))
            tick(1)
        evaluate_microdata(space, plan, key.child("microdata"))


def _further(job: Job) -> bool:
    return any(not statistic.plain for table in job.tables for statistic in table.statistics)


def _records(space: Workspace, plan: Plan) -> Direct:
    """Returns the records before clipping. If the job clips or has replicate weights, this reads the file once more."""
    job, numbers = plan.job, range(len(plan.job.outcomes))
    replicates = replicates_as_they_came(job, plan.source)
    if job.clipped_columns or replicates is not None:
        passes = [records_as_they_came(job, plan.source, plan.census, j) for j in numbers]
    else:
        passes = [(block.about(j) for block in each_block(space.records)) for j in numbers]
    return Direct.of(job, plan.crosstab, design_of(job, plan.census), passes, replicates)


def _fitted(space: Workspace, plan: Plan, key: Key, listener: Listener) -> BaselineSums:
    """Fits the job's comparators that are models. They have a separate key for random numbers."""
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "fit comparators", len(plan.crosstab.stratum_labels)) as tick,
    ):
        return fit_comparators(plan.job, plan.crosstab, space.records, key.child("compare fitted"), Path(scratch), tick)


def _keep(space: Workspace, name: str, rows: Confidential[pd.DataFrame]) -> None:
    table = pa.Table.from_pandas(rows.disclose_to_custodian(), preserve_index=False)
    with space.result(space.evaluation / f"{name}.parquet") as path:
        write_table(path, table)


HOW = "COMPARATOR"
"""Stands for the name of a comparator of the job, such as `laplace_finest`."""
TABLES = {
    "statistic": "`count`, `mean`, `total`, or another statistic of the job's table",
    "variable": "the outcome of the statistic; null for counts",
    "records": "number of the file's records in the cell",
    "direct": "the estimate from the file, before clipping, after the public universe and rules",
    "direct_se": "its standard error under the stated design; 0 where it is 0 but for rounding",
    "direct_se_given_n": "the same, where the cells' numbers of records are taken as fixed; null where it is not known",
    "direct_df": "degrees of freedom of `direct_se`",
    "direct_cv": "`direct_se` over the absolute value of `direct`",
    "direct_clipped": "the estimate from the records as the release uses them, after clipping",
    "synthetic": "the published estimate: from parameters, or from synthetic records where there is no other",
    "synthetic_se": "its published standard error",
    "synthetic_df": "its published degrees of freedom",
    "synthetic_lower": "lower limit of its published 90 % interval",
    "synthetic_upper": "upper limit of its published 90 % interval",
    "synthetic_records": "the published estimate from synthetic records; null where there is none",
    HOW: "the comparator's figure; of `fbs` and `fbp` that from parameters",
    f"{HOW}_records": "of `fbs` and `fbp`: the figure from synthetic records",
    f"{HOW}_note": "the comparator's guarantee, which begins with its class, or why figures are missing",
    "truth": "the figure of the population, where the survey is simulated; else null",
    "synthetic_error": "`synthetic` less `truth`, or less `direct` where the truth is not known",
    "synthetic_error_in_se": "distance of `synthetic` from `direct`, in `direct_se`; null where that is 0 or unknown",
    "synthetic_records_error": "the same two, of `synthetic_records`",
    "synthetic_records_error_in_se": "the same two, of `synthetic_records`",
    f"{HOW}_error": "the same four, of the comparator",
    f"{HOW}_error_in_se": "the same four, of the comparator",
    f"{HOW}_records_error": "the same four, of the comparator",
    f"{HOW}_records_error_in_se": "the same four, of the comparator",
    "clipping_error_in_se": "distance of `direct_clipped` from `direct`, in `direct_se`",
    f"synthetic_to_{HOW}": "absolute value of `synthetic_error` over that of the comparator's error",
}
"""Columns of TABLE.parquet. The columns of the table itself, with the cell's levels, come before them."""
