"""Decision whether two files have the same records, by values and order.

The test counts how many records of the smaller file the larger file lacks. For every value v of a record, s_v is the
number of records with that value in the smaller file, l_v in the larger one, and t_v = s_v + l_v. The count is
K = Σ_v max(s_v − l_v, 0). If the files are independent samples from one law, K is large.

K's law follows by conditioning on the pooled records, and on each file's number of records in every combination of
public codes. All allocations of records to the files are then equally likely. So s_v is hypergeometric within its
combination, and the s_v are negatively associated (Joag-Dev and Proschan 1983). The term exp(−λ max(2s_v − t_v, 0))
falls with s_v, so for every λ ≥ 0

    P(K ≤ k) ≤ exp(λk) ∏_v E exp(−λ max(2s_v − t_v, 0)).

The files count as the same if K is less than half of its expectation and this bound is less than FALSE_ALARM. Files
with few distinct values always overlap; only the order of records distinguishes them.

A copy of which one column was moved, by adding a number or into another decimal unit, has other values. So the values of
each column are also set beside each other in records that agree in everything else, and outcomes of files of one size by
their ranks. In a copy nearly all differences, or nearly all ratios, are one number.

For large files, only values are compared whose hash number is a multiple of a power of two. These are the same values
in both files, with all their records, so the bound still holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.job import Job
from dpdist.survey.census import checked_batches
from dpdist.survey.source import Source

Hashes = NDArray[np.uint64]

ALONE, SHARED = 0.9, 0.5
"""Shares for files whose records hardly repeat.

Let the number of distinct values in each file be more than ALONE times its number of records. Then the files count as the
same if more than the share SHARED of the current file's distinct values is in the reference too.
"""
HELD = 0.9
"""Share of the smaller file's records that the larger one must have before the probability of chance is computed."""
FALSE_ALARM = 1e-6
"""Largest probability of refusing a file that is an independent sample from the same law."""
TURNS = 40
"""Smallest number of changes between neighbouring records, in the common part of two files, that proves a common order.

Changes between records with different codes are not counted, nor as many changes as a sorted file has.
"""
ROUNDED = 1e-6
"""Difference, and relative difference, up to which numbers are equal: files round them."""
NO_PROTECTION = "Limits derived from the current file would give no protection"
"""Why a reference is refused that has the records of the current file."""
LARGEST = 2**20
"""Number of records above which a file is thinned before the comparison.

Records of half of its values are kept, then of a quarter, and so on, unless the file has few values.
"""
SLOPES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)
"""Values of λ at which the bound is computed; the smallest bound is used."""


class ColumnValues(NamedTuple):
    """A column's values, with a hash number of everything else in each record."""

    key: Hashes
    value: Floats
    divisor: int = 1
    """A power of two. Records whose hash number is not a multiple of it were left out."""

    def thinned(self, divisor: int) -> ColumnValues:
        """The records that remain for a larger divisor."""
        sampled = self.key % np.uint64(divisor) == 0
        return self if divisor <= self.divisor else ColumnValues(self.key[sampled], self.value[sampled], divisor)

    def single(self) -> ColumnValues:
        """The records whose hash number no other record has, sorted by it."""
        key, first, times = np.unique(self.key, return_index=True, return_counts=True)
        return ColumnValues(key[times == 1], self.value[first[times == 1]], self.divisor)


class RecordHashes(NamedTuple):
    """Hash numbers per record, in the file's order: `record` of all that the job reads, `codes` of the categories alone."""

    record: Hashes
    codes: Hashes
    divisor: int = 1
    """A power of two. Records whose hash number is not a multiple of it were left out."""

    def thinned(self, divisor: int) -> RecordHashes:
        """The records that remain for a larger divisor."""
        sampled = self.record % np.uint64(divisor) == 0
        return self if divisor <= self.divisor else RecordHashes(self.record[sampled], self.codes[sampled], divisor)


def hashed(job: Job, source: Source, categories: Sequence[str] | None = None, largest: int | None = None) -> RecordHashes:
    """Hash numbers of the file's records in the universe, by the named categories or all of the job's categories.

    A file with more than `largest` records is thinned.
    """
    kept_parts, thinner = list[RecordHashes](), True
    for checked in checked_batches(job.by_record, source):
        codes = {name: checked.codes[name] for name in (checked.codes if categories is None else categories)}
        columns = (*checked.outcomes, checked.weight_in_file)
        values = {f"value {number}": column + 0.0 for number, column in enumerate(columns)}
        zero = {"none": np.zeros(len(checked.row))}
        divisor = kept_parts[-1].divisor if kept_parts else 1
        kept_parts.append(RecordHashes(_numbers({**codes, **values}), _numbers(codes or zero)).thinned(divisor))
        while thinner and largest is not None and _size(kept_parts) > largest:
            half = [part.thinned(2 * divisor) for part in kept_parts]
            thinner = _size(half) > largest // 4
            kept_parts, divisor = (half, 2 * divisor) if thinner else (kept_parts, divisor)
    if not kept_parts:
        return RecordHashes(*2 * (np.empty(0, dtype=np.uint64),))
    record, of_codes = (np.concatenate([getattr(part, name) for part in kept_parts]) for name in ("record", "codes"))
    return RecordHashes(record, of_codes, kept_parts[-1].divisor)


