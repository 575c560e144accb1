"""For `quality.evaluate`: compares published tables with direct estimates, comparators and a simulation's truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.core.records import Cells, Crosstab, Floats
from dpdist.estimation.direct import Replicated, SamplingDesign, Totals, degrees_of_freedom, direct, errors_given_sizes
from dpdist.estimation.estimators import STATISTICS, Estimate
from dpdist.estimation.further import Direct
from dpdist.job import Comparator, Job, Statistic, StatisticName, Table
from dpdist.privacy.cell_sums import figures_met
from dpdist.privacy.guarantees import record_epsilon
from dpdist.publish.printed_tables import rows_with
from dpdist.quality.comparators import REFERRED, ReferenceBaselines, guarantee_of, noised
from dpdist.quality.model_baselines import FITTED, BaselineSums
from dpdist.quality.verdict import without_error
from dpdist.survey.simulate import FIELDS, SEXES, Truth

NO_COMPARATOR = "missing: comparators have counts, means and totals"


class Yardstick(NamedTuple):
    """The input of an outcome's direct estimates: the records' sums, the design, and replicate weights if there are any.

    `unclipped` has the sums before clipping. `seen` has the sums that the release uses: after clipping, if the job
    clips.
    """

    unclipped: Totals
    design: SamplingDesign
    replicated: Replicated | None
    seen: Totals

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


def compare(
    job: Job,
    table: Table,
    crosstab: Crosstab,
    yardsticks: Mapping[str, Yardstick],
    published: pd.DataFrame,
    truth: Truth | None,
    key: Key,
    others: ReferenceBaselines | None = None,
    fits: BaselineSums | None = None,
    records: Direct | None = None,
) -> pd.DataFrame:
    """Returns a row for each cell and statistic: direct estimate, published figures, comparators, and their errors.

    - `direct` is the estimate from the unclipped file, after the public universe and rules, with `direct_se`, df and CV.
      Where cells are not design strata, `direct_se` includes the random number of a cell's records. `direct_se_given_n`
      leaves it out, since releases use these exact numbers (`estimation.direct.errors_given_sizes`).
    - `direct_clipped` is the estimate from the clipped file, which the release and the noised comparators use.
      `clipping_error_in_se` is the distance between the two estimates.
    - `synthetic` is the published default estimate (from parameters, or from records where the model has no other), with
      its published standard error, df and 90 % interval.
    - `*_error` is against the truth where it is known, otherwise against `direct`. `*_error_in_se` is |estimate − direct| /
      direct_se; it is missing where direct_se is 0 or unknown. A `direct_se` that differs from 0 only by rounding is set to
      0. Ratios are of absolute errors.
    - `*_note` is a comparator's guarantee, or the reason why a figure is missing. Fitted comparators have figures from
      parameters, and `*_records` from synthetic records.

    Statistics other than counts, means and totals have direct estimates from `records`, and no comparators.
    """
    cells = table.cells(crosstab)
    outcomes = job.outcomes
    first = yardsticks[outcomes[0]]
    df = degrees_of_freedom(first.unclipped, crosstab, cells, first.design, first.replicated)
    estimates = {name: yardstick.estimates(yardstick.unclipped, crosstab, cells) for name, yardstick in yardsticks.items()}
    of_comparator = {
        name: yardstick.errors_given_sizes(crosstab, cells, job.sizes_secret) for name, yardstick in yardsticks.items()
    }
    clipped = {name: yardstick.estimates(yardstick.seen, crosstab, cells) for name, yardstick in yardsticks.items()}
    columns = _comparators(job, table, crosstab, cells, yardsticks, clipped, key, others, fits)
    notes = {
        f"{how}_note": fits.notes(cells)
        if fits is not None and how in FITTED
        else others.notes(how, cells, guarantee_of(job, how))
        if others is not None and how in REFERRED
        else guarantee_of(job, how)
        for how in job.compare
    }
    frames = []
    for statistic in table.statistics:
        outcome, plain = statistic.variable or outcomes[0], statistic.plain
        if plain:
            estimate = estimates[outcome][statistic.name]
        else:
            assert records is not None
            estimate = records.estimate(cells, statistic)
        rows = pd.DataFrame(list(cells.labels), columns=list(table.by), index=range(len(cells)))
        rows["statistic"], rows["variable"] = statistic.label, statistic.about
        rows["records"] = (cells.membership @ crosstab.count).astype(np.int64)
        rows["direct"] = estimate.value
        error = np.sqrt(estimate.variance)
        rows["direct_se"] = np.where(without_error(estimate.value, error), 0.0, error)
        rows["direct_se_given_n"] = of_comparator[outcome][statistic.name] if plain else np.nan
        rows["direct_df"] = df
        rows["direct_cv"] = (rows["direct_se"] / rows["direct"]).abs().where(rows["direct"] != 0)
        rows["direct_clipped"] = clipped[outcome][statistic.name].value if plain else estimate.value
        rows = rows.assign(**_published(published, statistic))
        for name, figures in columns.items():
            rows[name] = figures[outcome][statistic.name] if plain else np.nan
        for name, texts in notes.items():
            rows[name] = texts if plain else NO_COMPARATOR
        true = None if truth is None or not plain else truth_in_cells(truth, job, table, crosstab, outcome)
        rows["truth"] = np.nan if true is None else true[statistic.name]
        frames.append(rows)
    return _with_errors(pd.concat(frames, ignore_index=True), job, list(columns))


def _comparators(
    job: Job,
    table: Table,
    crosstab: Crosstab,
    cells: Cells,
    yardsticks: Mapping[str, Yardstick],
    clipped: Mapping[str, Mapping[StatisticName, Estimate]],
    key: Key,
    others: ReferenceBaselines | None,
    fits: BaselineSums | None,
) -> dict[str, Mapping[str, Mapping[StatisticName, Floats]]]:
    columns: dict[str, Mapping[str, Mapping[StatisticName, Floats]]] = {}
    for how in job.compare:
        if fits is not None and how in FITTED:
            columns[how] = {job.outcomes[0]: fits.figures(how, "parameters", cells)}
            columns[f"{how}_records"] = {job.outcomes[0]: fits.figures(how, "records", cells)}
        elif others is not None and how in REFERRED:
            columns[how] = {job.outcomes[0]: others.figures(how, cells)}
        else:
            columns[how] = _noised(job, table, crosstab, cells, yardsticks, clipped, how, key)
    return columns


def _published(published: pd.DataFrame, statistic: Statistic) -> dict[str, Floats | float]:
    """Published figures of a statistic: the default estimate with its error and interval, and the estimate from records."""
    mine = published[rows_with(published, statistic)]
    default = "parameters" if (mine["estimator"] == "parameters").any() else "records"
    first, records = (mine[mine["estimator"] == name] for name in (default, "records"))
    names = {"synthetic": "estimate", "synthetic_se": "standard_error"}
    names |= {f"synthetic_{name}": name for name in ("df", "lower", "upper")}
    figures: dict[str, Floats | float] = {name: first[column].to_numpy(dtype=float) for name, column in names.items()}
    return figures | {"synthetic_records": records["estimate"].to_numpy(dtype=float) if len(records) else np.nan}


def _noised(
    job: Job,
    table: Table,
    crosstab: Crosstab,
    cells: Cells,
    yardsticks: Mapping[str, Yardstick],
    estimates: Mapping[str, Mapping[StatisticName, Estimate]],
    how: Comparator,
    key: Key,
) -> dict[str, dict[StatisticName, Floats]]:
    """Noised statistics, by outcome. Counts are noised once, with the first outcome."""
    figures = figures_met(crosstab, job.tables)
    epsilon, by_outcome = float(record_epsilon(job, job.budget.epsilon)), dict[str, dict[StatisticName, Floats]]()
    for number, (outcome, estimate) in enumerate(estimates.items()):
        plain = [s for s in table.statistics if s.plain]
        wanted = [s.name for s in plain if s.variable == outcome or (s.variable is None and number == 0)]
        outcome_key = key if number == 0 else key.child(f"outcome {number + 1}")
        values: dict[StatisticName, Floats] = {name: estimate[name].value for name in wanted}
        mine = noised(values, yardsticks[outcome].seen, cells, epsilon, how, outcome_key, table.name, figures)
        count = next(iter(by_outcome.values()), mine).get("count")
        if how == "laplace_consistent" and number and count is not None and {"mean", "total"} <= set(mine):
            with np.errstate(divide="ignore", invalid="ignore"):
                mine["mean"] = mine["total"] / count
        by_outcome[outcome] = mine
    return by_outcome


def _with_errors(rows: pd.DataFrame, job: Job, compared: list[str]) -> pd.DataFrame:
    yardstick = rows["truth"].where(rows["truth"].notna(), rows["direct"])
    error = rows["direct_se"].where(rows["direct_se"] > 0)
    for column in ("synthetic", "synthetic_records", *compared):
        rows[f"{column}_error"] = rows[column] - yardstick
        rows[f"{column}_error_in_se"] = (rows[column] - rows["direct"]).abs() / error
    rows["clipping_error_in_se"] = (rows["direct_clipped"] - rows["direct"]).abs() / error
    for how in job.compare:
        with np.errstate(divide="ignore", invalid="ignore"):
            rows[f"synthetic_to_{how}"] = rows["synthetic_error"].abs() / rows[f"{how}_error"].abs()
    return rows


def truth_in_cells(truth: Truth, job: Job, table: Table, crosstab: Crosstab, outcome: str = "salary") -> dict[str, Floats]:
    population = _population(truth, job, crosstab, outcome)
    cells: Cells = table.cells(population[0])
    count = cells.membership @ population[0].count.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = cells.membership @ population[1]
        return {"count": count, "mean": total / count, "total": total}


def _population(truth: Truth, job: Job, crosstab: Crosstab, outcome: str) -> tuple[Crosstab, Floats]:
    names = {"field": FIELDS, "sex": SEXES}
    position = {name: {str(level): code for code, level in enumerate(levels)} for name, levels in crosstab.levels.items()}
    universe = {keep.column: set(map(str, keep.keep)) for keep in job.universe}
    rows, totals, counts, total = [], [], [], truth.of(outcome)
    for i, field in enumerate(FIELDS):
        for j, sex in enumerate(SEXES):
            levels_here = {"field": field, "sex": sex}
            if all(levels_here[name] in values for name, values in universe.items()):
                rows.append([position[name][levels_here[name]] for name in crosstab.levels])
                counts.append(int(truth.count[i, j]))
                totals.append(total[i, j])
    assert set(crosstab.levels) <= set(names)
    table = np.array(rows, dtype=np.int32).reshape(len(rows), len(crosstab.levels))
    codes = {name: table[:, k] for k, name in enumerate(crosstab.levels)}
    return Crosstab(codes, crosstab.levels, np.array(counts, dtype=np.int64), (), ()), np.array(totals)
