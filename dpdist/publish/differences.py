"""Comparison of two public folders: what differs, and differences between periods with standard errors.

Differences between periods know the errors of a reference that both releases share. `diff` itself takes √(a² + b²), from
the published errors a and b, which is too large for releases that share records, people or a reference: a list of moved
figures may then miss some. Degrees of freedom are Welch's and Satterthwaite's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpdist.core.errors import AnalysisError, WorkspaceError
from dpdist.core.public_files import MANIFEST, read_object
from dpdist.core.records import Floats, quotient_or
from dpdist.estimation.estimators import STATISTICS, margins_of, t_interval
from dpdist.job import Table, those
from dpdist.models.protocol import DRAWS, DrawnTogether, Draws, expected_of, supports
from dpdist.publish.opened import Release
from dpdist.publish.printed_tables import LARGE_CV, labels_of
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.standard_errors import (
    CENTRES,
    LawSpread,
    Spreads,
    cell_estimates,
    noise_variances,
    normal_variance,
    raked,
    simulate_errors,
)

# A published variance is T = V + N (`standard_errors`): V by the sample, N by noise and by errors of the reference. Both
# releases are simulated together, with the variances S and S' of these errors and D of their difference. So the variance
# of a change is T − N + T' − N' + D, the variances of both figures are T − N + S and T' − N' + S', and their
# covariance is (S + S' − D)/2. S exceeds N where noise hides how far a period has drifted. Where the later release learned
# from the earlier one, the earlier N and S have the variance by its sample, too.
#
# Statistics other than counts, means and totals, releases with strata, and releases without a common reference are taken
# for independent. Shared errors move both periods alike, so this overstates the error of a change, but where noise hides
# drift from both of them it understates it.
MOST_DRAWS, ENTRIES = 4 * DRAWS, 10_000_000
"""Number of draws of two releases; fewer where they had more entries, but no fewer than `DRAWS`."""

Key = tuple[tuple[str, ...], str, str | None]
"""Levels of a cell, a statistic's label, and its variable."""


class SharedVariance(NamedTuple):
    """What the variances of the figures before and after exceed the published ones by, and their covariance."""

    before: float
    after: float
    covariance: float


@dataclass(frozen=True, eq=False)
class SharedErrors:
    """Two releases under the same errors of their reference."""

    later: ReleasedObject
    earlier: ReleasedObject
    draws: DrawnTogether
    spreads: tuple[list[Spreads], list[Spreads]]
    """Of the later and of the earlier release, by outcome, as each was published."""
    reversed: bool
    """True if the figures before are those of the later release."""

    def variances(self, name: str) -> Mapping[Key, SharedVariance]:
        """Of a table's counts, means and totals, by cell and statistic. Both releases have the table."""
        by_key = dict[Key, SharedVariance]()
        for outcome, variable in enumerate(self.later.job.outcomes):
            sides = [self._side(k, name, outcome) for k in range(2)]
            first, second = sides
            places = {label: place for place, label in enumerate(second.labels)}
            both = [(k, places[label]) for k, label in enumerate(first.labels) if label in places]
            here, there = np.array(both, dtype=np.int64).reshape(-1, 2).T
            for k, statistic in enumerate(STATISTICS):
                later_draws, earlier_draws = first.draws[k][:, here], second.draws[k][:, there]
                later, earlier, apart = (
                    normal_variance(draws) for draws in (later_draws, earlier_draws, later_draws - earlier_draws)
                )
                more = later - first.variance[k][here], earlier - second.variance[k][there]
                before, after = more if self.reversed else more[::-1]
                parts = np.column_stack([before, after, (later + earlier - apart) / 2.0])
                for place, values in zip(here, parts.tolist(), strict=True):
                    for label, about in _named(self._table(self.later, name), statistic, variable, outcome):
                        by_key[first.labels[place], label, about] = SharedVariance(*values)
        return by_key

    def _side(self, k: int, name: str, outcome: int) -> _Side:
        released = (self.later, self.earlier)[k]
        cells, spread = released.cells(self._table(released, name)), self.spreads[k][outcome]
        variance = noise_variances(released, cells, spread)
        if k and self.draws.sampled:
            centres = spread.figures(CENTRES, cells, released.crosstab.count.astype(float))
            variance = [noise + normal_variance(centre) for noise, centre in zip(variance, centres, strict=True)]
        law_spread = _law_spread(released, (self.draws.later, self.draws.earlier)[k], outcome)
        figures = cell_estimates(cells, released.crosstab.count.astype(float), *law_spread)
        return _Side([tuple(map(str, label)) for label in cells.labels], figures, variance)

    @staticmethod
    def _table(released: ReleasedObject, name: str) -> Table:
        return next(table for table in released.job.tables if table.name == name)


