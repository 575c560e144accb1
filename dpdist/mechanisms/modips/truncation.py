"""Keeps noisy whole sums within a public range: sets them to its nearest end, or draws from the truncated law.

Draws of the truncated law are made from unlimited ones. Noise that is not negative has a geometric size g; negative noise
has the geometric size g = −1 − noise. The range has R values from the sum upwards, itself included, and L values below
it. A geometric variable modulo m is a geometric variable truncated at m. So g is taken modulo the larger of R and L, and
kept where it is below the number of values on its side. The kept values follow exactly the discrete Laplace law truncated
to the range. At least one side keeps all of its noise, so that at least half of the candidates are kept.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats

CANDIDATES = 64
"""Noise candidates for a sum. All of them are refused with a probability of about 2^−64; then more are drawn."""


def clamped(sums: Floats, noise: Floats, low: Floats, high: Floats) -> Floats:
    """Sums plus noise, (sum,), set to the nearest end of their range where they lie outside."""
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
