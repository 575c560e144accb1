"""What the noisy sums of a mechanism cost: distances of exact sums between neighbouring files, over the scale of noise.

A release of a small job is run once, to have its model, its records and what its reference fixed. The mechanism's own
rounds are then driven again, in memory, over neighbouring files under the same noise. The distance between two files of the
numbers that noise is added to, over the scale that is asked, is what a request costs. The costs of all
requests of a release, sets and stages, are added up. They may not exceed the job's budget.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from small_jobs import Said
from small_runs import run

from dpdist.core.digests import digest
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Records
from dpdist.engine.in_memory import Unwatched, run_rounds
from dpdist.engine.protocol import Noise
from dpdist.job import Job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import StratumModel
from dpdist.runtime import fit_address, tasks
from dpdist.sampling.protocol import Sampler

ROUNDING = 1e-6
"""Sums are rounded to whole units: relative room of a cost for that."""
LEAST_SEEN = 0.5
"""Part of ε that the neighbours of a small file cost at the least; a mechanism far below it adds too much noise, or the
records here do not reach its sums."""


@dataclass
class Captured:
    """What a release protected, in its first stratum."""

    job: Job
    model: StratumModel
    learned: Any
    sampler: Sampler
    key: Key
    records: Records


class Asked(NamedTuple):
    """A request for noise, and the exact sums that it is for."""

    noise: Noise
    sums: Floats


def captured(name: str, job: Job | Said, inputs: Path, workspace: Path) -> Captured:
    """Run a small job once, and keep what its mechanism was given."""
    given = list[tuple[Job, Any]]()
    seen = list[tuple[StratumModel, Sampler, Key, Sequence[Records]]]()

    class Listening:
        def __init__(self, mechanism: Any) -> None:
            self.mechanism, self.scope = mechanism, mechanism.scope

        def protect(self, job: Job, model: StratumModel, recorder: Any, learned: Any = None) -> Any:
            given.append((job, learned))
            return self.mechanism.protect(job, model, recorder, learned)

    def rounds(rounds: Any, model: StratumModel, sampler: Sampler, key: Key, label: str, blocks: Any, *rest: Any) -> Any:
        seen.append((model, sampler, key, blocks))
        return run_rounds(rounds, model, sampler, key, label, blocks, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_address, "mechanism_of", lambda job: Listening(mechanism_of(job)))
        patch.setattr(tasks, "run_rounds", rounds)
        run(name, job, inputs, workspace)  # type: ignore[arg-type]
    (said, learned), (model, sampler, key, blocks) = given[0], seen[0]
    return Captured(said, model, learned, sampler, key, _whole(list(blocks)))


def _whole(blocks: list[Records]) -> Records:
    columns = ("record", "frame", "outcomes", "weight", "psu")
    return Records(*(np.concatenate([getattr(block, name) for block in blocks]) for name in columns))


class Zeros(np.ndarray):
    """Noise of size 0 that takes down what it is added to; where an answer is given, the sum under noise is that answer."""

    added: list[Floats]
    answer: Floats | None

    def __array_finalize__(self, source: Any) -> None:
        self.added, self.answer = getattr(source, "added", []), getattr(source, "answer", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        others = [np.asarray(each) for each in inputs if not isinstance(each, Zeros)]
        if ufunc in (np.add, np.subtract) and len(others) == 1:
            self.added.append(np.array(others[0], dtype=float))
            if self.answer is not None and self.answer.size == others[0].size == self.size:
                return self.answer.reshape(others[0].shape)
        plain = [each.view(np.ndarray) if isinstance(each, Zeros) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **more)


def zeros(size: int, answer: Floats | None) -> Zeros:
    """Noise of size 0."""
    made = np.zeros(size).view(Zeros)
    made.added, made.answer = [], answer
    return made


@contextmanager
def _digested(sums: dict[str, Floats]) -> Iterator[None]:
    """Every array that a mechanism takes a checksum of is kept under it."""

    def keeping(value: Any) -> str:
        found = digest(value)
        if isinstance(value, np.ndarray):
            sums[found] = np.array(value, dtype=float)
        return found

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("dpdist.mechanisms.") and getattr(module, "digest", None) is digest:
                patch.setattr(module, "digest", keeping)
        yield


def asked(case: Captured, records: Records, mechanism: Any = None, base: Sequence[Asked] = ()) -> list[Asked]:
    """The requests for noise over a file, each with its exact sums.

    Noisy sums are the same as over the file of `base`, so that stages that follow from them are the same too.
    """
    sums, found = dict[str, Floats](), list[tuple[Noise, Zeros]]()

    def noise(request: Noise) -> Floats:
        known = base[len(found)].sums if len(found) < len(base) else None
        found.append((request, zeros(request.size, known)))
        return found[-1][1]

    own = mechanism or mechanism_of(case.job)
    with _digested(sums):
        rounds = own.protect(case.job, case.model, Unwatched(), case.learned)
        run_rounds(rounds, case.model, case.sampler, case.key, "contract", [records], noise=noise)
    return list(_apart(found, sums))


def _apart(requests: Sequence[tuple[Noise, Zeros]], sums: Mapping[str, Floats]) -> Iterator[Asked]:
    """Every request with what its noise was added to; or else with the sums of its checksum, which requests for fewer sums
    take in turn, by columns.

    A request for more numbers than there are sums draws candidates of a truncated law, whose cost is no distance over a
    scale: it is left out.
    """
    before, start = "", 0
    for each, noise in requests:
        if any(values.size == each.size for values in noise.added):
            yield Asked(each, next(values.ravel() for values in noise.added if values.size == each.size))
            continue
        covered = sums.get(each.sums, np.empty(0))
        if each.size <= covered.size:
            values = (covered.T if each.size < covered.size else covered).ravel()
            start = start if each.sums == before and start < len(values) else 0
            yield Asked(each, values[start : start + each.size])
            before, start = each.sums, start + each.size


def neighbours(job: Job, records: Records) -> tuple[list[Records], list[tuple[int, int]]]:
    """Files that differ in the first record alone, and which pairs of them are neighbours: its values lie at the ends of
    the public bounds, between them and beyond the weight's, or it is not there."""
    bounds = [job.columns[name].bounds or (0.0, 1.0) for name in job.outcomes]
    ends = [[at(low, high) for low, high in bounds] for at in (min, max, lambda a, b: (a + b) / 2.0)]
    column, weights = job.columns.get(job.survey.weight or ""), [1.0]
    if column is not None:
        low, high = column.bounds or (1.0, float(records.weight.max()))
        weights = [low, high, 4.0 * high]
    files = [_with_first(records, outcomes, weight) for outcomes, weight in product(ends, weights)]
    number = len(files)
    if job.budget.adjacency != "substitution":
        without = records.take(slice(1, None))
        return [*files, without], [(k, number) for k in range(number)]
    pairs = [(one, other) for one in range(number) for other in range(one)]
    others = np.flatnonzero(records.frame != records.frame[0])[:1] if job.budget.exchange == "anywhere" else ()
    moved = [_with_frame(file, int(records.frame[k])) for k in others for file in files]
    return [*files, *moved], pairs + [(one, number + other) for one in range(number) for other in range(len(moved))]


