"""The posterior of a package with more measured sums, or shared terms, than a dense matrix of them can hold.

It is that of `posterior`, as a system in what the measurements x are made of: parts ξ of every base cell alone, terms γ by
the reference's errors, and terms by drift. With G the measurements' slopes in units of noise, and Q the parts' precision,
these have the posterior mean H⁻¹ G' R^(-½)x, H = Q + G'G. Only products with sparse matrices are needed, so that memory
grows with base cells times tables. Variances are means over draws and probes, from fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.estimation.linear import symmetric_root
from dpdist.packages.conjugate import OF_DRAWS, OF_ESTIMATES, OF_FIGURES, ROUGHLY, conjugate_gradients
from dpdist.packages.error_draws import AT_ONCE, Draw, beyond, beyond_drawn, deviated, deviations_drawn, sampled
from dpdist.packages.levels import Deviations
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
SUMS_OF_DRIFT = 1_000
"""About so many sums, of neighbouring measured sums each, show the drift: a large table's rows are added up."""
OF_DRIFT = 1e-4
"""Residual of systems for the likelihood of drifts, of which each is about twice the one before."""
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


ROWS_AT_ONCE = 2_000
"""Measured sums whose derivatives by all terms are held together."""
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
    def _standard(self) -> Floats:
        """Makes what each base cell alone adds to its measured sums of ξ, and back: (cell, measured sum, measured sum)."""
        values, vectors = np.linalg.eigh(self.prior.block()[:, self._numbers][:, :, self._numbers])
        deviation = np.sqrt(np.maximum(values, 0.0))
        return np.asarray(vectors / np.where(deviation > 0.0, deviation, np.inf)[:, None, :])

    @cached_property
    def _alone(self) -> Floats:
        """What each base cell's ξ add to all sums, (sum, measured sum, cell): a root of the measured sums' covariance."""
        by_sum = np.einsum("cik,ckj->ijc", self.prior.block()[:, :, self._numbers], self._standard)
        return np.ascontiguousarray(by_sum)

    @property
    def _root(self) -> Floats:
        """Roots of the measured sums' blocks of what each base cell has alone, (sum, sum, cell)."""
        return self._alone[self._numbers]

    def _deviated(self, level: Deviations, sizes: Floats, unknown: Floats) -> Floats:
        """A level's deviations by errors of terms and by drift in units of 1, (2 terms, side): (cell, side)."""
        errors, drift = np.split(unknown, 2)
        by_errors, by_drift = np.split(self.prior.terms.nested @ np.hstack([errors, sizes[:, None] * drift]), 2, axis=1)
        return np.asarray(level.shared[:, None] * by_errors + by_drift)

    def _by_terms(self, level: Deviations, sizes: Floats, d: Floats) -> Floats:
        """The transposed of `_deviated`, of (cell, side)."""
        errors, drift = np.split(self.prior.terms.nested.back(np.hstack([level.shared[:, None] * d, d])), 2, axis=1)
        return np.concatenate([errors, sizes[:, None] * drift])

    @cached_property
    def _factors(self) -> tuple[tuple[Floats | None, ...], ...]:
        """For every measured sum, its factors of all ξ and of all levels' deviations, (cell, 1) each; None if all are 0."""
        slopes = np.moveaxis(self.prior.sloped[:, self._numbers], 0, 2)
        every = np.concatenate([self._root, slopes], axis=1)[..., None]
        return tuple(tuple(one if one.any() else None for one in of_sum) for of_sum in every)

    @cached_property
    def _edges(self) -> tuple[slice, tuple[slice, ...]]:
        """The unknowns: ξ, (sum, cell), then by level errors of all terms and their drift."""
        first, terms = len(self._parts) * self._root.shape[2], 2 * len(self.prior.terms.classes)
        starts = (first + k * terms for k in range(len(self.drift)))
        return slice(0, first), tuple(slice(start, start + terms) for start in starts)

    def _measure(self, sums: Floats) -> Floats:
        """M z for (cell, sum, side), as (row, side)."""
        return np.asarray(sum(part @ np.ascontiguousarray(sums[:, k]) for k, part, _ in self._parts))

    def _back(self, x: Floats) -> Floats:
        """M'x for (row, side), as (cell, sum, side)."""
        whole = np.zeros((len(self.prior.workload), len(self.measured.parts), x.shape[1]))
        for k, _, part in self._parts:
            whole[:, k] = part @ x
        return whole

    def _made(self, unknown: Floats) -> Floats:
        """G times unknowns, (row, side)."""
        alone, shared = self._edges
        xi = unknown[alone].reshape(len(self._parts), -1, unknown.shape[1])
        levels = zip(self._levels, shared, strict=True)
        moved = [*xi, *(self._deviated(level, sizes, unknown[few]) for (_, level, sizes), few in levels)]
        made = np.zeros((len(self.noise), unknown.shape[1]))
        for (_, part, _), factors in zip(self._parts, self._factors, strict=True):
            made += part @ _combined(factors, moved)
        return made / np.sqrt(self.noise)[:, None]

    def _unmade(self, x: Floats) -> Floats:
        """G' times (row, side)."""
        x = x / np.sqrt(self.noise)[:, None]
        back = [part @ x for _, _, part in self._parts]
        pulled, (alone, shared) = (_combined(factors, back) for factors in zip(*self._factors, strict=True)), self._edges
        whole = np.empty((shared[-1].stop, x.shape[1]))
        xi = whole[alone].reshape(len(back), -1, x.shape[1])
        for k, of_cells in enumerate(islice(pulled, len(back))):
            xi[k] = of_cells
        for few, d, (_, level, sizes) in zip(shared, pulled, self._levels, strict=True):
            whole[few] = self._by_terms(level, sizes, d)
        return whole

    def _sums(self, unknown: Floats) -> Floats:
        """All sums by unknowns, (cell, sum, side)."""
        alone, shared = self._edges
        whole = np.einsum("ikc,kcs->cis", self._alone, unknown[alone].reshape(len(self._parts), -1, unknown.shape[1]))
        for (k, level, sizes), few in zip(self._levels, shared, strict=True):
            whole += self.prior.sloped[:, :, k, None] * self._deviated(level, sizes, unknown[few])[:, None]
        return np.asarray(whole)

    def _sums_back(self, back: Floats) -> Floats:
        """The transposed of `_sums`, of (cell, sum, side)."""
        alone = np.einsum("ikc,cis->kcs", self._alone, back).reshape(-1, back.shape[2])
        slopes = (
            (level, sizes, np.einsum("ci,cis->cs", self.prior.sloped[:, :, k], back)) for k, level, sizes in self._levels
        )
        return np.concatenate([alone, *(self._by_terms(*one) for one in slopes)])

    def _times(self, unknown: Floats) -> Floats:
        """H times unknowns."""
        whole, (alone, shared) = self._unmade(self._made(unknown)), self._edges
        whole[alone] += unknown[alone]
        for (_, level, _), few in zip(self._levels, shared, strict=True):
            middle = (few.start + few.stop) // 2
            whole[few.start : middle] += level.terms.times(unknown[few.start : middle])
            whole[middle : few.stop] += unknown[middle : few.stop]
        return whole

    @cached_property
    def _diagonal(self) -> Floats:
        """The diagonal of H."""
        precision, number = 1.0 / self.noise, len(self._parts)
        squares = np.empty((number, number, self._root.shape[2]))
        for i, (_, one, _) in enumerate(self._parts):
            for j, (_, other, _) in enumerate(self._parts):
                squares[i, j] = np.asarray(one.multiply(other).T @ precision).reshape(-1)
        diagonal = [1.0 + np.einsum("jic,jkc,kic->ic", self._root, squares, self._root).reshape(-1)]
        z = self.prior.terms.matrix
        for k, level, sizes in self._levels:
            by_drift, of_data = self.prior.by_deviation(self.measured, k), np.zeros((2, len(sizes)))
            both = by_drift @ scipy.sparse.diags_array(level.shared), by_drift
            for start in range(0, len(precision), ROWS_AT_ONCE):
                few = slice(start, start + ROWS_AT_ONCE)
                for slopes, of_slopes in zip(both, of_data, strict=True):
                    made = slopes[few] @ z
                    made.data **= 2
                    of_slopes += made.T @ precision[few]
            diagonal += [of_data[0] + level.terms.diagonal, sizes**2 * of_data[1] + 1.0]
        return np.concatenate(diagonal)

    @cached_property
    def _coarse(self) -> tuple[Ints, tuple[Floats, bool]]:
        """The unknowns of coarse terms in all levels, which overlap most, and the factor of their dense part of H."""
        coarse, root = self.prior.terms.coarse, scipy.sparse.diags_array(1.0 / np.sqrt(self.noise))
        z, made, a_priori, unknown = self.prior.terms.nested.columns(coarse), [], [], list[Ints]()
        for (k, level, sizes), few in zip(self._levels, self._edges[1], strict=True):
            slopes = scipy.sparse.csr_array(root @ self.prior.by_deviation(self.measured, k))
            made += [
                slopes @ scipy.sparse.diags_array(level.shared) @ z,
                slopes @ z @ scipy.sparse.diags_array(sizes[coarse]),
            ]
            a_priori += [level.terms.part(coarse), np.eye(len(coarse))]
            unknown += [few.start + coarse, (few.start + few.stop) // 2 + coarse]
        g = scipy.sparse.hstack(made, format="csr")
        part = (g.T @ g).toarray() + scipy.linalg.block_diag(*a_priori)
        return np.concatenate(unknown), scipy.linalg.cho_factor(part, lower=True, overwrite_a=True)

    def _preconditioned(self, unknown: Floats) -> Floats:
        whole, (coarse, factor) = unknown / self._diagonal[:, None], self._coarse
        whole[coarse] = scipy.linalg.cho_solve(factor, unknown[coarse])
        return whole

    def under(self, noise: Floats) -> Self:
        return replace(self, noise=noise)

    def _solved(self, right: Floats, tolerance: float, absolute: bool = False) -> Floats:
        """H⁻¹ times (unknown, side)."""
        _ = self._diagonal, self._coarse, self._factors  # threads would make them again
        return conjugate_gradients(self._times, self._preconditioned, right, tolerance, absolute)

    def _unknowns(self, x: Floats, residual: float) -> Floats:
        """Posterior means of the unknowns, (unknown, side), from measurements less their prior means, (row, side).

        By way of V⁻¹x, which nearly cancels, systems would have to end far later.
        """
        return self._solved(self._unmade(x / np.sqrt(self.noise)[:, None]), residual, absolute=True)

    def estimated(self, x: Floats) -> Floats:
        return self.prior.mean + self._sums(self._unknowns(self.residual(x)[:, None], OF_ESTIMATES))[..., 0]

    def deviations(self, x: Floats) -> Floats:
        unknown, (alone, shared) = self._unknowns(self.residual(x)[:, None], OF_ESTIMATES), self._edges
        back = np.einsum("cjk,kc->cj", self._standard, unknown[alone].reshape(len(self._numbers), -1))
        whole = self.prior.alone * np.einsum("cj,cjl->cl", back, self.prior.sloped[:, self._numbers])
        for (k, level, sizes), few in zip(self._levels, shared, strict=True):
            whole[:, k] += self._deviated(level, sizes, unknown[few])[:, 0]
        return np.asarray(whole)

    @property
    def _draws(self) -> int:
        return DRAWN if len(self.prior.workload) <= MOST_CELLS else DRAWN_OF_MORE

    def draws(self, wanted: int) -> int:
        return min(wanted, self._draws)

    def answers(self, moved: Floats) -> Floats:
        return np.moveaxis(self._sums(self._unknowns(np.ascontiguousarray(moved.T), OF_DRAWS)), 2, 0)

    def _probes(self, sums: Functions, weight: Floats) -> Floats:
        """Sums by random signs of published functions times the roots of weights, (cell, 4, probe)."""
        kept, signs = np.flatnonzero(weight), np.zeros((len(sums), PROBES))
        signs[kept] = np.random.default_rng(SEED).choice([-1.0, 1.0], (len(kept), PROBES)) * np.sqrt(weight[kept])[:, None]
        return sums.turned(signs)

    def slopes(self, sums: Functions, weight: Floats) -> Callable[[Floats], Floats]:
        # V⁻¹ times the covariance of x with figures f'z of the unknowns z is R^(-½) G H⁻¹ f.
        figures = self._sums_back(self._probes(sums, weight))

        def under(noise: Floats) -> Floats:
            other = self.under(noise)
            return np.asarray((other._made(other._solved(figures, OF_FIGURES)) ** 2).mean(axis=1) / noise)

        return under

    def risk(self, sums: Functions, weight: Floats) -> float:
        back = self._probes(sums, weight)
        figures, unmeasured = (
            self._sums_back(back),
            self.prior.block() - np.einsum("ikc,jkc->cij", self._alone, self._alone),
        )
        whole = float(
            (figures * self._solved(figures, OF_FIGURES)).sum() + np.einsum("cis,cij,cjs->", back, unmeasured, back)
        )
        return (whole + self._beyond(back)) / PROBES

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

    def _spread(self, back: Floats) -> Floats:
        """The covariance D of the sums, without tails, times (cell, sum, side)."""
        whole = np.einsum("cij,cjs->cis", self.prior.block(), back)
        for k, level, sizes in self._levels:
            d = np.einsum("ci,cis->cs", self.prior.sloped[:, :, k], back)
            errors, drift = np.split(self._by_terms(level, sizes, d), 2)
            pulled = self._deviated(level, sizes, np.concatenate([level.terms.spread(errors, ROUGHLY), drift]))
            whole += self.prior.sloped[:, :, k, None] * pulled[:, None]
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
