"""Studies of MODIPS: do 95 % intervals from synthetic sets alone contain a normal law's mean ([M], section 3)?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal

import numpy as np
import scipy
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame
from dpdist.estimation.estimators import combine_sets
from dpdist.job import Adjacency, Frozen, Job, Name
from dpdist.mechanisms.modips.post import Moments, limited_normal_mean
from dpdist.mechanisms.modips.spec import Truncation
from dpdist.mechanisms.parts import builder_of
from dpdist.studies.kinds.one_stratum import released
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, SimulatedKind, randomness
from dpdist.studies.settings import StudyOfArms

MEASURES = ("coverage", "bias", "root_mean_squared_error", "standard_error")
LEVEL = 0.95


class NormalCase(Frozen):
    """Records of variance 1, limited to public bounds."""

    name: Name
    n: int = Field(ge=1, le=100_000)
    bounds: tuple[float, float]
    mean: float = 0.0


class SetsArm(Frozen):
    """The number m of sets, and how noisy sums stay within their domain."""

    label: Name
    sets: int = Field(ge=1, le=100)
    truncation: Truncation = "clamped"
    variance: Literal["public", "sanitised"] = "public"


class Modips(StudyOfArms):
    """Coverage of 95 % intervals by T = B/m + W, bias and errors of the mean of synthetic sets.

    B is the variance between the m sets, W their mean variance within.
    """

    measures = MEASURES
    kind: Literal["modips"]
    cases: tuple[NormalCase, ...] = Field(min_length=1)
    mechanisms: tuple[SetsArm, ...] = Field(min_length=1)
    adjacency: Adjacency = "substitution"
    files: int = Field(default=100, ge=1, description="simulated files that a replicate's measures are over")


class ModipsKind(SimulatedKind):
    settings = Modips
    heads = ("Label", "Sets", "Sums", "Variance")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return {
            "coverage": Caption(
                "coverage of 95 % intervals", "Share of files whose interval holds the true mean; T = B/m + W, t law."
            ),
            "bias": Caption("bias", "Mean of the estimates less the true mean."),
            "root_mean_squared_error": Caption("root mean squared error", "Of the mean over all sets."),
            "standard_error": Caption("standard error", "√T, the mean over files."),
        }

    def replicate(self, study: Modips, case: int, number: int) -> Replicate:
        chosen = study.cases[case]
        key = study.key_of(chosen.name, number)
        return Replicate([result for arm in study.mechanisms for result in _measured(study, chosen, arm, key)], [])

    def facts(self, study: Modips) -> list[Fact]:
        texts = [(c.name, f"{c.n:,} records of N({c.mean:g}, 1)", c.bounds) for c in study.cases]
        cases = [f"{name}: {records}, limited to [{low:g}, {high:g}]" for name, records, (low, high) in texts]
        return [
            ("Data", ["simulated", *cases]),
            ("Replicates", [f"R = {study.replicates} of {study.files} files each"]),
            ("ε", [", ".join(study.grid) + f" of all sets together, {study.adjacency}"]),
            randomness(study),
        ]

    def arms(self, study: Modips) -> list[tuple[str, ...]]:
        return [(arm.label, str(arm.sets), arm.truncation, arm.variance) for arm in study.mechanisms]

    def target(self, study: Modips, case: str, epsilon: str, measure: str) -> float | None:
        return LEVEL if measure == "coverage" else None


def _measured(study: Modips, case: NormalCase, arm: SetsArm, key: Key) -> Iterator[Result]:
    """Measures at every ε; all arms are on the same files."""
    for epsilon in study.grid:
        estimates = np.array([_estimate(study, case, arm, epsilon, key.child(str(k))) for k in range(study.files)])
        true = _mean(case)
        estimate, error, factor = estimates.T
        held = np.abs(estimate - true) <= factor * error
        values = (held.mean(), estimate.mean() - true, np.sqrt(((estimate - true) ** 2).mean()), error.mean())
        for measure, value in zip(MEASURES, values, strict=True):
            yield Result(arm.label, epsilon, measure, float(value))


def _estimate(study: Modips, case: NormalCase, arm: SetsArm, epsilon: str, key: Key) -> tuple[float, float, float]:
    """The mean over sets, its standard error, and the factor of its interval."""
    file, (job, model) = _file(case, key), _release(study.adjacency, case, arm, epsilon)
    noise_key, rows = key.child(f"{arm.label} {epsilon}"), np.zeros(case.n, np.int32)
    thetas = released(job, model, file, noise_key)
    sets = [model.simulate(theta, rows, noise_key.generator("synthesis", set=k))[0] for k, theta in enumerate(thetas, 1)]
    means, variances = (np.array([[f(one)] for one in sets]) for f in (np.mean, _of_the_mean))
    total = combine_sets(means, variances, float("inf"))
    factor = (
        scipy.special.ndtri(0.5 + LEVEL / 2.0)
        if not np.isfinite(total.df[0])
        else scipy.special.stdtrit(total.df[0], 0.5 + LEVEL / 2.0)
    )
    return float(total.value[0]), float(total.standard_error[0]), float(factor)


@cache
def _release(adjacency: Adjacency, case: NormalCase, arm: SetsArm, epsilon: str) -> tuple[Job, Moments]:
    """The job of such a file, and its model."""
    mechanism = {"name": "modips", "law": "normal", "truncation": arm.truncation}
    job = Job.model_validate(
        {
            "dataset": "study",
            "period": "1",
            "columns": {"y": {"bounds": case.bounds, "outside": "clip"}},
            "outcome": "y",
            "mechanism": mechanism | ({"variance": 1.0} if arm.variance == "public" else {}),
            "budget": {"epsilon": epsilon, "adjacency": adjacency},
            "synthetic_sets": arm.sets,
            "tables": [{"name": "t", "by": [], "statistics": [{"mean": "y"}]}],
        }
    )
    frame = Frame({}, {}, np.array([case.n]), (), ())
    model = builder_of(job).build(job, frame, slice(0, 1))
    assert isinstance(model, Moments)
    return job, model


def _of_the_mean(values: Floats) -> float:
    return float(values.var(ddof=1) / len(values))


def _file(case: NormalCase, key: Key) -> Records:
    n, none = case.n, np.full(case.n, -1, np.int32)
    values = np.clip(key.generator("file").normal(case.mean, 1.0, n), *case.bounds)
    return Records(np.arange(n), np.zeros(n, np.int32), values, np.ones(n), none)


def _mean(case: NormalCase) -> float:
    return float(limited_normal_mean(np.array([case.mean]), np.ones(1), case.bounds)[0])
