"""Laws of weights and outcomes from noisy counts of bins, for jobs without a reference.

Bins grow geometrically with the distance from 0, or from the public bound nearest to it; 0 and public bounds have bins
of their own (weights have none of 0). So a law over many orders of magnitude takes few counts. Noise fills empty bins,
too: those of their own have records if their count is above noise. Log counts of the others are a parabola along the
log distance, as those of a lognormal law are, and a smooth deviation from it. So a tail that noise hides is that of a
lognormal law. Counts add up to the public number of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints, quotient_or
from dpdist.mechanisms.tables.main_effects import ReferenceSample

BoolArray = NDArray[np.bool_]

RATIO = 2.0**0.5
"""Ratio of the distances at which a bin ends."""
STEPS_OF_BINS = 43
"""Number of steps from the largest distance to that at which the innermost bin ends."""
LEAST = 5.0
"""Count, in scales of the noise, above which a bin of one value is believed."""
SPREADS, CLEAR = (0.15, 0.4, 0.7, 1.0, 1.5, 2.2, 3.0), 7.0
"""Standard deviations of logarithms at which a curve may begin, and the likeness, in scales, that noise alone has not."""
SEEN = 9.0
"""Count, in scales, above which a bin tells where a curve may begin."""
DEVIATIONS, LONE = ((0.5, 1.5), (0.6, 0.5)), 0.3
"""Standard deviations of log counts about a parabola, with the log distances over which they change, and of each bin."""
STEPS, CONVERGED = 200, 1e-6
"""Largest number of steps of Gauss and Newton, and the largest change of a parameter in the last one."""
MOST_EVEN = 5
"""Number of columns whose values are paired evenly; more would need more values."""
CORRELATIONS = np.linspace(-0.98, 0.98, 99)
"""Correlations of normal scores of weight and outcome that quadrant sums may mean."""
USUAL_CORRELATIONS = ((0.1, 0.8), (0.5, 0.2))
"""Standard deviations of such correlations before the measurement, and their probabilities: of households, of firms."""
NODES = 400
"""Number of quantiles by which the probability of a quadrant is computed."""
DRAWS = 16
"""Number of laws that tell how far shares of records above thresholds may be off."""
FEWEST_ABOVE = 1e-6
"""Smallest share of records on either side of a threshold: a law may have all in one bin."""
CURVES = 256
"""Number of sides of columns whose modes a process keeps."""


class RecordsOfSide(NamedTuple):
    """What is known of the number of records along a side of the anchor, and its variance."""

    records: float
    variance: float


class Curve(NamedTuple):
    """Log counts of bins along a side of the anchor: a parabola, as of a lognormal law, and a smooth deviation from it.

    `features` (bin, parameter) are derivatives at the mode; `root` (parameter, parameter) is that of the covariance.
    """

    log_counts: Floats
    features: Floats
    root: Floats
    mass: float
    """Log of the posterior's mass about this mode (Laplace's method)."""

    @classmethod
    def modes(cls, place: Floats, noisy: Floats, scale: float, total: RecordsOfSide) -> tuple[Curve, ...]:
        """Modes from noisy counts of bins at these log distances, that of most mass first: those to which the parabolas
        most like the counts lead. There is none if noise may have made this likeness.
        """
        middles, spreads, templates = _parabolas(place)
        templates /= np.linalg.norm(templates, axis=1)[:, None]
        likeness = templates @ noisy
        if likeness.max() <= CLEAR * scale:
            return ()
        # Noise may hide a hump of a law of several parts, so that the posterior has several modes.
        starts = []
        for spread in SPREADS:
            best = int(np.where(spreads == spread, likeness, -np.inf).argmax())
            starts.append((middles[best], spread, max(likeness[best], scale) * float(templates[best].sum())))
        signal = np.where(noisy > SEEN * scale, noisy, 0.0)
        if signal.sum() > 0.0:
            # A law of several parts has the spread of all.
            of_seen = float(np.average(place, weights=signal))
            wider = max(float(np.sqrt(np.average((place - of_seen) ** 2, weights=signal))), SPREADS[0])
            starts.append((of_seen, wider, float(signal.sum())))
        modes, distinct = [cls._near(place, noisy, scale, total, *start) for start in starts], list[Curve]()
        for mode in sorted(modes, key=lambda mode: -mode.mass):
            if all(mode.differs(other, scale) for other in distinct):
                distinct.append(mode)
        return tuple(distinct)

    @classmethod
    def _near(
        cls, place: Floats, noisy: Floats, scale: float, total: RecordsOfSide, middle: float, spread: float, records: float
    ) -> Curve:
        """The mode near a parabola with this middle, spread and number of records."""
        t = (place - middle) / spread
        start = np.log(records / np.exp(-0.5 * t**2).sum())
        apart = place[:, None] - place
        covariance = sum(size**2 * np.exp(-0.5 * (apart / reach) ** 2) for size, reach in DEVIATIONS)
        deviation = scipy.linalg.cholesky(covariance + LONE**2 * np.eye(len(place)), lower=True)
        beta, of_prior = np.zeros(3 + len(place)), np.concatenate([[2.0, 1.0, 0.7], np.ones(len(place))])
        observed = np.append(noisy, total.records)

        def log_counts(beta: Floats) -> Floats:
            return np.asarray(start + beta[0] + beta[1] * t - 0.5 * np.exp(beta[2]) * t**2 + deviation @ beta[3:])

        def counts(beta: Floats) -> Floats:
            """Of bins, and of all of them."""
            of_bins = np.exp(np.minimum(log_counts(beta), 50.0))
            return np.append(of_bins, of_bins.sum())

        def variance(fitted: Floats) -> Floats:
            return np.asarray(np.maximum(fitted, 1.0) + np.append(np.full(len(place), 2.0 * scale**2), total.variance))

        def loss(beta: Floats, worth: Floats) -> float:
            return float((observed - counts(beta)) ** 2 @ worth + ((beta / of_prior) ** 2).sum())

        for _ in range(STEPS):
            fitted = counts(beta)
            features = np.column_stack([np.ones_like(t), t, -0.5 * np.exp(beta[2]) * t**2, deviation])
            worth, jacobian = 1.0 / variance(fitted), fitted[:-1, None] * features
            jacobian = np.vstack([jacobian, jacobian.sum(axis=0)])
            information = jacobian.T @ (worth[:, None] * jacobian) + np.diag(of_prior**-2.0)
            change = np.linalg.solve(information, jacobian.T @ (worth * (observed - fitted)) - beta / of_prior**2)
            # Bins far below noise may change by any factor.
            moved = features @ change
            seen = fitted[:-1] * np.exp(np.clip(moved, 0.0, 50.0)) > 0.1 * max(scale, 1.0)
            change *= min(1.0, 1.0 / max(float(np.abs(moved[seen]).max(initial=0.0)), 1e-300))
            now = loss(beta, worth)
            while loss(beta + change, worth) > now and np.abs(change).max() > 1e-9:
                change *= 0.5
            beta = beta + change
            if np.abs(change).max() < CONVERGED:
                break
        root = scipy.linalg.solve_triangular(
            scipy.linalg.cholesky(information, lower=True), np.eye(len(beta)), lower=True
        ).T
        fitted = counts(beta)
        variances = variance(fitted)
        # Noise has a Laplace law, under which one far count is likelier than under a normal one (Huber).
        far = np.abs(observed - fitted) / np.sqrt(variances)
        squares = np.where(far > 2.0**0.5, 2.0**1.5 * far - 2.0, far**2)
        squares[-1] = far[-1] ** 2  # many counts' noise
        density = -0.5 * float((squares + np.log(variances)).sum() + ((beta / of_prior) ** 2).sum())
        return cls(log_counts(beta), features, root, density + float(np.log(np.diag(root)).sum()))

    def differs(self, other: Curve, scale: float) -> bool:
        return bool((np.abs(np.exp(self.log_counts) - np.exp(other.log_counts)) > scale).any())

    def draw(self, rng: np.random.Generator) -> Floats:
        """A draw of counts, (bin,)."""
        logs = self.features @ (self.root @ rng.standard_normal(self.root.shape[1]))
        return np.asarray(np.exp(self.log_counts + np.clip(logs, -3.0, 3.0)))


@lru_cache(maxsize=CURVES)
def _modes_of(place: bytes, noisy: bytes, scale: float, total: RecordsOfSide) -> tuple[Curve, ...]:
    """`Curve.modes` of arrays by their bytes: the mode and all draws of a law have the same ones."""
    return Curve.modes(np.frombuffer(place), np.frombuffer(noisy), scale, total)


def _parabolas(place: Floats) -> tuple[Floats, Floats, Floats]:
    """Middles and spreads of parabolas along these log distances, (parabola,), and counts like them, (parabola, bin)."""
    middles, spreads = (grid.ravel() for grid in np.meshgrid(place, SPREADS))
    return middles, spreads, np.exp(-0.5 * ((place - middles[:, None]) / spreads[:, None]) ** 2)


class Bins(NamedTuple):
    """Bins (cuts[k − 1], cuts[k]] of a column; bin 0 is its lower bound, and what is below. Distances are from `anchor`."""

    cuts: Floats
    anchor: float

    @classmethod
    def within(cls, low: float, high: float, anchor: float) -> Self:
        """The bins of a column with these public bounds."""
        farthest = max(high - anchor, anchor - low)
        steps = farthest * RATIO ** -np.arange(STEPS_OF_BINS + 1.0)
        atoms = np.array([low, high, anchor])
        cuts = np.concatenate([atoms, np.nextafter(atoms, -np.inf), anchor + steps, anchor - steps])
        return cls(np.unique(cuts[(cuts >= low) & (cuts <= high)]), anchor)

    def of(self, values: Floats) -> Ints:
        """The bin of every value; values beyond the bounds are in the outer ones."""
        return np.minimum(np.searchsorted(self.cuts, values, side="left"), len(self.cuts) - 1).astype(np.int64)

    @property
    def alone(self) -> BoolArray:
        """True for bins of one value."""
        return np.concatenate([[True], np.nextafter(self.cuts[1:], -np.inf) <= self.cuts[:-1]])

    def clear(self, noisy: Floats, scale: float) -> BoolArray:
        """True for bins of one value that are believed to have records."""
        return np.asarray(self.alone & (noisy > LEAST * scale))

    @property
    def sides(self) -> list[tuple[Ints, Floats]]:
        """Numbers of bins below and above the anchor, but those of one value, and their log distances, (bin,)."""
        middle = np.concatenate([self.cuts[:1], (self.cuts[1:] + self.cuts[:-1]) / 2.0]) - self.anchor
        sides = [np.flatnonzero((sign * middle > 0.0) & ~self.alone) for sign in (-1.0, 1.0)]
        return [(side, np.log(np.abs(middle[side]))) for side in sides if len(side)]

    def curves(self, noisy: Floats, scale: float, records: float) -> list[tuple[Ints, tuple[Curve, ...]]]:
        """Modes of curves of the bins below and above the anchor, with their numbers. `records` is the public number."""
        pairs = []
        for side, place in self.sides:
            others = np.ones(len(noisy), dtype=bool)
            others[side] = False
            seen = noisy[others & (~self.alone | self.clear(noisy, scale))]
            variance = 2.0 * scale**2 * float(np.count_nonzero(others))
            total = RecordsOfSide(max(records - float(seen.sum()), 1.0), variance)
            modes = _modes_of(place.tobytes(), noisy[side].tobytes(), scale, total)
            if modes:
                pairs.append((side, modes))
        return pairs

    def shares(self, noisy: Floats, scale: float, records: float, rng: np.random.Generator | None = None) -> Floats:
        """Shares of bins by noisy counts, whose noise has the scale of a Laplace law: at the likeliest mode, in the mean of
        laws of values that noise hides, or a draw.
        """
        counts = np.where(self.clear(noisy, scale), noisy, 0.0)
        seen, curves = np.count_nonzero(counts), self.curves(noisy, scale, records)
        for side, modes in curves:
            if rng is None:
                counts[side] = np.exp(modes[0].log_counts)
                continue
            masses = np.exp([mode.mass - modes[0].mass for mode in modes])
            counts[side] = modes[rng.choice(len(modes), p=masses / masses.sum())].draw(rng)
        if not curves:
            hidden = records - counts.sum()
            if rng is not None:
                hidden += scale * np.sqrt(2.0 * seen) * rng.standard_normal()
            # Values that are seen alone would leave no room for others.
            hidden = max(hidden, scale)
            counts += hidden * self._law_of_hidden(noisy, scale, hidden, rng)
        return np.asarray(counts / counts.sum())

    def _law_of_hidden(self, noisy: Floats, scale: float, records: float, rng: np.random.Generator | None) -> Floats:
        """Shares of bins in so many records that noise hides: all of one value, or on a parabola below or above the anchor,
        in their mean by what is likely, or in a draw of these.
        """
        laws = [np.eye(len(noisy))[[value]] for value in np.flatnonzero(self.alone & ~self.clear(noisy, scale))]
        for side, place in self.sides:
            *_, parabolas = _parabolas(place)
            law = np.zeros((len(parabolas), len(noisy)))
            law[:, side] = parabolas / parabolas.sum(axis=1, keepdims=True)
            laws.append(law)
        logs = [-np.abs(noisy - records * law).sum(axis=1) / scale for law in laws]
        of_laws = np.array([scipy.special.logsumexp(each) - np.log(len(each)) for each in logs])
        if rng is None:
            # The likeliest of many laws that noise leaves possible may have far smaller values than most others.
            shares = [scipy.special.softmax(each) @ law for each, law in zip(logs, laws, strict=True)]
            return np.asarray(scipy.special.softmax(of_laws) @ np.array(shares))
        chosen = int(rng.choice(len(laws), p=scipy.special.softmax(of_laws)))
        return np.asarray(laws[chosen][rng.choice(len(logs[chosen]), p=scipy.special.softmax(logs[chosen]))])

    def placed(self, shares: Floats, number: int) -> Floats:
        """Values that have these shares of bins, in rising order, evenly by the logarithm of distances within a bin."""
        reach = np.concatenate([[0.0], np.cumsum(shares)]) / shares.sum()
        u = (np.arange(number) + 0.5) / number
        place = np.clip(np.searchsorted(reach, u, side="right") - 1, 0, len(shares) - 1)
        part = (u - reach[place]) / np.maximum(reach[place + 1] - reach[place], 1e-300)
        left, right = self.cuts[np.maximum(place - 1, 0)] - self.anchor, self.cuts[place] - self.anchor
        near, far = np.minimum(np.abs(left), np.abs(right)), np.maximum(np.abs(left), np.abs(right))
        near = np.maximum(near, far / 4.0)  # a bin that ends at the anchor, or at the number next to it
        ratio = quotient_or(1.0, far, near)
        distance = np.where(right > 0.0, near * ratio**part, -near * ratio ** (1.0 - part))
        lone = np.nextafter(self.cuts[place], -np.inf) <= self.cuts[np.maximum(place - 1, 0)]
        values = np.where(lone, self.cuts[place], self.anchor + distance)
        return np.asarray(np.clip(values, self.cuts[0], self.cuts[-1]))


class BinnedColumns(NamedTuple):
    """Bins of the weight, if it is measured, and of every outcome. A record adds 1 to one bin of each."""

    columns: tuple[Bins, ...]
    weighted: bool

    @classmethod
    def of(cls, weight: tuple[float, float] | None, outcomes: Sequence[tuple[float, float]]) -> Self:
        """The bins by public bounds, of the weight (None if it is not measured) and of outcomes."""
        # Not all weights are 0: the innermost bin has those that are, and others as small.
        low, high = weight or (0.0, 0.0)
        of_weight = () if weight is None else (Bins.within(max(low, high * RATIO**-STEPS_OF_BINS), high, anchor=0.0),)
        of_outcomes = (Bins.within(low, high, min(max(low, 0.0), high)) for low, high in outcomes)
        return cls((*of_weight, *of_outcomes), weight is not None)

    @property
    def ends(self) -> Ints:
        """Where the bins of each column end in the counts of all."""
        return np.cumsum([len(bins.cuts) for bins in self.columns])

    def counts(self, weight: Floats, outcomes: Floats) -> Floats:
        """Numbers of records by bin, (bin,), the bins of columns one after another."""
        values = [*([weight] if self.weighted else []), *outcomes.T]
        pairs = zip(self.columns, values, strict=True)
        return np.concatenate([np.bincount(bins.of(v), minlength=len(bins.cuts)) for bins, v in pairs]).astype(np.float64)

    def medians(self, answers: BinnedAnswers) -> Floats:
        """Ends of bins that are the nearest to the medians of columns, (column,)."""
        ends = []
        for bins, part in zip(self.columns, np.split(answers.counts, self.ends[:-1]), strict=True):
            above = 1.0 - np.cumsum(bins.shares(part, answers.scale, answers.records))[:-1]
            ends.append(bins.cuts[int(np.abs(above - 0.5).argmin())])
        return np.array(ends)

    def correlations(self, answers: BinnedAnswers) -> Floats:
        """Probabilities of `CORRELATIONS` of the weight with every outcome, (outcome, correlation), given quadrant sums."""
        sizes, probabilities = np.array(USUAL_CORRELATIONS).T
        prior = (probabilities / sizes * np.exp(-0.5 * (CORRELATIONS[:, None] / sizes) ** 2)).sum(axis=1)
        (of_weight, *above), (error, *errors) = self._shares_above(answers)
        records, noise = answers.records, 2.0 * (answers.quadrant_scale / answers.records) ** 2
        rows = []
        for share, of_share, answer in zip(above, errors, answers.quadrants, strict=True):
            both = _shares_above_both(of_weight, share)
            quadrants = np.array([both, of_weight - both, share - both, 1.0 - of_weight - share + both])
            # Given the numbers of records on the sides of both thresholds, one of the four numbers tells the others.
            of_records = 16.0 / (records * (1.0 / np.maximum(quadrants, FEWEST_ABOVE)).sum(axis=0))
            changes = _changes_with_share(of_weight, share), _changes_with_share(share, of_weight)
            variance = noise + of_records + changes[0] ** 2 * error + changes[1] ** 2 * of_share
            expected = 1.0 - 2.0 * (of_weight + share) + 4.0 * both
            distance = (answer / records - expected) ** 2 / variance
            rows.append(prior * np.exp(-0.5 * (distance - distance.min())) / np.sqrt(variance))
        return np.array([row / row.sum() for row in rows]).reshape(len(above), len(CORRELATIONS))

    def _shares_above(self, answers: BinnedAnswers) -> tuple[Floats, Floats]:
        """Shares of records above the ends of `medians`, (column,), and their expected squared errors: by noisy counts of
        bins, and by their law, about which records vary. The law follows from the same counts, so that both together are
        taken to err as the better one does.
        """
        rng, records, parts = np.random.default_rng(0), answers.records, np.split(answers.counts, self.ends[:-1])
        pairs = list[tuple[float, float]]()
        for bins, part, end in zip(self.columns, parts, self.medians(answers), strict=True):
            above, law = bins.cuts > end, (part, answers.scale, records)
            few = above if 2 * np.count_nonzero(above) < len(above) else ~above
            counted = part[few].sum() / records if few is above else 1.0 - part[few].sum() / records
            noise = 2.0 * np.count_nonzero(few) * (answers.scale / records) ** 2
            share = float(np.clip(bins.shares(*law)[above].sum(), FEWEST_ABOVE, 1.0 - FEWEST_ABOVE))
            draws = np.array([bins.shares(*law, rng)[above].sum() for _ in range(DRAWS)])
            of_law = float(np.mean((draws - share) ** 2)) + share * (1.0 - share) / records
            together = (counted / noise + share / of_law) / (1.0 / noise + 1.0 / of_law)
            pairs.append((together, min(noise, of_law)))
        shares, squares = np.array(pairs).T
        return np.clip(shares, FEWEST_ABOVE, 1.0 - FEWEST_ABOVE), squares

    def sample(self, answers: BinnedAnswers, number: int, draw: int = 0) -> ReferenceSample:
        """`number` values that stand for the laws of noisy counts and quadrant sums.

        The laws are those at the mode, or after it `draw` of the laws that the answers may have meant.
        """
        rng = np.random.default_rng(draw)
        parts = zip(self.columns, np.split(answers.counts, self.ends[:-1]), strict=True)
        law = answers.scale, answers.records, rng if draw else None
        in_order = [bins.placed(bins.shares(part, *law), number) for bins, part in parts]
        correlations = np.zeros(0)
        if self.weighted and len(answers.quadrants):
            probabilities = self.correlations(answers)
            correlations = probabilities @ CORRELATIONS
            if draw:
                correlations = np.array([rng.choice(CORRELATIONS, p=row) for row in probabilities])
        values = paired(in_order, correlations, rng)
        weight = values.pop(0) if self.weighted else np.ones(number)
        return ReferenceSample(np.zeros((0, 0), dtype=np.int64), weight, np.column_stack(values))


class BinnedAnswers(NamedTuple):
    """Noisy counts of bins, (bin,), and quadrant sums, (outcome,), with the scales of their noise as of a Laplace law.

    A quadrant sum is the number of records whose weight and outcome are on the same side of their medians, less the number
    of others. There is none where weights are not measured.
    """

    counts: Floats
    scale: float
    quadrants: Floats
    quadrant_scale: float
    records: float


def quadrant_sums(weight: Floats, outcomes: Floats, medians: Floats) -> Floats:
    """Exact quadrant sums, (outcome,)."""
    alike = (weight > medians[0])[:, None] == (outcomes > medians[1:])
    return np.asarray(2.0 * np.count_nonzero(alike, axis=0) - len(weight))


def _shares_above_both(above: float, also_above: float) -> Floats:
    """Shares of records above both thresholds for every correlation, by the shares above each."""
    z = scipy.special.ndtri(1.0 - above * (np.arange(NODES) + 0.5) / NODES)
    end, rho = scipy.special.ndtri(1.0 - also_above), CORRELATIONS[:, None]
    return np.asarray(above * scipy.special.ndtr((rho * z - end) / np.sqrt(1.0 - rho**2)).mean(axis=1))


def _changes_with_share(above: float, also_above: float) -> Floats:
    """Derivatives of a record's expected quadrant sum by the share above one threshold, for every correlation."""
    one, other = scipy.special.ndtri([1.0 - above, 1.0 - also_above])
    return np.asarray(4.0 * scipy.special.ndtr((CORRELATIONS * one - other) / np.sqrt(1.0 - CORRELATIONS**2)) - 2.0)


def paired(in_order: Sequence[Floats], correlations: Floats, rng: np.random.Generator) -> list[Floats]:
    """Columns of values in rising order, the weight first, paired evenly as by normal scores with these correlations of the
    weight with every other column; as if independent without them.
    """
    number = len(in_order[0])
    # Chance would pair many of the largest weights with large outcomes, or none.
    even = scipy.stats.qmc.Halton(min(len(in_order), MOST_EVEN), scramble=False).random(number).T
    ranks = [*even, *(rng.permutation(number) / number for _ in in_order[len(even) :])]
    if correlations.any():
        scores = scipy.special.ndtri([(np.argsort(np.argsort(rank)) + 0.5) / number for rank in ranks])
        mixed = correlations[:, None] * scores[0] + np.sqrt(1.0 - correlations[:, None] ** 2) * scores[1:]
        ranks = [scores[0], *mixed]
    return [column[np.argsort(np.argsort(rank))] for column, rank in zip(in_order, ranks, strict=True)]
