"""Public half of `laplace_strict` and `weight_regularisation`: tables, errors, records from noisy sums of cells.

Tables are sums of the released cell sums, without changes. Sums over cells are therefore unbiased, although a single
cell may lie outside its public bounds. Setting each cell into its bounds would bias sparse cells upwards. Synthetic
records need values within bounds. Their cell means are the least-squares nearest to the released means, within bounds
and with the same sum over the stratum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats, Frame
from dpdist.job import Job
from dpdist.mechanisms.figures import SUM_OF_A, SUM_OF_B, Figures, cells_of
from dpdist.mechanisms.parts import Words
from dpdist.models.design import counted, counted_again, design
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws, Parameter
from dpdist.models.public_model import PublicModel
from dpdist.privacy.cell_sums import CellBounds, scale_of

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
DEFINITIONS = {"a": SUM_OF_A, "b": SUM_OF_B}


@dataclass(frozen=True)
class CellSums(PublicModel):
    """Base cells of one stratum, with noisy sums of `CellBounds.pairs` in whole units of 1/UNIT, (cell, 2)."""

    labels: tuple[str, ...]
    count: Floats
    """Sample records of every cell, public."""
    bounds: CellBounds
    least_weight: float
    scale: Fraction
    """The scale of the noise on a set's sums, in units of 1/UNIT."""
    raked: bool
    """True if the job states public totals. Factors for these totals are only defined for weights within bounds."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> CellSums:
        columns = tuple(dict.fromkeys(name for table in job.tables for name in table.columns if name not in frame.strata))
        cells, (low, high) = design(frame, columns, rows), job.outcome_column.bounds or (0.0, 1.0)
        first = [int(np.flatnonzero(cells.pattern == cell)[0]) + rows.start for cell in range(len(cells.matrix))]
        labels = tuple(" / ".join(str(frame.levels[c][frame.codes[c][row]]) for c in columns) or "all" for row in first)
        count = counted(frame, rows, cells)
        declared = job.columns[job.survey.weight].bounds if job.survey.weight else None
        least, most = declared or (1.0, 1.0)
        return cls(
            cells,
            (low, high),
            labels,
            count,
            CellBounds(most, low, high),
            least,
            scale_of(job),
            bool(job.rake),
        )

    @property
    def noise_of_count(self) -> tuple[float, float]:
        """Standard deviation of the noise of a base cell's count, and the largest weight, in the weight's unit."""
        return float(np.sqrt(2.0) * float(self.scale) / UNIT) * self.bounds.weight, self.bounds.weight

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("sums", (("cell", self.labels), ("sum", ("weight", "centred product")))),)

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row from the released sums, (draw, row) each; they may leave their bounds."""
        if self.raked:
            return self.bounded(theta)
        sums = self.bounds.sums(self._pairs(theta)) / self._counts(theta)[..., None]
        return sums[:, self.design.pattern, 0], sums[:, self.design.pattern, 1]

    def bounded(self, theta: Draws) -> tuple[Floats, Floats]:
        """The result of `expect`, set within public bounds, for synthetic records."""
        weight, outcome = (values[:, self.design.pattern] for values in self._means(theta))
        return weight, weight * outcome

    @property
    def only_noise(self) -> bool:
        """True: simulated sums differ from the released ones by noise alone."""
        return True

    def weight_ends(self, theta: Draws) -> tuple[float, float]:
        """The smallest and the largest weight of a record, both public."""
        return self.least_weight, self.bounds.weight

    def _means(self, theta: Draws) -> tuple[Floats, Floats]:
        """Mean weight and mean outcome of every cell within public bounds, (draw, cell) each."""
        pairs, count = self._pairs(theta) / UNIT, np.broadcast_to(self._counts(theta), theta["sums"].shape[:2])
        least = self.least_weight / self.bounds.weight
        a = np.array([nearest_within(sums, least * n, n) for sums, n in zip(pairs[..., 0], count, strict=True)])
        b = np.array([nearest_within(sums, -most, most) for sums, most in zip(pairs[..., 1], a, strict=True)])
        relative = np.divide(b, a, out=np.zeros_like(b), where=a > 0.0)
        return self.bounds.weight * a / count, self.bounds.centre + self.bounds.half_width * relative

    def _counts(self, theta: Draws) -> Floats:
        """Sample records of every cell, (draw or 1, cell)."""
        return np.atleast_2d(theta.values.get("count", self.count))

    def _pairs(self, theta: Draws) -> Floats:
        """The released sums in units of 1/UNIT, (draw, cell, 2). Weights that the job states have sums without noise."""
        if self.least_weight < self.bounds.weight:
            return theta["sums"]
        weights = np.broadcast_to(UNIT * self._counts(theta), theta["sums"].shape[:2])
        return np.stack([weights, theta["sums"][..., 1]], axis=-1)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        weight, outcome = (values[0][self.pattern(frame_row)] for values in self._means(theta))
        return outcome, weight

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums unchanged, because the variation of records within a cell was not released."""
        return Draws({"sums": np.repeat(theta["sums"], draws, axis=0)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums with further noise of the same law, for standard errors only."""
        noise = rng.laplace(0.0, float(self.scale), (draws, *theta["sums"].shape[1:]))
        return Draws({"sums": theta["sums"] + noise})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released sums under other sample counts (draw, row)."""
        return Draws({"sums": np.repeat(theta["sums"], len(counts), axis=0), "count": counted_again(self.design, counts)})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return {
            **super().describe(theta),
            "noise": f"discrete Laplace, scale {self.scale}, in units of 2^-20 of the bounds",
        }


def nearest_within(values: Floats, low: Floats, high: Floats) -> Floats:
    """The numbers in [low, high], (cell,), that are nearest to `values` in least squares and have the same sum.

    If the sum cannot be reached, all numbers are at `low` or all at `high`. One shift s gives the numbers clip(value −
    s). Their sum is piecewise linear in s, with a break wherever a number reaches an end.
    """
    if ((low <= values) & (values <= high)).all():
        return values
    total = np.clip(values.sum(), low.sum(), high.sum())
    breaks = np.concatenate([values - high, values - low])
    order = np.argsort(breaks, kind="stable")
    shifts, moving = breaks[order], np.cumsum(np.repeat([1.0, -1.0], len(values))[order])
    sums = high.sum() - np.concatenate([[0.0], np.cumsum(moving[:-1] * np.diff(shifts))])
    return np.asarray(np.clip(values - np.interp(-total, -sums, shifts), low, high))


class WordsOfCells(Words):
    """Texts of a mechanism whose tables are sums of noisy cell sums, unless weights are raked to public totals."""

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


def model_of(job: Job) -> type[CellSums]:
    """The model of every job under the mechanism."""
    return CellSums


def figures(release: ReleaseView, model: CellSums, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy sums of every base cell, for `measurements.parquet`."""
    limits = (model.bounds.centre, model.bounds.weight, model.bounds.half_width)
    cells = cells_of(release, model, stratum)
    yield Figures(cells, ["a", "b"], theta["sums"][0], [model.scale] * 2, lambda *_: limits)
