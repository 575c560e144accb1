"""For `privacy.claims`, plan and statement: sentences on neighbouring files, admitted files, and what is protected.

With a public frame, `substitution` exchanges outcome and weight at the same public columns x (`exchange: same_x`). No ε
covers a record that moves to another combination of table columns. With `exchange: anywhere` every column may change,
which needs secret sizes. Such an exchange is one removal and one addition. Each moves the sums by 1
(reference_tables.sensitivity), and both by at most 2, attained by records of weight 0 in two cells. So noise of scale
2/ε gives ε for an exchange, and ε/2 for a removal or an addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpdist.job import Column, Job
from dpdist.job.families import family_facts

TRUST_MODEL = (
    "The model is central: the custodian, who holds the file, and all machines and people of the run see every record and "
    "are trusted. The claim concerns people who see only the public folder. Run times, refusals and messages are in no ε. "
    "The custodian may look at the confidential folder and then publish, withhold or run again. That choice can itself "
    "tell of records, and it is in no ε, whatever rule it follows. Only gates, measured under noise at a part of ε, bring "
    "such a choice in."
)
IN_WORDS = {
    "zero_out": (
        "Two files are neighbours if they differ in one record only. In one file its {values} are used. In the other they "
        "are ignored, as if nothing had been reported. Its other columns are the same in both, and it is in both files."
    ),
    "substitution": (
        "Two files are neighbours if they differ in one record only, whose {values} may have any other values. Its other "
        "columns, and so its cells, are the same in both."
    ),
    "anywhere": (
        "Two files are neighbours if one record of the one is exchanged for any other record. All its columns may change, "
        "its cell too. The number of records is the same in both. Adding or removing a record costs half of ε."
    ),
    "exchanged": (
        "Two files are neighbours if one record of the one is exchanged for any other record{same}. Its other columns may "
        "change, its cell too. The number of records is the same in both."
    ),
    "add_remove": (
        "Two files are neighbours if one has a record that the other has not, whatever its columns hold, and all else is "
        "the same."
    ),
}
OF_UNITS = {
    "zero_out": (
        "Two files are neighbours if they differ in the records of one {unit} only, at most {most}. In one file their "
        "{values} are used. In the other they are ignored, as if nothing had been reported. Their other columns are the "
        "same in both, and they are in both files."
    ),
    "substitution": (
        "Two files are neighbours if they differ in the records of one {unit} only, at most {most}, whose {values} may "
        "have any other values. Their other columns, and so their cells, are the same in both."
    ),
    "anywhere": (
        "Two files are neighbours if the records of one {unit}, at most {most}, are exchanged for as many other records. "
        "All their columns may change, their cells too. The number of records is the same in both. Adding or removing a "
        "{unit} costs half of ε."
    ),
    "exchanged": (
        "Two files are neighbours if the records of one {unit}, at most {most}, are exchanged for as many other "
        "records{same}. Their other columns may change, their cells too. The number of records is the same in both."
    ),
    "add_remove": (
        "Two files are neighbours if one has the records of one {unit}, at most {most}, that the other has not, whatever "
        "their columns hold. All else is the same."
    ),
}
"""The same texts for a privacy unit: all records with one value of a column."""
PRESENCE = "presence in the sample: that a record is in the file"
RESPONSE = "response: that a sampled unit answered"
COUNTS = "the number of sample records in every combination of these columns"
DRAWN = "the number of records drawn{by}, with those that the universe and the rules leave out"
OF_THE_REFERENCE = "records of the reference"


def listed(names: Sequence[str]) -> str:
    """Joins texts: a; a and b; a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def neighbours(job: Job) -> str:
    """A sentence on which files the job's ε compares."""
    name: str = job.budget.adjacency
    if job.budget.exchange == "anywhere":
        name = "anywhere" if not job.noisy_frame else "exchanged"
    texts = {
        "values": listed(job.protected_components),
        "same": f" of the same {listed(job.counted_columns)}" if job.counted_columns else "",
    }
    if (unit := job.privacy_unit) is not None:
        return OF_UNITS[name].format(unit=unit.column, most=unit.most, **texts)
    return IN_WORDS[name].format(**texts)


def whom(job: Job) -> str:
    """Whose values are protected, in words: those of a record, or of all records of a unit."""
    return "a record" if job.privacy_unit is None else f"all records of a {job.privacy_unit.column}"


def protected(job: Job) -> list[str]:
    """What may differ between neighbours: the outcomes and the weight, by name.

    If sizes are secret, this is the whole record and the numbers of records.
    """
    if not job.sizes_secret:
        return list(job.protected_components)
    if job.noisy_frame and job.budget.adjacency == "substitution":
        sizes = f"the number of records in every combination of {_frame(job)}"
        return [*job.protected_components, *job.protected_columns, sizes]
    columns = job.cell_columns if not job.noisy_frame else job.protected_columns
    presence = f"whether {'a record is' if job.privacy_unit is None else whom(job) + ' are'} in the file"
    return [*job.protected_components, *columns, presence, "the number of records, in all and in every cell"]


