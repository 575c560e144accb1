"""Log likelihood ratios of a mechanism's noisy sums and choices under two neighbouring files.

The strongest attacker knows all records but one.

Fits and synthetic records follow from the noisy sums, so they reveal no more. The results are confidential.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import (
    Choice,
    FigureQuery,
    Learned,
    Noise,
    Query,
    Released,
    Rounds,
    StratumRecorder,
    fresh_noise,
    run_rounds,
)
from dpdist.job import Job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import StratumModel
from dpdist.sampling.samplers import PosteriorSampler

# Queries are answered in place of the engine: by exact sums, or by the answers to another file. So the mechanism's code is
# unchanged.
#
# Noise of scale b may be kept within a range. Let M(x) be the probability with which x plus noise is in the range. The log
# likelihood ratio of the sums x and x' is at most |x − x'|/b + log M(x') − log M(x), and it is attained. Over all figures
# these losses add up. So two files lose the distance of their sums, and what the logarithms of M differ by.
#
# The mechanism first runs on one file without noise. The answers that it gets are called a path. It then runs on the
# neighbouring file, but each step continues with the path's answers, not with this file's. So every step computes the same
# query on both files, after the same earlier releases. Steps therefore compose, and the sum of their losses is at most the
# claim. Noise is then drawn thousands of times by the release's sampler and added to the sums. Sums that the mechanism
# keeps within a range are drawn again until they are in it. The log likelihood ratio of the noisy sums is known exactly.
# The ratio of a noisy choice is estimated from the frequency with which each candidate is chosen. No test is more powerful
# than the sum of the ratios (Neyman & Pearson). Figures that are equal in both files carry no information, and are not
# drawn.


class NotAdded(Exception):
    """Raised if a mechanism does more with noise than add it within a range, because the released law then differs."""


class BeyondRange(Exception):
    """Raised for a sum outside the public range of the released figure, for which no ε holds; the message names no sum."""


class AnsweredQueries(NamedTuple):
    """The queries of a mechanism over a file, their answers, and what was released."""

    queries: list[Query]
    answers: list[Any]
    released: Released


def answered(
    rounds: Rounds,
    model: StratumModel,
    sampler: PosteriorSampler,
    records: Records,
    answer: Callable[[int, Query], Any],
    key: Key,
) -> AnsweredQueries:
    """Drives a mechanism's rounds over a file; `answer` takes the number of each query, from 0, and the query."""
    queries, answers = list[Query](), list[Any]()

    def reply(query: Query) -> Any:
        answers.append(answer(len(queries), query))
        queries.append(query)
        return np.array(answers[-1])

    return AnsweredQueries(queries, answers, run_rounds(rounds, model, sampler, key, "audit", [records], answer=reply))


def exactly(path: AnsweredQueries | None = None) -> Callable[[int, Query], Any]:
    """Answers without noise; with `path`, its answers, so that later stages are the same."""

    def answer(number: int, query: Query) -> Any:
        if path is not None and number < len(path.answers):
            return path.answers[number]
        return query.under(np.zeros(query.noise.size))

    return answer


def queries_of(
    job: Job,
    model: StratumModel,
    learned: Learned,
    sampler: PosteriorSampler,
    records: Records,
    path: AnsweredQueries | None = None,
) -> AnsweredQueries:
    """Runs the mechanism on records, without noise.

    `path` gives the answers to earlier steps. Without `path`, they are computed from these records. Raises `NotAdded` for
    a mechanism that does more with noise than add it within a range, `BeyondRange` for a sum outside its public range, and
    `Improper` if a fit has no posterior.
    """
    without_noise = exactly(path)

    def answer(number: int, query: Query) -> Any:
        refuse_unknown_law(query)
        return without_noise(number, query)

    rounds = mechanism_of(job).protect(job, model, StratumRecorder(), learned)
    return answered(rounds, model, sampler, records, answer, Key(b"audit"))


