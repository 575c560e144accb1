"""Random populations with weights and outcomes of many kinds, and releases of `tables` from samples of them.

NumPy noise stands for the released one, and no job is read: a release takes from .1 to 1 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import UNIT, Floats, Ints
from dpdist.estimation.donors import AbsentRecords, Donors, PeriodTotals
from dpdist.job import Statistic
from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.mechanisms.tables.common_factors import common_factors
from dpdist.mechanisms.tables.inequality import thresholds
from dpdist.mechanisms.tables.limits import TableLimits, direct_variances
from dpdist.mechanisms.tables.measured_sums import MeasuredSums
from dpdist.mechanisms.tables.measurements import ResidualMeasurements
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.residual_prior import prior_variances
from dpdist.mechanisms.tables.rows import Rows, placed_in, rows_about
from dpdist.mechanisms.tables.sensitivity import MOVED
from dpdist.mechanisms.tables.workload import WorkloadTable
from dpdist.models.public_model import Design
from dpdist.privacy.guarantees import NoisyQuery

WEIGHTS = ("constant", "by columns", "narrow", "wide", "two sizes")
OUTCOMES = (
    "income",
    "heavy",
    "pareto",
    "rare amount",
    "balance",
    "rounded",
    "yes or no",
    "rare yes",
    "constant in a level",
)
DRIFTS = ("none", "common", "by level")


class Sample(NamedTuple):
    """Records: codes (record, column), weight (record,), outcomes (record, outcome)."""

    codes: Ints
    weight: Floats
    outcomes: Floats


class Public(NamedTuple):
    """What a job states: sizes of columns, tables by their columns, and public bounds of weight and outcomes."""

    sizes: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    weights: tuple[float, float]
    bounds: tuple[tuple[float, float], ...]


class Files(NamedTuple):
    reference: Sample
    current: Sample


@dataclass(frozen=True, eq=False)
class Population:
    """A law of codes, weights and outcomes. `shares` are those of levels by column, `effects` (part, column) of levels."""

    public: Public
    weights: str
    kinds: tuple[str, ...]
    drift: str
    records: tuple[int, int]
    """Numbers of records of reference and file."""
    shares: tuple[Floats, ...]
    effects: tuple[tuple[Floats, ...], ...]
    factors: tuple[Floats, Floats]
    """What weights and outcomes of the reference are divided by, by level of the first column."""
    tail: float

    @classmethod
    def of(
        cls,
        seed: int,
        weights: str | None = None,
        kinds: Sequence[str] | None = None,
        drift: str | None = None,
        records: tuple[int, int] | None = None,
        sizes: Sequence[int] | None = None,
        number: int | None = None,
        sparse: bool | None = None,
    ) -> Population:
        """What is not given is drawn. `number` is that of tables."""
        rng = np.random.default_rng(seed)
        drawn = (rng.choice(WEIGHTS), [rng.choice(OUTCOMES) for _ in range(rng.choice([1, 1, 2]))], rng.choice(DRIFTS))
        weights, kinds, drift = weights or str(drawn[0]), tuple(map(str, kinds or drawn[1])), drift or str(drawn[2])
        usual = int(10.0 ** rng.uniform(2.7, 4.0))
        records = records or (int(usual * rng.choice([0.2, 1.0, 3.0])), usual)
        columns = int(rng.integers(2, 6))
        if sizes is None:
            sizes = [int(rng.choice([2, 3, 4, 6, 9, 15])) for _ in range(columns)]
            sizes[int(rng.integers(columns))] = int(rng.choice([4, 20, 60]))
        columns = len(sizes)
        sets = [(a, b) for a in range(columns) for b in range(a)] + [(a,) for a in range(columns)]
        sets += [
            (a, b, c) for a in range(columns) for b in range(a) for c in range(b) if sizes[a] * sizes[b] * sizes[c] < 400
        ]
        number = min(number or int(rng.choice([1, 4, 10])), len(sets))
        tables = tuple(tuple(sorted(sets[k])) for k in rng.permutation(len(sets))[:number])
        concentration = 0.6 if (rng.random() < 0.5 if sparse is None else sparse) else 5.0
        shares = tuple(rng.dirichlet(np.full(size, concentration)) for size in sizes)
        parts = tuple(tuple(rng.normal(0.0, 0.4, size) for size in sizes) for _ in range(1 + len(kinds)))
        size = sizes[0]
        moved = {"none": (0.0, 0.0), "common": (0.0, 0.0), "by level": (0.12, 0.12)}[drift]
        middle = (0.0, 0.0) if drift == "none" else (0.1, 0.14)
        factors = tuple(np.exp(m + s * rng.standard_normal(size)) for m, s in zip(middle, moved, strict=True))
        bounds = tuple(BOUNDS.get(kind, (0.0, 1e7)) for kind in kinds)
        public = Public(tuple(sizes), tables, (0.0, 1e5), bounds)
        return cls(
            public, weights, kinds, drift, records, shares, parts, (factors[0], factors[1]), float(rng.uniform(1.5, 2.5))
        )

    def values(self, codes: Ints, noise: Floats) -> tuple[Floats, Floats]:
        """Weight (record,) and outcomes (record, outcome) of records with this uniform noise, (record, 3)."""
        z = scipy.special.ndtri(np.clip(noise, 1e-12, 1.0 - 1e-12))
        levels = [sum(effect[codes[..., k]] for k, effect in enumerate(part)) for part in self.effects]
        steps = 2.0 * self.effects[0][0][codes[..., 0]] + self.effects[0][-1][codes[..., -1]]
        log_weight = {
            "constant": np.zeros(codes.shape[:-1]),
            "by columns": 2.0 * steps,
            "narrow": levels[0] + 0.25 * z[..., 0],
            "wide": 1.5 * levels[0] + 1.2 * z[..., 0],
            "two sizes": levels[0] + np.log(40.0) * (noise[..., 0] > 0.9),
        }[self.weights]
        weight = np.clip(np.round(50.0 * np.exp(log_weight), 2), 1.0, 1e4)
        outcomes = [
            np.clip(self._outcome(kind, level, codes, noise, z), low, high)
            for kind, level, (low, high) in zip(self.kinds, levels[1:], self.public.bounds, strict=True)
        ]
        return weight, np.stack(outcomes, axis=-1)

    def _outcome(self, kind: str, level: Floats, codes: Ints, noise: Floats, z: Floats) -> Floats:
        alike = 0.3 * z[..., 0] + np.sqrt(1.0 - 0.09) * z[..., 1]
        usual = np.exp(9.0 + level + 0.8 * alike)
        if kind == "income":
            return usual * (noise[..., 2] > 0.2)
        if kind == "heavy":
            return np.exp(7.0 + level + self.tail * alike)
        if kind == "pareto":
            return 1e3 * np.exp(level) * (1.0 - scipy.special.ndtr(alike)) ** (-1.0 / self.tail)
        if kind == "rare amount":
            return usual * (noise[..., 2] > 0.95)
        if kind == "balance":
            return 8_000.0 * (level + scipy.special.stdtrit(3.0, np.clip(noise[..., 1], 1e-9, 1.0 - 1e-9)))
        if kind == "rounded":
            return np.round(usual, -3)
        if kind in ("age", "year"):
            return 70.0 + 15.0 * (level + alike) + (1900.0 if kind == "year" else 0.0)
        if kind == "constant in a level":
            return np.where(codes[..., 0] == 0, 7_000.0, usual)
        return (noise[..., 1] < scipy.special.expit(level - (5.0 if kind == "rare yes" else 1.0))).astype(float)

    def drawn(self, number: int, rng: np.random.Generator) -> Sample:
        codes = np.column_stack([rng.choice(len(share), number, p=share) for share in self.shares])
        return Sample(codes, *self.values(codes, rng.random((number, 3))))

    def files(self, seed: int = 0) -> Files:
        rng = np.random.default_rng([seed, *self.public.sizes])
        earlier, current = (self.drawn(number, rng) for number in self.records)
        low, high = np.array(self.public.bounds).T
        weight, outcome = (factor[earlier.codes[:, 0]] for factor in self.factors)
        moved = np.clip(earlier.outcomes / outcome[:, None], low, high)
        if any("yes" in kind for kind in self.kinds):
            moved = earlier.outcomes
        return Files(Sample(earlier.codes, earlier.weight / weight, moved), current)

    def expected(self, codes: Ints) -> Floats:
        """E(w) and E(w y) given codes, (cell, 1 + outcome), over a quasi-random sequence."""
        noise = scipy.stats.qmc.Sobol(3, scramble=False).random_base2(12) + 0.5 / (1 << 12)
        found = []
        for part in np.array_split(codes, len(codes) // 32 + 1):
            weight, outcomes = self.values(part[:, None], noise[None])
            found.append(np.column_stack([weight.mean(axis=1), (weight[..., None] * outcomes).mean(axis=1)]))
        return np.concatenate(found)


BOUNDS = {
    "balance": (-2e5, 2e5),
    "rounded": (0.0, 30_000.0),
    "yes or no": (0.0, 1.0),
    "rare yes": (0.0, 1.0),
    "income": (0.0, 1e6),
    "age": (0.0, 110.0),
    "year": (1900.0, 2010.0),
}


class Figures(NamedTuple):
    """Counts and means of a table's cells with standard errors, (cell, 1 + outcome) each."""

    values: Floats
    errors: Floats
    records: Floats
    """Numbers of records that the figures come from, (cell,)."""


