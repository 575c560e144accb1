"""The privacy statement: what is claimed, and what is assumed."""

from __future__ import annotations

from typing import Any

from dpdist.estimation.weighted_points import REFERENCE_FILE
from dpdist.job import Statistics
from dpdist.job.families import FAMILIES
from dpdist.job.mechanisms import ReferenceTables, SanitizedStatistics, WholeTables
from dpdist.mechanisms.reference_tables.donors import FEWEST
from dpdist.mechanisms.reference_tables.saturation import ALARM
from dpdist.privacy.adjacency import TRUST_MODEL, headline, neighbours, not_protected, protected, unit
from dpdist.privacy.claims import in_words
from dpdist.privacy.domain import domain
from dpdist.publish.accuracy import standard_errors
from dpdist.publish.borrowing import borrowing
from dpdist.publish.limits import drifted, looked_through, unidentified
from dpdist.publish.released import DISTRIBUTIONS, DONORS, ReleasedObject

APPROVAL = (
    "this release was held, and published when somebody had approved it. Who approves may look at the confidential "
    "evaluation first: that choice depends on the records, and it is in no ε"
)
VERBATIM = (
    "most of the reference's weights and outcomes, cell by cell, as they stand in its records; publish this folder only if "
    "the reference really is published"
)
NO_RECORDS = (
    "there are no synthetic records: figures that were noised one by one, margins too, tell of no single file of records"
)
LEAST_SQUARES = (
    "counts and totals of all tables are the additive ones nearest to the noisy figures in least squares; a mean is the "
    "ratio of its total and count where the table has both, and else as noised"
)
AS_NOISED = "figures are as noised: margins are not the sums of their cells"
DONATED = (
    f"a donor is of the synthetic record's own cell, or of the cells most like it where the cell has fewer than {FEWEST}",
    "tables made from synthetic records are the published ones; what else they tell is the reference's, not measured",
    "outcomes of all cells are multiplied by one factor (shifted, if they may be negative) that gives them the grand mean",
    "weights in a cell are then tilted until it has its released means; where weights cannot do it, the cell's outcomes "
    "have a factor of their own",
    "0, the public bounds, a top-code and a minimum stay where they are; where the means allow it, they keep the weighted "
    "share that donors have",
    "outcomes on a grid, such as whole thousands, are rounded back to it; without weights, only whole numbers are",
)
MICRODATA = (
    "by the columns under `measured` synthetic records have the released counts and means of every cell. A record has the "
    "columns under `copied` from its donor, as they stand in the reference beside the donor's weight and outcomes. Where a "
    f"cell has fewer than {FEWEST} donors, the donor may be of another cell. No figure of these columns was measured on "
    "the current file. What has changed since the reference is not in them, and no standard error or interval is theirs"
)
RATIOS = (
    "a mean is the ratio of the noisy total and the noisy count, clipped to the outcome's public bounds; where the noisy "
    "count is not above 0, the bound on the total's side"
)

NOT_IDENTIFIED = (
    "the noisy sums do not identify the mean weight, or an outcome's mean, of these cells: nearly all of it lies beyond "
    "the limits at which records were clipped, or too little within them. Such a cell has limits and no estimate. "
    "Intervals of what is made of it hold them too. Its synthetic records have means within them and tell no more"
)
DRIFT = (
    "the noisy sums of these cells are farther from what the reference predicts than sampling and noise would carry them "
    "(about one cell in a thousand would be named by chance): weights or outcomes have changed since. Estimates follow a "
    "change of scale, not one of shape: the errors of these cells hold the bias of a planned one, and no more"
)
LOOKED_THROUGH = (
    "noisy sums are looked through for cells whose limits bind: one whose shape is its group's is taken for such with a "
    "chance of at most {:g} by each of its sums"
)


def statement(release: ReleasedObject) -> dict[str, Any]:
    """statement.json: guarantee, adjacency, what was spent, what is public, how the release was made."""
    job = release.job
    return {
        "dataset": job.dataset,
        "period": job.period,
        **({"correction": job.correction.model_dump()} if job.correction is not None else {}),
        **_claimed(release),
        **release.promise,
        "privacy_unit": "record",
        "privacy_unit_in_words": unit(job),
        "trust_model": TRUST_MODEL,
        **({"approval": APPROVAL} if job.approval is not None else {}),
        "domain": domain(job),
        "synthetic_sets": 0 if job.mechanism.whole_tables else job.synthetic_sets,
        "metered": release.promise.get("metered", False),
        "mechanism": job.mechanism.published(job),
        **({"calibration": job.calibration.public} if job.calibration is not None else {}),
        "model": _model(release),
        "public": _public(release),
        **({"borrowing": said} if (said := borrowing(release)) else {}),
        "post_processing": _post_processing(release),
        **_microdata(release),
        "standard_errors": standard_errors(release),
        **_not_identified(release),
        **_drift(release),
    }


