"""The variance T of every published figure, from released figures alone (docs/methods.md, §6).

Notation: θ_1..θ_m are the parameters of m synthetic sets; a record has public columns x, outcome y, sampling weight w
and privacy weight α. Then T = V_x + V_c + V_α/m + bias²; `variances` defines the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.progress import within
from dpdist.core.records import Cells, Floats, Ints, quantiles, stated_universe
from dpdist.estimation.estimators import (
    NORMAL_90,
    Figures,
    Margin,
    PsuSums,
    factors,
    margins_of,
    raked_counts_and_means,
)
from dpdist.job import Table
from dpdist.models.laws import has_laws, needs_laws, needs_rows
from dpdist.models.protocol import DRAWS, expected_of, supports
from dpdist.privacy.noisy_counts import counted_again
from dpdist.publish.refit import Expected, Laws, Recount, expected_under, refitted
from dpdist.publish.released import ByBatch, ReleasedObject, plain_effects, run_here

CENTRES, PLAIN, NOISED, WEIGHTED, UNWEIGHTED = LAWS = range(5)
"""Positions in `Laws.draws` and `Spreads.laws`; `NOISED` are the released parameters under simulated noise."""
RECOUNTS = 200
"""Number of draws of noisy sample counts."""


class LawSpread(NamedTuple):
    """Draws of E(w|x) and E(wy|x) for every crosstab row, (draw, row); NaN in strata without laws.

    Or of Σ n E(w|x) and Σ n E(wy|x) over the rows of every cell, (draw, cell).
    """

    weight: Floats
    product: Floats


class Recounts(NamedTuple):
    """Sample counts under simulated noise, and E(w|x) and E(wy|x) under these counts: (draw, row) each."""

    counts: Floats
    weight: Floats
    product: Floats


CellsKey = Hashable
"""What identifies a table's cells among those of a release."""


@dataclass(frozen=True, eq=False)
class Spreads:
    """Draws of one outcome's expectations over all strata: a `LawSpread` for each law of `LAWS`.

    Where tables need no rows, `by_cells` has their sums over cells instead, in the same order, and `laws` is empty.
    `recounts` is None unless sample counts are noisy. Laws with the same draws are one object.
    """

    laws: tuple[LawSpread, ...]
    recounts: Recounts | None = None
    by_cells: Mapping[CellsKey, Sequence[LawSpread]] | None = None
    last: dict[CellsKey, TableVariances] = field(default_factory=dict, repr=False)
    """What `table_variances` has computed for the last table, by its key."""

    def figures(self, law: int, cells: Cells, n: Floats) -> tuple[Floats, Floats, Floats]:
        """Counts, means and totals of every cell under a law, (draw, cell). Those of all laws of a large table take much
        memory.
        """
        if self.by_cells is not None:
            return ratios(*self.by_cells[cells_key(cells)][law])
        return cell_estimates(cells, n, *self.laws[law])

    def one_sampling(self, cells: Cells) -> bool:
        """True if samples of both fits have the same draws."""
        laws: Sequence[object] = self.laws if self.by_cells is None else self.by_cells[cells_key(cells)]
        return laws[PLAIN] is laws[CENTRES]


def cells_key(cells: Cells) -> CellsKey:
    """The key of a table's cells in `Spreads.by_cells`. Their number tells whether there are margins."""
    return cells.by, len(cells), cells.universe


def table_key(table: Table, cells: int) -> CellsKey:
    """`cells_key` of a table of so many cells."""
    return table.by, cells, stated_universe(table.universe)


class ErrorSources(NamedTuple):
    """What standard errors follow from: spreads by outcome, and every stratum's laws where rows are needed.

    Both are None if a model has no laws. A stratum without a fit has no laws.
    """

    spreads: list[Spreads] | None
    laws: list[Laws | None] | None


