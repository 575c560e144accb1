"""Checks that every column of a job suits its role: category, outcome, weight, PSU, or column of the universe."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import get_args

from dpdist.job import Comparator, Job
from dpdist.job.contradiction import Contradiction, Path, listed, near_column

WITHOUT_A_WEIGHT = (
    "leave its rules out. Records without a weight: delete them from the file; or mark them in a column of it and of any "
    "reference, and keep the others: universe: [{column: …, keep: […]}]"
)
"""What to do about records that have no weight. No universe may depend on the weight."""
WRITTEN = {
    *("count", "statistic", "variable", "estimator", "estimate", "standard_error", "df", "lower", "upper", "suppressed"),
    *("records", "direct", "direct_se", "direct_se_given_n", "direct_df", "direct_cv", "direct_clipped"),
    *("synthetic", "synthetic_se", "synthetic_df", "synthetic_lower", "synthetic_upper", "synthetic_records"),
    *(*get_args(Comparator), "truth"),
}
"""Names of columns that frames and tables have besides categories. No category may have such a name."""


def misspelt(job: Job) -> Iterator[Contradiction]:
    """Outcomes that no column has the name of, and that are nearly one's. What else is wrong then follows from the name."""
    for name in job.outcomes:
        if name not in job.columns and (near := near_column(job, name)) is not None:
            remedy = f"did you mean '{near}'? Otherwise add {name}: {{bounds: [lower, upper]}} to columns"
            yield Contradiction(("outcome",), f"no column '{name}' is declared", remedy, listed(tuple(job.columns)))


def categories(job: Job) -> Iterator[Contradiction]:
    """Columns used as categories must have declared levels, stand once in each list, and have unique names."""
    lists: list[tuple[Path, tuple[str, ...]]] = [
        (("strata",), job.strata),
        (("model", "predictors"), job.likelihood_predictors),
        (("survey", "design_strata"), job.survey.design_strata),
        *((("tables", i, "by"), table.by) for i, table in enumerate(job.tables)),
        *((("rake", i, "by"), rake.by) for i, rake in enumerate(job.rake)),
    ]
    for path, names in lists:
        for i, name in enumerate(names):
            if name not in job.columns:
                near, add = near_column(job, name), "add it to columns with its public levels"
                remedy = add if near is None else f"did you mean '{near}'? Otherwise {add}"
                yield Contradiction((*path, i), f"column '{name}' is not declared", remedy)
            elif job.columns[name].levels is None:
                yield Contradiction(
                    (*path, i),
                    f"column '{name}' has bounds, but a category with levels is needed here",
                    "name another column",
                )
            if name in names[:i]:
                yield Contradiction((*path, i), f"'{name}' is named twice", "delete one")
    for i, name in enumerate(job.likelihood_predictors):
        if name in job.strata:
            yield Contradiction(("model", "predictors", i), f"'{name}' is constant within a stratum", "leave it out")
    for name in job.categories:
        if name in WRITTEN:
            yield Contradiction(
                ("columns", name), f"'{name}' is a column that tables have of their own", "rename the column"
            )
    if prod(len(job.columns[name].levels or ()) for name in job.categories if name in job.columns) >= 2**62:
        yield Contradiction(("columns",), "the categories have too many combinations", "merge levels")


def roles(job: Job) -> Iterator[Contradiction]:
    """Outcome, weight and PSU must be different columns, each with what its role needs."""
    outcomes, weight, psu = job.outcomes, job.survey.weight, job.survey.psu
    for outcome in outcomes:
        if outcome not in job.columns or job.columns[outcome].bounds is None:
            yield Contradiction(
                ("outcome",),
                f"column '{outcome}' needs public bounds in columns",
                f"add {outcome}: {{bounds: [lower, upper]}} to columns",
            )
    if weight is not None and weight in (*outcomes, *job.categories):
        yield Contradiction(
            ("survey", "weight"), f"'{weight}' is used as outcome or category as well", "name another column"
        )
    declared = job.columns.get(weight) if weight is not None else None
    clipped = (
        declared is not None and declared.outside == "clip" and not (job.mechanism.clips(job) or job.mechanism.by_cell)
    )
    if declared is not None and ((declared.missing, declared.zeros) != ("error", "error") or clipped):
        yield Contradiction(("columns", str(weight)), "a weight has no rules", WITHOUT_A_WEIGHT)
    if psu is not None and psu in (*outcomes, weight):
        yield Contradiction(("survey", "psu"), f"'{psu}' is used as outcome or weight as well", "name another column")
    yield from _replicates_and_populations(job)
    for name in job.likelihood.prior.location:
        if name not in (*outcomes, weight):
            known = " or ".join(map(str, (*outcomes, weight)))
            yield Contradiction(("model", "prior", "location", name), f"'{name}' is not modelled", f"name {known}")


def _replicates_and_populations(job: Job) -> Iterator[Contradiction]:
    """Replicate weights exclude PSUs and population sizes, and their columns may have no other role."""
    outcomes, weight, psu = job.outcomes, job.survey.weight, job.survey.psu
    replicated = job.survey.replicate_weights
    if replicated is not None and weight is None:
        yield Contradiction(("survey", "replicate_weights"), "replicate weights are of a weight", "name survey.weight")
    if replicated is not None and (psu is not None or job.survey.fpc):
        yield Contradiction(
            ("survey", "replicate_weights"), "replicate weights carry PSUs and populations", "leave psu and fpc out"
        )
    if len(job.survey.fpc) == 2 and psu is None:
        yield Contradiction(
            ("survey", "fpc"), "a second population size is that of a PSU", "name survey.psu, or one column"
        )
    for i, name in enumerate(job.survey.fpc):
        if name in (*outcomes, weight, psu, *job.categories) or name in job.survey.fpc[:i]:
            yield Contradiction(
                ("survey", "fpc", i), f"'{name}' is used as outcome, weight, PSU or category as well", "name another column"
            )
    used = set() if replicated is None else {*outcomes, weight, *job.categories} & set(replicated.columns)
    for clash in used:
        yield Contradiction(
            ("survey", "replicate_weights"), f"'{clash}' is used as outcome, weight or category as well", "rename it"
        )


def universe(job: Job) -> Iterator[Contradiction]:
    for i, keep in enumerate(job.universe):
        domain = job.columns.get(keep.column)
        unknown = set(map(str, keep.keep)) - set(map(str, domain.levels or ())) if domain else set()
        known = listed(domain.levels or ()) if domain else ""
        if unknown:
            yield Contradiction(
                ("universe", i, "keep"),
                f"{', '.join(sorted(unknown))}: no level of '{keep.column}'",
                f"add it to columns.{keep.column}.levels, or leave it out",
                known,
            )
        if keep.column in (*job.outcomes, job.survey.weight or ""):
            yield Contradiction(
                ("universe", i, "column"),
                "a universe may not depend on the outcome or the weight",
                "filter by another column",
            )
