"""Computes a summary of the reference before the current file is seen: cells, clipping limits and donors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.estimation.donors import Donors
from dpdist.mechanisms.reference_tables.clipped_cells import ClippedCells, Told
from dpdist.mechanisms.reference_tables.sensitivity import Limits


class ReferenceSummary(NamedTuple):
    """The cells of each outcome, their clipping limits, and the donors for synthetic records."""

    told: Told
    limits: Limits
    donors: Donors | None = None


def summary_of(model: ClippedCells, reference: Sequence[Records], sizes: Floats | None = None) -> ReferenceSummary:
    """The summary from public sizes and the reference's records, which are given for each outcome.

    `sizes` (cell,): number of records that the reference's records stand for, if they are points.
    """
    told = model.summarise(reference, sizes)
    return ReferenceSummary(told, model.limited(told))