def simulate_errors(
    released: ReleasedObject,
    tick: Callable[[int], None],
    by_batch: ByBatch = run_here,
    *,
    noise_alone: bool = False,
    by_row: bool = False,
) -> ErrorSources:
    """Laws and spreads of a release. `by_batch` does the work of the batches.

    Other samples are not drawn if `noise_alone` and if the model simulates its parameters directly.

    Where tables have counts, means and totals alone, batches return sums over cells, and no rows stay in memory. Public
    totals, noisy counts and further statistics need all rows at once, as do callers who state `by_row`.
    """
    if not has_laws(released.job, released.model(0)):
        return ErrorSources(None, None)
    batches = released.crosstab.batches()
    if by_row or needs_rows(released.job, released.crosstab):
        by_stratum, parts = list[Laws | None](), list[list[list[LawSpread]]]()
        work = partial(laws_and_spreads, noise_alone=noise_alone)
        for batch, (laws_of_batch, part) in zip(batches, by_batch(work, released, batches), strict=True):
            by_stratum += laws_of_batch
            parts.append(part)
            tick(len(batch))
        return ErrorSources(_join(released, by_stratum, batches, parts), by_stratum if needs_laws(released.job) else None)
    sums = dict[tuple[CellsKey, int], _BatchSums]()
    for batch, of_tables in zip(
        batches, by_batch(partial(sums_over_cells, noise_alone=noise_alone), released, batches), strict=True
    ):
        for key, result in of_tables.items():
            sums.setdefault(key, _BatchSums(result.cells)).add(result)
        tick(len(batch))
    keys, outcomes = dict.fromkeys(key for key, _ in sums), range(len(released.job.outcomes))
    return ErrorSources([Spreads((), None, {key: sums[key, j].laws() for key in keys}) for j in outcomes], None)


def laws_of(released: ReleasedObject, strata: range, noise_alone: bool = False) -> list[Laws | None]:
    """Laws of some strata. A stratum without a fit has None."""
    counts = recounts(released)
    with np.errstate(all="ignore"):
        return [_simulate(released, stratum, counts, noise_alone) or refitted(released, stratum) for stratum in strata]


def laws_and_spreads(
    released: ReleasedObject, batch: range, noise_alone: bool = False
) -> tuple[list[Laws | None], list[list[LawSpread]]]:
    """Work of a batch: laws without synthetic samples, and spreads over its rows by outcome and law."""
    laws_of_batch = laws_of(released, batch, noise_alone)
    spread = _spreads_of(released, batch, laws_of_batch)
    return [law if law is None else law._replace(records=None) for law in laws_of_batch], spread


class TouchedSums(NamedTuple):
    """Sums under every law over a batch's rows, in those cells of a table that have some of them.

    `cells` is the table's number of cells.
    """

    cells: int
    touched: Ints
    laws: Sequence[LawSpread]


def sums_over_cells(
    released: ReleasedObject, batch: range, noise_alone: bool = False
) -> dict[tuple[CellsKey, int], TouchedSums]:
    """Work of a batch: sums over its rows, by table and outcome."""
    spread = _spreads_of(released, batch, laws_of(released, batch, noise_alone))
    rows, sums = released.crosstab.rows_of_batch(batch), dict[tuple[CellsKey, int], TouchedSums]()
    n = released.crosstab.count[rows].astype(float)
    for table in released.job.tables:
        cells = released.cells(table)
        inside = released.rows_of_cells(table)[:, rows.start : rows.stop]
        touched = np.unique(inside.indices).astype(np.int64)
        membership = scipy.sparse.csr_array(scipy.sparse.csr_array(inside)[touched])
        for outcome, of_outcome in enumerate(spread):
            by_law = {id(law): LawSpread(*((membership @ (n * part).T).T for part in law)) for law in of_outcome}
            sums[cells_key(cells), outcome] = TouchedSums(len(cells), touched, [by_law[id(law)] for law in of_outcome])
    return sums


class _BatchSums:
    """Adds up the sums of batches, in their order, over all cells of a table."""

    def __init__(self, cells: int) -> None:
        self._cells, self._one_sampling = cells, True
        self._sums = [LawSpread(*np.zeros((2, 1, cells))) for _ in LAWS]

    def add(self, part: TouchedSums) -> None:
        self._one_sampling &= part.laws[1] is part.laws[0]
        for k, law in enumerate(part.laws):
            draws = max(len(self._sums[k].weight), len(law.weight))
            if draws > len(self._sums[k].weight):
                self._sums[k] = LawSpread(*(np.broadcast_to(sums, (draws, self._cells)).copy() for sums in self._sums[k]))
            for sums, more in zip(self._sums[k], law, strict=True):
                sums[:, part.touched] += more

    def laws(self) -> list[LawSpread]:
        centres, plain, *rest = self._sums
        return [centres, centres if self._one_sampling else plain, *rest]


def recounts(released: ReleasedObject) -> Floats | None:
    """Counts of the crosstab's rows under simulated noise, (draw, row); None if published counts are exact."""
    if not released.job.noisy_crosstab:
        return None
    return counted_again(released.job, released.crosstab, RECOUNTS, released.seed.generator("precision counts"))


