"""Tests of how well a model family fits the public reference, against its direct estimates.

The reference is public, so the test spends nothing. The law is fitted without privacy weights and noise, so differences
are due to the family alone. A release of a similar file will have errors of the same size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError
from dpdist.core.files import scratch
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Cells, Crosstab, Floats, quotient
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, Sample, run_rounds
from dpdist.estimation.direct import ReplicateSums, SamplingDesign, direct, errors_given_sizes, totals
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import Job, family_facts
from dpdist.mechanisms.parts import builder_of
from dpdist.models.laws import can_refit
from dpdist.models.protocol import Draws, Improper, StratumModel, expected_of, supports
from dpdist.planning.blocks import block_rows
from dpdist.sampling.samplers import IndependentSampler
from dpdist.survey.census import Tick, design_of, place, replicate_sums
from dpdist.survey.reference_file import ReferenceFile

WITHIN = 2.0
"""Distance in direct standard errors within which an expectation counts as fitting."""
FEWEST_JUDGED = 10
"""Fewest records of a cell that is judged; the standard error of a smaller cell is too uncertain."""
DRAWS = 200
PUBLIC_KEY = Key(bytes(32)).child("goodness of fit")
"""Key of the draws from the posterior of a public file. It is not secret, so every plan and run has the same figures."""
MEASURE = (
    f"The share of the reference's table cells whose expectation under the fitted distribution lies within {WITHIN:g} "
    f"standard errors of the direct estimate. Only cells with at least {FEWEST_JUDGED} records are assessed. Their sizes "
    "are treated as fixed unless the design has PSUs or replicate weights. The score is the smallest share over "
    "statistics. It does not measure the shape of the distribution of records."
)


class ModelMisfit(NamedTuple):
    """How a statistic fits: number of cells, share within `WITHIN` standard errors, distances, and the worst cell."""

    statistic: str
    cells: int
    within: float
    median: float
    largest: float
    cell: str

    def in_words(self) -> str:
        off = f"median {self.median:.2g}, largest {self.largest:.2g} at {self.cell}"
        return f"{self.within:.2f} of {self.cells:,} cells within {WITHIN:g} standard errors for {self.statistic} ({off})"


@dataclass(frozen=True)
class GoodnessOfFit:
    """How a parametric law fits a reference, by statistic. A statistic without cells to judge is left out."""

    law: str
    misfits: tuple[ModelMisfit, ...]

    @property
    def score(self) -> float | None:
        return min((misfit.within for misfit in self.misfits), default=None)

    def in_words(self) -> str:
        """The figures of the statistic that fits worst."""
        if not self.misfits:
            return f"not judged: no cell of the reference has {FEWEST_JUDGED} records and a standard error"
        return min(self.misfits, key=lambda misfit: (misfit.within, -misfit.median)).in_words()

    def cautions(self, job: Job) -> Iterator[Caution]:
        """Cautions of a plan and of the statement."""
        if self.score is None or self.score < job.fit.warn_below:
            code = "distribution_not_judged" if self.score is None else "distribution_misfits"
            yield Caution.of(code, law=self.law, figures=self.in_words())

    def described(self) -> dict[str, Any]:
        """The figures as JSON values, for the statement."""
        statistics = [
            misfit._asdict() | {name: round(getattr(misfit, name), 4) for name in ("within", "median", "largest")}
            for misfit in self.misfits
        ]
        score = None if self.score is None else round(self.score, 4)
        return {"law": self.law, "measure": MEASURE, "score": score, "statistics": statistics}


def refuse_misfit(job: Job, fit: GoodnessOfFit) -> None:
    """Raises `JobError` if the fit is below what the job demands. It shows the figures, which are public."""
    least = job.fit.refuse_below
    if least is None or (fit.score is not None and fit.score >= least):
        return
    fault = f"the {fit.law} distribution on the reference: {fit.in_words()}"
    remedy = "use tables, or a family that fits; or lower fit.refuse_below"
    raise JobError.of(job.dataset, "fit.refuse_below", fault, f"at least {least:g} for every statistic", remedy)


def goodness_of_fit(job: Job, reference: ReferenceFile, tick: Tick = lambda rows: None) -> GoodnessOfFit:
    """Tests how well the job's parametric family fits its reference. It reads that file once more."""
    census = reference.census
    design = design_of(job, census)._replace(lonely=job.survey.lonely_record)
    again = [replicate_sums(job, reference.source, census.crosstab, j) for j in range(len(job.outcomes))]
    with scratch() as folder:
        records = place(job.by_record, reference.source, census, folder, tick)
        return compare(job, census.crosstab, records, reference.row >= 0, design, again)


