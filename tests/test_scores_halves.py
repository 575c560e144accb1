"""The score model on a real file: one half as reference for the other, against METHODS §5b's figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.jobfile import find_job, parse_job

SPLITS = 4
OWN = "weighted, weights: fixed_point, aim: 0.35"


def halves(data: Path, folder: Path, mechanism: str, sets: int) -> pd.DataFrame:
    """|error| / direct SE, median and largest over cells and margins, by statistic; means over splits."""
    rows = pd.read_parquet(data / "nscg2013.parquet")
    rows, found = rows[rows["employment_status"] == "Employed"], []
    text = find_job("nscg_scores").read_text(encoding="utf-8")
    for old, new in ((OWN, mechanism), ("synthetic_sets: 3", f"synthetic_sets: {sets}"), ("nscg2010", f"{folder}/before"),
                     ('"10.8"', f'"{3.6 * sets:.1f}"')):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    for split in range(SPLITS):
        order, half = np.random.default_rng(100 + split).permutation(len(rows)), len(rows) // 2
        rows.iloc[np.sort(order[:half])].to_parquet(folder / "now.parquet")
        rows.iloc[np.sort(order[half:])].to_parquet(folder / "before.parquet")
        workspace = folder / f"{mechanism[:5]}-{sets}-{split}"
        dpdist.run(parse_job(text + "record: {log_lik: never}\n"), workspace, input=folder / "now.parquet")
        errors = pd.read_parquet(workspace / "confidential" / "evaluation" / "salaries.parquet")
        found.append(errors.groupby("statistic")["synthetic_error_in_se"].agg(["median", "max"]))
    return sum(found[1:], found[0]) / SPLITS


@pytest.mark.slow
@pytest.mark.real_data
def test_unprotected_the_bias_is_below_six_tenths_of_a_direct_error(data: Path, tmp_path: Path) -> None:
    """Means over four splits; with 30 sets the draws' own spread is gone from the figures."""
    bias = halves(data, tmp_path, "unweighted", 30)
    assert (bias["median"] <= 0.6).all(), bias
    assert (halves(data, tmp_path, "unweighted", 3)["median"] <= 0.75).all()


@pytest.mark.slow
@pytest.mark.real_data
def test_protected_at_36_tenths_a_set_the_error_is_no_larger(data: Path, tmp_path: Path) -> None:
    """METHODS §5b: medians .67 and .64, largest 2.1 and 1.9 for one table of m = 3. Means of four splits vary: with
    other keys those of means came to .61 and .81."""
    found = halves(data, tmp_path, OWN, 3)
    assert (found["median"] <= [0.77, 0.74]).all(), found
    assert (found["max"] <= [2.6, 2.6]).all(), found
