"""Predicts the noise of each published figure from ε and public sizes, before any budget is spent.

A base cell is a combination of all columns of the job's tables. In a base cell of n records, noise has the size c/√n, in
direct standard errors. The constant c follows from b, the scale of the Laplace noise in records:

- Under limits from a reference, c is about 6b for a count and 12b for a mean (docs/methods.md, §7b). It is larger for a
  mean because the outcome's limits are about two standard deviations from the middle.
- Under public bounds, c is at least √2 b. With weights of at most U, the noise of a count has the standard deviation √2 b
  U, and the direct error is at most U√n. For a weighted sum of outcomes within ±H both are H times as large.

A cell that is the sum of k base cells has the noise of k sums: c√k/√n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import JobError, Problem
from dpdist.core.records import Frame
from dpdist.core.table_cells import counted_and_named, cross
from dpdist.estimation.estimators import NORMAL_90
from dpdist.job import Job, budget_text
from dpdist.mechanisms.parts import builder_of
from dpdist.planning.plan import Plan

DROWNED = 1.0
"""Noise, in direct standard errors, above which it is larger than the sampling error: then it drowns the figure."""
FAR = 2.0
"""Noise, in direct standard errors, above which a plan names every figure.

Borrowing takes half of it away. The rest is as large as the sampling error, so that an estimate may be several of its
direct errors off.
"""
SMALL_EPSILON = 0.05
"""An ε below which a release of a few thousand records is mostly noise."""
MEAN_LIKE = frozenset({"mean", "total", "ratio"})
"""Statistics of an outcome. Their noise is predicted by the formula for a mean."""
SHOWN = 12
"""Number of cells of each table that a plan lists with their noise, the noisiest first."""
ALONE = (
    "this is noise alone. The bias of clipping, the reference's own error and how well histograms fit are not in it. "
    "dpdist rehearse measures the whole error"
)
TYPICAL = (
    "figures are typical ones, before small cells borrow from the reference or from other cells: that takes half of the "
    "noise or more away, and relies on their being alike. Means of skewed outcomes err by more"
)
BOUND = (
    "figures are least ones, for noise under public bounds: they do not compare with those of another mechanism. "
    "Means err by far more where outcomes stay well within their bounds"
)
ASSUMED = (
    "a direct standard error is here that of as many independent records of like weight. Where clusters make it larger, "
    "the same noise is a smaller part of it"
)
KNOWN = "a strict mechanism whose noise follows from public sizes: reference_tables, laplace_strict, or laplace_composed"
OTHERWISE = "use dpdist rehearse"


class Expected(NamedTuple):
    """The predicted noise of every published count and mean.

    `cells` has the columns table, cell, label, records, sums, deviation, most, statistic, noise. A row is a published cell,
    margins too.

    `sums` is the number of noisy sums that a cell adds up. `deviation` is the standard deviation of the count's noise, in
    the weight's unit, and `most` the largest count that so many records can have: NaN without public bounds.

    `noise` is in direct standard errors. It is a lower bound if `at_least` is true, and otherwise approximate. Other
    statistics are not predicted.
    """

    cells: pd.DataFrame
    at_least: bool

    @property
    def median(self) -> float:
        """The median noise over cells, of counts or of means, whichever is larger."""
        return float(self.cells.groupby("statistic")["noise"].median().max())

    @property
    def largest(self) -> float:
        return float(self.cells["noise"].max())

    @property
    def drowned(self) -> int:
        """Number of figures whose noise exceeds the sampling error."""
        return int((self.cells["noise"] > DROWNED).sum())

    @property
    def by_statistic(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields "counts" and "means", each with the rows whose noise is known."""
        predicted = self.cells[self.cells["noise"].notna()]
        yield from ((str(name), rows) for name, rows in predicted.groupby("statistic", sort=True))


def expected_noise(plan: Plan) -> Expected | None:
    """Predicts the noise of a plan's release."""
    return noise_in(plan.job, plan.frame)


def noise_in(job: Job, frame: Frame) -> Expected | None:
    """Predicts the noise; None if it does not follow from public facts, or if sizes are secret.

    A model's `noise_of_one` is the constant c (see above) of a count and of a mean, the noise of a cell with one record.
    """
    model = builder_of(job).build(job, frame, frame.rows_of(0))
    of_one: tuple[float, float] | None = getattr(model, "noise_of_one", None)
    if of_one is None or job.sizes_secret or not job.strict:
        return None
    base = frame.group(job.cell_columns)[0]
    whole, frames = bool(job.mechanism.whole_tables), []
    deviation, most = getattr(model, "noise_of_count", (np.nan, np.nan))
    for table in job.tables:
        cells = cross(frame, table.by, table.margins)
        records = cells.membership @ frame.count.astype(float)
        inside = cells.membership.tocoo()
        met = np.unique(np.column_stack([inside.row, base[inside.col]])[frame.count[inside.col] > 0], axis=0)
        added = np.ones(len(cells)) if whole else np.bincount(met[:, 0], minlength=len(cells))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(records > 0, np.sqrt(added / records), np.nan)
        named = [job.presentation.cell(table.by, label) for label in cells.labels]
        columns = {"table": table.name, "cell": named, "records": records.astype(int), "sums": added.astype(int)}
        columns |= {"label": cells.labels, "deviation": deviation * np.sqrt(added), "most": most * records}
        names = {statistic.name for statistic in table.statistics}
        published = {"counts": "count" in names, "means": bool(names & MEAN_LIKE)}
        for statistic, size in zip(published, of_one, strict=True):
            if published[statistic]:
                frames.append(pd.DataFrame(columns | {"statistic": statistic, "noise": size * share}))
    return Expected(pd.concat(frames, ignore_index=True), bool(getattr(model, "noise_at_least", True)))


