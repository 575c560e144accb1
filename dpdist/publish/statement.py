"""The privacy statement and the manifest: what is claimed, what is assumed, and the checksum of every public file."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdist.families import FAMILIES
from dpdist.files import sha256
from dpdist.job import CLAMPED, NOISY, Job
from dpdist.models.protocol import Expectation
from dpdist.publish.precision import Recentred
from dpdist.publish.released import Release

PACKAGES = ("dpdist", "numpy", "scipy", "randomgen", "pyarrow")

SEARCH_AGAIN = (
    "estimator `parameters`: composition of the sample over x, sampling error of the weighted fit, the draws' spread over "
    "m, and the bias of the privacy weights (squared); all but the first by re-running the weight search on a synthetic "
    "sample"
)
SEARCH_STANDS_IN = "privacy weights were fixed on the reference: a search on a synthetic sample stands in for them here"
COUNTED_AGAIN = (
    "estimator `parameters`: composition of the sample over x, other samples' bin counts and other noise, both simulated "
    "from the first set's histogram; the bias of bins and of counts cut off at 0 is not in it"
)
NOISED_AGAIN = (
    "estimator `parameters`: composition of the sample over cells, and other noise, simulated; how records vary within a "
    "cell was not released and is not in it, nor is the bias of clipping and of setting cells into their bounds"
)
TAILS_BORROWED = (
    "estimator `parameters`: composition of the sample over cells, sampling error of the clipped statistics, of the "
    "reference's tails that complete them, and noise; a change of shape since the reference is not in it"
)
BETWEEN_SETS = (
    "estimator `parameters`: composition of the sample over x, and (1 + 1/m) times the variance between the m released "
    "draws, a released draw's spread being no less than its fit's sampling error; with one set there is none. The bias of "
    "the privacy weights, which trim tails, is not in it, and outgrows it in large strata"
)


def statement(release: Release) -> dict[str, Any]:
    """statement.json: guarantee, adjacency, what was spent, what is public, how the release was made."""
    job = release.job
    said = dict(release.promise)
    said |= {
        "dataset": job.dataset,
        "period": job.period,
        "privacy_unit": "record",
        "synthetic_sets": job.synthetic_sets,
        "metered": False,
        "mechanism": job.mechanism.model_dump(mode="json", exclude=_not_its_own(job)),
        **({"calibration": job.calibration.public} if job.calibration is not None else {}),
        "model": _model(release),
        "public": _public(release),
        "post_processing": _post_processing(release),
        "standard_errors": _standard_errors(release),
    }
    return said


def manifest(folder: Path, release: Release) -> dict[str, Any]:
    """manifest.json: SHA-256 of every other public file, the public job, versions."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    reference = release.promise.get("reference")
    return {
        "files": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
        **({"reference": {"sha256": reference["sha256"]}} if reference else {}),
        "job": release.job.public,
        "versions": {name: version(name) for name in PACKAGES},
    }


def _model(release: Release) -> dict[str, Any]:
    said = release.job.model
    synthesis = {"synthesis": said.synthesis} if said.family == "lognormal" else {}
    return {"family": said.family, **synthesis, "parameters": _density(release)}


def _not_its_own(job: Job) -> set[str]:
    """Constants that the job's mechanism does not have."""
    has = {
        "bins": job.mechanism.name == "perturbed_histogram",
        "shrinkage": job.mechanism.name == "reference_tables",
        "drift": job.mechanism.name == "centred",
    }
    has["aim"] = job.frozen and job.mechanism.name == "weighted"
    return {name for name, own in has.items() if not own}


def _density(release: Release) -> str:
    job = release.job
    outcomes = ", log ".join(job.model.outcomes)
    density = FAMILIES[job.model.family].density.format(outcome=outcomes, weight=job.survey.weight)
    given = ", given the predictors" if job.model.predictors else ""
    return f"{density}, natural logarithm{given}, in the observed sample"


