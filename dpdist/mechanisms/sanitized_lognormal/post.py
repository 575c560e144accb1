"""Public half of `sanitized_statistics`: a lognormal law from noisy winsorised moments and a reference.

The cells are all combinations of predictors and table columns in the stratum. In each cell log y and log w are normal,
with the cell's own mean and one covariance for all cells. The released parameters of a set are the noisy sums, the
reference's public summary, the fit with the law of its errors, and a draw from this law. Tables from parameters use the
fit. Synthetic records, by FBS or FBP, use the draw. Draws need only the noisy sums, so further sets cost no ε (METHODS
§8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpdist.core.keys import WRITTEN
from dpdist.core.records import UNIT, Codes, Crosstab, Floats, Ints
from dpdist.estimation.least_squares import shrink
from dpdist.estimation.linear import symmetric_root
from dpdist.job import Job, NoiseName
from dpdist.mechanisms.parts import GAUSSIAN, LAPLACE, NO_LIMITS, Figures, Words, cells_of
from dpdist.mechanisms.sanitized_lognormal.sensitivity import (
    MOVED_2,
    REACH,
    SHARE,
    Whitening,
    WinsorisedMoments,
    moments,
    noise_variances,
    whitened_sums,
)
from dpdist.mechanisms.sanitized_lognormal.spec import SanitizedStatistics
from dpdist.models.lognormal.conjugate import conjugate_prior, draws_of
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.protocol import Draws, Improper, Parameter, ReferenceRecords, ReleaseView
from dpdist.models.public_model import PublicModel, cell_counts, counted_again, design, patterns
from dpdist.privacy.guarantees import neighbour_of

# This is post-processing of the released sums with a reference. All figures are whitened, in units of C reference
# standard deviations. The current file is modelled as the reference's residuals x, stretched by one symmetric matrix T
# and shifted by each cell's δ. A cell's measured mean has sampling error of variance σ² and noise of variance ν². True
# means vary about the common shift by the variance A between cells and the reference's error variance ρ². A cell keeps
# the part k = (A + ρ² + σ²)/(A + ρ² + σ² + ν²) of its distance from the common shift. This estimates the mean without
# noise. Then δ and T are solved so that the reference's residuals have the winsorised moments.
KEPT = 2_000
"""Number of a reference's residuals that represent all of them."""
LARGEST_SHIFT = 3.0 / REACH
"""Largest shift of a cell in either direction: three reference standard deviations."""
STRETCH = (0.5, 2.0)
"""Public range of T's eigenvalues; the covariance then has between a quarter and four times the reference's eigenvalues."""
ROUNDS, NEWTON_STEP, DONE = 60, 1e-2, 1e-10
"""Largest number of iterations, step of the numerical derivatives, and tolerance."""
CONSTANT = (
    "log outcome or log weight is the same in every cell's reference records, or one is a linear function of the other"
)


class ReferenceMoments(NamedTuple):
    """Summary of the reference.

    It has the whitening; residuals (residual, 2) with mean 0 and covariance 1/C²; and numbers of records (cell,).
    """

    whitening: Whitening
    residuals: Floats
    records: Ints


class InvertedFit(NamedTuple):
    """The fit, δ (cell, 2) and T (2, 2), and the law of its errors.

    - `own_weight`: k, (cell, 2). `share`: the weight of each cell in the common shift, (cell, 2).
    - `prior`, `sampling`, `noise`: the variances A + ρ², σ² and ν² of the cells' means, (cell, 2).
    - `rate`: derivative of δ by the mean winsorised location, (2, 2).
    - `tail`: covariance of δ's error from the reference's tails, (2, 2).
    - `scatter_sampling`, `scatter_noise`: covariances of T's three entries from sampling and from noise, (3, 3).
    """

    shift: Floats
    stretch: Floats
    own_weight: Floats
    share: Floats
    prior: Floats
    sampling: Floats
    noise: Floats
    rate: Floats
    tail: Floats
    scatter_sampling: Floats
    scatter_noise: Floats


