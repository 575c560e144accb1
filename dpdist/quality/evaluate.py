"""Evaluation of a release for the custodian, against direct estimates, comparators and a simulation's truth."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import scipy
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.files import write_json
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, stage
from dpdist.core.records import Cells, Codes, Crosstab, Floats, Ints, quotient
from dpdist.core.sharing import PiecesInTurn, share_out
from dpdist.estimation.direct import (
    Direct,
    ReplicateSums,
    SamplingDesign,
    Totals,
    degrees_of_freedom,
    direct,
    errors_given_sizes,
    totals,
)
from dpdist.estimation.estimators import STATISTICS, Estimate, group_sums
from dpdist.estimation.least_squares import consistent_table
from dpdist.job import Comparator, Job, Statistic, StatisticName, Table, budget_text
from dpdist.mechanisms.parts import builder_of
from dpdist.models.protocol import StratumModel, supports
from dpdist.planning.plan import Plan
from dpdist.privacy.cell_sums import CellBounds, figures_met, noise_scale, sensitivities
from dpdist.privacy.guarantees import NoGuarantee, record_epsilon
from dpdist.publish.noisy_figures import NoiseErrors
from dpdist.publish.withholding import rows_with
from dpdist.quality.errors import with_distances, without_error
from dpdist.quality.microdata import RecordCodes, microdata_measures
from dpdist.quality.model_baselines import FITTED, BaselineSums, fit_comparators
from dpdist.storage.tables import each_block, write_table
from dpdist.storage.workspace import SCRATCH, Workspace
from dpdist.survey.census import design_of, records_as_they_came, replicate_sums, replicates_as_they_came
from dpdist.survey.simulate import Truth

# Nothing is released. `guarantee_of` states what comparators would promise if they were released.
UNPROTECTED = "an unprotected comparison without a guarantee"


def guarantee_of(job: Job, how: Comparator) -> str:
    """Guarantee and cost of a comparator that fits no model. The class stands before the first comma or colon."""
    if how == "laplace_finest":
        budget = f"ε = {budget_text(job.budget.epsilon)}, {job.budget.adjacency}"
        return f"strict, {budget}: noisy sums of base cells at public bounds"
    if how == "reference_only" and not job.sizes_secret:
        return "strict, ε = 0: it uses only the public sample sizes of the current file"
    why = "the file's own sensitivities scale the noise"
    if how == "laplace":
        why = f"every figure uses the whole ε, and {why}"
    elif how == "reference_only":
        why = "it uses the file's sample sizes, which this release keeps secret"
    return f"{NoGuarantee.name}, {UNPROTECTED}: {why}"


# Computes tables with Laplace noise as in the slides [T]: a comparator that guarantees nothing (METHODS §7).
#
# Noise is Laplace(Δ/ε), where the sensitivities Δ are computed on the file itself (`sensitivities`). With
# `laplace`, every cell and statistic has the whole ε, as in the slides. With `laplace_composed`, ε is divided by the number
# of figures that one record enters. `laplace_consistent` also makes counts and totals add up, by least squares and at no
# cost. Its means are totals over counts, where the table has both.
def noised(
    estimates: Mapping[StatisticName, Floats],
    sums: Totals,
    cells: Cells,
    epsilon: float,
    how: Comparator,
    key: Key,
    table: str,
    figures: int,
) -> dict[StatisticName, Floats]:
    """Returns direct estimates with Laplace noise; `estimates` holds counts, means and totals, (cell,) each.

    `figures` is the number of figures that one record enters in the whole release.
    """
    share = 1.0 if how == "laplace" else float(figures)
    scale = sensitivities(sums.sums.a, sums.weight, sums.product, cells)
    rng = key.generator(f"compare {'laplace_composed' if how == 'laplace_consistent' else how}", table)
    noisy = {
        name: values + rng.laplace(0.0, share * scale[name] / epsilon, len(values)) if scale[name] > 0 else values
        for name, values in estimates.items()
    }
    return consistent_table(noisy, cells) if how == "laplace_consistent" else noisy


# - `laplace_finest`: noisy sums of base cells. Weights are clipped at a high quantile of the
#   reference's weights, outcomes at their public bounds.
# - `reference_only`: the current file's public sizes times the reference's means in base cells. Records of base cells that
#   the reference lacks have the means of the others in the table's cell. Where it has none of these, there is no figure.
QUANTILE = 0.99
REFERRED = ("laplace_finest", "reference_only")
ABSENT = "missing: the reference has no record in this cell"


class ReferenceBaselines(NamedTuple):
    """Σw and Σwy of every base cell under each comparator, (cell, 2). `row` is a crosstab row of each cell.

    `size` has each cell's current records. `reference` is 0 in cells of which the reference has no record: `absent`.
    """

    row: Codes
    size: Floats
    absent: NDArray[np.bool_]
    finest: Floats
    reference: Floats

    def figures(self, how: str, cells: Cells) -> dict[StatisticName, Floats]:
        sums = self.finest if how == "laplace_finest" else self.reference
        inside = self._inside(cells)
        count, total = (inside @ sums[:, k] for k in range(2))
        with np.errstate(divide="ignore", invalid="ignore"):
            if how == "reference_only":
                size, overlap = inside @ self.size, inside @ np.where(self.absent, 0.0, self.size)
                grown = np.where(size == overlap, 1.0, np.where(overlap > 0, size / overlap, np.nan))
                count, total = grown * count, grown * total
            return {"count": count, "mean": total / count, "total": total}

    def notes(self, how: str, cells: Cells, guarantee: str) -> list[str]:
        """The guarantee, or the reason why a cell has no figure."""
        without = ~np.isfinite(self.figures(how, cells)["count"]) if how == "reference_only" else np.zeros(len(cells), bool)
        return [ABSENT if missing else guarantee for missing in without]

    def _inside(self, cells: Cells) -> scipy.sparse.csc_array:
        return cells.membership.tocsc()[:, self.row]


def reference_baselines(
    job: Job, crosstab: Crosstab, current: Iterable[Records], reference: Iterable[Records], key: Key
) -> ReferenceBaselines:
    """Computes both comparators. The records of both files have rows of the same crosstab."""
    group, labels = crosstab.group(job.cell_columns)
    cells, row = len(labels), np.unique(group, return_index=True)[1].astype(np.int32)
    totals, weights = np.zeros((cells, 3)), []
    for records in reference:
        columns = (np.ones(len(records)), records.weight, records.weight * records.outcome)
        totals += np.column_stack([group_sums(group[records.row], column, cells) for column in columns])
        weights.append(records.weight)
    size = group_sums(group, crosstab.count.astype(np.float64), cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.nan_to_num((size / totals[:, 0])[:, None] * totals[:, 1:], posinf=0.0)
    bounds = CellBounds(float(np.quantile(np.concatenate(weights), QUANTILE)), *job.outcome_column.ends)
    pairs = np.zeros((cells, 2))
    for records in current:
        units = bounds.pairs(np.minimum(records.weight, bounds.weight), records.outcome)
        pairs += np.column_stack([group_sums(group[records.row], column, cells) for column in units.T])
    noise = key.generator("compare laplace_finest", "all").laplace(
        0.0, float(noise_scale(record_epsilon(job, job.budget.epsilon))), pairs.shape
    )
    return ReferenceBaselines(row, size, totals[:, 0] == 0, bounds.sums(pairs + noise), scaled)


NO_COMPARATOR = "missing: comparators have counts, means and totals"


class Yardstick(NamedTuple):
    """The input of an outcome's direct estimates: the records' sums, the design, and replicate weights if there are any.

    `unclipped` has the sums before clipping. `clipped_sums` has the sums that the release uses: after clipping, if the job
    clips.
    """

    unclipped: Totals
    design: SamplingDesign
    replicated: ReplicateSums | None
    clipped_sums: Totals

    def estimates(self, sums: Totals, crosstab: Crosstab, cells: Cells) -> dict[StatisticName, Estimate]:
        return dict(zip(STATISTICS, direct(sums, crosstab, cells, self.design, self.replicated), strict=True))

    def errors_given_sizes(self, crosstab: Crosstab, cells: Cells, secret: bool) -> dict[StatisticName, Floats]:
        """Returns direct standard errors for fixed numbers of records in cells.

        They are NaN if sizes are secret, or if replicate weights or PSUs describe the design.
        """
        errors = errors_given_sizes(self.unclipped, crosstab, cells, self.design)
        if self.replicated is not None or secret:
            errors = np.full_like(errors, np.nan)
        return dict(zip(STATISTICS, errors, strict=True))


def _published(published: pd.DataFrame, statistic: Statistic) -> dict[str, Floats | float]:
    """Published figures of a statistic: the default estimate with its error and interval, and the estimate from records."""
    mine = published[rows_with(published, statistic)]
    default = "parameters" if (mine["estimator"] == "parameters").any() else "records"
    first, records = (mine[mine["estimator"] == name] for name in (default, "records"))
    names = {"synthetic": "estimate", "synthetic_se": "standard_error"}
    names |= {f"synthetic_{name}": name for name in ("df", "lower", "upper")}
    figures: dict[str, Floats | float] = {name: first[column].to_numpy(dtype=float) for name, column in names.items()}
    return figures | {"synthetic_records": records["estimate"].to_numpy(dtype=float) if len(records) else np.nan}


def truth_in_cells(truth: Truth, job: Job, table: Table, crosstab: Crosstab, outcome: str = "salary") -> dict[str, Floats]:
    """The population's counts, means and totals in a table's cells, (cell,) each; NaN for an outcome without a truth."""
    universe = {keep.column: set(map(str, keep.keep)) for keep in job.universe}
    assert {*universe, *crosstab.levels} <= set(truth.levels)
    within = [[level in universe.get(name, levels) for level in levels] for name, levels in truth.levels.items()]
    here = np.nonzero(np.logical_and.outer(*within))
    places = dict(zip(truth.levels, here, strict=True))
    codes = dict[str, Codes]()
    for name, levels in crosstab.levels.items():
        position = {str(level): code for code, level in enumerate(levels)}
        codes[name] = np.array([position[truth.levels[name][place]] for place in places[name]], dtype=np.int32)
    population = Crosstab(codes, crosstab.levels, truth.count[here].astype(np.int64), (), ())
    cells: Cells = table.cells(population)
    count = cells.membership @ truth.count[here]
    total = cells.membership @ truth.totals.get(outcome, np.full(truth.count.shape, np.nan))[here]
    return {"count": count, "mean": quotient(total, count), "total": total}


FILE = "microdata.json"
MOST = 200_000
"""Largest number of records of each file that are compared; a larger file is sampled at random."""


def evaluate_microdata(space: Workspace, plan: Plan, key: Key) -> None:
    """Compares published records with the file's, if the mechanism releases coded columns."""
    model = builder_of(plan.job).build(plan.job, plan.crosstab, plan.crosstab.rows_of(0))
    if supports(model, "tables_beside"):
        measures = Confidential(_beside(space, plan, model, key.generator("microdata")))
        with space.result(space.confidential / FILE) as path:
            write_json(path, measures.disclose_to_custodian(), 0o600)


