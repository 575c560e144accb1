"""The real sampler on the worst neighbours: event counts bound ε, or ρ, from below, and with half the noise exceed it."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from losses import Case, Metered, metered
from scipy.stats import beta

from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise
from dpdist.engine.rounds import fresh_noise

ALARM = 1e-6
"""Of a false alarm, over all events of a test."""
CUTS = 6
ORDERS = np.geomspace(1.01, 64.0, 60)
CASES = [
    (Case("perturbed_histogram", "zero_out", weighted=False), "off"),
    (Case("modips", "zero_out"), "off"),
]
MORE = [
    (Case("sanitized_statistics", "zero_out"), "off"),
    (Case("sanitized_statistics", "zero_out", gaussian=True, epsilon="3"), "off"),
    (Case("sanitized_statistics", "substitution", gaussian=True, epsilon="3"), "within"),
    (Case("laplace_composed", "zero_out", statistics="count", fine=False), "within"),
]


@cache
def neighbours(case: Case, kind: str) -> tuple[Floats, Floats, Floats]:
    """Sums of the two files that are farthest apart, and the scales of their noise, where the sums differ."""
    own: Metered = metered(case, most=300)
    alone, apart = own.distances(case)
    if kind == "off":
        one, other = own.sums[int(alone.argmax())], np.zeros(own.sums.shape[1])
    else:
        at = np.unravel_index(np.where(own.same == (kind == "within"), apart, -1.0).argmax(), apart.shape)
        one, other = own.sums[at[0]], own.sums[at[1]]
    differing = one != other
    return one[differing], other[differing], own.scales[differing]


def drawn(scales: Floats, law: str, draws: int, share: Fraction) -> Floats:
    """Noise of the sampler of a release, (draw, figure), at a share of its scale."""
    columns = [fresh_noise(Noise(share * Fraction(float(scale)), draws, 1, law)) for scale in scales]  # type: ignore[arg-type]
    return np.column_stack(columns)


def least(case: Case, kind: str, draws: int, share: Fraction = Fraction(1)) -> float:
    """A lower bound of ε or ρ over the claimed one: Clopper–Pearson on events {log likelihood ratio ≥ t}."""
    one, other, scales = neighbours(case, kind)
    law = "gaussian" if case.gaussian else "laplace"
    power, unit = (2.0, 2.0) if case.gaussian else (1.0, 1.0)

    def ratio(output: Floats) -> Floats:
        away = [np.abs((output - file) / (float(share) * scales)) ** power / unit for file in (other, one)]
        return np.asarray((away[0] - away[1]).sum(axis=1))

    near, far = (ratio(file + drawn(scales, law, draws, share)) for file in (one, other))
    top = float(np.quantile(near, 0.995)) if case.gaussian else float(near.max())
    best = 0.0
    for cut in np.linspace(0.0, top, CUTS):
        high, low = int((near >= cut - 1e-9).sum()), int((far >= cut - 1e-9).sum())
        p = float(beta.ppf(ALARM / (2 * CUTS), high, draws - high + 1))
        q = float(beta.ppf(1.0 - ALARM / (2 * CUTS), low + 1, draws - low))
        best = max(best, _concentrated(p, q) if case.gaussian else float(np.log(p / q)))
    return best / case.claimed


def _concentrated(p: float, q: float) -> float:
    """ρ that two files have at least, of which an event has these probabilities: no post-processing, this event among
    them, has a larger Rényi divergence of order a than ρa (Bun & Steinke 2016)."""
    if not 0.0 < q < p < 1.0:
        return 0.0
    a = ORDERS
    terms = np.logaddexp(a * np.log(p) + (1 - a) * np.log(q), a * np.log1p(-p) + (1 - a) * np.log1p(-q))
    return float((terms / (a - 1) / a).max())


def label(value: object) -> str:
    return f"{value.name} {value.adjacency}" if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "kind"), CASES, ids=label)
def test_the_sampler_costs_no_more_than_claimed_and_half_its_noise_does(case: Case, kind: str) -> None:
    found, halved = (least(case, kind, 20_000, share) for share in (Fraction(1), Fraction(1, 2)))
    assert found <= 1.0
    assert found >= 0.6, "no power"
    assert halved > 1.4, "control"


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kind"), [*CASES, *MORE], ids=label)
def test_and_so_with_three_times_as_many_draws(case: Case, kind: str) -> None:
    found, halved = (least(case, kind, 60_000, share) for share in (Fraction(1), Fraction(1, 2)))
    print(f"| {label(case)} | {kind} | {found:.3f} | {halved:.3f} |")
    assert 0.4 <= found <= 1.0
    assert halved > 1.2
