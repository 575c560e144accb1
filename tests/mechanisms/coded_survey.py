"""A small survey of three coded columns, and jobs that release tables and records of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from test_clamped import KEY

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise, StratumRecorder, noise_of, run_rounds
from dpdist.job import Job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.sampling.samplers import IndependentSampler
from dpdist.studies.kinds.one_stratum import model_of

COLUMNS = ("sex", "degree", "kids")
JOB = """
dataset: coded
publish: always
period: "2021"
columns:
  sex: {{bounds: [0, 1], codes: {{f: 0, m: 1}}}}
  degree: {{bounds: [1, 3], whole: true, outside: clip}}
  kids: {{bounds: [0, {kids}], whole: true, outside: clip}}
  weight: {{bounds: [1, 50], outside: {outside}}}
survey: {{{survey}}}
outcome: [{outcome}]
mechanism: {{name: {mechanism}{said}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: {sets}
tables:
  - {{name: one, by: [], statistics: [{statistics}]}}
"""
PLAIN = {
    "kids": 3,
    "outside": "clip",
    "survey": "weight: weight",
    "outcome": ", ".join(COLUMNS),
    "epsilon": "1",
    "adjacency": "zero_out",
    "sets": 1,
}


def job_text(mechanism: str, said: str, means: tuple[str, ...], **other: object) -> str:
    """A job of this mechanism with settings `said`, whose table has a count and these means; `other` replaces `PLAIN`."""
    statistics = ", ".join(["count", *(f"{{mean: {name}}}" for name in means)])
    return JOB.format(mechanism=mechanism, said=said, statistics=statistics, **(PLAIN | other))


def records(values: Any, w: Any) -> Records:
    return Records.of_outcomes(np.asarray(values, float), np.asarray(w, float))


def survey(seed: int, n: int = 4000) -> Records:
    """Degree goes with sex, children with degree; and sex and children only through it."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, n)
    degree = 1 + rng.binomial(2, 0.3 + 0.4 * sex)
    kids = rng.binomial(3, 0.9 - 0.25 * degree)
    return records(np.column_stack([sex, degree, kids]), np.clip(rng.gamma(2.0, 8.0, n), 1, 50))


def frame(file: Records) -> pd.DataFrame:
    """The survey as a data frame."""
    columns = dict(zip(COLUMNS, file.outcomes.astype(int).T, strict=True))
    return pd.DataFrame(columns | {"sex": np.array(["f", "m"])[columns["sex"]], "weight": file.weight})


def release(said: Job, file: Records, folder: Path) -> Path:
    """The workspace of a release."""
    frame(file).to_parquet(folder / "file.parquet")
    dpdist.run(said, folder / "work", input=folder / "file.parquet")
    return folder / "work"


def quiet(request: Noise) -> Floats:
    """No noise, for exact oracles."""
    return np.zeros(request.size)


def released(said: Job, file: Records, noise: Callable[[Noise], Floats] | None = None) -> tuple[Any, Draws]:
    """The model, and what a file's rounds release."""
    model = model_of(said, len(file))
    rounds = mechanism_of(said).protect(said, model, StratumRecorder(), None)
    return model, run_rounds(
        rounds, model, IndependentSampler(1), KEY, "all", [file], noise=noise or noise_of(KEY)
    ).parameters[0]


def asked_of(said: Job, n: int = 30) -> list[Noise]:
    """The noise that the rounds ask for, on a small file of independent columns."""
    rng, requests = np.random.default_rng(1), list[Noise]()
    columns = [rng.integers(0, len(levels), n) + min(levels) for levels in model_of(said, n).levels]

    def noise(request: Noise) -> Floats:
        requests.append(request)
        return quiet(request)

    released(said, records(np.column_stack(columns), np.ones(n)), noise)
    return requests
