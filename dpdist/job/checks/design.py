"""Checks the design effects that a job states, or takes from its reference, and strata of one weight."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import Job
from dpdist.job.contradiction import Contradiction, Path, listed

PATH: Path = ("survey", "design_effect")
STATED = "state a number, or a list of numbers by statistic and by columns"


def design_effects(job: Job) -> Iterator[Contradiction]:
    """Design effects must have a source, and name columns and outcomes of the job."""
    said = job.reference
    if job.survey.effects_of_reference and not job.survey.clustered:
        found = "no clusters are stated, so the reference has no design effect"
        yield Contradiction(PATH, found, "name survey.psu or survey.replicate_weights, or leave design_effect out")
    elif job.survey.effects_of_reference and (said is None or not said.holds_records):
        found = "design effects are estimated from records of a reference, and the job names no such file"
        yield Contradiction(PATH, found, f"add reference: {{path: …}}, or {STATED}")
    for i, effect in enumerate(job.survey.stated_effects):
        for j, name in enumerate(effect.by or ()):
            if name not in job.categories:
                found = f"no table has the column '{name}'"
                yield Contradiction((*PATH, i, "by", j), found, "name columns of a table", listed(job.categories))
        if effect.outcome is not None and effect.outcome not in job.outcomes:
            found = f"'{effect.outcome}' is no outcome of the job"
            yield Contradiction((*PATH, i, "outcome"), found, "name an outcome, or leave it out", listed(job.outcomes))


def constant_weights(job: Job) -> Iterator[Contradiction]:
    """Strata of one weight must be the base cells, in which synthetic records get their weights."""
    columns, path = job.survey.weights_constant_in, ("survey", "weights_constant_in")
    if not columns:
        return
    out = "or leave weights_constant_in out: weights then vary in synthetic records"
    if job.survey.weight is None:
        yield Contradiction(path, "the job has no weight", "name survey.weight, or leave weights_constant_in out")
    elif not job.mechanism.donates:
        found = f"'{job.mechanism.name}' has no records whose weights are those of a cell"
        yield Contradiction(path, found, f"take mechanism: {{name: reference_tables}}, {out}")
    elif {*columns} != {*job.cell_columns} | {*job.strata}:
        found = f"tables and strata cross {listed(tuple(dict.fromkeys([*job.strata, *job.cell_columns]))) or 'no column'}"
        yield Contradiction(path, found, f"name exactly these columns, {out}")
    elif further := [name for rake in job.rake for name in rake.by if name not in columns]:
        found = f"raking to totals by '{further[0]}' would move weights within a stratum"
        yield Contradiction(path, found, f"rake by these columns only, {out}")
