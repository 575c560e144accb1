"""Checks of a job's tables: statistics, raking, gates, labels, rules of print, withholding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dpdist.core.errors import suggestion
from dpdist.core.records import TOTAL
from dpdist.job import LEAST_BUDGET, Job, Statistic, Table, those
from dpdist.job.checks.models import several_outcomes
from dpdist.job.data import label_of
from dpdist.job.mechanism import family_facts, near_column
from dpdist.job.presentation import ColumnText
from dpdist.job.rules import Contradiction, broken, listed
from dpdist.job.statistics import KINDS
from dpdist.job.tables import MOST_TABLES, Rake
from dpdist.job.yaml_lines import Where, flow


def table_statistics(job: Job) -> Iterator[Contradiction]:
    names = [table.name for table in job.tables]
    files = [name.casefold() for name in names]
    yield from broken("tables", job, too_many=len(names) > MOST_TABLES, most=f"{MOST_TABLES:,}")
    if len(names) > MOST_TABLES:
        return
    told = set[str]()
    for i, table in enumerate(job.tables):
        first = names[files.index(files[i])]
        yield from broken("table_name", job, i=i, name=table.name, again=table.name in names[:i], first=first)
        for other in job.tables[:i]:
            cells = {*other.by} == {*table.by} and other.by != table.by and other.universe == table.universe
            shared = [statistic.text for statistic in table.statistics if cells and statistic in other.statistics]
            if shared:
                yield from broken("transposed", job, i=i, other=other.name, shared=shared)
        texts = dict[str, Statistic]()
        for j, statistic in enumerate(table.statistics):
            path = ("tables", i, "statistics", j)
            faults = [*_statistic(job, table, statistic, path, told)]
            yield from faults
            again = statistic in table.statistics[:j]
            taken = not again and not faults and texts.setdefault(statistic.text, statistic) != statistic
            yield from broken("statistic_name", job, i=i, j=j, text=statistic.text, again=again, taken=taken)


def _statistic(job: Job, table: Table, statistic: Statistic, path: Where, told: set[str]) -> Iterator[Contradiction]:
    """`told` has columns that are no outcomes, each of which one contradiction names for all statistics."""
    yield from _given(job, statistic, path)
    if statistic.of is not None:
        yield from _of_its_kind(job, table, statistic, path)
        yield from _statistic(job, table, statistic.of, path, told)
        return
    unknown = [name for name in statistic.outcomes or (None,) if statistic.kind.of_outcome and name not in job.outcomes]
    if statistic.name in KINDS:
        yield from _of_its_kind(job, table, statistic, path)
    elif not unknown:
        yield from _of_plugin(job, table, statistic, path)
    if unknown and not told.issuperset(unknown):
        told |= {name for name in unknown if name in job.columns and job.columns[name].levels is None}
        yield _of_no_outcome(job, statistic, path)


def _of_its_kind(job: Job, table: Table, statistic: Statistic, path: Where) -> Iterator[Contradiction]:
    for fault in statistic.kind.faults(statistic, job, table):
        yield Contradiction(path, fault.finding, fault.remedy, listed(fault.allowed))


class _NamedSum(NamedTuple):
    """Stands for a sum, which has no arithmetic."""


class _NamedSums(NamedTuple):
    """Sums that a table can have, without values. Raises `ValueError` for others."""

    outcomes: Sequence[str]
    columns: Sequence[str]

    @property
    def weight(self) -> Any:
        return _NamedSum()

    def product(self, outcome: str) -> Any:
        if outcome not in self.outcomes:
            raise ValueError(f"no outcome '{outcome}'")
        return _NamedSum()

    def below(self, outcome: str) -> Any:
        return self.product(outcome)

    def across(self, columns: Sequence[str], outcome: str | None = None) -> Any:
        if lacking := [name for name in columns if name not in self.columns]:
            raise ValueError(f"no column '{lacking[0]}'")
        return self.weight if outcome is None else self.product(outcome)


def _of_plugin(job: Job, table: Table, statistic: Statistic, path: Where) -> Iterator[Contradiction]:
    """The faults of a plug-in's statistic. Its code runs once without values, so that it does not fail after protection."""
    try:
        faults = [*_of_its_kind(job, table, statistic, path)]
        if not faults:
            _run_without_values(job, table, statistic)
    except Exception as error:  # code of others may fail in any way
        plugin, _ = KINDS.plugged_in(statistic.name)
        fault = f"plug-in {plugin} fails ({type(error).__name__}: {error})"
        yield Contradiction(path, fault, "fix the plug-in, or use another statistic")
    else:
        yield from faults


