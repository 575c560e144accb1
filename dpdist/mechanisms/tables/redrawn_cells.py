"""Draws of base cells under other samples and other noise, from a release alone, by which its errors are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Codes, Floats, Ints, no_draws
from dpdist.mechanisms.tables.posterior import NoiseErrorDraws, Posterior, SampleDraws, SampleErrorDraws
from dpdist.models.protocol import Draws

CELLS_AT_ONCE = 2**15
"""Number of cells whose draws are computed together."""


@dataclass(frozen=True)
class RedrawnCells:
    """Base cells that were released, with the posterior of their residual sums."""

    posterior: Posterior
    means: Floats
    """Released mean weight and mean outcomes, (cell, 1 + outcome)."""
    size: Floats
    """Numbers of records, (cell,); released ones, if they are secret."""
    laplace: bool
    """True if noise is Laplace."""

    def under_other_samples(
        self, number: int, rng: np.random.Generator, group: Ints | Codes | None = None, weight: Floats | None = None
    ) -> Draws:
        """Estimates from other samples of the file's records, without noise.

        `shape` (draw, cell) is the error of the donors' shapes, in standard deviations: one for all cells of a `group`
        (cell,), which use the same donors. `weight` (cell,) are predicted mean weights, by which numbers of records were
        released, if these are secret.
        """
        draws = self.posterior.draws(number)
        further = None if weight is None else lambda: self._numbers_drawn(weight, draws, rng)
        cells = self.with_errors(draws, self.posterior.redrawn(SampleErrorDraws(len(self.size)), draws, rng), further)
        if group is None:
            return cells
        shape = rng.standard_normal((draws, int(group.max()) + 1))[:, group]
        return Draws({**cells.values, "shape": shape})

    def of_samples(self, number: int, rng: np.random.Generator) -> Draws:
        """The same samples as their records have them."""
        draws = self.posterior.draws(number)
        return self.with_errors(draws, self.posterior.redrawn(SampleDraws(), draws, rng))

    def under_other_noise(self, number: int, rng: np.random.Generator) -> Draws:
        """Estimates under other noise, other errors of the prediction, and other drift. Earlier periods have other samples,
        too.
        """
        draws, law = self.posterior.draws(number), NoiseErrorDraws(len(self.size), self.laplace)
        return self.with_errors(draws, self.posterior.redrawn(law, draws, rng))

    def _numbers_drawn(self, weight: Floats, draws: int, rng: np.random.Generator) -> Floats:
        """Errors of counts by numbers of records, given their sum, that released numbers lack, (cell, draw).

        A cell has at least one record, though fewer are expected of many. So the sample's own error, which has count²/size
        of a cell, lacks what is left of count times mean weight.
        """
        count = self.size * self.means[:, 0]
        deviations = np.sqrt(np.maximum(count * weight - count**2 / self.size, 0.0))[:, None] * rng.standard_normal(
            (len(count), draws)
        )
        return np.asarray(deviations - np.outer(count, deviations.sum(axis=0) / max(float(count.sum()), 1e-300)))

    def with_errors(
        self, draws: int, parts: Iterable[tuple[slice, Floats]], further: Callable[[], Floats] | None = None
    ) -> Draws:
        """Draws of base cells whose residual sums have errors, (cell, 1 + outcome, draw), which come some draws at a time.

        Counts have `further` errors, (cell, draw), if these are given.
        """
        means, size = self.means, self.size
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