def _public(release: Release) -> list[str]:
    job = release.job
    facts = [
        f"sample records in every combination of {', '.join(job.categories) or 'no column'} (released/frame.parquet)",
        "the levels and bounds that the job declares",
        "the seed of publication, which is independent of the seed of protection",
    ]
    if job.reference is not None:
        facts.append("the reference, a file that the job declares public (its checksum stands under reference)")
    facts += [f"the universe: {keep.column} is one of {', '.join(map(str, keep.keep))}" for keep in job.universe]
    return facts + [
        f"assumed public though it depends on the outcome: the number of records left after {rule}"
        for rule in job.outcome_dependent_rules
    ]


def _post_processing(release: Release) -> list[str]:
    job = release.job
    steps = []
    for name, column in job.outcome_columns.items():
        low, high = column.bounds or (0.0, 0.0)
        steps.append(
            f"synthetic {name} beyond the public bounds [{low:,.10g}, {high:,.10g}] is set to the nearest bound, "
            "and the model's means are means of the so limited variable"
        )
    if job.model.family == "reference_cells":
        how = (
            "are shrunk to the cells' common scale as far as noise moved them"
            if job.mechanism.shrinkage
            else "are not shrunk"
        )
        steps.append(
            "clipping is undone by the scale of weights and of outcomes (the shift, if outcomes may be negative or are "
            f"two-valued) under which the reference has a cell's noisy sums; these {how}; a synthetic record has its "
            "cell's means, so that totals agree with the tables and nothing else is modelled"
        )
    if job.model.family == "cell_sums":
        steps.append(
            "a cell's mean weight and mean outcome are set into their public bounds; a synthetic record has its cell's "
            "means, so that totals agree with the tables and nothing else is modelled"
        )
    if job.model.synthesis == "fbp":
        weights = "N/n with the public N" if job.model.population_weights == "proportional" else "1/E(π|x)"
        steps.append(f"synthetic outcomes follow the population law; synthetic weights are {weights}")
    if job.model.synthetic_weights == "expected":
        steps.append("synthetic weights are E(w|y*, x) under the released parameters, not drawn")
    if job.rake:
        by = "; ".join(", ".join(said.by) for said in job.rake)
        steps.append(f"weights are raked to the public totals by {by} that the job states; tables from parameters too")
    return steps


def _of_parameters(release: Release) -> list[str]:
    if release.job.mechanism.name in NOISY:
        if release.job.model.family == "reference_cells":
            return [TAILS_BORROWED]
        return [NOISED_AGAIN if release.job.model.family == "cell_sums" else COUNTED_AGAIN]
    model = release.model(0)
    if not isinstance(model, Expectation):
        return []
    searched = isinstance(model, Recentred) and release.job.mechanism.name not in CLAMPED
    if not searched:
        return [BETWEEN_SETS]
    return [SEARCH_AGAIN, SEARCH_STANDS_IN] if release.job.frozen else [SEARCH_AGAIN]


def _standard_errors(release: Release) -> list[str]:
    clamped = release.job.mechanism.name in CLAMPED
    said = [
        *_of_parameters(release),
        "estimator `records`: T = B/m + W over m sets, W by linearisation with design strata, records as units; the bias "
        "of the privacy weights, which trim tails (under the lognormal model: counts too low, means too high, by some per "
        "cent), is not in it",
        "nominal 90 % intervals under the model; the model's own misfit is not in them",
    ]
    if clamped:
        said.append("the bias that the clamp brings, which may be larger than all of this, is in no standard error")
    if release.job.model.synthesis == "fbp":
        said.append("estimator `records` under fbp: at least the error of `parameters`; its weights do not vary given x")
    if release.job.model.synthetic_weights == "expected":
        said.append(
            "estimator `records` with expected weights: at least the error of `parameters`; w given y, x does not vary"
        )
    if release.job.rake:
        said.append("raked estimates: of their residuals from a regression on the margins; a raked total has none")
    if release.job.survey.psu:
        said.append(f"clustering by {release.job.survey.psu} is not in the model: these standard errors are too small")
    if release.job.survey.replicate_weights is not None:
        said.append("the design that the replicate weights carry is not in the model: these standard errors leave it out")
    if release.job.survey.fpc:
        said.append("populations are taken as infinite: standard errors have no finite population correction")
    if release.job.synthetic_sets == 1:
        said.append("with one synthetic set, T = W leaves out the spread between sets and is too small")
    return said
