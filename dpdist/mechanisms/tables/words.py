"""Texts of `tables` in the statement, and definitions of its measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.estimation.donors import DONORS, FEWEST, Donors
from dpdist.mechanisms.parts import Words
from dpdist.mechanisms.tables.sensitivity import COUNTS, NAME, QUADRANTS
from dpdist.models.protocol import ReleaseView

ONE_WEIGHT = (
    "The job states that all records with the same {} have the same weight. Therefore outcomes, not weights, are adjusted "
    "until every cell has its released means."
)
DECLARED = "Weights are those that the job declares, without noise. Records of the reference were given these weights, too."
MICRODATA = (
    "Synthetic records reproduce the released counts and means of every cell that the columns under `measured` define. "
    "Each record takes its weight, its outcomes and the columns under `copied` from one record of the reference, its "
    f"donor. If a cell has fewer than {FEWEST} donors, the donor may come from another cell. Copied columns were not "
    "measured on the current file: they show no change since the reference, and no standard error or interval covers "
    "them."
)
OF_WEIGHT = (
    "the sum of (w - p - c) / L, with w the weight, p its prediction, c the cell's centre and L its weight_cap; a record's "
    "residuals are scaled to an L1 norm of at most 1"
)
OF_OUTCOME = (
    "the sum of (w (y - m) - p (q - m)) / H, with y the outcome, q its prediction, m the cell's predicted mean, and H the "
    "half_width; w, p and the scaling as in the sum of weight residuals"
)
OF_BINS = (
    "the number of records whose value lies in the bin, at most half_width from its centre. Bins follow from public "
    "bounds; the first bin contains only the lower bound"
)
OF_PAIR = (
    "half of the sum of w / (K L) {} w (y - m) / H, with w the weight, y the outcome, m the centre, which is the cell's "
    "predicted mean, L the weight_cap, H the half_width, and K the number of outcomes; a record's terms are "
    "scaled to an L1 "
    "norm of at most 1"
)
OF_SCORES = (
    "the sum of records' scores in the cell: 1 for a value above 0 and −1 for another (share above 0), or a value's place "
    "between `centre` − `half_width` and `centre` + `half_width`, from −1 to 1, of its logarithm (log size; 0 for a value "
    "not above 0) or of the value itself (size); divided by the number of scores of a record"
)
OF_BEYOND = (
    "the number of records whose residual exceeds its equal share of the first limits by this factor, but not by 4 times "
    "this factor, divided by the number of measured columns"
)
OF_LARGE = (
    "the number of records with a weight above a multiple of the predicted weight, less the number of other records. "
    "About a twentieth of the reference's records exceed this multiple, or fewer if it is 1.5, the smallest one"
)
OF_QUADRANTS = (
    "the number of records whose weight and outcome are both above, or both not above, their medians by the noisy bin "
    "counts, less the number of other records"
)
DEFINITIONS = {
    "weight residuals": OF_WEIGHT,
    "outcome residuals": OF_OUTCOME,
    "above": OF_PAIR.format("plus"),
    "below": OF_PAIR.format("minus"),
    "records": "the number of records",
    "scores of": OF_SCORES,
    "count in bins of": OF_BINS,
    "quadrant sum": OF_QUADRANTS,
    "beyond": OF_BEYOND,
    "large weights": OF_LARGE,
}
"""Definitions of the measured sums by statistic, for the metadata of measurements.parquet."""

QUERIES = dict.fromkeys(
    ("weight residuals", "outcome residuals", "above", "below", "records", "scores of", "beyond", "large weights"), NAME
) | {"count in bins of": COUNTS, "quadrant sum": QUADRANTS}
"""The query that every statistic answers, by the names of both."""
BY_LAW = (
    "All tables are sums of the same base-cell estimates, so they agree with each other. Each estimate is a prediction "
    "from noisy sums, plus the posterior mean of the residual sum given the noisy sums of residuals."
)
MADE_UP = (
    (
        "Values of synthetic records are drawn from the noisy histograms, which are the same for every base cell "
        "(combination of all table columns)."
    ),
    (
        "Synthetic records agree with all tables. No other relationships were measured; within a cell, the columns of the "
        "synthetic records are independent."
    ),
)
ERRORS = (
    "Estimates from the released parameters (estimator `parameters`): standard errors are computed from draws from the "
    "posterior distribution that also yields the tables. They include sampling variation between and within base cells, "
    "the privacy noise, errors of the prediction, and the error in distributions estimated from noisy counts."
)
RESIDUALS = (
    "noisy sums, for every cell of every table, of observed minus predicted values, where the predictions come from "
    "{}; the values are {}"
)
OF_A_REFERENCE, OF_COUNTS = "the reference", "noisy counts"
"""What predictions come from."""
WEIGHTED, PUBLIC_WEIGHT, UNWEIGHTED_VALUES = (
    "{weight}, and {weight} times {outcome}",
    "{weight}, which is public, times {outcome}",
    "those of {outcome}",
)
"""The values that are summed."""
DONOR = f"A synthetic record takes its {{}} from one record of the reference, its donor (released/{DONORS})."
TILTED = (
    "Weights are adjusted until every base cell reproduces its estimates; where that is impossible, outcomes are adjusted."
)
UNWEIGHTED = "The job has no weight column: every record has the weight 1, and outcomes are adjusted to the estimates."
VARYING = "Even if all survey records in a design stratum have the same weight, the weights of its synthetic records vary."


FAR_CELLS, FAR_COMMON = 0.03, 0.08
"""Relative sizes of drift, of levels and cells and of all cells together, at which a reference no longer fits."""
OFTEN = 2.58
"""Standard errors of a change of a mean that chance alone exceeds in 1 of 100 cases."""
SEVERAL_TIMES = 2.0
"""Ratio to the reference's prediction above which a change is stated as a ratio."""
LARGEST_CELLS = 0.85
"""Drift of levels and cells above which the largest size that is learned, 90 %, holds for all larger ones."""

