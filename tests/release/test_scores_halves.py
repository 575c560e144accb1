"""The score model on a real file: one half as reference for the other, against METHODS §5b's figures.

Every run releases 30 sets at ε = 3.6 each: their mean shows the bias, and ten threes of them what a table of m = 3 errs by.
Splits are fixed and draws are not: limits are asked of means over splits and threes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.errors import FitError
from dpdist.core.records import cross
from dpdist.job.loading import find_job, parse_job
from dpdist.publish.released import read_released
from dpdist.publish.standard_errors import cell_estimates
from dpdist.publish.synthesis import expectations

OWN = "weighted, weights: fixed_point, aim: 0.5"
SETS = 30


def errors(workspace: Path, sets: int) -> pd.DataFrame:
    """|error| / direct SE of tables of `sets` sets, median and largest over cells and margins, by statistic: means over as
    many tables as the release has sets for."""
    release = read_released(workspace / "public" / "released")
    expected = expectations(release)
    assert expected is not None
    cells = cross(release.crosstab, ["degree_field", "sex"], margins=True)
    pairs = (np.array([pair[k] for pair in expected]) for k in range(2))
    count, mean, _ = cell_estimates(cells, release.crosstab.count.astype(float), *pairs)
    direct = pd.read_parquet(workspace / "confidential" / "evaluation" / "salaries.parquet")
    found = {}
    for statistic, estimate in (("count", count), ("mean", mean)):
        own = direct[direct["statistic"] == statistic].set_index(["degree_field", "sex"]).loc[list(cells.labels)]
        tables = estimate.reshape(-1, sets, len(cells)).mean(axis=1)
        away = np.abs(tables - own["direct"].to_numpy()) / own["direct_se"].to_numpy()
        found[statistic] = {"median": np.median(away, axis=1).mean(), "max": away.max(axis=1).mean()}
    return pd.DataFrame(found).T


class Halves(NamedTuple):
    """Errors of tables of 3 and of 30 sets, means over splits; the median error of means of the reference alone; and how
    many runs were refused for their bound."""

    three: pd.DataFrame
    thirty: pd.DataFrame
    alone: float
    refused: int


def halves(data: Path, folder: Path, mechanism: str, splits: int) -> Halves:
    rows = pd.read_parquet(data / "nscg2013.parquet")
    rows, found = rows[rows["employment_status"] == "Employed"], []
    text = find_job("nscg_scores").read_text(encoding="utf-8")
    for old, new in ((OWN, mechanism), ("synthetic_sets: 3", f"synthetic_sets: {SETS}"), ("nscg2010", f"{folder}/before"),
                     ('"10.8"', f'"{3.6 * SETS:.1f}"'), ("laplace, laplace_composed, laplace_finest, ", "")):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    for split in range(splits):
        order, half = np.random.default_rng(100 + split).permutation(len(rows)), len(rows) // 2
        rows.iloc[np.sort(order[:half])].to_parquet(folder / "now.parquet")
        rows.iloc[np.sort(order[half:])].to_parquet(folder / "before.parquet")
        workspace = folder / f"{mechanism[:5]}-{split}"
        try:
            dpdist.run(parse_job(text + "record: {log_lik: never}\n"), workspace, input=folder / "now.parquet")
        except FitError:
            continue
        table = pd.read_parquet(workspace / "confidential" / "evaluation" / "salaries.parquet")
        alone = table.loc[table["statistic"] == "mean", "reference_only_error_in_se"].abs().median()
        found.append((errors(workspace, 3), errors(workspace, SETS), float(alone)))
    three, thirty, alone = zip(*found, strict=True)
    means = (sum(each[1:], each[0]) / len(found) for each in (three, thirty))
    return Halves(*means, float(np.mean(alone)), splits - len(found))


@pytest.mark.slow
@pytest.mark.real_data
def test_unprotected_the_bias_is_below_six_tenths_of_a_direct_error(data: Path, tmp_path: Path) -> None:
    """Four splits: with 30 sets the draws' own spread is gone from the figures. A three's median varies by .14 over draws,
    the mean of forty by .02: limits of .75 are more than 4 of these away."""
    found = halves(data, tmp_path, "unweighted", 4)
    assert (found.thirty["median"] <= 0.6).all(), found
    assert (found.three["median"] <= 0.75).all(), found
    assert found.refused == 0
    assert found.alone > 0.75, "control: the reference's own means"


@pytest.mark.slow
@pytest.mark.real_data
def test_protected_at_36_tenths_a_set_the_error_is_no_larger(data: Path, tmp_path: Path) -> None:
    """METHODS §5b: medians .67 and .64, largest 2.1 and 1.9 for one table of m = 3. Off-line, 90 splits: medians .52 and
    .55, each ± .01, largest 1.76 ± .05 and 1.72 ± .03; in these sixteen they vary by .02 and by .05 over threes: limits are
    3 of these away. Of 130 such runs 2 were refused: of sixteen more than 3 are with a chance below 1 in 10,000."""
    found = halves(data, tmp_path, OWN, 16)
    assert (found.three["median"] <= [0.67, 0.64]).all(), found
    assert (found.three["max"] <= [2.1, 1.9]).all(), found
    assert found.refused <= 3, found
    assert found.alone > 0.67, "control: the reference's own means"
