"""What statements say of figures of whole tables under noise."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.job.mechanisms import WholeTables
from dpdist.mechanisms.words import ReleaseView, Words

LOCAL = (
    "noise has the scale Δ/ε of local sensitivities Δ, those of the file at hand: they are kept confidential, but the "
    "noise itself tells of them, and another file would have had other noise; where all weights or outcomes of a table are "
    "alike there is no noise at all; ε = {} scaled the noise and is no privacy loss"
)
FULL = "every figure has all of ε, though one record enters several: their noise does not compose to ε"
SHARED = "ε is divided by the number of figures that one record enters"
COMPOSED = (
    "weights and outcomes are clipped to public bounds; a record enters every cell that it falls into, over all tables and "
    "margins, by a weight and, where a table needs it, a centred product, whose L1 distance from any other values' in the "
    "same cell, or from none, is at most 2 units of the bounds (1 for weights alone); all sums have discrete Laplace noise "
    "of that scale, times the number of these cells, over ε"
)
ANYWHERE = "a record that is exchanged leaves its cells and enters others: the noise has twice the scale that is said above"
NO_RECORDS = (
    "there are no synthetic records: figures that were noised one by one, margins too, tell of no single file of records"
)
LEAST_SQUARES = (
    "counts and totals of all tables are the additive ones nearest to the noisy figures in least squares; a mean is the "
    "ratio of its total and count where the table has both, and else as noised"
)
AS_NOISED = "figures are as noised: margins are not the sums of their cells"
RATIOS = (
    "a mean is the ratio of the noisy total and the noisy count, clipped to the outcome's public bounds; where the noisy "
    "count is not above 0, the bound on the total's side"
)
NO_ERRORS = (
    "there are none: the noise has the scale of the file's own sensitivities, which are confidential, and how records vary "
    "was not released"
)
SUMS_NOISED_AGAIN = (
    "composition of the sample over cells, and other noise, simulated; how records vary within a cell was not released and "
    "is not in it, nor is the bias of clipping"
)


@dataclass(frozen=True)
class TableWords(Words):
    """Of tables that are consistent or not, under noise of public scale or not."""

    def post_processing(self, release: ReleaseView) -> list[str]:
        assert isinstance(release.job.mechanism, WholeTables)
        agreed = release.job.mechanism.consistency == "least_squares"
        return [NO_RECORDS, LEAST_SQUARES if agreed else AS_NOISED, *([] if release.job.local else [RATIOS])]

    def errors_of(self, release: ReleaseView) -> str:
        return NO_ERRORS if release.job.local else self.errors


WORDS = TableWords(density="noisy weighted counts, means and totals of {outcome} of whole tables", errors=SUMS_NOISED_AGAIN)