def refuse_unknown_law(query: Query) -> None:
    """Raises `NotAdded` if noise is not added to sums or scores, and `BeyondRange` for a sum outside its public range."""
    if isinstance(query, Choice):
        return
    if not isinstance(query, FigureQuery):
        raise NotAdded(f"noise is not added to sums: {type(query).__name__}")
    low, high = query.ends
    if ((query.sums < low) | (query.sums > high)).any():
        raise BeyondRange("a sum is not in its public range")


def log_mass(sums: Floats, scale: Floats | float, ends: tuple[Floats, Floats]) -> Floats:
    """Log probability that sums plus discrete Laplace noise lie within their ranges, (…, figure); 0 without ends."""
    rate = np.exp(-1.0 / scale)
    beyond = sum(rate ** (np.abs(end - sums) + 1.0) for end in ends)
    return np.asarray(np.log1p(-beyond / (1.0 + rate)))


EXACT = 1e9
"""Ratios are rounded to 1/EXACT, so that rounding errors do not separate equal ones."""


def loss(pairs: Iterable[tuple[Query, Query]]) -> float:
    """What pairs of queries of two files cost after the same answers: ε under Laplace noise, ρ under Gaussian noise.

    Sums cost their distance over the noise scale, and the difference of the log masses of their ranges. A common shift of
    scores costs a choice nothing, and any other change at most the range of the differences. Queries that differ in more
    than values show which file it is: their cost has no bound.
    """
    total = masses = 0.0
    for mine, theirs in pairs:
        if not _alike(mine, theirs):
            return math.inf
        scale, gaussian = float(mine.noise.scale), mine.noise.law == "gaussian"
        if isinstance(mine, Choice) and isinstance(theirs, Choice):
            opened = np.isfinite(mine.scores) | np.isfinite(theirs.scores)
            away = np.subtract(mine.scores, theirs.scores, out=np.zeros(opened.shape), where=opened)
            most, least = (np.where(opened, away, end) for end in (-np.inf, np.inf))
            spread = np.maximum(most.max(axis=1) - least.min(axis=1), 0.0)
            # A choice under Gaussian noise follows from noisy scores, which have this loss together.
            total += float((away**2).sum() / (2.0 * scale**2) if gaussian else spread.sum() / scale)
        elif isinstance(mine, FigureQuery) and isinstance(theirs, FigureQuery):
            away = (mine.sums - theirs.sums).ravel() / scale
            total += float(away @ away / 2.0 if gaussian else np.abs(away).sum())
            masses += 0.0 if gaussian else float((_log_mass(mine) - _log_mass(theirs)).sum())
    return total + abs(masses)


def _alike(mine: Any, theirs: Any) -> bool:
    """True if queries, each `Choice` or `FigureQuery`, differ in values alone."""
    kinds = set[Any]()
    for query in (mine, theirs):
        values = query.scores if isinstance(query, Choice) else query.sums
        kinds.add((type(query), values.shape, query.noise.law, query.noise.scale))
    return len(kinds) == 1


def _log_mass(query: FigureQuery) -> Floats:
    """Log probability of every figure's range under noise without limits, in the shape of the sums."""
    return log_mass(query.sums, float(query.noise.scale), query.ends)