def warned(plan: Plan) -> Iterator[str]:
    """Yields a warning if noise drowns cells, or if ε is small and the noise cannot be predicted."""
    noises, epsilon = expected_noise(plan), float(plan.job.budget.epsilon)
    if noises is not None and noises.drowned:
        cells = f"{_about(noises)}{_drowned(noises)}"
        enough = epsilon_for(plan, DROWNED, every=True)
        setting = f"{enough.in_words} none" + (", by these least figures" if noises.at_least else "")
        lean = " Figures of such cells lean on the reference." if plan.reference is not None else ""
        yield f"at ε = {epsilon:g} noise would drown {cells}; {setting} (dpdist plan tells which).{lean}"
    elif noises is None and plan.promise.total.name != "none" and epsilon < SMALL_EPSILON:
        yield f"ε = {epsilon:g} is small, and noise is not known beforehand: dpdist rehearse measures it on public data"


def at_sizes_of(job: Job, frame: Frame) -> str | None:
    """Returns how many cells noise drowns at the job's ε, and an ε at which it drowns at most half; None if not known."""
    noises = noise_in(job, frame)
    if noises is None or not np.isfinite(noises.median):
        return None
    text = f"noise drowns {_about(noises)}{_drowned(noises)} at this ε"
    if noises.median <= DROWNED:
        return text
    enough = least_epsilon(job, frame, DROWNED, every=False)
    return f"{text}; {enough.in_words} it drowns at most half of each" + (
        ", by these least figures" if noises.at_least else ""
    )


def _about(noises: Expected) -> str:
    return "at least " if noises.at_least else "about "


def _drowned(noises: Expected) -> str:
    parts = [f"{int((rows['noise'] > DROWNED).sum()):,} of {len(rows):,} {name}" for name, rows in noises.by_statistic]
    return " and ".join(parts)


def in_words(noises: Expected) -> Iterator[str]:
    """Yields lines of the plan: on counts, on means, and on the noisiest cells of every table."""
    about = _about(noises)
    for name, rows in noises.by_statistic:
        largest = rows.iloc[int(np.argmax(rows["noise"].to_numpy()))]
        yield (
            f"{name}: {about}{rows['noise'].median():.2g} of a direct standard error in the median of {len(rows):,} cells, "
            f"{about}{largest['noise']:.2g} in the largest ({largest['cell']})"
        )
    yield f"{about}{_drowned(noises)} above {DROWNED:g}, which noise would drown"
    yield from _in_weights(noises)
    yield BOUND if noises.at_least else TYPICAL
    yield ALONE
    yield ASSUMED
    predicted = noises.cells[noises.cells["noise"].notna()]
    for table, rows in predicted.groupby("table", sort=False):
        number = rows.groupby("statistic").cumcount()
        wide = rows.assign(row=number).pivot(index=["row", "cell", "records", "sums"], columns="statistic", values="noise")
        worst = wide.loc[wide.max(axis=1).sort_values(ascending=False, kind="stable").index].head(SHOWN + 1)
        named, sizes = worst.index.to_frame(), [_sizes(noise, noises.at_least) for _, noise in worst.iterrows()]
        listed = zip(named["cell"], named["records"], named["sums"], sizes, strict=True)
        for cell, records, sums, size in islice(listed, SHOWN):
            several = f" in {sums:,} noisy sums" if sums > 1 else ""
            yield f"{table}: {cell} ({records:,} records{several}): {size}"
        if len(wide) > SHOWN:
            yield f"{table}: {len(wide) - SHOWN:,} cells more, none with a larger figure than {sizes[SHOWN]}"
        far = rows[rows["noise"] > FAR].drop_duplicates("cell")
        if more := far[~far["cell"].isin(set(named["cell"].head(SHOWN)))]["label"].to_list():
            named_too = counted_and_named(more)
            yield f"{table}: also above {FAR:g}, so that a figure may be several direct errors off: {named_too}"


def _in_weights(noises: Expected) -> Iterator[str]:
    """Yields the noise of counts in the weight's own unit, and the published cells that it hides whatever their weights."""
    cells = noises.cells.drop_duplicates(["table", "cell"])
    cells = cells[cells["deviation"].notna() & (cells["records"] > 0)]
    if cells.empty:
        return
    deviation = cells["deviation"].to_numpy()
    largest = int(np.argmax(deviation))
    yield (
        f"counts: noise has a standard deviation of {deviation.min():,.0f} to {deviation[largest]:,.0f} "
        f"({cells['cell'].iloc[largest]}), in the unit of the weight"
    )
    hidden = cells[cells["most"] < NORMAL_90 * cells["deviation"]]
    if len(hidden):
        yield (
            f"noise hides {len(hidden):,} of {len(cells):,} published counts, even if all of their weights are at the "
            f"bound: {counted_and_named(hidden['label'].to_list())}. Their means say nothing"
        )