def _beside(space: Workspace, plan: Plan, model: StratumModel, rng: np.random.Generator) -> Mapping[str, float]:
    share = min(1.0, MOST / float(plan.crosstab.count.sum()))
    stored = plan.job.survey.weight not in plan.job.clipped_columns
    read_again = records_as_they_came(plan.job, plan.source, plan.census, None)
    blocks = each_block(space.records) if stored else read_again
    sampled = [block.take(rng.random(len(block)) < share) for block in blocks]
    codes, weight = np.concatenate([model.codes_of(b) for b in sampled]), np.concatenate([b.weight for b in sampled])
    published = pq.read_table(space.newest / "synthetic" / "set-1.parquet", columns=list(plan.job.components))
    columns = [published[name].to_numpy().astype(np.float64) for name in plan.job.outcomes]
    weights = published[plan.job.survey.weight].to_numpy() if plan.job.survey.weight else np.ones(len(published))
    return microdata_measures(_encode(model, codes, weight), _encode(model, model.coded(columns), weights, rng), rng)


def _encode(model: StratumModel, codes: Ints, weight: Floats, rng: np.random.Generator | None = None) -> RecordCodes:
    coded = RecordCodes(codes, model.sizes, weight)
    return coded if rng is None or len(weight) <= MOST else coded.take(rng.permutation(len(weight))[:MOST])


