"""Means of outcomes far from 0 under `tables`, on halves of a real file: docs/explanation/accuracy.md has the figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.mechanisms.tables import learned_prediction

pytestmark = [pytest.mark.slow, pytest.mark.real_data]
BY = ("age_group", "sex", "race_ethnicity")
BOUNDS = {"height_cm": (120, 220), "birth_year": (1930, 2000)}


def of_means(data: Path, folder: Path, outcome: str, epsilon: str, splits: range) -> tuple[float, float, float]:
    """Medians of |published - direct| and of published standard errors, over direct ones, and the share of 90 % intervals
    that hold the direct mean."""
    adults = pd.read_parquet(data / "nhanes2015.parquet").query("examined == 'Yes' and age >= 20 and height_cm.notna()")
    adults = adults.astype(dict.fromkeys(BY, str)).assign(birth_year=2016 - adults["age"].astype(int))
    adults = adults[[*BY, outcome, "weight_exam"]]
    parts = list[pd.DataFrame]()
    for split in splits:
        order, place = np.random.default_rng(split).permutation(len(adults)), folder / f"{outcome}-{epsilon}-{split}"
        place.mkdir(parents=True)
        for name, half in zip(("earlier", "current"), np.array_split(order, 2), strict=True):
            adults.iloc[half].to_parquet(place / f"{name}.parquet", index=False)
        columns = {name: {"levels": sorted(adults[name].unique())} for name in BY}
        bounds = {outcome: BOUNDS[outcome], "weight_exam": (0, 400_000)}
        job = {
            "dataset": "adults",
            "period": "2015",
            "input": {"path": str(place / "current.parquet")},
            "columns": columns | {name: {"bounds": ends, "outside": "clip"} for name, ends in bounds.items()},
            "survey": {"weight": "weight_exam"},
            "outcome": outcome,
            "mechanism": {"name": "tables"},
            "budget": {"epsilon": epsilon, "adjacency": "substitution"},
            "reference": {"path": str(place / "earlier.parquet"), "period": "2014"},
            "publish": "always",
            "tables": [
                {"name": "_".join(by), "by": by, "margins": True, "statistics": ["count", {"mean": outcome}]}
                for by in (BY[:2], BY[1:], BY[::2])
            ],
            "runtime": {"executor": "serial"},
        }
        dpdist.run(dpdist.parse_job(json.dumps(job)), place / "ws")
        for table in (place / "ws" / "public" / "tables").glob("*.parquet"):
            figures = [
                pd.read_parquet(at).query("statistic == 'mean'")
                for at in (table, place / "ws" / "confidential" / "evaluation" / table.name)
            ]
            by = [name for name in BY if name in figures[0]]
            parts.append(figures[0].merge(figures[1][[*by, "direct", "direct_se"]], on=by).query("direct_se > 0"))
    found = pd.concat(parts)
    off = (found["estimate"] - found["direct"]).abs()
    held = off <= 1.645 * found["standard_error"]
    return (
        float((off / found["direct_se"]).median()),
        float((found["standard_error"] / found["direct_se"]).median()),
        float(held.mean()),
    )


@pytest.mark.parametrize("outcome", BOUNDS)
def test_heights_and_years_are_as_accurate_as_direct_means(
    outcome: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three splits. Control: drift that is relative to the distance from 0 makes standard errors larger than direct ones,
    of years by far."""
    for epsilon in ("1", "4"):
        error, stated, held = of_means(data, tmp_path, outcome, epsilon, range(3))
        print(f"{outcome}, epsilon {epsilon}: error {error:.2f}, stated {stated:.2f}, held {held:.2f}")
        assert error < 0.8
        assert stated < 1.4
        assert held > 0.85
    monkeypatch.setattr(learned_prediction, "FROM_ORIGIN", 1e9)
    _, stated, _ = of_means(data, tmp_path / "control", outcome, "1", range(3, 4))
    print(f"control: {stated:.2f}")
    assert stated > (5.0 if outcome == "birth_year" else 1.4), "control"
