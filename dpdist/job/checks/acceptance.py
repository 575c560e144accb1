"""Checks a job's gates against its tables, bounds, mechanism and budget."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import LEAST_BUDGET, Job, Statistic, those
from dpdist.job.contradiction import Contradiction

COUNT = Statistic(name="count")


def acceptance(job: Job) -> Iterator[Contradiction]:
    """Gates need a strict release under ε alone, without δ, and bounded weights and outcomes."""
    chosen = job.accept
    if chosen is None:
        return
    if not job.gated:
        known = those(lambda each: each.gates)
        found = f"gates cannot be measured beside '{job.mechanism.name}'"
        yield Contradiction(("accept",), found, f"leave it out, or take {' or '.join(known)}")
    if job.epsilon_of_tables <= 0:
        found = "the gates leave nothing of the release's budget, which budget.epsilon states"
        yield Contradiction(("accept", "epsilon"), found, "give them a part of it")
    elif job.mechanism.adds_noise and chosen.epsilon / len(chosen.gates) / job.most_records < LEAST_BUDGET:
        yield Contradiction(("accept", "epsilon"), "less than 1e-6 for each gate", "give them more, or take fewer gates")
    weight = job.survey.weight
    if weight is not None and (weight not in job.columns or job.columns[weight].bounds is None):
        found = "no public bounds of the weight, so that one record may move an error without a limit"
        yield Contradiction(("accept",), found, f"declare columns.{weight}: {{bounds: [low, high], outside: clip}}")
    yield from _tables(job)


def _tables(job: Job) -> Iterator[Contradiction]:
    chosen = job.accept
    assert chosen is not None
    tables = {table.name: table for table in job.tables}
    for i, name in enumerate(chosen.tables):
        if name not in tables:
            yield Contradiction(("accept", "tables", i), f"no table '{name}'", f"name one of {', '.join(tables)}")
    listed = [table for name, table in tables.items() if name in chosen.tables or not chosen.tables]
    for i, gate in enumerate(chosen.gates):
        if gate.of.name not in ("count", "mean"):
            yield Contradiction(("accept", "gates", i, "of"), "gates are of counts and means", "name count or {mean: …}")
        elif any(gate.of not in table.statistics or COUNT not in table.statistics for table in listed):
            found = f"a listed table does not publish {gate.of.text}, or no count beside it"
            yield Contradiction(("accept", "gates", i, "of"), found, "add it to the table's statistics, or list others")
        if gate.measure == "coverage" and gate.limit > 1:
            yield Contradiction(("accept", "gates", i, "limit"), "a share above 1", "state a share, as 0.8")
