"""Sample counts: noise where a job protects predictors and sizes (METHODS §7d), and cautions where they are small.

The crosstab is measured at up to three nested levels of detail: all records, cells of tables, and combinations of all
levels. Adding or removing a record changes one count of each level by 1. Exchanging records with equal unprotected
columns changes two. So a level's counts have L1 sensitivity Δ₁ = 1 or 2 and L2 sensitivity Δ₂ = 1 or √2, times the
records of a privacy unit. Level l has the share s_l of the crosstab's budget, with Σ s_l = 1. Noise is discrete Laplace of
scale Δ₁/(s_l ε), or discrete Gaussian with σ² = Δ₂²/(2 s_l ρ). Counts by unprotected columns are the same in
neighbouring files, and are kept exact. All further steps are post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError
from dpdist.core.records import Crosstab, Floats, Ints, SmallCounts
from dpdist.estimation.least_squares import nearest_on_simplex
from dpdist.job import Job, NoiseName
from dpdist.privacy.adjacency import listed
from dpdist.privacy.guarantees import Moved, NoisyQuery, record_epsilon, record_rho
from dpdist.privacy.noise import simulated_noise

TOTAL_SHARE = Fraction(1, 10)
"""Share of the crosstab's budget for the number of all records. The other levels share the rest equally."""
GRAIN = 1000
"""σ is rounded up to a multiple of 1/GRAIN."""


class Level(NamedTuple):
    """One level of detail: counts by all combinations of these columns, which come first in `tree`."""

    columns: tuple[str, ...]
    scale: Fraction | None
    """The noise scale, b or σ; None if counts are exact and public."""


def noise_name(job: Job) -> NoiseName:
    """The law of the noise: Gaussian if the release's class is zCDP, otherwise Laplace."""
    return "gaussian" if job.mechanism.gaussian else "laplace"


def tree(job: Job) -> tuple[str, ...]:
    """The crosstab's columns in the order of levels: columns with exact counts, then those of tables, then the rest."""
    cells = (name for name in job.cell_columns if name in job.categories)
    return tuple(dict.fromkeys([*job.counted_columns, *cells, *job.categories]))


def layers_of(job: Job) -> tuple[Level, ...]:
    """The levels of detail, from the coarsest to every combination.

    The coarsest level is exact if neighbours have the same counts by its columns.
    """
    order, public = tree(job), len(job.counted_columns)
    ends = sorted({public, len({*job.counted_columns, *job.cell_columns} & set(order)), len(order)})
    secret = job.budget.adjacency == "add_remove"
    shares = [TOTAL_SHARE if end == 0 and len(ends) > 1 else None for end in ends]
    noisy = [end for end in ends if end > public or secret]
    unshared = [end for end, share in zip(ends, shares, strict=True) if end in noisy and share is None]
    rest = 1 - (TOTAL_SHARE if secret and shares[0] is not None else 0)
    equal = Fraction(rest, len(unshared) or 1)
    return tuple(
        Level(order[:end], _scale(job, equal if share is None else share) if end in noisy else None)
        for end, share in zip(ends, shares, strict=True)
    )


@dataclass(frozen=True)
class CountsQuery(NoisyQuery):
    """Counts of which a neighbour changes a given number by 1: L1 distance, and squared L2 distance."""

    @property
    def squared(self) -> Moved:
        return self.moved


def queries_of_counts(job: Job) -> tuple[NoisyQuery, ...]:
    """The queries for the noisy levels; none if sample counts are public."""
    distance, law = Moved(Fraction(1), Fraction(2), Fraction(2)), noise_name(job)
    return tuple(
        CountsQuery(f"sample counts by {', '.join(level.columns) or 'no column'}", distance, level.scale, law)
        for level in (layers_of(job) if job.noisy_crosstab else ())
        if level.scale is not None
    )


