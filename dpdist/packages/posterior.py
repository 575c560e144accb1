"""For `packages.estimates` and `package`: the posterior of base cells, given the reference and all noisy measurements.

Measurements are M z plus noise, with z the base cells' sums and m their prior means (`packages.prior`).
Published sums are P z. Noisy measurements also teach the size of drift. So

    E = P m + C V⁻¹ (x − M m),   Cov = P D Pᵀ − C V⁻¹ Cᵀ,   C = P D Mᵀ,   V = M D Mᵀ + R,

with D block-diagonal plus what cells share. No matrix of base cells by base cells is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.progress import steps
from dpdist.core.records import Floats
from dpdist.packages.prior import Drift, Prior
from dpdist.packages.sums import Functions, Sums, crossed, published_sums, variances
from dpdist.packages.workload import WithoutCaches

MOST_SUMS = 6_000
"""Largest number of measured sums whose covariance is dense."""
MOST_KEPT = 10_000_000
"""Covariances of published sums with measured ones that are kept for other noise."""
LINEARISATIONS = 3
"""Number of times that clipped sums are linearised again, at the latest estimated deviations."""
LARGEST_DEVIATION = 0.9
"""Largest deviation at which the sums are linearised."""
LARGEST_OF_MIXED = 9.0
"""The same of weights where shapes mix cells: a level may be tenfold, as it may be a tenth."""
LARGEST_SIZE = 20.0
"""The same of a number of records, in which sums are linear."""
LEAST_GROWTH = 1e-3
"""Smallest number of the file's records, relative to the reference's, that is assumed."""
CLEARLY = 3.0
"""Standard errors beyond which weights are taken to have changed, or to add up to less than the reference's."""


class Errors(NamedTuple):
    """Variances of published figures about the file's own, (row,) each.

    `file`: of the estimate. `prior`: of the reference alone, without drift.
    """

    file: Floats
    prior: Floats


class BeforeData(NamedTuple):
    """Covariances of published sums with the measurements, (row, measurement), and these sums' variances, (row,) each:
    about the file's sums, and those of the reference alone without drift."""

    c: Floats
    whole: Floats
    still: Floats


