"""Public half of `modips`: laws given noisy sums, tables, records, measurements ([M]).

The posterior is conditional on the released sums, clipped to their public range, as if they had no noise. Weights w
enter as v = w/U, where U is the weight's public bound. Σv is at most the effective number of records, so the posterior
is at least as wide as the sampling error. A synthetic record has its cell's mean weight.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from dpdist.core.keys import open_uniforms
from dpdist.core.records import UNIT, Codes, Crosstab, Floats, quotient_or
from dpdist.estimation.least_squares import nearest_on_simplex
from dpdist.job import Job
from dpdist.mechanisms.modips.sensitivity import by_group, groups, sums_of, together
from dpdist.mechanisms.modips.spec import Law, Modips, Truncation
from dpdist.mechanisms.parts import LAPLACE, SUM_OF_ABSENT, WIDE, Figures, Words, cells_of
from dpdist.models.lognormal.model import limited_lognormal_mean
from dpdist.models.numerics.chi import chi_quantiles
from dpdist.models.protocol import Draws, Parameter, ReleaseView
from dpdist.models.public_model import PublicModel, cell_counts, counted_again, design, patterns
from dpdist.privacy.guarantees import NoisyQuery, moves

LEAST_MEAN_WEIGHT = 1e-3
"""Smallest mean v of a cell; smaller means are raised to it."""
PRIOR = 1.0
"""Number of records that a cell's prior counts as, over all levels."""
PRIOR_SD = 0.25
"""Prior standard deviation of the law, in half widths of the bounds; the prior counts as one record."""
LEAST_SD = 0.01
"""Smallest standard deviation of the law, in half widths of the bounds."""
LAW_AGAIN = (
    "Estimates from the released parameters (estimator `parameters`): standard errors include the variation in the "
    "sample's composition by cells, the spread of the posterior given the first set's sums, and the effect of a new draw "
    "with new noise, which is simulated. Each weight enters as a share of its public bound. Errors of counts do not "
    "include the variation of weights within a cell, which was not released. No error includes the bias that arises if "
    "outcomes follow another distribution."
)
WORDS = Words(
    density=(
        "noisy sums, over the observed sample, of bounded functions of {weight} and {outcome}, which are sufficient for "
        "the distribution that the job names; and parameters drawn from their posterior given these sums"
    ),
    errors=f"{LAW_AGAIN} {WIDE}",
    steps=(
        "Noisy sums are moved into their public ranges and then treated as exact: parameters are drawn from the posterior "
        "given these sums. Synthetic outcomes follow the distribution with these parameters, and each record has its "
        "cell's mean weight. The prior of an outcome with K levels is worth one record in each cell, 1/K for each level.",
        "An analysis of the synthetic sets alone uses T = B/m + W with (m − 1)(1 + mW/B)² degrees of freedom. With one "
        "set, T does not include the noise. For nested sets, B is the variance between the means of the sanitizations' "
        "sets, and m is the number of sanitizations.",
        "Weights vary within cells in the sample, but not among synthetic records, so W lacks a design effect. Multiply W "
        "by the weight's public upper bound divided by the records' mean weight; it is then at least the sample's own "
        "variance of a mean (Σw² is at most the bound times Σw).",
    ),
)
DEFINITIONS = {
    "1 - v": SUM_OF_ABSENT,
    "v u": "the sum of v u, u = (y - m) / R, with y the outcome, m the centre and R the half_width of its public bounds, "
    "all in logarithms if the outcome is lognormal; v as in 1 - v, and 1 without weights. A noisy sum is set to "
    "the nearest end of its domain (clamped), or drawn from the noise distribution truncated to that domain "
    "(bounded), as its `law` states",
    "v (u^2 - 1/2)": "over all cells of the stratum, in the notation of v u",
    "v 1[y = k]": "the sum of v over records of level k, with the same `law` as v u",
}


