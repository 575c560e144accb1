"""Public half of `weight_regularisation`, for `query` and `publish`: common weight, degree λ, noisy sums of base cells.

A record's weight w becomes (1 − λ)w + λt, where t is the common weight. Tables and synthetic records follow as for
strict Laplace tables, with the bounds of the moved weights. Errors include the bias predicted from the released
distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import pi, sqrt
from typing import Any

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats, Frame
from dpdist.job import Job
from dpdist.mechanisms.figures import Figures, cells_of
from dpdist.mechanisms.laplace_cells.post import NEAREST_WITHIN, RAW_SUMS, WITHHELD, CellSums, WordsOfCells
from dpdist.mechanisms.weight_regularisation.sensitivity import (
    CHOICE,
    MEAN,
    MOVED_BY,
    REGULARISATION_STEPS,
    least_error,
    scale_of,
    scales_of,
)
from dpdist.mechanisms.weight_regularisation.spec import WeightRegularisation
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws, Parameter
from dpdist.models.public_model import PublicModel
from dpdist.privacy.queries import moves, record_epsilon

ASKED = ("sum of weights", "distance", "distance of products")
"""Names of the figures that are measured before the cells' sums."""


WITH_BIAS = (
    "Estimator `parameters`: composition of the sample over cells, and other noise, simulated. Noise on the common "
    "weight moves all counts together, and is in the errors of all. So in one release of ten, most counts can lie "
    "outside of their 90 % intervals. The bias of moved weights is in the errors, too, if the distance was asked: a "
    "cell's is drawn with the size that its share of the sample predicts. Bias that one cell has more of than its "
    "share is in no error. How records vary within a cell was not released and is not in it. At a small ε the common "
    "weight is nearly all noise, and intervals of counts are wide."
)

WORDS = WordsOfCells(
    density="noisy sums of moved {weight} and of its product with {outcome} in every base cell",
    errors=WITH_BIAS,
    steps=(RAW_SUMS, WITHHELD, NEAREST_WITHIN),
)
DEFINITIONS = {
    "a_r": "the sum of a = w_r / U_r, with w_r = (1 - r) min(w, U) + r t the moved weight, U the weight_cap, and "
    "U_r = (1 - r) U + r t; t and r are `used` in released/set-1.json",
    "b_r": "as b, with a as in a_r",
    "sum of weights": "over all cells of the stratum: the sum of min(w, U) / U, with w the weight and U the weight_cap",
    "distance": "the sum over cells of |sum of (min(w, U) - t) / U|, with t as in a_r",
    "distance of products": "as distance, each term times (clip(y, c - R, c + R) - c) / R in the notation of b",
}
QUERIES = {
    "a_r": "sums of base cells",
    "b_r": "sums of base cells",
    "distance": "distances from the common weight",
    "sum of weights": "sum of weights",
}
"""The query that every statistic answers, by the names of both."""