def _spreads_of(released: ReleasedObject, batch: range, laws: Sequence[Laws | None]) -> list[list[LawSpread]]:
    """Draws of every outcome's expectations in a batch's rows, by outcome and law. Laws with the same draws are one."""
    batch_rows, by_outcome = released.crosstab.rows_of_batch(batch), list[list[LawSpread]]()
    if len(batch) == 1:
        with np.errstate(all="ignore"):
            of_outcomes = expected_under(released, batch.start, laws[0])
        by_outcome = [[LawSpread(*pair) for pair in of_outcome] for of_outcome in of_outcomes]
    else:
        by_stratum = [of_stratum.draws for of_stratum in laws if of_stratum is not None]
        sizes = [max(map(len, of_law)) for of_law in zip(*by_stratum, strict=True)] or [1] * len(LAWS)
        shapes = [(draws, batch_rows.stop - batch_rows.start) for draws in sizes]
        for _ in released.job.outcomes:
            by_outcome.append([LawSpread(*(np.full(shape, np.nan) for _ in range(2))) for shape in shapes])
    if all(of_stratum is None or of_stratum.one_sampling for of_stratum in laws):
        for spreads_of_outcome in by_outcome:
            spreads_of_outcome[1] = spreads_of_outcome[0]
    for stratum, laws_of_stratum in zip(batch, laws, strict=True) if len(batch) > 1 else ():
        rows = released.crosstab.rows_of(stratum)
        inside = slice(rows.start - batch_rows.start, rows.stop - batch_rows.start)
        with np.errstate(all="ignore"):
            for outcome, of_outcome in zip(by_outcome, expected_under(released, stratum, laws_of_stratum), strict=True):
                for spread, expected in zip(outcome, of_outcome, strict=True):
                    spread.weight[:, inside], spread.product[:, inside] = expected
    return by_outcome


def _join(
    released: ReleasedObject,
    by_stratum: Sequence[Laws | None],
    batches: Sequence[range],
    parts: Sequence[Sequence[Sequence[LawSpread]]],
) -> list[Spreads]:
    """Spreads over all rows from those of batches, raked where the job states public totals."""
    by_outcome = [
        [_over_rows(released, batches, [part[j][k] for part in parts]) for k in LAWS]
        for j in range(len(released.job.outcomes))
    ]
    for j, spreads_of_outcome in enumerate(by_outcome):
        if all(part[j][1] is part[j][0] for part in parts):
            spreads_of_outcome[1] = spreads_of_outcome[0]
    rake = margins_of(released.job, released.crosstab)
    if rake:
        distinct = {id(spread): spread for outcome_spreads in by_outcome for spread in outcome_spreads}
        by_name = {name: raked(spread, released, rake) for name, spread in distinct.items()}
        by_outcome = [[by_name[id(spread)] for spread in outcome_spreads] for outcome_spreads in by_outcome]
    return [
        Spreads(tuple(outcome_spreads), _recount(released, by_stratum, outcome))
        for outcome, outcome_spreads in enumerate(by_outcome)
    ]


def _over_rows(released: ReleasedObject, batches: Sequence[range], parts: Sequence[LawSpread]) -> LawSpread:
    if len(parts) == 1:
        return parts[0]
    joined = LawSpread(*np.empty((2, max(len(part.weight) for part in parts), len(released.crosstab))))
    for batch, part in zip(batches, parts, strict=True):
        rows = released.crosstab.rows_of_batch(batch)
        joined.weight[:, rows], joined.product[:, rows] = part
    return joined


def _recount(released: ReleasedObject, by_stratum: Sequence[Laws | None], outcome: int) -> Recounts | None:
    """Draws under simulated noise on sample counts; None if these counts are exact."""
    if not released.job.noisy_crosstab:
        return None
    simulated = Recounts(*np.full((3, RECOUNTS, len(released.crosstab)), np.nan))
    for stratum, laws_of_stratum in enumerate(by_stratum):
        if laws_of_stratum is not None and laws_of_stratum.recounted is not None:
            rows = released.crosstab.rows_of(stratum)
            pair = expected_of(laws_of_stratum.model, laws_of_stratum.recounted.theta, outcome)
            for values, draws in zip(simulated, (laws_of_stratum.recounted.counts, *pair), strict=True):
                values[:, rows] = draws
    return simulated