def _run_without_values(job: Job, table: Table, statistic: Statistic) -> None:
    kind = statistic.kind
    for name, text in {"label": kind.label(statistic), "about": kind.about(statistic)}.items():
        if not (isinstance(text, str) or (name == "about" and text is None)):
            raise TypeError(f"return a text from {name}")
    low, high = kind.possible(statistic, lambda outcome: job.columns[outcome].ends)
    if not low <= high:
        raise ValueError("return the smaller number first from possible")
    sums = kind.sums(statistic, _NamedSums(job.outcomes, table.by))
    above, below = sums if isinstance(sums, tuple) and len(sums) == 2 else (None, None)
    if not (isinstance(above, _NamedSum) and isinstance(below, _NamedSum | None)):
        raise TypeError("return the sum above, and the sum below or None, from sums")


def _given(job: Job, statistic: Statistic, path: Where) -> Iterator[Contradiction]:
    def able() -> str:
        several = statistic.over is not None
        names = those(
            lambda spec: (
                spec.has_statistic(statistic.name)
                and not (statistic.of_shape and spec.sets == "none")
                and (several_outcomes(spec) or not several)
            )
        )
        return listed(names, len(names))

    shape = statistic.of is None and statistic.of_shape
    facts = {"path": path, "name": statistic.name, "given": job.mechanism.has_statistic(statistic.name), "shape": shape}
    yield from broken("statistic", job, able=able, **facts)


def table_universes(job: Job) -> Iterator[Contradiction]:
    """A table's universe has declared levels, and leaves some of each column's out."""
    for i, table in enumerate(job.tables):
        for name, members in table.universe.items():
            levels = [str(level) for level in job.columns[name].levels or ()] if name in job.columns else []
            texts = list(map(str, members))
            for j, level in enumerate(texts if levels else ()):
                facts = {"unknown": level not in levels, "again": level in texts[:j], "levels": levels, "level": level}
                hint = partial(suggestion, level, levels, "name levels of the column")
                yield from broken("universe_level", job, i=i, name=name, j=j, hint=hint, **facts)
            single, every_level = name in table.by and len(set(texts)) == 1, bool(levels) and set(levels) <= set(texts)
            facts = {"table": table.name, "single": single, "every_level": every_level}
            yield from broken("table_universe", job, i=i, name=name, **facts)


def _of_no_outcome(job: Job, statistic: Statistic, path: Where) -> Contradiction:
    numbers = [name for name in job.outcomes if name not in job.columns or job.columns[name].levels is None]
    outcomes = numbers or job.outcomes
    missing = [name for name in statistic.outcomes if name in job.columns and name not in job.outcomes]
    several = several_outcomes(type(job.mechanism))
    if statistic.over is not None and not (missing and several and job.columns[missing[0]].levels is None):
        pair = outcomes[:2] if len(outcomes) > 1 else ()
        remedy = f"write {_with(statistic, *pair)}" if pair else "name two outcomes in `outcome`, or leave it out"
        able = those(lambda spec: spec.has_statistic(statistic.name) and several_outcomes(spec))
        allowed = "" if several else f"under {listed(able, len(able))}"
        unlisted = [f"'{name}'" for name in statistic.outcomes if name not in job.outcomes]
        fault = f"a {statistic.name} needs two outcomes"
        if unlisted:
            fault += f", and {' and '.join(unlisted)} {'is' if len(unlisted) == 1 else 'are'} not listed under `outcome`"
        return Contradiction(path, fault, remedy, allowed)
    remedy = "write " + " or ".join(_with(statistic, outcome) for outcome in outcomes)
    name = missing[0] if missing else str(statistic.variable)
    if name not in job.columns:
        near = near_column(job, name)
        hint = f"did you mean '{near}'? Otherwise {remedy}" if near in outcomes else remedy
        return Contradiction(path, f"no outcome has the name '{name}'", hint, listed(outcomes))
    if job.columns[name].levels is not None:
        fault = f"a {statistic.name} needs numbers, and '{name}' is a category with levels"
        counted = f"to count the records with each of its levels, put '{name}' into `by` and write count"
        return Contradiction(path, fault, f"{counted}; or {remedy}")
    others = sum(name in other.outcomes for table in job.tables for other in table.statistics) - 1
    more = f"; {others} more statistic{'s need' if others > 1 else ' needs'} it" if others > 0 else ""
    fault = f"a {statistic.name} needs an outcome, and '{name}' is not listed under `outcome`{more}"
    instead = f"; or {remedy}" if statistic.over is None else ""
    return Contradiction(path, fault, f"add it to outcome: [{', '.join((*job.outcomes, name))}]{instead}")


def _with(statistic: Statistic, variable: str, over: str | None = None) -> str:
    """The statistic as a job writes it, with other outcomes."""
    return flow(statistic.model_copy(update={"variable": variable, "over": over}).written)