AT_THE_BOUND, NEAR_THE_BOUND = 0.2, 0.9
"""Share of weights at the public upper bound that stops a release, and the place of their mean in the public range where
noise hides the share."""
SEEN = 5.0
"""Scales of the noise beyond which a count is not noise alone."""
SATURATED = (
    "about {share:.0f} % of the weights lie at or above the public bound of {weight}, {top:,.10g}: counts and totals are "
    "too low by an unknown factor. Check the weight's unit, then its bound; a release under other bounds costs ε again."
)
PERHAPS_SATURATED = (
    "estimated weights are near the public bound of {weight}, {top:,.10g}, on average, and noise hides how many lie above "
    "it: counts and totals may be too low by an unknown factor. Check the weight's unit, then its bound, or give "
    "histograms more of the budget; either costs ε again."
)


class AtBound(NamedTuple):
    """What is released of a stratum's weights at their public upper bound.

    Numbers of all `records` and of those that are `counted` at the bound, under noise of this scale; the estimated sum of
    weights; and the public bounds.
    """

    records: float
    counted: float
    scale: float
    weight: float
    low: float
    high: float


def _in_ratio(ratio: float) -> str:
    """A figure's ratio to its prediction, in words before "the reference's prediction"."""
    if np.isnan(ratio) or np.isinf(ratio):
        return "0, like" if np.isnan(ratio) else "not 0, unlike"
    if ratio <= 0.0:
        return "opposite in sign to" if ratio else "0, unlike"
    if ratio < 0.01:
        return "less than 1 % of"
    if ratio >= SEVERAL_TIMES:
        return f"{ratio:,.3g} times"
    percent = abs(100.0 * (ratio - 1.0))
    return f"{percent:.0f} % {'above' if ratio > 1.0 else 'below'}" if percent >= 0.5 else "within 1 % of"


def _by_chance(reference: Donors, records: float) -> list[float]:
    """Changes of mean weights and mean outcomes, relative to the reference's, that one of 100 samples of as many records
    exceeds, where nothing has changed, (1 + outcome,).
    """
    weight, count = reference.weight, len(reference)
    changes = [weight - weight.mean()]
    for values in reference.outcomes.T:
        mean = np.average(values, weights=weight)
        changes.append(weight * (values - mean) / mean if mean else np.zeros(count))
    deviation = np.sqrt([np.mean(change**2) for change in changes]) / weight.mean()
    return list(OFTEN * deviation * np.sqrt(1.0 / max(count, 1) + 1.0 / max(records, 1.0)))


def _in_cells(drift: float) -> str:
    if drift >= LARGEST_CELLS:
        return "90 % or more"
    return f"{100.0 * drift:.0f} %" if drift >= 0.01 else "1 % or less"


