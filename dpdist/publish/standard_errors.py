"""Computes the variance T of every figure in published tables, from released figures alone (docs/methods.md, §6).

Notation: θ_1..θ_m are the released parameters of m synthetic sets; x is a record's public columns, y its outcome, w its
sampling weight, and α its privacy weight. Then T = V_x + V_c + V_α/m + bias², with these components:

- V_x: which x the sample happens to contain. It is the Taylor variance of E(w|x) over the frame, all of it public.
- V_c: the sampling variance of the centre of the α-weighted fit, by the sandwich formula.
- V_α: the variance of released draws about that centre, which m draws divide by m.
- bias: privacy weights trim tails, which moves the fit.

`refit` simulates the last three. The fit's statistics are sums over records, so it draws them from their normal limit.
These draws keep the privacy weights fixed, although a search on another sample would change them. So V_c is set to at least
the variance of the unweighted fit, the smallest that an estimator can have under the model. An estimate from synthetic
records adds S/m, where S is the variance of one set's records given x and θ.

Where sample counts are noisy (`predictors: {protect}`), T has one more component. Noise of the same law is added to the
published counts, and they are made consistent as before. All estimates are computed from these counts and the same noisy
sums. T includes the variance of the results, and the square of their bias, which arises because counts are kept from being
negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import NORMAL_90, Figures, Sums, counts_and_means, stratum_sizes
from dpdist.estimation.raking import Margin, Room, factors, raked_counts_and_means
from dpdist.estimation.variance import Stage
from dpdist.models.protocol import Draws, Expectation, StratumModel, expected_of
from dpdist.privacy.noisy_counts import counted_again
from dpdist.publish.design_effects import plain_effects
from dpdist.publish.public_bounds import FigureBounds, bounded_expectations, margins_and_room
from dpdist.publish.refit import DRAWS, Expected, Laws, Recentred, Recounted, expected_under, refitted
from dpdist.publish.released import ReleasedObject

NOISED = 2
"""Position in `Spreads.laws` of the released parameters under simulated noise."""
RECOUNTS = 200
"""Number of draws of noisy sample counts."""


@runtime_checkable
class Resampled(StratumModel, Expectation, Protocol):
    """A model whose released parameters can be simulated directly, for other samples and under other noise."""

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Draws of the parameters over samples, without noise."""
        ...

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Draws of the parameters of the same sample under simulated noise."""
        ...


@runtime_checkable
class Countable(Protocol):
    """A model of noisy sums, whose estimates follow from these sums and from sample counts."""

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """The parameters that the released sums give with other sample counts (draw, row of the stratum)."""
        ...


@runtime_checkable
class Averaged(Protocol):
    """A model whose parameters are biased by noise, for example because counts are kept from being negative."""

    def averaged(self, drawn: Draws) -> Draws:
        """The mean of parameters over simulated noise, in the form of one draw."""
        ...


class Spread(NamedTuple):
    """Draws of E(w|x) and E(wy|x) for every frame row, (draw, row); NaN in strata without laws."""

    weight: Floats
    product: Floats


class Recounts(NamedTuple):
    """Sample counts under simulated noise, and E(w|x) and E(wy|x) under these counts: (draw, row) each."""

    counts: Floats
    weight: Floats
    product: Floats


class Spreads(NamedTuple):
    """Draws of one outcome's expectations over all strata: one `Spread` for each field of `refit.Expectations`, in order.

    `recounts` is None unless sample counts are noisy.
    """

    laws: tuple[Spread, ...]
    recounts: Recounts | None = None


def laws(release: ReleasedObject, tick: Callable[[int], None]) -> list[Laws | None] | None:
    """Laws (`refit.Laws`) of every stratum. A stratum without a fit has None.

    The whole result is None if the model can neither be simulated nor refitted, or if the mechanism clamps: a clamped fit
    has no sufficient statistics.
    """
    if release.job.mechanism.clamps or not isinstance(release.model(0), Recentred | Resampled):
        return None
    found, counts = [], recounts(release)
    for stratum in range(len(release.frame.stratum_labels)):
        with np.errstate(all="ignore"):
            found.append(_simulated(release, stratum, counts) or refitted(release, stratum))
        tick(1)
    return found


def recounts(release: ReleasedObject) -> Floats | None:
    """Counts of the frame's rows under simulated noise, (draw, row); None where published counts are exact."""
    if release.job.predictors is None:
        return None
    return counted_again(release.job, release.frame, RECOUNTS, release.seed.generator("precision counts"))