def evaluate(space: Workspace, plan: Plan, noise: NoiseErrors, key: Key, listener: Listener) -> None:
    """Compares published figures with direct estimates, with comparators, and with the truth of a simulated survey.

    `noise` has the errors of the release's tables.
    """
    job, crosstab, source = plan.job, plan.crosstab, plan.source
    fits = _fit_comparators(space, plan, key, listener) if set(job.compare) & set(FITTED) else None
    with stage(listener, "evaluate", len(job.tables)) as tick:
        yardsticks = {}
        for j, outcome in enumerate(job.outcomes):
            blocks, clustered = (block.about(j) for block in each_block(space.records)), job.survey.psu is not None
            clipped_totals = totals(blocks, crosstab, clustered)
            as_it_came = clipped_totals
            if {outcome, job.survey.weight} & set(job.clipped_columns):
                as_it_came = totals(records_as_they_came(job, source, plan.census, j), crosstab, clustered)
            replicated = replicate_sums(job, source, crosstab, j)
            yardsticks[outcome] = Yardstick(as_it_came, design_of(job, plan.census), replicated, clipped_totals)
        baselines = None
        if set(job.compare) & set(REFERRED):
            baselines = reference_baselines(job, crosstab, each_block(space.records), each_block(space.reference), key)
        records = None if job.plain else _records(space, plan)
        work = _Comparison(job, crosstab, yardsticks, source.truth, key, baselines, fits, records)
        published = PiecesInTurn(lambda k: _PublishedTable.of(space, job.tables[k], noise), len(job.tables))
        results = share_out(work, published) if records is None and fits is None else map(work, published)
        for table, compared in zip(job.tables, results, strict=True):
            _keep(space, table.name, compared)
            tick(1)
        evaluate_microdata(space, plan, key.child("microdata"))


