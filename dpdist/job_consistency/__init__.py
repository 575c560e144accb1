"""What one key of a job says against another: found once, when the job is read, each with its path and remedy."""

from __future__ import annotations

from dpdist.job import Job
from dpdist.job_consistency.columns import categories, roles, universe
from dpdist.job_consistency.comparators import comparators
from dpdist.job_consistency.contradiction import Contradiction
from dpdist.job_consistency.earlier import calibration, fit, reference
from dpdist.job_consistency.mechanisms import (
    added_noise,
    clamp,
    least_budget,
    noisy_statistics,
    noisy_tables,
    sanitized,
    strictness,
    weight_rule,
)
from dpdist.job_consistency.models import family_keys, outcomes, sampler_settings
from dpdist.job_consistency.running import scheduler_contradictions
from dpdist.job_consistency.tables import copied, modelled, promises, raked_totals, table_statistics

__all__ = ["Contradiction", "contradictions", "scheduler_contradictions"]


def contradictions(job: Job) -> list[Contradiction]:
    """Every contradiction; empty when the job is consistent."""
    return [
        *categories(job),
        *roles(job),
        *universe(job),
        *outcomes(job),
        *family_keys(job),
        *sampler_settings(job),
        *table_statistics(job),
        *modelled(job),
        *copied(job),
        *promises(job),
        *raked_totals(job),
        *weight_rule(job),
        *clamp(job),
        *strictness(job),
        *reference(job),
        *fit(job),
        *calibration(job),
        *noisy_statistics(job),
        *sanitized(job),
        *least_budget(job),
        *added_noise(job),
        *noisy_tables(job),
        *comparators(job),
        *scheduler_contradictions(job.runtime),
    ]
