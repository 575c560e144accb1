"""Direct estimates of any statistic from a file's records, with design-based variances, for `quality` and `planning`.

Results are confidential, unless the records are those of a public reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import scipy

from dpdist.confidential.records import Records
from dpdist.core.records import Cells, Codes, Crosstab, Floats, Ints
from dpdist.estimation.direct import SamplingDesign, stages_of
from dpdist.estimation.domains import DesignSample, quantile, share_below
from dpdist.estimation.estimators import Estimate
from dpdist.estimation.linear import StatisticFigures, Units, figures_of
from dpdist.estimation.variance import Stages, of_sums
from dpdist.job import Job, Statistic


@dataclass(frozen=True)
class Direct:
    """The records of a file: crosstab rows, PSUs (−1 where the job declares none), weights, and outcomes by number.

    `replicates` (record, replicate) are the replicate weights, if the job has them. If there are any, they describe the
    design.
    """

    job: Job
    crosstab: Crosstab
    design: SamplingDesign
    row: Codes
    psu: Codes
    weight: Floats
    outcomes: Sequence[Floats]
    replicates: Floats | None = None

    @classmethod
    def of(
        cls,
        job: Job,
        crosstab: Crosstab,
        design: SamplingDesign,
        by_outcome: Sequence[Iterator[Records]],
        replicates: Floats | None = None,
    ) -> Direct:
        """Collects blocks of records. Every outcome's blocks are read once, in one common order."""
        first, outcomes = list[Records](), list[Floats]()
        for number, blocks in enumerate(by_outcome):
            read = list(blocks)
            first = read if number == 0 else first
            outcomes.append(np.concatenate([block.outcome for block in read]))
        row, psu, weight = (np.concatenate([getattr(block, name) for block in first]) for name in ("row", "psu", "weight"))
        return cls(job, crosstab, design, row, psu, weight, outcomes, replicates)

    @property
    def without_clusters(self) -> Direct:
        survey = self.job.survey.model_copy(update={"psu": None, "replicate_weights": None})
        design = SamplingDesign(self.design.lonely)
        return replace(self, job=self.job.model_copy(update={"survey": survey}), design=design, replicates=None)

    def estimate(self, cells: Cells, statistic: Statistic) -> Estimate:
        """Returns value and variance by cell, as `domains` and R's `survey` do; quantiles as `svyquantile`."""
        held = replace(cells, membership=scipy.sparse.csr_array(cells.membership.tocsc()[:, self.row].tocsr()))
        figures, level = figures_of(statistic, held, self.job.outcomes), (statistic.of or statistic).level_of_quantile
        if level is None:
            value = figures.of(self._units(self.weight))[0]
            return Estimate(value, np.where(np.isnan(value), np.nan, self._variance(figures)))
        outcome = self.outcomes[self.job.outcomes.index((statistic.of or statistic).variable or "")]
        estimates = quantile(self.sample, held.membership, outcome, level)
        of_share = share_below(self.sample, held.membership, outcome, estimates.value)[1]
        return Estimate(*figures.quantile_from(estimates.value, of_share, estimates.standard_error, self._variance))

    @cached_property
    def sample(self) -> DesignSample:
        """The records with the design that the job states."""
        weights = self.job.survey.replicate_weights
        if weights is not None:
            assert self.replicates is not None
            return DesignSample.replicated(self.weight, self.replicates, weights)
        if self.job.survey.psu is None:
            stages = Stages(self.crosstab.design_stratum[self.row], self.design.stage_of_records(self.crosstab))
            return DesignSample(self.weight, np.arange(len(self.row), dtype=np.int32), stages)
        records = pd.DataFrame({"frame": self.row, "psu": self.psu, "records": 1})
        return DesignSample(self.weight, *stages_of(records, self.crosstab, self.design))

    def _units(self, weight: Floats) -> Units:
        def below(outcome: int, record: Ints, value: Floats) -> Floats:
            return np.asarray((weight[record] * (self.outcomes[outcome][record] <= value))[None])

        products = [(weight * products)[None] for products in self.outcomes]
        return Units(np.ones(len(weight)), weight[None], products, below, self.outcomes)

    def _variance(self, figures: StatisticFigures) -> Floats:
        """Returns the variance under replicate weights, or of PSUs within design strata."""
        units, sample = self._units(self.weight), self.sample
        if sample.replicates is None or sample.replication is None:
            return of_sums(figures.shares(units), sample.psu, sample.stages)
        again = np.concatenate([figures.of(self._units(weight)) for weight in sample.replicates.T])
        return sample.replication.variance(figures.of(units)[0], again)
