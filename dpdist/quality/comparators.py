"""States the guarantees that comparators would have if their figures were published, for notes on these figures."""

from __future__ import annotations

from dpdist.job import Comparator, Job, budget_text
from dpdist.privacy.guarantees import NoGuarantee

UNPROTECTED = "an unprotected yardstick that promises nothing"


def guarantee_of(job: Job, how: Comparator) -> str:
    """Guarantee and cost of a comparator that fits no model. The class stands before the first comma or colon."""
    if how == "laplace_finest":
        budget = f"ε = {budget_text(job.budget.epsilon)}, {job.budget.adjacency}"
        return f"strict, {budget}: what laplace_strict would release, except that its noise is rounded"
    if how == "reference_only" and not job.sizes_secret:
        return "strict, ε = 0: of the current file it uses only the public sample sizes"
    why = "the file's own sensitivities scale the noise"
    if how == "laplace":
        why = f"every figure is given the whole ε, and {why}"
    elif how == "reference_only":
        why = "it has the file's sample sizes, which this release keeps secret"
    return f"{NoGuarantee.name}, {UNPROTECTED}: {why}"
