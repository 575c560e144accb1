"""A plan as text or JSON: cost, predicted errors and cautions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from dpdist.cli.table_text import facts_text, promise, stated_cautions
from dpdist.core.cautions import described as described_cautions
from dpdist.core.progress import Listener
from dpdist.job import budget_text
from dpdist.ledger.runs import terms
from dpdist.planning.plan import (
    SIZES_SECRET,
    Plan,
    design,
    first_stage,
    hierarchies,
    in_words as noise_in_words,
    records_text,
    reference,
    shown_records,
    sizes,
    third_party,
)
from dpdist.privacy import adjacency
from dpdist.privacy.claims import promised
from dpdist.quality.predicted.alternatives import Alternative, described, in_words as others_in_words
from dpdist.quality.predicted.prediction import ErrorPrediction, with_epsilon
from dpdist.quality.predicted.scores import number
from dpdist.quality.predicted.words import epsilon_for, in_words, worth
from dpdist.quality.summary import percent
from dpdist.release import cautions
from dpdist.survey.checks import CLIPPED

CUSTODIAN = "confidential; do not pass on"


def plan_text(plan: Plan, prediction: ErrorPrediction, changes: Sequence[Alternative] = ()) -> RenderableType:
    """Formats a plan: what the run would do, and what it would cost."""
    job = plan.job
    better = next(worth(prediction), "")
    facts = {
        **({"better than the reference": better} if better else {}),
        **({"extends": job.extends.in_words} if job.extends is not None else {}),
        "input": plan.source.name,
        "records": records_text(plan),
        **third_party(plan),
        **({"reference": reference(plan, plan.reference)} if plan.reference is not None else first_stage(job)),
        **hierarchies(plan),
        **({"fit to reference": plan.goodness.in_words()} if plan.goodness is not None else {}),
        **sizes(plan),
        "design": "\n".join(design(plan)),
        **for_custodian(plan),
    }
    if noise := list(noise_in_words(plan)):
        facts["noise of counts"] = "\n".join(noise)
    facts["predicted errors"] = "\n".join(in_words(prediction))
    if changes:
        facts["alternatives"] = "\n".join(others_in_words(changes))
    statement = promised(plan.promise, {}) | {"exchange": job.budget.exchange, "headline": adjacency.headline(job)}
    statement |= {"privacy_unit": "record" if job.privacy_unit is None else job.privacy_unit.column}
    counted, warned = terms(job, plan.promise.total), stated_cautions({}, cautions(plan, prediction))
    return facts_text({**facts, **promise(statement), "composition": statement["composition"], **counted, **warned})


MUCH_CLIPPED = 0.05
"""Share of a weighted sum that bounds may cut off before the custodian is told to widen them."""


def valid_text(plan: Plan) -> str:
    """States that the job is valid, and the number of records unless it is secret."""
    number = shown_records(plan.job, plan.crosstab)
    if number is None:
        return f"The job is valid. Records: {SIZES_SECRET}."
    strata = len(plan.crosstab.stratum_labels)
    return f"The job is valid: {number:,} records in {strata:,} {'stratum' if strata == 1 else 'strata'}."


def clipped(plan: Plan) -> dict[str, float]:
    """Confidential: the share of records that the job clips, by column. Where sizes are secret, it is not computed."""
    job = plan.job
    if job.sizes_secret:
        return {}
    columns = [name for name in (*job.outcomes, job.survey.weight) if name in job.columns]
    clips = [name for name in columns if job.columns[name].bounds is not None and job.columns[name].outside == "clip"]
    number = {name: plan.census.removed.get(f"{name}: {CLIPPED}", 0) for name in clips}
    return {name: min(1.0, n / int(plan.crosstab.count.sum())) for name, n in number.items()}


def _of_sum(kept: float) -> str:
    """What clipping a column does to its weighted sum; nothing where that is below a tenth of a percent."""
    if not abs(1.0 - kept) >= 0.001:
        return ""
    return f", which {'lowers' if kept < 1.0 else 'raises'} its sum by {percent(abs(1.0 - kept))}"


def for_custodian(plan: Plan) -> dict[str, str]:
    """Lines that depend on outcomes and weights: what is clipped, and whether the reference is of another size."""
    shares, kept = clipped(plan), plan.census.kept_by_bounds
    texts = [f"{name}: {percent(share)} of records{_of_sum(kept.get(name, 1.0))}" for name, share in shares.items()]
    lines = {"clipped to bounds": f"{'; '.join(texts)} ({CUSTODIAN})"} if texts else {}
    narrow = [name for name in shares if abs(1.0 - kept.get(name, 1.0)) > MUCH_CLIPPED]
    if narrow:
        columns = " and ".join(f"columns.{name}.bounds" for name in narrow)
        remedy = f"check units and codes of missing values, such as 999999, then widen {columns}"
        lines["bounds too narrow"] = f"a larger ε does not restore what bounds cut off: {remedy} ({CUSTODIAN})"
    if plan.reference is not None and plan.reference.factors and not plan.job.sizes_secret:
        names = " and ".join(plan.reference.factors)
        lines["reference's unit"] = f"medians of {names} differ from the file's by a factor of 10 or more ({CUSTODIAN})"
    return lines


def plan_json(plan: Plan, prediction: ErrorPrediction, changes: Sequence[Alternative] = ()) -> dict[str, Any]:
    """The plan as JSON values: predicted errors, the curve over ε, the guarantee, the account and cautions."""
    curve = [
        {"epsilon": epsilon, "table": row.table, "statistic": row.name, "outcome": row.outcome}
        | {"median": number(row.median), "relative": number(row.relative), "better": number(row.better)}
        for epsilon in prediction.epsilons
        for row in prediction.statistics(epsilon)
    ]
    statement = promised(plan.promise, {})
    return {
        "epsilon": statement["epsilon"],
        "guarantee": statement["guarantee"],
        "predicted": prediction.described(),
        "curve": curve,
        "least_worth": prediction.least_worth,
        "better_than_reference": next(worth(prediction), None),
        **({"alternatives": list(map(described, changes))} if changes else {}),
        **({"clipped": shares} if (shares := clipped(plan)) else {}),
        **terms(plan.job, plan.promise.total),
        **described_cautions(cautions(plan, prediction)),
    }


def needed_text(
    plan: Plan, error: float, table: str | None, listener: Listener, public: Path | None
) -> dict[str, str | float]:
    """The answer of `plan --for-error`: the ε, the settings that give the job this ε, and a sentence."""
    epsilon = epsilon_for(plan, error, table, listener, public)
    settings = [f"--set budget.epsilon={budget_text(epsilon)}"]
    if histograms := with_epsilon(plan.job, epsilon).epsilon.histograms:
        settings.append(f"--set reference.histogram.epsilon={budget_text(histograms)}")
    what = f"of {table}" if table is not None else "of every table"
    words = f"at ε = {budget_text(epsilon)} the predicted median error {what} is at most {error:g} direct standard errors"
    return {"epsilon": float(epsilon), "settings": " ".join(settings), "in_words": f"{words}: {' '.join(settings)}"}