def whitening_of(cell: Ints, outcome: Floats, weight: Floats, cells: int) -> ReferenceMoments:
    """The whitening from a reference's records. Raises `Improper` if logarithms have no covariance within cells."""
    z, count = np.log(np.column_stack([outcome, weight])), np.bincount(cell, minlength=cells)
    centre = np.column_stack([np.bincount(cell, weights=column, minlength=cells) for column in z.T]) / count[:, None]
    residual = z - centre[cell]
    scatter = residual.T @ residual / max(1, len(z) - cells)
    deviation = np.sqrt(np.diag(scatter))
    if not (deviation > 1e-6).all() or abs(scatter[0, 1]) > (1.0 - 1e-9) * deviation.prod():
        raise Improper(CONSTANT)
    sample = residual[np.linspace(0, len(residual) - 1, min(KEPT, len(residual))).astype(np.int64)]
    sample = sample - sample.mean(axis=0)
    root = np.linalg.cholesky(sample.T @ sample / len(sample) + 1e-12 * np.diag(np.diag(scatter)))
    whitened = np.linalg.solve(root, sample.T).T / REACH
    return ReferenceMoments(Whitening(centre, np.linalg.inv(np.linalg.cholesky(scatter))), whitened, count)


def fit(
    whitening: ReferenceMoments, moments: WinsorisedMoments, count: Floats, noise: tuple[float, Floats], shrinkage: bool
) -> InvertedFit:
    """Fits δ and T; `count` is the current file's public sizes (cell,), and `noise` the variances of the moments' noise."""
    n, x = float(count.sum()), whitening.residuals
    within = _winsorise(x)
    sampling, earlier = (within.var(axis=0) / size[:, None] for size in (count, whitening.records))
    noisy = np.repeat(noise[0] / count[:, None] ** 2, 2, axis=1)
    location = moments.location / count[:, None]
    own_weight, centre, spread = np.ones_like(location), location, np.zeros(2)
    if shrinkage and len(count) > 2:
        parts = [shrink(location[:, k], (sampling + earlier)[:, k], noisy[:, k]) for k in range(2)]
        own_weight, centre = (np.column_stack([part[i] for part in parts]) for i in range(2))
        spread = np.array([part.drift for part in parts])
    prior = spread + earlier
    precision = 1.0 / (prior + sampling + noisy)
    share = precision / precision.sum(axis=0)
    first, second = (count / n) @ (prior - own_weight**2 / precision)
    scatter = moments.scatter / n - np.array([first + second, first - second, 0.0])
    rate, bend = _slopes(x)
    shift, stretch = _solve(x, np.clip(centre, -1.0, 1.0), scatter, count / n, rate, bend)
    influence = (_terms(within) - _terms(within).mean(axis=0)) @ bend.T
    direct = np.column_stack([x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2]) * REACH**2 / 2.0
    records = float(whitening.records.sum())
    beyond = np.cov((direct - direct.mean(axis=0) - influence).T) / records
    sampled, noised = np.cov(influence.T) / n + beyond, bend @ np.diag(noise[1] / n**2) @ bend.T
    tail = np.cov((x - (within - within.mean(axis=0)) @ rate.T).T) / records
    return InvertedFit(shift, stretch, own_weight, share, prior, sampling, noisy, rate, tail, sampled, noised)