@dataclass(frozen=True)
class Posterior(WithoutCaches):
    """A package's posterior under measurements with noise of given variances (row,), in records."""

    prior: Prior
    measured: Sums
    constant: Floats
    noise: Floats
    drift: Drift
    growth: float = 1.0
    """The file's number of records over the expected one, where it is secret."""

    @cached_property
    def without_noise(self) -> Floats:
        """The measurements' covariance before noise, (measurement, measurement)."""
        whole = crossed(self.measured, self.measured, self.prior.block())
        for root in self._parts_of_measured:
            if (moving := root.any(axis=1)).all():
                whole += root @ root.T
            else:  # sums of weights do not move with outcomes
                rows, of_rows = np.flatnonzero(moving), root[moving]
                whole[np.ix_(rows, rows)] += of_rows @ of_rows.T
        return whole

    def under(self, noise: Floats) -> Self:
        """The posterior of the same measurements under other noise, (row,)."""
        other = replace(self, noise=noise)
        other.__dict__["without_noise"] = self.without_noise  # the noise does not change it
        for name in {"_of_measured", "_kept"} & self.__dict__.keys():
            other.__dict__[name] = self.__dict__[name]
        return other

    def _shared(self, sums: Functions) -> Floats:
        return self.prior.shared(self.prior.terms_of(sums), self.drift)

    @cached_property
    def _of_measured(self) -> Floats:
        return self._shared(self.measured)

    @property
    def _parts_of_measured(self) -> Iterable[Floats]:
        """Roots of the measurements' covariance by shared terms, (measurement, term) each."""
        return np.split(self._of_measured, 2 * len(self.drift), axis=1)

    @cached_property
    def _factor(self) -> tuple[Floats, bool]:
        return factored(self.without_noise, self.noise)

    def solver(self, x: Floats) -> Floats:
        """V⁻¹ x."""
        return np.asarray(scipy.linalg.cho_solve(self._factor, x))

    def covariance(self, sums: Functions) -> Floats:
        """C: covariances of published sums with the measurements, (row, measurement)."""
        return self._covariance(sums, self._shared(sums), self._of_measured)

    def _covariance(self, sums: Functions, shared: Floats, of_measured: Floats) -> Floats:
        return self._crossed(sums, self.prior.block()) + shared @ of_measured.T

    def _crossed(self, sums: Functions, block: Floats) -> Floats:
        """Covariances of functions with the measurements by a block for every cell, (row, measurement)."""
        (whole,) = sums.applied(lambda few: [crossed(few, self.measured, block)])
        return whole

    @cached_property
    def _kept(self) -> dict[int, tuple[Functions, list[BeforeData]]]:
        """What `_before_data` has made, by the functions' identity."""
        return {}

    def _before_data(self, sums: Functions) -> Iterable[BeforeData]:
        """Covariances of published sums in batches. If they take little room, they are kept: noise does not change them."""
        made = (self._made_before_data(few, self._of_measured) for few in sums.batches())
        if len(sums) * len(self.measured) > MOST_KEPT:
            return made
        if id(sums) not in self._kept:
            self._kept[id(sums)] = sums, list(made)
        return self._kept[id(sums)][1]

    def _made_before_data(self, sums: Functions, of_measured: Floats) -> BeforeData:
        shared, whole, still = self.prior.unmeasured(sums, self.drift)
        return BeforeData(self._covariance(sums, shared, of_measured), whole, still)

    def squared(self, sums: Functions, weight: Floats) -> Floats:
        """Cᵀ diag(weight) C, (measurement, measurement), without storing C of many sums."""
        whole, start = np.zeros((len(self.measured), len(self.measured))), 0
        for c, *_ in self._before_data(sums):
            whole += (c.T * weight[start : start + len(c)]) @ c
            start += len(c)
        return whole

    def slopes(self, sums: Functions, weight: Floats) -> Callable[[Floats], Floats]:
        """Derivatives of `risk` by every noise variance, (row,), as a function of these variances."""
        squared, fixed = self.squared(sums, weight), self.without_noise

        def under(noise: Floats) -> Floats:
            factor = factored(fixed, noise)
            return np.diag(scipy.linalg.cho_solve(factor, scipy.linalg.cho_solve(factor, squared).T))

        return under

    def risk(self, sums: Functions, weight: Floats) -> float:
        """The weighted sum of the estimates' variances about the file's sums."""
        return float(weight @ self.errors(sums).file)

    def errors(self, sums: Functions) -> Errors:
        """Errors of estimates of published sums; no data are needed."""
        made = [(one.whole - (self.solver(one.c.T).T * one.c).sum(axis=1), one.still) for one in self._before_data(sums)]
        file, prior = map(np.concatenate, zip(*made, strict=True))
        return Errors(np.maximum(file, 0.0), prior)

    def about_population(self, sums: Functions) -> Floats:
        """Variances of estimates of published sums about the population's, (row,)."""
        of_measured = self._of_measured
        return np.concatenate([self._about_population(few, of_measured) for few in sums.batches()])

    def _about_population(self, sums: Functions, of_measured: Floats) -> Floats:
        prior, shared, whole = self.prior, self._shared(sums), sums.whole
        c, (alone, roots) = self._covariance(sums, shared, of_measured), prior.tail_roots(sums, whole)
        gain = self.solver(c.T).T
        of_means = variances(whole, prior.population()) + alone + (shared**2).sum(axis=1)
        of_means += sum((root**2).sum(axis=1) for pair in roots for root in pair)
        sampled = (gain * self._crossed(sums, prior.sampling)).sum(axis=1)
        return np.asarray(np.maximum(of_means - (gain * c).sum(axis=1) + 2.0 * sampled, 0.0))

    def residual(self, x: Floats) -> Floats:
        return np.asarray(x - self.constant - self.measured.of(self.prior.mean))

    def estimated(self, x: Floats) -> Floats:
        """Posterior means of the base cells' sums, (cell, sum), from noisy measurements in records, (row,)."""
        weighed = self.solver(self.residual(x))
        by_sampling = np.einsum("cij,cj->ci", self.prior.sampling, self.measured.back(weighed))
        by_level = np.einsum("cij,cj->ci", self.prior.sloped, self.prior.pulled(self.measured, self.drift, weighed))
        return np.asarray(self.prior.mean + by_sampling + by_level)

    def draws(self, wanted: int) -> int:
        """The number of draws of errors that are made where so many are wanted."""
        return wanted

    def answers(self, moved: Floats) -> Floats:
        """Changes of estimated sums, (draw, cell, sum), if measurements change by (draw, row)."""
        mean = self.prior.mean
        still = self.constant + self.measured.of(mean)
        return np.array([self.estimated(still + one) - mean for one in moved])

    def drifting(self, x: Floats) -> tuple[Floats, Drifting]:
        """Measurements less their prior means, and their covariance for every drift."""
        return self.residual(x), Drifting.of(self)

    def deviations(self, x: Floats) -> Floats:
        """Posterior means of the deviations of the base cells' levels, (cell, level)."""
        return self.prior.pulled(self.measured, self.drift, self.solver(self.residual(x)))


def factored(without_noise: Floats, noise: Floats) -> tuple[Floats, bool]:
    """The factor of a covariance of measurements with noise variances, (row,), without a further matrix of its size."""
    whole = without_noise.T.copy(order="F")
    whole[np.diag_indices(len(whole))] += noise
    return scipy.linalg.cho_factor(whole, lower=True, overwrite_a=True)


