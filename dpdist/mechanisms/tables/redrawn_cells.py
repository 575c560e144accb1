"""Draws of base cells under other samples and other noise, from a release alone, by which its errors are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dpdist.core.records import Floats, no_draws
from dpdist.mechanisms.tables.drift_sizes import mean_square_drift
from dpdist.mechanisms.tables.periods import Estimated, common_history, errors_of_two, learned_from
from dpdist.mechanisms.tables.posterior import ErrorDraws, NoiseErrorDraws, Posterior, SampleDraws, SampleErrorDraws
from dpdist.mechanisms.tables.spec import EFFECTS
from dpdist.models.protocol import DrawnTogether, Draws

if TYPE_CHECKING:
    from dpdist.mechanisms.tables.cells import ResidualCells

CELLS_AT_ONCE = 2**15
"""Number of cells whose draws are computed together."""


@dataclass(frozen=True)
class RedrawnCells:
    """Base cells of a model and the parameters that were released of them."""

    model: ResidualCells
    theta: Draws

    @cached_property
    def posterior(self) -> Posterior:
        return self.model.posterior(self.theta)

    def under_other_samples(self, number: int, rng: np.random.Generator) -> Draws:
        """Estimates from other samples of the file's records, without noise.

        `shape` (draw, cell) is the error of the donors' shapes, in standard deviations: one for all cells that use them.
        """
        model, draws = self.model, self.posterior.draws(number)
        further = (lambda: self._numbers_drawn(draws, rng)) if model.secret else None
        cells = self._with(SampleErrorDraws(len(model.count)), draws, rng, further)
        if model.alike:
            return cells
        assert model.donors is not None
        group = model.donors.by_cell(model.codes).group
        shape = rng.standard_normal((draws, int(group.max()) + 1))[:, group]
        return Draws({**cells.values, "shape": shape})

    def of_samples(self, number: int, rng: np.random.Generator) -> Draws:
        """The same samples as their records have them."""
        return self._with(SampleDraws(), self.posterior.draws(number), rng)

    def under_other_noise(self, number: int, rng: np.random.Generator) -> Draws:
        """Estimates under other noise, other errors of the prediction, and other drift. Earlier periods have other samples,
        too.
        """
        law = NoiseErrorDraws(len(self.model.count), self.model.joint.law == "laplace")
        return self._with(law, self.posterior.draws(number), rng)

    def together(self, earlier: RedrawnCells, number: int, rng: np.random.Generator) -> DrawnTogether | str:
        """Base cells of this release and of an earlier one under the same errors of their reference.

        If columns, bounds, measured tables or reference records differ, the reason in words.
        """
        model = self.model
        if (reason := self._other_reference(earlier.model)) is not None:
            return reason
        estimate, earlier_estimate = self._estimated, earlier._estimated
        periods = common_history(estimate, earlier_estimate)
        if periods is None or model.donors is None:
            return "they learned from different earlier releases"
        learning = replace(model, donors=replace(model.donors, history=periods))
        prior = learning.knowing(self.theta).plan.file.prior_of_periods
        draws = min(each.posterior.draws(number) for each in (estimate, earlier_estimate))
        errors = errors_of_two(estimate, earlier_estimate, prior, draws, rng)
        pairs = (self, errors.later), (earlier, errors.earlier)
        cells = [redrawn._moved(draws, [(slice(0, draws), z)]) for redrawn, z in pairs]
        return DrawnTogether(cells[0], cells[1], sampled=learned_from(estimate, earlier_estimate))

    @property
    def _estimated(self) -> Estimated:
        *history, totals = self.model.history(self.theta)
        posterior, observed, _ = self.model.released_sums(self.theta).reading
        return Estimated(posterior, tuple(history), totals, mean_square_drift(posterior, observed))

    def _other_reference(self, other: ResidualCells) -> str | None:
        """Why errors of the reference are not shared; None if both releases have the same reference records, and measure
        the same tables of the same columns.
        """
        both = self.model, other
        if any(model.alike for model in both):
            return "one of them has no reference file"
        if any(model.secret for model in both):
            return "one of them has secret sample counts"
        if any(model.learner != EFFECTS for model in both):
            return "one of them predicts by trees"
        definition, other_definition = (
            (each.columns, each.levels, each.outcomes, each.bounds, each.public_weights, each.weighted, each.measured)
            for each in both
        )
        records, other_records = (
            np.column_stack([part.of_records(part.codes), part.weight, part.outcomes])
            for part in (model.reference for model in both)
        )
        if definition != other_definition:
            return "their columns, levels, bounds or measured tables differ"
        # Exact, because these are published records and no result of arithmetic.
        same = np.array_equal(records[np.lexsort(records.T)], other_records[np.lexsort(other_records.T)])
        return None if same else "their reference records differ"

    def _numbers_drawn(self, draws: int, rng: np.random.Generator) -> Floats:
        """Errors of counts by numbers of records, given their sum, that released numbers lack, (cell, draw).

        A cell has at least one record, though fewer are expected of many. So the sample's own error, which has count²/size
        of a cell, lacks what is left of count times mean weight.
        """
        sums = self.model.released_sums(self.theta)
        weight = sums.calibration.factors[0] * sums.asked.file.prediction.means[:, 0]
        size = self.theta["size"][0]
        count = size * self.theta["means"][0, :, 0]
        deviations = np.sqrt(np.maximum(count * weight - count**2 / size, 0.0))[:, None] * rng.standard_normal(
            (len(size), draws)
        )
        return np.asarray(deviations - np.outer(count, deviations.sum(axis=0) / max(float(count.sum()), 1e-300)))

    def _with(
        self, law: ErrorDraws, draws: int, rng: np.random.Generator, further: Callable[[], Floats] | None = None
    ) -> Draws:
        return self._moved(draws, self.posterior.redrawn(law, draws, rng), further)

    def _moved(
        self, draws: int, parts: Iterable[tuple[slice, Floats]], further: Callable[[], Floats] | None = None
    ) -> Draws:
        """Draws of base cells whose residual sums have errors, (cell, 1 + outcome, draw), which come some draws at a time.

        Counts have `further` errors, (cell, draw), if these are given.
        """
        means, size = self.theta["means"][0], self.model.sized(self.theta).count
        predicted = self.posterior.prior.prediction.means[: len(size)]
        weights, products = no_draws(draws, len(size)), no_draws(draws, *means[:, 1:].shape)
        of_counts: Floats | None = None
        for block, z in parts:
            if further is not None:
                of_counts = further() if of_counts is None else of_counts
                z[: len(size), 0] += of_counts[:, block]
            for start in range(0, len(size), CELLS_AT_ONCE):
                of = slice(start, min(start + CELLS_AT_ONCE, len(size)))
                totals = z[of, 1:] + predicted[of, 1:, None] * z[of, :1]
                weights[block, of] = means[of, 0] + z[of, 0].T / size[of]
                products[block, of] = means[of, :1] * means[of, 1:] + np.moveaxis(totals, 2, 0) / size[of, None]
        return Draws({"weights": weights, "products": products})