@dataclass(frozen=True, eq=False)
class _Side:
    labels: list[tuple[str, ...]]
    draws: tuple[Floats, Floats, Floats]
    """Counts, means and totals, (draw, cell) each."""
    variance: list[Floats]
    """What part of their variances the draws stand for, (cell,) each."""


def _named(table: Table, statistic: str, variable: str, outcome: int) -> list[tuple[str, str | None]]:
    """Labels and variables under which a table has this statistic of this outcome."""
    statistics = [stat for stat in table.statistics if stat.plain and stat.name == statistic]
    return [
        (stat.label, stat.about)
        for stat in statistics
        if stat.variable == variable or (stat.variable is None and not outcome)
    ]


def _law_spread(released: ReleasedObject, draws: Draws, outcome: int) -> LawSpread:
    spread, rake = LawSpread(*expected_of(released.model(0), draws, outcome)), margins_of(released.job, released.crosstab)
    return raked(spread, released, rake) if rake else spread


def shared_errors(before: Release, after: Release) -> SharedErrors | str:
    """The errors that two releases share; or why none is known. Either of them may have learned from the other."""
    try:
        pair = [read_released(release.folder / "released") for release in (after, before)]
    except WorkspaceError:
        return "this version of dpdist cannot simulate the errors of one of the two releases again"
    if any(len(each.crosstab.stratum_labels) != 1 or each.job.strata for each in pair):
        return "at least one of the two releases has strata"
    models = [each.model(0) for each in pair]
    if not all(supports(model, "with_donors") for model in models):
        return "shared errors are known only for the mechanism `tables`"
    reasons = list[str]()
    for later, earlier in ((0, 1), (1, 0)):
        draws = _together(pair[later], pair[earlier])
        if isinstance(draws, str):
            reasons.append(draws)
            continue
        spreads = [simulate_errors(pair[k], lambda _: None).spreads for k in (later, earlier)]
        if spreads[0] is None or spreads[1] is None:
            return "the errors of one of the two releases cannot be simulated"
        return SharedErrors(pair[later], pair[earlier], draws, (spreads[0], spreads[1]), reversed=later == 1)
    return reasons[0]


