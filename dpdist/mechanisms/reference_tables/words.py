"""Statement texts of `reference_tables` and `table_package`, whose sums are clipped at limits from a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpdist.estimation.donors import DONORS, FEWEST
from dpdist.estimation.weighted_points import REFERENCE_FILE
from dpdist.mechanisms.parts import Words
from dpdist.mechanisms.reference_tables.spec import ReferenceTables
from dpdist.models.outputs import ReleaseView
from dpdist.reference.saturation import ALARM

DONATED = (
    f"A donor is of the synthetic record's own cell, or of the cells most like it where the cell has fewer than {FEWEST}.",
    "Tables made from synthetic records are the published ones; what else they tell is the reference's, not measured.",
    "Outcomes of all cells are multiplied by one factor (shifted, if they may be negative) that gives them the grand mean.",
    "Values of 0, the public bounds, a top-code and a minimum stay where they are. Where the means allow it, they keep the "
    "weighted share that donors have.",
    "Outcomes on a grid, such as whole thousands, are rounded back to it; without weights, only whole numbers are.",
)
TILTED = (
    "Weights in a cell are then tilted until it has its released means. Where weights cannot do it, the cell's outcomes "
    "have a factor of their own."
)
VARYING = "Weights that are the same in all records of a design stratum do not stay so: synthetic records of it differ."
ONE_WEIGHT = (
    "All records of a combination of {} have one weight, as the job states of the survey. So outcomes, not weights, are "
    "moved until a cell has its released means."
)
DECLARED = (
    "No sum has a record's weight, and no noise is in it: it is the one that the job declares. Records of the reference "
    "were given these weights, too."
)
MICRODATA = (
    "By the columns under `measured` synthetic records have the released counts and means of every cell. A record has the "
    "columns under `copied` from its donor, as they stand in the reference beside the donor's weight and outcomes. Where "
    f"a cell has fewer than {FEWEST} donors, the donor may be of another cell. No figure of these columns was measured on "
    "the current file. What has changed since the reference is not in them, and no standard error or interval is theirs."
)
NOT_IDENTIFIED = (
    "The noisy sums do not identify the mean weight, or an outcome's mean, of these cells. Nearly all of it lies beyond "
    "the limits at which records were clipped, or too little within them. Such a cell has limits and no estimate. "
    "Intervals of what is made of it hold them too. Its synthetic records have means within them and tell no more."
)
SHRUNK = (
    "Noise on the sums of these cells is so large that their estimates are mostly the figure that cells have in common. "
    "The part of a cell's own figure is given. The interval of a cell allows for cells that differ as most cells do. One "
    "unlike all others may lie far outside."
)
COLLAPSED = (
    "Noise would drown each of these cells alone. So the cells of a list have one noisy sum together. Their sum is "
    "measured. How it divides among them is the reference's."
)
BEYOND_SAMPLING = (
    "Noise and the reference's error in these figures are larger than the sampling error that so few records may show. The "
    "ratio of the two is given; 99 stands for 99 or more. So such an estimate may be several of its standard errors away "
    "from the unprotected one. Published errors and intervals hold this."
)
DRIFT = (
    "The noisy sums of these cells are farther from what the reference predicts than sampling and noise would carry them: "
    "weights or outcomes have changed since. Without such a change, at most one release in twenty names a cell. Estimates "
    "follow a change of scale, not one of shape. The errors of these cells hold the bias of a planned change of shape. "
    "Errors of all cells hold how differently cells have changed, for what lies beyond their limits."
)
AS_CLIPPED = (
    "The limits of every cell are those of the least predicted error, from the noisy histograms and the noise's law. It "
    "weighs noise, which grows with the limits, against half of what lies beyond them and what noise may hide there. A "
    "count is its clipped sum, with what the histogram of the cell's group holds beyond the limit. A mean is the clipped "
    "one of the noisy sums, with what the group's outcomes hold beyond the window and the cap, at the scale that this "
    "mean shows. How weights depend on outcomes in a group follows from its noisy sums. "
    "Where the window is the public range, a mean follows from the sums alone. Counts and means {}, within a group. "
    "Public bounds alone limit {} of {} cells."
)
LOOKED_THROUGH = (
    "Noisy sums are looked through for cells whose limits bind. One whose shape is its group's is taken for such with a "
    "chance of at most {:g} by each of its sums."
)
TAILS_BORROWED = (
    "Estimator `parameters`: composition of the sample over cells, sampling error of the clipped statistics, that of the "
    "reference's tails which complete them, and noise. How unlike cells are that borrow a shape of each other is in it. A "
    "change of shape since the reference is not."
)
BY_REFERENCE = (
    "noisy sums of {weight} and of its product with {outcome}, clipped where a reference tells, in every base cell"
)
BY_HISTOGRAMS = BY_REFERENCE.replace("a reference tells", "noisy histograms tell")
TAILS_OF_HISTOGRAMS = (
    "Estimator `parameters`: composition of the sample over cells, sampling error, noise of sums and histograms, half of "
    "what the histograms have beyond the limits, and what their noise may hide there, alike in all cells. An error of the "
    "tail has one sign in all of them, and in every draw of the noise: figures of all records may lean to one side by it."
)
RECORDS_AGREE = (
    "Estimator `records`: synthetic records agree with the table from parameters and have its error; synthesis adds none."
)


def _looked_through(release: ReleaseView) -> bool:
    """True if noisy sums were searched for unidentified cells."""
    return any("spans" in described for described in release.sets[0].values())


@dataclass(frozen=True)
class ReferenceWords(Words):
    """Texts about inverting the clipping with a reference, and about synthetic records made from donors."""

    entries: Mapping[str, str] = field(
        default_factory=lambda: {
            "microdata": MICRODATA,
            "not_identified": NOT_IDENTIFIED,
            "shrunk": SHRUNK,
            "collapsed": COLLAPSED,
            "beyond_sampling": BEYOND_SAMPLING,
            "drift": DRIFT,
        }
    )

    def density_of(self, release: ReleaseView) -> str:
        return BY_HISTOGRAMS if _looked_through(release) else self.density

    def errors_of(self, release: ReleaseView) -> str:
        return TAILS_OF_HISTOGRAMS if _looked_through(release) else self.errors

    def post_processing(self, release: ReleaseView) -> list[str]:
        assert isinstance(release.job.mechanism, ReferenceTables)
        moved = "are shrunk to the cells' common scale as far as noise moved them"
        how = moved if release.job.mechanism.shrinkage else "are not shrunk"
        clipping = (
            "Clipping is undone by the scale of weights and of outcomes (the shift, if outcomes may be negative or are "
            f"two-valued) under which the reference has a cell's noisy sums. These {how}."
        )
        steps = [clipping]
        if _looked_through(release):
            steps = [AS_CLIPPED.format(how, *publicly_limited(release)), LOOKED_THROUGH.format(ALARM)]
        return [*steps, _donors(release), *DONATED[:3], *_weights(release), *DONATED[3:]]


def _weights(release: ReleaseView) -> list[str]:
    """Sentences on the weights of synthetic records, and on weights that are equal within a stratum."""
    survey = release.job.survey
    if columns := survey.one_weight_in:
        return [ONE_WEIGHT.format(", ".join(columns)), *([DECLARED] if survey.design_weights is not None else [])]
    return [TILTED, VARYING] if survey.design_strata else [TILTED]


def publicly_limited(release: ReleaseView) -> tuple[int, int]:
    """Number of cells whose only limits are public bounds, in the weight and in every outcome; and the number of cells."""
    bounds = [column.bounds or (0.0, 1.0) for column in release.job.outcome_columns.values()]
    width, weight = np.array([high - low for low, high in bounds]), release.job.survey.measured_weight
    most = (release.job.columns[weight].bounds or (0.0, 1.0))[1] if weight is not None else 0.0
    wide, cells, outcomes = 0, 0, len(bounds)
    for stratum in range(len(release.frame.stratum_labels)):
        limits = release.theta(release.model(stratum), stratum, 0)["limits"][0]
        whole = (2.0 * limits[:, outcomes + 1 :] >= width).all(axis=1)
        wide, cells = wide + int(((limits[:, outcomes] >= most) & whole).sum()), cells + len(limits)
    return wide, cells


def _donors(release: ReleaseView) -> str:
    """A sentence on where synthetic records take their values from."""
    if release.donors:
        taken = f"a donor, which is a record of the reference (released/{DONORS})"
    else:
        taken = (
            f"a donor, which is a point of an earlier release or of histograms (released/{REFERENCE_FILE}). It is a mean "
            "of like records, in which round figures and a top-code may be lost"
        )
    return f"A synthetic record takes its weight and outcomes together from {taken}."


WORDS = ReferenceWords(
    density=BY_REFERENCE,
    errors=TAILS_BORROWED,
    errors_of_records=RECORDS_AGREE,
)
