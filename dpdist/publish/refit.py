"""Refits on simulated samples: how estimates with searched privacy weights vary over samples.

Privacy weights trim tails, so a sample drawn under released parameters θ is trimmed less than the file was. Models with
a correction (`untrimmed`) draw it under parameters whose search and fit return θ: a step of indirect inference
(Gouriéroux, Monfort & Renault 1993). All of this is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.keys import Key
from dpdist.core.records import Codes, Floats
from dpdist.estimation.linear import symmetric_root
from dpdist.models.protocol import (
    DRAWS,
    LARGEST,
    SMALLEST,
    Draws,
    Improper,
    Redraw,
    StratumModel,
    SyntheticRecords,
    expected_of,
    redrawing,
    supports,
)
from dpdist.privacy.weights import (
    AllOutcomes,
    Carry,
    NotReached,
    Summary,
    as_weighted,
    bounded,
    informed,
    reference_counts,
    reference_search,
    search_of,
    summary_of,
    weigh,
)
from dpdist.publish.released import ReleasedObject

SEARCH_DRAWS = 200
"""Largest number of posterior draws of a repeated search.

A record bound is the largest absolute log likelihood of a record over draws. It grows slowly with the number of draws:
1.71 at 100, 1.79 at 1,000 (docs/methods.md, §1).
"""

Expected = tuple[Floats, Floats]
"""E(w|x) and E(wy|x), (draw, row)."""


class Fits(NamedTuple):
    records: SyntheticRecords
    alpha: Floats
    statistics: Floats
    """The α-weighted statistics."""
    plain: Floats
    """The statistics with α = 1."""
    weighted: Draws
    unweighted: Draws


class Recount(NamedTuple):
    """Simulated sample counts of a stratum, (draw, row), and the parameters that released sums give with them."""

    counts: Floats
    theta: Draws


class Laws(NamedTuple):
    """Draws of a stratum's parameters under five laws, for standard errors: centres of the weighted and of the unweighted
    fit, over redrawn samples; posterior draws of the weighted fit; and the centres of the two fits to one synthetic sample,
    one draw each. For a model on a reference's distributions, the last two are the weighted fit.

    If the synthetic sample is smaller than the stratum, deviations from the fits are multiplied by `shrink`, (row,).
    """

    model: StratumModel
    draws: tuple[Draws, Draws, Draws, Draws, Draws]
    shrink: Floats | None = None
    records: SyntheticRecords | None = None
    """The synthetic sample; None if a model simulates its parameters directly."""
    recounted: Recount | None = None
    """Present where sample counts are noisy."""

    @property
    def one_sampling(self) -> bool:
        """True if the two laws of samples have the same draws."""
        return self.draws[0] is self.draws[1] and self.records is None and self.shrink is None

    def scaled(self, values: Sequence[Floats]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Values of rows (draw, row) under every law; the first three have the variation of a full-sized sample."""
        centres, plain, draws, weighted, unweighted = values
        if self.shrink is None:
            return centres, plain, draws, weighted, unweighted
        pairs = (centres, weighted), (plain, unweighted), (draws, weighted)
        first, second, third = (about + (values - about) * self.shrink for values, about in pairs)
        return first, second, third, weighted, unweighted


def refitted(released: ReleasedObject, stratum: int) -> Laws | None:
    """Laws of a weighted fit; None if a fit does not exist, because its posterior is improper or singular."""
    model, rows = released.model(stratum), released.crosstab.rows_of(stratum)
    key = released.seed.child(f"precision {released.crosstab.stratum_labels[stratum]}")
    crosstab_row, shrink = _subsample(released, rows)
    theta = released.theta(model, stratum, 0)
    try:
        search = key.child("search")
        redraw = redrawing(model, min(SEARCH_DRAWS, released.job.sampler.draws), lambda: search.generator("posterior"))
        fits = _fit_twice(released, model, theta, crosstab_row, key, redraw)
        if supports(model, "untrimmed"):
            law = model.untrimmed(theta, fits.weighted, fits.unweighted)
            fits = _fit_twice(released, model, law, crosstab_row, key, redraw)
        noise = key.generator("centres").standard_normal((DRAWS, *fits.statistics.shape))
        redrawn = model.centre(_redrawn(model, fits.records, fits.alpha, fits.statistics, noise))
        plain = model.centre(_redrawn(model, fits.records, np.ones(len(fits.alpha)), fits.plain, noise))
        draws = model.draw(fits.statistics, DRAWS, key.generator("draws"))
    except (Improper, np.linalg.LinAlgError):
        return None
    return Laws(model, (redrawn, plain, draws, fits.weighted, fits.unweighted), shrink, fits.records)