def modelled(job: Job) -> Iterator[Contradiction]:
    """A table may use only columns that the model distinguishes. Of other columns the model only has the average."""
    if not job.fits_likelihood:
        return
    ways = "strata or model.predictors" if family_facts(job).predictors else "strata"
    columns = listed(job.modelled_columns) or "no column"
    for i, table in enumerate(job.tables):
        places: list[Where] = [*(("by", j) for j in range(len(table.by))), *(("universe", name) for name in table.universe)]
        for place, name in zip(places, (*table.by, *table.universe), strict=True):
            unused = name in job.columns and job.columns[name].levels and name not in job.modelled_columns
            facts = {"path": ("tables", i, *place), "name": name, "unused": unused, "columns": columns}
            yield from broken("modelled", job, ways=ways, **facts)


def copied(job: Job) -> Iterator[Contradiction]:
    """Copying columns needs reference records to copy from, and columns that the release does not have otherwise."""
    names, existing = job.microdata.columns, (*job.modelled_columns, *job.components)
    able = " or ".join(those(lambda spec: spec.sets == "copied")) if names else ""
    yield from broken("copied", job, able=able, existing=", ".join(existing))
    replicated = job.survey.replicate_weights
    design = {job.survey.psu, *job.survey.fpc, *job.categories}
    for i, name in enumerate(names):
        of_design = name in design or (replicated is not None and replicated.has(name))
        facts = {"again": name in names[:i], "existing": existing, "of_design": of_design}
        yield from broken("copied_column", job, i=i, name=name, **facts)


def raked_totals(job: Job) -> Iterator[Contradiction]:
    """Public totals must cover every combination of levels once; totals of several margins must have the same sum."""
    yield from broken("rake", job)
    margins = list[Rake]()
    for i, rake in enumerate(job.rake):
        if any(name not in job.columns or job.columns[name].levels is None for name in rake.by):
            continue
        labels = [_label(combination) for combination in _combinations(job, rake.by)]
        faults = [*_one_a_combination(job, ("rake", i), "total", rake.totals, labels, _columns(rake))]
        yield from faults
        if faults:
            continue
        for other in margins:
            yield from _disagreeing(job, i, rake, other)
        margins.append(rake)


def _one_a_combination(
    job: Job, path: Where, what: str, values: Mapping[str, float], labels: Sequence[str], columns: str
) -> Iterator[Contradiction]:
    """Reasons why a mapping has not one value for each of these combinations of levels, by label."""
    for label in [label for label, number in Counter(labels).items() if number > 1][:1]:
        yield from broken("ambiguous_combination", job, path=path, label=label)
        return
    known, facts = {*labels}, {"path": path, "key": f"{what}s", "what": what, "labels": labels, "columns": columns}
    for label in (label for label in values if label not in known):
        hint = partial(suggestion, label, labels, f"write {labels[0]}, …")
        yield from broken("combination", job, label=label, hint=hint, **facts)
    missing = [label for label in labels if label not in values]
    yield from broken("every_combination", job, missing=missing, first=missing[:1], **facts)


def design_weights(job: Job) -> Iterator[Contradiction]:
    """Every combination of levels needs one weight, within the weight's bounds. The mechanism must be able to use them."""
    public, weight = job.survey.design_weights, job.survey.weight
    by = () if public is None else public.by
    undeclared = next((name for name in by if name not in job.columns or job.columns[name].levels is None), None)
    able = partial(those, lambda spec: spec.uses("survey.design_weights"))
    against = [*broken("design_weights", job, undeclared=undeclared, able=able)]
    yield from against
    if public is not None and weight is not None and not against:
        labels = [label_of(combination) for combination in _combinations(job, public.by)]
        path = ("survey", "design_weights")
        yield from _one_a_combination(job, path, "weight", public.weights, labels, listed(public.by))
        column = job.columns.get(weight)
        low, high = (column.bounds if column is not None else None) or (0.0, float("inf"))
        beyond = next((label for label, value in public.weights.items() if not low <= value <= high), None)
        yield from broken("weight_within_bounds", job, beyond=beyond, low=low, high=high)


def _columns(rake: Rake) -> str:
    return ", ".join(rake.by) or "all records"


def _disagreeing(job: Job, i: int, rake: Rake, other: Rake) -> Iterator[Contradiction]:
    shared = [name for name in rake.by if name in other.by]
    sums, other_sums = (_summed(job, totals, shared) for totals in (rake, other))
    for levels in sorted(sums.keys() & other_sums.keys()):
        if abs(sums[levels] - other_sums[levels]) > 1e-6 * other_sums[levels]:
            where = f" in {' / '.join(levels)}" if levels else ""
            facts = {"sum": f"{sums[levels]:.10g}{where}", "other_sum": f"{other_sums[levels]:.10g}"}
            yield from broken("disagreeing_totals", job, i=i, columns=_columns(other), **facts)
            return


