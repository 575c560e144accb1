"""Tests of coverage where cells share errors, and margins hold their cells: right tables pass, wrong ones do not."""

from __future__ import annotations

import tracemalloc
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpdist.core.records import TOTAL
from dpdist.quality.shared_errors import Counts, at_most, shared_errors
from dpdist.quality.summary import in_words
from dpdist.quality.verdict import BASE, FALSE_ALARM, MARGINS, Verdict, judge

REGIONS, AGES = 4, 6
DIRECT = 100.0
SHARED = {
    "no error is shared": (0.0, 0.0, 0.0),
    "regions share": (0.0, 0.6, 0.0),
    "all share": (0.5, 0.0, 0.0),
    "all, regions and ages share": (0.3, 0.2, 0.2),
    "nearly one error": (0.95, 0.0, 0.0),
}
"""Parts of a base cell's variance: of an error of all cells, of the cells of a region, of those of an age."""


def table(
    rng: np.random.Generator, shared: tuple[float, float, float], margins: float = 1.0, stated: float = 1.0
) -> pd.DataFrame:
    """Counts by region and age with all margins, published with noise; direct estimates have no error between them.

    Published errors are the right ones times `stated`, and those of margins times `margins`, too.
    """
    all_, region, age = shared
    parts = [np.sqrt(1.0 - sum(shared)) * rng.standard_normal((REGIONS, AGES)), np.sqrt(all_) * rng.standard_normal()]
    parts += [np.sqrt(region) * rng.standard_normal((REGIONS, 1)), np.sqrt(age) * rng.standard_normal((1, AGES))]
    errors = parts[0] + parts[1] + parts[2] + parts[3]
    lines = []
    for r in [*range(REGIONS), None]:
        for a in [*range(AGES), None]:
            rows, columns = slice(r, None if r is None else r + 1), slice(a, None if a is None else a + 1)
            n, m = errors[rows, columns].shape
            variance = n * m * (1.0 - sum(shared)) + (n * m) ** 2 * all_ + n * m**2 * region + m * n**2 * age
            error = stated * (1.0 if n == m == 1 else margins) * np.sqrt(variance)
            label = (TOTAL if r is None else f"r{r}", TOTAL if a is None else f"a{a}")
            lines.append((*label, float(errors[rows, columns].sum()), error, n * m))
    made = pd.DataFrame(lines, columns=["region", "age", "gap", "error", "cells"])
    reach, synthetic = stats.norm.ppf(0.95) * made["error"], DIRECT * made["cells"] + made["gap"]
    return made[["region", "age"]].assign(
        statistic="count",
        variable=None,
        records=500,
        direct=DIRECT * made["cells"],
        direct_se=1e-3,
        direct_df=200.0,
        synthetic=synthetic,
        synthetic_se=made["error"],
        synthetic_noise_se=made["error"],
        synthetic_df=np.inf,
        synthetic_lower=synthetic - reach,
        synthetic_upper=synthetic + reach,
    )


def judged(rows: pd.DataFrame) -> Verdict:
    verdict = judge(rows)
    assert verdict is not None
    return verdict


def held_in(rows: pd.DataFrame) -> int:
    """The number of intervals that hold the direct figure."""
    return int(rows["direct"].between(rows["synthetic_lower"], rows["synthetic_upper"]).sum())


TABLES = 100
OFTEN = "nearly one error"
"""The other laws of errors are `long`."""


@pytest.mark.parametrize(
    "shared",
    [pytest.param(shared, id=name, marks=[] if name == OFTEN else [pytest.mark.long]) for name, shared in SHARED.items()],
)
def test_right_tables_fail_no_more_often_than_stated(shared: tuple[float, float, float]) -> None:
    """At most 1 in 20 fails, and at most .0175 by coverage. The verdict's probability of so few is .1 or less in a tenth.

    Of 100 right tables more than each limit has a probability of .001. Control: where nearly all of the
    variance is shared, a test of independent cells fails in far more.
    """
    rng = np.random.default_rng(40)
    tables = [table(rng, shared) for _ in range(TABLES)]
    verdicts = [judged(rows) for rows in tables]
    by_coverage = FALSE_ALARM * (BASE + MARGINS)
    assert sum(verdict.fails for verdict in verdicts) <= stats.binom.ppf(0.999, TABLES, FALSE_ALARM)
    assert sum(one.too_few or one.few_margins for one in verdicts) <= stats.binom.ppf(0.999, TABLES, by_coverage)
    assert sum(verdict.chance <= 0.1 for verdict in verdicts) <= stats.binom.ppf(0.999, TABLES, 0.1)
    if shared[0] > 0.5:
        apart = np.asarray(stats.binom.cdf([held_in(rows) for rows in tables], len(tables[0]), 0.9))
        assert (apart <= by_coverage).sum() > stats.binom.ppf(0.999, TABLES, by_coverage)


