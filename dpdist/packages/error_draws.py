"""For `table_package.post`: draws errors of a package's base cells, by the sample and by all other causes.

An estimate is G x. Records vary by s about their cells' means, so G M s is the estimate's error by the sample. Errors
of levels, drift d, tails t and noise ν give G (M S d + ν) − S d − t. The two parts are independent, and add up to the
error about the population's sums (docs/methods.md, §9c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.progress import steps
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


class Draw(NamedTuple):
    """Standard deviations times normal draws: what cells have alone, (cell, level), and what they share, (term, column)."""

    alone: Floats
    terms: Floats


AT_ONCE = 16
"""Draws that are estimated together."""


def by_sample(posterior: Posterior, draws: int, rng: np.random.Generator) -> CellErrors:
    """Errors of estimates by the sample of records, given the population's means and numbers of records."""
    prior = posterior.prior
    root = symmetric_root(prior.workload.count[:, None, None] * prior.within)

    def drawn(few: int) -> Floats:
        return posterior.answers(posterior.measured.of_draws(np.array([sampled(root, rng) for _ in range(few)])))

    return _in_batches(posterior, draws, drawn)


def by_other(posterior: Posterior, draws: int, rng: np.random.Generator, laplace: bool) -> CellErrors:
    """Errors of estimates by noise, Laplace or Gaussian, by the reference, and by drift since."""
    prior, deviation = posterior.prior, np.sqrt(posterior.noise)

    def drawn(few: int) -> Floats:
        deviating, noises, hiding = list[Draw](), list[Floats](), list[Draw]()
        for _ in range(few):
            deviating.append(deviations_drawn(prior, posterior.drift, rng))
            noises.append(
                deviation
                * (rng.laplace(0.0, np.sqrt(0.5), len(deviation)) if laplace else rng.standard_normal(len(deviation)))
            )
            hiding.append(beyond_drawn(prior, rng))
        by_errors, by_drift = deviated(prior, deviating)
        truths = np.array([np.einsum("cij,cj->ci", prior.sloped, one) for one in by_errors + by_drift])
        moved = posterior.measured.of_draws(truths) + np.array(noises)
        truths[..., : len(prior.tails)] += prior.workload.count[:, None] * sum(beyond(prior, hiding))
        return np.asarray(posterior.answers(moved) - truths)

    return _in_batches(posterior, draws, drawn)


def _in_batches(posterior: Posterior, draws: int, drawn: Callable[[int], Floats]) -> CellErrors:
    """Errors from draws of the sums' errors, (draw, cell, sum), some at a time."""
    number = posterior.draws(draws)
    starts = range(0, number, AT_ONCE)
    made = [CellErrors.of(posterior, drawn(min(AT_ONCE, number - start))) for start in steps(starts)]
    return CellErrors(*map(np.concatenate, zip(*made, strict=True)))


def sampled(root: Floats, rng: np.random.Generator) -> Floats:
    """A draw of the sums by the sample, (cell, sum)."""
    return np.asarray(np.einsum("cij,cj->ci", root, rng.standard_normal(root.shape[:2])))


def deviations_drawn(prior: Prior, drift: Drift, rng: np.random.Generator) -> Draw:
    """A draw of the levels' deviations, before terms are added up to cells: by level, errors and drift of terms."""
    alone, terms = rng.standard_normal(prior.alone.shape) * np.sqrt(prior.alone), list[Floats]()
    for level, size in zip(prior.levels.errors, drift, strict=True):
        terms += [level.terms.drawn(rng), prior.sizes(size) * rng.standard_normal(len(prior.terms.classes))]
    return Draw(alone, np.column_stack(terms))


def deviated(prior: Prior, draws: Sequence[Draw]) -> tuple[Floats, Floats]:
    """Levels' deviations by the reference's errors, and by drift since, (draw, cell, level) each."""
    by_errors, by_drift = _of_cells(prior, draws, len(prior.levels.errors))
    shared = np.column_stack([level.shared for level in prior.levels.errors])
    return np.array([one.alone for one in draws]) + shared * by_errors, by_drift


def beyond_drawn(prior: Prior, rng: np.random.Generator) -> Draw:
    """A draw of a record's e and e r beyond the limits: by tail, errors and drift of terms, then what all cells hide."""
    alone, terms, number = list[Floats](), list[Floats](), len(prior.terms.classes)
    for tail, drift in zip(prior.tails, prior.tail_drift.T, strict=True):
        alone.append(rng.standard_normal(len(drift)) * np.sqrt(tail.alone + drift**2))
        terms += [tail.terms.drawn(rng), rng.standard_normal(number)]
    if prior.hidden:
        terms.append(prior.hidden_sizes * rng.standard_normal(number))
    return Draw(np.column_stack(alone), np.column_stack(terms))


def beyond(prior: Prior, draws: Sequence[Draw]) -> tuple[Floats, Floats]:
    """A record's e and e r beyond the limits by the reference's errors, and by drift since, (draw, cell, level) each."""
    by_errors, by_drift = _of_cells(prior, draws, len(prior.tails))
    drifted = prior.tail_drift * by_drift
    if prior.hidden:
        drifted[..., 0] += (prior.terms.nested @ np.column_stack([one.terms[:, -1] for one in draws])).T
    shared = np.column_stack([tail.shared for tail in prior.tails])
    return np.array([one.alone for one in draws]) + shared * by_errors, drifted


def _of_cells(prior: Prior, draws: Sequence[Draw], levels: int) -> tuple[Floats, Floats]:
    """Errors and drift of terms, added up to cells in one product, (draw, cell, level) each."""
    several = prior.terms.nested @ np.hstack([one.terms[:, : 2 * levels] for one in draws])
    pairs = several.reshape(len(several), len(draws), levels, 2)
    by_errors, by_drift = (np.ascontiguousarray(np.moveaxis(pairs[..., which], 1, 0)) for which in (0, 1))
    return by_errors, by_drift
