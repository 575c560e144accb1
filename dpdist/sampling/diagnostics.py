"""Computes whether Markov chains have converged, with ArviZ: R-hat, ESS, E-BFMI, divergences, tree depth.

R-hat is rank-normalised; ESS is the effective sample size. Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Bayesian
Analysis 16(2); Betancourt (2016), arXiv:1604.00695.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpdist.core.errors import ToolchainError
from dpdist.sampling.stan import Chains


@dataclass(frozen=True)
class Policy:
    """Limits on diagnostics, set before a run. `divergences` and `treedepth_hits` are shares of all draws."""

    rhat: float = 1.01
    ess: float = 400.0
    ebfmi: float = 0.3
    divergences: float = 0.0
    treedepth_hits: float = 0.0


@dataclass(frozen=True)
class Diagnostics:
    """The worst figures over all scalars that vary (R-hat, ESS) and over all chains (E-BFMI); None where not defined.

    Constant scalars, such as the diagonal of a correlation matrix, are left out. `not_finite` is the number of scalars with
    a draw that is not finite.
    """

    worst_rhat: float | None
    worst_rhat_of: str | None
    min_ess_bulk: float | None
    min_ess_tail: float | None
    min_ebfmi: float | None
    divergences: int
    treedepth_hits: int
    draws: int
    chains: int
    not_finite: int
    attempt: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def problems(self, policy: Policy) -> list[str]:
        """Sentences on all figures that exceed the policy's limits; empty if none does."""
        problems = []
        if self.not_finite:
            problems.append(f"{self.not_finite} quantities have draws that are not finite")
        if self.worst_rhat is not None and not self.worst_rhat <= policy.rhat:
            problems.append(f"R-hat of {self.worst_rhat_of} is {self.worst_rhat:.3f}, more than {policy.rhat}")
        for name, ess in (("bulk", self.min_ess_bulk), ("tail", self.min_ess_tail)):
            if ess is not None and not ess >= policy.ess:
                problems.append(f"{name} ESS is {ess:.0f}, less than {policy.ess:.0f}")
        if self.min_ebfmi is not None and not self.min_ebfmi >= policy.ebfmi:
            problems.append(f"E-BFMI is {self.min_ebfmi:.2f}, less than {policy.ebfmi}")
        total = self.draws * self.chains
        if self.divergences > policy.divergences * total:
            problems.append(f"{self.divergences} of {total} draws diverged")
        if self.treedepth_hits > policy.treedepth_hits * total:
            problems.append(f"{self.treedepth_hits} of {total} draws reached the maximum tree depth")
        return problems


def diagnose(chains: Chains, names: tuple[str, ...] | None = None) -> Diagnostics:
    """Diagnostics of the named variables, or of all. Generated quantities such as log_lik are better left out."""
    arviz, xr = _arviz()
    labels, scalars = _scalars(chains, names)
    finite = np.isfinite(scalars).all(axis=(0, 1))
    varying = finite & (np.ptp(np.where(np.isfinite(scalars), scalars, 0), axis=(0, 1)) > 0)
    kept = np.flatnonzero(varying)
    data = xr.Dataset({"x": (("chain", "draw", "scalar"), scalars[:, :, kept])})
    several = len(kept) > 0 and scalars.shape[0] > 1 and scalars.shape[1] >= 4
    rhat = arviz.rhat(data)["x"].to_numpy() if several else np.array([])
    bulk, tail = (
        (arviz.ess(data, method=method)["x"].to_numpy() if len(kept) and scalars.shape[1] >= 4 else np.array([]))
        for method in ("bulk", "tail")
    )
    moves = np.ptp(chains.energy, axis=1) > 0 if chains.energy.shape[1] > 1 else np.zeros(len(chains.energy), bool)
    ebfmi = arviz.bfmi(chains.energy[moves]) if moves.any() else np.array([])
    worst = int(np.argmax(rhat)) if several else 0
    return Diagnostics(
        float(rhat[worst]) if several else None,
        labels[kept[worst]] if several else None,
        _least(bulk),
        _least(tail),
        _least(ebfmi),
        int(chains.divergent.sum()),
        int((chains.treedepth >= chains.max_treedepth).sum()),
        chains.lp.shape[1],
        chains.lp.shape[0],
        int((~finite).sum()),
        chains.attempt,
    )


def _scalars(chains: Chains, names: tuple[str, ...] | None) -> tuple[list[str], np.ndarray[Any, np.dtype[np.float64]]]:
    """All scalars, (chain, draw, scalar), with their names."""
    labels, parts = list[str](), [np.empty((*chains.lp.shape, 0))]
    for name in chains.draws if names is None else names:
        values = chains.draws[name]
        labels += [
            f"{name}[{','.join(str(i + 1) for i in index)}]" if index else name for index in np.ndindex(values.shape[2:])
        ]
        parts.append(values.reshape(*values.shape[:2], -1))
    return labels, np.concatenate(parts, axis=2)


def _least(values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    return float(np.min(values)) if len(values) else None


def _arviz() -> tuple[Any, Any]:
    """Imports ArviZ and xarray at first use, because it takes half a second."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
            import arviz
        import xarray
    except ImportError:
        raise ToolchainError("arviz is not installed", "the extra 'stan'", "pip install 'dpdist[stan]'") from None
    return arviz, xarray