def spreads(release: ReleasedObject, tick: Callable[[int], None]) -> list[Spreads] | None:
    """Draws of every outcome's expectations in every frame row; None where the model has no laws."""
    return spreads_under(release, laws(release, tick))


def spreads_under(release: ReleasedObject, known: Sequence[Laws | None] | None) -> list[Spreads] | None:
    """As `spreads`, from laws that are already known."""
    if known is None:
        return None
    rows, sizes = len(release.frame), (DRAWS, DRAWS, DRAWS, 1, 1)
    found = [
        tuple(Spread(np.full((n, rows), np.nan), np.full((n, rows), np.nan)) for n in sizes) for _ in release.job.outcomes
    ]
    for stratum, each in enumerate(known):
        own = release.frame.rows_of(stratum)
        with np.errstate(all="ignore"):
            for outcome, of_outcome in zip(found, expected_under(release, stratum, each), strict=True):
                for spread, expected in zip(outcome, of_outcome, strict=True):
                    spread.weight[:, own], spread.product[:, own] = expected
    rake, room = margins_and_room(release)
    if rake:
        found = [tuple(_raked(spread, release, rake, room) for spread in each) for each in found]
    return [Spreads(each, _recounted(release, known, outcome)) for outcome, each in enumerate(found)]


def _recounted(release: ReleasedObject, known: Sequence[Laws | None], outcome: int) -> Recounts | None:
    """Draws under simulated noise on sample counts; None where these counts are exact."""
    if release.job.predictors is None:
        return None
    found = Recounts(*np.full((3, RECOUNTS, len(release.frame)), np.nan))
    for stratum, each in enumerate(known):
        if each is not None and each.recounted is not None:
            own = release.frame.rows_of(stratum)
            assert isinstance(each.model, Expectation)
            pair = expected_of(each.model, each.recounted.theta, outcome)
            for values, drawn in zip(found, (each.recounted.counts, *pair), strict=True):
                values[:, own] = drawn
    return found


def _raked(spread: Spread, release: ReleasedObject, rake: Sequence[Margin], room: Room | None) -> Spread:
    """Rakes every draw separately. Draws with unknown values stay unchanged."""
    known = np.isfinite(spread.weight).all(axis=1)
    factor = np.ones_like(spread.weight)
    factor[known] = factors(release.frame.count * spread.weight[known], rake, room)
    return Spread(spread.weight * factor, spread.product * factor)


def composition(release: ReleasedObject, cells: Cells, expected: Sequence[Expected]) -> Figures:
    """Counts, means and totals of the expectations averaged over sets, with their variance V_x over samples' x."""
    frame = release.frame
    n = frame.count.astype(float)
    within = bounded_expectations(release, expected)
    a, b = (np.mean([pair[i] for pair in within], axis=0) for i in range(2))
    stage = Stage.of(stratum_sizes(frame), lonely=release.job.survey.lonely_record)
    (rake, room), sums = margins_and_room(release), Sums(n * a, n * b, n * a * a, n * a * b, n * b * b)
    return (
        raked_counts_and_means(sums, frame, cells, rake, stage, room)
        if rake
        else counts_and_means(sums, frame, cells, stage)
    )


class VarianceParts(NamedTuple):
    """Parts of a variance T, (cell,) each: of the sample, of noise or released draws, of bias, of noisy sample counts."""

    sampling: Floats
    noise: Floats
    bias: Floats | float = 0.0
    counted: Floats | float = 0.0

    @property
    def total(self) -> Floats:
        return self.sampling + self.noise + self.bias + self.counted

    @property
    def other(self) -> Floats:
        """What is not the sample's own."""
        return self.noise + self.bias + self.counted


