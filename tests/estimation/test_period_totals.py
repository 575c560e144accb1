"""Totals of earlier periods in history.json: listed number by number, or packed where they are many."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dpdist.core.public_files import DamagedFile
from dpdist.estimation import donors
from dpdist.estimation.donors import PeriodTotals, read_history, write_history

ROWS = np.array([[0, 0, 0], [1, 2, 2]])
TOTALS = PeriodTotals(
    *("2024", np.array([[0], [1], [2]]), np.array([3.0, 1.0, 2.0]), ROWS, np.full((3, 1), 0.1), np.full((3, 2), 1 / 3)),
    *(np.ones((3, 2)), np.full(3, 5.0), np.ones((3, 2)), np.zeros(0)),
)


@pytest.mark.parametrize("most", [2, 5, 100])
def test_totals_are_read_as_they_were_written_whether_listed_or_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(donors, "MOST_LISTED", most)
    write_history(path := tmp_path / "history.json", {"all": (TOTALS,)})
    assert path.read_text(encoding="utf-8").count("zlib") == {2: 8, 5: 4, 100: 0}[most]
    (again,) = read_history(tmp_path, path.name, 1, 1)["all"]
    assert all(np.array_equal(getattr(again, one.name), getattr(TOTALS, one.name)) for one in fields(PeriodTotals))


@pytest.mark.parametrize(
    "packed",
    [
        {"type": "<i4", "shape": [2, 3], "zlib": "eJw="},
        {"type": "<i4", "shape": [2, 3], "zlib": "not base64"},
        {"type": "|O", "shape": [2, 3], "zlib": "eJwDAAAAAAE="},
        {"type": "<i4", "shape": [7, 3]},
        {"type": "nonsense", "shape": [2, 3], "zlib": "eJwDAAAAAAE="},
    ],
)
def test_a_packed_array_that_is_damaged_is_refused(tmp_path: Path, packed: dict[str, object]) -> None:
    described = TOTALS.described() | {"row": packed}
    (tmp_path / "history.json").write_text(json.dumps({"strata": {"all": [described]}}), encoding="utf-8")
    with pytest.raises(DamagedFile, match="inconsistent totals"):
        read_history(tmp_path, "history.json", 1, 1)
