"""Computes likelihood ratios of noisy sums and choices under two files, for an attacker who knows all but one record.

The mechanism runs once on a file without noise, which gives one path of possible releases. It runs again on the
neighbour, with the same path in place of the neighbour's sums. At every step the two files then measure sums, or choose
by scores, after the same earlier releases. So the steps compose, and the sum of their losses is at most the claim. The
measured values are the sums plus the noise of a release, which its sampler draws anew thousands of times. The log
likelihood ratio of the noisy sums is known exactly. The ratio of a choice is estimated from the frequency of each
candidate. No test is more powerful than the sum of the ratios (Neyman & Pearson). Figures that are equal in both files
are not drawn, because they carry no information.

Fitting and synthetic records follow from the noisy sums, so they cannot reveal more. The results are confidential.
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
    """The noisy queries of a stratum's mechanism on one file: sums, (figure,), their noise, and scored choices."""

    sums: Floats
    scales: tuple[Fraction, ...]
    laws: tuple[NoiseName, ...]
    choices: tuple[Choice, ...]
    chosen: tuple[Ints, ...]
    parts: tuple[Floats, ...]
    """The sums, one array for each addition of noise."""

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
        """Runs the mechanism on records.

        `path` holds the releases before each step; without it these records' sums are used.

        Raises `NotAdded` for a mechanism that uses its noise otherwise than by addition, `Improper` where a fit has no
        posterior.
        """
        choices, chosen = list[Choice](), list[Ints]()

        def choose(request: Choice) -> Ints:
            choices.append(request)
            own = request.under(np.zeros(request.scores.size)) if path is None else path.chosen[len(chosen)]
            chosen.append(own)
            return own

        meter = Meter(imposed=None if path is None else path.imposing, choose=choose)
        rounds = mechanism_of(job).protect(job, model, Unwatched(), learned)
        run_rounds(rounds, model, sampler, Key(b"audit"), "audit", [records], answer=meter)
        scales, laws = tuple(meter.scales), tuple(meter.laws)
        return cls(meter.exact_sums, scales, laws, tuple(choices), tuple(chosen), tuple(meter.found))

    @property
    def imposing(self) -> Imposed:
        """Returns a copy that imposes these sums in place of another file's sums."""
        return lambda number, query: self.parts[number].reshape(query.shape).copy()


@dataclass(frozen=True)
class Compared:
    """Two files that measure after the same earlier releases."""

    near: Measuring
    far: Measuring

    @property
    def differing(self) -> Ints:
        """Returns figures whose sums, or noise, differ between the files."""
        apart = self.near.sums != self.far.sums
        other = [a != b for a, b in zip(self.near.scales, self.far.scales, strict=True)]
        return np.flatnonzero(apart | np.array(other, dtype=bool))

    @property
    def distance(self) -> float:
        """Returns the distance of the sums in scales of their noise, which is the exact loss under Laplace noise."""
        scales = np.array([float(scale) for scale in self.near.scales])
        return float((np.abs(self.near.sums - self.far.sums) / scales).sum()) if len(scales) else 0.0

    def scores(self, runs: int, learning: int, sums: bool = True, choices: bool = True) -> tuple[Floats, Floats]:
        """Returns log likelihood ratios of `runs` releases from either file, (run,).

        Those of choices are learned on the first `learning` runs.

        Both files use the same noise. Each file's frequencies have separate limits, whatever
        the other's are.
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
        """Returns the log likelihood ratios of one figure, (file, run)."""
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
    """Compares the queries of the near file with each neighbour's queries on the same path.

    Raises as `Measuring.of` does.
    """
    own = Measuring.of(job, model, learned, sampler, near)
    return [Compared(own, Measuring.of(job, model, learned, sampler, far, path=own)) for far in neighbours]


def _log_density(noise: Floats, scale: Fraction, law: NoiseName) -> Floats:
    """Returns the log density of noise on a lattice that is far finer than the noise's scale."""
    away = np.abs(noise) / float(scale)
    return np.asarray(-np.log(float(scale)) - (away**2 / 2.0 if law == "gaussian" else away))


def _of_choice(files: tuple[Choice, Choice], row: int, runs: int, learning: int) -> Iterator[Floats]:
    """Returns log ratios of the two files' frequencies of the chosen candidate, (run,), for each file."""
    open_ones = np.isfinite(files[0].scores[row]) | np.isfinite(files[1].scores[row])
    size = int(open_ones.sum())
    noise = fresh_noise(files[0].noise._replace(size=size * runs)).reshape(runs, size)
    picked = [each._replace(scores=each.scores[row, open_ones][None]).under(noise)[:, 0] for each in files]
    one, other = (np.bincount(own[:learning], minlength=size) + 0.5 for own in picked)
    ratio = np.log(one / other)
    yield from (ratio[own] for own in picked)
