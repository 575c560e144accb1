"""Sentences on neighbouring files, admitted files, and what is protected.

With a public crosstab, `substitution` exchanges outcome and weight at the same public columns x (`exchange: same_x`). No ε
covers a record that moves to another combination of table columns. With `exchange: anywhere` every column may change,
which needs secret sizes. Such an exchange is one removal and one addition. Each moves the sums by 1 (tables.sensitivity),
and both by at most 2. So noise of scale 2/ε gives ε for an exchange, and ε/2 for a removal or an addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpdist.job import Column, Job, family_facts

TRUST_MODEL = (
    "The release uses the central model: the custodian, who holds the file, and all machines and people involved in the "
    "run are trusted with the records. The guarantee protects against anyone who sees only the public folder. ε does not "
    "cover what can be inferred from run times, refused runs or error messages. Nor does it cover the custodian's choice "
    "to publish, withhold or repeat a release after seeing the confidential evaluation, which can itself reveal "
    "something about records. A decision to publish is covered by ε only if it is left to gates: accuracy limits that "
    "are fixed before the run, checked with noise, and paid for out of ε."
)
IN_WORDS = {
    "zero_out": (
        "Neighbouring files differ in one record: one file uses the record's {values}; the other treats this information "
        "as missing. The record is in both files, and all its other columns are unchanged."
    ),
    "substitution": (
        "Neighbouring files differ in one record, whose {values} may take any values. All its other columns are "
        "unchanged, so it stays in the same cell of every table."
    ),
    "anywhere": (
        "Neighbouring files have the same number of records and differ in one record, in any of its columns. Adding or "
        "removing a record costs half of ε."
    ),
    "exchanged": (
        "Neighbouring files have the same number of records and differ in one record, in any of its columns{except_these}."
    ),
    "add_remove": "Neighbouring files differ by the presence of one record, whatever its columns contain.",
}
OF_UNITS = {
    "zero_out": (
        "Neighbouring files differ in the records of one {unit} (at most {most}): one file uses the records' {values}; "
        "the other treats this information as missing. The records are in both files, and all their other columns are "
        "unchanged."
    ),
    "substitution": (
        "Neighbouring files differ in the {values} of the records of one {unit} (at most {most}), which may take any "
        "values. All their other columns are unchanged, so they stay in the same cells of every table."
    ),
    "anywhere": (
        "Neighbouring files have the same number of records and differ in the records of one {unit} (at most {most}), in "
        "any of their columns. Adding or removing a {unit} costs half of ε."
    ),
    "exchanged": (
        "Neighbouring files have the same number of records and differ in the records of one {unit} (at most {most}), in "
        "any of their columns{except_these}."
    ),
    "add_remove": (
        "Neighbouring files differ by the presence of the records of one {unit} (at most {most}), whatever their "
        "columns contain."
    ),
}
"""The same texts for a privacy unit: all records with one value of a column."""
PRESENCE = "presence in the sample"
RESPONSE = "response to the survey"
COUNTS = "sample counts by these columns"
DRAWN = "the number of sampled records{by}, including those outside the universe or dropped by the job's rules"
OF_THE_REFERENCE = "records in the reference"


def listed(names: Sequence[str]) -> str:
    """Joins texts: a; a and b; a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def neighbours(job: Job) -> str:
    """A sentence on which files the job's ε compares."""
    name: str = job.budget.adjacency
    if job.budget.exchange == "anywhere":
        name = "anywhere" if not job.noisy_crosstab else "exchanged"
    texts = {
        "values": listed(job.protected_components),
        "except_these": f" except {listed(job.counted_columns)}" if job.counted_columns else "",
    }
    if (unit := job.privacy_unit) is not None:
        return OF_UNITS[name].format(unit=unit.column, most=unit.most, **texts)
    return IN_WORDS[name].format(**texts)


def whom(job: Job) -> str:
    """Whose values are protected, in words: those of a record, or of all records of a unit."""
    return "one record" if job.privacy_unit is None else f"all records of one {job.privacy_unit.column}"