class _PublishedTable(NamedTuple):
    """A table, its published rows, and errors by noise alone, by outcome and statistic."""

    table: Table
    rows: pa.Table
    noise: dict[str, dict[StatisticName, Floats]]

    @classmethod
    def of(cls, space: Workspace, table: Table, noise: NoiseErrors) -> _PublishedTable:
        rows, outcomes = pq.read_table(space.newest / "tables" / f"{table.name}.parquet"), noise.released.job.outcomes
        asked = dict.fromkeys(statistic.variable or outcomes[0] for statistic in table.statistics if statistic.plain)
        return cls(table, rows, {outcome: noise.errors(table, outcome) for outcome in asked})


@dataclass(frozen=True)
class _Comparison:
    """Work on a published table. A row for each cell and statistic has direct estimate, published figures, comparators, and
    their errors.

    - `direct` is the estimate from the unclipped file, after the public universe and rules, with `direct_se`, df and CV.
      Where cells are not design strata, `direct_se` includes the random number of a cell's records. `direct_se_given_n`
      leaves it out, since releases use these exact numbers (`estimation.direct.errors_given_sizes`).
    - `direct_clipped` is the estimate from the clipped file, which the release and the noised comparators use.
      `clipping_error_in_se` is the distance between the two estimates.
    - `synthetic` is the published default estimate (from parameters, or from records where the model has no other), with
      its published standard error, df and 90 % interval. `synthetic_noise_se` is the standard error by noise alone, from
      `noise` by outcome and statistic; NaN if it is not known.
    - `*_error` is against the truth where it is known, otherwise against `direct`. `*_error_in_se` is |estimate − direct| /
      direct_se; it is missing where direct_se is 0 or unknown. A `direct_se` that differs from 0 only by rounding is set to
      0. Ratios are of absolute errors.
    - `*_note` is a comparator's guarantee, or the reason why a figure is missing. Fitted comparators have figures from
      parameters, and `*_records` from synthetic records.

    Statistics other than counts, means and totals have direct estimates from `records`, and no comparators.
    """

    job: Job
    crosstab: Crosstab
    yardsticks: Mapping[str, Yardstick]
    truth: Truth | None
    key: Key
    baselines: ReferenceBaselines | None
    fits: BaselineSums | None
    records: Direct | None

    def __call__(self, published: _PublishedTable) -> Confidential[pa.Table]:
        compared = self._rows(published.table, published.rows.to_pandas(), published.noise)
        return Confidential(pa.Table.from_pandas(compared, preserve_index=False))

    def _rows(
        self, table: Table, published: pd.DataFrame, noise: Mapping[str, Mapping[StatisticName, Floats]]
    ) -> pd.DataFrame:
        job, crosstab, cells = self.job, self.crosstab, table.cells(self.crosstab)
        first, yardsticks = self.yardsticks[job.outcomes[0]], self.yardsticks.items()
        df = degrees_of_freedom(first.unclipped, crosstab, cells, first.design, first.replicated)
        estimates = {name: yardstick.estimates(yardstick.unclipped, crosstab, cells) for name, yardstick in yardsticks}
        given_sizes = {
            name: yardstick.errors_given_sizes(crosstab, cells, job.sizes_secret) for name, yardstick in yardsticks
        }
        clipped = {name: yardstick.estimates(yardstick.clipped_sums, crosstab, cells) for name, yardstick in yardsticks}
        columns, notes = self._comparators(table, cells, clipped)
        frames = []
        for statistic in table.statistics:
            outcome, plain = statistic.variable or job.outcomes[0], statistic.plain
            if plain:
                estimate = estimates[outcome][statistic.name]
            else:
                assert self.records is not None
                estimate = self.records.estimate(cells, statistic)
            rows = pd.DataFrame(list(cells.labels), columns=list(table.by), index=range(len(cells)))
            rows["statistic"], rows["variable"] = statistic.label, statistic.about
            rows["records"] = (cells.membership @ crosstab.count).astype(np.int64)
            rows["direct"] = estimate.value
            error = np.sqrt(estimate.variance)
            rows["direct_se"] = np.where(without_error(estimate.value, error), 0.0, error)
            rows["direct_se_given_n"] = given_sizes[outcome][statistic.name] if plain else np.nan
            rows["direct_df"] = df
            rows["direct_cv"] = (rows["direct_se"] / rows["direct"]).abs().where(rows["direct"] != 0)
            rows["direct_clipped"] = clipped[outcome][statistic.name].value if plain else estimate.value
            rows = rows.assign(**_published(published, statistic))
            rows["synthetic_noise_se"] = noise[outcome][statistic.name] if plain else np.nan
            for name, figures in columns.items():
                rows[name] = figures[outcome][statistic.name] if plain else np.nan
            for name, texts in notes.items():
                rows[name] = texts if plain else NO_COMPARATOR
            true = None if self.truth is None or not plain else truth_in_cells(self.truth, job, table, crosstab, outcome)
            rows["truth"] = np.nan if true is None else true[statistic.name]
            frames.append(rows)
        return with_distances(pd.concat(frames, ignore_index=True), list(columns), job.compare)

    def _comparators(
        self, table: Table, cells: Cells, clipped: Mapping[str, Mapping[StatisticName, Estimate]]
    ) -> tuple[dict[str, Mapping[str, Mapping[StatisticName, Floats]]], dict[str, str | list[str]]]:
        """Figures by comparator and outcome, and notes."""
        columns = dict[str, Mapping[str, Mapping[StatisticName, Floats]]]()
        notes, first = dict[str, str | list[str]](), self.job.outcomes[0]
        for how in self.job.compare:
            guarantee = guarantee_of(self.job, how)
            if self.fits is not None and how in FITTED:
                columns[how] = {first: self.fits.figures(how, "parameters", cells)}
                columns[f"{how}_records"] = {first: self.fits.figures(how, "records", cells)}
                notes[f"{how}_note"] = self.fits.notes(cells)
            elif self.baselines is not None and how in REFERRED:
                columns[how] = {first: self.baselines.figures(how, cells)}
                notes[f"{how}_note"] = self.baselines.notes(how, cells, guarantee)
            else:
                columns[how] = self._noised(table, cells, clipped, how)
                notes[f"{how}_note"] = guarantee
        return columns, notes

    def _noised(
        self, table: Table, cells: Cells, estimates: Mapping[str, Mapping[StatisticName, Estimate]], how: Comparator
    ) -> dict[str, dict[StatisticName, Floats]]:
        """Noised statistics, by outcome. Counts are noised once, with the first outcome."""
        figures = figures_met(self.crosstab, self.job.tables)
        epsilon = float(record_epsilon(self.job, self.job.budget.epsilon))
        by_outcome = dict[str, dict[StatisticName, Floats]]()
        for number, (outcome, estimate) in enumerate(estimates.items()):
            statistics = [s for s in table.statistics if s.plain]
            names = [s.name for s in statistics if s.variable == outcome or (s.variable is None and number == 0)]
            outcome_key = self.key if number == 0 else self.key.child(f"outcome {number + 1}")
            values: dict[StatisticName, Floats] = {name: estimate[name].value for name in names}
            mine = noised(
                values, self.yardsticks[outcome].clipped_sums, cells, epsilon, how, outcome_key, table.name, figures
            )
            count = next(iter(by_outcome.values()), mine).get("count")
            if how == "laplace_consistent" and number and count is not None and {"mean", "total"} <= set(mine):
                mine["mean"] = quotient(mine["total"], count)
            by_outcome[outcome] = mine
        return by_outcome


