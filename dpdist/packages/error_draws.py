"""For `table_package.post`: draws errors of a package's base cells, by the sample and by all other causes.

An estimate is G x. Records vary by s about their cells' means, so G M s is the estimate's error by the sample. Errors
of levels, drift d, tails t and noise ν give G (M S d + ν) − S d − t. The two parts are independent, and add up to the
error about the population's sums (docs/methods.md, §9c).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.packages.posterior import Posterior


class CellErrors(NamedTuple):
    """Errors of base cells' weighted counts, (draw, cell), and totals, (draw, cell, outcome)."""

    counts: Floats
    totals: Floats

    @classmethod
    def of(cls, posterior: Posterior, sums: Floats) -> CellErrors:
        """Converts errors of the standardised sums, (draw, cell, sum)."""
        levels = posterior.prior.levels
        counts = levels.weight * sums[..., 0]
        totals = (
            outcome.mean * counts + levels.weight * outcome.unit * sums[..., k]
            for k, outcome in enumerate(levels.outcomes, start=1)
        )
        return cls(counts, np.stack(list(totals), axis=-1))


def by_sample(posterior: Posterior, draws: int, rng: np.random.Generator) -> CellErrors:
    """Errors of estimates by the sample of records, given the population's means."""
    prior = posterior.prior
    values, vectors = np.linalg.eigh(prior.sampling)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    errors = np.empty((draws, len(prior.workload), prior.sums))
    for number in range(draws):
        varied = np.einsum("cij,cj->ci", root, rng.standard_normal((len(root), prior.sums)))
        errors[number] = _answer(posterior, posterior.measured.of(varied))
    return CellErrors.of(posterior, errors)


def by_other(posterior: Posterior, draws: int, rng: np.random.Generator, laplace: bool) -> CellErrors:
    """Errors of estimates by noise, Laplace or Gaussian, by the reference, and by drift since."""
    prior, cells = posterior.prior, len(posterior.prior.workload)
    terms, deviation = prior.terms.matrix, np.sqrt(posterior.noise)
    errors = np.empty((draws, cells, prior.sums))
    for number in range(draws):
        d = rng.standard_normal((cells, len(prior.tails))) * np.sqrt(prior.alone)
        for k, (level, drift) in enumerate(zip(prior.levels.errors, posterior.drift, strict=True)):
            d[:, k] += level.shared * (terms @ (level.root @ rng.standard_normal(terms.shape[1])))
            d[:, k] += terms @ (prior.sizes(drift) * rng.standard_normal(terms.shape[1]))
        truth = np.einsum("cij,cj->ci", prior.sloped, d)
        noise = deviation * (
            rng.laplace(0.0, np.sqrt(0.5), len(deviation)) if laplace else rng.standard_normal(len(deviation))
        )
        answered = _answer(posterior, posterior.measured.of(truth) + noise)
        for k, (tail, drift) in enumerate(zip(prior.tails, prior.limits.tail_drift.T, strict=True)):
            beyond = rng.standard_normal(cells) * np.sqrt(tail.alone + drift**2)
            beyond += tail.shared * (terms @ (tail.root @ rng.standard_normal(terms.shape[1])))
            truth[:, k] += prior.workload.count * (beyond + drift * (terms @ rng.standard_normal(terms.shape[1])))
        errors[number] = answered - truth
    return CellErrors.of(posterior, errors)


def _answer(posterior: Posterior, moved: Floats) -> Floats:
    """Changes of estimated sums, (cell, sum), if measurements change by `moved`, (row,)."""
    prior = posterior.prior
    return posterior.estimated(posterior.constant + posterior.measured.of(prior.mean) + moved) - prior.mean
