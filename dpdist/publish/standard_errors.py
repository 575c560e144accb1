"""For `publish.tables`: the variance T of every published figure, from released figures alone (docs/methods.md, §6).

Notation: θ_1..θ_m are the parameters of m synthetic sets; a record has public columns x, outcome y, sampling weight w
and privacy weight α. Then T = V_x + V_c + V_α/m + bias²; `variances` defines the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dpdist.core.progress import within
from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import NORMAL_90, Figures, Sums, counts_and_means
from dpdist.estimation.raking import Margin, Room, factors, raked_counts_and_means
from dpdist.models.outputs import DRAWS, Recentred, Resampled
from dpdist.models.protocol import Draws, Expectation, expected_of
from dpdist.privacy.noisy_counts import counted_again
from dpdist.publish.design_effects import plain_effects
from dpdist.publish.public_bounds import FigureBounds, bounded_expectations, margins_and_room
from dpdist.publish.refit import Expectations, Expected, Laws, Recounted, expected_under, refitted
from dpdist.publish.released import ReleasedObject

NOISED = 2
"""Position in `Spreads.laws` of the released parameters under simulated noise."""
RECOUNTS = 200
"""Number of draws of noisy sample counts."""


@runtime_checkable
class Countable(Protocol):
    """A model of noisy sums, whose estimates follow from the sums and sample counts."""

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


@dataclass(frozen=True, eq=False)
class Spreads:
    """Draws of one outcome's expectations over all strata: one `Spread` for each field of `refit.Expectations`, in order.

    `recounts` is None unless sample counts are noisy. Laws with the same draws are one object.
    """

    laws: tuple[Spread, ...]
    recounts: Recounts | None = None
    parts: dict[Hashable, tuple[Sequence[Expected], list[VarianceParts]]] = field(default_factory=dict, repr=False)
    """Parts of variances that `variance_parts` has computed, by table, with their expectations."""


def laws(released: ReleasedObject, tick: Callable[[int], None]) -> list[Laws | None] | None:
    """Laws (`refit.Laws`) of every stratum. A stratum without a fit has None.

    The result is None if the model can neither be simulated nor refitted, or if the mechanism clamps, because clamped
    fits have no sufficient statistics.
    """
    if released.job.mechanism.clamps or not isinstance(released.model(0), Recentred | Resampled):
        return None
    by_stratum, counts = [], recounts(released)
    for stratum in range(len(released.frame.stratum_labels)):
        with np.errstate(all="ignore"):
            by_stratum.append(_simulated(released, stratum, counts) or refitted(released, stratum))
        tick(1)
    return by_stratum


def recounts(released: ReleasedObject) -> Floats | None:
    """Counts of the frame's rows under simulated noise, (draw, row); None if published counts are exact."""
    if not released.job.noisy_frame:
        return None
    return counted_again(released.job, released.frame, RECOUNTS, released.seed.generator("precision counts"))


def spreads(released: ReleasedObject, tick: Callable[[int], None]) -> list[Spreads] | None:
    """Draws of every outcome's expectations in every frame row; None if the model has no laws."""
    return spreads_under(released, laws(released, tick))


def spreads_under(released: ReleasedObject, by_stratum: Sequence[Laws | None] | None) -> list[Spreads] | None:
    """The result of `spreads`, from known laws."""
    if by_stratum is None:
        return None
    rows, drawn = len(released.frame), [of_stratum.draws for of_stratum in by_stratum if of_stratum is not None]
    sizes = [max(map(len, of_law)) for of_law in zip(*drawn, strict=True)] or [1] * len(Expectations._fields)
    by_outcome = [
        [Spread(np.full((n, rows), np.nan), np.full((n, rows), np.nan)) for n in sizes] for _ in released.job.outcomes
    ]
    if all(of_stratum is None or of_stratum.one_sampling for of_stratum in by_stratum):
        for spreads_of_outcome in by_outcome:
            spreads_of_outcome[1] = spreads_of_outcome[0]
    for stratum, laws_of_stratum in enumerate(by_stratum):
        rows_of_stratum = released.frame.rows_of(stratum)
        with np.errstate(all="ignore"):
            for outcome, of_outcome in zip(by_outcome, expected_under(released, stratum, laws_of_stratum), strict=True):
                for spread, expected in zip(outcome, of_outcome, strict=True):
                    spread.weight[:, rows_of_stratum], spread.product[:, rows_of_stratum] = expected
    rake, room = margins_and_room(released)
    if rake:
        distinct = {id(spread): spread for outcome_spreads in by_outcome for spread in outcome_spreads}
        raked = {name: _raked(spread, released, rake, room) for name, spread in distinct.items()}
        by_outcome = [[raked[id(spread)] for spread in outcome_spreads] for outcome_spreads in by_outcome]
    return [
        Spreads(tuple(outcome_spreads), _recounted(released, by_stratum, outcome))
        for outcome, outcome_spreads in enumerate(by_outcome)
    ]