def _microdata(release: ReleasedObject) -> dict[str, Any]:
    """What of the synthetic records is measured, where the job copies columns of its reference."""
    job = release.job
    measured, copied = [*job.modelled_columns, *job.components], list(job.microdata.columns)
    return {"microdata": {"in_words": MICRODATA, "measured": measured, "copied": copied}} if copied else {}


def _drift(release: ReleasedObject) -> dict[str, Any]:
    """Cells that have drifted from the reference, where there are any."""
    cells = drifted(release)
    return {"drift": {"in_words": DRIFT, **cells}} if cells else {}


def _not_identified(release: ReleasedObject) -> dict[str, Any]:
    """Cells whose noisy sums do not identify them, where there are any."""
    cells = unidentified(release)
    return {"not_identified": {"in_words": NOT_IDENTIFIED, **cells}} if cells else {}


def _claimed(release: ReleasedObject) -> dict[str, Any]:
    """The class and its neighbours in words, and what of a record is protected: nothing where nothing is promised."""
    job, said = release.job, release.promise
    words, open_parts = in_words(said, job, int(release.frame.count.sum())), not_protected(job, _on_a_file(release))
    if said["guarantee"] == "none":
        return {"guarantee_in_words": words, "protected": [], "not_protected": [*job.components, *open_parts]}
    return {
        "headline": headline(job),
        "guarantee_in_words": words,
        "adjacency_in_words": neighbours(job),
        **({"exchange": job.budget.exchange} if job.budget.adjacency == "substitution" else {}),
        "protected": protected(job),
        "not_protected": open_parts,
    }


def _model(release: ReleasedObject) -> dict[str, Any]:
    said = release.job.model
    if said is None:
        return {"parameters": _density(release)}
    synthesis = {"synthesis": said.synthesis} if said.family == "lognormal" else {}
    return {"family": said.family, **synthesis, "parameters": _density(release)}


def _density(release: ReleasedObject) -> str:
    job = release.job
    outcomes = (", log " if job.family == "lognormal" else ", ").join(job.outcomes)
    density = FAMILIES[job.family].density.format(outcome=outcomes, weight=job.survey.weight)
    given = ", given the predictors" if job.predictors else ""
    return f"{density}, natural logarithm{given}, in the observed sample"


def _on_a_file(release: ReleasedObject) -> bool:
    """True if the reference is a file: the job as published names no earlier release, but the promise does."""
    said = release.job.reference
    return said is not None and said.histogram is None and "chain" not in release.promise.get("reference", {})


def _public(release: ReleasedObject) -> list[str]:
    job = release.job
    noisy, by = "noisy numbers of " if job.sizes_secret else "", ", ".join(job.categories) or "no column"
    facts = [
        f"{noisy}sample records in every combination of {by} (released/frame.parquet)",
        "the levels and bounds that the job declares",
        "the seed of publication, which is independent of the seed of protection",
    ]
    if job.reference is not None:
        what = "a file that the job declares public (its checksum stands under reference)"
        chained, binned = "chain" in release.promise.get("reference", {}), job.reference.histogram is not None
        if chained:
            also = ", and noisy histograms that are part of this one" if binned else ""
            what = f"an earlier release (its manifest's checksum stands under reference){also}"
        elif binned:
            what = "noisy histograms that are part of this release"
        facts.append(f"the reference, {what}")
    if release.facts:
        what = VERBATIM if _on_a_file(release) else "points of the earlier release, as they were"
        facts.append(f"released/{DISTRIBUTIONS}: {what}")
    if release.donors:
        copied = f", with its {', '.join(job.microdata.columns)}" if job.microdata.columns else ""
        facts.append(f"released/{DONORS}: {VERBATIM}{copied}")
    facts += [f"the universe: {keep.column} is one of {', '.join(map(str, keep.keep))}" for keep in job.universe]
    facts += [f"the job states: {sentence}" for sentence in job.assumed_public]
    return facts + [
        f"assumed public though it depends on the outcome: the number of records left after {rule}"
        for rule in job.outcome_dependent_rules
    ]


