"""Checks a job's privacy unit: its column has no other role, and the mechanism bounds the loss of several records."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import Job, those
from dpdist.job.contradiction import Contradiction


def units(job: Job) -> Iterator[Contradiction]:
    """A unit with several records needs a strict mechanism, and a column of its own."""
    said = job.privacy_unit
    if said is None:
        return
    replicated = job.survey.replicate_weights
    used = {*job.components, *job.categories, *job.survey.fpc, *(replicated.columns if replicated is not None else ())}
    used |= {keep.column for keep in job.universe}
    if said.column in used:
        found = f"'{said.column}' is used as outcome, weight, category, universe or design column as well"
        yield Contradiction(("privacy_unit", "column"), found, "name the column that tells units apart")
    if not job.strict:
        what = "promises nothing" if job.local else "bounds the loss of a record on the file at hand, and of no unit"
        found = f"'{job.mechanism.name}' as stated {what}"
        strict = those(lambda each: (each.adds_noise and not each.whole_tables) or (each.clamps and not each.weighs))
        known = ", ".join(strict)
        yield Contradiction(("privacy_unit",), found, f"leave it out, or take a strict mechanism: {known}")