def _recounted(released: ReleasedObject, by_stratum: Sequence[Laws | None], outcome: int) -> Recounts | None:
    """Draws under simulated noise on sample counts; None if these counts are exact."""
    if not released.job.noisy_frame:
        return None
    simulated = Recounts(*np.full((3, RECOUNTS, len(released.frame)), np.nan))
    for stratum, laws_of_stratum in enumerate(by_stratum):
        if laws_of_stratum is not None and laws_of_stratum.recounted is not None:
            rows = released.frame.rows_of(stratum)
            assert isinstance(laws_of_stratum.model, Expectation)
            pair = expected_of(laws_of_stratum.model, laws_of_stratum.recounted.theta, outcome)
            for values, drawn in zip(simulated, (laws_of_stratum.recounted.counts, *pair), strict=True):
                values[:, rows] = drawn
    return simulated


def _raked(spread: Spread, released: ReleasedObject, rake: Sequence[Margin], room: Room | None) -> Spread:
    """Rakes every draw separately. Draws with unknown values stay unchanged."""
    finite = np.isfinite(spread.weight).all(axis=1)
    factor = np.ones_like(spread.weight)
    factor[finite] = factors(released.frame.count * spread.weight[finite], rake, room)
    return Spread(spread.weight * factor, spread.product * factor)


def composition(released: ReleasedObject, cells: Cells, expected: Sequence[Expected]) -> Figures:
    """Counts, means and totals of expectations averaged over sets, with their variance V_x over samples' x."""
    frame = released.frame
    n = frame.count.astype(float)
    within = bounded_expectations(released, expected)
    a, b = (np.mean([pair[i] for pair in within], axis=0) for i in range(2))
    stage = released.stage
    (rake, room), sums = margins_and_room(released), Sums(n * a, n * b, n * a * a, n * a * b, n * b * b)
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
        """All parts but the sample's own."""
        return self.noise + self.bias + self.counted


# - V_x: which x the sample happens to contain. It is the Taylor variance of E(w|x) over the frame, all of it public.
# - V_c: the sampling variance of the centre of the α-weighted fit, by the sandwich formula.
# - V_α: the variance of released draws about that centre, which m draws divide by m.
# - bias: privacy weights trim tails, which moves the fit.
#
# `refit` simulates the last three. The fit's statistics are sums over records, so it draws them from their normal limit.
# These draws keep the privacy weights fixed, although a search on another sample would change them. So V_c is set to at
# least the variance of the unweighted fit, the smallest that an estimator can have under the model. An estimate from
# synthetic records adds S/m, where S is the variance of one set's records given x and θ.
#
# Where sample counts are noisy (`predictors: {protect}`), T includes the variance and squared bias of estimates from the
# same noisy sums under counts with further noise of the same law, made consistent as before.
def variances(
    released: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads | None, outcome: int = 0
) -> list[Floats]:
    """T of counts, means and totals, (cell,) each.

    `expected` holds E(w|x) and E(wy|x) by frame row for every set.

    With m = 1, T is NaN.
    """
    # Without spreads, T = V_x + (1 + 1/m) B, where B is the variance between the m released draws. B stands in for V_c,
    # since draws vary at least as much as the centre of their fit does over samples. Public design effects multiply the
    # sampling variances V_x and V_c (here B). The noise variance is divided by the number of independent noises. That
    # number is smaller than m where several sets follow from one noisy statistic.
    if spread is not None:
        return [parts.total for parts in variance_parts(released, cells, expected, spread, outcome)]
    effects, sets = plain_effects(released.design_effects, cells, released.job.outcomes[outcome]), len(released.sets)
    n, composed = released.frame.count.astype(float), composition(released, cells, expected)
    per_set = cell_estimates(cells, n, *(np.array([pair[i] for pair in expected]) for i in range(2)))
    between = [v.var(axis=0, ddof=1) if sets > 1 else np.full(len(cells), np.nan) for v in per_set]
    pairs = zip(effects, composed, between, strict=True)
    return [effect * figures.variance + (effect + 1.0 / sets) * b for effect, figures, b in pairs]