def _sizes(noise: pd.Series[float], at_least: bool) -> str:
    return ", ".join(f"{name} {'at least ' if at_least else ''}{size:.2g}" for name, size in noise.items())


class Needed(NamedTuple):
    """An ε for the release, and the part of it for histograms; None where the job has no histograms."""

    epsilon: Fraction
    of_histograms: Fraction | None

    @property
    def changes(self) -> str:
        """Returns the command-line options that set these values."""
        options = f"--set budget.epsilon={budget_text(self.epsilon)}"
        if self.of_histograms is None:
            return options
        return f"{options} --set reference.histogram.epsilon={budget_text(self.of_histograms)}"

    @property
    def in_words(self) -> str:
        """Returns the words "at ε = …", with the part for histograms."""
        more = f", {budget_text(self.of_histograms)} of it for histograms," if self.of_histograms is not None else ""
        return f"at ε = {budget_text(self.epsilon)}{more}"

    def set_in(self, job: Job) -> Job:
        """Returns the job with these values."""
        budget, reference = job.budget.model_copy(update={"epsilon": self.epsilon}), job.reference
        if reference is not None and reference.paid is not None:
            paid = reference.paid.model_copy(update={"epsilon": self.of_histograms})
            reference = reference.model_copy(update={"histogram": paid})
        return job.model_copy(update={"budget": budget, "reference": reference})


def epsilon_for(plan: Plan, error: float, *, every: bool = False) -> Needed:
    """Computes an ε of two digits at which noise is at most `error` direct standard errors.

    It is the noise of counts or of means, whichever is larger: in the median cell, or with `every` in every cell. Gates
    keep their ε. Histograms keep their share of what gates leave, rounded down. ε is rounded up until the noise that is
    predicted at these settings is small enough. Raises `JobError` where noise cannot be predicted.
    """
    return least_epsilon(plan.job, plan.frame, error, every)


def least_epsilon(job: Job, frame: Frame, error: float, every: bool) -> Needed:
    """The same, of a job with this frame."""
    noises = noise_in(job, frame)
    if noises is None or not np.isfinite(noises.median):
        problem = Problem("--for-error", f"noise of '{job.mechanism.name}' is not known beforehand here", KNOWN, OTHERWISE)
        raise JobError(job.dataset, [problem])
    paid = job.reference.paid if job.reference is not None else None
    left = job.epsilon_of_tables + (paid.epsilon if paid is not None else 0)
    gates = job.budget.epsilon - left
    share = paid.epsilon / left if paid is not None else None
    epsilon = _two_digits(gates + left * Fraction(noises.largest if every else noises.median) / Fraction(error), ceil)
    while True:
        settings = Needed(epsilon, None if share is None else _two_digits(share * (epsilon - gates), floor))
        there = noise_in(settings.set_in(job), frame)
        if there is None or (there.largest if every else there.median) <= error:
            return settings
        epsilon = _two_digits(epsilon * Fraction(1001, 1000), ceil)


def _two_digits(epsilon: Fraction, rounded: Callable[[Fraction], int]) -> Fraction:
    """Rounds to two significant digits, up or down."""
    step = Fraction(10) ** (floor(log10(epsilon)) - 1)
    return rounded(epsilon / step) * step


def needed(plan: Plan, error: float) -> str:
    """Returns the text that `plan --for-error` prints."""
    median, every = (epsilon_for(plan, error, every=in_every_cell) for in_every_cell in (False, True))
    noises = expected_noise(plan)
    assert noises is not None
    of, least = " and ".join(name for name, _ in noises.by_statistic), ", in its least figure," if noises.at_least else ""
    size = f"the median cell's noise{least} is at most {error:g} direct standard errors ({of})"
    return (
        f"at ε = {budget_text(median.epsilon)} {size}: {median.changes}\n"
        f"at ε = {budget_text(every.epsilon)} no cell's noise{least} is more: {every.changes}\n"
        f"{BOUND if noises.at_least else TYPICAL}\n"
        f"{ALONE}"
    )


def drowns_most(plan: Plan) -> str:
    """Returns a one-line warning if noise would drown every cell, otherwise an empty text.

    Without a reference it also warns if noise would drown half of the counts or half of the means.
    """
    noises = expected_noise(plan)
    if noises is None or not (predicted := int(noises.cells["noise"].notna().sum())):
        return ""
    if noises.drowned == predicted:
        size = f"{noises.median:,.0f}" if noises.median >= 10 else f"{noises.median:.2g}"
        return f"noise would drown every cell: {_about(noises)}{size} direct standard errors in the median"
    if plan.reference is not None or all((rows["noise"] > DROWNED).mean() < 0.5 for _, rows in noises.by_statistic):
        return ""
    return f"noise would drown {_about(noises)}{_drowned(noises)}"
