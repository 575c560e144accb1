"""For `packages.posterior` and `package`: the prior of base cells, from the reference and drift since.

Every base cell has the sums z = (Σe, Σer, Σa, Σq), with er and q of every outcome. Given deviations d of its levels, z
has the mean n·m(d), and the covariance n·Σ of independent records. d is the reference's uncertainty plus drift, in
terms τZγ that cells share.

Where numbers of records are secret, n itself is a sum of z, and has a level with deviations. Records are then a Poisson
sample: given the levels, z has the covariance n·E(zz') of one record's sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints, rows_of_groups
from dpdist.packages.levels import Deviations, Levels, ReferenceRecords, Terms
from dpdist.packages.limits import CellLimits, Clipping, Shape
from dpdist.packages.sums import Functions, Sums, add_grouped, added, variances
from dpdist.packages.ties import ties_of
from dpdist.packages.workload import WithoutCaches, Workload

PLANNED_DRIFT = 0.003
"""Relative drift since the reference that is planned before the file is seen: its prior median."""
DRIFT_LOG_SD = 2.0
"""Standard deviation a priori of the logarithm of the drift."""
DRIFTS = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25)
"""Standard deviations of drift that are tried."""
OVERALL = 5.0
"""Standard deviation of the drift of all cells, over that of a term."""
CELL_DRIFT = 0.02
"""Standard deviation of a base cell's own drift."""
MOST_KEPT_ROOTS = 10_000_000
"""Entries of published sums by terms up to which their roots are kept for other measurements."""
CELLS_AT_ONCE = 64
"""Base cells of a group whose shapes are moved together: these stay in a processor's cache."""


Drift = tuple[float, ...]
"""Standard deviations of drift that cells of a table, or of a column's level, share: of weights and of every outcome."""


class DriftPrior(NamedTuple):
    """Prior knowledge of drift.

    `planned` is its median, `log_sd` the standard deviation of its logarithm, and `tried` are the sizes tried. `cell`
    is the standard deviation of a base cell's own drift.
    """

    planned: float = PLANNED_DRIFT
    log_sd: float = DRIFT_LOG_SD
    tried: tuple[float, ...] = DRIFTS
    cell: float = CELL_DRIFT

    def before(self, outcomes: int) -> Drift:
        """The planned drift."""
        return (self.planned,) * (1 + outcomes)


SINCE_REFERENCE = DriftPrior()


class Represented(NamedTuple):
    """What the reference's weights add up to, with its standard error by sampling."""

    size: float
    error: float


class Beyond(NamedTuple):
    """Parts of the count of all records that lie beyond the limits, if shapes stay: by the reference's levels, and now.

    `error` is a standard error of the count given n, as a part of it, and `growth` the factor on its levels.
    """

    before: float
    now: float
    error: float
    growth: float


class Unmeasured(NamedTuple):
    """A root of functions' covariance by shared terms, (row, 2 levels × terms), and their variances, (row,) each: about the
    file's sums, and those of the reference alone without drift."""

    shared: Floats
    whole: Floats
    still: Floats


