"""The posterior of a package with more measured sums, or shared terms, than a dense matrix of them can hold.

It is that of `posterior`, with terms whose variances are those a priori. What the reference says of them is observed, too:
a residual of every base cell with records, in units of its standard deviation, which is 0 as levels follow from it.
Residuals and measured sums are the observations o. They have a covariance V, and base cells' sums have the posterior mean
E + C V⁻¹ (o − E o). Products with V need sparse matrices alone, so that memory grows with base cells times tables. Terms
overlap, so that a system in terms takes many times the steps. Variances are means over draws and probes, from fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.estimation.linear import symmetric_root
from dpdist.packages.conjugate import OF_ESTIMATES, OF_VARIANCES, ROUGHLY, conjugate_gradients
from dpdist.packages.error_draws import AT_ONCE, Draw, beyond, beyond_drawn, deviated, deviations_drawn, sampled
from dpdist.packages.levels import Deviations
from dpdist.packages.nested import NestedTerms
from dpdist.packages.posterior import MOST_SUMS, Drifting, Errors, Posterior
from dpdist.packages.prior import SINCE_REFERENCE, Drift, Prior
from dpdist.packages.sums import Functions, Sums, crossed
from dpdist.packages.workload import Workload, indicator

PROBES = 16
"""Random signs by which sums of variances are estimated: a sum over m like figures errs by about √(2/(16 m)) of it."""
DRAWN = 100
"""Draws of errors by which variances are estimated: a standard error errs by 1/√(2 · 100), 7 % of it."""
MOST_CELLS, DRAWN_OF_MORE = 100_000, 50
"""Above so many base cells there are fewer draws: a standard error errs by 10 % of it."""
MOST_EXACT = 1_000
"""Largest number of measured sums whose predicted errors are exact: these take more time than all else."""
SUMS_OF_DRIFT = 300
"""About so many sums, of neighbouring measured sums each, show the drift: a large table's rows are added up."""
OF_DRIFT = 1e-4
"""Residual of systems for the likelihood of drifts, of which each is about twice the one before."""
LEAST_DRIFT = 1e-9
"""Smallest standard deviation of a term's drift that has a precision."""
SEED = 20_261


def posterior_of(prior: Prior, measured: Sums, constant: Floats, noise: Floats, drift: Drift) -> Posterior:
    """The posterior in the form that its size needs. Raises `ValueError` for a large one without a reference."""
    large = len(measured) > MOST_SUMS or prior.terms.large
    if large and prior.drifting != SINCE_REFERENCE:
        fault = f"{len(measured):,} sums to measure without a reference"
        raise ValueError(
            f"{fault}: it may have {MOST_SUMS:,}, so coarsen columns of its largest tables, or give a reference"
        )
    if large and prior.workload.secret:
        fault = f"{len(measured):,} sums to measure where numbers of records are secret"
        remedy = f"it may have {MOST_SUMS:,}, so coarsen columns of its largest tables, or take adjacency: substitution"
        raise ValueError(f"{fault}: {remedy}")
    drawn = len(measured) > MOST_EXACT and prior.drifting == SINCE_REFERENCE and not prior.workload.secret
    kind = LargePosterior if large or (drawn and prior.terms.sparse) else FactoredPosterior if drawn else Posterior
    return kind(prior, measured, constant, noise, drift)


BYTES_OF_CELL = 20_000
"""Memory for a base cell: draws of its errors, and batches of systems."""
BYTES_OF_CELL_IN_TABLE = 260
"""Memory for a base cell in a measured table: what it adds to measured sums and to terms, twice each."""