def direct(sample: Sample, cell: Ints, cells: int, size: Floats | None = None) -> Figures:
    """Direct figures, with errors given numbers of records; counts are for `size` records where another sample is asked.

    Cells without a record have NaN.
    """
    number = np.bincount(cell, minlength=cells).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        count = np.bincount(cell, weights=sample.weight, minlength=cells)
        values, errors = (
            [count],
            [np.bincount(cell, weights=(sample.weight - (count / number)[cell]) ** 2, minlength=cells)],
        )
        for outcome in sample.outcomes.T:
            mean = np.bincount(cell, weights=sample.weight * outcome, minlength=cells) / count
            residual = sample.weight * (outcome - mean[cell])
            values.append(mean)
            errors.append(np.bincount(cell, weights=residual**2, minlength=cells) / count**2)
        scale = np.ones(cells) if size is None else size / number
        values[0], errors[0] = values[0] * scale, errors[0] * scale**2
    return Figures(np.column_stack(values), np.sqrt(np.column_stack(errors)), number)


@dataclass(frozen=True, eq=False)
class Release:
    """A release of `current` with simulated noise, and what the public data alone say."""

    model: ResidualCells
    files: Files
    noisy: Floats
    """Noisy sums of all measurements, (cell, 1 + outcome), in units of 1/UNIT."""
    measured: MeasuredSums
    """With limits that counts of records beyond them have widened."""

    @property
    def system(self) -> ResidualMeasurements:
        return self.measured.asked

    @cached_property
    def base(self) -> Ints:
        """The base cell of every record of the current file."""
        return base_cells(self.files.current.codes)[1]

    @cached_property
    def posterior(self) -> Posterior:
        return self.measured.reading.posterior

    @cached_property
    def sums(self) -> Floats:
        """Published counts and totals of base cells, (cell, 1 + outcome)."""
        means = self.model.estimated(self.measured, self.noisy).values["means"][0]
        return summed(self.model.count, means)

    @property
    def predicted(self) -> Floats:
        """Counts and totals of base cells by the prediction alone."""
        return summed(self.model.count, self.system.file.prediction.means)

    def figures(self, cell: Ints, sums: Floats | None = None) -> Figures:
        """Figures with their published standard errors, or without errors from other `sums`."""
        cells, sums = int(cell.max()) + 1, self.sums if sums is None else sums
        added = np.column_stack([np.bincount(cell, weights=part, minlength=cells) for part in sums.T])
        count = np.maximum(added[:, :1], 1e-300)
        values = np.column_stack([added[:, :1], added[:, 1:] / count])
        number = np.bincount(cell, weights=self.model.count, minlength=cells)
        if sums is not self.sums:
            return Figures(values, np.full_like(values, np.nan), number)
        adding = scipy.sparse.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell)))), shape=(cells, len(cell)))
        variance = published_variances(self.posterior, rows_about(adding, values[:, 1:], self.system.file.prediction))
        errors = np.sqrt(variance).reshape(values.shape[1], cells).T
        return Figures(values, np.column_stack([errors[:, 0], errors[:, 1:] / count]), number)

    def comparison(self, by: Sequence[int], truth: Floats | None = None) -> Comparison:
        """A table's cells of ten records; `truth` are expected sums of base cells, (cell, 1 + outcome)."""
        reference = self.files.reference
        cell, (place,) = cells_of(self.model.codes, [reference.codes], by)
        cells, inside = int(cell.max()) + 1, place >= 0
        own, published = direct(self.files.current, cell[self.base], cells), self.figures(cell)
        public = Sample(reference.codes[inside], reference.weight[inside], reference.outcomes[inside])
        units = np.maximum(own.errors, 0.5 * self._expected_errors(cell, published.values))
        return Comparison(
            published,
            own.values,
            np.maximum(units, 2.5e-3 * np.abs(own.values)),
            direct(public, place[inside], cells, own.records),
            self.figures(cell, self.predicted).values,
            None if truth is None else self.figures(cell, truth).values,
            own.records >= 10,
        )

    def _expected_errors(self, cell: Ints, values: Floats) -> Floats:
        """Direct standard errors of counts and means that the prediction lets expect, (cell, 1 + outcome)."""
        cells, base = len(values), np.arange(len(cell))
        adding = scipy.sparse.csr_array((np.ones(len(cell)), (cell, base)), shape=(cells, len(cell)))
        errors = np.sqrt(direct_variances(adding, self.model.count, values[:, 1:], self.system.file.prediction))
        errors[:, 1:] /= np.maximum(values[:, :1], 1e-300)
        return np.asarray(errors)


