"""For `planning.plan`: projects the time of a run, and the memory of the process that publishes, from sizes.

The constants were measured on strata of 100 records and on giant strata of up to 2,000,000 (tests/runtime/test_memory.py).
"""

from __future__ import annotations

from math import prod

import numpy as np

from dpdist.core.records import Floats, Frame
from dpdist.job import Job
from dpdist.models.outputs import DRAWS, LARGEST, SMALLEST, Recentred, Resampled
from dpdist.models.protocol import Cost, StratumModel
from dpdist.planning.blocks import PROCESS_BYTES, Layout, seconds

START_SECONDS = 4.0
"""Seconds for imports, checks and the pages of a release, whatever its size."""
DASK_SECONDS = 3.0
"""Seconds for the start of a scheduler and a worker."""
REFIT_SECONDS = 0.022
"""Seconds for the standard errors of a stratum: a repeated search on a synthetic sample."""
SYNTHESIS_SECONDS = 0.001
"""Seconds for the synthetic records of a stratum in one set."""
READ_SECONDS, WRITE_SECONDS = 1e-6, 2.5e-7
"""Seconds for a record: read, checked, stored and evaluated; and written to one synthetic set."""

NUMBER = 8 * DRAWS
"""Memory, in bytes, of a number under all draws of a law."""
STRATUM_BYTES = 16_000
"""Memory, in bytes, of a stratum's model, parameters and summaries."""
READ_BYTES, MOST_READ = 80, 1_500_000
"""Memory, in bytes, of a record that is evaluated, up to so many: further ones are read in parts."""
SAMPLED_BYTES = 40
"""Memory, in bytes, of a record of a stratum's synthetic sample."""
OF_ROW, OF_CELL = 9, 10
"""Numbers for each outcome: of a frame row, in three laws and while a table is made; and of a table's cell."""


def publishing_bytes(job: Job, frame: Frame, model: StratumModel) -> int:
    """Projected peak memory, in bytes, of the process that publishes. `model` is that of a stratum with the most rows.

    It grows with strata, because their laws are held until all tables are made. Where sizes are secret, the samples
    count with their largest size.
    """
    process = PROCESS_BYTES + (0 if job.sizes_secret else READ_BYTES * min(int(frame.count.sum()), MOST_READ))
    if job.mechanism.clamps or not isinstance(model, Recentred | Resampled):
        return process
    strata, rows, outcomes = len(frame.stratum_labels), len(frame), len(job.outcomes)
    laws = 3 if isinstance(model, Recentred) else 2
    numbers = laws * strata * sum(parameter.size for parameter in model.parameters)
    cells = max((_cells(job, by, margins) for by, margins in ((t.by, t.margins) for t in job.tables)), default=0)
    numbers += outcomes * (OF_ROW * rows + OF_CELL * cells)
    sampled = SAMPLED_BYTES * int(_sampled(job, frame).sum()) if isinstance(model, Recentred) else 0
    return process + NUMBER * numbers + STRATUM_BYTES * strata + sampled


def _cells(job: Job, by: tuple[str, ...], margins: bool) -> int:
    return prod(len(job.columns[name].levels or ()) + margins for name in by)


def _sampled(job: Job, frame: Frame) -> Floats:
    """Records of the synthetic sample in every frame row, (row,), as `publish.refit` takes them."""
    if job.sizes_secret:
        return np.full(len(frame), float(LARGEST))
    share = np.minimum(1.0, LARGEST / np.maximum(frame.stratum_count, 1))[frame.stratum]
    return np.maximum(np.minimum(frame.count, SMALLEST), frame.count * share)


def projected_cost(job: Job, layout: Layout, model: StratumModel) -> Cost | None:
    """The projected cost of a run whose strata are fitted in closed form; None for others."""
    if job.mechanism.clamps or job.sampler.name != "exact" or not isinstance(model, Recentred):
        return None
    frame, sets = layout.frame, job.synthetic_sets
    strata, records = len(frame.stratum_labels), int(frame.count.sum())
    protected = sum(seconds(frame.stratum_count.tolist(), layout.draws))
    others = strata * (REFIT_SECONDS + SYNTHESIS_SECONDS * sets) + records * (READ_SECONDS + WRITE_SECONDS * sets)
    start = START_SECONDS + DASK_SECONDS * (job.runtime.executor == "dask")
    return Cost(start + protected + others, protected, layout.largest_task_bytes)