def _scale(job: Job, share: Fraction) -> Fraction:
    distance = 1 if job.budget.adjacency == "add_remove" else 2
    if noise_name(job) == "laplace":
        return distance / record_epsilon(job, share * job.epsilon.crosstab)
    square = distance / (2 * record_rho(job, share * job.rho.crosstab)) * GRAIN**2
    return Fraction(isqrt(square.numerator // square.denominator) + 1, GRAIN)


def counts(job: Job, crosstab: Crosstab) -> list[Ints]:
    """Exact counts of every level, (cell,) each, of a crosstab with all combinations; confidential."""
    values = _as_tree(job, crosstab, crosstab.count)
    sizes = [len(crosstab.levels[name]) for name in tree(job)]
    return [values.reshape(int(np.prod(sizes[: len(level.columns)])), -1).sum(axis=1) for level in layers_of(job)]


def noisy_crosstab(job: Job, crosstab: Crosstab, noisy_counts: Sequence[Floats]) -> Crosstab:
    """The published crosstab, from which all other output follows.
    `noisy_counts` are the noisy counts of every level; only the rows of `crosstab` are used.

    The total is at least 1, because a file has a record.
    """
    estimates = _upward(layers_of(job), noisy_counts, noise_name(job))
    total = np.maximum(np.rint(estimates[0]), 1.0 if len(estimates[0]) == 1 else 0.0).astype(np.int64)
    for below in estimates[1:]:
        total = _whole(nearest_on_simplex(below.reshape(len(total), -1), total.astype(np.float64)), total).reshape(-1)
    sampled = crosstab.sampled if job.drawn_is_public else None
    return replace(crosstab, count=_from_tree(job, crosstab, total), sampled=sampled)


def counted_again(job: Job, crosstab: Crosstab, draws: int, rng: np.random.Generator) -> Floats:
    """Counts of the published crosstab's rows under simulated noise, made consistent in the same way, (draw, row), for
    standard errors.

    Noise is added to the published counts, because the exact ones are confidential.
    """
    published = counts(job, crosstab)
    return np.array([simulated_crosstab(job, crosstab, published, rng).count for _ in range(draws)], dtype=np.float64)


def simulated_crosstab(job: Job, crosstab: Crosstab, exact: Sequence[Ints], rng: np.random.Generator) -> Crosstab:
    """The crosstab as published, from these counts of every level under simulated noise."""
    law = noise_name(job)
    noisy = [
        values + (np.zeros(1) if level.scale is None else simulated_noise(law, level.scale, len(values), rng))
        for level, values in zip(layers_of(job), exact, strict=True)
    ]
    return noisy_crosstab(job, crosstab, noisy)


def _upward(detail: Sequence[Level], noisy_counts: Sequence[Floats], law: NoiseName) -> list[Floats]:
    """The best linear unbiased estimate of every level, from counts of the level and of finer levels."""
    values, variance = np.asarray(noisy_counts[-1], dtype=np.float64), _variance(detail[-1], law)
    estimates = [values]
    for level, noisy in zip(reversed(detail[:-1]), reversed(noisy_counts[:-1]), strict=True):
        parts = len(values) // len(noisy)
        summed, spread, alone = values.reshape(len(noisy), parts).sum(axis=1), parts * variance, _variance(level, law)
        share = spread / (spread + alone) if spread + alone > 0.0 else 1.0
        values, variance = share * np.asarray(noisy, dtype=np.float64) + (1.0 - share) * summed, share * alone
        estimates.append(values)
    return estimates[::-1]


def _variance(level: Level, law: NoiseName) -> float:
    if level.scale is None:
        return 0.0
    scale = float(level.scale)
    return scale**2 if law == "gaussian" else float(1.0 / (np.cosh(1.0 / scale) - 1.0))


def _whole(values: Floats, total: Ints) -> Ints:
    """Rounds rows to whole numbers that sum to their totals, by largest remainders, (cell, part)."""
    integers = np.floor(values + 1e-9).astype(np.int64)
    remainder = total - integers.sum(axis=1)
    rank = np.argsort(np.argsort(integers - values, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(integers + (rank < remainder[:, None]), dtype=np.int64)


def _as_tree(job: Job, crosstab: Crosstab, values: Ints) -> Ints:
    """Values of a crosstab with all combinations, rearranged to the column order of `tree`."""
    names, shape = list(crosstab.codes), [len(crosstab.levels[name]) for name in crosstab.codes]
    return values.reshape(shape or (1,)).transpose([names.index(name) for name in tree(job)] or (0,)).reshape(-1)


def _from_tree(job: Job, crosstab: Crosstab, values: Ints) -> Ints:
    names, order = list(crosstab.codes), tree(job)
    shape = [len(crosstab.levels[name]) for name in order]
    return values.reshape(shape or (1,)).transpose([order.index(name) for name in names] or (0,)).reshape(-1)


REMEDIES = (
    "use coarser levels or fewer columns; protect the counts (budget.adjacency: add_remove{}); or state public_frame: "
    '{{accepted: "why they may be published"}}'
)
CROSSED = (
    "Under `adjacency: {adjacency}`, the number of sample records in every combination of {columns} is public, even if no "
    "table crosses them. The job sets no `frame_minimum`, so small counts are published too."
)
"""Why small counts are published without a stated reason."""
ACCEPTED = "The job accepts small counts, for the stated reason “{}”."
FORBIDDEN = (
    "use coarser levels or fewer columns to avoid them, frame_minimum: {} to refuse them, or public_frame: "
    '{{accepted: "why they may be published"}} to accept them'
)
BY_NOISY_COUNTS = ', with predictors: {protect: {epsilon: "…"}} or the mechanism tables'
BY_A_REFERENCE = ", with a file or an earlier release as reference"
"""Remedy for a mechanism that can hide counts, except with histograms of the current file as reference."""


def count_small(job: Job, crosstab: Crosstab, units: SmallCounts | None = None) -> SmallCounts | None:
    """Published sample counts below the job's minimum; None if no counts are published.

    `units` holds counts by privacy units with several records, which no crosstab shows.
    """
    if job.public_counts is None:
        return None
    return units if units is not None else crosstab.below(job.least_count, job.public_counts)


def small_counts(job: Job, counts: SmallCounts | None) -> str:
    """A text on how many published counts are below the job's minimum; "" if there are none."""
    if counts is None or not counts.below_minimum:
        return ""
    if job.privacy_unit is None:
        below, alone = f"below {job.least_count}", "1"
    else:
        below, alone = f"below {job.least_count} units (column {job.privacy_unit.column})", "of a single unit"
    published = f"{counts.below_minimum:,} of the {counts.every:,} published sample counts"
    single = f"{counts.single:,} of these are" if counts.single > 1 else f"{counts.single or 'none'} of these is"
    return f"{published} {'is' if counts.below_minimum == 1 else 'are'} {below}, and {single} {alone}"


def _made_by(job: Job, crosstab: Crosstab, counts: SmallCounts) -> str:
    """A clause on the columns of small counts, and on the one, or the design's strata, without which fewest are small."""
    columns, strata = job.public_counts or (), job.survey.design_strata
    words = f"they are counts by {listed(columns)}"
    if len(columns) < 2 or job.privacy_unit is not None:
        return words
    without = {name: [other for other in columns if other != name] for name in columns}
    if len(strata) > 1:
        without[listed(strata)] = [name for name in columns if name not in strata]
    small = {name: crosstab.below(job.least_count, by or ()).below_minimum for name, by in without.items()}
    name = min(small, key=small.__getitem__)
    if small[name] == counts.below_minimum:
        return words
    whose = " of survey.design_strata" if name == listed(strata) or name in strata else ""
    return f"{words}; without {name}{whose}, {small[name] or 'none'} would be small"


def cautions(job: Job, crosstab: Crosstab, counts: SmallCounts | None) -> list[Caution]:
    """The caution of `validate` and `plan` about small counts, if there are any."""
    if counts is None or not (text := small_counts(job, counts)):
        return []
    made_by = _made_by(job, crosstab, counts)
    consequence, remedies = "A run of this job is refused.", _remedies(job)
    if job.public_frame is not None:
        consequence, remedies = _accepted(job.public_frame.accepted), ""
    elif _published_unasked(job):
        consequence, remedies = _crossed(job), FORBIDDEN.format(job.least_count)
    advice = f"{remedies[:1].upper()}{remedies[1:]}." if remedies else ""
    text = f"{text}. {made_by[0].upper()}{made_by[1:]}"
    return [Caution.of("small_counts", counts=text, consequence=consequence, remedies=advice)]


def refuse_small_counts(job: Job, crosstab: Crosstab, counts: SmallCounts | None) -> None:
    """Raises `JobError` for small counts, unless the job accepts them, or crosses its tables and states no minimum."""
    text = small_counts(job, counts)
    if counts is not None and text and job.public_frame is None and not _published_unasked(job):
        text = f"{text}; {_made_by(job, crosstab, counts)}"
        allowed = f"counts of {job.least_count} or more, or a stated reason"
        raise JobError.of(job.dataset, "public_frame", text, allowed, _remedies(job))


def _published_unasked(job: Job) -> bool:
    return job.mechanism.uses("hierarchies") and job.frame_minimum is None


def _accepted(reason: str) -> str:
    return ACCEPTED.format(reason.rstrip("."))


def _crossed(job: Job) -> str:
    return CROSSED.format(adjacency=job.budget.adjacency, columns=listed(job.public_counts or ()))


def _remedies(job: Job) -> str:
    needs_no_reference = job.mechanism.histogram_share is not None
    return REMEDIES.format(("", BY_A_REFERENCE)[job.epsilon.histograms > 0] if needs_no_reference else BY_NOISY_COUNTS)


def accepted(job: Job, crosstab: Crosstab) -> dict[str, Any]:
    """The statement's entry on small counts that are published all the same. `crosstab` is the published one.

    It has no counts by privacy units, because no crosstab shows which records belong to one unit.
    """
    if job.public_counts is None or (job.public_frame is None and not _published_unasked(job)):
        return {}
    least, small = job.least_count, crosstab.below(job.least_count, job.public_counts)
    section: dict[str, Any] = {"frame_minimum": least}
    why = _crossed(job)
    if job.public_frame is not None:
        section |= {"accepted": job.public_frame.accepted}
        why = _accepted(job.public_frame.accepted)
    elif not small.below_minimum and job.privacy_unit is None:
        return {}
    if job.privacy_unit is not None:
        may = f"Some published sample counts may be smaller than {least} units (column {job.privacy_unit.column})"
        return {"public_frame": {"in_words": f"{may}. {why}", **section}}
    counts_text = small_counts(job, small) or f"None of the {small.every:,} published sample counts is below {least}"
    figures = {"counts": small.every, "below": small.below_minimum, "of_one_record": small.single}
    return {"public_frame": {"in_words": f"{counts_text}. {why}", **section, **figures}}