def raked(spread: LawSpread, released: ReleasedObject, rake: Sequence[Margin]) -> LawSpread:
    """Rakes every draw separately. Draws with unknown values stay unchanged."""
    finite = np.isfinite(spread.weight).all(axis=1)
    factor = np.ones(spread.weight.shape)
    factor[finite] = factors(released.crosstab.count * spread.weight[finite], rake)
    return LawSpread(spread.weight * factor, spread.product * factor)


def composition(released: ReleasedObject, cells: Cells, expected: Sequence[Expected]) -> Figures:
    """Counts, means and totals of expectations averaged over sets, with their variance V_x over samples' x."""
    crosstab = released.crosstab
    n = crosstab.count.astype(float)
    a, b = (np.mean([pair[i] for pair in expected], axis=0) for i in range(2))
    sums = PsuSums(n * a, n * b, n * a * a, n * a * b, n * b * b)
    return raked_counts_and_means(sums, crosstab, cells, margins_of(released.job, crosstab), released.stage)


class VarianceParts(NamedTuple):
    """Parts of a variance T, (cell,) each: of the sample, of noise or released draws, of bias, of noisy sample counts."""

    sampling: Floats
    noise: Floats
    bias: Floats | float = 0.0
    counted: Floats | float = 0.0

    @property
    def total(self) -> Floats:
        return self.sampling + self.noise + self.bias + self.counted

    @property
    def other(self) -> Floats:
        """All parts but the sample's own."""
        return self.noise + self.bias + self.counted


# - V_x: which x the sample happens to contain. It is the Taylor variance of E(w|x) over the crosstab, all of it public.
# - V_c: the sampling variance of the centre of the α-weighted fit, by the sandwich formula.
# - V_α: the variance of released draws about that centre, which m draws divide by m.
# - bias: privacy weights trim tails, which moves the fit.
#
# `refit` simulates the last three. The fit's statistics are sums over records, so it draws them from their normal limit.
# These draws keep the privacy weights fixed, although a search on another sample would change them. So V_c is set to at
# least the variance of the unweighted fit, the smallest that an estimator can have under the model. An estimate from
# synthetic records adds S/m, where S is the variance of one set's records given x and θ.
#
# Where sample counts are noisy (`predictors: {protect}`), T includes the variance and squared bias of estimates from the
# same noisy sums under counts with further noise of the same law, made consistent as before.
def variances(
    released: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads | None, outcome: int = 0
) -> list[Floats]:
    """T of counts, means and totals, (cell,) each.

    `expected` holds E(w|x) and E(wy|x) by crosstab row for every set.

    With m = 1, T is NaN.
    """
    # Without spreads, T = V_x + (1 + 1/m) B, where B is the variance between the m released draws. B stands in for V_c,
    # since draws vary at least as much as the centre of their fit does over samples. Public design effects multiply the
    # sampling variances V_x and V_c (here B). The noise variance is divided by the number of independent noises. That
    # number is smaller than m where several sets follow from one noisy statistic.
    if spread is not None:
        return [parts.total for parts in table_variances(released, cells, expected, spread, outcome).parts]
    effects, sets = plain_effects(released.design_effects, cells, released.job.outcomes[outcome]), len(released.sets)
    n, composed = released.crosstab.count.astype(float), composition(released, cells, expected)
    per_set = cell_estimates(cells, n, *(np.array([pair[i] for pair in expected]) for i in range(2)))
    between = [v.var(axis=0, ddof=1) if sets > 1 else np.full(len(cells), np.nan) for v in per_set]
    pairs = zip(effects, composed, between, strict=True)
    return [effect * figures.variance + (effect + 1.0 / sets) * b for effect, figures, b in pairs]


class TableVariances(NamedTuple):
    """Variances of a table's counts, means and totals, and what they follow from."""

    expected: Sequence[Expected]
    composed: Figures
    """Figures of `expected`, with V_x."""
    centres: tuple[Floats, Floats, Floats]
    """Figures under other samples, (draw, cell) each."""
    parts: list[VarianceParts]


def table_variances(
    released: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads, outcome: int = 0
) -> TableVariances:
    """The parts of T of counts, means and totals, where spreads were simulated. Those of a table are computed once."""
    key = cells_key(cells)
    if key not in spread.last or spread.last[key].expected is not expected:
        spread.last.clear()
        spread.last[key] = _table_variances(released, cells, expected, spread, outcome)
    return spread.last[key]