@dataclass(frozen=True)
class RegularisedCells(PublicModel):
    """Cells of one stratum under public bounds; `plain` is the strict Laplace table without moved weights.

    `towards` and `fixed` are the common weight and the degree that the job states; None: they are measured.
    """

    plain: CellSums
    epsilon: Fraction
    """The ε of one record. It is half of the budget if the guarantee covers a record's move to another cell."""
    towards: float | None
    fixed: float | None

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> RegularisedCells:
        settings, plain = job.mechanism, CellSums.build(job, frame, rows)
        assert isinstance(settings, WeightRegularisation)
        epsilon = record_epsilon(job, job.epsilon_per_set) / moves(job)
        plain = replace(plain, scale=scales_of(job, settings)[-1])
        return cls(plain.design, plain.outcome_bounds, plain, epsilon, settings.towards, settings.regularisation)

    @property
    def scale(self) -> Fraction:
        """The scale of the noise on the cells' sums, in units of 1/UNIT."""
        return self.plain.scale

    @property
    def mean_scale(self) -> Fraction:
        return scale_of(MEAN, MOVED_BY[0], self.epsilon)

    @property
    def choice_scale(self) -> Fraction:
        return scale_of(CHOICE, MOVED_BY[1], self.epsilon)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Names of the parameters; `asked` is null if the job fixes the common weight or the degree."""
        used = Parameter("used", (("weight", ("common", "regularisation")),))
        return (*self.plain.parameters, Parameter("asked", (("sum", ASKED),)), used)

    def common(self, noisy_sum: float) -> float:
        """The mean weight from a noisy sum, clipped to the weight's upper bound and to `least_common`.

        Under a common weight of 0, moved weights could all be 0, and sums would have no unit.
        """
        cap = self.plain.bounds.weight
        mean = noisy_sum * cap / UNIT / float(self.plain.count.sum())
        return float(np.clip(mean, least_common(self.plain), cap))

    def chosen(self, distances: Floats, common: float) -> float:
        """The degree λ to which weights are moved, from the noisy distances in units of 1/UNIT."""
        cap = self.plain.bounds.weight
        squares = self._squares(distances)
        return least_error(float(squares.sum()), self._shares(), float(self.scale) / UNIT, common / cap)

    def under(self, theta: Draws) -> CellSums:
        """The model of cells with the bounds of moved weights."""
        common, regularisation = theta["used"][0]
        return self.cells(float(common), float(regularisation))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        weight, product = self.under(theta).expect(theta)
        if "apart" not in theta.values:
            return weight, product
        off_weight, off_product = (theta["apart"][..., k][:, self.plain.design.pattern] for k in range(2))
        moved_weight = weight + off_weight
        moved_product = product + self.plain.bounds.centre * off_weight + off_product
        if not self.plain.raked:
            return moved_weight, moved_product
        # Factors that meet public totals need weights above 0.
        least = least_common(self.plain)
        wide = np.maximum(moved_weight, least)
        return wide, wide * np.clip(moved_product / wide, *self.plain.outcome_bounds)

    def bounded(self, theta: Draws) -> tuple[Floats, Floats]:
        """As `expect`, within public bounds, as synthetic records have them."""
        return self.under(theta).bounded(theta)

    @property
    def only_noise(self) -> bool:
        """False: simulated figures include the bias of moved weights."""
        return False

    def weight_ends(self, theta: Draws) -> tuple[float, float]:
        """The smallest and the largest moved weight of a record."""
        return self.under(theta).weight_ends(theta)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        return self.under(theta).simulate(theta, frame_row, rng)

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums unchanged, because the variation of records within a cell was not released."""
        return self._with(theta, self.plain.resampled(theta, records, draws, rng))

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums with further noise of the same law, and `apart`, the possible distance of the true means.

        `apart` (draw, cell, 2) concerns a cell's mean weight, and the mean of w (y − c) with c the middle of the
        outcome's bounds. It includes the error of the common weight, and a bias of the size that the distances predict.
        Both are computed before moved weights are set into their bounds.
        """
        drawn = self.plain.noised_again(theta, records, draws, rng)
        bias = self._bias(theta) * rng.standard_normal(drawn["sums"].shape)
        return self._with(theta, Draws({**drawn.values, "apart": bias + self._of_common(theta, draws, rng)}))

    def _bias(self, theta: Draws) -> Floats:
        """Standard deviation of the bias of every mean, (2,), from the distances; 0 if the job states the degree.

        A distance may err by as much as its noise. For n records of mean weight m and the common weight t, the triangle
        inequality bounds both distances by n (m + t).
        """
        common, regularisation = theta["used"][0]
        cap, half = self.plain.bounds.weight, self.plain.bounds.half_width
        noise = sqrt(2.0) * float(self.choice_scale)
        distances = cap / UNIT * np.hypot(np.maximum(theta["asked"][0, 1:], 0.0), noise) / float(self.plain.count.sum())
        most = common + (cap if self.towards is not None else min(cap, common + sqrt(2.0) * self._mean_error))
        bias = np.nan_to_num(np.minimum(distances, most), nan=0.0)
        return np.asarray(regularisation * sqrt(pi / 2.0) * bias * np.array([1.0, half]))

    @property
    def _mean_error(self) -> float:
        """The scale of the noise on the mean weight of the file."""
        return float(self.mean_scale) * self.plain.bounds.weight / UNIT / float(self.plain.count.sum())

    def _of_common(self, theta: Draws, draws: int, rng: np.random.Generator) -> Floats:
        """Changes of all cells' means under other noise on the common weight, (draw, cell, 2); 0 if the job states it.

        All cells share this error. Outcomes of cells are those of the released sums. Unlike the common weight, this
        noise is not clipped to bounds. Clipping only moves the common weight towards the true mean weight, unless this
        is below `least_common`. In that case the distances include the difference.
        """
        weight, product = theta["sums"][0].T
        mean = np.clip(np.divide(product, weight, out=np.zeros_like(weight), where=weight > 0.0), -1.0, 1.0)
        if self.towards is not None:
            return np.zeros((draws, len(mean), 2))
        off = float(theta["used"][0, 1]) * rng.laplace(0.0, self._mean_error, draws)
        half = self.plain.bounds.half_width
        return np.asarray(off[:, None, None] * np.column_stack([np.ones_like(mean), half * mean]))

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released sums under other sample counts (draw, row)."""
        return self._with(theta, self.plain.recounted(theta, counts))

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        noise = f"discrete Laplace, scale {self.scale}, in units of 2^-20 of the bounds that moved weights have"
        return {**super().describe(theta), "noise": noise}

    def _squares(self, distances: Floats) -> Floats:
        """Squares of both noisy distances, less the variance of their noise, in squared units of the weight's bound."""
        squares = np.maximum(distances, 0.0) ** 2 - 2.0 * float(self.choice_scale) ** 2
        return np.asarray(np.nan_to_num(np.maximum(squares, 0.0), nan=0.0) / UNIT**2)

    def _shares(self) -> Floats:
        """Every cell's share of the sample records, as published."""
        return np.asarray(self.plain.count / self.plain.count.sum())

    def cells(self, common: float, regularisation: float) -> CellSums:
        """The cells with bounds of weights moved by this degree towards this common weight."""
        plain = self.plain
        least, most = (moved(end, common, regularisation) for end in (plain.least_weight, plain.bounds.weight))
        return replace(plain, bounds=plain.bounds._replace(weight=most), least_weight=least)

    def _with(self, theta: Draws, drawn: Draws) -> Draws:
        """Draws of the sums, joined with the other released parameters."""
        kept = {name: np.repeat(theta[name], len(drawn), axis=0) for name in ("asked", "used")}
        return Draws({**kept, **drawn.values})


