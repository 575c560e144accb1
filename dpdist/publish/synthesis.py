"""Synthetic sets, with one record of the same public x per sample record; and public bounds of published figures.

They have only columns that the model distinguishes, which may exclude design strata or columns of totals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.records import Cells, Codes, Floats
from dpdist.estimation.estimators import STATISTICS, Interval, Margin, PsuSums, factors, margins_of, record_sums
from dpdist.job import Job, family_facts
from dpdist.models.protocol import StratumModel, expected_of, supports
from dpdist.publish.refit import Expected
from dpdist.publish.released import ByBatch, ReleasedObject, run_here

FIXED = 1e-9
"""The totals fix a cell's count if its rows, as a 0/1 vector, differ from a linear combination of the totals' rows by less
than this."""
MET = 1e-8
"""Relative distance of a raked count from its total that rounding can cause."""
DIGITS = 13
"""Significant digits of a count that is computed from totals."""


def limited(
    released: ReleasedObject, cells: Cells, outcome: int, estimates: Mapping[str, Sequence[Interval]]
) -> dict[str, list[Interval]]:
    """Intervals by estimator, with limits within public bounds."""
    column = released.job.columns[released.job.outcomes[outcome]]
    low, top = column.ends
    counts = count_ends(released, cells)
    means = np.full(len(cells), low), np.full(len(cells), top)
    ends = {"count": counts, "mean": means, "total": total_ends(*counts, low, top)}
    return {
        name: [_cut(interval, *ends[statistic]) for statistic, interval in zip(STATISTICS, intervals, strict=True)]
        for name, intervals in estimates.items()
    }


def _cut(interval: Interval, low: Floats, top: Floats) -> Interval:
    return interval._replace(lower=np.clip(interval.lower, low, top), upper=np.clip(interval.upper, low, top))


def total_ends(least: Floats, most: Floats, low: float, high: float) -> tuple[Floats, Floats]:
    """Ends of totals (cell,), for counts between `least` and `most` (cell,) and outcomes between `low` and `high`."""
    with np.errstate(invalid="ignore"):
        ends = (least if low > 0.0 else most) * low, (most if high > 0.0 else least) * high
    low_end, high_end = (np.where(np.isnan(end), 0.0, end) for end in ends)  # a count of 0 times an open end
    return low_end, high_end


def count_ends(released: ReleasedObject, cells: Cells) -> tuple[Floats, Floats]:
    """Ends of the population's counts, (cell,) each: 0, and the least public total that contains the cell, or infinity.

    Sample sizes and weight bounds limit an estimate, but not the population.
    """
    most = np.full(len(cells), np.inf)
    for margin in margins_of(released.job, released.crosstab):
        overlap = (cells.membership @ margin.membership.T).toarray() > 0.0
        most = np.minimum(most, overlap @ margin.totals)
    return np.zeros(len(cells)), most


def fixed_totals(cells: Cells, margins: list[Margin]) -> Floats:
    """Counts fixed by the totals alone, without rounding errors, (cell,); NaN for other cells."""
    if not margins:
        return np.full(len(cells), np.nan)
    of_totals, of_cells = np.vstack([margin.membership.toarray() for margin in margins]), cells.membership.toarray()
    parts = np.linalg.lstsq(of_totals.T, of_cells.T, rcond=None)[0].T
    follows = np.abs(of_cells - parts @ of_totals).max(axis=1) < FIXED
    totals = parts @ np.concatenate([margin.totals for margin in margins])
    return np.where(follows, [float(f"{total:.{DIGITS}g}") for total in totals], np.nan)


def without_rounding(counts: Interval, totals: Floats) -> Interval:
    """Returns counts in which those fixed by `totals` (cell,) are exact, with error 0.

    Counts that miss their total by more than rounding stay as they are, with their errors.
    """
    with np.errstate(invalid="ignore"):
        equal = np.abs(counts.value - totals) <= MET * np.abs(totals)
        exact = equal & (counts.standard_error <= MET * np.abs(totals))
    value, error = np.where(equal, totals, counts.value), np.where(exact, 0.0, counts.standard_error)
    lower, upper = (np.where(exact, totals, limit) for limit in (counts.lower, counts.upper))
    return counts._replace(value=value, standard_error=error, lower=lower, upper=upper)


def expectations(released: ReleasedObject, outcome: int = 0) -> list[Expected] | None:
    """E(w|x) and E(wy|x) of an outcome by crosstab row, one pair for each set; None if the model defines none."""
    if not supports(released.model(0), "expect"):
        return None
    return raked_to_totals(released, by_row(released, range(len(released.crosstab.stratum_labels)), outcome))


def raked_to_totals(released: ReleasedObject, pairs: list[Expected]) -> list[Expected]:
    """Expectations of every set whose counts meet the public totals; unchanged if the job states none."""
    rake = margins_of(released.job, released.crosstab)
    if not rake:
        return pairs
    n = released.crosstab.count.astype(float)
    factor = [factors(n * weight, rake) for weight, _ in pairs]
    return [(weight * g, product * g) for (weight, product), g in zip(pairs, factor, strict=True)]


def by_row(released: ReleasedObject, strata: range, outcome: int) -> list[Expected]:
    """Expectations of an outcome's first draw by crosstab row of consecutive strata, (row,) each, one pair for each set."""
    batch_rows = released.crosstab.rows_of_batch(strata)
    size = batch_rows.stop - batch_rows.start
    pairs = [(np.empty(size), np.empty(size)) for _ in released.sets]
    for stratum in strata:
        model, rows = released.model(stratum), released.crosstab.rows_of(stratum)
        inside = slice(rows.start - batch_rows.start, rows.stop - batch_rows.start)
        for k, (weight, product) in enumerate(pairs):
            weights, products = expected_of(model, released.theta(model, stratum, k), outcome)
            weight[inside], product[inside] = weights[0], products[0]
    return pairs


