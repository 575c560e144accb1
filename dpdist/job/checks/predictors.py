"""Checks protected predictors, whose sample counts get noise: adjacency, columns, budget and mechanism must allow it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dpdist.job import LEAST_BUDGET, Job
from dpdist.job.contradiction import Contradiction

MOST_COMBINATIONS = 2**20
"""Largest number of combinations of levels. All are published, whether or not a record has them."""
AT = ("predictors", "protect")


def predictors(job: Job) -> Iterator[Contradiction]:
    """Noisy counts need an adjacency under which sizes are secret, and a part of the budget."""
    if job.predictors is None:
        return
    if reason := job.mechanism.against_noisy_frame(job):
        yield Contradiction(("predictors",), f"'{job.mechanism.name}': {reason}", f"leave it out, or take {_able()}")
    if not job.sizes_secret:
        found = f"under {job.budget.adjacency} at the same x, neighbours have the same sample counts"
        remedy = "take budget.adjacency: add_remove, or substitution with exchange: anywhere"
        yield Contradiction(("predictors",), found, remedy)
    yield from _columns(job)
    yield from _budget(job)
    if job.rake:
        found = "raking goes by the number of records in a cell, which may be 0 under noise"
        yield Contradiction(("rake",), found, "leave it out, or leave predictors out")


def _able() -> str:
    return "laplace_strict, perturbed_histogram or reference_tables"


def _columns(job: Job) -> Iterator[Contradiction]:
    assert job.predictors is not None
    known = ", ".join(job.categories) or "none"
    for i, name in enumerate(job.predictors.protect.columns or ()):
        if name not in job.categories:
            found = f"'{name}' is no column of the frame"
            yield Contradiction((*AT, "columns", i), found, "name columns of the frame, or leave columns out", known)
    if job.budget.adjacency == "add_remove" and job.counted_columns:
        found = f"add_remove keeps sample counts secret, and those by {', '.join(job.counted_columns)} would be exact"
        yield Contradiction((*AT, "columns"), found, "leave columns out, which protects all, or take substitution")
    if job.budget.adjacency == "substitution" and not job.protected_columns:
        found = "no column of the frame is left to protect, and an exchange leaves the number of records as it is"
        yield Contradiction(("predictors",), found, "leave it out")
    if prod(len(job.columns[name].levels or ()) for name in job.categories if name in job.columns) > MOST_COMBINATIONS:
        found = f"more than {MOST_COMBINATIONS:,} combinations of levels, and each gets a noisy count"
        yield Contradiction((*AT, "columns"), found, "merge levels, or take fewer columns")


def _budget(job: Job) -> Iterator[Contradiction]:
    where = (*AT, "epsilon")
    if job.epsilon_of_tables <= 0 or (job.budget.delta is not None and job.rho_of_tables <= 0):
        found = "the noisy counts leave nothing of the release's budget, which budget.epsilon states"
        yield Contradiction(where, found, "give them a part of it")
    elif job.epsilon_of_frame / 10 / job.most_records < LEAST_BUDGET:
        yield Contradiction(where, "less than 1e-6 for a level of counts and a record", "give them more")
