"""Checks a job's budget against its mechanism. The mechanism's specification has further checks."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import Job, those
from dpdist.job.contradiction import Contradiction


def noise_of_budget(job: Job) -> Iterator[Contradiction]:
    """Gaussian noise needs a δ. With other noise a job must not state one."""
    if job.mechanism.gaussian and job.budget.delta is None:
        found = "under Gaussian noise no epsilon holds alone"
        remedy = 'add delta, below one over the number of records, as in delta: "1e-6"'
        yield Contradiction(("budget", "delta"), found, remedy)
    for key in ("delta", "rho") if not job.mechanism.gaussian else ():
        if getattr(job.budget, key) is not None:
            known = " or ".join(those(lambda each: "noise" in each.model_fields))
            found = f"'{job.mechanism.name}' without Gaussian noise spends no {key}"
            remedy = f"leave it out, or take mechanism: {{name: {known}, noise: gaussian}}"
            yield Contradiction(("budget", key), found, remedy)
