"""Noise that is expected of each published cell, before anything is spent: it follows from ε and public sizes.

Noise on the sums of a base cell of n records is c/√n of its direct standard errors. Of clipped sums under limits that a
reference fixes, c is about 6b, b the noise's scale in records (METHODS §7b). Of sums under public bounds U of weights, a
direct error is at most U√n, so c = √2 b is a lower bound. Margins add the noise of their k base cells: c√k/√n.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import JobError, Problem
from dpdist.core.table_cells import cross
from dpdist.job import budget_text
from dpdist.runtime.plan import Plan

DROWNED = 1.0
"""Direct standard errors of noise beyond which it says more than the sample does."""
SMALL_EPSILON = 0.05
"""Below it a release of a few thousand records is mostly noise."""
SHOWN = 12
"""Cells of a table that a plan lists, the noisiest first."""
KNOWN = "a strict mechanism whose noise follows from public sizes: reference_tables, laplace_strict, or laplace_composed"


class Expected(NamedTuple):
    """Every published cell: table, cell, records, noise in direct standard errors; whether that is a lower bound."""

    cells: pd.DataFrame
    at_least: bool

    @property
    def median(self) -> float:
        return float(self.cells["noise"].median())

    @property
    def drowned(self) -> int:
        return int((self.cells["noise"] > DROWNED).sum())


def expected_noise(plan: Plan) -> Expected | None:
    """None where it is not known beforehand, or where sizes are secret."""
    model, job, frame = plan.model, plan.job, plan.frame
    of_one: float | None = getattr(model, "noise_of_one", None)
    if of_one is None or job.sizes_secret or not job.strict:
        return None
    base = frame.group(job.cell_columns)[0]
    whole, frames = bool(job.mechanism.whole_tables), []
    for table in job.tables:
        cells = cross(frame, table.by, table.margins)
        records = cells.membership @ frame.count.astype(float)
        inside = cells.membership.tocoo()
        met = np.unique(np.column_stack([inside.row, base[inside.col]])[frame.count[inside.col] > 0], axis=0)
        added = np.ones(len(cells)) if whole else np.bincount(met[:, 0], minlength=len(cells))
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = np.where(records > 0, of_one * np.sqrt(added / records), np.nan)
        named = [", ".join(label) or "all" for label in cells.labels]
        frames.append(pd.DataFrame({"table": table.name, "cell": named, "records": records.astype(int), "noise": noise}))
    return Expected(pd.concat(frames, ignore_index=True), bool(getattr(model, "noise_at_least", True)))


def warned(plan: Plan) -> Iterator[str]:
    """A line where noise drowns cells; one where ε is small and noise is not known beforehand."""
    noises, epsilon = expected_noise(plan), float(plan.job.budget.epsilon)
    if noises is not None and noises.drowned:
        cells = f"{_about(noises)}{_drowned(noises)}"
        yield f"at ε = {epsilon:g} noise would drown {cells}; dpdist plan --for-error .5 tells what is needed"
    elif noises is None and plan.promise.total.name != "none" and epsilon < SMALL_EPSILON:
        yield f"ε = {epsilon:g} is small, and noise is not known beforehand: dpdist rehearse measures it on public data"


def _about(noises: Expected) -> str:
    return "at least " if noises.at_least else "about "


def _drowned(noises: Expected) -> str:
    return f"{noises.drowned:,} of {int(noises.cells['noise'].notna().sum()):,} cells"


def in_words(noises: Expected) -> Iterator[str]:
    """Lines for people: over all cells, and the noisiest of every table."""
    known = noises.cells[noises.cells["noise"].notna()]
    about = _about(noises)
    largest = known.iloc[int(np.argmax(known["noise"].to_numpy()))]
    yield (
        f"{about}{noises.median:.2g} of a direct standard error in the median of {len(known):,} cells, "
        f"{largest['noise']:.2g} in the largest ({largest['cell']})"
    )
    yield f"{_drowned(noises)} above {DROWNED:g}, which noise would drown"
    for name, rows in known.groupby("table", sort=False):
        worst = rows.sort_values("noise", ascending=False, kind="stable")
        for cell, records, noise in worst[["cell", "records", "noise"]].head(SHOWN).itertuples(index=False):
            yield f"{name}: {cell} ({records:,} records): {noise:.2g}"
        if len(worst) > SHOWN:
            yield f"{name}: {len(worst) - SHOWN:,} cells more, of {worst['noise'].iloc[SHOWN]:.2g} or less"


def epsilon_for(plan: Plan, error: float) -> Fraction:
    """The least ε, in two digits, at which the median cell's noise is at most `error` direct standard errors.

    A part of ε that histograms take stays the same part of it. Raises `JobError` where noise is not known beforehand.
    """
    found = expected_noise(plan)
    if found is None or not np.isfinite(found.median):
        name = plan.job.mechanism.name
        problem = Problem("--for-error", f"noise of '{name}' is not known beforehand here", KNOWN, "use dpdist rehearse")
        raise JobError(plan.job.dataset, [problem])
    wanted = float(plan.job.budget.epsilon) * found.median / error
    step = Fraction(10) ** (floor(log10(wanted)) - 1)
    return ceil(Fraction(wanted) / step) * step


def needed(plan: Plan, error: float) -> str:
    """What `plan --for-error` prints."""
    epsilon = budget_text(epsilon_for(plan, error))
    return f"at ε = {epsilon} the median cell's noise is {error:g} direct standard errors: --set budget.epsilon={epsilon}"
