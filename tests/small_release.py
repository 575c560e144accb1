"""A small strict release: counts of two strata with noise of their own."""

from __future__ import annotations

import numpy as np
import pandas as pd

JOB = """
dataset: small
period: "2021"
columns:
  field: {levels: [arts, law]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
strata: [field]
outcome: salary
mechanism: {name: tables}
budget: {epsilon: "3"}
tables:
  - {name: counts, by: [field, sex], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""
LAPLACE = "{name: laplace_composed, sensitivity: public}"
LAPLACE_JOB = JOB.replace("strata: [field]\n", "").replace("{name: tables}", LAPLACE)
"""The same tables by the mechanism that takes least time, for tests of what is done with any release."""


def survey(n: int = 800) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "field": rng.choice(["arts", "law"], n, p=[0.3, 0.7]),
            "sex": rng.choice(["f", "m"], n),
            "salary": np.exp(rng.normal(11.0, 0.4, n)),
            "weight": np.minimum(np.exp(rng.normal(3.0, 0.4, n)), 60.0),
        }
    )


def decimals_of(errors: pd.Series) -> int:
    """Decimals of counts, and of means of salaries, by their standard errors: none, and two digits of the smallest."""
    return min(0, 1 - int(f"{errors.min():.1e}".partition("e")[2]))
