"""Log likelihood ratios of a mechanism's noisy sums and choices under two neighbouring files.

The strongest attacker knows all records but one.

Fits and synthetic records follow from the noisy sums, so they reveal no more. The results are confidential.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Ints
from dpdist.engine.protocol import Choice, FigureQuery, Learned, Noise, Query, StratumRecorder, fresh_noise, run_rounds
from dpdist.job import Job, NoiseName
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import StratumModel
from dpdist.sampling.samplers import PosteriorSampler

# A `LossMeter` answers the queries in place of the engine. It records a sum, and returns the sum without noise or a value
# that is imposed. So the mechanism's code is unchanged.
#
# Noise of scale b may be kept within a range. Let M(x) be the probability with which x plus noise is in the range. The log
# likelihood ratio of the sums x and x' is at most |x − x'|/b + log M(x') − log M(x), and it is attained. Over all figures
# these losses add up. So two files lose the distance of their sums, and what the logarithms of M differ by.
Imposed = Callable[[int, Floats], Floats]
"""A function that replaces the n-th noisy sum; its arguments are n, from 0, and the exact sum."""


class Enough(Exception):
    """Raised when the requested number of sums was recorded."""


class NotAdded(Exception):
    """Raised if a mechanism does more with noise than add it within a range, because the released law then differs."""


class BeyondRange(Exception):
    """Raised for a sum outside the public range of the released figure, for which no ε holds; the message names no sum."""


# The mechanism first runs on one file without noise. The sums that it releases are called a path. It then runs on the
# neighbouring file, but each step continues with the path's sums, not with this file's. So every step computes the same
# query on both files, after the same earlier releases. Steps therefore compose, and the sum of their losses is at most the
# claim. Noise is then drawn thousands of times by the release's sampler and added to the sums. Sums that the mechanism
# keeps within a range are drawn again until they are in it. The log likelihood ratio of the noisy sums is known exactly.
# The ratio of a noisy choice is estimated from the frequency with which each candidate is chosen. No test is more powerful
# than the sum of the ratios (Neyman & Pearson). Figures that are equal in both files carry no information, and are not
# drawn.
class LossMeter:
    """Answers the queries of one run of a mechanism, and records sums, noise scales and laws of its noisy figures."""

    def __init__(
        self, sums: int | None = None, imposed: Imposed | None = None, choose: Callable[[Choice], Ints] | None = None
    ):
        self.sums, self.imposed, self.choose = sums, imposed, choose
        self.scales: list[Fraction] = []
        self.laws: list[NoiseName] = []
        self.parts: list[Floats] = []
        self.low: list[Floats] = []
        self.high: list[Floats] = []

    def __call__(self, query: Query) -> Any:
        if isinstance(query, Choice):
            return query.under(np.zeros(query.noise.size)) if self.choose is None else self.choose(query)
        if not isinstance(query, FigureQuery):
            raise NotAdded(f"noise is not added to sums: {type(query).__name__}")
        low, high = query.ends
        if ((query.sums < low) | (query.sums > high)).any():
            raise BeyondRange("a sum is not in its public range")
        self.low.append(np.ravel(low))
        self.high.append(np.ravel(high))
        self.scales += [query.noise.scale] * query.sums.size
        self.laws += [query.noise.law] * query.sums.size
        self.parts.append(query.sums.reshape(-1).copy())
        if len(self.parts) == self.sums:
            raise Enough
        return query.sums if self.imposed is None else self.imposed(len(self.parts) - 1, query.sums)

    @property
    def query(self) -> Floats:
        """All sums to which noise was added, in units of its scale."""
        return np.asarray(self.exact_sums / self.scale)

    @property
    def exact_sums(self) -> Floats:
        """All sums to which noise was added, without it."""
        return np.concatenate([np.empty(0), *self.parts])

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Public ends of the range of every figure, (figure,) each; infinite where noise is only added."""
        return np.concatenate([np.empty(0), *self.low]), np.concatenate([np.empty(0), *self.high])

    @property
    def scale(self) -> Floats:
        """Returns the noise scale of every figure."""
        return np.array([float(scale) for scale in self.scales])


