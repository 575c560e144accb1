"""Rules on what standard errors need of a model: a refit in closed form, laws of strata, or draws of all rows."""

from __future__ import annotations

from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.models.protocol import StratumModel, supports


def can_refit(model: object) -> bool:
    """True if a model's fit has a closed form, which can be computed for many redrawn samples at once."""
    return all(hasattr(model, method) for method in ("draw", "scatter", "centre", "as_sampled"))


def has_laws(job: Job, model: StratumModel) -> bool:
    """False if the model can neither be simulated nor refitted, or if the mechanism clamps: clamped fits have no
    sufficient statistics.
    """
    return not job.mechanism.clamps and (can_refit(model) or supports(model, "resampled"))


def needs_laws(job: Job) -> bool:
    """True if standard errors need the laws of all strata, and not only sums over cells."""
    return bool(not job.plain or job.rake or job.noisy_crosstab)


def needs_rows(job: Job, crosstab: Crosstab) -> bool:
    """True if standard errors come from draws of all rows, and not from sums over cells."""
    return needs_laws(job) or (len(crosstab.batches()) == 1 and has_few_rows(job, crosstab))


def has_few_rows(job: Job, crosstab: Crosstab) -> bool:
    """True if draws of the crosstab's rows are fewer than those of all tables' cells."""
    return len(crosstab) < sum(table.number_of_cells(crosstab) for table in job.tables)
