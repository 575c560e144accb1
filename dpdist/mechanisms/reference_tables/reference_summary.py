"""What a reference fixes for tables before the current file is seen: a summary of its cells, the limits, the donors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpdist.core.records import Floats, Records
from dpdist.mechanisms.reference_tables.donors import Donors
from dpdist.mechanisms.reference_tables.release import ReferenceCells, Told
from dpdist.mechanisms.reference_tables.sensitivity import Limits


class ReferenceSummary(NamedTuple):
    """The cells of a table with the limits that they are clipped at; and the donors of records beside the table."""

    told: Told
    limits: Limits
    donors: Donors | None = None


def summary_of(model: ReferenceCells, reference: Sequence[Records], sizes: Floats | None = None) -> ReferenceSummary:
    """Cells and limits from the reference's records by outcome (`sizes`: how many they stand for) and public sizes."""
    told = model.summarise(reference, sizes)
    return ReferenceSummary(told, model.limited(told))