BATCH = 65_536


class SyntheticBlock(NamedTuple):
    """Synthetic records: crosstab row, outcomes, weight, and the columns copied from a reference's records, if any."""

    crosstab_row: Codes
    outcome: Floats
    weight: Floats
    copied: pa.Table | None = None


class BatchSums(NamedTuple):
    """What is summed over a batch's rows: sums of its synthetic records, and E(w|x) and E(wy|x), by outcome and set.

    There are no expectations if the model defines none.
    """

    sums: list[list[PsuSums]]
    expected: list[list[Expected]] | None


class BatchRecords(NamedTuple):
    """The synthetic records of a batch, by set, and what is summed over its rows."""

    blocks: list[list[SyntheticBlock]]
    summed: BatchSums


def synthesize(
    released: ReleasedObject, folder: Path, tick: Callable[[int], None], by_batch: ByBatch = run_here
) -> BatchSums:
    """Writes set-<k>.parquet for every set; returns sums before raking, and expectations, over all rows.

    `by_batch` draws the records of the batches. A batch of one large stratum is drawn here, because its records would not
    fit into one result.
    """
    folder.mkdir(parents=True)
    crosstab, batches, sets = released.crosstab, released.crosstab.batches(), range(len(released.sets))
    rake = margins_of(released.job, crosstab)
    factor = [np.ones(len(crosstab))] * len(sets)
    if rake:
        factor = [factors(of_set.a, rake) for of_set in synthetic_sums(released, by_batch)]
    small = [batch for batch in batches if not crosstab.is_large(batch)]
    results, parts = by_batch(batch_records, released, small), list[BatchSums]()
    with ExitStack() as stack:
        writers = [stack.enter_context(_Writer(released, folder / f"set-{k + 1}.parquet", factor[k])) for k in sets]
        for batch in batches:
            if crosstab.is_large(batch):
                summed = _summed(
                    released, batch, [sink.passing(_blocks(released, batch, k)) for k, sink in enumerate(writers)]
                )
            else:
                blocks, summed = next(results)
                for writer, blocks_of_set in zip(writers, blocks, strict=True):
                    writer.write(blocks_of_set)
            parts.append(summed)
            tick(len(batch))
    return _over_rows(released, batches, parts)


def synthetic_sums(released: ReleasedObject, by_batch: ByBatch = run_here) -> list[PsuSums]:
    """Sums of the first outcome in every set's records, per crosstab row and before raking; writes no records."""
    batches = released.crosstab.batches()
    return _over_rows(released, batches, by_batch(batch_sums, released, batches)).sums[0]


