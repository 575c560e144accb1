"""Texts of `tables`, for its `post`: of the statement, and definitions of measurements."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.estimation.donors import DONORS, FEWEST
from dpdist.mechanisms.parts import Words
from dpdist.mechanisms.reference_tables.words import DECLARED, MICRODATA, ONE_WEIGHT
from dpdist.mechanisms.tables.sensitivity import COUNTS, NAME
from dpdist.models.outputs import ReleaseView

OF_WEIGHT = (
    "the sum of (w - p - c) / L, with w the weight, p its prediction, c the cell's centre and L its weight_cap; both "
    "residuals of a record are scaled until their sizes sum to at most 1"
)
OF_OUTCOME = (
    "the sum of (w (y - m) - p (q - m)) / H, with y the outcome, q its prediction, m the cell's predicted mean, and H the "
    "half_width; w, p and the scaling as in the sum of weight residuals"
)
OF_BINS = (
    "the number of records with a value in a bin: at most half_width from its centre. Bins follow from public bounds; the "
    "first is of the lower bound alone"
)
OF_PAIR = (
    "half of the sum of w / (K L) {} w (y - m) / H, with w the weight, y the outcome, m the centre, which is the cell's "
    "predicted mean, L the weight_cap, H the half_width, and K the number of outcomes; all of a record are scaled until "
    "their sizes sum to at most 1"
)
DEFINITIONS = {
    "weight residuals": OF_WEIGHT,
    "outcome residuals": OF_OUTCOME,
    "above": OF_PAIR.format("plus"),
    "below": OF_PAIR.format("minus"),
    "records": "the number of records",
    "count in bins of": OF_BINS,
}
"""Definitions of the measured sums by statistic, for the metadata of measurements.parquet."""

QUERIES = dict.fromkeys(("weight residuals", "outcome residuals", "above", "below", "records"), NAME) | {
    "count in bins of": COUNTS
}
"""The query that every statistic answers, by the names of both."""
BY_LAW = (
    "All figures are sums of one estimate of the base cells, so that all tables agree. It is the posterior mean of the "
    "residual sums given the second noisy sums, added to a prediction by levels and cells, which follows from the first."
)
MADE_UP = (
    "The values of a synthetic record are of the law by noisy counts of bins, the same in every base cell.",
    "Synthetic records agree with all tables. What else they tell was not measured: columns are independent in a cell.",
)
ERRORS = (
    "Estimator `parameters`: composition of the sample over base cells, its sampling error within them, noise, errors of "
    "the prediction, and of the law by noisy counts. Draws come from the posterior that made the tables."
)
LEFT = "noisy sums, by cell of every table, of what a prediction from the reference leaves of "
DENSITY = f"{LEFT}{{weight}}, and of {{weight}} times {{outcome}}"
DENSITY_OF_OUTCOMES = f"{LEFT}{{outcome}}, times {{weight}}, which is public"
DONOR = f"A synthetic record takes its {{}} from one donor, a record of the reference (released/{DONORS})."
TILTED = "Weights in a base cell are tilted until it has its estimates. Where weights cannot do it, outcomes move."
UNWEIGHTED = "The job has no weight column: every record has the weight 1, and outcomes are moved to the estimates."


FAR_CELLS, FAR_COMMON = 0.03, 0.08
"""Relative sizes of drift, of levels and cells and of all cells together, at which a reference no longer fits."""
DRIFTED = (
    "{what} differ from what the reference predicts by about {cells:.0f} % by levels and cells, and by {common:.0f} % in "
    "all cells together. Standard errors provide for that. What limits hide is still the reference's: a newer one would "
    "give smaller errors"
)


@dataclass(frozen=True)
class TablesWords(Words):
    """Texts that depend on whether weights are measured, and on the drift since the reference."""

    def cautions_of(self, release: ReleaseView) -> list[str]:
        names = ("Weights", *(f"Values of {name}" for name in release.job.outcomes))
        texts = list[str]()
        for label, described in release.sets[0].items():
            where = f"{label}: " if len(release.sets[0]) > 1 else ""
            for k, (name, cells, common) in enumerate(zip(names, *described.get("drift", ((), ())), strict=False)):
                # A file of another size than the reference's has not drifted.
                together = 0.0 if k == 0 and release.job.sizes_in_sums else common
                if cells >= FAR_CELLS or together >= FAR_COMMON:
                    texts.append(where + DRIFTED.format(what=name, cells=100.0 * cells, common=100.0 * together))
        return texts

    def density_of(self, release: ReleaseView) -> str:
        density = DENSITY if release.job.survey.measured_weight is not None else DENSITY_OF_OUTCOMES
        return density.replace("from the reference", "by noisy counts") if release.job.on_histograms else density

    def errors_of(self, release: ReleaseView) -> str:
        return ERRORS if release.job.on_histograms else self.errors

    def post_processing(self, release: ReleaseView) -> list[str]:
        survey, (posterior, bounds, of_cell, agree) = release.job.survey, self.steps
        donated, how = "outcome", UNWEIGHTED
        if survey.weight is not None and survey.one_weight_in:
            how = ONE_WEIGHT.format(", ".join(survey.one_weight_in))
            how = how if survey.design_weights is None else f"{how} {DECLARED}"
        elif survey.weight is not None:
            donated, how = "weight and outcome", TILTED
        if release.job.on_histograms:
            return [BY_LAW, bounds, MADE_UP[0], how, MADE_UP[1]]
        return [posterior, bounds, DONOR.format(donated), of_cell, how, agree]


WORDS = TablesWords(
    density=DENSITY,
    entries={"microdata": MICRODATA},
    errors=(
        "Estimator `parameters`: composition of the sample over base cells, its sampling error within them, noise, errors "
        "of the prediction, and drift since the reference. Draws come from the posterior that made the tables."
    ),
    errors_of_records=(
        "Estimator `records`: synthetic records agree with the table from parameters and have its error; synthesis adds "
        "none."
    ),
    steps=(
        "All figures are sums of one estimate of the base cells, so that all tables agree. It is the posterior mean of the "
        "residual sums given all noisy sums, added to the prediction.",
        "Base cells are set within public bounds. Then they are raked to the sums that the measured cells had.",
        f"A donor is of the record's own base cell, or of those most like it where that has fewer than {FEWEST}.",
        "Synthetic records agree with all tables. What else they tell of a column is the reference's, not measured.",
    ),
)
