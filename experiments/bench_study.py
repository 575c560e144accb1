"""One replicate of [G]'s beta study at one ε, beside the papers' way: Stan programs that loop over records.

Both make one file of n = 2000 records, the unweighted fit, the weighted one with its re-weighting, Weighted-e, Censor_w and
Censor_uw, each with S = 1000 draws and every record's bound, and a synthetic set per mechanism. The papers' way shares its
fits between mechanisms (six in all, of one chain with a warm-up of 1000); ours runs every mechanism on its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpdist.sampling.stan import StanSettings, fit
from dpdist.sampling.toolchain import executable
from dpdist.studies.kinds import load_study
from dpdist.studies.kinds.simulation import replicate

MECHANISMS = ("unweighted", "weighted", "weighted_e", "censor_w", "censor_uw")
EPSILON = 4.0
PROGRAMS = [Path(__file__).with_name(name) for name in ("naive_beta.stan", "naive_beta_censored.stan")]


def one_replicate():
    """The shipped study's own settings, five mechanisms, one ε."""
    study = load_study("global_dp_beta")
    arms = tuple(arm for arm in study.mechanisms if arm.key in MECHANISMS)
    return study.model_copy(update={"mechanisms": arms, "epsilons": (study.epsilons[1],)})


class PapersWay:
    """Fits by Stan, bounds from the tensors that its CSV files hold, weights and synthesis in NumPy."""

    def __init__(self, folder):
        self.folder = folder
        self.plain, self.censored = (executable(program) for program in PROGRAMS)
        self.settings = StanSettings(chains=1, warmup=1000, draws=1000, adapt_delta=0.9)

    def bounds(self, alpha, clamp=None):
        """Record bounds of the weighted likelihood under a fit, and synthetic records from its last draw."""
        data = {"n": len(self.y), "y": self.y, "alpha": alpha} | ({} if clamp is None else {"M": clamp})
        draws = fit(self.plain if clamp is None else self.censored, data, self.settings, 1, self.folder).draws
        log_lik = np.abs(draws["log_lik"].reshape(-1, len(self.y)))
        phi, precision = (draws[name].reshape(-1)[-1] for name in ("phi", "lambda"))
        self.rng.beta(precision * phi, precision * (1.0 - phi), len(self.y))
        return log_lik.max(axis=0) if clamp is not None else alpha * log_lik.max(axis=0)

    def __call__(self):
        self.rng = np.random.default_rng(1)
        self.y = np.clip(self.rng.beta(0.5, 3, 2000), 1e-12, 1 - 1e-12)
        ones = np.ones(len(self.y))
        risk = self.bounds(ones)
        alpha = 1.0 - (risk - risk.min()) / (risk.max() - risk.min())
        bound = self.bounds(alpha)
        final = np.minimum(1.0, 0.95 * alpha * bound.max() / np.maximum(bound, 1e-12))
        found = [self.bounds(final), self.bounds(np.where(alpha * risk > EPSILON / 2, 0.0, alpha))]
        return [*found, self.bounds(final, EPSILON / 2), self.bounds(ones, EPSILON / 2)]


def test_times_as_fast_as_the_papers_way(ratio, tmp_path, stan_cache):
    study, papers_way, bounds = one_replicate(), PapersWay(tmp_path), {}

    def ours():
        found = replicate(study, study.cases[0], 1).results
        bounds["ours"] = next(r.value for r in found if (r.mechanism, r.measure) == ("weighted", "database_bound"))

    def theirs():
        bounds["theirs"] = papers_way()[0].max()

    found = ratio("times as fast as Stan programs that loop over records, per replicate", ours, theirs, pairs=1)
    assert bounds["ours"] == pytest.approx(bounds["theirs"], rel=0.5)  # other files of the same law
    assert found >= 20
