"""Checks of a job's columns: roles, universe, design effects, privacy unit, hierarchies, predictors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import get_args

from dpdist.core.errors import suggestion
from dpdist.job import LEAST_BUDGET, Comparator, Hierarchy, Job, those
from dpdist.job.data import level_text
from dpdist.job.mechanism import near_column
from dpdist.job.rules import Contradiction, broken, listed
from dpdist.job.yaml_lines import Where

WRITTEN = {
    *("count", "statistic", "variable", "estimator", "estimate", "standard_error", "df", "lower", "upper", "suppressed"),
    "withheld_because",
    *("records", "direct", "direct_se", "direct_se_given_n", "direct_df", "direct_cv", "direct_clipped"),
    *("synthetic", "synthetic_se", "synthetic_noise_se", "synthetic_df", "synthetic_lower", "synthetic_upper"),
    *("synthetic_records", *get_args(Comparator), "truth"),
}
"""Names of columns that frames and tables have besides categories. Categories must have other names."""


def misspelt(job: Job) -> Iterator[Contradiction]:
    """Outcomes without a column of their name, but with one of nearly the same name.
    Other problems of such an outcome follow from its name.
    """
    for name in job.outcomes:
        near = None if name in job.columns else near_column(job, name)
        yield from broken("misspelt", job, name=name, near=near, declared=tuple(job.columns))


def categories(job: Job) -> Iterator[Contradiction]:
    """Columns used as categories must have declared levels, stand once in each list, and have unique names."""
    lists: list[tuple[Where, tuple[str, ...]]] = [
        (("strata",), job.strata),
        (("model", "predictors"), job.likelihood_predictors),
        (("survey", "design_strata"), job.survey.design_strata),
        *((("tables", i, "by"), table.by) for i, table in enumerate(job.tables)),
        *((("tables", i, "universe"), tuple(table.universe)) for i, table in enumerate(job.tables)),
        *((("rake", i, "by"), rake.by) for i, rake in enumerate(job.rake)),
        *((("hierarchies", name, "columns"), hierarchy.columns) for name, hierarchy in job.hierarchies.items()),
    ]
    for path, names in lists:
        for i, name in enumerate(names):
            column, near = job.columns.get(name), partial(near_column, job, name)
            again = name in names[:i]
            yield from broken("category", job, path=(*path, i), name=name, column=column, near=near, again=again)
    for i, name in enumerate(job.likelihood_predictors):
        yield from broken("predictor", job, i=i, name=name)
    for name in job.categories:
        yield from broken("written", job, name=name, written=name in WRITTEN)
    combinations = prod(len(job.columns[name].levels or ()) for name in job.categories if name in job.columns)
    yield from broken("combinations", job, too_many=combinations >= 2**62)


def recodes(job: Job) -> Iterator[Contradiction]:
    """A recoded level is not declared as a level; the level that it becomes is."""
    for name, merges in job.recode.items():
        column, near = job.columns.get(name), partial(near_column, job, name)
        categories = [other for other, declared in job.columns.items() if declared.levels is not None]
        yield from broken("recoded_column", job, name=name, column=column, near=near, categories=categories)
        levels = _texts(job, name)
        for source, target in merges.items() if column is not None and column.levels is not None else ():
            text = None if target is None else level_text(target)
            hint = partial(suggestion, str(text), levels, f"add it to columns.{name}.levels")
            facts = {"source": source, "text": text, "levels": levels, "merges": merges, "hint": hint}
            yield from broken("recode", job, name=name, **facts)


def roles(job: Job) -> Iterator[Contradiction]:
    """Outcome, weight and PSU must be different columns, each with what its role needs."""
    outcomes, weight = job.outcomes, job.survey.weight
    for outcome in outcomes:
        yield from broken("outcome", job, name=outcome, column=job.columns.get(outcome))
    declared = job.columns.get(weight) if weight is not None else None
    clipped = (
        declared is not None and declared.outside == "clip" and not (job.mechanism.clips(job) or job.mechanism.by_cell)
    )
    if declared is not None and ((declared.missing, declared.zeros) != ("error", "error") or clipped):
        rules = [f"{key}: {rule}" for key in ("missing", "zeros") if (rule := getattr(declared, key)) != "error"]
        rules += [f"outside: clip, under mechanism {job.mechanism.name}"] if clipped else []
        yield from broken("weight_column", job, rules="; ".join(rules))
    yield from _further_design(job)
    for name in job.survey.design_strata:
        yield from broken("design_stratum", job, name=name, column=job.columns.get(name))
    yield from broken("roles", job)
    yield from _replicates_and_populations(job)
    for name in job.likelihood.prior.location:
        modelled = (*outcomes, *filter(None, [weight]))
        yield from broken("location", job, name=name, modelled=modelled, either=" or ".join(modelled))


def _further_design(job: Job) -> Iterator[Contradiction]:
    """PSUs, units and design numbers may be declared, but no rule may give two of them one value."""
    unit = "" if job.privacy_unit is None else job.privacy_unit.column
    replicated = job.survey.replicate_weights
    names = (job.survey.psu or "", unit, *job.survey.fpc, *(() if replicated is None else replicated.columns))
    for name in names:
        if name not in job.columns or name in (*job.outcomes, job.survey.weight, *job.categories):
            continue
        yield from broken("design_column", job, name=name, column=job.columns[name])


def _replicates_and_populations(job: Job) -> Iterator[Contradiction]:
    """Replicate weights exclude PSUs and population sizes, and their columns may have no other role."""
    outcomes, weight, psu = job.outcomes, job.survey.weight, job.survey.psu
    replicated = job.survey.replicate_weights
    for i, name in enumerate(job.survey.fpc):
        taken = name in (*outcomes, weight, psu, *job.categories) or name in job.survey.fpc[:i]
        yield from broken("population_size", job, i=i, name=name, taken=taken)
    roles = (*outcomes, weight, *job.categories, *(keep.column for keep in job.universe))
    for clash in dict.fromkeys(name for name in roles if replicated is not None and name and replicated.has(name)):
        yield from broken("replicate_weight", job, name=clash)


def universe(job: Job) -> Iterator[Contradiction]:
    for i, keep in enumerate(job.universe):
        domain = job.columns.get(keep.column)
        unknown = set(map(level_text, keep.keep)) - set(map(level_text, domain.levels or ())) if domain else set()
        levels = listed(domain.levels or ()) if domain else ""
        merged = ", ".join(sorted(unknown & {*job.recode.get(keep.column, ())}))
        facts = {"levels": levels, "merged": merged, "unknown": ", ".join(sorted(unknown)), "column": keep.column}
        yield from broken("universe", job, i=i, **facts)


def design_effects(job: Job) -> Iterator[Contradiction]:
    """Design effects must have a source, and name columns and outcomes of the job."""
    yield from broken("design_effects", job)
    for i, effect in enumerate(job.survey.stated_effects):
        for j, name in enumerate(effect.by or ()):
            yield from broken("effect_by", job, i=i, j=j, name=name)
        yield from broken("effect_outcome", job, i=i, name=effect.outcome)


def constant_weights(job: Job) -> Iterator[Contradiction]:
    """Columns of `weights_constant_in` must be those that cut the base cells, where synthetic records get weights."""
    columns, by = job.survey.weights_constant_in, tuple(dict.fromkeys([*job.strata, *job.cell_columns]))
    raked = next((name for rake in job.rake for name in rake.by if name not in columns), None)
    facts = {"differ": {*columns} != {*by}, "by": listed(by) or "no column", "raked": raked}
    yield from broken("constant_weights", job, **facts)


def units(job: Job) -> Iterator[Contradiction]:
    """A unit with several records needs a strict mechanism, and a column of its own."""
    unit = job.privacy_unit
    if unit is None:
        return
    replicated = job.survey.replicate_weights
    roles = {*job.components, *job.categories, *job.survey.fpc, *(keep.column for keep in job.universe)}
    taken = unit.column in roles or (replicated is not None and replicated.has(unit.column))
    strict = partial(those, lambda spec: (spec.adds_noise and spec.sets != "none") or (spec.clamps and not spec.weighting))
    yield from broken("units", job, taken=taken, able=lambda: ", ".join(strict()))


MOST_COMBINATIONS = 2**20
"""Largest number of combinations of levels, all of which are published, even without a record."""


def predictors(job: Job) -> Iterator[Contradiction]:
    """Protected counts need an adjacency under which sizes are secret, and are measured by sums or a part of the budget."""
    if job.predictors is None:
        return
    protect = job.predictors.protect.columns
    exact = ", ".join(name for name in job.categories if name not in (protect or job.categories))
    yield from broken("predictors", job, able=lambda: " or ".join(those(lambda spec: spec.sums_weights)), exact=exact)
    facts = {
        "reason": lambda: job.mechanism.against_noisy_crosstab(job),
        "counted": ", ".join(job.counted_columns),
        "most": f"{MOST_COMBINATIONS:,}",
        "too_many": prod(len(job.columns[name].levels or ()) for name in job.categories if name in job.columns)
        > MOST_COMBINATIONS,
        "little_each": job.epsilon.crosstab / 10 / job.most_records < LEAST_BUDGET,
    }
    yield from broken("noisy_counts", job, **facts)
    if job.noisy_crosstab or job.mechanism.sums_weights:
        for i, name in enumerate(protect or ()):
            yield from broken("protected", job, i=i, name=name, columns=", ".join(job.categories) or "none")


def hierarchies(job: Job) -> Iterator[Contradiction]:
    for name, hierarchy in job.hierarchies.items():
        for i, column in enumerate(hierarchy.columns):
            yield from broken("nested", job, hierarchy=name, i=i, name=column, declared=column in job.columns)
        yield from _maps(job, name, hierarchy)
        for fine, coarse in hierarchy.steps:
            unmapped = fine not in hierarchy.within and not (job.nested_by_file((fine, coarse)) or job.on_records)
            yield from broken("unmapped", job, hierarchy=name, fine=fine, coarse=coarse, unmapped=unmapped)


def _maps(job: Job, name: str, hierarchy: Hierarchy) -> Iterator[Contradiction]:
    steps = dict(hierarchy.steps)
    for fine, levels in hierarchy.within.items():
        yield from broken("mapped", job, hierarchy=name, fine=fine, nested=tuple(steps))
        declared = [_texts(job, column) for column in (fine, steps[fine])] if fine in steps else []
        if not declared or not all(declared):
            continue
        for mapping, column, allowed in zip((levels, levels.values()), (fine, steps[fine]), declared, strict=True):
            unknown = next((level for level in mapping if level not in allowed), None)
            hint = partial(suggestion, str(unknown), allowed, "name its levels as `columns` lists them")
            facts = {"unknown": unknown, "hint": hint, "column": column, "allowed": allowed}
            yield from broken("mapped_level", job, hierarchy=name, fine=fine, **facts)
        lacking = [level for level in declared[0] if level not in levels]
        facts = {"lacking": lacking, "first": lacking[:1], "levels": declared[0], "coarse": steps[fine]}
        yield from broken("mapped_levels", job, hierarchy=name, fine=fine, **facts)


def _texts(job: Job, column: str) -> list[str]:
    return [level_text(level) for level in (job.columns[column].levels or ())] if column in job.columns else []