def least_common(plain: CellSums) -> float:
    """The least common weight: the weight's public lower bound, or a public positive floor if it is larger."""
    return max(plain.least_weight, plain.bounds.weight / REGULARISATION_STEPS)


def moved(weight: Any, common: float, regularisation: float) -> Any:
    """A weight, or weights (record,), moved towards the common one."""
    return (1.0 - regularisation) * weight + regularisation * common


def model_of(job: Job) -> type[RegularisedCells]:
    """The model of every job under the mechanism."""
    return RegularisedCells


def figures(release: ReleaseView, model: RegularisedCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Figures of the whole stratum, then sums of cells.

    A figure that the job fixes is not listed, because it was not measured.
    """
    cells, bounds, twice = cells_of(release, model, stratum), model.under(theta).bounds, moves(release.job)
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    scales = (model.mean_scale, model.choice_scale, model.choice_scale)
    for name, value, scale, moved_by in zip(ASKED, theta["asked"][0], scales, MOVED_BY, strict=True):
        ends = (None, model.plain.bounds.weight, None)
        if np.isfinite(value):
            one = np.array([[value]])
            yield Figures([whole], [name], one, [scale], lambda *_, ends=ends: ends, sensitivity=float(moved_by * twice))
    limits = (bounds.centre, model.plain.bounds.weight, bounds.half_width)
    yield Figures(cells, ["a_r", "b_r"], theta["sums"][0], [model.scale] * 2, lambda *_: limits, sensitivity=2.0 * twice)
