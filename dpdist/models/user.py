"""Model from a user's Stan program: data it receives, declarations, released parameters.

The program receives N, the number of records, the following data, and the job's `model.data`. Data of records have N
entries. Data that a program does not declare are ignored.

    y                      the outcome (an integer if its column is `whole`)
    w                      the sampling weight, where the job has one
    alpha                  the privacy weight
    <name>, <name>_levels  for every predictor, and every stratum column of a pooled fit: the 1-based code of the level,
                           and the number of levels
    generate               0 while chains are run and 1 when quantities are generated

The program must have the following blocks. While `generate` is 0 it should generate nothing.

    parameters:            those that the job's `model.parameters` lists, with the same dimensions
    model:                 target += alpha[n] * log p(record n | parameters), and a proper prior
                           under a mechanism that clamps, with the data `reference` (record) and `clamp` (a number):
                           target += fmin(fmax(alpha[n] * (log p(record n | parameters) - reference[n]), -clamp), clamp)
    generated quantities:  vector[N] log_lik, each record's log p without alpha, unless the job names a Python function
                           vector[N] y_rep (and w_rep, where there are weights), a synthetic record under the same x

A Python function takes the parameters by name, each (draw, *dims), and the data above. It returns log p, (draw, record).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Literal

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.errors import JobError, ProgramError
from dpdist.core.records import Codes, Crosstab, Floats
from dpdist.job import Job, Program
from dpdist.models.protocol import Draws, Extremes, Parameter, StratumModel

ENTRY_POINTS = "dpdist.log_lik"
TILE_VALUES = 2**20
"""Number of records × draws in a tile."""
ROUNDING = 1e-12
"""Relative widening of bounds, because the rounding error of a user's program is unknown."""
UNCLAMPED = 1e300
"""Value of the program's datum `clamp` where nothing is clamped."""
CLAMPED_FACTOR = "fmin(fmax(alpha[n] * (log p(record n) - reference[n]), -clamp), clamp)"
OUTCOME, WEIGHT = "synthetic outcome", "synthetic weight"


