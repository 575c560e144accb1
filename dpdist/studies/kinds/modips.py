"""Studies of `modips`: do 95 % intervals from synthetic sets alone contain a normal law's mean ([M], section 3)?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Literal

import numpy as np
import scipy
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.estimation.estimators import combine_sets
from dpdist.job import Adjacency, Frozen, Job, Name
from dpdist.mechanisms.modips.post import Moments, limited_normal_mean
from dpdist.mechanisms.modips.query import CANDIDATES, BoundedSums, clamp_sums, draw_truncated
from dpdist.mechanisms.modips.spec import Truncation
from dpdist.privacy.noise import simulated_noise
from dpdist.studies.kinds.one_stratum import job_of_columns, model_of
from dpdist.studies.settings import Caption, Fact, Replicate, Result, StudyOfArms

LEVEL = 0.95
MOST_DEGREES = 1e12
"""Degrees of freedom that also stand for any larger number."""
VALUES_AT_ONCE = 2**17
"""Synthetic values in memory at once, unless one file has more records."""


class NormalCase(Frozen):
    """Records of variance 1, limited to public bounds."""

    name: Name
    n: int = Field(ge=1, le=100_000)
    bounds: tuple[float, float]
    mean: float = 0.0


class SetsArm(Frozen):
    """The number m of sets, and the way in which noisy sums are kept within their domain."""

    label: Name
    sets: int = Field(ge=1, le=100)
    truncation: Truncation = "clamped"
    variance: Literal["public", "sanitised"] = "public"


class ModipsStudy(StudyOfArms):
    """Coverage of 95 % intervals by T = B/m + W, bias and errors of the synthetic sets' mean.

    B is the variance between the m sets, W their mean variance within.
    """

    heads: ClassVar[tuple[str, ...]] = ("Label", "Sets", "Sums", "Variance")
    kind: Literal["modips"]
    cases: tuple[NormalCase, ...] = Field(min_length=1)
    mechanisms: tuple[SetsArm, ...] = Field(min_length=1)
    adjacency: Adjacency = "substitution"
    files: int = Field(default=100, ge=1, description="simulated files that a replicate's measures are over")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return {
            "coverage": Caption(
                "coverage of 95 % intervals", "Share of files whose interval covers the true mean; T = B/m + W, t law."
            ),
            "bias": Caption("bias", "Mean of the estimates less the true mean."),
            "root_mean_squared_error": Caption("root mean squared error", "Of the mean over all sets."),
            "standard_error": Caption("standard error", "√T, the mean over files."),
        }

    def replicate(self, case: int, number: int) -> Replicate:
        case_settings = self.cases[case]
        key = self.key_of(case_settings.name, number)
        files = [simulated_file(case_settings, key.child(str(k))) for k in range(self.files)]
        variances = {arm.variance: arm for arm in self.mechanisms}
        releases = {name: release_of(self.adjacency, case_settings, arm, self.grid[0]) for name, arm in variances.items()}
        sums = {name: exact_sums(model, files) for name, (_, model) in releases.items()}
        arms = ((arm, sums[arm.variance]) for arm in self.mechanisms)
        return Replicate([result for arm, exact in arms for result in _measured(self, case_settings, arm, exact, key)])

    def facts(self) -> list[Fact]:
        texts = [(c.name, f"{c.n:,} records of N({c.mean:g}, 1)", c.bounds) for c in self.cases]
        cases = [f"{name}: {records}, limited to [{low:g}, {high:g}]" for name, records, (low, high) in texts]
        return [
            ("Data", ["simulated", *cases]),
            ("Replicates", [f"R = {self.replicates} of {self.files} files each"]),
            ("ε", [", ".join(self.grid) + f" of all sets together, {self.adjacency}"]),
            self.randomness,
        ]

    def arms(self) -> list[tuple[str, ...]]:
        return [(arm.label, str(arm.sets), arm.truncation, arm.variance) for arm in self.mechanisms]

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        return LEVEL if measure == "coverage" else None


def _measured(study: ModipsStudy, case: NormalCase, arm: SetsArm, exact: Floats, key: Key) -> Iterator[Result]:
    """Measures at every ε, from exact sums (file, sum); all arms use the same files."""
    true = _mean(case)
    for epsilon in study.grid:
        model = release_of(study.adjacency, case, arm, epsilon)[1]
        means, deviations = released_laws(model, exact, arm.sets, key.child(f"{arm.label} {epsilon}"))
        rng, low_high = key.generator("synthesis", f"{arm.label} {epsilon}"), case.bounds
        sets = np.array([_moments_of_sets(*laws, case.n, low_high, rng) for laws in zip(means, deviations, strict=True)])
        total = combine_sets(sets[:, 0], sets[:, 1] / case.n, float("inf"))
        estimate, error = total.value, total.standard_error
        factor = scipy.special.stdtrit(np.minimum(total.df, MOST_DEGREES), 0.5 + LEVEL / 2.0)
        covers = np.abs(estimate - true) <= factor * error
        values = (covers.mean(), estimate.mean() - true, np.sqrt(((estimate - true) ** 2).mean()), error.mean())
        for measure, value in zip(study.all_measures, values, strict=True):
            yield Result(arm.label, epsilon, measure, float(value))


def exact_sums(model: Moments, files: Sequence[Records]) -> Floats:
    """The sums of every file, (file, sum)."""
    return np.array([BoundedSums(model).sums(file) for file in files])


def released_laws(model: Moments, exact: Floats, sets: int, key: Key) -> tuple[Floats, Floats]:
    """Means and standard deviations of the laws released by `Modips.rounds`, (set, file) each, from (file, sum).

    All files are computed at once; the engine, file by file, would take 25 times as long. A test checks that both have
    the same law.
    """
    noisy = np.repeat(exact[None], sets, axis=0)
    for number, ((start, stop), query, *ends) in enumerate(zip(model.parts, model.queries, *model.domain, strict=True)):
        assert stop - start == 1
        sums, low, high = noisy[..., start].ravel(), *(np.full(noisy[..., 0].size, end) for end in ends)
        bounded, size = model.truncation == "bounded", sums.size
        noise = simulated_noise(
            "laplace", query.scale, size * (CANDIDATES if bounded else 1), key.generator("noise", block=number)
        )
        answers = (
            draw_truncated(sums, noise.reshape(size, -1), low, high) if bounded else clamp_sums(sums + noise, low, high)
        )
        noisy[..., start] = answers.reshape(sets, -1)
    laws = model.laws(noisy.reshape(-1, noisy.shape[-1]), key.generator("release"))
    mean, deviation = laws["mean"][:, 0], laws["standard_deviation"]
    return mean.reshape(sets, -1), deviation.reshape(sets, -1)


def _moments_of_sets(
    mean: Floats, deviation: Floats, n: int, bounds: tuple[float, float], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The mean and the variance of each file's n synthetic records, (file,) each."""
    pairs, step = [], max(1, VALUES_AT_ONCE // n)
    for start in range(0, len(mean), step):
        at_once = slice(start, start + step)
        values = rng.standard_normal((len(mean[at_once]), n))
        values *= deviation[at_once, None]
        values += mean[at_once, None]
        np.clip(values, *bounds, out=values)
        pairs.append((values.mean(axis=1), values.var(axis=1, ddof=1)))
    return np.concatenate([first for first, _ in pairs]), np.concatenate([second for _, second in pairs])


@cache
def release_of(adjacency: Adjacency, case: NormalCase, arm: SetsArm, epsilon: str) -> tuple[Job, Moments]:
    mechanism: dict[str, object] = {"name": "modips", "law": "normal", "truncation": arm.truncation}
    columns = {"y": {"bounds": case.bounds, "outside": "clip"}}
    mechanism |= {"variance": 1.0} if arm.variance == "public" else {}
    job = job_of_columns(columns, mechanism, epsilon, adjacency, arm.sets, "y")
    model = model_of(job, case.n)
    assert isinstance(model, Moments)
    return job, model


def simulated_file(case: NormalCase, key: Key) -> Records:
    """A file of records of variance 1, limited to the case's bounds."""
    return Records.of_outcomes(np.clip(key.generator("file").normal(case.mean, 1.0, case.n), *case.bounds))


def _mean(case: NormalCase) -> float:
    return float(limited_normal_mean(np.array([case.mean]), np.ones(1), case.bounds)[0])
