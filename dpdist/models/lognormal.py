"""FBS and FBP: outcomes and weight together, z = (log y, log w), z | x ~ N(B'x, Σ) in the sample ([T]; METHODS §5).

With d outcomes z has D = d + 1 components, the weight's the last. Exact draws under α-weighted records with A = diag(α):
K = X'AX, B̂ = K⁻¹X'AZ, S = (Z−XB̂)'A(Z−XB̂), ν = Σα − p under the prior |Σ|^(−(D+1)/2); Σ ~ IW(ν, S),
B | Σ ~ MN(B̂, K⁻¹, Σ), proper iff Σα > p + d. f_i is the density of (log y, log w).

FBP is the same fit un-tilted. The sample law of z is π·p(z|x)/E(π|x) with π = 1/w = exp(−z_w); so the population law is the
sample's times exp(z_w), normalised, which for a normal law shifts the mean: μ_pop = μ_sample + Σe_w, in every outcome by
its own covariance with log w. And 1/E_pop(π|x) = E_sample(w|x) = exp(μ_w + Σ_ww/2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cholesky, solve_triangular
from scipy.special import multigammaln, ndtr, ndtri

from dpdist.job import Job
from dpdist.keys import open_uniforms
from dpdist.models import fused, normal
from dpdist.models.chi import chi_quantiles
from dpdist.models.design import Design, design, frame_strata_as_predictors
from dpdist.models.prior import ConjugatePrior, conjugate_prior
from dpdist.models.protocol import Draws, Extremes, Improper, Parameter
from dpdist.models.stan_records import clamped_records, no_records
from dpdist.models.tiles import by_pattern
from dpdist.records import Codes, Floats, Frame, Ints, Records

LOG_2PI = float(np.log(2.0 * np.pi))
TILE_VALUES = 64_000
"""Records × draws of a tile of the log likelihood: half a megabyte of float64 stays in the second-level cache."""
ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative error allowed for a sum of six products and the forming of its coefficients, for a covariance of condition 1;
the inverse of a covariance with correlation ρ loses a further 1/(1 − ρ²)."""
MEANS = ROUNDING / 4.0
"""The same for a mean, a sum of an intercept and a few effects, and for its distance from the centre."""
TOO_SMALL = "the privacy weights are so small that some draws of the covariance are numerically singular"
SINGULAR = 1e-11
"""A residual variance below this share of the raw second moment is rounding error: the component is constant."""


