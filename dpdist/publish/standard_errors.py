"""Standard errors of published tables, from released figures alone (METHODS §6; DESIGN decision 8).

An estimate from θ_1..θ_m has four error components: V_x, the sample's composition over x (public: the Taylor variance of
E(w|x) over the frame); V_c, the sampling error of the α-weighted fit's centre; V_α, the spread of the released draws
about it (over m); and the bias of weights that trim tails. So T = V_x + V_c + V_α/m + bias². The last three come from
`rerun`. V_c is the sandwich variance. The fit's statistics are sums over records, so they are redrawn from their normal
limit. This keeps the weights fixed, but a search on another sample would change them. So V_c is set to at least the
unweighted fit's variance, the smallest that an estimator can have under the model. An estimate from synthetic records
adds their own noise given x, S/m.

Where sample counts are noisy (`predictors: {protect}`), T has one more component. The published counts get noise of the
same law again and are made consistent as before. Every estimate is computed from them and the same noisy sums. T includes
its variance and the square of its bias. The bias arises because counts are kept from being negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy.special import ndtri

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import Figures, Sums, counts_and_means, stratum_sizes
from dpdist.estimation.raking import Margin, Room, factors, raked_counts_and_means
from dpdist.estimation.variance import Stage
from dpdist.models.protocol import Draws, Expectation, StratumModel, expected_of
from dpdist.privacy.noisy_counts import counted_again
from dpdist.publish.design_effects import plain_effects
from dpdist.publish.met_totals import margins_and_room
from dpdist.publish.refit import DRAWS, Expected, Laws, Recentred, Recounted, expected_under, refitted
from dpdist.publish.released import ReleasedObject

RECOUNTS = 200
"""Number of draws of noisy sample counts."""


@runtime_checkable
class Resampled(StratumModel, Expectation, Protocol):
    """A model whose released parameters can be simulated anew, for other samples and for other noise."""

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Parameters of other samples, without noise."""
        ...

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The same sample's parameters under other noise."""
        ...


@runtime_checkable
class Countable(Protocol):
    """A model of noisy sums whose estimates follow from them and from sample counts."""

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """Parameters as the same sums would make them under other sample counts (draw, row of the stratum)."""
        ...


@runtime_checkable
class Averaged(Protocol):
    """A model whose released parameters have a bias from noise, for example because counts are kept from being negative."""

    def averaged(self, drawn: Draws) -> Draws:
        """The mean of parameters under other noise, in the form of one draw."""
        ...


class Spread(NamedTuple):
    """Draws of E(w|x) and E(wy|x) per frame row, (draw, row); NaN where a stratum's could not be had."""

    weight: Floats
    product: Floats


class Recounts(NamedTuple):
    """Sample counts under noise once more, with what E(w|x) and E(wy|x) are then, (draw, row)."""

    counts: Floats
    weight: Floats
    product: Floats


class Spreads(NamedTuple):
    """Draws as in `Expectations` of a rerun, over all strata, in the same order.

    `recounts` is None unless sample counts are noisy.
    """

    laws: tuple[Spread, ...]
    recounts: Recounts | None = None


def laws(release: ReleasedObject, tick: Callable[[int], None]) -> list[Laws | None] | None:
    """Laws of every stratum, None for one without a fit; None at all where the model cannot tell any. Those of a clamped
    fit, which has no sufficient statistics, no model can."""
    if release.job.mechanism.clamps or not isinstance(release.model(0), Recentred | Resampled):
        return None
    found, counts = [], recounts(release)
    for stratum in range(len(release.frame.stratum_labels)):
        with np.errstate(all="ignore"):
            found.append(_simulated(release, stratum, counts) or refitted(release, stratum))
        tick(1)
    return found


def recounts(release: ReleasedObject) -> Floats | None:
    """Counts of the frame's rows under noise once more, (draw, row); None where they are exact."""
    if release.job.predictors is None:
        return None
    return counted_again(release.job, release.frame, RECOUNTS, release.seed.generator("precision counts"))


def spreads(release: ReleasedObject, tick: Callable[[int], None]) -> list[Spreads] | None:
    """Spreads of every outcome's expectations for every frame row; None where the model cannot tell them."""
    return spreads_under(release, laws(release, tick))