@dataclass(frozen=True)
class Sanitized(PublicModel):
    """Cells of one stratum; the sums are (sum,), by group and cell, in whole units of 1/UNIT.

    A group is a kind of sum: 1 − v, vu, v(u² − 1/2) or v 1[y = k] (see `sensitivity`).
    """

    labels: tuple[str, ...]
    count: Floats
    """Sample records of every cell, public."""
    weights: tuple[float, float] | None
    """Public bounds of the weight; None without a weight."""
    law: Law
    variance: float | None
    """Public variance of the normal law, in squared half widths of the outcome's bounds, or None."""
    scales: tuple[Fraction, ...]
    """The scale of the noise on each group's sums, in units of 1/UNIT."""
    queries: tuple[NoisyQuery, ...]
    """The loss of each group's sums. If all groups share one query, entries after the first are parts of it."""
    truncation: Truncation
    matrix: Floats | None
    """Predictors of every cell, (cell, predictor); None if every cell has a mean of its own."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Sanitized:
        settings = Modips.of(job)
        columns = tuple(
            dict.fromkeys(name for table in job.tables for name in table.columns if name not in crosstab.strata)
        )
        regressed = settings.location == "main_effects"
        cells = design(crosstab, columns, rows) if regressed else patterns(crosstab, columns, rows)
        labels = cells.names if not regressed else patterns(crosstab, columns, rows).names
        count = cell_counts(crosstab, rows, cells)
        queries = by_group(job, settings)
        low, high = job.outcome_column.ends
        return cls(
            cells,
            (low, high),
            labels,
            count,
            job.weight_bounds,
            settings.law,
            None if settings.variance is None else settings.variance / ((high - low) / 2.0) ** 2,
            tuple(query.scale for query in queries),
            queries,
            settings.truncation,
            cells.matrix if regressed else None,
        )

    @property
    @abstractmethod
    def names(self) -> tuple[tuple[str, ...], ...]:
        """Names of the sums, by group."""

    @property
    @abstractmethod
    def domain(self) -> tuple[Floats, Floats]:
        """Smallest and largest possible value of every sum, for any records, (sum,) each, in whole units of 1/UNIT."""

    @abstractmethod
    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        """Laws drawn from the posteriors given sums (draw, sum), by the parameter's name."""

    @abstractmethod
    def rescaled_laws(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """The released laws, by parameter, if Σv changes from `before` (1, cell) to `after` (draw, cell)."""

    @property
    @abstractmethod
    def drawn_parameters(self) -> tuple[Parameter, ...]:
        """Names of the parameters that `laws` draws."""

    @property
    def limits(self) -> tuple[float | None, float | None, float | None]:
        """The centre of the outcome's bounds, the weight's upper bound, and the half width of the outcome's bounds."""
        return None, None if self.weights is None else self.weights[1], None

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """First position of every group's sums, and the position after the last."""
        return tuple(pairwise(np.cumsum([0, *map(len, self.names)]).tolist()))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        names = tuple(name for group in self.names for name in group)
        weight = () if self.weights is None else (Parameter("weight", (("cell", self.labels),)),)
        return (Parameter("sums", (("statistic", names),)), *self.drawn_parameters, *weight)

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """The released parameters: the noisy sums, and laws drawn given them."""
        return self._all(np.repeat(statistics[None], draws, axis=0), rng)

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Laws drawn again given the released sums: they vary over samples, without noise."""
        return self._all(np.repeat(theta["sums"], draws, axis=0), rng)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Laws given the released sums with further noise of the same law, for standard errors only."""
        by = np.concatenate(
            [np.full(stop - start, float(b)) for (start, stop), b in zip(self.parts, self.scales, strict=True)]
        )
        noisy = theta["sums"] + by * rng.laplace(size=(draws, len(by)))
        return self._all(np.clip(noisy, *self.domain), rng)

    def _all(self, sums: Floats, rng: np.random.Generator) -> Draws:
        parameters = {"sums": sums, **self.laws(sums, rng)}
        if self.weights is not None:
            parameters["weight"] = self.weights[1] * self.sums_of_weights(sums) / self.count
        return Draws({parameter.name: parameters[parameter.name] for parameter in self.parameters})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The released laws, adjusted to other sample counts (draw, row)."""
        count = counted_again(self.design, counts)
        sums = np.repeat(theta["sums"], len(counts), axis=0)
        sizes = self.sums_of_weights(sums, count)
        parameters = {"sums": sums, **self.rescaled_laws(theta, self.sums_of_weights(theta["sums"]), sizes)}
        if self.weights is not None:
            parameters["weight"] = self.weights[1] * sizes / count
        return Draws({parameter.name: parameters[parameter.name] for parameter in self.parameters})

    def sums_of_weights(self, sums: Floats, count: Floats | None = None) -> Floats:
        """Σv of every cell, (draw, cell), clipped to its range under the published sample counts or `count`."""
        count = np.repeat(self.count[None], len(sums), axis=0) if count is None else count
        if self.weights is None:
            return count
        least = count * max(self.weights[0] / self.weights[1], LEAST_MEAN_WEIGHT)
        return np.clip(count - sums[:, : len(self.count)] / UNIT, least, count)

    def weight(self, theta: Draws) -> Floats:
        """Mean weight of every cell, (draw, cell)."""
        return np.ones((len(theta), len(self.count))) if self.weights is None else theta["weight"]

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        scales = ", ".join(f"{scale} on {self.named(names)}" for scale, names in zip(self.scales, self.names, strict=True))
        return {
            **super().describe(theta),
            "noise": f"discrete Laplace, scale {scales}, in units of 1/{UNIT}, {self.truncation} to the domain of each sum",
        }

    @staticmethod
    def named(names: tuple[str, ...]) -> str:
        """The name of a group's statistic, without the cell."""
        return names[0].partition(" of ")[0]


@dataclass(frozen=True)
class Moments(Sanitized):
    """Normal or lognormal law: the sums of 1 − v and of vu by cell, and of v(u² − 1/2) over all cells.

    u is the outcome (or log outcome) less the middle of its public bounds, in half widths of the bounds. v is the
    weight over its public bound. The model is u = Xβ + σe, with predictors X (cell, predictor) and a flat prior of β.
    The prior of σ² counts as one record with a standard deviation of a quarter of the half width. Given σ, β ~ N(B,
    σ²K⁻¹), with A = diag(Σv) over cells, K = X'AX and B = K⁻¹X'Σvu. σ² is (S + 1/16)/χ² with Σv − p + 1 degrees of
    freedom. S is the residual sum of squares, and p the number of coefficients.
    """

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        first = () if self.weights is None else (tuple(f"1 - v of {cell}" for cell in self.labels),)
        second = () if self.variance is not None else (("v (u^2 - 1/2) of all cells",),)
        return (*first, tuple(f"v u of {cell}" for cell in self.labels), *second)

    @property
    def domain(self) -> tuple[Floats, Floats]:
        n, total = UNIT * self.count, UNIT * self.count.sum(keepdims=True) / 2.0
        second = np.empty(0) if self.variance is not None else total
        if self.weights is None:
            return np.concatenate([-n, -second]), np.concatenate([n, second])
        most = np.ceil(n * (1.0 - min(1.0, self.weights[0] / self.weights[1]))) + self.count
        return np.concatenate([np.zeros_like(n), -n, -second]), np.concatenate([np.minimum(most, n), n, second])

    @property
    def drawn_parameters(self) -> tuple[Parameter, ...]:
        units = "natural logarithm" if self.law == "lognormal" else "1"
        return Parameter("mean", (("cell", self.labels),), units), Parameter("standard_deviation", (), units)

    @property
    def middle(self) -> tuple[float, float]:
        """Centre and half width of the outcome's bounds; under the lognormal law, of the bounds of its logarithm."""
        low, high = np.log(self.outcome_bounds) if self.law == "lognormal" else self.outcome_bounds
        return (low + high) / 2.0, (high - low) / 2.0

    @property
    def limits(self) -> tuple[float | None, float | None, float | None]:
        """Under a lognormal law, the outcome's are the bounds of its logarithm."""
        return self.middle[0], super().limits[1], self.middle[1]

    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        sizes = self.sums_of_weights(sums)
        start = 0 if self.weights is None else len(self.count)
        b = np.clip(sums[:, start : start + len(self.count)] / UNIT, -sizes, sizes)
        uniforms = open_uniforms(rng, (len(sums), 1 + (len(self.count) if self.matrix is None else self.matrix.shape[1])))
        normals, total = scipy.special.ndtri(uniforms[:, 1:]), sizes.sum(axis=1)
        if self.matrix is None:
            centre, explained, spread = b / sizes, (b * b / sizes).sum(axis=1), normals / np.sqrt(sizes)
        else:
            x, xb = self.matrix, b @ self.matrix
            root = np.linalg.cholesky(np.einsum("ci,dc,cj->dij", x, sizes, x))
            beta = np.linalg.solve(root @ root.swapaxes(1, 2), xb[..., None])[..., 0]
            noise = np.linalg.solve(root.swapaxes(1, 2), normals[..., None])[..., 0]
            centre, explained, spread = beta @ x.T, (beta * xb).sum(axis=1), noise @ x.T
        sd = self._deviation(sums[:, -1], total, explained, uniforms[:, 0])
        middle, half = self.middle
        mean = np.clip(centre + sd[:, None] * spread, -1.0, 1.0)
        return {"mean": middle + half * mean, "standard_deviation": half * sd}

    def rescaled_laws(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """The laws after a change of Σv.

        Means change as the centre of the posterior does. Standard deviations change in the ratio of the residual
        standard deviations.
        """
        middle, half = self.middle
        old, new = (self._centre(theta["sums"], size) for size in (before, after))
        mean = np.clip((theta["mean"] - middle) / half + new - old, -1.0, 1.0)
        sd = np.repeat(theta["standard_deviation"] / half, len(after))
        if self.variance is None:
            old_variance, new_variance = (self._variance(theta["sums"], *pair) for pair in ((before, old), (after, new)))
            sd = np.clip(sd * np.sqrt(new_variance / old_variance), LEAST_SD, 1.0)
        return {"mean": middle + half * mean, "standard_deviation": half * sd}

    def _centre(self, sums: Floats, sizes: Floats) -> Floats:
        """Posterior means of cells given the sums, in half widths of the bounds, (draw, cell)."""
        start = 0 if self.weights is None else len(self.count)
        b = np.clip(sums[:, start : start + len(self.count)] / UNIT, -sizes, sizes)
        if self.matrix is None:
            return np.asarray(b / sizes)
        x = self.matrix
        beta = np.linalg.solve(np.einsum("ci,dc,cj->dij", x, sizes, x), (b @ x)[..., None])[..., 0]
        return np.asarray(beta @ x.T)

    def _variance(self, sums: Floats, sizes: Floats, centre: Floats) -> Floats:
        """Variance of u about the cells' means, (draw,)."""
        total = sizes.sum(axis=1)
        square = sums[:, -1] / UNIT / total + 0.5 - (sizes * centre**2).sum(axis=1) / total
        return np.asarray(np.clip(square, LEAST_SD**2, 1.0))

    def _deviation(self, last: Floats, total: Floats, explained: Floats, uniforms: Floats) -> Floats:
        """Standard deviations drawn from their posteriors, in half widths of the bounds, (draw,)."""
        if self.variance is not None:
            return np.full(len(total), np.sqrt(self.variance))
        scatter = np.clip(last / UNIT + total / 2.0 - explained, LEAST_SD**2 * total, total)
        degrees = np.maximum(total - len(self.count if self.matrix is None else self.matrix.T), 0.0) + 1.0
        distinct = np.unique(degrees)
        chi = chi_quantiles(float(distinct[0]), uniforms) if len(distinct) == 1 else _chi(degrees, uniforms)
        return np.clip(np.sqrt(scatter + PRIOR_SD**2) / chi, LEAST_SD, 1.0)

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row, (draw, row) each, with y limited to its public bounds."""
        mean, sd = theta["mean"], np.broadcast_to(theta["standard_deviation"][:, None], theta["mean"].shape)
        limit = limited_lognormal_mean(mean, sd**2, self.outcome_bounds) if self.law == "lognormal" else None
        typical = limited_normal_mean(mean, sd, self.outcome_bounds) if limit is None else limit
        weight = self.weight(theta)
        return weight[:, self.design.pattern], (weight * typical)[:, self.design.pattern]

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws outcomes, clipped to their public bounds, with their cell's mean weight."""
        cell = self.pattern(crosstab_row)
        noise = scipy.special.ndtri(open_uniforms(rng, (len(crosstab_row),)))
        values = theta["mean"][0][cell] + theta["standard_deviation"][0] * noise
        outcome = np.exp(values) if self.law == "lognormal" else values
        return np.clip(outcome, *self.outcome_bounds), self.weight(theta)[0][cell]


def limited_normal_mean(mean: Floats, sd: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, low), high) for Y ~ N(mean, sd²), with `bounds` (low, high).

    It is low + sd (g(low) − g(high)), with sd·g(t) = E max(Y − t, 0).
    """

    def above(limit: float) -> Floats:
        t = (mean - limit) / sd
        return np.asarray(t * scipy.special.ndtr(t) + np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi))

    return np.clip(bounds[0] + sd * (above(bounds[0]) - above(bounds[1])), *bounds)


def _chi(degrees: Floats, uniforms: Floats) -> Floats:
    """Quantiles of χ distributions, each with its own number of degrees of freedom."""
    from scipy.special import gammaincinv

    return np.asarray(np.sqrt(2.0 * gammaincinv(degrees / 2.0, uniforms)))


@dataclass(frozen=True)
class LevelCounts(Sanitized):
    """Sums of 1 − v by cell, and of v by cell and level; levels are the whole numbers between the public bounds.

    The prior is worth one record, 1/K for each of K levels, so that many levels have no more prior weight than few. A
    record counts as v, its weight over the weight's public bound. Noisy counts are projected onto the nearest
    non-negative ones that sum to the cell's Σv. Setting negative counts to 0 alone would accumulate the positive noise
    of many empty levels.
    """

    @property
    def levels(self) -> Floats:
        low, high = self.outcome_bounds
        return np.arange(np.ceil(low), np.floor(high) + 1.0)

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        first = () if self.weights is None else (tuple(f"1 - v of {cell}" for cell in self.labels),)
        return (*first, tuple(f"v 1[y = k] of {cell} / {level:g}" for cell in self.labels for level in self.levels))

    @property
    def domain(self) -> tuple[Floats, Floats]:
        n = UNIT * self.count
        first = [] if self.weights is None else [n]
        high = np.concatenate([*first, np.repeat(n, len(self.levels))])
        return np.zeros_like(high), high

    @property
    def drawn_parameters(self) -> tuple[Parameter, ...]:
        names = tuple(f"{level:g}" for level in self.levels)
        return (Parameter("probability", (("cell", self.labels), ("level", names))),)

    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        """Probabilities of levels, drawn from their posteriors given noisy sums.

        If all gamma draws of a cell are too small for float64, the level with the largest count gets probability 1.
        """
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        counts = nearest_on_simplex(sums[:, start:].reshape(len(sums), -1, levels) / UNIT, self.sums_of_weights(sums))
        gammas = rng.standard_gamma(PRIOR / levels + counts)
        total = gammas.sum(axis=2, keepdims=True)
        most = np.eye(levels)[counts.argmax(axis=2)]
        return {"probability": quotient_or(most, gammas, total)}

    def rescaled_laws(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """Level probabilities that follow their estimates as Σv changes; they stay non-negative and sum to 1."""
        old, new = (self._shares(theta["sums"], size) for size in (before, after))
        probability = theta["probability"] + new - old
        return {"probability": nearest_on_simplex(probability, np.ones(probability.shape[:-1]))}

    def _shares(self, sums: Floats, sizes: Floats) -> Floats:
        """Each level's part of a cell's Σv, from the noisy sums, (draw, cell, level)."""
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        values = np.broadcast_to(sums[:, start:].reshape(len(sums), -1, levels) / UNIT, (*sizes.shape, levels))
        return np.asarray(nearest_on_simplex(values, sizes) / sizes[..., None])

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row, (draw, row) each."""
        weight = self.weight(theta)
        typical = theta["probability"] @ self.levels
        return weight[:, self.design.pattern], (weight * typical)[:, self.design.pattern]

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws levels by their cell's probabilities; every record has its cell's mean weight."""
        cell = self.pattern(crosstab_row)
        cumulated = np.cumsum(theta["probability"][0], axis=1)[cell]
        uniforms = open_uniforms(rng, (len(crosstab_row), 1)) * cumulated[:, -1:]
        return self.levels[(uniforms > cumulated[:, :-1]).sum(axis=1)], self.weight(theta)[0][cell]


def model_of(job: Job) -> type[LevelCounts | Moments]:
    """The model whose sums are sufficient for the job's law."""
    return LevelCounts if Modips.of(job).counted else Moments


def figures(release: ReleaseView, model: Sanitized, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Figures by group: sums of 1 − v, of vu or of v 1[y = k] in every cell, and of v(u² − 1/2) over all cells.

    `DEFINITIONS` explains the letters.
    """
    cells, settings = cells_of(release, model, stratum), Modips.of(release.job)
    columns = sums_of(release.job)
    of_stratum = {name: level for name, level in cells[0].items() if name in release.crosstab.strata}
    law = f"{model.truncation}_{LAPLACE}"
    for group, (start, stop), scale in zip(groups(*columns), model.parts, model.scales, strict=True):
        values = theta["sums"][0, start:stop]
        where = cells if (stop - start) % len(cells) == 0 and group.name != "v (u^2 - 1/2)" else [of_stratum]
        several = (stop - start) // len(where)
        names = [group.name] if several == 1 else [f"v 1[y = k] {level:g}" for level in getattr(model, "levels", ())]
        distance = moves(release.job) * (group.sensitivity if settings.sanitization == "individual" else together(*columns))
        yield Figures(
            where,
            names,
            values.reshape(len(where), several),
            [scale] * several,
            lambda *_: model.limits,
            law=law,
            sensitivity=float(distance),
        )