class Comparison(NamedTuple):
    """A table's figures beside others, (cell, 1 + outcome) each."""

    published: Figures
    direct: Floats
    units: Floats
    """Direct standard errors: the file's, and at least half of what is expected, for a cell without any of the
    population's rare large records shows none; and .0025 of the figure."""
    reference: Figures
    predicted: Floats
    truth: Floats | None
    large: Floats
    """True for cells of ten records."""

    def off(self, values: Floats | None = None) -> Floats:
        """|published - direct|, or that of other values, in units, of large cells."""
        values = self.published.values if values is None else values
        return np.asarray((np.abs(values - self.direct) / self.units)[self.large])

    def covered(self, factor: float = 1.0) -> Floats:
        """Whether 90 % intervals hold the population's figures."""
        assert self.truth is not None
        half = 1.645 * factor * self.published.errors + 1e-9 * np.abs(self.truth)
        return np.asarray((np.abs(self.published.values - self.truth) <= half)[self.large])

    def between(self) -> Floats:
        """Distance from the nearer of direct and reference figures, in standard errors of the difference."""
        own = np.abs(self.published.values - self.direct) / np.hypot(self.published.errors, self.units)
        with np.errstate(invalid="ignore", divide="ignore"):
            other = np.abs(self.published.values - self.reference.values)
            other = other / np.hypot(self.published.errors, np.maximum(self.reference.errors, 1e-9 * self.units))
        return np.asarray(np.fmin(own, other)[self.large])


