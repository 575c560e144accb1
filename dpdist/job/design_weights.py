"""Public weights of design strata in a job's survey section, for `job.design`; `job.loading` reads them from CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from dpdist.core.records import Floats, Frame
from dpdist.job.values import ColumnName, Frozen

COLUMN = "weight"
"""The column of weights in a CSV file."""
JOINED = " / "
"""What stands between the levels of a combination."""


def label_of(levels: Sequence[object]) -> str:
    """The name of a combination of levels, as in "north / heavy"."""
    return JOINED.join(map(str, levels))


def _texts(value: Any) -> Any:
    return {str(levels): weight for levels, weight in value.items()} if isinstance(value, dict) else value


class DesignWeights(Frozen):
    """Public weights of design strata: all records of a combination of levels of `by` have one weight.

    In place of `weights` a job may name a CSV file with the columns of `by` and a column `weight`, by `path`. Loading the
    job reads that file.
    """

    by: tuple[ColumnName, ...] = Field(min_length=1, description="the columns whose combinations have a public weight")
    weights: Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(_texts)] = Field(
        default={}, description='the weight of each combination, as in {"north / heavy": 12.5}'
    )
    path: str | None = Field(
        default=None,
        exclude=True,
        description="in place of weights: a public CSV file of the columns of `by` and a column `weight`",
    )

    def of(self, frame: Frame) -> Floats:
        """The weight of the records of every frame row, (row,)."""
        group, labels = frame.group(self.by)
        return np.array([self.weights[label_of(levels)] for levels in labels], dtype=np.float64)[group]


def read_weights(path: Path, by: Sequence[str]) -> dict[str, str]:
    """Weights by combination of levels, as texts. Raises `ValueError` if the file has other columns, or one row twice."""
    weights: dict[str, str] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if lacking := [name for name in (*by, COLUMN) if name not in (rows.fieldnames or ())]:
            raise ValueError(f"no column '{lacking[0]}'")
        for number, row in enumerate(rows, start=2):
            label = label_of([row[name] for name in by])
            if label in weights:
                raise ValueError(f"line {number} has '{label:.80}' for the second time")
            weights[label] = row[COLUMN]
    return weights