def log_mass(sums: Floats, scale: Floats, ends: tuple[Floats, Floats]) -> Floats:
    """Log probability that sums plus discrete Laplace noise lie within their ranges, (…, figure); 0 without ends."""
    rate = np.exp(-1.0 / scale)
    beyond = sum(rate ** (np.abs(end - sums) + 1.0) for end in ends)
    return np.asarray(np.log1p(-beyond / (1.0 + rate)))


EXACT = 1e9
"""Ratios are rounded to 1/EXACT, so that rounding errors do not separate equal ones."""


@dataclass(frozen=True)
class FileRequests:
    """The requests of a mechanism to one file: exact sums, (figure,), their noise's scales and laws, and scored
    choices.
    """

    sums: Floats
    scales: tuple[Fraction, ...]
    laws: tuple[NoiseName, ...]
    ends: tuple[Floats, Floats]
    """Public range of every figure, (figure,) each; infinite where noise is only added."""
    choices: tuple[Choice, ...]
    chosen: tuple[Ints, ...]
    parts: tuple[Floats, ...]
    """The same sums, one array for each request."""

    @classmethod
    def of(
        cls,
        job: Job,
        model: StratumModel,
        learned: Learned,
        sampler: PosteriorSampler,
        records: Records,
        path: FileRequests | None = None,
    ) -> FileRequests:
        """Runs the mechanism on records.

        `path` gives the sums and choices released by earlier steps. Without `path`, they are computed from these
        records. Raises `NotAdded` for a mechanism that does more with noise than add it within a range, and `Improper`
        if a fit has no posterior.
        """
        choices, selections = list[Choice](), list[Ints]()

        def choose(request: Choice) -> Ints:
            choices.append(request)
            candidates = request.under(np.zeros(request.scores.size)) if path is None else path.chosen[len(selections)]
            selections.append(candidates)
            return candidates

        meter = LossMeter(imposed=None if path is None else path.imposing, choose=choose)
        rounds = mechanism_of(job).protect(job, model, StratumRecorder(), learned)
        run_rounds(rounds, model, sampler, Key(b"audit"), "audit", [records], answer=meter)
        scales, laws = tuple(meter.scales), tuple(meter.laws)
        return cls(meter.exact_sums, scales, laws, meter.ends, tuple(choices), tuple(selections), tuple(meter.parts))

    @property
    def scale_of_sums(self) -> Floats:
        """The noise scale of every sum, (figure,)."""
        return np.array([float(scale) for scale in self.scales])

    @property
    def log_mass(self) -> Floats:
        """Log probability of every figure's range under noise without limits, (figure,)."""
        return log_mass(self.sums, self.scale_of_sums, self.ends)

    @property
    def imposing(self) -> Imposed:
        """A function that gives these sums in place of another file's sums."""
        return lambda number, query: self.parts[number].reshape(query.shape).copy()


