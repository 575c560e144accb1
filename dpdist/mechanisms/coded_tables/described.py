"""Writes the released parameters of noisy tables as JSON, and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.coded_tables.beyond_bound import RELEASED
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.sensitivity import UNIT
from dpdist.models.protocol import Draws


class Tables(Protocol):
    """What is asked of a model of noisy tables."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def keys_of(self, theta: Draws) -> tuple[Marginal, ...]: ...

    def scales_of(self, theta: Draws) -> tuple[Fraction, ...]: ...

    def parts(self, keys: tuple[Marginal, ...], sums: Floats) -> Sequence[Floats]: ...

    def released(self, keys: tuple[Marginal, ...], sums: Floats) -> Draws: ...


def describe(model: Tables, theta: Draws) -> Mapping[str, Any]:
    """The noise, and every table with its columns, its noise scale and its sums."""
    keys = model.keys_of(theta)
    tables = zip(keys, model.scales_of(theta), model.parts(keys, theta["sums"]), strict=True)
    names = [name for name in RELEASED if name in theta.values]
    return {
        **{name: theta[name][0].tolist() for name in names},
        "prior": "proper",
        "noise": f"discrete Laplace, in units of 1/{UNIT} of the weight's upper bound",
        "marginals": [
            {
                "columns": [model.columns[column] for column in key],
                "scale": str(scale),
                "sums": values[0].ravel().tolist(),
            }
            for key, scale, values in tables
        ],
    }


def recall(model: Tables, described: Mapping[str, Any]) -> Draws:
    """The parameters that were described."""
    number = {name: k for k, name in enumerate(model.columns)}
    keys = tuple(tuple(number[name] for name in each["columns"]) for each in described["marginals"])
    made = model.released(keys, np.concatenate([np.array(each["sums"], float) for each in described["marginals"]]))
    return Draws({**made.values, **{name: np.array([described[name]]) for name in RELEASED if name in described}})