def summed(size: Floats, means: Floats) -> Floats:
    return np.column_stack([size * means[:, 0], (size * means[:, 0])[:, None] * means[:, 1:]])


def published_variances(posterior: Posterior, rows: Rows) -> Floats:
    """Squared standard errors about the population's figures: those that `resampled` and `noised_again` draw, (row,)."""
    prior, seen, coordinates = posterior.prior, posterior.rows, range(posterior.prior.coordinates)
    rows = placed_in(rows, 0, len(prior.size))

    def sampled(left: Rows, right: Rows) -> scipy.sparse.csr_array:
        parts = [
            left[j] @ scipy.sparse.diags_array(within(posterior, j, k)) @ right[k].T
            for j in coordinates
            for k in coordinates
        ]
        return sum(parts[1:], parts[0])

    across = prior.with_drift(rows, seen)
    gain = scipy.linalg.cho_solve((posterior.root, True), across.T)
    deviations = across - sampled(rows, seen).toarray()
    own = prior_variances(prior, rows) - sampled(rows, rows).diagonal()
    errors = (gain * across.T).sum(axis=0) - 2.0 * (gain * deviations.T).sum(axis=0) + own
    return np.maximum(errors, 0.0) + posterior.further_drift(rows, gain)


def within(posterior: Posterior, j: int, k: int) -> Floats:
    """Covariance of two coordinates by the sample of records, (cell,)."""
    prior, spread = posterior.prior, posterior.prior.spread
    return np.asarray(prior.size * prior.prediction.correlation[j, k] * spread[:, j] * spread[:, k])