class NeighbourQueries(NamedTuple):
    """The queries of two neighbouring files, each `Choice` or `FigureQuery`, after identical earlier releases."""

    near: Sequence[Any]
    far: Sequence[Any]

    @property
    def distance(self) -> float:
        """Distance between the sums in noise scales, plus the difference of the log masses of ranges.

        Under Laplace noise this is the exact loss.
        """
        pairs = list(zip(*self, strict=True))
        if not all(_alike(*pair) for pair in pairs):
            return math.inf
        figures = [pair for pair in pairs if not isinstance(pair[0], Choice)]
        masses = sum(float((_log_mass(a) - _log_mass(b)).sum()) for a, b in figures)
        return sum((float(np.abs(a.sums - b.sums).sum()) / float(a.noise.scale) for a, b in figures), abs(masses))

    @property
    def loss(self) -> float:
        """What all queries of the two files cost after the same answers: ρ where all noise is Gaussian, otherwise ε."""
        return loss(zip(*self, strict=True))

    def scores(self, runs: int, learning: int) -> tuple[Floats, Floats]:
        """Returns log likelihood ratios of `runs` releases from the near file, and of `runs` from the far file.

        Both arrays have the shape (run,). Ratios of choices are learned from the first `learning` runs. Both files get the
        same noise.
        """
        totals = np.zeros((2, runs))
        for mine, theirs in zip(*self, strict=True):
            if isinstance(mine, Choice):
                for row in np.flatnonzero((mine.scores != theirs.scores).any(axis=1)):
                    totals += np.array(list(_of_choice((mine, theirs), int(row), runs, learning)))
            else:
                other_scale = mine.noise.scale != theirs.noise.scale
                for figure in np.flatnonzero((mine.sums != theirs.sums) | other_scale):
                    totals += _of_figure((mine, theirs), int(figure), runs)
        near, far = np.rint(totals * EXACT) / EXACT
        return near, far


def compare(
    job: Job, model: StratumModel, learned: Learned, sampler: PosteriorSampler, near: Records, neighbours: Iterable[Records]
) -> list[NeighbourQueries]:
    """Runs the mechanism on the near file, and on each neighbour along the near file's path.

    Raises the errors of `queries_of`.
    """
    path = queries_of(job, model, learned, sampler, near)
    others = (queries_of(job, model, learned, sampler, far, path) for far in neighbours)
    return [NeighbourQueries(path.queries, other.queries) for other in others]


def _of_figure(files: tuple[FigureQuery, FigureQuery], figure: int, runs: int) -> Floats:
    """Log likelihood ratios of one figure, (file, run)."""
    noise, ratios = dict[Fraction, Floats](), np.empty((2, runs))
    sums, masses = [query.sums.flat[figure] for query in files], [_log_mass(query).flat[figure] for query in files]
    for row, query in enumerate(files):
        (low, high), request = (end.flat[figure] for end in query.ends), query.noise._replace(size=runs)
        if np.isfinite([low, high]).any():
            value = _within(request, sums[row], low, high)
        else:
            if request.scale not in noise:
                noise[request.scale] = fresh_noise(request)
            value = sums[row] + noise[request.scale]
        near, far = (_log_density(value - sums[k], side.noise) - masses[k] for k, side in enumerate(files))
        ratios[row] = near - far
    return ratios


def _within(noise: Noise, value: float, low: float, high: float) -> Floats:
    """The value plus noise, (noise.size,), redrawn until all results are within [low, high], which contains the value."""
    noisy = value + fresh_noise(noise)
    while (beyond := (noisy < low) | (noisy > high)).any():
        noisy[beyond] = value + fresh_noise(noise._replace(size=int(beyond.sum())))
    return noisy


def _log_density(values: Floats, noise: Noise) -> Floats:
    """Log density of noise, up to a constant. The lattice of values is much finer than the noise's scale."""
    away = np.abs(values) / float(noise.scale)
    return np.asarray(-np.log(float(noise.scale)) - (away**2 / 2.0 if noise.law == "gaussian" else away))


def _of_choice(files: tuple[Choice, Choice], row: int, runs: int, learning: int) -> Iterator[Floats]:
    """Yields log likelihood ratios of one choice for each file, (run,), from the frequencies of the chosen candidate."""
    open_ones = np.isfinite(files[0].scores[row]) | np.isfinite(files[1].scores[row])
    size = int(open_ones.sum())
    noise = fresh_noise(files[0].noise._replace(size=size * runs)).reshape(runs, size)
    picked = [choice._replace(scores=choice.scores[row, open_ones][None]).under(noise)[:, 0] for choice in files]
    counts, other_counts = (np.bincount(picks[:learning], minlength=size) + 0.5 for picks in picked)
    ratio = np.log(counts / other_counts)
    yield from (ratio[picks] for picks in picked)