@dataclass(frozen=True)
class TablesWords(Words):
    """Texts that depend on whether weights are measured, and on the drift since the reference."""

    @staticmethod
    def _by_counts(release: ReleaseView) -> bool:
        """True if noisy counts of bins stand in for a reference's records: of this release, or of its chain's first."""
        return release.job.on_histograms or not any(map(len, release.donors.values()))

    def cautions_of(self, release: ReleaseView) -> list[str]:
        names = ("Weights", *(f"Values of {name}" for name in release.job.outcomes))
        texts = list[str]()
        if release.job.on_histograms:  # no file came before
            return texts
        for stratum, (label, described) in enumerate(release.sets[0].items()):
            if "drift" not in described:
                continue
            where, model = f"{label}: " if len(release.sets[0]) > 1 else "", cast(Any, release.model(stratum))
            theta = release.theta(model, stratum, 0)
            ratios = model.since_reference(theta).tolist()
            chained = model.donors is not None and bool(model.donors.history)
            common_drift, *of_families = np.array(described["drift"]) * model.drift_of_means(theta)
            largest = map(max, zip(*of_families, strict=True))
            without_records = model.donors is None or not len(model.donors)
            records = float(model.sized(theta).count.sum())
            chances = [0.0] * len(names) if without_records else _by_chance(model.donors, records)
            found = zip(names, largest, common_drift, ratios, chances, strict=False)
            for k, (name, cells, common, ratio, chance) in enumerate(found):
                # A file of another size than the reference's has not drifted.
                since = common if chained or abs(ratio - 1.0) <= chance else max(common, abs(ratio - 1.0))
                together = 0.0 if k == 0 and release.job.sizes_in_sums else since
                if cells >= FAR_CELLS or together >= FAR_COMMON:
                    facts = {"change": _in_ratio(ratio), "cells": _in_cells(cells)}
                    texts.append(f"{where}{Caution.of('changed_since_reference', what=name, **facts).public}")
        return texts

    def reason_not_to_publish(self, release: ReleaseView) -> str | None:
        """Weights beyond their bound count as the bound. The noisy counts of bins tell how many they are.

        If all are below it, at most one release in a hundred is stopped: noise passes SEEN scales with probability .003.
        """
        at_bounds = list[AtBound]()
        if not release.job.on_histograms:
            return None
        for stratum in range(len(release.crosstab.stratum_labels)):
            model: Any = release.model(stratum)
            at_bound = model.at_weight_bound(release.theta(model, stratum, 0))
            at_bounds += [] if at_bound is None else [at_bound]
        if not at_bounds or not 0.0 < at_bounds[0].high - at_bounds[0].low < float("inf"):
            return None
        records, counted, weight = (sum(counts[k] for counts in at_bounds) for k in (0, 1, 3))
        noise, low, top = SEEN * sum(counts.scale**2 for counts in at_bounds) ** 0.5, at_bounds[0].low, at_bounds[0].high
        names = {"weight": release.job.survey.weight, "top": top}
        if counted >= max(noise, AT_THE_BOUND * records):
            return SATURATED.format(share=100.0 * min(counted / records, 1.0), **names)
        hidden, place = noise > AT_THE_BOUND * records, (weight / records - low) / (top - low)
        return PERHAPS_SATURATED.format(**names) if hidden and place >= NEAR_THE_BOUND else None

    def density_of(self, release: ReleaseView) -> str:
        survey, values = release.job.survey, WEIGHTED
        if survey.measured_weight is None:
            values = UNWEIGHTED_VALUES if survey.weight is None else PUBLIC_WEIGHT
        return RESIDUALS.format(OF_COUNTS if self._by_counts(release) else OF_A_REFERENCE, values)

    def errors_of(self, release: ReleaseView) -> str:
        return ERRORS if self._by_counts(release) else self.errors

    def post_processing(self, release: ReleaseView) -> list[str]:
        survey, (posterior, bounds, of_cell, agree) = release.job.survey, self.steps
        donated, how = "outcome", UNWEIGHTED
        if survey.weight is not None and survey.one_weight_in:
            how = ONE_WEIGHT.format(", ".join(survey.one_weight_in))
            how = how if survey.design_weights is None else f"{how} {DECLARED}"
        elif survey.weight is not None:
            donated, how = "weight and outcome", f"{TILTED} {VARYING}" if survey.design_strata else TILTED
        if self._by_counts(release):
            return [BY_LAW, bounds, MADE_UP[0], how, MADE_UP[1]]
        return [posterior, bounds, DONOR.format(donated), of_cell, how, agree]


WORDS = TablesWords(
    density=RESIDUALS.format(OF_A_REFERENCE, WEIGHTED),
    entries={"microdata": MICRODATA},
    errors=(
        "Estimates from the released parameters (estimator `parameters`): standard errors are computed from draws from "
        "the posterior distribution that also yields the tables. They include sampling variation between and within base "
        "cells, the privacy noise, errors of the prediction, and drift since the reference."
    ),
    errors_of_records=(
        "Estimates from the synthetic records (estimator `records`) agree with those from the parameters, and have the "
        "same standard errors."
    ),
    steps=(
        "All tables are sums of the same base-cell estimates, so they agree with each other. Each estimate is the "
        "prediction plus the posterior mean of the residual sum given all noisy sums.",
        (
            "Estimates for base cells (combinations of all table columns) are adjusted to lie within the public bounds "
            "and then raked to the estimates for the measured cells."
        ),
        f"Donors come from the same base cell or, if it has fewer than {FEWEST} reference records, also from the most "
        "similar cells.",
        "Synthetic records agree with all tables. All other relationships come from the reference and were not measured "
        "in the current file.",
    ),
)
