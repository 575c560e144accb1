"""Laws of the records in a table's cells: a reference's score model, moved to the means that a release tells (§7b, §5b).

Weights are scaled. Outcomes are moved in score space, and keep the reference's values: zeros, rounding, a top-code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpdist.job import Job
from dpdist.keys import Key
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.score_cells import Cells
from dpdist.models.score_facts import Facts, Law
from dpdist.models.score_law import told
from dpdist.models.score_levels import shifted, shifts
from dpdist.models.scores import Scores, kind_of
from dpdist.records import Floats, Records


def laws_of(job: Job, model: ReferenceCells) -> tuple[Scores, ...]:
    """A score model of every outcome over the table's cells, without the reference as yet."""
    codes = np.column_stack([np.zeros(len(model.labels), dtype=np.int32), model.codes])
    count = model.count.astype(np.int64)
    cells = Cells(codes, model.design.pattern, model.design.first, count, model.labels, np.arange(len(count)))
    columns = job.outcome_columns.values()
    return tuple(Scores(cells, kind_of(each), each.bounds or (-np.inf, np.inf)) for each in columns)


def shapes_of(job: Job, model: ReferenceCells, records: Records, key: Key) -> tuple[Facts, ...]:
    """What a reference's records tell of every outcome's law; secret sizes of the current file are replaced by its own."""
    if model.simplex:
        own = np.bincount(model.pattern(records.frame), minlength=len(model.labels))
        model = replace(model, count=own.astype(np.float64))
    return tuple(law.told(records.about(k), key) for k, law in enumerate(laws_of(job, model)))


def moved(law: Scores, means: Floats) -> Law:
    """The reference's own fit with cells' outcomes moved until their weighted means are these, (cell,), or as near as they
    come."""
    own = told(law.known)
    by = shifts(law.known, own, law.kind, law.outcome_bounds, means, np.arange(len(means)))
    return shifted(own, law.kind, by)