def refuse_beyond_memory(workload: Workload, free: int) -> None:
    """Raises `ValueError` for a package that needs more than the free bytes, with the largest that fits.

    Where numbers of records are secret, the text has public facts alone: free memory may tell of the file.
    """
    tables, cells = len(workload.measured), len(workload)
    if (needed := projected_bytes(workload)) <= free:
        return
    if workload.secret:
        raise ValueError(
            f"a package of {cells:,} base cells in {tables:,} measured tables needs about {needed / 1e9:.1f} GB of memory, "
            "more than is free. So drop or coarsen columns, or take a machine with more memory"
        )
    fitting = int(cells * free / needed)
    fewer = int((free / cells - BYTES_OF_CELL) / BYTES_OF_CELL_IN_TABLE)
    or_tables = f", or {fewer:,} such tables with these base cells" if fewer > 0 else ""
    raise ValueError(
        f"a package of {cells:,} base cells in {tables:,} measured tables needs about {needed / 1e9:.1f} GB of memory, and "
        f"{free / 1e9:.1f} are free: {fitting:,} base cells in these tables fit{or_tables}. So drop or coarsen columns, or "
        "take a machine with more memory"
    )


def projected_bytes(workload: Workload) -> int:
    """Bytes that a large package needs at most."""
    return len(workload) * (BYTES_OF_CELL + BYTES_OF_CELL_IN_TABLE * len(workload.measured))


