"""Lists the conditions that a file must meet for the guarantee to hold. Other files are refused; no ε covers a refusal.

The conditions are those that `dpdist.survey.checks` and `dpdist.planning` check.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdist.job import Column, Job
from dpdist.job.families import family_facts

REFUSED = (
    "A file outside of this domain is refused before anything is spent. Whether a file is refused depends on its records, "
    "and is in no ε."
)


def domain(job: Job) -> list[str]:
    """One line for each condition on the records of a file, and one on what happens to other files."""
    said = [_categories(job)] if job.categories else []
    said += [_outcome(job, name, column) for name, column in job.outcome_columns.items()]
    said += [_weight(job)] if job.survey.weight is not None else []
    return [*said, *_unit(job), *_design(job), *_fit(job), REFUSED]


def _categories(job: Job) -> str:
    left = [name for name in job.categories if job.columns[name].missing == "drop"]
    dropped = f" (records without {', '.join(left)} are dropped)" if left else ""
    return f"{', '.join(job.categories)}: a declared level in every record{dropped}"


def _outcome(job: Job, name: str, column: Column) -> str:
    """How missing, infinite, impossible and outlying values of an outcome are treated."""
    support, rules = family_facts(job).support, []
    rules.append("missing values are dropped" if column.missing == "drop" else "not missing")
    rules.append("finite")
    if column.outside == "clip":
        if np.isfinite(support.low):
            rules.append(f"not below {support.low:g}, though values outside the bounds are clipped")
        if np.isfinite(support.high):
            rules.append(f"not above {support.high:g}")
        if column.codes is not None:
            rules.append(f"one of {', '.join(column.codes)}")
    else:
        low, high = column.bounds or (support.low, support.high)
        rules.append(f"within [{low:,.10g}, {high:,.10g}]")
        rules.append(f"{support.text} for this model" if np.isfinite(support.low) else "")
    rules.append("zeros are dropped" if column.zeros == "drop" else "")
    rules.append("a whole number" if column.whole or support.whole else "")
    return f"{name}: {', '.join(filter(None, rules))}"


def _weight(job: Job) -> str:
    name = job.survey.weight
    column = job.columns.get(name) if name is not None else None
    if column is None or column.bounds is None:
        bounds = "from 1e-15 to 1e15"
    elif column.outside == "clip":
        bounds = "though values outside the bounds are clipped"
    else:
        bounds = f"within [{column.bounds[0]:,.10g}, {column.bounds[1]:,.10g}]"
    return f"{name}: not missing, finite, above 0, {bounds}"


def _unit(job: Job) -> Iterator[str]:
    if (said := job.privacy_unit) is not None:
        most = f", and at most {said.most} records of one {said.column}" if said.beyond == "refuse" else ""
        yield f"{said.column}: not missing, one spelling of every name{most}"


def _design(job: Job) -> Iterator[str]:
    survey = job.survey
    if survey.psu is not None:
        yield f"{survey.psu}: not missing"
    if survey.lonely_psu == "error" and survey.replicate_weights is None and not job.sizes_secret:
        yield f"two {'PSUs' if survey.psu is not None else 'records'} or more in every design stratum"
    if survey.fpc:
        yield (
            f"{', '.join(survey.fpc)}: finite, at least 1, no smaller than the sample, one size in every stratum (of "
            "records: in every PSU), and two records or more of a PSU that has more"
        )
    if survey.replicate_weights is not None:
        yield "replicate weights: not missing, finite, at least 0"


def _fit(job: Job) -> Iterator[str]:
    if not job.mechanism.adds_noise:
        what = " and ".join(job.components)
        yield f"in every stratum more records than predictors, and {what} that vary, where the prior cannot stand in"