def column_values(job: Job, source: Source, largest: int = LARGEST) -> list[ColumnValues]:
    """Every outcome, and then the weight, apart from the other columns; thinned to `largest` records."""
    parts = list[ColumnValues]()
    for checked in checked_batches(job.by_record, source):
        columns = [*checked.outcomes, *([checked.weight_in_file] if job.survey.weight is not None else [])]
        for number, column in enumerate(columns):
            other_columns = {f"value {k}": values + 0.0 for k, values in enumerate(columns) if k != number}
            part = ColumnValues(_numbers({**checked.codes, **other_columns, "none": np.zeros(len(column))}), column)
            if number < len(parts):
                before, part = parts[number], part.thinned(parts[number].divisor)
                key, value = np.concatenate([before.key, part.key]), np.concatenate([before.value, part.value])
                part = ColumnValues(key, value, before.divisor)
            while len(part.key) > largest:
                part = part.thinned(2 * part.divisor)
            parts[number : number + 1] = [part]
    return parts


def moved_records(current: Sequence[ColumnValues], reference: Sequence[ColumnValues], outcomes: int) -> bool:
    """True if one file holds nearly all records of the other, with a column moved by adding, or in another decimal unit.

    The first `outcomes` parts are those of outcomes. The last one may be that of the weight, which any factor may move.
    """
    if _moved_ranks(current, reference, outcomes):
        return True
    for number, (ours, other) in enumerate(zip(current, reference, strict=True)):
        divisor = max(ours.divisor, other.divisor)
        a, b = ours.thinned(divisor), other.thinned(divisor)
        size, ours, other = min(len(a.key), len(b.key)), a.single(), b.single()
        _, mine, theirs = np.intersect1d(ours.key, other.key, assume_unique=True, return_indices=True)
        x, y = ours.value[mine], other.value[theirs]
        if len(x) < max(TURNS, SHARED * size) or len(np.unique(x)) < TURNS:
            continue
        factor = _common(y[x != 0] / x[x != 0])
        if np.isfinite(_common(y - x)) or (_decimal(factor) if number < outcomes else np.isfinite(factor)):
            return True
    return False


def _common(values: Floats) -> float:
    """The number that nearly all values are; NaN if there is none."""
    middle = float(np.median(values)) if len(values) else np.nan
    return middle if np.isclose(values, middle, rtol=ROUNDED, atol=ROUNDED).mean() > HELD else np.nan


def _decimal(factor: float) -> bool:
    """True if a factor is between decimal units, as thousands: prices that all rose alike are another file's."""
    return bool(factor > 0 and abs(np.log10(factor) - np.round(np.log10(factor))) < ROUNDED)


def _moved_ranks(current: Sequence[ColumnValues], reference: Sequence[ColumnValues], outcomes: int) -> bool:
    """True if every column's sorted values, in files of one size, rise by the same steps at the same ranks."""
    for number, (ours, theirs) in enumerate(zip(current, reference, strict=True)):
        if max(ours.divisor, theirs.divisor) > 1 or len(ours.key) != len(theirs.key):
            return False
        steps, other_steps = (np.diff(np.sort(part.value)) for part in (ours, theirs))
        rises = steps > 0
        if rises.sum() < TURNS and (number < outcomes or not np.allclose(steps, other_steps)):
            return False
        factor = float(np.median(other_steps[rises] / steps[rises])) if rises.any() else 1.0
        same = np.isclose(other_steps, factor * steps, rtol=ROUNDED, atol=ROUNDED * abs(factor))
        agree = (rises.all() or same[~rises].mean() > HELD) and (not rises.any() or same[rises].mean() > HELD)
        if not agree or factor <= 0 or not (_decimal(factor) or number >= outcomes):
            return False
    return True


def _size(parts: Sequence[RecordHashes]) -> int:
    return sum(len(part.record) for part in parts)


def content(job: Job, source: Source) -> str:
    """SHA-256 of the values that a fit reads of the file's records.

    It depends neither on the order of the records nor on the file format.
    """
    names = tuple(dict.fromkeys([*job.strata, *job.likelihood_predictors]))
    return hashlib.sha256(np.sort(hashed(job, source, names).record).astype("<u8").tobytes()).hexdigest()


