"""Two files that are one, nearly one, or part of each other, and honest files of the same law that are not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdist.survey.same_file import FALSE_ALARM, RecordHashes, chance, same_records

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Values]

LAWS: dict[str, Draw] = {
    "turnout": lambda rng, n: rng.random(n) < 0.55,
    "rare": lambda rng, n: rng.random(n) < 0.04,
    "counts": lambda rng, n: rng.poisson(20 * rng.gamma(5, 0.2, n)),
    "rounded salaries": lambda rng, n: (
        np.round(np.exp(rng.normal(11, 0.5, n)), -3) * 1000 + np.round(np.exp(rng.normal(3, 0.2, n)))
    ),
    "shares": lambda rng, n: rng.random(n),
}
COARSE = ("turnout", "rare")


def file(values: NDArray[np.generic], cells: int = 1) -> RecordHashes:
    """Records of equal values in `cells` cells of equal size, one after the other."""
    codes = (np.arange(len(values)) * cells // max(len(values), 1)).astype(np.uint64)
    return RecordHashes(np.asarray(values, dtype=float).view(np.uint64) ^ (codes << np.uint64(1)), codes)


def picked(of: RecordHashes, which: NDArray[np.int64]) -> RecordHashes:
    return RecordHashes(of.record[which], of.codes[which])


def joined(a: RecordHashes, b: RecordHashes) -> RecordHashes:
    return RecordHashes(np.concatenate([a.record, b.record]), np.concatenate([a.codes, b.codes]))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kept", [0.95, 0.995])
def test_a_file_that_holds_nearly_all_current_records_is_the_current_file(law: str, kept: float) -> None:
    """The beginning; the beginning with others after it; a shuffled part, where values are not few."""
    rng = np.random.default_rng(1)
    now, others = file(LAWS[law](rng, 1000)), file(LAWS[law](rng, 1000))
    size = int(1000 * kept)
    part = picked(now, np.arange(size))
    assert same_records(now, part)
    if law not in COARSE:
        shuffled = picked(now, rng.permutation(1000)[:size])
        assert same_records(now, shuffled)
        assert same_records(shuffled, now)
        mixed = picked(joined(part, picked(others, np.arange(1000 - size))), rng.permutation(1000))
        assert same_records(now, mixed) or (law, kept) == ("counts", 0.95)


def test_count_records_but_one_are_the_current_file() -> None:
    now = file(LAWS["counts"](np.random.default_rng(1), 400))
    for gone in (0, 200, 399):
        which = np.delete(np.arange(400), gone)
        assert same_records(now, picked(now, which))
        assert same_records(now, picked(now, which[::-1]))
    turnout = file(LAWS["turnout"](np.random.default_rng(1), 400))
    assert same_records(turnout, picked(turnout, np.delete(np.arange(400), 200)))


def test_a_file_within_a_much_larger_one_is_found() -> None:
    rng = np.random.default_rng(2)
    now = file(LAWS["rounded salaries"](rng, 500))
    larger = joined(now, file(LAWS["rounded salaries"](rng, 5000)))
    assert same_records(now, picked(larger, rng.permutation(5500)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("size", "other", "cells"), [(400, 399, 1), (400, 400, 40), (1000, 10_000, 1), (4000, 4000, 816)])
def test_honest_periods_are_two_files(law: str, size: int, other: int, cells: int) -> None:
    """In order and sorted. A pair fails at 1e-6, all at less than 1e-3; equal multisets, of yes or no, are left out."""
    for seed in range(30 if size < 1000 else 4):
        rng = np.random.default_rng([7, seed])
        values = LAWS[law](rng, size), LAWS[law](rng, other)
        for now, before in (
            (file(values[0], cells), file(values[1], cells)),
            (file(np.sort(values[0])), file(np.sort(values[1]))),
        ):
            if not np.array_equal(np.sort(now.record), np.sort(before.record)):
                assert not same_records(now, before)
                assert not same_records(before, now)


def test_an_order_that_the_design_fixes_is_no_likeness() -> None:
    """Couples, one after the other, of whom almost nobody says yes; and the same files, one of them with many who do."""
    sex = np.arange(1000, dtype=np.uint64) % 2
    rare, often = (np.arange(1000) % period == 0 for period in (400, 7))

    def couples(yes: NDArray[np.bool_]) -> RecordHashes:
        return RecordHashes(sex * np.uint64(2) + yes.astype(np.uint64), sex)

    assert not same_records(couples(rare), picked(couples(rare), np.arange(999)))
    assert same_records(couples(often), picked(couples(often), np.arange(999)))


def test_strata_of_fixed_size_overlap_by_design() -> None:
    """816 strata of ten, 97 % say yes: over nine tenths are held, which would be no coincidence were sizes drawn."""
    rng = np.random.default_rng(3)
    now, before = (file(rng.random(8160) < 0.97, 816) for _ in range(2))
    assert not same_records(now, before)
    blind = [RecordHashes(one.record, np.zeros_like(one.codes)) for one in (now, before)]
    assert same_records(blind[0], picked(blind[1], rng.permutation(8160)))


def test_the_chance_is_that_of_all_allocations() -> None:
    """Enumerated: 3 + 2 + 2 pooled records of one cell and 2 of another, four and one of them the small file's."""
    kinds, alone = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 0])
    found = []
    for mine, one in product(combinations(range(7), 4), combinations(range(2), 1)):
        missing = sum(
            np.maximum(2 * np.bincount(of[list(which)], minlength=3) - np.bincount(of, minlength=3), 0).sum()
            for of, which in ((kinds, mine), (alone, one))
        )
        found.append(missing)
    law = np.array([[7, 4, 3], [7, 4, 2], [7, 4, 2], [2, 1, 2]])
    for most in range(5):
        expected, log_chance = chance(law, most)
        assert expected == pytest.approx(np.mean(found))
        assert 1.0 >= np.exp(log_chance) >= np.mean(np.array(found) <= most) - 1e-12


def test_the_bound_is_near_the_chance_where_it_decides() -> None:
    """2,000 allocations of 400 and 400 count records: none is as alike as the bound says happens once in a million."""
    rng = np.random.default_rng(4)
    pooled = LAWS["counts"](rng, 800)
    _, value, total = np.unique(pooled, return_inverse=True, return_counts=True)
    law = np.column_stack([np.full(len(total), 800), np.full(len(total), 400), total])
    found = [
        np.maximum(2 * np.bincount(value[rng.permutation(800)[:400]], minlength=len(total)) - total, 0).sum()
        for _ in range(2000)
    ]
    assert chance(law, 0)[0] == pytest.approx(np.mean(found), rel=0.01)
    decisive = max(k for k in range(400) if chance(law, k)[1] < np.log(FALSE_ALARM))
    assert 0 < decisive < min(found)
    for most in np.quantile(found, [0.01, 0.1]).astype(int).tolist():
        assert np.mean(np.array(found) <= most) <= np.exp(chance(law, most)[1]) + 4 * np.sqrt(0.1 / 2000)