def batch_records(released: ReleasedObject, batch: range) -> BatchRecords:
    """Work of a batch: its synthetic records."""
    blocks = [list(_blocks(released, batch, k)) for k in range(len(released.sets))]
    return BatchRecords(blocks, _summed(released, batch, blocks))


def batch_sums(released: ReleasedObject, batch: range) -> BatchSums:
    """Work of a batch: what is summed of its synthetic records."""
    return _summed(released, batch, [_blocks(released, batch, k) for k in range(len(released.sets))])


def _summed(released: ReleasedObject, batch: range, by_set: Sequence[Iterable[SyntheticBlock]]) -> BatchSums:
    rows, outcomes = released.crosstab.rows_of_batch(batch), range(len(released.job.outcomes))
    size = rows.stop - rows.start
    sums = [[PsuSums(*np.zeros((5, size))) for _ in by_set] for _ in outcomes]
    for k, blocks in enumerate(by_set):
        for block in blocks:
            row = block.crosstab_row - rows.start
            for of_outcome, values in zip(sums, columns(block.outcome), strict=True):
                of_outcome[k] = of_outcome[k].plus(record_sums(row, block.weight, values, size))
    if not supports(released.model(batch.start), "expect"):
        return BatchSums(sums, None)
    return BatchSums(sums, [by_row(released, batch, outcome) for outcome in outcomes])


def _over_rows(released: ReleasedObject, batches: Sequence[range], parts: Iterable[BatchSums]) -> BatchSums:
    """What was summed of batches, over all rows of the crosstab."""
    size, sets, outcomes = len(released.crosstab), range(len(released.sets)), range(len(released.job.outcomes))
    sums = [[PsuSums(*np.empty((5, size))) for _ in sets] for _ in outcomes]
    expected: list[list[Expected]] = [[(np.empty(size), np.empty(size)) for _ in sets] for _ in outcomes]
    defined = True
    for batch, part in zip(batches, parts, strict=True):
        rows = released.crosstab.rows_of_batch(batch)
        _place(rows, sums, part.sums)
        if part.expected is None:
            defined = False
        else:
            _place(rows, expected, part.expected)
    return BatchSums(sums, [raked_to_totals(released, pairs) for pairs in expected] if defined else None)


def _place(rows: slice, full: Sequence[Sequence[Iterable[Floats]]], part: Sequence[Sequence[Iterable[Floats]]]) -> None:
    for of_whole, of_part in zip(chain(*full), chain(*part), strict=True):
        for values, values_of_rows in zip(of_whole, of_part, strict=True):
            values[rows] = values_of_rows


def columns(outcome: Floats) -> tuple[Floats, ...]:
    """The outcomes of synthetic records as separate arrays, (record,) each."""
    return (outcome,) if outcome.ndim == 1 else tuple(outcome.T)


def _blocks(released: ReleasedObject, batch: range, k: int) -> Iterator[SyntheticBlock]:
    """A batch's synthetic records in set k + 1, with whole numbers and codes where the job declares them.

    Every call yields the same records.
    """
    integers = any(column.whole or column.codes is not None for column in released.job.outcome_columns.values())
    for stratum in batch:
        label = released.crosstab.stratum_labels[stratum]
        for number, block in enumerate(_of_model(released, released.model(stratum), stratum, k)):
            if integers:
                rng = released.seed.generator("whole numbers", label, number, k + 1)
                block = block._replace(outcome=whole_numbers(released.job, block.outcome, rng))
            yield block


def whole_numbers(job: Job, outcome: Floats, rng: np.random.Generator) -> Floats:
    """The outcomes, of which those declared whole or coded are rounded up or down at random: expected values stay as they
    are.

    All of them are values that the job allows in the file.
    """
    support, rounded = family_facts(job).support, list[Floats]()
    for values, column in zip(columns(outcome), job.outcome_columns.values(), strict=True):
        if column.codes is not None:
            rounded.append(_to_codes(values, np.unique(list(column.codes.values())), rng))
        elif column.whole and not np.array_equal(values, np.floor(values)):
            low, high = column.ends
            least = np.ceil(low)
            excluded = not support.inside(np.array([least])).all() or (least == 0.0 and column.zeros == "drop")
            rounded.append(np.clip(np.floor(values + rng.random(len(values))), least + excluded, np.floor(high)))
        else:
            rounded.append(values)
    return rounded[0] if outcome.ndim == 1 else np.column_stack(rounded)


