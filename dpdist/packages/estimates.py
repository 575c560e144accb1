"""For `table_package.post`: published figures of a package, as sums of one estimate of the base cells.

Counts are at least 0, and means are within the outcome's public bounds [l, h]. Base cells have W ≥ 0 and l W ≤ Y ≤ h W,
written as u = Y − l W ≥ 0 and o = h W − Y ≥ 0. If the posterior mean violates this, u and o are set to at least 0, then
raked to their former sums over measured tables' cells, if positive. So a bound pushes no total up. Each of several
outcomes gives a W in this way. The count is their mean, and every outcome's u and o are raked once more to add up to
it. Standard errors are those of the posterior means, before this projection (`error_draws`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.packages.posterior import Posterior
from dpdist.packages.workload import Workload

RAKING_PASSES = 50
"""Number of times that all measured tables are raked in turn."""


class BaseEstimates(NamedTuple):
    """Weighted counts of the base cells, (cell,), and totals, (cell, outcome)."""

    counts: Floats
    totals: Floats


def base_estimates(posterior: Posterior, noisy: Floats, bounds: Sequence[tuple[float, float]]) -> BaseEstimates:
    """Projected estimates of the base cells from noisy measurements in records, (row,)."""
    levels, workload, z = posterior.prior.levels, posterior.prior.workload, posterior.estimated(noisy)
    count, pairs = levels.weight * z[:, 0], []
    for k, (outcome, (low, high)) in enumerate(zip(levels.outcomes, bounds, strict=True), start=1):
        total = levels.weight * (outcome.mean * z[:, 0] + outcome.unit * z[:, k])
        pairs.append([projected(sums, workload) for sums in (total - low * count, high * count - total)])
    counts = [(above + below) / (high - low) for (above, below), (low, high) in zip(pairs, bounds, strict=True)]
    whole = counts[0] if len(counts) == 1 else np.mean(counts, axis=0)
    if workload.weight is not None and not workload.secret:
        whole = workload.count * workload.weight
    totals = []
    for (above, below), (low, high), alone in zip(pairs, bounds, counts, strict=True):
        agreed = above if alone is whole else within(above, below, (high - low) * whole, workload)
        totals.append(agreed + low * whole)
    return BaseEstimates(whole, np.column_stack(totals))


def within(above: Floats, below: Floats, size: Floats, workload: Workload) -> Floats:
    """`above`, raked until it adds up to `size` with `below`, with both former sums over measured tables' cells."""
    tables = [workload.groups(by) for by in workload.measured]
    wanted = [[np.bincount(group, weights=part) for part in (above, below)] for group in tables]
    empty = (above + below <= 0.0) & (size > 0.0)
    share = above.sum() / max(float((above + below).sum()), 1e-300)
    parts = [np.where(empty, size * share, above), np.where(empty, size * (1.0 - share), below)]
    for _ in range(RAKING_PASSES):
        parts = _adding_up(parts, size)
        if np.allclose(parts, [above, below], rtol=1e-12, atol=0.0):
            break
        for group, targets in zip(tables, wanted, strict=True):
            for k, target in enumerate(targets):
                held = np.bincount(group, weights=parts[k])
                parts[k] = parts[k] * np.divide(target, held, out=np.zeros_like(held), where=held > 0.0)[group]
    return _adding_up(parts, size)[0]


def _adding_up(parts: Sequence[Floats], size: Floats) -> list[Floats]:
    """Parts of every base cell, scaled until they add up to its size."""
    held = np.sum(parts, axis=0)
    return [part * np.divide(size, held, out=np.zeros_like(held), where=held > 0.0) for part in parts]


def projected(values: Floats, workload: Workload) -> Floats:
    """Values of base cells set to at least 0; sums over measured tables' cells stay, if positive."""
    if (values >= 0.0).all():
        return values
    scaled = np.maximum(values, 0.0)
    tables = [workload.groups(by) for by in workload.measured]
    wanted = [np.maximum(np.bincount(group, weights=values), 0.0) for group in tables]
    for _ in range(RAKING_PASSES):
        for group, target in zip(tables, wanted, strict=True):
            held = np.bincount(group, weights=scaled)
            scaled = scaled * np.divide(target, held, out=np.zeros_like(held), where=held > 0.0)[group]
    return np.asarray(scaled)
