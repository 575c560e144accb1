"""For `testing.mechanisms`: a small survey, and the small jobs of it that a specification accepts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dpdist.core.errors import JobError
from dpdist.job import Adjacency, Job, MechanismSpec
from dpdist.job.loading import parse_job

FIELDS, SEXES = ("arts", "law"), ("f", "m")
FAMILIES = {"salary": "lognormal", "visits": "poisson", "voted": "bernoulli", "share": "beta"}
"""Outcomes of the survey, each with a family for it."""
COLUMNS: dict[str, dict[str, Any]] = {
    "field": {"levels": list(FIELDS)},
    "sex": {"levels": list(SEXES)},
    "salary": {"bounds": [1000, 1000000], "outside": "clip"},
    "share": {"bounds": [0, 1], "outside": "clip"},
    "visits": {"bounds": [0, 60], "outside": "clip"},
    "voted": {"bounds": [0, 1], "codes": {"no": 0, "yes": 1}},
}
ADJACENCIES = (*(f"{adjacency}, same_x" for adjacency in get_args(Adjacency)), "substitution, anywhere")
"""Every adjacency, with the values that an exchanged record may take."""
CLIPPED_WEIGHT = {"bounds": [1, 100], "outside": "clip"}
WIDENED = 100.0
"""Factor between public bounds of wide jobs and the survey's, so that wider clips are reached."""


def single(values: ArrayLike) -> np.ndarray:
    """The values in single precision, so that their file has the same bytes on every processor."""
    return np.asarray(values).astype(np.float32).astype(float)


def survey(seed: int, n: int = 240) -> pd.DataFrame:
    """Records with an outcome for every family, and a weight that falls with the salary."""
    rng = np.random.default_rng(seed)
    field, sex = rng.integers(0, len(FIELDS), n), rng.integers(0, len(SEXES), n)
    log_salary = 11.0 + 0.2 * field - 0.1 * sex + 0.4 * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "field": np.array(FIELDS)[field],
            "sex": np.array(SEXES)[sex],
            "salary": single(np.exp(log_salary)),
            "share": single(rng.beta(2.0 + field, 3.0, n)),
            "visits": rng.negative_binomial(3, 0.3, n),
            "voted": np.where(rng.random(n) < 0.3 + 0.1 * field, "yes", "no"),
            "weight": np.clip(single(np.exp(14.5 - log_salary + 0.3 * rng.standard_normal(n))), 1.0, 100.0),
        }
    )


def accepted_jobs(
    spec: type[MechanismSpec],
    name: str,
    file: Path,
    keys: Mapping[str, Any],
    adjacencies: Iterable[str] = ADJACENCIES,
    wide: bool = False,
) -> tuple[dict[str, Job], list[str]]:
    """For each adjacency the first small job that the mechanism accepts, and reasons for refusals.

    `keys` are merged into every job, section by section. Jobs with public bounds of weights are tried first. In wide
    jobs, public bounds of weights, salaries and visits are `WIDENED`.
    """
    jobs, refusals = dict[str, Job](), list[str]()
    for under in adjacencies:
        adjacency, exchange = under.split(", ")
        budget = {"epsilon": "12", "adjacency": adjacency} | ({"exchange": exchange} if exchange == "anywhere" else {})
        for job in _small_jobs(spec, name, budget, wide):
            try:
                jobs[under] = parse_job(json.dumps(_laid_over(job, keys, file)))
                break
            except JobError as error:
                refusals.append(str(error))
    return jobs, refusals


def _small_jobs(spec: type[MechanismSpec], name: str, budget: Mapping[str, Any], wide: bool) -> Iterator[dict[str, Any]]:
    clipped, plain = {"weight": CLIPPED_WEIGHT}, dict[str, Any]()
    weights = ((True, clipped), (True, plain), (False, plain))
    cells: tuple[tuple[list[str], list[str]], ...] = (
        (["field", "sex"], ["field"]),
        (["field", "sex"], []),
        (["field"], ["field"]),
        (["field"], []),
    )
    for sets, (weighted, column_of_weight), outcome, (by, strata) in product((2, 1), weights, FAMILIES, cells):
        columns = {column: COLUMNS[column] for column in (*by, outcome)} | column_of_weight
        if wide:
            columns = {column: _widened(declared) for column, declared in columns.items()}
        yield {
            "dataset": "small",
            "publish": "always",
            "period": "1",
            "columns": columns,
            "survey": {"weight": "weight"} if weighted else {},
            "strata": strata,
            "outcome": outcome,
            "model": None if spec.statistics is not None else {"family": FAMILIES[outcome]},
            "mechanism": {"name": name},
            "budget": budget,
            "synthetic_sets": sets,
            "tables": [{"name": "t", "by": by, "margins": True, "statistics": ["count", {"mean": outcome}]}],
            "record": {"log_lik": "never"},
            "runtime": {"executor": "serial"},
        }


def _widened(column: dict[str, Any]) -> dict[str, Any]:
    """A column with wider public bounds, except bounds 0 and 1, which limit the outcome itself."""
    low, high = column.get("bounds", (0, 1))
    return column if high <= 1 else column | {"bounds": [low / WIDENED, high * WIDENED]}


def _laid_over(job: Mapping[str, Any], keys: Mapping[str, Any], file: Path) -> dict[str, Any]:
    laid = {**job, "input": {"path": str(file)}}
    for name, value in keys.items():
        section = laid.get(name)
        laid[name] = {**section, **value} if isinstance(section, Mapping) and isinstance(value, Mapping) else value
    return laid
