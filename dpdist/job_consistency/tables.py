"""What is published: tables, promises, totals to meet."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import product

from dpdist.job import Job
from dpdist.job_consistency.contradiction import Contradiction


def table_statistics(job: Job) -> Iterator[Contradiction]:
    names, outcomes = [table.name for table in job.tables], job.model.outcomes
    for i, table in enumerate(job.tables):
        if names.index(table.name) != i:
            yield ("tables", i, "name"), f"table '{table.name}' is named twice"
        for j, statistic in enumerate(table.statistics):
            if statistic.name != "count" and statistic.variable not in outcomes:
                remedy = "write " + " or ".join(f"{{{statistic.name}: {outcome}}}" for outcome in outcomes)
                yield ("tables", i, "statistics", j), f"a {statistic.name} is of the modelled outcome: {remedy}"
            if statistic in table.statistics[:j]:
                yield ("tables", i, "statistics", j), f"'{statistic.text}' is named twice: delete one"
            if statistic.name == "count" and statistic.variable is not None:
                yield ("tables", i, "statistics", j), "a count has no variable: write count"


def promises(job: Job) -> Iterator[Contradiction]:
    """What is to be promised or published can be."""
    anywhere = job.budget.exchange == "anywhere"
    if anywhere and job.budget.adjacency != "substitution":
        found = f"{job.budget.adjacency} exchanges no record"
        yield ("budget", "exchange"), f"{found}: leave it out, or take adjacency: substitution"
    elif job.sizes_secret and job.mechanism.name == "reference_tables":
        yield from _secret_sizes(job)
    elif anywhere:
        found = f"'{job.mechanism.name}' publishes exact sample counts, which show a record that moves whatever the noise"
        yield ("budget", "exchange"), f"{found}: take reference_tables, or leave it out"
    elif job.sizes_secret:
        found = f"'{job.mechanism.name}' publishes stratum sizes and predictors, so add_remove cannot be promised"
        yield ("budget", "adjacency"), f"{found}: use zero_out or substitution"
    if job.model.population_weights == "proportional":
        if job.model.synthesis != "fbp":
            yield ("model", "population_weights"), "only synthesis: fbp uses population weights"
        elif job.survey.population is None:
            yield ("model", "population_weights"), "proportional needs survey.population, a public size"


def _secret_sizes(job: Job) -> Iterator[Contradiction]:
    """Under add_remove, or an exchange anywhere, nothing public may tell how many records there are, or where."""
    why = "add_remove" if job.budget.adjacency == "add_remove" else "exchange: anywhere"
    for path in (("strata",), ("survey", "design_strata")):
        if job.strata if path == ("strata",) else job.survey.design_strata:
            yield path, f"{why} keeps sizes secret, and these are public ones: leave it out, or take zero_out"
    if job.rake:
        yield ("rake",), "raking goes by the public number of records in a cell: leave it out, or take zero_out"
    if job.reference is not None and job.reference.histogram is not None:
        found = "groups of cells for histograms follow from public sizes"
        yield ("reference", "histogram"), f"{found}: leave them out and name a file or an earlier release, or take zero_out"


def raked_totals(job: Job) -> Iterator[Contradiction]:
    """Raked totals are one a combination of levels, and those of several margins have one sum."""
    if job.model.synthetic_weights == "expected" and (job.model.family, job.model.synthesis) != ("lognormal", "fbs"):
        yield ("model", "synthetic_weights"), "only 'lognormal' with synthesis: fbs draws weights: leave it out"
    if job.rake and job.survey.weight is None:
        yield ("rake",), "without a weight column there are no weights to rake: leave rake out"
    for i, rake in enumerate(job.rake):
        if any(name not in job.columns or job.columns[name].levels is None for name in rake.by):
            continue
        labels = [" / ".join(map(str, levels)) for levels in product(*(job.columns[n].levels or () for n in rake.by))]
        for label in rake.totals:
            if label not in labels:
                near = get_close_matches(label, labels, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"write {labels[0]}, …"
                yield ("rake", i, "totals", label), f"'{label}' is no combination of levels of {', '.join(rake.by)}: {hint}"
        if missing := [label for label in labels if label not in rake.totals]:
            found = f"{len(missing)} of {len(labels)} combinations have no total, the first '{missing[0]}'"
            yield ("rake", i, "totals"), f"{found}: give the public total of every combination"
        first, own = (sum(each.totals.values()) for each in (job.rake[0], rake))
        if abs(own - first) > 1e-6 * first:
            found = f"the totals sum to {own:.10g}, those of {', '.join(job.rake[0].by)} to {first:.10g}"
            yield ("rake", i, "totals"), f"{found}: give totals of one population"
