"""Direct estimates of any statistic from a file's records, with design-based variances, for `quality` and `planning`.

Results are confidential, unless the records are those of a public reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats, Frame, Ints
from dpdist.core.table_cells import Cells
from dpdist.estimation.direct import Design
from dpdist.estimation.domains import replication
from dpdist.estimation.estimators import Estimate, stratum_sizes
from dpdist.estimation.linear import Figures, Units, figures_of, variance
from dpdist.estimation.variance import Stage
from dpdist.job import Job, Statistic


@dataclass(frozen=True)
class Direct:
    """The records of a file: frame rows, PSUs (−1 where the job declares none), weights, and outcomes by number.

    `replicates` (record, replicate) are the replicate weights, if the job has them. If there are any, they describe the
    design.
    """

    job: Job
    frame: Frame
    design: Design
    row: Codes
    psu: Codes
    weight: Floats
    outcomes: Sequence[Floats]
    replicates: Floats | None = None

    @classmethod
    def of(
        cls,
        job: Job,
        frame: Frame,
        design: Design,
        by_outcome: Sequence[Iterator[Records]],
        replicates: Floats | None = None,
    ) -> Direct:
        """Collects blocks of records. Every outcome's blocks are read once, in one common order."""
        first, outcomes = list[Records](), list[Floats]()
        for number, blocks in enumerate(by_outcome):
            read = list(blocks)
            first = read if number == 0 else first
            outcomes.append(np.concatenate([block.outcome for block in read]))
        row, psu, weight = (
            np.concatenate([getattr(block, name) for block in first]) for name in ("frame", "psu", "weight")
        )
        return cls(job, frame, design, row, psu, weight, outcomes, replicates)

    @property
    def without_clusters(self) -> Direct:
        survey = self.job.survey.model_copy(update={"psu": None, "replicate_weights": None})
        design = self.design._replace(population=np.empty(0), psus=np.empty(0), psu_population=None)
        return replace(self, job=self.job.model_copy(update={"survey": survey}), design=design, replicates=None)

    def estimate(self, cells: Cells, statistic: Statistic) -> Estimate:
        """Returns value and variance by cell."""
        held = replace(cells, membership=scipy.sparse.csr_array(cells.membership.tocsc()[:, self.row].tocsr()))
        column = self.job.outcome_columns.get((statistic.of or statistic).variable or "")
        domain = None if column is None else (column.bounds or (-np.inf, np.inf), column.whole)
        figures = figures_of(statistic, held, self.job.outcomes)
        return Estimate(*figures.of_records(self._units(self.weight), domain, self._variance))

    def _units(self, weight: Floats) -> Units:
        def below(outcome: int, record: Ints, value: Floats) -> Floats:
            return np.asarray((weight[record] * (self.outcomes[outcome][record] <= value))[None])

        products = [(weight * products)[None] for products in self.outcomes]
        return Units(np.ones(len(weight)), weight[None], products, below, self.outcomes)

    def _variance(self, figures: Figures) -> Floats:
        """Returns the variance under replicate weights, or of PSUs within design strata."""
        units, weights = self._units(self.weight), self.job.survey.replicate_weights
        if weights is not None:
            assert self.replicates is not None
            again = np.concatenate([figures.of(self._units(weight)) for weight in self.replicates.T])
            return replication(weights).variance(figures.of(units)[0], again)
        shares, stratum = figures.shares(units), self.frame.design_stratum[self.row].astype(np.int64)
        if self.job.survey.psu is None:
            return variance(shares, np.ones(len(self.row)), stratum, self.design.stage(stratum_sizes(self.frame)))
        labels, unit = np.unique(np.column_stack([stratum, self.psu]), axis=0, return_inverse=True)
        within = scipy.sparse.csr_array(
            (np.ones(len(unit)), (np.arange(len(unit)), unit.reshape(-1))), shape=(len(unit), len(labels))
        )
        here = np.bincount(labels[:, 0], minlength=int(labels[:, 0].max()) + 1).astype(np.float64)
        stage: Stage = self.design.stage(self.design.psus if len(self.design.psus) else here)
        return variance(scipy.sparse.csr_array(shares @ within), np.ones(len(labels)), labels[:, 0].astype(np.int64), stage)