def learned(posterior: Posterior, x: Floats) -> Posterior:
    """The posterior with drift learned from noisy measurements, linearised at the deviations that these show."""
    mixed = posterior.prior.limits.mixed
    of_means, of_sizes = len(posterior.prior.tails) - 1, int(posterior.prior.workload.secret)
    of_weight = LARGEST_OF_MIXED if mixed else LARGEST_DEVIATION
    most = [of_weight, *[LARGEST_DEVIATION] * of_means, *[LARGEST_SIZE] * of_sizes]
    drifted = _drifted(resized(posterior, growth(posterior, x)), x)
    for _ in steps(range(2 * LINEARISATIONS if mixed else LINEARISATIONS)):
        deviations = np.clip(drifted.deviations(x), -LARGEST_DEVIATION, most)
        drifted = replace(drifted, prior=replace(drifted.prior, linearised_at=deviations))
    return drifted


def with_hidden(posterior: Posterior) -> Posterior:
    """The posterior with an error of what weights may hide beyond the limits since they have spread.

    No noisy sum sets smaller weights apart from weights that spread beyond the limits. But weights add up to a
    population. If they have changed since the reference, and add up to less than its weights do, the deficit is taken
    as the standard error of what is hidden, less what chance explains. Not more than the change is taken: a reference
    may have more records of the same weights.
    """
    prior = posterior.prior
    if prior.represented is None:
        return posterior
    weight = prior.workload.count * prior.levels.weight
    planned, count = float(weight.sum()), float(weight @ (1.0 + prior.linearised_at[:, 0]))
    deficit = min(prior.represented.size - count, abs(count - planned))
    if deficit <= CLEARLY * prior.represented.error:
        return posterior
    every = np.ones((1, len(prior.workload)))
    of_all = published_sums(scipy.sparse.csr_array(every), prior.levels)[0]
    squares = posterior.about_population(of_all)[0] + posterior.errors(of_all).prior[0] + prior.represented.error**2
    error = float(np.sqrt(squares))
    hidden = max(deficit**2 - (CLEARLY * error) ** 2, 0.0) ** 0.5 / planned
    return replace(posterior, prior=replace(prior, hidden=hidden)) if hidden else posterior


def growth(posterior: Posterior, x: Floats) -> float:
    """The file's number of records over the expected one, from noisy measurements; 1 if it is public."""
    if not posterior.prior.workload.secret:
        return 1.0
    expected = posterior.measured.of(posterior.prior.mean)
    spread = posterior.noise + variances(posterior.measured, posterior.prior.sampling)
    return max(float(expected @ (x / spread) / (expected @ (expected / spread))), LEAST_GROWTH)


def resized(posterior: Posterior, factor: float) -> Posterior:
    """The posterior with expected numbers of records times a factor."""
    if factor == 1.0:
        return posterior
    prior = posterior.prior
    workload = replace(prior.workload, count=factor * prior.workload.count)
    return replace(posterior, prior=replace(prior, workload=workload), growth=factor)


def _drifted(posterior: Posterior, x: Floats) -> Posterior:
    """The median of the drift given the noisy measurements, by turns for weights and every outcome."""
    prior = posterior.prior.drifting
    residual, covariance = posterior.drifting(x)

    def likelihood(drift: Drift) -> float:
        quadratic, log_det = covariance.forms(residual, drift)
        a_priori = sum((np.log(size / prior.planned) / prior.log_sd) ** 2 for size in drift if size)
        return float(-0.5 * (quadratic + log_det + a_priori))

    best, tried = posterior.prior.planned, np.array(prior.tried)
    for _ in range(2):
        for k in np.flatnonzero(best).tolist():
            logs = np.array([likelihood((*best[:k], float(size), *best[k + 1 :])) for size in tried])
            below = np.cumsum(np.exp(logs - logs.max()))
            best = (*best[:k], float(tried[np.searchsorted(below, below[-1] / 2.0)]), *best[k + 1 :])
    return replace(posterior, drift=best)


@dataclass(frozen=True)
class Drifting:
    """The measurements' covariance V for many drifts: the part without drift, and the part for a drift of 1."""

    fixed: Floats
    parts: tuple[Floats, ...]

    @classmethod
    def of(cls, posterior: Posterior) -> Drifting:
        """The terms of a posterior's V."""
        prior, measured = posterior.prior, posterior.measured
        fixed = crossed(measured, measured, prior.block()) + np.diag(posterior.noise)
        parts = []
        for errors, moved in prior.terms_of(measured):
            fixed += errors @ errors.T
            scaled = moved * prior.sizes(1.0)
            parts.append(scaled @ scaled.T)
        return cls(fixed, tuple(parts))

    def forms(self, x: Floats, drift: Drift) -> tuple[float, float]:
        """x' V⁻¹ x, and log det V, under a drift."""
        whole = self.fixed + sum(size**2 * part for size, part in zip(drift, self.parts, strict=True))
        factor = scipy.linalg.cho_factor(whole, lower=True)
        return float(x @ scipy.linalg.cho_solve(factor, x)), float(2.0 * np.log(np.diag(factor[0])).sum())