def expected_under(released: ReleasedObject, stratum: int, laws: Laws | None) -> list[list[Expected]]:
    """Expectations of every outcome under every law in a stratum; NaN if there are no laws."""
    rows, outcomes = released.crosstab.rows_of(stratum), range(len(released.job.outcomes))
    if laws is None:
        missing = np.full((1, rows.stop - rows.start), np.nan)
        return [[(missing, missing)] * 5 for _ in outcomes]
    model, by_outcome = laws.model, []
    key = released.seed.child(f"precision {released.crosstab.stratum_labels[stratum]}")
    for j in outcomes:
        by_law = {id(law): expected_of(model, law, j) for law in laws.draws}
        pairs = [by_law[id(law)] for law in laws.draws]
        spread = list(zip(*(laws.scaled([pair[k] for pair in pairs]) for k in range(2)), strict=True))
        if supports(model, "weights_corrected") and laws.records is not None:
            covariance = model.borrowed(released.theta(laws.model, stratum, 0), laws.records)
            first, second = (_with_borrowed(expected, covariance, key.generator("reference")) for expected in spread[:2])
            spread = [first, second, spread[2], spread[3], spread[3]]
        by_outcome.append(spread)
    return by_outcome


def _with_borrowed(expected: Expected, covariance: Floats, rng: np.random.Generator) -> Expected:
    """Draws with the reference's sampling error added. Rows of a cell, which have one covariance, get the same error."""
    distinct, row = np.unique(covariance.reshape(-1, 4), axis=0, return_inverse=True)
    root = symmetric_root(distinct.reshape(-1, 2, 2))
    error = np.einsum("cij,dcj->dci", root, rng.standard_normal((DRAWS, len(root), 2)))[:, row.reshape(-1)]
    return expected[0] + error[..., 0], expected[1] + error[..., 1]


def _fit_twice(
    released: ReleasedObject, model: StratumModel, law: Draws, crosstab_row: Codes, key: Key, redraw: Redraw
) -> Fits:
    """Draws a sample under a law, searches its privacy weights as the job does, and fits it with and without them.

    Calls with the same key use the same random numbers, whatever the law.
    """
    outcome, weight = model.as_sampled().simulate(law, crosstab_row, key.generator("sample"))
    records = SyntheticRecords.of_outcomes(outcome, weight, crosstab_row)
    alpha = _weights(released, model, records, redraw)
    statistics = model.statistics(records, alpha)
    plain = model.statistics(records, np.ones(len(records)))
    weighted, unweighted = model.centre(statistics[None]), model.centre(plain[None])
    return Fits(records, alpha, statistics, plain, weighted, unweighted)


def _subsample(released: ReleasedObject, rows_of_stratum: slice) -> tuple[Codes, Floats]:
    """Crosstab rows of the synthetic sample's records, and √(records kept / records) by row, as in `Laws.shrink`."""
    count = released.crosstab.count[rows_of_stratum]
    share = min(1.0, LARGEST / float(count.sum()))
    sizes = np.maximum(np.minimum(count, SMALLEST), np.round(count * share)).astype(np.int64)
    rows = np.repeat(np.arange(rows_of_stratum.start, rows_of_stratum.stop, dtype=np.int32), sizes)
    return rows, np.sqrt(sizes / count)


def _weights(released: ReleasedObject, model: StratumModel, records: SyntheticRecords, redraw: Redraw) -> Floats:
    """The final privacy weights of the job's search on the synthetic sample, even if they miss the target."""
    mechanism, frozen = released.job.mechanism, released.job.frozen
    search = informed((reference_search if frozen else search_of)(mechanism, released.target))
    counted = reference_counts(mechanism) if frozen else as_weighted
    carry: Carry = {}
    reply: Floats | Summary | None = None
    while True:
        try:
            step = search.send(reply)
        except (StopIteration, NotReached):
            return carry["alpha"]
        if isinstance(step, AllOutcomes):
            reply = records.outcome
            continue
        statistics = model.statistics(records, counted(weigh(step, records.outcomes, carry)))
        reply = summary_of(bounded(carry, model.extremes(redraw(statistics), records).bound))


def _redrawn(model: StratumModel, records: SyntheticRecords, alpha: Floats, statistics: Floats, noise: Floats) -> Floats:
    """The weighted statistics, redrawn from the normal law of samples with the same x: (DRAWS, pattern, statistic).

    `noise` are standard normals of this shape.
    """
    roots = (symmetric_root(covariance) for covariance in model.scatter(records, alpha))
    return statistics + np.stack([noise[:, pattern] @ root for pattern, root in enumerate(roots)], axis=1)