def variance_parts(
    released: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads, outcome: int = 0
) -> list[VarianceParts]:
    """The parts of T of counts, means and totals, where spreads were simulated. They are computed once for a table."""
    key = outcome, cells.by, cells.labels, cells.universe
    if key not in spread.parts or spread.parts[key][0] is not expected:
        spread.parts[key] = expected, _variance_parts(released, cells, expected, spread, outcome)
    return spread.parts[key][1]


def _variance_parts(
    released: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads, outcome: int
) -> list[VarianceParts]:
    effects = plain_effects(released.design_effects, cells, released.job.outcomes[outcome])
    n, composed = released.frame.count.astype(float), composition(released, cells, expected)
    by_law = {id(law): cell_estimates(cells, n, law.weight, law.product) for law in spread.laws}
    figures = [by_law[id(law)] for law in spread.laws]
    again = None if spread.recounts is None else cell_estimates(cells, *spread.recounts)
    noise, parts = _noise_variances(released, cells, figures[NOISED], outcome), []
    for k, composed_figure in enumerate(composed):
        centres, plain, _, weighted, unweighted = (figure[k] for figure in figures)
        redrawn = normal_variance(centres)
        sampling = composed_figure.variance + (redrawn if plain is centres else np.maximum(redrawn, normal_variance(plain)))
        counted = 0.0 if again is None else about(again[k], weighted[0])
        parts.append(VarianceParts(effects[k] * sampling, noise[k], (weighted - unweighted)[0] ** 2, counted))
    return parts


def noise_variances(released: ReleasedObject, cells: Cells, spread: Spreads, outcome: int) -> list[Floats]:
    """Variances of counts, means and totals by noise alone, (cell,) each."""
    drawn = spread.laws[NOISED]
    figures = cell_estimates(cells, released.frame.count.astype(float), drawn.weight, drawn.product)
    return _noise_variances(released, cells, figures, outcome)


def _noise_variances(
    released: ReleasedObject, cells: Cells, figures: tuple[Floats, Floats, Floats], outcome: int
) -> list[Floats]:
    noises = released.job.mechanism.noises(released.job)
    alone = [normal_variance(drawn_figures) / noises for drawn_figures in figures]
    bounds = FigureBounds.of(released, cells, outcome)
    return alone if bounds is None else bounds.noise_variances(alone)


def about(drawn: Floats, value: Floats) -> Floats:
    """The mean squared distance of draws (draw, cell) from a value (cell,), as normal variance plus squared bias.

    A draw without the figure counts as the value.
    """
    filled = np.where(np.isfinite(drawn), drawn, value)
    return np.asarray(normal_variance(filled) + (filled.mean(axis=0) - value) ** 2)


def cell_estimates(cells: Cells, n: Floats, weight: Floats, product: Floats) -> tuple[Floats, Floats, Floats]:
    """Counts Σ n E(w|x), means Σ n E(wy|x) / Σ n E(w|x) and totals Σ n E(wy|x) of every cell, (draw, cell)."""
    with np.errstate(all="ignore"):
        count = (cells.membership @ (n * weight).T).T
        total = (cells.membership @ (n * product).T).T
        return count, total / count, total


def normal_variance(drawn: Floats) -> Floats:
    """Variance of the normal law with the draws' central 90 % range. Heavy-tailed draws may have no variance."""
    with np.errstate(all="ignore"):
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        return np.asarray(((high - low) / (2.0 * NORMAL_90)) ** 2)


def _simulated(released: ReleasedObject, stratum: int, counts: Floats | None) -> Laws | None:
    """Laws of a model whose parameters can be simulated directly; None for other models."""
    model, label = released.model(stratum), released.frame.stratum_labels[stratum]
    if not isinstance(model, Resampled):
        return None
    theta, n = released.theta(model, stratum, 0), int(released.frame.stratum_count[stratum])
    key = released.seed.child(f"precision {label}")
    with within(0.0, 0.5):
        redrawn = model.resampled(theta, n, DRAWS, key.generator("centres"))
    with within(0.5, 1.0):
        drawn = model.noised_again(theta, n, DRAWS, key.generator("draws"))
    middle = model.averaged(drawn) if isinstance(model, Averaged) else theta
    simulated = Laws(model, (redrawn, redrawn, drawn, theta, middle))
    if counts is None:
        return simulated
    assert isinstance(model, Countable)
    of_stratum = counts[:, released.frame.rows_of(stratum)]
    return simulated._replace(recounted=Recounted(of_stratum, model.recounted(theta, of_stratum)))