class LargePosterior(Posterior):
    """A posterior without dense matrices."""

    @property
    def _levels(self) -> tuple[tuple[int, Deviations, Floats], ...]:
        """For every level: number, the reference's errors, and standard deviations of the terms' drift."""
        pairs = zip(self.prior.levels.errors, self.drift, strict=True)
        return tuple((k, level, self.prior.sizes(size)) for k, (level, size) in enumerate(pairs))

    @cached_property
    def _parts(self) -> tuple[tuple[int, Any, Any], ...]:
        """The sums that are measured: number, the measured functions of them, and these transposed."""
        parts = ((k, scipy.sparse.csr_array(part)) for k, part in enumerate(self.measured.parts) if part.nnz)
        return tuple((k, part, scipy.sparse.csr_array(part.T)) for k, part in parts)

    @cached_property
    def _numbers(self) -> list[int]:
        """Numbers of the sums that are measured."""
        return [k for k, *_ in self._parts]

    @cached_property
    def _alone(self) -> Floats:
        """Covariances of all sums with the measured ones by what each base cell has alone, (cell, sum, measured sum)."""
        return np.ascontiguousarray(self.prior.block()[:, :, self._numbers])

    @cached_property
    def _factors(self) -> tuple[tuple[tuple[Floats | None, ...], ...], tuple[tuple[Floats | None, ...], ...]]:
        """Factors of the measured sums, (cell, 1) each: for every one its covariances, and for every level its slopes.

        None stands for factors that are all 0.
        """
        covariances = np.moveaxis(self._alone[:, self._numbers], 0, 2)[..., None]
        slopes = np.moveaxis(self.prior.sloped[:, self._numbers], 0, 2)[..., None].swapaxes(0, 1)
        by_sum, by_level = (
            tuple(tuple(np.ascontiguousarray(one) if one.any() else None for one in row) for row in of_all)
            for of_all in (covariances, slopes)
        )
        return by_sum, by_level

    @cached_property
    def _root_weights(self) -> tuple[Floats, ...]:
        """Roots of the residuals' precisions by level, (cross, 1) each: 0 in crosses without a reference record."""
        return tuple(np.sqrt(level.terms.weight)[:, None] for _, level, _ in self._levels)

    @cached_property
    def _edges(self) -> tuple[tuple[slice, ...], slice]:
        """The observations: the reference's residuals by level, (cross,) each, then the measured sums, (row,)."""
        crosses, levels = len(self._root_weights[0]), len(self.drift)
        residuals = tuple(slice(k * crosses, (k + 1) * crosses) for k in range(levels))
        return residuals, slice(levels * crosses, levels * crosses + len(self.noise))

    @property
    def _terms(self) -> NestedTerms:
        """The terms of all crosses: the file's base cells, then those of the reference alone."""
        return self.prior.learned[0].nested

    def _by_terms(self, terms: NestedTerms, errors: Floats, drift: Floats, residuals: Floats | None = None) -> Floats:
        """Values of base cells, (cell, side) each, and of all crosses' residuals, added up by terms, (term, 2 sides)."""
        cells, sides = errors.shape
        whole = np.zeros((terms.finest.shape[0], 2 * sides))
        if residuals is not None:
            whole[:, :sides] = residuals
        whole[:cells, :sides] += errors
        whole[:cells, sides:] = drift
        return terms.back(whole)

    def _deviated(self, level: Deviations, errors: Floats, drift: Floats) -> Floats:
        """Deviations of base cells by errors and drift, (cross, side) each: (cell, side)."""
        cells = len(level.shared)
        return np.asarray(level.shared[:, None] * errors[:cells] + drift[:cells])

    def _turned(self, y: Floats) -> list[Floats]:
        """M' of observations' measured part, (cell, side) for every measured sum."""
        return [part @ y[self._edges[1]] for _, _, part in self._parts]

    def _pulled(self, terms: NestedTerms, y: Floats, back: Sequence[Floats]) -> list[Floats]:
        """By level, the observations' transposed slopes by errors of terms, then by drift, (term, 2 sides)."""
        made, of_levels = [], zip(self._edges[0], self._levels, self._root_weights, self._factors[1], strict=True)
        for residuals, (_, level, _), root, slopes in of_levels:
            pull = _combined(slopes, back)
            made.append(self._by_terms(terms, level.shared[:, None] * pull, pull, root * y[residuals]))
        return made

    def _moved(self, terms: NestedTerms, values: Sequence[Floats], sums: Sequence[Floats]) -> Floats:
        """Observations by values of the terms, as `_pulled` has them, and by base cells' sums, to which it adds."""
        every, measured = self._edges
        image = np.empty((measured.stop, values[0].shape[1] // 2))
        for residuals, (k, level, _), root, of_terms in zip(every, self._levels, self._root_weights, values, strict=True):
            errors, drift = np.split(terms @ of_terms, 2, axis=1)
            image[residuals] = root * errors
            moved = self._deviated(level, errors, drift)
            for of_sum, slope in zip(sums, self._factors[1][k], strict=True):
                if slope is not None:
                    of_sum += slope * moved
        image[measured] = sum(part @ of_sum for (_, part, _), of_sum in zip(self._parts, sums, strict=True))
        return image

    def _scaled(self, pulled: Sequence[Floats]) -> list[Floats]:
        """Values of terms times their variances a priori."""
        sides = pulled[0].shape[1] // 2
        return [
            np.hstack([values[:, :sides] / level.terms.prior[:, None], values[:, sides:] * sizes[:, None] ** 2])
            for values, (_, level, sizes) in zip(pulled, self._levels, strict=True)
        ]

    def _times(self, y: Floats) -> Floats:
        """The observations' covariance V times (observation, side)."""
        back, terms, (residuals, measured) = self._turned(y), self._terms, self._edges
        sums = [_combined(factors, back) for factors in self._factors[0]]
        image = self._moved(terms, self._scaled(self._pulled(terms, y, back)), sums)
        image[: residuals[-1].stop] += y[: residuals[-1].stop]
        image[measured] += self.noise[:, None] * y[measured]
        return image

    @cached_property
    def _diagonal(self) -> Floats:
        """Variances of the observations without coarse terms, (observation, 1): of fine ones, by each base cell alone."""
        fine = np.ones(len(self.prior.terms.classes))
        fine[self.prior.learned[0].coarse] = 0.0
        terms, numbers = self._terms, self._numbers
        block, variances = self._alone[:, numbers].copy(), []
        for k, level, sizes in self._levels:
            of_errors, of_drift = terms @ (fine / level.terms.prior), terms @ (fine * sizes**2)
            variances.append(1.0 + level.terms.weight * of_errors)
            slope = self.prior.sloped[:, numbers, k]
            shared = self._deviated(level, level.shared[:, None] * of_errors[: len(slope), None], of_drift[:, None])[:, 0]
            block += np.einsum("ci,cj,c->cij", slope, slope, shared)
        of_measured = self.noise.copy()
        for i, (_, one, _) in enumerate(self._parts):
            for j, (_, other, _) in enumerate(self._parts):
                of_measured += np.asarray(one.multiply(other) @ block[:, i, j])
        return np.concatenate([*variances, of_measured])[:, None]

    @cached_property
    def _coarse(self) -> tuple[NestedTerms, tuple[Floats, bool]]:
        """Coarse terms, and the factor of their precision given observations with the variances of `_diagonal`."""
        coarse, cells = self.prior.learned[0].coarse, len(self.prior.workload)
        terms, made, precisions = self._terms.few(coarse), [], list[Floats]()
        of_crosses = terms.matrix
        z, nothing = of_crosses[:cells], scipy.sparse.csr_array(of_crosses.shape)
        for (k, level, sizes), root in zip(self._levels, self._root_weights, strict=True):
            slopes, beside = scipy.sparse.csr_array(self.prior.by_deviation(self.measured, k)), [nothing] * len(self.drift)
            of_errors = [*beside, slopes @ scipy.sparse.diags_array(level.shared) @ z]
            of_errors[k] = scipy.sparse.diags_array(root[:, 0]) @ of_crosses
            made += [scipy.sparse.vstack(of_errors, format="csr"), scipy.sparse.vstack([*beside, slopes @ z], format="csr")]
            precisions += [level.terms.prior[coarse], 1.0 / np.maximum(sizes[coarse], LEAST_DRIFT) ** 2]
        g = scipy.sparse.hstack(made, format="csr")
        of_observations = (g.T @ (scipy.sparse.diags_array(1.0 / self._diagonal[:, 0]) @ g)).toarray()
        of_observations[np.diag_indices(len(of_observations))] += np.concatenate(precisions)
        return terms, scipy.linalg.cho_factor(of_observations, lower=True, overwrite_a=True)

    def _preconditioned(self, y: Floats) -> Floats:
        """About V⁻¹ y: with coarse terms as they are, and others as if each observation had its own."""
        made, (terms, factor) = y / self._diagonal, self._coarse
        pulled = self._pulled(terms, made, self._turned(made))
        number, sides = len(pulled[0]), y.shape[1]
        stacked = np.concatenate([part for values in pulled for part in np.split(values, 2, axis=1)])
        solved = scipy.linalg.cho_solve(factor, stacked).reshape(len(pulled), 2, number, sides)
        values = [np.hstack([errors, drift]) for errors, drift in solved]
        nothing = [np.zeros((len(self.prior.workload), sides)) for _ in self._parts]
        return np.asarray(made - self._moved(terms, values, nothing) / self._diagonal)

    def under(self, noise: Floats) -> Self:
        other = replace(self, noise=noise)
        for name in {"_parts", "_alone", "_factors", "_root_weights"} & self.__dict__.keys():
            other.__dict__[name] = self.__dict__[name]
        return other

    def _solved(self, right: Floats, tolerance: float) -> Floats:
        """V⁻¹ times (observation, side)."""
        _ = self._diagonal, self._coarse, self._factors, self._root_weights  # threads would make them again
        return conjugate_gradients(self._times, self._preconditioned, right, tolerance)

    def _weighed(self, x: Floats, tolerance: float) -> Floats:
        """V⁻¹ times the observations where the reference's residuals are as expected, and sums are (row, side) off."""
        measured = self._edges[1]
        right = np.zeros((measured.stop, x.shape[1]))
        right[measured] = x
        return self._solved(right, tolerance)

    def _deviations(self, y: Floats) -> list[Floats]:
        """Covariances of shared deviations with the observations, times (observation, side): (cell, side) by level."""
        terms = self._terms
        pairs = zip(self._levels, self._scaled(self._pulled(terms, y, self._turned(y))), strict=True)
        return [self._deviated(level, *np.split(terms @ values, 2, axis=1)) for (_, level, _), values in pairs]

    def _sums(self, y: Floats) -> Floats:
        """Covariances of all sums with the observations, times (observation, side): (cell, sum, side)."""
        whole = np.einsum("cik,kcs->cis", self._alone, np.array(self._turned(y)))
        for k, moved in enumerate(self._deviations(y)):
            whole += self.prior.sloped[:, :, k, None] * moved[:, None]
        return np.asarray(whole)

    def _observed(self, figures: Floats) -> Floats:
        """The transposed of `_sums`, of (cell, sum, side)."""
        sums = list(np.einsum("cik,cis->kcs", self._alone, figures))
        return self._moved(self._terms, self._scaled(self._pulled_figures(figures)), sums)

    def _pulled_figures(self, figures: Floats) -> list[Floats]:
        """As `_pulled`, of functions of the sums, (cell, sum, side)."""
        made = []
        for k, level, _ in self._levels:
            pull = np.einsum("ci,cis->cs", self.prior.sloped[:, :, k], figures)
            made.append(self._by_terms(self._terms, level.shared[:, None] * pull, pull))
        return made

    def estimated(self, x: Floats) -> Floats:
        return self.prior.mean + self._sums(self._weighed(self.residual(x)[:, None], OF_ESTIMATES))[..., 0]

    def deviations(self, x: Floats) -> Floats:
        y = self._weighed(self.residual(x)[:, None], OF_ESTIMATES)
        back = np.concatenate(self._turned(y), axis=1)
        alone = self.prior.alone * np.einsum("cj,cjl->cl", back, self.prior.sloped[:, self._numbers])
        return np.asarray(alone + np.concatenate(self._deviations(y), axis=1))

    @property
    def _draws(self) -> int:
        return DRAWN if len(self.prior.workload) <= MOST_CELLS else DRAWN_OF_MORE

    def draws(self, wanted: int) -> int:
        return min(wanted, self._draws)

    def answers(self, moved: Floats) -> Floats:
        return np.moveaxis(self._sums(self._weighed(np.ascontiguousarray(moved.T), OF_VARIANCES)), 2, 0)

    def _probes(self, sums: Functions, weight: Floats) -> Floats:
        """Sums by random signs of published functions times the roots of weights, (cell, 4, probe)."""
        kept, signs = np.flatnonzero(weight), np.zeros((len(sums), PROBES))
        signs[kept] = np.random.default_rng(SEED).choice([-1.0, 1.0], (len(kept), PROBES)) * np.sqrt(weight[kept])[:, None]
        return sums.turned(signs)

    def slopes(self, sums: Functions, weight: Floats) -> Callable[[Floats], Floats]:
        covered = self._observed(self._probes(sums, weight))

        def under(noise: Floats) -> Floats:
            return np.asarray((self.under(noise)._solved(covered, OF_VARIANCES)[self._edges[1]] ** 2).mean(axis=1))

        return under

    def risk(self, sums: Functions, weight: Floats) -> float:
        figures = self._probes(sums, weight)
        y = self._solved(self._observed(figures), OF_VARIANCES)
        return (self._left(figures, y) + self._beyond(figures)) / PROBES

    def _left(self, figures: Floats, y: Floats) -> float:
        """The variance of figures, (cell, sum, side), less the observations times y: its sum over sides.

        Only squares are added up, so that nothing cancels. A y that is nearly the best one leaves nearly the least.
        """
        left, (residuals, measured), back = figures.copy(), self._edges, self._turned(y)
        left[:, self._numbers] -= np.stack(back, axis=1)
        whole = float(np.einsum("cis,cij,cjs->", left, self.prior.block(), left))
        whole += float((y[: residuals[-1].stop] ** 2).sum() + self.noise @ (y[measured] ** 2).sum(axis=1))
        observed = self._pulled(self._terms, y, back)
        missed = [one - other for one, other in zip(self._pulled_figures(figures), observed, strict=True)]
        return whole + sum(float((one * other).sum()) for one, other in zip(missed, self._scaled(missed), strict=True))

    def _beyond(self, back: Floats) -> float:
        """The variance of what lies beyond the limits, of (cell, sum, side): its sum over sides."""
        whole, terms = 0.0, self.prior.terms.nested
        for k, (tail, drift) in enumerate(zip(self.prior.tails, self.prior.tail_drift.T, strict=True)):
            slope = self.prior.workload.count[:, None] * back[:, k]
            shared = terms.back(tail.shared[:, None] * slope)
            whole += float(((tail.alone + drift**2)[:, None] * slope**2).sum())
            whole += float(
                (shared * tail.terms.spread(shared, ROUGHLY)).sum() + (terms.back(drift[:, None] * slope) ** 2).sum()
            )
        return whole

    @cached_property
    def _drawn(self) -> tuple[Floats, Floats, Floats]:
        """Drawn errors of Σe and every Σer, (level, cell, draw): about the file's sums, of the reference alone about these
        without drift, and by the sample, which errors about the population's sums do not have."""
        prior, rng, root = self.prior, np.random.default_rng(SEED), symmetric_root(self.prior.sampling)
        levels = len(prior.tails)
        file, alone, sampling = (np.empty((levels, len(root), self._draws)) for _ in range(3))
        for start in range(0, self._draws, AT_ONCE):
            few, samples, noises = slice(start, min(start + AT_ONCE, self._draws)), list[Floats](), list[Floats]()
            deviating, hiding = list[Draw](), list[Draw]()
            for _ in range(few.stop - few.start):
                samples.append(sampled(root, rng))
                deviating.append(deviations_drawn(prior, self.drift, rng))
                hiding.append(beyond_drawn(prior, rng))
                noises.append(np.sqrt(self.noise) * rng.standard_normal(len(self.noise)))
            sample, (d, drift) = np.array(samples), deviated(prior, deviating)
            still, drifted = (prior.workload.count[:, None] * part for part in beyond(prior, hiding))
            truth = np.array([np.einsum("cij,cj->ci", prior.sloped, one) for one in d + drift])
            undrifted = np.array([np.einsum("cij,cj->ci", prior.sloped[:, :levels], one) for one in d])
            sampling[:, :, few] = sample[..., :levels].T
            file[:, :, few] = (-truth[..., :levels] - still - drifted - sample[..., :levels]).T
            alone[:, :, few] = (undrifted + still + sample[..., :levels]).T
            moved = self.measured.of_draws(sample + truth) + np.array(noises)
            file[:, :, few] += self.answers(moved).T[:levels]
        return file, alone, sampling

    def errors(self, sums: Functions) -> Errors:
        """Errors of estimates of published sums, as means over draws."""
        return Errors(*(self._variances(sums, drawn) for drawn in self._drawn[:2]))

    def about_population(self, sums: Functions) -> Floats:
        file, _, sampling = self._drawn
        return self._variances(sums, file + sampling)

    def _variances(self, sums: Functions, drawn: Floats) -> Floats:
        return np.asarray((sums.drawn(drawn) ** 2).mean(axis=1))

    def drifting(self, x: Floats) -> tuple[Floats, Drifting]:
        """The same of sums of neighbouring measured sums, which are few. What they show is of all measurements."""
        matrix = self._neighbours
        measured = Sums(tuple(scipy.sparse.csr_array(matrix @ part) for part in self.measured.parts))
        few = type(self)(self.prior, measured, matrix @ self.constant, matrix @ self.noise, self.drift)
        fixed = crossed(measured, measured, self.prior.block()) + np.diag(few.noise)
        parts = []
        for k, level, _ in self._levels:
            slope, z = self.prior.by_deviation(measured, k), self.prior.terms.matrix
            of_errors = scipy.sparse.csr_array(slope @ scipy.sparse.diags_array(level.shared) @ z)
            for start in range(0, len(measured), AT_ONCE):
                side = of_errors[start : start + AT_ONCE].toarray().T
                fixed[:, start : start + AT_ONCE] += of_errors @ level.terms.spread(np.ascontiguousarray(side), OF_DRIFT)
            scaled = slope @ z @ scipy.sparse.diags_array(self.prior.sizes(1.0))
            parts.append((scaled @ scaled.T).toarray())
        return few.residual(matrix @ x), Drifting((fixed + fixed.T) / 2.0, tuple(parts))

    @property
    def _neighbours(self) -> scipy.sparse.csr_array:
        """Adds measured sums up, (sum, row): neighbours of one kind and one noise, which share their first columns."""
        rows = np.arange(len(self.noise))
        last = np.max([np.where(np.diff(part.indptr) > 0, k, 0) for k, part in enumerate(self.measured.parts)], axis=0)
        starts = np.flatnonzero(np.diff(last, prepend=-1) | (np.diff(self.noise, prepend=-1.0) != 0.0)).tolist()
        quota, labels, number = max(SUMS_OF_DRIFT // len(starts), 1), np.empty_like(rows), 0
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            kept = min(quota, end - start)
            labels[start:end] = number + np.arange(end - start) * kept // (end - start)
            number += kept
        return indicator(labels)


def _combined(factors: Sequence[Floats | None], values: Sequence[Floats]) -> Floats:
    """The sum of values, (cell, side), times their factors."""
    whole = np.zeros_like(values[0])
    for factor, value in zip(factors, values, strict=True):
        if factor is not None:
            whole += factor * value
    return whole


class FactoredPosterior(LargePosterior):
    """A posterior with a dense factor of its measurements' covariance, and with drawn errors.

    Exact errors of all published cells would take many times as long as the factor.
    """

    @property
    def _of_measured(self) -> Floats:
        """Not kept: it is large, and only the covariance needs it."""
        return self._shared(self.measured)

    @property
    def _parts_of_measured(self) -> Iterable[Floats]:
        """Made one after the other, because together they take more room than the covariance."""
        return self.prior.shared_parts(self.prior.terms_of(self.measured), self.drift)

    def under(self, noise: Floats) -> Self:
        return Posterior.under(self, noise)

    def estimated(self, x: Floats) -> Floats:
        return Posterior.estimated(self, x)

    def deviations(self, x: Floats) -> Floats:
        return Posterior.deviations(self, x)

    def draws(self, wanted: int) -> int:
        return wanted

    def _measure(self, sums: Floats) -> Floats:
        """M z for (cell, sum, side), as (row, side)."""
        return np.asarray(sum(part @ np.ascontiguousarray(sums[:, k]) for k, part, _ in self._parts))

    def _back(self, x: Floats) -> Floats:
        """M'x for (row, side), as (cell, sum, side)."""
        whole = np.zeros((len(self.prior.workload), len(self.measured.parts), x.shape[1]))
        for k, _, part in self._parts:
            whole[:, k] = part @ x
        return whole

    def _spread(self, back: Floats) -> Floats:
        """The covariance D of the sums, without tails, times (cell, sum, side)."""
        whole, terms = np.einsum("cij,cjs->cis", self.prior.block(), back), self._terms
        for (k, level, sizes), pulled in zip(self._levels, self._pulled_figures(back), strict=True):
            errors, drift = np.split(pulled, 2, axis=1)
            values = np.hstack([level.terms.spread(np.ascontiguousarray(errors), ROUGHLY), sizes[:, None] ** 2 * drift])
            whole += self.prior.sloped[:, :, k, None] * self._deviated(level, *np.split(terms @ values, 2, axis=1))[:, None]
        return np.asarray(whole)

    def answers(self, moved: Floats) -> Floats:
        return np.moveaxis(self._spread(self._back(self.solver(np.ascontiguousarray(moved.T)))), 2, 0)

    def slopes(self, sums: Functions, weight: Floats) -> Callable[[Floats], Floats]:
        covered = self._measure(self._spread(self._probes(sums, weight)))

        def under(noise: Floats) -> Floats:
            return np.asarray((self.under(noise).solver(covered) ** 2).mean(axis=1))

        return under

    def risk(self, sums: Functions, weight: Floats) -> float:
        back = self._probes(sums, weight)
        spread = self._spread(back)
        covered = self._measure(spread)
        whole = float((back * spread).sum() - (covered * self.solver(covered)).sum())
        return (whole + self._beyond(back)) / PROBES
