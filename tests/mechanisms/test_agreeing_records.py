"""Records beside a strict table: tables made from them are the published ones, and they have the reference's shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from strict_survey import Named, job, survey

import dpdist
from dpdist.core.records import TOTAL
from dpdist.job.loading import find_job, parse_job
from dpdist.mechanisms.tables import calibration

CELL = ["field", "sex"]
ORDERS = np.array([0.1, 0.25, 0.5, 0.75, 0.9])


def two_jobs(seed: int, drift: float = 1.0, n: int = 6000) -> pd.DataFrame:
    """Part-timers with small weights, full-timers with large ones; thousands, zeros, a top-code below the bound."""
    rows, rng = survey(seed, n), np.random.default_rng(seed + 100)
    full = rng.random(n) < 0.6
    salary = np.where(full, np.exp(rng.normal(11.1, 0.35, n)), np.exp(rng.normal(9.3, 0.3, n)))
    salary = np.minimum(np.round(drift * salary, -3), 120_000.0) * (rng.random(n) > 0.04)
    return rows.assign(salary=salary, weight=np.where(full, 200.0, 25.0) * rng.choice([1.0, 1.5], n))


def quantiles(rows: pd.DataFrame, outcome: str, orders: np.ndarray = ORDERS) -> np.ndarray:
    ordered = rows.sort_values(outcome)
    below = np.cumsum(ordered["weight"].to_numpy()) / ordered["weight"].sum()
    places = np.searchsorted(below, np.asarray(orders) - 1e-12)
    return ordered[outcome].to_numpy(float)[np.clip(places, 0, len(ordered) - 1)]


def share(rows: pd.DataFrame, outcome: str, value: float) -> tuple[float, float]:
    """Weighted share of records at a value, and its standard error."""
    at, weight = (rows[outcome] == value).to_numpy(float), rows["weight"].to_numpy(float)
    found = float(np.average(at, weights=weight))
    return found, float(np.sqrt(((weight * (at - found)) ** 2).sum()) / weight.sum())


def woodruff(rows: pd.DataFrame, outcome: str) -> np.ndarray:
    """Standard errors of quantiles: the width of Woodruff's 90 % interval over 2 · 1.645."""
    errors = []
    for order, value in zip(ORDERS, quantiles(rows, outcome), strict=True):
        away = rows["weight"] * ((rows[outcome] <= value) - order)
        half = 1.645 * float(np.sqrt((away**2).sum())) / rows["weight"].sum()
        low, high = quantiles(rows, outcome, np.clip([order - half, order + half], 1e-9, 1.0))
        errors.append((high - low) / 3.29)
    return np.array(errors)


def atoms_off(made: pd.DataFrame, before: pd.DataFrame, cell: list[str], outcome: str) -> list[float]:
    """|difference| of the weighted shares of zeros and of a top-code from the reference's, in its standard errors."""
    top, found = before[outcome].max(), []
    others = dict(iter(made.astype(dict.fromkeys(cell, str)).groupby(cell)))
    for key, own in before.astype(dict.fromkeys(cell, str)).groupby(cell):
        for atom in [0.0, top] if (before[outcome] == top).sum() > 5 else [0.0]:
            expected, error = share(own, outcome, atom)
            if error > 0 and len(own) >= 30 and key in others:
                found.append(abs(share(others[key], outcome, atom)[0] - expected) / error)
    return found


def errors_of(made: pd.DataFrame, now: pd.DataFrame, cell: list[str], outcome: str) -> np.ndarray:
    """|error| of quantiles against the current file, in its own standard errors where these are above 0, (cell, order)."""
    others, found = dict(iter(made.astype(dict.fromkeys(cell, str)).groupby(cell))), []
    for key, own in now.astype(dict.fromkeys(cell, str)).groupby(cell):
        if len(own) >= 30 and key in others:
            error, scale = np.abs(quantiles(others[key], outcome) - quantiles(own, outcome)), woodruff(own, outcome)
            found.append(np.divide(error, scale, out=np.zeros(len(ORDERS)), where=scale > 0))
    return np.array(found)


@pytest.fixture(scope="module")
def files(two_periods: Callable[..., Path]) -> Path:
    return two_periods(survey, 1.1)


