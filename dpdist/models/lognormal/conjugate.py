"""Conjugate posterior of a normal regression, given α-weighted sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.linalg import LinAlgError

from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Ints
from dpdist.job import Job
from dpdist.models.numerics.chi import ChiLevels
from dpdist.models.numerics.tiles import TILE_VALUES, by_pattern
from dpdist.models.protocol import Draws, Improper, StratumModel
from dpdist.models.public_model import Design


# Z (record, D) are the components, X (record, predictor) the p predictors, and A = diag(α) the privacy weights. The law is
# Z | X ~ N(XB, Σ). A proper prior has the location B₀, the precision P, the scale V and the number of records n₀. The
# improper prior |Σ|^(−(D+1)/2) has P = 0 and V = 0. Then
#
#     K = X'AX + P, B̂ = K⁻¹(X'AZ + PB₀), S = Z'AZ + B₀'PB₀ − B̂'KB̂ + V, ν = Σα + n₀ (improper: Σα − p),
#     Σ ~ IW(ν, S), B | Σ ~ MN(B̂, K⁻¹, Σ).
#
# Under the improper prior the posterior is proper if and only if Σα > p + D − 1.
@dataclass(frozen=True)
class ConjugatePrior:
    """Prior B | Σ ~ MN(location, precision⁻¹, Σ) and Σ ~ IW(records, scale); it is improper if records = 0."""

    records: float
    scale: Floats
    location: Floats
    precision: Floats

    @cached_property
    def cross(self) -> Floats:
        """PB₀, (predictor, D)."""
        return np.asarray(self.precision @ self.location)

    @cached_property
    def square(self) -> Floats:
        """B₀'PB₀, (D, D)."""
        return np.asarray(self.location.T @ self.cross)


def conjugate_prior(job: Job, matrix: Design, proper: bool) -> ConjugatePrior:
    """The prior of one stratum's model: the improper one, or the weak proper one if `proper`.

    The job states the number of records that the proper prior is worth, and the standard deviation of logarithms. The
    prior of the intercept is worth as many records if the job states a location for every component, else 1e-4 records.
    """
    p, d = len(matrix.columns), len(job.components)
    location, precision, prior = np.zeros((p, d)), np.zeros((p, p)), job.likelihood.prior
    if not proper:
        return ConjugatePrior(0.0, np.zeros((d, d)), location, precision)
    has_location = [c in prior.location for c in job.components]
    for component, column in enumerate(job.components):
        location[0, component] = np.log(prior.location.get(column, 1.0))
    np.fill_diagonal(precision, 1.0)
    precision[0, 0] = prior.records if all(has_location) else 1e-4
    return ConjugatePrior(prior.records, prior.records * prior.log_sd**2 * np.eye(d), location, precision)


N = TypeVar("N", float, Floats)
TOO_SMALL = "the privacy weights are so small that some draws of the covariance are numerically singular"
SINGULAR = 1e-11
"""Relative size below which a pivot, a residual variance or 1 − ρ² counts as rounding error."""


class Standard(NamedTuple):
    """Random numbers that do not depend on the posterior.

    They are levels of D χ laws, standard normals above the diagonal (D(D−1)/2, draw), and those of coefficients
    (predictor, D × draw).
    """

    levels: ChiLevels
    normals: Floats
    noise: Floats


