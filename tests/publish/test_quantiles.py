"""Quantiles of donors moved to estimated means; those of heaped answers hold the truth."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from quantile_surveys import Survey, by_replicate, released_quantiles

from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.mechanisms.tables.synthetic import OfDonors
from dpdist.models.protocol import Draws

HEAPED = Survey(heaped=True, drift=0.03)
REPLICATES = 25
LOW, HIGH = 0.86, 0.94
FALSE_ALARM = 1.645
"""Standard errors by which a mean over replicates may miss a limit: at the limit itself, one test in twenty fails."""


def coverage(rates: Iterable[float]) -> tuple[float, float]:
    """The mean over replicates, and what FALSE_ALARM allows it."""
    by_replicate = np.array(list(rates))
    return float(by_replicate.mean()), FALSE_ALARM * float(by_replicate.std(ddof=1)) / len(by_replicate) ** 0.5


@pytest.mark.long
def test_intervals_of_heaped_answers_hold_the_truth(tmp_path: Path) -> None:
    """They held .74 of it: heaps were moved with the scale. Control: a truth that is a tenth larger is held far less."""
    published = released_quantiles(tmp_path, HEAPED, REPLICATES, reference=True)
    held, allowed = coverage(by_replicate(published))
    assert LOW - allowed <= held <= HIGH + allowed
    control, allowed = coverage(by_replicate(published, shift=1.1))
    assert control + allowed < LOW


@pytest.mark.parametrize(("cell_records", "shift", "widest"), [(60, 1.3, 0.33), (12, 1.7, 0.75)])
def test_intervals_of_quantiles_in_a_package_hold_the_truth(
    cell_records: int, shift: float, widest: float, tmp_path: Path
) -> None:
    """At 12 records the donors are a whole group's, and a base cell's mean errs by half of itself. Of 45 intervals .97
    hold the truth in the mean, so that .8 fails by chance less than once in 10,000 runs. Control: truths `shift` times as
    large.
    """
    survey = Survey(cell_records=cell_records, drift=0.05)
    published = released_quantiles(tmp_path, survey, 3, reference=True, mechanism="tables")
    assert np.mean(list(by_replicate(published))) >= 0.8
    assert np.mean(list(by_replicate(published, shift))) < 0.5
    assert ((published["upper"] - published["lower"]) / published["truth"]).median() < widest


@pytest.mark.parametrize("mean", [100.0, 20.0, 4.0, 1.4])
def test_shares_of_a_package_follow_errors_of_a_mean_wherever_it_was_released(mean: float) -> None:
    """Donors have a mean of 100. A mean that is a tenth larger lowers the share below the mean by .07, as for the moved
    donors themselves. Steps of 5 were taken at any mean, and shares at 4 or 1.4 hardly moved. Control: a mean of 0 has no
    outcome above 0.
    """
    donors = np.random.default_rng(1).gamma(4.0, 25.0, 2000)
    donors *= 100.0 / donors.mean()
    cells = cast(
        ResidualCells, SimpleNamespace(bounds=((0.0, 1e6),), design=SimpleNamespace(pattern=np.zeros(1, dtype=int)))
    )
    points, standing = [[np.column_stack([np.ones(2000), donors])]], np.array([2000.0])
    row, value = np.zeros(1, dtype=np.int64), np.array([mean])

    def share(released: float, further: float) -> float:
        theta = Draws({"means": np.array([[[1.0, released]]])})
        moved = Draws({"weights": np.ones((1, 1)), "products": np.full((1, 1, 1), released * further)})
        of_donors = OfDonors(cells, points, standing, theta, np.zeros((1, 1), dtype=np.bool_))
        return float(of_donors.until(moved, row, value)[0, 0])

    fall = share(mean, 1.1) - share(mean, 1.0)
    exact = np.mean(donors * 1.1 <= 100.0) - np.mean(donors <= 100.0)
    assert fall == pytest.approx(exact, rel=0.2)
    assert fall < -0.05
    assert share(0.0, 1.0) == 1.0


def test_quantiles_of_heaped_answers_are_answers(tmp_path: Path) -> None:
    """The estimate and its limits are values that records of the reference have; they were moved with the scale. Two
    releases.
    """
    published = released_quantiles(tmp_path, HEAPED._replace(drift=0.0), 2, reference=True)
    for name in ("estimate", "lower", "upper"):
        on_heap = np.isin(published[name] % 1_000.0, 0.0)
        assert on_heap.mean() > 0.6, name
    smooth = released_quantiles(tmp_path, Survey(), 1, reference=True)
    assert not np.isin(smooth["estimate"] % 1_000.0, 0.0).any(), "control"


def test_a_quantile_that_most_records_have_is_this_value_without_a_standard_error(tmp_path: Path) -> None:
    """At .7 zeros the median is 0, and so are its limits; it was 2.2e-10 with a standard error of 0. Control: the upper
    quantile has a standard error.
    """
    published = released_quantiles(tmp_path, Survey(drift=0.05, without=0.7), 1, reference=True).set_index("statistic")
    medians, control = published.loc["median"], published.loc["quantile 0.9"]
    assert (medians[["estimate", "lower", "upper"]] == 0.0).all(axis=None)
    assert medians["standard_error"].isna().all()
    assert (control["standard_error"] > 0.0).all()
    assert (control["estimate"] > 1_000.0).all()