def base_cells(codes: Ints) -> tuple[Ints, Ints]:
    """Distinct codes, and the place of every record among them."""
    distinct, place = np.unique(codes, axis=0, return_inverse=True)
    return distinct, place.reshape(-1)


def cells_of(codes: Ints, others: Sequence[Ints], by: Sequence[int]) -> tuple[Ints, list[Ints]]:
    """The table cell of every base cell, and of records of other files; -1 is a cell without a record of the file."""
    every = np.concatenate([codes, *others])[:, list(by)]
    group = np.unique(every, axis=0, return_inverse=True)[1].reshape(-1) if len(by) else np.zeros(len(every), dtype=int)
    cell, *places = np.split(group, np.cumsum([len(codes), *map(len, others)])[:-1])
    present, cell = np.unique(cell, return_inverse=True)
    number = np.full(int(group.max()) + 1, -1)
    number[present] = np.arange(len(present))
    return cell.reshape(-1), [number[place] for place in places]


def model_of(public: Public, files: Files, epsilon: float, gaussian: bool = False) -> ResidualCells:
    """`epsilon` is a loss ρ if noise is Gaussian."""
    codes, base = base_cells(files.current.codes)
    names = tuple(f"c{k}" for k in range(codes.shape[1]))
    number = {tuple(row): k for k, row in enumerate(codes.tolist())}
    place = np.array([number.get(tuple(row), -1) for row in files.reference.codes.tolist()], dtype=int)
    inside, reference = place >= 0, files.reference
    donors = Donors.of(place[inside], reference.weight[inside], reference.outcomes[inside])
    if not inside.all():
        donors = replace(
            donors,
            absent=AbsentRecords(
                names, reference.codes[~inside], reference.weight[~inside], reference.outcomes[~inside]
            ).by(names),
        )
    budget = Fraction(epsilon).limit_denominator(1000)
    query = (NoisyQuery.losing_rho if gaussian else NoisyQuery.losing)("sums", MOVED, budget, "same_x")
    outcomes = tuple(f"y{k}" for k in range(files.current.outcomes.shape[1]))
    means = tuple(Statistic(name="mean", variable=name) for name in outcomes)
    labels = tuple(map(str, range(len(codes))))
    tables = tuple(WorkloadTable(f"t{k}", by) for k, by in enumerate(public.tables))
    return ResidualCells(
        design=Design(labels, tuple(range(len(codes))), np.empty((len(codes), 0)), np.arange(len(codes)), 0),
        outcome_bounds=public.bounds[0],
        labels=labels,
        outcomes=outcomes,
        bounds=public.bounds,
        columns=names,
        levels=tuple(tuple(map(str, range(size))) for size in public.sizes),
        codes=codes,
        count=np.bincount(base).astype(float),
        tables=tables,
        statistics_by_table=tuple((table.name, (Statistic(name="count"), *means)) for table in tables),
        joint=query,
        distance=MOVED.same_x,
        one_weight=True,
        public_weights=public.weights,
        donors=donors,
    )