def not_protected(job: Job, reference: bool) -> list[str]:
    """What is published exactly, or may show in the release. `reference` is true if a reference file was used."""
    people = [OF_THE_REFERENCE] if reference else []
    if job.noisy_frame and job.budget.adjacency == "substitution":
        return [*job.counted_columns, _public_counts(job), *_drawn(job), PRESENCE, RESPONSE, *people]
    if job.sizes_secret:
        return ["that the file holds a record at all", *people]
    public = [job.survey.weight] if job.survey.weight is not None and job.survey.design_weights is not None else []
    columns = dict.fromkeys([*job.categories, *(keep.column for keep in job.universe), *public])
    units = [] if job.privacy_unit is None else [f"which records are of one {job.privacy_unit.column}"]
    return [*columns, COUNTS, *_drawn(job), *units, PRESENCE, RESPONSE, *people]


def _drawn(job: Job) -> list[str]:
    """What is published of records that are left out: their number, by design stratum."""
    if not job.is_domain or not job.drawn_is_public:
        return []
    by = f" in every combination of {listed(job.survey.design_strata)}" if job.survey.design_strata else ""
    return [DRAWN.format(by=by)]


def _frame(job: Job) -> str:
    return listed(job.protected_columns) or "no column"


def _public_counts(job: Job) -> str:
    """Sample counts that an exchange of records leaves exact, in words."""
    by = f" in every combination of {listed(job.counted_columns)}" if job.counted_columns else ""
    return f"the number of sample records{by}"


def headline(job: Job) -> str:
    """One line on what is protected and what is not."""
    kept = listed(job.protected_components)
    if job.noisy_frame and job.budget.adjacency == "substitution":
        return f"{kept} of {whom(job)}, and {_frame(job)}; published as it is: {_public_counts(job)}"
    if job.sizes_secret and job.privacy_unit is not None:
        return f"{kept} of {whom(job)}, their table columns, their presence and the sample counts"
    if job.sizes_secret:
        return f"{kept} of a record, its table columns, its presence and the sample counts"
    columns = f"table columns ({', '.join(job.categories)}) and sample counts" if job.categories else "the sample count"
    return f"{kept} of {whom(job)}; published as they are: {columns}"


def unit(job: Job) -> str:
    """Sentences on the unit whose loss is bounded, and on how loss grows with several records of a person."""
    if (declared := job.privacy_unit) is not None:
        refuses = declared.beyond == "refuse"
        beyond = "A file with more is refused." if refuses else "Of more, the first in the file's order count."
        return (
            f"The figures are the loss of a {declared.column}: of all records with one value of that column. At most "
            f"{declared.most} of them count. {beyond}"
        )
    grows = "up to k times one row's" if job.budget.delta is None else "in ρ up to k² times one row's"
    return f"A record is one row of the file. For a person or household with k rows in it the loss is {grows}."


REFUSED = (
    "A file outside of this domain is refused before anything is spent. Whether a file is refused depends on its records, "
    "and is in no ε."
)


def domain(job: Job) -> list[str]:
    """One line for each condition checked by `survey.checks` and `planning`, and one on other files."""
    conditions = [_categories(job)] if job.categories else []
    conditions += [_outcome(job, name, column) for name, column in job.outcome_columns.items()]
    conditions += [_weight(job)] if job.survey.weight is not None else []
    return [*conditions, *_unit(job), *_design(job), *_fit(job), REFUSED]


def _categories(job: Job) -> str:
    left = [name for name in job.categories if job.columns[name].missing == "drop"]
    dropped = f" (records without {', '.join(left)} are dropped)" if left else ""
    moved = [name for name in job.categories if job.columns[name].outside == "clip"]
    nearest = f" (whole numbers that are no level of {', '.join(moved)} count in the nearest one)" if moved else ""
    return f"{', '.join(job.categories)}: a declared level in every record{dropped}{nearest}"


def _outcome(job: Job, name: str, column: Column) -> str:
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
    if (public := job.survey.design_weights) is not None:
        return f"{name}: the public weight of the record's {listed(public.by)}"
    if column is None or column.bounds is None:
        bounds = "from 1e-15 to 1e15"
    elif column.outside == "clip":
        bounds = "though values outside the bounds are clipped"
    else:
        bounds = f"within [{column.bounds[0]:,.10g}, {column.bounds[1]:,.10g}]"
    from_zero = column is not None and column.bounds is not None and column.bounds[0] == 0.0
    least = "0 or more" if from_zero and job.mechanism.sums_weights_of_zero else "above 0"
    return f"{name}: not missing, finite, {least}, {bounds}"


def _unit(job: Job) -> Iterator[str]:
    if (unit := job.privacy_unit) is not None:
        most = f", and at most {unit.most} records of one {unit.column}" if unit.beyond == "refuse" else ""
        yield f"{unit.column}: not missing, one spelling of every name{most}"


def _design(job: Job) -> Iterator[str]:
    survey = job.survey
    if survey.psu is not None:
        yield f"{survey.psu}: not missing"
    if survey.lonely_psu == "error" and survey.replicate_weights is None and not job.sizes_secret:
        before = ", before the universe and the rules" if job.is_domain else ""
        yield f"two {'PSUs' if survey.psu is not None else 'records'} or more in every design stratum{before}"
    if survey.fpc:
        yield (
            f"{', '.join(survey.fpc)}: finite, at least 1, no smaller than the sample, one size in every stratum (of "
            "records: in every PSU), and two records or more of a PSU that has more"
        )
    if survey.replicate_weights is not None:
        yield "replicate weights: not missing, finite"


def _fit(job: Job) -> Iterator[str]:
    if not job.mechanism.adds_noise:
        what = " and ".join(job.components)
        yield f"in every stratum more records than predictors, and {what} that vary, where the prior cannot stand in"
