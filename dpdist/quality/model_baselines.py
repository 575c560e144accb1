"""Two comparators fitted with the release's ε, of the sample (FBS) and of the population (FBP).

A comparator has the figures that mechanism `weighted` with the lognormal model would publish. Nothing is released ([T];
METHODS §5). Its guarantee is asymptotic; standing beside a strict one is for comparison only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Cells, Codes, Crosstab, Floats
from dpdist.engine.protocol import BlockRecorder, Pass, Released, StratumRecorder, combine, drive, fresh_noise
from dpdist.estimation.estimators import NotMet, factors, margins_of
from dpdist.job import Comparator, Job, StatisticName, budget_text
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Improper
from dpdist.planning.blocks import block_rows
from dpdist.privacy.claims import promised
from dpdist.privacy.weights import NotReached
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import cell_estimates
from dpdist.publish.synthesis import expectations, synthetic_sums
from dpdist.sampling import facts, sampler_of
from dpdist.storage.tables import each_part

FITTED: tuple[Comparator, ...] = ("fbs", "fbp")
SETS = 3
"""Number of synthetic sets of a comparator, if the release has only one."""
ESTIMATORS = ("parameters", "records")
ZEROS = "no record with an outcome above 0, which the lognormal law needs"
BEYOND = "the fit's figures overflow floating-point numbers: outcomes or weights differ by too many orders of magnitude"
UNRAKED = "the fit's estimates cannot be raked to all totals under rake"


@dataclass(frozen=True)
class BaselineSums:
    """Sums Σw and Σwy by comparator and estimator, (2, set, row) over crosstab rows; NaN if there is no fit.

    `missing` has the reason for every crosstab row with records but without figures, else "". `note` states the guarantee.
    """

    sums: Mapping[tuple[str, str], Floats]
    missing: NDArray[np.object_]
    note: str

    def figures(self, how: str, estimator: str, cells: Cells) -> dict[StatisticName, Floats]:
        weight, product = self.sums[how, estimator]
        estimates = cell_estimates(cells, np.ones(weight.shape[1]), weight, product)
        count, mean, total = (figures.mean(axis=0) for figures in estimates)
        return {"count": count, "mean": mean, "total": total}

    def notes(self, cells: Cells) -> list[str]:
        inside = cells.membership
        rows = (inside.indices[a:b] for a, b in zip(inside.indptr, inside.indptr[1:], strict=False))
        why = (sorted(set(self.missing[crosstab_rows]) - {""}) for crosstab_rows in rows)
        return [f"missing: {'; '.join(reasons)}" if reasons else self.note for reasons in why]


@dataclass(frozen=True)
class Visits:
    """Visits the records of a stratum whose outcome is above 0, block by block; per-record values are kept in a folder."""

    path: Path
    span: range
    """Positions of the stratum's records in the file."""
    size: int
    """Number of records in a block."""
    fit_row: Codes
    """The fit's row for each row of the current crosstab."""
    folder: Path

    def __call__(self, request: Pass) -> Floats:
        return combine(request, self._partials(request))

    def _partials(self, request: Pass) -> Iterator[Floats]:
        for number, records in self.blocks():
            stored, carry = self.folder / f"{number}.npz", dict[str, Any]()
            if stored.exists():
                with np.load(stored) as values:
                    carry.update(values)
            partial = request.kernel(records, carry, BlockRecorder())
            stored.unlink(missing_ok=True)  # because overwriting a file may wait for the disk
            np.savez(stored, **carry)
            yield partial

    def blocks(self) -> Iterator[tuple[int, Records]]:
        for number, part in enumerate(each_part(self.path, self.span.start, self.span.stop, self.size)):
            records = part.take(part.outcome > 0)
            if len(records):
                yield number, replace(records, row=self.fit_row[records.row])


def job_of_comparator(job: Job, how: Comparator) -> Job:
    """Returns the job of the imitated release.

    If the release keeps sizes secret, the comparator treats them as public, under zero_out.
    """
    columns = dict.fromkeys([*job.likelihood_predictors, *job.cell_columns])
    predictors = [name for name in columns if name not in job.strata]
    settings: dict[str, Any] = job.model_dump(mode="json")
    adjacency = "zero_out" if job.sizes_secret else job.budget.adjacency
    return Job.model_validate(
        settings
        | {
            "outcome": job.outcomes[0],
            "model": {"family": "lognormal", "predictors": predictors, "synthesis": how},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": settings["budget"]["epsilon"], "adjacency": adjacency},
            "synthetic_sets": job.synthetic_sets if job.synthetic_sets > 1 else SETS,
            "sampler": {},
            **dict.fromkeys(("reference", "calibration")),
            **dict.fromkeys(("rake", "compare"), ()),
        }
    )