def variances(
    release: ReleasedObject, cells: Cells, expected: Sequence[Expected], found: Spreads | None, outcome: int = 0
) -> list[Floats]:
    """T of counts, means and totals, (cell,) each. `expected` holds E(w|x) and E(wy|x) by frame row for every set.

    Without spreads, T = V_x + (1 + 1/m) B, where B is the variance between the m released draws. B stands in for V_c, since
    draws vary at least as much as the centre of their fit does over samples. With m = 1, T is NaN. Public design effects
    multiply the sampling variances V_x and V_c (here B). The noise variance is divided by the number of independent
    noises. That number is smaller than m where several sets follow from one noisy statistic.
    """
    if found is not None:
        return [parts.total for parts in variance_parts(release, cells, expected, found, outcome)]
    effects, sets = plain_effects(release.design_effects, cells, release.job.outcomes[outcome]), len(release.sets)
    n, composed = release.frame.count.astype(float), composition(release, cells, expected)
    per_set = cell_estimates(cells, n, *(np.array([pair[i] for pair in expected]) for i in range(2)))
    between = [v.var(axis=0, ddof=1) if sets > 1 else np.full(len(cells), np.nan) for v in per_set]
    pairs = zip(effects, composed, between, strict=True)
    return [effect * each.variance + (effect + 1.0 / sets) * b for effect, each, b in pairs]


def variance_parts(
    release: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads, outcome: int = 0
) -> list[VarianceParts]:
    """The parts of T of counts, means and totals, where spreads were simulated."""
    effects = plain_effects(release.design_effects, cells, release.job.outcomes[outcome])
    n, composed = release.frame.count.astype(float), composition(release, cells, expected)
    figures = [cell_estimates(cells, n, law.weight, law.product) for law in spread.laws]
    again = None if spread.recounts is None else cell_estimates(cells, *spread.recounts)
    noise, parts = noise_variances(release, cells, spread, outcome), []
    for k, each in enumerate(composed):
        centres, plain, _, weighted, unweighted = (figure[k] for figure in figures)
        sampling = each.variance + np.maximum(normal_variance(centres), normal_variance(plain))
        counted = 0.0 if again is None else about(again[k], weighted[0])
        parts.append(VarianceParts(effects[k] * sampling, noise[k], (weighted - unweighted)[0] ** 2, counted))
    return parts


def noise_variances(release: ReleasedObject, cells: Cells, spread: Spreads, outcome: int) -> list[Floats]:
    """Variances of counts, means and totals by noise alone, (cell,) each."""
    drawn, noises = spread.laws[NOISED], release.job.mechanism.noises(release.job)
    figures = cell_estimates(cells, release.frame.count.astype(float), drawn.weight, drawn.product)
    alone = [normal_variance(each) / noises for each in figures]
    bounds = FigureBounds.of(release, cells, outcome)
    return alone if bounds is None else bounds.noise_variances(alone)


def about(drawn: Floats, value: Floats) -> Floats:
    """The mean squared distance of draws (draw, cell) from a value (cell,): their normal variance plus their squared bias.

    A draw without the figure counts as the value.
    """
    known = np.where(np.isfinite(drawn), drawn, value)
    return np.asarray(normal_variance(known) + (known.mean(axis=0) - value) ** 2)


def cell_estimates(cells: Cells, n: Floats, weight: Floats, product: Floats) -> tuple[Floats, Floats, Floats]:
    """Counts Σ n E(w|x), means Σ n E(wy|x) / Σ n E(w|x) and totals Σ n E(wy|x) of every cell, (draw, cell)."""
    with np.errstate(all="ignore"):
        count = (cells.membership @ (n * weight).T).T
        total = (cells.membership @ (n * product).T).T
        return count, total / count, total


def normal_variance(drawn: Floats) -> Floats:
    """Variance of the normal law with the draws' central 90 % range. Draws may have tails too heavy for a variance."""
    with np.errstate(all="ignore"):
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        return np.asarray(((high - low) / (2.0 * NORMAL_90)) ** 2)


def _simulated(release: ReleasedObject, stratum: int, counts: Floats | None) -> Laws | None:
    """Laws of a model whose parameters can be simulated directly; None for other models."""
    model, label = release.model(stratum), release.frame.stratum_labels[stratum]
    if not isinstance(model, Resampled):
        return None
    theta, n = release.theta(model, stratum, 0), int(release.frame.stratum_count[stratum])
    key = release.seed.child(f"precision {label}")
    redrawn = model.resampled(theta, n, DRAWS, key.generator("centres"))
    drawn = model.noised_again(theta, n, DRAWS, key.generator("draws"))
    middle = model.averaged(drawn) if isinstance(model, Averaged) else theta
    found = Laws(model, (redrawn, redrawn, drawn, theta, middle))
    if counts is None:
        return found
    assert isinstance(model, Countable)
    own = counts[:, release.frame.rows_of(stratum)]
    return found._replace(recounted=Recounted(own, model.recounted(theta, own)))
