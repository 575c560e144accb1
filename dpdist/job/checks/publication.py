"""Checks what holds a release back: a verdict needs figures to judge, and does not go with gates."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import Job
from dpdist.job.contradiction import Contradiction

LEAVE_OUT = "leave out `publish: unless_refused`"


def publication(job: Job) -> Iterator[Contradiction]:
    """`publish: unless_refused` needs errors to judge. Beside gates, it would decide out of ε."""
    if not job.held_on_a_verdict:
        return
    if job.local:
        found = f"'{job.mechanism.name}' publishes no standard errors, so there is no verdict on them"
        yield Contradiction(("publish",), found, f"{LEAVE_OUT}, or state `approval: required`")
    if job.accept is not None:
        found = "the gates of `accept` decide inside ε, and a verdict would decide once more, in no ε"
        yield Contradiction(("publish",), found, f"{LEAVE_OUT}, or the gates")