def table_content(job: Job, source: Source) -> str:
    """SHA-256 of the values that a table reads of the file's records; a large file is thinned first.

    It depends neither on the order of the records nor on the file format.
    """
    hashes = hashed(job, source, tuple(sorted(job.cell_columns)), LARGEST)
    return hashlib.sha256(np.sort(hashes.record).astype("<u8").tobytes()).hexdigest()


def same_records(current: RecordHashes, reference: RecordHashes) -> bool:
    """True if one file is equal to the other, nearly equal to it, or part of it, as far as the values show."""
    divisor = max(current.divisor, reference.divisor)
    current, reference = current.thinned(divisor), reference.thinned(divisor)
    a, b = current.record, reference.record
    if len(a) == len(b) and np.array_equal(np.sort(a), np.sort(b)):
        return True
    ours, theirs = np.unique(a), np.unique(b)
    alone = len(ours) > ALONE * len(a) and len(theirs) > ALONE * len(b)
    if alone and float(np.isin(ours, theirs).mean()) > SHARED:
        return True
    small, large = (current, reference) if len(a) <= len(b) else (reference, current)
    return bool(len(small.record)) and (in_order(small, large) or contains(small, large))


def in_order(small: RecordHashes, large: RecordHashes) -> bool:
    """True if the small file begins and ends like the large one, in an order that sorting does not explain."""
    a, b, size = small.record, large.record, len(small.record)
    start, end = _in_common(a, b[:size]), _in_common(a[::-1], b[::-1][:size])
    end = min(end, size - start)
    if start + end < HELD * size:
        return False
    common = np.concatenate([np.arange(start), np.arange(size - end, size)])
    by_codes = common[np.argsort(small.codes[common], kind="stable")]
    record, codes = a[by_codes], small.codes[by_codes]
    turns = int(((record[1:] != record[:-1]) & (codes[1:] == codes[:-1])).sum())
    return turns >= len(np.unique(record)) - len(np.unique(codes)) + TURNS


def contains(small: RecordHashes, large: RecordHashes) -> bool:
    """True if the large file has more of the small file's records than an independent sample from the same law would."""
    n, size = len(small.record), len(small.record) + len(large.record)
    pooled = np.concatenate([small.record, large.record])
    _, first, value = np.unique(pooled, return_index=True, return_inverse=True)
    mine = np.bincount(value[:n], minlength=len(first))
    total = np.bincount(value, minlength=len(first))
    missing = int(np.maximum(2 * mine - total, 0).sum())
    if missing >= (1.0 - HELD) * n:
        return False
    _, group = np.unique(np.concatenate([small.codes, large.codes]), return_inverse=True)
    groups = np.bincount(group, minlength=size), np.bincount(group[:n], minlength=size)
    law = np.column_stack([*(sizes[group[first]] for sizes in groups), total])
    expected, log_chance = chance(law, missing)
    return missing < expected / 2.0 and log_chance < np.log(FALSE_ALARM)


def chance(law: Ints, missing: int) -> tuple[float, float]:
    """The expectation of K, and an upper bound of log P(K ≤ `missing`), with K as in the module's description.

    `law` (value, 3) has per value: pooled records of its combination of codes, the small file's records of that
    combination, and pooled records of the value.
    """
    distinct, times = np.unique(law, axis=0, return_counts=True)
    pooled, sample, total = distinct.T
    low, high = np.maximum(0, sample + total - pooled), np.minimum(total, sample)
    row = np.repeat(np.arange(len(distinct)), high - low + 1)
    edges = np.concatenate([[0], np.cumsum(high - low + 1)])
    s = np.arange(edges[-1]) - edges[row] + low[row]
    log_mass = _log_choose(total[row], s) + _log_choose((pooled - total)[row], sample[row] - s)
    log_mass -= _log_choose(pooled, sample)[row]
    over, mass = np.maximum(2 * s - total[row], 0), np.exp(log_mass)
    expected = float(times @ np.add.reduceat(mass * over, edges[:-1]))
    bounds = [
        slope * missing + float(times @ np.log(np.add.reduceat(mass * np.exp(-slope * over), edges[:-1])))
        for slope in SLOPES
    ]
    return expected, min(0.0, *bounds)


def _log_choose(n: Ints, k: Ints) -> Floats:
    return np.asarray(scipy.special.gammaln(n + 1.0) - scipy.special.gammaln(k + 1.0) - scipy.special.gammaln(n - k + 1.0))


def _in_common(a: Hashes, b: Hashes) -> int:
    differ = a != b
    return int(differ.argmax()) if differ.any() else len(a)


def _numbers(columns: Mapping[str, NDArray[Any]]) -> Hashes:
    numbers = pd.DataFrame({f"{number}": values for number, values in enumerate(columns.values())})
    return np.asarray(pd.util.hash_pandas_object(numbers, index=False).to_numpy())
