"""Writes released parameters as JSON values and reads them back, for models whose parameters are named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.protocol import Draws, Parameter


def describe_draws(parameters: Sequence[Parameter], theta: Draws) -> dict[str, Any]:
    """The `values` of every parameter and the names of its entries; null where the stratum does not identify an entry."""
    described: dict[str, Any] = {"prior": "proper"}
    for p in parameters:
        described[p.name] = {**{dim: list(entries) for dim, entries in p.dims}, "values": nested(theta[p.name][0])}
    return described


def recall_draws(parameters: Sequence[Parameter], described: Mapping[str, Any]) -> Draws:
    """The inverse of `describe_draws`."""
    named = ((p, described[p.name]["values"]) for p in parameters)
    return Draws({p.name: np.array(values, dtype=float).reshape(1, *p.shape) for p, values in named})


def nested(values: Floats) -> Any:
    """The array as nested lists of numbers, with null for NaN."""
    nullable: Any = np.asarray(values, dtype=object)
    nullable[np.isnan(values)] = None
    return nullable.tolist()
