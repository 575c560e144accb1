"""For `packages_of_files`: people as in the American Community Survey, with 51 states in 4 regions, weights and incomes.

Shares of states are those of a few large and many small ones. Ages, education, race and tenure differ by state, and income
by all columns and by state and education together. Weights are lognormal within state and race. So tables have cells from
under ten to tens of thousands of records, and no column is independent of the others.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpdist.core.records import Floats, Ints

STATES, REGIONS = 51, 4
LEVELS = {"age": 8, "sex": 2, "education": 5, "race": 5, "tenure": 2}
"""Levels of the columns beside state and region."""
MOST_INCOME = 500_000.0


def acs(records: int, seed: int = 0) -> pd.DataFrame:
    """Records with columns state, region, those of `LEVELS`, income and weight."""
    world, rng = np.random.default_rng(51), np.random.default_rng([51, seed])  # one world for all samples
    size = 1.0 / np.arange(2, STATES + 2) ** 0.8
    state = rng.choice(STATES, records, p=size / size.sum())
    columns: dict[str, Ints] = {"state": state, "region": state % REGIONS}
    for name, levels in LEVELS.items():
        share = np.exp(world.normal(0.0, 0.5, levels) + world.normal(0.0, 0.35, (STATES, levels)))
        below = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)
        columns[name] = (rng.random(records)[:, None] > below[state]).sum(axis=1).clip(0, levels - 1)
    income, weight = (np.full(records, middle) for middle in (np.log(32_000.0), np.log(90.0)))
    for codes in columns.values():
        for log, spread in ((income, 0.2), (weight, 0.15)):
            log += world.normal(0.0, spread, int(codes.max()) + 1)[codes]
    income += world.normal(0.0, 0.08, (STATES, LEVELS["education"]))[state, columns["education"]]
    weight += world.normal(0.0, 0.15, (STATES, LEVELS["race"]))[state, columns["race"]]
    earning = rng.random(records) < 0.85
    drawn: dict[str, Floats] = {
        "income": np.where(earning, np.exp(income + rng.normal(0.0, 0.7, records)), 0.0).clip(0.0, MOST_INCOME),
        "weight": np.exp(weight + rng.normal(0.0, 0.5, records)),
    }
    return pd.DataFrame(columns | drawn)
