"""Texts for the statement of a release by `laplace` or `laplace_composed`: noisy figures of whole tables."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.estimation.least_squares import NEAR_ENOUGH
from dpdist.mechanisms.laplace_tables.release import UNMET, NoisyTables
from dpdist.mechanisms.words import Words
from dpdist.models.outputs import ReleaseView

LOCAL = (
    "Noise has the scale Δ/ε of local sensitivities Δ, those of the file at hand. They are kept confidential, but the "
    "noise itself tells of them: another file would have had other noise. Where all weights or outcomes of a table are "
    "alike there is no noise at all. Here ε = {} scaled the noise and is no privacy loss."
)
FULL = "Every figure has all of ε, though one record enters several: their noise does not compose to ε."
SHARED = "ε is divided by the number of figures that one record enters."
COMPOSED = (
    "Weights and outcomes are clipped to public bounds. A record enters every cell that it falls into, over all tables "
    "and margins. It enters by a weight and, where a table needs it, a centred product. Their L1 distance from any other "
    "values' in the same cell, or from none, is at most 2 units of the bounds (1 for weights alone). All sums have "
    "discrete Laplace noise of that scale, times the number of these cells, over ε."
)
ANYWHERE = (
    "A record that is exchanged leaves its cells and enters others: the noise has twice the scale that is said above."
)
NO_RECORDS = (
    "There are no synthetic records. Figures that were noised one by one, margins too, tell of no single file of records."
)
LEAST_SQUARES = (
    "Counts and totals of all tables are the additive ones nearest to the noisy figures in least squares. A mean is the "
    "ratio of its total and count where the table has both, and else as noised."
)
STOPPED = (
    "Least squares stopped after its largest number of steps, at a last correction of {:.0e} of the largest figure. "
    "Figures add up over all tables, but they are not quite the nearest ones."
)
AS_NOISED = "Figures are as noised: margins are not the sums of their cells."
RATIOS = (
    "A mean is the ratio of the noisy total and the noisy count, clipped to the outcome's public bounds. Where the noisy "
    "count is not above 0, it is the bound on the total's side."
)
NO_ERRORS = (
    "There are none. The noise has the scale of the file's own sensitivities, which are confidential. How records vary was "
    "not released."
)
SUMS_NOISED_AGAIN = (
    "Composition of the sample over cells, and other noise, simulated. How records vary within a cell was not released "
    "and is not in it, nor is the bias of clipping."
)


@dataclass(frozen=True)
class TableWords(Words):
    """Texts that depend on whether the noise has a public scale or follows the file's own sensitivities."""

    def post_processing(self, release: ReleaseView) -> list[str]:
        steps = [*super().post_processing(release), *([] if release.job.local else [RATIOS])]
        model = release.model(0)
        assert isinstance(model, NoisyTables)
        if model.consistency and (unmet := model.fitted(release.theta(model, 0, 0))[UNMET][0]) > NEAR_ENOUGH:
            steps.append(STOPPED.format(unmet))
        return steps

    def errors_of(self, release: ReleaseView) -> str:
        return NO_ERRORS if release.job.local else self.errors


WORDS = TableWords(
    density="noisy weighted counts, means and totals of {outcome} of whole tables",
    errors=SUMS_NOISED_AGAIN,
    steps=(NO_RECORDS,),
    settings={"consistency": {"none": AS_NOISED, "least_squares": LEAST_SQUARES}},
)