@dataclass(frozen=True)
class Lognormal:
    """Lognormal model of (outcomes, weight) for one stratum; statistics are (pattern, 1 + D + D(D+1)/2): with one outcome
    Σα(1, z₁, z₂, z₁², z₁z₂, z₂²)."""

    components: tuple[str, ...]
    design: Design
    prior: ConjugatePrior
    synthesis: Literal["fbs", "fbp"]
    fixed_weight: float | None
    outcome_bounds: tuple[float, float]
    expected: bool = False
    """FBS records carry E(w|y*, x) instead of w*."""
    other_bounds: tuple[tuple[float, float], ...] = ()
    """Public bounds of the outcomes after the first."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Lognormal:
        """The model of one stratum; `proper` asks for the weak proper prior whatever the job's prior is."""
        predictors = (*frame_strata_as_predictors(job, frame), *job.model.predictors)
        matrix = design(frame, predictors, rows)
        survey = job.survey
        proportional = job.model.population_weights == "proportional" and survey.population is not None
        return cls(
            components=job.components,
            design=matrix,
            prior=conjugate_prior(job, matrix, proper or job.model.prior.name == "proper"),
            synthesis=job.model.synthesis,
            fixed_weight=(survey.population or 0) / float(frame.count.sum()) if proportional else None,
            outcome_bounds=job.outcome.bounds or (0.0, np.inf),
            expected=job.model.synthetic_weights == "expected",
            other_bounds=tuple(column.bounds or (0.0, np.inf) for column in list(job.outcome_columns.values())[1:]),
        )

    @property
    def dimension(self) -> int:
        """D: the outcomes and the weight."""
        return len(self.components)

    @property
    def least(self) -> int:
        """The posterior under the improper prior exists where Σα is greater: p + d."""
        return self.identified + self.dimension - 1

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        component = ("component", tuple(f"log {name}" for name in self.components))
        other = ("other_component", component[1])
        logs = "natural logarithm"
        return (
            Parameter("coefficients", (("predictor", self.design.names), component), logs),
            Parameter("covariance", (component, other), logs),
        )

    @property
    def identified(self) -> int:
        return len(self.design.kept)

    @property
    def improper(self) -> bool:
        return self.prior.records == 0

    @property
    def combine(self) -> Literal["sum"]:
        return "sum"

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        """Weighted sums per predictor pattern, shape (pattern, statistic)."""
        pattern = self._pattern(records)
        z = _logs(records)
        weighted = [alpha * values for values in z]
        columns = (alpha, *weighted, *(a * values for k, a in enumerate(weighted) for values in z[k:]))
        patterns = len(self.design.matrix)
        return np.column_stack([np.bincount(pattern, weights=c, minlength=patterns) for c in columns])

    def scatter(self, records: Records, alpha: Floats) -> Floats:
        """Covariance of the statistics over samples with the same x and weights, (pattern, statistic, statistic)."""
        pattern, patterns = self._pattern(records), len(self.design.matrix)
        terms = alpha[:, None] * normal.features(_logs(records)).T
        found = np.zeros((patterns, terms.shape[1], terms.shape[1]))
        for own, number in by_pattern(pattern):
            centred = terms[own] - terms[own].mean(axis=0)
            found[number] = centred.T @ centred * (len(own) / max(1, len(own) - 1))
        return found

    def centre(self, statistics: Floats) -> Draws:
        """B̂ and S/ν of many sets of statistics at once, (set, pattern, statistic)."""
        x, prior, d = self.design.matrix, self.prior, self.dimension
        total = statistics[:, :, 0].sum(axis=1)
        k = np.einsum("pi,sp,pj->sij", x, statistics[:, :, 0], x) + prior.precision
        xz = np.einsum("pi,spd->sid", x, statistics[:, :, 1 : d + 1]) + prior.precision @ prior.location
        raw = statistics[:, :, d + 1 :].sum(axis=1)
        zz = raw[:, normal.unpacked(d)] + prior.location.T @ prior.precision @ prior.location
        b_hat = np.linalg.solve(k, xz)
        scale = zz - b_hat.transpose(0, 2, 1) @ xz + prior.scale
        coefficients = np.full((len(statistics), len(self.design.names), d), np.nan)
        coefficients[:, self.design.kept, :] = b_hat
        return of(coefficients, scale / self._degrees(total)[:, None, None])

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Exact draws by inverse distribution functions: the same uniforms serve every round (common random numbers).

        Raises `Improper` also where a draw cannot be evaluated in double precision, which takes Σα barely over p + d.
        """
        p, d = self.identified, self.dimension
        normals = d * (d - 1) // 2
        root_k, b_hat, scale, nu = self._posterior(statistics)
        uniforms = open_uniforms(rng, (draws, d + normals + p * d))
        chi = np.array([chi_quantiles(nu - k, uniforms[:, k]) for k in range(d)])
        if not chi.min() > 1e-30:
            raise Improper(TOO_SMALL)
        root = scale @ normal.inverse_bartlett(chi, ndtri(uniforms[:, d : d + normals]))
        noise = ndtri(uniforms[:, d + normals :]).reshape(draws, p, d)
        flat = solve_triangular(root_k, noise.transpose(1, 0, 2).reshape(p, -1), lower=True, trans="T")
        spread = flat.reshape(p, draws, d).transpose(1, 0, 2)
        coefficients = np.full((draws, len(self.design.names), d), np.nan)
        coefficients[:, self.design.kept, :] = b_hat + spread @ root.transpose(0, 2, 1)
        covariance = root @ root.transpose(0, 2, 1)
        if not np.all(normal.independence(covariance) > SINGULAR):
            raise Improper(TOO_SMALL)
        return of(coefficients, covariance)

    def log_evidence(self, statistics: Floats) -> float:
        """log ∫ π(θ) ∏ p(record | θ)^α dθ, up to a constant of model and prior; raises `Improper`."""
        root_k, _, root_s, nu = self._posterior(statistics)
        d = self.dimension
        log_k, log_s = (2.0 * float(np.log(np.diag(root)).sum()) for root in (root_k, root_s))
        scatter = nu * d / 2.0 * np.log(2.0) + multigammaln(nu / 2.0, d) - nu / 2.0 * log_s
        return float(scatter - d / 2.0 * log_k - d / 2.0 * np.log(2.0 * np.pi) * statistics[:, 0].sum())

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood (draw, record)."""
        out = np.empty((len(draws), len(records)))
        for own, features, table, _ in self._factors(draws, records):
            size = max(1, TILE_VALUES // len(draws))
            for low in range(0, len(own), size):
                out[:, own[low : low + size]] = table.T @ features[:, low : low + size]
        return out

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        """Fused product and reduction; widened by its own rounding error, so that bounds are never too small; where that is
        not finite, neither are the extremes."""
        highest, lowest = np.empty(len(records)), np.empty(len(records))
        reduced = fused.extremes if self.dimension == 2 else normal.extremes
        for own, features, table, slack in self._factors(draws, records):
            high, low = reduced(features, table)
            highest[own], lowest[own] = high + slack, low - slack
        return Extremes(highest, lowest)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """FBS: (y*, w*) from the sample law. FBP: y* from the population law, weight 1/E(π|x) or N/n.

        An outcome beyond its public bounds is set to the nearest bound, as the file's own top-codes are. One outcome is
        (record,), several are (record, outcome).
        """
        d = self.dimension
        mean: Floats = self._means(theta)[0][self.design.pattern[frame_row - self.design.first]]
        sigma = theta["covariance"][0]
        if self.synthesis == "fbs":
            noise = ndtri(open_uniforms(rng, (len(frame_row), d)))
            z = mean + noise @ cholesky(sigma, lower=True).T
            y = np.exp(z[:, :-1])
            w = self.expected_weight(theta, frame_row, y) if self.expected else np.exp(z[:, -1])
            return self._limited(y), w
        noise = ndtri(open_uniforms(rng, (len(frame_row), d - 1)))
        root = np.sqrt(sigma[:1, :1]) if d == 2 else cholesky(sigma[:-1, :-1], lower=True)
        y = np.exp(mean[:, :-1] + sigma[:-1, -1] + noise @ root.T)
        modelled = np.exp(mean[:, -1] + sigma[-1, -1] / 2.0)
        w = modelled if self.fixed_weight is None else np.full_like(modelled, self.fixed_weight)
        return self._limited(y), w

    def _limited(self, outcomes: Floats) -> Floats:
        """Outcomes within their public bounds."""
        if self.dimension == 2:
            return np.clip(outcomes[:, 0], *self.outcome_bounds)
        low, high = np.transpose([self.outcome_bounds, *self.other_bounds])
        return np.asarray(np.clip(outcomes, low, high))

    def expected_weight(self, theta: Draws, frame_row: Codes, outcome: Floats) -> Floats:
        """E(w | y*, x) in the sample, (record,), for outcomes (record, outcome): less noise than w* in the same means."""
        mean: Floats = self._means(theta)[0][self.design.pattern[frame_row - self.design.first]]
        sigma, logs = theta["covariance"][0], np.log(outcome).reshape(len(frame_row), -1)
        cross = sigma[:-1, -1]
        slope = cross / sigma[0, 0] if self.dimension == 2 else np.linalg.solve(sigma[:-1, :-1], cross)
        left = sigma[-1, -1] - slope @ cross
        return np.asarray(np.exp(mean[:, -1] + (logs - mean[:, :-1]) @ slope + left / 2.0))

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) with y limited to its public bounds; under FBP the same, for 1/E(π|x) = E(w|x) and
        E_pop(y|x) = E(wy|x)/E(w|x). `outcome` is y's number among several."""
        mean, j = self._means(theta), outcome
        sigma = theta["covariance"][:, None, :, :]
        weight = np.exp(mean[:, :, -1] + sigma[..., -1, -1] / 2.0)
        bounds = (self.outcome_bounds, *self.other_bounds)[j]
        typical = limited_lognormal_mean(mean[:, :, j] + sigma[..., j, -1], sigma[..., j, j], bounds)
        if self.fixed_weight is not None:
            weight = np.full_like(weight, self.fixed_weight)
        weight, typical = weight[:, self.design.pattern], typical[:, self.design.pattern]
        return weight, weight * typical

    def as_sampled(self) -> Lognormal:
        """The model of the observed sample: FBS, whatever the synthesis."""
        return replace(self, synthesis="fbs", fixed_weight=None, expected=False)

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        names = [f"log {c}" for c in self.components]
        rows = [[None if np.isnan(v) else float(v) for v in row] for row in theta["coefficients"][0]]
        return {
            "prior": "proper" if self.prior.records else "improper",
            "coefficients": {"predictor": list(self.design.names), "component": names, "values": rows},
            "covariance": {"component": names, "values": theta["covariance"][0].tolist()},
        }

    def recall(self, described: Mapping[str, Any]) -> Draws:
        rows = [[np.nan if v is None else v for v in row] for row in described["coefficients"]["values"]]
        return of(np.array(rows, dtype=float)[None], np.array(described["covariance"]["values"], dtype=float)[None])

    @property
    def program(self) -> str:
        """FBP's own program where the job synthesises by it; both have the same posterior."""
        return "population" if self.synthesis == "fbp" else "lognormal"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        """Data of either program."""
        self._posterior(statistics)
        assert self.dimension == 2  # more is refused when a job is read
        prior, (patterns, kept) = self.prior, self.design.matrix.shape
        raw = statistics[:, 3:].sum(axis=0)
        return {
            **{"P": patterns, "K": kept, "X": self.design.matrix.tolist()},
            "total": statistics[:, 0].tolist(),
            "sum_z": statistics[:, 1:3].tolist(),
            "sum_zz": raw[normal.unpacked(2)].tolist(),
            "prior_power": 3.0 + (0.0 if self.improper else prior.records + kept),
            "prior_scale": prior.scale.tolist(),
            "prior_location": prior.location.tolist(),
            "prior_precision": prior.precision.tolist(),
            **no_records("pattern", "log_outcome", "log_weight"),
        }

    def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
        """The program's data of records that enter by exp(clamp(α(f − reference), ±clamp)): they replace `no_records`."""
        logs = {"log_outcome": np.log(records.outcome), "log_weight": np.log(records.weight)}
        return clamped_records(alpha, reference, clamp, {"pattern": self._pattern(records), **logs})

    def from_stan(self, drawn: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """B and Σ of the sample law; of program `population` by B_y = β − aΣ_yw, B_w = −κ_x − κ_yβ − aΣ_ww, Xa = 1."""
        if self.synthesis == "fbp":
            kept, covariance = sample_law(*(drawn[name] for name in ("beta", "kappa_x", "kappa_y", "sigma_y", "sigma_pi")))
        else:
            kept, covariance = drawn["coefficients"], drawn["covariance"]
        coefficients = np.full((len(kept), len(self.design.names), 2), np.nan)
        coefficients[:, self.design.kept, :] = kept
        return {"coefficients": coefficients, "covariance": covariance}

    def _pattern(self, records: Records) -> Codes:
        return self.design.pattern[records.frame - self.design.first]

    def _means(self, draws: Draws) -> Floats:
        """μ(x) of every pattern, shape (draw, pattern, component)."""
        kept: Floats = draws["coefficients"][:, self.design.kept, :]
        return np.tensordot(self.design.matrix, kept, axes=(1, 1)).transpose(1, 0, 2)

    def _posterior(self, statistics: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Cholesky root of K, B̂ (predictor, component), Cholesky root of S, ν."""
        x, prior, d = self.design.matrix, self.prior, self.dimension
        total = float(statistics[:, 0].sum())
        if self.improper and not total > self.least:
            least = f"p + {d - 1} = {self.least}"
            raise Improper(f"the privacy weights sum to no more than {least}, so the posterior is improper")
        k = (x * statistics[:, [0]]).T @ x + prior.precision
        xz = x.T @ statistics[:, 1 : d + 1] + prior.precision @ prior.location
        raw = statistics[:, d + 1 :].sum(axis=0)
        zz = raw[normal.unpacked(d)] + prior.location.T @ prior.precision @ prior.location
        try:
            root_k = cholesky(k, lower=True)
            if np.any(np.diag(root_k) ** 2 <= SINGULAR * np.diag(k)):
                raise LinAlgError("a pivot that is rounding error")
            b_hat = solve_triangular(root_k, solve_triangular(root_k, xz, lower=True), lower=True, trans="T")
            scale = zz - b_hat.T @ xz
            if self.improper and np.any(np.diag(scale) <= SINGULAR * np.diag(zz)):
                raise Improper("outcome or weight has no variation left within the predictors' groups")
            root_s = cholesky((scale + scale.T) / 2.0 + prior.scale, lower=True)
        except LinAlgError:
            reason = "some predictor's group has no privacy weight left, or log weight is a line in log outcome"
            raise Improper(reason) from None
        return root_k, b_hat, root_s, float(self._degrees(np.array(total)))

    def _degrees(self, total: Floats) -> Floats:
        """ν = Σα − p under the improper prior, Σα + n₀ under the proper one."""
        return total + self.prior.records - (self.identified if self.improper else 0)

    def _factors(self, draws: Draws, records: Records) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
        """Log likelihood per pattern as a product of two factors: f = φ(u)·T with u = z − centre of the pattern.

        Yields the pattern's records, φ (feature, record), T (feature, draw) and, per record, a bound on the error of its
        values: in proportion to its terms, to log 2π (the log determinant may cancel it), and to the means times f's slope
        (their own error matters where Σ is small). Centring at the draws' mean keeps the terms of the order of f.
        """
        if self.dimension > 2:
            yield from normal.factors(self._means(draws), draws["covariance"], _logs(records), self._pattern(records))
            return
        covariance = draws["covariance"]
        rounding = ROUNDING / (1.0 - _squared_correlation(covariance)).min()
        means, constant = self._means(draws), _log_peak(covariance)
        p00, p01, p11 = covariance[:, [1, 0, 0], [1, 1, 0]].T * [[1.0], [-1.0], [1.0]] / _determinant(covariance)
        log_y, log_w = np.log(records.outcome), np.log(records.weight)
        for own, pattern in by_pattern(self._pattern(records)):
            y, w = np.ascontiguousarray(means[:, pattern].T)
            centre = y.mean(), w.mean()
            y, w = y - centre[0], w - centre[1]
            linear_y, linear_w = p00 * y + p01 * w, p01 * y + p11 * w
            constants = constant - 0.5 * (y * linear_y + w * linear_w)
            table = np.array([constants, linear_y, linear_w, -0.5 * p00, -p01, -0.5 * p11])
            u, v = log_y[own] - centre[0], log_w[own] - centre[1]
            features = np.array([np.ones(len(own)), u, v, u * u, u * v, v * v])
            reach, size = np.abs(table).max(axis=1), np.abs(features)
            slope = reach[1] + reach[2] + (2.0 * reach[3] + reach[4]) * size[1] + (reach[4] + 2.0 * reach[5]) * size[2]
            location = float(np.abs(means[:, pattern]).max())
            yield own, features, table, rounding * (LOG_2PI + reach @ size) + MEANS * location * slope


def _logs(records: Records) -> list[Floats]:
    """z: the components' logarithms, (record,) each."""
    return [np.log(values) for values in (*records.outcomes, records.weight)]


def _determinant(covariance: Floats) -> Floats:
    return np.asarray(covariance[:, 0, 0] * covariance[:, 1, 1] - covariance[:, 0, 1] ** 2)


def _log_peak(covariance: Floats) -> Floats:
    """Log density at its mode."""
    return np.asarray(-LOG_2PI - 0.5 * np.log(_determinant(covariance)))


def of(coefficients: Floats, covariance: Floats) -> Draws:
    """Draws of B (draw, predictor, component) and Σ (draw, component, component)."""
    return Draws({"coefficients": coefficients, "covariance": covariance})


def sample_law(beta: Floats, kappa_x: Floats, kappa_y: Floats, sigma_y: Floats, sigma_pi: Floats) -> tuple[Floats, Floats]:
    """(B, Σ) of (log y, log w) in the sample from the population's parameters, coefficients (draw, predictor).

    log y | x ~ N(x'β, σ_y²), log π | y, x ~ N(κ_y log y + x'κ_x, σ_π²); the first predictor is the intercept.
    """
    cross, weight = -kappa_y * sigma_y**2, (kappa_y * sigma_y) ** 2 + sigma_pi**2
    covariance = np.stack([sigma_y**2, cross, cross, weight], axis=1).reshape(-1, 2, 2)
    coefficients = np.stack([beta, -kappa_x - kappa_y[:, None] * beta], axis=2)
    coefficients[:, 0, :] -= covariance[:, 1, :]
    return coefficients, covariance


def _squared_correlation(covariance: Floats) -> Floats:
    return np.asarray(covariance[:, 0, 1] ** 2 / (covariance[:, 0, 0] * covariance[:, 1, 1]))


def limited_lognormal_mean(mu: Floats, variance: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper) for log Y ~ N(mu, variance)."""
    low, high = bounds
    sd = np.sqrt(variance)

    def below(limit: float) -> Floats:
        """E Y·1(Y < limit)."""
        whole = np.exp(mu + variance / 2.0)
        return np.asarray(whole * ndtr((np.log(limit) - mu - variance) / sd))

    inside = np.exp(mu + variance / 2.0) if np.isinf(high) else below(high) + high * ndtr((mu - np.log(high)) / sd)
    if low <= 0.0:
        return np.asarray(inside)
    return np.asarray(inside - below(low) + low * ndtr((np.log(low) - mu) / sd))