@dataclass(frozen=True)
class User(StratumModel):
    """A user's program for one stratum; its statistics are records with α > 0: crosstab row, y, w and α, (record, 4)."""

    program: Program
    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]
    crosstab_rows: Codes
    """Crosstab row of every sample record of the stratum."""
    codes: Mapping[str, Codes]
    """By the name of a category, the code of every crosstab row of the file."""
    levels: Mapping[str, int]
    outcome_bounds: tuple[float, float]
    integer: bool
    weighted: bool
    function: str | None
    identified: int = 1
    combine: ClassVar[Literal["sum", "concat"]] = "concat"

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> User:
        likelihood = job.likelihood
        names = (*(() if crosstab.strata else job.strata), *likelihood.predictors)
        assert likelihood.program is not None
        return cls(
            program=likelihood.program,
            parameters=tuple(_parameter(name, dims, crosstab) for name, dims in likelihood.parameters.items()),
            constants=likelihood.data,
            crosstab_rows=np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), crosstab.count[rows]),
            codes={name: crosstab.codes[name] for name in names},
            levels={name: len(crosstab.levels[name]) for name in names},
            outcome_bounds=job.outcome_column.ends,
            integer=job.outcome_column.whole,
            weighted=job.survey.weight is not None,
            function=likelihood.log_lik,
        )

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        positive = alpha > 0
        return np.column_stack([records.row, records.outcome, records.weight, alpha])[positive]

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        row, y, w, alpha = statistics.T
        return self.data_of(row.astype(np.int32), y, w, alpha)

    def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
        data = self.data_of(records.row, records.outcome, records.weight, alpha)
        return data | {"reference": reference, "clamp": float(clamp)}

    def data_of(self, crosstab: Codes, y: Floats, w: Floats, alpha: Floats, generate: bool = False) -> dict[str, Any]:
        """The program's data of the given records."""
        data: dict[str, Any] = {"N": len(y), "y": y.astype(np.int64) if self.integer else y, "alpha": alpha}
        data |= {"generate": int(generate), "reference": np.zeros(len(y)), "clamp": UNCLAMPED}
        if self.weighted:
            data["w"] = w
        for name, codes in self.codes.items():
            data[name], data[f"{name}_levels"] = codes[crosstab] + 1, self.levels[name]
        return data | dict(self.constants)

    @property
    def inputs(self) -> set[str]:
        """Names of all data handed to the program."""
        names = {"N", "y", "alpha", "generate", "reference", "clamp"} | ({"w"} if self.weighted else set())
        return names | set(self.codes) | {f"{name}_levels" for name in self.codes} | set(self.constants)

    def check_function(self) -> None:
        """Raises `JobError` if the job's Python function cannot be loaded."""
        if self.function is None:
            return
        try:
            _function(self.function)
        except (ImportError, AttributeError, ValueError) as error:
            failure = f"'{self.function}' cannot be loaded ({type(error).__name__})"
            allowed = "module:function of an installed module, or an entry point of the group dpdist.log_lik"
            raise JobError.of("model", "model.log_lik", failure, allowed, "install it, or correct the name") from None

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Raises `ProgramError` if sizes are not those that the job states."""
        for parameter in self.parameters:
            if (size := draws[parameter.name].shape[1:]) != parameter.shape:
                difference = f"parameter {parameter.name} has the size {size}, not the job's {parameter.shape}"
                raise ProgramError(self.program.name, difference, f"correct model.parameters.{parameter.name}")
        return {parameter.name: draws[parameter.name] for parameter in self.parameters}

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood (draw, record) from the job's Python function."""
        assert self.function is not None
        data = self.data_of(records.row, records.outcome, records.weight, np.ones(len(records)))
        values = np.asarray(_function(self.function)(dict(draws.values), data), dtype=np.float64)
        if values.shape != (len(draws), len(records)):
            raise ValueError(f"{self.function} gave {values.shape}, not (draw, record) = {(len(draws), len(records))}")
        return values

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        highest, lowest = np.empty(len(records)), np.empty(len(records))
        size = max(1, TILE_VALUES // len(draws))
        for start in range(0, len(records), size):
            part = slice(start, start + size)
            tile = self.log_lik(draws, records.take(part))
            highest[part], lowest[part] = tile.max(axis=0), tile.min(axis=0)
        return Extremes(highest + ROUNDING * np.abs(highest), lowest - ROUNDING * np.abs(lowest))

    def presampled(self, theta: Draws) -> tuple[Floats, Floats]:
        return theta[OUTCOME][0], theta[WEIGHT][0]

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        records = {name: theta[name][0].tolist() for name in (OUTCOME, WEIGHT)}
        return {**super().describe(theta), **records}

    def recall(self, described: Mapping[str, Any]) -> Draws:
        records = {name: np.array(described[name])[None] for name in (OUTCOME, WEIGHT)}
        return Draws({**super().recall(described).values, **records})


def _parameter(name: str, dims: tuple[str | int, ...], crosstab: Crosstab) -> Parameter:
    labelled = []
    for position, dim in enumerate(dims, start=1):
        if isinstance(dim, str):
            labelled.append((dim, tuple(map(str, crosstab.levels[dim]))))
        else:
            labelled.append((f"{name}_{position}", tuple(str(k) for k in range(1, dim + 1))))
    return Parameter(name, tuple(labelled))


def _function(name: str) -> Callable[[dict[str, Floats], dict[str, Any]], Floats]:
    """The function that a name refers to: an entry point of the group dpdist.log_lik, or `module:function`."""
    points = entry_points(group=ENTRY_POINTS, name=name)
    point = next(iter(points)) if points else EntryPoint(name, name, ENTRY_POINTS)
    loaded: Callable[[dict[str, Floats], dict[str, Any]], Floats] = point.load()
    return loaded