def sampling_errors(fit: InvertedFit, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Errors of δ (draw, cell, 2) and T (draw, 2, 2) under other samples of both files and another drift."""
    shape = (draws, *fit.shift.shape)
    true = np.sqrt(fit.prior) * rng.standard_normal(shape)
    error = _shrunken(fit, true + np.sqrt(fit.sampling) * rng.standard_normal(shape)) - true
    tail = rng.standard_normal((draws, 1, 2)) @ symmetric_root(fit.tail)
    entries = rng.standard_normal((draws, 3)) @ symmetric_root(fit.scatter_sampling)
    return error @ fit.rate.T + tail, _symmetric(entries)


def noise_errors(fit: InvertedFit, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Errors of δ (draw, cell, 2) and T (draw, 2, 2) under other noise."""
    shift_errors = moved_by(fit, np.sqrt(fit.noise) * rng.standard_normal((draws, *fit.shift.shape)))
    entries = rng.standard_normal((draws, 3)) @ symmetric_root(fit.scatter_noise)
    return shift_errors, _symmetric(entries)


def moved_by(fit: InvertedFit, values: Floats) -> Floats:
    """Changes of δ that follow from changes of the cells' own mean locations, (draw, cell, 2)."""
    return np.asarray(_shrunken(fit, values) @ fit.rate.T)


def _shrunken(fit: InvertedFit, values: Floats) -> Floats:
    """Changes of cells' own means after shrinkage, (draw, cell, 2)."""
    common = (fit.share * values).sum(axis=1, keepdims=True)
    return np.asarray(common + fit.own_weight * (values - common))


def clip_eigenvalues(stretch: Floats) -> Floats:
    """T (…, 2, 2) with its eigenvalues clipped to their public range."""
    values, vectors = np.linalg.eigh(stretch)
    return np.asarray((vectors * np.clip(values, *STRETCH)[..., None, :]) @ vectors.swapaxes(-1, -2))


def _solve(
    x: Floats, location: Floats, scatter: Floats, share: Floats, rate: Floats, bend: Floats
) -> tuple[Floats, Floats]:
    """δ and T under which the residuals x have the given winsorised moments, or the nearest moments in range."""
    shift, stretch = np.zeros_like(location), np.eye(2)
    for _ in range(ROUNDS):
        residuals = x @ stretch
        pending, sums_of_terms = location.copy(), np.zeros(3)
        for k, cell_shift in enumerate(shift):
            within = _winsorise(residuals + cell_shift)
            pending[k] -= within.mean(axis=0)
            sums_of_terms += share[k] * _terms(within).mean(axis=0)
        before, shift = shift, np.clip(shift + pending @ rate.T, -LARGEST_SHIFT, LARGEST_SHIFT)
        old, stretch = stretch, clip_eigenvalues(stretch + _symmetric(bend @ (scatter - sums_of_terms)))
        if max(np.abs(shift - before).max(), np.abs(stretch - old).max()) < DONE:
            break
    return shift, stretch


def _slopes(x: Floats) -> tuple[Floats, Floats]:
    """Derivatives at the reference: of δ by mean winsorised location, (2, 2), and of T's entries by scatter, (3, 3)."""
    steps = NEWTON_STEP * np.eye(2)
    location = [(_winsorise(x + e) - _winsorise(x - e)).mean(axis=0) / (2.0 * NEWTON_STEP) for e in steps]
    entries = [_symmetric(NEWTON_STEP * e) for e in np.eye(3)]
    ends = [[_terms(_winsorise(x @ (np.eye(2) + sign * e))).mean(axis=0) for sign in (1.0, -1.0)] for e in entries]
    scatter = [(high - low) / (2.0 * NEWTON_STEP) for high, low in ends]
    return np.linalg.inv(np.array(location).T), np.linalg.inv(np.array(scatter).T)


def _winsorise(x: Floats) -> Floats:
    """Points shortened to length 1 where they are longer, (record, 2)."""
    return np.asarray(x / np.maximum(1.0, np.hypot(x[:, 0], x[:, 1]))[:, None])


def _terms(p: Floats) -> Floats:
    """(|p|², p₁² − p₂², 2p₁p₂) of every record."""
    first, second = p[:, 0] ** 2, p[:, 1] ** 2
    return np.column_stack([first + second, first - second, 2.0 * p[:, 0] * p[:, 1]])


def _symmetric(entries: Floats) -> Floats:
    """The symmetric matrices [[a, b], [b, d]] of entries (…, 3)."""
    return np.asarray(entries[..., [0, 1, 1, 2]].reshape(*entries.shape[:-1], 2, 2))


STEP = 0.05
"""Step of the numerical derivative of the fit, in the logarithm of sample counts."""
SUMS = ("p1", "p2")
"""Names of the sums of each cell."""
SCATTER = ("1 - |p|^2", "p1^2 - p2^2", "2 p1 p2")
"""Names of the sums over all cells."""
FIT_AGAIN = (
    "Estimates from the released parameters (estimator `parameters`): standard errors include the variation in the "
    "sample's composition by cells and the error of the fit. The error of the fit comprises the sampling error of the "
    "winsorised moments, the privacy noise, the sampling error of the reference for cells that were shrunk towards the "
    "others, and the error in the reference's tails. The standard errors do not include the bias that arises if records "
    "are not lognormal."
)
SETS_DRAWN = (
    "Estimates from the synthetic records (estimator `records`): the variance is V + (V + W)/m, where m is the number of "
    "sets, V is the variance of the fitted estimate, which all sets share, and W is the variance within a set, computed "
    "by linearisation."
)
INVERTED = (
    "To correct for winsorising, each cell of the reference is shifted and all log values are rescaled until the moments "
    "of the winsorised reference match the noisy moments. The shifts of cells {}. In every direction, log values are "
    "rescaled by a factor between 1/2 and 2. Tables from parameters use the fit itself; synthetic sets use draws from "
    "the distribution of its errors."
)
SHRUNK = {True: "are shrunk towards a common value, and noisier cells are shrunk more", False: "are not shrunk"}
WORDS = Words(
    errors=FIT_AGAIN,
    errors_of_records=SETS_DRAWN,
    settings={"shrinkage": {shrunk: INVERTED.format(how) for shrunk, how in SHRUNK.items()}},
)
DEFINITIONS = {
    "p1": f"location: the share {SHARE} of the budget; p = A (log y, log w)' less the reference's mean, over {REACH:g}, "
    "shortened to length 1; A is `whitening` and the mean is `reference` in released/set-1.json",
    "p2": "as p1, of the second component",
    "1 - |p|^2": "scatter, over all cells of the stratum: the other share of the budget",
    "p1^2 - p2^2": "as 1 - |p|^2",
    "2 p1 p2": "as 1 - |p|^2",
}


class CellLognormal(Lognormal):
    """A lognormal law whose coefficients are the means of the cells themselves."""

    def _means(self, draws: Draws) -> Floats:
        return draws["coefficients"]


@dataclass(frozen=True)
class SanitizedLognormal(PublicModel):
    """Cells of one stratum, with the reference's summary once it is known."""

    labels: tuple[str, ...]
    count: Floats
    """Sample records of every cell, public."""
    scale: Fraction
    """Scale of the noise on a sum, in units of 1/UNIT."""
    shrinkage: bool
    law: CellLognormal
    noise: NoiseName
    whitened: ReferenceMoments | None = field(default=None, metadata={WRITTEN: "told"})
    noisy_counts: bool = False
    """True if sample counts have noise too (`predictors: {protect}`)."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> SanitizedLognormal:
        named = dict.fromkeys([*(() if crosstab.strata else job.strata), *job.likelihood_predictors, *job.cell_columns])
        columns = tuple(name for name in named if name not in crosstab.strata)
        cells, of_cells = design(crosstab, columns, rows), patterns(crosstab, columns, rows)
        labels, count, lognormal = of_cells.names, cell_counts(crosstab, rows, cells), Lognormal.build(job, crosstab, rows)
        law = CellLognormal(
            of_cells,
            conjugate_prior(job, lognormal.design, True),
            *(
                lognormal.components,
                lognormal.synthesis,
                lognormal.fixed_weight,
                lognormal.outcome_bounds,
                lognormal.expected,
            ),
        )
        settings = SanitizedStatistics.of(job)
        noise, shrinkage, noisy = settings.noise, settings.shrinkage, job.noisy_crosstab
        scale = whitened_sums(job, noise).scale
        return cls(cells, lognormal.outcome_bounds, labels, count, scale, shrinkage, law, noise, noisy_counts=noisy)

    @property
    def identified(self) -> int:
        return len(self.labels)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cell, logs = ("cell", self.labels), tuple(f"log {name}" for name in self.law.components)
        component, other, axis = ("component", logs), ("other_component", logs), ("axis", ("1", "2"))
        entry, errs = ("entry", ("11", "12", "22")), ("error", ("kept", "share", "prior", "sampling", "noise"))
        return (
            Parameter("sums", (cell, ("sum", SUMS))),
            Parameter("scatter", (("scatter_sum", SCATTER),)),
            Parameter("reference", (cell, component), "natural logarithm"),
            Parameter("whitening", (axis, component)),
            Parameter("means", (cell, component), "natural logarithm"),
            Parameter("covariance", (component, other), "natural logarithm"),
            Parameter("drawn_means", (cell, component), "natural logarithm"),
            Parameter("drawn_covariance", (component, other), "natural logarithm"),
            Parameter("shift", (cell, axis)),
            Parameter("stretch", (axis, ("other_axis", ("1", "2")))),
            Parameter("errors", (cell, errs, axis)),
            Parameter("rate", (axis, ("other_axis", ("1", "2")))),
            Parameter("tail", (axis, ("other_axis", ("1", "2")))),
            Parameter("scatter_sampling", (entry, ("other_entry", entry[1]))),
            Parameter("scatter_noise", (entry, ("other_entry", entry[1]))),
            *((Parameter("elasticity", (axis, ("other_axis", ("1", "2")))),) if self.noisy_counts else ()),
        )

    def learned(self, records: ReferenceRecords, copied: pa.Table | None = None) -> ReferenceMoments:
        """The summary of a reference's records. Raises `Improper`."""
        cell = self.pattern(records.row).astype(np.int64)
        return whitening_of(cell, records.outcome, records.weight, len(self.labels))

    def law_of(self, records: ReferenceRecords) -> Draws:
        """The law of a reference's records, without noise, as parameters for `expect`. Raises `Improper`."""
        whitening = self.learned(records).whitening
        root = np.linalg.inv(whitening.matrix)
        return Draws({"means": whitening.centre[None], "covariance": (root @ root.T)[None]})

    def with_moments(self, whitening: ReferenceMoments) -> SanitizedLognormal:
        return replace(self, whitened=whitening)

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Parameters of synthetic sets from noisy `released` sums: all sets share the fit; each has its own draw."""
        assert self.whitened is not None
        solved = self._fit(statistics, self.whitened, self.count)
        by_column = {
            "sums": statistics[:-3].reshape(-1, 2),
            "scatter": statistics[-3:],
            "reference": self.whitened.whitening.centre,
            "whitening": self.whitened.whitening.matrix,
            "shift": solved.shift,
            "stretch": solved.stretch,
            "errors": np.stack([solved.own_weight, solved.share, solved.prior, solved.sampling, solved.noise], axis=1),
            "rate": solved.rate,
            "tail": solved.tail,
            "scatter_sampling": solved.scatter_sampling,
            "scatter_noise": solved.scatter_noise,
        }
        if self.noisy_counts:
            more, less = (self._fit(statistics, self.whitened, self.count * step).stretch for step in np.exp([STEP, -STEP]))
            by_column["elasticity"] = (more - less) / (2.0 * STEP)
        values = {name: np.repeat(value[None], draws, axis=0) for name, value in by_column.items()}
        fitted = Draws({name: value[:1] for name, value in values.items()})
        centre, varied = (
            self._laws(fitted, solved.shift[None], solved.stretch[None]),
            self._varied(fitted, draws, rng),
        )
        values |= {"means": np.repeat(centre["coefficients"], draws, axis=0)}
        values |= {"covariance": np.repeat(centre["covariance"], draws, axis=0)}
        values |= {"drawn_means": varied["coefficients"], "drawn_covariance": varied["covariance"]}
        return Draws({parameter.name: values[parameter.name] for parameter in self.parameters})

    def _fit(self, statistics: Floats, whitened: ReferenceMoments, count: Floats) -> InvertedFit:
        """The fit from noisy sums, under sample counts (cell,)."""
        noise = noise_variances(self.scale, self.noise)
        return fit(whitened, moments(statistics, float(count.sum()), self.noise), count, noise, self.shrinkage)

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row under the fit, (draw, row) each."""
        return self.law.expect(draws_of(theta["means"], theta["covariance"]))

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value` under the fit, (draw, pair)."""
        return self.law.until(draws_of(theta["means"], theta["covariance"]), row, value, outcome)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        return self.law.simulate(draws_of(theta["drawn_means"], theta["drawn_covariance"]), crosstab_row, rng)

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The fit under other samples of the reference and of the current file, without noise, for standard errors only."""
        return self._about(theta, *sampling_errors(_fitted(theta), draws, rng))

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The fit under other noise, which all sets share."""
        return self._about(theta, *noise_errors(_fitted(theta), draws, rng))

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The fit from the same sums under other sample counts (draw, row), by the delta method.

        A cell's mean location is inversely proportional to its count, and the stretch depends on the total of counts.
        """
        count, as_released = counted_again(self.design, counts), _fitted(theta)
        sums = np.concatenate([theta["sums"][0].reshape(-1), theta["scatter"][0]])
        location = moments(sums, float(self.count.sum()), self.noise).location / self.count[:, None]
        shift = moved_by(as_released, (self.count / count - 1.0)[..., None] * location)
        of_total = np.log(count.sum(axis=1) / self.count.sum())
        return self._about(theta, shift, of_total[:, None, None] * theta["elasticity"][0])

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        root, law = ("√", "Gaussian, σ =") if self.noise == "gaussian" else ("", "Laplace, scale")
        shares = f"location weighted by {root}{SHARE}, scatter by {root}{1 - SHARE}"
        weighed = f"{shares}; p, a record's two standardised logarithms, limited to {REACH:g} reference standard deviations"
        law = f"discrete {law} {self.scale}, in units of 1/{UNIT}"
        return {**super().describe(theta), "statistics": weighed, "noise_law": law}

    def _varied(self, theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
        """Draws from the law of all errors of the fit."""
        as_released = _fitted(theta)
        both = sampling_errors(as_released, draws, rng), noise_errors(as_released, draws, rng)
        shift, bent = (value + error for value, error in zip(*both, strict=True))
        return self._laws(theta, as_released.shift + shift, as_released.stretch + bent)

    def _about(self, theta: Draws, shift: Floats, bent: Floats) -> Draws:
        """The law after released shifts change by `shift` (draw, cell, 2) and the stretch by `bent` (draw, 2, 2)."""
        varied = self._laws(theta, theta["shift"][0] + shift, theta["stretch"][0] + bent)
        return Draws({"means": varied["coefficients"], "covariance": varied["covariance"]})

    def _laws(self, theta: Draws, shift: Floats, stretch: Floats) -> Draws:
        """Means of cells and covariances of logarithms, from shifts (draw, cell, 2) and stretches (draw, 2, 2)."""
        root = np.linalg.inv(theta["whitening"][0])
        means = theta["reference"][0] + REACH * shift @ root.T
        bent = root @ clip_eigenvalues(stretch)
        return draws_of(means, bent @ bent.swapaxes(-1, -2))


def _fitted(theta: Draws) -> InvertedFit:
    """The fit and the law of its errors, as released."""
    names = ("rate", "tail", "scatter_sampling", "scatter_noise")
    law = theta["errors"][0].transpose(1, 0, 2)
    return InvertedFit(theta["shift"][0], theta["stretch"][0], *law, *(theta[name][0] for name in names))


def model_of(job: Job) -> type[SanitizedLognormal]:
    """The model of every job under the mechanism."""
    return SanitizedLognormal


def figures(release: ReleaseView, model: SanitizedLognormal, stratum: int, theta: Draws) -> Iterator[Figures]:
    law = GAUSSIAN if model.noise == "gaussian" else LAPLACE
    distance = float(MOVED_2.by(neighbour_of(release.job)) / UNIT) if law == GAUSSIAN else None
    cells, (sums, scatter) = cells_of(release, model, stratum), (p.dims[-1][1] for p in model.parameters[:2])
    of_stratum = {name: level for name, level in cells[0].items() if name in release.crosstab.strata}
    kinds = ((cells, sums, theta["sums"][0]), ([of_stratum], scatter, theta["scatter"][0][None]))
    for where, statistics, values in kinds:
        scales = [model.scale] * len(statistics)
        yield Figures(where, statistics, values, scales, lambda *_: NO_LIMITS, law=law, sensitivity=distance)