def _together(later: ReleasedObject, earlier: ReleasedObject) -> DrawnTogether | str:
    model, other = later.model(0), earlier.model(0)
    rng = later.seed.child("errors of two periods").generator(earlier.job.period)
    thetas = later.theta(model, 0, 0), earlier.theta(other, 0, 0)
    draws = int(np.clip(ENTRIES // max(len(later.crosstab), len(earlier.crosstab)), DRAWS, MOST_DRAWS))
    return model.drawn_with(thetas[0], other, thetas[1], draws, rng)


WHICH = ("release", "dataset", "period", "date")
VERSION = ("version", "corrects", "correction")
"""Keys of a correction: its number among the period's releases, the release that it corrects, and the reason."""
CLAIMS = (
    "guarantee",
    "adjacency",
    "exchange",
    "epsilon",
    "epsilon_per_set",
    "substitution_epsilon",
    "delta",
    "composition",
    "metered",
    "synthetic_sets",
)
"""Keys of a statement that describe its protection. `_chained` adds the losses over a chain of earlier releases."""
ELSEWHERE = ("dataset", "period", "correction", "budget", "synthetic_sets", "tables", "presentation")
"""Keys of a job that are compared elsewhere or never change a figure."""
OF_A_FIGURE = ("statistic", "variable", "estimator")
NONE = "none"
OF_JOB = "job"
"""The part of a difference that comes from a key of the job; such differences are frequent and least informative."""


@dataclass(frozen=True)
class Difference:
    """One difference between two releases, with the value in each."""

    part: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class MovedFigure:
    """A published figure that has moved, or that one of the releases withholds or lacks."""

    table: str
    cell: str
    figure: str
    before: float | None
    after: float | None
    distance: float | None
    """Distance in standard errors of the difference; None if a release lacks the figure or its standard error."""


@dataclass(frozen=True)
class Differences:
    """All differences, the most important first. `compared` is the number of figures that both releases have, and
    `in_one` are those that only one of them publishes.
    """

    facts: tuple[Difference, ...]
    moved: tuple[MovedFigure, ...]
    in_one: tuple[MovedFigure, ...]
    compared: int
    beyond: float

    def __bool__(self) -> bool:
        return bool(self.facts or self.moved or self.in_one)

    @property
    def as_json(self) -> dict[str, Any]:
        """In JSON terms."""
        return {
            "differences": [asdict(fact) for fact in self.facts],
            "moved": [asdict(figure) for figure in self.moved],
            "in_one": [asdict(figure) for figure in self.in_one],
            "compared": self.compared,
            "beyond": self.beyond,
        }


def differences(before: Release, after: Release, beyond: float) -> Differences:
    """Compares two releases. Their files were verified when they were opened."""
    manifests = [read_object(release.folder, MANIFEST) for release in (before, after)]
    statements = [release.statement for release in (before, after)]
    jobs, versions = ([manifest[name] for manifest in manifests] for name in ("job", "versions"))
    facts = [
        *_of("guarantee", (*CLAIMS, *_chained(*statements)), *statements),
        *_of_tables(*({table["name"]: table for table in job["tables"]} for job in jobs)),
        *_of("release", (*WHICH, *VERSION), *(manifest | _version(manifest["job"]) for manifest in manifests)),
        *_of("versions", sorted({*versions[0], *versions[1]}), *versions),
        *_of(OF_JOB, sorted({*_flat(jobs[0]), *_flat(jobs[1])}), _flat(jobs[0]), _flat(jobs[1])),
    ]
    moved, compared = list[MovedFigure](), 0
    for name in before.tables:
        if name in after.tables and _by(jobs[0], name) == _by(jobs[1], name):
            figures, number = _moved_figures(name, before.tables[name], after.tables[name], beyond)
            moved, compared = [*moved, *figures], compared + number
    in_both = [figure for figure in moved if figure.before is not None and figure.after is not None]
    in_one = [figure for figure in moved if figure.before is None or figure.after is None]
    return Differences(tuple(facts), tuple(in_both), tuple(in_one), compared, beyond)


def _version(job: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the keys `VERSION`; the first release of a period has version 1 and corrects no other."""
    correction = job.get("correction")
    return (
        {"version": 1}
        if correction is None
        else dict(zip(VERSION, (correction["version"], correction["of"], correction["reason"]), strict=True))
    )


def _chained(*statements: Mapping[str, Any]) -> tuple[str, ...]:
    """Moves the sums over a chain to the top level of the statements; returns their names."""
    names = ("chain_epsilon", "chain_substitution_epsilon", "chain_rho", "chain_substitution_rho", "chain_delta")
    for statement in statements:
        assert isinstance(statement, dict)
        statement |= {name: statement["reference"][name] for name in names if name in statement.get("reference", {})}
    return names


def _of(part: str, names: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name in names:
        if before.get(name) != after.get(name):
            yield Difference(part, name, _text(before.get(name)), _text(after.get(name)))


def _of_tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            there = [NONE if name not in tables else _structure(tables[name]) for tables in (before, after)]
            yield Difference("tables", name, *there)
        elif before[name] != after[name]:
            yield Difference("tables", name, _structure(before[name]), _structure(after[name]))


def _structure(table: Mapping[str, Any]) -> str:
    figures = [
        statistic if isinstance(statistic, str) else " of ".join(*statistic.items()) for statistic in table["statistics"]
    ]
    return f"{', '.join(figures)} by {', '.join(table['by']) or 'nothing'}{', with margins' if table['margins'] else ''}"


def _by(job: Mapping[str, Any], name: str) -> list[str]:
    return next(list(table["by"]) for table in job["tables"] if table["name"] == name)


def _flat(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job's values by dotted key, without the keys in `ELSEWHERE`."""
    values = dict[str, Any]()
    waiting = [(name, value) for name, value in job.items() if name not in ELSEWHERE]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            waiting += [(f"{name}.{key}", inner) for key, inner in value.items()]
        else:
            values[name] = value
    return values


def _text(value: Any) -> str:
    if value is None:
        return NONE
    return ", ".join(map(str, value)) or NONE if isinstance(value, list) else str(value)


def _moved_figures(table: str, before: pd.DataFrame, after: pd.DataFrame, beyond: float) -> tuple[list[MovedFigure], int]:
    """Figures of one table that have moved, and the number of compared figures."""
    by = labels_of(before)
    names = [*by, *OF_A_FIGURE, "estimate", "standard_error"]
    both = before[names].merge(after[names], how="outer", on=[*by, *OF_A_FIGURE], suffixes=("_a", "_b"), sort=False)
    both = both[~_repeats(both, by)]
    a, b, error_a, error_b = (
        both[f"{name}_{end}"].to_numpy(dtype=float) for name in ("estimate", "standard_error") for end in "ab"
    )
    both_known = ~np.isnan(a) & ~np.isnan(b)
    distance = _distances(a, b, np.hypot(np.nan_to_num(error_a), np.nan_to_num(error_b)))
    far_apart = np.where(both_known, distance > beyond, np.isnan(a) != np.isnan(b))
    figures = []
    for k in np.flatnonzero(far_apart):
        row = both.iloc[k]
        figure = str(row["statistic"]) + ("" if pd.isna(row["variable"]) else f" of {row['variable']}")
        far = None if not np.isfinite(distance[k]) else float(distance[k])
        cell = " / ".join(str(row[name]) for name in by) or "all"
        figures.append(MovedFigure(table, cell, f"{figure} ({row['estimator']})", _number(a[k]), _number(b[k]), far))
    return figures, int(both_known.sum())


def _repeats(both: pd.DataFrame, by: Sequence[str]) -> pd.Series[bool]:
    """True for figures that repeat those of the first estimator: synthetic records agree with tables to rounding."""
    figures = ("estimate_a", "estimate_b", "standard_error_a", "standard_error_b")
    rounded = both.assign(**{name: [f"{value:.9g}" for value in both[name]] for name in figures})
    return rounded.duplicated([*by, "statistic", "variable", *figures])


def _distances(a: Floats, b: Floats, error: Floats) -> Floats:
    """|b − a| in standard errors of the difference; infinite where figures differ and no error is published."""
    distance = np.abs(b - a)
    return quotient_or(np.where(distance > 0, np.inf, 0.0), distance, error)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


USED = ("estimate", "standard_error", "df")
FIGURES = (
    *("before", "after", "difference", "standard_error", "df", "lower", "upper"),
    *("relative", "relative_error", "correlation", "significant"),
)
"""Columns of a table of changes, behind those that name a figure."""


def period_differences(before: Release, after: Release) -> dict[str, pd.DataFrame]:
    """The later figure less the earlier, for every table that both releases have with the same columns.

    The variance is that of independent estimates, unless both releases take errors from one reference: their
    covariance is then known. Samples of the two periods are taken to be independent.

    Parameters
    ----------
    before, after : releases of two periods.

    Returns
    -------
    One data frame for each table, with a row for each cell, statistic and estimator that both have:

    - `before`, `after`, `difference`, `standard_error`, `df`, and limits `lower` and `upper` of a 90 % interval. A
      difference is NaN where a release has no estimate.
    - `relative` and `relative_error`: the change relative to `before` with its standard error; NaN where `before` is not
      above 0, or has a standard error above 30 % of it.
    - `correlation`: of the two figures' errors; 0 where none is known.
    - `significant`: True if the interval of the difference leaves out 0.

    Raises
    ------
    AnalysisError : the releases are of one period, have no table in common, or one of them states no standard errors.

    Example
    -------
    >>> before, after = map(dpdist.open_release, ("doctorates-2017", "doctorates-2019"))
    >>> sorted(dpdist.period_differences(before, after))
    ['salaries']
    """
    return compared_periods(before, after).tables


class ComparedPeriods(NamedTuple):
    """Changes between two periods by table, as `period_differences` has them; `notes` say how their errors were taken."""

    tables: dict[str, pd.DataFrame]
    notes: list[str]


def compared_periods(before: Release, after: Release) -> ComparedPeriods:
    """What `period_differences` returns, with notes. Raises `AnalysisError` as it does."""
    _refuse_one_period(before, after)
    names = [name for name in before.tables if _comparable(before, after, name)]
    if not names:
        allowed = "a table with the same name and columns in both"
        raise AnalysisError("the releases have no table in common", allowed, "publish one again with the other's tables")
    for release, name in product((before, after), names):
        _refuse_without_errors(release, name, release.tables[name])
    shared = shared_errors(before, after)
    periods = " and ".join(str(release.statement["period"]) for release in (before, after))
    notes = (
        [(f"the errors of the {periods} estimates are treated as independent, because {shared}")]
        if isinstance(shared, str)
        else []
    )
    return ComparedPeriods({name: _of_table(before, after, name, shared) for name in names}, notes)


def _refuse_one_period(before: Release, after: Release) -> None:
    periods = [f"{release.statement['dataset']} {release.statement['period']}" for release in (before, after)]
    if periods[0] == periods[1]:
        fault = f"both releases are for {periods[0]}, so their figures come from the same records"
        raise AnalysisError(fault, "releases of two periods", "compare releases of the same period with `dpdist diff`")


def _comparable(before: Release, after: Release, name: str) -> bool:
    return name in after.tables and labels_of(before.tables[name]) == labels_of(after.tables[name])


def _of_table(before: Release, after: Release, name: str, shared: SharedErrors | str) -> pd.DataFrame:
    first, second = before.tables[name], after.tables[name]
    by = labels_of(first)
    keys = [*by, *OF_A_FIGURE]
    both = first[[*keys, *USED]].merge(second[[*keys, *USED]], on=keys, suffixes=("_a", "_b"), sort=False)
    value, error, df = (Pair(*(both[f"{column}_{end}"].to_numpy(dtype=float) for end in "ab")) for column in USED)
    variances = [error.before**2, error.after**2, np.zeros(len(both))]
    if isinstance(shared, SharedErrors):
        by_key, labels = shared.variances(name), both[keys].astype(object).where(both[keys].notna(), None)
        figures = zip(labels[by].itertuples(index=False, name=None), labels["statistic"], labels["variable"], strict=True)
        none = SharedVariance(0.0, 0.0, 0.0)
        more = np.array([by_key.get((tuple(map(str, cell)), statistic, about), none) for cell, statistic, about in figures])
        variances = [np.maximum(part + added, 0.0) for part, added in zip(variances[:2], more[:, :2].T, strict=True)]
        variances.append(more[:, 2])
    return both[keys].assign(**changes(value, Pair(*variances[:2]), df, variances[2]))


class Pair(NamedTuple):
    """Values of the earlier and of the later period, (figure,) each."""

    before: Floats
    after: Floats


def changes(value: Pair, variance: Pair, df: Pair, covariance: Floats) -> dict[str, Floats | NDArray[np.bool_]]:
    """Later values less earlier ones, (figure,) each by the names of `FIGURES`, with the covariance of their errors.

    With the variances A and B, their covariance C, and r = b/a, the variance of the relative change r − 1 is that of its
    linear term, (B + r² A − 2 r C) / a². That is too small where a is noisy, so there is then no relative change.
    """
    a, b = value
    most = np.sqrt(variance.before * variance.after)
    covariance = np.clip(covariance, -most, most)
    of_change = np.maximum(variance.before + variance.after - 2.0 * covariance, 0.0)
    interval = t_interval(b - a, of_change, satterthwaite(Pair(*map(np.sqrt, variance)), df))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((a > 0.0) & (np.sqrt(variance.before) <= LARGE_CV * a), b / a, np.nan)
        of_ratio = np.maximum(variance.after + ratio**2 * variance.before - 2.0 * ratio * covariance, 0.0)
        relative_error = np.sqrt(of_ratio) / a
        correlation = np.where(most > 0.0, covariance / most, 0.0)
    significant = (interval.lower > 0.0) | (interval.upper < 0.0)
    of_interval = interval.value, interval.standard_error, interval.df, interval.lower, interval.upper
    figures = (a, b, *of_interval, ratio - 1.0, relative_error, correlation, significant)
    return dict(zip(FIGURES, figures, strict=True))


def satterthwaite(error: Sequence[Floats], df: Sequence[Floats]) -> Floats:
    """Degrees of freedom of the sum of two independent errors; infinite if both are infinite or neither has an error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.sum(
            [
                np.where(np.isinf(side_df), 0.0, side_error**4 / side_df)
                for side_error, side_df in zip(error, df, strict=True)
            ],
            axis=0,
        )
        return np.asarray(np.where(parts > 0, (error[0] ** 2 + error[1] ** 2) ** 2 / parts, np.inf))


def _refuse_without_errors(release: Release, name: str, rows: pd.DataFrame) -> None:
    """Raises `AnalysisError` if a statistic has estimates without any standard error, because its mechanism states
    none.
    """
    missing = list(_without_errors(rows))
    if missing:
        mechanism = release.mechanism
        where = f"table '{name}' of {release.statement['period']}"
        fault = f"{where} has no standard errors of {missing[0]}, because '{mechanism}' does not give them"
        able = ", ".join(other for other in those(lambda spec: spec.sets != "none") if other != mechanism)
        raise AnalysisError(fault, f"figures with standard errors, as from {able}", "use a mechanism that gives them")


def _without_errors(rows: pd.DataFrame) -> Iterator[str]:
    for (statistic, _), group in rows.groupby(["statistic", "variable"], dropna=False, sort=False):
        estimated = group[group["estimate"].notna()]
        if len(estimated) and estimated[["standard_error", "lower"]].isna().all(axis=None):
            yield str(statistic)
