"""Noisy whole sums within a public domain: clamped to its ends (BIT), or drawn from the truncated law.

Noise that is not negative has a geometric size g, and so has −1 − noise where it is negative. With R + 1 values from the
sum up to the upper end and L below it, g modulo the larger of R + 1 and L is a geometric variable truncated there; kept
where it is below the side's own number, it leaves the discrete Laplace law truncated to the domain, exactly. At least one
side keeps all of its noise, so that half of the candidates are kept, or more.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats

CANDIDATES = 64
"""Noise for a sum: all of it is refused with a probability of about 2^−64, and more is drawn then."""


def clamped(sums: Floats, noise: Floats, low: Floats, high: Floats) -> Floats:
    """Sums plus noise, (sum,), set to the nearest end of their domain."""
    return np.clip(sums + noise, low, high)


def truncated(sums: Floats, noise: Floats, low: Floats, high: Floats) -> Floats:
    """Draws of the law truncated to [low, high], (sum,), from candidates (sum, candidate); NaN where all were refused."""
    exact, start, end = (values.astype(np.int64)[:, None] for values in (sums, low, high))
    noise = noise.astype(np.int64)
    up, size = noise >= 0, np.where(noise >= 0, noise, -1 - noise)
    above, below = end - exact + 1, exact - start
    held = size % np.maximum(above, below)
    kept = held < np.where(up, above, below)
    drawn = np.where(up, exact + held, exact - 1 - held)
    first = np.argmax(kept, axis=1)
    rows = np.arange(len(sums))
    return np.where(kept[rows, first], drawn[rows, first].astype(np.float64), np.nan)
