"""Computes direct estimates of ratios, proportions, quantiles, shares and differences, for the confidential evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from dpdist.core.records import Codes, Floats, Frame, Ints, Records
from dpdist.core.table_cells import Cells
from dpdist.estimation.direct import Design
from dpdist.estimation.estimators import Estimate, stratum_sizes
from dpdist.estimation.linear import Figures, asked, variance
from dpdist.estimation.unit_sums import Units
from dpdist.estimation.variance import Stage
from dpdist.job import Job, Statistic


@dataclass(frozen=True)
class Direct:
    """The records of a file: frame rows, PSUs (−1 where the job declares none), weights, and outcomes by number."""

    job: Job
    frame: Frame
    design: Design
    row: Codes
    psu: Codes
    weight: Floats
    outcomes: Sequence[Floats]

    @classmethod
    def of(cls, job: Job, frame: Frame, design: Design, by_outcome: Sequence[Iterator[Records]]) -> Direct:
        """Collects blocks of records. Every outcome's blocks are read once, and all are in the same order."""
        first, outcomes = list[Records](), list[Floats]()
        for number, blocks in enumerate(by_outcome):
            read = list(blocks)
            first = read if number == 0 else first
            outcomes.append(np.concatenate([block.outcome for block in read]))
        row, psu, weight = (
            np.concatenate([getattr(block, name) for block in first]) for name in ("frame", "psu", "weight")
        )
        return cls(job, frame, design, row, psu, weight, outcomes)

    def estimate(self, cells: Cells, statistic: Statistic) -> Estimate:
        """Returns value and variance by cell. The variance is NaN where replicate weights describe the design."""
        held = replace(cells, membership=csr_array(cells.membership.tocsc()[:, self.row].tocsr()))
        column = self.job.outcome_columns.get((statistic.of or statistic).variable or "")
        domain = None if column is None else (column.bounds or (-np.inf, np.inf), column.whole)
        figures = asked(statistic, held, self.job.outcomes)
        return Estimate(*figures.of_records(self._units(), domain, self._variance))

    def _units(self) -> Units:
        def below(outcome: int, record: Ints, value: Floats) -> Floats:
            return np.asarray((self.weight[record] * (self.outcomes[outcome][record] <= value))[None])

        products = [(self.weight * each)[None] for each in self.outcomes]
        return Units(np.ones(len(self.weight)), self.weight[None], products, below, self.outcomes)

    def _variance(self, figures: Figures) -> Floats:
        """Variance of the first sampling stage: of PSUs within design strata, with the declared population sizes."""
        shares, stratum = figures.shares(self._units()), self.frame.design_stratum[self.row].astype(np.int64)
        if self.job.survey.replicate_weights is not None:
            return np.full(shares.shape[0], np.nan)
        if self.job.survey.psu is None:
            return variance(shares, np.ones(len(self.row)), stratum, self.design.stage(stratum_sizes(self.frame)))
        labels, unit = np.unique(np.column_stack([stratum, self.psu]), axis=0, return_inverse=True)
        within = csr_array((np.ones(len(unit)), (np.arange(len(unit)), unit.reshape(-1))), shape=(len(unit), len(labels)))
        here = np.bincount(labels[:, 0], minlength=int(labels[:, 0].max()) + 1).astype(np.float64)
        stage: Stage = self.design.stage(self.design.psus if len(self.design.psus) else here)
        return variance(csr_array(shares @ within), np.ones(len(labels)), labels[:, 0].astype(np.int64), stage)
