"""Texts for the statement of a release by `weighted_marginals`."""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job
from dpdist.mechanisms.coded_tables.sensitivity import UNIT, table_scale
from dpdist.mechanisms.coded_tables.statement import SAMPLED
from dpdist.mechanisms.weighted_marginals.sensitivity import OUTRIGHT as PART_OUTRIGHT
from dpdist.mechanisms.weighted_marginals.sensitivity import SINGLES
from dpdist.mechanisms.weighted_marginals.spec import WeightedMarginals
from dpdist.mechanisms.words import WIDE, Words
from dpdist.models.outputs import ReleaseView
from dpdist.privacy.queries import record_epsilon

LISTED = "The tables are those that the job names. To share ε, the noise of k tables has k times the scale of one."
CHOSEN = (
    "A third of ε is for each column's table, a third for the choice of pairs of columns, a third for the pairs' tables. "
    "Pairs are chosen one after another: each time the largest score under discrete Laplace noise. A score is how far a "
    "pair's table is from what the noisy tables of its columns say, in L1. It moves by no more than the table does."
)
ADAPTIVE = (
    "A third of ε is for each column's table, the rest for rounds. A round takes a quarter of its ε to choose a pair of "
    "columns, and the rest to measure its table. The largest score under discrete Laplace noise is chosen. A score is how "
    "far a pair's table is from what the noisy tables then say, in L1, less the noise to expect. It moves by no more than "
    "the table does. Where a table tells no more than its noise, later rounds take twice the ε. The last round takes "
    "all that is left."
)
OUTRIGHT = (
    "half of ε is for each column's table, half for the tables of pairs. Pairs of at most 100,000 cells make no loop: all "
    "are measured, and nothing is chosen"
)
REFERRED = (
    "The reference's weights tell what lies beyond the weights' public bound. They are used after noise, and change no "
    "query."
)
CLIPPED = "What clipping and pairs that were not measured bring is in no error."
UNCLIPPED = (
    "Counts hold what lies beyond the weights' public bound, estimated from the reference's weights. Errors hold the "
    "sampling of both files there, and a drift whose standard deviation is a quarter of what is added. What pairs that "
    "were not measured bring is in no error."
)
SAMPLED_AS_THE_REFERENCE = (
    "Estimator `parameters`: the noise once more on the fitted tables, and samples, both simulated. A sample has as many "
    "records as the weights' sum in units of U, or of Σw²/Σw of the reference where that is larger. U is the weights' "
    "public bound. Counts that are set to 0 have a bias, estimated from noise on the fitted tables."
)
EXTENDED = (
    "The reference's weights are multiplied by one factor, under which their mean below the bound is the file's. Every "
    "noisy count is then multiplied by the ratio of the reference's weights in its cell to the same weights clipped at "
    "the bound. Cells with few of its records lean on all."
)
AGREED = (
    "Noisy tables are put onto counts of at least 0 with one total, and margins of a column are averaged over its tables. "
    "The distribution of greatest entropy with these tables is a tree of pairs. Columns that no pair joins are "
    "independent given those between them."
)
LAID_OUT = (
    "Synthetic records hold all columns. Their weights are scaled until the records' tables are the fitted ones, but for "
    "cells without a synthetic record. The fitted tables stand in marginals.parquet, in whose errors no bias is."
)
OF_VALUES = (
    "Beside tables, sums of values are measured: {sums}. A record adds its weight, in units of the weight's bound, times "
    "the position of its value, from −1 at the lowest level to 1 at the highest. Leaving it out moves each of these "
    "sums by at most 1 unit in L1, and any other values by at most 2, as a table. They count as tables in the split of "
    "ε: together they have {part} of it, and discrete Laplace noise of scale {scale} units on every sum."
)
WITH_VALUES = (
    "A noisy sum of values and the sum that noisy counts say are averaged by precision. A column's counts are then "
    "multiplied by one number for each step of its values, so that they have this sum. So are the rows of a pair, where "
    "sums by its other column were measured. If no table of a pair has its margins and sums, the margins hold. The sums "
    "are then moved towards those of independent columns until a table has them."
)


def of_sums(job: Job) -> tuple[str, ...]:
    """What is said of sums of values before data are seen; nothing if the job has none."""
    said = job.mechanism
    assert isinstance(said, WeightedMarginals)
    if not said.sums:
        return ()
    named = said.marginals is not None or len(job.outcomes) == 1
    part = Fraction(1) if named else SINGLES if said.chooses(job) else PART_OUTRIGHT
    tables = len(said.marginals or job.outcomes) + len(said.sums)
    scale = table_scale(record_epsilon(job, job.epsilon_per_set) * part, tables, job.budget.adjacency) / UNIT
    sums = "; ".join(
        f"{each.of} by {each.by}" if each.by is not None else f"{each.of} over all records" for each in said.sums
    )
    return (OF_VALUES.format(sums=sums, part=part * len(said.sums) / tables, scale=f"{float(scale):.6g}"),)


class OfReference(Words):
    """Texts that depend on whether the job has a reference, and on its sums of values."""

    def errors_of(self, release: ReleaseView) -> str:
        return self.errors if release.job.reference is None else f"{SAMPLED_AS_THE_REFERENCE} {UNCLIPPED} {WIDE}"

    def post_processing(self, release: ReleaseView) -> list[str]:
        extended = [] if release.job.reference is None else [EXTENDED]
        agreed, *others = super().post_processing(release)
        values = [WITH_VALUES] if "sums" in release.job.mechanism.published(release.job) else []
        return [*extended, agreed, *values, *others]


WORDS = OfReference(
    density="noisy sums of {weight} in every cell of tables of {outcome}",
    errors=f"{SAMPLED} {CLIPPED} {WIDE}",
    steps=(AGREED, LAID_OUT),
)