# There is one fit for each stratum of the job, with the likelihood's predictors and the tables' columns as predictors. The
# two comparators share it. Search, draws, synthesis and estimators are those of a release, with random keys of their own.
#
# The lognormal law has no zeros, so records whose outcome is 0 are left out of the fit. In the table they have the mean
# weight of the other records in their crosstab row, and their number is public. Records are visited block by block,
# and their per-record values are stored on disk: only one block is in memory.
def fit_comparators(
    job: Job, crosstab: Crosstab, path: Path, key: Key, scratch: Path, tick: Callable[[int], None] = lambda strata: None
) -> BaselineSums:
    """Fits the job's comparators that are models. The records at `path` are in crosstab order."""
    comparators = [how for how in job.compare if how in FITTED]
    imitated, positive = job_of_comparator(job, comparators[0]), np.zeros(len(crosstab), dtype=np.int64)
    for records in each_part(path, 0, int(crosstab.count.sum()), block_rows(imitated.sampler.draws)):
        positive += np.bincount(records.row[records.outcome > 0], minlength=len(crosstab))
    missing = np.where((crosstab.count > 0) & (positive == 0), ZEROS, "").astype(object)
    sets = _sets(imitated, crosstab, positive, path, key.child("strata"), scratch, missing, tick)
    in_fit = (positive > 0) & (missing == "")
    sums: dict[tuple[str, str], Floats] = {
        (how, e): np.full((2, imitated.synthetic_sets, len(crosstab)), np.nan) for how in comparators for e in ESTIMATORS
    }
    share = crosstab.count[in_fit] / positive[in_fit]
    for how in comparators if in_fit.any() else ():
        imitated = job_of_comparator(job, how)
        promise = promised(mechanism_of(imitated).promise(imitated), facts(imitated))
        release = ReleasedObject(imitated, promise, _crosstab_of(crosstab, in_fit, positive), sets, key.child("publish"))
        with np.errstate(all="ignore"):
            expected, synthetic, n = expectations(release), synthetic_sums(release), positive[in_fit].astype(float)
        assert expected is not None
        pairs = {
            "parameters": [(n * w, n * wy) for w, wy in expected],
            "records": [(sums_of_set.a, sums_of_set.b) for sums_of_set in synthetic],
        }
        for estimator, values in pairs.items():
            weight, product = np.array(values).swapaxes(0, 1)
            sums[how, estimator][:, :, in_fit] = weight * share, product
    beyond = in_fit & ~np.all([np.isfinite(values).all(axis=(0, 1)) for values in sums.values()], axis=0)
    missing[beyond] = BEYOND
    for figures in sums.values():
        figures[:, :, beyond], figures[:, :, crosstab.count == 0] = np.nan, 0.0
    return BaselineSums(
        _rake(job, crosstab, sums, missing), missing, _note(imitated, bool((positive < crosstab.count).any()))
    )


def _sets(
    job: Job,
    crosstab: Crosstab,
    positive: NDArray[np.int64],
    path: Path,
    key: Key,
    scratch: Path,
    missing: NDArray[np.object_],
    tick: Callable[[int], None],
) -> tuple[dict[str, Mapping[str, Any]], ...]:
    """Parameters of every synthetic set and stratum, as JSON. `missing` gets the reason for a stratum without a fit."""
    fits, row = _crosstab_of(crosstab, positive > 0, positive), (np.cumsum(positive > 0) - 1).astype(np.int32)
    edges = np.concatenate([[0], np.cumsum(crosstab.count)])
    sets: tuple[dict[str, Mapping[str, Any]], ...] = tuple({} for _ in range(job.synthetic_sets))
    for stratum, label in enumerate(fits.stratum_labels if len(fits) else ()):
        rows = crosstab.rows_of(crosstab.stratum_labels.index(label))
        own_records = range(int(edges[rows.start]), int(edges[rows.stop]))
        folder = scratch / str(stratum)
        folder.mkdir()
        model = builder_of(job).build(job, fits, fits.rows_of(stratum))
        rounds = mechanism_of(job).protect(job, model, StratumRecorder())
        try:
            visit = Visits(path, own_records, block_rows(job.sampler.draws), row, folder)
            sampler = sampler_of(job, folder)
            released: Released = drive(rounds, model, sampler, key, label, visit, fresh_noise)
            for parameters, theta in zip(sets, released.parameters, strict=True):
                parameters[label] = model.describe(theta)
        except (Improper, NotReached) as failure:
            missing[rows] = np.where(crosstab.count[rows] > 0, f"stratum {label}: {failure}", "")
        tick(1)
    return sets


def _crosstab_of(crosstab: Crosstab, which: NDArray[np.bool_], count: NDArray[np.int64]) -> Crosstab:
    codes = {name: values[which] for name, values in crosstab.codes.items()}
    return Crosstab(codes, crosstab.levels, count[which], crosstab.strata, crosstab.design_strata)


def _rake(
    job: Job, crosstab: Crosstab, sums: dict[tuple[str, str], Floats], missing: NDArray[np.object_]
) -> Mapping[tuple[str, str], Floats]:
    """Rakes estimates to the job's public totals. If they cannot be met, `missing` gets the reason."""
    if not job.rake:
        return sums
    try:
        rake = margins_of(job, crosstab)
        return {name: values * factors(np.nan_to_num(values[0]), rake) for name, values in sums.items()}
    except NotMet:
        missing[crosstab.count > 0] = UNRAKED
        return {name: np.where(crosstab.count > 0, np.nan, values) for name, values in sums.items()}


def _note(job: Job, zeros: bool) -> str:
    budget = f"ε = {budget_text(job.budget.epsilon)} over {job.synthetic_sets} sets, {job.budget.adjacency}"
    note = "; the fit leaves out records with an outcome of 0, and treats their number as public" if zeros else ""
    return f"asymptotic, {budget}{note}"
