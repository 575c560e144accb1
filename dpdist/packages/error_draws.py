"""For `table_package.post`: draws errors of a package's base cells, by the sample and by all other causes.

An estimate is G x. Records vary by s about their cells' means, so G M s is the estimate's error by the sample. Errors
of levels, drift d, tails t and noise ν give G (M S d + ν) − S d − t. The two parts are independent, and add up to the
error about the population's sums (docs/methods.md, §9c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.linear import symmetric_root
from dpdist.packages.posterior import Posterior
from dpdist.packages.prior import Drift, Prior


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


AT_ONCE = 16
"""Draws that are estimated together."""


def by_sample(posterior: Posterior, draws: int, rng: np.random.Generator) -> CellErrors:
    """Errors of estimates by the sample of records, given the population's means and numbers of records."""
    prior = posterior.prior
    root = symmetric_root(prior.workload.count[:, None, None] * prior.within)

    def drawn(few: int) -> Floats:
        return posterior.answers(np.array([posterior.measured.of(sampled(root, rng)) for _ in range(few)]))

    return _in_batches(posterior, draws, drawn)


def by_other(posterior: Posterior, draws: int, rng: np.random.Generator, laplace: bool) -> CellErrors:
    """Errors of estimates by noise, Laplace or Gaussian, by the reference, and by drift since."""
    prior, deviation = posterior.prior, np.sqrt(posterior.noise)

    def drawn(few: int) -> Floats:
        moved, truths = [], []
        for _ in range(few):
            truth = np.einsum("cij,cj->ci", prior.sloped, sum(deviated(prior, posterior.drift, rng)))
            noise = deviation * (
                rng.laplace(0.0, np.sqrt(0.5), len(deviation)) if laplace else rng.standard_normal(len(deviation))
            )
            moved.append(posterior.measured.of(truth) + noise)
            truth[:, : len(prior.tails)] += prior.workload.count[:, None] * sum(beyond(prior, rng))
            truths.append(truth)
        return np.asarray(posterior.answers(np.array(moved)) - np.array(truths))

    return _in_batches(posterior, draws, drawn)


def _in_batches(posterior: Posterior, draws: int, drawn: Callable[[int], Floats]) -> CellErrors:
    """Errors from draws of the sums' errors, (draw, cell, sum), some at a time."""
    number = posterior.draws(draws)
    made = [CellErrors.of(posterior, drawn(min(AT_ONCE, number - start))) for start in range(0, number, AT_ONCE)]
    return CellErrors(*map(np.concatenate, zip(*made, strict=True)))


def sampled(root: Floats, rng: np.random.Generator) -> Floats:
    """A draw of the sums by the sample, (cell, sum)."""
    return np.asarray(np.einsum("cij,cj->ci", root, rng.standard_normal(root.shape[:2])))


def deviated(prior: Prior, drift: Drift, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws of the levels' deviations by the reference's errors, and by drift since, (cell, level) each."""
    terms = prior.terms.nested
    d = rng.standard_normal(prior.alone.shape) * np.sqrt(prior.alone)
    drifted = np.empty_like(d)
    for k, (level, size) in enumerate(zip(prior.levels.errors, drift, strict=True)):
        d[:, k] += level.shared * (terms @ level.terms.drawn(rng))
        drifted[:, k] = terms @ (prior.sizes(size) * rng.standard_normal(terms.identified.shape[1]))
    return d, drifted


def beyond(prior: Prior, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws of a record's e and e r beyond the limits, by the reference's errors, and by drift, (cell, level) each."""
    terms, whole, drifted = prior.terms.nested, list[Floats](), list[Floats]()
    for tail, drift in zip(prior.tails, prior.tail_drift.T, strict=True):
        alone = rng.standard_normal(len(drift)) * np.sqrt(tail.alone + drift**2)
        whole.append(alone + tail.shared * (terms @ tail.terms.drawn(rng)))
        drifted.append(drift * (terms @ rng.standard_normal(terms.identified.shape[1])))
    if prior.hidden:
        drifted[0] += terms @ (prior.hidden_sizes * rng.standard_normal(terms.identified.shape[1]))
    return np.column_stack(whole), np.column_stack(drifted)