def protected(job: Job) -> list[str]:
    """What may differ between neighbours: the outcomes and the weight, by name.

    If sizes are secret, this is the whole record and the numbers of records.
    """
    if not job.sizes_secret:
        return list(job.protected_components)
    if job.noisy_crosstab and job.budget.adjacency == "substitution":
        sizes = f"the numbers of records by {_frame(job)}"
        return [*job.protected_components, *job.protected_columns, sizes]
    columns = job.cell_columns if not job.noisy_crosstab else job.protected_columns
    presence = f"whether {'a record is' if job.privacy_unit is None else whom(job) + ' are'} in the file"
    return [*job.protected_components, *columns, presence, "the number of records, in total and in every cell"]


def not_protected(job: Job, reference: bool) -> list[str]:
    """What is published exactly, or may show in the release. `reference` is true if a reference file was used."""
    people = [OF_THE_REFERENCE] if reference else []
    if job.noisy_crosstab and job.budget.adjacency == "substitution":
        return [*job.counted_columns, _public_counts(job), *_drawn(job), PRESENCE, RESPONSE, *people]
    if job.sizes_secret:
        return ["that the file is not empty", *people]
    public = [job.survey.weight] if job.survey.weight is not None and job.survey.design_weights is not None else []
    columns = dict.fromkeys([*job.categories, *(keep.column for keep in job.universe), *public])
    units = [] if job.privacy_unit is None else [f"which records belong to the same {job.privacy_unit.column}"]
    return [*columns, COUNTS, *_drawn(job), *units, PRESENCE, RESPONSE, *people]


def _drawn(job: Job) -> list[str]:
    """What is published of records that are left out: their number, by design stratum."""
    if not job.is_domain or not job.drawn_is_public:
        return []
    by = f" by {listed(job.survey.design_strata)}" if job.survey.design_strata else ""
    return [DRAWN.format(by=by)]


def _frame(job: Job) -> str:
    return listed(job.protected_columns) or "no column"


def _public_counts(job: Job) -> str:
    """Sample counts that an exchange of records leaves exact, in words."""
    by = f" by {listed(job.counted_columns)}" if job.counted_columns else ""
    return f"the number of sample records{by}"


def headline(job: Job) -> str:
    """One line on what is protected and what is not."""
    components = listed(job.protected_components)
    if job.noisy_crosstab and job.budget.adjacency == "substitution":
        return f"{components} of {whom(job)}, and {_frame(job)}; published without noise: {_public_counts(job)}"
    if job.sizes_secret and job.privacy_unit is not None:
        return f"{components} of {whom(job)}, their table columns, their presence and the sample counts"
    if job.sizes_secret:
        return f"{components} of one record, its table columns, its presence and the sample counts"
    counts = "the sample count"
    if job.categories:
        counts = f"the sample counts for every combination of the table columns ({', '.join(job.categories)})"
    return f"{components} of {whom(job)}; published without noise: {counts}"


def unit(job: Job) -> str:
    """Sentences on the unit whose loss is bounded, and on how loss grows with several records of a person."""
    if (declared := job.privacy_unit) is not None:
        refuses = declared.beyond == "refuse"
        beyond = (
            "A file with more records is refused."
            if refuses
            else "If there are more, only the first ones in the file are used."
        )
        return (
            f"The unit of privacy is one {declared.column}: all records with the same value of that column, at most "
            f"{declared.most}. {beyond}"
        )
    grows = "the loss is up to k times as large" if job.budget.delta is None else "the loss in ρ is up to k² times as large"
    return f"The unit of privacy is one row of the file. For a person or household with k rows, {grows}."


REFUSED = (
    "A file outside this domain is refused before any budget is spent. Whether a file is accepted depends on its records, "
    "and ε does not cover that."
)