@dataclass(frozen=True)
class NeighbourQueries:
    """The queries of two neighbouring files, after identical earlier releases."""

    near: FileRequests
    far: FileRequests

    @property
    def differing(self) -> Ints:
        """Positions of figures whose sums, or noise scales, differ between the files."""
        differs = self.near.sums != self.far.sums
        other = [a != b for a, b in zip(self.near.scales, self.far.scales, strict=True)]
        return np.flatnonzero(differs | np.array(other, dtype=bool))

    @property
    def distance(self) -> float:
        """Distance between the sums in noise scales, plus the difference of the log masses of ranges.

        Under Laplace noise this is the exact loss.
        """
        scales = self.near.scale_of_sums
        masses = float((self.near.log_mass - self.far.log_mass).sum())
        return float((np.abs(self.near.sums - self.far.sums) / scales).sum()) + abs(masses) if len(scales) else 0.0

    @property
    def loss(self) -> float:
        """What all queries of the two files cost after the same answers: ρ where all noise is Gaussian, otherwise ε.

        A common shift of scores costs a choice nothing, and any other change at most the range of the differences.
        """
        scales, gaussian = self.near.scale_of_sums, set(self.near.laws) == {"gaussian"}
        total = float((((self.near.sums - self.far.sums) / scales) ** 2).sum()) / 2.0 if gaussian else self.distance
        for mine, theirs in zip(self.near.choices, self.far.choices, strict=True):
            scale = float(mine.noise.scale)
            for here, there in zip(mine.scores, theirs.scores, strict=True):
                both = np.isfinite(here) & np.isfinite(there)
                away = here[both] - there[both]
                if mine.noise.law == "gaussian":  # the choice follows from noisy scores, which have this loss together
                    total += float(away @ away) / (2.0 * scale**2)
                else:
                    total += float(np.ptp(away)) / scale if both.any() else 0.0
        return total

    def scores(self, runs: int, learning: int, sums: bool = True, choices: bool = True) -> tuple[Floats, Floats]:
        """Returns log likelihood ratios of `runs` releases from the near file, and of `runs` from the far file.

        Both arrays have the shape (run,). Ratios of choices are learned from the first `learning` runs. Both files get the
        same noise.
        """
        totals = np.zeros((2, runs))
        for figure in self.differing if sums else ():
            totals += self._of_figure(int(figure), runs)
        pairs = zip(self.near.choices, self.far.choices, strict=True)
        for choice, other_choice in pairs if choices else ():
            for row in np.flatnonzero((choice.scores != other_choice.scores).any(axis=1)):
                totals += np.array(list(_of_choice((choice, other_choice), int(row), runs, learning)))
        near, far = np.rint(totals * EXACT) / EXACT
        return near, far

    def _of_figure(self, figure: int, runs: int) -> Floats:
        """Log likelihood ratios of one figure, (file, run)."""
        files, noise = (self.near, self.far), dict[Fraction, Floats]()
        ratios = np.empty((2, runs))
        for row, measuring in enumerate(files):
            scale, (low, high) = measuring.scales[figure], (end[figure] for end in measuring.ends)
            if np.isfinite([low, high]).any():
                value = _within(Noise(scale, runs, 0, measuring.laws[figure]), measuring.sums[figure], low, high)
            else:
                if scale not in noise:
                    noise[scale] = fresh_noise(Noise(scale, runs, 0, measuring.laws[figure]))
                value = measuring.sums[figure] + noise[scale]
            near, far = (
                _log_density(value - side.sums[figure], side.scales[figure], side.laws[figure]) - side.log_mass[figure]
                for side in files
            )
            ratios[row] = near - far
        return ratios


def compare(
    job: Job, model: StratumModel, learned: Learned, sampler: PosteriorSampler, near: Records, neighbours: Iterable[Records]
) -> list[NeighbourQueries]:
    """Runs the mechanism on the near file, and on each neighbour along the near file's path.

    Raises the errors of `Measuring.of`.
    """
    path = FileRequests.of(job, model, learned, sampler, near)
    return [NeighbourQueries(path, FileRequests.of(job, model, learned, sampler, far, path=path)) for far in neighbours]


def _within(noise: Noise, value: float, low: float, high: float) -> Floats:
    """The value plus noise, (noise.size,), redrawn until all results are within [low, high], which contains the value."""
    noisy = value + fresh_noise(noise)
    while (beyond := (noisy < low) | (noisy > high)).any():
        noisy[beyond] = value + fresh_noise(noise._replace(size=int(beyond.sum())))
    return noisy


def _log_density(noise: Floats, scale: Fraction, law: NoiseName) -> Floats:
    """Log density of noise, up to a constant. The lattice of values is much finer than the noise's scale."""
    away = np.abs(noise) / float(scale)
    return np.asarray(-np.log(float(scale)) - (away**2 / 2.0 if law == "gaussian" else away))


def _of_choice(files: tuple[Choice, Choice], row: int, runs: int, learning: int) -> Iterator[Floats]:
    """Yields log likelihood ratios of one choice for each file, (run,), from the frequencies of the chosen candidate."""
    open_ones = np.isfinite(files[0].scores[row]) | np.isfinite(files[1].scores[row])
    size = int(open_ones.sum())
    noise = fresh_noise(files[0].noise._replace(size=size * runs)).reshape(runs, size)
    picked = [choice._replace(scores=choice.scores[row, open_ones][None]).under(noise)[:, 0] for choice in files]
    counts, other_counts = (np.bincount(picks[:learning], minlength=size) + 0.5 for picks in picked)
    ratio = np.log(counts / other_counts)
    yield from (ratio[picks] for picks in picked)
