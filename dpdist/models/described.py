"""Released parameters in JSON terms, for models whose parameters are named arrays and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdist.models.protocol import Draws


def describe_draws(theta: Draws) -> dict[str, Any]:
    """The first draw by parameter name; what a stratum does not identify is null."""
    values = {name: _listed(drawn[0]) for name, drawn in theta.values.items()}
    return {"prior": "proper", "parameters": values}


def recall_draws(described: Mapping[str, Any]) -> Draws:
    """The inverse of `describe_draws`."""
    return Draws({name: np.array(said, dtype=np.float64)[None] for name, said in described["parameters"].items()})


def _listed(values: Any) -> Any:
    if np.ndim(values):
        return [_listed(part) for part in values]
    return None if np.isnan(values) else float(values)
