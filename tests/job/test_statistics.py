"""Statistics are objects: a job writes them, and they say their label, their needs and their sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from dpdist.core.records import Crosstab, cross
from dpdist.estimation.linear import Units, figures_of
from dpdist.job import Statistic
from dpdist.job.statistics import KINDS
from dpdist.job.tables import Statistics

WRITTEN: dict[str, tuple[Any, str]] = {
    "count": ("count", "count"),
    "mean": ({"mean": "pay"}, "mean of pay"),
    "total": ({"total": "pay"}, "total of pay"),
    "ratio": ({"ratio": ["pay", "hours"]}, "ratio of pay / hours"),
    "proportion": ({"proportion": "pay", "above": 10.0}, "proportion above 10 of pay"),
    "median": ({"median": "pay"}, "median of pay"),
    "quantile": ({"quantile": "pay", "at": 0.9}, "quantile 0.9 of pay"),
    "share": ({"share": ["sex"]}, "share across sex"),
    "difference": ({"difference": {"mean": "pay"}, "from": {"sex": "m"}}, "difference of mean of pay from sex m"),
}


def of(written: Any) -> Statistic:
    (made,) = TypeAdapter(Statistics).validate_python([written])
    return made


@pytest.mark.parametrize("name", KINDS)
def test_a_statistic_is_written_as_it_is_read_and_has_a_text(name: str) -> None:
    written, text = WRITTEN[name]
    made = of(written)
    assert (made.written, made.text) == (written, text)
    assert of(made.model_dump()) == made


@pytest.mark.parametrize("wrong", [{"quantile": "pay"}, {"mean": "pay", "at": 0.5}, {"share": []}, {"ratio": "pay"}])
def test_constants_that_are_missing_or_of_another_statistic_are_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match=r"is written|needs two outcomes"):
        of(wrong)


def test_values_are_those_of_the_definitions() -> None:
    """By hand, from two cells. A ratio moves as its numerator, over the sum below; its form adds up to 0."""
    crosstab = Crosstab({"sex": np.array([0, 1], np.int32)}, {"sex": ("f", "m")}, np.array([2, 2]), (), ())
    cells = cross(crosstab, ("sex",), False)
    weight, pay, hours = np.array([[2.0, 3.0]]), np.array([[8.0, 9.0]]), np.array([[4.0, 6.0]])

    def units(more: float = 0.0) -> Units:
        return Units(np.ones(2), weight, [pay + np.array([more, 0.0]), hours], lambda *_: weight)

    expected = {"count": [2, 3], "total": [8, 9], "mean": [4, 3], "ratio": [2, 1.5], "share": [0.4, 0.6]}
    for name, values in expected.items():
        assert figures_of(of(WRITTEN[name][0]), cells, ("pay", "hours")).of(units())[0] == pytest.approx(values)
    assert figures_of(of(WRITTEN["difference"][0]), cells, ("pay",)).of(units())[0] == pytest.approx(
        [1, np.nan], nan_ok=True
    )
    ratio = figures_of(of(WRITTEN["ratio"][0]), cells, ("pay", "hours"))
    moved = (ratio.of(units(1e-6)) - ratio.of(units()))[0] / 1e-6
    assert (moved, ratio.shares(units()).sum(axis=1)) == (pytest.approx([0.25, 0.0]), pytest.approx([0.0, 0.0]))


@pytest.mark.parametrize(
    ("above", "below", "possible"),
    [
        ((0.0, 1.0), (0.0, 1.0), (0.0, np.inf)),
        ((0.0, 6.0), (2.0, 3.0), (0.0, 3.0)),
        ((4.0, 6.0), (2.0, np.inf), (0.0, 3.0)),
        ((-6.0, -4.0), (2.0, 4.0), (-3.0, -1.0)),
        ((-6.0, -4.0), (0.0, 4.0), (-np.inf, -1.0)),
        ((-6.0, 6.0), (0.0, 4.0), (-np.inf, np.inf)),
        ((0.0, 1.0), (-1.0, 1.0), (-np.inf, np.inf)),
    ],
)
def test_a_ratio_is_between_the_quotients_of_its_bounds(
    above: tuple[float, float], below: tuple[float, float], possible: tuple[float, float]
) -> None:
    """Of two 0/1 outcomes it is not negative; that it is at most 1 is known to nobody who knows the bounds alone."""
    ratio = of({"ratio": ["pay", "hours"]})
    assert ratio.kind.possible(ratio, {"pay": above, "hours": below}.__getitem__) == possible
    values = [y / z for y in np.clip(above, -100.0, 100.0) for z in np.clip(below, 1e-9, 1e9)]
    assert possible[0] <= min(values) or below[0] < 0.0