@dataclass(frozen=True)
class Conjugate(StratumModel):
    """The posterior for one stratum; its statistics are sums of α(1, z, zz') by pattern.

    A pattern is a combination of predictor levels, and z are a record's components. The shape is (pattern, 1 + D +
    D(D+1)/2).
    """

    design: Design
    prior: ConjugatePrior

    @property
    def dimension(self) -> int:
        """Number D of components."""
        return len(self.prior.scale)

    @property
    def identified(self) -> int:
        return len(self.design.columns)

    @property
    def improper(self) -> bool:
        return self.prior.records == 0

    @property
    def least(self) -> int:
        """The bound p + D − 1; under the improper prior, a posterior needs a larger Σα."""
        return self.identified + self.dimension - 1

    def centre(self, statistics: Floats) -> Draws:
        """B̂ and S/ν for many sets of statistics (set, pattern, statistic)."""
        x, prior, d = self.design.matrix, self.prior, self.dimension
        sums = statistics.sum(axis=1)
        pairs = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        k = (statistics[:, :, 0] @ pairs).reshape(-1, *prior.precision.shape) + prior.precision
        xz = x.T @ statistics[:, :, 1 : d + 1] + prior.cross
        zz = sums[:, d + 1 :][:, unpacked(d)] + prior.square
        b_hat = np.linalg.solve(k, xz)
        scale = zz - b_hat.transpose(0, 2, 1) @ xz + prior.scale
        coefficients = np.full((len(statistics), len(self.design.names), d), np.nan)
        coefficients[:, self.design.columns, :] = b_hat
        return draws_of(coefficients, scale / self._degrees(sums[:, 0])[:, None, None])

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Exact draws by inverse distribution functions. Raises `Improper` also where a draw exceeds double precision."""
        return self.draw_from(statistics, self.standard(draws, rng))

    def standard(self, draws: int, rng: np.random.Generator) -> Standard:
        """Random numbers of draws, of which every posterior of this model is a function."""
        p, d = self.identified, self.dimension
        normals = d * (d - 1) // 2
        uniforms = np.ascontiguousarray(open_uniforms(rng, (draws, d + normals + p * d)).T)
        above, noise = np.split(scipy.special.ndtri(uniforms[d:]), [normals])
        return Standard(ChiLevels.of(uniforms[:d]), above, noise.reshape(p, d * draws))

    def draw_from(self, statistics: Floats, standard: Standard) -> Draws:
        """`draw` with known random numbers."""
        p, d = self.identified, self.dimension
        root_k, b_hat, root_s, nu = self.posterior(statistics)
        chi = standard.levels.quantiles(np.array([nu - k for k in range(d)]))
        if not chi.min() > 1e-30:
            raise Improper(TOO_SMALL)
        draws = chi.shape[1]  # arrays have the draws last: products of many small matrices are sums of long rows
        root = (root_s @ inverse_bartlett(chi, standard.normals).reshape(d, d * draws)).reshape(d, d, draws)
        flat, _ = scipy.linalg.lapack.dtrtrs(root_k, standard.noise, lower=1, trans=1)
        spread = flat.reshape(p, 1, d, draws)
        coefficients = np.full((draws, len(self.design.names), d), np.nan)
        coefficients[:, self.design.columns, :] = (b_hat[:, :, None] + (root * spread).sum(axis=2)).transpose(2, 0, 1)
        covariance = np.ascontiguousarray((root[:, None] * root).sum(axis=2).transpose(2, 0, 1))
        if not np.all(independence(covariance) > SINGULAR):
            raise Improper(TOO_SMALL)
        return draws_of(coefficients, covariance)

    def log_evidence(self, statistics: Floats) -> float:
        """log ∫ π(θ) ∏ p(record | θ)^α dθ, up to a constant of model and prior; raises `Improper`."""
        root_k, _, root_s, nu = self.posterior(statistics)
        d = self.dimension
        log_k, log_s = (2.0 * float(np.log(np.diag(root)).sum()) for root in (root_k, root_s))
        scatter = nu * d / 2.0 * np.log(2.0) + scipy.special.multigammaln(nu / 2.0, d) - nu / 2.0 * log_s
        return float(scatter - d / 2.0 * log_k - d / 2.0 * LOG_2PI * statistics[:, 0].sum())

    def posterior(self, statistics: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Cholesky root of K, B̂ (predictor, component), Cholesky root of S, and ν; raises `Improper`."""
        x, prior, d = self.design.matrix, self.prior, self.dimension
        sums = statistics.sum(axis=0)
        total = float(sums[0])
        if self.improper and not total > self.least:
            least = f"p + {d - 1} = {self.least}"
            raise Improper(f"the privacy weights sum to no more than {least}, so the posterior is improper")
        k = (x.T * statistics[:, 0]) @ x + prior.precision
        xz = x.T @ statistics[:, 1 : d + 1] + prior.cross
        zz = sums[d + 1 :][unpacked(d)] + prior.square
        try:
            root_k = _cholesky(k)
            if (root_k.diagonal() ** 2 <= SINGULAR * k.diagonal()).any():
                raise LinAlgError("a pivot that is rounding error")
            b_hat, _ = scipy.linalg.lapack.dpotrs(root_k, xz, lower=1)
            scale = zz - b_hat.T @ xz
            if self.improper and (scale.diagonal() <= SINGULAR * zz.diagonal()).any():
                raise Improper("outcome or weight has no variation left within the predictors' groups")
            root_s = _cholesky((scale + scale.T) / 2.0 + prior.scale)
        except LinAlgError:
            reason = (
                "all privacy weights in some predictor's group are 0, or log weight is a linear function of log outcome"
            )
            raise Improper(reason) from None
        return root_k, b_hat, root_s, self._degrees(total)

    def _degrees(self, total: N) -> N:
        return total + self.prior.records - (self.identified if self.improper else 0)