@pytest.fixture(scope="module")
def public(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreeing") / "ws"
    return dpdist.run(job(files), folder)


def recomputed(records: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """Counts and weighted means of every cell and margin."""
    copies = [records, records.assign(field=TOTAL), records.assign(sex=TOTAL), records.assign(field=TOTAL, sex=TOTAL)]
    found = pd.concat([copy.astype({"field": str, "sex": str}) for copy in copies])
    found = found.assign(product=found["weight"] * found[outcome]).groupby(CELL)[["weight", "product"]].sum()
    return pd.DataFrame({"count": found["weight"], "mean": found["product"] / found["weight"]})


def published(public: Path, statistic: str, variable: str | None = None) -> pd.Series:
    table = pd.read_parquet(public / "tables" / "salaries.parquet")
    own = (table["estimator"] == "parameters") & (table["statistic"] == statistic)
    own &= (table["variable"] == variable) if variable else table["variable"].isna()
    return table[own].set_index(CELL)["estimate"].sort_index()


def test_tables_made_from_the_records_are_the_published_ones(public: Path) -> None:
    found = recomputed(pd.read_parquet(public / "synthetic" / "set-1.parquet"), "salary").sort_index()
    for statistic, variable in (("count", None), ("mean", "salary")):
        np.testing.assert_allclose(found[statistic], published(public, statistic, variable), rtol=1e-9)


def test_records_have_the_references_shape_and_not_their_cells_means(public: Path, files: Path) -> None:
    """Over 60 releases quantiles are off by .073 ± .008 at most: all limits are ten standard deviations away, or more."""
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    now = pd.read_parquet(files / "now.parquet")
    assert len(made) == len(now)
    for name in ("weight", "salary"):
        assert np.log1p(made[name]).std() == pytest.approx(np.log1p(now[name]).std(), rel=0.15)
        quantiles = [frame[frame["salary"] > 0][name].quantile([0.1, 0.5, 0.9]).to_numpy() for frame in (made, now)]
        np.testing.assert_allclose(quantiles[0], quantiles[1], rtol=0.15)
    assert (made["salary"] == 0).mean() == pytest.approx(0.03, abs=0.015)
    assert (made["salary"] % 100 == 0).all()


def test_the_joint_law_of_weight_and_outcome_is_the_references(tmp_path: Path, noise_of: Named) -> None:
    """Quantiles err by 1.5 times the reference's own error at most, zeros and the top-code keep their shares in every cell.
    Control: the reference's values with weights dealt out anew."""
    now, before = two_jobs(1), two_jobs(2)
    now.to_parquet(tmp_path / "now.parquet")
    before.to_parquet(tmp_path / "before.parquet")
    with noise_of("two jobs"):
        public = dpdist.run(
            job(tmp_path, edit=("[laplace_composed, laplace_finest, reference_only]", "[]")), tmp_path / "ws"
        )
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    dealt = before.assign(weight=np.random.default_rng(3).permutation(before["weight"]))
    published, own, control = (errors_of(each, now, CELL, "salary").mean(axis=0) for each in (made, before, dealt))
    assert (published <= 1.5 * own).all(), (published, own)
    assert control.mean() > 4 * own.mean()
    off = atoms_off(made, before, CELL, "salary")
    assert len(off) == 12
    assert max(off) <= 1.0
    assert (made["salary"] % 1000 == 0).all()


def test_under_drift_values_move_and_stay_round(tmp_path: Path, noise_of: Named) -> None:
    """Salaries are up by a quarter: quantiles err like those of another sample of the same year, by 1.5 times at most, and
    the top-code is where it was. Control: the reference as it is, which keeps its values, is off by several times that."""
    now, before, other = two_jobs(1, drift=1.25), two_jobs(2), two_jobs(2, drift=1.25)
    now.to_parquet(tmp_path / "now.parquet")
    before.to_parquet(tmp_path / "before.parquet")
    with noise_of("two jobs"):
        public = dpdist.run(
            job(tmp_path, edit=("[laplace_composed, laplace_finest, reference_only]", "[]")), tmp_path / "ws"
        )
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    published, own, control = (errors_of(each, now, CELL, "salary").mean() for each in (made, other, before))
    assert published <= 1.5 * own
    assert control > 3 * own
    assert (made["salary"] % 1000 == 0).all()
    assert made["salary"].max() == 120_000.0


HALVES = {
    "nscg_strict": ("nscg2013", ["degree_field", "sex"], "salary", "nscg2010.parquet"),
    "tax_wages_strict": ("cps_taxunits", ["state", "filing_status"], "wages", "cps_taxunits_before.parquet"),
}
STATES = ["CA", "NY", "TX", "FL", "WY", "VT"]


@pytest.mark.long
@pytest.mark.real_data
@pytest.mark.parametrize("name", HALVES)
def test_quantiles_of_records_on_real_halves_err_like_the_references(
    name: str, data: Path, tmp_path: Path, noise_of: Named
) -> None:
    """By order over cells of three splits, of tax units 24,000 in six states. Zeros and a top-code keep their shares."""
    file, cell, outcome, old = HALVES[name]
    rows = pd.read_parquet(data / f"{file}.parquet")
    if file == "cps_taxunits":
        rows = rows[rows["state"].isin(STATES)].sample(24_000, random_state=4)
    else:
        rows = rows[rows["employment_status"] == "Employed"]
    errors, off = [], []
    for split in range(3):
        half, path = np.random.default_rng(split).random(len(rows)) < 0.5, tmp_path / f"before{split}.parquet"
        before, now = rows[half], rows[~half]
        before.to_parquet(path)
        now.to_parquet(tmp_path / "now.parquet")
        said = parse_job(find_job(name).read_text(encoding="utf-8").replace(old, str(path)))
        said = said.model_copy(update={"compare": ()})
        with noise_of(f"{name} {split}"):
            public = dpdist.run(said, tmp_path / str(split), input=tmp_path / "now.parquet")
        made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
        errors.append([errors_of(each, now, cell, outcome).mean(axis=0) for each in (made, before)])
        off += atoms_off(made, before, cell, outcome)
    published, own = np.mean(errors, axis=0)
    assert (published <= 1.5 * own).all(), (published, own)
    assert max(off) <= 1.0


@pytest.mark.parametrize("epsilon", ["0.001", "0.05"])
def test_however_large_the_noise_the_records_agree(epsilon: str, files: Path, tmp_path: Path) -> None:
    """A strict mechanism may not fail on what it released. Nothing is withheld: the noise is larger than figures."""
    public = dpdist.run(job(files, epsilon=epsilon), tmp_path / "ws")
    found = recomputed(pd.read_parquet(public / "synthetic" / "set-1.parquet"), "salary").sort_index()
    np.testing.assert_allclose(found["count"], published(public, "count"), rtol=1e-9)
    np.testing.assert_allclose(found["mean"], published(public, "mean", "salary"), rtol=1e-9)


def test_several_outcomes_agree_in_one_file_of_records(tmp_path: Path) -> None:
    for name, seed in (("now", 1), ("before", 2)):
        rows = survey(seed)
        hours = np.random.default_rng(seed + 5).normal(40, 8, len(rows)).round().clip(1, 80)
        rows.assign(hours=hours).to_parquet(tmp_path / f"{name}.parquet")
    said = job(tmp_path).model_dump(mode="json")
    said["columns"]["hours"] = {"bounds": [1, 80], "outside": "clip"}
    said["outcome"] = ["salary", "hours"]
    said["tables"][0]["statistics"] = ["count", {"mean": "salary"}, {"mean": "hours"}]
    said["compare"] = []
    public = dpdist.run(dpdist.Job.model_validate(said), tmp_path / "ws")
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    for outcome in ("salary", "hours"):
        found = recomputed(made, outcome).sort_index()
        np.testing.assert_allclose(found["mean"], published(public, "mean", outcome), rtol=1e-9)
    np.testing.assert_allclose(found["count"], published(public, "count"), rtol=1e-9)


def test_searches_that_cannot_succeed_end_early_and_change_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 cells of 2 to 6 records with zeros, top-codes and means that they hardly reach: the same bytes as without an
    early end, in less than three fourths of the steps. Control: a search that also ends where it could succeed.
    """
    rng, steps, cells = np.random.default_rng(0), list[int](), list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
    amounts = np.exp(rng.normal(10.0, 1.0, 10_000)) * (rng.random(10_000) > 0.3)
    domain = calibration.Domain.of(np.minimum(amounts, 60_000.0), (0.0, 60_000.0), False)
    for number in rng.integers(2, 7, 600):
        outcome, weight = np.minimum(rng.choice(amounts, number), 60_000.0), np.exp(rng.normal(5.0, 1.0, number))
        mean = np.clip(np.average(outcome, weights=weight) * rng.lognormal(0.0, 0.3), 1.0, 59_000.0)
        cells.append((weight, outcome[:, None], np.array([mean])))
    newton = calibration._newton_step

    def counted(x: np.ndarray, tilted: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        steps.append(1)
        return newton(x, tilted, gradient)

    monkeypatch.setattr(calibration, "_newton_step", counted)

    def records(short: float) -> tuple[bytes, int]:
        steps.clear()
        monkeypatch.setattr(calibration, "SHORT", short)
        moved = [calibration.agree(weight, y, 50.0, means, (domain,), True) for weight, y, means in cells]
        return b"".join(part.tobytes() for cell in moved for part in cell), len(steps)

    (early, few), (late, many), (other, _) = (records(short) for short in (calibration.SHORT, 0.0, 1e3))
    assert early == late
    assert few < 0.75 * many
    assert other != late
