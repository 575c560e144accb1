"""The largest and smallest log likelihood of each record over draws, in compiled code that stores no other values.

A log likelihood is the product of a record's six features with a draw's six coefficients. Numba is imported, and the loop
compiled or read from its cache, at the first call. So only processes that fit a model pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from dpdist.core.records import Floats

BLOCK = 256
"""Records per block; their features and extremes fit the first-level cache, however many draws there are."""


def extremes(features: Floats, table: Floats) -> tuple[Floats, Floats]:
    """The largest and smallest Σ_k φ_k(i) T_k(s) over draws s, (record,) each.

    `features` is φ (6, record), whose first row is ones, and `table` is T (6, draw). The result is undefined for records
    with a NaN value.
    """
    highest, lowest = np.full(features.shape[1], -np.inf), np.full(features.shape[1], np.inf)
    _compiled()(features, table, highest, lowest)
    return highest, lowest


def _scan(features: Floats, table: Floats, highest: Floats, lowest: Floats) -> None:
    """Updates the extremes in place: block by block, with two draws at a time over all records of a block.

    The records fill the lanes of the vector unit. If the number of draws is odd, the last draw comes twice.
    """
    records, last = features.shape[1], table.shape[1] - 1
    for start in range(0, records, BLOCK):
        stop = min(start + BLOCK, records)
        u, v = features[1, start:stop], features[2, start:stop]
        uu, uv, vv = features[3, start:stop], features[4, start:stop], features[5, start:stop]
        high, low = highest[start:stop], lowest[start:stop]
        for s in range(0, last + 1, 2):
            t = min(s + 1, last)
            a0, a1, a2, a3, a4, a5 = table[0, s], table[1, s], table[2, s], table[3, s], table[4, s], table[5, s]
            b0, b1, b2, b3, b4, b5 = table[0, t], table[1, t], table[2, t], table[3, t], table[4, t], table[5, t]
            for i in range(stop - start):
                f = a0 + a1 * u[i] + a2 * v[i] + a3 * uu[i] + a4 * uv[i] + a5 * vv[i]
                g = b0 + b1 * u[i] + b2 * v[i] + b3 * uu[i] + b4 * uv[i] + b5 * vv[i]
                above = f if f > high[i] else high[i]
                below = f if f < low[i] else low[i]
                high[i] = g if g > above else above
                low[i] = g if g < below else below


@cache
def _compiled() -> Callable[[Floats, Floats, Floats, Floats], object]:
    """`_scan` in machine code, cached beside this file or else in the user's cache folder.

    If neither can be written to, nothing is cached. The option `contract` lets a product and a sum be one operation with
    one rounding. Nothing is reordered.
    """
    from numba import njit

    def scan(kept: bool) -> Callable[[Floats, Floats, Floats, Floats], object]:
        signature = "void(f8[:,::1], f8[:,::1], f8[::1], f8[::1])"
        return njit(signature, cache=kept, nogil=True, fastmath={"contract"})(_scan)

    try:
        return scan(kept=True)
    except (RuntimeError, OSError):
        return scan(kept=False)
