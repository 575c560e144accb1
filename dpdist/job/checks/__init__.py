"""Checks of a job's keys against each other; every problem has its path and a remedy."""

from __future__ import annotations

from dpdist.job import Fit, Job, those
from dpdist.job.checks.columns import (
    categories,
    constant_weights,
    design_effects,
    hierarchies,
    misspelt,
    predictors,
    recodes,
    roles,
    units,
    universe,
)
from dpdist.job.checks.models import (
    calibration,
    comparators,
    family_keys,
    outcomes,
    reference,
    sampler_settings,
    scheduler_contradictions,
)
from dpdist.job.checks.tables import (
    acceptance,
    copied,
    design_weights,
    modelled,
    presentation,
    raked_totals,
    table_statistics,
    table_universes,
)
from dpdist.job.families import parametric
from dpdist.job.rules import Contradiction, broken

__all__ = ["Contradiction", "contradictions", "scheduler_contradictions"]


def contradictions(job: Job) -> list[Contradiction]:
    """Lists every contradiction between keys; empty if the job is consistent."""
    if against := [*broken("likelihood", job), *misspelt(job)]:
        return against
    return [
        *categories(job),
        *recodes(job),
        *hierarchies(job),
        *roles(job),
        *design_effects(job),
        *constant_weights(job),
        *design_weights(job),
        *universe(job),
        *units(job),
        *outcomes(job),
        *family_keys(job),
        *sampler_settings(job),
        *table_statistics(job),
        *table_universes(job),
        *modelled(job),
        *copied(job),
        *broken("promises", job),
        *broken("secret_sizes", job, why="add_remove" if job.budget.adjacency == "add_remove" else "exchange: anywhere"),
        *predictors(job),
        *raked_totals(job),
        *job.mechanism.contradictions(job),
        *reference(job),
        *broken("fit", job, stated=job.fit != Fit(), parametric=lambda: parametric(job.family)),
        *calibration(job),
        *broken("noise", job, gaussian=lambda: " or ".join(those(lambda spec: "noise" in spec.model_fields))),
        *acceptance(job),
        *broken("publish", job),
        *comparators(job),
        *presentation(job),
        *scheduler_contradictions(job.runtime),
    ]