def _summed(job: Job, rake: Rake, columns: Sequence[str]) -> dict[tuple[str, ...], float]:
    sums: dict[tuple[str, ...], float] = {}
    for combination in _combinations(job, rake.by):
        by_column = dict(zip(rake.by, map(str, combination), strict=True))
        levels = tuple(by_column[name] for name in columns)
        sums[levels] = sums.get(levels, 0.0) + rake.totals[_label(combination)]
    return sums


def _combinations(job: Job, by: Sequence[str]) -> list[tuple[object, ...]]:
    return list(product(*(job.columns[name].levels or () for name in by)))


def _label(combination: Sequence[object]) -> str:
    return label_of(combination) or TOTAL


COUNT = Statistic(name="count")


def acceptance(job: Job) -> Iterator[Contradiction]:
    """Gates need a strict release under ε alone, without δ, and bounded weights and outcomes."""
    accept = job.accept
    if accept is None:
        return
    facts = {
        "able": lambda: " or ".join(those(lambda spec: spec.uses("accept"))),
        "little_each": accept.epsilon / len(accept.gates) / job.most_records < LEAST_BUDGET,
        "weight": job.columns.get(job.survey.weight or ""),
    }
    yield from broken("accept", job, **facts)
    tables = {table.name: table for table in job.tables}
    for i, name in enumerate(accept.tables):
        yield from broken("gated_table", job, i=i, name=name, tables=tables, listed=", ".join(tables))
    for i, gate in enumerate(accept.gates):
        lacking = any(gate.of not in table.statistics or COUNT not in table.statistics for table in job.gated_tables)
        yield from broken("gate", job, i=i, gate=gate, lacking=lacking)


WIDE = ".wide"
"""Suffix of a table's name for its printed form."""


def presentation(job: Job) -> Iterator[Contradiction]:
    texts, columns = job.presentation, tuple(dict.fromkeys([*job.columns, *job.components, *job.microdata.columns]))
    for name, column in texts.columns.items():
        hint = partial(suggestion, name, columns, "leave it out")
        yield from broken("labelled_column", job, name=name, columns=columns, hint=hint)
        if name in columns and column.levels:
            yield from _levels(job, name, column)
    yield from _twice(job, ("presentation", "columns"), {name: texts.label(name) for name in columns})
    tables = {table.name: table for table in job.tables}
    for name, table in texts.tables.items():
        by = tables[name].by if name in tables else ()
        hints = {"hint": partial(suggestion, name, tables, "leave it out")}
        hints["near"] = partial(suggestion, table.across, by, "leave it out")
        yield from broken("titled_table", job, name=name, tables=tuple(tables), across=table.across, by=by, **hints)
    yield from _files(job)
    yield from _quality(job)
    yield from broken("presentation", job)


def _levels(job: Job, name: str, text: ColumnText) -> Iterator[Contradiction]:
    column = job.columns.get(name)
    levels = tuple(map(str, (column.levels if column is not None else None) or ()))
    yield from broken("labelled_category", job, name=name, levels=levels)
    for level in (level for level in text.levels if levels and level not in levels):
        hint = partial(suggestion, level, levels, "add the level, or remove the label")
        yield from broken("labelled_level", job, name=name, level=level, levels=levels, hint=hint)
    labels = {level: text.levels.get(level, level) for level in levels}
    yield from _twice(job, ("presentation", "columns", name, "levels"), labels)
    for level in (level for level, label in labels.items() if label == TOTAL):
        yield from broken("label_of_margins", job, name=name, level=level, total=TOTAL)


def _twice(job: Job, path: Where, labels: dict[str, str]) -> Iterator[Contradiction]:
    first: dict[str, str] = {}
    for name, label in labels.items():
        if first.setdefault(label, name) != name:
            yield from broken("label", job, path=(*path, name), name=name, label=label, first=first[label])


def _files(job: Job) -> Iterator[Contradiction]:
    names = {table.name for table in job.tables}
    for i, table in enumerate(job.tables):
        facts = {"name": table.name, "printed": table.name.removesuffix(WIDE), "tables": names - {table.name}}
        yield from broken("printed_form", job, i=i, **facts)


def _quality(job: Job) -> Iterator[Contradiction]:
    for table in job.tables:
        counted = any(statistic.name == "count" for statistic in table.statistics)
        yield from broken("minimum", job, name=table.name, counted=counted)
