"""Laws of the records in a table's cells: a reference's score model, moved to the means that a release tells (§7b, §5b).

Weights are scaled. Outcomes are moved in score space, and keep the reference's values: zeros, rounding, a top-code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import expit, logit

from dpdist.job import Job
from dpdist.keys import Key
from dpdist.models import score_tables
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.score_cells import Cells
from dpdist.models.score_facts import Facts, Law
from dpdist.models.score_law import told
from dpdist.models.scores import Scores, kind_of
from dpdist.records import Floats, Records

FARTHEST, STEPS = 4.0, 40
"""Of an outcome's score, and of a share's logit; halvings until it is found."""


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
    low, high = np.full(len(means), -FARTHEST), np.full(len(means), FARTHEST)
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        weight, product = score_tables.expectations(law.known, _shifted(law, own, middle), law.kind, law.outcome_bounds)
        below = product[0] < means * weight[0]
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return _shifted(law, own, (low + high) / 2.0)


def _shifted(law: Scores, own: Law, by: Floats) -> Law:
    if law.kind == "binary":
        return own._replace(share=expit(logit(own.share) + by))
    slopes = own.slopes.copy()
    slopes[:, :, 0] += by
    return own._replace(slopes=slopes)
