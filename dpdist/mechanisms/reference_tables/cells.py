"""For `reference_tables` and `table_package`: base cells with limits and units, fixed by a reference beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple, Protocol, Self

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats, Frame, Ints
from dpdist.estimation.donors import Donors
from dpdist.job import Job
from dpdist.mechanisms.reference_tables.sensitivity import noise_scales
from dpdist.mechanisms.reference_tables.spec import ReferenceTables
from dpdist.models.design import counted, design
from dpdist.models.public_model import PublicModel
from dpdist.privacy.queries import record_epsilon
from dpdist.reference.borrowing import complete
from dpdist.reference.clipping import Cell
from dpdist.reference.collapsing import collapsed, fewest, pooled
from dpdist.reference.limits import Limits, Noise, choose
from dpdist.reference.saturation import most_hidden

CellsByOutcome = list[list[Cell]]
"""Summary of a reference: the cells of each outcome."""


class ReferenceRecords(Protocol):
    """Records of a reference, which is public."""

    @property
    def frame(self) -> Codes: ...

    @property
    def weight(self) -> Floats: ...

    @property
    def outcomes(self) -> Floats: ...

    def about(self, outcome: int) -> ReferenceRecords: ...


@dataclass(frozen=True)
class ClippedCells(PublicModel):
    """Base cells of one stratum; the statistics are (cell, 1 + outcome), in whole units, once `limits` are known."""

    labels: tuple[str, ...]
    outcomes: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    """Public bounds of every outcome."""
    codes: Codes
    """Levels of the tables' columns in every cell, (cell, column)."""
    count: Floats
    """Sample records of every cell, public."""
    scales: tuple[Fraction, Fraction]
    """Scales of the noise on Σ(1 − v) and on every other sum, in units of 1/UNIT."""
    weighted: bool
    shrinkage: bool
    simplex: bool = False
    """True if sample sizes are secret; statistics are then those of `Limits.simplex`."""
    limits: Limits | None = None
    unit: Ints | None = None
    """The unit of every cell, (cell,); the cells of a unit have one common sum."""
    weight_bounds: tuple[float, float] | None = None
    """Public bounds of the weight, if histograms fix the limits; unidentified figures are then searched."""
    noisy_counts: bool = False
    """True if sample counts have noise too (`predictors: {protect}`)."""
    one_weight: bool = False
    """True if the job states that all weights of a cell are the same. Synthetic records then have its mean weight."""
    design_weight: Floats | None = None
    """The public weight of every cell, (cell,); None if weights are measured, or if there are none."""
    public_weights: tuple[float, float] = (0.0, np.inf)
    """Public bounds of the weight; every mean weight is kept within them."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Self:
        columns = tuple(name for name in job.cell_columns if name not in frame.strata)
        cells = design(frame, columns, rows)
        first = [int(np.flatnonzero(cells.pattern == cell)[0]) + rows.start for cell in range(len(cells.matrix))]
        labels = tuple(" / ".join(str(frame.levels[c][frame.codes[c][row]]) for c in columns) or "all" for row in first)
        codes = np.array([[frame.codes[c][row] for c in columns] for row in first], dtype=np.int32).reshape(len(first), -1)
        count = counted(frame, rows, cells)
        bounds = tuple(column.bounds or (0.0, 1.0) for column in job.outcome_columns.values())
        scales = noise_scales(record_epsilon(job, job.epsilon_of_tables), job.budget.adjacency, len(bounds))
        weighted, public = job.survey.measured_weight is not None, job.survey.design_weights
        assert isinstance(job.mechanism, ReferenceTables)
        return cls(
            *(cells, bounds[0], labels, job.outcomes, bounds, codes, count, scales, weighted),
            *(job.mechanism.shrinkage, job.sizes_in_sums),
            weight_bounds=weight_bounds(job),
            noisy_counts=job.noisy_frame,
            one_weight=bool(job.survey.one_weight_in),
            design_weight=None if public is None else public.of(frame)[first],
            public_weights=public_weights(job),
        )

    @property
    def first(self) -> list[int]:
        """The first frame row of every cell, counted within the stratum."""
        return [int(row) for row in np.unique(self.design.pattern, return_index=True)[1]]

    @property
    def noise(self) -> Noise:
        """Variances of the noise on Σ(1 − v) and on Σvc, in squared records."""
        first, other = (2.0 * (float(scale) / UNIT) ** 2 for scale in self.scales)
        return Noise(first, 2.0 * other if self.simplex else other)

    def summarise(self, reference: Sequence[ReferenceRecords], sizes: Floats | None = None) -> CellsByOutcome:
        """Summary of every cell from the reference's records, which are given for each outcome.

        `sizes` (cell,) are effective numbers of records, if the records are points that represent others.
        """
        summary = []
        for records, bounds in zip(reference, self.bounds, strict=True):
            cell = self.pattern(records.frame)
            order = np.argsort(cell, kind="stable")
            rows = np.split(order, np.searchsorted(cell[order], np.arange(1, len(self.labels))))
            weight = records.weight if self.weighted else np.ones(len(cell))
            cells = [Cell.of(weight[k], records.outcomes[k, 0], bounds, self.weighted) for k in rows]
            if sizes is not None:
                cells = [replace(cell, records=max(1, int(n))) for cell, n in zip(cells, sizes, strict=True)]
            summary.append(complete(cells, self.codes))
        return summary

    def units(self, summary: CellsByOutcome) -> Ints:
        """The unit of every cell, (cell,), from the reference and the noise."""
        return collapsed(summary[0], self.codes, self.fewest_records)

    @property
    def fewest_records(self) -> float:
        """A cell with fewer reference records than this is collapsed with others."""
        return fewest(self.scales)

    @property
    def most_outweighed(self) -> float:
        """Largest number of records of a cell that noise outweighs, or whose weights it hides; 0 if no cell is shrunk."""
        # A cell keeps less than half of its own figure if noise has a larger variance than sampling. That of noise on a sum
        # is 2b², for the scale b. That of n clipped records is at most n, and about n/2. Both are equal at n = 4b².
        return max(self.fewest_records, most_hidden(self.noise)) if self.shrinkage and len(self.labels) > 2 else 0.0

    def sizes(self, summary: CellsByOutcome) -> Floats:
        """Public sizes of cells; if sizes are secret, the reference's sizes."""
        return np.array([cell.records for cell in summary[0]], dtype=np.float64) if self.simplex else self.count

    def whole(self, summary: CellsByOutcome, unit: Ints) -> CellsByOutcome:
        """For each outcome its units, each pooled to one cell."""
        sizes, members = self.sizes(summary), [np.flatnonzero(unit == number) for number in range(unit.max() + 1)]
        return [[pooled([cells[k] for k in rows], sizes[rows]) for rows in members] for cells in summary]

    def limited(self, summary: CellsByOutcome) -> Limits:
        """The limits μ, U and R of every cell, shared by the cells of a unit."""
        unit = self.units(summary)
        sizes = np.bincount(unit, weights=self.sizes(summary))
        whole = zip(zip(*self.whole(summary, unit), strict=True), sizes, strict=True)
        chosen = [choose(cells, int(n), self.noise, self.public_weights[1]) for cells, n in whole]
        columns = (np.array([getattr(limit, name) for limit in chosen], dtype=np.float64) for name in Limits._fields)
        return Limits(*(limit[unit] for limit in columns))

    def within(self, limits: Limits, unit: Ints) -> Self:
        """This model with the limits and the units that a reference fixed."""
        return replace(self, limits=limits, unit=unit)


class ReferenceSummary(NamedTuple):
    """The cells of each outcome, their clipping limits, and the donors for synthetic records."""

    cells: CellsByOutcome
    limits: Limits
    donors: Donors | None = None


def summary_of(model: ClippedCells, reference: Sequence[ReferenceRecords], sizes: Floats | None = None) -> ReferenceSummary:
    """The summary from public sizes and the reference's records, which are given for each outcome.

    `sizes` (cell,) are the numbers of records that points represent.
    """
    cells = model.summarise(reference, sizes)
    return ReferenceSummary(cells, model.limited(cells))


def weight_bounds(job: Job) -> tuple[float, float] | None:
    """Public bounds of the weight (1 and 1 without weights), if histograms alone replace a reference; otherwise None."""
    return public_weights(job) if job.on_histograms else None


def public_weights(job: Job) -> tuple[float, float]:
    """Public bounds of the measured weight: 1 and 1 without one, 0 and infinity where the job states none."""
    if job.survey.measured_weight is None:
        return 1.0, 1.0
    declared = job.columns.get(job.survey.measured_weight)
    return (0.0, np.inf) if declared is None or declared.bounds is None else declared.bounds