@pytest.mark.parametrize(
    ("shared", "margins"), [pytest.param((0.0, 0.0, 0.0), 0.2, marks=pytest.mark.long), ((0.3, 0.2, 0.2), 0.15)]
)
def test_margins_are_tested_by_their_own_errors(shared: tuple[float, float, float], margins: float) -> None:
    """Errors of margins alone are too small: found in .85 of tables, though all base cells are right. Without the margins
    the same tables pass.
    """
    rng = np.random.default_rng(42)
    tables = [table(rng, shared, margins=margins) for _ in range(30)]
    assert np.mean([judged(rows).fails for rows in tables]) >= 0.85
    base = [rows[(rows["region"] != TOTAL) & (rows["age"] != TOTAL)] for rows in tables]
    assert np.mean([judged(rows).too_few for rows in base]) <= 0.1


def test_errors_of_all_cells_that_are_too_small_are_found() -> None:
    """.4 of the right size, in .85 of tables or more."""
    rng = np.random.default_rng(43)
    for shared in ((0.0, 0.0, 0.0), (0.0, 0.3, 0.0)):
        assert np.mean([judged(table(rng, shared, stated=0.4)).fails for _ in range(30)]) >= 0.85


def test_29_of_42_is_never_called_chance() -> None:
    """Independent errors: a fault. Errors that all cells share: a warning with its probability, and no word of chance."""
    for shared in (SHARED["no error is shared"], SHARED["regions share"], SHARED[OFTEN]):
        rng, found = np.random.default_rng(44), 0
        for _ in range(400):
            verdict = judged(table(rng, shared, stated=0.75))
            if verdict.coverage > 0.75:
                continue
            found += 1
            text = in_words("t, count", verdict)
            assert "chance." not in text.replace("than chance", "")
            assert verdict.fails or (("This is a warning: fewer than 90 % are covered." in text) == verdict.warns)
            assert verdict.fails or verdict.coverage >= 0.7 or verdict.warns
            if found == 5:
                break
        assert found == 5


def test_numbers_have_the_law_of_shared_errors() -> None:
    """Independent cells: binomial. One error for all: the figure is missed everywhere or nowhere."""
    rng = np.random.default_rng(46)
    apart = Counts(rng.binomial(30, 0.9, 4000).astype(float), 30)
    assert at_most(22, apart, 0.9) == pytest.approx(stats.binom.cdf(22, 30, 0.9), rel=0.3)
    one = Counts(np.where(rng.random(4000) < 0.9, 30.0, 0.0), 30)
    assert at_most(22, one, 0.9) == pytest.approx(0.1, abs=0.03)
    assert at_most(30, one, 0.9) == 1.0
    assert at_most(0, Counts(np.zeros(4), 0), 0.9) == 1.0


@pytest.mark.long
def test_what_margins_say_of_shared_errors_is_found() -> None:
    """Simulated numbers spread as those of tables do: their variance is within a third."""
    rng = np.random.default_rng(47)
    for shared in SHARED.values():
        tables = [table(rng, shared) for _ in range(300)]
        held = [held_in(rows) for rows in tables]
        rows = tables[0]
        simulated = shared_errors(rows, rows["synthetic_se"].to_numpy(), ["region", "age"])
        both = simulated.base_held.plus(simulated.margins_held)
        assert both.cells == len(rows)
        assert both.counts.var() == pytest.approx(np.var(held), rel=1 / 3)


def test_a_large_table_takes_little_memory() -> None:
    """All errors of 25,000 cells at once, in 400 draws, take 80 MB and their copies."""
    levels = [[*range(size), TOTAL] for size in (25, 40, 25)]
    rows = pd.DataFrame(product(*levels), columns=["a", "b", "c"]).assign(statistic="count", records=10)
    tracemalloc.start()
    try:
        shared = shared_errors(rows, np.full(len(rows), 3.0), ["a", "b", "c"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (shared.base_held.cells, len(shared.base_held.counts)) == (25_000, 400)
    assert peak < 75 * 2**20