OF_STATISTICS: dict[Statistics, tuple[str, ...]] = {
    "histogram": (),
    "cell_sums": (
        "a cell's mean weight and mean outcome are set into their public bounds; a synthetic record has its cell's "
        "means, so that totals agree with the tables and nothing else is modelled",
    ),
    "reference_cells": (),
    "noisy_tables": (),
    "sufficient": (
        "parameters are drawn from the posterior given the noisy sums, which are set into their public ranges and then "
        "taken as exact; synthetic outcomes follow the law of these parameters, with their cell's mean weight",
        "who analyses the synthetic sets alone has T = B/m + W with (m − 1)(1 + mW/B)² degrees of freedom; with one set "
        "the noise is in no estimate of T; of nested sets B is between the means of every sanitization's sets, and m the "
        "number of sanitizations",
    ),
}
"""What becomes of noisy statistics after their release, where that is the same for every job."""


def _donors(release: ReleasedObject) -> str:
    """Where the values of synthetic records beside reference tables are from."""
    if release.donors:
        taken = f"a donor, which is a record of the reference (released/{DONORS})"
    else:
        taken = (
            f"a donor, which is a point of an earlier release or of histograms (released/{REFERENCE_FILE}): a mean of like "
            "records, in which round figures and a top-code may be lost"
        )
    return f"a synthetic record takes its weight and outcomes together from {taken}"


def _post_processing(release: ReleasedObject) -> list[str]:
    job = release.job
    if job.mechanism.whole_tables:
        assert isinstance(job.mechanism, WholeTables)
        agreed = job.mechanism.consistency == "least_squares"
        return [NO_RECORDS, LEAST_SQUARES if agreed else AS_NOISED, *([] if job.local else [RATIOS])]
    steps = []
    for name, column in job.outcome_columns.items():
        low, high = column.bounds or (0.0, 0.0)
        steps.append(
            f"synthetic {name} beyond the public bounds [{low:,.10g}, {high:,.10g}] is set to the nearest bound, "
            "and the model's means are means of the so limited variable"
        )
    if job.mechanism.sets_are_free:
        assert isinstance(job.mechanism, SanitizedStatistics)
        how = "are shrunk to their common shift as far as noise moved them" if job.mechanism.shrinkage else "are not shrunk"
        steps.append(
            "winsorising is undone by the cells' shifts and the common stretch of logarithms under which the reference has "
            f"the noisy moments; cells {how}; the stretch is kept between a half and twice the reference's in every "
            "direction; tables from parameters are the fit's, synthetic sets follow draws from the law of its errors"
        )
    if job.family == "reference_cells":
        assert isinstance(job.mechanism, ReferenceTables)
        how = (
            "are shrunk to the cells' common scale as far as noise moved them"
            if job.mechanism.shrinkage
            else "are not shrunk"
        )
        steps.append(
            "clipping is undone by the scale of weights and of outcomes (the shift, if outcomes may be negative or are "
            f"two-valued) under which the reference has a cell's noisy sums; these {how}"
        )
        if looked_through(release):
            steps.append(LOOKED_THROUGH.format(ALARM))
        steps += [_donors(release), *DONATED]
    if job.family == "scores":
        steps.append(
            "scores are turned back into weights and outcomes by the reference's distributions, within its range: no value "
            "beyond what the reference holds is drawn; means from parameters take either within narrow bins of scores"
        )
    if job.family == "scores" and (borrowed := borrowing(release)):
        steps.append(f"{borrowed['in_words']}: the entry `borrowing` names these cells")
    if (statistics := job.mechanism.statistics) is not None:
        steps += OF_STATISTICS[statistics]
    if job.likelihood.synthesis == "fbp":
        weights = "N/n with the public N" if job.likelihood.population_weights == "proportional" else "1/E(π|x)"
        steps.append(f"synthetic outcomes follow the population law; synthetic weights are {weights}")
    if job.likelihood.synthetic_weights == "expected":
        steps.append("synthetic weights are E(w|y*, x) under the released parameters, not drawn")
    if job.rake:
        by = "; ".join(", ".join(said.by) for said in job.rake)
        steps.append(f"weights are raked to the public totals by {by} that the job states; tables from parameters too")
    return steps
