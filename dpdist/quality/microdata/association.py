"""Measures association consistency: do tests of independence conclude the same from synthetic records ([S], §4.3.2)?

For every pair of columns the test is Pearson's χ² on counts of records. Statistics of m synthetic sets are combined as by
Li, Meng, Raghunathan and Rubin (1991). Let k be the degrees of freedom, d the mean of the statistics over k, and r = (1 +
1/m) times the variance of their square roots. Then D = (d − (m + 1)/(m − 1) r)/(1 + r) is compared with the F law with k
and k^(−3/m)(m − 1)(1 + 1/r)² degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.quality.microdata.coded import Coded


def statistics(records: Coded, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
    """χ² and degrees of freedom of every pair, without levels that no record has.

    Both are 0 where no two levels are left.
    """
    made = np.zeros((2, len(pairs)))
    total = float(records.weight.sum())
    for place, pair in enumerate(pairs):
        table = records.shares(pair).reshape([records.sizes[k] for k in pair]) * total
        table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
        made[:, place] = ((table - expected) ** 2 / expected).sum(), (table.shape[0] - 1) * (table.shape[1] - 1)
    return made[0], made[1]


def p_value(values: Floats, degrees: float) -> float:
    """The p-value of one file's χ², or of several sets' χ² combined; 1 with 0 degrees of freedom."""
    if degrees <= 0:
        return 1.0
    m = len(values)
    if m == 1:
        return float(scipy.stats.chi2.sf(values[0], degrees))
    r = (1.0 + 1.0 / m) * float(np.sqrt(values).var(ddof=1))
    combined = (values.mean() / degrees - (m + 1.0) / (m - 1.0) * r) / (1.0 + r)
    second = degrees ** (-3.0 / m) * (m - 1.0) * (1.0 + 1.0 / max(r, 1e-12)) ** 2
    return float(scipy.stats.f.sf(max(combined, 0.0), degrees, second))


def consistency(confidential: Coded, sets: Sequence[Coded], level: float = 0.05) -> float:
    """Share of pairs of columns, from 0 to 1, whose tests at this level come to the same conclusion."""
    pairs = list(combinations(range(len(confidential.sizes)), 2))
    (observed, degrees), others = statistics(confidential, pairs), [statistics(synthetic, pairs) for synthetic in sets]
    values, freedom = (np.array([result[k] for result in others]) for k in (0, 1))
    same = [
        (p_value(observed[place : place + 1], degrees[place]) < level)
        == (p_value(values[:, place], float(freedom[:, place].max())) < level)
        for place in range(len(pairs))
    ]
    return float(np.mean(same))
