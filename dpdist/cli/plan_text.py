"""Formats a plan as text for the terminal: what a run would do and cost, its expected noise, and warnings."""

from __future__ import annotations

from rich.console import RenderableType

from dpdist.cli.cautions import advice, cautions
from dpdist.cli.table_text import facts_text, promise, stated_cautions
from dpdist.ledger.charging import terms
from dpdist.planning.expected_noise import drowns_most, expected_noise, in_words
from dpdist.planning.plan import (
    SIZES_SECRET,
    Plan,
    design,
    first_stage,
    hierarchies,
    records,
    records_text,
    reference,
    sizes,
    third_party,
    together,
)
from dpdist.privacy import adjacency
from dpdist.privacy.claims import promised
from dpdist.privacy.guarantees import large_delta


def plan_text(plan: Plan) -> RenderableType:
    """Formats a plan: what the run would do, and what it would cost."""
    job = plan.job
    drowned = drowns_most(plan)
    facts = {
        **({"not accurate": drowned} if drowned else {}),
        **({"extends": job.extends.in_words} if job.extends is not None else {}),
        "input": plan.source.name,
        "records": records_text(plan),
        **third_party(job),
        **({"reference": reference(plan, plan.reference)} if plan.reference is not None else first_stage(job)),
        **together(plan),
        **hierarchies(plan),
        **({"fit to reference": plan.goodness.in_words()} if plan.goodness is not None else {}),
        **sizes(plan),
        "design": "\n".join(design(plan)),
    }
    if (noise := expected_noise(plan)) is not None:
        facts["expected noise"] = "\n".join(in_words(noise))
    statement = promised(plan.promise, {}) | {"exchange": job.budget.exchange, "headline": adjacency.headline(job)}
    statement["cautions"] = [
        *statement["cautions"],
        *filter(None, [large_delta(job, records(plan))]),
        *cautions(plan),
        *advice(job),
    ]
    counted = terms(job, plan.promise.total)
    return facts_text(
        {**facts, **promise(statement), "composition": statement["composition"], **counted, **stated_cautions(statement)}
    )


def valid_text(plan: Plan) -> str:
    """States that the job is valid, and the number of records unless it is secret."""
    if plan.job.sizes_secret:
        return f"The job is valid. Records: {SIZES_SECRET}."
    strata, drowned = len(plan.frame.stratum_labels), drowns_most(plan)
    size = f"{records(plan):,} records in {strata:,} {'stratum' if strata == 1 else 'strata'}"
    return f"The job is valid, but {drowned} ({size})." if drowned else f"The job is valid: {size}."
