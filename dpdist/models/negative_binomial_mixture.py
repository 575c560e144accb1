"""Model of counts of two kinds with one mean: y ~ π NB(μ, φ₁) + (1 − π) NB(μ, φ₂), φ₁ < φ₂ (the simulated law of [V] §3).

The priors are log μ ~ N(0, 10²), log φ ~ N(log 10, 1.5²) for both, put in order, and π ~ Beta(2, 2). So a kind that no
record belongs to keeps a proper law. The pseudo likelihood is computed from distinct outcomes, as of `negative_binomial`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.negative_binomial import LOG_MEAN_SD, combined, limited_negative_binomial_mean
from dpdist.models.numerics.tiles import Tile, tile_records
from dpdist.models.outcome import OutcomeModel, no_records, whole
from dpdist.models.protocol import Draws, Parameter

LOG_DISPERSION_MEAN, LOG_DISPERSION_SD = float(np.log(10.0)), 1.5
SHARE = 2.0
"""Both parameters of the share's Beta prior."""
KINDS = ("dispersed", "concentrated")


class NegativeBinomialMixture(OutcomeModel):
    """Mixture of one stratum's counts; its statistics are rows (y, Σα) of the distinct outcomes, sorted by y."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("mean"), Parameter("dispersion", (("kind", KINDS),)), Parameter("share"))

    @property
    def combine(self) -> Literal["sum", "concat"]:
        return "concat"

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        on = alpha > 0
        return combined(np.column_stack([records.outcome[on], alpha[on]]))

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcomes by the inverse distribution function of a drawn kind, limited to their public bounds, and weights 1."""
        mean, dispersion, share = theta["mean"][0], theta["dispersion"][0], theta["share"][0]
        kind, level = open_uniforms(rng, (len(frame_row), 2)).T
        size = np.where(kind < share, *dispersion)
        y = scipy.stats.nbinom.ppf(level, size, size / (mean + size))
        return np.clip(y, *whole(self.outcome_bounds)), np.ones(len(frame_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y with y limited to its public bounds, of every frame row, (draw, row)."""
        of_kind = [
            limited_negative_binomial_mean(theta["mean"], size, self.outcome_bounds) for size in theta["dispersion"].T
        ]
        return self.per_row(mixed(theta["share"], *of_kind)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of records with an outcome of at most `value`, for pairs of a frame row and a value, (draw, pair)."""
        mean, share = theta["mean"][:, None], theta["share"][:, None]
        of_kind = [
            np.asarray(scipy.stats.nbinom.cdf(np.floor(value), size[:, None], size[:, None] / (mean + size[:, None])))
            for size in theta["dispersion"].T
        ]
        return self.within_bounds(mixed(share, *of_kind), value)

    @property
    def program(self) -> str:
        return "negative_binomial_mixture"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        value, total = combined(statistics).T.tolist()
        prior = {
            "log_mu_sd": LOG_MEAN_SD,
            "log_phi_mean": LOG_DISPERSION_MEAN,
            "log_phi_sd": LOG_DISPERSION_SD,
            "share_shape": SHARE,
        }
        return {"M": len(value), "value": value, "total": total, **prior, **no_records("y")}

    def from_stan(self, drawn: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"mean": drawn["mu"], "dispersion": drawn["phi"], "share": drawn["share"]}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        mean, share, size = draws["mean"], draws["share"], tile_records(len(draws))
        for low in range(0, len(records), size):
            y = records.outcome[low : low + size, None]
            factorial, parts = scipy.special.gammaln(y + 1.0), list[Floats]()
            magnitude = np.abs(np.log(share)) + np.abs(np.log1p(-share)) + np.abs(factorial)
            for dispersion in draws["dispersion"].T:
                base, slope = dispersion * np.log1p(mean / dispersion), np.log(mean) - np.log(mean + dispersion)
                rising = scipy.special.gammaln(y + dispersion) - scipy.special.gammaln(dispersion)
                parts.append(rising - factorial - base + y * slope)
                sizes = np.abs(scipy.special.gammaln(y + dispersion)) + np.abs(scipy.special.gammaln(dispersion)) + base
                magnitude = magnitude + sizes + y * (np.abs(np.log(mean)) + np.abs(np.log(mean + dispersion)))
            values = np.logaddexp(np.log(share) + parts[0], np.log1p(-share) + parts[1])
            yield Tile(np.arange(low, low + len(y)), values, magnitude.max(axis=1))


def mixed(share: Floats, first: Floats, second: Floats) -> Floats:
    """The figure of both kinds together."""
    return np.asarray(share * first + (1.0 - share) * second)