def spreads_under(release: ReleasedObject, known: Sequence[Laws | None] | None) -> list[Spreads] | None:
    """As `spreads`, from given laws."""
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
    """Draws with new noise on sample counts; None where these are exact."""
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
    """Every draw raked separately; draws with unknown values stay unchanged."""
    known = np.isfinite(spread.weight).all(axis=1)
    factor = np.ones_like(spread.weight)
    factor[known] = factors(release.frame.count * spread.weight[known], rake, room)
    return Spread(spread.weight * factor, spread.product * factor)


def composition(release: ReleasedObject, cells: Cells, expected: Sequence[Expected]) -> Figures:
    """Counts, means and totals of E(w|x) and E(wy|x), averaged over sets, with V_x: how they vary over samples' x."""
    frame = release.frame
    n = frame.count.astype(float)
    a, b = (np.mean([pair[i] for pair in expected], axis=0) for i in range(2))
    stage = Stage.of(stratum_sizes(frame), lonely=release.job.survey.lonely_record)
    (rake, room), sums = margins_and_room(release), Sums(n * a, n * b, n * a * a, n * a * b, n * b * b)
    return (
        raked_counts_and_means(sums, frame, cells, rake, stage, room)
        if rake
        else counts_and_means(sums, frame, cells, stage)
    )


def variances(
    release: ReleasedObject, cells: Cells, expected: Sequence[Expected], found: Spreads | None, outcome: int = 0
) -> list[Floats]:
    """T of counts, means and totals per cell; `expected` holds E(w|x), E(wy|x) per frame row for every set.

    Without spreads T = V_x + (1 + 1/m) B, with B the variance between the m released draws: the draws spread at least as
    the centre of their fit does over samples. NaN where m = 1. Public design effects multiply the sampling variances,
    V_x and V_c (here B). Sets that follow from one noisy statistic have one noise.
    """
    effects, sets = plain_effects(release.design_effects, cells, release.job.outcomes[outcome]), len(release.sets)
    noises = release.job.mechanism.noises(release.job)
    n, composed = release.frame.count.astype(float), composition(release, cells, expected)
    if found is None:
        per_set = cell_estimates(cells, n, *(np.array([pair[i] for pair in expected]) for i in range(2)))
        between = [v.var(axis=0, ddof=1) if sets > 1 else np.full(len(cells), np.nan) for v in per_set]
        parts = zip(effects, composed, between, strict=True)
        return [effect * each.variance + (effect + 1.0 / sets) * b for effect, each, b in parts]
    figures = [cell_estimates(cells, n, spread.weight, spread.product) for spread in found.laws]
    again = None if found.recounts is None else cell_estimates(cells, *found.recounts)
    total = []
    for k, each in enumerate(composed):
        centres, plain, draws, weighted, unweighted = (figure[k] for figure in figures)
        sampling = each.variance + np.maximum(normal_variance(centres), normal_variance(plain))
        counted = 0.0 if again is None else about(again[k], weighted[0])
        total.append(effects[k] * sampling + normal_variance(draws) / noises + (weighted - unweighted)[0] ** 2 + counted)
    return total


def about(drawn: Floats, value: Floats) -> Floats:
    """Variance of draws (draw, cell), as of a normal law, and the square of their mean's distance from a value (cell,); a
    draw without the figure is taken to have the value."""
    known = np.where(np.isfinite(drawn), drawn, value)
    return np.asarray(normal_variance(known) + (known.mean(axis=0) - value) ** 2)


def cell_estimates(cells: Cells, n: Floats, weight: Floats, product: Floats) -> tuple[Floats, Floats, Floats]:
    """Counts Σ n E(w|x), means Σ n E(wy|x) / Σ n E(w|x) and totals Σ n E(wy|x) of every cell, (draw, cell)."""
    with np.errstate(all="ignore"):
        count = (cells.membership @ (n * weight).T).T
        total = (cells.membership @ (n * product).T).T
        return count, total / count, total


def normal_variance(drawn: Floats) -> Floats:
    """Variance of a normal law with the draws' central 90 % range: the expectations' own tails may have no variance."""
    with np.errstate(all="ignore"):
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        return np.asarray(((high - low) / (2.0 * ndtri(0.95))) ** 2)


def _simulated(release: ReleasedObject, stratum: int, counts: Floats | None) -> Laws | None:
    """Laws of a model that can be simulated anew; None for other models."""
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