def _cholesky(matrix: Floats) -> Floats:
    """The lower root of a small matrix, by LAPACK: SciPy's checks take ten times as long. Raises `LinAlgError`."""
    root, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1)
    if failed or not np.isfinite(root).all():
        raise LinAlgError("not positive definite")
    return np.asarray(root)


def draws_of(coefficients: Floats, covariance: Floats) -> Draws:
    return Draws({"coefficients": coefficients, "covariance": covariance})


# A log density is a dot product of the record's features (1, u, uu') with a table over draws, as with one outcome
# (`model.bivariate_factors`). The products are computed tile by tile, as matrix products.
LOG_2PI = float(np.log(2.0 * np.pi))
UNIT = 8.0 * float(np.finfo(float).eps)
"""Relative error allowed per term of the density and per component of the mean, at a condition number of 1."""


@cache
def unpacked(d: int) -> Ints:
    """Position of the pair of components (i, j) among the pairs i ≤ j, row by row, (D, D)."""
    place = np.zeros((d, d), dtype=np.int64)
    upper = np.triu_indices(d)
    place[upper] = np.arange(len(upper[0]))
    return np.maximum(place, place.T)


def features_of_many(u: Sequence[Floats]) -> Floats:
    products = [first * second for k, first in enumerate(u) for second in u[k:]]
    return np.array([np.ones(len(u[0])), *u, *products])


def inverse_bartlett(chi: Floats, normals: Floats) -> Floats:
    """Inverses U = T⁻¹, (D, D, draw), of upper triangular matrices T, from which inverse Wishart draws follow (Bartlett).

    T has χ (D, draw) on its diagonal and `normals` (D(D−1)/2, draw) above it. If χ_k has ν − k degrees of freedom, k = 0
    … D−1, then T'T ~ W(ν, I). So (LU)(LU)' ~ IW(ν, LL').
    """
    d, draws = chi.shape
    above = np.zeros((d, d, draws))
    above[_above(d)] = normals
    inverse = np.zeros((d, d, draws))
    for j in range(d):
        inverse[j, j] = 1.0 / chi[j]
        for i in reversed(range(j)):
            total = above[i, j].copy()
            for k in range(i + 1, j):
                total += above[i, k] * inverse[k, j] * chi[j]
            inverse[i, j] = -total / (chi[i] * chi[j])
    return inverse


@cache
def _above(d: int) -> tuple[Ints, Ints]:
    """Rows and columns of the entries above the diagonal."""
    row, column = np.triu_indices(d, 1)
    return row, column


