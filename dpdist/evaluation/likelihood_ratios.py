"""The attacker who knows all but one record, on noisy sums and choices: the likelihood ratio of what two files measure.

The mechanism runs once on a file without noise: that is one path of what may be released. It runs again on the neighbour,
with the same path in place of its own sums. At every step the two files then measure sums, or choose by scores, after the
same earlier releases, so that steps compose: their losses add up to what is claimed at most. What is measured is the sums
plus the noise of a release, drawn anew by its sampler, thousands of times. The log likelihood ratio of the noisy sums is
known exactly; that of a choice is learned from how often each candidate was chosen. No test is more powerful than their sum
(Neyman & Pearson). Figures that do not differ are not drawn: they tell nothing.

Fitting and synthetic records follow from noisy sums, so that they can tell no more. Confidential.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdist.core.keys import Key
from dpdist.core.records import Floats, Ints, Records
from dpdist.engine.in_memory import Unwatched, fresh_noise, run_rounds
from dpdist.engine.protocol import Choice, Learned, Noise
from dpdist.evaluation.metering import Imposed, Meter
from dpdist.job import Job, NoiseName
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import StratumModel
from dpdist.sampling.protocol import Sampler

EXACT = 1e9
"""Scores are rounded to 1/EXACT, so that atoms of their law stay together."""


@dataclass(frozen=True)
class Measuring:
    """What a stratum's mechanism adds noise to on one file: sums, (figure,), their noise, and choices with their scores."""

    sums: Floats
    scales: tuple[Fraction, ...]
    laws: tuple[NoiseName, ...]
    choices: tuple[Choice, ...]
    chosen: tuple[Ints, ...]
    parts: tuple[Floats, ...]
    """The sums, one array for every time that noise was added."""

    @classmethod
    def of(
        cls,
        job: Job,
        model: StratumModel,
        learned: Learned,
        sampler: Sampler,
        records: Records,
        path: Measuring | None = None,
    ) -> Measuring:
        """On records; `path`: what was released before each step, without which it is these records' own sums.

        Raises `NotAdded` of a mechanism that does more with noise than adding it, `Improper` where a fit has no posterior.
        """
        choices, chosen = list[Choice](), list[Ints]()

        def choose(request: Choice) -> Ints:
            choices.append(request)
            own = request.among(np.zeros(request.scores.size)) if path is None else path.chosen[len(chosen)]
            chosen.append(own)
            return own

        meter = Meter(imposed=None if path is None else path.imposing)
        rounds = mechanism_of(job).protect(job, model, Unwatched(), learned)
        run_rounds(rounds, model, sampler, Key(b"audit"), "audit", [records], noise=meter, choose=choose)
        draws = meter.of_figures
        scales, laws = tuple(meter.scales[draw] for draw in draws), tuple(meter.laws[draw] for draw in draws)
        return cls(meter.exact_sums, scales, laws, tuple(choices), tuple(chosen), tuple(meter.found))

    @property
    def imposing(self) -> Imposed:
        """These sums, in place of another file's."""
        return lambda number, query: self.parts[number].reshape(query.shape).copy()


@dataclass(frozen=True)
class Compared:
    """Two files that measure after the same earlier releases."""

    near: Measuring
    far: Measuring

    @property
    def differing(self) -> Ints:
        """Figures whose sums, or noise, differ."""
        apart = self.near.sums != self.far.sums
        other = [a != b for a, b in zip(self.near.scales, self.far.scales, strict=True)]
        return np.flatnonzero(apart | np.array(other, dtype=bool))

    @property
    def distance(self) -> float:
        """Of the sums, in scales of their noise: the exact loss under Laplace noise."""
        scales = np.array([float(scale) for scale in self.near.scales])
        return float((np.abs(self.near.sums - self.far.sums) / scales).sum()) if len(scales) else 0.0

    def scores(self, runs: int, learning: int, sums: bool = True, choices: bool = True) -> tuple[Floats, Floats]:
        """Log likelihood ratios of `runs` releases from either file, (run,); choices' are learned on the first `learning`.

        One noise serves both files: each file's frequencies have their own limits, which hold whatever the other's are.
        """
        totals = np.zeros((2, runs))
        for figure in self.differing if sums else ():
            totals += self._of_figure(int(figure), runs)
        pairs = zip(self.near.choices, self.far.choices, strict=True)
        for one, other in pairs if choices else ():
            for row in np.flatnonzero((one.scores != other.scores).any(axis=1)):
                totals += np.array(list(_of_choice((one, other), int(row), runs, learning)))
        near, far = np.rint(totals * EXACT) / EXACT
        return near, far

    def _of_figure(self, figure: int, runs: int) -> Floats:
        """(file, run)."""
        files, noise = (self.near, self.far), dict[Fraction, Floats]()
        found = np.empty((2, runs))
        for row, own in enumerate(files):
            scale = own.scales[figure]
            if scale not in noise:
                noise[scale] = fresh_noise(Noise(scale, runs, 0, own.laws[figure]))
            value = own.sums[figure] + noise[scale]
            near, far = (_log_density(value - each.sums[figure], each.scales[figure], each.laws[figure]) for each in files)
            found[row] = near - far
        return found


def compared(
    job: Job, model: StratumModel, learned: Learned, sampler: Sampler, near: Records, neighbours: Iterable[Records]
) -> list[Compared]:
    """What the near file measures, and each neighbour of it on the same path. Raises as `Measuring.of` does."""
    own = Measuring.of(job, model, learned, sampler, near)
    return [Compared(own, Measuring.of(job, model, learned, sampler, far, path=own)) for far in neighbours]


def _log_density(noise: Floats, scale: Fraction, law: NoiseName) -> Floats:
    """Of noise on a lattice far finer than its scale."""
    away = np.abs(noise) / float(scale)
    return np.asarray(-np.log(float(scale)) - (away**2 / 2.0 if law == "gaussian" else away))


def _of_choice(files: tuple[Choice, Choice], row: int, runs: int, learning: int) -> Iterator[Floats]:
    """Log ratios of how often the files choose what was chosen, (run,), file by file."""
    open_ones = np.isfinite(files[0].scores[row]) | np.isfinite(files[1].scores[row])
    size = int(open_ones.sum())
    noise = fresh_noise(files[0].noise._replace(size=size * runs)).reshape(runs, size)
    picked = [each._replace(scores=each.scores[row, open_ones][None]).among(noise)[:, 0] for each in files]
    one, other = (np.bincount(own[:learning], minlength=size) + 0.5 for own in picked)
    ratio = np.log(one / other)
    yield from (ratio[own] for own in picked)