def _table_variances(
    released: ReleasedObject, cells: Cells, expected: Sequence[Expected], spread: Spreads, outcome: int
) -> TableVariances:
    effects = plain_effects(released.design_effects, cells, released.job.outcomes[outcome])
    n, composed = released.crosstab.count.astype(float), composition(released, cells, expected)
    again = None if spread.recounts is None else cell_estimates(cells, *spread.recounts)
    centres = spread.figures(CENTRES, cells, n)
    redrawn = [normal_variance(draws) for draws in centres]
    if not spread.one_sampling(cells):
        plain = [normal_variance(draws) for draws in spread.figures(PLAIN, cells, n)]
        redrawn = [np.maximum(*pair) for pair in zip(redrawn, plain, strict=True)]
    noise, parts = noise_variances(released, cells, spread), []
    weighted, unweighted = (spread.figures(law, cells, n) for law in (WEIGHTED, UNWEIGHTED))
    for k, composed_figure in enumerate(composed):
        bias = (weighted[k] - unweighted[k])[0] ** 2
        counted = 0.0 if again is None else about(again[k], weighted[k][0])
        parts.append(VarianceParts(effects[k] * (composed_figure.variance + redrawn[k]), noise[k], bias, counted))
    return TableVariances(expected, composed, centres, parts)


def take_noise(cells: Cells, spread: Spreads) -> list[Floats] | None:
    """Variances by noise alone of the last table whose variances were computed, which are then forgotten."""
    known = spread.last.pop(cells_key(cells), None)
    return None if known is None else [parts.noise for parts in known.parts]


def noise_variances(released: ReleasedObject, cells: Cells, spread: Spreads) -> list[Floats]:
    """Variances of counts, means and totals by noise alone, (cell,) each."""
    noises = released.job.mechanism.noises(released.job)
    drawn = spread.figures(NOISED, cells, released.crosstab.count.astype(float))
    return [normal_variance(draws) / noises for draws in drawn]


def about(draws: Floats, value: Floats) -> Floats:
    """The mean squared distance of draws (draw, cell) from a value (cell,), as normal variance plus squared bias.

    A draw without the figure counts as the value.
    """
    filled = np.where(np.isfinite(draws), draws, value)
    return np.asarray(normal_variance(filled) + (filled.mean(axis=0) - value) ** 2)


def cell_estimates(cells: Cells, n: Floats, weight: Floats, product: Floats) -> tuple[Floats, Floats, Floats]:
    """Counts Σ n E(w|x), means Σ n E(wy|x) / Σ n E(w|x) and totals Σ n E(wy|x) of every cell, (draw, cell)."""
    with np.errstate(all="ignore"):
        return ratios(cells.sums(n, weight.T).T, cells.sums(n, product.T).T)


def ratios(count: Floats, total: Floats) -> tuple[Floats, Floats, Floats]:
    """Counts, means and totals from counts and totals, (draw, cell) each."""
    with np.errstate(all="ignore"):
        return count, total / count, total


def normal_variance(draws: Floats) -> Floats:
    """Variance of the normal law with the draws' central 90 % range. Heavy-tailed draws may have no variance."""
    with np.errstate(all="ignore"):
        low, high = quantiles(draws, [0.05, 0.95], axis=0)
        return np.asarray(((high - low) / (2.0 * NORMAL_90)) ** 2)


def _simulate(released: ReleasedObject, stratum: int, counts: Floats | None, noise_alone: bool = False) -> Laws | None:
    """Laws of a model whose parameters can be simulated directly; None for other models."""
    model, label = released.model(stratum), released.crosstab.stratum_labels[stratum]
    if not supports(model, "resampled"):
        return None
    theta, n = released.theta(model, stratum, 0), int(released.crosstab.stratum_count[stratum])
    key = released.seed.child(f"precision {label}")
    with within(0.0, 0.5):
        redrawn = theta if noise_alone else model.resampled(theta, n, DRAWS, key.generator("centres"))
    with within(0.5, 1.0):
        draws = model.noised_again(theta, n, DRAWS, key.generator("draws"))
    middle = model.averaged(draws) if supports(model, "averaged") else theta
    simulated = Laws(model, (redrawn, redrawn, draws, theta, middle))
    if counts is None:
        return simulated
    of_stratum = counts[:, released.crosstab.rows_of(stratum)]
    return simulated._replace(recounted=Recount(of_stratum, model.recounted(theta, of_stratum)))
