"""Shares of records with an amount, where most have none: they are those of the file, whatever tables the job has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.keys import Key
from dpdist.estimation.donors import DonorsByCell
from dpdist.mechanisms.tables.synthetic import OfDonors
from dpdist.opening.results import open_evaluation

LEVELS = {"region": 8, "age": 4, "sex": 2, "status": 5}


def survey(seed: int, records: int = 3_000) -> pd.DataFrame:
    """Earnings that 85 % of two statuses have, and few of the others: fewer than 1 in 100 of the oldest. Incomes that
    differ by factors between levels.
    """
    rng = np.random.default_rng(seed)
    codes = {name: rng.integers(0, size, records) for name, size in LEVELS.items()}
    likely = np.where(codes["status"] < 2, 0.85, np.array([0.1, 0.05, 0.03, 0.008])[codes["age"]])
    amount = np.exp(9.0 + 0.2 * codes["age"] + 0.1 * codes["sex"] + 0.5 * rng.standard_normal(records))
    columns = {name: [f"{name} {code}" for code in of] for name, of in codes.items()}
    earnings = np.where(rng.random(records) < likely, np.round(amount), 0.0)
    levels = 0.5 * codes["age"] + 0.6 * (codes["region"] % 3) + 0.5 * codes["status"]
    income = np.round(np.exp(8.0 + levels + 0.4 * rng.standard_normal(records)))
    return pd.DataFrame(
        columns | {"earnings": earnings, "income": income, "weight": np.exp(4.0 + 0.3 * rng.standard_normal(records))}
    )


def figures(folder: Path, tables: list[list[str]], statistic: dict[str, Any]) -> pd.DataFrame:
    """Direct and published figures of cells of 30 records and more, at a budget that leaves no noise."""
    for name, seed in (("current", 1), ("earlier", 2)):
        survey(seed).to_parquet(folder / f"{name}.parquet")
    levels = {name: {"levels": [f"{name} {code}" for code in range(size)]} for name, size in LEVELS.items()}
    outcome = next(iter(statistic.values()))
    statistics = ["count", {"mean": outcome}, statistic]
    told: dict[str, Any] = {
        "dataset": "earnings",
        "period": "2024",
        "input": {"path": "current.parquet"},
        "columns": levels
        | {outcome: {"bounds": [0, 1e6], "outside": "clip"}, "weight": {"bounds": [1, 1000], "outside": "clip"}},
        "survey": {"weight": "weight"},
        "outcome": outcome,
        "mechanism": {"name": "tables"},
        "budget": {"epsilon": "10000", "adjacency": "substitution"},
        "public_frame": {"accepted": "simulated"},
        "reference": {"path": "earlier.parquet", "period": "2022"},
        "tables": [{"name": "-".join(by), "by": by, "statistics": statistics} for by in tables],
    }
    (folder / "job.json").write_text(json.dumps(told), encoding="utf-8")
    dpdist.run(folder / "job.json", folder / "ws", study=Key(bytes(32)).child("amounts"))
    rows = pd.concat(open_evaluation(folder / "ws").values())
    named = rows["statistic"].str.startswith(next(iter(statistic)))
    return rows[named & (rows["records"] >= 30) & (rows["direct_se"] > 0)]


MANY = [["age", "sex"], ["region", "status"], ["status", "age"]]
ABOVE_0 = {"proportion": "earnings", "above": 0}


def off(found: pd.DataFrame) -> pd.Series:
    """Distances of shares, in standard errors of a share of the larger of both: a direct error of one record is none."""
    larger = found[["synthetic", "direct"]].clip(upper=0.5).max(axis=1)
    return (found["synthetic"] - found["direct"]).abs() / np.sqrt(larger * (1.0 - larger) / found["records"])


@pytest.mark.parametrize("tables", [MANY[:1], MANY])
def test_shares_with_an_amount_are_those_of_the_file(tables: list[list[str]], tmp_path: Path) -> None:
    """As near as those of an independent sample: of 60 shares one is farther than 4.5 standard errors of a difference by
    chance in 1 of 1,000 runs.
    """
    found = figures(tmp_path, tables, ABOVE_0)
    assert off(found).max() <= 4.5 * np.sqrt(2.0)
    assert off(found).median() <= 1.3


def test_control_a_mean_of_donors_without_an_amount_moved_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All donors of a base cell have 0, and its mean is above 0: with the mean, all of them got an amount."""
    monkeypatch.setattr(OfDonors, "_with_amount", lambda self, cell, mean, outcome: np.ones_like(mean))
    monkeypatch.setattr(DonorsByCell, "amounts_near", lambda self, _, cells: [self.of_cell(int(k)) for k in cells])
    assert off(figures(tmp_path, MANY, ABOVE_0)).max() > 9.0


@pytest.mark.long
def test_medians_of_cells_of_few_donors_are_not_those_of_a_wider_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means of medians' distances over 60 cells, in direct standard errors: within .5. Control: amounts of donors from
    other cells as they are have the spread between cells, and cells' means add it again.
    """

    def lean(folder: Path) -> float:
        folder.mkdir()
        found = figures(folder, MANY, {"median": "income"})
        return float(((found["synthetic"] - found["direct"]) / found["direct_se"]).mean())

    assert abs(lean(tmp_path / "moved")) <= 0.5
    of_cells = OfDonors.of_cells.__func__  # type: ignore[attr-defined]

    def as_they_are(cls: type[OfDonors], *given: Any) -> OfDonors:
        *rest, predicted = given
        return cast(OfDonors, of_cells(cls, *rest, np.ones_like(predicted)))

    monkeypatch.setattr(OfDonors, "of_cells", classmethod(as_they_are))
    assert lean(tmp_path / "as they are") < -0.5