def correlations(covariance: Floats) -> Floats:
    """Correlation matrices, (draw, D, D)."""
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    return np.asarray(covariance / (sd[:, :, None] * sd[:, None, :]))


def independence(covariance: Floats) -> Floats:
    """1 − ρ² for two components, otherwise the smallest eigenvalue of the correlation matrix, (draw,).

    It is NaN if the matrix is not finite.
    """
    if covariance.shape[1] == 2:
        c = covariance
        return np.asarray(1.0 - c[:, 0, 1] ** 2 / (c[:, 0, 0] * c[:, 1, 1]))
    correlation = correlations(covariance)
    least = np.full(len(covariance), np.nan)
    finite = np.isfinite(correlation).all(axis=(1, 2))
    least[finite] = np.linalg.eigvalsh(correlation[finite])[:, 0]
    return least


def factors_of_many(
    means: Floats, covariance: Floats, z: Sequence[Floats], pattern: Codes
) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
    """Yields the log densities of each pattern's records as in `bivariate_factors`, of `means` (draw, pattern, D) and D
    arrays `z` (record,).
    """
    d = covariance.shape[1]
    upper = np.triu_indices(d)
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    correlation = correlations(covariance)
    inverse = np.linalg.inv(correlation)
    precision = (inverse + inverse.transpose(0, 2, 1)) / 2.0 / (sd[:, :, None] * sd[:, None, :])
    peak = -0.5 * (d * LOG_2PI + np.linalg.slogdet(correlation)[1]) - np.log(sd).sum(axis=1)
    eigenvalues = np.linalg.eigvalsh(correlation)
    # With several outcomes the precision errs by more than with one. Let R be the correlation matrix. An entry (i, j) is at
    # most |R⁻¹|/(sd_i sd_j), in the spectral norm; its relative error is at most R's condition number times a few units in
    # the last place.
    size = 1.0 / (sd * np.sqrt(eigenvalues[:, :1]))
    entries = (size[:, :, None] * size[:, None, :]).max(axis=0)
    rounding = d * UNIT * float((eigenvalues[:, -1] / eigenvalues[:, 0]).max())
    doubled = np.where(upper[0] == upper[1], 0.5, 1.0)
    logs = float(np.abs(np.log(sd)).sum(axis=1).max())
    for rows, number in by_pattern(pattern):
        centre = means[:, number].mean(axis=0)
        mean = means[:, number] - centre
        linear = np.einsum("sij,sj->si", precision, mean)
        constants = peak - 0.5 * (mean * linear).sum(axis=1)
        table = np.array([constants, *linear.T, *(-doubled * precision[:, *upper]).T])
        u = [values[rows] - middle for values, middle in zip(z, centre, strict=True)]
        products, away = features_of_many(u), np.abs(np.array(u))
        shift = np.abs(mean).max(axis=0)
        slope = entries @ (away + shift[:, None])
        magnitude = ((away + shift[:, None]) * slope).sum(axis=0)
        location = float(np.abs(means[:, number]).max())
        slack = rounding * (d * LOG_2PI + logs + np.abs(peak).max() + magnitude)
        yield rows, products, table, slack + UNIT * location * slope.sum(axis=0)


def extremes_of_many(bounds: Floats, table: Floats) -> tuple[Floats, Floats]:
    """The largest and smallest φ(i)·T(s) over draws s, (record,) each; NaN if a value is NaN.

    `bounds` is φ (feature, record), and `table` is T (feature, draw).
    """
    records, draws = bounds.shape[1], table.shape[1]
    highest, lowest = np.empty(records), np.empty(records)
    size = max(1, TILE_VALUES // draws)
    buffer = np.empty((min(size, records), draws))
    for low in range(0, records, size):
        part = slice(low, low + size)
        tile = np.matmul(bounds[:, part].T, table, out=buffer[: len(highest[part])])
        tile.max(axis=1, out=highest[part])
        tile.min(axis=1, out=lowest[part])
    return highest, lowest