def widened(
    sums: MeasuredSums,
    base: Ints,
    weight: Floats,
    outcomes: Floats,
    rng: np.random.Generator,
    louder: float = 1.0,
    gaussian: bool = False,
) -> MeasuredSums:
    """The sums after noisy counts of records beyond limits, where the budget has a part for them."""
    part = sums.asked.part_beyond
    if not part:
        return sums
    counts = np.concatenate([one.counts_beyond(base, weight, outcomes, sums.calibrated) for one in sums.limits[1:]])
    deviation = louder * np.sqrt(sums.asked.variance(part)) * UNIT
    noise = rng.standard_normal(counts.shape) if gaussian else rng.laplace(size=counts.shape) / np.sqrt(2.0)
    return sums.widened(counts + deviation * noise)


def release(
    public: Public,
    files: Files,
    epsilon: float,
    seed: int = 0,
    gaussian: bool = False,
    prediction: Prediction | None = None,
    louder: float = 1.0,
    history: tuple[PeriodTotals, ...] = (),
) -> Release:
    """`prediction` is that of an earlier release with the same reference, which it need not learn again. Noise is `louder`
    than stated by a factor, for controls. `history` are totals of earlier periods.
    """
    model = model_of(public, files, epsilon, gaussian)
    model = replace(model, donors=replace(model.donors, history=history)) if history else model
    plan, rng = model.plan, np.random.default_rng(seed)
    if prediction is not None:
        plan.file.__dict__["prediction"] = prediction
    system = plan.asked
    base, current = base_cells(files.current.codes)[1], files.current

    def measured(of_table: TableLimits, prediction: Prediction, part: Fraction) -> Floats:
        added = of_table.contributions(base, current.weight, current.outcomes, prediction)
        cells = len(of_table.size)
        sums = np.column_stack([np.bincount(of_table.cell[base], weights=column, minlength=cells) for column in added.T])
        deviation = louder * np.sqrt(system.variance(part)) * UNIT
        noise = rng.standard_normal(sums.shape) if gaussian else rng.laplace(size=sums.shape) / np.sqrt(2.0)
        return sums + np.rint(noise * deviation)

    noisy = [measured(system.first, system.file.informed, system.parts[0])]
    if part := system.part_of_large:
        threshold = thresholds(system, common_factors(system, model.by_measurement(noisy[0])[0][0]))
        large = UNIT * (2.0 * np.count_nonzero(current.weight > threshold[base]) - len(base))
        of_number = np.random.default_rng((seed, 1))  # draws of its own: other sums keep theirs
        draw = of_number.standard_normal() if gaussian else of_number.laplace() / np.sqrt(2.0)
        system = replace(system, large=float(large + louder * np.sqrt(system.variance(part)) * UNIT * draw))
    sums = widened(model.first_sums(system, noisy[0]), base, current.weight, current.outcomes, rng, louder, gaussian)
    noisy += [measured(one, sums.calibrated, part) for one, part in zip(sums.limits[1:], system.parts[1:], strict=True)]
    every = np.concatenate(noisy)
    return Release(model, files, every, replace(sums, sums=model.by_measurement(every)))


def tables_of(public: Public) -> tuple[tuple[int, ...], ...]:
    """All tables, and that of all records."""
    return tuple(dict.fromkeys((*public.tables, ())))