def compare(
    job: Job,
    crosstab: Crosstab,
    records: Records,
    inside: NDArray[np.bool_],
    design: SamplingDesign,
    replicated: Sequence[ReplicateSums | None],
) -> GoodnessOfFit:
    """Compares expectations with direct estimates. `records` are in the order of the crosstab.

    `inside` is true for crosstab rows that the current file has too, (row,). Rows that only the reference has are left out
    of all cells.
    """
    weight, products = _expected(job, crosstab, records)
    inside = inside & np.isfinite(weight)
    n, clustered = crosstab.count.astype(np.float64), job.survey.psu is not None
    sizes: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for j, outcome in enumerate(job.outcomes):
        sums_of_outcome = totals(records.about(j).blocks(block_rows(job.sampler.total)), crosstab, clustered)
        sums = [np.where(inside, n * by_row, 0.0) for by_row in (weight, products[j])]
        for table in job.tables:
            cells = _within(table.cells(crosstab), inside)
            estimates = direct(sums_of_outcome, crosstab, cells, design, replicated[j])
            errors = errors_given_sizes(sums_of_outcome, crosstab, cells, design)
            if clustered or replicated[j] is not None:
                errors = np.sqrt([estimate.variance for estimate in estimates])
            off = _expectations(cells, sums) - [estimate.value for estimate in estimates]
            judged = (cells.membership @ n >= FEWEST_JUDGED) & (errors > 0)
            for statistic in (stat for stat in table.statistics if stat.plain):
                k = STATISTICS.index(statistic.name)
                if (statistic.variable or job.outcomes[0]) == outcome:
                    for cell in np.flatnonzero(judged[k]):
                        where = f"{table.name}: {' / '.join(cells.labels[cell]) or TOTAL}"
                        sizes[statistic.text].append((abs(float(off[k, cell] / errors[k, cell])), where))
    return GoodnessOfFit(family_facts(job).law, tuple(_misfit(name, distances) for name, distances in sizes.items()))


def _expectations(cells: Cells, sums: Sequence[Floats]) -> Floats:
    """Expected counts, means and totals of cells, (statistic, cell), from expected sums of crosstab rows."""
    count, total = (cells.membership @ by_row for by_row in sums)
    return np.array([count, quotient(total, count), total])


def _misfit(statistic: str, sizes: list[tuple[float, str]]) -> ModelMisfit:
    off = np.array([size for size, _ in sizes])
    return ModelMisfit(statistic, len(off), float((off <= WITHIN).mean()), float(np.median(off)), *max(sizes))


def _expected(job: Job, crosstab: Crosstab, records: Records) -> tuple[Floats, Floats]:
    """E(w|x) by crosstab row, (row,), and E(wy|x) by outcome and row, (outcome, row); NaN in strata without a fit."""
    weight, products = np.full(len(crosstab), np.nan), np.full((len(job.outcomes), len(crosstab)), np.nan)
    start = np.concatenate([[0], np.cumsum(crosstab.count)])
    for stratum, label in enumerate(crosstab.stratum_labels):
        rows = crosstab.rows_of(stratum)
        model = builder_of(job).build(job, crosstab, rows)
        model = model.as_sampled() if can_refit(model) else model
        part = records.part(int(start[rows.start]), int(start[rows.stop]))
        try:
            theta = _fitted(model, part, label, job.sampler.total)
        except Improper:
            continue
        for j in range(len(products)):
            mean, product = expected_of(model, theta, j)
            weight[rows], products[j, rows] = mean.mean(axis=0), product.mean(axis=0)
    return weight, products


def _fitted(model: StratumModel, records: Records, label: str, draws: int) -> Draws:
    """Parameters of the law that fits the records: draws, or the model's own fit. Raises `Improper`."""
    if supports(model, "law_of"):
        return model.law_of(records)
    sampler = IndependentSampler(DRAWS)
    return run_rounds(_fit(model), model, sampler, PUBLIC_KEY, label, records.blocks(block_rows(draws)))


def _fit(model: StratumModel) -> Generator[Pass | Sample, Any, Draws]:
    def statistics_of(records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        return model.statistics(records, np.ones(len(records)))

    statistics = yield Pass(statistics_of, model.combine)
    draws: Draws = yield Sample(statistics, "fit")
    return draws


def _within(cells: Cells, inside: NDArray[np.bool_]) -> Cells:
    """Restricts the rows of every cell to crosstab rows that are `inside`."""
    membership = scipy.sparse.csr_array(cells.membership @ scipy.sparse.diags_array(inside.astype(np.float64)))
    membership.eliminate_zeros()
    return replace(cells, membership=membership)