def domain(job: Job) -> list[str]:
    """One line for each condition checked by `survey.checks` and `planning`, and one on other files."""
    conditions = [_categories(job)] if job.categories else []
    conditions += [_outcome(job, name, column) for name, column in job.outcome_columns.items()]
    conditions += [_weight(job)] if job.survey.weight is not None else []
    return [*conditions, *_unit(job), *_design(job), *_fit(job), REFUSED]


def _categories(job: Job) -> str:
    dropping = [name for name in job.categories if job.columns[name].missing == "drop"]
    dropped = f" (records without {', '.join(dropping)} are dropped)" if dropping else ""
    columns = [name for name in job.categories if job.columns[name].outside == "clip"]
    nearest = f" (whole numbers that are not a level of {', '.join(columns)} count as the nearest level)" if columns else ""
    return f"{', '.join(job.categories)}: every record has one of the declared levels{dropped}{nearest}"


def _outcome(job: Job, name: str, column: Column) -> str:
    support = family_facts(job).support
    rules = ["" if column.missing == "drop" else "not missing", "finite"]
    if column.outside == "clip":
        if np.isfinite(support.low):
            rules.append(f"not below {support.low:g} (values outside the bounds are clipped)")
        if np.isfinite(support.high):
            rules.append(f"not above {support.high:g}")
        if column.codes is not None:
            rules.append(f"one of {', '.join(column.codes)}")
    else:
        low, high = column.bounds or (support.low, support.high)
        named = support.integer and (low, high) == (support.low, support.high)
        rules.append("" if named else f"within [{low:,.10g}, {high:,.10g}]")
        rules.append(f"only {support.text} (as this model requires)" if np.isfinite(support.low) else "")
    integer = column.whole or support.integer
    rules.append("a whole number" if integer and not (support.integer and column.outside != "clip") else "")
    dropped = "; missing values are dropped" * (column.missing == "drop") + "; zeros are dropped" * (column.zeros == "drop")
    return f"{name}: {', '.join(filter(None, rules))}{dropped}"


def _weight(job: Job) -> str:
    name = job.survey.weight
    column = job.columns.get(name) if name is not None else None
    if (public := job.survey.design_weights) is not None:
        return f"{name}: the public weight of the record's {listed(public.by)}"
    if column is None or column.bounds is None:
        bounds = "from 1e-15 to 1e15"
    elif column.outside == "clip":
        bounds = "with values outside the bounds clipped"
    else:
        bounds = f"within [{column.bounds[0]:,.10g}, {column.bounds[1]:,.10g}]"
    from_zero = column is not None and column.bounds is not None and column.bounds[0] == 0.0
    least = "0 or more" if from_zero and job.mechanism.sums_weights else "above 0"
    return f"{name}: not missing, finite, {least}, {bounds}"


def _unit(job: Job) -> Iterator[str]:
    if (unit := job.privacy_unit) is not None:
        most = f", and at most {unit.most} records of one {unit.column}" if unit.beyond == "refuse" else ""
        yield f"{unit.column}: not missing, and each identifier always spelled in the same way{most}"


def _design(job: Job) -> Iterator[str]:
    survey = job.survey
    if survey.psu is not None:
        yield f"{survey.psu}: not missing"
    if survey.lonely_psu == "error" and survey.replicate_weights is None and not job.sizes_secret:
        before = ", before the universe and the job's rules are applied" if job.is_domain else ""
        yield f"two or more {'PSUs' if survey.psu is not None else 'records'} in every design stratum{before}"
    if survey.fpc:
        yield (
            f"{', '.join(survey.fpc)}: finite, at least 1 and at least the size of the sample; the same for a whole "
            "stratum (numbers of records: for a whole PSU); two or more records from a PSU that has more than one"
        )
    if survey.replicate_weights is not None:
        yield "replicate weights: not missing, finite"


def _fit(job: Job) -> Iterator[str]:
    if not job.mechanism.adds_noise:
        what = listed(job.components)
        yield f"more records than predictors, and some variation in {what}, in every stratum, unless the prior is proper"