def _records(space: Workspace, plan: Plan) -> Direct:
    """Returns the records before clipping. If the job clips or has replicate weights, this reads the file once more."""
    job, numbers = plan.job, range(len(plan.job.outcomes))
    replicates = replicates_as_they_came(job, plan.source)
    if job.clipped_columns or replicates is not None:
        passes = [records_as_they_came(job, plan.source, plan.census, j) for j in numbers]
    else:
        passes = [(block.about(j) for block in each_block(space.records)) for j in numbers]
    return Direct.of(job, plan.crosstab, design_of(job, plan.census), passes, replicates)


def _fit_comparators(space: Workspace, plan: Plan, key: Key, listener: Listener) -> BaselineSums:
    """Fits the job's comparators that are models. They have a separate key for random numbers."""
    with (
        tempfile.TemporaryDirectory(dir=space.confidential, prefix=SCRATCH) as scratch,
        stage(listener, "fit comparators", len(plan.crosstab.stratum_labels)) as tick,
    ):
        return fit_comparators(plan.job, plan.crosstab, space.records, key.child("compare fitted"), Path(scratch), tick)


def _keep(space: Workspace, name: str, rows: Confidential[pa.Table]) -> None:
    with space.result(space.evaluation / f"{name}.parquet") as path:
        write_table(path, rows.disclose_to_custodian())
