"""Checks the design effects that a job states, or takes from its reference."""

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
