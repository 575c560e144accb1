"""Texts of `table_package`, for its `post`: of the statement, and definitions of measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, cast

from dpdist.estimation.donors import DONORS, FEWEST
from dpdist.mechanisms.parts import Words
from dpdist.mechanisms.reference_tables.words import DECLARED, ONE_WEIGHT
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws
from dpdist.packages.posterior import LARGEST_DEVIATION, Posterior
from dpdist.packages.strategy import Aggregation

OF_WEIGHT = (
    "the sum of f (1 - min(w, u) / u), with w the weight, u the base cell's weight cap, and f the ratio of u to the "
    "group's weight_cap, at most 1, rounded down to 1/1024; base cells' limits are in released/set-1.json"
)
OF_OUTCOME = (
    "the sum of min(w, u) (g clip((y - m) / r, -1, 1) + h) / u, with w the weight and y the outcome; u, m and r are the "
    "base cell's limits in released/set-1.json. Without a centre h = 0, and g is u r over the group's weight_cap times "
    "half_width, at most 1. With a centre c, g and h are u r and u (m - c) over the larger of the same and of "
    "u (r + |m - c|). All are rounded towards 0 to 1/1024"
)
OF_ONE_OF_SEVERAL = (
    f"{OF_OUTCOME}. Both are times the outcome's part of the measurement, outcome_parts in released/set-1.json"
)
OF_SIGN = (
    "half of the sum of f v {} q, with f, v = min(w, u) / u and q as in the sums of a and q that a file with public "
    "numbers of records has: a = f (1 - v) and q = v (g clip((y - m) / r, -1, 1) + h), times the outcome's part of the "
    "measurement if there are several. u, m and r are the base cell's limits in released/set-1.json"
)
OF_BINS = (
    "the number of records in a bin of the column, of a group of base cells: centre and half_width are the bin's. One of a "
    "half_width of 0 holds one value. Values at or beyond public bounds are in the outer bins. Weights are over the base "
    "cell's typical weight, the first of typical in released/set-1.json. A record whose cell has an imprecise one has none"
)
DEFINITIONS = {
    "a": OF_WEIGHT,
    "q": OF_OUTCOME,
    "q of": OF_ONE_OF_SEVERAL,
    "above": OF_SIGN.format("plus"),
    "below": OF_SIGN.format("minus"),
    "count in bins of": OF_BINS,
}
"""Definitions of the measured sums by statistic, for the metadata of measurements.parquet."""
QUERIES = dict.fromkeys(("a", "q", "above", "below"), "sums over groups of base cells") | {
    "count in bins of": "counts of histograms"
}
"""The query that every statistic answers, by the names of both."""
POSTERIOR = (
    "All figures are sums of one estimate of the base cells, so that all tables agree. It is the posterior mean given "
    "every noisy sum. The prior is the reference, with a drift whose size follows from the noisy sums and constants."
)
WITHIN_BOUNDS = (
    "Base cells are set within public bounds. What is left is raked to the sums that the measured cells had, so that "
    "bounds push no total up."
)
DONOR = f"A synthetic record takes its {{}} from one donor, a record of the reference (released/{DONORS})."
TILTED = "Weights in a base cell are tilted until it has its estimates. Where weights cannot do it, outcomes move."
UNWEIGHTED = "The job has no weight column: every record has the weight 1, and outcomes are moved to the estimates."
DONATED = (
    f"A donor is of the record's own base cell, or of those most like it where that has fewer than {FEWEST}.",
    "Synthetic records agree with all tables. What else they tell of a column is the reference's, not measured.",
)
MADE_UP = (
    "A donor is made up: a weight and an outcome at quantiles of the noisy histograms of its base cell's group.",
    "Synthetic records agree with all tables. What else they tell is the histograms', each column alone.",
)
BY_LEVELS = POSTERIOR.replace(
    "The prior is the reference, with a drift whose size follows from the noisy sums and constants.",
    "The prior knows the shapes that noisy histograms show. Levels of columns are diffuse. How far cells of tables differ "
    "beside follows from the noisy sums and constants.",
)
ERRORS_BY_LEVELS = (
    "Estimator `parameters`: composition of the sample over base cells, its sampling error within them, noise of the sums, "
    "and half of what noisy histograms hold beyond the limits. Draws come from the posterior that made the tables."
)
DENSITY = (
    "noisy sums of {weight} and of its product with {outcome} over groups of base cells, clipped where a reference tells"
)
DENSITY_OF_OUTCOMES = (
    "noisy sums of {outcome}, times {weight}, which is public, over groups of base cells, clipped where a reference tells"
)
ERRORS = (
    "Estimator `parameters`: composition of the sample over base cells, its sampling error within them, noise, the "
    "reference's sampling error, and drift since. Draws come from the posterior that made the tables."
)
RECORDS_AGREE = (
    "Estimator `records`: synthetic records agree with the table from parameters and have its error; synthesis adds none."
)


CLEAR, LEAST_GROWN = 3.0, 0.01
"""What more lies beyond the limits is named from so many standard errors of the count on, and from such a part of it."""
MOST_NAMED = 20
"""Measured sets of columns that the statement names."""
LEAST_SATURATED = 0.01
"""The part of the records in cells of saturated sums from which these are named."""


class HasPosterior(Protocol):
    """A model whose released parameters have a posterior, from measurements of groups of base cells."""

    columns: tuple[str, ...]

    def posterior(self, theta: Draws) -> Posterior: ...

    def measured(self, theta: Draws) -> Iterator[tuple[Aggregation, Fraction]]: ...


GROWN = (
    "Weights are {growth:.2f} times the reference's. If their shape is the same, {now:.1f} % of the count lies beyond the "
    "clipping limits, after {before:.1f} %. No noisy sum tells whether it is. Where weights have spread, counts and totals "
    "may be too small by more than intervals tell"
)
RELATIONS = (
    "Relations of {what} with columns are measured by: {sets}. Any other relation of them in synthetic records is not "
    "measured. Numbers of records in crosses of columns are the file's where they are public."
)
SATURATED = (
    "In {cells:,} of {all:,} base cells, with {share:.1f} % of the records, nearly all weights lie beyond the clipping "
    "limits: they are at least {times:.1f} times the reference's. How far beyond is not measured. Counts and totals with "
    "these cells may be too small by many times their errors. Take a reference with weights of the same scale"
)
EQUAL = (
    "In {cells:,} of {all:,} base cells, with {share:.1f} % of the records, the reference's weights are nearly equal. So "
    "all lie at the clipping limit. No noisy sum tells whether weights are larger now. If they are, counts and totals are "
    "too small by the same factor, and intervals do not tell. Take a reference with weights of this survey, or none; or "
    "declare weights that are public, as survey.design_weights"
)
HIDDEN = (
    "Weights have changed since the reference, and add up to less than its weights do. They may have spread beyond the "
    "clipping limits, which hide {hidden:.1f} % of the count then. Standard errors of counts and totals provide for as "
    "much. If the population has shrunk by that, nothing is hidden"
)


@dataclass(frozen=True)
class PackageWords(Words):
    """Texts that name what was measured."""

    def cautions_of(self, release: ReleaseView) -> list[str]:
        if not release.donors or release.job.survey.measured_weight is None:
            return []
        model = release.model(0)
        prior = cast(HasPosterior, model).posterior(release.theta(model, 0, 0)).prior
        count, high = prior.workload.count, prior.linearised_at[:, 0] >= LARGEST_DEVIATION
        share = float(count[high].sum() / count.sum())
        texts, beyond = list[str](), prior.beyond()
        if (equal := ~prior.limits.tells_weights).any():
            part = 100.0 * float(count[equal].sum() / count.sum())
            texts.append(EQUAL.format(cells=int(equal.sum()), all=len(count), share=part))
        if share >= LEAST_SATURATED:
            facts = {"cells": int(high.sum()), "all": len(count), "share": 100.0 * share, "times": 1.0 + LARGEST_DEVIATION}
            texts.append(SATURATED.format(**facts))
        if prior.hidden:
            texts.append(HIDDEN.format(hidden=100.0 * prior.hidden / beyond.growth))
        if not texts and beyond.now - beyond.before >= max(CLEAR * beyond.error, LEAST_GROWN):
            texts.append(GROWN.format(growth=beyond.growth, before=100.0 * beyond.before, now=100.0 * beyond.now))
        return texts

    def density_of(self, release: ReleaseView) -> str:
        density = DENSITY if release.job.survey.measured_weight is not None else DENSITY_OF_OUTCOMES
        return density.replace("a reference tells", "noisy histograms tell") if release.job.on_histograms else density

    def errors_of(self, release: ReleaseView) -> str:
        return ERRORS_BY_LEVELS if release.job.on_histograms else ERRORS

    def post_processing(self, release: ReleaseView) -> list[str]:
        survey = release.job.survey
        if survey.weight is None:
            donated, how = "outcome", UNWEIGHTED
        elif survey.one_weight_in:
            donated, how = "outcome", ONE_WEIGHT.format(", ".join(survey.one_weight_in))
            how = how if survey.design_weights is None else f"{how} {DECLARED}"
        else:
            donated, how = "weight and outcome", TILTED
        if release.job.on_histograms:
            return [BY_LEVELS, WITHIN_BOUNDS, MADE_UP[0], how, MADE_UP[1], *self._relations(release)]
        return [POSTERIOR, WITHIN_BOUNDS, DONOR.format(donated), DONATED[0], how, DONATED[1], *self._relations(release)]

    def _relations(self, release: ReleaseView) -> list[str]:
        """Which relations of columns with weights and outcomes were measured, once there are records to relate."""
        if not (release.donors or release.job.on_histograms):
            return []
        model = release.model(0)
        measured = cast(HasPosterior, model).measured(release.theta(model, 0, 0))
        names = [_set_of(grouped.name, cast(HasPosterior, model).columns) for grouped, _ in measured]
        more = f", and {len(names) - MOST_NAMED:,} more, all in measurements.parquet" if len(names) > MOST_NAMED else ""
        return [
            RELATIONS.format(what=" and ".join(release.job.protected_components), sets="; ".join(names[:MOST_NAMED]) + more)
        ]


def _set_of(name: str, columns: Sequence[str]) -> str:
    """A measured set of columns in words."""
    return {"base cells": f"all of {', '.join(columns)} together", "all cells": "the whole"}.get(name, name)


WORDS = PackageWords(
    density=DENSITY,
    errors=ERRORS,
    errors_of_records=RECORDS_AGREE,
)
