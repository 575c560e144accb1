"""What one key of a job says against another: found once, when the job is read, each with its path and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dpdist.job import Job

Path_ = tuple[str | int, ...]
Contradiction = tuple[Path_, str]
"""Path in the job, and "what is wrong: how to mend it"."""

WRITTEN = {
    *("count", "statistic", "variable", "estimator", "estimate", "standard_error", "df", "lower", "upper", "suppressed"),
    *("direct", "direct_se", "synthetic", "synthetic_records", "laplace", "laplace_composed", "truth"),
}
"""Columns that frames and tables have beside the categories."""


def contradictions(job: Job) -> list[Contradiction]:
    """Every contradiction; empty when the job is consistent."""
    return [*_categories(job), *_roles(job), *_universe(job), *_tables(job), *_promises(job), *_weights(job)]


def _categories(job: Job) -> Iterator[Contradiction]:
    """Columns used as categories are declared with levels, once in each list, under names of their own."""
    lists: list[tuple[Path_, tuple[str, ...]]] = [
        (("strata",), job.strata),
        (("model", "predictors"), job.model.predictors),
        (("survey", "design_strata"), job.survey.design_strata),
        *((("tables", i, "by"), table.by) for i, table in enumerate(job.tables)),
    ]
    for path, names in lists:
        for i, name in enumerate(names):
            if name not in job.columns:
                yield (*path, i), f"column '{name}' is not declared: add it to columns with its public levels"
            elif job.columns[name].levels is None:
                yield (*path, i), f"column '{name}' has bounds, but a category with levels is needed here"
            if name in names[:i]:
                yield (*path, i), f"'{name}' is named twice: delete one"
    for i, name in enumerate(job.model.predictors):
        if name in job.strata:
            yield ("model", "predictors", i), f"'{name}' is constant within a stratum: leave it out"
    for name in job.categories:
        if name in WRITTEN:
            yield ("columns", name), f"'{name}' is a column that tables have of their own: rename the column"
    if prod(len(job.columns[name].levels or ()) for name in job.categories if name in job.columns) >= 2**62:
        yield ("columns",), "the categories have too many combinations: merge levels"


def _roles(job: Job) -> Iterator[Contradiction]:
    """Outcome, weight and PSU are different columns, each with what its role needs."""
    outcome, weight, psu = job.model.outcome, job.survey.weight, job.survey.psu
    if outcome not in job.columns or job.columns[outcome].bounds is None:
        yield ("model", "outcome"), f"column '{outcome}' needs public bounds in columns"
    if weight in (outcome, *job.categories):
        yield ("survey", "weight"), f"'{weight}' is used as outcome or category as well"
    declared = job.columns.get(weight)
    if declared is not None and (declared.missing, declared.zeros, declared.outside) != ("error", "error", "error"):
        yield ("columns", weight), "a weight has no rules: leave records without a weight out by a universe"
    if psu in (outcome, weight):
        yield ("survey", "psu"), f"'{psu}' is used as outcome or weight as well"
    for name in job.model.prior.location:
        if name not in (outcome, weight):
            yield ("model", "prior", "location", name), f"'{name}' is not modelled: name {outcome} or {weight}"


def _universe(job: Job) -> Iterator[Contradiction]:
    for i, keep in enumerate(job.universe):
        domain = job.columns.get(keep.column)
        unknown = set(map(str, keep.keep)) - set(map(str, domain.levels or ())) if domain else set()
        if unknown:
            yield ("universe", i, "keep"), f"{sorted(unknown)} are not levels of '{keep.column}'"
        if keep.column in (job.model.outcome, job.survey.weight):
            yield ("universe", i, "column"), "a universe may not depend on the outcome or the weight"


def _tables(job: Job) -> Iterator[Contradiction]:
    names, outcome = [table.name for table in job.tables], job.model.outcome
    for i, table in enumerate(job.tables):
        if names.index(table.name) != i:
            yield ("tables", i, "name"), f"table '{table.name}' is named twice"
        for j, statistic in enumerate(table.statistics):
            if statistic.name == "mean" and statistic.variable != outcome:
                yield ("tables", i, "statistics", j), f"a mean is of the modelled outcome: write {{mean: {outcome}}}"
            if statistic.name == "count" and statistic.variable is not None:
                yield ("tables", i, "statistics", j), "a count has no variable: write count"


def _promises(job: Job) -> Iterator[Contradiction]:
    """What is to be promised or published can be."""
    if job.budget.adjacency == "add_remove":
        found = f"'{job.mechanism.name}' publishes stratum sizes and predictors, so add_remove cannot be promised"
        yield ("budget", "adjacency"), f"{found}: use zero_out or substitution"
    if job.model.population_weights == "proportional":
        if job.model.synthesis != "fbp":
            yield ("model", "population_weights"), "only synthesis: fbp uses population weights"
        elif job.survey.population is None:
            yield ("model", "population_weights"), "proportional needs survey.population, a public size"


def _weights(job: Job) -> Iterator[Contradiction]:
    """A weight rule is given only the constants that it has."""
    weights = job.mechanism.weights
    if weights.c is not None and weights.rule in ("none", "scalar", "fixed_point"):
        yield ("mechanism", "weights", "c"), f"'{weights.rule}' has no constant c"
    if weights.g and weights.rule != "linear":
        yield ("mechanism", "weights", "g"), f"'{weights.rule}' has no constant g"
    adjusted = weights.reweight is not None or (weights.scale, weights.shift) != (1.0, 0.0)
    if weights.rule == "none" and adjusted:
        yield ("mechanism", "weights"), "'none' leaves every weight at 1: take no reweight, scale or shift"
