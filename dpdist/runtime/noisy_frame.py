"""Draws the noise of sample counts once, before any fit, for a job that protects its predictors, and stores the noisy
frame.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.digests import digest
from dpdist.core.records import Floats, Frame, Ints
from dpdist.engine.protocol import Noise
from dpdist.estimation.frame_table import frame_table
from dpdist.job import Job
from dpdist.privacy.noisy_counts import counts, levels, noise_name, noisy_frame
from dpdist.storage.noise_once import noise_once
from dpdist.storage.tables import write_table
from dpdist.storage.workspace import NOISY_FRAME, Workspace


def store_noisy_frame(space: Workspace, job: Job, frame: Frame) -> None:
    """Stores the frame with noisy counts, which fits and publication use. `frame` has the exact counts of all combinations.

    The noise is stored too. Raises `WorkspaceError` if stored noise was drawn for other counts, columns or budget.
    """
    if job.predictors is None or space.finished(NOISY_FRAME):
        return
    measured = list[Floats]()
    for number, (level, exact) in enumerate(zip(levels(job), counts(job, frame), strict=True)):
        noise = np.zeros(len(exact)) if level.scale is None else _noise(space, job, number, frame, exact)
        measured.append(exact + noise)
    write_table(space.noisy_frame, frame_table(noisy_frame(job, frame, measured)))
    space.mark(NOISY_FRAME, [space.noisy_frame])


def _noise(space: Workspace, job: Job, number: int, frame: Frame, exact: Ints) -> Floats:
    """Returns the noise for one level of detail (a set of columns), bound to that level's exact counts."""
    level = levels(job)[number]
    assert level.scale is not None
    query = digest(
        {"columns": level.columns, "levels": {name: list(map(str, frame.levels[name])) for name in level.columns}}
    )
    request = Noise(level.scale, len(exact), number, noise_name(job), query, digest(exact))
    return noise_once(space, space.noise("frame", 0, number), request)
