"""A simulated file of trucks by state and type: many sparse base cells, weights of 3 to 37,000, and heavy-tailed miles."""

from __future__ import annotations

import numpy as np
import pandas as pd

RECORDS, STATES, TYPES = 98_682, 51, 20
LIGHTEST, HEAVIEST, FARTHEST = 3.0, 37_000.0, 1_000_000.0
"""Public bounds of weights, and of miles."""
JOB = f"""
dataset: trucks
publish: always
period: "2002"
columns:
  state: {{levels: {[f"s{k:02d}" for k in range(STATES)]}}}
  type: {{levels: {[f"t{k:02d}" for k in range(TYPES)]}}}
  miles: {{bounds: [0, {FARTHEST:.0f}], outside: clip}}
  weight: {{bounds: [{LIGHTEST:.0f}, {HEAVIEST:.0f}], outside: clip}}
survey: {{weight: weight}}
outcome: miles
mechanism: {{name: tables}}
budget: {{epsilon: "1"}}
public_frame: {{accepted: "a simulated file"}}
tables:
  - {{name: trucks, by: [state, type], statistics: [count, {{mean: miles}}, {{total: miles}}]}}
runtime: {{executor: serial}}
"""


def trucks(seed: int = 2002) -> pd.DataFrame:
    """Types with large weights have few records, as light trucks have in a survey that looks for heavy ones."""
    rng = np.random.default_rng(seed)
    typical = np.geomspace(8.0, 12_000.0, TYPES)
    kinds = rng.choice(TYPES, RECORDS, p=typical**-0.45 / (typical**-0.45).sum())
    size = np.geomspace(1.0, 30.0, STATES)
    states = rng.choice(STATES, RECORDS, p=size / size.sum())
    weight = typical[kinds] * np.exp(rng.normal(0.0, 0.5, RECORDS))
    miles = np.exp(rng.normal(9.0, 1.0, RECORDS))
    return pd.DataFrame(
        {
            "state": np.array([f"s{k:02d}" for k in range(STATES)])[states],
            "type": np.array([f"t{k:02d}" for k in range(TYPES)])[kinds],
            "miles": np.minimum(miles, FARTHEST),
            "weight": np.clip(weight, LIGHTEST, HEAVIEST),
        }
    )
