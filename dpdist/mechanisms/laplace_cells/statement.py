"""Texts for the statement of a release by `laplace_strict`: noisy sums of base cells under public bounds."""

from __future__ import annotations

from dpdist.mechanisms.words import Words
from dpdist.models.outputs import ReleaseView

SUMS = (
    "Weights and outcomes are clipped to public bounds. A record enters one base cell, by a weight and a centred "
    "product. Their L1 distance from any other values' in the same cell, or from none, is at most 2 units of the bounds. "
    "Both sums have discrete Laplace noise of scale {}/ε of a set's ε in these units. Margins are sums of cells."
)
NOISED_AGAIN = (
    "Estimator `parameters`: composition of the sample over cells, and other noise, simulated. How records vary within a "
    "cell was not released and is not in it, nor is the bias of clipping. The error of noise is at most the distance "
    "between the figure's own bounds."
)
RAW_SUMS = (
    "Tables are made from the noisy sums as they were released: a margin is the sum of its base cells' noisy sums. Each "
    "printed figure alone is then set into its public bounds, so cells that were set do not add up to their margins. Take "
    "margins as printed, or sum `measurements.parquet`. The bias of a printed figure is at most .4 of its error by noise."
)
WITHHELD = (
    "A mean is withheld where a 90 % interval of its count, by noise alone, reaches 0: its limits are the outcome's bounds."
)
NEAREST_WITHIN = (
    "A synthetic record has its cell's means. They are those within public bounds that are nearest to the noisy sums in "
    "least squares, with the noisy sum of the whole stratum kept where bounds allow it. So totals of a stratum agree with "
    "the tables. Where noise is large, sums over some cells of synthetic records do not: take these from the tables."
)

RAKED_WITHIN = (
    "Before raking, a cell's mean weight and its means are those within public bounds that are nearest to the noisy sums "
    "in least squares, with the noisy sum of the whole stratum kept where bounds allow it. Raked weights may lie beyond "
    "the bounds. Tables from parameters and synthetic records have these means and raked weights, and tables are additive."
)


class WordsOfCells(Words):
    """Texts of a mechanism whose tables are sums of noisy sums, unless weights are raked to public totals."""

    def post_processing(self, release: ReleaseView) -> list[str]:
        whole = super().post_processing(release)
        if not release.job.rake:
            return whole
        return [RAKED_WITHIN, *(text for text in whole if text not in (RAW_SUMS, NEAREST_WITHIN))]


WORDS = WordsOfCells(
    density="noisy sums of {weight} and of its product with {outcome} in every base cell",
    errors=NOISED_AGAIN,
    steps=(RAW_SUMS, WITHHELD, NEAREST_WITHIN),
)