def _to_codes(values: Floats, codes: Floats, rng: np.random.Generator) -> Floats:
    """Values, each rounded up or down at random to one of the two nearest of sorted codes.

    Rounding is systematic: the number rounded up among consecutive records differs by less than one from the sum of their
    shares.
    """
    if np.isin(values, codes).all() or len(codes) < 2:
        return values
    above = np.clip(np.searchsorted(codes, values), 1, len(codes) - 1)
    low, high = codes[above - 1], codes[above]
    share = np.clip((values - low) / (high - low), 0.0, 1.0)
    passed = np.floor(np.cumsum(np.append(rng.random(), share)))
    return np.where(np.diff(passed) > 0.0, high, low)


def _of_model(released: ReleasedObject, model: StratumModel, stratum: int, k: int) -> Iterator[SyntheticBlock]:
    crosstab, rows_of_stratum = released.crosstab, released.crosstab.rows_of(stratum)
    theta = released.theta(model, stratum, k)
    donor_records = model.donor_records(released, stratum) if supports(model, "with_donors") else None
    for block, part in enumerate(crosstab.expanded(rows_of_stratum, BATCH)):
        start = block * BATCH
        rng = released.seed.generator("synthesis", crosstab.stratum_labels[stratum], block, k + 1)
        if supports(model, "presampled"):
            yield SyntheticBlock(part, *(values[start : start + BATCH] for values in model.presampled(theta)))
        elif donor_records is not None:
            outcome, weight, donor = donor_records.simulate(theta, part, rng)
            copied = donor_records.donors.records.copied
            yield SyntheticBlock(part, outcome, weight, None if copied is None else copied.take(pa.array(donor)))
        else:
            yield SyntheticBlock(part, *model.simulate(theta, part, rng))


class _Writer:
    """Writes the records of a set, `BATCH` at a time or a few more, with weights multiplied by a factor of their row."""

    def __init__(self, released: ReleasedObject, path: Path, factor: Floats):
        self._crosstab, self._factor, self._waiting, self._records = released.crosstab, factor, list[SyntheticBlock](), 0
        self._names, self._components = released.job.modelled_columns, released.job.components
        self._levels = {name: pa.array(list(self._crosstab.levels[name])) for name in self._names}
        self._schema = self._schema_of(released)
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def write(self, blocks: Iterable[SyntheticBlock]) -> None:
        for block in blocks:
            self._waiting.append(block)
            self._records += len(block.crosstab_row)
            if self._records >= BATCH:
                self._flush()

    def passing(self, blocks: Iterable[SyntheticBlock]) -> Iterator[SyntheticBlock]:
        """Yields the blocks, each after it is written."""
        for block in blocks:
            self.write([block])
            yield block

    def _flush(self) -> None:
        if not self._waiting:
            return
        row, outcome, weight = (
            np.concatenate([getattr(block, name) for block in self._waiting])
            for name in ("crosstab_row", "outcome", "weight")
        )
        copied = [block.copied for block in self._waiting if block.copied is not None]
        categories = [
            pa.DictionaryArray.from_arrays(pa.array(self._crosstab.codes[name][row]), self._levels[name])
            for name in self._names
        ]
        numbers = [*columns(outcome), weight * self._factor[row]][: len(self._components)]
        further = pa.concat_tables(copied).columns if copied else []
        self._file.write_table(pa.Table.from_arrays([*categories, *map(pa.array, numbers), *further], schema=self._schema))
        self._waiting, self._records = [], 0

    def _schema_of(self, released: ReleasedObject) -> pa.Schema:
        categories = [(name, pa.dictionary(pa.int32(), levels.type)) for name, levels in self._levels.items()]
        copied = [donors.copied for donors in released.donors.values() if donors.copied is not None]
        further = [field.remove_metadata() for field in copied[0].schema] if copied else []
        return pa.schema([*categories, *((name, pa.float64()) for name in self._components), *further])