@dataclass(frozen=True)
class Prior(WithoutCaches):
    """The prior of the base cells' sums, linearised at deviations (cell, 1 + outcomes).

    In arrays over sums and levels, the weight is first, and outcomes follow.
    """

    workload: Workload
    terms: Terms
    levels: Levels
    limits: CellLimits
    tails: tuple[Deviations, ...]
    """Deviations of Σe and every Σer, per record, from their prediction by clipped sums under the group's law."""
    linearised_at: Floats
    ties: Floats
    """Changes of a record's mean sums by ties to the reference's own margins, (cell, sum)."""
    drifting: DriftPrior = SINCE_REFERENCE
    represented: Represented | None = None
    hidden: float = 0.0
    """Standard deviation of e that lies beyond the limits of all cells since weights have spread."""
    of_crosses: tuple[Terms, Levels] | None = None
    """Terms and levels with crosses of the reference alone; None if it has none."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        terms: Terms,
        levels: Levels,
        limits: CellLimits,
        tails: tuple[Deviations, ...],
        drifting: DriftPrior = SINCE_REFERENCE,
    ) -> Prior:
        """The prior at the reference's levels."""
        secret = workload.secret
        still, ties = (np.zeros((len(workload), factor * len(tails) + secret)) for factor in (1, 2))
        return cls(workload, terms, levels, limits, tails, still, ties, drifting)

    @property
    def sums(self) -> int:
        """Number of a base cell's sums; the last is the number of records, if that is secret."""
        return 2 * len(self.tails) + self.workload.secret

    @property
    def planned(self) -> Drift:
        """The planned drift. Public weights have none."""
        drift = self.drifting.before(len(self.levels.errors) - 1)
        return drift if self.workload.weight is None else (0.0, *drift[1:])

    def tied(self, records: ReferenceRecords) -> Prior:
        """This prior, tied to the reference's own margins."""
        measured = self._per_record[:, : 2 * len(self.tails)]
        ties = ties_of(self.workload, self.levels, self.limits, records, measured)
        return replace(self, ties=np.pad(ties, ((0, 0), (0, int(self.workload.secret)))))

    def first(self, workload: Workload) -> Prior:
        """This prior in the file's base cells, the first ones, without crosses of the reference alone."""
        if (cells := len(workload)) == len(self.workload):
            return self
        parts = {name: getattr(self, name).first(cells) for name in ("terms", "levels", "limits")}
        tails = tuple(tail.first(cells) for tail in self.tails)
        arrays = {name: getattr(self, name)[:cells] for name in ("linearised_at", "ties")}
        return replace(self, workload=workload, tails=tails, of_crosses=(self.terms, self.levels), **parts, **arrays)

    @property
    def learned(self) -> tuple[Terms, Levels]:
        """Terms and levels of all crosses of file and reference."""
        return self.of_crosses or (self.terms, self.levels)

    @cached_property
    def _linear(self) -> tuple[Floats, Floats, Floats]:
        """Means (cell, sum), slopes (cell, sum, level) and covariances (cell, sum, sum) of an expected record's sums."""
        mean, slope, spread = self._of_record
        if not self.workload.secret:
            return mean, slope, spread
        grown, beside = 1.0 + self.linearised_at[:, -1:], self._beside
        mean = np.column_stack([mean, np.ones(len(mean))])
        slope = np.concatenate([slope, np.zeros_like(slope[:, :1])], axis=1) * grown[..., None]
        slope = np.concatenate([slope, (mean + beside)[..., None]], axis=2)
        return grown * (mean + beside) - beside, slope, self.within + grown[..., None] * mean[:, :, None] * mean[:, None]

    @property
    def within(self) -> Floats:
        """Covariances of an expected record's sums, given the number of records, (cell, sum, sum)."""
        if not self.workload.secret:
            return self._of_record[2]
        grown = 1.0 + self.linearised_at[:, -1, None, None]
        return np.asarray(grown * np.pad(self._of_record[2], ((0, 0), (0, 1), (0, 1))))

    @cached_property
    def _beside(self) -> Floats:
        """Changes of a record's mean sums by ties and tails, (cell, sum)."""
        changes = self.ties.copy()
        changes[:, : len(self.tails)] += np.column_stack([tail.value for tail in self.tails])
        return changes

    @cached_property
    def _of_record(self) -> tuple[Floats, Floats, Floats]:
        """Means (cell, sum), slopes (cell, sum, level) and covariances (cell, sum, sum) of a record's sums."""
        levels = len(self.tails)
        shape_of_mean = len(self.workload), 2 * levels
        mean, slope = np.empty(shape_of_mean), np.empty((*shape_of_mean, levels))
        spread = np.empty((*shape_of_mean, 2 * levels))
        deviations = self.linearised_at[:, :levels]
        still = not deviations.any()
        for members, shape, clipping in self._groups:
            sums = shape.sums(clipping)
            spread[members] = np.cov(sums.T, ddof=0)
            if still:
                mean[members], slope[members] = sums.mean(axis=0), shape.slopes(clipping)
                continue
            few, of_all = shape.thinned, shape.slopes(clipping)
            mean_of_few, slope_of_few = few.sums(clipping).mean(axis=0), few.slopes(clipping)
            for start in range(0, len(members), CELLS_AT_ONCE):
                cells = members[start : start + CELLS_AT_ONCE]
                moved = few.moved(deviations[cells])
                if self.limits.mixed:  # far from the group's levels, covariances are others, too
                    spread[cells] = [np.cov(of_cell.T, ddof=0) for of_cell in moved.sums(clipping)]
                mean[cells] = sums.mean(axis=0) + moved.sums(clipping).mean(axis=-2) - mean_of_few
                changed = moved.slopes(clipping)
                changed[..., 0] /= 1.0 + deviations[cells, :1]
                slope[cells] = of_all + changed - slope_of_few
        if self.workload.weight is not None:  # no deviation of a public weight is possible
            slope[..., 0] = 0.0
        return mean, slope, spread

    @property
    def _groups(self) -> Iterator[tuple[Ints, Shape, Clipping]]:
        """The base cells, shape and clipping of every group."""
        limits = self.limits
        return zip(rows_of_groups(limits.group, len(limits.shapes)), self.shapes, limits.clippings, strict=True)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The laws of cells by group, at the deviations at which the sums are linearised."""
        limits, count, made = self.limits, self.workload.count, []
        if not limits.mixed or not self.linearised_at.any():
            return limits.shapes
        for members, shape in zip(rows_of_groups(limits.group, len(limits.shapes)), limits.shapes, strict=True):
            log, means = np.log1p(self.linearised_at[members, 0]), self.linearised_at[members, 1 : len(self.tails)]
            of_weight, weights = _variance(log, count[members]), count[members] * np.exp(log)
            made.append(shape.of_one_cell(of_weight, [_variance(mean, weights) for mean in means.T]))
        return tuple(made)

    @cached_property
    def tail_drift(self) -> Floats:
        """Standard deviations per record of the drift of e and of every e r beyond the limits, (cell, 1 + outcomes)."""
        if not self.limits.mixed or not self.linearised_at.any():
            return self.limits.tail_drift
        drift = np.empty((len(self.workload), len(self.tails)))
        for members, shape, clipping in self._groups:
            drift[members] = shape.moved(self.linearised_at[members, : len(self.tails)]).beyond(clipping)
        return self.limits.misfit * drift

    def beyond(self) -> Beyond:
        """What lies beyond the limits at the levels at which the sums are linearised."""
        weight = self.workload.count * self.levels.weight
        before, gained, square = 0.0, 0.0, 0.0
        for members, shape, clipping in self._groups:
            few = shape.thinned
            still = float(few.beyond(clipping)[0])
            before += still * float(weight[members].sum())
            square += float(shape.e.var()) * float(weight[members] @ self.levels.weight[members])
            for start in range(0, len(members), CELLS_AT_ONCE):
                cells = members[start : start + CELLS_AT_ONCE]
                now = few.moved(self.linearised_at[cells, : len(self.tails)]).beyond(clipping)[:, 0]
                gained += float(weight[cells] @ (now - still))
        count, planned = float(weight @ (1.0 + self.linearised_at[:, 0])), float(weight.sum())
        return Beyond(before / planned, (before + gained) / count, square**0.5 / count, count / planned)

    @property
    def mean(self) -> Floats:
        """Prior means of the sums, (cell, sum): the linearised ones at deviations 0."""
        return np.asarray(self.workload.count[:, None] * self._per_record)

    @property
    def _per_record(self) -> Floats:
        """Means of a record's sums, (cell, sum)."""
        mean, slope, _ = self._linear
        per_record = mean - np.einsum("cij,cj->ci", slope, self.linearised_at) + self.ties
        per_record[:, : len(self.tails)] += np.column_stack([tail.value for tail in self.tails])
        return np.asarray(per_record)

    @property
    def sampling(self) -> Floats:
        """Covariances of the sums given the levels, (cell, sum, sum)."""
        return np.asarray(self.workload.count[:, None, None] * self._linear[2])

    @cached_property
    def sloped(self) -> Floats:
        """Derivatives of the sums by the deviations, (cell, sum, level)."""
        return np.asarray(self.workload.count[:, None, None] * self._linear[1])

    @cached_property
    def alone(self) -> Floats:
        """Variances of each cell's own deviations, (cell, level)."""
        return np.column_stack([deviations.alone for deviations in self.levels.errors]) + self.drifting.cell**2

    def block(self) -> Floats:
        """Covariances of the sums without shared terms, (cell, sum, sum)."""
        return np.asarray(self.sampling + np.einsum("cij,cj,ckj->cik", self.sloped, self.alone, self.sloped))

    def population(self) -> Floats:
        """The covariances of `block` for the sums' means given the levels, without the sampling of records."""
        return np.asarray(np.einsum("cij,cj,ckj->cik", self.sloped, self.alone, self.sloped))

    def by_deviation(self, sums: Sums, which: int) -> scipy.sparse.csr_array:
        """Derivatives of functions of the sums by one deviation, (row, cell)."""
        return added([part @ scipy.sparse.diags_array(self.sloped[:, k, which]) for k, part in enumerate(sums.parts)])

    def terms_of(self, sums: Functions) -> tuple[tuple[Floats, Floats], ...]:
        """For every level, roots of the functions' covariance by shared terms, (row, term).

        Shared terms are the reference's errors, and a drift of standard deviation 1 of every term.
        """
        levels, ones = self.levels.errors, np.ones(len(self.workload))
        return self._roots(sums, np.ascontiguousarray(np.moveaxis(self.sloped, 0, 2)), levels, [ones] * len(levels))

    def _roots(
        self, sums: Functions, slopes: Floats, of_errors: Sequence[Deviations], drifts: Sequence[Floats]
    ) -> tuple[tuple[Floats, Floats], ...]:
        """For every deviation, roots of the functions' covariance by its errors and by its drift, (row, term) each.

        `slopes` (sum, deviation, cell) are derivatives of the sums, and `drifts` (cell,) each sizes of drift.
        """
        scales = list(zip((deviations.shared for deviations in of_errors), drifts, strict=True))
        made = sums.applied(lambda few: self._by_terms(few, slopes, scales))
        pairs = zip(made[::2], made[1::2], of_errors, strict=True)
        return tuple((_by_lower(errors, deviations.terms.root), drift) for errors, drift, deviations in pairs)

    def _by_terms(self, sums: Sums, slopes: Floats, scales: Sequence[tuple[Floats, Floats]]) -> list[Floats]:
        """Functions of slopes times the scales of every deviation, added up by terms, (row, term) each."""
        z = self.terms.matrix
        by_cell = scipy.sparse.csc_array((z.data, z.indices, z.indptr), shape=z.shape[::-1])
        made = [np.zeros((len(sums), z.shape[1])) for _ in range(2 * len(scales))]
        for group, firsts, factors in sums.layers.sets:
            moved = np.einsum("lic,ijc->ljc", factors, slopes[: factors.shape[1]])
            kept = [(layer, k) for layer, k in np.argwhere(moved.any(axis=2)).tolist()]
            if kept:
                values = np.stack([moved[layer, k] * scale for layer, k in kept for scale in scales[k]], axis=1)
                add_grouped([(made[2 * k + n], firsts[layer]) for layer, k in kept for n in (0, 1)], by_cell, group, values)
        return made

    def sizes(self, drift: float) -> Floats:
        """Standard deviations of the drift of every term, (term,)."""
        return drift * np.where(self.terms.classes == 0, OVERALL, 1.0)

    def shared(self, terms: Sequence[tuple[Floats, Floats]], drift: Drift) -> Floats:
        """A root of the covariance of functions with `terms_of` by shared terms, (row, 2 levels × terms)."""
        return np.hstack(list(self.shared_parts(terms, drift)))

    def shared_parts(self, terms: Sequence[tuple[Floats, Floats]], drift: Drift) -> Iterator[Floats]:
        """The parts of `shared`, (row, term) each: by level, errors and drift."""
        for (errors, moved), size in zip(terms, drift, strict=True):
            yield errors
            yield moved * self.sizes(size)

    def tail_roots(self, sums: Functions, whole: Sums) -> tuple[Floats, tuple[tuple[Floats, Floats], ...]]:
        """Contributions of tails to the functions' covariance: own variances of cells by row, and roots of the shared
        part by every tail's errors and drift. `whole` are the same functions of base cells.

        No measured sum depends on tails, so no measurement reduces this error.
        """
        count, drifts = self.workload.count, list(self.tail_drift.T)
        alone, slopes = np.zeros(len(sums)), np.zeros((self.sums, len(self.tails), len(count)))
        for k, (part, tail, drift) in enumerate(zip(whole.parts, self.tails, drifts, strict=False)):
            alone += scipy.sparse.csr_array(part @ scipy.sparse.diags_array(count)).power(2) @ (tail.alone + drift**2)
            slopes[k, k] = count
        roots = self._roots(sums, slopes, self.tails, drifts)
        if self.hidden:
            slope = scipy.sparse.csr_array(whole.parts[0] @ scipy.sparse.diags_array(count))
            hidden = (slope @ self.terms.matrix).toarray() * self.hidden_sizes
            roots += ((np.zeros((len(sums), 0)), hidden),)
        return alone, roots

    def unmeasured(self, sums: Functions, drift: Drift) -> Unmeasured:
        """Published sums before any measurement. The latest are kept: all choices of measurements ask for them."""
        if len(sums) * len(self.terms.classes) > MOST_KEPT_ROOTS:
            return self._made_unmeasured(sums, drift)
        if not self._latest or self._latest[0] is not sums or self._latest[1] != drift:
            self._latest[:] = sums, drift, self._made_unmeasured(sums, drift)
        made: Unmeasured = self._latest[2]
        return made

    @cached_property
    def _latest(self) -> list[Any]:
        return []

    def _made_unmeasured(self, sums: Functions, drift: Drift) -> Unmeasured:
        whole = sums.whole
        terms, (alone, roots) = self.terms_of(sums), self.tail_roots(sums, whole)
        shared, block = self.shared(terms, drift), variances(whole, self.block()) + alone
        square = (shared**2).sum(axis=1) + sum((root**2).sum(axis=1) for pair in roots for root in pair)
        still = block + sum((errors**2).sum(axis=1) for errors, _ in (*terms, *roots))
        return Unmeasured(shared, block + square, still)

    @property
    def hidden_sizes(self) -> Floats:
        """Standard deviations of hidden e of every term, (term,): that of all cells is the largest, as of drift."""
        return self.sizes(self.hidden / OVERALL)

    def pulled(self, sums: Sums, drift: Drift, x: Floats) -> Floats:
        """The deviations' covariance with functions of the sums, applied to (row,): (cell, level)."""
        back = np.einsum("ci,cij->cj", sums.back(x), self.sloped)
        pull = self.alone * back
        z = self.terms.matrix
        for which, (deviations, size) in enumerate(zip(self.levels.errors, drift, strict=True)):
            inner = deviations.terms.spread(z.T @ (deviations.shared * back[:, which]))
            pull[:, which] += deviations.shared * (z @ inner) + z @ (self.sizes(size) ** 2 * (z.T @ back[:, which]))
        return np.asarray(pull)


def _by_lower(rows: Floats, root: Floats) -> Floats:
    """Rows, which are overwritten, times a lower triangular matrix: half the work of a whole one."""
    return np.asarray(scipy.linalg.blas.dtrmm(1.0, root.T, rows.T, lower=0, overwrite_b=1).T)


def _variance(values: Floats, weights: Floats) -> float:
    return float(np.average((values - np.average(values, weights=weights)) ** 2, weights=weights))
