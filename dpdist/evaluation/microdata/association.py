"""Association consistency: do tests of independence come to the same conclusion on synthetic records ([S], section 4.3.2).

Pearson's χ² of every pair of columns, on counts of records. Over several sets the statistics are combined as Li, Meng,
Raghunathan and Rubin (1991) do: with d the mean over k degrees of freedom and r = (1 + 1/m) times the variance of √χ²,
D = (d/k − (m + 1)/(m − 1) r)/(1 + r), held against F with k and k^(−3/m)(m − 1)(1 + 1/r)² degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from scipy import stats

from dpdist.core.records import Floats
from dpdist.evaluation.microdata.coded import Coded


def statistics(records: Coded, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
    """χ² and degrees of freedom of every pair; levels that no record has are left out. Without any, both are 0."""
    made = np.zeros((2, len(pairs)))
    total = float(records.weight.sum())
    for place, pair in enumerate(pairs):
        table = records.shares(pair).reshape([records.sizes[k] for k in pair]) * total
        table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
        made[:, place] = ((table - expected) ** 2 / expected).sum(), (table.shape[0] - 1) * (table.shape[1] - 1)
    return made[0], made[1]


def p_value(values: Floats, degrees: float) -> float:
    """Of one file's χ², or of several sets' combined; 1 without degrees of freedom."""
    if degrees <= 0:
        return 1.0
    m = len(values)
    if m == 1:
        return float(stats.chi2.sf(values[0], degrees))
    r = (1.0 + 1.0 / m) * float(np.sqrt(values).var(ddof=1))
    combined = (values.mean() / degrees - (m + 1.0) / (m - 1.0) * r) / (1.0 + r)
    second = degrees ** (-3.0 / m) * (m - 1.0) * (1.0 + 1.0 / max(r, 1e-12)) ** 2
    return float(stats.f.sf(max(combined, 0.0), degrees, second))


def consistency(confidential: Coded, sets: Sequence[Coded], level: float = 0.05) -> float:
    """Share of pairs of columns whose test comes to the same conclusion at a level, from 0 to 1."""
    pairs = list(combinations(range(len(confidential.sizes)), 2))
    (own, degrees), others = statistics(confidential, pairs), [statistics(each, pairs) for each in sets]
    values, freedom = (np.array([each[k] for each in others]) for k in (0, 1))
    same = [
        (p_value(own[place : place + 1], degrees[place]) < level)
        == (p_value(values[:, place], float(freedom[:, place].max())) < level)
        for place in range(len(pairs))
    ]
    return float(np.mean(same))