def _with_first(records: Records, outcomes: Sequence[float], weight: float) -> Records:
    values, weights = np.array(records.outcomes), np.array(records.weight)
    values[0], weights[0] = outcomes, weight
    return replace(records, outcomes=values, weight=weights)


def _with_frame(records: Records, row: int) -> Records:
    frame = np.array(records.frame)
    frame[0] = row
    return replace(records, frame=frame)


def spent(one: Sequence[Asked], other: Sequence[Asked]) -> float:
    """What the noisy sums of two files cost: ε under Laplace noise, ρ under Gaussian; up to where adaptive paths part."""
    total = 0.0
    for mine, theirs in zip(one, other, strict=False):
        if (mine.noise.query, mine.noise.scale) != (theirs.noise.query, theirs.noise.scale):
            break
        distance, scale = np.abs(mine.sums - theirs.sums), float(mine.noise.scale)
        total += float(distance @ distance) / (2.0 * scale**2) if mine.noise.law == "gaussian" else distance.sum() / scale
    return total


def problems_of_scale(name: str, case: Captured, mechanism: Any = None) -> list[str]:
    """Where the noise that is asked for is less than the job's budget pays for, or far more."""
    job = case.job
    base = asked(case, case.records, mechanism)
    if not base:
        return [f"{name}: no noise is bound to the sums that it is added to: ask for it by NoiseOn.of(model, sums).draw"]
    gaussian = base[0].noise.law == "gaussian"
    budget = float(job.rho_of_tables if gaussian else job.budget.epsilon - job.epsilon_of_frame)
    files, pairs = neighbours(job, case.records)
    noises = [asked(case, file, mechanism, base) for file in files]
    largest, what = max(spent(noises[one], noises[other]) for one, other in pairs), "rho" if gaussian else "epsilon"
    if largest > budget * (1.0 + ROUNDING):
        return [
            f"{name}: two neighbouring files cost {largest:.4g}, and the job's {what} is {budget:.4g}: "
            "compare the scale with the sensitivity, the clipping, and what every set and stage is given"
        ]
    if largest < budget * LEAST_SEEN:
        return [f"{name}: no neighbouring files cost more than {largest:.3g} of {what} = {budget:.4g}: is a share lost?"]
    return []
